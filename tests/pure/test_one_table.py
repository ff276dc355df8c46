"""Report, compare, health, history and fit state one median, of as many launches, of the same run;
so does collbench.frame. Health rests on no launch between two modes, which others show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from factories import ENVIRONMENT, case, run, world
from marks import long

import collbench
from collbench.features.compare.comparison import Rules, compare_runs
from collbench.features.health.history import nights
from collbench.features.health.night import Night
from collbench.features.predict import fit
from collbench.records import rows, run_file
from collbench.records.types import End, Record, RunFile
from collbench.show.views import series
from collbench.suite.case import Case

REPORTS = Path(__file__).parents[2] / "reports" / "runs"
RECORDED = sorted(path for path in REPORTS.rglob("*.jsonl") if path.parent.name != "recorded-job")

Stated = dict[Case, tuple[float, int]]  # nanoseconds a call, launches
LAUNCHES = [  # medians in us of the cycles of a launch, which lie apart as those of a real run
    [100.0, 103.0, 96.0],
    [106.0, 121.0, 104.0],
    [126.0, 130.0, 122.0],
    [101.0, 104.0, 98.0],
    [111.0, 109.0, 113.0],
]


def made(
    launches: int, cycles: Mapping[int, int] = {}, invalid: Sequence[tuple[int, int]] = ()
) -> RunFile:
    """A run of one case. ``cycles`` is how many a launch has instead of 3, ``invalid`` are the
    (launch, cycle) of which 4 samples were replaced for every 7 that stayed."""
    records = []
    for launch, medians in enumerate(LAUNCHES[:launches]):
        for cycle, median in enumerate(medians[: cycles.get(launch, 3)]):
            times = [round(median * 1000 * (1 + 0.004 * step)) for step in range(-3, 4)]
            records.append(
                Record(
                    case=case(cycle=cycle),
                    status="ok",
                    world=launch,
                    times_ns=times,
                    sync="window",
                    cache="cold",
                    invalid={"late start": 4} if (launch, cycle) in invalid else {},
                )
            )
    worlds = [world(index=launch) for launch in range(launches)]
    return RunFile(
        run=run("made", environment=ENVIRONMENT | {"host": "node1"}),
        worlds=worlds,
        records=records,
        end=End(exit=0, ended=""),
        path=Path("made"),
    )


MADE = {
    "sound": (made(3), [0, 1, 2], {}),
    "one launch cut to a cycle": (made(3, cycles={1: 1}), [0, 1, 2], {1: [0]}),
    "two cycles of a launch invalid": (
        made(3, invalid=[(1, 0), (1, 2)]),
        [0, 1, 2],
        {1: [1]},
    ),
    "two launches wholly invalid": (
        made(5, invalid=[(i, c) for i in (1, 3) for c in range(3)]),
        [0, 2, 4],
        {},
    ),
}


def report(file: RunFile) -> Stated:
    return {point.case: (point.median, point.launches) for point in series.make_view([file]).points}


def judgeable(file: RunFile) -> RunFile:
    """The run less its launches between two modes, those whose ranks shared cores, and those that
    waiting for another rank made slower."""
    doubts = ("bimodal", "oversubscribed", "arrival-sensitive")
    table = [row for row in rows.make_rows([file]) if not any(map(row.has, doubts))]
    kept = {cycle.number for row in table for cycle in row.cycles}
    records = [record for number, record in enumerate(file.records) if number in kept]
    return msgspec.structs.replace(file, records=records)


def comparison(file: RunFile) -> Stated:
    """What an unpaired comparison of the run with itself says of head."""
    alone = msgspec.structs.replace(file, run=msgspec.structs.replace(file.run, pairing=None))
    judged = compare_runs(alone, alone, Rules()).rows
    return {row.case: (row.head.median, row.head.launches) for row in judged if row.head}


def health(file: RunFile) -> Stated:
    timings = Night([file]).timings.values()
    return {one.case: (one.median, len(one.medians)) for one in timings if one.medians}


def history(file: RunFile) -> Stated:
    alone = msgspec.structs.replace(file, run=msgspec.structs.replace(file.run, pairing=None))
    merged = {c: nights.merge_nights(each)[-1] for c, each in nights.launches_of(alone).items()}
    return {c: (math.exp(one.value), one.launches) for c, one in merged.items()}


def fitted(file: RunFile) -> Stated:
    """By the case of each size; a fit does not count launches, which are those of the table."""
    table = rows.group_rows(rows.make_rows([file]), lambda row: row.case)
    sizes = {(msgspec.structs.replace(c, nbytes=0), c.moved): c for c in table}
    return {
        (own := sizes[one.case, int(size)]): (median, len(rows.select_deciding(table[own])))
        for one in fit.make_series(file)
        for size, median in zip(one.sizes, one.measured.tolist(), strict=True)
    }


def framed(file: RunFile) -> Stated:
    """The median over the lines of each case, as a notebook would take it."""
    table = collbench.frame(file)
    keys = [row.case for row in rows.sort_rows(rows.make_rows([file]))]
    found = table.groupby(pd_key(keys))["median"].agg(["median", "count"])
    return {keys[i]: (m, int(n)) for i, m, n in found.itertuples() if n}


def pd_key(keys: Sequence[Case]) -> np.ndarray:
    first: dict[Case, int] = {}
    return np.array([first.setdefault(key, number) for number, key in enumerate(keys)])


STATEMENTS: dict[str, Callable[[RunFile], Stated]] = {
    "report": report,
    "comparison": comparison,
    "health": health,
    "history": history,
    "fit": fitted,
    "frame": framed,
}


@pytest.mark.parametrize("what", STATEMENTS)
@pytest.mark.parametrize("name", MADE)
def test_all_state_the_median_over_fit_launches_of_pooled_samples(name: str, what: str) -> None:
    file, launches, cycles = MADE[name]
    medians = []
    for launch in launches:
        kept = cycles.get(launch, [0, 1, 2])
        samples = [
            t
            for record in file.records
            if record.world == launch and record.case.cycle in kept
            for t in record.times_ns
        ]
        medians.append(float(np.median(samples)))
    ((stated, number),) = STATEMENTS[what](file).values()
    assert stated == pytest.approx(float(np.median(medians)), rel=1e-12)
    assert number == len(launches)


@lru_cache(1)  # all that is stated of a file follows on each other
def recorded(path: Path, share: int) -> RunFile:
    """A run with one sweep over sizes of each ``share`` of them."""
    file = run_file.read_file(path)
    sweeps = [msgspec.structs.replace(record.case, nbytes=0, cycle=0) for record in file.records]
    kept = {*list(dict.fromkeys(sweeps))[::share]}
    both = zip(file.records, sweeps, strict=True)
    records = [record for record, sweep in both if sweep in kept]
    return msgspec.structs.replace(file, records=records)


@lru_cache(2)
def reported(path: Path, share: int, is_judged: bool) -> Stated:
    file = recorded(path, share)
    return report(judgeable(file) if is_judged else file)


@pytest.mark.parametrize("what", STATEMENTS)
@pytest.mark.parametrize("share", [3, long(1)])
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_all_state_the_same_of_recorded_runs(path: Path, share: int, what: str) -> None:
    file = recorded(path, share)
    expected = reported(path, share, what == "health")
    stated = STATEMENTS[what](file)
    assert stated.keys() == expected.keys()
    for own, (median, launches) in expected.items():
        assert stated[own] == (pytest.approx(median, rel=1e-12), launches), own.key


def test_there_are_recorded_runs() -> None:
    assert len(RECORDED) >= 4
