"""The numbers of a single record, derived from its raw values (types.py); rows.py puts those of a
launch together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from collbench.core.errors import UsageError
from collbench.records import origins, stats, traffic
from collbench.records.choice import wire_factor, without_effect, worded
from collbench.records.types import (
    PER_RANK_SAMPLES,
    SCHEMA,
    Cache,
    Choice,
    End,
    FirstWrong,
    GpuState,
    HostInfo,
    Pairing,
    RankInfo,
    Record,
    Run,
    RunFile,
    Time,
    ToolTime,
    World,
)
from collbench.suite.case import Case
from collbench.suite.sweep import Suite

__all__ = [
    "PER_RANK_SAMPLES",
    "SCHEMA",
    "Cache",
    "Choice",
    "Derived",
    "Digested",
    "End",
    "FirstWrong",
    "GpuState",
    "HostInfo",
    "Pairing",
    "RankInfo",
    "Record",
    "Run",
    "RunFile",
    "Time",
    "ToolTime",
    "World",
    "derive",
]


NO_SAMPLE = (  # how the note of a case begins that ran, but was disturbed all the time
    "no valid sample"
)

NO_TIME_LEFT = "dropped for --budget"  # how the note of a case begins that there was no time for
NOT_OPENED = "not opened: "  # how the note of a case begins whose backend could not be opened

SENSITIVE = "arrival-sensitive"

ARRIVAL_MATTERS = 1.25  # from this ratio of the two cadences' medians on

INVALID = "invalid!"

# Flags of rows whose time is used nowhere, and why
EXCLUDED = {
    **origins.having("excluded"),
    INVALID: "more than a quarter of the samples had to be repeated",
}

FEWEST_SAMPLES, FEW = 6, "n<6"
LAUNCH_BOUND = 0.05  # of a sample: hosts that wait for their devices for less issue too slowly

# Flags of rows that are shown and decide nothing
UNGATED = (
    "imported",
    "injected",
    *origins.having("ungated"),
    "shared-gpu",
    "oversubscribed",
    FEW,
    "skewed!",
    "overhead!",
    SENSITIVE,
    "apart",
    "cut-short",
)

# Flags of rows whose own time stands for no whole run; the vague ones only where the interval
# is wider than a tenth to either side, whatever was asked for
DOUBTFUL = frozenset({FEW, "bimodal", "invalid", INVALID, "skewed!", "overhead!", "cut-short"})
VAGUE, WIDE = frozenset({"unconverged", "unsteady"}), 0.1


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says, derived. Times in nanoseconds per call, bandwidths in GB/s (1e9), None
    where undefined.

    ``lo`` and ``hi`` bound the median at 95 %; ``p95`` and ``p99`` are None with too few samples to
    bound them. ``gateable`` is false where the protocol was broken so far that no verdict may rest
    on the row. ``skew`` and ``lateness`` (stats.lateness, by rank) are those of a sample, however
    many calls it has. ``host`` and ``device`` are medians by either clock, where there is a device;
    ``median`` is one of them, as the mode wants it. ``chose`` says in words what the library ran;
    ``control`` is the median in the other cadence: of calls as a program makes them where the case
    aligns ranks, else of aligned ones; ``sensitive``: it is another time for how ranks arrive.
    Where ranks come apart on purpose, ``median`` counts from the last one's arrival, ``skew`` is
    how far apart they came, and ``absorbed`` the share of it that did not prolong the call.
    ``wirebw`` is what goes through each GPU's port the busier way, where that is known not to be
    busbw. ``clock_error`` is that of ``t_glob``, ``skew`` and ``lateness`` where they rest on the
    clocks of several hosts. ``modes`` are the two times around which samples gather, ``mode_share``
    how many of them around the first, and ``in_stretches`` whether they stay there for long.
    ``slow_rank`` leaves last though nobody came late: of ranks on one clock. Ranks are the world's,
    whatever groups there are. ``wire``, ``carried`` and ``moves`` are traffic.Traffic's.
    """

    samples: int
    n_eff: float
    median: float
    lo: float
    hi: float
    min: float
    mean: float
    max: float
    mad: float
    p95: float | None
    p99: float | None
    t_glob: float | None
    skew: float | None
    overhead: float
    algbw: float
    busbw: float | None
    severe_outliers: int
    late_rank: int | None
    modes: tuple[float, float] | None
    flags: tuple[str, ...]
    gateable: bool
    lateness: tuple[float, ...] = ()
    host: float | None = None
    device: float | None = None
    chose: str = ""
    wirebw: float | None = None
    clock_error: float = 0.0
    slow_rank: int | None = None
    control: float | None = None
    sensitive: bool = False
    absorbed: float | None = None
    mode_share: float | None = None
    in_stretches: bool | None = None
    wire: float | None = None
    carried: float = 1.0
    moves: str = ""


