"""A run that ended before its first case was measured is no mistake of who names it, and decides
nothing: every command that reads runs says so first, and exits with 3."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from factories import night, saved
from msgspec.structs import replace

from collbench.records.types import Pairing

OF_ONE_KIND = ("lifecycle", "order", "overlap", "p2p", "pairs")  # they show runs that they made


@pytest.mark.parametrize("command", ("advise", "fit", "history add", *OF_ONE_KIND))
def test_a_run_without_a_case_has_no_verdict(inside, home: Path, command: str) -> None:
    saved(replace(night(), records=[]), home)
    done = inside(*command.split(), "@last")
    assert (done.returncode, done.stdout) == (3, "")
    said = {"fit": "these runs have no times", "advise": "no row of these runs is of a collective"}
    assert said.get(command, "night measured nothing") in done.stderr
    assert "hint: " in done.stderr


def test_an_experiment_without_a_case_has_no_verdict_and_a_report(inside, home: Path) -> None:
    for side in ("base", "head"):
        pairing = Pairing(experiment="e", side=side, variant="")  # type: ignore[arg-type]
        saved(replace(night(name=f"e-{side}", pairing=pairing), records=[]), home)
    done = inside("compare", "e-head")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no case was measured on base and head" in done.stderr
    done = inside("report", "e-base", "e-head", "--format", "md")
    assert done.returncode == 0, done.stderr
    assert "e-base" in done.stdout and "e-head" in done.stdout
    done = inside("report", "--compare", "e-base", "e-head", "--format", "md")
    assert done.returncode == 3


def test_a_run_that_still_runs_is_told_as_that(inside, home: Path) -> None:
    path = saved(replace(night(name="now"), records=[], end=None), home)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = inside("order", "now")
    assert done.returncode == 3
    assert (
        "now is still running" in done.stderr and "hint: name it once it has ended" in done.stderr
    )


@pytest.mark.parametrize("end", [0, 4])
@pytest.mark.parametrize("command", OF_ONE_KIND)
def test_a_run_of_another_kind_is_a_mistake_also_if_it_broke(
    inside, home: Path, command: str, end: int
) -> None:
    saved(night(end=end), home)
    done = inside(command, "@last")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"hint: collbench {command}" in done.stderr


def test_an_overlap_that_ended_before_its_backgrounds_says_so(inside, home: Path) -> None:
    found = night(end=None)
    axes = replace(found.run.suite.axes, backgrounds=("", "sleep"))
    saved(night(end=None, suite=replace(found.run.suite, axes=axes)), home)
    done = inside("overlap", "@last")
    assert done.returncode == 3
    assert done.stderr.endswith("collbench: nothing was measured in the background\n")
