"""The statistics of one case: a median with an honest interval, when to stop, two modes, late
ranks, where noise is.

Nothing here assumes a normal distribution, deletes a sample or knows a unit; times come in
nanoseconds and leave so. Sources: Hoefler & Belli, SC15 (order-statistic intervals); Le Boudec,
Performance Evaluation, §2 (the same); Tukey 1977 (fences); Mann 1945 and Kendall 1975 (trend); Holm
1979; Searle, Variance Components, §3 (one-way split).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Samples = Sequence[float] | npt.NDArray[np.floating | np.integer]

PerRank = Sequence[Sequence[int]] | npt.NDArray[np.floating | np.integer]

BLOCK = 10  # samples: the least measured between two looks at the data, and a block of warm-up

NAMING = 20  # samples from which on a rank is named that comes late
MIN_STEPS = 3  # as NAMING, where a sample is a step of a job, of several operations

TINY = float(np.finfo(float).tiny)


def median(samples: Samples) -> float:
    """The median of at least one sample, none missing; np.median takes twenty times as long over
    the few samples of a case."""
    return _middle_value(_sort_samples(samples))


def _sort_samples(samples: Samples) -> Floats:
    ordered = np.array(samples, dtype=float)
    ordered.sort()
    return ordered


def _middle_value(ordered: Floats) -> float:
    return (ordered.item((len(ordered) - 1) // 2) + ordered.item(len(ordered) // 2)) / 2


def n_eff(samples: Samples) -> float:
    """How many independent samples would bound the median as well as these times:
    ``count_independent`` of their logs."""
    return count_independent(np.log(np.maximum(np.asarray(samples, dtype=float), TINY)))


def count_independent(values: Floats) -> float:
    """How many independent values tell as much as these, which may have any sign: N(1-ρ)/(1+ρ),
    never more than N.

    ρ is their lag-1 autocorrelation, in the order measured, limited to [0, .95]. Values are clipped
    to median ± 5·1.4826·MAD so that a spike does not hide the correlation, except where ties make
    MAD zero.
    """
    n = len(values)
    if n < 3:
        return float(n)
    ordered = _sort_samples(values)
    spread = 5 * 1.4826 * _index_deviation(ordered)
    if ordered[0] == ordered[-1]:
        return float(n)
    if spread > 0:
        values = values.clip(_middle_value(ordered) - spread, _middle_value(ordered) + spread)
    off = values - values.sum() / n
    rho = min(max(float(off[:-1] @ off[1:] / (off @ off)), 0.0), 0.95)
    return n * (1 - rho) / (1 + rho)


@lru_cache(maxsize=4096)
def interval_ranks(n: int, q: float = 0.5) -> tuple[int, int] | None:
    """Ranks (j, k), from 1, of the sorted samples between which quantile ``q`` lies with at least
    95 % confidence.

    Exact for n independent samples of any continuous distribution, each tail at most half of the
    rest; None where n samples cannot bound the quantile on both sides (median below 6, p95 below
    72, p99 below 368).
    """
    tail = 0.025 * (1 + 1e-9)
    mass = _binomial_density(n, q)
    j = int(np.searchsorted(np.cumsum(mass), tail, side="right"))
    k = n + 1 - int(np.searchsorted(np.cumsum(mass[::-1]), tail, side="right"))
    return (j, k) if j >= 1 and k <= n else None


def _binomial_density(n: int, q: float) -> Floats:
    """Probability of 0..n successes in n trials. numpy alone: importing scipy costs more than a
    table of rows."""
    hits = np.arange(n + 1)
    factorial = np.concatenate(([0.0], np.cumsum(np.log(hits[1:]))))
    logs = (
        factorial[-1]
        - factorial
        - factorial[::-1]
        + hits * math.log(q)
        + (n - hits) * math.log1p(-q)
    )
    return np.asarray(np.exp(logs), dtype=float)


def median_interval(samples: Samples, n_eff: float) -> tuple[float, float, float]:
    """Median and its 95 % interval, worth ``n_eff`` independent samples; ∓inf with fewer than 6 of
    those.

    The ranks for ⌊n_eff⌋ samples are taken at their expected levels, r/(⌊n_eff⌋+1), among all,
    rounded outwards.
    """
    ordered = _sort_samples(samples)
    n, m = len(ordered), min(int(n_eff), len(ordered))
    ranks = interval_ranks(m)
    if ranks is None:
        return _middle_value(ordered), -math.inf, math.inf
    j, k = ranks[0] * (n + 1) // (m + 1), -(-ranks[1] * (n + 1) // (m + 1))
    return _middle_value(ordered), ordered.item(j - 1), ordered.item(k - 1)


def quantile(samples: Samples, n_eff: float, q: float) -> float | None:
    """The smallest sample with at least a share ``q`` at or below it; None where samples worth
    ``n_eff`` independent ones cannot bound it on both sides with 95 %."""
    n = len(samples)
    if interval_ranks(int(n_eff), q) is None:
        return None
    return _sort_samples(samples).item(max(0, math.ceil(n * q - 1)))


def mad(samples: Samples) -> float:
    """Median absolute deviation from the median, not scaled to a standard deviation. Zero if most
    samples tie."""
    return _index_deviation(_sort_samples(samples))


def _index_deviation(ordered: Floats) -> float:
    return median(np.abs(ordered - _middle_value(ordered)))


def count_outliers(samples: Samples) -> tuple[int, int]:
    """How many samples lie beyond Tukey's fences: mild (1.5 to 3 interquartile ranges out), and
    severe (farther)."""
    ordered = _sort_samples(samples)
    low, high = _interpolate_quantile(ordered, 0.25), _interpolate_quantile(ordered, 0.75)
    out = np.maximum(low - ordered, ordered - high)
    severe = int(np.count_nonzero(out > 3 * (high - low)))
    return int(np.count_nonzero(out > 1.5 * (high - low))) - severe, severe


def _interpolate_quantile(ordered: Floats, q: float) -> float:
    """Quantile ``q`` on the line between the two samples that it lies between."""
    position = q * (len(ordered) - 1)
    below, above = ordered.item(int(position)), ordered.item(math.ceil(position))
    return below + (above - below) * (position % 1)


def find_modes(samples: Samples) -> tuple[float, float] | None:
    """Medians of the two groups that the samples fall into, or None if they do not clearly.

    Clearly: the widest gap in log time, leaving a tenth (and 4) of the samples on each side and at
    most 2 % inside, is at least as wide as either group's middle 80 %, more for groups under 14
    samples, and 5 % of the time. Limits were set by simulation: see the tests for how often
    one-mode data (skewed, spiky, autocorrelated) is called two. Steps of a coarse timer are no
    modes: the gap must exceed two steps and each group hold three distinct values.
    """
    ordered = _sort_samples(samples)
    n = len(ordered)
    if n < 20 or ordered[0] <= 0:
        return None
    least, inside = max(4, math.ceil(0.1 * n)), n // 50
    # ends of the gap at the first possible split
    low, high = (least - 1 - inside // 2, least + inside - inside // 2)
    logs = np.log(ordered)
    gaps = logs[high : high + n - 2 * least + 1] - logs[low : low + n - 2 * least + 1]
    best = int(gaps.argmax())
    gap, split = gaps.item(best), least + best
    if gap < math.log(1.05):
        return None
    groups = (logs[:split], logs[split:])
    width = max(float(g[len(g) - 1 - len(g) // 10] - g[len(g) // 10]) for g in groups)
    if gap < max(1.0, 14 / min(split, n - split)) * width:
        return None
    steps = np.diff(ordered)
    step = float(steps[steps > 0].min())
    coarse = ordered.item(high + best) - ordered.item(low + best) < 3 * step * (1 - 1e-9)
    if coarse or any(np.count_nonzero(np.diff(g)) < 2 for g in groups):
        return None
    return _middle_value(ordered[:split]), _middle_value(ordered[split:])


def in_stretches(above: npt.NDArray[np.bool_]) -> bool:
    """Whether samples stay in one of two groups for long: by the order measured they change groups
    less than half as often as they would in a random order, 2p(1-p) of the time."""
    changes = np.count_nonzero(above[1:] != above[:-1])
    share = np.count_nonzero(above) / len(above)
    return bool(changes < share * (1 - share) * (len(above) - 1))


def measure_drift(samples: Samples) -> float:
    """How much the median of the second half of the samples, in the order measured, differs from
    that of the first. Of at least two samples."""
    half = len(samples) // 2
    return abs(median(samples[half:]) - median(samples[:half]))


def is_converged(
    samples: Samples, precision: float, min_iters: int, seconds: float, min_seconds: float
) -> bool:
    """Whether the median's 95 % interval is within ± ``precision`` (a share of it), after enough
    samples and time.

    Ask it after each next_block only: the more often one looks, the sooner a lucky interval is
    believed.
    """
    if len(samples) < min_iters or seconds < min_seconds:
        return False
    middle, lo, hi = median_interval(samples, n_eff(samples))
    return max(hi - middle, middle - lo) <= precision * middle


def half_width(median: float, lo: float, hi: float) -> float:
    """The larger half of an interval, as a share of the median; infinite where that is 0."""
    return max(hi - median, median - lo) / median if median else math.inf


def next_block(n: int) -> int:
    """How many samples to add to ``n`` before looking again: a quarter more, and 10 at least."""
    return max(BLOCK, math.ceil(n / 4))


def is_steady(times: Samples) -> bool:
    """Whether warm-up may end: the last two blocks' medians agree within 2 %, and the last three
    show no trend.

    A block is 10 samples; no trend means that Mann-Kendall gives p > .05, which one steady stretch
    in 20 will not.
    """
    if len(times) < 3 * BLOCK:
        return False
    last = np.asarray(times[-3 * BLOCK :], dtype=float)
    before, after = median(last[BLOCK : 2 * BLOCK]), median(last[2 * BLOCK :])
    return abs(after - before) <= 0.02 * min(before, after) and _trend_pvalue(last) > 0.05


def _trend_pvalue(values: Floats) -> float:
    """Two-sided p of the Mann-Kendall test: normal form, corrected for ties and continuity."""
    n = len(values)
    score = float(np.triu(np.sign(values[None, :] - values[:, None])).sum())
    ties = np.unique(values, return_counts=True)[1].astype(float)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if variance <= 0:
        return 1.0
    return math.erfc(max(abs(score) - 1, 0.0) / math.sqrt(2 * variance))


def inner_repeats(t_ns: float, shortest_ns: float) -> int:
    """Calls per sample so that a sample of calls of ``t_ns`` lasts ``shortest_ns``, where the clock
    is fine enough."""
    return max(1, math.ceil(shortest_ns / max(t_ns, 1.0)))


def measure_lateness(per_rank: PerRank, starts: PerRank = ()) -> list[float]:
    """Per rank, the median time by which it came after the first arriver; [] without samples.

    Read off ``starts`` (``starts[r][i]``: start of sample i on rank r after the earliest rank's,
    all on one clock) where given. Else off ``per_rank[r][i]``, its duration, as the time that the
    first arriver waited for it: valid where all ranks leave a collective together, so that the one
    with the shortest time came last: synchronising collectives, not rooted ones.
    """
    if not (len(per_rank) and len(per_rank[0])):
        return []
    late = np.sort(_late_times(per_rank, starts), axis=1)
    n = late.shape[1]
    medians: list[float] = ((late[:, (n - 1) // 2] + late[:, n // 2]) / 2).tolist()
    return medians


def _late_times(per_rank: PerRank, starts: PerRank) -> Floats:
    """How late each rank came to each sample."""
    if len(starts):
        return np.asarray(starts, dtype=float)
    durations = np.asarray(per_rank, dtype=float)
    return np.asarray(durations.max(axis=0) - durations)


def find_straggler(per_rank: PerRank, starts: PerRank = (), fewest: int = NAMING) -> int | None:
    """The rank that comes last too often for chance (binomial against 1/p, Holm over ranks, p <
    .001) and by too much.

    How late a rank comes is read off ``starts`` (after the earliest rank's, all on one clock) where
    given, else from durations as in lateness, and valid where that is. Chance is reckoned with
    N_eff of "came last", as lateness may wander. Too much: half of the time by more than 5 % of the
    median slowest duration. Ties name nobody; of several such ranks, the one last most often. None
    with one rank or less than the ``fewest`` samples.
    """
    ranks = len(per_rank)
    n = len(per_rank[0]) if ranks else 0
    if ranks < 2 or n < fewest:
        return None
    late = _late_times(per_rank, starts)
    latest = late == late.max(axis=0)
    came_last = latest & (latest.sum(axis=0) == 1)
    last = came_last.sum(axis=1).tolist()
    if _binomial_tail(n, 1 / ranks, max(last)) * ranks >= 0.001:
        return None  # what Holm allows whoever came last most often
    chance = adjust_holm([_binomial_tail(n, 1 / ranks, count) for count in last])
    limit = 0.05 * median(np.max(per_rank, axis=0))
    candidates = []
    for r in (r for r in range(ranks) if chance[r] < 0.001):
        share = n_eff(np.exp(came_last[r])) / n
        surely = _binomial_tail(int(n * share), 1 / ranks, int(last[r] * share)) * ranks < 0.001
        if surely and median(late[r]) > limit:
            candidates.append((last[r], r))
    return max(candidates, default=(0, None))[1]


def count_samples_to_name(ranks: int, share: float) -> int:
    """From how many samples on ``find_straggler`` may name one of ``ranks`` that comes last to this
    share of them; 1000 where that is no less."""
    numbers = range(MIN_STEPS, 1000)
    tails = ((n, _binomial_tail(n, 1 / ranks, int(n * share))) for n in numbers)
    return next((n for n, tail in tails if tail * ranks < 0.001), 1000)


def find_dawdler(per_rank: PerRank, starts: PerRank) -> int | None:
    """The rank that leaves last, as surely and by as much as a straggler comes last; None where no
    rank does. Where no rank came late, its own transfers take longer, or the algorithm ends
    there."""
    ends = np.asarray(starts, dtype=float) + np.asarray(per_rank, dtype=float)
    return find_straggler(per_rank, ends - ends.min(axis=0))


@lru_cache(maxsize=4096)
def _binomial_tail(n: int, p: float, count: int) -> float:
    """Probability of ``count`` or more out of ``n``."""
    return float(_binomial_density(n, p)[count:].sum())


def adjust_holm(pvalues: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given: reject those at most α to err anywhere with a chance
    of at most α."""
    adjusted = [1.0] * len(pvalues)
    worst = 0.0
    for position, index in enumerate(sorted(range(len(pvalues)), key=lambda i: pvalues[i])):
        worst = max(worst, min(1.0, (len(pvalues) - position) * pvalues[index]))
        adjusted[index] = worst
    return adjusted
