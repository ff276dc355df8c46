"""Rows that earlier nights had and tonight lacks: which are lost, and which left out on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from factories import NIGHTLY, case, dated
from msgspec.structs import replace

from collbench.features.health.checks.lost import find_lost
from collbench.features.health.findings import Finding
from collbench.features.health.history.nights import (
    Night,
    Series,
    launches_of,
    merge_nights,
    night_of,
)
from collbench.records.types import RunFile
from collbench.suite.case import Case
from collbench.suite.sweep import Exclude, Part

SIZES = (1 << 20, 2 << 20)
Rows = Sequence[Case]


def rows_of(n: int = 8, backend: str = "nccl", collective: str = "all_reduce") -> list[Case]:
    return [case(size, collective, n=n, backend=backend) for size in SIZES]


def measured(number: int, rows: Rows, **fields: Any) -> RunFile:
    return dated(number, dict.fromkeys(rows, 1e6), **fields)


def found(
    nights: Sequence[Rows], tonight: RunFile, others: Sequence[RunFile] = ()
) -> list[Finding]:
    """What is lost in ``tonight`` after nights of these rows, which come first, and ``others``."""
    files = [measured(number, rows) for number, rows in enumerate(nights)]
    return found_of_runs([*files, *others], [tonight])


def found_of_runs(earlier: Sequence[RunFile], tonight: Sequence[RunFile]) -> list[Finding]:
    by_case: dict[Case, list[Night]] = {}
    for file in (*earlier, *tonight):
        for row, launches in launches_of(file).items():
            by_case.setdefault(row, []).extend(merge_nights(launches))
    every = [Series(machine="node1", case=row, nights=each) for row, each in by_case.items()]
    return find_lost(every, tonight, night_of(tonight[-1].run.started))


def test_rows_of_more_ranks_than_are_left_are_missing() -> None:
    (finding,) = found([rows_of(8)] * 20, measured(20, rows_of(7)))
    assert finding.severity == "warning"
    assert finding.since == "tonight"
    assert finding.sentence == (
        "8 ranks of nccl did not measure 2 rows that 7 of the last 7 nights had"
    )


@pytest.mark.parametrize(("since", "is_told"), [(1, True), (4, True), (5, False)])
def test_rows_are_missing_until_three_of_seven_nights_had_them(since: int, is_told: bool) -> None:
    """In five nights, until those in their place have learned."""
    nights = [rows_of(8)] * 20 + [rows_of(7)] * since
    findings = found(nights, measured(len(nights), rows_of(7)))
    assert bool(findings) == is_told
    assert [finding.since for finding in findings] == ["2026-01-21"] * is_told


def test_a_backend_in_whose_place_another_ran_is_missing() -> None:
    (finding,) = found([rows_of()] * 5, measured(5, rows_of(backend="gloo")))
    assert finding.subject.name == "8 ranks of nccl"


@pytest.mark.parametrize(
    ("rows", "command"),
    [
        (rows_of(7), ["-g", "7"]),
        (rows_of(7), ["-g7"]),
        (rows_of(7), ["--ranks=7"]),
        (rows_of(backend="gloo"), ["--backend", "gloo"]),
    ],
)
def test_what_an_option_names_is_no_loss(rows: Rows, command: list[str]) -> None:
    tonight = measured(5, rows, command=["collbench", "run", "nightly", *command])
    assert found([rows_of()] * 5, tonight) == []


@pytest.mark.parametrize(
    ("rows", "axis"), [(rows_of(4), "ranks"), (rows_of(backend="gloo"), "backends")]
)
@pytest.mark.parametrize("is_named", [True, False])
def test_what_the_suite_names_is_no_loss(rows: Rows, axis: str, is_named: bool) -> None:
    """Which a run's suite does not tell: there, the machine has filled in what was left open."""
    tonight = measured(5, rows, named_axes=(axis,) * is_named)
    assert bool(found([rows_of()] * 5, tonight)) is not is_named


def test_a_run_that_tells_what_was_named_is_not_judged_by_its_words() -> None:
    command = ["collbench", "run", "nightly", "--tag", "-g8"]
    tonight = measured(5, rows_of(7), command=command, named_axes=())
    assert found([rows_of()] * 5, tonight)


