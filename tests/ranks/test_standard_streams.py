"""Standard streams that are closed or take nothing, and files in the current folder that are named
as modules are: neither stops or changes what real ranks measure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from marks import long
from needs import need_mpi

from collbench.records import run_file

SWEEP = "all_reduce --sizes 1K,4K -g 2 -n 5 -w 1 --place in"


def sweep_on(backend: str) -> str:
    if backend == "mpi":
        need_mpi()
    return f"{SWEEP} --backend {backend}"


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "COLLBENCH_HOME": str(folder / "home")},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "redirects", "code"),
    [
        ("gloo", "<&- >&- 2>&-", 0),
        long("gloo", "2>&1 >/dev/null | true", 0),  # a pipe that nobody reads
        ("gloo", ">/dev/full 2>/dev/full", 5),
        ("mpi", "<&- >&- 2>&-", 0),
        long("gloo", "2>/dev/full", 0),
        long("gloo", "2>&-", 0),
        long("gloo", ">&-", 0),
        long("mpi", "2>&1 >/dev/null | true", 0),
        long("mpi", ">/dev/full 2>/dev/full", 5),
        long("mpi", "2>/dev/full", 0),
        long("mpi", "2>&-", 0),
        long("mpi", ">&-", 0),
    ],
)
def test_ranks_measure_on_when_streams_take_nothing(
    tmp_path: Path, backend: str, redirects: str, code: int
) -> None:
    command = f"{sys.executable} -m collbench {sweep_on(backend)} --output r.jsonl {redirects}"
    done = run(tmp_path, f"{command}; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    found = run_file.read_file(tmp_path / "r.jsonl")
    assert ([r.status for r in found.records], found.end is not None) == (["ok", "ok"], True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "option"),
    [("mpi", ""), long("gloo", ""), long("gloo", "-P"), long("mpi", "-P")],
)
def test_no_file_in_the_current_folder_runs(tmp_path: Path, backend: str, option: str) -> None:
    planted = "open('ran', 'a').write(__name__); raise ImportError('mine')"
    for name in ("queue", "numpy", "msgspec", "psutil", "amdsmi", "pynvml", "numa"):
        (tmp_path / f"{name}.py").write_text(planted)
    done = run(tmp_path, f"{sys.executable} {option} -m collbench {sweep_on(backend)} --no-save")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
