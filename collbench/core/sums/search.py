"""The search for an order of additions, as questions: a generator yields each of them, is sent what
came out of the reduction, and returns what it found.

What is asked depends on the answers alone. Elements of a buffer that answer alike are one search,
and where they come to differ, each part goes on from the same answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Literal, NamedTuple

from collbench.core.dtypes import DType
from collbench.core.sums.probes import (
    Probe,
    Scale,
    choose_scales,
    list_lone_units,
    list_probes,
    needs_subnormals,
    read_survivors,
    shows_direction,
)
from collbench.core.sums.rounding import find_rounding
from collbench.core.sums.swallowing import (
    NoTree,
    Pair,
    Questions,
    ask_adaptively,
    ask_all_pairs,
    find_sets,
    list_ranks,
    make_mask,
)
from collbench.core.sums.trees import SumTree

Strategy = Literal["all", "adaptive"]

STRATEGIES: dict[Strategy, Callable[[Sequence[int]], Questions]] = {
    "all": ask_all_pairs,
    "adaptive": ask_adaptively,
}

NO_ORDER = "no order of additions gives these results"

NOT_NEAREST = "rounds otherwise than to nearest"

OTHER_CALL = "another order at another call, or adders of a width that is not looked for"


class Question(NamedTuple):
    """One call of the reduction: each rank gives ``probe.value(rank, scale, op)``."""

    probe: Probe
    scale: Scale


class Finding(NamedTuple):
    """What a search found: the order ``tree`` and ``low_tree``, that where only the element type
    swallows; None, with a ``reason``, where there is none.

    ``adder`` are the bits of the adder: the type's own, a wider one's, EXACT where no order shows,
    None where a wider one is none of those that are looked for. The order of wider adders shows up
    to ``visible`` bits. ``calls`` questions were asked by the ``strategy``."""

    tree: SumTree | None
    low_tree: SumTree | None
    adder: int | None
    visible: int
    strategy: Strategy
    calls: int = 0
    reason: str = ""


class _NotNearest(NoTree):
    """A result that adders to nearest do not give."""


Search = Generator[Question, float, Finding]


def ask_subnormals(
    ranks: Sequence[int], dtype: DType, op: str, n: int
) -> Generator[Question, float, bool]:
    """Asks whether numbers below the normal ones come back as they are; returns whether they do,
    True without a question where the type needs none of them."""
    if not needs_subnormals(dtype):
        return True
    high, _ = choose_scales(dtype, n, op, True)
    probe = Probe((), tuple(ranks[: high.width]))
    value = yield Question(probe, high)
    return read_survivors(value, probe, high, op, n) == make_mask(probe.units)


def find_order(
    ranks: Sequence[int],
    dtype: DType,
    op: str,
    n: int,
    subnormals: bool,
    strategy: Strategy,
) -> Search:
    """Asks for the order in which the contributions of ``ranks``, of the n that reduce, are added;
    the others give 0. ``subnormals`` is what ask_subnormals returned."""
    ranks = sorted(ranks)
    calls, steps = 0, _find_order(ranks, dtype, op, n, subnormals, strategy)
    try:
        question = next(steps)
        while True:
            calls += 1
            question = steps.send((yield question))
    except StopIteration as end:
        found: Finding = end.value
        return found._replace(calls=calls)


def _find_order(
    ranks: Sequence[int], dtype: DType, op: str, n: int, subnormals: bool, strategy: Strategy
) -> Search:
    high, low = choose_scales(dtype, n, op, subnormals)
    found = Finding(None, None, None, high.visible, strategy)
    try:
        tree = yield from _ask_tree(ranks, high, dtype, op, n, strategy)
        found = found._replace(tree=tree)
        low_tree = yield from _ask_tree(ranks, low, dtype, op, n, strategy)
        lone = _choose_lone_unit(tree, low_tree)
        found = found._replace(low_tree=low_tree, adder=_name_adder(tree, low_tree, dtype))
        if lone:
            for scale in list_lone_units(dtype, n, op, subnormals):
                if not (yield from _ask_survivors(lone, scale, dtype, op, n)):
                    return found._replace(adder=scale.visible)
        return found
    except _NotNearest:
        return found._replace(reason=NOT_NEAREST)
    except NoTree:
        return found._replace(reason=OTHER_CALL if found.tree else NO_ORDER)


def _ask_tree(
    ranks: Sequence[int], scale: Scale, dtype: DType, op: str, n: int, strategy: Strategy
) -> Generator[Question, float, SumTree]:
    """The tree at one scale. Raises NoTree."""
    pairs = STRATEGIES[strategy](ranks)
    try:
        pair = next(pairs)
        while True:
            pair = pairs.send((yield from _ask_set(pair, ranks, scale, dtype, op, n)))
    except StopIteration as end:
        tree: SumTree = end.value
        return tree


def _ask_set(
    pair: Pair, ranks: Sequence[int], scale: Scale, dtype: DType, op: str, n: int
) -> Generator[Question, float, int]:
    """The set of a pair, with as many calls as its other ranks need to have units."""
    swallowed = make_mask(ranks)
    for probe in list_probes(pair, ranks, scale):
        swallowed &= ~(yield from _ask_survivors(probe, scale, dtype, op, n))
    return swallowed


def _ask_survivors(
    probe: Probe, scale: Scale, dtype: DType, op: str, n: int
) -> Generator[Question, float, int]:
    """The ranks whose units come back. Raises NoTree where the result is no sum of units."""
    value = yield Question(probe, scale)
    survivors = read_survivors(value, probe, scale, op, n)
    if survivors is not None:
        return survivors
    if shows_direction(value, probe, scale, dtype, op, n):
        raise _NotNearest(NOT_NEAREST)
    raise NoTree(NO_ORDER)


def _choose_lone_unit(tree: SumTree, low_tree: SumTree) -> Probe | None:
    """A pair and a rank that is swallowed with it, but not where only the element type swallows;
    None where there is none. Raises NoTree where one is swallowed there alone."""
    sets, low_sets = find_sets(tree), find_sets(low_tree)
    if any(low_sets[pair] & ~swallowed for pair, swallowed in sets.items()):
        raise NoTree("more is swallowed at the lesser ratio")
    for pair in itertools.combinations(tree.leaves, 2):
        kept = list_ranks(sets[pair] & ~low_sets[pair])
        if kept:
            return Probe(pair, (kept[0],))
    return None


def _name_adder(tree: SumTree, low_tree: SumTree, dtype: DType) -> int | None:
    """The bits of the adder, as far as the two trees tell."""
    if low_tree != tree:
        return None
    return find_rounding(tree, low_tree, dtype, None).adder
