"""Two passes over a world's cases, and a budget that is kept whatever cases take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from factories import case, record, world

from collbench.features.training.operations import ALONE_SHARE
from collbench.features.training.step import Op, Program, Step
from collbench.features.training.trial import most_seconds
from collbench.records.flags import FEWEST_SAMPLES
from collbench.records.types import Background, GpuState, Record
from collbench.run import pace
from collbench.run.jobs import Job, Plan
from collbench.run.pace import BudgetPace, TwoPassPace
from collbench.run.runner import runner_of
from collbench.suite.case import Case
from collbench.suite.policy import Policy

POLICY = Policy(max_seconds=2.0)


def planned(*cases: Case, index: int = 0) -> Plan:
    return Plan(index, "gloo", 4, (), POLICY, [Job(each, 2, "cold") for each in cases], 30.0)


def scattered(what: Case, spread: float, stop: str = "budget", **fields: object) -> Record:
    rng = np.random.default_rng(7)
    times = np.rint(1e6 * np.exp(rng.normal(0, spread, 60))).astype(int).tolist()
    return record(what, times_ns=times, per_rank=[times] * 4, stop=stop, **fields)


@pytest.fixture
def passes() -> TwoPassPace:
    found = TwoPassPace(POLICY)
    found.note_world(world())
    return found


SMALL = [case(nbytes) for nbytes in (8, 64, 512)]


def test_the_first_pass_takes_a_tenth(passes: TwoPassPace) -> None:
    current = passes.open_plan(planned(*SMALL))
    assert current.open and [job.seconds for job in current.jobs] == pytest.approx([0.2] * 3)


def test_what_takes_long_to_prepare_is_measured_once(passes: TwoPassPace) -> None:
    large = case(64 << 20)
    (job,) = passes.open_plan(planned(large)).jobs
    assert job.seconds is None and not job.coarse
    passes.accept(scattered(large, 0.5))
    assert passes.next_jobs() == []


HUGE = [case(nbytes, in_place=place) for nbytes in (2 << 30, 1 << 30) for place in (False, True)]
ONLY_OUT = case(3 << 30)


def test_a_long_run_makes_one_call_of_each_long_size_before_a_second_pass(
    passes: TwoPassPace,
) -> None:
    opened = passes.open_plan(planned(HUGE[0], SMALL[0], *HUGE[1:], ONLY_OUT, SMALL[1]))
    calls = [HUGE[3], HUGE[1], ONLY_OUT]  # in place, where half of the memory is needed
    assert [job.case for job in opened.jobs] == [*SMALL[:2], *calls]
    assert [job.coarse for job in opened.jobs] == [False] * 2 + [True] * 3
    assert {job.rotation for job in opened.jobs if job.coarse} == {1}
    for what in SMALL[:2]:
        assert not passes.accept_coarse(scattered(what, 0.5))
        passes.accept(scattered(what, 0.5))
    for what in calls:
        assert passes.accept_coarse(record(what, setup_ns=1_000_000))
    jobs = passes.next_jobs()
    assert {job.case for job in jobs[:2]} == set(SMALL[:2])
    assert [job.case for job in jobs[2:]] == [*HUGE, ONLY_OUT]
    assert not any(job.coarse for job in jobs)
    for what in HUGE:
        assert not passes.accept_coarse(scattered(what, 0.5))
        assert passes.accept(scattered(what, 0.5)) is not None
    for what in SMALL[:2]:
        passes.accept(scattered(what, 0.5))
    assert passes.next_jobs() == []


def test_launches_of_a_run_are_measured_alike() -> None:
    passes = TwoPassPace(Policy(fresh=True))
    opened = passes.open_plan(planned(*HUGE))
    assert [job.case for job in opened.jobs] == [*HUGE]


def test_a_single_call_that_failed_is_the_record_of_its_case(passes: TwoPassPace) -> None:
    passes.open_plan(planned(*HUGE[:2]))
    failed = Record(case=HUGE[1], status="failed", note="rank 1 was killed")
    assert not passes.accept_coarse(failed) and passes.accept(failed) is failed
    assert [job.case for job in passes.next_jobs()] == [HUGE[0]]


def test_a_world_that_does_not_open_drops_each_case_once(passes: TwoPassPace) -> None:
    opened = passes.open_plan(planned(SMALL[0], *HUGE))
    assert [job.case for job in passes.drop_world(opened)] == [SMALL[0], *HUGE]


@pytest.mark.parametrize(
    "changes", [{"backend": "nccl"}, {"groups": "mod:2"}, {"in_turns": True}, {"cycle": 1}]
)
def test_no_single_calls_on_gpus_in_groups_in_turns_or_over_cycles(
    passes: TwoPassPace, changes: dict[str, Any]
) -> None:
    cycle = changes.pop("cycle", 0)
    cases = [msgspec.structs.replace(what, cycle=cycle) for what in HUGE]
    opened = passes.open_plan(msgspec.structs.replace(planned(*cases), **changes))
    assert [job.case for job in opened.jobs] == cases
    assert not any(job.coarse for job in opened.jobs)


def test_the_second_pass_is_of_what_is_not_narrow_enough_widest_first(passes: TwoPassPace) -> None:
    passes.open_plan(planned(*SMALL))
    for what, spread, stop in zip(
        SMALL, (0.1, 0.5, 0.01), ("budget", "max_n", "converged"), strict=True
    ):
        passes.accept(scattered(what, spread, stop))
    again = passes.next_jobs()
    assert [job.case for job in again] == [SMALL[1], SMALL[0]]
    assert [job.seconds for job in again] == pytest.approx([1.8] * 2) and not again[0].counts_bytes
    for job in again:
        passes.accept(scattered(job.case, 0.5))
    assert passes.next_jobs() == []


def test_the_record_of_both_visits_has_the_samples_of_both(passes: TwoPassPace) -> None:
    passes.open_plan(planned(SMALL[0]))
    first = scattered(
        SMALL[0], 0.5, seconds=1.0, checked=3, control_ns=[5, 6], preempted=1, clock_error_ns=9
    )
    second = scattered(
        SMALL[0], 0.4, seconds=2.0, checked=4, invalid={"late start": 2}, clock_error_ns=2
    )
    assert passes.accept(first) is first
    passes.next_jobs()
    both = passes.accept(second)
    assert both is not None and both.again
    assert both.times_ns == first.times_ns + second.times_ns
    assert [len(times) for times in both.per_rank] == [120] * 4
    assert (both.seconds, both.checked, both.preempted) == (3.0, 7, 1)
    assert both.clock_error_ns == 9
    assert both.control_ns == [5, 6] and both.invalid == {"late start": 2}


@pytest.mark.parametrize("control", [[5, 6], []])
def test_calls_too_long_for_a_control_in_the_first_pass_have_one_in_the_second(
    passes: TwoPassPace, control: list[int]
) -> None:
    passes.open_plan(planned(SMALL[0]))
    passes.accept(scattered(SMALL[0], 0.5, control_ns=control, control_inner=2))
    (again,) = passes.next_jobs()
    assert again.control is not bool(control)
    second = {"control_ns": [7, 8], "control_inner": 3} if again.control else {}
    both = passes.accept(scattered(SMALL[0], 0.4, **second))
    assert both is not None and len(both.times_ns) == 120
    assert (both.control_ns, both.control_inner) == ((control, 2) if control else ([7, 8], 3))


HOT, CAPPED, WELL = (
    [GpuState(index=0, name="x", throttle=reasons)]
    for reasons in (("hw_thermal_slowdown",), ("sw_power_cap",), ())
)


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [(HOT, CAPPED, HOT), (CAPPED, HOT, HOT), (WELL, CAPPED, CAPPED), (CAPPED, WELL, CAPPED)],
)
def test_the_state_of_gpus_is_that_of_the_worse_visit(
    first: list[GpuState], second: list[GpuState], kept: list[GpuState]
) -> None:
    visits = (scattered(SMALL[0], 0.5, gpus=gpus) for gpus in (first, second))
    assert pace.merge_visits(*visits, 0.02).gpus == kept


def test_what_a_background_did_is_that_of_both_visits() -> None:
    """As the samples are, with the time that it went on for."""
    visits = [
        scattered(
            SMALL[0], 0.5, background=Background(alone_ns=[7], during_ns=[9] * 800, went_ns=went)
        )
        for went in (100, 300)
    ]
    merged = pace.merge_visits(*visits, 0.02)
    assert len(merged.times_ns) == sum(len(visit.times_ns) for visit in visits)
    assert merged.background == Background(alone_ns=[7], during_ns=[9] * 1000, went_ns=400)


def test_samples_before_times_had_settled_only_warmed_up(passes: TwoPassPace) -> None:
    passes.open_plan(planned(SMALL[0]))
    passes.accept(scattered(SMALL[0], 0.5, steady=False))
    passes.next_jobs()
    second = scattered(SMALL[0], 0.4)
    both = passes.accept(second)
    assert both is not None and both.times_ns == second.times_ns and both.steady


def test_both_visits_together_may_be_narrow_enough() -> None:
    first, second = scattered(SMALL[0], 0.05), scattered(SMALL[0], 0.05)
    assert pace.merge_visits(first, second, 0.02).stop == "converged"
    assert pace.merge_visits(first, second, 0.001).stop == "budget"


def test_visits_at_two_levels_are_not_converged_together() -> None:
    first, second = scattered(SMALL[0], 0.01), scattered(SMALL[0], 0.01)
    slower = msgspec.structs.replace(
        second, times_ns=[round(1.2 * t) for t in second.times_ns], stop="converged"
    )
    assert pace.merge_visits(first, slower, 0.02).stop == "budget"


def test_every_group_of_a_case_is_merged_with_its_first_visit(passes: TwoPassPace) -> None:
    """Or its file would have two records of one case."""
    leader = msgspec.structs.replace(SMALL[0], groups="mod:2", of=2)
    passes.open_plan(planned(leader))
    for what in leader.siblings:  # the last of which leads, and is wide
        passes.accept(scattered(what, 0.5 if what.is_leader else 0.001))
    assert [job.case for job in passes.next_jobs()] == [leader]
    merged = [passes.accept(scattered(what, 0.4)) for what in leader.siblings]
    assert all(record and record.again for record in merged)
    assert passes.next_jobs() == []


def test_a_case_is_visited_again_for_the_sake_of_any_of_its_groups(passes: TwoPassPace) -> None:
    quick, split = (
        msgspec.structs.replace(what, groups="mod:2", of=2) for what in (SMALL[0], SMALL[1])
    )
    passes.open_plan(planned(quick, split))
    for leader, spread in ((quick, 0.1), (split, 0.5)):
        for what in leader.siblings:
            narrow = what.is_leader
            passes.accept(
                scattered(what, 0.001, "converged") if narrow else scattered(what, spread)
            )
    assert [job.case for job in passes.next_jobs()] == [split, quick]  # the widest first
    merged = [passes.accept(scattered(what, 0.4)) for what in split.siblings]
    assert all(record and record.again for record in merged)


def test_siblings_are_made_once_for_a_job_and_not_for_each_record(
    passes: TwoPassPace, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = msgspec.structs.replace(SMALL[0], groups="mod:64", of=64)
    passes.open_plan(planned(leader))
    for what in leader.siblings:
        passes.accept(scattered(what, 0.5))
    made, siblings = [], Case.siblings.fget
    assert siblings
    monkeypatch.setattr(
        Case, "siblings", property(lambda case: [made.append(case), siblings(case)][1])
    )
    assert [job.case for job in passes.next_jobs()] == [leader]
    assert len(made) == 1


def test_a_second_visit_loses_no_finished_case_and_hides_no_wrong_data(passes: TwoPassPace) -> None:
    passes.open_plan(planned(*SMALL))
    for what in SMALL:
        passes.accept(scattered(what, 0.5))
    passes.next_jobs()
    broken = passes.accept(Record(case=SMALL[0], status="failed", note="rank 1 was killed"))
    assert broken is not None and (broken.status, broken.stop, broken.again) == ("ok", "cut", True)
    assert broken.note == "broke in its second pass: rank 1 was killed"
    assert len(broken.times_ns) == 60
    assert passes.accept(Record(case=SMALL[2], status="skipped", note="needs 9 MiB")) is None
    wrong = passes.accept(Record(case=SMALL[1], status="wrong", wrong=3))
    assert wrong is not None and wrong.again and wrong.status == "wrong"


NONE = {"status": "failed", "note": "no valid sample (9 x throttled); x", "invalid": {"x": 9}}


def test_a_case_without_a_valid_sample_is_tried_again_first(passes: TwoPassPace) -> None:
    passes.open_plan(planned(*SMALL))
    passes.accept(scattered(SMALL[0], 0.5, control_ns=[5]))
    passes.accept(Record(case=SMALL[1], **NONE))  # type: ignore[arg-type]
    passes.accept(Record(case=SMALL[2], status="failed", note="rank 1 was killed"))
    again = passes.next_jobs()
    assert [(job.case, job.inner, job.control) for job in again] == [
        (SMALL[1], None, True),
        (SMALL[0], 1, False),
    ]
    found = passes.accept(scattered(SMALL[1], 0.5, control_ns=[5, 6]))
    assert found is not None and found.again
    assert (len(found.times_ns), found.control_ns) == (60, [5, 6])


@pytest.mark.parametrize(
    "first", [{**NONE, "seconds": 1.0, "gpus": HOT}, {"steady": False, "gpus": HOT}]
)
def test_a_gpu_held_back_in_the_first_visit_alone_is_told_of(
    passes: TwoPassPace, first: dict[str, Any]
) -> None:
    """Also where its samples do not count: the row is measured well, the machine was not."""
    passes.open_plan(planned(SMALL[0]))
    visit = {"seconds": 1.0, "invalid": {"throttled": 9}, **first}
    without = visit.get("status") == "failed"
    passes.accept(Record(case=SMALL[0], **visit) if without else scattered(SMALL[0], 0.5, **visit))
    passes.next_jobs()
    second = {"seconds": 2.0, "invalid": {"late start": 1}, "gpus": WELL}
    found = passes.accept(scattered(SMALL[0], 0.4, **second))
    assert found is not None and found.status == "ok" and found.seconds == 3.0
    assert found.gpus == HOT and len(found.times_ns) == 60
    assert found.invalid == {**visit["invalid"], "late start": 1}


def test_a_case_without_a_valid_sample_twice_stands_as_it_was(passes: TwoPassPace) -> None:
    passes.open_plan(planned(SMALL[0]))
    assert passes.accept(Record(case=SMALL[0], **NONE)) is not None  # type: ignore[arg-type]
    passes.next_jobs()
    assert passes.accept(Record(case=SMALL[0], **NONE)) is None  # type: ignore[arg-type]
    assert passes.next_jobs() == []


def test_a_case_without_a_valid_sample_whose_rank_dies_in_its_second_pass_says_so(
    passes: TwoPassPace,
) -> None:
    passes.open_plan(planned(SMALL[0]))
    passes.accept(Record(case=SMALL[0], **NONE))  # type: ignore[arg-type]
    passes.next_jobs()
    broken = passes.accept(Record(case=SMALL[0], status="failed", note="rank 1 was killed"))
    assert broken is not None and (broken.status, broken.again) == ("failed", True)
    assert (broken.note, broken.invalid) == ("rank 1 was killed", NONE["invalid"])


def test_a_group_that_was_narrow_enough_stands_where_its_second_visit_breaks(
    passes: TwoPassPace,
) -> None:
    leader = msgspec.structs.replace(SMALL[0], groups="mod:2", of=2)
    passes.open_plan(planned(leader))
    for what in leader.siblings:
        wide = (0.5, "budget") if what.is_leader else (0.001, "converged")
        passes.accept(scattered(what, *wide))
    passes.next_jobs()
    for what in leader.siblings:
        broken = passes.accept(Record(case=what, status="failed", note="rank 1 was killed"))
        assert (broken.stop if broken else "stands") == ("cut" if what.is_leader else "stands")


class Clock:
    """A clock that only moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    found = Clock()
    monkeypatch.setattr(pace, "time", found)
    return found


