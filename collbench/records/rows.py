"""The one table of what runs measured: a row for every run, case and launch.

A launch is one set of fresh ranks. The cycles of a launch are repetitions inside it, and their
samples are pooled. Here alone it is decided which rows are unfit and which are ungated; whoever
shows or judges times reads this table, so that a run has one median wherever it is shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from collbench.core.text import format_settings
from collbench.records import derive, paired, stats
from collbench.records.columns import COLUMNS, Kind
from collbench.records.flags import EXCLUDED, FEW, FEWEST_SAMPLES, OF_TIME, UNGATED
from collbench.records.time_summary import pool_summaries
from collbench.records.types import Record, Run, RunFile, World
from collbench.suite.case import Case

if TYPE_CHECKING:
    import pandas as pd

MEASURED = ("ok", "predicted")  # the status of a record that has a time

NO_TIME = "no time"  # a model may find that nothing takes any

FEWEST_LAUNCHES = paired.FEWEST  # from which on an interval takes no distribution for granted

_K = TypeVar("_K", bound=Hashable)


class Launch(NamedTuple):
    """One set of fresh ranks: ``world`` is the index of its process group, -1 where none came up;
    ``stage`` and ``round`` are an interleaved experiment's, elsewhere 0. Ranks that were started
    again within a round belong to its launch, of which ``world`` is the first."""

    run: str
    world: int
    stage: int
    round: int


class Cycle(NamedTuple):
    """A record behind a row: its number in the run, what is derived of it, and the reason for which
    its time does not count, or an empty string."""

    number: int
    record: Record
    derived: derive.Derived | None
    unfit: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A case (of cycle 0) in one launch of run number ``file``.

    ``unfit`` are the reasons for which its time is shown nowhere and the row counted everywhere:
    a status (failed, wrong, skipped), "no time", a flag of EXCLUDED.
    ``ungated`` are flags for which the time is shown and decides nothing; those of OF_TIME are
    all launches' of the case in the run, or none's (share_flags). ``derived`` is of the
    samples of all ``fit`` cycles together, and None where the row is unfit. ``flags`` are those of
    any timed cycle. Times in nanoseconds a call.
    """

    file: int
    run: Run
    launch: Launch
    case: Case
    world: World | None
    cycles: tuple[Cycle, ...]
    derived: derive.Derived | None
    flags: tuple[str, ...]
    unfit: tuple[str, ...]
    ungated: tuple[str, ...]

    @property
    def fit(self) -> list[Cycle]:
        """The cycles that the time is of; where the row is unfit, none."""
        return [cycle for cycle in self.cycles if not cycle.unfit]

    @property
    def left_out(self) -> list[Cycle]:
        """The cycles that do not count, beside others that do or not."""
        return [cycle for cycle in self.cycles if cycle.unfit]

    @property
    def first(self) -> Cycle:
        """The first cycle that counts; where none does, the first."""
        for cycle in self.cycles:
            if not cycle.unfit:
                return cycle
        return self.cycles[0]

    @property
    def carried(self) -> float:
        """Bytes that links carried over those of the algorithm's schedule; 1 if unknown."""
        return self.derived.carried if self.derived else 1.0

    @property
    def record(self) -> Record:
        """The record of the first cycle that counts, else of the first."""
        return self.first.record

    @property
    def ran(self) -> bool:
        """Whether there is a time, be it one that does not count."""
        return not self.unfit or not EXCLUDED.keys().isdisjoint(self.unfit)

    @property
    def predicted(self) -> bool:
        """Whether a model predicted its time."""
        return self.record.status == "predicted"

    @property
    def repetitions(self) -> int:
        """Cycles that are joined in this row."""
        return len(self.cycles)

    @property
    def lost(self) -> int:
        """Cycles that are left out of this row."""
        return len(self.left_out)

    @property
    def settings(self) -> str:
        """Environment variables of the case, as a shell takes them."""
        return format_settings(self.case.env)

    @property
    def times(self) -> stats.Floats:
        """Every sample of the cycles that count, in the order measured."""
        return join_times(self.fit)

    def has(self, flag: str) -> bool:
        """Whether at least half of the cycles that count have a flag."""
        cycle_flags = [cycle.derived.flags for cycle in self.fit if cycle.derived]
        return 2 * sum(flag in flags for flags in cycle_flags) >= max(1, len(cycle_flags))

    @property
    def own_flags(self) -> tuple[str, ...]:
        """The flags of this launch alone for which its time decides nothing."""
        flags_by_cycle = [cycle.derived.flags for cycle in self.fit if cycle.derived]
        return find_ungated(self.samples, flags_by_cycle)

    @property
    def median(self) -> float:
        """The median in ns; NaN where nothing was measured."""
        return self.derived.times.median if self.derived else math.nan

    @property
    def samples(self) -> int:
        """Valid samples."""
        return self.derived.times.samples if self.derived else 0


