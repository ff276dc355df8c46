"""A run from a Python that has loaded nothing, along each way by which ranks start; and the kernel
ends ranks with who started them. Elsewhere commands and fork servers are forked from a process that
has loaded all (helpers/warm.py), where a lost import would not be missed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from needs import need_mpi

SECONDS = 60.0
SOON = 20.0  # seconds: torchrun looks every few
LOCAL = [sys.executable, "-m", "collbench"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
WORDS = {
    "fork server": [*LOCAL, "all_reduce", "-g", "2"],
    "mpirun": [*LOCAL, "all_reduce", "-g", "2", "--backend", "mpi"],
    "torchrun": [*TORCHRUN, "-m", "collbench", "all_reduce"],
}
SWEEP = ["--sizes", "4K", "-n", "5", "-w", "1", "--place", "out", "-N", "500"]

Begun = tuple[str, subprocess.Popen[bytes]]


def find_pids(process: subprocess.Popen[bytes], path: Path) -> list[int]:
    """The pids of a run's ranks, once the first case has been measured."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        whole = path.read_text().split("\n")[:-1] if path.exists() else []
        lines = {line["line"]: line for line in map(json.loads, whole)}
        if "record" in lines:
            return [rank["pid"] for rank in lines["world"]["ranks"]]
        assert process.poll() is None
        time.sleep(0.05)
    raise AssertionError("no record in time")


def list_remaining(pids: set[int]) -> list[int]:
    """The processes of these that have not ended within SOON seconds; they are killed."""
    processes = []
    for pid in pids:
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        processes = [p for p in processes if p.is_running() and p.status() != "zombie"]
        if not processes:
            break
        time.sleep(0.05)
    for process in processes:
        process.kill()
    return [process.pid for process in processes]


@pytest.fixture(params=list(WORDS))
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Begun]:
    way = request.param
    if way == "mpirun":
        need_mpi()
    command = [*WORDS[way], *SWEEP, "--output", str(tmp_path / "run.jsonl")]
    nothing = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ, **nothing) as process:
        try:
            yield way, process
        finally:
            process.kill()


@pytest.mark.slow
def test_ranks_of_a_new_python_measure_and_none_outlives_its_parent(
    start: Begun, tmp_path: Path
) -> None:
    """Where collbench starts ranks, they are stopped when it is killed, as is the server that
    forked them: they cannot notice it, and the kernel alone can end them. Of torchrun's, which lets
    ranks outlive it, rank 0 is killed: with it go the processes that it has started, and torchrun
    ends the others."""
    way, process = start
    pids = find_pids(process, tmp_path / "run.jsonl")
    under = psutil.Process(process.pid).children(recursive=True)
    if way == "torchrun":
        os.kill(pids[0], signal.SIGKILL)
    else:
        server = psutil.Process(pids[0]).parent()
        assert server is not None and len({*pids, server.pid}) == 3
        for pid in (*pids, server.pid):
            os.kill(pid, signal.SIGSTOP)
        process.kill()
    assert list_remaining({*pids, *(child.pid for child in under)}) == []
