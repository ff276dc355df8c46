"""Both files of an experiment have their end whatever comes, from the moment in which there are
any."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.experiments import sides, small

from collbench.cli.families import LauncherOptions
from collbench.core.errors import CannotRun, Exit
from collbench.features.compare.ab.command import AbOptions, ab
from collbench.records import run_file, store

pytestmark = pytest.mark.usefixtures("same_software")


def disturbed(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """Has something come in the moment in which the first of the two files is there."""
    opened, there = store.open_writer, []

    def open_and_more(*given: object) -> run_file.Writer:
        there.append(opened(*given))  # type: ignore[arg-type]
        if len(there) == 1:
            what()
        return there[-1]

    monkeypatch.setattr(store, "open_writer", open_and_more)


def test_a_signal_while_files_are_made_leaves_both_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGHUP))
    suite = small(tmp_path, backends='"model"')
    with pytest.raises(KeyboardInterrupt):
        ab(AbOptions(where=LauncherOptions(), base="algo:ring", head="algo:tree", suite=suite))
    for side in sides():
        assert side.end and (side.end.exit, side.end.note) == (Exit.INTERRUPTED, "interrupted")
        assert side.records == []


def test_a_fault_of_the_program_is_written_to_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collbench.features.compare.ab.experiment import Experiment

    monkeypatch.setattr(Experiment, "_pilot", lambda self: 1 / 0)
    suite = small(tmp_path, backends='"model"')
    with pytest.raises(ZeroDivisionError):
        ab(AbOptions(where=LauncherOptions(), base="algo:ring", head="algo:tree", suite=suite))
    for side in sides():
        assert side.end and side.end.exit == Exit.FAULT
        assert side.end.note.startswith("ZeroDivisionError")


def test_a_second_file_that_cannot_be_opened_leaves_no_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, there = store.open_writer, []

    def open_first(*given: object) -> run_file.Writer:
        if there:
            raise CannotRun("no room for another", "make some")
        there.append(opened(*given))  # type: ignore[arg-type]
        return there[-1]

    monkeypatch.setattr(store, "open_writer", open_first)
    with pytest.raises(CannotRun, match="no room for another"):
        ab(
            AbOptions(
                where=LauncherOptions(),
                base="algo:ring",
                head="algo:tree",
                suite=small(tmp_path, backends='"model"'),
            )
        )
    assert there[0].path.suffix == ".jsonl"
    assert store.list_saved() == []
