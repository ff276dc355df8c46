"""Broadcast, reduce, gather and scatter; a reduce is a broadcast backwards, a gather a scatter
backwards."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from collbench.core.algorithms import (
    Algorithm,
    Steps,
    around,
    choose_segments,
    count_doublings,
    count_segment_cells,
    mirror_steps,
    one_each,
)
from collbench.core.schedule import Ints, Moves


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
    and receive one message in each step.
    """

    def __init__(self, n: int) -> None:
        first = _in_order(n - 1)
        other = [
            0,
            *(v % (n - 1) + 1 if n % 2 == 0 else n - v for v in range(1, n)),
        ]  # an inner node's place is a leaf's
        second = [(other[u], other[v]) for u, v in first]
        both = np.array(
            [(*edge, 0) for edge in first] + [(*edge, 1) for edge in second], np.int64
        ).reshape(-1, 3)
        self.src, self.dst, self.tree = both.T
        self.colour = _two_colours(self.src, self.dst)


def _in_order(n: int) -> list[tuple[int, int]]:
    """Edges of the binary tree whose in-order numbering is 1..n, and the edge from 0 to its top."""
    if n < 1:
        return []
    edges = [(0, 1 << (n.bit_length() - 1))]
    for node in range(2, n + 1, 2):
        reach = (node & -node) >> 1
        edges.append((node, node - reach))
        while reach and node + reach > n:
            reach >>= 1
        if reach:
            edges.append((node, node + reach))
    return edges


def _two_colours(src: Ints, dst: Ints) -> Ints:
    """Colours 0 and 1 such that neither edges out of a rank nor edges into one repeat a colour.

    Edges that must differ form paths and even cycles, which are walked with alternating colours.
    """
    neighbours: list[list[int]] = [[] for _ in src]
    for ends in (src, dst):
        order = np.argsort(ends, kind="stable")
        for a, b in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
            if ends[a] == ends[b]:
                neighbours[a].append(b)
                neighbours[b].append(a)
    colour = np.full(len(src), -1)
    for start in range(len(src)):
        waiting = [(start, 0)] if colour[start] < 0 else []
        while waiting:
            edge, shade = waiting.pop()
            if colour[edge] < 0:
                colour[edge] = shade
                waiting += [(other, 1 - shade) for other in neighbours[edge]]
    return colour


def double_tree(n: int, cells: int, segments: int = 1) -> Iterator[Moves]:
    """Half of the message goes down each of two trees, segment behind segment."""
    edges = _Edges(n)
    half = cells // 2
    have = np.zeros((2, n), np.int64)  # blocks of each tree's half that a rank has
    have[:, 0] = half
    step = 0
    while have.min() < half:
        ready = have[edges.tree, edges.src] > have[edges.tree, edges.dst]
        now = ready & (edges.colour == step % 2)
        src, dst, tree = edges.src[now], edges.dst[now], edges.tree[now]
        if len(src):
            yield Moves(src, dst, tree * half + have[tree, dst])
        have[tree, dst] += 1
        step += 1


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
