"""What ranks are told to do: jobs, a case each, and the plan of a world."""

from __future__ import annotations

from typing import Any

import msgspec

from collbench.core.backend_sources import BackendFile
from collbench.records.types import Cache
from collbench.suite.case import Case
from collbench.suite.measurable import decode_subject
from collbench.suite.policy import Policy


class Job(msgspec.Struct, frozen=True):
    """A case with the buffers it gets: ``rotation`` pairs; ``cache`` as in Record.

    ``samples``, ``warmup`` and ``inner`` (calls to a sample), where given, are fixed in spite of
    the policy and of what calls take: pairs of launches need that. ``seconds`` is the longest time
    spent on its samples, where that is not the policy's; ``least`` of them are taken however long
    they take. ``control``: with a few samples in the other cadence. ``counts_bytes``: with bytes
    counted, as they are in any case where settings leave data one path. The same ranks measure the
    ``companion``, another job, in turns with it, block by block; a lot decides each time which goes
    first. ``subject`` is what a case of another kind is about. A ``coarse`` one is a single call,
    for a row to show until the case is measured. ``sharers`` ranks share a host's memory, or a
    GPU's; 0 stands for all.
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
    counts_bytes: bool = True
    companion: Job | None = None
    subject: Any = None  # suite.measurable.Subject
    coarse: bool = False
    sharers: int = 0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "subject", decode_subject(self.subject))


class Plan(msgspec.Struct, frozen=True):
    """All a world of ``n`` ranks needs to know; travels as JSON. Where it is divided into
    ``groups``, a job stands for the same in all of them. An ``open`` one grows: once all is done,
    rank 0 asks what to go on with. ``in_turns``: a world that waits for its turn before each case
    and each block of samples, while another one has the machine. ``file`` is the one that has the
    backend, where no package has it. ``beside``: some case has a background. ``rules`` are those
    by which ranks are divided for its cases and their backgrounds.
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
    file: BackendFile | None = None
    beside: bool = False
    rules: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        """How many hold the ranks: one each, or one for all virtual ranks."""
        return 1 if self.policy.virtual else self.n

    def doing(self, phase: str, job: int | None) -> str:
        """The phase and the case that it is of, in words. A case that is measured again, as in a
        second pass, counts once."""
        if job is None:
            return phase
        case = self.jobs[job].case
        cases = list(dict.fromkeys(job.case for job in self.jobs))
        again = ", again" * any(earlier.case == case for earlier in self.jobs[:job])
        placement = "in place" if case.in_place else "out of place"
        what = f"{case.collective} {case.nbytes} B {case.dtype} {placement} on {case.label}"
        return f"{phase} {what} (case {cases.index(case) + 1} of {len(cases)}{again})"


def fit_policy(policy: Policy, job: Job) -> Policy:
    """The policy with what a job has of its own: its warm-up, and its time."""
    if job.warmup is not None:
        policy = msgspec.structs.replace(policy, warmup=job.warmup)
    if job.seconds is None:
        return policy
    least = min(policy.min_seconds, job.seconds / 4)
    return msgspec.structs.replace(policy, max_seconds=job.seconds, min_seconds=least)
