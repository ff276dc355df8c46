"""A run's cases on a terminal: the header, the table that grows while the run goes on, its closing
lines; plans, and lists of runs."""

from __future__ import annotations

import itertools
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collbench.core import algorithm_files
from collbench.core.backend_info import backend_info
from collbench.core.errors import Exit
from collbench.core.text import (
    format_bandwidth,
    format_clock,
    format_count,
    format_duration,
    format_size,
    plain_line,
)
from collbench.core.version import __version__
from collbench.records import store
from collbench.records.derive import NO_TIME_LEFT, Derived
from collbench.records.flags import (
    PREEMPTED,
    UNCONVERGED,
    Flag,
    flag_kind,
    is_known,
    is_wide,
    is_without_interval,
    list_doubts,
    list_remarks,
    look_up,
)
from collbench.records.origins import FAKE
from collbench.records.run_file import Outline
from collbench.records.types import End, Run, World
from collbench.run.reporter import Gathered, Outcome, PlanRow
from collbench.show.busy import describe_run_load
from collbench.show.document import (
    Block,
    Cell,
    Column,
    Document,
    Line,
    Table,
    Tone,
    Weight,
    Words,
    make_columns,
    tone_text,
)
from collbench.show.flags import (
    MARK,
    common_flags,
    common_lines,
    explain_doubts,
    format_precision,
    letter_flags,
    name_flags,
    why_unknown,
)
from collbench.show.views import best as choice
from collbench.show.views import series
from collbench.show.views.summary import single_call
from collbench.show.words import (
    AXES,
    OPTIONAL,
    axis_values,
    by_mode,
    choose_columns,
    count_notes,
    count_reasons,
    format_cells,
    format_interval,
    list_caveats,
    list_movements,
    reserved_columns,
    split_axes,
    tell_story,
    two_modes,
    word_axes,
)
from collbench.suite.case import Case

COLUMNS = {  # by the names of cells (words.format_cells)
    **{name: Column(name, "left") for name in AXES},
    **{name: Column(name) for name in ("size", "median", "±", *OPTIONAL)},
    "collective": Column("", "left"),
    "place": Column("", "left"),
    "implementation": Column("impl", "left"),
    "tail": Column("tail", priority=3),
    "N": Column("N", priority=2, dim=True),
    "min": Column("min", priority=7, dim=True),
    "algbw": Column("algbw\nGB/s", priority=5, dim=True),
    "busbw": Column("busbw\nGB/s"),
    "wirebw": Column("wirebw\nGB/s"),
    "skew": Column("skew", priority=6, dim=True),
    "wrong": Column("wrong", priority=4),
    "ran": Column("ran", "left", priority=1),
    "flags": Column("flags", "left"),
}


SAVED = (  # columns of saved runs
    Column("name", "left", whole=True),
    Column("id", "left", whole=True),
    Column("tag", "cut"),
    Column("cases", whole=True),
    Column("size", priority=1),
    Column("ended", "left", whole=True),
    Column("arguments", "cut"),
)


SHOWN = 5  # of the cases that went wrong, this many are told in full


def make_header(run: Run, cases: Sequence[Case], worlds: Mapping[int, World]) -> list[Words]:
    """Three lines: what runs; where and on which library; how it is measured."""
    varying, constant = split_axes(cases) if cases else ([], "nothing to run")
    what = [constant] if constant else []
    if cases and (most := max(case.size for case in cases)):
        least = min(case.size for case in cases)
        what.append(
            format_size(most) if least == most else f"{format_size(least)} to {format_size(most)}"
        )
    for name in varying:
        values = list(dict.fromkeys(axis_values(case)[name] for case in cases))
        value_words = [v for v in values if v and name != "place"]
        few = ", ".join(value_words[:4]) + (" …" if len(value_words) > 4 else "")
        cycles = format_count(len(value_words), "launch" if run.policy.fresh else "cycle")
        phrases = {"ranks": f"{few} ranks", "root": f"roots {few}", "cycle": cycles}
        what.append(phrases.get(name, few))
    policy = run.policy
    crowded = {world.cramped for world in worlds.values()}
    limits = policy.resolved(any(crowded))
    how = [
        " and ".join(_name_modes(cases, any(crowded))),
        f"{policy.sync} sync",
        f"{policy.cache} cache",
    ]
    how.append(
        f"{policy.iters} iterations"
        if policy.iters
        else f"precision {format_precision(policy, crowded, '%')}, at most"
        f" {limits.max_seconds:g} s a case"
    )
    where = " · ".join(plain_line(part) for part in _describe_machine(run, worlds) if part)
    lines = [
        tone_text(f"collbench {__version__}  ", strong=True)
        + plain_line(" · ".join(filter(None, what))),
        tone_text(where, "quiet"),
        tone_text(plain_line(" · ".join(how)), "quiet"),
    ]
    return [*lines, *(tone_text(text, "bad") for text in list_caveats(run, worlds.values()))]