class Digested(Record, frozen=True, kw_only=True, tag="record"):
    """A record for showing: its ``row`` was derived while it was read, and then what takes most
    room left out of it, which is all per-sample values but ``times_ns``."""

    row: Derived | None


def derive(record: Record, world: World | None = None) -> Derived | None:
    """Everything shown of a record that was measured or predicted; None for one that was not."""
    if isinstance(record, Digested):
        return record.row
    if record.told:
        return _told(record, record.told, world)
    if not record.times_ns or record.status == "failed":
        return None
    times = np.asarray(record.times_ns, dtype=float) / record.inner
    n_eff = stats.n_eff(times)
    ordered = np.sort(times)
    median, lo, hi = stats.median_interval(ordered, n_eff)
    skew = stats.median(record.skew_ns) if record.skew_ns else None
    late, slow, lateness = _ranks(record, world)
    modal = _modal(times, ordered)
    changing = _changing(record, times, modal["modes"], (lo, hi))
    control, sensitive = _control(record, median, lo, hi)
    apart = sensitive and record.case.mode != "host"
    flags = _flags(record, world, median, skew, late, changing) + (SENSITIVE,) * apart
    algbw, counted = _algbw(record.case, median), traffic.traffic(record, world)
    flags += ("no-splits",) if math.isnan(algbw) else ()
    flags += ("wire",) if counted.carried > 1 else ()
    return Derived(
        **_spread(ordered),
        n_eff=n_eff,
        median=median,
        lo=lo,
        hi=hi,
        t_glob=stats.median(record.glob_ns) / record.inner if record.glob_ns else None,
        **_clocks(record, median),
        skew=skew,
        overhead=record.overhead_ns / record.inner,
        algbw=algbw,
        busbw=_busbw(record.case, algbw),
        late_rank=late,
        flags=flags,
        lateness=lateness,
        gateable=not {*EXCLUDED, *UNGATED} & set(flags),
        chose=worded(record.chose),
        wirebw=_wirebw(record, world, algbw),
        clock_error=record.clock_error_ns,
        slow_rank=slow,
        control=control,
        sensitive=sensitive,
        absorbed=_absorbed(record, modal["modes"]),
        **modal,
        **counted._asdict(),
    )


def derive_in_run(record: Record, world: World | None, suite: Suite) -> Derived | None:
    """What is derived of a record of a run of ``suite``. Where a case's time is divided among
    launches, no launch is asked to converge: what they come to together is judged."""
    row = derive(record, world)
    if row is None or not suite.in_launches or "unconverged" not in row.flags:
        return row
    flags = tuple(flag for flag in row.flags if flag != "unconverged")
    return msgspec.structs.replace(row, flags=flags)


def _spread(ordered: stats.Floats) -> dict[str, Any]:
    """What is derived of the sorted times alone."""
    return {
        "samples": len(ordered),
        "min": ordered.item(0),
        "mean": ordered.sum().item() / len(ordered),
        "max": ordered.item(-1),
        "mad": stats.mad(ordered),
        "p95": stats.quantile(ordered, 0.95),
        "p99": stats.quantile(ordered, 0.99),
        "severe_outliers": stats.outliers(ordered)[1],
    }


def _control(record: Record, median: float, lo: float, hi: float) -> tuple[float | None, bool]:
    """The median in the other cadence, and whether it is another time: far from ``median``, which
    is between ``lo`` and ``hi``, and with an interval of its own that does not touch that one."""
    if not record.control_ns:
        return None, False
    times = np.asarray(record.control_ns, dtype=float) / (record.control_inner or record.inner)
    control, least, most = stats.median_interval(np.sort(times), stats.n_eff(times))
    far = max(control, median) > ARRIVAL_MATTERS * min(control, median)
    arrives = record.case.mode != "streaming" and not record.case.arrival
    return control, arrives and far and (least > hi or most < lo)


