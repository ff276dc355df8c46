"""All-reduce: a reduce and a broadcast, a reduce-scatter and an all-gather, or everyone with
everyone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from collbench.core.algorithms import (
    Algorithm,
    around,
    freeze,
    mirror_steps,
    one_each,
    power_of_two,
)
from collbench.core.algorithms.blocks import (
    THAKUR,
    doubling,
    find_power_of_two,
    halving,
    lend_extra,
    ring_gather,
    ring_reduce,
)
from collbench.core.algorithms.rooted import (
    CHAN,
    RABENSEIFNER,
    SANDERS,
    TREES,
    binomial,
    double_tree,
    linear,
    two_halves,
)
from collbench.core.schedule import Ints, Later, Moves
from collbench.core.text import format_count

PATARASUK = (
    "Patarasuk, Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations"
)

SWING = (
    "De Sensi et al. 2024, Swing: short-cutting rings for higher bandwidth allreduce (arXiv"
    " 2401.09356)"
)

TORUS = (
    "Jain, Sabharwal 2010, Optimal bucket algorithms for large MPI collectives on torus"
    " interconnects"
)

TWO_SHOT = (
    "all-pairs exchange between the GPUs of a node, as in NVIDIA TensorRT-LLM's custom all-reduce"
)


def central(n: int, cells: int) -> Iterator[Moves]:
    """One rank collects and adds all buffers, then sends the sum to every other: the textbook's
    straw man."""
    yield from mirror_steps(linear(n, cells))
    yield from linear(n, cells)


def reduce_broadcast(n: int, cells: int) -> Iterator[Moves]:
    """Whole buffers are added up a binomial tree to one rank, and the sum goes down it again."""
    yield from mirror_steps(binomial(n, cells))
    yield from binomial(n, cells)


def ring(n: int, cells: int) -> Iterator[Moves]:
    """Two rounds of the ring: a reduce-scatter adds each block up on its way, an all-gather passes
    the sums on."""
    yield from ring_reduce(n, cells)
    yield from ring_gather(n, cells)


def ring_down(n: int, cells: int) -> Iterator[Moves]:
    """The ring in the other direction: every rank sends to the rank before it, first the block of
    that rank's number."""
    turn = around(n)
    for step in range(n - 1):
        yield Moves(turn(0), turn(-1), turn(step - 1), reduce=True)
    for step in range(n - 1):
        yield Moves(turn(0), turn(-1), turn(step - 2))


def _fold_to_power_of_two(n: int, cells: int, steps: Iterator[Moves]) -> Iterator[Moves]:
    """``steps`` among the first 2^k ranks; the others lend them their data before and get the
    result after."""
    yield from lend_extra(n, cells)
    yield from steps
    yield from mirror_steps(lend_extra(n, cells), reduce=False)


def recursive_doubling(n: int, cells: int) -> Iterator[Moves]:
    """Partners at distance 1, 2, 4 … exchange whole buffers and add them."""
    ranks = np.arange(find_power_of_two(n))
    rounds = (Moves(ranks, ranks ^ (1 << k), 0, reduce=True) for k in range(n.bit_length() - 1))
    return _fold_to_power_of_two(n, cells, rounds)


def halving_doubling(n: int, cells: int) -> Iterator[Moves]:
    """A reduce-scatter by halves between partners at distance n/2, n/4 … 1, then an all-gather by
    doubling the way back."""

    def phases() -> Iterator[Moves]:
        yield from halving(cells, cells)
        yield from doubling(cells, cells)

    return _fold_to_power_of_two(n, cells, phases())


def double_tree_both(n: int, cells: int, segments: int) -> Iterator[Moves]:
    """Half of the buffer is added up each of two trees, segment behind segment, and sent down them
    again."""
    yield from mirror_steps(double_tree(n, cells, segments))
    yield from double_tree(n, cells, segments)


def _grid(n: int, across: int) -> Iterator[Moves]:
    """Reduce-scatter along rows of ``across`` ranks, ring all-reduce along columns, all-gather
    along rows."""
    down = n // across
    row, column = np.divmod(np.arange(n), across)
    ranks, below = freeze(np.arange(n)), freeze((row + 1) % down * across + column)
    beside = freeze(row * across + (column + 1) % across)[:, None]
    senders = ranks[:, None]

    def along(step: int, reduce: bool) -> Moves:
        def cells() -> Ints:
            block = (column - step - reduce) % across
            return block[:, None] * down + np.arange(down)

        return Moves(senders, beside, Later((n, down), cells), reduce=reduce)

    def across_rows(step: int, reduce: bool) -> Moves:
        cells = Later((n,), lambda: column * down + (row - step - reduce) % down)
        return Moves(ranks, below, cells, reduce=reduce)

    yield from (along(step, True) for step in range(across - 1))
    yield from (across_rows(step, True) for step in range(down - 1))
    yield from (across_rows(step, False) for step in range(down - 1))
    yield from (along(step, False) for step in range(across - 1))


