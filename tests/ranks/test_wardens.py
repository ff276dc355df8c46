"""What mpirun starts for each rank ends with mpirun, whoever its parent is; what is started ends
with who started it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from collbench.run.launch.board import Board
from collbench.run.launch.children import bound_command
from collbench.run.launch.forkserver import Note

AS_RANK_0 = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
AS_RANK_0 |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
SOON = 60.0  # seconds


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as each:
        each.bind(str(tmp_path / "notes"))
        each.settimeout(SOON)
        yield each


@contextmanager
def warden(folder: Path, above: int) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryFile() as board:
        board.truncate(Board.size(2))
        place = f"/proc/{os.getpid()}/fd/{board.fileno()}"
        command = [sys.executable, "-m", "collbench.run.launch.mpirun", str(folder / "notes")]
        with subprocess.Popen([*command, place, str(above)], env=os.environ | AS_RANK_0) as process:
            try:
                yield process
            finally:
                process.kill()


def told(notes: socket.socket) -> tuple[Note, list[int]]:
    data, fds, _, _ = socket.recv_fds(notes, 65536, 1)
    return msgspec.json.decode(data, type=Note), fds


def test_a_warden_whose_mpirun_is_gone_already_makes_no_rank(
    tmp_path: Path, notes: socket.socket
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with warden(tmp_path, gone.pid) as process:
        assert process.wait(SOON) == 0
    assert not select.select([notes], [], [], 0)[0]


def test_a_warden_and_its_rank_end_with_an_mpirun_that_is_not_its_parent(
    tmp_path: Path, notes: socket.socket
) -> None:
    with subprocess.Popen(["sleep", "600"]) as above, warden(tmp_path, above.pid) as process:
        born, fds = told(notes)
        assert psutil.pid_exists(born.pid)
        above.kill()
        assert process.wait(SOON) == 0
        assert not psutil.pid_exists(born.pid)
        os.close(*fds)
    assert not select.select([notes], [], [], 0)[0]  # mpirun's end is the news, not the rank's


STARTS = """
import os, signal, subprocess, sys
from collbench.run.launch.children import bound_command
command = bound_command(sys.executable, signal.SIGKILL, os.getpid(), "sleep", "600")
print(subprocess.Popen(command).pid, flush=True)
signal.pause()
"""


def test_what_is_bound_ends_with_who_started_it_before_it_has_loaded_anything() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE) as starter:
        assert starter.stdout
        started = psutil.Process(int(starter.stdout.readline()))
        starter.kill()
        started.wait(SOON)  # raises where it goes on


def test_what_is_bound_to_a_parent_that_is_gone_never_begins() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    command = bound_command(sys.executable, signal.SIGKILL, gone.pid, "echo", "begun")
    assert subprocess.run(command, capture_output=True, check=False).stdout == b""


def test_what_is_bound_may_be_told_its_own_pid() -> None:
    command = bound_command(sys.executable, signal.SIGKILL, 0, "echo", "{pid}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate()[0].strip() == str(process.pid)
