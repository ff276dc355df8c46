"""Trees of additions: which ranks' contributions meet where."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

from collbench.core.errors import UsageError

Kind = Literal["two", "together", "exact"]

T = TypeVar("T")


class Join(NamedTuple):
    """A node over its ``arity`` children: ``two`` are added and rounded; several are added
    ``together`` by an adder that aligns them to the largest; or ``exact``, without loss, and
    rounded at the end."""

    kind: Kind
    arity: int


class SumTree(NamedTuple):
    """An order of additions, as leaves (ranks) and Joins in postfix order. Children are sorted by
    their least leaf, as a + b and b + a are the same bits: equal orders are equal trees."""

    postfix: tuple[int | Join, ...]

    def __str__(self) -> str:
        return format_tree(self)

    @property
    def least(self) -> int:
        """Its least leaf."""
        first = self.postfix[0]
        assert isinstance(first, int)
        return first

    @property
    def leaves(self) -> list[int]:
        """Its leaves, sorted."""
        return sorted(step for step in self.postfix if isinstance(step, int))

    @property
    def joins(self) -> list[Join]:
        """Its nodes, children before parents."""
        return [step for step in self.postfix if isinstance(step, Join)]


def make_leaf(rank: int) -> SumTree:
    """The tree of one contribution."""
    return SumTree((rank,))


def join_trees(kind: Kind, children: Iterable[SumTree]) -> SumTree:
    """The tree whose root joins two or more ``children``; two added ``together`` are added as any
    two."""
    ordered = sorted(children, key=lambda child: child.least)
    if kind == "together" and len(ordered) == 2:
        kind = "two"
    steps = [step for child in ordered for step in child.postfix]
    return SumTree((*steps, Join(kind, len(ordered))))


def add_trees(a: SumTree, b: SumTree) -> SumTree:
    """The tree that adds two."""
    return join_trees("two", (a, b))


def fold_tree(tree: SumTree, leaf: Callable[[int], T], node: Callable[[Join, Sequence[T]], T]) -> T:
    """The value of the root, from those of leaves and what each node makes of its children's."""
    stack: list[T] = []
    for step in tree.postfix:
        if isinstance(step, Join):
            children = stack[-step.arity :]
            del stack[-step.arity :]
            stack.append(node(step, children))
        else:
            stack.append(leaf(step))
    return stack.pop()


def rename_leaves(tree: SumTree, rename: Callable[[int], int]) -> SumTree:
    """The same tree of other ranks."""
    return fold_tree(
        tree,
        lambda rank: make_leaf(rename(rank)),
        lambda join, children: join_trees(join.kind, children),
    )


def format_tree(tree: SumTree) -> str:
    """The tree as text, as 0+(1+(2+3)), together{0, 1, 2} or exact{0+1, 2}, which parse_tree
    reads."""

    def format_node(join: Join, children: Sequence[tuple[str, bool]]) -> tuple[str, bool]:
        if join.kind == "two":
            return "+".join(f"({text})" if is_sum else text for text, is_sum in children), True
        return f"{join.kind}{{{', '.join(text for text, _ in children)}}}", False

    return fold_tree(tree, lambda rank: (str(rank), False), format_node)[0]


TOKEN = re.compile(r"\s*(\d{1,7}|together|exact|[-+(){},])")

MAX_NESTING = 300


def parse_tree(text: str) -> SumTree:
    """The tree that a text describes. Raises UsageError where it is none, or a rank is in it
    twice."""
    tokens = TOKEN.findall(text)
    parser = _Parser(tokens)
    tree = parser.read_sum(0) if "".join(tokens) == re.sub(r"\s", "", text) else None
    if tree is None or parser.remaining or len(set(tree.leaves)) != len(tree.leaves):
        raise UsageError(f"'{text[:60]}' is no order of additions", "0+(1+(2+3)), for example")
    return tree


class _Parser:
    """A reader of tokens; every method returns None at what it cannot read."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.remaining = list(tokens)[::-1]

    def read_sum(self, depth: int) -> SumTree | None:
        """One operand, or two with a + between them."""
        first = self._read_operand(depth)
        if first is None or not self._skip("+"):
            return first
        second = self._read_operand(depth)
        return add_trees(first, second) if second else None

    def _read_operand(self, depth: int) -> SumTree | None:
        token = self.remaining.pop() if self.remaining and depth < MAX_NESTING else ""
        if token.isdecimal():
            return make_leaf(int(token))
        if token == "(":
            tree = self.read_sum(depth + 1)
            return tree if self._skip(")") else None
        if token in ("together", "exact") and self._skip("{"):
            children = [self.read_sum(depth + 1)]
            while self._skip(","):
                children.append(self.read_sum(depth + 1))
            whole = [child for child in children if child]
            closed = self._skip("}") and len(whole) == len(children) > 1
            return join_trees(token, whole) if closed else None  # type: ignore[arg-type]
        return None

    def _skip(self, token: str) -> bool:
        """Whether the next token is this one, which is then read."""
        if self.remaining and self.remaining[-1] == token:
            self.remaining.pop()
            return True
        return False


def list_nodes(tree: SumTree) -> list[tuple[Join, int]]:
    """The nodes of a tree, children before parents, each with a bit mask of the leaves below it."""
    nodes: list[tuple[Join, int]] = []

    def add_node(join: Join, children: Sequence[int]) -> int:
        mask = sum(children)
        nodes.append((join, mask))
        return mask

    fold_tree(tree, lambda rank: 1 << rank, add_node)
    return nodes


class Shape(NamedTuple):
    """The outline of a tree: its depth in additions, the most children of a node, and whether it is
    a chain, to which each addition brings one leaf; ``chain`` are then the leaves, the two that are
    added first in front."""

    depth: int
    widest: int
    chain: tuple[int, ...]


def measure_shape(tree: SumTree) -> Shape:
    """The outline of a tree, in time proportional to its leaves."""
    depths: dict[int, int] = {}
    waiting = [0]  # depths of the steps to come, parents before children
    for step in reversed(tree.postfix):
        depth = waiting.pop()
        if isinstance(step, Join):
            waiting += [depth + 1] * step.arity
        else:
            depths[step] = depth
    joins = tree.joins
    deepest = max(depths.values())
    is_chain = deepest == len(joins) == len(depths) - 1
    chain = sorted(depths, key=lambda rank: (-depths[rank], rank)) if is_chain else ()
    return Shape(deepest, max((join.arity for join in joins), default=1), tuple(chain))