def list_wrong(rows: Iterable[Row]) -> list[Record]:
    """The records with wrong data, of any cycle, be there times beside them or not."""
    records = (cycle.record for row in rows for cycle in row.cycles)
    return [record for record in records if record.status == "wrong"]


def were_skipped(rows: Iterable[Row]) -> bool:
    """Whether no cycle of the rows was started."""
    return all(cycle.record.status == "skipped" for row in rows for cycle in row.cycles)


class CaseTime(NamedTuple):
    """A case over its fit launches: the median of their medians with its 95 % interval, infinite
    where too little bounds it, and how many launches and samples are behind them."""

    median: float
    lo: float
    hi: float
    launches: int
    samples: int
    n_eff: float


def make_rows(files: Sequence[RunFile], kind: str | None = None) -> list[Row]:
    """Every run's rows, of one kind of cases or of all, in the order in which their first records
    were made."""
    rows: list[Row] = []
    for number, file in enumerate(files):
        worlds = {world.index: world for world in file.worlds}
        launches = find_launches(file.worlds)
        together: dict[tuple[Case, Launch, bool], list[Cycle]] = {}
        begun: dict[tuple[Case, int, int], int] = {}
        for index, record in enumerate(file.records):
            if kind is not None and record.case.kind != kind:
                continue
            world = worlds.get(record.world)
            derived = derive.derive_in_run(record, world, file.run.suite)
            case = record.case
            if case.cycle:
                case = msgspec.structs.replace(case, cycle=0)
            launch = Launch(file.run.id, launches.get(record.world, record.world), 0, 0)
            if world and world.stage:
                first = begun.setdefault((case, world.stage, world.round), record.world)
                launch = Launch(file.run.id, first, world.stage, world.round)
            key = case, launch, record.status == "predicted"
            times = derived and derived.times
            unfit = explain_unfit(
                record.status, times.median if times else None, derived.flags if derived else ()
            )
            cycle = Cycle(index, record, derived, unfit)
            together.setdefault(key, []).append(cycle)
        made = [
            _make_row(number, file.run, case, launch, worlds.get(launch.world), cycles)
            for (case, launch, _), cycles in together.items()
        ]
        rows += share_between(made, lambda row: (row.case, row.launch.stage, row.predicted))
    return rows


def find_launches(worlds: Sequence[World]) -> dict[int, int]:
    """By a world's index that of the first with the same processes: a launcher's ranks, which make
    worlds anew, are not newly started, and have the same addresses in memory."""
    first: dict[object, int] = {}
    return {
        world.index: first.setdefault(
            tuple((rank.host, rank.pid) for rank in world.ranks) or world.index, world.index
        )
        for world in worlds
    }


def explain_unfit(status: str, median: float | None, flags: Collection[str]) -> str:
    """The reason why the time of a record does not count, or an empty string. ``median`` is None
    where there are no samples."""
    if status not in MEASURED:
        return status
    if median is None or median <= 0:
        return NO_TIME
    return next((flag for flag in EXCLUDED if flag in flags), "")


