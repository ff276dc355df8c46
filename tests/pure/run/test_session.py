"""A run's file has its end whatever comes, from the moment in which there is one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from collbench.core.errors import Exit, UsageError
from collbench.core.interrupts import interrupts
from collbench.records import store
from collbench.records.types import Run
from collbench.run import session
from collbench.run.reporter import Reporter
from collbench.suite.case import Case
from collbench.suite.sweep import Axes, Skip, Suite

SUITE = Suite(
    name="x",
    axes=Axes(collectives=("all_reduce",), backends=("model",), sizes=(8, 64), ranks=(2,)),
)


class Disturbed(Reporter):
    """Of whose ``begin`` something comes."""

    def __init__(self, what: Callable[[], object]) -> None:
        self._what = what

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        self._what()


def run(path: Path, what: Callable[[], object]) -> Exit:
    order = session.Order(suite=SUITE, command=["collbench"], output=path)
    return session.execute(order, lambda: Disturbed(what))


def test_a_signal_while_a_run_begins_leaves_its_file_an_end(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt), interrupts:
        assert run(path, lambda: os.kill(os.getpid(), signal.SIGHUP)) == Exit.INTERRUPTED
        interrupts.check()
    found = store.read(path)
    assert found.end and (found.end.exit, found.end.note) == (Exit.INTERRUPTED, "interrupted")
    assert found.records == []


def test_a_run_that_cannot_be_saved_is_refused_before_anything_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("of others\n")
    with pytest.raises(UsageError, match="exists"):
        run(path, lambda: pytest.fail("shown"))
    assert path.read_text() == "of others\n"


def test_a_whole_run_has_the_end_of_its_verdict(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert run(path, lambda: None) == Exit.OK
    found = store.read(path)
    assert found.end and found.end.exit == Exit.OK and len(found.records) == 4
