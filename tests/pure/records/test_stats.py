"""collbench.records.stats against published figures, scipy as the second opinion, and simulations
with a known answer."""

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import scipy.signal
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.records import stats
from collbench.records.time_summary import TimeSummary, pool_summaries

TIMES = st.lists(st.integers(1_000, 10_000_000), min_size=6, max_size=120)


def noise(rng: np.random.Generator, n: int, sd: float = 0.03, rho: float = 0.0) -> np.ndarray:
    """Times of median 1e5 ns, log-normal with relative spread ``sd``, autocorrelated (AR(1))."""
    shocks = rng.normal(size=n) * math.sqrt(1 - rho * rho)
    shocks[0] /= math.sqrt(1 - rho * rho)
    return 1e5 * np.exp(sd * scipy.signal.lfilter([1.0], [1.0, -rho], shocks))


def spikes(rng: np.random.Generator, n: int, share: float = 0.05) -> np.ndarray:
    return noise(rng, n, 0.02) * np.where(rng.random(n) < share, 1 + rng.exponential(1, n), 1)


def two_modes(
    rng: np.random.Generator, n: int, share: float, apart: float, sd: float = 0.02
) -> np.ndarray:
    return noise(rng, n, sd) * np.where(rng.random(n) < share, 1 + apart, 1)


def test_median_ranks_as_published() -> None:
    ns = (0, 5, 6, 8, 10, 15, 20, 30, 50, 100, 1000)
    published = [
        None,
        None,
        (1, 6),
        (1, 8),
        (2, 9),
        (4, 12),
        (6, 15),
        (10, 21),
        (18, 33),
        (40, 61),
        (469, 532),
    ]
    assert [stats.interval_ranks(n) for n in ns] == published


@pytest.mark.parametrize(("q", "least"), [(0.5, 6), (0.95, 72), (0.99, 368), (0.05, 72)])
def test_fewest_samples_that_bound_a_quantile(q: float, least: int) -> None:
    assert stats.interval_ranks(least - 1, q) is None
    ranks = stats.interval_ranks(least, q)
    assert ranks is not None
    assert 1 in ranks if q < 0.5 else least in ranks


@pytest.mark.parametrize("q", [0.5, 0.95, 0.99, 0.2])
def test_ranks_are_the_narrowest_scipy_allows(q: float) -> None:
    found = {n: stats.interval_ranks(n, q) for n in [*range(1, 400), 2_000, 100_000]}
    unbound = np.array([n for n, ranks in found.items() if ranks is None])
    n, j, k = np.array([(n, *ranks) for n, ranks in found.items() if ranks]).T
    below, above = scipy.stats.binom.cdf, scipy.stats.binom.sf
    assert np.all((below(0, unbound, q) > 0.025) | (above(unbound - 1, unbound, q) > 0.025))
    assert np.all((below(j - 1, n, q) <= 0.025) & (below(j, n, q) > 0.025))
    assert np.all((above(k - 1, n, q) <= 0.025) & (above(k - 2, n, q) > 0.025))


def test_interval_takes_its_ranks_from_the_effective_samples() -> None:
    times = np.random.default_rng(3).permutation(np.arange(1, 101))
    assert stats.median_interval(times, 100) == (50.5, 40, 61)
    assert stats.median_interval(times, 1e9) == (50.5, 40, 61)
    assert stats.median_interval(times, 20.9) == (
        50.5,
        28,
        73,
    )  # (6, 15) of 20: levels 6/21 and 15/21 of 101
    assert stats.median_interval(times, 5.99) == (50.5, -math.inf, math.inf)
    assert stats.median_interval([7, 7, 9], 3) == (7, -math.inf, math.inf)


@settings(max_examples=50)
@given(TIMES, st.floats(1, 120))
def test_median_lies_in_its_interval_and_fewer_samples_widen_it(
    times: list[int], effective: float
) -> None:
    median, lo, hi = stats.median_interval(times, effective)
    assert lo <= median <= hi
    assert median == np.median(times)
    _, wider_lo, wider_hi = stats.median_interval(times, effective / 2)
    assert wider_lo <= lo
    assert wider_hi >= hi


