"""What a run leaves behind, raw values only; and the one place where everything shown of it is derived.

A run's file (store.py) is one JSON object per line: a Run (what was asked, when, on what), a World for each process
group, a Record per case as it ends, and an End; a file without an End was cut short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from collbench import stats
from collbench.errors import UsageError
from collbench.suite import Case, Policy, Positive, Suite, Whole

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
PER_RANK_SAMPLES = 200  # of every rank's own times, this many samples are kept

Cache = Literal["", "cold", "hot", "small", "shrunk"]
Status = Literal["ok", "predicted", "skipped", "wrong", "failed"]
Time = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]  # nanoseconds of a call, up to eleven days


class _Line(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="line", omit_defaults=True
):
    pass


class Pairing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a run belongs to an interleaved comparison: two runs, one a side, share ``experiment``.
    ``variant`` is the side as it was given. ``differs`` names the fields of Case that the variants set, on which
    rows of both sides are therefore not joined. ``aa`` says that both sides are the same on purpose.
    """

    experiment: str
    side: Literal["base", "head"]
    variant: str
    differs: tuple[str, ...] = ()
    aa: bool = False


class Run(_Line, frozen=True, tag="run"):
    """What was asked for, when and where. ``environment`` is environment.gather()'s allow-listed description.
    ``imported`` names the tool whose output the run was read from, and then what is not known of it is left empty.
    """

    id: str
    started: str
    command: list[str]
    suite: Suite
    policy: Policy
    environment: dict[str, Any]
    schema: int = SCHEMA
    tag: str = ""
    pairing: Pairing | None = None
    imported: str = ""


class RankInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a rank lives: host, process, the CPUs it may use and the device that holds its buffers."""

    rank: int
    host: str
    pid: int
    cpus: list[int]
    device: str = "cpu"
    numa: int = -1


class World(_Line, frozen=True, tag="world"):
    """One process group. Records name it by ``index``; times in nanoseconds.
    In an interleaved comparison, worlds of the same ``stage`` (1 or 2) and ``round`` (from 0) are one launch, paired
    with the other side's; elsewhere both are 0 and every world is a launch of its own.
    """

    index: int
    backend: str
    n: int
    env: tuple[tuple[str, str], ...]
    launcher: str
    ranks: list[RankInfo]
    oversubscribed: bool
    same_clock: bool
    library: str = ""
    init_ns: int = 0
    stage: int = 0
    round: int = 0


class FirstWrong(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first element that differs: rank, index in its receive buffer, and both values with their bits."""

    rank: int
    index: int
    got: str
    expected: str
    when: str = ""


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What another tool printed in place of samples: nanoseconds a call, None where it printed nothing of the kind.

    ``time`` is the mean or median (``over``) of ``samples`` timings (0: not known how many), each the time of
    ``ranks``. The others are over samples too, but ``by_rank``: the means of the fastest, of all, of the slowest rank.
    """

    time: Time
    over: Literal["mean", "median"] = "mean"
    ranks: Literal["mean", "rank 0", "fastest", "slowest"] = "mean"
    samples: Whole = 0
    min: Time | None = None
    max: Time | None = None
    p50: Time | None = None
    p95: Time | None = None
    p99: Time | None = None
    by_rank: tuple[Time, Time, Time] | None = None


class Record(_Line, frozen=True, tag="record"):
    """The outcome of one case.
    ``times_ns[i]`` is the duration of sample i on its slowest rank, for ``inner`` calls; ``per_rank[r][i]`` the same
    for each rank and ``starts_ns[r][i]`` its start after the earliest rank's (first 200 samples; starts only where all
    ranks read one clock, as for ``glob_ns``, last end minus first start, and ``skew_ns``, last minus first start).
    ``invalid`` counts samples that were replaced, by cause; none is ever left out because of its value. ``rotation`` is
    how many buffer pairs took turns; ``cache`` is "small" where even all of them fit the cache, "shrunk" where memory
    allowed fewer than cold needs. ``preempted`` is how often the kernel took a rank off its core while measuring;
    ``copies_first`` says that the timed call begins with a copy because the library lacks such an out-of-place call.
    ``overhead_ns`` is the same loop around a call that does nothing. ``seconds`` is what the case took, all told.
    ``told`` marks an imported record; ``times_ns`` is then often empty. Raises ValueError where times by rank are not
    of the case's ranks, or not as many of each.
    """

    case: Case
    status: Status
    world: int = -1
    note: str = ""
    started: str = ""
    times_ns: list[Whole] = []
    per_rank: list[list[Whole]] = []
    starts_ns: list[list[Whole]] = []
    glob_ns: list[Whole] = []
    skew_ns: list[Whole] = []
    submit_ns: list[Whole] = []
    inner: Positive = 1
    setup_ns: int = 0
    warmup: int = 0
    steady: bool = True
    stop: Literal["", "converged", "max_n", "budget", "fixed"] = ""
    sync: Literal["", "window", "barrier", "none"] = ""
    overhead_ns: Whole = 0
    invalid: dict[str, Whole] = {}
    rotation: int = 1
    cache: Cache = ""
    checked: int = 0
    preempted: int = 0
    copies_first: bool = False
    wrong: int | None = None
    first_wrong: FirstWrong | None = None
    seconds: float = 0.0
    told: Told | None = None

    def __post_init__(self) -> None:
        lengths = {len(row) for row in (*self.per_rank, *self.starts_ns)}
        if len(lengths) > 1 or not {len(self.per_rank), len(self.starts_ns)} <= {0, self.case.n}:
            raise ValueError(f"times by rank are not of all {self.case.n} ranks, or not as many of each")


class End(_Line, frozen=True, tag="end"):
    """The last line of a run that was not cut short."""

    exit: int
    ended: str
    note: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says, derived. Times in nanoseconds per call, bandwidths in GB/s (1e9), None where undefined.

    ``lo`` and ``hi`` bound the median at 95 %; ``p95`` and ``p99`` are None with too few samples to bound them.
    ``gateable`` is false where the protocol was broken so far that no verdict may rest on the row.
    ``skew`` and ``lateness`` (stats.lateness, by rank) are those of a sample, however many calls it has.
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


class Digested(Record, frozen=True, kw_only=True, tag="record"):
    """A record for showing: its ``row`` was derived while it was read, and then what takes most room left out of it,
    which is all per-sample values but ``times_ns``."""

    row: Row | None


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """A run read back: its lines by kind."""

    run: Run
    worlds: list[World]
    records: list[Record]
    end: End | None
    path: Path


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
    late = stats.straggler(per_rank, starts) if synchronising and world and not world.oversubscribed else None
    modes = stats.modes(ordered)
    overhead = record.overhead_ns / record.inner
    flags = _flags(record, world, median, skew, overhead, late, modes)
    algbw = _algbw(record.case, median)
    flags += ("no-splits",) if math.isnan(algbw) else ()
    no_bus = record.case.n == 1 or record.case.collective == "barrier" or math.isnan(algbw)
    return Row(
        samples=len(times), n_eff=n_eff, median=median, lo=lo, hi=hi,
        min=ordered.item(0), mean=times.sum().item() / len(times), max=ordered.item(-1), mad=stats.mad(ordered),
        p95=stats.quantile(ordered, 0.95), p99=stats.quantile(ordered, 0.99),
        t_glob=stats.median(record.glob_ns) / record.inner if record.glob_ns else None,
        skew=skew, overhead=overhead, algbw=algbw,
        busbw=None if no_bus else algbw * record.case.row.busbw(record.case.n),
        severe_outliers=stats.outliers(ordered)[1], late_rank=late, modes=modes, flags=flags,
        lateness=tuple(stats.lateness(per_rank, starts)) if synchronising or record.starts_ns else (),
        gateable=not {"oversubscribed", "skewed!", "overhead!", "invalid!", "n<6"} & set(flags),
    )  # fmt: skip


def _algbw(case: Case, median: float) -> float:
    """nan where the file that says how data is split cannot be read any more."""
    try:
        return case.moved / median if median else 0.0
    except UsageError:
        return math.nan


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
        "predicted": record.status == "predicted",
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
