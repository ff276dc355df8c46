"""Cases to worlds and jobs: what fits in memory, how many buffers take turns, how long it will
take, how long to wait.

Runs before anything is launched and loads no torch.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import msgspec

from collbench.core import algorithms, groups
from collbench.core.backend_info import backend_info
from collbench.core.errors import CannotRun
from collbench.core.schedule import fan_in
from collbench.core.text import counted, size
from collbench.machine import environment
from collbench.records.derive import NO_TIME_LEFT
from collbench.records.types import Cache
from collbench.run.memory import RANK_BYTES, Room
from collbench.run.steps import NONE, Steps, buffers, calls, computing
from collbench.suite import backgrounds
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy
from collbench.workload import reshape
from collbench.workload.step import Step

MAX_ROTATION = 64


STAYS = 1 << 20  # bytes that a core's own cache holds, whatever else passes through it


PAGE = 4096


# for estimates shown before anything is measured: seconds a message, and bytes a second and rank
GUESS_ALPHA = 60e-6


GUESS_RATE = 0.7e9


# and seconds, as seen on two cores of a server's CPU with torch 2.13 and Gloo: until Python has
# loaded torch, for each set of processes; until forked ranks have met, for each world; what is done
# with each case beside warming up and samples (buffers, checks, counted bytes, the other cadence);
# and until ranks start a call together
GUESS_LOAD = 2.0


GUESS_WORLD = 0.1


GUESS_CASE = 0.1


GUESS_ALONE = 0.25  # that a case's background is timed by itself


GUESS_ALIGN = 300e-6


# rounds of a step's parts that what is done beside its rounds takes as long as: checks, warm-up,
# steps that are watched, operations by themselves; and steps without the operations to blame
GUESS_STEP, GUESS_BLAME = 11, 60


GUESS_FLOPS, GUESS_COPY = 50e9, 5e9  # a second, of one core


COMPUTING = 160 << 20  # bytes of a rank for what stands for a step's computation


MOST_SCALED = 40  # as a power of two: what is still too large at that part of it never fits


class Job(msgspec.Struct, frozen=True):
    """A case with the buffers it gets: ``rotation`` pairs; ``cache`` as in Record.

    ``samples``, ``warmup`` and ``inner`` (calls to a sample), where given, are fixed in spite of
    the policy and of what calls take: paired launches need that. ``seconds`` is the longest time
    spent on its samples, where that is not the policy's; ``least`` of them are taken however long
    they take. ``control``: with a few in the other cadence. ``beside`` is another job that is done
    by the same ranks at the same time, block by block, which goes first drawn by lot each time.
    ``step`` is that of a case of one.
    """

    case: Case
    rotation: int
    cache: Cache
    samples: int | None = None
    warmup: int | None = None
    inner: int | None = None
    seconds: float | None = None
    least: int = 1
    control: bool = True
    beside: Job | None = None
    step: Step | None = None


class Plan(msgspec.Struct, frozen=True):
    """All a world of ``n`` ranks needs to know; travels as JSON. Where it is divided into
    ``groups``, a job stands for the same in all of them. An ``open`` one grows: once all is done,
    rank 0 asks what to go on with. ``in_turns``: a world that waits for its turn before each case
    and each block of samples, while another one has the machine.
    """

    index: int
    backend: str
    n: int
    env: tuple[tuple[str, str], ...]
    policy: Policy
    jobs: list[Job]
    timeout: float
    groups: str = ""
    open: bool = False
    in_turns: bool = False

    @property
    def processes(self) -> int:
        """How many hold the ranks: one each, or one for all virtual ranks."""
        return 1 if self.policy.virtual else self.n

    def doing(self, phase: str, job: int | None) -> str:
        """The phase and the case that it is of, in words."""
        if job is None:
            return phase
        case = self.jobs[job].case
        placement = "in place" if case.in_place else "out of place"
        what = f"{case.collective} {case.nbytes} B {case.dtype} {placement} on {case.label}"
        return f"{phase} {what} (case {job + 1} of {len(self.jobs)})"


def buffer_bytes(case: Case, policy: Policy) -> int:
    """Bytes of one buffer pair on one rank; in place, one buffer is both."""
    send, recv = case.counts
    elements = max(send, recv) if case.in_place else send + recv
    return (elements + 2 * policy.unalign) * case.type.size + 2 * PAGE


def scratch_bytes(case: Case) -> int:
    """What the library allocates for itself on a rank, by peak resident size seen on torch 2.13
    with Gloo.

    all_gather, gather and reduce_scatter assemble the whole in a copy, all_reduce keeps two
    segments. Reference algorithms keep up to two rows of scratch, and land what arrives to be
    combined.
    """
    if case.algorithm == "native" and backend_info(case.backend).gpu:
        return 8 << 20  # NCCL's own buffers do not grow with the size (room.GPU_RANK_BYTES)
    if case.algorithm != "native":
        cells, landing = _landed(case.collective, case.algorithm, case.n)
        block = case.size // (case.n if case.row.total else 1)
        return 2 * case.size + block * landing // cells + (8 << 20)
    copies = {"all_gather": 1.0, "gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 0.04}.get(
        case.collective, 0.0
    )
    return int(copies * case.size) + (8 << 20)


@functools.lru_cache(maxsize=256)
def _landed(collective: str, algorithm: str, n: int) -> tuple[int, int]:
    """Cells of a block, and the most that land at once."""
    schedule = algorithms.find(collective, algorithm).schedule(n)
    return schedule.cells, fan_in(schedule)


def wanted_rotation(case: Case, policy: Policy, cache_bytes: int) -> int:
    """Pairs needed so that a buffer has left the cache before its next turn, at most MAX_ROTATION.
    One where by its own end nothing of its beginning is left; 2 where MAX_ROTATION would never
    leave it: they would only drive out what calls themselves need, half a microsecond each.

    Calls issued together (-m) never share a buffer.
    """
    if policy.cache == "hot" or not case.row.moves_data:
        return policy.agg_iters
    pair = buffer_bytes(case, policy)
    turns = math.ceil(3 * cache_bytes / pair)
    wanted = 2 if MAX_ROTATION * pair <= STAYS else min(MAX_ROTATION, max(1, turns))
    return math.ceil(wanted / policy.agg_iters) * policy.agg_iters


def fit(
    cases: Sequence[Case], policy: Policy, room: Callable[[Case], Room], played: Steps = NONE
) -> tuple[list[Job], list[Skip]]:
    """Jobs for what fits into the room there is, with fewer buffers where needed; skips for the
    rest."""
    jobs: list[Job] = []
    skips: list[Skip] = []
    for case in cases:
        if case.step:
            one = _fit_step(case, policy, room(case), played[case.step])
            (jobs if isinstance(one, Job) else skips).append(one)  # type: ignore[arg-type]
            continue
        pair = buffer_bytes(case, policy)
        where, available, cache_bytes, sharers, base = room(case)
        fixed = sharers * (base + scratch_bytes(case))
        wanted = wanted_rotation(case, policy, cache_bytes)
        possible = (available - fixed) // (sharers * pair) // policy.agg_iters * policy.agg_iters
        if possible < 1:
            need = fixed + sharers * pair * policy.agg_iters
            skips.append(
                Skip(
                    case,
                    f"{size(case.size)} on {counted(sharers, 'rank')} needs {need >> 20:,} MiB"
                    f" {where}, {available >> 20:,} MiB are available",
                )
            )
            continue
        rotation = min(wanted, possible)
        if policy.cache == "hot":
            cache: Cache = "hot"
        elif rotation < wanted:
            cache = "shrunk"
        else:
            cache = "cold" if rotation * pair >= 3 * cache_bytes else "small"
        jobs.append(Job(case, rotation, cache))
    return jobs, skips


def _fit_step(case: Case, policy: Policy, room: Room, step: Step) -> Job | Skip:
    """A step as a job if it fits, every operation with a buffer of its own."""

    def bytes_of(part: Step) -> tuple[int, int]:
        """A rank's, and those of all ranks that share the room."""
        each = room.base + memory_per_rank(Job(case, 1, "", step=part), policy) - RANK_BYTES
        return each, math.ceil(room.sharers * part.world / step.world) * each

    each, needed = bytes_of(step)
    if needed <= room.available:
        return Job(case, 1, "", step=step)
    fitting = _fitting(step, lambda part: bytes_of(part)[1] / room.available)
    return Skip(
        case,
        f"{step.name}: a rank needs {each >> 20:,} MiB for itself and a buffer for each operation,"
        f" {counted(room.sharers, 'rank')} {needed >> 20:,} MiB {room.where}, where"
        f" {room.available >> 20:,} MiB are available; {fitting}",
    )


