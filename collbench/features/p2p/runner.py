"""Transfers as ranks run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from collbench.core.backend_info import backend_info, list_infos
from collbench.features.p2p.layout import measure_buffers, measure_messages
from collbench.features.p2p.measurable import Transfer
from collbench.features.p2p.patterns import MAX_RATE_BYTES
from collbench.run import collectives
from collbench.run.jobs import Job
from collbench.run.memory import PAGE
from collbench.run.runner import SizedRunner
from collbench.suite.case import Case
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.features.p2p.trial import TransferTrial
    from collbench.run.rank.bench import Bench, Sites


class _TransferRunner(SizedRunner):
    is_repeatable = True
    remedy = "smaller sizes (-e) or windows take less"

    def refuse(self, case: Case, subject: Transfer, refuse_call: Callable[[Case], str]) -> str:
        """Why the backend has no such messages, or ""."""
        info = backend_info(case.backend)
        if info.predicts:
            return f"{case.backend} predicts collectives by their steps, and no single messages"
        if case.algorithm != "native":
            return f"{case.algorithm}: messages have no algorithm"
        if not info.messages:
            return (
                f"{case.backend} has no messages from rank to rank; backends with messages:"
                f" {', '.join(_list_libraries())}"
            )
        if subject.pattern == "rate" and subject.nbytes > MAX_RATE_BYTES:
            return f"rate: messages have {MAX_RATE_BYTES} B at most; window has larger ones"
        return ""

    def list_dtypes(self, job: Job) -> list[str]:
        """That of all messages."""
        return [job.case.dtype]

    def count_bytes(self, subject: Transfer) -> int:
        """Bytes of a rank's buffers, and as many that the library may copy them to."""
        return 2 * measure_buffers(subject) + PAGE

    def count_shared_bytes(self, case: Case, subject: Transfer, sharers: int) -> int:
        """Bytes of so many ranks: on a host, buffers take memory where they are written to."""
        if backend_info(case.backend).gpu:
            return super().count_shared_bytes(case, subject, sharers)
        return 2 * measure_messages(subject, sharers) + sharers * PAGE

    def guess_call(self, job: Job) -> float:
        """A rough guess of the seconds of a round."""
        subject: Transfer = job.subject
        nbytes = measure_buffers(subject)
        rate = collectives.GUESS_RATE * collectives.guess_speed(job.case)
        once = len(subject.phases) * collectives.GUESS_ALPHA + nbytes / rate
        return once * collectives.measure_crowding(job)

    def guess_fixed(self, job: Job, policy: Policy) -> float:
        """A rough guess of the seconds for buffers and checks."""
        filled = collectives.guess_filling(job, measure_buffers(job.subject), policy)
        return collectives.GUESS_CASE + filled

    def make_trial(self, bench: Bench, job: Job, sites: Sites, emit: Any) -> TransferTrial:
        """The job on a rank; ``emit`` is not called."""
        from collbench.features.p2p.trial import TransferTrial

        return TransferTrial(bench, job)


def _list_libraries() -> list[str]:
    """Backends with messages of their own: those of torch's kernels are NCCL's."""
    return [
        name
        for name, info in list_infos().items()
        if info.messages and not info.predicts and not name.startswith("torch_")
    ]


RUNNER = _TransferRunner()
