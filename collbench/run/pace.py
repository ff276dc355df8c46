"""How long cases are measured: as their plans say; in two passes, a coarse one and one over rows
that are still wide; within a budget, shared out anew after every case; or case by case, as a
caller names them.

A case may be measured twice in its world. The second record holds the samples of both, and takes
the place of the first.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from collbench.core.backend_info import backend_info, runs_on_cpus
from collbench.core.collectives import COLLECTIVE
from collbench.records import stats
from collbench.records.derive import BROKE_LATER, is_without_samples
from collbench.records.flags import FEWEST_SAMPLES
from collbench.records.types import (
    BACKGROUND_SAMPLES,
    PER_RANK_SAMPLES,
    Background,
    Record,
    World,
)
from collbench.run.jobs import Job, Plan
from collbench.run.plan import estimate_seconds
from collbench.run.runner import runner_of
from collbench.suite.case import Case
from collbench.suite.policy import Policy

# by a rough guess, in seconds: a run, and what a case of it takes beside its samples, from which on
# the case is called once before others are measured to the end
LONG_RUN, LONG_CASE = 15.0, 0.5

COARSE = 0.1  # of the time a case may take, so much is spent on it at first

AT_ONCE = 0.25  # where preparing takes more of that time than this, a case is measured but once

START_SECONDS = 1.5  # of a world, until one has been seen to start

SPARE = 0.03  # of a budget is kept for what ends a run

SLACK = 1.3  # by how much a case may take longer than the like of it has

# by this share a guess may be too long, until a case of its kind has been measured: on CPUs, and
# where the device is a GPU or not known
DOUBT_ON_CPUS, DOUBT = 0.5, 0.9

LARGE = 1 << 20  # bytes: what smaller cases take does not tell what larger ones do

PAIRS = 256  # cases of a kind, the latest, by which guesses are corrected

NO_SECOND_PASS = "interrupted before its second pass"

SAMPLES = ("times_ns", "glob_ns", "skew_ns", "host_ns", "device_ns")

BY_RANK = ("per_rank", "starts_ns")


def budget_for(seconds: float) -> str:
    """A value of --budget for what takes about ``seconds``, with a quarter to spare, as "20m"."""
    most = 1.25 * seconds
    step = 10 if most <= 60 else 60 if most <= 1200 else 300
    duration = max(1, math.ceil(most / step)) * step
    return f"{duration}s" if duration % 60 else f"{duration // 60}m"


class Pace:
    """Decides how long the cases of a run are measured, and what a plan goes on with. This one
    leaves plans as they are."""

    sufficient_seconds = 0.0  # of a budget for all cases, estimated once one was dropped

    def open_plan(self, current: Plan) -> Plan:
        """The plan as its ranks get it."""
        return current

    def note_world(self, world: World) -> None:
        """Notes the world whose cases are heard of from now on."""

    def accept_coarse(self, record: Record) -> bool:
        """Whether the record is of a single call beforehand, to be shown and not to be kept."""
        return False

    def accept(self, record: Record) -> Record | None:
        """The record as it is to be kept; None where an earlier one stands."""
        return record

    def next_jobs(self) -> list[Job]:
        """The jobs that the world goes on with, having done those it had; none where it ends."""
        return []

    def drop_world(self, current: Plan) -> Sequence[Job]:
        """The jobs of a plan whose world does not open; none of them is given out."""
        return current.jobs

    def take_cut_records(self) -> list[Record]:
        """Records that waited for more samples, as they are kept where the run ends before."""
        return []


class CallerPace(Pace):
    """Leaves plans open: once a world has done its jobs, it goes on with those that ``next_jobs``
    names, until there are none."""

    def __init__(self, next_jobs: Callable[[], list[Job]]) -> None:
        self._next_jobs = next_jobs

    def open_plan(self, current: Plan) -> Plan:
        return msgspec.structs.replace(current, open=True)

    def next_jobs(self) -> list[Job]:
        return self._next_jobs()


class TwoPassPace(Pace):
    """Two passes over the cases of each world, the second over those whose interval is not as
    narrow as asked for, or which had no valid sample.

    Cases that take long to prepare are measured once. In a long run on CPUs the first pass ends
    with one call of each size of theirs, smallest first, and they are measured last."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._most = policy.resolved(False).max_seconds or 0.0
        self._coarse: dict[Case, Record] = {}
        self._jobs: dict[Case, Job] = {}
        self._enough = 0.0
        self._world = 0
        self._called: set[Case] = set()  # those of which one call is made beforehand
        self._later: dict[int, list[Job]] = {}  # by world, measured after the second pass

    def note_world(self, world: World) -> None:
        self._world = world.index
        self._enough = self._policy.resolved(world.cramped).precision or 0.0

    def open_plan(self, current: Plan) -> Plan:
        """The plan with its coarse pass."""
        later = self._find_later(current)
        self._later[current.index] = later
        put_off = {job.case for job in later}
        jobs = [self._make_coarse(job) for job in current.jobs if job.case not in put_off]
        jobs += [_make_single_call(job) for job in _choose_lines(later)]
        self._called |= {job.case for job in jobs if job.coarse}
        return msgspec.structs.replace(current, jobs=jobs, open=True)

    def _find_later(self, current: Plan) -> list[Job]:
        """The jobs of a long plan on CPUs that are measured last: those that take long to prepare.
        None where cycles would be mixed, or the first call of a case is not as others are."""
        policy, jobs = self._policy, current.jobs
        if backend_info(current.backend).gpu or policy.inject or policy.virtual or current.groups:
            return []
        if policy.fresh or current.in_turns:
            return []
        if any(job.case.cycle or job.companion for job in jobs):
            return []
        if sum(estimate_seconds(job, policy) for job in jobs) <= LONG_RUN:
            return []
        longest = max(LONG_CASE, AT_ONCE * self._most)
        return [
            job
            for job in jobs
            if job.case.kind == COLLECTIVE.kind
            and not (job.case.groups or job.case.background or job.case.arrival)
            and runner_of(job.case).guess_fixed(job, policy) > longest
        ]

    def _make_coarse(self, job: Job) -> Job:
        runner = runner_of(job.case)
        if not runner.is_repeatable or runner.guess_fixed(job, self._policy) > AT_ONCE * self._most:
            return job
        job = msgspec.structs.replace(job, seconds=COARSE * self._most)
        self._jobs |= dict.fromkeys(job.case.siblings, job)
        return job

    def drop_world(self, current: Plan) -> Sequence[Job]:
        """The jobs of a plan whose world does not open, each case once."""
        return [*(job for job in current.jobs if not job.coarse), *self._later.pop(current.index)]

    def accept_coarse(self, record: Record) -> bool:
        """Whether the record is of a single call beforehand. Where that failed, its record stands
        and the case is not measured."""
        if record.case not in self._called:
            return False
        self._called.discard(record.case)
        if record.status == "ok":
            return True
        jobs = self._later.get(self._world, [])
        jobs[:] = [job for job in jobs if job.case != record.case]
        return False

    def accept(self, record: Record) -> Record | None:
        first = self._coarse.pop(record.case, None)
        if first is None:
            if record.case in self._jobs and (record.status == "ok" or is_without_samples(record)):
                self._coarse[record.case] = record
            return record
        if record.status == "ok":
            return merge_visits(first, record, self._enough)
        if record.status == "wrong":
            return msgspec.structs.replace(record, again=True)
        is_broken = record.status == "failed" and not is_without_samples(record)
        return _keep_first(first, record.note) if is_broken else None

    def next_jobs(self) -> list[Job]:
        """The second pass of the world that has just ended its first: cases without a valid sample,
        then widest intervals first, a case's being the widest of its siblings'; and at last what
        takes long to prepare."""
        wide = [r for r in self._coarse.values() if is_too_wide(r) or is_without_samples(r)]
        by_leader: dict[Case, Record] = {}
        for record in sorted(wide, key=interval_width, reverse=True):
            by_leader.setdefault(record.case.leader, record)
        self._coarse = {
            case: self._coarse[case]
            for leader in by_leader
            for case in leader.siblings
            if case in self._coarse
        }
        later = self._later.pop(self._world, [])
        return [*map(self._make_second, by_leader.values()), *later]

    def take_cut_records(self) -> list[Record]:
        """The records of the first pass that wait for their second."""
        return [without_second_pass(r) for r in self._coarse.values() if is_too_wide(r)]

    def _make_second(self, first: Record) -> Job:
        """The job of a second visit, with a control where the first had no time for one; a first
        visit without a valid sample hands nothing on."""
        job = msgspec.structs.replace(self._jobs[first.case], seconds=(1 - COARSE) * self._most)
        if is_without_samples(first):
            return job
        inner = first.inner // self._policy.agg_iters
        return msgspec.structs.replace(
            job, inner=inner, control=not first.control_ns, counts_bytes=False
        )


