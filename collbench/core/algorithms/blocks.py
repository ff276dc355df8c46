"""All-gather and reduce-scatter: every rank owns a block. Their phases also make up most
all-reduces."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collbench.core.algorithms import (
    Algorithm,
    around,
    list_cells,
    mirror_steps,
    one_each,
    power_of_two,
)
from collbench.core.algorithms.rooted import CHAN, RABENSEIFNER, binomial, scatter_binomial
from collbench.core.schedule import Moves

THAKUR = (
    "Thakur, Rabenseifner, Gropp 2005, Optimization of collective communication operations in MPICH"
)

BRUCK = (
    "Bruck, Ho, Kipnis, Upfal, Weathersby 1997, Efficient algorithms for all-to-all communications"
)

CHEN = (
    "Chen, Zhang, Zhang, Yuan 2005, Performance evaluation of allgather algorithms on terascale"
    " Linux cluster"
)


def ring_gather(n: int, cells: int) -> Iterator[Moves]:
    """Every block goes round the ring once: a rank passes on to its right what came from its
    left."""
    turn = around(n)
    for step in range(n - 1):
        yield Moves(turn(0), turn(1), turn(-step))


def ring_reduce(n: int, cells: int) -> Iterator[Moves]:
    """Partial sums go round the ring; block r reaches rank r last, with all contributions added."""
    turn = around(n)
    for step in range(n - 1):
        yield Moves(turn(0), turn(1), turn(-step - 1), reduce=True)


def doubling(n: int, cells: int) -> Iterator[Moves]:
    """Partners at distance 1, 2, 4 … exchange all blocks they have."""
    ranks = np.arange(n)[:, None]
    for distance in (1 << k for k in range(n.bit_length() - 1)):
        yield Moves(ranks, ranks ^ distance, list_cells(ranks & -distance, distance))


def halving(n: int, cells: int) -> Iterator[Moves]:
    """Partners at distance n/2, n/4 … 1 send each other the half the other will own."""
    ranks = np.arange(n)[:, None]
    for distance in (1 << k for k in reversed(range(n.bit_length() - 1))):
        partner = ranks ^ distance
        yield Moves(ranks, partner, list_cells(partner & -distance, distance), reduce=True)


def find_power_of_two(n: int, **_: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


def lend_extra(n: int, cells: int) -> Iterator[Moves]:
    """Ranks beyond the first 2^k each lend their data to one of these; no step where there are
    none."""
    extra = np.arange(find_power_of_two(n), n)[:, None]
    if len(extra):
        yield Moves(extra, extra - find_power_of_two(n), np.arange(cells), reduce=True)


def bruck(n: int, cells: int) -> Iterator[Moves]:
    """Each rank sends all blocks it has to the one 1, 2, 4 … places before it; the last round sends
    the rest."""
    ranks = np.arange(n)[:, None]
    distance = 1
    while distance < n:
        yield Moves(
            ranks, (ranks - distance) % n, (ranks + np.arange(min(distance, n - distance))) % n
        )
        distance *= 2


def neighbour_exchange(n: int, cells: int) -> Iterator[Moves]:
    """Neighbours exchange, left and right in turn, the two blocks that came last."""
    ranks = np.arange(n)
    sign = 1 - 2 * (ranks % 2)
    yield Moves(ranks, ranks ^ 1, ranks)
    newest = ranks // 2
    for step in range(1, n // 2):
        partner = (ranks - sign if step % 2 else ranks + sign) % n
        yield Moves(ranks[:, None], partner[:, None], 2 * newest[:, None] + np.arange(2))
        newest = newest[partner]


def gather_broadcast(n: int, cells: int) -> Iterator[Moves]:
    """One rank gathers all blocks up a binomial tree and broadcasts them down it."""
    yield from mirror_steps(scatter_binomial(n, cells), reduce=False)
    yield from binomial(n, n)


def reduce_scatter_gather(n: int, cells: int) -> Iterator[Moves]:
    """A ring's reduce-scatter, then the root gathers the blocks up a binomial tree."""
    yield from ring_reduce(n, cells)
    yield from mirror_steps(scatter_binomial(n, 1), reduce=False)


def rabenseifner(n: int, cells: int) -> Iterator[Moves]:
    """A reduce-scatter by halves between partners at distance n/2, n/4 … 1, then the root gathers
    the blocks up a binomial tree."""
    yield from lend_extra(n, cells)
    yield from halving(cells, cells)
    yield from mirror_steps(scatter_binomial(cells, cells), reduce=False)


def pairwise_reduce(n: int, cells: int) -> Iterator[Moves]:
    """In round k each rank sends rank + k the block that belongs to it."""
    turn = around(n)
    for step in range(1, n):
        yield Moves(turn(0), turn(step), turn(step), reduce=True)


def refuse_odd(n: int, **_: int) -> str | None:
    """The reason why ranks form no pairs; None where they do."""
    return None if n % 2 == 0 else f"needs an even number of ranks, not {n}"


ALGORITHMS = (
    Algorithm("ring", "all_gather", ring_gather, CHAN),
    Algorithm("recursive_doubling", "all_gather", doubling, THAKUR, why_not=power_of_two),
    Algorithm("bruck", "all_gather", bruck, BRUCK),
    Algorithm("neighbour_exchange", "all_gather", neighbour_exchange, CHEN, why_not=refuse_odd),
    Algorithm("gather_broadcast", "all_gather", gather_broadcast, CHAN),
    Algorithm("reduce_scatter_gather", "reduce", reduce_scatter_gather, CHAN, one_each),
    Algorithm("rabenseifner", "reduce", rabenseifner, RABENSEIFNER, find_power_of_two),
    Algorithm("ring", "reduce_scatter", ring_reduce, CHAN),
    Algorithm("recursive_halving", "reduce_scatter", halving, THAKUR, why_not=power_of_two),
    Algorithm("pairwise", "reduce_scatter", pairwise_reduce, THAKUR),
)
