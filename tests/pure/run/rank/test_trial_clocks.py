"""What a trial does where ranks read clocks of several hosts, and on a rank that is in no group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from collbench.core.errors import CannotRun
from collbench.run.backends import Base, Call, do_nothing
from collbench.run.jobs import Job
from collbench.run.launch.board import Board
from collbench.run.rank.bench import Bench
from collbench.run.rank.calls import submit_times
from collbench.run.rank.control import Control
from collbench.run.rank.measure import Measured, Samples
from collbench.run.rank.outcome import CaseOutcome, FailedCase, MeasuredCase
from collbench.run.rank.trial import Seen, Trial
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from tests.helpers.steps import without_pause

CASE = Case(
    collective="all_reduce", backend="fake", n=1, nbytes=64, op="sum", arrival="one-late:50us"
)


class Idle(Base):
    """A library whose calls do nothing."""

    library = "fake"

    def prepare(self, case: Case, send: torch.Tensor, recv: torch.Tensor) -> Call:
        return Call(do_nothing, None)


class FakeClock:
    """A common clock that is good enough for samples above ``least`` ns, or for none."""

    error_ns = 2000

    def __init__(self, trouble: str = "", least: float = 0.0) -> None:
        self.trouble, self._least = trouble, least

    def refresh(self) -> None:
        """Nothing: it stays as it is."""

    def explain_inaccuracy(self, sample_ns: float) -> str:
        return self.trouble or ("too coarse" if sample_ns < self._least else "")

    def converted(self, times: np.ndarray) -> np.ndarray:
        return times


def make_trial(common: FakeClock | None, case: Case = CASE, blocking: int = 0) -> Any:
    policy = Policy(warmup=2, iters=4, blocking=blocking).resolved(False)
    backend: Any = Idle()
    clock: Any = common
    bench = Bench(0, [0], backend, Control(0, 1), Board.create(1)[0], policy, "barrier", clock)
    return Trial(bench, Job(case, 1, "cold"))


def test_without_a_common_clock_ranks_that_come_apart_are_not_measured() -> None:
    trial = make_trial(FakeClock("rank 1 has no connection"))
    with pytest.raises(CannotRun, match="one-late:50us: rank 1 has no connection"):
        without_pause(trial.run())


def judge(case: Case, common: FakeClock) -> CaseOutcome:
    """What comes of samples of 100 us."""
    ends, zeros = np.full((1, 9), 100_000), np.zeros((1, 9), np.int64)
    samples = Samples(zeros, ends, np.zeros(9, bool), np.zeros(1, np.int64), zeros)
    measured = Measured(samples, 1, 2, True, "fixed", "barrier", {}, 0, "host", [], None)
    seen = Seen(measured, "", [None], zeros[:, :1], None, [[]], None, None, [()], [], ["", ""], [])
    outcome: CaseOutcome = make_trial(common, case)._outcome(0, [0], seen)
    return outcome


def test_a_clock_too_coarse_for_times_since_the_last_arrival_leaves_none() -> None:
    failed = judge(CASE, FakeClock(least=1e6))
    assert isinstance(failed, FailedCase) and "too coarse" in failed.reason
    assert isinstance(judge(CASE, FakeClock(least=1e3)), MeasuredCase)
    aligned = Case(collective="all_reduce", backend="fake", n=1, nbytes=64, op="sum")
    assert isinstance(judge(aligned, FakeClock(least=1e6)), MeasuredCase)


def test_a_rank_in_no_group_waits_for_nobody_within_a_call() -> None:
    case = Case(collective="all_reduce", backend="fake", n=1, nbytes=64, op="sum")
    trial = make_trial(None, case, blocking=1)
    trial._group = Control(4, 5).among([range(2), range(2, 4)])
    assert trial._group.idle
    trial._action([Call(do_nothing, None)])()


class OneOfTwo(Control):
    """A control whose other rank says what it is told to say."""

    def __init__(self, other: bool) -> None:
        super().__init__(0, 1)
        self._other = other

    def collect(self, value: Any) -> list[Any]:
        return [value, self._other]


@pytest.mark.parametrize("other", [True, False])
def test_a_rank_in_no_group_takes_part_where_others_are_timed(other: bool) -> None:
    times = submit_times(Call(do_nothing, None), OneOfTwo(other), do_nothing)
    assert (times is not None) == other
