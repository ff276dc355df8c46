"""Lives and losses as ranks run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from collbench.core.backend_info import backend_info, list_infos
from collbench.features.lifecycle.request import Life, Loss
from collbench.features.lifecycle.rows import LOSS_TABLE, TABLE
from collbench.run.jobs import Job
from collbench.run.memory import RANK_BYTES, Room, fit_job
from collbench.run.runner import Runner
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.features.lifecycle.trial import LifeTrial, LossTrial
    from collbench.run.rank.bench import Bench, Sites

LIFE_SECONDS = 3.0  # a rough guess, most of it to load torch
COPIES = 4  # of the largest buffer, of all ranks in a check
MPI_LOSS = "mpirun ends all ranks of a job when one of them dies, so that no smaller group is left"
NO_SHRINK = "torch shrinks groups of NCCL alone (dist.shrink_group)"
OWN = (
    "a life is that of a communicator of torch.distributed or of MPI; {name} is this package's own"
)


def is_torch_library(name: str) -> bool:
    """Whether torch.distributed opens this backend by its name."""
    return name in ("gloo", "nccl", "ucc", "xccl") or name not in list_infos()


def _refuse(case: Case) -> str:
    info = backend_info(case.backend)
    if info.predicts:
        return f"{case.backend} predicts times and makes no communicator"
    if case.algorithm != "native":
        return "a life calls the library's own collectives: leave --algo out"
    if case.backend != "mpi" and not is_torch_library(case.backend):
        return OWN.format(name=case.backend)
    return ""


class _Runner(Runner):
    """What is the same for lives and losses: a run.runner.Runner but for two methods."""

    remedy = "a smaller --limit gives up sooner"

    def fit(self, case: Case, policy: Policy, room: Room, subject: Life | Loss) -> Job | Skip:
        """The job, or that its buffers do not fit."""
        job = Job(case, 1, "hot", subject=subject)
        needed = room.sharers * self.measure_memory(job, policy)
        return fit_job(job, subject.title, needed, room)

    def measure_memory(self, job: Job, policy: Policy) -> int:
        """Bytes that a rank takes, with the process whose life is watched."""
        return 2 * RANK_BYTES + COPIES * job.case.n * int(job.subject.nbytes)

    def guess_call(self, job: Job) -> float:
        """A rough guess of the seconds that a life takes."""
        return LIFE_SECONDS

    def guess_fixed(self, job: Job, policy: Policy) -> float:
        """Seconds besides."""
        return 0.1


class _LifeRunner(_Runner):
    """A run.runner.Runner."""

    parts = len(TABLE.rows)

    def refuse(self, case: Case, subject: Life, refuse_call: Callable[[Case], str]) -> str:
        """Why the backend has no such life, or ""."""
        return _refuse(case)

    def make_trial(self, bench: Bench, job: Job, sites: Sites, emit: Any) -> LifeTrial:
        """The life, watched by this rank."""
        from collbench.features.lifecycle.trial import LifeTrial

        return LifeTrial(bench, job)


class _LossRunner(_Runner):
    """A run.runner.Runner."""

    parts = len(LOSS_TABLE.rows)

    def refuse(self, case: Case, subject: Loss, refuse_call: Callable[[Case], str]) -> str:
        """Why nothing comes of a loss, or ""."""
        if case.backend == "mpi":
            return MPI_LOSS
        if subject.way == "shrink" and case.backend != "nccl":
            return f"shrink: not here: {NO_SHRINK}"
        return _refuse(case)

    def make_trial(self, bench: Bench, job: Job, sites: Sites, emit: Any) -> LossTrial:
        """The loss, watched by this rank."""
        from collbench.features.lifecycle.trial import LossTrial

        return LossTrial(bench, job)


RUNNER, LOSS_RUNNER = _LifeRunner(), _LossRunner()