def _name_modes(cases: Sequence[Case], crowded: bool) -> list[str]:
    """The modes of ``cases``, with the reason of the one that is chosen where cores are few."""
    modes = dict.fromkeys(case.mode for case in cases)
    return [f"{mode} (few cores)" if mode == "host" and crowded else mode for mode in modes]


def _describe_machine(run: Run, worlds: Mapping[int, World]) -> list[str]:
    hosts = list(dict.fromkeys(info.host for world in worlds.values() for info in world.ranks))
    about = run.environment
    cpu, gpus = about.get("cpu") or {}, (about.get("gpus") or {}).get("devices") or []
    name = hosts[0] if hosts else str(about.get("host") or "")
    kinds = Counter(str(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping))
    libraries = [world.library or world.backend for world in worlds.values()]
    return [
        name + (f" and {len(hosts) - 1} more hosts" if len(hosts) > 1 else ""),
        ", ".join(f"{number} x {kind}" for kind, number in kinds.items()),
        f"{cpu['model']}, {cpu.get('physical', '?')} cores" if cpu.get("model") else "",
        ", ".join(dict.fromkeys(libraries)),
        ", ".join(dict.fromkeys(world.launcher for world in worlds.values())),
    ]


def make_table(
    mode: str,
    outcomes: Sequence[Outcome],
    cases: Sequence[Case],
    live: bool = False,
    fresh: bool = False,
) -> Table:
    """A line per case of ``mode``. Axes along which ``cases``, the plan, do not vary have no column
    (the header names them), nor has what no line says anything of (words.OPTIONAL); what else does
    not fit goes by its priority, but never a count of wrong elements. Cycles of ``fresh``
    ranks are launches."""
    planned = [case for case in cases if case.mode == mode]
    varying, constant = split_axes(planned or [record.case for record, _ in outcomes])
    lines = [format_cells(*outcome) for outcome in outcomes]
    names = choose_columns(lines, varying, reserved_columns(outcomes))
    several = len({case.mode for case in cases}) > 1
    groups = [[line[name] for name in names if name in AXES and name != "place"] for line in lines]
    changes = [
        not live and before != after for before, after in itertools.pairwise([groups[0], *groups])
    ]
    ruled = 4 * sum(changes) <= len(lines)
    columns = dict(COLUMNS)
    if fresh:
        columns["cycle"] = Column("launch", "left")
    if any(record.wrong for record, _ in outcomes):
        columns["wrong"] = Column("wrong")
    common = common_flags(outcomes)
    doubts_of_rows = [_own_doubts(row, common) if row else [] for _, row in outcomes]
    return Table(
        title=f"{mode}: {constant}" if several else "",
        columns=[columns[name] for name in names],
        lines=[
            _make_line(
                outcome, [line[name] for name in names], names.index("±"), change and ruled, common
            )
            for outcome, line, change in zip(outcomes, lines, changes, strict=True)
        ],
        brief=tuple(
            _shorten_flags(row, doubted, common) if row and record.status not in BAD else ""
            for (record, row), doubted in zip(outcomes, doubts_of_rows, strict=True)
        ),
        key=_explain_letters(flag for doubted in doubts_of_rows for flag in doubted),
    )


BAD = ("wrong", "failed")  # the status of a row that has no time to show


def describe_common(run: Gathered, outcomes: Sequence[Outcome]) -> list[Words]:
    """A sentence on what most rows have, above their table."""
    crowded = {world.cramped for world in run.worlds.values()}
    return [
        tone_text(plain_line(text), "quiet")
        for text in common_lines(outcomes, run.run.policy, crowded)
    ]


