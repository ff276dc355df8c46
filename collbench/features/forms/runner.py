"""Forms as ranks run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from collbench.core.backend_info import backend_info
from collbench.features.forms.measurable import Form
from collbench.run import collectives
from collbench.run.jobs import Job
from collbench.run.runner import SizedRunner
from collbench.suite.case import Case
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.features.forms.trial import FormTrial
    from collbench.run.rank.bench import Bench, Sites

COPIES = 8  # of a rank's bytes: of both forms, pickled, on their way, and what is expected
ROOTED = ("gather", "scatter")  # of which only rank 0 has the bytes of all
WIDE = ("all_gather", "reduce_scatter")  # of which every rank has them


class _FormRunner(SizedRunner):
    parts = 2
    remedy = "smaller sizes (-e) take less"

    def refuse(self, case: Case, subject: Form, refuse_call: Callable[[Case], str]) -> str:
        """Why torch has no such calls on the backend, or ""."""
        info = backend_info(case.backend)
        if info.predicts:
            return f"{case.backend} predicts collectives by their steps, and no calls of torch"
        if info.launch == "mpirun" or not info.messages:
            return f"{case.backend} is no backend of torch.distributed, whose calls these are"
        return ""

    def count_bytes(self, subject: Form) -> int:
        """Bytes of all that the rank which has most has of both forms."""
        parts = subject.world if subject.collective in (*ROOTED, *WIDE) else 1
        return COPIES * parts * subject.nbytes * max(1, subject.together)

    def count_shared_bytes(self, case: Case, subject: Form, sharers: int) -> int:
        """Bytes of so many ranks."""
        if subject.collective not in ROOTED:
            return super().count_shared_bytes(case, subject, sharers)
        return self.count_bytes(subject) + (sharers - 1) * COPIES * subject.nbytes

    def guess_call(self, job: Job) -> float:
        """A rough guess of the seconds that one call of each form takes."""
        subject: Form = job.subject
        calls = 1 + max(2, subject.together)
        rate = collectives.GUESS_RATE * collectives.guess_speed(job.case)
        once = calls * collectives.GUESS_ALPHA + 2 * _count_all(subject) / rate
        return once * collectives.measure_crowding(job)

    def guess_fixed(self, job: Job, policy: Policy) -> float:
        """A rough guess of the seconds for data and checks."""
        return collectives.GUESS_CASE + COPIES * _count_all(job.subject) / 1e9

    def make_trial(self, bench: Bench, job: Job, sites: Sites, emit: Any) -> FormTrial:
        """The job on a rank; ``emit`` is not called."""
        from collbench.features.forms.trial import FormTrial

        return FormTrial(bench, job)


def _count_all(subject: Form) -> int:
    """Bytes of one part of each rank, of all calls."""
    return subject.world * subject.nbytes * max(1, subject.together)


RUNNER = _FormRunner()
