"""A run's medians without its samples: of thousands of files, each row's time and whether it may be
judged, as rows.py has them, for a hundredth of what a whole derivation takes.

Only the fields that these two rest on are decoded, and only flags from which something follows are
looked for. What a row is, which of its cycles count and which flags hold is decided by rows.py and
flags.py; a test holds both ways against each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import msgspec
import numpy as np

from collbench.core.errors import UsageError
from collbench.machine.load import Load
from collbench.records import derive, run_file, stats
from collbench.records.flags import GRADED, FlagInputs, find_effective_flags
from collbench.records.rows import Launch, explain_unfit, find_launches, find_ungated, share_flags
from collbench.records.types import (
    Cache,
    Choice,
    End,
    GpuState,
    Record,
    Run,
    Samples,
    Scheme,
    Sent,
    Status,
    Stop,
    World,
)
from collbench.suite.case import Case, Positive, Whole

MOST_CASES = 10_000  # of which the decoded form is kept, as many files have the same


class TimedRecord(msgspec.Struct, tag_field="line", tag="record", kw_only=True, gc=False):
    """The fields of a Record by which it and its GPUs are judged, within the same bounds; ``case``
    is set once it is read."""

    case_json: msgspec.Raw = msgspec.field(name="case")
    case: Case = msgspec.field(name="", default=cast(Case, None))
    status: Status
    world: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 62)] = -1
    times_ns: Samples = []
    inner: Positive = 1
    skew_ns: Samples = []
    sync: Scheme = ""
    overhead_ns: Whole = 0
    invalid: dict[str, Whole] = {}
    stop: Stop = ""
    again: bool = False
    injected: str = ""
    control_ns: Samples = []
    control_inner: Positive | None = None
    cache: Cache = ""
    checked: int = 0
    wrong: int | None = None
    note: str = ""
    load: dict[str, Load] = {}
    seconds: float = 0.0
    told: msgspec.Raw | None = None
    sent: list[Sent] = []
    chose: Choice | None = None
    gpus: list[GpuState] = []


class Middle(NamedTuple):
    """A median in ns a call with its interval."""

    median: float
    lo: float
    hi: float


class RowMedian(NamedTuple):
    """A row (rows.Row) without its samples: ``case`` is of cycle 0, ``start`` how ranks started
    together, ``median`` ns a call, nan where it is ``unfit``."""

    case: Case
    launch: Launch
    median: float
    samples: int
    unfit: tuple[str, ...]
    ungated: tuple[str, ...]
    start: str


class RunMedians(NamedTuple):
    """A run as far as its times go. ``records`` are those that stand, without their samples."""

    path: Path
    run: Run
    worlds: Sequence[World]
    records: Sequence[TimedRecord]
    rows: Sequence[RowMedian]
    end: End | None


class MedianReader:
    """Reads runs one after the other, and decodes what many have in common once."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Run | World | TimedRecord | End)
        self._case_decoder = msgspec.json.Decoder(Case)
        self._cases: dict[bytes, tuple[Case, Case]] = {}

    @run_file.guard_reading()
    def read(self, path: Path) -> RunMedians:
        """The medians of a run that collbench measured. Raises UsageError for what is no run, for
        one that was imported and for a side of an experiment, and CannotRun."""
        run, worlds, records, end = self._read_lines(path)
        if run is None:
            raise UsageError(f"{path} is not a collbench run", "name runs that collbench measured")
        if run.imported or run.pairing:
            kind = "imported" if run.imported else "a side of an experiment"
            raise UsageError(f"{path}: {run.id} is {kind}", "give runs that collbench measured")
        standing = run_file.select_standing(run, records)
        rows = self._make_rows(run, worlds, standing)
        for record in standing:
            record.times_ns = record.skew_ns = record.control_ns = []
        return RunMedians(path, run, worlds, standing, rows, end)

    def _read_lines(
        self, path: Path
    ) -> tuple[Run | None, list[World], list[TimedRecord], End | None]:
        run: Run | None = None
        end: End | None = None
        worlds: list[World] = []
        records: list[TimedRecord] = []
        with path.open("rb") as file:
            for number, text in run_file.read_bounded(path, file):
                if text == b"\n":
                    continue
                try:
                    line = self._decoder.decode(text)
                    if isinstance(line, TimedRecord):
                        line.case = self._find_case(line.case_json)[0]
                except (msgspec.DecodeError, RecursionError) as e:
                    ours = number > 1 or text.startswith(b'{"line":')
                    if ours and not text.endswith(b"\n"):
                        break
                    raise run_file.unreadable_error(path, number, text, e) from e
                end = line if isinstance(line, End) else None
                if isinstance(line, TimedRecord):
                    records.append(line)
                elif isinstance(line, World):
                    worlds.append(line)
                elif isinstance(line, Run):
                    if run is not None:
                        raise run_file.several_runs_error(path, run, line)
                    run = line
        return run, worlds, records, end

    def _find_case(self, text: msgspec.Raw) -> tuple[Case, Case]:
        """The case of a record, and the same of cycle 0."""
        raw = bytes(text)
        pair = self._cases.get(raw)
        if pair is None:
            case = self._case_decoder.decode(raw)
            pair = case, msgspec.structs.replace(case, cycle=0) if case.cycle else case
            if len(self._cases) >= MOST_CASES:
                self._cases.clear()
            self._cases[raw] = pair
        return pair

    def _make_rows(
        self, run: Run, worlds: Sequence[World], records: Sequence[TimedRecord]
    ) -> list[RowMedian]:
        """The rows of a run, in the order in which their first records were made."""
        worlds_by_index = {world.index: world for world in worlds}
        launches = find_launches(worlds)
        together: dict[tuple[Case, int, bool], list[TimedRecord]] = {}
        for record in records:
            case = self._find_case(record.case_json)[1]
            launch = launches.get(record.world, record.world)
            key = case, launch, record.status == "predicted"
            together.setdefault(key, []).append(record)
        rows = [
            _make_row(case, Launch(run.id, launch, 0, 0), cycles, worlds_by_index)
            for (case, launch, _), cycles in together.items()
        ]
        keys = [(case, is_predicted) for case, _, is_predicted in together]
        fit = [(key, row.ungated) for key, row in zip(keys, rows, strict=True) if not row.unfit]
        shared = iter(share_flags([key for key, _ in fit], [flags for _, flags in fit]))
        return [row if row.unfit else row._replace(ungated=next(shared)) for row in rows]


