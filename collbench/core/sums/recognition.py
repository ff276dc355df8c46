"""The order of additions of random sums, by their bits, among orders that have names.

Much cheaper than a search, as one call may suffice; but only what has a name is found.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DType
from collbench.core.sums.families import RULES, list_families, list_rings
from collbench.core.sums.names import list_references, name_orders
from collbench.core.sums.rounding import (
    Floats,
    Rounding,
    draw_inputs,
    evaluate_tree,
    list_divisions,
)
from collbench.core.sums.symbolic import TreeRun
from collbench.core.sums.trees import SumTree

MAX_REFERENCE_RANKS = 64  # 290 trees of all_reduce there take 1 s; above, only families are tried

FLOAT_BITS = 24  # of the adder that narrower types may be added in

Flags = NDArray[np.bool_]


class Run(NamedTuple):
    """Elements that follow each other and are added alike: the candidate's index, and how many
    they are."""

    candidate: int
    length: int


class Sums(NamedTuple):
    """Elements of one rank's output, in order: the ``inputs`` of each rank and what the library
    made of them, (ranks, calls, elements) and (calls, elements)."""

    inputs: Floats
    results: Floats


def draw_numbers(dtype: DType, n: int, op: str, length: int, seed: int) -> Floats:
    """Random numbers of n ranks, (n, length), whose sums show in which order they were added: in
    narrow types also where they were added in float."""
    adders = (FLOAT_BITS,) if dtype.precision < FLOAT_BITS else ()
    return draw_inputs(dtype, n, op, length, seed, adders)


@functools.lru_cache(maxsize=64)
def list_candidates(collective: str, n: int, root: int, rank: int) -> tuple[SumTree, ...]:
    """The trees with names that elements of a rank's output may have."""
    root = max(root, 0) if COLLECTIVES[collective].rooted else 0
    outputs: list[Sequence[TreeRun]] = []
    if n <= MAX_REFERENCE_RANKS:
        for reference in list_references(collective, n, root):
            of_ranks = reference.outputs[rank : rank + 1 if collective == "scan" else None]
            others = () if collective == "scan" else reference.outputs[:rank]
            outputs += [runs for runs in (*of_ranks, *others) if runs]
    trees = [run.tree for runs in outputs for run in runs]
    return tuple(dict.fromkeys([*trees, *_list_named_trees(collective, n, root, rank)]))


def _list_named_trees(collective: str, n: int, root: int, rank: int) -> Iterable[SumTree]:
    """The trees of families, and of rings where these are few enough."""
    if collective == "scan":
        return [rule.build_tree(rank + 1) for rule in RULES]
    bases = dict.fromkeys((root, 0, rank if collective == "reduce_scatter" else root))
    trees = [family.tree for base in bases for family in list_families(n, base)]
    if n <= MAX_REFERENCE_RANKS:
        trees += [tree for ring in list_rings(n).values() for tree in ring]
    return trees


def list_roundings(dtype: DType, op: str) -> list[Rounding]:
    """The ways to round that are tried, one after the other: at every node, and narrow types once,
    at the root, from float."""
    roundings = [Rounding(dtype.precision)]
    if dtype.precision < FLOAT_BITS:
        roundings.append(Rounding(FLOAT_BITS, frozenset()))
    return [way for rounding in roundings for way in list_divisions(op, rounding)]


def find_runs(
    sums: Sums, candidates: Sequence[SumTree], dtype: DType, op: str, rounding: Rounding
) -> list[Run] | None:
    """The runs of elements that candidates give, bit for bit, rounded in one way. None where
    candidates do not give all of them, or several the same ones, so that none can be told."""
    n, calls, elements = sums.inputs.shape
    inputs = dict(enumerate(sums.inputs.reshape(n, -1)))
    matches = np.empty((len(candidates), elements), bool)
    for index, tree in enumerate(candidates):
        if dtype.precision > FLOAT_BITS and any(join.kind != "two" for join in tree.joins):
            matches[index] = False  # worked out in fractions, which is slow
            continue
        expected = evaluate_tree(tree, inputs, dtype, op, rounding, n).reshape(calls, elements)
        same = (expected == sums.results) & (np.signbit(expected) == np.signbit(sums.results))
        matches[index] = same.all(axis=0)
    return cut_runs(matches)


def cut_runs(matches: Flags) -> list[Run] | None:
    """The fewest runs of elements that one candidate each gives, from ``matches`` of (candidates,
    elements). None where an element has none, or a run has two."""
    count, elements = matches.shape
    ends = np.full((count, elements + 1), elements)
    for at in range(elements - 1, -1, -1):
        ends[:, at] = np.where(matches[:, at], ends[:, at + 1], at)
    runs: list[Run] = []
    at = 0
    while at < elements:
        longest = ends[:, at].max()
        fitting = np.flatnonzero(ends[:, at] == longest)
        if longest == at or len(fitting) > 1:
            return None
        runs.append(Run(int(fitting[0]), int(longest) - at))
        at = int(longest)
    return runs


def name_runs(
    collective: str, n: int, root: int, runs_by_rank: Sequence[Sequence[Run] | None]
) -> tuple[str, ...]:
    """The names that fit the runs of all ranks, None of one without an output: references first."""
    outputs = [
        None
        if runs is None
        else [
            TreeRun(list_candidates(collective, n, root, rank)[run.candidate], run.length)
            for run in runs
        ]
        for rank, runs in enumerate(runs_by_rank)
    ]
    names = name_orders(collective, n, root, outputs)
    return (*names.references, *names.families)