def _choose_lines(jobs: Sequence[Job]) -> list[Job]:
    """One of the jobs for each size and the like, smallest first: in place, which takes half of the
    memory, where there is such a job."""
    lines: dict[Case, Job] = {}
    for job in sorted(jobs, key=lambda job: not job.case.in_place):
        lines.setdefault(msgspec.structs.replace(job.case, in_place=False), job)
    return sorted(lines.values(), key=lambda job: job.case.nbytes)


def _make_single_call(job: Job) -> Job:
    """The job of one call of a case."""
    return msgspec.structs.replace(job, coarse=True, rotation=1, control=False, counts_bytes=False)


def _holding_back(record: Record) -> tuple[bool, bool]:
    """Whether GPUs were held back, and whether anything limited their clocks."""
    return any(gpu.is_held_back for gpu in record.gpus), any(gpu.throttle for gpu in record.gpus)


def is_too_wide(record: Record) -> bool:
    """Whether sampling ended before the interval was as narrow as asked for."""
    return record.status == "ok" and record.stop in ("budget", "max_n")


def missed_second_pass(record: Record, policy: Policy) -> bool:
    """Whether a record of a run without an end is of the first pass, and a second was to come."""
    most = policy.resolved(False).max_seconds
    if policy.iters or most is None or record.again:
        return False
    if not runner_of(record.case).is_repeatable:
        return False
    return is_too_wide(record) and record.seconds < (AT_ONCE + COARSE) * most


