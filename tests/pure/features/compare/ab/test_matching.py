"""Rows of an experiment, by the worlds that they need."""

from __future__ import annotations

import msgspec
import pytest
from factories import case, record

from collbench.features.compare.ab.matching import SIDES, Row, by_world, fix_counts, match_rows
from collbench.features.compare.ab.variants import parse_variant
from collbench.run import plan
from collbench.run.jobs import Job
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite


def row(of: Case) -> Row:
    return Row(
        of.key,
        {name: Job(case=of, rotation=1, cache="hot") for name in SIDES},
        [each.key for each in of.siblings],
    )


@pytest.mark.parametrize(
    ("cases", "worlds"),
    [
        ([case(8), case(16)], 1),
        ([case(8, cycle=0), case(8, cycle=1)], 2),  # each cycle is fresh here
        ([case(8), case(8, groups="mod:2", of=2)], 2),
        ([case(8), msgspec.structs.replace(case(8), env=(("X", "1"),))], 2),
    ],
)
def test_rows_are_of_one_world_where_their_cases_are(cases: list[Case], worlds: int) -> None:
    policy = Policy(fresh=True)
    found = by_world([row(each) for each in cases], policy)
    made = [
        plan.plan_worlds([each.jobs["base"] for each in rows], policy) for rows in found.values()
    ]
    assert [len(each) for each in made] == [1] * worlds


def test_what_groups_measure_at_once_is_judged_for_each() -> None:
    assert len(row(case(8, groups="mod:2", of=2)).judged_keys) == 2


@pytest.mark.parametrize(
    ("mode", "fixed"), [("isolated", True), ("graph", False), ("streaming", False)]
)
def test_n_is_the_number_of_samples_where_it_is_not_that_of_the_calls_of_one(
    mode: str, fixed: bool
) -> None:
    policy = Policy(iters=20, max_seconds=5.0).resolved(False)
    one = case(8, mode=mode)
    jobs = fix_counts(row(one).jobs, [record(one, 1e6)], policy)
    assert {job.samples == 20 for job in jobs.values()} == {fixed}


def test_rounds_take_the_place_of_cycles_and_a_job_has_all_groups() -> None:
    axes = Axes(
        collectives=("all_reduce",),
        sizes=(1024,),
        ranks=(4,),
        backends=("shm",),
        algorithms=("ring",),
        in_place=(True,),
        groups="mod:2",
        cycles=3,
    )
    sides = {"base": parse_variant("", "--base"), "head": parse_variant("algo:ring", "--head")}
    rows, skips = match_rows(Suite(name="x", axes=axes), sides)
    assert [len(row.judged_keys) for row in rows] == [2]
    assert not any(skips.values())
