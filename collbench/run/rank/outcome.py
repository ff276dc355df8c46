"""The outcome of a case, one for each group of ranks, and the record that is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from collbench.records import stats
from collbench.records.derive import NO_SAMPLE
from collbench.records.types import (
    PER_RANK_SAMPLES,
    Background,
    Cache,
    Calibration,
    Choice,
    FirstWrong,
    GpuState,
    Operation,
    Record,
    Scheme,
    Sent,
    Stop,
)
from collbench.run.rank.aside import Aside
from collbench.run.rank.global_clock import GlobalClock
from collbench.run.rank.gpu import HOPELESS
from collbench.run.rank.measure import Measured, Samples
from collbench.run.rank.payload import format_bits
from collbench.suite.case import Case
from collbench.suite.policy import Policy

THROTTLED = "nvidia-smi -q -d PERFORMANCE says what holds the GPU back"


class SkippedCase(NamedTuple):
    """A case that was not measured."""

    reason: str


class FailedCase(NamedTuple):
    """A case that was tried and has no time."""

    reason: str
    discarded: dict[str, int] = {}  # samples that were replaced, by cause
    gpus: Sequence[GpuState] = ()  # of each rank at its worst
    findings: dict[str, Any] = {}  # what was found all the same


class WrongData(NamedTuple):
    """A case whose data differs from what it should be: it has no time."""

    wrong: int  # elements
    note: str
    first: FirstWrong | None = None
    verified: int = 0  # elements compared
    findings: dict[str, Any] = {}  # what was found all the same


class Timing(NamedTuple):
    """The samples of a case and how they were taken. Times are whole ns."""

    times: list[int] = []  # on the slowest rank, `calls` calls each
    per_rank: list[list[int]] = []  # the same on each rank, the first samples
    starts: list[list[int]] = []  # after the earliest rank's, where ranks read one clock
    spans: list[int] = []  # last end minus first start
    skews: list[int] = []  # last start minus first start
    clock_error: int = 0  # of the clock that stands for those of several hosts
    clock: Literal["host", "device"] = "host"  # that `times` are read from
    host: list[int] = []  # some further calls by the host's clock
    device: list[int] = []  # the same samples by the device's clock
    waited: float | None = None  # share of a sample in which the host waited for its device
    calls: int = 1  # in a sample
    warmup: int = 0  # samples before these
    steady: bool = True  # times of all groups had settled when warm-up ended
    stop: Stop = ""
    sync: Scheme = ""
    discarded: dict[str, int] = {}  # samples that were replaced, by cause
    overhead: int = 0  # of the same loop around nothing
    call_path: int | None = None  # of one call that leaves the library nothing to do
    preempted: int = 0  # times that the kernel took a rank off its core


class ControlTiming(NamedTuple):
    """Samples in the cadence that the case is not measured in, ns on the slowest rank."""

    times: list[int]
    calls: int | None = None  # in a sample; None: as many as in the case's own


class MeasuredCase(NamedTuple):
    """A case that has a time."""

    timing: Timing
    setup: int = 0  # ns of the first call
    verified: int = 0  # elements compared
    wrong: int | None = None  # None: data was not verified
    digests: Sequence[str] = ()  # of results that must be rounded
    control: ControlTiming | None = None
    submits: Sequence[int] = ()  # ns to hand a call over
    gpus: Sequence[GpuState] = ()  # of each rank at its worst
    choice: Choice | None = None  # what the library said it ran
    sent: Sequence[Sent] = ()
    calibration: Calibration | None = None
    operations: Sequence[list[Operation]] = ()  # of a step, by rank
    background: Background | None = None
    note: str = ""
    findings: dict[str, Any] = {}  # what a feature's kind found besides


class FoundCase(NamedTuple):
    """A case that has no time, as what it found is something else: JSON-able ``findings``."""

    findings: dict[str, Any]
    verified: int = 0  # elements compared
    note: str = ""
    stop: Stop = ""  # "cut": there is more to find


CaseOutcome = SkippedCase | FailedCase | WrongData | FoundCase | MeasuredCase


class AboutCase(NamedTuple):
    """What a record says of a case however it came out."""

    world: int  # index of the process group
    started: str  # ISO, ms
    injected: str = ""  # faults planted on purpose
    rotation: int = 1  # buffer pairs that took turns
    cache: Cache = ""
    copies_first: bool = False  # a call begins with a copy


def record_of(case: Case, outcome: CaseOutcome, about: AboutCase) -> Record:
    """The record of a case."""
    match outcome:
        case SkippedCase():
            record = Record(case=case, status="skipped", note=outcome.reason)
        case FailedCase():
            record = Record(
                case=case,
                status="failed",
                note=outcome.reason,
                invalid=outcome.discarded,
                gpus=list(outcome.gpus),
                findings=outcome.findings,
            )
        case WrongData():
            record = Record(
                case=case,
                status="wrong",
                note=outcome.note,
                wrong=outcome.wrong,
                first_wrong=outcome.first,
                checked=outcome.verified,
                findings=outcome.findings,
            )
        case FoundCase():
            record = Record(
                case=case,
                status="ok",
                note=outcome.note,
                checked=outcome.verified,
                findings=outcome.findings,
                stop=outcome.stop,
            )
        case MeasuredCase():
            record = _record_times(case, outcome)
    return msgspec.structs.replace(record, **about._asdict())


def _record_times(case: Case, outcome: MeasuredCase) -> Record:
    timing, control = outcome.timing, outcome.control
    return Record(
        case=case,
        status="ok",
        note=outcome.note,
        times_ns=timing.times,
        per_rank=timing.per_rank,
        starts_ns=timing.starts,
        glob_ns=timing.spans,
        skew_ns=timing.skews,
        clock_error_ns=timing.clock_error,
        submit_ns=list(outcome.submits),
        clock=timing.clock,
        host_ns=timing.host,
        device_ns=timing.device,
        waited=timing.waited,
        control_ns=control.times if control else [],
        control_inner=control.calls if control else None,
        inner=timing.calls,
        setup_ns=outcome.setup,
        warmup=timing.warmup,
        steady=timing.steady,
        stop=timing.stop,
        sync=timing.sync,
        overhead_ns=timing.overhead,
        call_path_ns=timing.call_path,
        invalid=timing.discarded,
        checked=outcome.verified,
        preempted=timing.preempted,
        wrong=outcome.wrong,
        bits=list(outcome.digests),
        chose=outcome.choice,
        gpus=list(outcome.gpus),
        sent=list(outcome.sent),
        calibration=outcome.calibration,
        operations=list(outcome.operations),
        background=outcome.background,
        findings=outcome.findings,
    )


def case_times(
    case: Case, samples: Samples, common: GlobalClock | None, ranks: Sequence[int] | None = None
) -> np.ndarray:
    """The time of each sample on these ranks, all unless told: from start to end on the slowest of
    them; where some come late on purpose, from the last one's start to the last one's end."""
    selected = slice(None) if ranks is None else list(ranks)
    durations = samples.durations[selected]
    if not case.arrival:
        return np.asarray(durations.max(axis=0))
    starts = (common.converted(samples.starts) if common else samples.starts)[selected]
    return np.asarray((starts + durations).max(axis=0) - starts.max(axis=0))


def select_control(
    control: Aside | None, ranks: Sequence[int], calls_together: int
) -> ControlTiming | None:
    """The times of samples in the other cadence on the slowest of these ranks, whose calls are made
    ``calls_together`` at a time."""
    if control is None:
        return None
    times = control.samples.durations[list(ranks)].max(axis=0).tolist()
    return ControlTiming(times, control.inner and control.inner * calls_together)


def select_timing(
    case: Case,
    measured: Measured,
    common: GlobalClock | None,
    ranks: Sequence[int],
    policy: Policy,
) -> Timing:
    """The times of the ranks of a group. Starts, skew and T_glob exist only where ranks' clocks are
    one, or the ``common`` one is good enough for this group's times; and times of each rank where
    ranks are not virtual.
    """
    samples, members = measured.samples, list(ranks)
    durations, device = samples.durations[members], samples.device[members]
    per_rank = 0 if policy.virtual else PER_RANK_SAMPLES
    every_rank = len(members) == len(samples.starts)
    times = case_times(case, samples, common, ranks)
    timing = Timing(
        times=times.tolist(),
        per_rank=durations[:, :per_rank].tolist() if per_rank else [],
        clock=measured.clock,
        # these are of the slowest rank of all
        host=[ns // policy.agg_iters for ns in measured.host_ns] if every_rank else [],
        device=device.max(axis=0).tolist() if device.any() else [],
        waited=min((measured.waited[rank] for rank in members if measured.waited), default=None),
        calls=measured.inner * policy.agg_iters,
        warmup=measured.warmup,
        steady=measured.steady,
        stop=measured.stop
        if every_rank or policy.fixes_samples(case.mode)
        else judge_stop(measured.stop, times, policy),
        sync=measured.scheme,
        discarded=measured.invalid,
        overhead=measured.overhead_ns,
        call_path=measured.call_path_ns,
        preempted=int(samples.switches[members].sum()),
    )
    if (
        not per_rank
        or measured.clock != "host"
        or (common and common.explain_inaccuracy(float(np.median(times))))
    ):
        return timing
    starts = (common.converted(samples.starts) if common else samples.starts)[members]
    after = starts - starts.min(axis=0)
    return timing._replace(
        starts=after[:, :per_rank].tolist(),
        spans=(after + durations).max(axis=0).tolist(),
        skews=after.max(axis=0).tolist(),
        clock_error=common.error_ns if common else 0,
    )


def judge_stop(stop: Stop, times: np.ndarray, policy: Policy) -> Stop:
    """Why sampling of a group ended, by the group's own ``times``. The ``stop`` of a case is that
    of all its groups: one of them may be narrow enough where another is not."""
    if stop not in ("converged", "budget", "max_n"):
        return stop
    assert policy.precision, "a resolved policy is needed"
    if stats.is_converged(times, policy.precision, policy.min_iters, 0.0, 0.0):
        return "converged"
    return "budget" if stop == "converged" else stop


def fail_without_samples(
    discarded: dict[str, int],
    remedy: str,
    hopeless: Sequence[int] = (),
    gpus: Mapping[int, GpuState] = MappingProxyType({}),
) -> FailedCase:
    """The outcome of a case of which every sample had to be replaced, by cause; ``hopeless`` are
    Measured's, ``gpus`` the ranks' at their worst."""
    counts = ", ".join(f"{count} x {cause}" for cause, count in discarded.items())
    parts = [f"{NO_SAMPLE} ({counts or 'none was taken in time'})"]
    if "throttled" in discarded:
        parts += [
            f"rank {rank}: GPU {state.index} was held back ({', '.join(state.throttle)})"
            for rank, state in gpus.items()
            if state.is_held_back
        ]
    if hopeless:
        ranks = ", ".join(map(str, hopeless))
        parts += [
            f"only one block was tried: the {HOPELESS} cases before had no valid sample either, as"
            f" GPUs of rank{'s' * (len(hopeless) > 1)} {ranks} were held back"
        ]
    if "throttled" in discarded:
        parts.append(THROTTLED)
    elif discarded.keys() == {"disturbed"}:
        parts.append("something else had these cores, or their frequency changed")
    else:
        parts.append(f"try {remedy}")
    return FailedCase("; ".join(parts), discarded, list(gpus.values()))


def find_wrong_data(
    case: Case, findings: Sequence[Sequence[Any]], when: str
) -> Sequence[CaseOutcome]:
    """The outcome of each group if any has wrong data, as then none is timed; else nothing.
    ``findings`` are, by group and rank, how many elements were checked, how many are wrong, and the
    first that is: rank, index, both bit patterns.
    """
    bad = [number for number, ranks in enumerate(findings) if any(wrong for _, wrong, _ in ranks)]
    if not bad:
        return []
    left_out = SkippedCase(f"group {bad[0]} had wrong data {when}, which ended this case for all")
    return [
        _describe_wrong(case, number, ranks, when) if number in bad else left_out
        for number, ranks in enumerate(findings)
    ]


def _describe_wrong(case: Case, number: int, ranks: Sequence[Any], when: str) -> WrongData:
    total = sum(wrong for _, wrong, _ in ranks)
    rank, index, *bits = next(first for _, _, first in ranks if first)
    got, expected = (format_bits(pattern, case.type) for pattern in bits)
    label = f"rank {rank}" + (f" of group {number}" if case.groups else "")
    return WrongData(
        total,
        f"{total} wrong elements {when}, first on {label} at {index}: {got} instead of {expected}",
        FirstWrong(rank=rank, index=index, got=got, expected=expected, when=when),
        sum(checked for checked, _, _ in ranks),
    )
