"""Statistics of comparisons against scipy, enumeration and simulation.

The simulated figures (shares of false positives, coverage, power) are those that the protocol was
chosen by; here they are simulated with few repetitions, in tests/perf/judging.py with many.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import simulated
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.records import paired

RNG = np.random.default_rng


@pytest.mark.parametrize(
    ("rounds", "k", "coverage"),
    [
        (6, 0, 0.969),
        (7, 2, 0.953),
        (8, 3, 0.961),
        (10, 8, 0.951),
        (12, 13, 0.958),
        (15, 25, 0.952),
        (20, 52, 0.952),
    ],
)
def test_the_interval_reaches_to_the_tabled_walsh_average(
    rounds: int, k: int, coverage: float
) -> None:
    changes = RNG(rounds).normal(size=rounds)
    walsh = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(changes, 2))
    found = paired.estimate_shift(changes)
    assert (found.lo, found.hi) == (walsh[k], walsh[-1 - k])
    assert found.coverage == pytest.approx(coverage, abs=5e-4)
    assert found.estimate == pytest.approx(np.median(walsh))


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99, 1 - 0.05 / 7, 0.9995])
def test_an_interval_holds_just_those_shifts_that_the_test_does_not_reject(level: float) -> None:
    changes = RNG(3).normal(0.4, 1, 12)
    found = paired.estimate_shift(changes, level)
    for bound in (found.lo, found.hi):
        for away, rejected in ((1e-6, True), (-1e-6, False)):
            moved = changes - (bound + away * math.copysign(1, bound - found.estimate))
            assert (scipy.stats.wilcoxon(moved, method="exact").pvalue <= 1 - level) == rejected


def test_too_few_rounds_bound_nothing() -> None:
    assert paired.estimate_shift([0.1] * 5)[1:] == (-math.inf, math.inf, 1.0)
    assert paired.estimate_shift([0.1] * 6)[1:3] == (0.1, 0.1)
    assert (
        paired.estimate_shift(range(12), paired.bonferroni_level(102)).lo > -math.inf
    )  # 2 / 2^12 of 0.05 / 102
    assert paired.estimate_shift(range(12), paired.bonferroni_level(103)).lo == -math.inf


def by_enumeration(changes: list[float]) -> float:
    """Two-sided p of the signed-rank test over all 2^n signs, ties by midranks, zeros left out."""
    values = np.array([x for x in changes if x])
    ranks = scipy.stats.rankdata(np.abs(values))
    sums = np.array([ranks @ signs for signs in itertools.product((0, 1), repeat=len(values))])
    seen = ranks @ (values > 0)
    return min(1.0, 2 * min(np.mean(sums <= seen + 1e-9), np.mean(sums >= seen - 1e-9)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=9))
def test_signed_rank_with_ties_and_zeros_is_exact(changes: list[float]) -> None:
    expected = by_enumeration(changes) if any(changes) else 1.0
    assert paired.signed_rank_p(changes) == pytest.approx(expected)


def test_signed_rank_without_ties_is_scipys() -> None:
    for n in (1, 5, 8, 12, 20, 31):
        changes = RNG(n).normal(0.3, 1, n)
        assert paired.signed_rank_p(changes) == pytest.approx(
            scipy.stats.wilcoxon(changes, method="exact").pvalue
        )
    assert paired.signed_rank_p([0.1] * 12) == pytest.approx(2 / 2**12)
    assert paired.signed_rank_p([]) == 1.0
    thirds = [
        math.log(3.3 / 3),
        -math.log(4.4 / 4),
        math.log(0.11 / 0.1),
    ]  # the same size but for the last bit
    assert paired.signed_rank_p(thirds) == 1.0


@pytest.mark.parametrize(("m", "n"), [(10, 10), (12, 30), (25, 11)])
@pytest.mark.parametrize("level", [0.95, 0.999])
def test_an_unpaired_interval_holds_just_those_shifts_that_mann_whitney_does_not_reject(
    m: int, n: int, level: float
) -> None:
    base, head = RNG(m).normal(size=m), RNG(n + 99).normal(0.5, 1, n)
    found = paired.unpaired_shift(base, head, level)
    assert found.estimate == pytest.approx(np.median([h - b for b in base for h in head]))
    for bound in (found.lo, found.hi):
        for away, rejected in ((1e-9, True), (-1e-9, False)):
            moved = head - (bound + away * math.copysign(1, bound - found.estimate))
            p = scipy.stats.mannwhitneyu(moved, base, method="exact").pvalue
            assert (p <= 1 - level) == rejected


def test_many_unpaired_launches_are_bounded_by_the_normal_form() -> None:
    exact, normal = (paired._mann_whitney(200, n) for n in (200, 201))
    places = (
        np.searchsorted(exact, [0.0005, 0.005, 0.025]),
        np.searchsorted(normal, [0.0005, 0.005, 0.025]),
    )
    assert places[0] == pytest.approx(places[1], rel=0.01)


@pytest.mark.parametrize("halved", [True, False])
def test_many_signed_ranks_are_bounded_by_the_normal_form(halved: bool) -> None:
    """Where ranks are not halved, only every other sum can come."""
    bounds = []
    for n in (100, 101):
        cumulated = paired._signed_ranks(paired._rank_sum_counts(n), halved)
        assert len(cumulated) == (1 if halved else 2) * n * (n + 1) // 2 + 1
        assert cumulated[-1] == pytest.approx(1)
        bounds.append(np.searchsorted(cumulated, [0.005, 0.025, 0.5]) / len(cumulated))
    assert bounds[0] == pytest.approx(bounds[1], rel=0.01)


def test_mann_whitney_with_and_without_ties() -> None:
    base, head = RNG(1).normal(size=10), RNG(2).normal(1, 1, 11)
    expected = scipy.stats.mannwhitneyu(base, head, method="exact").pvalue
    assert paired.mann_whitney_p(base, head) == pytest.approx(expected)
    assert paired.mann_whitney_p([1.0] * 10, [1.0] * 10) == 1.0
    assert paired.mann_whitney_p([1.0] * 10, [2.0] * 10) < 1e-4


def test_mde_is_the_formula() -> None:
    changes = RNG(4).normal(0, 0.02, 12)
    t = scipy.stats.t.ppf([0.975, 0.8], 11).sum()
    assert paired.estimate_mde(changes) == pytest.approx(
        1.1 * t * np.std(changes, ddof=1) / math.sqrt(12)
    )
    assert paired.estimate_mde([0.1]) == math.inf
    assert paired.estimate_mde([0.1] * 8) == pytest.approx(0)
    assert paired.unpaired_mde([0.1], [0.2, 0.3]) == math.inf


def test_unpaired_mde_is_found_four_times_in_five() -> None:
    rng, n = RNG(6), 12
    change = 1.1 * scipy.stats.t.ppf([0.975, 0.8], 2 * n - 2).sum() * math.sqrt(2 / n)
    wide = RNG(7).normal(size=n)
    assert paired.unpaired_mde(wide, wide) == pytest.approx(change * np.std(wide, ddof=1))
    power = np.mean(
        [
            paired.unpaired_shift(rng.normal(size=n), rng.normal(change, 1, n)).lo > 0
            for _ in range(400)
        ]
    )
    assert 0.76 < power < 0.92


@pytest.mark.parametrize("scatter", [0.02, 0.1])
@pytest.mark.parametrize("tests", [1, 10])
def test_the_smallest_confirmed_change_is_confirmed_four_times_in_five(
    scatter: float, tests: int
) -> None:
    """By both stages, at the level of each, and by estimates that reach what matters."""
    tau, rng, level = 0.05, RNG(8), paired.bonferroni_level(tests)
    change = max(
        paired.confirmed_change(scatter, pairs, tau, number)
        for pairs, number in ((8, 1), (12, tests))
    )

    def finds(pairs: int, level: float) -> bool:
        shift = paired.estimate_shift(rng.normal(change, scatter, pairs), level)
        return shift.lo > 0 and shift.estimate >= math.log1p(tau)

    power = np.mean([finds(8, 0.95) and finds(12, level) for _ in range(400)])
    assert 0.76 < power < 0.92


def test_no_smallest_confirmed_change_is_below_what_matters() -> None:
    assert paired.confirmed_change(0.0, 12, 0.05, 1) == pytest.approx(math.log1p(0.05))
    assert paired.confirmed_unpaired_change(0.0, 10, 10, 0.05, 1) == pytest.approx(math.log1p(0.05))
    assert paired.confirmed_change(0.1, 1, 0.05, 1) == math.inf
    assert paired.confirmed_unpaired_change(0.1, 1, 9, 0.05, 1) == math.inf


def test_geomean_weighs_all_rows() -> None:
    sums, counts = RNG(5).normal(0.2, 0.1, 8), [2.0] * 8
    middle, lo, hi = paired.estimate_geomean(sums, counts)
    assert middle == pytest.approx(sums.mean() / 2)
    assert paired.estimate_geomean([1.0, 3.0], [1.0, 3.0]) == (1.0, -math.inf, math.inf)
    student = scipy.stats.ttest_1samp(sums / 2, 0).confidence_interval(0.95)
    assert (lo, hi) == pytest.approx((student.low, student.high))


@pytest.mark.parametrize("rounds", [6, 8, 12])
def test_geomeans_interval_holds_the_truth_as_often_as_it_says(rounds: int) -> None:
    """Drawing rounds anew instead holds it 86 to 89 times in 100."""
    rng, counts = RNG(11), [3.0] * rounds
    found = [paired.estimate_geomean(rng.normal(0.0, 0.1, rounds), counts) for _ in range(1000)]
    assert 0.93 <= np.mean([lo <= 0 <= hi for _, lo, hi in found]) <= 0.97


def test_only_pairs_tell_identical_builds_apart_as_rarely_as_they_claim() -> None:
    """The error of a share of 200 is at most 3.5 %, of 4 % 1.4 %."""
    shares = simulated.false_positives(200, 10)
    expected = {
        "one launch each": (0.59, 0.11),
        "pooled": (0.76, 0.1),
        "one block after the other": (0.24, 0.1),
    }
    for design, (share, error) in expected.items():
        assert shares[design] == pytest.approx(share, abs=error)
    assert shares["pairs"] == pytest.approx(0.04, abs=0.035)


@pytest.mark.parametrize(("rounds", "tabled"), [(6, 0.969), (8, 0.961), (12, 0.958)])
@pytest.mark.parametrize("scatter", [simulated.normal, simulated.heavy])
def test_intervals_hold_the_truth_as_often_as_tabled(
    rounds: int, tabled: float, scatter: simulated.Scatter
) -> None:
    assert simulated.coverage(2000, rounds, scatter) == pytest.approx(tabled, abs=0.014)


@pytest.mark.parametrize("launches", [2, 3, 4, 5])
def test_intervals_of_few_launches_hold_the_truth_in_95_of_100(launches: int) -> None:
    """The hull of launches does in 50, 75, 88 and 94."""
    times = 1e5 * np.exp(0.02 * RNG(launches).normal(size=(3000, launches)))
    bounds = [paired.bound_launches(row)[1:] for row in times]
    assert np.mean([lo <= 1e5 <= hi for lo, hi in bounds]) == pytest.approx(0.95, abs=0.012)
    assert paired.STUDENT[launches] == pytest.approx(
        scipy.stats.t.ppf(0.975, launches - 1), abs=1e-3
    )


def test_one_launch_bounds_no_other_and_absurd_ones_do_not_overflow() -> None:
    assert paired.bound_launches([5.0]) == (5.0, -math.inf, math.inf)
    middle, lo, hi = paired.bound_launches([0.0, 1e12])
    assert (middle, lo) == (5e11, 0.0) and 1e12 < hi < math.inf


@pytest.mark.parametrize(
    ("rounds", "mde"), [(6, 2.5), (8, 1.8), (10, 1.45), (12, 1.36), (16, 1.1), (20, 0.94)]
)
def test_the_smallest_change_is_found_four_times_in_five(rounds: int, mde: float) -> None:
    """In units of the scatter between launches; the table's own rounding is worth 2 %."""
    assert simulated.power(1500, rounds, mde) == pytest.approx(0.8, abs=0.05)