def _own_doubts(row: Derived, common: Mapping[str, str]) -> list[str]:
    """The doubts that stand in a row's line: those that are not said once for all."""
    return [flag for flag in list_doubts(row) if flag_kind(flag) not in common]


def _mark_remark(row: Derived, common: Mapping[str, str]) -> Words:
    """A dim mark where there is a remark; that its interval is wide, that shows."""
    remarks = {flag_kind(flag) for flag in list_remarks(row)} - common.keys() - {UNCONVERGED}
    return tone_text(MARK if remarks else "", "quiet")


def _shorten_flags(row: Derived, doubted: Sequence[str], common: Mapping[str, str]) -> Words:
    """The last cell where there is no room for words."""
    return _tone_flags(letter_flags(doubted), _mark_remark(row, common))


def _explain_letters(flags: Iterable[str]) -> str:
    """What letters stand for, in the order of FLAGS."""
    rows: list[Flag] = [look_up(flag) for flag in dict.fromkeys(map(flag_kind, flags))]
    return ", ".join(f"{row.letter} {row.name}" for row in rows if row.letter)


def _make_line(
    outcome: Outcome,
    values: Sequence[str],
    interval_index: int,
    ruled: bool,
    common: Mapping[str, str],
) -> Line:
    """A line of the table, with colour for a wide interval and for doubts, which stand last."""
    record, row = outcome
    if row is None or record.status in BAD:
        weight: Weight = "bad" if record.status in BAD else ""
        return Line(tuple(values), weight=weight, ruled=ruled, single=True)
    cells: list[Cell] = [*values]
    if is_wide(row) and not is_without_interval(row):
        cells[interval_index] = tone_text(values[interval_index], "notice")
    cells[-1] = _tone_flags(name_flags(row, _own_doubts(row, common)), _mark_remark(row, common))
    return Line(tuple(cells), ruled=ruled, single=True)


def _tone_flags(flags: Sequence[str], mark: Words) -> Words:
    line = tone_text("")
    for index, flag in enumerate(flags):
        line = line + (" " if index else "") + tone_text(flag, "notice", flag.endswith("!"))
    return line + (" " if flags and str(mark) else "") + mark


ENDED = {Exit.TIMEOUT: "hung or killed"}  # how runs end, where an exit's name does not say it


def list_saved(files: Sequence[tuple[str, Outline]], total: int = 0) -> Document:
    """Saved runs, oldest first: the name by which each is found (none while it is running), and how
    it ended. ``total`` counts those that are not listed, too."""
    heads = tuple(column.head for column in SAVED)
    lines, rows = [], list[dict[str, Any]]()
    for name, file in files:
        ended = "running" if file.running else _describe_end(file.end)
        arguments = plain_line(" ".join(file.run.command[1:]))
        names = [plain_line(text) for text in (name, file.run.id, file.run.tag)]
        values = (*names, file.cases, file.nbytes, ended, arguments, file.run.started, file.fake)
        rows.append(dict(zip((*heads, "started", FAKE), values, strict=True)))
        tone: Tone = "quiet" if ended == "ok" else "bad" if file.end else "notice"
        fake = tone_text(", fake GPU" if file.fake else "", "bad")
        details = (
            str(file.cases),
            format_size(file.nbytes),
            tone_text(ended, tone) + fake,
            arguments,
        )
        cells: list[Cell] = [*names, *details]
        lines.append(Line(cells, single=True))
    more = (
        f"{len(files):,} of {total:,} runs; --last {total} shows all" if total > len(files) else ""
    )
    table = Table(columns=SAVED, lines=lines, note=more)
    return Document(
        title="Saved runs", brief=[table], rows=rows, values={"runs": rows, "of": total}
    )


def _describe_end(end: End | None) -> str:
    if end is None:
        return "cut short"
    if end.exit not in [*Exit]:
        return f"exit {end.exit}"
    return ENDED.get(Exit(end.exit)) or Exit(end.exit).name.lower().replace("_", " ")


MOST_PLANNED = 1000  # lines of --dry-run


