"""Kinds of cases as ranks run them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from collbench.core.backend_info import backend_info
from collbench.core.collectives import COLLECTIVE
from collbench.core.errors import UsageError
from collbench.core.feature import load_entries
from collbench.core.text import format_count, format_size
from collbench.records.types import Record
from collbench.run import collectives
from collbench.run.jobs import Job
from collbench.run.memory import Room, fit_job
from collbench.suite.case import Case, Skip
from collbench.suite.measurable import NOT_INSTALLED
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.run.rank.bench import Bench, Sites
    from collbench.run.rank.outcome import CaseOutcome

    Emit = Callable[[Sequence[CaseOutcome]], object]


class Forecast(NamedTuple):
    """How long measuring a job takes once it is warm: seconds, ``least`` where its times hardly
    scatter, ``most`` where they do; the same in words, and what takes less."""

    least: float
    most: float
    text: str
    hint: str


class Trial(Protocol):
    """A job on one rank, from its buffers to its outcomes."""

    def run(self) -> Generator[None, None, Sequence[CaseOutcome]]:
        """The outcomes of the job's cases by their index, at rank 0; with a pause before each block
        of samples."""


class Runner(Protocol):
    """A kind of case. ``parts`` are the rows that are measured in turns, ``is_repeatable`` says
    whether a second pass can add samples to a first, and ``remedy`` what makes a call shorter. Only
    ``make_trial`` loads torch; a ``subject`` is the case's suite.measurable.Subject, None for a
    collective. A kind that derives from this has what stands here where it says nothing else."""

    parts: int = 1
    is_repeatable: bool = False
    remedy: str

    def refuse(self, case: Case, subject: Any, refuse_call: Callable[[Case], str]) -> str:
        """Why the case cannot be run, ``refuse_call`` being asked of each call that it makes; else
        an empty string."""

    def list_probes(self, job: Job) -> list[Case]:
        """A call of each sort that the job makes, to be tried on a few elements."""
        return []

    def list_dtypes(self, job: Job) -> list[str]:
        """Element types of data that is verified as that of collectives is."""
        return []

    def fit(self, case: Case, policy: Policy, room: Room, subject: Any) -> Job | Skip:
        """The job of a case, or why there is no room for it."""

    def measure_memory(self, job: Job, policy: Policy) -> int:
        """Bytes that a rank takes, buffers and all."""

    def guess_call(self, job: Job) -> float:
        """A rough guess of the seconds that one call of each part takes."""

    def guess_fixed(self, job: Job, policy: Policy) -> float:
        """A rough guess of the seconds that the job takes beside warming up and measuring."""

    def forecast(self, warm: Sequence[Record], policy: Policy, launches: int) -> Forecast | None:
        """How long so many launches take by a resolved policy, from the records of the job's cases
        while they warmed up, by index; None where nothing is told beforehand."""
        return None

    def make_trial(self, bench: Bench, job: Job, sites: Sites, emit: Emit) -> Trial:
        """The job on a rank; ``emit`` gets at rank 0, now and then, the outcomes so far."""


class SizedRunner(Runner, Protocol):
    """A kind whose subject has a ``label`` and a size in ``nbytes``, and takes ``count_bytes`` of
    it on a rank beside what the backend takes."""

    def count_bytes(self, subject: Any) -> int:
        """Bytes for the subject's data of the rank that has most."""

    def count_shared_bytes(self, case: Case, subject: Any, sharers: int) -> int:
        """Bytes for the subject's data of so many ranks, rank 0 among them."""
        return sharers * self.count_bytes(subject)

    def fit(self, case: Case, policy: Policy, room: Room, subject: Any) -> Job | Skip:
        """The job, or that its data does not fit."""
        job = Job(case, 1, "hot", subject=subject)
        data = self.count_shared_bytes(case, subject, room.sharers)
        needed = room.sharers * room.base + data
        size, ranks = format_size(subject.nbytes), format_count(room.sharers, "rank")
        return fit_job(job, f"{subject.label} of {size} on {ranks}", needed, room)

    def measure_memory(self, job: Job, policy: Policy) -> int:
        """Bytes that a rank takes."""
        return backend_info(job.case.backend).rank_bytes + self.count_bytes(job.subject)


@cache
def find_runner(kind: str) -> Runner:
    """The runner of a kind of case. Raises UsageError where its feature is not installed."""
    if kind == COLLECTIVE.kind:
        return collectives.RUNNER
    runner: Runner | None = load_entries("runners").get(kind)
    if runner is None:
        raise UsageError(*NOT_INSTALLED)
    return runner


def runner_of(case: Case) -> Runner:
    """The runner of a case's kind."""
    return find_runner(case.kind)
