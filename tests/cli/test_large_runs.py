"""Runs so large that several processes read them: the same rows in the same order, and errors that
arrive whole."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from collbench.core.errors import CannotRun, UsageError
from collbench.records import rows, run_file
from collbench.records.types import Record, Run
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """50 records, each of which counts as a large part."""
    suite = Suite(name="all_reduce", axes=Axes(collectives=("all_reduce",), sizes=(8,), ranks=(2,)))
    path = tmp_path / "a.jsonl"
    writer = run_file.Writer(
        path, Run(id="r", started="", command=[], suite=suite, policy=Policy(), environment={})
    )
    for i in range(50):
        case = Case(collective="all_reduce", backend="gloo", n=2, nbytes=8 * i + 8, op="sum")
        times = [1_000 * i + 7 * j % 11 + 1 for j in range(30)]
        writer.write(Record(case=case, status="ok", times_ns=times, per_rank=[times, times]))
    writer.close()
    monkeypatch.setattr(run_file, "PART_BYTES", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    return path


def test_processes_return_every_row_in_order(large: Path) -> None:
    whole, digest = run_file.read_file(large), run_file.read_digest(large)
    assert [record.case.nbytes for record in digest.records] == [8 * i + 8 for i in range(50)]
    assert [row.derived for row in rows.make_rows([digest])] == [
        row.derived for row in rows.make_rows([whole])
    ]
    assert not any(record.per_rank for record in digest.records)


def test_rows_come_from_other_processes(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        run_file, "derive_row", lambda record, world: os.kill(os.getpid(), signal.SIGKILL)
    )
    with pytest.raises(CannotRun, match="killed"):
        run_file.read_digest(large)


def test_an_error_in_a_process_keeps_its_line_and_its_hint(large: Path) -> None:
    lines = large.read_bytes().splitlines(keepends=True)
    large.write_bytes(b"".join([*lines[:30], lines[30][:-50] + b"\n", *lines[31:]]))
    with pytest.raises(UsageError, match=r"a\.jsonl, line 31: ") as caught:
        run_file.read_digest(large)
    assert "another version" in caught.value.hint
