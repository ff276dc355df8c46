"""Where a series of nights changes its level: E-divisive with Welch's t-test, found weakly and then
merged.

Values are logarithms, so that a difference is a relative change. Sources: Matteson & James 2014
(E-divisive: the energy distance between both sides of a split, here with exponent 1); Fleming et
al. 2023 (Hunter: windows, a t-test in place of permutations, candidates found at ten times the
level and merged); Welch 1947.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import special

from collbench.records.stats import TINY, Floats

LEAST = 3  # nights on each side: with one or two, a single odd night is a change

LEVEL, WEAK = 0.001, 0.01

WINDOW = 50  # nights looked at together

TAU = 0.03  # the smallest change that matters


class Change(NamedTuple):
    """A change of level: the ``position`` of the first night after it, the relative change of a
    call's time (``delta``), and the t-test's ``p``."""

    position: int
    delta: float
    p: float


def find_changes(values: Sequence[float], tau: float = TAU) -> list[Change]:
    """The changes of level by at least ``tau`` in a series of nights, in order."""
    x = np.asarray(values, dtype=float)
    places = sorted(_find_candidates(x))
    while changes := _measure_changes(x, places):
        weakest = max(changes, key=lambda change: change.p)
        if weakest.p < LEVEL:
            weakest = min(changes, key=lambda change: abs(change.delta))
            if abs(weakest.delta) >= tau:
                break
        places.remove(weakest.position)
    return changes


def _find_candidates(x: Floats) -> set[int]:
    """Places of weak changes, looked for in windows that overlap by half or begin at the last one
    found."""
    candidates: set[int] = set()
    begin = 0
    while len(x) - begin >= 2 * LEAST:
        splits = _find_splits(x[begin : begin + WINDOW])
        candidates |= {begin + index for index in splits}
        begin = max(begin + WINDOW // 2, begin + max(splits, default=0))
    return candidates


def _find_splits(x: Floats) -> list[int]:
    """The place that best divides ``x``, and those that divide both sides of it, as far as they are
    weak changes."""
    if len(x) < 2 * LEAST:
        return []
    index = _find_farthest(x)
    if _welch_pvalue(x[:index], x[index:]) >= WEAK:
        return []
    return [
        *_find_splits(x[:index]),
        index,
        *(index + offset for offset in _find_splits(x[index:])),
    ]


def _find_farthest(x: Floats) -> int:
    """The split with the greatest energy distance between its sides, each of at least LEAST
    nights."""
    n = len(x)
    # over all pairs of the first i+1 and j+1 nights
    sums = np.abs(x[:, None] - x).cumsum(0).cumsum(1)
    left_count = np.arange(LEAST, n - LEAST + 1)
    right = n - left_count
    left_sums, rows, all_sums = (
        sums[left_count - 1, left_count - 1],
        sums[left_count - 1, -1],
        sums[-1, -1],
    )
    within = left_sums / (left_count * (left_count - 1)) + (all_sums - 2 * rows + left_sums) / (
        right * (right - 1)
    )
    distance = 2 * (rows - left_sums) / (left_count * right) - within
    return int(left_count[np.argmax(left_count * right / n * distance)])


def _measure_changes(x: Floats, places: Sequence[int]) -> list[Change]:
    """A Change for each index of ``places``: from the mean of the stretch before it to the mean of
    the stretch after it."""
    ends = [0, *places, len(x)]
    return [
        Change(
            index,
            math.expm1(float(np.mean(x[index:end]) - np.mean(x[begin:index]))),
            _welch_pvalue(x[begin:index], x[index:end]),
        )
        for (begin, index), (_, end) in zip(pairwise(ends), pairwise(ends[1:]), strict=False)
    ]


def _welch_pvalue(a: Floats, b: Floats) -> float:
    """Two-sided p of Welch's t-test; 0 or 1 where nothing scatters."""
    difference = float(np.mean(b) - np.mean(a))
    squares = np.array([np.var(a, ddof=1) / len(a), np.var(b, ddof=1) / len(b)])
    total = float(squares.sum())
    if total <= TINY:
        return float(difference == 0)
    freedom = total**2 / float(squares**2 @ (1 / np.array([len(a) - 1, len(b) - 1])))
    return 2 * float(special.stdtr(freedom, -abs(difference) / math.sqrt(total)))