def _fitting(step: Step, share: Callable[[Step], float]) -> str:
    """Which parts of a step would fit, of what takes that share of the room."""
    found = []
    for power in range(max(1, math.ceil(math.log2(share(step)))), MOST_SCALED):
        if share(reshape.scaled(step, Fraction(1, 1 << power))) <= 1:
            found.append(f"--scale 1/{1 << power}")
            break
    slices = {name: reshape.sliced(step, name) for name in step.groups}
    fits = [name for name, part in slices.items() if share(part) <= 1]
    if fits:
        found.append(f"--slice {max(fits, key=lambda name: slices[name].world)}")
    return f"{' or '.join(found)} would fit" if found else "fewer ranks may fit"


def _calls(job: Job) -> list[Case]:
    """What a call of a job makes on the rank that makes most."""
    return [job.case] if job.step is None else calls(job.step, job.case)


def memory_per_rank(job: Job, policy: Policy) -> int:
    """Bytes a rank of this job takes, buffers and all."""
    if job.step:
        own = max((scratch_bytes(each) for each in _calls(job)), default=0)
        needs = buffers(job.step, job.case, lambda each: buffer_bytes(each, policy))
        return RANK_BYTES + own + needs + COMPUTING
    other = backgrounds.beside(job.case)
    more = scratch_bytes(other) + buffer_bytes(other, policy) if other else 0
    mine = scratch_bytes(job.case) + job.rotation * buffer_bytes(job.case, policy)
    return RANK_BYTES + mine + more


