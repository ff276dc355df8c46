"""Cases of collectives as ranks run them: their buffers, and what they take."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.core import algorithms
from collbench.core.backend_info import backend_info
from collbench.core.schedule import fan_in
from collbench.core.text import format_count, format_size
from collbench.machine import cpus
from collbench.records.types import Cache, Record
from collbench.run.jobs import Job
from collbench.run.memory import PAGE, Room, count_computing_bytes, explain_no_room
from collbench.run.rank import payload
from collbench.suite import backgrounds
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.run.rank.bench import Bench, Sites
    from collbench.run.rank.single_call import SingleCall
    from collbench.run.rank.trial import Trial

MAX_ROTATION = 64

STAYS = 1 << 20  # bytes that a core's own cache holds, whatever else passes through it

# for estimates shown before anything is measured: seconds a message, and bytes a second and rank;
# GPUs, by PCIe, move and fill so many times as many
GUESS_ALPHA = 60e-6

GUESS_RATE = 0.7e9

GPU_SPEED = 30.0

# and seconds that are spent on each case beside warming up and samples (buffers, checks, counted
# bytes, the other cadence), as seen on two cores of a server's CPU with torch 2.13 and Gloo
GUESS_CASE = 0.1

GUESS_ALONE = 0.25  # that a case's background is timed by itself


def buffer_bytes(case: Case, policy: Policy) -> int:
    """Bytes of one buffer pair on one rank; in place, one buffer is both."""
    send, recv = case.counts
    elements = max(send, recv) if case.in_place else send + recv
    return (elements + 2 * policy.unalign) * case.type.size + 2 * PAGE


def owned_bytes(case: Case) -> int:
    """Bytes that a library which owns its results keeps beside each buffer pair: the last result,
    and perhaps its own copy of the input."""
    return backend_info(case.backend).owns_results * sum(case.counts) * case.type.size


def scratch_bytes(case: Case) -> int:
    """The bytes that the library allocates for itself on a rank, by peak resident size seen on
    torch 2.13 with Gloo.

    all_gather, gather and reduce_scatter assemble the whole in a copy, all_reduce keeps two
    segments. Reference algorithms keep up to two rows of scratch, and land what arrives to be
    combined.
    """
    if case.algorithm == "native" and backend_info(case.backend).gpu:
        return 8 << 20  # NCCL's own buffers do not grow with the size (room.GPU_RANK_BYTES)
    if case.algorithm != "native":
        cells, landing = _count_landed(case.collective, case.algorithm, case.n)
        block = case.size // (case.n if case.row.total else 1)
        return 2 * case.size + block * landing // cells + (8 << 20)
    copies = {"all_gather": 1.0, "gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 0.04}.get(
        case.collective, 0.0
    )
    return int(copies * case.size) + (8 << 20)


def checked_bytes(case: Case) -> int:
    """The bytes that a rank takes on its host for what results are compared with: none where they
    are on a GPU."""
    return 0 if backend_info(case.backend).gpu else payload.count_table_bytes(case)


def background_bytes(case: Case, policy: Policy) -> int:
    """The bytes that a rank takes for what is in the case's background, if anything is."""
    if other := backgrounds.background_case(case):
        beside = scratch_bytes(other) + owned_bytes(other) + checked_bytes(other)
        return beside + buffer_bytes(other, policy)
    on_gpu = bool(backend_info(case.backend).gpu)
    return count_computing_bytes(case.background, on_gpu)


@functools.lru_cache(maxsize=256)
def _count_landed(collective: str, algorithm: str, n: int) -> tuple[int, int]:
    """Cells of a block, and the most that land at once."""
    schedule = algorithms.find_variant(collective, algorithm).schedule(n)
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
    rotation = 2 if MAX_ROTATION * pair <= STAYS else min(MAX_ROTATION, max(1, turns))
    return math.ceil(rotation / policy.agg_iters) * policy.agg_iters


def measure_crowding(job: Job) -> float:
    """Ranks for each core of a host, if it has as many as this one; at least one, as on GPUs."""
    ranks = 1 if backend_info(job.case.backend).gpu else job.sharers or job.case.world
    return max(1.0, ranks / max(1, cpus.core_count()))


def guess_speed(case: Case) -> float:
    """How many times as fast as a core's the device of a case moves and fills bytes."""
    return GPU_SPEED if backend_info(case.backend).gpu else 1.0


