"""A run that ended before its first case was measured is no mistake of who names it, and decides
nothing: every command that reads runs says so first, and exits with 3."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import night, saved
from msgspec.structs import replace

OF_ONE_KIND = ("lifecycle", "order", "overlap", "p2p", "pairs")  # they show runs that they made


@pytest.mark.parametrize("command", ("advise", "fit", "history add", *OF_ONE_KIND))
def test_a_run_without_a_case_has_no_verdict(inside, home: Path, command: str) -> None:
    saved(replace(night(), records=[]), home)
    done = inside(*command.split(), "@last")
    assert (done.returncode, done.stdout) == (3, "")
    assert "measured" in done.stderr or "no times" in done.stderr
    assert "hint: " in done.stderr


def test_an_experiment_without_a_case_has_no_verdict(inside, home: Path) -> None:
    for name in ("base", "head"):
        saved(replace(night(name=name), records=[]), home)
    done = inside("compare", "base", "head")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no case was measured on base and head" in done.stderr


@pytest.mark.parametrize("command", OF_ONE_KIND)
def test_a_run_of_another_kind_is_a_mistake(inside, home: Path, command: str) -> None:
    saved(night(), home)
    done = inside(command, "@last")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"hint: collbench {command}" in done.stderr
