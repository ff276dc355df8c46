"""Where two settings are equally fast: an interval of sizes, by the intervals of their ratio."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from collbench.core.text import format_size
from collbench.features.advise.types import Crossing


class Knot(NamedTuple):
    """The logarithm of one setting's time over another's at a measured size, with its interval."""

    nbytes: int
    estimate: float
    lo: float
    hi: float


def find_crossing(knots: Sequence[Knot]) -> Crossing | None:
    """Where a setting that is surely faster at the first knot is so no longer: from the size where
    the upper end of its ratio's interval first reaches 0 to that where the lower end does. Between
    measured sizes the ends are straight lines over the logarithm of the size. ``knots`` lead away
    from the first, to larger or to smaller sizes. None where the setting is not surely faster at
    first, or not surely slower at any size."""
    if not knots or not knots[0].hi < 0 or any(knot.nbytes <= 0 for knot in knots):
        return None
    near = _find_zero(knots, lambda knot: knot.hi)
    far = _find_zero(knots, lambda knot: knot.lo)
    if near is None or far is None:
        return None
    return Crossing(min(near, far), max(near, far))


def _find_zero(knots: Sequence[Knot], end: Callable[[Knot], float]) -> float | None:
    """The size at which one end of the interval first reaches 0; None where it never does."""
    for before, after in pairwise(knots):
        low, high = end(before), end(after)
        if low < 0 <= high:
            if not math.isfinite(low) or not math.isfinite(high):
                return None
            share = low / (low - high)
            step = math.log(after.nbytes / before.nbytes)
            return before.nbytes * math.exp(share * step)
    return None


def describe_crossing(crossing: Crossing) -> str:
    """The interval in words: between 3.1 and 5 MiB."""
    lo, hi = (format_size(float(f"{_in_unit(size):.3g}") * _unit(size)) for size in crossing)
    number, _, unit = lo.partition(" ")
    return f"between {number} and {hi}" if hi.endswith(f" {unit}") else f"between {lo} and {hi}"


def _unit(size: float) -> float:
    return 1024.0 ** min(4, int(math.log(size, 1024))) if size >= 1 else 1.0


def _in_unit(size: float) -> float:
    return size / _unit(size)
