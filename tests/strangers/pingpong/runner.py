"""Ping-pongs as ranks run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from collbench.core.backend_info import backend_info
from collbench.features.pingpong import KIND
from collbench.features.pingpong.measurable import PingPong
from collbench.records.types import Record
from collbench.run import collectives
from collbench.run.jobs import Job
from collbench.run.memory import RANK_BYTES, Room
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.features.pingpong.trial import PingPongTrial
    from collbench.run.rank.bench import Bench, Sites


class _PingPongRunner:
    """A run.runner.Runner."""

    parts = 1
    is_repeatable = True
    remedy = "fewer bytes take less"

    def refuse(self, case: Case, subject: PingPong, refuse_call: Callable[[Case], str]) -> str:
        info = backend_info(case.backend)
        if info.messages and not info.predicts:
            return ""
        return f"{KIND}: {case.backend} has no messages from rank to rank"

    def list_probes(self, job: Job) -> list[Case]:
        return []

    def list_dtypes(self, job: Job) -> list[str]:
        return [job.case.dtype]

    def fit(self, case: Case, policy: Policy, room: Room, subject: PingPong) -> Job | Skip:
        job = Job(case, 1, "hot", subject=subject)
        if room.sharers * self.measure_memory(job, policy) <= room.available:
            return job
        return Skip(case, f"{subject.title} needs more memory than there is {room.where}")

    def measure_memory(self, job: Job, policy: Policy) -> int:
        return RANK_BYTES + collectives.buffer_bytes(job.case, policy)

    def guess_call(self, job: Job) -> float:
        return 2 * (collectives.GUESS_ALPHA + job.case.nbytes / collectives.GUESS_RATE)

    def guess_fixed(self, job: Job, policy: Policy) -> float:
        return collectives.GUESS_CASE

    def forecast(self, warm: Sequence[Record], policy: Policy, launches: int) -> None:
        return None

    def make_trial(self, bench: Bench, job: Job, sites: Sites, emit: Any) -> PingPongTrial:
        from collbench.features.pingpong.trial import PingPongTrial

        return PingPongTrial(bench, job)


RUNNER = _PingPongRunner()