def guess_call(case: Case) -> float:
    """A rough guess of what a call takes where each rank has a core, s: of a rank alone, too, the
    latency."""
    bound = case.row.bound(case.n)
    rate = GUESS_RATE * guess_speed(case)
    return max(1.0, bound.alpha) * GUESS_ALPHA + bound.beta * case.moved / rate


def guess_filling(job: Job, nbytes: int, policy: Policy) -> float:
    """A rough guess of the seconds that a rank fills and checks so many bytes of buffers for."""
    rate = 2e9 * guess_speed(job.case)
    return 4 * nbytes / rate * measure_crowding(job) if policy.check else 0.0


class CollectiveRunner:
    """A run.runner.Runner."""

    parts = 1
    is_repeatable = True
    remedy = "smaller sizes (-e) take less"

    def refuse(self, case: Case, subject: None, refuse_call: Callable[[Case], str]) -> str:
        """Why the case, or the collective in its background, cannot be run, or ""."""
        reason = refuse_call(case)
        other = self._find_other(case)
        return reason or (refuse_call(other) if other else "")

    def list_probes(self, job: Job) -> list[Case]:
        """The case itself, and the collective in its background, if there is one."""
        other = self._find_other(job.case)
        return [job.case, *([other] if other else [])]

    def _find_other(self, case: Case) -> Case | None:
        """The collective that runs in the background, on the case's ranks as the backend has
        them."""
        other = backgrounds.background_case(case)
        return msgspec.structs.replace(other, n=case.n) if other else None

    def list_dtypes(self, job: Job) -> list[str]:
        """The case's element type; none where neither it nor its background moves data."""
        moves_data = job.case.size or backgrounds.background_case(job.case)
        return [job.case.dtype] if moves_data else []

    def fit(self, case: Case, policy: Policy, room: Room, subject: None) -> Job | Skip:
        """The job with as many pairs of buffers as the cache asks for and memory holds, or why not
        even those of one sample fit."""
        pair = buffer_bytes(case, policy)
        _, available, cache_bytes, sharers, base = room
        slot = pair + owned_bytes(case)
        own_bytes = scratch_bytes(case) + checked_bytes(case)
        fixed = sharers * (base + own_bytes + background_bytes(case, policy))
        target_rotation = wanted_rotation(case, policy, cache_bytes)
        possible = (available - fixed) // (sharers * slot) // policy.agg_iters * policy.agg_iters
        if possible < 1:
            need = fixed + sharers * slot * policy.agg_iters
            what = f"{format_size(case.size)} on {format_count(sharers, 'rank')}"
            return Skip(case, explain_no_room(what, need, room))
        rotation = min(target_rotation, possible)
        if policy.cache == "hot":
            cache: Cache = "hot"
        elif rotation < target_rotation:
            cache = "shrunk"
        else:
            cache = "cold" if rotation * pair >= 3 * cache_bytes else "small"
        return Job(case, rotation, cache)

    def measure_memory(self, job: Job, policy: Policy) -> int:
        """Bytes that a rank takes: its process's, all pairs of buffers, the library's, and the
        background's."""
        slot = buffer_bytes(job.case, policy) + owned_bytes(job.case)
        own_bytes = scratch_bytes(job.case) + job.rotation * slot
        beside = background_bytes(job.case, policy) + checked_bytes(job.case)
        return backend_info(job.case.backend).rank_bytes + own_bytes + beside

    def guess_call(self, job: Job) -> float:
        """A rough guess of the seconds that a call takes where ranks share cores as here."""
        return guess_call(job.case) * measure_crowding(job)

    def guess_fixed(self, job: Job, policy: Policy) -> float:
        """A rough guess of the seconds that the job takes beside warming up and measuring."""
        alone = GUESS_ALONE if job.case.background else 0.0
        filled = guess_filling(job, job.rotation * buffer_bytes(job.case, policy), policy)
        return GUESS_CASE + alone + self.guess_call(job) + filled

    def forecast(self, warm: Sequence[Record], policy: Policy, launches: int) -> None:
        """None: a case of a collective takes too little time to be told of beforehand."""
        return None

    def make_trial(self, bench: Bench, job: Job, sites: Sites, emit: Any) -> Trial | SingleCall:
        """The job on a rank, with its background beside it; ``emit`` is not called."""
        from collbench.run.rank.background import make_background
        from collbench.run.rank.single_call import SingleCall
        from collbench.run.rank.trial import Trial

        if job.coarse:
            return SingleCall(bench, job)

        return Trial(bench, job, make_background(bench, job.case, sites))


RUNNER = CollectiveRunner()
