"""Trees of additions by rule, for any number of ranks: orders that libraries have and reference
algorithms have not.

A rule says which ranks hang below a rank, and in which order it adds their finished sums to its
own, one after the other. Ranks are counted from the root: (rank - root) mod n. Children have higher
numbers than their parent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from collbench.core.sums.trees import Join, SumTree, join_trees, make_leaf, measure_shape

Children = Callable[[int, int], Iterable[int]]  # of a rank, among n

PLUS = Join("two", 2)


class Rule(NamedTuple):
    """A rule of trees. ``fold`` names how ranks beyond a power of two join in, for the rules that
    need one."""

    name: str
    children: Children
    fold: str = ""

    @property
    def full_name(self) -> str:
        """The name with that of its fold."""
        return f"{self.name}, {self.fold}" if self.fold else self.name

    def build_tree(self, n: int, root: int = 0) -> SumTree:
        """The tree of n ranks to a root."""
        sums: dict[int, list[int | Join]] = {}  # in postfix order, the least leaf in front
        for rank in reversed(range(n)):
            total: list[int | Join] = [(rank + root) % n]
            for child in self.children(rank, n):
                parts = sorted((total, sums.pop(child)), key=_first_leaf)
                total = [*parts[0], *parts[1], PLUS]
            sums[rank] = total
        return SumTree(tuple(sums[0]))

    def reverse_children(self) -> Rule:
        """The rule by which each rank adds its farthest child first."""
        return Rule(
            f"{self.name}, farthest first",
            lambda rank, n: reversed(list(self.children(rank, n))),
        )


def _first_leaf(steps: Sequence[int | Join]) -> int:
    leaf = steps[0]
    assert isinstance(leaf, int)
    return leaf


class Family(NamedTuple):
    """A named tree of some ranks."""

    name: str
    tree: SumTree


def _add_all(rank: int, n: int) -> Iterable[int]:
    return range(1, n) if rank == 0 else ()


def _add_all_down(rank: int, n: int) -> Iterable[int]:
    return range(n - 1, 0, -1) if rank == 0 else ()


def _add_next(rank: int, n: int) -> Iterable[int]:
    return range(rank + 1, min(rank + 2, n))


def _heap(width: int) -> Children:
    """Children width * rank + 1 and following."""
    return lambda rank, n: range(width * rank + 1, min(width * rank + width, n - 1) + 1)


def _low_digits(base: int) -> Children:
    """Children that set one digit of the number to ``base``, below the parent's lowest digit that
    is not 0."""

    def list_children(rank: int, n: int) -> Iterator[int]:
        step = 1
        while step < n and rank % (step * base) == 0:
            yield from range(rank + step, min(rank + step * base, n), step)
            step *= base

    return list_children


def _high_bits(rank: int, n: int) -> Iterator[int]:
    """Children with one more bit, above all bits of the parent."""
    step = 1 << rank.bit_length()
    while rank + step < n:
        yield rank + step
        step *= 2


def _levels(width: int) -> Children:
    """Children rank + i * width^level, i from 1 to width, as Open MPI numbers a full tree."""

    def list_children(rank: int, n: int) -> Iterable[int]:
        first, level_size = 0, 1
        while rank >= first + level_size:
            first += level_size
            level_size *= width
        return range(rank + level_size, min(rank + level_size * width, n - 1) + 1, level_size)

    return list_children


def _double_near(rank: int, n: int) -> Iterable[int]:
    """Sums of ranks that are 1, 2, 4 ... apart, of a power of two."""
    return _low_digits(2)(rank, n)


def _double_far(rank: int, n: int) -> Iterable[int]:
    """Sums of ranks that are n/2, n/4 ... 1 apart, of a power of two."""
    return reversed(list(_high_bits(rank, n)))


def _fold_tail(children: Children) -> Children:
    """The ranks beyond a power of two are added to the first ones before the rule applies."""

    def list_children(rank: int, n: int) -> Iterator[int]:
        power = 1 << (n.bit_length() - 1)
        if rank + power < n:
            yield rank + power
        if rank < power:
            yield from children(rank, power)

    return list_children


def _fold_pairs(children: Children) -> Children:
    """Neighbours are added in pairs, from rank 0 on, so many that a power of two remains, to which
    the rule applies."""

    def list_children(rank: int, n: int) -> Iterator[int]:
        power = 1 << (n.bit_length() - 1)
        extra = n - power
        if rank < 2 * extra:
            if rank % 2:
                return
            yield rank + 1
        number = rank // 2 if rank < 2 * extra else rank - extra
        for child in children(number, power):
            yield 2 * child if child < extra else child + extra

    return list_children


TAIL, PAIRS = "tail onto head", "pairs at the front"

TREE_RULES = (
    Rule("binomial by low bits", _low_digits(2)),
    Rule("binomial by high bits", _high_bits),
    Rule("2-ary by levels", _levels(2)),
    Rule("2-ary heap", _heap(2)),
    Rule("3-ary heap", _heap(3)),
    Rule("4-ary heap", _heap(4)),
    Rule("8-ary heap", _heap(8)),
    Rule("4-nomial by low digits", _low_digits(4)),
    Rule("8-nomial by low digits", _low_digits(8)),
)

RULES = (
    Rule("linear up", _add_all),
    Rule("linear down", _add_all_down),
    Rule("chain to the root", _add_next),
    Rule("doubling by 1, 2, 4", _fold_tail(_double_near), TAIL),
    Rule("doubling by 1, 2, 4", _fold_pairs(_double_near), PAIRS),
    Rule("doubling by 4, 2, 1", _fold_tail(_double_far), TAIL),
    Rule("doubling by 4, 2, 1", _fold_pairs(_double_far), PAIRS),
    *TREE_RULES,
    *(rule.reverse_children() for rule in TREE_RULES),
)

TOGETHER = "all at once"


def list_rules(n: int) -> dict[str, Rule]:
    """The rules by their names for n ranks: of a power of two, doubling has no fold and one
    name."""
    if n & (n - 1):
        return {rule.full_name: rule for rule in RULES}
    return {rule.name: rule for rule in RULES}


def list_families(n: int, root: int = 0) -> list[Family]:
    """The trees of all rules, and that of a sum of all ranks at once. Several names may have one
    tree."""
    families = [Family(name, rule.build_tree(n, root)) for name, rule in list_rules(n).items()]
    if n > 2:
        families.append(Family(TOGETHER, join_trees("together", map(make_leaf, range(n)))))
    return families


def build_chain(ranks: Sequence[int]) -> SumTree:
    """The tree that adds one rank after the other, in time proportional to their number."""
    least = ranks[0]
    before: list[int] = []  # leaves that became the least one, and so stand in front
    after: list[int | Join] = [least]
    for rank in ranks[1:]:
        if rank < least:
            before.append(rank)
            least = rank
        else:
            after.append(rank)
        after.append(PLUS)
    return SumTree((*reversed(before), *after))


def list_rings(n: int) -> dict[str, list[SumTree]]:
    """The trees of the n chunks of a buffer that goes round a ring, by the names that the
    references of all_reduce have: chunk c starts at rank c + 1 and goes up, or down."""
    turns = {"ring": 1, "ring:down": -1}
    return {
        name: [
            build_chain([(chunk + 1 + turn * step) % n for step in range(n)]) for chunk in range(n)
        ]
        for name, turn in turns.items()
    }


class Turn(NamedTuple):
    """A way round the ranks: from ``start``, up (1) or down (-1)."""

    start: int
    step: int

    def __str__(self) -> str:
        return f"chain from {self.start} {'up' if self.step == 1 else 'down'}"


def find_turns(tree: SumTree, n: int) -> list[Turn]:
    """The ways round n ranks along which a chain of three or more adds them; none for other trees.
    Three ranks may be added along two ways."""
    chain = measure_shape(tree).chain
    if len(chain) < 3:
        return []
    starts = (chain[:2], chain[1::-1])  # the first two have no order
    return [
        Turn(first, step)
        for first, second in starts
        for step in (1, -1)
        if all((b - a - step) % n == 0 for a, b in itertools.pairwise((first, second, *chain[2:])))
    ]
