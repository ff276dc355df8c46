"""All ranks of a world in one process: each has buffers of its own, filled and checked like a real
rank's."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.records.derive import derive_row
from collbench.records.types import Record, World
from collbench.run.jobs import Job, Plan
from collbench.run.launch.local import Launcher
from collbench.run.launch.world import Listener
from collbench.suite.case import Case
from collbench.suite.policy import Policy


def run(launcher: Launcher, cases: list[Case]) -> tuple[World, list[Record]]:
    jobs = [Job(case, 3, "small") for case in cases]
    policy = Policy(iters=7, warmup=1, virtual=True)
    plan = Plan(0, "imagined", cases[0].n, (), policy, jobs, 60.0)
    lines: list[World | Record] = []
    launcher.run([plan], Listener(lines.append))
    world, *records = lines
    assert isinstance(world, World)
    return world, [record for record in records if isinstance(record, Record)]


def case(n: int, in_place: bool = False, op: str = "sum", backend: str = "imagined") -> Case:
    return Case(
        collective="all_reduce", backend=backend, n=n, nbytes=4000, op=op, in_place=in_place
    )


@pytest.mark.parametrize("n", [1, 2, 5])
def test_one_process_holds_all_ranks_and_checks_each(
    launcher: Launcher, fault: Path, n: int
) -> None:
    fault.write_text("")
    world, (out, into, mean) = run(launcher, [case(n), case(n, in_place=True), case(n, op="avg")])
    assert world.virtual and world.n == n and not world.oversubscribed
    assert [info.rank for info in world.ranks] == list(range(n)) and len(
        {info.pid for info in world.ranks}
    ) == 1
    for record in (out, into):
        assert record.status == "ok" and record.wrong == 0, record.note
        assert (
            record.checked % (n * 1000) == 0 and record.checked >= 3 * n * 1000
        )  # every rank's every buffer
        assert (
            len(record.times_ns) == 7
            and record.per_rank == record.starts_ns == [] == record.skew_ns
        )
        row = derive_row(record, world)
        assert row and "virtual" in row.flags and not row.gateable and row.late_rank is None
    assert mean.status == "skipped" and mean.note == "beyond imagination"


def test_the_virtual_rank_that_is_wrong_is_named(launcher: Launcher, fault: Path) -> None:
    fault.write_text("wrong:2")
    _, (record,) = run(launcher, [case(4)])
    assert record.status == "wrong" and record.first_wrong and record.first_wrong.rank == 2
    assert record.wrong == 1000 and "first on rank 2 at 0" in record.note


def test_a_backend_without_virtual_ranks_says_so(launcher: Launcher) -> None:
    jobs = [Job(case(2, backend="gloo"), 2, "small")]
    plan = Plan(0, "gloo", 2, (), Policy(iters=2, warmup=0, virtual=True), jobs, 60.0)
    lines: list[World | Record] = []
    launcher.run([plan], Listener(lines.append))
    (record,) = [line for line in lines if isinstance(line, Record)]
    assert record.status == "skipped" and "never virtual" in record.note
