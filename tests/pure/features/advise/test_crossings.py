"""Cross-overs: intervals that hold the size at which a planted ratio is 1."""

from __future__ import annotations

import math

import numpy as np
import pytest

from collbench.features.advise.crossings import Knot, describe_crossing, find_crossing
from collbench.features.advise.types import Crossing
from collbench.records import paired

SIZES = tuple(1 << power for power in range(10, 24))


def knots(*ends: tuple[float, float]) -> list[Knot]:
    return [Knot(1024 << (2 * i), (lo + hi) / 2, lo, hi) for i, (lo, hi) in enumerate(ends)]


def test_the_ends_of_intervals_are_straight_lines_over_the_logarithm_of_size() -> None:
    crossing = find_crossing(knots((-0.3, -0.1), (-0.1, 0.1), (0.1, 0.3)))
    assert crossing == pytest.approx((2048, 8192))
    down = find_crossing(knots((0.1, 0.3), (-0.1, 0.1), (-0.3, -0.1))[::-1])
    assert down == pytest.approx((2048, 8192))


@pytest.mark.parametrize(
    "ends",
    [
        (),
        ((-0.3, -0.1),),
        ((-0.3, 0.1), (0.1, 0.3)),  # not surely faster at first
        ((-0.3, -0.1), (-0.3, -0.1)),  # faster to the end
        ((-0.3, -0.1), (-0.1, 0.1)),  # not surely slower at any size
        ((-math.inf, -0.1), (0.1, math.inf)),  # too few launches
    ],
)
def test_what_cannot_be_told(ends: tuple[tuple[float, float], ...]) -> None:
    assert find_crossing(knots(*ends)) is None


def test_words() -> None:
    assert describe_crossing(Crossing(3.1 * 2**20, 5 * 2**20)) == "between 3.1 and 5 MiB"
    assert describe_crossing(Crossing(700 * 1024, 1.5 * 2**20)) == "between 700 KiB and 1.5 MiB"
    assert describe_crossing(Crossing(12, 400)) == "between 12 and 400 B"


@pytest.mark.parametrize("slope", [0.05, 0.12])
def test_the_interval_holds_the_truth(slope: float) -> None:
    """Ratios that are a straight line over the logarithm of the size, and cross 1 anywhere."""
    rng = np.random.default_rng(11)
    inside = told = 0
    for _ in range(200):
        at = rng.uniform(14, 19)
        line = [slope * (math.log2(size) - at) for size in SIZES]
        measured = [
            Knot(size, *paired.estimate_shift(rng.normal(change, 0.04, 10))[:3])
            for size, change in zip(SIZES, line, strict=True)
        ]
        if crossing := find_crossing(measured):
            told += 1
            inside += crossing.lo <= 2**at <= crossing.hi
    assert told >= 190
    assert inside >= 0.93 * told
