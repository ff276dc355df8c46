"""Orders that are looked for while something breaks: what was found by then is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from paths import before
from warm import Warm

from collbench.core.errors import Exit
from collbench.features.order.findings import OrderFindings, read_findings
from collbench.features.order.request import SumOrder
from collbench.features.order.rows import name_row
from collbench.features.order.runner import RUNNER
from collbench.records.run_file import read_file
from collbench.records.types import Record
from collbench.run.jobs import Job
from collbench.suite.case import Case
from collbench.suite.policy import Policy

PLUGINS = Path(__file__).parent / "plugins"
SUITE = """
[axes]
ranks = [{ranks}]
backends = ["{backend}"]
algorithms = ["{algorithm}"]

[[order]]
collective = "{collective}"
sizes = {sizes}
places = ["out"]
shifts = [0]
{more}
"""
LOOKING, REPEATING = 35, 100  # calls of two sizes: at the second one; when both are found

Run = Callable[..., tuple[int, str, Record]]


@pytest.fixture
def run(warm: Warm, tmp_path: Path) -> Run:
    """``run(*options, sabotage=, **suite)``: the exit status, messages and record of an order."""

    def call(*options: str, sabotage: str = "x:9:9", **suite: object) -> tuple[int, str, Record]:
        given = {"ranks": 2, "backend": "gloo", "algorithm": "native", "collective": "all_reduce"}
        given |= {"sizes": '["256", "1K"]', "more": "", **suite}
        (tmp_path / "order.toml").write_text(SUITE.format(**given))
        path = tmp_path / "run.jsonl"
        command = ["run", str(tmp_path / "order.toml"), "--output", str(path), "--format", "nccl"]
        settings = {"PYTHONPATH": before(PLUGINS), "SABOTAGE": sabotage}
        done = warm(*command, *options, timeout=200, **settings)
        (record,) = read_file(path).records
        return done.returncode, done.stderr, record

    return call


def read(record: Record) -> OrderFindings:
    found = read_findings(record)
    assert found is not None
    return found


def test_what_was_found_before_a_rank_was_killed_is_kept(run) -> None:
    code, _, record = run(backend="saboteur", sabotage=f"kill:1:{REPEATING}")
    assert (code, record.status) == (Exit.TIMEOUT, "failed")
    assert record.note.startswith("cut short: rank 1")
    assert [size.nbytes for size in read(record).sizes] == [256, 1024]
    assert all(size.proof.is_complete for size in read(record).sizes)


@pytest.mark.slow
def test_sizes_that_a_killed_rank_has_not_come_to_are_missing(run) -> None:
    _, _, record = run(backend="saboteur", sabotage=f"kill:1:{LOOKING}")
    assert [size.nbytes for size in read(record).sizes] == [256]


@pytest.mark.slow
def test_what_was_found_before_ctrl_c_is_kept(run) -> None:
    code, _, record = run(backend="saboteur", sabotage=f"interrupt:0:{REPEATING}")
    assert (code, record.status, record.stop) == (Exit.INTERRUPTED, "ok", "cut")
    assert record.note == "cut short: interrupted"
    assert [size.nbytes for size in read(record).sizes] == [256, 1024]


@pytest.mark.slow
def test_a_budget_that_is_spent_says_what_was_left_out(run) -> None:
    code, _, record = run(more="budget = 0.000001")
    assert (code, record.status) == (Exit.OK, "ok")
    assert read(record).dropped[0] == "sizes from 256 B on: 1e-06 s were spent"


@pytest.mark.slow
def test_a_flipped_bit_is_wrong_data(run) -> None:
    code, _, record = run("--inject", "corrupt:1")
    assert (code, record.status) == (Exit.WRONG_DATA, "wrong")
    assert record.first_wrong is not None
    assert (record.first_wrong.rank, record.first_wrong.index) == (1, 0)


@pytest.mark.slow
def test_sizes_of_which_a_rank_would_get_nothing_are_left_out(run) -> None:
    code, _, record = run(collective="reduce_scatter", sizes='["4", "12", "64"]')
    assert code == Exit.OK
    assert [(size.nbytes, size.count) for size in read(record).sizes] == [(12, 1), (64, 8)]


def test_no_size_of_which_each_rank_gets_something_is_refused(tmp_path: Path, cli) -> None:
    given = {"ranks": 3, "backend": "gloo", "algorithm": "native", "sizes": '["8"]', "more": ""}
    suite = SUITE.format(**given, collective="reduce_scatter")
    (tmp_path / "order.toml").write_text(suite)
    done = cli("run", str(tmp_path / "order.toml"), "--no-save")
    assert done.returncode == Exit.USAGE
    assert "reduce_scatter takes 12 B or more" in done.stderr


PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)
"""


@pytest.mark.slow
def test_64_mib_take_no_more_memory_than_was_foretold(tmp_path: Path) -> None:
    """Though a flipped bit has all be asked three times."""
    subject = SumOrder(collective="all_reduce", world=2, sizes=(64 << 20,), proof=2, repeats=5)
    case = Case(
        collective=name_row("all_reduce"),
        subject=subject.title,
        backend="saboteur",
        n=2,
        nbytes=64 << 20,
        dtype="uint8",
    )
    foretold = RUNNER.measure_memory(Job(case, 1, "hot", subject=subject), Policy())
    given = {"ranks": 2, "backend": "saboteur", "algorithm": "native", "sizes": '["64M"]'}
    suite = SUITE.format(**given, collective="all_reduce", more="proof = 2\nrepeats = 5")
    (tmp_path / "order.toml").write_text(suite)
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-m", "collbench", "run", str(tmp_path / "order.toml")]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *command, "--output", str(path)],
        env=os.environ | {"PYTHONPATH": before(PLUGINS), "SABOTAGE": "corrupt:1:1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    (record,) = read_file(path).records
    assert read(record).sizes[0].attempts == 2
    assert int(done.stdout) <= foretold
