"""Constants come back from made data, with intervals that cover them; what data cannot tell is
refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import factories
import msgspec
import numpy as np
import pytest
import typer
from scipy.optimize import least_squares

from collbench.core.algorithms import find_variant
from collbench.core.errors import CannotRun, UsageError
from collbench.core.simulate import count_costs
from collbench.features.predict import fit, fit_command, regression
from collbench.features.predict.fit_command import FitOptions
from collbench.features.predict.views import prediction
from collbench.records import run_file
from collbench.records.types import Record, RunFile
from collbench.suite.case import Case

SIZES = 8 * 2 ** np.arange(28)  # 8 B to 1 GiB
ALPHA, BETA, GAMMA = 5e3, 0.1, 0.04  # ns, ns a byte
NAMES = ("all_reduce", "all_gather")
RUN = factories.run("r1", environment={}, started="")


def true(case: Case) -> float:
    """The model's time."""
    if case.algorithm == "native":
        a, b, g = case.row.bound(case.n)
        return a * ALPHA + case.moved * (b * BETA + g * GAMMA)
    a, b, g, _ = map(
        float, count_costs(find_variant(case.collective, case.algorithm).schedule(case.n))
    )
    return a * ALPHA + case.size * (b * BETA + g * GAMMA)


def case(
    size: int, collective: str = "all_reduce", algorithm: str = "ring", n: int = 8, **more: Any
) -> Case:
    return Case(
        collective=collective, backend="gloo", n=n, nbytes=size, algorithm=algorithm, **more
    )


def recorded(
    rng: np.random.Generator,
    cases: Sequence[Case],
    noise: float,
    samples: int = 1,
    time: Callable[[Case], float] = true,
) -> RunFile:
    records = []
    for one in cases:
        times = time(one) * np.exp(noise * rng.standard_normal(samples))
        records.append(Record(case=one, status="ok", times_ns=[round(t) for t in times.tolist()]))
    return RunFile(run=RUN, worlds=[], records=records, end=None, path=Path("x"))


def only(file: RunFile) -> fit.Fit:
    (one,) = fit.make_series(file)
    return fit.fit_series(one)


