"""The one table: what a launch is, which rows are unfit, which decide nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from factories import SUITE, case, experiment, record, run, world

from collbench.records import paired, rows, stats
from collbench.records.flags import is_always, look_up
from collbench.records.rows import Row
from collbench.records.types import End, RankInfo, Record, RunFile, ToolTime, World

INVALID = {"late start": 9}  # beside seven samples that stayed


def file(*records: Record, worlds: list[World] | None = None, **fields: Any) -> RunFile:
    given = [world()] if worlds is None else worlds
    return RunFile(
        run=run("a", **fields),
        worlds=given,
        records=list(records),
        end=End(exit=0, ended=""),
        path=Path("a"),
    )


def cycle(number: int, median: float = 1e6, **fields: Any) -> Record:
    return record(case(cycle=number), median, **{"world": 0, **fields})


def only(*records: Record, **worlds: Any) -> Row:
    (row,) = rows.make_rows([file(*records, worlds=[world(**worlds)])])
    return row


def test_a_world_is_a_launch_and_cycles_are_within_it() -> None:
    worlds = [world(index=0), world(index=1)]
    made = [cycle(c, world=w) for w in (0, 1) for c in range(3)]
    table = rows.make_rows([file(*made, worlds=worlds)])
    assert [row.launch for row in table] == [("a", 0, 0, 0), ("a", 1, 0, 0)]
    assert [[one.number for one in row.cycles] for row in table] == [[0, 1, 2], [3, 4, 5]]
    assert {row.case for row in table} == {case()}


@pytest.mark.parametrize(("pid", "launches"), [(1, 1), (2, 2)])
def test_worlds_of_the_same_processes_are_one_launch(pid: int, launches: int) -> None:
    """As under a launcher, whose ranks no world starts anew."""
    ranks = [[RankInfo(rank=0, host="h", pid=one, cpus=[])] for one in (1, pid)]
    worlds = [msgspec.structs.replace(world(i), ranks=of) for i, of in enumerate(ranks)]
    table = rows.make_rows([file(*(cycle(i, world=i) for i in range(2)), worlds=worlds)])
    assert len(table) == launches


def test_runs_of_one_name_are_kept_apart() -> None:
    assert [row.file for row in rows.make_rows([file(cycle(0)), file(cycle(0))])] == [0, 1]


def test_a_round_of_an_experiment_is_a_launch() -> None:
    base, _ = experiment({case(): [(1e6, 1e6)] * 2}, {case(): [(1e6, 1e6)]})
    found = [(row.launch.stage, row.launch.round) for row in rows.make_rows([base])]
    assert found == [(1, 0), (1, 1), (2, 0)]


def test_ranks_started_again_within_a_round_belong_to_its_launch() -> None:
    worlds = [world(index=i, stage=1, round=0) for i in range(2)]
    (row,) = rows.make_rows([file(cycle(0, world=0), cycle(1, world=1), worlds=worlds)])
    assert (row.launch, row.samples) == (("a", 0, 1, 0), 14)


def test_samples_of_cycles_are_pooled() -> None:
    row = only(cycle(0, 1e6), cycle(1, 2e6), cycle(2, 1.01e6))
    samples = np.concatenate([one.record.times_ns for one in row.cycles])
    assert row.derived is not None
    assert row.median == pytest.approx(np.median(samples))
    assert (row.samples, row.derived.times.min, row.derived.times.max) == (
        21,
        samples.min(),
        samples.max(),
    )
    assert row.derived.times.mad == pytest.approx(stats.mad(samples))
    assert row.derived.times.mean == pytest.approx(samples.mean())
    assert row.derived.algbw == pytest.approx(case().size / row.median)


def test_cycles_with_more_calls_a_sample_weigh_as_much() -> None:
    row = only(cycle(0, 1e6), cycle(1, 4e6, inner=4))
    assert row.median == pytest.approx(1e6)


@pytest.mark.parametrize(("clock", "other"), [("device", "host"), ("host", "device")])
def test_the_clock_of_the_samples_has_their_median(clock: str, other: str) -> None:
    beside = {f"{other}_ns": [500_000] * 3}
    row = only(*(cycle(c, 1e6 + c, clock=clock, **beside) for c in range(3))).derived
    assert row is not None
    assert (getattr(row, clock), getattr(row, other)) == (row.times.median, 500_000)


def test_cycles_that_agree_bound_the_median_better_than_one() -> None:
    rng = np.random.default_rng(3)
    made = [cycle(c, times_ns=rng.normal(1e6, 1e4, 40).astype(int).tolist()) for c in range(4)]
    one, four = only(made[0]).derived, only(*made).derived
    assert one is not None and four is not None
    assert four.times.n_eff > 2 * one.times.n_eff
    assert four.times.hi - four.times.lo < one.times.hi - one.times.lo


def test_cycles_that_lie_apart_are_covered() -> None:
    """A hundred samples around three medians say less than three medians do."""
    spread = range(40)
    made = [cycle(c, times_ns=[10**6 + 10**5 * c + i for i in spread]) for c in range(3)]
    row = only(*made).derived
    assert row is not None
    assert row.times.n_eff < 6
    assert row.times.lo <= 10**6 + 40 and row.times.hi >= 1.2e6


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"status": "failed", "times_ns": [], "note": "rank 1 hung"}, "failed"),
        ({"status": "wrong", "wrong": 3}, "wrong"),
        ({"status": "skipped", "times_ns": []}, "skipped"),
        ({"invalid": INVALID}, "invalid!"),
        ({"times_ns": [0] * 7}, "no time"),
    ],
)
def test_an_unfit_row_has_no_time_and_a_reason(fields: dict[str, Any], why: str) -> None:
    row = only(cycle(0, **fields))
    assert row.unfit == (why,)
    assert row.derived is None and math.isnan(row.median) and row.samples == 0
    assert rows.select_fit([row]) == []


def test_a_launch_keeps_the_cycles_that_are_fit_and_says_which_are_not() -> None:
    row = only(cycle(0, invalid=INVALID), cycle(1, 2e6), cycle(2, status="failed", times_ns=[]))
    assert (row.unfit, row.median, row.samples) == ((), 2e6, 7)
    assert [(one.number, one.unfit) for one in row.left_out] == [(0, "invalid!"), (2, "failed")]
    assert row.first.number == 1
    assert "invalid!" in row.flags


@pytest.mark.parametrize(
    ("fields", "worlds", "flag"),
    [
        ({"times_ns": [10**6] * 5}, {}, "n<6"),
        ({}, {"oversubscribed": True}, "oversubscribed"),
        ({"skew_ns": [300_000] * 7}, {}, "skewed!"),
        ({"overhead_ns": 300_000}, {}, "overhead!"),
        ({}, {"shared_gpu": True}, "shared-gpu"),
        ({}, {"virtual": True}, "virtual"),
        ({}, {"interpreted": True}, "interpreted"),
        ({"injected": "delay"}, {}, "injected"),
        ({"times_ns": [], "told": ToolTime(time=1e6, samples=20)}, {}, "imported"),
    ],
)
def test_an_ungated_row_is_shown_and_decides_nothing(
    fields: dict[str, Any], worlds: dict[str, Any], flag: str
) -> None:
    row = only(cycle(0, **fields), **worlds)
    assert (row.unfit, row.ungated, row.median) == ((), (flag,), 1e6)
    assert rows.select_fit([row]) == [row]
    assert rows.select_gateable([row]) == []
    assert rows.select_gateable([row], despite=[flag]) == [row]


@pytest.mark.parametrize(
    "fields", [{"skew_ns": [100_000] * 7}, {"overhead_ns": 100_000}, {"steady": False}]
)
def test_milder_flags_decide(fields: dict[str, Any]) -> None:
    row = only(cycle(0, **fields))
    assert row.flags and not row.ungated and rows.select_gateable([row]) == [row]


def test_ranks_of_gpus_that_are_bound_to_few_cores_are_doubted_and_decide() -> None:
    row = only(cycle(0), few_cores=True)
    assert row.flags == ("few-cores",) and not row.ungated
    assert look_up("few-cores").is_doubt is is_always
    assert rows.select_gateable([row]) == [row]


def test_few_samples_a_cycle_are_enough_together() -> None:
    cycles = [cycle(c, times_ns=[10**6 + i for i in range(5)]) for c in range(2)]
    assert only(cycles[0]).ungated == ("n<6",)
    assert only(*cycles).ungated == ()


def test_a_flag_of_less_than_half_the_cycles_is_shown_and_forbids_nothing() -> None:
    skewed = {"skew_ns": [300_000] * 7}
    row = only(cycle(0, **skewed), cycle(1), cycle(2))
    assert "skewed!" in row.flags and row.ungated == ()
    assert only(cycle(0, **skewed), cycle(1)).ungated == ("skewed!",)


def test_imported_means_are_worth_their_median() -> None:
    told = [cycle(c, times_ns=[], told=ToolTime(time=t)) for c, t in enumerate((1e6, 3e6, 4e6))]
    row = only(*told)
    assert row.median == 3e6
    assert row.ungated == ("imported",)


def launches(*medians: float, **fields: Any) -> list[Row]:
    worlds = [world(index=i) for i in range(len(medians))]
    made = [cycle(0, median, world=i, **fields) for i, median in enumerate(medians)]
    return rows.make_rows([file(*made, worlds=worlds)])


def test_a_case_takes_the_median_of_its_fit_launches() -> None:
    table = launches(1e6, 2e6, 4e6)
    worse = launches(9e6, invalid=INVALID)
    found = rows.case_time([*table, *worse])
    assert (found.median, found.launches, found.samples) == (2e6, 3, 21)
    with pytest.raises(ValueError, match="no launch"):
        rows.case_time(worse)


def test_few_launches_are_bounded_by_their_scatter_and_their_samples() -> None:
    """Two that differ by 1 % may both be 6 % off; two that agree are as sure as their samples."""
    near = [1, -2, 2, -1, 0, 2, -2, 1, -1, 0] * 4  # ns off the median, without a trend

    def measured(*medians: int) -> list[Row]:
        made = [
            cycle(0, world=i, times_ns=[median + off for off in near])
            for i, median in enumerate(medians)
        ]
        return rows.make_rows([file(*made, worlds=[world(index=i) for i in range(len(made))])])

    found = rows.case_time(measured(1_000_000, 1_010_000))
    half = 12.706 * math.log(1.01) / 2
    middle = math.sqrt(1.01) * 1e6
    assert (found.lo, found.hi) == pytest.approx(
        (middle * math.exp(-half), middle * math.exp(half)), rel=1e-3
    )
    (row,) = measured(1_000_000)
    alike = rows.case_time(measured(1_000_000, 1_000_000, 1_000_000))
    assert row.derived
    assert (alike.lo, alike.hi) == (row.derived.times.lo, row.derived.times.hi)
    assert (alike.lo, alike.hi) == rows.case_time([row])[1:3]


def test_from_six_launches_on_the_interval_is_that_of_launches() -> None:
    medians = [1e6, 1.1e6, 1.2e6, 1.3e6, 1.4e6, 1.5e6]
    found = rows.case_time(launches(*medians))
    shift = paired.estimate_shift(np.log(medians))
    assert found.median == pytest.approx(1.25e6)
    assert (found.lo, found.hi) == pytest.approx((math.exp(shift.lo), math.exp(shift.hi)))


def test_a_case_is_judged_by_its_gateable_launches_where_they_are_most() -> None:
    good, bad = launches(1e6, 2e6), launches(9e6, stop="cut")
    assert rows.select_deciding([*good, *bad]) == good
    assert rows.select_deciding([good[0], *bad]) == [good[0], *bad]
    assert rows.select_deciding(bad) == bad
    assert rows.select_deciding(launches(1e6, invalid=INVALID)) == []


@pytest.mark.parametrize("few", [1, 2])
def test_launches_of_few_samples_do_not_take_the_interval_of_the_others_away(few: int) -> None:
    sizes, near = [5] * few + [7] * 3, (0, 1, -1, 2, -2, 3, -3)
    made = [cycle(0, world=i, times_ns=[10**6 + k for k in near[:n]]) for i, n in enumerate(sizes)]
    table = rows.make_rows([file(*made, worlds=[world(index=i) for i in range(len(made))])])
    found = rows.case_time(rows.select_deciding(table))
    assert found.launches == len(sizes) and math.isfinite(found.lo) and math.isfinite(found.hi)


SHARES: dict[str, dict[str, Any]] = {
    "skewed!": {"skew_ns": [300_000] * 7},
    "overhead!": {"overhead_ns": 300_000},
    "arrival-sensitive": {"control_ns": [2_200_000] * 7},
    "n<6": {},
}


@pytest.mark.parametrize("flag", SHARES)
@pytest.mark.parametrize(
    ("medians", "is_flagged"),
    [((1e6, 1.1e6, 2e6, 2.2e6, 2.4e6), False), ((1e6, 1.1e6, 2e6, 2.2e6), True)],
)
def test_no_launch_is_left_out_for_its_time(
    flag: str, medians: tuple[float, ...], is_flagged: bool
) -> None:
    """The first two have the flag, as they are faster."""
    times = [[round(m * (1 + 0.004 * off)) for off in (0, 1, -1, 2, -2, 3, -3)] for m in medians]
    if flag == "n<6":
        times[:2] = [each[:5] for each in times[:2]]
    every = [file(cycle(0, times_ns=each, **SHARES[flag])) for each in times]
    worlds = [world(index=i) for i in range(len(medians))]
    made = [cycle(0, times_ns=t, world=i, **SHARES[flag]) for i, t in enumerate(times)]
    of_one_run = rows.make_rows([file(*made, worlds=worlds)])
    assert {row.ungated for row in of_one_run} == {(flag,) * is_flagged}
    for table in (of_one_run, rows.make_rows(every)):
        assert sum(flag in row.flags for row in table) == 2
        deciding = rows.select_deciding(table)
        assert [row.median for row in deciding] == [*medians]
        assert [row.ungated for row in deciding] == [(flag,) * is_flagged] * len(medians)


@pytest.mark.parametrize(
    ("fresh", "launches", "flagged"), [(True, 10, False), (True, 1, True), (False, 10, True)]
)
def test_no_launch_of_several_is_asked_to_converge(
    fresh: bool, launches: int, flagged: bool
) -> None:
    policy = msgspec.structs.replace(SUITE.policy, fresh=fresh)
    axes = msgspec.structs.replace(SUITE.axes, cycles=launches)
    asked = msgspec.structs.replace(SUITE, policy=policy, axes=axes)
    (row,) = rows.make_rows([file(cycle(0, stop="budget"), suite=asked)])
    assert ("unconverged" in row.flags) == flagged
