"""Cases to worlds and jobs: what fits in memory, how many buffers take turns, how long it will
take, how long to wait.

Runs before anything is launched and loads no torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from collbench.core import groups
from collbench.core.backend_info import backend_info, find_file
from collbench.core.dtypes import OPS
from collbench.core.errors import CannotRun
from collbench.core.text import format_count
from collbench.records.derive import NO_TIME_LEFT
from collbench.run.collectives import measure_crowding
from collbench.run.jobs import Job, Plan
from collbench.run.memory import AVAILABLE, Room
from collbench.run.runner import runner_of
from collbench.suite import backgrounds
from collbench.suite.case import BATCH_MODES, Case, Skip
from collbench.suite.policy import Policy
from collbench.suite.suite_keys import replace_options

# for estimates shown before anything is measured: seconds, as seen on two cores of a server's CPU
# with torch 2.13 and Gloo, until Python has loaded torch, for each set of processes; until forked
# ranks have met, for each world; and until ranks start a call together
GUESS_LOAD = 2.0

GUESS_WORLD = 0.1

GUESS_ALIGN = 300e-6


def fit_jobs(
    cases: Sequence[Case],
    policy: Policy,
    room: Callable[[Case], Room],
    find_subject: Callable[[Case], Any] = lambda case: None,
) -> tuple[list[Job], list[Skip]]:
    """Jobs for what fits into the room there is, with fewer buffers where needed; skips for the
    rest."""
    jobs: list[Job] = []
    skips: list[Skip] = []
    for case in cases:
        at = room(case)
        fitting = runner_of(case).fit(case, policy, at, find_subject(case))
        if isinstance(fitting, Job):
            jobs.append(msgspec.structs.replace(fitting, sharers=at.sharers))
        else:
            skips.append(fitting)
    return jobs, skips


def estimate_seconds(job: Job, policy: Policy, most: bool = False) -> float:
    """A rough guess of what a job takes, as --dry-run shows it; measuring corrects it. At ``most``:
    where times scatter so much that all the time allowed is spent."""
    if backend_info(job.case.backend).predicts:
        return 0.0
    runner = runner_of(job.case)
    sample = _count_calls(job.case, policy) * runner.guess_call(job)
    sample += GUESS_ALIGN * (job.case.mode == "isolated")
    limits = policy.resolved(measure_crowding(job) > 1)
    longest = limits.max_seconds or 0.0
    adaptive = min(longest, max(limits.min_seconds, longest if most else 150 * sample))
    is_fixed = policy.fixes_samples(job.case.mode)
    measuring = (policy.iters or 0) * sample * 1.3 if is_fixed else adaptive
    settling = max(0.05, min(2.0, longest / 4, longest if most else 30 * sample))
    warming = settling if policy.warmup is None else policy.warmup * sample
    return runner.guess_fixed(job, policy) + warming + measuring


def estimate_loading(jobs: Sequence[Job], policy: Policy) -> float:
    """A rough guess of what it takes to load torch before ranks are forked: for each setting of the
    environment, and in each launch."""
    forked = [job.case for job in jobs if backend_info(job.case.backend).launch == "fork"]
    return GUESS_LOAD * len({(case.env, policy.fresh and case.cycle) for case in forked})


def estimate_meeting(jobs: Sequence[Job], policy: Policy) -> float:
    """A rough guess of what it takes until the ranks of these jobs' worlds have met: forked ones,
    and those that mpirun starts, which load torch themselves."""
    measured = [job for job in jobs if not backend_info(job.case.backend).predicts]
    return sum(
        (GUESS_WORLD + GUESS_LOAD * (backend_info(world.backend).launch == "mpirun"))
        * measure_crowding(world.jobs[0])
        for world in plan_worlds(measured, policy)
    )


Needs = tuple[str, int, tuple[tuple[str, str], ...], str, int]


def list_needs(case: Case, policy: Policy) -> Needs:
    """The world that a case needs: (backend, ranks, env, groups), and the cycle where each is to be
    fresh. Groups that are placed among ranks need no world of their own."""
    divided = "" if groups.count_placed_ranks(case.groups) else case.groups
    return case.backend, case.world, case.env, divided, case.cycle if policy.fresh else 0


def plan_worlds(
    jobs: Sequence[Job], policy: Policy, count_sharers: Callable[[int], int] = lambda n: n
) -> list[Plan]:
    """A plan for all jobs that need the same world, in the sweep's order, with its jobs in the
    order they run. ``count_sharers``: how many of n ranks are on the host that has most of them."""
    plans = []
    by_needs: dict[Needs, list[Job]] = {}
    for job in jobs:
        by_needs.setdefault(list_needs(job.case, policy), []).append(job)
    for index, ((backend, n, env, divided, _), members) in enumerate(by_needs.items()):
        ordered = order_jobs(members, policy, index)
        plans.append(
            Plan(
                index,
                backend,
                n,
                env,
                policy,
                ordered,
                choose_timeout(ordered, policy, count_sharers),
                divided,
                file=find_file(backend),
                beside=any(job.case.background for job in ordered),
                rules=_list_rules(ordered),
            )
        )
    return plans


def _list_rules(jobs: Sequence[Job]) -> tuple[str, ...]:
    """The rules by which ranks are divided for cases and for what is in their background."""
    cases = [job.case for job in jobs]
    return tuple(sorted({*(case.groups for case in cases), *map(backgrounds.group_rule, cases)}))


def order_jobs(jobs: Sequence[Job], policy: Policy, index: int) -> list[Job]:
    """Shuffled by the recorded seed, so that drift does not pose as an effect of size; by size
    where asked.

    ``auto`` keeps nccl-tests' order of jobs in the modes that follow its cadence. Cycles are never
    mixed.
    """
    import numpy as np

    if policy.order == "size":
        return list(jobs)
    staying = BATCH_MODES if policy.order == "auto" else ()
    rng = np.random.default_rng([policy.seed, index])
    ordered: list[Job] = []
    for _, cycle in itertools.groupby(jobs, key=lambda j: j.case.cycle):
        members = list(cycle)
        places = [i for i, job in enumerate(members) if job.case.mode not in staying]
        shuffled = [members[places[i]] for i in rng.permutation(len(places))]
        for place, job in zip(places, shuffled, strict=True):
            members[place] = job
        ordered += members
    return ordered


def choose_timeout(
    jobs: Sequence[Job], policy: Policy, count_sharers: Callable[[int], int] = lambda n: n
) -> float:
    """Seconds without any rank's progress after which a run is called hung: -T, else ample for the
    largest case, whose bytes may have to pass the same memory or link several times
    (``_count_turns``)."""
    if policy.timeout is not None:
        return policy.timeout
    slowest = max(
        (
            job.case.moved
            * _count_turns(job.case, count_sharers(job.case.world))
            * _count_calls(job.case, policy)
            for job in jobs
        ),
        default=0,
    )
    if any(backend_info(job.case.backend).gpu for job in jobs):
        return 90.0 + slowest / 2e9  # a driver that nobody kept awake takes a while
    return 30.0 + slowest / 50e6


def _count_turns(case: Case, sharers: int) -> int:
    """How often a call's bytes pass its narrowest place, one time after the other, where a host has
    ``sharers`` of the ranks at most: 16 for 16 ranks of one host, 48 for 512 of 64 hosts.

    All ranks of one host share its cores and memory, so each counts. A host among others has links
    of its own: by these a call sends about its bytes for each rank of the host, and the root of a
    tree sends them once for each level, of which each doubles the hosts that have the data. A
    reference algorithm may send to all ranks in turn, and so may a step.
    """
    if case.subject or case.algorithm != "native":
        return case.world
    hosts = math.ceil(case.world / sharers)
    levels = max(1, math.ceil(math.log2(hosts)))
    return min(case.world, sharers * levels)


def _count_calls(case: Case, policy: Policy) -> int:
    """Calls of a sample, which are those between two signs of life."""
    return 1 if case.subject else policy.count_calls(case.mode)


REMEDIES = {  # by words of the reason
    "--scale": "use --scale for a part of every operation, or --slice for fewer of the ranks",
    AVAILABLE: "take smaller sizes or fewer ranks; one buffer needs less, too (--cache hot)",
    "does not exist among": "choose -r below the number of ranks (-g), or all",
    "takes at most": "take smaller sizes, or a wider datatype (-d), which has fewer elements",
    "element": "take larger sizes",
    "needs a reduction": f"name one (-o): {', '.join(OPS)}",
    "integers only": "use -d int32, or another reduction (-o sum)",
    "no in-place form": "use --place out",
    NO_TIME_LEFT: "set a longer --budget (--dry-run says what cases take)",
    "needs a power of two": "choose another number of ranks (-g), or another algorithm (--algo)",
    "has no algorithm": "collbench list shows which collective has which",
}


def nothing_runs(
    notes: Sequence[str], command: Sequence[str] = (), cases: Iterable[Case] = ()
) -> CannotRun:
    """The error that is raised where every case of a run with this command line is skipped: the
    first reason, how many others there are, and a hint; if a budget dropped them, it names the
    options that shorten ``cases``."""
    reasons = sorted(dict.fromkeys(notes), key=lambda reason: "no in-place form" in reason)
    reasons = reasons or ["nothing is recorded of any"]
    more = f" (and {format_count(len(reasons) - 1, 'other reason')})" if len(reasons) > 1 else ""
    is_out_of_time = reasons[0].startswith(NO_TIME_LEFT)
    result = "was measured" if is_out_of_time else "can run here"
    hint = next(
        (remedy for phrase, remedy in REMEDIES.items() if phrase in reasons[0]),
        "collbench doctor says what runs here, collbench list what there is",
    )
    if is_out_of_time:
        hint = "; ".join(dict.fromkeys([hint, *(runner_of(case).remedy for case in cases)]))
    return CannotRun(f"no case {result}: {reasons[0]}{more}", replace_options(hint, command))
