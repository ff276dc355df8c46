"""All-to-all and its uneven form, the ring shift, scan and barrier."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collbench.core.algorithms import (
    Algorithm,
    around,
    choose_segments,
    count_doublings,
    count_segment_cells,
    mirror_steps,
    power_of_two,
)
from collbench.core.algorithms.blocks import BRUCK, THAKUR
from collbench.core.algorithms.rooted import CHAN, binomial, chain, linear
from collbench.core.schedule import Moves

HENSGEN = "Hensgen, Finkel, Manber 1988, Two algorithms for barrier synchronization"

PREFIX = "Sanders, Traeff 2006, Parallel prefix (scan) algorithms for MPI"

HILLIS = "Hillis, Steele 1986, Data parallel algorithms"


def _keep_own(n: int) -> Moves:
    ranks = np.arange(n)
    return Moves(ranks, ranks, ranks, n + ranks)


def spread(n: int, cells: int) -> Iterator[Moves]:
    """Every rank sends every other its block, all at once."""
    src, dst = np.divmod(np.arange(n * n), n)
    yield Moves(src, dst, dst, n + src)


def pairwise(n: int, cells: int) -> Iterator[Moves]:
    """In round k each rank sends to rank + k and receives from rank - k."""
    yield _keep_own(n)
    turn = around(n)
    for step in range(1, n):
        yield Moves(turn(0), turn(step), turn(step), n + turn(0))


def xor(n: int, cells: int) -> Iterator[Moves]:
    """In round k each rank exchanges blocks with rank xor k."""
    yield _keep_own(n)
    ranks = np.arange(n)
    for step in range(1, n):
        yield Moves(ranks, ranks ^ step, ranks ^ step, n + ranks)


def bruck(n: int, cells: int) -> Iterator[Moves]:
    """A block travels the powers of two that make up its distance: log2(n) rounds of many blocks.

    On the way a rank keeps a block of offset o = destination - source where it would lie had it
    come from rank - o, and so it ends in its own place: no rotation before or after.
    """
    yield _keep_own(n)
    ranks = np.arange(n)[:, None]
    for bit in range(count_doublings(n)):
        offset = np.flatnonzero(np.arange(n) >> bit & 1)
        first = offset & ((1 << bit) - 1) == 0  # has not travelled yet
        sources = np.where(first, (ranks + offset) % n, n + (ranks - offset) % n)
        partner = (ranks + (1 << bit)) % n
        yield Moves(ranks, partner, sources, n + (partner - offset) % n)


def direct(n: int, cells: int) -> Iterator[Moves]:
    """Every rank sends its buffer to the next."""
    yield Moves(around(n)(0), around(n)(1), 0, 1)


def prefix_chain(n: int, cells: int, segments: int) -> Iterator[Moves]:
    """Each rank adds its part to what came from the left, segment by segment, and passes it on."""
    for moves in chain(n, cells):
        yield Moves(moves.src, moves.dst, moves.chunk, reduce=True)


def prefix_doubling(n: int, cells: int) -> Iterator[Moves]:
    """Each rank adds what the one 1, 2, 4 … places before it had."""
    for distance in (1 << k for k in range(count_doublings(n))):
        src = np.arange(n - distance)
        yield Moves(src, src + distance, 0, reduce=True)


def dissemination(n: int, cells: int) -> Iterator[Moves]:
    """In round k each rank tells the one 2^k places ahead of all arrivals it has heard of."""
    ranks = np.arange(n)
    for distance in (1 << k for k in range(count_doublings(n))):
        yield Moves(ranks, (ranks + distance) % n, 0, reduce=True)


def central(n: int, cells: int) -> Iterator[Moves]:
    """A barrier through rank 0: every rank tells rank 0 that it has come, and rank 0 then tells
    every rank to go on."""
    yield from mirror_steps(linear(n, 1))
    yield from linear(n, 1)


def tree(n: int, cells: int) -> Iterator[Moves]:
    """Arrivals are told up a binomial tree to rank 0, and the leave to go on down it."""
    yield from mirror_steps(binomial(n, 1))
    yield from binomial(n, 1)


ALGORITHMS = (
    Algorithm("linear", "all_to_all", spread, THAKUR),
    Algorithm("pairwise", "all_to_all", pairwise, THAKUR),
    Algorithm("xor", "all_to_all", xor, THAKUR, why_not=power_of_two),
    Algorithm("bruck", "all_to_all", bruck, BRUCK),
    Algorithm("pairwise", "all_to_allv", pairwise, THAKUR),
    Algorithm("direct", "sendrecv", direct, CHAN),
    Algorithm(
        "chain",
        "scan",
        prefix_chain,
        PREFIX,
        count_segment_cells,
        parameters={"segments": choose_segments},
    ),
    Algorithm("recursive_doubling", "scan", prefix_doubling, HILLIS),
    Algorithm("dissemination", "barrier", dissemination, HENSGEN),
    Algorithm("central", "barrier", central, HENSGEN),
    Algorithm("tree", "barrier", tree, HENSGEN),
)