def without_second_pass(first: Record, note: str = NO_SECOND_PASS) -> Record:
    """The record of a first pass where the run ended before or in the second: it is measured again
    where the run is resumed."""
    return msgspec.structs.replace(first, again=True, stop="cut", note=note)


def _keep_first(first: Record, reason: str) -> Record | None:
    """The record of a case whose world broke in its second pass: that of its first, which says so;
    None where that stands as it is, as a group's that was narrow enough."""
    if is_without_samples(first):
        return msgspec.structs.replace(first, again=True, note=reason)
    return without_second_pass(first, BROKE_LATER + reason) if is_too_wide(first) else None


def interval_width(record: Record) -> float:
    """Half of the median's interval, relative to it; infinite where there is none."""
    if not record.times_ns:
        return math.inf
    times = np.asarray(record.times_ns, dtype=float)
    return stats.half_width(*stats.median_interval(np.sort(times), stats.n_eff(times)))


def _merge_backgrounds(first: Background, second: Background) -> Background:
    known = first.went_ns and second.went_ns
    return Background(
        alone_ns=second.alone_ns,
        during_ns=(first.during_ns + second.during_ns)[:BACKGROUND_SAMPLES],
        went_ns=first.went_ns + second.went_ns if known else 0,
    )


def merge_visits(first: Record, second: Record, enough: float) -> Record:
    """One record of both visits to a case: the two measurements of it in one run. The record has
    converged if its median's interval is at most ``enough``, relative to the median.

    The first visit's samples are dropped where it had no valid one, its warm-up had not settled, or
    the second visit's ranks were aligned or timed in another way. Invalid samples and what the GPUs
    did are recorded of both visits in any case."""
    causes = {**first.invalid, **second.invalid}  # in the order in which they came up
    fields: dict[str, object] = {
        "again": True,
        "seconds": first.seconds + second.seconds,
        "checked": first.checked + second.checked,
        "invalid": {
            cause: first.invalid.get(cause, 0) + second.invalid.get(cause, 0) for cause in causes
        },
        "gpus": max(first, second, key=_holding_back).gpus,
    }
    if first.status != "ok":
        return msgspec.structs.replace(second, **fields)
    controlled = first if first.control_ns else second
    fields |= {
        "started": first.started,
        "setup_ns": first.setup_ns,
        "control_ns": controlled.control_ns,
        "control_inner": controlled.control_inner,
        "sent": first.sent,
        "clock_error_ns": max(first.clock_error_ns, second.clock_error_ns),
    }
    is_mergeable = (first.sync, first.inner, first.clock) == (
        second.sync,
        second.inner,
        second.clock,
    )
    if not (first.steady and is_mergeable and bool(first.glob_ns) == bool(second.glob_ns)):
        return msgspec.structs.replace(second, **fields)
    fields |= {name: getattr(first, name) + getattr(second, name) for name in SAMPLES}
    for name in BY_RANK:
        pairs = zip(getattr(first, name), getattr(second, name), strict=True)
        fields[name] = [(earlier + more)[:PER_RANK_SAMPLES] for earlier, more in pairs]
    fields["preempted"] = first.preempted + second.preempted
    if first.background and second.background:
        fields["background"] = _merge_backgrounds(first.background, second.background)
    both = msgspec.structs.replace(second, **fields)
    if interval_width(both) <= enough:
        return msgspec.structs.replace(both, stop="converged")
    # visits that are narrow each may be wide together, at two levels
    return msgspec.structs.replace(both, stop="budget") if both.stop == "converged" else both


