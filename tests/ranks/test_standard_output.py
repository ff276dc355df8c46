"""What libraries write to standard output: it goes to standard error, wherever ranks run, and
programs read collbench's own output alone."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs_mpi
from paths import before

from collbench.run.launch import mpirun

PATHS = before(Path(__file__).parent / "plugins")
SWEEP = (
    *("all_reduce", "--backend", "noisy", "--sizes", "64", "-n", "2", "-w", "0"),
    *("--place", "out", "--sync", "barrier", "--no-save", "--format", "csv"),
)


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    head, *rows = csv.reader(done.stdout.splitlines())
    assert [dict(zip(head, row, strict=True))["collective"] for row in rows] == ["all_reduce"]
    assert done.stderr.count("noise\n") == 2


@pytest.mark.slow
def test_what_libraries_print_is_no_part_of_the_output_under_torchrun(warm) -> None:
    check(warm.join(2, *SWEEP, PYTHONPATH=PATHS))


@pytest.mark.slow
def test_what_libraries_print_is_no_part_of_the_output(cold) -> None:
    check(cold(*SWEEP, "-g", "2", PYTHONPATH=PATHS))


@pytest.mark.long
@needs_mpi
def test_what_libraries_print_is_no_part_of_the_output_under_mpirun() -> None:
    command = (mpirun.find_mpirun(), "-n", "2", sys.executable, "-m", "collbench", *SWEEP)
    env = {**os.environ, "PYTHONPATH": PATHS, **mpirun.SETTINGS, **mpirun.AS_ROOT}
    check(
        subprocess.run(command, text=True, capture_output=True, timeout=100, check=False, env=env)
    )