def _make_row(
    file: int, run: Run, case: Case, launch: Launch, world: World | None, cycles: list[Cycle]
) -> Row:
    fit = [cycle for cycle in cycles if not cycle.unfit]
    timed = [c.derived for c in cycles if c.derived and c.record.status in MEASURED]
    derived = pool_cycles(fit)
    return Row(
        file=file,
        run=run,
        launch=launch,
        case=case,
        world=world,
        cycles=tuple(cycles),
        derived=derived,
        flags=tuple(dict.fromkeys(flag for summary in timed for flag in summary.flags)),
        unfit=() if fit else tuple(dict.fromkeys(cycle.unfit for cycle in cycles)),
        ungated=(),
    )


def share_between(
    rows: Sequence[Row], key: Callable[[Row], Hashable] = lambda row: row.predicted
) -> list[Row]:
    """The rows, of which the fit launches of one ``key`` share flags (share_flags): those of a
    case, be they of one run or of several."""
    fit = select_fit(rows)
    shared = iter(share_flags([key(row) for row in fit], [row.own_flags for row in fit]))
    return [row if row.unfit else _replace_flags(row, next(shared)) for row in rows]


def _replace_flags(row: Row, flags: tuple[str, ...]) -> Row:
    return row if row.ungated == flags else msgspec.structs.replace(row, ungated=flags)


