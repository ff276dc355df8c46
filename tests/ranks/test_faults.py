"""What breaks mid-run ends the run in time, names the culprit, keeps finished cases and leaves no
process behind."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from marks import long, slow
from paths import before
from warm import Warm

from collbench.core.errors import CannotRun, Exit
from collbench.records import run_file
from collbench.records.types import Run, World
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

PLUGINS = Path(__file__).parent / "plugins"
PATHS = before(PLUGINS)
OTHERS = re.compile(
    "vader|sm_segment|mpich|ray|plasma|pym-|sem\\."
)  # of MPI, Ray and Python, in other tests

Start = Callable[[Sequence[str], Mapping[str, str]], Any]


def start_anew(words: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
    """``collbench WORDS`` in a Python that has yet to load it, and so has its fork server."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "collbench", *words]
    return subprocess.Popen(command, env=env, text=True, stdout=pipe, stderr=pipe)


def start_warm(warm: Warm, words: Sequence[str], env: Mapping[str, str]) -> Any:
    """``collbench WORDS``, forked from a process that has loaded it, as is its fork server."""
    return warm.start(*words, env=env)


class Started:
    """``collbench ARGS`` under way, with the file it writes."""

    def __init__(self, start: Start, path: Path, *args: str, **env: str) -> None:
        self.path = path
        words = (*args, "--output", str(path), "--format", "nccl")
        self.process = start(words, {**os.environ, "PYTHONPATH": PATHS, **env})

    def lines(self) -> list[dict[str, object]]:
        whole = self.path.read_text().split("\n")[:-1] if self.path.exists() else []
        return [json.loads(line) for line in whole]

    def wait_for(self, kind: str, seconds: float = 60) -> dict[str, object]:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = [line for line in self.lines() if line["line"] == kind]
            if found:
                return found[-1]
            time.sleep(0.05)
        raise AssertionError(f"no {kind} line in time")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def pids(self) -> list[int]:
        world = self.wait_for("world")
        return [rank["pid"] for rank in world["ranks"]]  # type: ignore[attr-defined, index]


def gone(pids: list[int], seconds: float = 5) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(
            psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE
            for p in pids
        ):
            return True
        time.sleep(0.05)
    return False


Begin = Callable[..., Started]


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Begin]:
    begun: list[Started] = []

    def start(how: Start, *args: str, **env: str) -> Started:
        begun.append(Started(how, tmp_path / "run.jsonl", *args, **env))
        return begun[-1]

    yield start
    for one in begun:
        one.process.kill()


@pytest.fixture
def run(start_run: Begin, warm: Warm) -> Begin:
    return partial(start_run, partial(start_warm, warm))


@pytest.fixture
def run_anew(start_run: Begin) -> Begin:
    """As ``run``, where what is planted is in how processes come up."""
    return partial(start_run, start_anew)


SWEEP = (
    "all_reduce",
    "--sizes",
    "4K,8K,16K",
    "-g",
    "3",
    "-n",
    "5",
    "-w",
    "1",
    "--order",
    "size",
    "--place",
    "out",
)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("kill", "was killed by SIGKILL"),
        slow("stop", "is stopped (SIGSTOP)"),
        slow("raise", "raised ArithmeticError: planted"),
        slow("sleep", "hang in the same call"),
        slow("slow-start", "has not moved"),
    ],
)
def test_a_broken_rank_ends_the_run_and_is_named(run, what: str, words: str) -> None:
    """The fault is planted in the second case; each case calls 1 (setup) + 1 to 5 (warm-up) +
    5 + 4 (check) times, and 8 in the other cadence."""
    begun = run(*SWEEP, "--backend", "saboteur", "-T", "2", SABOTAGE=f"{what}:1:28")
    code, _, err = begun.end()
    assert code == Exit.TIMEOUT
    assert words in err
    assert "Traceback" not in err
    if what == "raise":
        kept = Path(re.search(r"its traceback is in (\S+)", err)[1])
        assert "ArithmeticError: planted" in kept.read_text()
    records = [line for line in begun.lines() if line["line"] == "record"]
    end = begun.lines()[-1]
    assert (end["line"], end["exit"]) == ("end", 4)
    if what == "slow-start":
        assert "rank 1 on" in err and "while starting up" in err
        assert [r["status"] for r in records] == ["failed"] * 3
        return
    assert ("rank 1 on" in err) == (what != "sleep")
    assert "all_reduce 8192 B float out of place on saboteur (case 2 of 3)" in err
    assert [r["status"] for r in records] == ["ok", "failed"]
    assert gone(begun.pids())