PLANNED = (
    "moved/call: what the busiest rank sends or receives in a call",
    "memory/rank: buffers, and 256 MiB for Python and libraries",
    "buffers: send/receive pairs used in rotation, so that data is not cached",
)


def describe_plan(
    rows: Sequence[PlanRow], starting: float = 0.0, fresh: bool = False, cores: int = 0
) -> list[Block]:
    """Blocks of --dry-run: what all cases share, each with the memory and time it will take, then
    the sum, with the seconds that ``starting`` ranks takes. Cycles, launches where ranks are
    ``fresh``, that are all alike are listed once. ``cores``: those that all ranks are to share, 0
    where that is not known."""
    cycle, run = "launch" if fresh else "cycle", [row for row in rows if not row.skipped]
    cycles = Counter(row.case.cycle for row in rows)
    are_alike = len(cycles) > 1 == len({*cycles.values()})
    listed = [row for row in rows if row.case.cycle == 0] if are_alike else rows
    varying, constant = split_axes([row.case for row in listed]) if rows else ([], "")
    constant += f"; each of {format_count(len(cycles), cycle)}" * are_alike
    lines = []
    for row in listed[:MOST_PLANNED]:
        values = word_axes(row.case)
        values["cycle"] = f"{cycle} {row.case.cycle + 1}"
        value_words = [values[name] for name in varying if values[name]]
        label = plain_line(", ".join([*value_words, row.case.mode]))
        if row.skipped:
            why = tone_text(label) + tone_text(f": {plain_line(row.skipped)}", "notice")
            lines.append(Line((why, format_size(row.case.nbytes), "", "", "", "")))
        else:
            memory = (
                format_size(row.case.size),
                format_size(row.moved),
                format_size(row.bytes_per_rank),
            )
            time = format_duration(row.seconds * 1e9 or None)
            lines.append(Line((label, *memory, str(row.rotation), time)))
    heads = ("case", "size", "moved/call", "memory/rank", "buffers", "time")
    about, longest = (sum(row.seconds for row in run), sum(row.most for row in run))
    total = f"{format_count(len(run), 'case')}, about {format_clock(starting + about)}"
    total += f" (up to {format_clock(starting + longest)} if noisy)" * (longest > about)
    total += f", of which {format_clock(starting)} to start ranks" * (starting > 0)
    most = format_size(max((row.bytes_per_rank for row in run), default=0))
    return [
        tone_text(plain_line(constant), strong=True),
        Table(columns=make_columns(heads, "w"), lines=lines),
        *([f"and {len(listed) - MOST_PLANNED:,} more"] if listed[MOST_PLANNED:] else []),
        *(tone_text(sentence, "quiet") for sentence in PLANNED if run),
        f"{total}, at most {most} a rank; {len(rows) - len(run)} skipped",
        *_may_be_refused([row.case for row in run]),
        *_describe_crowded([row.case for row in run], cores),
    ]


def _describe_crowded(cases: Sequence[Case], cores: int) -> list[Words]:
    """How many of the planned cases have more ranks than there are cores."""
    crowded = [case for case in cases if case.world > cores and case.backend != "model"]
    if not (crowded and cores):
        return []
    where = (
        f"{format_count(max(case.world for case in crowded), 'rank')} on"
        f" {format_count(cores, 'core')}"
    )
    flagged = f"{format_count(len(crowded), 'row')} will be flagged oversubscribed"
    return [tone_notice(f"{where}: {flagged}, which is not fit for claims; -g {cores} fits")]


def _may_be_refused(cases: Sequence[Case]) -> list[Words]:
    """Which of the planned cases a run may skip, as the library says so only when it is asked."""
    unsure = [case for case in cases if backend_info(case.backend).may_refuse(case)]
    names = dict.fromkeys(f"{case.dtype} {case.op}".removesuffix(" none") for case in unsure)
    libraries = ", ".join(dict.fromkeys(case.backend for case in unsure))
    text = (
        f"{libraries} may refuse {format_count(len(unsure), 'case')} of these: {', '.join(names)}"
    )
    return [tone_notice(plain_line(text))] if unsure else []


