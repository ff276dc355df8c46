"""What an experiment will take, before anything is measured, and which rows its budget will not
hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from collbench.features.compare.ab import matching
from collbench.features.compare.ab.experiment import Order, describe_drop
from collbench.features.compare.ab.matching import SIDES, Row
from collbench.features.compare.ab.rounds import FRESH, Ledger
from collbench.run import plan
from collbench.run.pace import budget_for


class Forecast(NamedTuple):
    """The rows that are expected to be measured, those expected to be dropped for --budget and the
    reason, and how many seconds the first stage takes; at ``most``, where times scatter."""

    rows: Sequence[Row]
    dropped: Sequence[Row]
    reason: str
    seconds: float
    most: float


def forecast_experiment(order: Order, rows: Sequence[Row]) -> Forecast:
    """A rough guess, which measuring corrects: what each row costs, and what the first stage of
    those takes for which the budget suffices."""
    ledger, (rounds, _) = _expected_costs(order, rows), order.rounds
    starting = _starting_seconds(order, rows)
    keys = [row.key for row in rows]
    pilot = starting + ledger.seconds(keys)
    starts = math.ceil(rounds / FRESH) * starting
    remaining, reason = list(rows), ""
    if order.budget and rows:
        time_left = order.budget - pilot - starts
        affordable = set(ledger.affordable(keys, rounds, time_left))
        remaining = [row for row in rows if row.key in affordable]
        enough = budget_for(pilot + starts + rounds * ledger.seconds(keys))
        reason = describe_drop(order.budget, rounds, enough)
    names = [row.key for row in remaining]
    scattered = _expected_costs(order, rows, most=True)
    return Forecast(
        rows=remaining,
        dropped=[row for row in rows if row not in remaining],
        reason=reason,
        seconds=pilot + starts + rounds * ledger.seconds(names),
        most=starting + scattered.seconds(keys) + starts + rounds * scattered.seconds(names),
    )


def _expected_costs(order: Order, rows: Sequence[Row], most: bool = False) -> Ledger:
    """The seconds that a pair of launches is expected to take, by row and world."""
    ledger = Ledger()
    for world, members in matching.by_world(rows, order.piloted).items():
        seconds = {
            row.key: sum(
                plan.estimate_seconds(job, order.piloted, most) for job in row.jobs.values()
            )
            for row in members
        }
        meeting = sum(
            plan.estimate_meeting([row.jobs[side] for row in members], order.piloted)
            for side in SIDES
        )
        ledger.note(world, seconds, sum(seconds.values()) + meeting)
    return ledger


def _starting_seconds(order: Order, rows: Sequence[Row]) -> float:
    """The seconds that loading torch takes, on both sides at once."""
    jobs = ([row.jobs[side] for row in rows] for side in SIDES)
    return max(plan.estimate_loading(members, order.piloted) for members in jobs)
