"""Checks of a backend's contract as ranks make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from collbench.core.backend_info import backend_info
from collbench.features.backends.measurable import Contract
from collbench.run.jobs import Job
from collbench.run.memory import RANK_BYTES, Room
from collbench.run.runner import Runner
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.features.backends.trial import ContractTrial
    from collbench.run.rank.bench import Bench, Sites

COPIES = 6  # of the largest buffers, that a rank has at once


class _ContractRunner(Runner):
    remedy = "--quick takes less"

    def refuse(self, case: Case, subject: Contract, refuse_call: Callable[[Case], str]) -> str:
        """Why there is nothing to check, or ""."""
        if backend_info(case.backend).predicts:
            return f"{case.backend} predicts times and moves no data"
        return ""

    def list_dtypes(self, job: Job) -> list[str]:
        """That of all its calls."""
        return ["float"]

    def fit(self, case: Case, policy: Policy, room: Room, subject: Contract) -> Job | Skip:
        """The job, whose buffers fit everywhere."""
        return Job(case, 1, "hot", subject=subject)

    def measure_memory(self, job: Job, policy: Policy) -> int:
        """Bytes that a rank takes."""
        subject: Contract = job.subject
        return RANK_BYTES + COPIES * subject.largest

    def guess_call(self, job: Job) -> float:
        """A rough guess of the seconds that a call takes."""
        return 1e-3

    def guess_fixed(self, job: Job, policy: Policy) -> float:
        """A rough guess of the seconds of all checks."""
        return 5.0 if job.subject.quick else 60.0

    def make_trial(self, bench: Bench, job: Job, sites: Sites, emit: Any) -> ContractTrial:
        """The job on a rank; ``emit`` gets the checks that are done, and the one that begins."""
        from collbench.features.backends.trial import ContractTrial

        return ContractTrial(bench, job, sites, emit)


RUNNER = _ContractRunner()