def seconds(job: Job, policy: Policy, most: bool = False) -> float:
    """A rough guess of what a job takes, as --dry-run shows it; measuring corrects it. At ``most``:
    where times scatter so much that all the time allowed is spent."""
    if backend_info(job.case.backend).predicts:
        return 0.0
    call = call_seconds(job) + GUESS_ALIGN * (job.case.mode == "isolated")
    limits = policy.resolved(_crowding(job.case) > 1)
    longest = limits.max_seconds or 0.0
    adaptive = min(longest, max(limits.min_seconds, longest if most else 150 * call))
    measuring = adaptive if policy.iters is None else policy.iters * call * 1.3
    settling = max(0.05, min(2.0, longest / 4, longest if most else 30 * call))
    warming = settling if policy.warmup is None else policy.warmup * call
    return fixed_seconds(job, policy) + warming + measuring


def loading(jobs: Sequence[Job], policy: Policy) -> float:
    """A rough guess of what it takes to load torch before ranks are forked: for each setting of the
    environment, and in each launch."""
    forked = [job.case for job in jobs if backend_info(job.case.backend).launch == "fork"]
    return GUESS_LOAD * len({(case.env, policy.fresh and case.cycle) for case in forked})


def meeting(jobs: Sequence[Job], policy: Policy) -> float:
    """A rough guess of what it takes until the ranks of these jobs' worlds have met: forked ones,
    and those that mpirun starts, which load torch themselves."""
    measured = [job for job in jobs if not backend_info(job.case.backend).predicts]
    return sum(
        (GUESS_WORLD + GUESS_LOAD * (backend_info(world.backend).launch == "mpirun"))
        * _crowding(world.jobs[0].case)
        for world in worlds(measured, policy)
    )


def call_seconds(job: Job) -> float:
    """A rough guess of what a call takes; a step's, with those of its two parts beside."""
    alone = 0.0
    for case in _calls(job):
        bound = case.row.bound(case.n)
        alone += bound.alpha * GUESS_ALPHA + bound.beta * case.moved / GUESS_RATE
    if job.step:
        alone = 2 * (alone + computing(job.step, GUESS_FLOPS, GUESS_COPY))
    return alone * _crowding(job.case)


