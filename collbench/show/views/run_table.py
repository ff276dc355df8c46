"""A run's cases on a terminal: the header, the table that grows while the run goes on, its closing
lines; plans, and lists of runs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from collbench.core.text import format_count, format_duration, format_size, plain_line
from collbench.core.version import __version__
from collbench.records import store
from collbench.records.derive import NO_TIME_LEFT, Derived
from collbench.records.flags import (
    PREEMPTED,
    UNCONVERGED,
    Flag,
    flag_kind,
    is_wide,
    is_without_interval,
    list_doubts,
    list_remarks,
    look_up,
)
from collbench.records.origins import FAKE
from collbench.records.run_file import is_unfinished
from collbench.records.types import Run, World
from collbench.run.launch.environments import name_launcher
from collbench.run.reporter import Gathered, Outcome
from collbench.run.resumption import describe_remedy, format_command
from collbench.show.busy import describe_run_load
from collbench.show.document import (
    Cell,
    Column,
    Line,
    Table,
    Weight,
    Words,
    code_text,
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
)
from collbench.show.views import best as choice
from collbench.show.views import series
from collbench.show.views.extremes import describe_best, describe_point
from collbench.show.words import (
    AXES,
    OPTIONAL,
    axis_values,
    by_mode,
    choose_columns,
    count_notes,
    count_reasons,
    format_cells,
    list_caveats,
    list_movements,
    reserved_columns,
    split_axes,
    tell_story,
    two_modes,
    warn_single_launch,
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
        if policy.iters and all(policy.fixes_samples(case.mode) for case in cases)
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
    axes_by_mode: Mapping[str, tuple[list[str], str]],
    live: bool = False,
    fresh: bool = False,
) -> Table:
    """A line per case of ``mode``. Axes along which the plan does not vary (``axes_by_mode``, as
    words.split_modes has them) have no column (the header names them), nor has what no line says
    anything of (words.OPTIONAL); what else does not fit goes by its priority, but never a count of
    wrong elements. Cycles of ``fresh`` ranks are launches."""
    varying, constant = axes_by_mode.get(mode) or split_axes(
        [record.case for record, _ in outcomes]
    )
    lines = [format_cells(*outcome) for outcome in outcomes]
    names = choose_columns(lines, varying, reserved_columns(outcomes))
    several = len(axes_by_mode) > 1
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
    crowded = {world.cramped for world in list(run.worlds.values())}
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
        *describe_best(run, counting),
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
    return [*lines, *describe_saved(run)]


def describe_saved(run: Gathered) -> list[Words]:
    """Where a run is kept, by the name that finds it again; of one that ended early how to go
    on."""
    if run.path is None:
        return [tone_text("not saved")]
    name = store.run_name(run.path)
    lines = ["saved: " + code_text(plain_line(name))]
    is_partial = len(run.arrived) < len(run.cases) or any(
        is_unfinished(record) for record, _ in run.outcomes
    )
    command = format_command(run.run, name)
    if run.ended and run.ended.exit and is_partial and command:
        launchers = {world.launcher for world in run.worlds.values()}
        starters = [starter for title in sorted(launchers) if (starter := name_launcher(title))]
        how = f"under {' and '.join(starters)}" if starters else "with"
        lines.append(f"continue {how}: " + code_text(plain_line(command)))
    return lines


def best_tables(run: Gathered) -> list[Table]:
    """The fastest at each size, where there is a choice; a table a mode."""
    if len({record.case.label for record, _ in run.arrived}) < 2:
        return []
    view = series.make_view([run.digest])
    tables = choice.make_tables(view)
    alone = warn_single_launch(best.winner.launches for best in view.best if best.slower)
    for table in tables[-1:] if alone else ():
        note = " ".join(filter(None, [table.note, alone]))
        tables[-1] = msgspec.structs.replace(table, note=note)
    return tables


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
    again = describe_remedy(run.run, store.run_name(run.path or Path()))
    return explain_doubts(
        run.outcomes, run.run.policy, crowded, run.run.command, everywhere, again=again
    )


def _describe_modes(outcomes: Sequence[Outcome]) -> list[str]:
    return two_modes((record.case, row, record.inner) for record, row in outcomes if row)


def describe_dropped(run: Gathered) -> list[str]:
    """The cases for which a budget left no time, by what tells them from others of the plan, in at
    most one line."""
    cases = [r.case for r, _ in run.arrived if r.note.startswith(NO_TIME_LEFT)]
    return [f"dropped: {name_cases(cases, run.cases)}"] if cases else []


def name_cases(cases: Sequence[Case], planned: Sequence[Case]) -> str:
    """Cases by their sizes and what else tells them from others that were ``planned``."""
    varying, _ = split_axes([*planned, *cases])
    names = [name for name in varying if name != "cycle"]
    case_words = Counter(
        " ".join(filter(None, [format_size(case.size), *(word_axes(case)[name] for name in names)]))
        for case in cases
    )
    times = [f"{name} (x{number})" if number > 1 else name for name, number in case_words.items()]
    return plain_line(", ".join(times))


def _describe_trouble(run: Gathered) -> Iterable[Words]:
    """Lines on wrong data, failed cases and an early end of the run."""
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


def _describe_late(run: Gathered, outcomes: Sequence[Outcome]) -> Iterable[Words]:
    """A line for each rank that came late, most often first. Worlds that are alike, as those of
    launches, count together."""
    places = {
        index: (world.n, world.backend, tuple((info.rank, info.host) for info in world.ranks))
        for index, world in run.worlds.items()
    }
    number = len({place[:2] for place in places.values()})
    late = Counter(
        (places.get(record.world), row.late_rank)
        for record, row in outcomes
        if row and row.late_rank is not None
    )
    for (place, rank), times in late.most_common():
        n, backend, ranks = place or (0, "", ())
        group = f" of {n} ({backend})" if number > 1 else ""
        case_count = sum(
            places.get(record.world) == place and rank in record.case.members
            for record, _ in run.arrived
        )
        where = plain_line(dict(ranks).get(rank, "?"))
        doubted = any(
            row.late_rank == rank and "late" in map(flag_kind, list_doubts(row))
            for record, row in outcomes
            if row and places.get(record.world) == place
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
            f" arrive: {describe_point(record.case, ['implementation', 'place'])} takes"
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