class Cost(NamedTuple):
    """Seconds that a case takes beside its samples, and a call of it."""

    fixed: float
    call: float

    @property
    def least(self) -> float:
        """Seconds of a case with the fewest samples that are worth having."""
        return self.fixed + FEWEST_SAMPLES * self.call


class GuessedJob(NamedTuple):
    """A job that is to come: the key of its case, whether that is large, what it may take, and by
    which share of it that may be too long."""

    job: Job
    key: str
    is_large: bool
    guess: Cost
    doubt: float


class BudgetPace(Pace):
    """Jobs one by one, each with its share of what is left of ``seconds``, which run from now on.
    Where that does not suffice for a few samples of all that are to come, the costliest are
    dropped, which ``drop`` is told. Until a small or a large case has been measured, such cases
    count with half or a tenth of what is guessed, so that the first may overrun."""

    def __init__(self, seconds: float, policy: Policy, drop: Callable[[Job], None]) -> None:
        self._drop = drop
        self._began = time.monotonic()
        self._until = self._began + seconds * (1 - SPARE)
        self._most = policy.resolved(False).max_seconds or 0.0
        self._entries: list[list[GuessedJob]] = []  # of this world and those to come
        self._costs: dict[str, Cost] = {}
        # of small and large cases: seen, guessed
        self._cost_pairs: dict[bool, deque[tuple[Cost, Cost]]] = {
            is_large: deque(maxlen=PAIRS) for is_large in (False, True)
        }
        self._policy = policy
        self._corrections = dict.fromkeys((False, True), (0.0, 1.0, 1.0))  # for large cases: True
        self._start, self._ended = START_SECONDS, 0.0
        self._out: dict[Case, GuessedJob] = {}
        self._siblings: list[Record] = []  # of the job that is heard of

    def open_plan(self, current: Plan) -> Plan:
        """The plan without its jobs, which come one by one."""
        entries = list(map(self._guess_job, current.jobs))
        kinds = {entry.is_large for of_world in self._entries for entry in of_world}
        # what is learned of the cheapest of a kind goes for the others
        cheapest = {
            entry.is_large: entry
            for entry in sorted(entries, key=lambda entry: -entry.guess.least)
            if entry.is_large not in kinds
        }
        entries.sort(key=lambda entry: entry is not cheapest.get(entry.is_large))
        self._entries.append(entries)
        return msgspec.structs.replace(current, jobs=[], open=True)

    def drop_world(self, current: Plan) -> Sequence[Job]:
        """The jobs of the plan that are left; those without time in the budget were dropped
        before."""
        return [entry.job for entry in self._entries.pop(0)]

    def accept(self, record: Record) -> Record:
        """The record as the last one of its case. Learns what such cases take: a call of a job with
        parts is one of each, that of a job with groups is the slowest group's. The leader's record
        comes last."""
        record = msgspec.structs.replace(record, again=True)
        if not record.case.is_leader:
            self._siblings.append(record)
            return record
        among = {*record.case.siblings}  # a resumed run may hear of others without their leader
        siblings = [record, *(r for r in self._siblings if r.case in among)]
        self._siblings.clear()
        entry = self._out.pop(record.case, None)
        if entry is not None and record.status == "ok":
            timed = [r.times_ns for r in siblings if r.times_ns]  # one may be left out
            combine = np.max if record.case.groups else np.sum
            if len({*map(len, timed)}) == 1:
                times = combine(timed, axis=0) / 1e9
                call, spent = float(np.median(times)), float(times.sum())
            else:  # each has ended by itself
                call = float(combine([np.median(of_one) for of_one in timed])) / 1e9
                spent = float(combine([np.sum(of_one) for of_one in timed])) / 1e9
            cost = Cost(max(0.0, record.seconds - spent), call)
            self._costs[entry.key] = cost
            self._cost_pairs[entry.is_large].append((cost, entry.guess))
            self._correct()
        return record

    def next_jobs(self) -> list[Job]:
        """The next job of the world that asks; none where there is time for no other."""
        now = time.monotonic()
        if self._ended:  # which is when the world before had done its last
            self._start, self._ended = now - self._ended, 0.0
        share = self._shared_out(now)
        remaining = self._entries[0]
        if not remaining:
            self._entries.pop(0)
            self._ended = now
            return []
        entry = remaining.pop(0)
        most = self._most * runner_of(entry.job.case).parts
        seconds = min(most, FEWEST_SAMPLES * self._cost(entry).call + share)
        self._out[entry.job.case] = entry
        return [msgspec.structs.replace(entry.job, seconds=seconds, least=FEWEST_SAMPLES)]

    def _shared_out(self, now: float) -> float:
        """Seconds for each case beyond the few samples that it must have; drops those for which
        there is no time, the costliest first, and of alike ones the last."""
        cheapest_first = sorted(
            (least, SLACK * (least - self._count_doubt(entry)), world, index)
            for world, of_world in enumerate(self._entries)
            for index, entry in enumerate(of_world)
            for least in [self._cost(entry).least]
        )
        worlds = Counter(world for _, _, world, _ in cheapest_first)
        starting = self._start * len(set(worlds) - {0})
        spare = self._until - now - sum(seconds for _, seconds, _, _ in cheapest_first) - starting
        if spare < 0 and not self.sufficient_seconds:
            undoubted = SLACK * sum(least for least, _, _, _ in cheapest_first)
            self.sufficient_seconds = (now - self._began + undoubted + starting) / (1 - SPARE)
        dropped = set()
        while cheapest_first and spare < 0:
            _, seconds, world, index = cheapest_first.pop()
            self._drop(self._entries[world][index].job)
            dropped.add((world, index))
            worlds[world] -= 1
            spare += seconds + (self._start if world and not worlds[world] else 0.0)
        for number, of_world in enumerate(self._entries) if dropped else ():
            of_world[:] = [
                entry for index, entry in enumerate(of_world) if (number, index) not in dropped
            ]
        return spare / len(cheapest_first) if cheapest_first else 0.0

    def _cost(self, entry: GuessedJob) -> Cost:
        """The cost of a case: as seen in an earlier cycle, else a guess. The guess is corrected by
        what other cases took: by a sum for what every case costs, by a factor for what grows with
        the size."""
        cost = self._costs.get(entry.key)
        if cost is not None:
            return cost
        per_call, factor, call = self._corrections[entry.is_large]
        return Cost(per_call + factor * entry.guess.fixed, call * entry.guess.call)

    def _count_doubt(self, entry: GuessedJob) -> float:
        """Seconds by which what is guessed of a case may be too long."""
        return 0.0 if self._cost_pairs[entry.is_large] else entry.doubt * entry.guess.least

    def _guess_job(self, job: Job) -> GuessedJob:
        runner = runner_of(job.case)
        guess = Cost(runner.guess_fixed(job, self._policy), runner.guess_call(job))
        doubt = DOUBT_ON_CPUS if runs_on_cpus(job.case.backend) else DOUBT
        return GuessedJob(job, job.case.key, job.case.nbytes >= LARGE, guess, doubt)

    def _correct(self) -> None:
        """Works out the corrections anew, for small and large cases: seconds that every case costs,
        and factors of what else is fixed and of a call."""
        more = [cost.fixed - guess.fixed for cost, guess in self._cost_pairs[False]]
        per_case = max(0.0, float(np.median(more))) if more else 0.0
        for large, pairs in self._cost_pairs.items():
            calls = [s.call / g.call for s, g in pairs if g.call]  # a step may do nothing
            call = float(np.median(calls)) if calls else 1.0
            filled = [max(0.0, s.fixed - per_case) / g.fixed for s, g in pairs if large]
            # the first large cases tell little of filling, but that calls are faster than guessed
            factor = max(min(1.0, call), float(np.median(filled))) if filled else 1.0
            self._corrections[large] = per_case, factor, call


def estimate_drops(
    plans: Sequence[Plan], seconds: float, policy: Policy
) -> tuple[list[Case], float]:
    """The cases that a budget is estimated to drop at the start, and the seconds that are enough
    for all; nothing and 0 where it drops none."""
    dropped: list[Job] = []
    pace = BudgetPace(seconds, policy, dropped.append)
    for current in plans:
        pace.open_plan(current)
    if plans:
        pace.next_jobs()
    return [case for job in dropped for case in job.case.siblings], pace.sufficient_seconds
