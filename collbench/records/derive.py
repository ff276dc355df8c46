"""The numbers of a single record, derived from its raw values (types.py); rows.py puts those of a
launch together.

What a library said it ran: in words, beside what was asked of it, and what that moves over the
wires.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.records import stats, traffic
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

INVALID = "invalid!"  # over a quarter of the samples replaced: the time is shown nowhere

FEWEST_SAMPLES, FEW = 6, "n<6"

# Flags of rows that are shown and decide nothing
UNGATED = (
    "imported",
    "injected",
    "interpreted",
    "virtual",
    "shared-gpu",
    "oversubscribed",
    FEW,
    "skewed!",
    "overhead!",
)


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says, derived. Times in nanoseconds per call, bandwidths in GB/s (1e9), None
    where undefined.

    ``lo`` and ``hi`` bound the median at 95 %; ``p95`` and ``p99`` are None with too few samples to
    bound them. ``gateable`` is false where the protocol was broken so far that no verdict may rest
    on the row. ``skew`` and ``lateness`` (stats.lateness, by rank) are those of a sample, however
    many calls it has. ``host`` and ``device`` are medians by either clock, where there is a device;
    ``median`` is one of them, as the mode wants it. ``chose`` says in words what the library ran;
    ``wirebw`` is what goes through each GPU's port the busier way, where that is known not to be
    busbw. ``clock_error`` is that of ``t_glob``, ``skew`` and ``lateness`` where they rest on the
    clocks of several hosts. ``slow_rank`` leaves last though nobody came late: of ranks on one
    clock. Ranks are the world's, whatever groups there are. ``wire``, ``carried`` and ``moves`` are
    traffic.Traffic's.
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
    if not record.times_ns:
        return None
    times = np.asarray(record.times_ns, dtype=float) / record.inner
    n_eff = stats.n_eff(times)
    ordered = np.sort(times)
    median, lo, hi = stats.median_interval(ordered, n_eff)
    skew = stats.median(record.skew_ns) if record.skew_ns else None
    late, slow, lateness = _ranks(record, world)
    modes = stats.modes(ordered)
    overhead = record.overhead_ns / record.inner
    algbw, counted = _algbw(record.case, median), traffic.traffic(record, world)
    flags = _flags(record, world, median, skew, overhead, late, modes)
    flags += ("no-splits",) if math.isnan(algbw) else ()
    flags += ("wire",) if counted.carried > 1 else ()
    return Derived(
        samples=len(times),
        n_eff=n_eff,
        median=median,
        lo=lo,
        hi=hi,
        min=ordered.item(0),
        mean=times.sum().item() / len(times),
        max=ordered.item(-1),
        mad=stats.mad(ordered),
        p95=stats.quantile(ordered, 0.95),
        p99=stats.quantile(ordered, 0.99),
        t_glob=stats.median(record.glob_ns) / record.inner if record.glob_ns else None,
        **_clocks(record, median),
        skew=skew,
        overhead=overhead,
        algbw=algbw,
        busbw=_busbw(record.case, algbw),
        severe_outliers=stats.outliers(ordered)[1],
        late_rank=late,
        modes=modes,
        flags=flags,
        lateness=lateness,
        gateable=not {INVALID, *UNGATED} & set(flags),
        chose=worded(record.chose),
        wirebw=_wirebw(record, world, algbw),
        clock_error=record.clock_error_ns,
        slow_rank=slow,
        **counted._asdict(),
    )


def _ranks(record: Record, world: World | None) -> tuple[int | None, int | None, tuple[float, ...]]:
    """The rank that comes late, the one that leaves last though nobody is late, both as the world
    counts them, and how late each rank is."""
    per_rank = np.asarray(record.per_rank, dtype=float)
    starts = np.asarray(record.starts_ns, dtype=float)
    synchronising, timed = record.case.row.synchronising, bool(record.starts_ns)
    late = slow = None
    if synchronising and world and not world.oversubscribed:
        late = stats.straggler(per_rank, starts)
        slow = stats.dawdler(per_rank, starts) if late is None and timed else None
    late, slow = (place if place is None else record.case.members[place] for place in (late, slow))
    lateness = tuple(stats.lateness(per_rank, starts)) if synchronising or timed else ()
    return late, slow, lateness


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
    overhead: float,
    late: int | None,
    modes: tuple[float, float] | None,
) -> tuple[str, ...]:
    """Short words for what a reader must know; ``!`` marks the grade at which a row may not
    gate."""
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
        "no-effect": bool(without_effect(record.case.env, record.case.collective, record.chose)),
        "oversubscribed": bool(world and world.oversubscribed),
        FEW: len(record.times_ns) < FEWEST_SAMPLES and record.status == "ok",
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


# NCCL's implementations in which the switch adds up or multiplies data, all on one NVLink domain
IN_SWITCH = frozenset(
    {
        ("NVLS", "Simple"),
        ("Symmetric", "RSxLDMC_AGxSTMC"),
        ("Symmetric", "STMC"),
        ("Symmetric", "TmaSTMC"),
        ("Symmetric", "LDMC"),
    }
)


def worded(choice: Choice | None) -> str:
    """Algorithm, protocol, channels and transport, as in Ring/LL128 x24 P2P; empty where nothing is
    known."""
    if choice is None:
        return ""
    what = "/".join(filter(None, (choice.algorithm, choice.protocol)))
    channels = f"x{choice.channels}" if choice.channels else ""
    return " ".join(filter(None, (what, channels, choice.transport)))


def told_over(record: Record) -> str:
    """What another tool's time is of, in words; nothing where there are samples."""
    told = record.told if not record.times_ns else None
    ranks = {"mean": "mean over ranks", "rank 0": "of rank 0"}
    return (
        f"{told.over} over iterations, {ranks.get(told.ranks, f'of the {told.ranks} rank')}"
        if told
        else ""
    )


