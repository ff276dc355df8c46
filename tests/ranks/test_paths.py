"""Presets of paths on real ranks: bytes on loopback are counted, and a path that was not taken is
seen."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from experiments import small
from needs import needs_mpi

from collbench.core.errors import Exit

pytestmark = pytest.mark.slow
Cli = Callable[..., "subprocess.CompletedProcess[str]"]
SWEEP = ("all_reduce", "-g", "2", "--sizes", "1M", "--place", "in", "--max-time", "0.1")


def flags_of(done: subprocess.CompletedProcess[str]) -> set[str]:
    (row,) = json.loads(done.stdout)["records"]
    return {*row["flags"]}


def test_gloo_on_loopback_holds(cli: Cli) -> None:
    done = cli(*SWEEP, "--backend", "gloo", "--path", "loopback-nic", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "the path was taken in 1 of 1 case" in done.stderr
    assert not {"off-path", "path-unproved"} & flags_of(done)


@needs_mpi
@pytest.mark.long
def test_mpi_without_shared_memory_holds(cli: Cli) -> None:
    done = cli(*SWEEP, "--backend", "mpi", "--path", "shm-off", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "the path was taken in 1 of 1 case" in done.stderr


@needs_mpi
@pytest.mark.long
def test_mpi_in_shared_memory_that_was_to_be_off_is_seen(cli: Cli) -> None:
    asked = ("--env", "COLLBENCH_PATH=shm-off")
    done = cli(*SWEEP, "--backend", "mpi", *asked, "--format", "json")
    assert done.returncode == Exit.BAD
    assert "off-path" in flags_of(done)
    assert "the rest went through memory" in done.stderr


@pytest.mark.long
def test_both_sides_of_an_experiment_prove_their_paths(cli: Cli, tmp_path: Path) -> None:
    suite = small(tmp_path, sizes='"64K"', iters=10)
    asked = ("--head", "X=1", "--rounds", "6,6", "--budget", "0", "--path", "loopback-nic")
    done = cli("ab", "--suite", suite, *asked, "--format", "json")
    notes = json.loads(done.stdout)["notes"]
    assert any(note.startswith("the path was taken in 2 of 2 cases") for note in notes), notes


def test_gloo_has_no_memory_to_leave_out(cli: Cli) -> None:
    done = cli(*SWEEP, "--backend", "gloo", "--path", "shm-off")
    assert done.returncode == Exit.CANNOT_RUN
    assert "there is nothing to turn off" in done.stderr


def test_a_setting_that_the_path_decides_is_refused(cli: Cli) -> None:
    both = ("--path", "loopback-nic", "--env", "GLOO_SOCKET_IFNAME=eth0")
    done = cli(*SWEEP, "--backend", "gloo", *both)
    assert done.returncode == Exit.USAGE
    assert "--env GLOO_SOCKET_IFNAME and --path loopback-nic decide the same" in done.stderr


def test_an_unknown_path_is_refused(cli: Cli) -> None:
    done = cli(*SWEEP, "--path", "by-pigeon")
    assert done.returncode == Exit.USAGE