@pytest.mark.slow
def test_a_root_that_hangs_is_behind_though_it_has_looked_at_most_data(cli) -> None:
    planted = ("-T", "2", "--inject", "hang:0", "--no-save")
    done = cli("gather", "--sizes", "4K", "-g", "3", "--mode", "isolated", *planted)
    assert done.returncode == Exit.TIMEOUT
    assert re.search(r"rank 0 on \S+ \(pid \d+\) has not moved for 2 s", done.stderr)


@pytest.mark.slow
def test_a_rank_that_alone_cannot_take_part_is_named(run) -> None:
    begun = run(*SWEEP, "--backend", "saboteur", SABOTAGE="refuse:1:0")
    code, _, err = begun.end()
    assert code == Exit.TIMEOUT
    assert "rank 1 on" in err and "unlike others: planted" in err and "a hint" in err
    assert "rank 0" not in err and "Traceback" not in err


def test_a_process_whose_maker_is_gone_before_it_says_what_to_do_then_ends_at_once() -> None:
    program = """
import os, time
from collbench.run.launch.children import die_with_parent
mine = os.getpid()
if os.fork() == 0:
    while os.getppid() == mine:
        time.sleep(0.01)
    die_with_parent(mine)
    print("alive", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"), [("kill", "was killed by SIGKILL"), long("stop", "is stopped (SIGSTOP)")]
)
def test_a_rank_lost_in_shared_memory_ends_the_run_and_leaves_nothing(
    run, what: str, words: str
) -> None:
    before = set(os.listdir("/dev/shm"))  # noqa: PTH208
    begun = run(
        *SWEEP, "--backend", "saboteur_shm", "--algo", "ring", "-T", "2", SABOTAGE=f"{what}:1:28"
    )
    code, _, err = begun.end()
    assert code == Exit.TIMEOUT
    assert words in err
    assert "rank 1 on" in err and "ring@saboteur_shm (case 2 of 3)" in err
    assert [line["status"] for line in begun.lines() if line["line"] == "record"] == [
        "ok",
        "failed",
    ]
    assert gone(begun.pids())
    left = set(os.listdir("/dev/shm")) - before  # noqa: PTH208
    assert [name for name in left if not OTHERS.match(name)] == []


@pytest.mark.slow
def test_a_world_that_has_finished_ends_though_a_rank_does_not(run) -> None:
    begun = run(*SWEEP, SABOTAGE="never-leave:1:0")
    code, _, err = begun.end()
    assert code == Exit.OK
    assert f"rank 1 on {os.uname().nodename} (pid {begun.pids()[1]}) did not end" in err
    assert begun.lines()[-1]["exit"] == 0
    assert gone(begun.pids())


@pytest.mark.slow
def test_a_rank_killed_when_all_is_measured_costs_nothing_and_is_named(run) -> None:
    begun = run(*SWEEP, SABOTAGE="killed-leaving:1:0")
    code, _, err = begun.end()
    assert code == Exit.OK
    who = f"rank 1 on {os.uname().nodename} (pid {begun.pids()[1]})"
    assert f"{who} was killed by SIGKILL while leaving; all had been measured" in err
    assert begun.lines()[-1]["exit"] == 0
    assert gone(begun.pids())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", long("mpi")])
def test_a_world_that_has_finished_ends_though_its_fork_server_does_not(run, backend: str) -> None:
    begun = run(*SWEEP, "--backend", backend)
    server = psutil.Process(begun.pids()[0]).parent()
    assert server is not None
    server.suspend()
    code, _, err = begun.end()
    assert code == Exit.OK
    name = f"the fork server (pid {server.pid}), which is stopped (SIGSTOP),"
    assert f"{name} did not tell of its ranks' ends" in err
    assert "mpirun" not in err
    assert gone([*begun.pids(), server.pid])


@pytest.mark.slow
def test_a_fork_server_that_is_stopped_while_it_loads_is_named(run) -> None:
    """It loads all anew, as libraries get another setting than where all is warm."""
    begun = run(*SWEEP, "-T", "2", OMP_NUM_THREADS="2")
    me = psutil.Process(begun.process.pid)
    while not (servers := [child for child in me.children() if child.cmdline() != me.cmdline()]):
        time.sleep(0.01)
    servers[0].suspend()
    code, _, err = begun.end()
    assert code == Exit.TIMEOUT
    assert f"the fork server (pid {servers[0].pid}) is stopped (SIGSTOP), with 0 of 3 ranks" in err
    assert gone([servers[0].pid])


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(run) -> None:
    begun = run(*SWEEP, "-N", "500")
    begun.wait_for("record")
    begun.process.send_signal(signal.SIGINT)
    code, out, _ = begun.end()
    assert code == Exit.INTERRUPTED
    assert begun.lines()[-1]["exit"] == 130
    assert gone(begun.pids())
    assert " 4096 " in out


@pytest.mark.slow
@pytest.mark.parametrize("backend", [long("gloo"), "mpi"])
def test_ctrl_c_again_and_again_cuts_no_cleaning_up_short(run, backend: str) -> None:
    """mpirun that is told twice leaves its ranks' files in /dev/shm, and says so."""
    begun = run(*SWEEP, "-N", "500", "--backend", backend)
    begun.wait_for("record")
    while begun.process.poll() is None:
        begun.process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    code, _, err = begun.end()
    assert code == Exit.INTERRUPTED
    assert "Abort is in progress" not in err
    assert begun.lines()[-1]["exit"] == Exit.INTERRUPTED
    assert gone(begun.pids())


