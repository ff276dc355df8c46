"""Cases carried out by ranks, for tests that ask whether data are right, not how long it took."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.records.types import Record, World
from collbench.run.jobs import Job, Plan
from collbench.run.launch import world
from collbench.run.launch.world import Listener
from collbench.suite.policy import Policy

WORLDS = 3  # at most, until every case has had a valid sample
SPOILED_BY_OTHERS = frozenset(
    {"late start", "launch-limited"}
)  # who have the cores that ranks need


def carry_out(
    launcher: world.World, jobs: Sequence[Job], policy: Policy
) -> tuple[World, list[Record]]:
    """The first world, and the last records of each case. Cases of which other processes of a busy
    machine spoiled every sample are carried out again, in another world. Raises CannotRun."""
    left, worlds, found = list(jobs), list[World](), list[Record]()
    while left and len(worlds) < WORLDS:
        asked = {job.case for job in left}
        found = [record for record in found if record.case not in asked]
        case, lines = left[0].case, list[World | Record]()
        plan = Plan(0, case.backend, case.n, (), policy, left, 120.0)
        launcher.run([plan], Listener(lines.append))
        worlds += [line for line in lines if isinstance(line, World)]
        told = [line for line in lines if isinstance(line, Record)]
        found += told
        spoiled = {record.case for record in told if is_spoiled(record)}
        left = [job for job in left if job.case in spoiled]
    return worlds[0], found


def is_spoiled(record: Record) -> bool:
    """Whether a case has failed for want of samples alone: its data were right."""
    return record.status == "failed" and 0 < len(record.invalid) == len(
        SPOILED_BY_OTHERS.intersection(record.invalid)
    )
