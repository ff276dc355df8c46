"""A rank that has no messages, while others' take long."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collbench.features.p2p.measurable import Transfer
from collbench.features.p2p.trial import TransferTrial
from collbench.run.backends import Base
from collbench.run.jobs import Job
from collbench.run.launch.board import Board
from collbench.run.rank.bench import Bench
from collbench.run.rank.control import Control
from collbench.run.rank.measure import Protocol, Steps
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite
from tests.helpers.steps import without_pause

SLOW_NS = 60 * 10**9


class OneOfThree(Control):
    """The control of rank 0 of three: what the others take is a minute more."""

    def gather(self, values: np.ndarray) -> np.ndarray:
        return np.stack([values, values + SLOW_NS, values + SLOW_NS])


def test_how_transfers_are_measured_follows_from_the_first_round_of_the_slowest_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = Transfer(pattern="ping-pong", nbytes=64, world=3, pairs=((1, 2),))
    axes = Axes(collectives=(), sizes=(), ranks=(3,), backends=("gloo",))
    ((case,), _) = Suite(name="p2p", axes=axes, subjects=(subject,)).expand()
    policy = Policy(check=0).resolved(False)
    backend: Any = Base()
    bench = Bench(0, [0], backend, OneOfThree(0, 1), Board.create(1)[0], policy, "barrier", None)
    told = []

    def run(protocol: Protocol, first_ns: int, on_measure: object) -> Steps[None]:
        told.append(first_ns)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Protocol, "run", run)
    with pytest.raises(KeyboardInterrupt):
        without_pause(TransferTrial(bench, Job(case, 1, "hot", subject=subject)).run())
    assert told[0] >= SLOW_NS