INTERRUPTED = """
import sys
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "collbench.records.columns":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
"""


def test_a_command_interrupted_while_its_package_loads_ends_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED)
    env = {**os.environ, "PYTHONPATH": before(tmp_path)}
    command = [sys.executable, "-m", "collbench", "--version"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "")
    job = [sys.executable, "-c", "import collbench"]  # a job of somebody's, who may catch it
    done = subprocess.run(job, env=env, capture_output=True, text=True, check=False)
    assert "KeyboardInterrupt" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, long(signal.SIGTERM), long(signal.SIGHUP)])
def test_a_signal_in_the_first_moment_is_an_interrupt(run_anew, number: int) -> None:
    code, out, err = run_anew(*SWEEP, SABOTAGE=f"signalled:{number}:0").end()
    assert code == Exit.INTERRUPTED
    assert (out, "Traceback" in err) == ("", False)


@pytest.mark.slow
def test_what_a_killed_run_has_left_is_swept_by_the_next(run, tmp_path: Path) -> None:
    (place := tmp_path / "tmp").mkdir()
    begun = run(*SWEEP, "-N", "500", TMPDIR=str(place))
    begun.wait_for("record")
    begun.process.kill()
    begun.end()
    assert list(place.iterdir())
    begun.path.unlink()
    assert run(*SWEEP, TMPDIR=str(place)).end()[0] == Exit.OK
    assert list(place.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["parent", slow("server")])
def test_no_rank_outlives_what_started_it(run, victim: str) -> None:
    begun = run(*SWEEP, "-N", "500")
    pids = begun.pids()
    begun.wait_for("record")
    server = psutil.Process(pids[0]).parent()
    assert server is not None
    (begun.process if victim == "parent" else server).kill()
    code, _, err = begun.end()
    assert gone([*pids, server.pid])
    if victim == "server":
        assert code == Exit.TIMEOUT and "fork server was killed" in err


@pytest.mark.slow
def test_ranks_listen_on_loopback_only(run) -> None:
    begun = run(*SWEEP, "-N", "500")
    pids = begun.pids()
    begun.wait_for("record")
    listening = [
        c
        for pid in pids
        for c in psutil.Process(pid).net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    ]
    assert listening  # Gloo's own
    assert {c.laddr.ip for c in listening} <= {"127.0.0.1", "::1"}
    server = psutil.Process(pids[0]).parent()
    assert server is not None
    for process in (server, psutil.Process(begun.process.pid)):
        assert not [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]


