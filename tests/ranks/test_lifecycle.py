"""Lives of communicators on real ranks: measured, delayed on purpose, killed, and never silent."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from needs import needs_mpi
from paths import before

from collbench.core.errors import CannotRun, Exit
from collbench.features.lifecycle import rows, watching
from collbench.features.lifecycle.instructions import Instructions
from collbench.records import run_file
from collbench.run.launch.folders import PREFIX

pytestmark = pytest.mark.slow
Cli = Callable[..., "subprocess.CompletedProcess[str]"]
LATE = Path(__file__).parents[1] / "helpers" / "late_init"
QUICK = ("--groups", "2", "--sizes", "1K", "--launches", "1", "--calls", "2")


def phases_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, float]]:
    assert done.returncode == 0, done.stderr
    return {phase["phase"]: phase for phase in json.loads(done.stdout)["phases"]}


def left_behind() -> list[str]:
    """Processes of lives that nobody waits for any more."""
    return [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if "collbench.features.lifecycle.child" in (process.info["cmdline"] or [])
        and process.parent() is None
    ]


def test_a_life_on_gloo_has_all_phases_and_is_saved(cli: Cli, home: Path) -> None:
    done = cli("lifecycle", "-g", "2", "--backend", "gloo", *QUICK, "--format", "json")
    phases = phases_of(done)
    assert list(phases) == list(rows.PHASES)
    assert all(phase["time_median_ns"] > 0 for phase in phases.values())
    assert phases[rows.INIT]["resident_bytes"] > 0
    (path,) = home.glob("runs/**/*.jsonl")
    records = run_file.read_file(path).records
    assert {record.case.collective for record in records} == {*rows.PHASES}
    assert all(len(record.times_ns) == 1 for record in records)
    assert left_behind() == []


@pytest.mark.long
@needs_mpi
def test_a_life_under_mpirun(cli: Cli) -> None:
    done = cli("lifecycle", "-g", "2", "--backend", "mpi", *QUICK, "--format", "json")
    assert list(phases_of(done)) == [phase for phase in rows.PHASES if phase != rows.JOIN]


@pytest.mark.long
def test_an_init_that_is_late_on_purpose_takes_as_much_longer(cli: Cli) -> None:
    late = ("--inject", "late:1:3s")
    done = cli("lifecycle", "-g", "2", "--backend", "gloo", *QUICK, *late, "--format", "json")
    phases = phases_of(done)
    assert phases[rows.INIT]["time_median_ns"] >= 3e9
    assert phases[rows.FIRST]["time_median_ns"] < 3e9


@pytest.mark.long
def test_ab_finds_an_init_that_50_ms_make_longer(cli: Cli, tmp_path: Path) -> None:
    suite = tmp_path / "life.toml"
    suite.write_text('[[lifecycle]]\nsize = "1K"\ncalls = 2\n')
    path = before(LATE)
    sides = ("--base", f"PYTHONPATH={path}", "--head", f"PYTHONPATH={path} LATE_INIT=0.05")
    done = cli(
        "ab",
        "--suite",
        str(suite),
        "--ranks",
        "2",
        *sides,
        "--rounds",
        "8,12",
        "--format",
        "json",
        timeout=900,
    )
    verdicts = {
        row["case"]["collective"]: row["verdict"] for row in json.loads(done.stdout)["rows"]
    }
    assert verdicts[rows.INIT] == "REGRESSED", done.stdout
    assert done.returncode == Exit.BAD


def test_others_of_a_killed_rank_know_and_come_back(cli: Cli) -> None:
    kill = ("--kill", "1", "--kill-at", "0.5", "--timeout", "24")
    done = cli("lifecycle", "-g", "3", "--backend", "gloo", *kill, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    (loss,) = json.loads(done.stdout)["losses"]
    assert (loss["killed"], loss["recovered"], loss["failures"]) == (1, 1, [])
    assert loss["known_median_ns"] <= loss["recovered_median_ns"]
    assert left_behind() == []


def test_a_nursery_listens_nowhere_and_is_replaced_when_it_has_died() -> None:
    given = Instructions(
        rank=0,
        world=1,
        local_rank=0,
        backend="gloo",
        folder="",
        parent=0,
        address=("127.0.0.1", 1),  # where nobody listens, so that the life fails
        one_clock=True,
        way="rebuild",
        patience=0.1,
    )
    first = watching.open_nursery(int)
    try:
        assert watching.open_nursery(int) is first
        pid = first._process.pid
        sockets = psutil.Process(pid).net_connections("unix")
        assert sockets and {socket.laddr for socket in sockets} == {""}
        with watching.watch_fork(given, int) as watched:
            folder = watched._folder
            watched.process.wait(60)
            watched.look()
            assert watched.find(0, "failed")
        assert folder.name.startswith(PREFIX) and not folder.exists()
        psutil.Process(pid).kill()
        with pytest.raises(CannotRun, match="has ended"):
            first.fork(given, int)
        second = watching.open_nursery(int)
        assert second is not first and not second.ended
        second.close()
    finally:
        first.close()


@pytest.mark.long
def test_five_random_kills_are_never_silent(cli: Cli) -> None:
    kill = ("--kill", "0", "--launches", "5", "--way", "rebuild,notified", "--timeout", "24")
    done = cli("lifecycle", "-g", "3", "--backend", "gloo", *kill, "--format", "json", timeout=900)
    losses = json.loads(done.stdout)["losses"]
    assert [loss["killed"] for loss in losses] == [5, 5]
    assert all(loss["recovered"] + len(loss["failures"]) == 5 for loss in losses)
    assert done.returncode == (Exit.TIMEOUT if any(loss["failures"] for loss in losses) else 0)


@pytest.mark.long
def test_a_rank_that_never_knows_is_named_with_exit_4(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEAF)
    kill = ("--kill", "1", "--kill-at", "0.5", "--timeout", "5")
    done = cli(
        "lifecycle", "-g", "3", "--backend", "gloo", *kill, timeout=300, PYTHONPATH=before(tmp_path)
    )
    assert done.returncode == Exit.TIMEOUT
    assert "silence: rank 2 did not know within 5 s that rank 1 was gone" in done.stdout
    assert left_behind() == []


DEAF = """
import importlib.machinery, sys, time
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "collbench.features.lifecycle.child":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader
        class Loader(type(load)):
            def get_code(self, name):
                source = self.get_source(name).replace(
                    "                call.run()\\n",
                    "                time.sleep(1e6) if given.rank == 2 else call.run()\\n", 1)
                return compile(source, self.path, "exec")
        spec.loader = Loader(load.name, load.path)
        return spec
sys.meta_path.insert(0, Finder())
"""
