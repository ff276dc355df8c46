"""A run's medians without its samples are those that rows.py has."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from factories import case, make_file, record, world, write

from collbench.core.errors import CannotRun, UsageError
from collbench.core.paths import VARIABLE
from collbench.records import rows, run_file
from collbench.records.medians import MedianReader, TimedRecord
from collbench.records.types import Choice, End, Record, Sent

RUNS = sorted((Path(__file__).parents[3] / "reports" / "runs").glob("*/*.jsonl"))
SIDES = ("base", "head")


def rows_by_samples(path: Path) -> list[tuple[Any, ...]]:
    return [
        (row.case, row.launch, row.median, row.samples, row.unfit, row.ungated)
        for row in rows.make_rows([run_file.read_file(path)])
    ]


def rows_without(path: Path) -> list[tuple[Any, ...]]:
    return [tuple(row[:6]) for row in MedianReader().read(path).rows]


def assert_same(path: Path) -> None:
    expected, found = rows_by_samples(path), rows_without(path)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one[:2] + one[3:] == other[:2] + other[3:]
        assert one[2] == other[2] or (math.isnan(one[2]) and math.isnan(other[2]))


@pytest.mark.parametrize(
    "path",
    [p for p in RUNS if not p.stem.startswith("rank-") and not p.stem.endswith(SIDES)],
    ids=lambda path: path.stem,
)
def test_recorded_runs_have_the_same_rows(path: Path) -> None:
    assert_same(path)


FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cycles that differ": {"inner": 3},
    "few samples": {"times_ns": [5, 6, 7]},
    "no samples": {"times_ns": []},
    "failed": {"status": "failed", "note": "hung"},
    "wrong": {"status": "wrong", "wrong": 3},
    "predicted": {"status": "predicted"},
    "zero": {"times_ns": [0] * 9},
    "skewed": {"skew_ns": [400_000] * 7},
    "skewed, not aligned": {"skew_ns": [400_000] * 7, "sync": "none"},
    "overhead": {"overhead_ns": 300_000},
    "invalid": {"invalid": {"late": 5}},
    "a little invalid": {"invalid": {"late": 1}},
    "cut": {"stop": "cut"},
    "injected": {"injected": "slow-rank:3:20%"},
    "sensitive": {"control_ns": [3_000_000] * 30},
    "sensitive of many calls": {"control_ns": [90_000_000] * 30, "control_inner": 30},
    "as sure as not": {"control_ns": [100, 3_000_000, 1, 2]},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS.keys())
@pytest.mark.parametrize("mode", ["isolated", "host"])
def test_fitness_is_that_of_rows(fields: dict[str, Any], mode: str, tmp_path: Path) -> None:
    cases = [case(1 << power, mode=mode) for power in (12, 20)]
    records = [
        record(msgspec.structs.replace(c, cycle=cycle), 1e6 + cycle * 7e4, world=0, **own)
        for c in cases
        for cycle, own in enumerate(({}, fields, fields))
    ]
    assert_same(write(make_file(records), tmp_path))


@pytest.mark.parametrize("name", ["loopback-nic", "nic-only", "shm-off", "nvlink-only"])
@pytest.mark.parametrize("sent", [[], [Sent(calls=1, ns=1, idle_ns=1, bytes={"tcp": 9 << 20})]])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_fitness_of_a_path_is_that_of_rows(
    name: str, sent: list[Sent], backend: str, tmp_path: Path
) -> None:
    what = case(1 << 20, backend=backend, env=((VARIABLE, name),))
    choice = Choice(transport="NET/Socket") if backend == "nccl" else None
    assert_same(write(make_file([record(what, sent=sent, chose=choice)]), tmp_path))


@pytest.mark.parametrize("name", ["oversubscribed", "virtual", "shared_gpu", "fake", "interpreted"])
def test_what_a_group_is_counts(name: str, tmp_path: Path) -> None:
    worlds = [world(0, **{name: True}), world(1)]
    records = [record(case(), world=index) for index in (0, 1)]
    assert_same(write(make_file(records, worlds), tmp_path))


def test_a_record_that_was_measured_again_stands(tmp_path: Path) -> None:
    records = [
        record(case(), 1e6, status="failed"),
        record(case(), 2e6),
        record(case(64), 1e3),
        record(case(64), 3e3, again=True),
    ]
    assert_same(write(make_file(records, [world(), world(-1)][:1]), tmp_path))


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = write(make_file([record(case()), record(case(64))], end=None), tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    medians = MedianReader().read(path)
    assert (len(medians.rows), medians.end) == (1, None)


def test_samples_are_not_kept(tmp_path: Path) -> None:
    path = write(make_file([record(case(), skew_ns=[1] * 7)]), tmp_path)
    medians = MedianReader().read(path)
    assert not any(r.times_ns or r.skew_ns or r.control_ns for r in medians.records)
    assert isinstance(medians.end, End)


@pytest.mark.parametrize("text", ["", "x\n", '{"line":"world"}\n', '{"line":"run","id":3}\n'])
def test_what_is_no_run_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError):
        MedianReader().read(path)


BAD: list[tuple[str, Any]] = [
    ("inner", 0),
    ("inner", -1),
    ("times_ns", [5, -1]),
    ("times_ns", [1 << 62]),
    ("skew_ns", [-1]),
    ("control_ns", [-1]),
    ("control_inner", 0),
    ("overhead_ns", -1),
    ("invalid", {"late": -1}),
    ("world", -2),
    ("cache", "warm"),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_what_a_record_cannot_be_is_refused_by_both(field: str, value: Any, tmp_path: Path) -> None:
    path = write(make_file([record(case()), record(case(64))]), tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    next(line for line in lines if line["line"] == "record")[field] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for read in (run_file.read_file, MedianReader().read):
        with pytest.raises(UsageError):
            read(path)


def test_the_fields_of_a_timed_record_are_those_of_a_record() -> None:
    of_record = get_type_hints(Record, include_extras=True)
    of_timed = get_type_hints(TimedRecord, include_extras=True)
    own = {"case_json", "told"}  # kept as they are written
    shared = {name: kind for name, kind in of_timed.items() if name not in own}
    assert shared == {name: of_record[name] for name in shared}


def test_an_absent_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CannotRun):
        MedianReader().read(tmp_path / "absent.jsonl")
