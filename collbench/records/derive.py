"""The numbers of a single record, derived from its raw values (types.py); rows.py puts those of a
launch together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from collbench.core.errors import UsageError
from collbench.records import stats, traffic
from collbench.records.choice import describe_choice, wire_factor
from collbench.records.flags import EXCLUDED, FEW, UNGATED, FlagInputs, find_flags
from collbench.records.time_summary import Modes, TimeSummary
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
from collbench.suite.policy import Policy
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
    "derive_row",
]

NO_SAMPLE = (  # how the note of a case begins that ran, but was disturbed all the time
    "no valid sample"
)

NO_TIME_LEFT = "dropped for --budget"  # how the note of a case begins that there was no time for
NOT_OPENED = "not opened: "  # how the note of a case begins whose backend could not be opened
NOT_VERIFIED = "not verified: "  # how the note of a case begins whose data could not be checked

# how the note of a case begins whose world broke once it had a first result, which its record holds
BROKE_LATER = "broke in its second pass: "

ARRIVAL_MATTERS = 1.25  # from this ratio of the two cadences' medians on


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says, derived. Times in nanoseconds per call, bandwidths in GB/s (1e9), None
    where undefined. Ranks are the world's, whatever groups there are; lateness and skew are those
    of a sample, however many calls it has."""

    times: TimeSummary  # from the last arrival, where ranks come apart on purpose
    t_glob: float | None  # last end minus first start
    skew: float | None  # how far apart ranks came
    overhead: float  # of the loop around calls
    algbw: float
    busbw: float | None
    late_rank: int | None  # last far more often than chance
    flags: tuple[str, ...]
    gateable: bool  # false: the protocol was broken so far that no verdict may
    lateness: tuple[float, ...] = ()  # by rank (stats.measure_lateness)
    host: float | None = None  # median by the host's clock, where there is a device
    device: float | None = None  # median by the device's
    chose: str = ""  # what the library ran
    wirebw: float | None = None  # through each GPU's port the busier way, where that is not busbw
    clock_error: float = 0.0  # of t_glob, skew and lateness that rest on clocks of several hosts
    slow_rank: int | None = None  # leaves last though nobody came late, of ranks on one clock
    control: float | None = None  # median in the other cadence
    sensitive: bool = False  # that is another time, for how ranks arrive
    absorbed: float | None = None  # share of a planned skew that did not prolong the call
    wire: float | None = None  # as traffic.Traffic has it, like the next two
    carried: float = 1.0
    moves: str = ""
    late_share: float = 0.0  # how late it came, of the time

    @property
    def half_width(self) -> float:
        """The larger half of the median's interval, as a share of the median."""
        return self.times.half_width


class Digested(Record, frozen=True, kw_only=True, tag="record"):
    """A record for showing: its ``row`` was derived while it was read, and then what takes most
    room left out of it, which is all per-sample values but ``times_ns``."""

    row: Derived | None


LEFT_OUT: dict[str, list[Any]] = {
    name: [] for name in ("per_rank", "starts_ns", "glob_ns", "skew_ns", "submit_ns")
}


def digest_record(record: Record, row: Derived | None) -> Digested:
    """The record for showing, of which ``row`` was derived."""
    return Digested(**(msgspec.structs.asdict(record) | LEFT_OUT), row=row)


def is_broken(record: Record) -> bool:
    """Whether the case failed, or broke in its second pass."""
    return record.status == "failed" or record.note.startswith(BROKE_LATER)


def is_without_samples(record: Record) -> bool:
    """Whether the case was measured, and every sample was replaced."""
    return record.status == "failed" and record.note.startswith(NO_SAMPLE)


def derive_row(record: Record, world: World | None = None) -> Derived | None:
    """Everything shown of a record that was measured or predicted; None for one that was not."""
    if isinstance(record, Digested):
        return record.row
    if record.told:
        return _derive_imported(record, record.told, world)
    if not record.times_ns or record.status == "failed":
        return None
    return _derive_timed(record, world)


