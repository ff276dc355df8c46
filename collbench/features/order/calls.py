"""The calls that an order takes, before it is looked for."""

from __future__ import annotations

import math

from collbench.core.dtypes import DTYPES
from collbench.core.sums.search import Strategy
from collbench.core.sums.swallowing import MAX_ALL_PAIRS
from collbench.features.order.request import SumOrder

SMALL = 1 << 20  # bytes of a size up to which more calls are made for the same certainty

POOLED = 4  # times as many random buffers of a small size where an order is tried, not asked for

FIRST_CALLS, FIRST_BYTES = 20, 1 << 16  # made before all others, of at most so many bytes

NEIGHBOURS = (20, 4)  # calls in which other elements change, of a small size and of others

VOTES = 3  # calls of which two decide

WIDTHS = 8  # calls, at most, that tell the adder's bits


def count_calls(subject: SumOrder) -> tuple[int, int]:
    """Calls to ask at one size, expected and at most, without proof and repeats."""
    n = subject.world
    pairs = n * (n - 1) // 2
    most = 2 * pairs * math.ceil(max(0, n - 2) / 2) + WIDTHS
    blocks = math.ceil(max(1, n - 2) / min(DTYPES[subject.dtype].precision, max(1, n - 2)))
    if choose_strategy(subject) == "all":
        return 2 * pairs * blocks + WIDTHS, most
    return round(2 * n * math.log2(n)) * blocks, most


def choose_strategy(subject: SumOrder) -> Strategy:
    """All pairs where they are few; else about n log n of them."""
    if subject.strategy != "auto":
        return subject.strategy
    return "all" if subject.world <= MAX_ALL_PAIRS else "adaptive"


def count_all_calls(subject: SumOrder) -> int:
    """Calls of a case where nothing differs: those that ask at each size, that prove and show the
    error, that do so again in each other way to place buffers, that are repeated, and the first
    ones."""
    others = len(subject.places) * max(1, len(subject.shifts)) - 1
    kept = [size for size in subject.sizes if size <= FIRST_BYTES]
    each = count_calls(subject)[0] + subject.proof + 1 + VOTES + subject.repeats
    more = sum(
        others * (2 + count_pooled(subject, size)) + count_varied(subject, size)
        for size in subject.sizes
    )
    first = FIRST_CALLS + VOTES if kept and subject.repeats else 0
    return len(subject.sizes) * each + more + first


def count_pooled(subject: SumOrder, nbytes: int) -> int:
    """Random buffers in which an order of a size is tried in another way to place buffers."""
    return subject.proof * (POOLED if nbytes <= SMALL else 1)


def count_varied(subject: SumOrder, nbytes: int) -> int:
    """Calls of a size in which other elements change; none without repeats or other elements."""
    has_others = nbytes > DTYPES[subject.dtype].size
    return NEIGHBOURS[nbytes > SMALL] if subject.repeats and has_others else 0
