"""Orders of additions as ranks find them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from collbench.core.backend_info import backend_info
from collbench.core.text import format_count, format_size
from collbench.features.order.calls import count_all_calls
from collbench.features.order.request import SumOrder
from collbench.run import collectives
from collbench.run.jobs import Job
from collbench.run.memory import PAGE, RANK_BYTES, Room, fit_job
from collbench.run.runner import Runner
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.features.order.trial import OrderTrial
    from collbench.run.rank.bench import Bench, Sites

COPIES = (
    5  # of the larger buffer that a rank keeps: both buffers, two results, and what is compared
)

TABLES = 64 << 20  # bytes of random numbers and what trees make of them


def _make_call(case: Case, subject: SumOrder, nbytes: int) -> Case:
    """The call at one size, with buffers in the first way that is asked for."""
    return subject.make_case(case, nbytes, in_place=subject.ways[0][0])


def _make_largest(job: Job) -> Case:
    """The call at the largest size."""
    subject: SumOrder = job.subject
    return _make_call(job.case, subject, subject.sizes[-1])


class _OrderRunner(Runner):
    remedy = "smaller sizes (-e) or fewer --repeats take less"

    def refuse(self, case: Case, subject: SumOrder, refuse_call: Callable[[Case], str]) -> str:
        """Why the order of this case cannot be found, or ""."""
        if backend_info(case.backend).predicts:
            return f"{case.backend} predicts times and reduces no data"
        return refuse_call(_make_call(case, subject, subject.sizes[-1]))

    def list_probes(self, job: Job) -> list[Case]:
        """The call itself."""
        return [_make_largest(job)]

    def fit(self, case: Case, policy: Policy, room: Room, subject: SumOrder) -> Job | Skip:
        """The job, or that its largest size does not fit."""
        job = Job(case, 1, "hot", subject=subject)
        needed = room.sharers * (self.measure_memory(job, policy) - RANK_BYTES + room.base)
        size, ranks = format_size(subject.sizes[-1]), format_count(room.sharers, "rank")
        return fit_job(job, f"{size} on {ranks}", needed, room)

    def measure_memory(self, job: Job, policy: Policy) -> int:
        """Bytes that a rank takes, with results that are kept to compare."""
        call = _make_largest(job)
        buffers = COPIES * (max(call.counts) * call.type.size + 2 * PAGE)
        library = collectives.scratch_bytes(call) + collectives.owned_bytes(call)
        return RANK_BYTES + buffers + TABLES + library

    def guess_call(self, job: Job) -> float:
        """A rough guess of a call's seconds at the largest size."""
        call = _make_largest(job)
        filled = 3 * call.size / 2e9
        return (collectives.guess_call(call) + filled) * collectives.measure_crowding(job)

    def guess_fixed(self, job: Job, policy: Policy) -> float:
        """A rough guess of the seconds of all calls."""
        subject: SumOrder = job.subject
        each = count_all_calls(subject) / len(subject.sizes)
        calls = [_make_call(job.case, subject, size) for size in subject.sizes]
        crowding = collectives.measure_crowding(job)
        once = sum(
            2 * collectives.GUESS_ALPHA + collectives.guess_call(call) + 3 * call.size / 2e9
            for call in calls
        )
        return collectives.GUESS_CASE + each * once * crowding

    def make_trial(self, bench: Bench, job: Job, sites: Sites, emit: Any) -> OrderTrial:
        """The job on a rank; ``emit`` gets what was found so far after each size."""
        from collbench.features.order.trial import OrderTrial

        return OrderTrial(bench, job, emit)


RUNNER = _OrderRunner()