def fixed_seconds(job: Job, policy: Policy) -> float:
    """A rough guess of what a job takes beside warming up and measuring."""
    each = [buffer_bytes(case, policy) for case in _calls(job)]
    filled = job.rotation * sum(each) / 2e9 * _crowding(job.case)
    alone = GUESS_ALONE if job.case.background else 0.0
    calls = GUESS_STEP + GUESS_BLAME * policy.blame if job.step else 1
    return GUESS_CASE + alone + calls * call_seconds(job) + (4 * filled if policy.check else 0.0)


def _crowding(case: Case) -> float:
    return max(1.0, case.world / max(1, environment.core_count()))


Needs = tuple[str, int, tuple[tuple[str, str], ...], str, int]


def needs(case: Case, policy: Policy) -> Needs:
    """What a case needs of its world: (backend, ranks, env, groups), and the cycle where each is to
    be fresh. Groups that are placed among ranks need no world of their own."""
    divided = "" if groups.placed(case.groups) else case.groups
    return case.backend, case.world, case.env, divided, case.cycle if policy.fresh else 0


def worlds(jobs: Sequence[Job], policy: Policy) -> list[Plan]:
    """One plan for all that need the same, in the order the sweep names them; jobs in the order
    they run."""
    plans = []
    alike: dict[Needs, list[Job]] = {}
    for job in jobs:
        alike.setdefault(needs(job.case, policy), []).append(job)
    for index, ((backend, n, env, divided, _), members) in enumerate(alike.items()):
        ordered = ordering(members, policy, index)
        plans.append(Plan(index, backend, n, env, policy, ordered, limit(ordered, policy), divided))
    return plans


def ordering(jobs: Sequence[Job], policy: Policy, index: int) -> list[Job]:
    """Shuffled by the recorded seed, so that drift does not pose as an effect of size; by size
    where asked.

    ``auto`` keeps nccl-tests' order in the modes that follow its cadence. Cycles are never mixed.
    """
    import numpy as np

    if policy.order == "size" or (
        policy.order == "auto" and jobs[0].case.mode in ("streaming", "graph")
    ):
        return list(jobs)
    rng = np.random.default_rng([policy.seed, index])
    ordered: list[Job] = []
    for _, cycle in itertools.groupby(jobs, key=lambda j: j.case.cycle):
        members = list(cycle)
        ordered += [members[i] for i in rng.permutation(len(members))]
    return ordered


def limit(jobs: Sequence[Job], policy: Policy) -> float:
    """Seconds without any rank's progress after which a run is called hung: -T, else ample for the
    largest case."""
    if policy.timeout is not None:
        return policy.timeout
    slowest = max((j.case.moved * j.case.world * _between(j.case, policy) for j in jobs), default=0)
    if any(backend_info(job.case.backend).gpu for job in jobs):
        return 90.0 + slowest / 2e9  # a driver that nobody kept awake takes a while
    return 30.0 + slowest / 50e6


def _between(case: Case, policy: Policy) -> int:
    """Calls between two signs of life."""
    return policy.agg_iters * (policy.batch if case.mode == "streaming" else 1)


REMEDIES = {  # by words of the reason
    "--scale": "--scale has a part of every operation, --slice fewer of the ranks",
    "MiB are available": "smaller sizes (-e), fewer ranks (-g), or one buffer (--cache hot)",
    "does not exist among": "-r takes ranks from 0, or all; -g says how many there are",
    "takes at most": "smaller sizes (-e), or a wider datatype (-d): then there are fewer elements",
    "element": "larger sizes (-b)",
    "integers only": "-d int32, or another reduction (-o sum)",
    "no in-place form": "--place out",
    NO_TIME_LEFT: "a longer --budget, or fewer sizes or collectives",
    "needs a power of two": "another number of ranks (-g), or another --algo",
    "has no algorithm": "collbench list shows which collective has which",
}


def nothing_runs(notes: Sequence[str]) -> CannotRun:
    reasons = sorted(dict.fromkeys(notes), key=lambda reason: "no in-place form" in reason)
    more = f" (and {counted(len(reasons) - 1, 'other reason')})" if len(reasons) > 1 else ""
    return CannotRun(
        f"no case can run here: {reasons[0]}{more}",
        next(
            (remedy for words, remedy in REMEDIES.items() if words in reasons[0]),
            "collbench doctor says what runs here, collbench list what there is",
        ),
    )
