"""A world that does not open: its cases are left out with the reason, and the other worlds run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from paths import before
from warm import Warm

from collbench.core.errors import Exit
from collbench.records import run_file
from collbench.records.types import RunFile

PLUGINS = Path(__file__).parent / "plugins"
SWEEP = ("all_reduce", "--sizes", "64,1K", "--place", "in", "--cache", "hot")
SAMPLES = ("-n", "3", "-w", "0")
PLANTED = "not opened: planted (a hint)"
STATUSES = {"saboteur": {"skipped"}, "gloo": {"ok"}}


def measure(
    warm: Warm,
    path: Path,
    backends: str,
    sabotage: str,
    pace: tuple[str, ...] = SAMPLES,
    joined: bool = False,
) -> tuple[subprocess.CompletedProcess[str], RunFile]:
    """What a sweep of two sizes on each of the backends comes to; on two ranks of its own unless
    the command starts them."""
    words = [*SWEEP, "--backend", backends, *pace, "--output", str(path)]
    env = {"PYTHONPATH": before(PLUGINS), "SABOTAGE": sabotage}
    done = warm.join(2, *words, **env) if joined else warm(*words, "-g", "2", **env)
    return done, run_file.read_file(path)


def statuses(run: RunFile) -> dict[str, set[str]]:
    return {
        backend: {record.status for record in run.records if record.case.backend == backend}
        for backend in ("saboteur", "gloo")
    }


def planted(run: RunFile) -> list[str]:
    return [record.note for record in run.records if record.case.backend == "saboteur"]


@pytest.fixture(scope="module")
def refused(
    warm: Warm, tmp_path_factory: pytest.TempPathFactory
) -> tuple[subprocess.CompletedProcess[str], RunFile]:
    """A run whose first backend cannot open, and whose second can."""
    path = tmp_path_factory.mktemp("refused") / "run.jsonl"
    return measure(warm, path, "saboteur,gloo", "refuse-all:0:0")


def assert_skipped(done: subprocess.CompletedProcess[str], run: RunFile) -> None:
    assert done.returncode == Exit.OK, done.stderr
    assert statuses(run) == STATUSES
    assert planted(run) == [PLANTED] * 2
    assert [world.backend for world in run.worlds] == ["gloo"]


@pytest.mark.slow
def test_a_backend_that_cannot_open_is_skipped_and_the_next_runs(refused) -> None:
    assert_skipped(*refused)


@pytest.mark.slow
def test_a_backend_that_cannot_open_is_skipped_after_one_that_can(
    warm: Warm, tmp_path: Path
) -> None:
    assert_skipped(*measure(warm, tmp_path / "run.jsonl", "gloo,saboteur", "refuse-all:0:0"))


@pytest.mark.slow
def test_a_budget_goes_on_with_the_next_world(warm: Warm, tmp_path: Path) -> None:
    pace = ("--budget", "20s", "--max-time", "0.05s")
    done, run = measure(warm, tmp_path / "run.jsonl", "saboteur,gloo", "refuse-all:0:0", pace)
    assert done.returncode == Exit.OK, done.stderr
    assert statuses(run) == STATUSES


def test_where_nothing_opens_the_reason_ends_the_run(warm: Warm, tmp_path: Path) -> None:
    done, run = measure(warm, tmp_path / "run.jsonl", "saboteur", "refuse-all:0:0")
    assert done.returncode == Exit.CANNOT_RUN
    assert f"no case can run here: {PLANTED}" in done.stderr
    assert {record.status for record in run.records} == {"skipped"}
    assert run.end is not None and run.end.exit == Exit.CANNOT_RUN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sabotage", "note"),
    [
        ("crash:1:0", "raised ArithmeticError: planted"),
        pytest.param("refuse:1:0", "unlike others: planted", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_breaks_while_opening_fails_its_world_alone(
    warm: Warm, sabotage: str, note: str, tmp_path: Path
) -> None:
    done, run = measure(warm, tmp_path / "run.jsonl", "saboteur,gloo", sabotage)
    assert done.returncode == Exit.TIMEOUT
    assert statuses(run) == {"saboteur": {"failed"}, "gloo": {"ok"}}
    assert len(planted(run)) == 2 and all(note in each for each in planted(run))
    assert note in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sabotage", "note"),
    [
        ("refuse-size:0:64", r"planted \(a hint\)$"),
        ("no-memory:1:64", r"rank 1 on \S+: planted \(take smaller sizes"),
    ],
)
def test_a_case_that_cannot_be_prepared_is_skipped_alone(
    warm: Warm, tmp_path: Path, sabotage: str, note: str
) -> None:
    done, run = measure(warm, tmp_path / "run.jsonl", "saboteur", sabotage)
    assert done.returncode == Exit.OK, done.stderr
    found = {record.case.nbytes: (record.status, record.note) for record in run.records}
    assert found[64][0] == "skipped" and re.match(note, found[64][1])
    assert found[1024][0] == "ok"


@pytest.mark.slow
def test_a_background_that_has_no_memory_on_one_rank_is_refused_on_all(
    warm: Warm, tmp_path: Path
) -> None:
    pace = (*SAMPLES, "--background", "all_reduce:4K")
    _, run = measure(warm, tmp_path / "run.jsonl", "saboteur", "no-memory:1:4096", pace)
    assert statuses(run)["saboteur"] == {"skipped"} and len(run.records) == 2
    assert all(re.match(r"rank 1 on \S+: planted \(take smaller", note) for note in planted(run))


@pytest.mark.parametrize(
    ("sabotage", "status", "exit", "note"),
    [
        ("refuse-calls:0:0", "skipped", Exit.OK, "refuses all_reduce of float: planted"),
        ("break:0:0", "failed", Exit.TIMEOUT, "RuntimeError: planted: the device is gone"),
    ],
)
def test_a_refused_call_is_skipped_but_a_broken_device_fails(
    warm: Warm, sabotage: str, status: str, exit: Exit, note: str, tmp_path: Path
) -> None:
    done, run = measure(warm, tmp_path / "run.jsonl", "saboteur,gloo", sabotage)
    assert done.returncode == exit, done.stderr
    assert statuses(run)["saboteur"] == {status}
    assert all(note in each for each in planted(run)), planted(run)


def test_what_could_not_open_is_tried_again_when_the_run_is_resumed(
    warm: Warm, refused, tmp_path: Path
) -> None:
    path = shutil.copy(refused[1].path, tmp_path / "run.jsonl")
    found = {"PYTHONPATH": before(PLUGINS), "SABOTAGE": "corrupt:9:9"}
    done = warm("run", "--resume", str(path), **found)
    assert done.returncode == Exit.OK, done.stderr
    assert statuses(run_file.read_file(path)) == {"saboteur": {"ok"}, "gloo": {"ok"}}


@pytest.mark.slow
def test_ranks_of_a_launcher_go_on_to_the_next_backend(warm: Warm, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    done, run = measure(warm, path, "saboteur,gloo", "refuse-all:0:0", joined=True)
    assert done.returncode == Exit.OK, done.stderr
    assert statuses(run) == STATUSES
    assert planted(run) == [PLANTED] * 2


@pytest.mark.slow
def test_ranks_of_a_launcher_of_which_one_cannot_go_on_to_the_next_backend(
    warm: Warm, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    done, run = measure(warm, path, "saboteur,gloo", "refuse:1:0", joined=True)
    assert done.returncode != Exit.OK
    assert statuses(run) == {"saboteur": {"failed"}, "gloo": {"ok"}}
    assert run.end is not None and run.end.exit == Exit.TIMEOUT


@pytest.mark.slow
def test_where_nothing_opens_under_a_launcher_the_reason_is_told(
    warm: Warm, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    done, run = measure(warm, path, "saboteur", "refuse-all:0:0", joined=True)
    assert f"no case can run here: {PLANTED}" in done.stderr
    assert run.end is not None and run.end.exit == Exit.CANNOT_RUN