def summarise_run(run: Gathered) -> list[Words]:
    """Lines below a run's table: what went wrong, how busy others kept the machine, floor and peak
    of each collective and mode, rows with two modes, who came late, what the flags that occurred
    mean, what is noted of cases, what was left out and why, what was verified, and where it is
    kept."""
    lines = [tone_text(text, "bad") for text in list_caveats(run.run, run.worlds.values())]
    counting = [(record, row) for record, row in run.outcomes if not (row and FAKE in row.flags)]
    lines += [
        *_describe_trouble(run),
        *map(tone_notice, filter(None, [describe_busy(run)])),
        *_describe_best(run, counting),
    ]
    lines += [*map(tone_notice, _describe_modes(counting)), *_describe_late(run, counting)]
    lines += describe_arrivals(counting, run.worlds)
    lines += map(tone_notice, (*explain_flags(run), *list_movements(run.outcomes)))
    lines += [tone_text(f"note: {line}", "quiet") for line in count_notes(run.outcomes)]
    lines += [
        tone_text(f"{number} skipped: {reason}", "quiet")
        for reason, number in count_reasons(run.skips, run.arrived)
    ]
    lines += [*map(tone_notice, describe_dropped(run)), *_describe_verified(run)]
    return [*lines, *map(tone_text, describe_saved(run))]


def describe_saved(run: Gathered) -> list[str]:
    """Where a run is kept, by the name that finds it again; of one that ended early how to go
    on."""
    if run.path is None:
        return ["not saved"]
    ours = run.path.parent == store.home_folder() / "runs"
    lines = [f"saved: {plain_line(run.path.stem if ours else str(run.path))}"]
    if run.ended and run.ended.exit and len(run.arrived) < len(run.cases):
        name = "@last" if ours else shlex.quote(str(run.path))
        files = ",".join(algorithm_files.list_words(run.run.command))
        more = f" --algo {shlex.quote(files)}" if files else ""
        lines.append(plain_line(f"continue with: collbench run --resume {name}{more}"))
    return lines


def best_tables(run: Gathered) -> list[Table]:
    """The fastest at each size, where there is a choice; a table a mode."""
    if len({record.case.label for record, _ in run.arrived}) < 2:
        return []
    return choice.make_tables(series.make_view([run.file]))


def tone_notice(text: str) -> Words:
    """Text in the tone of a notice."""
    return tone_text(text, "notice")


def describe_busy(run: Gathered) -> str:
    """A sentence about the load of others; "" where there was none."""
    return describe_run_load(run.run, (record for record, _ in run.arrived), run.ended)


def explain_flags(run: Gathered) -> list[str]:
    """A line for each doubt that occurred, one for remarks (flags.explain_doubts); what stands
    above the tables not again."""
    crowded = {world.cramped for world in run.worlds.values()}
    above = [common_flags(outcomes) for _, outcomes in by_mode(run.outcomes)]
    everywhere = set.intersection(*map(set, above)) - {UNCONVERGED} if above else set()
    return explain_doubts(run.outcomes, run.run.policy, crowded, run.run.command, everywhere)


def _describe_modes(outcomes: Sequence[Outcome]) -> list[str]:
    return two_modes((record.case, row, record.inner) for record, row in outcomes if row)


def describe_dropped(run: Gathered) -> list[str]:
    """The cases for which a budget left no time, by name, in at most one line."""
    cases = [r.case for r, _ in run.arrived if r.note.startswith(NO_TIME_LEFT)]
    varying, _ = split_axes(cases) if cases else ([], "")
    names = [name for name in varying if name != "cycle"]
    case_words = Counter(
        " ".join(filter(None, [format_size(case.size), *(word_axes(case)[name] for name in names)]))
        for case in cases
    )
    times = [f"{name} (x{number})" if number > 1 else name for name, number in case_words.items()]
    return [plain_line(f"dropped: {', '.join(times)}")] if times else []


