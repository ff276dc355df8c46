"""The process in which a launcher's ranks meet: who waits for whom, and what becomes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from ports import find_free_port
from warm import Started, Warm

from collbench.run.launch.board import LEAVE_SECONDS

# Rank 0 holds Python's lock for 3 s, and has made the file before it lets go; nothing else of its
# process can run meanwhile. Rank 1 asks in the middle of that.
HOLDING = """
import ctypes, sys, time
from pathlib import Path
from collbench.run.launch import join
from collbench.run.rank import worker
from collbench.run.rank.control import Store

sys.setswitchinterval(1000)
member, released = join.detect_launcher(), Path(sys.argv[1])
with join.hold_meeting(member, 60) as meeting:
    store = Store(meeting.connection)
    control = worker.connect_control(worker.Place(*member[1:], launcher="environment"), store)
    control.barrier()
    if member.rank == 0:
        libc = ctypes.PyDLL(None)
        libc.usleep(3_000_000), libc.creat(str(released).encode(), 0o600)
    else:
        time.sleep(0.3)
        store.set("asked", "1")
        print(store.get("asked").decode(), "after" if released.exists() else "before")
    control.barrier()
"""

# Rank 0 stops itself once rank 1 has left.
STOPPING = """
import os, signal, time
from collbench.run.launch import join
from collbench.run.rank import worker
from collbench.run.rank.control import Store

member = join.detect_launcher()
with join.hold_meeting(member, 60) as meeting:
    store = Store(meeting.connection)
    worker.connect_control(worker.Place(*member[1:], launcher="environment"), store).barrier()
    if member.rank == 0:
        print(os.getpid(), flush=True)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGSTOP)
"""

MEETING = "collbench.run.launch.meeting"


def make_env(rank: int, port: int) -> dict[str, str]:
    """The environment of a rank of two."""
    own = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    return {**os.environ, **own, "MASTER_PORT": str(port)}


Start = Callable[..., Started]


@pytest.fixture
def start(warm: Warm, tmp_path: Path) -> Start:
    """``start(rank, port, *args)``: ``collbench ARGS`` as a rank of two, or where ``code`` is given
    this with ARGS."""

    def begin(rank: int, port: int, *args: str, code: str = "") -> Started:
        if not code:
            return warm.start(*args, env=make_env(rank, port))
        script = tmp_path / f"{rank}.py"
        script.write_text(code)
        return warm.start(*args, env=make_env(rank, port), script=str(script))

    return begin


@pytest.mark.slow
def test_no_rank_waits_for_pythons_lock_of_another(start: Start, tmp_path: Path) -> None:
    port = find_free_port()
    released = str(tmp_path / "released")
    ranks = [start(rank, port, released, code=HOLDING) for rank in range(2)]
    ends = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ends
    assert ends[1][0] == "1 before\n"


@pytest.mark.slow
def test_a_rank_0_that_stops_when_all_others_have_left_is_ended(start: Start) -> None:
    """Its launcher would wait for it for ever."""
    port = find_free_port()
    ranks = [start(rank, port, code=STOPPING) for rank in range(2)]
    ends = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [-signal.SIGKILL, 0], ends


@pytest.mark.slow
def test_a_rank_0_that_is_stopped_with_its_launcher_is_a_persons(start: Start) -> None:
    port, shell = (
        find_free_port(),
        "import os, subprocess, signal, sys\np = subprocess.Popen(sys.argv[1:])\n",
    )
    shell += "os.kill(os.getpid(), signal.SIGSTOP)\nsys.exit(p.wait())"
    command = [sys.executable, "-c", shell, sys.executable, "-c", STOPPING]
    launcher = subprocess.Popen(
        command, env=make_env(0, port), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    other = start(1, port, code=STOPPING)
    assert launcher.stdout and other.wait(60) == 0
    pid = int(launcher.stdout.readline())
    time.sleep(LEAVE_SECONDS + 4)
    assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    os.kill(pid, signal.SIGCONT), launcher.send_signal(signal.SIGCONT)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 0


def meeting_of(rank: Started) -> psutil.Process:
    """The process in which the ranks of rank 0 meet, once it is there."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for child in psutil.Process(rank.pid).children():
            if MEETING in child.cmdline() and child.net_connections("all"):
                return child
        time.sleep(0.02)
    raise AssertionError("ranks meet nowhere")


@pytest.mark.slow
def test_the_process_is_light_and_ends_with_rank_0(start: Start) -> None:
    """Signals to all processes of a terminal or a launcher leave it to rank 0."""
    rank = start(0, find_free_port(), "all_reduce", "--no-save")
    process = meeting_of(rank)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    files = [str(path.readlink()) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
    assert files.count(os.devnull) == 2
    assert not [path for path in files if path.startswith("pipe:")]
    assert not [each.path for each in process.memory_maps() if "torch" in each.path]
    assert os.getsid(process.pid) == process.pid
    assert process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    rank.kill()
    rank.communicate()
    psutil.wait_procs([process], 10)
    assert not process.is_running()


@pytest.fixture
def of_torchrun(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a rank of two on this host, the other of which never comes."""

    def begun(rank: int, *more: str) -> Started:
        own = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
        for name, value in (own | {"TMPDIR": str(tmp_path)}).items():
            monkeypatch.setenv(name, value)
        return start(rank, find_free_port(), "all_reduce", "--no-save", *more)

    return begun


@pytest.mark.slow
def test_what_a_killed_rank_0_has_left_goes_with_the_process(
    of_torchrun: Start, tmp_path: Path
) -> None:
    """As torchrun kills a stopped one, when no other process of its launch is left."""
    rank = of_torchrun(0)
    process = meeting_of(rank)
    assert list(tmp_path.iterdir())
    rank.kill()
    rank.communicate()
    psutil.wait_procs([process], 10)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_waits_for_rank_0_in_vain_leaves_no_folder(
    of_torchrun: Start, tmp_path: Path
) -> None:
    rank = of_torchrun(1, "-T", "1")
    err = rank.communicate(timeout=60)[1]
    assert "did not reach rank 0" in err
    assert list(tmp_path.iterdir()) == []
