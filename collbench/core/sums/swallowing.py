"""Trees of additions from probes: one rank gives +M, another -M, and a set tells which other ranks'
units were added to one of them before they met (Xie et al., USENIX ATC 2025, for sums of one
device).

A set is a bit mask over ranks: the leaves below the node where the two met, both of them included.
Below a node that adds without loss it is only the two children that hold them.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

import numpy as np

from collbench.core.sums.trees import Join, SumTree, fold_tree, join_trees, make_leaf

Pair = tuple[int, int]  # the lesser rank first

Sets = Mapping[Pair, int]

Questions = Generator[Pair, int, SumTree]  # asks for sets, and returns the tree

MAX_ALL_PAIRS = 16  # ranks up to which every pair is asked


class NoTree(ValueError):
    """Sets that no tree has."""


def find_sets(tree: SumTree) -> dict[Pair, int]:
    """The set of each pair of a tree's leaves."""
    sets: dict[Pair, int] = {}

    def add_pairs(join: Join, children: Sequence[int]) -> int:
        whole = sum(children)
        for a, b in itertools.combinations(children, 2):
            swallowed = a | b if join.kind == "exact" else whole
            for i, j in itertools.product(list_ranks(a), list_ranks(b)):
                sets[min(i, j), max(i, j)] = swallowed
        return whole

    fold_tree(tree, lambda rank: 1 << rank, add_pairs)
    return sets


def list_ranks(mask: int) -> list[int]:
    """The ranks of a bit mask, in order."""
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


def make_mask(ranks: Iterable[int]) -> int:
    """The bit mask of some ranks."""
    return sum(1 << rank for rank in ranks)


def ask_all_pairs(ranks: Sequence[int]) -> Questions:
    """Asks for every pair, and returns the tree. Raises NoTree where no tree has these sets."""
    sets = {}
    for pair in itertools.combinations(sorted(ranks), 2):
        sets[pair] = yield pair
    return grow_tree(sets, make_mask(ranks))


def ask_adaptively(ranks: Sequence[int], seed: int = 1) -> Questions:
    """Asks for about n log n pairs: of a rank drawn by lot with all others, which tells the path
    from it to the root and what hangs off it, and so on within that. Raises NoTree."""
    rng = np.random.default_rng(seed)
    sets: dict[Pair, int] = {}
    mask = make_mask(ranks)
    [tree] = yield from _ask_forest(mask, mask, sets, rng)
    expected = find_sets(tree)
    if any(expected[pair] != swallowed for pair, swallowed in sets.items()):
        raise NoTree("the sets contradict each other")
    return tree


def _ask_forest(
    group: int, above: int, sets: dict[Pair, int], rng: np.random.Generator
) -> Generator[Pair, int, list[SumTree]]:
    """The trees of a group of ranks that are children of one node, whose leaves are ``above``."""
    trees = []
    while group:
        ranks = list_ranks(group)
        pivot = ranks[int(rng.integers(len(ranks)))]
        answers = {}
        for other in ranks:
            if other != pivot:
                pair = min(pivot, other), max(pivot, other)
                answers[other] = sets[pair] = yield pair
        inside = {other: s for other, s in answers.items() if s | group == group}
        if above == group and len(inside) < len(answers):
            raise NoTree("ranks outside of a tree were swallowed in it")
        child = 1 << pivot | make_mask(inside)
        trees.append((yield from _ask_path(pivot, inside, sets, rng)))
        group &= ~child
    return trees


def _ask_path(
    pivot: int, inside: Mapping[int, int], sets: dict[Pair, int], rng: np.random.Generator
) -> Generator[Pair, int, SumTree]:
    """The tree of a ``pivot`` and the ranks ``inside``, by its sets with them, from the pivot up: a
    node that swallows has one set, within all those above it; of one that adds without loss, each
    other child makes its own."""
    tree, covered = make_leaf(pivot), 1 << pivot
    groups: dict[int, int] = {}
    for other, swallowed in inside.items():
        groups[swallowed] = groups.get(swallowed, 0) | 1 << other
    above = sorted(groups, key=lambda swallowed: swallowed.bit_count())
    while above:
        node = [above[0], *(swallowed for swallowed in above if above[0] & ~swallowed)]
        above = [swallowed for swallowed in above if swallowed not in node]
        children = [tree]
        for swallowed in node:
            group = groups[swallowed]
            if swallowed != covered | group:
                raise NoTree("ranks are swallowed that are elsewhere in the tree")
            outside = swallowed if len(node) == 1 else group
            children += yield from _ask_forest(group, outside, sets, rng)
        tree = join_trees("together" if len(node) == 1 else "exact", children)
        covered |= functools.reduce(operator.or_, node)
    return tree


def grow_tree(sets: Sets, mask: int) -> SumTree:
    """The tree of the ranks of a mask, from the sets of all their pairs. Raises NoTree where no
    tree has these sets."""
    tree = _grow(sets, mask)
    ranks = list_ranks(mask)
    if tree is None or find_sets(tree) != {
        pair: sets[pair] for pair in itertools.combinations(ranks, 2)
    }:
        raise NoTree("no order of additions swallows these sets")
    return tree


def _grow(sets: Sets, mask: int) -> SumTree | None:
    ranks = list_ranks(mask)
    if len(ranks) == 1:
        return make_leaf(ranks[0])
    pairs = list(itertools.combinations(ranks, 2))
    if any(sets[pair] == mask for pair in pairs):
        return _grow_swallowing(sets, mask, ranks)
    return _grow_exact(sets, mask)


def _grow_swallowing(sets: Sets, mask: int, ranks: Sequence[int]) -> SumTree | None:
    """The tree whose root swallows: its children are the classes of ranks that say less than all
    of each other."""
    remaining, children = mask, []
    while remaining:
        first = list_ranks(remaining)[0]
        child = make_mask(
            rank
            for rank in ranks
            if rank == first or sets[min(first, rank), max(first, rank)] != mask
        )
        if child & ~remaining or (child == mask):
            return None
        children.append(child)
        remaining &= ~child
    for a, b in itertools.combinations(children, 2):
        if any(_across(sets, i, j) != mask for i in list_ranks(a) for j in list_ranks(b)):
            return None
    trees = [_grow(sets, child) for child in children]
    whole = [tree for tree in trees if tree]
    return join_trees("together", whole) if len(whole) == len(trees) else None


def _across(sets: Sets, i: int, j: int) -> int:
    return sets[min(i, j), max(i, j)]


def _grow_exact(sets: Sets, mask: int) -> SumTree | None:
    """The tree whose root adds without loss: the first cut into three children or more where every
    pair across tells exactly its two children."""
    for children in _cut_exactly(sets, mask, mask, []):
        trees = [_grow(sets, child) for child in children]
        whole = [tree for tree in trees if tree]
        if len(whole) == len(trees):
            return join_trees("exact", whole)
    return None


def _cut_exactly(sets: Sets, mask: int, remaining: int, children: list[int]) -> Iterator[list[int]]:
    if not remaining:
        if len(children) > 2:
            yield list(children)
        return
    first = list_ranks(remaining)[0]
    sets_of_first = [_across(sets, first, other) for other in list_ranks(mask) if other != first]
    candidates = {a & b & remaining for a, b in itertools.combinations(set(sets_of_first), 2)}
    for child in sorted(candidates | {1 << first}, key=lambda mask: -mask.bit_count()):
        if child >> first & 1 and all(
            _across(sets, i, j) == child | other
            for other in children
            for i in list_ranks(child)
            for j in list_ranks(other)
        ):
            yield from _cut_exactly(sets, mask, remaining & ~child, [*children, child])