def _describe_trouble(run: Gathered) -> Iterable[Words]:
    for status, title in (("wrong", "WRONG DATA"), ("failed", "FAILED")):
        bad = [record for record, _ in run.outcomes if record.status == status]
        if bad:
            yield tone_text(
                f"{title} in {len(bad)} of {format_count(len(run.arrived), 'case')}", "bad"
            )
            yield from (
                tone_text(f"  {plain_line(tell_story(record))}", "bad") for record in bad[:SHOWN]
            )
        if len(bad) > SHOWN:
            yield tone_text(f"  … and {len(bad) - SHOWN} more", "bad")
    if run.ended and run.ended.exit and run.ended.note:
        yield tone_text(
            f"ended early, after {len(run.arrived)} of {format_count(len(run.cases), 'case')}:"
            f" {plain_line(run.ended.note)}",
            "bad",
        )


def _describe_best(run: Gathered, outcomes: Sequence[Outcome]) -> Iterable[Words]:
    good = [
        (record.case, row)
        for record, row in outcomes
        if row and record.status in ("ok", "predicted") and not record.case.subject
    ]
    for mode, name in dict.fromkeys((case.mode, case.collective) for case, _ in good):
        rows = [(case, row) for case, row in good if (case.mode, case.collective) == (mode, name)]
        varying, _ = split_axes([case for case, _ in rows])
        if len({case.size for case, _ in rows}) == 1:
            world = run.worlds.get(next(r.world for r, _ in outcomes if r.case == rows[0][0]))
            precision = run.run.policy.resolved(bool(world and world.cramped)).precision
            fixed = run.run.policy.iters is not None
            phrases = [_only_size(rows, varying, None if fixed else precision)]
        else:
            phrases = (
                [_describe_floor(rows, varying)] if single_call(rows[0][0], run.run.policy) else []
            )
            phrases += _describe_peak(rows, varying)
        if phrases:
            yield tone_text(plain_line(f"{name}, {mode}: {'; '.join(phrases)}"))


Timed = Sequence[tuple[Case, Derived]]


def _only_size(rows: Timed, varying: Sequence[str], precision: float | None) -> str:
    """The fastest row where there is one size, and whether it is less precise than asked for."""
    chosen = find_fastest(rows)
    if chosen is None:
        return f"time at {format_size(rows[0][0].size)} not known{_explain_unknown(rows)}"
    case, row = chosen
    rate = f", busbw {format_bandwidth(row.busbw)} GB/s" if row.busbw is not None else ""
    half = row.half_width
    vague = precision is not None and math.isfinite(half) and half > precision
    less = f": less precise than the ±{100 * (precision or 0):.2g} % asked for" if vague else ""
    return f"{_describe_figure(format_duration(row.times.median), case, row, varying)}{rate}{less}"


def _describe_floor(rows: Timed, varying: Sequence[str]) -> str:
    """The least time at the smallest size, where latency is all that there is."""
    least = min(case.size for case, _ in rows)
    smallest = [(case, row) for case, row in rows if case.size == least]
    if (chosen := find_fastest(smallest)) is None:
        return f"latency floor not known at {format_size(least)}{_explain_unknown(smallest)}"
    case, row = chosen
    return (
        f"latency floor {_describe_figure(format_duration(row.times.median), case, row, varying)}"
    )


def _describe_peak(rows: Timed, varying: Sequence[str]) -> list[str]:
    """The highest bus bandwidth."""
    rated = [(case, row) for case, row in rows if row.busbw is not None]
    if not rated:
        return []
    if (chosen := find_highest(rated)) is None:
        return [f"peak busbw not known{_explain_unknown(rated)}"]
    case, row = chosen
    return [
        f"peak busbw {_describe_figure(f'{format_bandwidth(row.busbw)} GB/s', case, row, varying)}"
    ]


def find_fastest(rows: Timed) -> tuple[Case, Derived] | None:
    """The row of the least time that is known: one without a doubt, unless one with a doubt took
    surely less."""
    known_rows = [(case, row) for case, row in rows if is_known(row)]
    if not known_rows:
        return None
    good = [pair for pair in known_rows if not list_doubts(pair[1])]
    surely = [
        pair
        for pair in known_rows
        if good and pair[1].times.hi < min(row.times.lo for _, row in good)
    ]
    return min(surely or good or known_rows, key=lambda pair: pair[1].times.median)


