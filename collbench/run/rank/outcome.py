"""The fields of records, one for each group of ranks, from what was measured of all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from collbench.records.derive import NO_SAMPLE
from collbench.records.types import PER_RANK_SAMPLES, FirstWrong, GpuState
from collbench.run.rank.aside import Aside
from collbench.run.rank.clocks import GlobalClock
from collbench.run.rank.gpu import HOPELESS
from collbench.run.rank.measure import Measured, Samples
from collbench.run.rank.payload import show
from collbench.suite.case import Case
from collbench.suite.policy import Policy

THROTTLED = "nvidia-smi -q -d PERFORMANCE says what holds the GPU back"


Fields = dict[str, Any]


def case_times(
    case: Case, samples: Samples, common: GlobalClock | None, ranks: Sequence[int] | None = None
) -> np.ndarray:
    """What each sample took these ranks, all unless told: from start to end on the slowest of them;
    where some come late on purpose, from the last one's start to the last one's end."""
    mine = slice(None) if ranks is None else list(ranks)
    durations = samples.durations[mine]
    if not case.arrival:
        return np.asarray(durations.max(axis=0))
    starts = (common.converted(samples.starts) if common else samples.starts)[mine]
    return np.asarray((starts + durations).max(axis=0) - starts.max(axis=0))


def in_control(control: Aside | None, ranks: Sequence[int], together: int) -> Fields:
    """What the samples in the other cadence took on the slowest of these ranks, and how many calls
    made one of them, ``together`` at a time, where that is not the case's number."""
    if control is None:
        return {}
    return {
        "control_ns": control.samples.durations[list(ranks)].max(axis=0).tolist(),
        "control_inner": control.inner and control.inner * together,
    }


def measured_well(
    case: Case,
    measured: Measured,
    common: GlobalClock | None,
    ranks: Sequence[int],
    policy: Policy,
) -> Fields:
    """Those that hold times, of the ranks of a group. Starts, skew and T_glob exist only where
    ranks' clocks are one, or the ``common`` one is good enough for such times; and times of each
    rank where ranks are not virtual.
    """
    samples, mine = measured.samples, list(ranks)
    durations, device = samples.durations[mine], samples.device[mine]
    per_rank = 0 if policy.virtual else PER_RANK_SAMPLES
    fields: Fields = {
        "status": "ok",
        "times_ns": case_times(case, samples, common, ranks).tolist(),
        "per_rank": durations[:, :per_rank].tolist() if per_rank else [],
        "inner": measured.inner * policy.agg_iters,
        "warmup": measured.warmup,
        "steady": measured.steady,
        "stop": measured.stop,
        "sync": measured.scheme,
        "invalid": measured.invalid,
        "overhead_ns": measured.overhead_ns,
        "call_path_ns": measured.call_path_ns,
        "preempted": int(samples.switches[mine].sum()),
        "clock": measured.clock,
        "calibration": measured.calibration,
        "waited": measured.waited,
    }
    if len(mine) == len(samples.starts):  # they are those of the slowest rank of all
        fields["host_ns"] = [ns // policy.agg_iters for ns in measured.host_ns]
    if device.any():
        fields["device_ns"] = device.max(axis=0).tolist()
    if (
        per_rank
        and measured.clock == "host"
        and not (common and common.why_not(np.median(samples.times)))
    ):
        starts = (common.converted(samples.starts) if common else samples.starts)[mine]
        after = starts - starts.min(axis=0)
        fields["starts_ns"] = after[:, :per_rank].tolist()
        fields["glob_ns"] = (after + durations).max(axis=0).tolist()
        fields["skew_ns"] = after.max(axis=0).tolist()
        fields["clock_error_ns"] = common.error_ns if common else 0
    return fields


def nothing_valid(
    invalid: dict[str, int],
    remedy: str,
    hopeless: Sequence[int] = (),
    gpus: Mapping[int, GpuState] = MappingProxyType({}),
) -> Fields:
    """Those of a record where every sample had to be replaced, by cause; ``hopeless`` are
    Measured's, ``gpus`` the ranks' at their worst."""
    counts = ", ".join(f"{count} x {cause}" for cause, count in invalid.items())
    parts = [f"{NO_SAMPLE} ({counts})"]
    if "throttled" in invalid:
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
    parts += [THROTTLED if "throttled" in invalid else f"try {remedy}"]
    return {"status": "failed", "note": "; ".join(parts), "invalid": invalid}


def wrong_somewhere(case: Case, findings: Sequence[Sequence[Any]], when: str) -> list[Fields]:
    """Those of each group's record if any has wrong data: then none is timed. ``findings`` are, by
    group and rank, how many elements were checked, how many are wrong, and the first that is: rank,
    index, both bit patterns.
    """
    bad = [number for number, found in enumerate(findings) if any(wrong for _, wrong, _ in found)]
    if not bad:
        return []
    left_out = {
        "status": "skipped",
        "note": f"group {bad[0]} had wrong data {when}, which ended this case for all",
    }
    return [
        _wrong(case, number, found, when) if number in bad else left_out
        for number, found in enumerate(findings)
    ]


def _wrong(case: Case, number: int, found: Sequence[Any], when: str) -> Fields:
    total = sum(wrong for _, wrong, _ in found)
    rank, index, *bits = next(first for _, _, first in found if first)
    got, expected = (show(pattern, case.type) for pattern in bits)
    who = f"rank {rank}" + (f" of group {number}" if case.groups else "")
    note = f"{total} wrong elements {when}, first on {who} at {index}: {got} instead of {expected}"
    first = FirstWrong(rank=rank, index=index, got=got, expected=expected, when=when)
    checked = sum(each[0] for each in found)
    return {
        "status": "wrong",
        "wrong": total,
        "first_wrong": first,
        "checked": checked,
        "note": note,
    }
