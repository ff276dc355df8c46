"""nccl-tests' own text, as of v2.19.6, made from our records; and what its JSON (nccljson) needs of
the same.

Lines that nccl-tests does not write are comments: ``# collbench version`` stands where its version
line does, because this is not nccl-tests and a parser that asks should be told; ``#
implementation:``, ``# time:``, ``# iters:``, ``# note:``, ``# skipped:``, ``# failed:``, ``# not
run:``, ``# not measured:``, ``# isolated:`` (of the line above), ``# flagged:``, ``# limit:`` and
``# busy:`` say what its format has no columns for. ``# PLANTED:`` and ``# FAKE:``, in the header
and at the end, say that no time is a machine's. Below a line that is in doubt, or whose interval is
wide, one remark has the intervals and flags of both halves: ``# 8 B: out ±11% bimodal · in ±4%``.

In a run of more than SO_FAR_AFTER seconds ``# so far:`` remarks show what is known of lines that
come below: after a first pass, or one call.

A line joins a case out of place and the same case in place. A half that was not measured has
``N/A`` in all its columns; with Options.filled, for parsers that need numbers, it repeats the other
half's, with ``N/A`` for its #wrong, and a ``# repeated:`` remark says which columns they are and
why. No average counts them. A half that failed, or whose data was wrong, has no time: its numbers
are ``nan``.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from collbench.core.text import format_settings, plain_line
from collbench.core.version import __version__
from collbench.records import limits
from collbench.records.derive import Derived, is_without_samples
from collbench.records.flags import (
    COPY,
    UNCONVERGED,
    flag_kind,
    is_wide,
    is_without_interval,
    list_doubts,
    look_up,
)
from collbench.records.types import End, Record, Run, RunFile, World
from collbench.run.reporter import Outcome, Reporter
from collbench.run.resumption import describe_remedy
from collbench.show import busy
from collbench.show.flags import explain_doubts, name_flags
from collbench.show.nccl_settings import (
    describe_configuration,
    headers_number,
    library_number,
    local_time,
)
from collbench.show.words import (
    PLACES,
    count_notes,
    count_reasons,
    format_interval,
    list_caveats,
    list_movements,
    split_axes,
    word_axes,
)
from collbench.suite.case import Case, Skip

PROGRAMS = {"all_to_all": "alltoall", "all_to_allv": "alltoallv"}

OPS = {"premul_sum": "mulsum"}

AVERAGES: tuple[tuple[str, Callable[[Sequence[int]], float]], ...] = (
    ("rank 0", lambda times: times[0]),
    ("the mean over ranks", statistics.fmean),
    ("the fastest rank", min),
    ("the slowest rank", max),
)

HEADER = (
    f"#{'out-of-place':>74}{'in-place':>31}{'':>10}",
    "#{:>11}  {:>12}  {:>8}  {:>6}  {:>6}".format("size", "count", "type", "redop", "root"),
    "#{:>11}  {:>12}{:>26}".format("(B)", "(elements)", ""),
)

SO_FAR_AFTER = 8.0  # seconds
LISTED = 3  # sizes of skipped cases that are named one by one

SO_FAR = "so far: times of a first pass; the results follow, in lines without #"

SPREAD = ("min_us", "max_us", "p99_us", "cv_pct")  # of the columns that -I adds

# what parsers find headers and footers by, and what stands in remarks instead
WORDS = {
    "out-of-place": "out of place",
    "in-place": "in place",
    "bandwidth": "throughput",
    "busbw": "bus-bw",
    "Out of bounds": "out of bounds",
}


class Options(msgspec.Struct, frozen=True):
    """``-a``: an index into AVERAGES, here by default the slowest rank (nccl-tests: the mean);
    ``-C``; ``-S``; ``-I``; ``-K``: so many first samples are not in what ``-I`` makes of them.
    ``filled``: a half that was not measured repeats the other."""

    average: int = 3
    cpu_time: bool = False
    timestamps: bool = False
    per_iter: bool = False
    per_iter_skip: int = 0
    filled: bool = False


DEFAULTS = Options()


class Half(NamedTuple):
    """What one placement of a line shows: microseconds, GB/s; ``busbw`` None where the collective
    has none; with ``-I`` the columns that are added. One that was not ``measured`` is N/A."""

    time: float
    algbw: float
    busbw: float | None
    wrong: int | None
    samples: tuple[float, ...] = ()
    measured: bool = True


def make_half(outcome: Outcome | None, options: Options) -> Half:
    """The time is the median over samples of what ``-a`` makes of the ranks' times; -a 0..2 see the
    samples of which every rank's time was kept. With ``-C`` it is that of handing a call over;
    bandwidths stay those of the wall time.
    """
    record, row = outcome or (None, None)
    samples = (math.nan,) * len(SPREAD) if options.per_iter else ()
    if record is None or row is None:
        return Half(math.nan, math.nan, math.nan, record.wrong if record else None, samples)
    if samples and record.times_ns:
        per_iteration_ns = per_iteration(record, options.per_iter_skip)
        samples = tuple(per_iteration_ns[name] for name in SPREAD)
    wall = row.times.median
    if options.average != 3 and record.per_rank:
        reduce = AVERAGES[options.average][1]
        wall = statistics.median(map(reduce, zip(*record.per_rank, strict=False))) / record.inner
    shown_ns = wall
    if options.cpu_time:
        shown_ns = statistics.median(record.submit_ns) if record.submit_ns else math.nan
    scale = row.times.median / wall if wall else 1.0
    return Half(
        shown_ns / 1e3,
        row.algbw * scale,
        None if row.busbw is None else row.busbw * scale,
        record.wrong,
        samples,
    )


def per_iteration(record: Record, skip: int = 0) -> dict[str, Any]:
    """Microseconds per call and sample: those of which every rank's time was kept, if ranks' were.
    Statistics leave out the first ``skip``, but for the last. As in nccl-tests p50 is the upper
    median, p95 and p99 are nearest ranks (so the maximum of 20 samples), the standard deviation is
    the population's. A process is a rank."""
    length = len(record.per_rank[0]) if record.per_rank else None
    times, *ranks = (
        [round(t / record.inner / 1e3, 6) for t in series[:length]]
        for series in (record.times_ns, *record.per_rank)
    )
    skip = min(skip, len(times) - 1)
    ordered = sorted(times[skip:])
    n, mean, deviation = len(ordered), statistics.fmean(ordered), statistics.pstdev(ordered)
    values = {
        "min_us": ordered[0],
        "max_us": ordered[-1],
        "avg_us": mean,
        "p50_us": ordered[n // 2],
        "p95_us": ordered[math.ceil(n * 95 / 100) - 1],
        "p99_us": ordered[math.ceil(n * 99 / 100) - 1],
        "stdev_us": deviation,
        "cv_pct": 100 * deviation / mean if mean else 0.0,
    }
    return {
        "skipped_iterations": skip,
        **{name: round(value, 6) for name, value in values.items()},
        "times_us": times,
        **({"per_process_max_times_us": ranks} if ranks else {}),
    }


def has_line(outcome: Outcome) -> bool:
    """Whether a line has anything to show: a time, or wrong data."""
    record, row = outcome
    return row is not None or record.wrong is not None


def format_number(value: float, width: int) -> str:
    """Two decimals, else one, else none, else an exponent: the first that is not wider than
    ``width``."""
    texts = [f"{value:{width}.{decimals}f}" for decimals in (2, 1, 0)]
    return next(
        (text for text in texts if len(text) <= width), f"{value:{width}.{max(0, width - 6)}e}"
    )


def pair_cases(cases: Iterable[Case]) -> list[dict[bool, Case]]:
    """Lines of the table, in order: a case out of place (False), in place (True), or both."""
    lines: dict[Case, dict[bool, Case]] = {}
    for case in cases:
        lines.setdefault(msgspec.structs.replace(case, in_place=False), {})[case.in_place] = case
    return list(lines.values())


def describe_block(case: Case) -> str:
    """Settings of a case for which nccl-tests has no column, in words; a table never mixes two of
    these."""
    extra = [f"splits {case.splits}"] if case.splits else []
    extra += [f"arrival {case.arrival}"] if case.arrival else []
    extra += [f"background {case.background}"] if case.background else []
    extra += [f"group {case.group} of {case.of} by {case.groups}"] if case.groups else []
    extra += [f"env {format_settings(case.env)}"] if case.env else []
    return plain_line(", ".join([f"{case.label}, ranks {case.n}, mode {case.mode}", *extra]))


def name_program(case: Case) -> str:
    """The name of nccl-tests' program for a collective; of other cases, what is measured: order."""
    return (
        case.table.noun
        if case.subject
        else f"{PROGRAMS.get(case.collective, case.collective)}_perf"
    )


class _SkippedTable(NamedTuple):
    """A table of which no case ran."""

    planned: list[Case]
    cases_by_reason: dict[str, list[Case]]


class Text(Reporter):
    """Writes lines in plan order, each as soon as all before it are known and measured for the
    last time, in whatever order records arrive.

    Each implementation, rank count, mode, environment or collective gets a table of its own from
    "starting" to "concluded", so that cutting at those lines gives whole outputs of nccl-tests.
    """

    def __init__(
        self, out: IO[str], options: Options = DEFAULTS, get_path: Callable[[], Path] | None = None
    ) -> None:
        """``get_path`` gives, once the run has begun, the path of its JSON, if there is one."""
        self._out, self._options, self._get_path = out, options, get_path
        self.needs_samples = options.average != 3 or options.cpu_time or options.per_iter

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        self._run, self._skips, self._lines, self._next = run, skips, pair_cases(cases), 0
        self._why = {skip.case: skip.reason for skip in skips}
        self._worlds: list[World] = []
        self._done: dict[Case, Outcome] = {}
        self._table: tuple[str, str] | None = None
        self._skipped_tables: dict[str, _SkippedTable] = {}
        self._busbw: list[float] = []
        self._introduced = False
        self._until = time.monotonic() + SO_FAR_AFTER
        self._line_of = {case: at for at, line in enumerate(self._lines) for case in line.values()}
        self._called: dict[Case, Outcome] = {}  # once, and measured later
        self._news: dict[int, None] = {}  # lines of which something is known, none shown yet
        self._so_far: set[int] = set()  # lines shown before their time

    def world(self, world: World) -> None:
        """Write the head of the first table as soon as its ranks have met."""
        self._worlds.append(world)
        if not self._lines or self._next or self._table:
            return
        first = next(iter(self._lines[0].values()))
        if (first.backend, first.world, first.env) == (world.backend, world.n, world.env):
            self._introduce()
            self._open_table()
            self._out.flush()

    def phase(self, case: Case, phase: str, fraction: float) -> None:
        self._write_so_far()

    def show_coarse(self, record: Record, row: Derived | None) -> None:
        self._called[record.case] = (record, row)
        self._news[self._line_of[record.case]] = None
        self._write_so_far()

    def record(self, record: Record, row: Derived | None) -> None:
        self._done[record.case] = (record, row)
        if record.case in self._line_of:
            self._news[self._line_of[record.case]] = None
        while self._next < len(self._lines) and self._is_next_known():
            self._write()
        self._write_so_far()
        self._out.flush()

    def _write_so_far(self) -> None:
        """What is known of lines that come below, once the run has taken SO_FAR_AFTER seconds."""
        if not self._news or time.monotonic() < self._until:
            return
        lines = [at for at in sorted(self._news) if at >= self._next and at not in self._so_far]
        self._news.clear()
        for at in lines:
            line = self._lines[at]
            called = [case for case in line.values() if case in self._called]
            if not called and not all(case in self._done for case in line.values()):
                continue
            known = {place: self._done.get(case) for place, case in line.items()}
            known |= {case.in_place: self._called[case] for case in called}
            if not any(has_line(outcome) for outcome in known.values() if outcome):
                continue
            self._introduce()
            self._remark(*[SO_FAR] * (not self._so_far))
            self._so_far.add(at)
            case = next(iter(line.values()))
            more = ["one call, data not verified"] * bool(called)
            more += [describe_block(case)] * (table_of(line) != self._table)
            halves = [
                make_half(known.get(place), self._options)._replace(
                    measured=known.get(place) is not None
                )
                for place in (False, True)
            ]
            self._remark("so far:" + "  ".join([_format_row(case, halves), *more]))
        self._out.flush()

    def _is_next_known(self) -> bool:
        """Whether the next line can be written: its cases are final and, where it begins a table,
        a case of that is known to have run, or all are skipped."""
        for line in self._list_table():
            if not all(
                case in self._done and self._is_final(*self._done[case]) for case in line.values()
            ):
                return False
            if table_of(line) == self._table or not self._is_skipped(line):
                return True
        return True

    def _list_table(self) -> Iterator[Mapping[bool, Case]]:
        """The lines of the table that the next line is in, from that on."""
        table = table_of(self._lines[self._next])
        rest = itertools.islice(self._lines, self._next, None)
        return itertools.takewhile(lambda line: table_of(line) == table, rest)

    def _is_skipped(self, line: Mapping[bool, Case]) -> bool:
        """Whether all cases of a line that are done were skipped."""
        outcomes = [self._done[case] for case in line.values() if case in self._done]
        return all(record.status == "skipped" for record, _ in outcomes)

    def _is_final(self, record: Record, row: Derived | None) -> bool:
        """Whether no second pass will measure the case again."""
        if self._run.policy.iters is not None or record.again:
            return True
        unconverged = row is not None and UNCONVERGED in row.flags
        return not unconverged and not is_without_samples(record)

    def end(self, end: End, path: Path | None) -> None:
        load_text = busy.describe_run_load(
            self._run, (record for record, _ in self._done.values()), end
        )
        missing = sum(case not in self._done for line in self._lines for case in line.values())
        while self._next < len(self._lines):
            self._write()
        self._introduce()
        self._conclude()
        self._write_skip_remarks()
        self._remark(*[f"not run: {missing} of the planned cases"] * bool(missing))
        self._remark(*[f"busy: {load_text}"] * bool(load_text))
        self._remark(*list_caveats(self._run, self._worlds))
        self._print(f"# error: {plain_line(end.note)}" if end.exit and end.note else "")
        self._out.flush()

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._out.write(f"{line}\n")

    def _remark(self, *texts: str) -> None:
        self._print(*(f"# {escape_remark(text)}" for text in texts))

    def _introduce(self) -> None:
        if not self._introduced:
            self._introduced = True
            self._print(*[f"# Writing JSON output to {self._get_path()}"] if self._get_path else [])
            self._print(
                f"# collbench version {__version__} nccl-headers={headers_number(self._worlds)}"
                f" nccl-library={library_number(self._worlds)}"
            )
            self._remark(*list_caveats(self._run, self._worlds))
            left_out = count_reasons(self._skips)
            self._remark(*(f"skipped: {reason} (cases: {number})" for reason, number in left_out))

    def _write(self) -> None:
        """The next line of the plan, in the table it belongs to; nothing where none of it ran."""
        line = self._lines[self._next]
        if table_of(line) != self._table and self._skip_table(list(self._list_table())):
            return
        measured = [self._done[case] for case in line.values() if case in self._done]
        if measured and table_of(line) != self._table:
            self._introduce()
            if self._table:
                self._conclude()
                self._print("")
            self._write_skip_remarks()
            self._open_table()
        self._next += 1
        if any(map(has_line, measured)):
            outcomes = [
                self._done.get(line[in_place]) if in_place in line else None
                for in_place in (False, True)
            ]
            halves = [make_half(outcome, self._options) for outcome in outcomes]
            self._busbw += [
                h.busbw for h in halves if h.busbw is not None and not math.isnan(h.algbw)
            ]
            self._complete(line, outcomes, halves)
            stamp = (
                f"{local_time(max(record.started for record, _ in measured)):>21}"
                if self._options.timestamps
                else ""
            )
            self._print(_format_row(measured[0][0].case, halves) + stamp)
            self._bad += sum(bool(h.wrong) for h in halves)
            self._block_outcomes += measured
            self._remark(*_describe_isolated(measured), *_describe_doubted(measured))
        elif any(record.findings for record, _ in measured):
            self._block_outcomes += measured
        for record, _ in measured:
            if record.status == "failed":
                placement = PLACES["in" if record.case.in_place else "out"]
                self._remark(f"failed: {record.case.nbytes} B {placement}: {record.note}")
            if record.status == "skipped":
                self._cases_by_skip.setdefault(record.note, []).append(record.case)
            if record.findings:
                self._has_findings = True
                self._remark(f"found: {record.case.subject}: collbench report shows it")

    def _skip_table(self, lines: Sequence[Mapping[bool, Case]]) -> bool:
        """Skip a table of which no case ran, and keep a remark for each reason. Returns whether it
        did."""
        cases = [case for line in lines for case in line.values()]
        notes = {case: self._done[case][0].note for case in cases if case in self._done}
        if not notes or not all(map(self._is_skipped, lines)):
            return False
        self._next += len(lines)
        title = ", ".join(table_of(lines[0]))
        table = self._skipped_tables.setdefault(title, _SkippedTable([], {}))
        table.planned.extend(cases)
        for case, reason in notes.items():
            table.cases_by_reason.setdefault(reason, []).append(case)
        return True

    def _write_skip_remarks(self) -> None:
        """Write the remarks on skipped tables, those of several launches together."""
        tables, self._skipped_tables = self._skipped_tables, {}
        for title, (planned, cases_by_reason) in tables.items():
            for reason, cases in cases_by_reason.items():
                counts = _count_cases(cases, planned)
                self._remark(*(f"skipped: {title}: {reason} ({count})" for count in counts))

    def _complete(
        self, line: Mapping[bool, Case], outcomes: Sequence[Outcome | None], halves: list[Half]
    ) -> None:
        """Marks the half that was not measured, or puts the other in its place. The reason is
        counted, unless a remark above the table has it."""
        for in_place, outcome in zip((False, True), outcomes, strict=True):
            other = outcomes[not in_place]
            if not other or not other[1] or (outcome and outcome[0].status != "skipped"):
                continue
            missing_place, other_place = (
                PLACES["in" if in_place else "out"],
                PLACES["out" if in_place else "in"],
            )
            case = msgspec.structs.replace(other[0].case, in_place=in_place)
            default_reason = "not run" if in_place in line else f"only {other_place} was asked for"
            reason = outcome[0].note if outcome else self._why.get(case, default_reason)
            if self._options.filled:
                halves[in_place] = halves[not in_place]._replace(wrong=None)
                note = (
                    f"repeated: the columns {missing_place} are those {other_place} again, with"
                    f" N/A: {reason}"
                )
            else:
                halves[in_place] = halves[in_place]._replace(measured=False)
                note = f"not measured: {missing_place}: {reason}"
            if self._options.filled or not (outcome or case in self._why):
                self._repeated[note] += 1

    def _open_table(self) -> None:
        """Write the head of the table that the next line is in."""
        lines = list(self._list_table())
        cases = [case for line in lines for case in line.values()]
        first, self._table, self._busbw, self._bad = cases[0], table_of(lines[0]), [], 0
        self._block_outcomes: list[Outcome] = []
        self._has_findings = False  # of cases that find something else than times
        self._repeated: Counter[str] = Counter()
        self._cases_by_skip: dict[str, list[Case]] = {}  # of this table, by their reason
        self._planned = cases
        matching_worlds = [
            w
            for w in self._worlds
            if (w.backend, w.n, w.env) == (first.backend, first.world, first.env)
        ]
        config = describe_configuration(
            self._run, cases, matching_worlds[-1] if matching_worlds else None
        )
        self._print(f"# Collective test starting: {name_program(first)}", _format_settings(config))
        self._print(
            f"# implementation: {describe_block(first)}"
            + (f", library {escape_remark(matching_worlds[-1].library)}" if matching_worlds else "")
        )
        average = AVERAGES[self._options.average][0]
        self._remark(f"time: median over samples, each that of {average}")
        if not self._run.policy.fixes_samples(first.mode):
            self._remark(
                "iters: warmup and iteration counts are minimums; sampling continues until the"
                " median is precise enough"
            )
        if first.n == 1 or not first.row.moves_data:
            self._remark(
                "note: there is no busbw here; 0.00 is a placeholder and enters no average"
            )
        self._print(
            "#",
            "# Using devices",
            *map(_format_device, config["devices"]),
            "#",
            *write_header(self._options),
        )

    def _conclude(self) -> None:
        """Write the closing lines of the open table, if there is one."""
        if not self._table:
            return
        skips = self._cases_by_skip.items()
        self._remark(
            *(
                f"skipped: {why} ({count})"
                for why, cases in skips
                for count in _count_cases(cases, self._planned)
            )
        )
        if any(map(has_line, self._block_outcomes)):
            self._write_totals()
        elif not self._has_findings:
            self._print("# no case of this table ran", "#")
        self._remark(*(f"note: {line}" for line in count_notes(self._block_outcomes)))
        crowded = {world.cramped for world in self._worlds}
        command = self._run.command
        # a reporter is told the run's path at the end only
        again = describe_remedy(self._run, "" if "--no-save" in command else "RUN")
        meanings = explain_doubts(
            self._block_outcomes, self._run.policy, crowded, command, again=again
        )
        self._remark(*(f"flagged: {line}" for line in meanings))
        self._remark(*(f"counted: {line}" for line in list_movements(self._block_outcomes)))
        self._print(f"# Collective test concluded: {self._table[0]}", "#")

    def _write_totals(self) -> None:
        """Write nccl-tests' totals of a table, answers of limits, and remarks on its lines."""
        average = statistics.fmean(self._busbw) if self._busbw else 0.0
        results = self._judge_limits()
        self._print(f"# Out of bounds values : {self._bad} {'FAILED' if self._bad else 'OK'}")
        self._print(f"# Avg bus bandwidth    : {average:g} {_describe_average(results)}", "#")
        if self._options.average != 3:
            held = [result for result in results if result.busbw is not None]
            by = f"limit: by the time of {AVERAGES[3][0]},"
            self._remark(*(f"{by} {limits.describe_held(result)}" for result in held))
        repeated = self._repeated.items()
        self._remark(*(f"{text} (lines: {count})" for text, count in repeated))

    def _judge_limits(self) -> list[limits.Held]:
        """The answers of limits for this table."""
        records = [record for record, _ in self._block_outcomes]
        file = RunFile(run=self._run, worlds=self._worlds, records=records, end=None, path=Path())
        return limits.judge_limits(file)


def _describe_average(results: Sequence[limits.Held]) -> str:
    """OK or FAILED where a table's average has a limit and meets it or falls short, as nccl-tests
    has it; else nothing."""
    answers = {result.answer for result in results if result.average}
    return "FAILED" if "short" in answers else "OK" if answers == {"met"} else ""


def table_of(line: Mapping[bool, Case]) -> tuple[str, str]:
    """Program and block by which rows of nccl-tests' text stand in one table."""
    case = next(iter(line.values()))
    return name_program(case), describe_block(case)


def _format_settings(config: Mapping[str, Any]) -> str:
    step = (
        f"{config['step_factor']}(factor)"
        if "step_factor" in config
        else f"{config['step_bytes']}(bytes)"
    )
    return (
        f"# nThread 1 nGpus {config['ngpus']} minBytes {config['minimum_bytes']} maxBytes"
        f" {config['maximum_bytes']} step: {step} warmup iters: {config['warmup_iters']} iters:"
        f" {config['iterations']} agg iters: {config['aggregated_iterations']} validation:"
        f" {config['validation']} graph: {config['graph']} unalign: {config['unalign']}"
    )


def _format_device(device: Mapping[str, Any]) -> str:
    return (
        "#  Rank {rank:>2} Group {group:>2} Pid {pid:>6} on {hostname:>10} device {device:>2} "
        "[{device_hex}] {device_info}".format(**device)
    )


def write_header(options: Options) -> Iterator[str]:
    """Three lines. With -I there are four columns more a half, with -S one at the end."""
    more = options.per_iter
    names = ["cputime" if options.cpu_time else "time", "algbw", "busbw", "#wrong"]
    names += ["i_min", "i_max", "i_p99", "i_cv%"] * more
    units = ["(us)", "(GB/s)", "(GB/s)", "", *["(us)", "(us)", "(us)", "(%)"] * more]
    columns = "{:>9}{:>8}{:>8}{:>8}" + "{:>9}" * 4 * more
    added = " (+ per-iteration)"
    stamps = ("timestamp", "%Y-%m-%d %H:%M:%S") if options.timestamps else ("", "")
    yield f"#{'out-of-place':>77}{added}{'in-place':>40}{added}" if more else HEADER[0]
    for lead, texts, stamp in zip(HEADER[1:], (names, units), stamps, strict=True):
        wide = f"{stamp:>19}" if stamp else ""
        yield f"{lead}{columns.format(*texts) * 2} {wide}"


def escape_remark(text: str) -> str:
    """A remark's text, changed where nccl-tests' parsers would take it for a header or a footer."""
    return re.sub("|".join(WORDS), lambda match: WORDS[match[0]], plain_line(text))


def _count_cases(cases: Sequence[Case], planned: Sequence[Case]) -> list[str]:
    """The number of cases, with the place if all have one, and their sizes: as one phrase if size
    and place alone identify them among those ``planned``, else one for each datatype and so on."""
    names = [name for name in split_axes(planned)[0] if name != "place"]
    by_kind: dict[str, list[Case]] = {}
    for case in cases:
        words = word_axes(case)
        by_kind.setdefault("".join(f", {words[n]}" for n in names if words[n]), []).append(case)
    kinds = {(case.nbytes, case.in_place) for case in cases}
    if {case for case in planned if (case.nbytes, case.in_place) in kinds} <= {*cases}:
        by_kind = {"": list(cases)}
    sizes = sorted({case.nbytes for case in planned})
    return [_count_alike(alike, kind, sizes) for kind, alike in by_kind.items()]


def _count_alike(cases: Sequence[Case], kind: str, planned: Sequence[int]) -> str:
    """The number of cases of one ``kind``, with the place if all have one, and the sizes that they
    are of, out of those that were ``planned``, in order."""
    sizes, places = sorted({case.nbytes for case in cases}), {case.in_place for case in cases}
    place = "" if len(places) > 1 else f" {PLACES['in' if places.pop() else 'out']}"
    if len(sizes) <= LISTED:
        which = ", ".join(f"{size} B" for size in sizes)
    else:
        which = f"{sizes[0]} B to {sizes[-1]} B"
        between = [size for size in planned if sizes[0] <= size <= sizes[-1]]
        which = which if sizes == between else f"{len(sizes)} sizes from {which}"
    return f"cases: {len(cases)}{place}{kind}, {which}"


def _describe_isolated(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What calls of a stream take a device each, aligned: of small ones, whose time back to back
    may be that of a host that issues them."""
    took = [
        f"{'in' if record.case.in_place else 'out'} {row.control / 1e3:.2f}"
        for record, row in outcomes
        if row and row.control is not None and record.case.mode == "streaming"
    ]
    if took:
        size = outcomes[0][0].case.nbytes
        yield f"isolated: {size} B: {' · '.join(took)} us by the device's clock"


def _describe_doubted(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The intervals and flags of both halves where one of them is in doubt, or is wide; no fields
    on the line itself, which parsers count. What all lines have stands at the end."""
    rows = [(record, row) for record, row in outcomes if row]
    if not any(_is_doubtful(row) for _, row in rows):
        return
    halves = []
    for record, row in rows:
        row_flags = [
            flag for flag in row.flags if not look_up(flag).of_group and flag_kind(flag) != COPY
        ]
        sure = [] if is_without_interval(row) else [format_interval(row.half_width)]
        halves.append(
            " ".join(["in" if record.case.in_place else "out", *sure, *name_flags(row, row_flags)])
        )
    yield f"{rows[0][0].case.nbytes} B: {' · '.join(halves)}"


def _is_doubtful(row: Derived) -> bool:
    doubts = [flag for flag in list_doubts(row) if not look_up(flag).of_group]
    return bool(doubts) or (is_wide(row) and not is_without_interval(row))


def _format_row(case: Case, halves: Iterable[Half]) -> str:
    text = (
        f"{case.size:>12}  {case.count:>12}  {case.dtype:>8}  {OPS.get(case.op, case.op):>6} "
        f" {case.root:>6}"
    )
    for h in halves:
        if not h.measured:
            text += "      N/A     N/A     N/A    N/A" + "      N/A" * len(h.samples)
            continue
        wrong = "    N/A" if h.wrong is None else f"  {h.wrong:>6g}"
        text += (
            f"  {format_number(h.time, 7)}  {format_number(h.algbw, 6)} "
            f" {format_number(h.busbw or 0.0, 6)}{wrong}"
        )
        text += "".join(f"  {format_number(value, 7)}" for value in h.samples)
    return text
