"""`--launches`: what it asks for, and with what it cannot go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.cli import options
from collbench.suite import toml

CYCLES = """
description = "a row, twice"
[axes]
collectives = "all_reduce"
sizes = "1K"
ranks = 2
cycles = 2
"""
SWEEP = ("all_reduce", "-b", "8", "-e", "8", "-g", "2", "--launches", "10")
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}


def test_cycles_of_the_same_ranks_are_no_launches(bare) -> None:
    done = bare(*SWEEP, "-N", "3", "--dry-run")
    assert done.returncode == 2
    assert "--launches 10 starts new ranks each time, and 3 cycles (-N)" in done.stderr


def test_nor_are_those_of_a_suite(bare, tmp_path: Path) -> None:
    (path := tmp_path / "twice.toml").write_text(CYCLES)
    done = bare("run", str(path), "--launches", "10", "--backend", "gloo", "--dry-run")
    assert done.returncode == 2 and "2 cycles (-N) are the same ranks'" in done.stderr


@pytest.mark.parametrize("args", [SWEEP, ("run", "smoke", "--launches", "10")])
def test_a_launchers_ranks_stay_and_the_remedy_is_told(bare, args: tuple[str, ...]) -> None:
    here = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "1", **TORCHRUN}
    done = bare(*args, "--dry-run", **here)
    assert done.returncode == 2 and "has started these ranks, which stay the same" in done.stderr
    assert "start the whole command 10 times, each with --output FOLDER" in done.stderr


def test_a_run_that_goes_on_has_its_launches(bare) -> None:
    done = bare("run", "--resume", "@last", "--launches", "2")
    assert done.returncode == 2 and "--resume is given with suites or their options" in done.stderr


def test_a_dry_run_tells_of_the_start_of_each_launch(bare) -> None:
    done = bare(*SWEEP, "--backend", "gloo", "--dry-run")
    assert done.returncode == 0 and "; each of 10 launches" in done.stdout
    assert "20 cases, about 0:2" in done.stdout and "0:21 to start ranks" in done.stdout


def test_launches_of_a_suite_are_in_place_of_its_own_and_share_their_time() -> None:
    nightly = options.change_suite(
        toml.load_suite("nightly"), ngpus="2", backend="gloo", launches=10
    )
    assert (nightly.axes.cycles, nightly.policy.fresh) == (10, True)
    assert nightly.policy.max_seconds == 1.5


def test_max_time_is_each_launchs() -> None:
    given = {"ngpus": "2", "backend": "gloo", "max_time": "3s", "launches": 10}
    assert options.change_suite(toml.load_suite("nightly"), **given).policy.max_seconds == 3.0  # type: ignore[arg-type]


def test_further_sweeps_of_a_suite_have_as_many() -> None:
    pr = options.change_suite(toml.load_suite("pr"), launches=10)
    assert [further.cycles for further in pr.includes] == [10]


def test_launches_are_at_least_one(bare) -> None:
    assert bare("all_reduce", "--launches", "0").returncode == 2