@pytest.mark.parametrize("cycles", [2, 3])
def test_a_rank_alone_is_measured_within_a_budget(cycles: int) -> None:
    """It sends nothing, so that no byte bounds what a call takes."""
    budget = BudgetPace(10.0, POLICY, lambda job: None)
    for cycle in range(cycles):
        alone = msgspec.structs.replace(case(64, n=1), cycle=cycle)
        budget.open_plan(planned(alone, index=cycle))
    budget.note_world(world())
    while jobs := budget.next_jobs():
        for job in jobs:
            assert budget.accept(record(job.case, 1000.0, setup_ns=2000))


SWEPT = [case(nbytes, n=2) for nbytes in (64, 16 << 10, 1 << 20, 16 << 20, 64 << 20)]


def spent(
    clock: Clock, seconds: float, slow: float, cycles: int = 3, swept: list[Case] = SWEPT
) -> tuple[float, list[Record], list[Case]]:
    """Seconds that a run of so many worlds took, what it measured, and what it dropped, on a
    machine on which everything takes ``slow`` times as long as guessed."""
    dropped: list[Case] = []
    budget = BudgetPace(seconds, POLICY, lambda job: dropped.append(job.case))
    began, found = clock.now, []
    worlds = [
        planned(*(msgspec.structs.replace(each, cycle=cycle) for each in swept), index=cycle)
        for cycle in range(cycles)
    ]
    for current in [budget.open_plan(each) for each in worlds]:
        assert current.open and current.jobs == []
        clock.now += 1.0
        while jobs := budget.next_jobs():
            (job,) = jobs
            assert job.seconds is not None and job.seconds <= 2.0 and job.least == FEWEST_SAMPLES
            call = slow * runner_of(job.case).guess_call(job)
            count = max(job.least, int(job.seconds / call))
            took = slow * runner_of(job.case).guess_fixed(job, POLICY) + count * call
            clock.now += took
            done = record(job.case, times_ns=[round(call * 1e9)] * count, seconds=took)
            found.append(budget.accept(done))
    return clock.now - began, found, dropped