@pytest.mark.parametrize("number", [1, 4])
def test_rows_of_another_suite_are_not_missing(number: int) -> None:
    """Of a suite that is new, or that is measured once a week, before the nightly one."""
    nightly = [dated_id(day, rows_of(8), NIGHTLY.name) for day in range(22)]
    weekly = [dated_id(day, rows_of(4), "weekly") for day in (1, 8, 15, 22)[-number:]]
    assert found([], weekly[-1], [*nightly, *weekly[:-1]]) == []
    assert found([], dated_id(22, rows_of(4), NIGHTLY.name), [*nightly, *weekly[:-1]])


def dated_id(day: int, rows: Rows, suite: str, **fields: Any) -> RunFile:
    """The run of a suite of this name in a night, under such an id as runs have."""
    name = f"202601{day + 1:02}-010000000-{suite}-00aa"
    return measured(day, rows, name=name, suite=replace(NIGHTLY, name=suite), **fields)


@pytest.mark.parametrize(("named_axes", "others"), [((), ["4 ranks of nccl"]), (("ranks",), [])])
def test_what_one_suite_names_is_not_named_for_another(
    named_axes: tuple[str, ...], others: Sequence[str]
) -> None:
    """The nightly suite has lost rows of 8 ranks. Another suite has lost rows of 4 ranks unless it
    names its number of ranks."""

    def make_night(day: int, n: int, fixed_n: int) -> list[RunFile]:
        fixed = rows_of(fixed_n, collective="broadcast")
        return [
            dated_id(day, rows_of(n), "nightly", named_axes=()),
            dated_id(day, fixed, "fixed", named_axes=named_axes),
        ]

    earlier = [file for day in range(5) for file in make_night(day, 8, 4)]
    findings = found_of_runs(earlier, make_night(5, 7, 2))
    assert [finding.subject.name for finding in findings] == ["8 ranks of nccl", *others]


@pytest.mark.parametrize("change", [{"mode": "streaming"}, {"align": 16}])
def test_rows_that_are_measured_in_another_way_are_not_missing(change: dict[str, Any]) -> None:
    rows = rows_of(collective="all_gather")
    assert found([rows] * 5, measured(5, [replace(row, **change) for row in rows])) == []
    fewer = [replace(row, n=7, **change) for row in rows]
    assert found([rows] * 5, measured(5, fewer))


def test_a_collective_that_a_suite_has_no_more_is_no_loss() -> None:
    both = [*rows_of(), *rows_of(collective="broadcast")]
    assert found([both] * 5, measured(5, rows_of())) == []


@pytest.mark.parametrize(
    ("note", "number"),
    [("dropped for --budget 60s: not enough for all cases", 0), ("8 ranks need 8 GPUs: 7 here", 1)],
)
def test_rows_that_cannot_run_are_missing_and_those_without_time_are_not(
    note: str, number: int
) -> None:
    whole = measured(5, rows_of())
    last = rows_of()[-1]
    records = [
        replace(record, status="skipped", note=note, times_ns=[]) if record.case == last else record
        for record in whole.records
    ]
    assert len(found([rows_of()] * 5, replace(whole, records=records))) == number


def test_rows_that_a_suite_excludes_are_not_missing() -> None:
    excludes = (Exclude(match=Part(sizes=SIZES[1:]), reason="it takes too long"),)
    whole = measured(5, rows_of(), suite=replace(NIGHTLY, excludes=excludes))
    skipped = {"status": "skipped", "note": "it takes too long", "times_ns": []}
    records = [
        replace(record, **skipped) if record.case == rows_of()[-1] else record
        for record in whole.records
    ]
    assert found([rows_of()] * 5, replace(whole, records=records)) == []


def test_rows_that_were_measured_beside_those_of_tonight_are_not_missing() -> None:
    """By a run of its own each night, which is judged by itself."""
    both = [*rows_of(), *rows_of(backend="gloo")]
    assert found([both] * 5, measured(5, rows_of())) == []


def test_rows_of_two_nights_are_not_looked_for() -> None:
    assert found([rows_of()] * 2, measured(2, rows_of(7))) == []
