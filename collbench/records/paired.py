"""Statistics of comparisons: what launches of two sides, in pairs or not, say of a shift in log
time.

Everything is exact for small numbers of launches and assumes no normal distribution, but for the
smallest changes that are found and ``bound_launches`` of fewer than FEWEST; ``estimate_shift``
wants changes that lie symmetrically about their median, as they do between two sides that scatter
alike. Changes are differences of natural logarithms, so that exp(change) is a ratio. Sources:
Hodges & Lehmann 1963 (estimates); Hollander & Wolfe, Nonparametric Statistical Methods, §3 and §4
(their intervals, ties); Wilcoxon 1945; Mann & Whitney 1947.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collbench.records.stats import TINY

Floats = npt.NDArray[np.float64]

Values = Sequence[float] | Floats

EXACT_PAIRS = 40_000

EXACT_SIGNS = 100

WIDE = 0.55  # of what matters may be half of an interval that a verdict comes from

FEWEST = 6  # rounds that bound a median at 95 %

# Student's quantile at 97.5 % by launches; scipy's takes longer to load than a table of rows
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}

MAX_LOG = 700.0  # of which exp is finite


class Shift(NamedTuple):
    """An estimate and its interval, infinite where too few launches bound it, and how surely it
    holds the truth."""

    estimate: float
    lo: float
    hi: float
    coverage: float


def estimate_shift(changes: Values, level: float = 0.95) -> Shift:
    """Hodges-Lehmann estimate of the changes' centre: the median of all averages of two (Walsh
    averages).

    The interval reaches from sorted average K to the K-th from the end, K as the signed-rank
    distribution gives it.
    """
    return _bound_shift(
        _walsh_averages(np.asarray(changes, dtype=float)),
        _signed_ranks(_rank_sum_counts(len(changes))),
        level,
    )


def bound_launches(times: Values) -> tuple[float, float, float]:
    """The median of what launches took, and its 95 % interval: by Walsh averages of logarithms from
    FEWEST launches on; of two to five by Student's t, which takes logarithms as normal and is wide;
    infinite of one."""
    middle = float(np.median(times))
    logs = np.log(np.maximum(np.asarray(times, dtype=float), TINY))
    if len(logs) >= FEWEST:
        _, lo, hi, _ = estimate_shift(logs)
    elif len(logs) > 1:
        half = STUDENT[len(logs)] * float(logs.std(ddof=1)) / math.sqrt(len(logs))
        lo, hi = float(logs.mean()) - half, float(logs.mean()) + half
    else:
        return middle, -math.inf, math.inf
    return middle, min(middle, math.exp(lo)), max(middle, math.exp(min(hi, MAX_LOG)))


def unpaired_shift(base: Values, head: Values, level: float = 0.95) -> Shift:
    """The shift from ``base`` to ``head``, logs of launches that form no pairs: the median of all
    differences (Hodges-Lehmann), with its interval by Mann-Whitney."""
    differences = np.sort(
        np.subtract.outer(np.asarray(head, dtype=float), np.asarray(base, dtype=float)), axis=None
    )
    return _bound_shift(differences, _mann_whitney(len(base), len(head)), level)


def _bound_shift(ordered: Floats, cumulated: Floats, level: float) -> Shift:
    """Median of ``ordered`` and the interval from its K-th to its K-th last, K the largest that
    keeps ``level``.

    ``cumulated[w]`` is the chance that at most w of these values lie on one side of the truth.
    """
    k = int(np.searchsorted(cumulated, (1 - level) / 2 * (1 + 1e-9), side="right")) - 1
    estimate = float(np.median(ordered))
    if k < 0:
        return Shift(estimate, -np.inf, np.inf, 1.0)
    return Shift(estimate, float(ordered[k]), float(ordered[-1 - k]), 1 - 2 * float(cumulated[k]))


def _walsh_averages(changes: Floats) -> Floats:
    """The averages of every two changes, and of each change with itself, ascending."""
    rows, columns = _upper_indices(len(changes))
    return np.sort((changes[rows] + changes[columns]) / 2)


@lru_cache(maxsize=64)
def _upper_indices(n: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    return np.triu_indices(n)


def signed_rank_p(changes: Values) -> float:
    """Exact two-sided p of Wilcoxon's signed-rank test that changes are symmetric about zero.

    Ties share the mean of their ranks, and p is exact for just these; zeros are left out first, as
    Wilcoxon did, which leaves p = 1 where all are. Values are compared to 12 decimals: equal ratios
    may differ in their last bit.
    """
    values = np.round(np.asarray(changes, dtype=float), 12)
    values = values[values != 0]
    _, group_index, counts = np.unique(np.abs(values), return_inverse=True, return_counts=True)
    doubled = (2 * np.cumsum(counts) - counts + 1)[group_index]
    cumulated = _signed_ranks(tuple(int(rank) for rank in np.sort(doubled)), halved=False)
    positive = int(doubled[values > 0].sum())
    return min(1.0, 2 * float(cumulated[min(positive, len(cumulated) - 1 - positive)]))


def _rank_sum_counts(n: int) -> tuple[int, ...]:
    return tuple(range(2, 2 * n + 1, 2))


@lru_cache(maxsize=64)
def _signed_ranks(doubled: tuple[int, ...], halved: bool = True) -> Floats:
    """Chance that ranks with a positive sign sum up to at most 0, 1, 2 …, each sign being a fair
    coin.

    Ranks come doubled, so that those of ties are whole; sums are those of the ranks themselves
    where ``halved``. Beyond EXACT_SIGNS of them the normal form takes over, which is right to
    .0003 in the tails that bound an interval, and to .0009 elsewhere.
    """
    if len(doubled) > EXACT_SIGNS:
        from scipy.special import ndtr

        ranks = np.asarray(doubled, dtype=float) / 2
        step = 1 if halved else 0.5
        sums = np.arange(int(ranks.sum() / step) + 1) * step
        off = sums + 0.5 - ranks.sum() / 2
        return np.asarray(ndtr(off / np.sqrt((ranks**2).sum() / 4)), dtype=float)
    chance = np.ones(1)
    for rank in doubled:
        longer = np.zeros(len(chance) + rank)
        longer[:-rank] += chance / 2
        longer[rank:] += chance / 2
        chance = longer
    return np.cumsum(chance)[:: 2 if halved else 1].copy()


@lru_cache(maxsize=64)
def _mann_whitney(m: int, n: int) -> Floats:
    """Chance that at most 0, 1 … m·n/2 of the pairs across two alike samples without ties have the
    second one smaller.

    These are the Gaussian binomial coefficients, by their product formula over (1 - q^(n+i)) / (1 -
    q^i), which rounding errors spoil at last: beyond 40,000 pairs, where it is right to .0002, the
    normal form takes over.
    """
    m, n = sorted((m, n))
    if m * n > EXACT_PAIRS:
        from scipy.special import ndtr

        below = np.arange(m * n // 2 + 1) + 0.5 - m * n / 2
        return np.asarray(ndtr(below / np.sqrt(m * n * (m + n + 1) / 12)), dtype=float)
    chance = np.zeros(m * n // 2 + 1)
    chance[0] = 1
    for i in range(1, m + 1):
        chance[n + i :] -= chance[: -(n + i)].copy()
        by_step = np.zeros(-(-len(chance) // i) * i)
        by_step[: len(chance)] = chance
        chance = by_step.reshape(-1, i).cumsum(0).ravel()[: len(chance)] * (i / (n + i))
    return np.cumsum(chance)


def mann_whitney_p(base: Values, head: Values) -> float:
    """Two-sided p that neither side tends to be larger: exact without ties, else by its normal
    form."""
    a, b = (np.asarray(side, dtype=float) for side in (base, head))
    tied = len(np.unique(np.concatenate([a, b]))) < len(a) + len(b)
    if not tied and 0 < len(a) * len(b) <= EXACT_PAIRS:
        smaller = int((b[:, None] < a).sum())
        cumulated = _mann_whitney(len(a), len(b))
        return min(1.0, 2 * float(cumulated[min(smaller, len(a) * len(b) - smaller)]))
    from scipy.stats import mannwhitneyu  # loads slowly, and takes long for one p

    return float(mannwhitneyu(head, base, method="asymptotic" if tied else "exact").pvalue)


def estimate_scatter(changes: Values) -> float:
    """Standard deviation of the changes of pairs; infinite for one."""
    return float(np.std(changes, ddof=1)) if len(changes) > 1 else np.inf


def unpaired_scatter(base: Values, head: Values) -> float:
    """Pooled standard deviation of launches of two sides that form no pairs; infinite where a side
    has one."""
    m, n = len(base), len(head)
    if min(m, n) < 2:
        return np.inf
    squares = (m - 1) * float(np.var(base, ddof=1)) + (n - 1) * float(np.var(head, ddof=1))
    return float(np.sqrt(squares / (m + n - 2)))


def estimate_mde(changes: Values) -> float:
    """The smallest change that as many pairs as these, scattering as they do, find at 95 % with a
    chance of 80 %; infinite for one. See ``smallest_change``."""
    return smallest_change(estimate_scatter(changes), len(changes))


def unpaired_mde(base: Values, head: Values) -> float:
    """The smallest change that launches of two sides without pairs find at 95 % with a chance of
    80 %, from their pooled scatter; infinite where a side has one launch. See
    ``smallest_unpaired_change``."""
    return smallest_unpaired_change(unpaired_scatter(base, head), len(base), len(head))


def smallest_change(scatter: float, pairs: int) -> float:
    """The smallest change that so many pairs find at 95 % with a chance of 80 %.

    1.1 (t_.975 + t_.8) s/√R, from R = 8 pairs on.
    """
    return _mde_factor(scatter, pairs - 1, 1 / pairs) if pairs > 1 else np.inf


def smallest_unpaired_change(scatter: float, base: int, head: int) -> float:
    """The smallest change that ``base`` and ``head`` launches of two sides without pairs find at
    95 % with a chance of 80 %; infinite where a side has one launch."""
    return (
        _mde_factor(scatter, base + head - 2, 1 / base + 1 / head)
        if min(base, head) > 1
        else np.inf
    )


def _mde_factor(deviation: float, freedom: int, per: float) -> float:
    quantiles = _student_quantile(freedom, 0.975) + _student_quantile(freedom, 0.8)
    return 1.1 * quantiles * deviation * math.sqrt(per)


def confirmed_change(scatter: float, pairs: int, tau: float, tests: int, stages: int = 2) -> float:
    """The smallest change that ``stages`` stages of so many pairs all find, with a chance of 80 %:
    the estimate reaches ``tau`` (relative), and the interval that counts for so many ``tests``
    excludes zero. Of fewer pairs than can confirm anything, it is that of ``fewest_rounds``;
    infinite for one."""
    if pairs < 2:
        return math.inf
    pairs = max(pairs, fewest_rounds(tests))
    return _confirmed_change(scatter / math.sqrt(pairs), pairs - 1, tau, tests, 0.8 ** (1 / stages))


def confirmed_unpaired_change(
    scatter: float, base: int, head: int, tau: float, tests: int
) -> float:
    """``confirmed_change`` of launches of two sides without pairs, which are judged once; infinite
    where a side has one launch."""
    if min(base, head) < 2:
        return math.inf
    error = scatter * math.sqrt(1 / base + 1 / head)
    return _confirmed_change(error, base + head - 2, tau, tests, 0.8)


def _confirmed_change(error: float, freedom: int, tau: float, tests: int, chance: float) -> float:
    """The change whose estimate, of this standard error, is far enough from zero with a chance."""
    beyond = _student_quantile(freedom, chance) * error
    half = _student_quantile(freedom, (1 + bonferroni_level(tests)) / 2) * error
    return max(math.log1p(tau) + beyond, 1.1 * (half + beyond))


@lru_cache(maxsize=1024)
def _student_quantile(freedom: int, chance: float) -> float:
    from scipy.special import stdtrit  # loads four times sooner than scipy.stats

    return float(stdtrit(freedom, chance))


def count_enough_pairs(changes: Values, tau: float, level: float = 0.95) -> float:
    """How many pairs, scattering as these do, bound a change within WIDE of what matters (``tau``,
    relative), so that a row without one is as good as always found the same, and one with twice
    that much changed. inf where these bound nothing yet."""
    _, lo, hi, _ = estimate_shift(changes, level) if len(changes) else (0.0, -np.inf, np.inf, 1.0)
    half, n = (hi - lo) / 2, len(changes)
    target_width = WIDE * math.log1p(tau)
    return (
        n
        if half <= target_width
        else math.ceil(n * (half / target_width) ** 2)
        if half < np.inf
        else np.inf
    )


def count_lacking_pairs(changes: Values, tau: float, level: float = 0.95) -> float:
    """How many more pairs are ``count_enough_pairs``; where these bound nothing yet, how many more
    can."""
    enough = count_enough_pairs(changes, tau, level)
    if math.isinf(enough):
        enough = fewest_rounds(round(0.05 / (1 - level)))
    return max(0.0, enough - len(changes))


def bonferroni_level(tests: int) -> float:
    """The level at which each of so many intervals must hold so that all do with 95 %."""
    return 1 - 0.05 / max(1, tests)


def fewest_rounds(tests: int) -> int:
    """The number of pairs that can confirm a change at that level: the exact test's smallest p is 2
    / 2^pairs."""
    return max(FEWEST, math.ceil(math.log2(2 * max(1, tests) / 0.05)))


def most_tests(rounds: int) -> int:
    """The number of intervals at once for which so many pairs suffice: the inverse of
    ``fewest_rounds``."""
    return max(1, int(0.05 * 2.0 ** min(rounds, 60) / 2))


def estimate_geomean(sums: Values, counts: Values) -> tuple[float, float, float]:
    """Mean change over rows and rounds, and its 95 % interval: Student's, of a ratio's estimate.

    ``sums[r]`` adds up the changes of the ``counts[r]`` rows that round r has; rounds stay whole,
    since what disturbs one row of a launch may disturb all. Infinite below 6 rounds.
    """
    from scipy.special import stdtrit

    totals, rows = np.asarray(sums, dtype=float), np.asarray(counts, dtype=float)
    estimate, n = float(totals.sum() / rows.sum()), len(totals)
    if n < FEWEST:
        return estimate, -np.inf, np.inf
    error = math.sqrt(n / (n - 1) * float(((totals - estimate * rows) ** 2).sum())) / rows.sum()
    half = float(stdtrit(n - 1, 0.975) * error)
    return estimate, estimate - half, estimate + half