def errors(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Medians and 95th percentiles of relative errors of (alpha, beta) over data sets."""
    found = regression.solve_constants(
        regression.line_columns(SIZES.astype(float)), times, np.full(len(SIZES), 0.01)
    ).constants
    return tuple(np.quantile(np.abs(found / (ALPHA, BETA) - 1), q, axis=0) for q in (0.5, 0.95))  # type: ignore[return-value]


def test_relative_error_finds_alpha_within_a_percent() -> None:
    rng = np.random.default_rng(1)
    times = (ALPHA + BETA * SIZES) * np.exp(0.03 * rng.standard_normal((600, len(SIZES))))
    half, most = errors(times)
    assert half[0] < 0.010 and most[0] < 0.030 and half[1] < 0.010 and most[1] < 0.030
    plain = np.array([np.polyfit(SIZES, t, 1)[1] for t in times[:100]])
    assert np.median(np.abs(plain / ALPHA - 1)) > 0.3  # what fitting in absolute error would give


def test_one_point_in_ten_far_off_does_little_harm() -> None:
    rng = np.random.default_rng(2)
    times = (ALPHA + BETA * SIZES) * np.exp(0.03 * rng.standard_normal((600, len(SIZES))))
    far = rng.random(times.shape) < 0.1
    half, most = errors(np.where(far, times * rng.uniform(1.5, 4, times.shape), times))
    assert half[0] < 0.014 and most[0] < 0.050


def test_solve_finds_the_minimum_that_scipy_finds() -> None:
    rng = np.random.default_rng(3)
    design = np.stack(
        [rng.uniform(1, 9, 40), 10 ** rng.uniform(0, 6, 40), 10 ** rng.uniform(0, 6, 40)], axis=1
    )
    times = design @ (3e4, 2.0, 0.7) * np.exp(0.1 * rng.standard_t(2, (20, 40)))
    scale = rng.uniform(0.01, 0.1, 40)
    found = regression.solve_constants(design, times, scale)
    for data, constants, cost in zip(times, found.constants, found.cost, strict=True):
        start = np.log(constants) + rng.normal(0, 0.3, 3)
        best = least_squares(
            lambda c, d=data: np.log(d / (design @ np.exp(c))) / scale, start, loss="soft_l1"
        )
        assert cost == pytest.approx(best.cost, rel=1e-5)


def test_rounds_are_for_data_sets_whose_constants_still_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    design = regression.line_columns(SIZES.astype(float))
    exact, noisy = design @ (ALPHA, BETA), np.random.default_rng(6).standard_normal(len(SIZES))
    times = np.stack([exact] * 99 + [exact * np.exp(0.3 * noisy)])
    solved, solve = [], np.linalg.solve
    monkeypatch.setattr(
        regression.np.linalg, "solve", lambda a, b: [solved.append(len(a)), solve(a, b)][1]
    )
    found = regression.solve_constants(design, times, np.full(len(SIZES), 0.01))
    assert solved[0] == 100 and solved[-1] == 1
    assert found.constants[:99] == pytest.approx(np.array([(ALPHA, BETA)] * 99))


def test_segments_are_found_where_protocols_change() -> None:
    rng = np.random.default_rng(4)
    wanted = [slice(0, 12), slice(12, 18), slice(18, 28)]
    sizes = SIZES.astype(float)
    parts = [(5e3, 0.5), (9e3, 0.14), (3e4, 0.05)]
    clean = np.concatenate(
        [a + b * sizes[part] for (a, b), part in zip(parts, wanted, strict=True)]
    )
    hits = 0
    for _ in range(3):
        times = clean * np.exp(0.02 * rng.standard_normal(28))
        hits += regression.cut_segments(sizes, times, np.full(28, 0.01)) == wanted
    assert hits == 3


@pytest.mark.long
def test_of_many_sizes_segments_end_at_some() -> None:
    sizes = np.arange(1, 1001) * 4096.0
    times = np.where(sizes < 2e6, 5e3 + 0.5 * sizes, 5e5 + 0.1 * sizes)
    rng = np.random.default_rng(6)
    found = regression.cut_segments(
        sizes, times * np.exp(0.02 * rng.standard_normal(1000)), np.full(1000, 0.01)
    )
    assert (found[0].start, found[-1].stop) == (0, 1000)
    assert any(abs(part.start - 488) <= 1000 / regression.MOST_ENDS for part in found[1:])


def test_a_straight_line_is_mostly_left_in_one_piece() -> None:
    rng = np.random.default_rng(5)
    data = (ALPHA + BETA * SIZES) * np.exp(0.03 * rng.standard_normal((6, 28)))
    pieces = [
        len(regression.cut_segments(SIZES.astype(float), times, np.full(28, 0.01)))
        for times in data
    ]
    assert pieces.count(1) >= 4


def test_segments_of_a_fit_carry_the_constants_that_they_tell() -> None:
    def time(one: Case) -> float:
        return (
            14 * 5e3 + 0.5 * one.nbytes
            if one.nbytes <= 1 << 14
            else 14 * 2e4 + 1.75 * 0.05 * one.nbytes
        )

    found = only(
        recorded(np.random.default_rng(0), [case(s) for s in SIZES.tolist()], 0.01, 30, time)
    )
    small, large = found.segments
    assert (small.last, large.first) == (1 << 14, 1 << 15)
    assert small.alpha and small.alpha.value == pytest.approx(5e3, rel=0.02)
    assert large.beta and large.beta.value == pytest.approx(0.05, rel=0.02)
    assert found.worst < 0.05 and not found.flags and not found.refused


@pytest.mark.parametrize(
    ("samples", "word"),
    [(25, "samples"), pytest.param(1, "residuals", marks=pytest.mark.slow)],
)
def test_intervals_cover_the_truth_as_often_as_they_say(samples: int, word: str) -> None:
    rng = np.random.default_rng(6)
    beta = BETA + GAMMA * 0.875 / 1.75  # ring: G is half of B
    covered, words = [], []
    for _ in range(25):
        (one,) = fit.make_series(
            recorded(rng, [case(s) for s in SIZES[::2].tolist()], 0.03, samples)
        )
        (link,) = fit.fit_links([one])
        assert link.alpha and link.beta
        words.append(link.resampled)
        covered += [link.alpha.lo <= ALPHA <= link.alpha.hi, link.beta.lo <= beta <= link.beta.hi]
    assert words.count(word) >= 18
    assert 0.85 <= np.mean(covered) < 1.0


def test_cycles_are_resampled_where_there_are_enough() -> None:
    cases = [case(s, cycle=c) for c in range(6) for s in SIZES.tolist()]
    drift = np.random.default_rng(7).normal(1, 0.02, 6)
    file = recorded(
        np.random.default_rng(7), cases, 0.001, 9, lambda one: true(one) * float(drift[one.cycle])
    )
    found = only(file)
    assert found.resampled == "6 cycles"
    alpha = found.segments[0].alpha
    assert alpha and 0.01 < (alpha.hi - alpha.lo) / alpha.value < 0.1


@pytest.mark.parametrize(
    ("launches", "lost", "word"),
    [(10, 1, "9 launches"), (3, 0, "3 launches"), (2, 0, "2 launches")],
)
def test_launches_that_all_sizes_have_are_resampled(launches: int, lost: int, word: str) -> None:
    """One size lacks ``lost`` launches; what launches differ by is the same at all sizes."""
    drift = np.linspace(0.98, 1.02, launches)
    records = [
        msgspec.structs.replace(record, world=number)
        for number in range(launches)
        for record in recorded(
            np.random.default_rng(number),
            [case(s) for s in SIZES[5 if number < lost else 0 :].tolist()],
            *(0.001, 9, lambda one, number=number: true(one) * float(drift[number])),
        ).records
    ]
    worlds = [factories.world(index=number) for number in range(launches)]
    found = only(RunFile(run=RUN, worlds=worlds, records=records, end=None, path=Path("x")))
    assert found.resampled == word
    alpha = found.segments[0].alpha
    assert alpha and (alpha.hi - alpha.lo) / alpha.value > 0.01


@pytest.mark.parametrize("launches", [2, 3, 5])
def test_what_few_launches_share_is_bounded_as_often_as_it_says(launches: int) -> None:
    """Resampled launches reach from the least to the most of them: 50, 75 and 94 of 100."""
    rng, covered = np.random.default_rng(launches), []
    for _ in range(400):
        shared, apart = rng.normal(0, 0.02, (launches, 1)), rng.normal(0, 0.005, (launches, 4))
        logs = shared + apart
        off = fit._draw_offsets(logs, rng).mean(axis=1)
        low, high = np.quantile(off, (0.025, 0.975))
        covered.append(low <= -logs.mean() <= high)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.035)


def test_sizes_that_scatter_keep_what_launches_differ_by() -> None:
    rng = np.random.default_rng(23)
    (series,) = fit.make_series(recorded(rng, [case(s) for s in SIZES.tolist()], 0.05))
    by_launch = np.exp(rng.normal(0, 0.02, (fit.DRAWS, 1)))
    launched = msgspec.structs.replace(
        series, draws=series.measured * by_launch, resampled="6 launches"
    )
    draws, word = fit._draw_medians(launched, series.measured * 0.95, 2)
    assert word == "6 launches, residuals"
    together = np.log(draws).mean(axis=1)
    assert np.corrcoef(together, np.log(by_launch[:, 0]))[0, 1] > 0.8


def test_sizes_scatter_beyond_what_two_launches_leave_open() -> None:
    """Draws of two launches are Cauchy's, whose standard deviation is of the tails alone."""
    rng = np.random.default_rng(24)
    (series,) = fit.make_series(recorded(rng, [case(s) for s in SIZES.tolist()], 0.2))
    logs = np.log(series.measured) + np.array([[0.01], [-0.01]])
    two = np.exp(logs.mean(axis=0) + fit._draw_offsets(logs, rng))
    launched = msgspec.structs.replace(series, draws=two, resampled="2 launches")
    _, word = fit._draw_medians(launched, np.array([true(case(s)) for s in SIZES.tolist()]), 2)
    assert word == "2 launches, residuals"


def test_one_rank_alone_is_refused() -> None:
    """A pairwise all_to_allv of one rank moves no share of its size."""
    cases = [
        case(s, "all_to_allv", "pairwise", n, splits="uniform")
        for s in (64, 128, 256, 512)
        for n in (1, 4)
    ]
    alone, four = fit.make_series(
        recorded(np.random.default_rng(5), cases, 0.01, time=lambda one: 1e3 + one.nbytes)
    )
    assert alone.refused == "one rank sends nothing"
    assert not four.refused


def test_a_ring_all_reduce_alone_does_not_tell_gamma() -> None:
    file = recorded(np.random.default_rng(8), [case(s) for s in SIZES.tolist()], 0.01)
    (link,) = fit.fit_links(fit.make_series(file))
    assert link.condition > 1e12 and link.gamma is None
    assert "all_gather and reduce_scatter" in link.note
    assert link.beta and link.beta.value == pytest.approx(BETA + GAMMA / 2, rel=0.02)


def test_a_ring_all_gather_besides_tells_gamma() -> None:
    cases = [case(s, name) for name in ("all_reduce", "all_gather") for s in SIZES.tolist()]
    (link,) = fit.fit_links(fit.make_series(recorded(np.random.default_rng(9), cases, 0.01)))
    assert 1.5 < link.condition < 5 and not link.note
    for found, wanted in ((link.alpha, ALPHA), (link.beta, BETA), (link.gamma, GAMMA)):
        assert found and found.value == pytest.approx(wanted, rel=0.1)
        assert found.lo < found.value < found.hi


@pytest.mark.parametrize(
    "kinds",
    [
        [("all_reduce", "ring", 8), ("all_gather", "ring", 8)],
        [("broadcast", "binomial", 6), ("all_gather", "ring", 8), ("all_gather", "ring", 5)],
    ],
)
def test_intervals_of_a_link_hold_what_its_series_differ_by(kinds: list[Any]) -> None:
    cases = [case(s, *kind) for kind in kinds for s in SIZES[::2].tolist()]

    def fit_apart(apart: float) -> fit.LinkFit:
        shifts = dict(zip(kinds, (-apart, apart, 0.0), strict=False))

        def time(one: Case) -> float:
            return true(one) * math.exp(shifts[one.collective, one.algorithm, one.n])

        rng = np.random.default_rng(18)
        (link,) = fit.fit_links(fit.make_series(recorded(rng, cases, 0.01, 1, time)))
        return link

    alike, apart = fit_apart(0.0), fit_apart(0.1)
    for near, far, wanted in ((alike.alpha, apart.alpha, ALPHA), (alike.beta, apart.beta, BETA)):
        assert near and far
        assert near.lo < wanted < near.hi < 1.25 * near.lo
        assert far.lo < wanted < far.hi and far.hi / far.lo > 1.25
    assert apart.resampled.endswith(f"and by how {len(kinds)} series differ")


def test_what_a_model_misses_of_a_series_is_no_scatter() -> None:
    file = recorded(np.random.default_rng(19), [case(s) for s in SIZES.tolist()], 0.05)
    (series,) = fit.make_series(file)
    draws, word = fit._draw_medians(series, series.measured / 1.2, 2)
    assert word == "residuals"
    centre = np.median(np.log(draws / (series.measured / 1.2)))
    assert abs(centre) < 0.05  # around the model, not around what was measured


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"arrival": "random:1ms"}, "gloo float isolated random:1ms"),
        ({"groups": "mod:2", "of": 2, "group": 1}, "gloo float isolated mod:2 group 1"),
        ({"n": 5}, ""),
    ],
)
def test_series_of_other_wires_are_links_of_their_own(fields: dict[str, Any], name: str) -> None:
    sizes = SIZES[::2].tolist()
    other = [case(s, "all_gather", **fields) for s in sizes]
    factor = 3 if name else 1
    file = recorded(
        np.random.default_rng(20),
        [*(case(s) for s in sizes), *other],
        0.01,
        1,
        lambda one: true(one) * (factor if one.collective == "all_gather" else 1),
    )
    links = fit.fit_links(fit.make_series(file))
    assert [link.name for link in links] == ["gloo float isolated", *filter(None, [name])]
    assert [link.alpha and link.alpha.value / ALPHA for link in links] == [
        pytest.approx(each, rel=0.05) for each in (1, 3)[: len(links)]
    ]


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_other_machines_and_ways_of_timing_are_links_of_their_own(is_elsewhere: bool) -> None:
    sizes = SIZES[::2].tolist()
    rng = np.random.default_rng(21)
    files = [recorded(rng, [case(s, name) for s in sizes], 0.01) for name in NAMES]
    blocking = msgspec.structs.replace(RUN.policy, blocking=not RUN.policy.blocking)
    how = {"environment": {"cpu": {"model": "x"}}} if is_elsewhere else {"policy": blocking}
    run = msgspec.structs.replace(RUN, id="r2", **how)
    files[1] = msgspec.structs.replace(files[1], run=run)
    links = fit.fit_links([series for file in files for series in fit.make_series(file)])
    assert [(link.name, link.members) for link in links] == [
        (f"gloo float isolated of run {run}", [f"{name} ring@gloo on 8"])
        for run, name in zip(("r1", "r2"), NAMES, strict=True)
    ]


