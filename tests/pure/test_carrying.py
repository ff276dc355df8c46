"""Which cases tests of GPUs carry out again: those that other processes alone have spoiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from factories import case, record, world

from collbench.run.jobs import Job, Plan
from collbench.run.launch.world import Listener
from collbench.suite.policy import Policy
from tests.helpers.carrying import WORLDS, carry_out

SMALL, LARGE = (Job(case(size, backend="nccl", n=2), 2, "small") for size in (64, 1 << 20))
LATE = {"status": "failed", "invalid": {"launch-limited": 15}}


class Ranks:
    """Ranks of which a case of 64 B has these outcomes, world after world."""

    def __init__(self, *outcomes: dict[str, Any]) -> None:
        self._outcomes, self.asked = list(outcomes), list[list[int]]()

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        (plan,) = plans
        listener.accept(world(len(self.asked)))
        self.asked.append([job.case.nbytes for job in plan.jobs])
        for job in plan.jobs:
            spoiled = job.case.nbytes == 64
            listener.accept(record(job.case, **(self._outcomes.pop(0) if spoiled else {})))


def carried_out(*outcomes: dict[str, Any]) -> tuple[list[list[int]], list[tuple[int, str]], int]:
    """Which sizes each world was asked for, and size and status of each record."""
    ranks: Any = Ranks(*outcomes)
    where, found = carry_out(ranks, [SMALL, LARGE], Policy())
    return ranks.asked, sorted((r.case.nbytes, r.status) for r in found), where.index


def test_a_spoiled_case_is_carried_out_again_by_itself() -> None:
    both = [64, 1 << 20]
    assert carried_out(LATE, {}) == ([both, [64]], [(64, "ok"), (1 << 20, "ok")], 0)


def test_a_case_that_is_spoiled_again_and_again_has_failed() -> None:
    asked, found, _ = carried_out(*[LATE] * WORLDS)
    assert len(asked) == WORLDS and found == [(64, "failed"), (1 << 20, "ok")]


@pytest.mark.parametrize(
    "outcome",
    [
        {"status": "wrong", "wrong": 1},
        {"status": "failed", "note": "out of memory"},
        {"status": "failed", "invalid": {"throttled": 15, "launch-limited": 2}},
        {"invalid": {"late start": 3}},
    ],
)
def test_nothing_else_is_carried_out_again(outcome: dict[str, Any]) -> None:
    asked, found, _ = carried_out(outcome)
    assert len(asked) == 1 and found[0] == (64, outcome.get("status", "ok"))
