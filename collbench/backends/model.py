"""Predicted times, so that a sweep can be planned, and every command tested, without ranks or clocks.

A library is taken to reach the lower bound of its collective on a flat network: ``a*alpha + b*S*beta + g*S*gamma`` with
the multiples of collectives.py. Records made here are marked predicted.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

from collbench.plan import Plan
from collbench.records import RankInfo, Record, World
from collbench.suite import Case


class Link(NamedTuple):
    """Seconds a message, seconds a byte on the wire, seconds a byte reduced."""

    alpha: float
    beta: float
    gamma: float


TEN_GIGABIT = Link(alpha=20e-6, beta=1 / 1.18e9, gamma=1 / 8e9)


def seconds(case: Case, link: Link = TEN_GIGABIT) -> float:
    """The bound's time for one call of ``case``."""
    bound = case.row.bound(case.n)
    return bound.alpha * link.alpha + case.moved * (bound.beta * link.beta + bound.gamma * link.gamma)


def run(plan: Plan, emit: Callable[[World | Record], None]) -> None:
    """Predicted records of a whole plan."""
    ranks = [RankInfo(rank=r, host=socket.gethostname(), pid=0, cpus=[], device="model") for r in range(plan.n)]
    emit(
        World(index=plan.index, backend=plan.backend, n=plan.n, env=plan.env, launcher="none", ranks=ranks,
              oversubscribed=False, same_clock=True, library="alpha-beta-gamma model, 10 Gb/s links")
    )  # fmt: skip
    for job in plan.jobs:
        if job.case.algorithm != "native":
            note = f"{job.case.algorithm}: the model knows only the lower bound (native)"
            emit(Record(case=job.case, status="skipped", note=note, world=plan.index))
            continue
        time_ns = max(1, round(seconds(job.case) * 1e9))
        emit(
            Record(
                case=job.case, status="predicted", times_ns=[time_ns], world=plan.index, note="lower bound of the model"
            )
        )
