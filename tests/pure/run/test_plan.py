"""What a plan says that it will take: samples, and the start of ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import factories
import pytest

from collbench.run import collectives, order, plan
from collbench.run.jobs import Job
from collbench.run.memory import Room
from collbench.run.plan import GUESS_LOAD, GUESS_WORLD
from collbench.run.runner import runner_of
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

CYCLES = [factories.case(1024, n=2, cycle=cycle) for cycle in range(3)]
SETTINGS = [factories.case(1024, n=2, env=(("X", value),)) for value in "ab"]
BY_MPIRUN = [factories.case(1024, n=2, backend="mpi", cycle=cycle) for cycle in range(3)]
PREDICTED = [factories.case(1024, n=2, backend="model", cycle=cycle) for cycle in range(3)]


def jobs(cases: list[Case]) -> list[Job]:
    return [Job(case, 1, "") for case in cases]


@pytest.mark.parametrize(
    ("cases", "fresh", "loads", "worlds"),
    [
        (CYCLES, False, 1, 1),
        (CYCLES, True, 3, 3),
        (SETTINGS, False, 2, 2),
        (PREDICTED, True, 0, 0),
    ],
)
def test_each_launch_loads_torch_and_each_world_meets(
    cases: list[Case],
    fresh: bool,
    loads: int,
    worlds: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collectives.cpus, "core_count", lambda: 2)
    policy = Policy(fresh=fresh)
    assert plan.estimate_loading(jobs(cases), policy) == pytest.approx(loads * GUESS_LOAD)
    assert plan.estimate_meeting(jobs(cases), policy) == pytest.approx(worlds * GUESS_WORLD)


def test_ranks_of_mpirun_load_torch_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives.cpus, "core_count", lambda: 1)
    policy = Policy(fresh=True)
    assert plan.estimate_loading(jobs(BY_MPIRUN), policy) == 0.0
    both = GUESS_WORLD + GUESS_LOAD
    assert plan.estimate_meeting(jobs(BY_MPIRUN), policy) == pytest.approx(3 * 2 * both)


def test_ranks_of_one_host_share_its_cores_and_those_of_gpus_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """64 hosts of 8 ranks, planned on a login node of 4 cores."""
    monkeypatch.setattr(collectives.cpus, "core_count", lambda: 4)
    cases = [factories.case(8 << 30, n=512, backend=name) for name in ("gloo", "nccl")]
    room = Room("on this host", 1 << 60, 32 << 20, 8, 0)
    on_cores, on_gpus = plan.fit_jobs(cases, Policy(), lambda case: room)[0]
    assert collectives.measure_crowding(on_cores) == 2.0
    assert collectives.measure_crowding(on_gpus) == 1.0
    runner = runner_of(cases[0])
    assert runner.guess_call(on_cores) > 50 * runner.guess_call(on_gpus)
    assert runner.guess_fixed(on_cores, Policy()) > 50 * runner.guess_fixed(on_gpus, Policy())


def test_a_plan_for_other_hosts_has_their_ranks_in_their_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def measure_room(backend: str, n: int, policy: Policy) -> Room:
        asked.append(n)
        return Room("on this host", 1 << 60, 32 << 20, n, 0)

    monkeypatch.setattr(order.memory, "measure_room", measure_room)
    axes = Axes(collectives=("all_reduce",), sizes=(8,), ranks=(4, 512), backends=("gloo",))
    source: Any = SimpleNamespace(name="ssh", local_n=8)
    wanted = order.Order(suite=Suite(name="", axes=axes), command=(), source=source)
    prepared = order.prepare_order(wanted)
    assert sorted({job.sharers for job in prepared.jobs}) == sorted(asked) == [4, 8]


def test_a_run_of_which_nothing_is_recorded_says_so() -> None:
    assert "nothing is recorded" in plan.nothing_runs([]).message


def test_the_hint_on_a_short_budget_is_of_the_kind_of_case() -> None:
    def hint(what: Case) -> str:
        note = "dropped for --budget 9s: not enough for all cases"
        return plan.nothing_runs([note], cases=[what]).hint

    assert hint(factories.case()).endswith("; smaller sizes (-e) take less")
    assert "fewer --layers" in hint(factories.case(8, "step", subject="s", dtype="uint8"))


def test_a_guess_lies_between_what_is_fixed_and_all_the_time_allowed() -> None:
    (job, *_), policy = jobs(CYCLES), Policy(max_seconds=2.0)
    guess, most = plan.estimate_seconds(job, policy), plan.estimate_seconds(job, policy, most=True)
    assert runner_of(job.case).guess_fixed(job, policy) < guess < most


@pytest.mark.parametrize("mode", ["streaming", "graph"])
def test_repetitions_are_the_calls_of_a_sample_where_samples_have_many(mode: str) -> None:
    """However many of these there are, precision decides on the samples."""
    (job,) = jobs([factories.case(1 << 20, n=2, mode=mode)])
    few, many = (Policy(iters=n, batch=n, warmup=5, max_seconds=9.0) for n in (1, 20))
    one, twenty = (plan.estimate_seconds(job, policy) for policy in (few, many))
    fixed = runner_of(job.case).guess_fixed(job, few)
    assert twenty - fixed == pytest.approx(20 * (one - fixed))


def test_calls_issued_together_take_longer_than_one() -> None:
    (job,) = jobs([factories.case(16 << 20, n=2, mode="host")])
    one, four = (
        plan.estimate_seconds(job, Policy(iters=10, warmup=5, agg_iters=m)) for m in (1, 4)
    )
    fixed = runner_of(job.case).guess_fixed(job, Policy())
    assert four - fixed == pytest.approx(4 * (one - fixed))


def test_what_is_predicted_takes_no_time() -> None:
    assert plan.estimate_seconds(jobs(PREDICTED)[0], Policy(), most=True) == 0.0


def test_too_many_elements_are_not_made_fewer_by_larger_sizes() -> None:
    error = plan.nothing_runs(["Open MPI takes at most 2,147,483,647 elements"])
    assert "smaller sizes" in error.hint
    assert "larger sizes" in plan.nothing_runs(["0 B give a rank no float element"]).hint


@pytest.mark.parametrize(
    ("fields", "sharers", "turns"),
    [
        ({"n": 16}, 16, 16),  # on one machine, which all share
        ({"n": 512}, 8, 48),  # of 64 hosts, which a tree reaches in 6 levels
        ({"n": 512}, 512, 512),
        ({"n": 9}, 8, 8),
        ({"n": 3}, 1, 2),
        ({"n": 2}, 1, 1),
        ({"n": 4, "groups": "mod:4", "of": 4}, 8, 8),
        ({"n": 512, "algorithm": "linear", "collective": "broadcast"}, 8, 512),
        ({"n": 8, "backend": "nccl"}, 8, 8),
        ({"n": 512, "backend": "nccl"}, 8, 48),
    ],
)
def test_the_limit_of_a_hang_counts_the_ranks_of_a_host_and_the_levels_of_hosts(
    fields: dict[str, Any], sharers: int, turns: int
) -> None:
    job = Job(factories.case(1 << 30, **fields), 1, "")
    base, rate = (90, 2e9) if "backend" in fields else (30, 50e6)
    limit = plan.choose_timeout([job], Policy(), lambda n: min(n, sharers))
    assert limit == pytest.approx(base + turns * (1 << 30) / rate)
    (world,) = plan.plan_worlds([job], Policy(), lambda n: min(n, sharers))
    assert world.timeout == limit


def test_a_background_takes_what_its_results_are_compared_with() -> None:
    one, policy = factories.case(background="all_reduce:64M"), Policy()
    other = factories.case(64 << 20)
    assert collectives.checked_bytes(other)
    assert collectives.background_bytes(one, policy) == (
        collectives.scratch_bytes(other)
        + collectives.checked_bytes(other)
        + collectives.buffer_bytes(other, policy)
        + collectives.owned_bytes(other)
    )