def _absorbed(record: Record, modes: tuple[float, float] | None) -> float | None:
    """1 - (T - T0) / spread, where T is from the first arrival to the last end and T0 the time of
    calls whose ranks arrive together. None where T - T0 is not known to a quarter of the spread,
    nor where a call would have to be quicker for coming apart: T0 is of another mode then."""
    if not (record.case.arrival and record.glob_ns and record.skew_ns and record.control_ns):
        return None
    if modes or not (spread := stats.median(record.skew_ns)):
        return None
    whole, together = (
        stats.median_interval(np.sort(times), stats.n_eff(times))
        for times in (np.asarray(of, dtype=float) for of in (record.glob_ns, record.control_ns))
    )
    unsure = math.hypot(whole[2] - whole[1], together[2] - together[1]) / 2
    absorbed = 1 - (whole[0] - together[0]) / spread
    return absorbed if unsure <= spread / 4 and absorbed <= 1 + 1 / 4 else None


def _modal(times: stats.Floats, ordered: stats.Floats) -> dict[str, Any]:
    """The fields that two modes fill; ``times`` in the order measured, and sorted. A sample belongs
    to the mode that is nearer by its logarithm."""
    modes = stats.modes(ordered)
    if modes is None:
        return {"modes": None}
    second = times > math.sqrt(modes[0] * modes[1])
    share = float(np.mean(~second))
    return {"modes": modes, "mode_share": share, "in_stretches": stats.in_stretches(second)}


def _changing(
    record: Record,
    times: stats.Floats,
    modes: tuple[float, float] | None,
    interval: tuple[float, float],
) -> dict[str, bool]:
    """The flags of times that are not of one kind. Those that had not settled when warm-up ended
    are unsteady where samples went on changing: by halves farther apart than the interval is wide,
    or so much that there is none. Where the interval is as narrow as asked for, two modes within it
    do not matter."""
    lo, hi = interval
    wandered = not (math.isfinite(hi - lo) and stats.moved(times) <= hi - lo)
    inside = record.stop == "converged" and modes is not None and lo <= modes[0] <= modes[1] <= hi
    unsteady = not record.steady and wandered
    bimodal = modes is not None and not inside
    return {"unsteady": unsteady, "bimodal": bimodal}


def _ranks(record: Record, world: World | None) -> tuple[int | None, int | None, tuple[float, ...]]:
    """The rank that comes late, the one that leaves last though nobody is late, both as the world
    counts them, and how late each rank is."""
    per_rank = np.asarray(record.per_rank, dtype=float)
    starts = np.asarray(record.starts_ns, dtype=float)
    timed = bool(record.starts_ns)
    told = record.case.row.synchronising or timed
    lateness = tuple(stats.lateness(per_rank, starts)) if told else ()
    late = slow = None
    if names_ranks(record, world, lateness):
        late = stats.straggler(per_rank, starts)
        slow = stats.dawdler(per_rank, starts) if late is None and timed else None
    late, slow = (place if place is None else record.case.members[place] for place in (late, slow))
    return late, slow, lateness


def names_ranks(record: Record, world: World | None, lateness: Sequence[float]) -> bool:
    """Whether a late rank of the record would be named: ranks on cores of their own wait for each
    other, come when they can, and enough samples say when each came."""
    waits = record.case.row.synchronising and not record.case.arrival
    enough = len(lateness) > 1 and len(record.times_ns) >= stats.NAMING
    return waits and enough and world is not None and not world.oversubscribed


def _clocks(record: Record, median: float) -> dict[str, Any]:
    """Medians by the host's clock and by the device's, where there is a device."""
    host, device = (
        stats.median(other) if other else None for other in (record.host_ns, record.device_ns)
    )
    if record.clock == "device":
        return {"host": host, "device": median}
    if device is None:
        return {"host": host, "device": None}
    return {"host": median, "device": device / record.inner}


def _algbw(case: Case, median: float) -> float:
    """nan where the file that says how data is split cannot be read any more."""
    try:
        return case.moved / median if median else 0.0
    except UsageError:
        return math.nan


def _busbw(case: Case, algbw: float) -> float | None:
    if case.n == 1 or not case.row.moves_data or math.isnan(algbw):
        return None
    return algbw * case.row.busbw(case.n)


def _wirebw(record: Record, world: World | None, algbw: float) -> float | None:
    """Known only of GPUs behind one switch, which those of one host are."""
    alone = world is not None and len({info.host for info in world.ranks}) == 1
    factor = wire_factor(record.case.collective, record.case.n, record.chose) if alone else None
    return None if factor is None else factor * algbw


class Interval(Protocol):
    """A time with its interval and flags."""

    @property
    def median(self) -> float: ...
    @property
    def lo(self) -> float: ...
    @property
    def hi(self) -> float: ...
    @property
    def flags(self) -> tuple[str, ...]: ...