def without_effect(env: Iterable[tuple[str, str]], collective: str, choice: Choice | None) -> str:
    """Which settings NCCL did not follow, as in "NCCL_ALGO=Tree asked, NCCL ran Ring"; empty where
    it did, and where that cannot be told. Fewer channels than asked are told too, although NCCL
    gives few to small messages anyway.
    """
    found = []
    for name, value in env:
        ran = SETTINGS[name](value, collective, choice) if choice and name in SETTINGS else ""
        found += [f"{name}={value} asked, NCCL ran {ran}"] if ran else []
    return "; ".join(found)


def wire_factor(collective: str, n: int, choice: Choice | None) -> float | None:
    """Bytes through the busier direction of each GPU's port, for one byte of the collective's size,
    where a switch combines or multiplies the data of ``n`` GPUs, all on it; None for transfers
    between GPUs (for which busbw stands), and where nobody knows.

    Each GPU stands for 1/n of the S bytes. To reduce them, it asks the switch for the sum, which
    the switch fetches from all n: every GPU sends all S and takes in S/n. To give them to all, it
    sends S/n to the switch once, and every GPU takes in all S. all_reduce does both, S + S/n either
    way (as NCCL's maintainers have it: NVIDIA/nccl-tests, issue 212 and pull request 239);
    reduce_scatter does the first, all_gather the second.
    """
    if choice is None or (choice.algorithm, choice.protocol) not in IN_SWITCH:
        return None
    return {"all_reduce": 1 + 1 / n, "all_gather": 1.0, "reduce_scatter": 1.0}.get(collective)


def _allowed(value: str, collective: str, ran: str) -> bool:
    """Whether NCCL_ALGO or NCCL_PROTO admits what ran: ``ring,tree``, ``^tree``, since 2.24 also
    lists by function (``ring;allreduce:tree,collnetdirect``), of which the last that fits counts
    (ncclTopoTuneModel, parseList).
    """
    made = collective if COLLECTIVES[collective].moves_data else "all_reduce"  # torch's barrier
    function = made.replace("_", "")
    fits = True
    for entry in value.lower().split(";"):
        prefix, _, names = entry.rpartition(":")
        if names and prefix in ("", function):
            fits = (ran.lower() in names.removeprefix("^").split(",")) != names.startswith("^")
    return fits


def _algorithm(value: str, collective: str, choice: Choice) -> str:
    return "" if _allowed(value, collective, choice.algorithm) else choice.algorithm


def _protocol(value: str, collective: str, choice: Choice) -> str:
    return "" if _allowed(value, collective, choice.protocol) else choice.protocol


def _at_least(value: str, collective: str, choice: Choice) -> str:
    few = re.fullmatch(r"\d+", value) and choice.channels < int(value)
    return f"{choice.channels} channels" if few and choice.channels else ""


def _at_most(value: str, collective: str, choice: Choice) -> str:
    return (
        f"{choice.channels} channels"
        if re.fullmatch(r"\d+", value) and choice.channels > int(value)
        else ""
    )


# each says what ran instead, in words, or nothing
SETTINGS: dict[str, Callable[[str, str, Choice], str]] = {
    "NCCL_ALGO": _algorithm,
    "NCCL_PROTO": _protocol,
    "NCCL_MIN_NCHANNELS": _at_least,
    "NCCL_MAX_NCHANNELS": _at_most,
    "NCCL_MIN_CTAS": _at_least,
    "NCCL_MAX_CTAS": _at_most,
}