def _derive_timed(record: Record, world: World | None, imported: bool = False) -> Derived:
    """The row of a record with times."""
    times = np.asarray(record.times_ns, dtype=float) / record.inner
    summary = TimeSummary.of(times)
    median = summary.median
    skew = stats.median(record.skew_ns) if record.skew_ns else None
    late, slow, lateness = _derive_ranks(record, world)
    control, sensitive = derive_control(record, summary)
    algbw, counted_traffic = (
        _compute_algbw(record.case, median),
        traffic.derive_traffic(record, world),
    )
    least = max(median, stats.TINY)  # a coarse clock can measure nothing at all
    alone = record.sync == "none" or record.case.arrival  # nothing aligns ranks, or all but
    repeated = sum(record.invalid.values())
    flags = find_flags(
        FlagInputs(
            record=record,
            world=world,
            skew=0.0 if alone else (skew or 0) / record.inner / least,
            overhead=record.overhead_ns / record.inner / least,
            discarded=repeated / (repeated + len(record.times_ns)),
            late_rank=late,
            **_find_changes(record, times, summary),
            is_arrival_sensitive=sensitive,
            algbw=algbw,
            traffic_factor=counted_traffic.carried,
            imported=imported,
            call_path=(record.call_path_ns or 0) / least,
        )
    )
    return Derived(
        times=summary,
        t_glob=stats.median(record.glob_ns) / record.inner if record.glob_ns else None,
        **_derive_clocks(record, median),
        skew=skew,
        overhead=record.overhead_ns / record.inner,
        algbw=algbw,
        busbw=_compute_busbw(record.case, algbw),
        late_rank=late,
        flags=flags,
        lateness=lateness,
        gateable=not {*EXCLUDED, *UNGATED} & set(flags),
        chose=describe_choice(record.chose),
        wirebw=_compute_wirebw(record, world, algbw),
        clock_error=record.clock_error_ns,
        slow_rank=slow,
        late_share=_late_share(record, late, lateness, least),
        control=control,
        sensitive=sensitive,
        absorbed=_derive_absorbed(record, summary.modes),
        **counted_traffic._asdict(),
    )


def derive_in_run(record: Record, world: World | None, suite: Suite) -> Derived | None:
    """The figures derived of a record of a run of ``suite``. Where a case's time is divided among
    launches, no launch is asked to converge: what they come to together is judged."""
    row = derive_row(record, world)
    if row is None:
        return None
    flags = row.flags
    if suite.in_launches:
        flags = tuple(flag for flag in flags if flag != "unconverged")
    known = {"imported", "predicted", "blocking"} & set(flags)
    if waits_for_all(record.case, suite.policy) and not known:
        flags = ("blocking", *flags)
    return row if flags == row.flags else msgspec.structs.replace(row, flags=flags)


def waits_for_all(case: Case, policy: Policy) -> bool:
    """Whether the time of a call includes a wait for all ranks (-z 1)."""
    return policy.blocking == 1 and not case.subject


class Interval(Protocol):
    """A median with its interval."""

    @property
    def median(self) -> float: ...
    @property
    def lo(self) -> float: ...
    @property
    def hi(self) -> float: ...


class Controlled(Protocol):
    """A record with samples in the other cadence."""

    @property
    def case(self) -> Case: ...
    @property
    def inner(self) -> int: ...
    @property
    def control_ns(self) -> Sequence[int]: ...
    @property
    def control_inner(self) -> int | None: ...


def derive_control(record: Controlled, summary: Interval) -> tuple[float | None, bool]:
    """The median in the other cadence, and whether it is another time: far from that of the
    ``summary``, and with an interval of its own that does not touch that one."""
    if not record.control_ns:
        return None, False
    times = np.asarray(record.control_ns, dtype=float) / (record.control_inner or record.inner)
    control, least, most = stats.median_interval(np.sort(times), stats.n_eff(times))
    median, lo, hi = summary.median, summary.lo, summary.hi
    far = max(control, median) > ARRIVAL_MATTERS * min(control, median)
    arrives = record.case.mode != "streaming" and not record.case.arrival
    return control, arrives and far and (least > hi or most < lo)


def _derive_absorbed(record: Record, modes: Modes | None) -> float | None:
    """1 - (T - T0) / spread, where T is from the first arrival to the last end and T0 the time of
    calls whose ranks arrive together. None where T - T0 is not known to a quarter of the spread,
    nor where a call would have to be quicker for coming apart: T0 is of another mode then."""
    if not (record.case.arrival and record.glob_ns and record.skew_ns and record.control_ns):
        return None
    if modes or not (spread := stats.median(record.skew_ns)):
        return None
    delayed, together = (
        stats.median_interval(np.sort(times), stats.n_eff(times))
        for times in (
            np.asarray(samples, dtype=float) for samples in (record.glob_ns, record.control_ns)
        )
    )
    unsure = math.hypot(delayed[2] - delayed[1], together[2] - together[1]) / 2
    absorbed = 1 - (delayed[0] - together[0]) / spread
    return absorbed if unsure <= spread / 4 and absorbed <= 1 + 1 / 4 else None


def _find_changes(record: Record, times: stats.Floats, summary: TimeSummary) -> dict[str, bool]:
    """The flags of times that are not of one kind. Those that had not settled when warm-up ended
    are unsteady where samples went on changing: by halves farther apart than the interval is wide,
    or so much that there is none. Where the interval is as narrow as asked for, two modes within it
    do not matter."""
    lo, hi, modes = summary.lo, summary.hi, summary.modes
    wandered = not (math.isfinite(hi - lo) and stats.measure_drift(times) <= hi - lo)
    unsteady = not record.steady and wandered
    bimodal = False
    if modes is not None:
        first, second = modes.times
        bimodal = not (record.stop == "converged" and lo <= first <= second <= hi)
    return {"unsteady": unsteady, "bimodal": bimodal}