def test_ranks_on_one_host_and_on_several_are_no_link() -> None:
    here, there = ([case(s, n=n) for s in SIZES[::2].tolist()] for n in (4, 8))
    file = recorded(np.random.default_rng(21), [*here, *there], 0.01)
    worlds = [
        factories.world(0, n=4, ranks=factories.hosted(4, 4)),
        factories.world(1, n=8, ranks=factories.hosted(8, 4)),
    ]
    records = [
        msgspec.structs.replace(record, world=int(record.case.n == 8)) for record in file.records
    ]
    links = fit.fit_links(
        fit.make_series(msgspec.structs.replace(file, records=records, worlds=worlds))
    )
    assert [link.name for link in links] == [
        "gloo float isolated",
        "gloo float isolated across hosts",
    ]


def test_bounds_of_a_rate_are_those_of_its_reciprocal() -> None:
    estimate = fit.Estimate(0.1, 0.05, 0.12)
    assert prediction._format_time(estimate).endswith("±50.0%")
    assert prediction._format_rate(estimate) == "10 GB/s ±100.0%"  # 8.3 to 20 GB/s


def test_ranks_and_algorithms_are_fitted_together() -> None:
    pairs = [
        ("all_reduce", "recursive_doubling", 8),
        ("all_reduce", "ring", 5),
        ("broadcast", "binomial", 6),
    ]
    cases = [case(s, name, algorithm, n) for name, algorithm, n in pairs for s in SIZES.tolist()]
    slow = [case(s, "all_to_all", "native", 8) for s in SIZES.tolist()]  # its counts are unknown
    file = recorded(
        np.random.default_rng(10),
        cases + slow,
        0.01,
        1,
        lambda one: true(one) * (1 + 9 * (one in slow)),
    )
    (link,) = fit.fit_links(fit.make_series(file))
    assert len(link.members) == 3
    assert link.alpha and link.alpha.value == pytest.approx(ALPHA, rel=0.02)


