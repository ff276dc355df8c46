"""Who is to blame among the ranks of this machine, by the errors that they tell of."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.core.errors import CannotRun, RunBroken
from collbench.run.backends import _memory
from collbench.run.launch.board import Board
from collbench.run.launch.local import Watch
from collbench.run.launch.world import Death, Failure, Listener
from collbench.run.plan import Plan
from collbench.suite.policy import Policy

FORESEEN = Failure("no such thing here", "take another")
STARVED = Failure("MemoryError: planted", traceback="Traceback of rank 1\n")


TERMINATED = Death.by(-signal.SIGTERM, "")


def blamed(*errors: Failure, **deaths: Death) -> Any:
    """What is raised when ranks have told of these errors, in their order, and ended like this."""
    plan = Plan(0, "shm", 2, (), Policy(), [], 30.0)
    board, fd = Board.create(2)
    reads, writes = os.pipe()
    watch = Watch(
        plan, Listener(lambda line: None), SimpleNamespace(fileno=lambda: reads), board, ""
    )  # type: ignore[arg-type]
    watch._pids = {0: 70, 1: 71}
    watch.errors = dict(enumerate(errors))
    watch.deaths = {int(name[-1]): death for name, death in deaths.items()}
    for each in (fd, reads, writes):
        os.close(each)
    return watch._blame()


def lost_memory() -> Failure:
    """What a rank says whose peer is gone when it maps its memory."""
    gone = os.open("/dev/null", os.O_RDONLY)
    os.close(gone)
    with pytest.raises(ConnectionResetError) as caught:
        _memory._opened(os.getpid(), gone, 8)
    return Failure.of(caught.value)


def test_who_ran_out_of_memory_is_to_blame_and_not_who_misses_its_memory() -> None:
    error = blamed(lost_memory(), STARVED)
    assert isinstance(error, RunBroken)
    assert "rank 1 on " in error.message and "MemoryError: planted" in error.message


def test_what_was_not_foreseen_comes_before_what_was() -> None:
    assert "rank 1 on " in blamed(FORESEEN, STARVED).message


def test_what_all_foresaw_cannot_run_here() -> None:
    error = blamed(FORESEEN, FORESEEN)
    assert isinstance(error, CannotRun)
    assert error.message == FORESEEN.message


def test_whom_mpirun_terminates_is_not_to_blame() -> None:
    assert "rank 1 on " in blamed(lost_memory(), STARVED, rank0=TERMINATED).message
    exited = Death.by(1, "exited with status")
    assert "rank 1 on " in blamed(rank0=TERMINATED, rank1=exited).message


def test_who_was_terminated_is_to_blame_where_nobody_says_why() -> None:
    assert "rank 1 on " in blamed(lost_memory(), rank1=TERMINATED).message