@settings(max_examples=50)
@given(TIMES, st.sampled_from([2.0, 0.25, 1024.0]))
def test_scale_does_not_matter(times: list[int], factor: float) -> None:
    scaled = np.array(times) * factor
    assert stats.n_eff(scaled) == pytest.approx(stats.n_eff(times), rel=1e-6)
    assert stats.median_interval(scaled, 20) == tuple(
        factor * x for x in stats.median_interval(times, 20)
    )
    assert stats.mad(scaled) == factor * stats.mad(times)
    assert stats.count_outliers(scaled) == stats.count_outliers(times)
    found = stats.find_modes(times)
    assert stats.find_modes(scaled) == (found and tuple(factor * x for x in found))


@settings(max_examples=50)
@given(TIMES, st.data())
def test_a_slower_sample_lowers_no_bound(times: list[int], data: st.DataObject) -> None:
    slower = list(times)
    slower[data.draw(st.integers(0, len(times) - 1))] += 500_000
    for before, after in zip(
        stats.median_interval(times, 30), stats.median_interval(slower, 30), strict=True
    ):
        assert after >= before


def test_quantile_is_a_sample_or_nothing() -> None:
    times = np.random.default_rng(4).permutation(np.arange(1, 1001))
    assert stats.quantile(times, 1000, 0.95) == 950
    assert stats.quantile(times, 1000, 0.99) == 990
    assert stats.quantile(list(range(1, 73)), 72, 0.95) == 69  # ceil(.95 * 72)
    assert [stats.quantile(range(n), n, q) for n, q in ((71, 0.95), (367, 0.99), (0, 0.5))] == [
        None
    ] * 3


def test_a_percentile_takes_independent_samples() -> None:
    """72 samples bound p95; 100 that follow each other closely are worth fewer."""
    times = np.random.default_rng(4).permutation(np.arange(100.0, 200.0))
    assert TimeSummary.of(times).p95 == 194
    wandering = TimeSummary.of(np.sort(times))
    assert wandering.n_eff < 72 and wandering.p95 is None
    assert pool_summaries([wandering, wandering], np.tile(np.sort(times), 2)).p95 is None


def test_effective_samples_of_a_known_process() -> None:
    rng = np.random.default_rng(5)
    for rho in (0.0, 0.5, 0.9):
        found = np.mean([stats.n_eff(noise(rng, 2000, rho=rho)) for _ in range(100)]) / 2000
        assert found == pytest.approx((1 - rho) / (1 + rho), rel=0.05)


def test_effective_samples_at_the_edges() -> None:
    assert stats.n_eff([5, 5, 5, 5, 5, 5, 5, 5]) == 8
    assert stats.n_eff([5, 9]) == 2
    assert stats.n_eff([]) == 0
    assert stats.n_eff([100, 130] * 20) == 40  # alternation is not worth more than independence
    assert stats.n_eff(np.arange(1, 2001)) == pytest.approx(
        2000 * 0.05 / 1.95
    )  # a ramp: the limit on ρ
    assert 0 < stats.n_eff([0, 0, 1, 0, 2, 3, 0]) <= 7
    assert stats.n_eff([10] * 30 + [11] * 20) < 10  # MAD is 0, yet the order is far from random


def test_a_spike_does_not_hide_correlation() -> None:
    times = noise(np.random.default_rng(6), 400, rho=0.8)
    plain = stats.n_eff(times)
    times[[50, 200, 333]] *= 30
    assert stats.n_eff(times) < 2.5 * plain < 0.4 * len(times)


def stops_at(times: np.ndarray, effective: Callable[[np.ndarray], float]) -> np.ndarray:
    """The samples a sequential rule of 1 % precision would have taken, with another idea of
    N_eff."""
    n = 20
    while n < len(times):
        median, lo, hi = stats.median_interval(times[:n], effective(times[:n]))
        if max(hi - median, median - lo) <= 0.01 * median:
            break
        n = min(len(times), n + stats.next_block(n))
    return times[:n]


@pytest.mark.parametrize(
    ("rho", "effective", "coverage"),
    [(0.0, len, 0.93), (0.5, len, 0.78), (0.0, stats.n_eff, 0.95), (0.5, stats.n_eff, 0.95)],
)
def test_coverage_under_sequential_stopping(
    rho: float, effective: Callable[..., float], coverage: float
) -> None:
    """3 % noise, nominal 95 %: with N_eff intervals keep their promise, without they break it once
    ρ > 0."""
    rng = np.random.default_rng(7)
    runs = [stops_at(noise(rng, 2000, rho=rho), effective) for _ in range(500)]
    held = [
        lo <= 1e5 <= hi
        for _, lo, hi in (stats.median_interval(times, effective(times)) for times in runs)
    ]
    assert np.mean(held) == pytest.approx(
        coverage, abs=0.01 + 3 * math.sqrt(coverage * (1 - coverage) / 500)
    )