def _make_row(
    case: Case, launch: Launch, cycles: Sequence[TimedRecord], worlds: dict[int, World]
) -> RowMedian:
    fit: list[tuple[TimedRecord, tuple[str, ...]]] = []
    unfit: list[str] = []
    medians: list[float] = []
    for record in cycles:
        median, flags = _judge_record(record, worlds.get(record.world))
        timed = None if math.isnan(median) else median
        if reason := explain_unfit(record.status, timed, flags):
            unfit.append(reason)
        else:
            fit.append((record, flags))
            medians.append(median)
    if len(fit) > 1:
        times = [np.asarray(record.times_ns, float) / record.inner for record, _ in fit]
        medians = [stats.median(np.concatenate(times))]
    samples = sum(len(record.times_ns) for record, _ in fit)
    return RowMedian(
        case,
        launch,
        medians[0] if fit else math.nan,
        samples,
        () if fit else tuple(dict.fromkeys(unfit)),
        find_ungated(samples, [flags for _, flags in fit]),
        fit[0][0].sync if fit else "",
    )


def _judge_record(record: TimedRecord, world: World | None) -> tuple[float, tuple[str, ...]]:
    """The median of a record, nan where it has no samples, and its flags from which something
    follows: the shares that they rest on are derive.py's."""
    if not record.times_ns or record.status == "failed":
        return math.nan, ()
    median = _find_middle(record.times_ns, record.inner)
    least = max(median, stats.TINY)
    repeated = sum(record.invalid.values())
    inputs = FlagInputs(
        record=cast(Record, record),
        world=world,
        skew=_measure_skew(record, least),
        overhead=record.overhead_ns / record.inner / least,
        discarded=repeated / (repeated + len(record.times_ns)),
        late_rank=None,
        unsteady=False,
        bimodal=False,
        is_arrival_sensitive=_is_arrival_sensitive(record, median),
        algbw=0.0,
        traffic_factor=1.0,
        imported=False,
        call_path=0.0,
    )
    return median, find_effective_flags(inputs)


def _find_middle(times_ns: list[int], inner: int) -> float:
    """The median of samples of ``inner`` calls, a call."""
    ordered = np.array(times_ns, dtype=float)
    ordered.sort()
    low, high = ordered.item((len(ordered) - 1) // 2), ordered.item(len(ordered) // 2)
    return float(low / inner + high / inner) / 2


def _measure_skew(record: TimedRecord, least: float) -> float:
    """The share of a call by which ranks start apart; 0 where it is too small for a flag."""
    if record.sync == "none" or record.case.arrival or not record.skew_ns:
        return 0.0
    if max(record.skew_ns) <= GRADED * least * record.inner:
        return 0.0
    return stats.median(record.skew_ns) / record.inner / least


def _is_arrival_sensitive(record: TimedRecord, median: float) -> bool:
    """As derive.py has it; intervals are made only where the medians are far apart."""
    if not record.control_ns or record.case.mode == "host":
        return False
    control = stats.median(record.control_ns) / (record.control_inner or record.inner)
    if max(control, median) <= derive.ARRIVAL_MATTERS * min(control, median):
        return False
    times = np.asarray(record.times_ns, dtype=float) / record.inner
    interval = stats.median_interval(np.sort(times), stats.n_eff(times))
    return derive.derive_control(record, Middle(*interval))[1]
