"""Broadcast, reduce, gather and scatter; a reduce is a broadcast backwards, a gather a scatter
backwards."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from collbench.core.algorithms import (
    Algorithm,
    Steps,
    around,
    choose_segments,
    count_doublings,
    count_segment_cells,
    freeze,
    mirror_steps,
    one_each,
)
from collbench.core.schedule import Ints, Later, Moves


def linear(n: int, cells: int) -> Iterator[Moves]:
    """The root sends everything to one rank after the other."""
    for rank in range(1, n):
        yield Moves(0, rank, np.arange(cells))


def binomial(n: int, cells: int) -> Iterator[Moves]:
    """Whoever has the message passes it on: the number of holders doubles in every round."""
    for distance in (1 << k for k in range(count_doublings(n))):
        holders = np.arange(min(distance, n - distance))[:, None]
        yield Moves(holders, holders + distance, np.arange(cells))


def chain(n: int, cells: int, segments: int = 1) -> Iterator[Moves]:
    """The message goes from rank to rank in segments, one behind the other."""
    for step in range(cells + n - 2 if n > 1 else 0):
        ranks = np.arange(max(0, step - cells + 1), min(n - 1, step + 1))
        yield Moves(ranks, ranks + 1, step - ranks)


def scatter_allgather(n: int, cells: int) -> Iterator[Moves]:
    """A binomial scatter, then a ring's all-gather of what the scatter left elsewhere."""
    yield from scatter_binomial(n, 1)
    turn = around(n)
    ranks = turn(0)
    # blocks from its own on that a rank has
    block_counts = np.where(ranks, np.minimum(ranks & -ranks, n - ranks), n)
    for step in range(n - 1):
        dst, chunk = turn(1), turn(-step)
        new = (chunk < dst) | (chunk >= dst + block_counts[dst])
        yield Moves(ranks[new], dst[new], chunk[new])


class _Edges:
    """Two binary trees over ranks 1..n-1 that together use every rank fully, hung below rank 0.

    Inner nodes of one tree are leaves of the other, so a rank sends along two edges at most and
    receives along two. Colouring edges so that neither pair shares a colour lets every rank send
    and receive one message in each step. ``first`` is the step in which an edge has its first
    message: the first of its colour after that of the edge above. From there on every second step
    has one, as the edge above is as fast.
    """

    def __init__(self, n: int) -> None:
        above, below = _in_order(n - 1)
        ranks = np.arange(1, n)
        # an inner node's place is a leaf's
        other = np.append(0, ranks % (n - 1) + 1 if n % 2 == 0 else n - ranks) if n > 1 else ranks
        self.src = np.concatenate([above, other[above]])
        self.dst = np.concatenate([below, other[below]])
        self.tree = np.repeat([0, 1], len(above))
        self.colour = _two_colours(self.src, self.dst)
        self.first = self._find_first_steps(n)

    def _find_first_steps(self, n: int) -> Ints:
        into = np.full((2, n), -1)  # the edge into each rank
        into[self.tree, self.dst] = np.arange(len(self.dst))
        parent = into[self.tree, self.src]
        first = np.where(parent < 0, self.colour, -1)
        while (waiting := np.flatnonzero(first < 0)).size:
            ready = waiting[first[parent[waiting]] >= 0]
            earliest = first[parent[ready]] + 1
            first[ready] = earliest + (earliest + self.colour[ready]) % 2
        return first


def _in_order(n: int) -> tuple[Ints, Ints]:
    """Edges of the binary tree whose in-order numbering is 1..n, and the edge from 0 to its top:
    their upper ends, and their lower ones."""
    if n < 1:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    node = np.arange(2, n + 1, 2)
    reach = (node & -node) >> 1
    right = reach.copy()
    while (outside := (right > 0) & (node + right > n)).any():
        right[outside] >>= 1
    ends = np.stack([node - reach, node + right], axis=1)
    there = np.stack([reach > 0, right > 0], axis=1)
    above = np.broadcast_to(node[:, None], ends.shape)[there]
    return np.append(0, above), np.append(1 << (n.bit_length() - 1), ends[there])


def _two_colours(src: Ints, dst: Ints) -> Ints:
    """Colours 0 and 1 such that neither edges out of a rank nor edges into one repeat a colour.

    Edges that must differ form paths and even cycles, which are walked with alternating colours.
    """
    by_source, by_target = (_pair_edges(ends).tolist() for ends in (src, dst))
    colour = [-1] * len(src)
    for start in range(len(src)):
        if colour[start] >= 0:
            continue
        colour[start] = 0
        for ways in ((by_source, by_target), (by_target, by_source)):  # both ends of its path
            edge, steps = ways[0][start], 1
            while edge >= 0 and colour[edge] < 0:
                colour[edge] = steps % 2
                edge, steps = ways[steps % 2][edge], steps + 1
    return np.array(colour, np.int64)