def _largest_divisor(n: int, most: float) -> int:
    """The largest divisor of n up to ``most``."""
    return max(d for d in range(1, int(most) + 1) if n % d == 0)


def torus2d(n: int, cells: int) -> Iterator[Moves]:
    """Ranks form a grid: reduce-scatter along rows, all-reduce along columns, all-gather along
    rows."""
    return _grid(n, _largest_divisor(n, n**0.5))


def refuse_prime(n: int, **_: int) -> str | None:
    """The reason why ranks form no grid; None where they do."""
    has_grid = _largest_divisor(n, n**0.5) > 1
    return None if has_grid else f"needs a grid of two dimensions, not {format_count(n, 'rank')}"


def hierarchical(n: int, cells: int, group: int) -> Iterator[Moves]:
    """Reduce-scatter inside nodes of ``group`` ranks, all-reduce between equal places of all nodes,
    all-gather inside."""
    return _grid(n, group)


def whole_groups(n: int, group: int) -> str | None:
    """The reason why groups of this size do not divide the ranks; None where they do."""
    if n % group == 0:
        return None
    return f"groups of {group} do not divide {format_count(n, 'rank')}; say hierarchical:group=SIZE"


def swing_peers(n: int) -> list[Ints]:
    """Step s's partner of every rank: rank + rho(s) if even, rank - rho(s) if odd, rho(s) = (1 -
    (-2)^(s+1)) / 3."""
    ranks = np.arange(n)
    sign = 1 - 2 * (ranks % 2)
    return [
        (ranks + sign * ((1 - (-2) ** (step + 1)) // 3)) % n for step in range(n.bit_length() - 1)
    ]


def swing(n: int, cells: int) -> Iterator[Moves]:
    """Halving and doubling between partners that lie near each other on a ring or torus."""
    peers, ranks = swing_peers(n), np.arange(n)[:, None]

    def list_blocks(step: int) -> Ints:
        """The blocks that a rank answers for from a step on: its own, and its later partners'."""
        blocks = ranks
        for partner in reversed(peers[step + 1 :]):
            blocks = np.hstack([blocks, blocks[partner]])
        return blocks

    def exchange(step: int, reduce: bool) -> Moves:
        partner = peers[step]

        def cells() -> Ints:
            return list_blocks(step)[partner] if reduce else list_blocks(step)

        shape = n, 1 << (len(peers) - 1 - step)
        return Moves(ranks, partner[:, None], Later(shape, cells), reduce=reduce)

    yield from (exchange(step, True) for step in range(len(peers)))
    yield from (exchange(step, False) for step in reversed(range(len(peers))))


def swing_latency(n: int, cells: int) -> Iterator[Moves]:
    """Swing's partners, near each other on a ring or torus, exchange whole buffers and add them."""
    return (Moves(np.arange(n), partner, 0, reduce=True) for partner in swing_peers(n))


def _swing_partners(n: int) -> tuple[Ints, Ints]:
    src, dst = np.divmod(np.arange(n * n), n)
    return src[src != dst], dst[src != dst]


def one_shot(n: int, cells: int) -> Iterator[Moves]:
    """Every rank reads the whole buffers of all others and adds them."""
    if n > 1:
        yield Moves(*_swing_partners(n), 0, reduce=True)


def two_shot(n: int, cells: int) -> Iterator[Moves]:
    """Every rank adds up one block of all buffers, then reads the other ranks' sums."""
    if n > 1:
        src, dst = _swing_partners(n)
        yield Moves(src, dst, dst, reduce=True)
        yield Moves(src, dst, src)


GROUP: dict[str, Callable[[int, float], int]] = {
    "group": lambda n, ratio: _largest_divisor(n, 8 if n > 8 else n**0.5)
}

ALGORITHMS = (
    Algorithm("central", "all_reduce", central, CHAN),
    Algorithm("reduce_broadcast", "all_reduce", reduce_broadcast, CHAN, aliases=("tree",)),
    Algorithm("ring", "all_reduce", ring, PATARASUK, one_each),
    Algorithm("ring:down", "all_reduce", ring_down, PATARASUK, one_each),
    Algorithm("recursive_doubling", "all_reduce", recursive_doubling, THAKUR),
    Algorithm("halving_doubling", "all_reduce", halving_doubling, RABENSEIFNER, find_power_of_two),
    Algorithm("double_tree", "all_reduce", double_tree_both, SANDERS, two_halves, parameters=TREES),
    Algorithm("torus2d", "all_reduce", torus2d, TORUS, one_each, refuse_prime),
    Algorithm(
        *("hierarchical", "all_reduce", hierarchical, TORUS, one_each, whole_groups, GROUP),
        node_parameter="group",
    ),
    Algorithm("swing", "all_reduce", swing, SWING, one_each, power_of_two),
    Algorithm("swing_latency", "all_reduce", swing_latency, SWING, why_not=power_of_two),
    Algorithm("one_shot", "all_reduce", one_shot, TWO_SHOT),
    Algorithm("two_shot", "all_reduce", two_shot, TWO_SHOT, one_each),
)