REFUSED = {
    "takes at least 4 sizes, and this has 3: measure more (-b and -e, or --sizes)": [
        case(s) for s in (8, 64, 512)
    ],
    "beta is not identifiable: up to 64 B the time is latency": [
        case(s) for s in (8, 16, 24, 32, 48, 64)
    ],
    "alpha is not identifiable: from 16777216 B on the time is bandwidth": [
        case(1 << k) for k in range(24, 30)
    ],
    "barrier moves no data": [case(0, "barrier", "dissemination")],
    "one rank sends nothing": [case(s, n=1) for s in SIZES.tolist()],
    "a table of blocks has one size": [
        case(s, "all_to_allv", "native", splits="matrix:gone.csv") for s in SIZES.tolist()
    ],
    "fix it: --algo chain:segments=8": [case(s, "broadcast", "chain") for s in SIZES.tolist()],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_data_cannot_tell_is_refused(reason: str) -> None:
    file = recorded(
        np.random.default_rng(11), REFUSED[reason], 0.01, 1, lambda one: ALPHA + BETA * one.nbytes
    )
    assert reason in only(file).refused


def test_scatter_is_refused_as_scatter() -> None:
    file = recorded(np.random.default_rng(12), [case(s) for s in SIZES[:20:3].tolist()], 1.5)
    assert "scatter too much" in only(file).refused


def test_misfit_needs_three_sizes_in_a_row() -> None:
    wave = {int(s): 1 + 0.5 * (k in (10, 11, 12)) for k, s in enumerate(SIZES)}
    for bad, flags in ((wave, ["model_misfit"]), (wave | {int(SIZES[11]): 1.0}, [])):
        file = recorded(
            np.random.default_rng(0),
            [case(s) for s in SIZES.tolist()],
            0.0,
            1,
            lambda one, bad=bad: true(one) * bad[one.nbytes],
        )
        (link,) = fit.fit_links(fit.make_series(file))
        assert link.flags == flags


def test_runs_of_equal_sign_show_a_curve() -> None:
    file = recorded(
        np.random.default_rng(0),
        [case(s) for s in SIZES[:7].tolist()],
        0.0,
        1,
        lambda one: 1e4 + 5 * one.nbytes**0.8,
    )
    found = only(file)
    assert found.runs[0] <= 3 < found.runs[1] + 1


def saved(path: Path, file: RunFile) -> str:
    lines = [file.run, *file.records]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return str(path)


def test_a_link_comes_from_a_run_in_seconds_with_its_source(tmp_path: Path) -> None:
    cases = [case(s, name) for name in ("all_reduce", "all_gather") for s in SIZES.tolist()]
    link, note = fit.link_from(
        saved(tmp_path / "a.jsonl", recorded(np.random.default_rng(13), cases, 0.01))
    )
    assert link.alpha == pytest.approx(ALPHA * 1e-9, rel=0.02)
    assert link.beta == pytest.approx(BETA * 1e-9, rel=0.02)
    assert link.gamma == pytest.approx(GAMMA * 1e-9, rel=0.1)
    assert "run r1" in note and "ring@gloo" in note and "alpha 4." in note
    assert math.isclose(
        run_file.read_file(tmp_path / "a.jsonl").records[0].times_ns[0], true(cases[0]), rel_tol=0.1
    )


def test_a_run_that_tells_nothing_gives_no_link(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "b.jsonl", recorded(np.random.default_rng(14), [case(8), case(16)], 0.01)
    )
    with pytest.raises(CannotRun, match="at least 4 sizes, and this has 2"):
        fit.link_from(path)


@pytest.mark.parametrize("n", [2, 8])
def test_blocks_that_may_differ_are_fitted_by_what_is_moved(n: int) -> None:
    cases = [case(s, "all_to_allv", "pairwise", n, splits="uniform") for s in SIZES.tolist()[3:]]
    (found,) = only(recorded(np.random.default_rng(16), cases, 0.01)).segments
    assert found.beta and found.beta.value == pytest.approx(BETA, rel=0.03)


def test_native_series_stand_on_the_lower_bound_and_say_so() -> None:
    file = recorded(
        np.random.default_rng(15), [case(s, algorithm="native") for s in SIZES.tolist()], 0.01
    )
    found = only(file)
    assert found.model == "lower bound"
    alpha = found.segments[0].alpha
    assert alpha and alpha.value == pytest.approx(ALPHA, rel=0.03)


def test_command_shows_several_runs_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name in ("all_reduce", "all_gather"):
        file = recorded(np.random.default_rng(16), [case(s, name) for s in SIZES.tolist()], 0.01)
        paths.append(saved(tmp_path / f"{name}.jsonl", file))
    fit_command.fit(FitOptions(runs=paths, output_format="json"))
    read = json.loads(capsys.readouterr().out)
    assert [one["case"]["collective"] for one in read["series"]] == ["all_reduce", "all_gather"]
    assert read["links"][0]["gamma"]["value"] == pytest.approx(GAMMA, rel=0.1)
    fit_command.fit(FitOptions(runs=paths))
    shown = capsys.readouterr().out
    assert "5.0" in shown and "1 GiB" in shown and "ring@gloo" in shown
    with pytest.raises(UsageError, match="no times of nccl"):
        fit_command.fit(FitOptions(runs=paths, backend="nccl"))


def test_command_says_so_where_nothing_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(
        tmp_path / "b.jsonl", recorded(np.random.default_rng(14), [case(8), case(16)], 0.01)
    )
    with pytest.raises(typer.Exit) as caught:
        fit_command.fit(FitOptions(runs=[path]))
    text = " ".join(capsys.readouterr().out.split())
    assert caught.value.exit_code == 3 and "takes at least 4 sizes, and this has 2" in text


def test_what_was_counted_counts_in_place_of_the_least() -> None:
    cases = [case(int(size), "reduce_scatter", "native") for size in SIZES]
    file = recorded(np.random.default_rng(3), cases, 0.01, 20)
    known = msgspec.structs.replace(
        file,
        records=[msgspec.structs.replace(record, world=0) for record in file.records],
        worlds=[factories.world(library="torch 2.13.0+cpu gloo")],
    )
    (least,), (counted,) = fit.make_series(file), fit.make_series(known)
    assert counted.counts == (least.counts[0], 2 * least.counts[1], least.counts[2])
    assert (least.model, counted.model) == ("lower bound", "lower bound, 2.00x its bytes")