@pytest.mark.slow
def test_an_unwritable_place_is_found_before_ranks_start(bare, tmp_path: Path) -> None:
    for place in ("/dev/full", "/proc/nowhere/run.jsonl"):
        done = bare(*SWEEP, "--output", place)
        assert done.returncode == Exit.CANNOT_RUN
        assert "cannot write" in done.stderr and "hint:" in done.stderr
        assert done.stdout == ""
    existing = tmp_path / "old.jsonl"
    existing.write_text("precious")
    assert bare(*SWEEP, "--output", str(existing)).returncode == Exit.USAGE
    assert existing.read_text() == "precious"


def test_a_disk_that_fills_loses_no_line_that_was_written(tmp_path: Path) -> None:
    """A file size limit stands in for the full disk; when there is room again the waiting lines
    follow."""
    suite = Suite(name="x", axes=Axes(collectives=("all_reduce",), sizes=(8,), ranks=(2,)))
    run = Run(id="x", started="", command=[], suite=suite, policy=Policy(), environment={})
    world = World(
        index=0,
        backend="gloo",
        n=2,
        env=(),
        launcher="local",
        ranks=[],
        oversubscribed=False,
        same_clock=True,
    )
    writer = run_file.Writer(tmp_path / "run.jsonl", run)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (writer.path.stat().st_size + 10, hard))
        writer.write(world)
        assert "1 lines wait" in writer.trouble
        assert run_file.read_file(writer.path).worlds == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.write(world)
    assert writer.trouble == ""
    assert len(run_file.read_file(writer.path).worlds) == 2
    with pytest.raises(CannotRun):
        run_file.Writer(Path("/dev/full"), run)


ONE_CASE = (
    *("all_reduce", "--sizes", "64K", "-g", "2", "--place", "out", "--backend", "saboteur"),
    *("--max-time", "1s", "--precision", "0.01%", "-T", "5"),
)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("kill", "was killed by SIGKILL"),
        slow("stop", "is stopped (SIGSTOP)"),
        slow("raise", "raised ArithmeticError: planted"),
        slow("sleep", "hang in the same call"),
    ],
)
def test_a_case_that_breaks_in_its_second_pass_keeps_its_first_and_is_taken_up_again(
    warm: Warm, tmp_path: Path, what: str, words: str
) -> None:
    path = tmp_path / "run.jsonl"
    env = {"PYTHONPATH": PATHS, "SABOTAGE": f"{what}-again:1:3", "SABOTAGE_RUN": str(path)}
    done = warm(*ONE_CASE, "--output", str(path), **env)
    assert done.returncode == Exit.TIMEOUT and words in done.stderr
    assert "(case 1 of 1, again)" in done.stderr
    (first,) = run_file.read_file(path).records
    assert (first.status, first.stop) == ("ok", "cut") and len(first.times_ns) > 5
    assert first.note.startswith("broke in its second pass: ") and words in first.note
    assert f"continue with: collbench run --resume {path}" in done.stdout + done.stderr
    resumed = warm("run", "--resume", str(path), **{**env, "SABOTAGE": "corrupt:9:9"})
    assert resumed.returncode == Exit.OK, resumed.stderr
    (last,) = run_file.read_file(path).records
    assert (last.status, last.stop, last.note) == ("ok", "budget", "")
    assert last.world > first.world


@pytest.mark.slow
def test_ranks_have_a_variable_that_is_not_utf_8_and_run_in_any_folder(
    warm: Warm, tmp_path: Path
) -> None:
    odd = os.fsdecode(b"b\xffd")
    (folder := tmp_path / odd).mkdir()
    words = ("all_reduce", "--sizes", "64K", "-g", "2", "-n", "5", "--backend", "gloo,shm")
    env = {"NCCL_ALGO": odd, "COLLBENCH_HOME": str(folder)}
    done = warm(*words, **env)
    assert done.returncode == Exit.OK, done.stderr
    done = warm(*words, **env, TMPDIR=str(folder))
    assert done.returncode == Exit.CANNOT_RUN
    assert "is not UTF-8" in done.stderr and "set TMPDIR" in done.stderr