@pytest.mark.parametrize("slow", [0.3, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("seconds", [10.0, 40.0])
def test_a_budget_is_kept(clock: Clock, seconds: float, slow: float) -> None:
    took, found, dropped = spent(clock, seconds, slow)
    assert took <= 1.1 * seconds
    assert len(found) + len(dropped) == 3 * len(SWEPT)
    assert all(len(each.times_ns) >= FEWEST_SAMPLES for each in found)


def test_what_a_guess_alone_has_no_time_for_is_not_dropped(clock: Clock) -> None:
    """As by the guess of a CPU where a library of its own has the GPUs: 8 GiB take minutes by it,
    and seconds in fact."""
    swept = [case(each.nbytes, n=2, backend="ucc") for each in SWEPT]
    swept += [case(nbytes, n=2, backend="ucc") for nbytes in (1 << 30, 8 << 30)]
    took, found, dropped = spent(clock, 120.0, 0.02, swept=swept)
    assert not dropped and len(found) == 3 * len(swept) and took <= 120.0


@pytest.mark.parametrize(("backend", "is_dropped"), [("gloo", True), ("ucc", False)])
def test_a_guess_for_cpus_is_doubted_less(clock: Clock, backend: str, is_dropped: bool) -> None:
    """A case of which half of the guess does not fit."""
    swept = [case(8 << 30, n=2, backend=backend)]
    _, found, dropped = spent(clock, 40.0, 0.02, cycles=1, swept=swept)
    assert (len(found), len(dropped)) == ((0, 1) if is_dropped else (1, 0))


def test_what_a_tenth_of_its_guess_has_no_time_for_is_dropped_at_once(clock: Clock) -> None:
    _, found, dropped = spent(clock, 3.0, 1.0, cycles=1, swept=[case(8 << 30, n=2)])
    assert not found and [each.nbytes for each in dropped] == [8 << 30]


def test_what_a_budget_drops_at_the_start_is_foreseen_with_a_budget_that_holds_all() -> None:
    plans = [planned(*SWEPT)]
    dropped, enough = pace.estimate_drops(plans, 1.0, POLICY)
    assert SWEPT[-1] in dropped and SWEPT[0] not in dropped and enough > 1.0
    assert pace.estimate_drops(plans, enough, POLICY) == ([], 0.0)
    assert pace.estimate_drops([], 1.0, POLICY) == ([], 0.0)


def test_the_cheapest_large_case_comes_before_others_in_whichever_world(clock: Clock) -> None:
    budget = BudgetPace(1000.0, POLICY, lambda job: None)
    budget.open_plan(planned(SWEPT[1], SWEPT[0]))
    budget.open_plan(planned(SWEPT[4], SWEPT[3], SWEPT[0], SWEPT[2], index=1))
    order = []
    for _ in range(2):
        while jobs := budget.next_jobs():
            order += [job.case for job in jobs]
    assert order == [SWEPT[0], SWEPT[1], SWEPT[2], SWEPT[4], SWEPT[3], SWEPT[0]]


def test_the_key_of_each_case_is_made_once_and_few_cases_correct_guesses(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, key = [], Case.key.fget

    def count(what: Case) -> str:
        made.append(what)
        return str(key(what))  # type: ignore[misc]

    monkeypatch.setattr(Case, "key", property(count))
    monkeypatch.setattr(pace, "PAIRS", 8)
    budget = BudgetPace(1000.0, POLICY, lambda job: None)
    budget.open_plan(planned(*(case(4 * (i + 1), n=2) for i in range(20))))
    while jobs := budget.next_jobs():
        budget.accept(record(jobs[0].case, seconds=0.1))
    assert len(made) == 20 and len(budget._cost_pairs[False]) == 8


STEPPED = Step(
    "x",
    4,
    (
        Program(
            (0, 1, 2, 3),
            (
                Op(kind="compute", flops=1e9),
                Op(kind="all_reduce", nbytes=32 << 20, dtype="float", op="sum"),
                Op(kind="wait"),
            ),
        ),
    ),
)


@pytest.mark.parametrize(
    ("seconds", "slow", "cycles"),
    [(15.0, 0.3, 1), (15.0, 1.0, 1), (20.0, 1.0, 1), (20.0, 1.0, 2), (120.0, 4.0, 2)],
)
def test_a_budget_is_kept_with_steps(
    clock: Clock, seconds: float, slow: float, cycles: int
) -> None:
    """A step's rounds are of three parts, and beside them it is checked, warmed up, watched, and
    its operations are measured by themselves."""
    budget = BudgetPace(seconds, POLICY, lambda job: None)
    whole = case(32 << 20, "step", subject=STEPPED.title, op="none", dtype="uint8")
    worlds = [
        Plan(at, "gloo", 4, (), POLICY, [Job(each, 1, "hot", subject=STEPPED)], 30.0)
        for at in range(cycles)
        for each in [msgspec.structs.replace(whole, cycle=at)]
    ]
    began, done = clock.now, 0
    for _ in [budget.open_plan(each) for each in worlds]:
        clock.now += 1.0
        while jobs := budget.next_jobs():
            (job,) = jobs
            each = np.array([0.5, 0.2, 0.3]) * slow * runner_of(job.case).guess_call(job)
            rounds = FEWEST_SAMPLES
            while rounds * sum(each) < most_seconds(job, POLICY, rounds):
                rounds += 1
            beside = 3 * sum(each) + (2 + 5) * each[0] + 2 * each[2]
            took = 0.1 + beside + (1 + ALONE_SHARE) * rounds * sum(each)
            clock.now += took
            for part, ns in zip(job.case.siblings, each[::-1] * 1e9, strict=True):
                budget.accept(record(part, times_ns=[round(ns)] * rounds, seconds=took))
            done += 1
    assert done
    assert clock.now - began <= 1.1 * seconds


def test_a_call_of_a_step_is_one_of_each_of_its_parts(clock: Clock) -> None:
    budget = BudgetPace(1000.0, POLICY, lambda job: None)
    whole = case(32 << 20, "step", subject=STEPPED.title, op="none", dtype="uint8")
    jobs = [
        Job(msgspec.structs.replace(whole, cycle=at), 1, "hot", subject=STEPPED) for at in range(2)
    ]
    budget.open_plan(Plan(0, "gloo", 4, (), POLICY, jobs, 30.0))
    (job,) = budget.next_jobs()
    for part in job.case.siblings:
        budget.accept(record(part, times_ns=[5 * 10**8] * 12, seconds=20.0))
    least = 2.0 + FEWEST_SAMPLES * 1.5  # of 20 s, 18 s were rounds
    clock.now += 1000.0 * 0.97 - 1.01 * least * pace.SLACK
    assert len(budget.next_jobs()) == 1


def test_a_call_of_groups_is_that_of_the_slowest(clock: Clock) -> None:
    budget = BudgetPace(1000.0, POLICY, lambda job: None)
    split = msgspec.structs.replace(SWEPT[0], groups="mod:2", of=2)
    budget.open_plan(planned(split))
    budget.next_jobs()
    for what in split.siblings:
        ns = 10**6 if what.is_leader else 10**9
        budget.accept(record(what, times_ns=[ns] * 12, seconds=20.0))
    assert budget._costs[split.key] == pace.Cost(8.0, 1.0)


def test_a_group_whose_leader_is_not_heard_of_counts_for_no_other_case(clock: Clock) -> None:
    """A resumed run keeps the leader's record that it has."""
    budget = BudgetPace(1000.0, POLICY, lambda job: None)
    first, second = (msgspec.structs.replace(each, groups="mod:2", of=2) for each in SWEPT[:2])
    budget.open_plan(planned(second))
    budget.next_jobs()
    budget.accept(record(first.siblings[0], times_ns=[10**9] * 7, seconds=20.0))
    for what in second.siblings:
        budget.accept(record(what, times_ns=[10**6] * 12, seconds=20.0))
    assert budget._costs[second.key].call == 1e-3


def test_nothing_is_dropped_where_there_is_time(clock: Clock) -> None:
    took, found, dropped = spent(clock, 120.0, 1.0)
    assert not dropped and len(found) == 3 * len(SWEPT) and took > 20


def test_what_is_dropped_is_the_costliest(clock: Clock) -> None:
    _, found, dropped = spent(clock, 10.0, 10.0)
    assert {each.case.nbytes for each in found} >= {64, 16 << 10}
    assert dropped[0].nbytes == 64 << 20


def test_parts_that_end_by_themselves_have_their_own_numbers_of_samples(clock: Clock) -> None:
    budget = BudgetPace(1000.0, POLICY, lambda job: None)
    whole = case(32 << 20, "step", subject=STEPPED.title, op="none", dtype="uint8")
    budget.open_plan(Plan(0, "gloo", 4, (), POLICY, [Job(whole, 1, "hot", subject=STEPPED)], 30.0))
    (job,) = budget.next_jobs()
    for number, part in enumerate(job.case.siblings):
        budget.accept(record(part, times_ns=[10**9] * (number + 1), seconds=20.0))
    assert budget._costs[whole.key].call == len(job.case.siblings)