def test_converged_asks_for_precision_samples_and_time() -> None:
    times = noise(np.random.default_rng(8), 200, 0.01)
    assert stats.is_converged(times, 0.01, 20, 1.0, 0.2)
    assert not stats.is_converged(times, 0.0001, 20, 1.0, 0.2)
    assert not stats.is_converged(times, 0.01, 201, 1.0, 0.2)
    assert not stats.is_converged(times, 0.01, 20, 0.19, 0.2)
    assert not stats.is_converged(times[:5], 0.5, 1, 1.0, 0.2)
    assert stats.is_converged([100] * 20, 0.0, 20, 1.0, 0.2)
    lopsided = [100, 150] * 18 + [100] * 4
    assert stats.median_interval(lopsided, stats.n_eff(lopsided)) == (100, 100, 150)
    assert not stats.is_converged(lopsided, 0.01, 20, 1.0, 0.2)


def test_converged_is_the_rule_of_the_simulation() -> None:
    rng = np.random.default_rng(9)
    for _ in range(50):
        times = stops_at(noise(rng, 2000, rho=0.3), stats.n_eff)
        assert stats.is_converged(times, 0.01, 20, 1.0, 0.2) == (len(times) < 2000)


def test_blocks_grow_by_a_quarter_and_calls_repeat_until_the_clock_is_fine_enough() -> None:
    assert [stats.next_block(n) for n in (0, 20, 40, 41, 100, 1000)] == [10, 10, 10, 11, 25, 250]
    assert [stats.inner_repeats(t, 25_000) for t in (25_000, 24_999, 1e4, 1e9, 0)] == [
        1,
        2,
        3,
        1,
        25_000,
    ]


@pytest.mark.parametrize("levels", [1_000_000, 12, 3])
def test_trend_against_kendalls_tau(levels: int) -> None:
    """Ties included; scipy's asymptotic p lacks the continuity correction, hence the exact one
    where nothing ties."""
    rng = np.random.default_rng(10)
    for slope in (0.0, 0.01, 0.03, 0.1):
        values = np.floor((rng.random(30) + slope * np.arange(30)) * levels)
        tied = len(set(values)) < 30
        oracle = scipy.stats.kendalltau(
            np.arange(30), values, method="asymptotic" if tied else "exact"
        )
        assert stats._trend_pvalue(values) == pytest.approx(
            oracle.pvalue, abs=0.025 if tied else 0.003
        )
    assert stats._trend_pvalue(np.full(30, 4.0)) == 1.0


def test_steady_ends_warm_up_and_drift_does_not() -> None:
    rng = np.random.default_rng(11)
    level = [stats.is_steady(noise(rng, 40, 0.01)) for _ in range(300)]
    assert 0.9 < np.mean(level) < 0.99  # one in 20 is lost to p > .05
    falling = [stats.is_steady(noise(rng, 40, 0.01) * np.linspace(1.05, 1, 40)) for _ in range(300)]
    assert np.mean(falling) < 0.02
    assert not stats.is_steady([103] * 10 + [100] * 10 + [103] * 10)  # no trend, yet 3 % apart
    assert stats.is_steady([103] * 10 + [100] * 10 + [101.5] * 10)
    assert stats.is_steady([100] * 30)
    assert not stats.is_steady([100] * 29)


def test_spread_and_fences() -> None:
    times = [*range(100, 120), 140, 200, 20]
    assert stats.mad([1, 2, 3, 4, 100]) == 1
    assert stats.count_outliers(times) == (
        1,
        2,
    )  # quartiles 104.5 and 115.5: fences at 88 to 132 and 71.5 to 148.5
    assert stats.count_outliers(list(range(100))) == (0, 0)


ONE_MODE: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "lognormal 2 %": lambda rng, n: noise(rng, n, 0.02),
    "lognormal 20 %": lambda rng, n: noise(rng, n, 0.2),
    "lognormal 100 %": lambda rng, n: noise(rng, n, 1.0),
    "flat": lambda rng, n: 1 + rng.random(n),
    "exponential on a floor": lambda rng, n: 1 + rng.exponential(0.3, n),
    "Pareto on a floor": lambda rng, n: 1 + 0.1 * rng.pareto(1.5, n),
    "spiky": spikes,
    "AR .5": lambda rng, n: noise(rng, n, 0.1, 0.5),
    "AR .95": lambda rng, n: noise(rng, n, 0.1, 0.95),
}