def _derive_ranks(
    record: Record, world: World | None
) -> tuple[int | None, int | None, tuple[float, ...]]:
    """The rank that comes late, the one that leaves last though nobody is late, both as the world
    counts them, and how late each rank is."""
    per_rank = np.asarray(record.per_rank, dtype=float)
    starts = np.asarray(record.starts_ns, dtype=float)
    timed = bool(record.starts_ns)
    has_lateness = record.case.row.synchronising or timed
    lateness = tuple(stats.measure_lateness(per_rank, starts)) if has_lateness else ()
    late = slow = None
    if names_ranks(record, world, lateness):
        late = stats.find_straggler(per_rank, starts)
        slow = stats.find_dawdler(per_rank, starts) if late is None and timed else None
    late, slow = (
        member if member is None else record.case.members[member] for member in (late, slow)
    )
    return late, slow, lateness


def _late_share(
    record: Record, late: int | None, lateness: Sequence[float], median: float
) -> float:
    """How late the late rank came, as a share of a sample's time; 0 where there is none."""
    if late is None or not lateness:
        return 0.0
    return lateness[record.case.members.index(late)] / record.inner / median


def names_ranks(record: Record, world: World | None, lateness: Sequence[float]) -> bool:
    """Whether a late rank of the record would be named: ranks on cores of their own wait for each
    other, come when they can, and enough samples say when each came."""
    waits = record.case.row.synchronising and not record.case.arrival
    enough = len(lateness) > 1 and len(record.times_ns) >= stats.NAMING
    return waits and enough and world is not None and not world.oversubscribed


def _derive_clocks(record: Record, median: float) -> dict[str, Any]:
    """Medians by the host's clock and by the device's, where there is a device."""
    host, device = (
        stats.median(other) if other else None for other in (record.host_ns, record.device_ns)
    )
    if record.clock == "device":
        return {"host": host, "device": median}
    if device is None:
        return {"host": host, "device": None}
    return {"host": median, "device": device / record.inner}


def _compute_algbw(case: Case, median: float) -> float:
    """nan where the file that says how data is split cannot be read any more."""
    try:
        return case.moved / median if median else 0.0
    except UsageError:
        return math.nan


def _compute_busbw(case: Case, algbw: float) -> float | None:
    if case.n == 1 or not case.row.moves_data or math.isnan(algbw):
        return None
    return algbw * case.row.busbw(case.n)


def _compute_wirebw(record: Record, world: World | None, algbw: float) -> float | None:
    """Known only of GPUs behind one switch, which those of one host are."""
    factor = wire_factor(record.case.collective, record.case.n, record.chose)
    if factor is None or world is None:
        return None
    return factor * algbw if len({info.host for info in world.ranks}) == 1 else None


def _derive_imported(record: Record, printed: ToolTime, world: World | None) -> Derived | None:
    """The row of an imported record, which never gates: of its samples if it has any, else with nan
    for what the tool did not tell. Its quantiles stand only where as many samples could bound them.
    """
    if record.status == "failed":
        return None
    if record.times_ns:
        return _derive_timed(msgspec.structs.replace(record, told=None), world, imported=True)
    scale = 1000  # so that whole numbers keep fractions of a nanosecond
    scaled = msgspec.structs.replace(
        record, told=None, times_ns=[round(printed.time * scale)], inner=scale
    )
    row = _derive_timed(scaled, world, imported=True)
    times = msgspec.structs.replace(
        row.times,
        samples=printed.samples,
        n_eff=math.nan,
        mad=math.nan,
        mean=printed.time if printed.over == "mean" else math.nan,
        min=math.nan if printed.min is None else printed.min,
        max=math.nan if printed.max is None else printed.max,
        p95=_bound_quantile(printed.p95, printed.samples, 0.95),
        p99=_bound_quantile(printed.p99, printed.samples, 0.99),
    )
    flags = tuple(flag for flag in row.flags if flag != FEW)
    return msgspec.structs.replace(row, times=times, flags=flags)


def _bound_quantile(value: float | None, samples: int, q: float) -> float | None:
    """``value`` where so many samples bound their quantile ``q``."""
    enough = value is not None and samples and stats.interval_ranks(min(samples, 1000), q)
    return value if enough else None


def told_over(record: Record) -> str:
    """A clause on what another tool's time is of; "" where there are samples."""
    printed = record.told if not record.times_ns else None
    ranks = {"mean": "mean over ranks", "rank 0": "of rank 0"}
    return (
        f"{printed.over} over iterations,"
        f" {ranks.get(printed.ranks, f'of the {printed.ranks} rank')}"
        if printed
        else ""
    )
