"""A case on one rank whose calls do nothing: when ranks meet, and what is noted of which group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from collbench.records.types import Sent
from collbench.run.backends import Base, Call
from collbench.run.jobs import Job
from collbench.run.launch.board import Board
from collbench.run.rank import counted
from collbench.run.rank.bench import Bench
from collbench.run.rank.control import Control
from collbench.run.rank.measure import Measured, Protocol, Samples, Steps
from collbench.run.rank.outcome import MeasuredCase
from collbench.run.rank.trial import Seen, Trial
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from tests.helpers.steps import without_pause

CASE = Case(collective="all_reduce", backend="fake", n=1, nbytes=64, op="sum", mode="host")
JOB = Job(CASE, 2, "cold")


class LoggedControl(Control):
    """The control of a single rank, which writes down that ranks meet."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(0, 1)
        self.log = log

    def barrier(self) -> None:
        self.log.append("barrier")


class FakeLibrary(Base):
    """One rank whose all-reduce is a copy, which is written down."""

    library = "fake"

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def finish(self) -> None:
        self._log.append("finish")

    def prepare(self, case: Case, send: torch.Tensor, recv: torch.Tensor) -> Call:
        def run() -> None:
            self._log.append("call")
            recv.copy_(send)

        return Call(run, None, load=lambda: self._log.append("fill"))


def make_trial(control: LoggedControl, job: Job = JOB) -> Trial:
    policy = Policy(warmup=2, iters=4).resolved(False)
    backend: Any = FakeLibrary(control.log)
    bench = Bench(0, [0], backend, control, Board.create(1)[0], policy, "window", None)
    return Trial(bench, job)


def test_the_first_call_waits_until_all_ranks_have_filled_their_buffers() -> None:
    log: list[str] = []
    without_pause(make_trial(LoggedControl(log)).run())
    assert " ".join(log).startswith("fill fill finish barrier finish call")


@pytest.mark.parametrize("options", [{"control": False}, {"counts_bytes": False}])
def test_a_control_and_counted_bytes_are_asked_for_apart(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Sent(calls=1, ns=1, idle_ns=1, bytes={}, idle={})
    monkeypatch.setattr(counted, "count_sent", lambda *_: [sent])
    (outcome,) = without_pause(make_trial(LoggedControl([]), replace(JOB, **options)).run())
    assert isinstance(outcome, MeasuredCase)
    has_control, has_counts = outcome.control is not None, bool(outcome.sent)
    assert (has_control, has_counts) == (
        options.get("control", True),
        options.get("counts_bytes", True),
    )


class SlowSecond(LoggedControl):
    """The control of rank 0 of two: what the other takes is a minute more."""

    def gather(self, values: np.ndarray) -> np.ndarray:
        return np.stack([values, values + 60 * 10**9])


def test_how_a_case_is_measured_follows_from_the_first_call_of_the_slowest_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []

    def run(protocol: Protocol, first_ns: int, on_measure: object) -> Steps[None]:
        told.append(first_ns)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Protocol, "run", run)
    with pytest.raises(KeyboardInterrupt):
        without_pause(make_trial(SlowSecond([])).run())
    assert told[0] >= 60 * 10**9


class CoarseClock:
    """A common clock that is good enough for samples of more than 100 us."""

    error_ns = 2000

    def explain_inaccuracy(self, sample_ns: float) -> str:
        return "too coarse" if sample_ns < 100_000 else ""

    def converted(self, times: np.ndarray) -> np.ndarray:
        return times


def test_the_group_that_the_clock_is_too_coarse_for_says_so() -> None:
    trial: Any = make_trial(LoggedControl([]))
    trial._common = CoarseClock()
    ends = np.repeat([[1_000_000], [10_000]], 2, axis=0).repeat(9, axis=1)
    zeros = np.zeros_like(ends)
    samples = Samples(zeros, ends, np.zeros(9, bool), np.zeros(4, np.int64), zeros)
    measured = Measured(samples, 1, 2, True, "fixed", "barrier", {}, 0, "host", [], None)
    firsts = np.zeros((4, 1), np.int64)
    seen = Seen(measured, "", [None] * 4, firsts, None, [[]], None, None, [()], [], [""], [])
    notes = []
    for ranks in ([0, 1], [2, 3]):
        outcome = trial._outcome(0, ranks, seen)
        assert isinstance(outcome, MeasuredCase)
        notes.append(outcome.note)
    assert notes == ["", "no T_glob: too coarse"]