def share_flags(
    keys: Sequence[Hashable], flags_by_launch: Sequence[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """The flags for which each launch decides nothing, as launches of one key share them: a flag of
    OF_TIME is had by all where at least half have it, else by none. To leave out single launches
    for such a flag is to leave them out for their time, and changes shrink."""
    if all(map(OF_TIME.isdisjoint, flags_by_launch)):
        return list(flags_by_launch)
    launches = Counter(keys)
    having = Counter(
        (key, flag)
        for key, flags in zip(keys, flags_by_launch, strict=True)
        for flag in OF_TIME.intersection(flags)
    )
    return [
        tuple(
            flag
            for flag in dict.fromkeys((*flags, *UNGATED))
            if (2 * having[key, flag] >= launches[key] if flag in OF_TIME else flag in flags)
        )
        for key, flags in zip(keys, flags_by_launch, strict=True)
    ]


def pool_cycles(fit: Sequence[Cycle]) -> derive.Derived | None:
    """What is derived of the samples of these cycles together (time_summary.pool_summaries), and
    the medians of how ranks arrived; the rest is the first's. Imported means have no samples."""
    derived_rows = [cycle.derived for cycle in fit if cycle.derived]
    if len(derived_rows) < 2:
        return derived_rows[0] if derived_rows else None
    first = derived_rows[0]
    sampled = all(cycle.record.times_ns for cycle in fit)
    times = pool_summaries(
        [row.times for row in derived_rows], join_times(fit) if sampled else None
    )
    factor = first.times.median / times.median
    clock = {} if first.device is None else {fit[0].record.clock: times.median}
    return msgspec.structs.replace(
        first,
        times=times,
        algbw=first.algbw * factor,
        busbw=None if first.busbw is None else first.busbw * factor,
        wirebw=None if first.wirebw is None else first.wirebw * factor,
        late_share=max(row.late_share for row in derived_rows),
        flags=tuple(dict.fromkeys(flag for row in derived_rows for flag in row.flags)),
        sensitive=2 * sum(row.sensitive for row in derived_rows) >= len(derived_rows),
        **{name: _find_median(derived_rows, name) for name in ("control", "skew", "absorbed")},
        **clock,
    )


def _find_median(derived_rows: Sequence[derive.Derived], name: str) -> float | None:
    """The median of a field over the rows that have it; None where none has."""
    values = [value for row in derived_rows if (value := getattr(row, name)) is not None]
    return stats.median(values) if values else None


def join_times(cycles: Sequence[Cycle]) -> stats.Floats:
    """Every sample of these cycles, in ns a call, in the order measured."""
    cycle_times = [np.asarray(c.record.times_ns, float) / c.record.inner for c in cycles]
    return np.concatenate(cycle_times) if cycle_times else np.array([])


def find_ungated(samples: int, flags_by_cycle: Sequence[Collection[str]]) -> tuple[str, ...]:
    """The flags of at least half the cycles that count for which a row of so many ``samples``
    decides nothing; that there are too few samples is a matter of all cycles together."""
    cycle_flags = [flag for flags in flags_by_cycle for flag in flags]
    if not cycle_flags:
        return ()
    enough = samples >= FEWEST_SAMPLES
    common = [
        flag for flag in UNGATED if cycle_flags.count(flag) >= max(1, len(flags_by_cycle) / 2)
    ]
    return tuple(flag for flag in common if not (flag == FEW and enough))


def group_rows(rows: Iterable[Row], key: Callable[[Row], _K]) -> dict[_K, list[Row]]:
    """Rows by what ``key`` says of them, in their order."""
    together: dict[_K, list[Row]] = {}
    for row in rows:
        together.setdefault(key(row), []).append(row)
    return together


def select_fit(rows: Iterable[Row]) -> list[Row]:
    """The rows whose times may be shown."""
    return [row for row in rows if not row.unfit]


def select_gateable(rows: Iterable[Row], despite: Collection[str] = ()) -> list[Row]:
    """The rows on which a judgement may rest; ``despite`` are flags that do not forbid it."""
    return [row for row in select_fit(rows) if not set(row.ungated) - set(despite)]


def select_deciding(rows: Iterable[Row], despite: Collection[str] = ()) -> list[Row]:
    """The rows that a case is judged by, of one run or several: the gateable ones where these are
    most of the fit; else all that are fit, and then the judgement is shown and nothing follows from
    it. ``despite`` are flags that do not forbid it."""
    fit_rows = share_between(select_fit(rows))
    grounds = select_gateable(fit_rows, despite)
    return grounds if 2 * len(grounds) > len(fit_rows) else fit_rows


def case_time(rows: Sequence[Row]) -> CaseTime:
    """The time of a case over these launches, of which the unfit do not count. Its interval is that
    of what launches take (paired.bound_launches), below FEWEST_LAUNCHES no narrower than what their
    own cover together, of which those of too few samples do not count beside others; that of a
    single launch is of its samples. Raises ValueError where no row is fit."""
    pooled = [row.derived.times for row in rows if row.derived]
    if not pooled:
        raise ValueError("no launch of the case is fit")
    if len(pooled) == 1:
        (only,) = pooled
        return CaseTime(only.median, only.lo, only.hi, 1, only.samples, only.n_eff)
    median, lo, hi = paired.bound_launches([row.median for row in pooled])
    if len(pooled) < FEWEST_LAUNCHES:
        bounded = [row for row in pooled if math.isfinite(row.hi)] or pooled
        lo, hi = min(lo, *(row.lo for row in bounded)), max(hi, *(row.hi for row in bounded))
    samples, n_eff = sum(row.samples for row in pooled), sum(row.n_eff for row in pooled)
    return CaseTime(median, lo, hi, len(pooled), samples, n_eff)


DTYPES: dict[Kind, str] = {
    "text": "object",
    "whole": "Int64",  # which knows missing values
    "number": "float64",
    "yes or no": "bool",
    "values": "object",
}


def sort_rows(rows: Iterable[Row]) -> list[Row]:
    """Rows of each run by collective, implementation and size."""
    return sorted(rows, key=lambda row: (row.file, row.case.reading_order))


def make_frame(files: Sequence[RunFile]) -> pd.DataFrame:
    """The table as a DataFrame with the columns of columns.py; see collbench.frame."""
    import pandas as pd

    sorted_rows = sort_rows(make_rows(files))
    series = {
        column.name: pd.Series(
            [_read_path(row, column.source, column.kind) for row in sorted_rows],
            dtype=DTYPES[column.kind],
        )
        for column in COLUMNS
    }
    return pd.DataFrame(series)


def _read_path(row: Row, source: str, kind: Kind) -> Any:
    """The value of a row at a path of attributes, as "derived.busbw"; None where an attribute on
    the way is None."""
    value: Any = row
    for name in source.split("."):
        value = None if value is None else getattr(value, name)
    if kind == "text":
        return " ".join(value) if isinstance(value, tuple) else value or ""
    return value