def find_highest(rows: Timed) -> tuple[Case, Derived] | None:
    """The same of the highest bus bandwidth."""
    known_rows = [(case, row) for case, row in rows if is_known(row)]
    if not known_rows:
        return None
    good = [pair for pair in known_rows if not list_doubts(pair[1])]
    most = max((_upper_busbw(row) for _, row in good), default=math.inf)
    surely = [pair for pair in known_rows if _lower_busbw(pair[1]) > most]
    return max(surely or good or known_rows, key=lambda pair: pair[1].busbw or 0.0)


def _upper_busbw(row: Derived) -> float:
    return (row.busbw or 0.0) * row.times.median / row.times.lo if row.times.lo > 0 else math.inf


def _lower_busbw(row: Derived) -> float:
    return (row.busbw or 0.0) * row.times.median / row.times.hi


def _describe_figure(figure: str, case: Case, row: Derived, varying: Sequence[str]) -> str:
    """A figure with its interval, where, and why to doubt it."""
    sure = "" if is_without_interval(row) else f" {format_interval(row.half_width)}"
    doubted = f" ({', '.join(name_flags(row, flags))})" if (flags := list_doubts(row)) else ""
    return f"{figure}{sure} at {_describe_point(case, varying)}{doubted}"


def _explain_unknown(rows: Timed) -> str:
    return f" ({why_unknown([row for _, row in rows])})"


def _describe_point(case: Case, varying: Sequence[str]) -> str:
    values = word_axes(case)
    details = ", ".join(values[name] for name in varying if values[name])
    return format_size(case.size) + (f" ({details})" if details else "")


def _describe_late(run: Gathered, outcomes: Sequence[Outcome]) -> Iterable[Words]:
    late = Counter(
        (record.world, row.late_rank)
        for record, row in outcomes
        if row and row.late_rank is not None
    )
    for (index, rank), times in late.most_common():
        world = run.worlds.get(index)
        host = next((info.host for info in world.ranks if info.rank == rank), "?") if world else "?"
        case_count = sum(
            record.world == index and rank in record.case.members for record, _ in run.arrived
        )
        group = f" of {world.n} ({world.backend})" if world and len(run.worlds) > 1 else ""
        where = plain_line(host)
        doubted = any(
            row.late_rank == rank and "late" in map(flag_kind, list_doubts(row))
            for record, row in outcomes
            if row and record.world == index
        )
        yield tone_text(
            f"late: rank {rank}{group} ({where}) in {times} of {format_count(case_count, 'row')}",
            "notice" if doubted else "quiet",
        )


def describe_arrivals(outcomes: Sequence[Outcome], worlds: Mapping[int, World]) -> Iterable[Words]:
    """One sentence for each mode in which it matters how ranks come to a call: by how much at most,
    why if that is known, and which of the two times a program sees."""
    for mode, members in by_mode(outcomes):
        sensitive = [
            (record, row, row.control / row.times.median)
            for record, row in members
            if row and row.sensitive and row.control
        ]
        if not sensitive:
            continue
        record, row, ratio = max(sensitive, key=lambda item: max(item[2], 1 / item[2]))
        world = worlds.get(record.world)
        first, second = row.times.median, row.control or 0.0
        together, called = (first, second) if mode == "isolated" else (second, first)
        why = " (other processes were at work)" * (PREEMPTED in row.flags)
        if world and world.cramped:
            ranks, library = format_count(record.case.n, "rank"), plain_line(record.case.label)
            why = f" (too few cores for {ranks} of {library})"
        hint = "; --mode host measures what a program sees" if mode == "isolated" else ""
        yield tone_text(
            f"{len(sensitive)} of {format_count(len(members), 'row')} in mode {mode} depend on when"
            " ranks"
            f" arrive: {_describe_point(record.case, ['implementation', 'place'])} takes"
            f" {format_duration(called)}"
            f" as called, {format_duration(together)} if all ranks start together"
            f" ({max(ratio, 1 / ratio):.1f}x){why}{hint}",
            "quiet",
        )


def _describe_verified(run: Gathered) -> Iterable[Words]:
    checked = sum(record.checked for record, _ in run.arrived)
    if checked and not any(record.wrong for record, _ in run.arrived):
        yield tone_text(f"{checked:,} elements verified, none wrong")
    elif not checked and any(record.status == "ok" for record, _ in run.arrived):
        yield tone_text("data was not verified", "notice")