@pytest.mark.parametrize("kind", ONE_MODE)
def test_one_mode_is_not_called_two(kind: str) -> None:
    rng = np.random.default_rng(12)
    fired = [
        stats.find_modes(ONE_MODE[kind](rng, n)) is not None
        for n in (20, 30, 50, 100, 300, 2000)
        for _ in range(150)
    ]
    assert np.mean(fired) <= 0.004


@pytest.mark.parametrize(
    ("n", "share", "apart", "power"),
    [
        (20, 0.3, 0.3, 0.7),
        (30, 0.3, 0.3, 0.95),
        (50, 0.3, 0.3, 0.98),
        (100, 0.7, 0.3, 0.98),
        (2000, 0.15, 0.3, 0.99),
    ],
)
def test_two_modes_are_found_where_they_are(
    n: int, share: float, apart: float, power: float
) -> None:
    rng = np.random.default_rng(13)
    found = [stats.find_modes(two_modes(rng, n, share, apart)) for _ in range(200)]
    assert np.mean([f is not None for f in found]) >= power
    for low, high in filter(None, found):
        assert low == pytest.approx(1e5, rel=0.04)
        assert high == pytest.approx((1 + apart) * 1e5, rel=0.04)


@pytest.mark.parametrize(
    ("above", "stretches"),
    [
        ([0] * 50 + [1] * 50, True),
        (([0] * 20 + [1] * 10) * 4, True),
        ([0, 0, 0, 1] * 25, False),
        ([0, 1] * 50, False),
    ],
)
def test_modes_come_in_stretches_or_mixed(above: list[int], stretches: bool) -> None:
    assert stats.in_stretches(np.array(above, dtype=bool)) is stretches


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_modes_in_random_order_are_not_in_stretches(share: float) -> None:
    rng = np.random.default_rng(3)
    found = [stats.in_stretches(rng.random(100) < share) for _ in range(200)]
    assert np.mean(found) < 0.05


def test_by_how_much_the_second_half_differs() -> None:
    assert stats.measure_drift([10, 11, 10, 20, 21, 20]) == 10
    assert stats.measure_drift([5, 5]) == 0


def test_spikes_do_not_hide_two_modes() -> None:
    rng = np.random.default_rng(14)
    found = [
        stats.find_modes(spikes(rng, 300, 0.02) * np.where(rng.random(300) < 0.3, 1.3, 1))
        for _ in range(200)
    ]
    assert np.mean([f is not None for f in found]) > 0.98


