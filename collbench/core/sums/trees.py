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
    """The tree whose root joins two or more ``children``; two are ``two`` whatever the kind."""
    ordered = sorted(children, key=lambda child: child.least)
    if len(ordered) == 2:
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


def format_tree(tree: SumTree) -> str:
    """The tree as text, as 0+(1+(2+3)), together{0, 1, 2} or exact{0+1, 2}, which parse_tree
    reads."""

    def format_node(join: Join, children: Sequence[tuple[str, bool]]) -> tuple[str, bool]:
        if join.kind == "two":
            return "+".join(f"({text})" if is_sum else text for text, is_sum in children), True
        return f"{join.kind}{{{', '.join(text for text, _ in children)}}}", False

    return fold_tree(tree, lambda rank: (str(rank), False), format_node)[0]


TOKEN = re.compile(r"\s*([0-9]{1,7}|together\{|exact\{|[+()},])\s*")


def parse_tree(text: str) -> SumTree:
    """The tree that a text describes. Raises UsageError where it is none, or a rank is in it
    twice."""
    text = re.sub(r"\s*\{", "{", text)
    tree = _read_tree(TOKEN.findall(text)) if re.fullmatch(f"({TOKEN.pattern})+", text) else None
    if tree is None or len(set(tree.leaves)) != len(tree.leaves):
        raise UsageError(f"'{text[:60]}' is no order of additions", "0+(1+(2+3)), for example")
    return tree


def _read_tree(tokens: Iterable[str]) -> SumTree | None:
    """The tree that tokens describe; None where they describe none."""
    nested = [_Bracket("")]
    for token in tokens:
        inner = nested[-1]
        if token[0].isdecimal():
            fits = inner.take(make_leaf(int(token)))
        elif token[-1] in "({":
            fits = inner.awaits
            nested.append(_Bracket(token))
        elif token in "+,":
            fits = inner.skip(token)
        else:
            closed = nested.pop().close(token)
            fits = bool(nested) and closed is not None and nested[-1].take(closed)
        if not fits:
            return None
    return nested[0].close("") if len(nested) == 1 else None


class _Bracket:
    """What has been read since ``opener``: children, and of the last one a sum of at most two.
    ``awaits`` an operand next."""

    def __init__(self, opener: str) -> None:
        self.opener, self.awaits = opener, True
        self._children: list[SumTree] = []
        self._operands: list[SumTree] = []

    def take(self, operand: SumTree) -> bool:
        """Whether an operand fits here, which is then taken."""
        fits, self.awaits = self.awaits, False
        self._operands.append(operand)
        return fits

    def skip(self, token: str) -> bool:
        """Whether a + or a comma fits here, after which an operand is awaited."""
        fits = not self.awaits and (self.opener[-1:] == "{" or token == "+")
        self.awaits = True
        if token == "+":
            return fits and len(self._operands) == 1
        return fits and self._end_child()

    def _end_child(self) -> bool:
        if self._operands:
            pair = len(self._operands) == 2
            self._children.append(add_trees(*self._operands) if pair else self._operands[0])
        self._operands = []
        return True

    def close(self, token: str) -> SumTree | None:
        """The tree between the brackets, where this one closes it."""
        if self.awaits or {"": "", "(": ")"}.get(self.opener, "}") != token:
            return None
        self._end_child()
        if token != "}":
            return self._children[0]
        kind: Kind = "exact" if self.opener == "exact{" else "together"
        return join_trees(kind, self._children) if len(self._children) > 1 else None


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