def doubts(row: Interval) -> list[str]:
    """The flags for which a time does not stand for a whole run; none where it may."""
    wide = not max(row.hi - row.median, row.median - row.lo) <= WIDE * row.median
    return [flag for flag in row.flags if flag in (DOUBTFUL | VAGUE if wide else DOUBTFUL)]


def _told(record: Record, told: ToolTime, world: World | None) -> Derived | None:
    """The row of an imported record, which never gates: of its samples if it has any, else with nan
    for what the tool did not tell. Its quantiles stand only where as many samples could bound them.
    """
    waits = record.case.mode == "streaming" and record.sync == "barrier"
    if record.times_ns:
        row = derive(msgspec.structs.replace(record, told=None), world)
        return row and msgspec.structs.replace(
            row, flags=("imported", *["blocking"] * waits, *row.flags), gateable=False
        )
    scale = 1000  # so that whole numbers keep fractions of a nanosecond
    one = msgspec.structs.replace(
        record, told=None, times_ns=[round(told.time * scale)], inner=scale
    )
    row = derive(one, world)
    return row and msgspec.structs.replace(
        row,
        samples=told.samples,
        n_eff=math.nan,
        mad=math.nan,
        mean=told.time if told.over == "mean" else math.nan,
        min=math.nan if told.min is None else told.min,
        max=math.nan if told.max is None else told.max,
        p95=_bounded(told.p95, told.samples, 0.95),
        p99=_bounded(told.p99, told.samples, 0.99),
        flags=("imported", *["blocking"] * waits, *(flag for flag in row.flags if flag != FEW)),
        gateable=False,
    )


def _bounded(value: float | None, samples: int, q: float) -> float | None:
    """``value`` where so many samples bound their quantile ``q``."""
    enough = value is not None and samples and stats.interval_ranks(min(samples, 1000), q)
    return value if enough else None


def _flags(
    record: Record,
    world: World | None,
    median: float,
    skew: float | None,
    late: int | None,
    changing: Mapping[str, bool],
) -> tuple[str, ...]:
    """Short words for what a reader must know; ``!`` marks the grade at which a row may not
    gate. A rank on Gloo is preempted by Gloo's own thread on a quiet machine too, and ranks that
    share cores by each other: it counts only where other processes were at work besides."""
    dropped = (replaced := sum(record.invalid.values())) / (replaced + len(record.times_ns))
    overhead = record.overhead_ns / record.inner
    least = max(median, stats.TINY)  # a coarse clock can measure nothing at all
    alone = record.sync == "none" or record.case.arrival  # nothing aligns ranks, or all but
    apart = 0.0 if alone else (skew or 0) / record.inner / least
    found = {
        "injected": bool(record.injected),
        **origins.flags(record, world),
        "shared-gpu": bool(world and world.shared_gpu),
        "launch-bound": (
            record.case.mode == "streaming"
            and record.waited is not None
            and record.waited < LAUNCH_BOUND
        ),
        "throttled": any(state.is_held_back for state in record.gpus),
        "no-effect": bool(without_effect(record.case.env, record.case.collective, record.chose)),
        "oversubscribed": bool(world and world.oversubscribed),
        FEW: len(record.times_ns) < FEWEST_SAMPLES and record.status == "ok",
        "cut-short": record.stop == "cut",
        "unconverged": record.stop in ("budget", "max_n"),
        "unsteady": changing["unsteady"],
        _graded("skewed", apart): apart > 0.05,
        _graded("overhead", overhead / least): overhead > 0.05 * median,
        _graded("invalid", dropped, 0.25): dropped > 0.05,
        "bimodal": changing["bimodal"],
        "preempted": record.preempted > 0.05 * len(record.times_ns)
        and any(load.busy for load in record.load.values())
        and not (world and world.oversubscribed),
        f"late:{late}": late is not None,
        "apart": bool(record.case.arrival),
        "+copy": record.copies_first,
        "few-buffers": record.cache == "shrunk",
    }
    return tuple(flag for flag, holds in found.items() if holds)


def _graded(flag: str, share: float, severe: float = 0.20) -> str:
    return flag + "!" if share > severe else flag


def told_over(record: Record) -> str:
    """What another tool's time is of, in words; nothing where there are samples."""
    told = record.told if not record.times_ns else None
    ranks = {"mean": "mean over ranks", "rank 0": "of rank 0"}
    return (
        f"{told.over} over iterations, {ranks.get(told.ranks, f'of the {told.ranks} rank')}"
        if told
        else ""
    )