@pytest.mark.parametrize("sd", [0.2, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("tick", [42, 100, 500])
def test_a_coarse_timer_is_not_two_modes(tick: int, sd: float) -> None:
    rng = np.random.default_rng(15)
    for n in (20, 50, 200, 2000):
        for _ in range(30):
            assert stats.find_modes(tick * np.floor(rng.normal(12 + rng.random(), sd, n))) is None
    assert stats.find_modes([tick * x for x in [10, 11] + [12] * 60 + [13] * 30 + [14, 15]]) is None
    assert stats.find_modes([125] * 60 + [166, 167] * 20) is None  # ticks of 41.67, rounded


def test_a_rare_mode_or_a_small_step_is_no_mode() -> None:
    rng = np.random.default_rng(16)
    assert (
        stats.find_modes(np.concatenate([noise(rng, 191, 0.01), 2 * noise(rng, 9, 0.01)])) is None
    )
    assert stats.find_modes(two_modes(rng, 500, 0.3, 0.03, 0.001)) is None
    assert stats.find_modes(two_modes(rng, 500, 0.3, 0.08, 0.001)) is not None
    assert stats.find_modes(two_modes(rng, 19, 0.5, 0.3, 0.001)) is None


def durations(
    rng: np.random.Generator, ranks: int, n: int, late: float = 0.0, sd: float = 0.05
) -> np.ndarray:
    """A synchronising call's time on each rank: its cost after the last arrival, and the wait for
    that; 0 is late."""
    arrival = 1e5 * sd * np.abs(rng.normal(size=(ranks, n)))
    arrival[0] += 1e5 * late
    return 1e5 + arrival.max(axis=0) - arrival


@pytest.mark.parametrize("ranks", [2, 3, 8, 32])
def test_a_late_rank_is_named_and_chance_is_not(ranks: int) -> None:
    rng = np.random.default_rng(17)
    assert [stats.find_straggler(durations(rng, ranks, 200, late=0.2)) for _ in range(50)] == [
        0
    ] * 50
    assert (
        sum(
            stats.find_straggler(durations(rng, ranks, 200, sd=0.2)) is not None for _ in range(400)
        )
        <= 3
    )
    assert (
        sum(stats.find_straggler(durations(rng, ranks, 20, sd=0.2)) is not None for _ in range(400))
        <= 3
    )


def test_a_late_rank_must_be_late_by_enough_and_often_enough() -> None:
    rng = np.random.default_rng(18)
    barely = durations(rng, 4, 200, late=0.03, sd=0.001)
    assert (stats.measure_lateness(barely)[0], stats.find_straggler(barely)) == (
        pytest.approx(3_000, rel=0.05),
        None,
    )
    assert stats.find_straggler(durations(rng, 4, 200, late=0.08, sd=0.001)) == 0
    sometimes = durations(rng, 4, 200, sd=0.05)
    sometimes[0, :70] -= (
        50_000  # 70 + 32 of 200 beats one in four, but its median lateness is everyone's
    )
    assert stats.find_straggler(sometimes) is None


def test_late_ranks_need_ranks_samples_and_differences() -> None:
    late = durations(np.random.default_rng(19), 4, 20, late=0.5).astype(int).tolist()
    assert stats.find_straggler(late) == 0
    assert stats.find_straggler([row[:19] for row in late]) is None
    assert stats.find_straggler([row[:19] for row in late], fewest=19) == 0
    assert stats.find_straggler(late[:1]) is None
    assert stats.find_straggler([]) is None
    assert stats.find_straggler([[100] * 50, [100] * 50]) is None
    assert (
        stats.find_straggler([[100] * 50, [100] * 50, [150] * 50]) is None
    )  # two tie: neither alone came last
    assert stats.find_straggler([[150] * 50, [100] * 50]) == 1
    assert stats.measure_lateness([[150, 150, 150], [100, 140, 150]]) == [0, 10]
    assert stats.measure_lateness([]) == []


def test_of_two_late_ranks_the_one_last_more_often_is_named() -> None:
    rng = np.random.default_rng(20)
    both = durations(rng, 8, 200, sd=0.01)
    both[2] -= np.where(np.arange(200) % 5 < 3, 40_000, 20_000)
    both[5] -= 30_000
    assert stats.find_straggler(both) == 2


def test_holm_by_hand_and_its_promise() -> None:
    assert stats.adjust_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert (stats.adjust_holm([0.9, 0.6]), stats.adjust_holm([])) == ([1.0, 1.0], [])
    rng = np.random.default_rng(23)
    erred = np.mean([min(stats.adjust_holm(list(rng.random(20)))) < 0.05 for _ in range(4000)])
    assert erred == pytest.approx(0.049, abs=0.011)


def test_no_scipy_is_loaded_to_judge_a_case() -> None:
    code = (
        "import sys; from collbench.records import stats as s; t = list(range(100, 500));"
        " s.median_interval(t, s.n_eff(t));s.find_modes(t); s.is_steady(t);"
        " s.find_straggler([t, t[::-1]]);"
        " s.quantile(t, 400, .99); sys.exit('scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_straggler_does_not_cry_wolf_when_lateness_wanders() -> None:
    """AR(1) jitter with rho = .9 on every rank: without allowing for it, nearly half of such runs
    name somebody."""
    rng = np.random.default_rng(7)
    named = 0
    for _ in range(100):
        noise = rng.normal(size=(8, 400))
        for i in range(1, 400):
            noise[:, i] = 0.9 * noise[:, i - 1] + np.sqrt(1 - 0.81) * noise[:, i]
        named += stats.find_straggler((1e6 * np.exp(0.1 * noise)).tolist()) is not None
    assert named <= 6


def test_straggler_believes_start_stamps_before_durations() -> None:
    """Ranks that start together and leave apart are not late: some simply have less to do."""
    durations = [[1000] * 100, [500] * 100]
    assert stats.find_straggler(durations) == 1
    assert stats.find_straggler(durations, [[0] * 100, [i % 3 for i in range(100)]]) is None
    assert stats.find_straggler([[1000] * 100] * 2, [[0] * 100, [400] * 100]) == 1