def _pair_edges(ends: Ints) -> Ints:
    """For each edge the other one with the same end, -1 where there is none; no end has three."""
    other = np.full(len(ends), -1)
    order = np.argsort(ends, kind="stable")
    same = np.flatnonzero(np.diff(ends[order]) == 0)
    other[order[same]], other[order[same + 1]] = order[same + 1], order[same]
    return other


def double_tree(n: int, cells: int, segments: int = 1) -> Iterator[Moves]:
    """Half of the message goes down each of two trees, segment behind segment."""
    edges = _Edges(n)
    half = cells // 2
    if not half or not len(edges.first):
        return
    latest: list[tuple[Any, ...]] = [(None,)] * 2  # by colour: which edges, and their ends
    starts = [np.sort(edges.first[edges.colour == colour]) for colour in (0, 1)]
    for step in range(int(edges.first.max()) + 2 * half - 1):
        colour = step % 2
        bounds = tuple(np.searchsorted(starts[colour], (step - 2 * half, step), side="right"))
        if latest[colour][0] != bounds:
            active = edges.colour == colour
            active &= (edges.first <= step) & (edges.first > step - 2 * half)
            ends = edges.src[active], edges.dst[active]
            origin = edges.tree[active] * half - edges.first[active] // 2
            latest[colour] = (bounds, *map(freeze, (*ends, origin)))
        _, src, dst, origin = latest[colour]
        if len(src):
            yield Moves(src, dst, _count_on(origin, step // 2))


def _count_on(origin: Ints, number: int) -> Later:
    return Later(origin.shape, lambda: origin + number)


def scatter_linear(n: int, cells: int) -> Iterator[Moves]:
    """The root sends each rank its block, one after the other."""
    for rank in range(1, n):
        yield Moves(0, rank, rank)


def scatter_binomial(n: int, cells: int) -> Iterator[Moves]:
    """Whoever has blocks passes on the farther half of them, until each rank has its own."""
    for distance in (1 << k for k in reversed(range(count_doublings(n)))):
        src = np.arange(0, n - distance, 2 * distance)[:, None]
        block = src + distance + np.arange(distance)
        src, block = (f[block < n] for f in np.broadcast_arrays(src, block))
        yield Moves(src, src + distance, block)


def reverse_steps(steps: Steps, reduce: bool = True) -> Steps:
    """The algorithm whose steps are those of ``steps`` in reverse: a reduce of a broadcast, or,
    without ``reduce``, a gather of a scatter."""

    def mirrored(n: int, cells: int, **parameters: int) -> Iterator[Moves]:
        return mirror_steps(steps(n, cells, **parameters), reduce)

    docstring = steps.__doc__ or ""
    original = "broadcast" if reduce else "scatter"
    mirrored.__doc__ = f"A {original} in reverse: {docstring[:1].lower()}{docstring[1:]}"
    return mirrored


def tree_segments(n: int, ratio: float) -> int:
    """Blocks per tree that make the double tree fastest: sqrt(size * beta * log2(n) / (2
    alpha))."""
    return max(1, min(256, round(math.sqrt(ratio * count_doublings(n) / 2))))


def two_halves(n: int, segments: int) -> int:
    """Chunks of a buffer that two trees share, half each."""
    return 2 * segments


PIPELINE, TREES = {"segments": choose_segments}, {"segments": tree_segments}

SANDERS = (
    "Sanders, Speck, Traeff 2009, Two-tree algorithms for full bandwidth broadcast, reduction and"
    " scan"
)

VAN_DE_GEIJN = (
    "Barnett, Shuler, van de Geijn et al. 1994, Interprocessor collective communication library"
)

RABENSEIFNER = "Rabenseifner 2004, Optimization of collective reduction operations"

CHAN = (
    "Chan, Heimlich, Purkayastha, van de Geijn 2007, Collective communication: theory, practice,"
    " and experience"
)

ALGORITHMS = (
    Algorithm("linear", "broadcast", linear, CHAN),
    Algorithm("binomial", "broadcast", binomial, CHAN, aliases=("tree",)),
    Algorithm("chain", "broadcast", chain, CHAN, count_segment_cells, parameters=PIPELINE),
    Algorithm("scatter_allgather", "broadcast", scatter_allgather, VAN_DE_GEIJN, one_each),
    Algorithm("double_tree", "broadcast", double_tree, SANDERS, two_halves, parameters=TREES),
    Algorithm("linear", "reduce", reverse_steps(linear), CHAN),
    Algorithm("binomial", "reduce", reverse_steps(binomial), CHAN, aliases=("tree",)),
    Algorithm(
        "chain", "reduce", reverse_steps(chain), CHAN, count_segment_cells, parameters=PIPELINE
    ),
    Algorithm(
        "double_tree", "reduce", reverse_steps(double_tree), SANDERS, two_halves, parameters=TREES
    ),
    Algorithm("linear", "gather", reverse_steps(scatter_linear, False), CHAN),
    Algorithm("binomial", "gather", reverse_steps(scatter_binomial, False), CHAN),
    Algorithm("linear", "scatter", scatter_linear, CHAN),
    Algorithm("binomial", "scatter", scatter_binomial, CHAN),
)
