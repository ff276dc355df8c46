"""Forms as ranks run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from collbench.core.backend_info import backend_info
from collbench.core.text import format_count, format_size
from collbench.features.forms.measurable import Form
from collbench.run import collectives
from collbench.run.jobs import Job
from collbench.run.memory import Room, fit_job
from collbench.run.runner import Runner
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.features.forms.trial import FormTrial
    from collbench.run.rank.bench import Bench, Sites

COPIES = 8  # of a rank's bytes: of both forms, pickled, on their way, and what is expected


class _FormRunner(Runner):
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

    def fit(self, case: Case, policy: Policy, room: Room, subject: Form) -> Job | Skip:
        """The job, or that its data does not fit."""
        job = Job(case, 1, "hot", subject=subject)
        needed = room.sharers * (room.base + self._count_bytes(subject))
        size, ranks = format_size(subject.nbytes), format_count(room.sharers, "rank")
        return fit_job(job, f"{subject.label} of {size} on {ranks}", needed, room)

    def _count_bytes(self, subject: Form) -> int:
        return COPIES * subject.world * subject.nbytes * max(1, subject.together)

    def measure_memory(self, job: Job, policy: Policy) -> int:
        """Bytes that a rank takes."""
        return backend_info(job.case.backend).rank_bytes + self._count_bytes(job.subject)

    def guess_call(self, job: Job) -> float:
        """A rough guess of the seconds that one call of each form takes."""
        subject: Form = job.subject
        calls = 1 + max(2, subject.together)
        nbytes = self._count_bytes(subject) / COPIES
        once = calls * collectives.GUESS_ALPHA + 2 * nbytes / collectives.GUESS_RATE
        return once * collectives.measure_crowding(job.case)

    def guess_fixed(self, job: Job, policy: Policy) -> float:
        """A rough guess of the seconds for data and checks."""
        return collectives.GUESS_CASE + self._count_bytes(job.subject) / 1e9

    def make_trial(self, bench: Bench, job: Job, sites: Sites, emit: Any) -> FormTrial:
        """The job on a rank; ``emit`` is not called."""
        from collbench.features.forms.trial import FormTrial

        return FormTrial(bench, job)


RUNNER = _FormRunner()
