"""What libraries write to standard output: it goes to standard error, wherever ranks run, and
programs read collbench's own output alone."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from paths import before

from collbench.core.errors import CannotRun
from collbench.run.launch import mpirun

PATHS = before(Path(__file__).parent / "plugins")
SWEEP = (
    *(sys.executable, "-m", "collbench", "all_reduce", "--backend", "noisy", "--sizes", "64"),
    *("-n", "2", "-w", "0", "--place", "out", "--sync", "barrier", "--no-save"),
)


def start(command: tuple[str, ...], **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": PATHS, **env},
    )


def locally(*args: str) -> list[subprocess.Popen[str]]:
    return [start((*SWEEP, "-g", "2", *args))]


def as_under_torchrun(*args: str) -> list[subprocess.Popen[str]]:
    with socket.create_server(("127.0.0.1", 0)) as at:
        port = str(at.getsockname()[1])
    own = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [start((*SWEEP, *args), RANK=str(rank), **own) for rank in range(2)]


def under_mpirun(*args: str) -> list[subprocess.Popen[str]]:
    try:
        command = (mpirun.find_mpirun(), "-n", "2", *SWEEP, *args)
    except CannotRun as e:
        pytest.skip(e.message)
    return [start(command, **mpirun.SETTINGS, **mpirun.AS_ROOT)]


@pytest.mark.parametrize("launch", [locally, as_under_torchrun, under_mpirun])
def test_what_libraries_print_is_no_part_of_the_output(launch) -> None:
    started = launch("--format", "csv")
    ends = [process.communicate(timeout=100) for process in started]
    assert [process.returncode for process in started] == [0] * len(started), ends
    head, *rows = csv.reader("".join(out for out, _ in ends).splitlines())
    assert [dict(zip(head, row, strict=True))["collective"] for row in rows] == ["all_reduce"]
    assert "".join(err for _, err in ends).count("noise\n") == 2
