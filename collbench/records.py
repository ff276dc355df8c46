"""The one place where everything shown of a run is derived from its lines (lines.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from collbench import choice, stats
from collbench.errors import UsageError
from collbench.lines import (
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
    Told,
    World,
)  # fmt: skip
from collbench.suite import Case

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "PER_RANK_SAMPLES", "SCHEMA", "Cache", "Choice", "Digested", "End", "FirstWrong", "GpuState", "HostInfo", "Pairing",
    "RankInfo", "Record", "Row", "Run", "RunFile", "Time", "Told", "World", "derive", "derived", "frame",
]  # fmt: skip


NO_SAMPLE = "no valid sample"  # how the note of a case begins that ran, but was disturbed all the time
# Flags with which no verdict may rest on a row
UNFIT = frozenset(
    {"injected", "oversubscribed", "interpreted", "virtual", "shared-gpu", "skewed!", "overhead!", "invalid!", "n<6"}
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says, derived. Times in nanoseconds per call, bandwidths in GB/s (1e9), None where undefined.

    ``lo`` and ``hi`` bound the median at 95 %; ``p95`` and ``p99`` are None with too few samples to bound them.
    ``gateable`` is false where the protocol was broken so far that no verdict may rest on the row.
    ``skew`` and ``lateness`` (stats.lateness, by rank) are those of a sample, however many calls it has. ``host`` and
    ``device`` are medians by either clock, where there is a device; ``median`` is one of them, as the mode wants it.
    ``chose`` says in words what the library ran; ``wirebw`` is what goes through each GPU's port the busier way, where
    that is known not to be busbw. ``clock_error`` is that of ``t_glob``, ``skew`` and ``lateness`` where they rest on
    the clocks of several hosts. ``slow_rank`` leaves last though nobody came late: of ranks on one clock. Ranks are
    the world's, whatever groups there are.
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


class Digested(Record, frozen=True, kw_only=True, tag="record"):
    """A record for showing: its ``row`` was derived while it was read, and then what takes most room left out of it,
    which is all per-sample values but ``times_ns``."""

    row: Row | None


def derive(record: Record, world: World | None = None) -> Row | None:
    """Everything shown of a record that was measured or predicted; None for one that was not."""
    if isinstance(record, Digested):
        return record.row
    if record.told:
        return _told(record, record.told, world)
    if not record.times_ns:
        return None
    times = np.asarray(record.times_ns, dtype=float) / record.inner
    n_eff = stats.n_eff(times)
    ordered = np.sort(times)
    median, lo, hi = stats.median_interval(ordered, n_eff)
    skew = stats.median(record.skew_ns) if record.skew_ns else None
    per_rank, starts = np.asarray(record.per_rank, dtype=float), np.asarray(record.starts_ns, dtype=float)
    synchronising = record.case.row.synchronising
    telling = synchronising and world and not world.oversubscribed
    late = stats.straggler(per_rank, starts) if telling else None
    slow = stats.dawdler(per_rank, starts) if telling and late is None and record.starts_ns else None
    late, slow = (place if place is None else record.case.members[place] for place in (late, slow))
    modes = stats.modes(ordered)
    overhead = record.overhead_ns / record.inner
    flags = _flags(record, world, median, skew, overhead, late, modes)
    host, device = (stats.median(other) if other else None for other in (record.host_ns, record.device_ns))
    if record.clock == "device":
        device = median
    elif device is not None:
        host, device = median, device / record.inner
    algbw = _algbw(record.case, median)
    flags += ("no-splits",) if math.isnan(algbw) else ()
    no_bus = record.case.n == 1 or record.case.collective == "barrier" or math.isnan(algbw)
    return Row(
        samples=len(times), n_eff=n_eff, median=median, lo=lo, hi=hi,
        min=ordered.item(0), mean=times.sum().item() / len(times), max=ordered.item(-1), mad=stats.mad(ordered),
        p95=stats.quantile(ordered, 0.95), p99=stats.quantile(ordered, 0.99),
        t_glob=stats.median(record.glob_ns) / record.inner if record.glob_ns else None,
        host=host, device=device, skew=skew, overhead=overhead, algbw=algbw,
        busbw=None if no_bus else algbw * record.case.row.busbw(record.case.n),
        severe_outliers=stats.outliers(ordered)[1], late_rank=late, modes=modes, flags=flags,
        lateness=tuple(stats.lateness(per_rank, starts)) if synchronising or record.starts_ns else (),
        gateable=not UNFIT & set(flags), chose=choice.worded(record.chose), wirebw=_wirebw(record, world, algbw),
        clock_error=record.clock_error_ns, slow_rank=slow,
    )  # fmt: skip


def _algbw(case: Case, median: float) -> float:
    """nan where the file that says how data is split cannot be read any more."""
    try:
        return case.moved / median if median else 0.0
    except UsageError:
        return math.nan


def _wirebw(record: Record, world: World | None, algbw: float) -> float | None:
    """Known only of GPUs behind one switch, which those of one host are."""
    alone = world is not None and len({info.host for info in world.ranks}) == 1
    factor = choice.wire_factor(record.case.collective, record.case.n, record.chose) if alone else None
    return None if factor is None else factor * algbw


def _told(record: Record, told: Told, world: World | None) -> Row | None:
    """The row of an imported record, which never gates: of its samples if it has any, else with nan for what the tool
    did not tell. Its quantiles stand only where as many samples could bound them."""
    waits = record.case.mode == "streaming" and record.sync == "barrier"
    if record.times_ns:
        row = derive(msgspec.structs.replace(record, told=None), world)
        return row and msgspec.structs.replace(
            row, flags=("imported", *["blocking"] * waits, *row.flags), gateable=False
        )
    scale = 1000  # so that whole numbers keep fractions of a nanosecond
    one = msgspec.structs.replace(record, told=None, times_ns=[round(told.time * scale)], inner=scale)
    row = derive(one, world)
    return row and msgspec.structs.replace(
        row, samples=told.samples, n_eff=math.nan, mad=math.nan,
        mean=told.time if told.over == "mean" else math.nan,
        min=math.nan if told.min is None else told.min, max=math.nan if told.max is None else told.max,
        p95=_bounded(told.p95, told.samples, 0.95), p99=_bounded(told.p99, told.samples, 0.99),
        flags=("imported", *["blocking"] * waits, *(flag for flag in row.flags if flag != "n<6")), gateable=False,
    )  # fmt: skip


def _bounded(value: float | None, samples: int, q: float) -> float | None:
    """``value`` where so many samples bound their quantile ``q``."""
    enough = value is not None and samples and stats.interval_ranks(min(samples, 1000), q)
    return value if enough else None


def _flags(
    record: Record, world: World | None, median: float, skew: float | None, overhead: float,
    late: int | None, modes: tuple[float, float] | None,
) -> tuple[str, ...]:  # fmt: skip
    """Short words for what a reader must know; ``!`` marks the grade at which a row may not gate."""
    dropped = (replaced := sum(record.invalid.values())) / (replaced + len(record.times_ns))
    least = max(median, stats.TINY)  # a coarse clock can measure nothing at all
    apart = (skew or 0) / record.inner / least if record.sync != "none" else 0.0
    found = {
        "injected": bool(record.injected),
        "predicted": record.status == "predicted",
        "interpreted": bool(world and world.interpreted),
        "virtual": bool(world and world.virtual),
        "shared-gpu": bool(world and world.shared_gpu),
        "throttled": any(state.throttle for state in record.gpus),
        "no-effect": bool(choice.without_effect(record.case.env, record.case.collective, record.chose)),
        "oversubscribed": bool(world and world.oversubscribed),
        "n<6": len(record.times_ns) < 6 and record.status == "ok",
        "unconverged": record.stop in ("budget", "max_n"),
        "unsteady": not record.steady,
        _graded("skewed", apart): apart > 0.05,
        _graded("overhead", overhead / least): overhead > 0.05 * median,
        _graded("invalid", dropped, 0.25): dropped > 0.05,
        "bimodal": modes is not None,
        f"late:{late}": late is not None,
        "+copy": record.copies_first,
        "few-buffers": record.cache == "shrunk",
    }
    return tuple(flag for flag, holds in found.items() if holds)


def _graded(flag: str, share: float, severe: float = 0.20) -> str:
    return flag + "!" if share > severe else flag


def derived(file: RunFile) -> list[Row | None]:
    """What derive says of each of ``file.records``, in their order."""
    worlds = {w.index: w for w in file.worlds}
    return [derive(record, worlds.get(record.world)) for record in file.records]


def frame(files: Sequence[RunFile]) -> pd.DataFrame:
    """One line per record of every run: case fields, status, and every derived column of Row."""
    import pandas as pd

    table = []
    for file in files:
        for record, row in zip(file.records, derived(file), strict=True):
            case, said = record.case, ("status", "note", "wrong", "rotation", "sync")
            own = {"implementation": case.label, "count": case.count, "size": case.size}
            own |= {name: getattr(record, name) for name in said} | (msgspec.structs.asdict(row) if row else {})
            table.append({"run": file.run.id, **msgspec.structs.asdict(case), **own})
    return pd.DataFrame(table)
