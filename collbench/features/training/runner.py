"""Steps as ranks run them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from collbench.core.backend_info import backend_info
from collbench.core.text import format_clock, format_count, format_duration
from collbench.features.training import operations as steps
from collbench.features.training import reshape
from collbench.features.training.parts import PARTS
from collbench.features.training.step import Step
from collbench.records.types import Record
from collbench.run import collectives
from collbench.run.collectives import (
    buffer_bytes,
    measure_crowding,
    owned_bytes,
    scratch_bytes,
)
from collbench.run.jobs import Job
from collbench.run.memory import AVAILABLE, RANK_BYTES, Room, count_computing_bytes
from collbench.run.runner import Forecast
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.features.training.trial import StepTrial
    from collbench.run.rank.bench import Bench, Sites

# rounds of a step's parts that what is done beside its rounds takes as long as: checks, warm-up,
# steps that are watched, operations by themselves; and steps without the operations to blame
GUESS_STEP, GUESS_BLAME = 11, 60

# operations and copied bytes a second, of a core and of a GPU
GUESS_CORE, GUESS_GPU = (50e9, 5e9), (200e12, 1e12)

MOST_SCALED = 40  # as a power of two: what is still too large at that part of it never fits


class _StepRunner:
    """A run.runner.Runner."""

    parts = len(PARTS)
    is_repeatable = False
    remedy = "a smaller --scale, fewer --layers or --compute sleep take less"

    def refuse(self, case: Case, subject: Step, refuse_call: Callable[[Case], str]) -> str:
        return steps.refuse_step_case(subject, case, refuse_call)

    def list_probes(self, job: Job) -> list[Case]:
        return steps.list_kinds(job.subject, job.case)

    def list_dtypes(self, job: Job) -> list[str]:
        return steps.list_dtypes(job.subject)

    def fit(self, case: Case, policy: Policy, room: Room, subject: Step) -> Job | Skip:
        """A step as a job if it fits, every operation with a buffer of its own."""

        def bytes_of(part: Step) -> tuple[int, int]:
            """A rank's, and those of all ranks that share the room."""
            scratch = self.measure_memory(Job(case, 1, "", subject=part), policy) - RANK_BYTES
            rank_bytes = room.base + scratch
            return rank_bytes, math.ceil(room.sharers * part.world / subject.world) * rank_bytes

        rank_bytes, needed = bytes_of(subject)
        if needed <= room.available:
            return Job(case, 1, "", subject=subject)
        fitting = _find_fitting(subject, lambda part: bytes_of(part)[1] / room.available)
        return Skip(
            case,
            f"{subject.name}: a rank needs {rank_bytes >> 20:,} MiB for itself and a buffer for"
            f" each operation, {format_count(room.sharers, 'rank')} {needed >> 20:,} MiB"
            f" {room.where}, where"
            f" {room.available >> 20:,} {AVAILABLE}; {fitting}",
        )

    def measure_memory(self, job: Job, policy: Policy) -> int:
        calls = steps.list_calls(job.subject, job.case)
        scratch = max((scratch_bytes(call_case) for call_case in calls), default=0)
        needs = steps.count_buffer_bytes(
            job.subject,
            job.case,
            lambda call_case: buffer_bytes(call_case, policy) + owned_bytes(call_case),
        )
        on_gpu = bool(backend_info(job.case.backend).gpu)
        computing = count_computing_bytes(job.subject.compute, on_gpu)
        return RANK_BYTES + scratch + needs + computing

    def guess_call(self, job: Job) -> float:
        calls = steps.list_calls(job.subject, job.case)
        once = sum(collectives.guess_call(call_case) for call_case in calls)
        on_gpu = bool(backend_info(job.case.backend).gpu)
        once += steps.estimate_computing(job.subject, *(GUESS_GPU if on_gpu else GUESS_CORE))
        return 2 * once * measure_crowding(job)  # the whole, and its two parts

    def guess_fixed(self, job: Job, policy: Policy) -> float:
        calls = steps.list_calls(job.subject, job.case)
        nbytes = sum(buffer_bytes(call_case, policy) for call_case in calls)
        rounds = GUESS_STEP + GUESS_BLAME * policy.blame
        filled = collectives.guess_filling(job, nbytes, policy)
        return collectives.GUESS_CASE + rounds * self.guess_call(job) + filled

    def forecast(self, warm: Sequence[Record], policy: Policy, launches: int) -> Forecast:
        rounds = steps.forecast_rounds(policy, [record.setup_ns / 1e9 for record in warm])
        least, most = (
            format_clock(round(launches * end, -1)) for end in (rounds.least, rounds.most)
        )
        some = "up to " * (policy.iters is None and rounds.number >= steps.LEAST)
        parts = [f"{some}{format_count(rounds.number, 'round')} of its {self.parts} parts"]
        parts += ["rounds without an operation"] * policy.blame
        unit = " min" * (launches * rounds.most < 3600)
        unit += f" in {format_count(launches, 'launch')}" if launches > 1 else ""
        less = "without --blame" if policy.blame else "with a smaller --scale"
        less += f" or -n {steps.FEWEST}" * (rounds.number > steps.FEWEST)
        takes = f"{least} to {most}" if least != most else f"about {most}"
        return Forecast(
            launches * rounds.least,
            launches * rounds.most,
            f"a step takes {format_duration(warm[0].setup_ns)}: {', '.join(parts)} and each"
            " operation by"
            f" itself take {takes}{unit}",
            f"{less} it takes less",
        )

    def make_trial(self, bench: Bench, job: Job, sites: Sites, emit: Any) -> StepTrial:
        from collbench.features.training.trial import StepTrial

        return StepTrial(bench, job, sites, emit)


def _find_fitting(step: Step, share: Callable[[Step], float]) -> str:
    """A phrase on a smaller step that would fit: the largest --scale and --slice, by the ``share``
    of the room that a step takes."""
    remedies = []
    for power in range(max(1, math.ceil(math.log2(share(step)))), MOST_SCALED):
        if share(reshape.scale_step(step, Fraction(1, 1 << power))) <= 1:
            remedies.append(f"--scale 1/{1 << power}")
            break
    slices = {name: reshape.slice_step(step, name) for name in step.groups}
    fits = [name for name, part in slices.items() if share(part) <= 1]
    if fits:
        remedies.append(f"--slice {max(fits, key=lambda name: slices[name].world)}")
    return f"{' or '.join(remedies)} would fit" if remedies else "fewer ranks may fit"


RUNNER = _StepRunner()
