"""The report of runs as a Document: one function a section, in the order of SECTIONS, among which
features have theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import msgspec

from collbench.core.errors import Exit
from collbench.core.feature import load_ordered
from collbench.core.text import format_count, format_settings, format_size, plain_line
from collbench.records import columns
from collbench.records.derive import BROKE_LATER, told_over
from collbench.records.flags import EXCLUDED, INVALID, OVERSUBSCRIBED, UNCONVERGED
from collbench.records.origins import FAKE, ORIGINS
from collbench.records.points import Point
from collbench.records.types import Record, RunFile
from collbench.show import busy
from collbench.show.document import Document, Line, Section, Table, Weight, make_columns
from collbench.show.figure_style import round_finite, thin_points
from collbench.show.views import arrival, best, machines, measured
from collbench.show.views import series as rows
from collbench.show.views import summary as summing
from collbench.show.views.series import Conclusion, View, filter_values, make_table
from collbench.show.words import (
    COLUMNS,
    PLACES,
    axis_values,
    flatten_record,
    list_caveats,
    notes_of,
    split_axes,
    tell_story,
)
from collbench.suite.case import Case

TROUBLES = 5  # of the cases that went wrong, this many are told in full

DATA = 28_000_000  # bytes of rows to be downloaded from a page

NAMES = ("run", *COLUMNS, "over")

MEANINGS = {column.name: column.description for column in columns.COLUMNS} | {
    "run": "the run's label",
    "cycle": "repetition, from 0",
    "step": "step of training, with a digest of what it does",
    "checked": "elements verified",
    "flags": "see the summary",
    "gateable": "whether verdicts may rest on the row",
    "sensitive": "whether median and control differ by more than chance and 25 %",
    "in_stretches": "whether samples stay at one of the two times for long",
    "carried": "bytes that links carried over those of the algorithm's schedule, 1 if unknown",
    "over": "what the median stands for where another tool measured it",
}


def make_summary(view: View) -> Section:
    """The section of a run: what was left out or went wrong, what was verified, each collective's
    floor and peak, the meaning of flags, and what is noted of cases."""
    counts = _count_statuses(view)
    other_counts = [
        f"{counts[name]:,} {name}" for name in ("skipped", "wrong", "failed") if counts[name]
    ]
    sentences = []
    if other_counts or counts["predicted"] or len(view.files) != 1 or not view.points:
        record_text = _describe_number(
            counts["ok"] + counts["wrong"], counts["predicted"], "record"
        )
        sentences = [
            f"{', '.join([record_text, *other_counts])}, in {format_count(len(view.files), 'run')}."
        ]
    sentences[:0] = [
        view.prefix_run(run, text)
        for run, file in enumerate(view.files)
        for text in list_caveats(file.run, file.worlds)
    ]
    sentences += [
        _tell_story(view, other.run, other.record) for other in _list_troubles(view)[:TROUBLES]
    ]
    more = len(_list_troubles(view)) - TROUBLES
    sentences += [f"… and {more:,} more, listed under what was left out."] if more > 0 else []
    sentences += [
        _describe_cut(label, file)
        for label, file in zip(view.labels, view.files, strict=True)
        if _is_cut_short(file)
    ]
    floors = summing.list_floors(view)
    answers = summing.answer_table(view, floors)
    told_by_answers = bool(answers and answers.lines[-1].cells[0] == "data")
    sentences += [
        *machines.describe_unlike(view),
        *([] if told_by_answers else summing.describe_verified(view)),
    ]
    sentences += summing.describe_averages(view)
    sentences += summing.describe_crowded(view)
    sentences += [f"{sentence}." for sentence in summing.busy_runs(view)]
    heads = ("collective", "mode", "latency floor", "±", "at", "peak busbw, GB/s", "±", "at")
    known = [line for line in floors if {line.cells[2], line.cells[5]} != {"-"}]
    title = "Floor and peak of each collective"
    peaks = make_table("best-of", title, make_columns(heads, "llrrlrrl"), known, common=2)
    candidates = (answers or peaks, summing.flag_table(view), _notes_table(view))
    tables = [table for table in candidates if table.lines]
    closing = summing.describe_late(view)
    return Section(
        name="summary", title="Summary", sentences=sentences, tables=tables, closing=closing
    )


def _notes_table(view: View) -> Table:
    """What is noted of cases that went well, most frequent first."""
    noted: dict[tuple[int, str], list[Record]] = {}
    for run, file in enumerate(view.files):
        for record in file.records:
            for note in notes_of(record):
                noted.setdefault((run, note), []).append(record)
    lines = [
        Line((view.prefix_run(run, note), _describe_cases(members), f"{len(members):,}"))
        for (run, note), members in sorted(noted.items(), key=lambda item: -len(item[1]))
    ]
    columns = make_columns(("note", "cases", "number"), "ll")
    return make_table("notes", "Notes", columns, lines)


def make_trouble(view: View) -> Section | None:
    """The section on what failed or was wrong, or left out besides: it stands before any figure."""
    return left_out(view) if _list_troubles(view) else None


def make_skips(view: View) -> Section | None:
    """The section on what was left out, where all of it was only skipped."""
    return None if _list_troubles(view) else left_out(view)


def left_out(view: View) -> Section | None:
    """Cases that did not run or went wrong, by reason, trouble first; None where there are none."""
    order = {"wrong": 0, "failed": 1, FAKE: 2, INVALID: 2, "skipped": 3}
    records: dict[tuple[int, str, str], list[Record]] = {}
    for other in view.others:
        reason = EXCLUDED.get(other.why) or plain_line(other.record.note)
        key = other.run, other.why, reason or "no reason given"
        records.setdefault(key, []).append(other.record)
    if not records:
        return None
    lines = []
    for (run, status, reason), members in sorted(
        records.items(), key=lambda item: (order.get(item[0][1], 3), -len(item[1]))
    ):
        same = [filter_values(record.case) for record in members]
        about = {
            key: value
            for key, value in same[0].items()
            if all(fields.get(key) == value for fields in same)
        }
        cells = (
            status,
            view.prefix_run(run, reason),
            _describe_cases(members),
            f"{len(members):,}",
        )
        lines.append(Line(cells, about, "bad" if status in ("wrong", "failed") else ""))
    counts = Counter(other.why for other in view.others)
    sentences = [", ".join(f"{times:,} {status}" for status, times in counts.items()) + "."]
    columns = make_columns(("status", "reason", "cases", "number"), "lll")
    table = make_table("reasons", "Reasons", columns, lines)
    return Section(name="left-out", title="Left out", sentences=sentences, tables=[table])


def make_data(view: View) -> Section:
    """Columns of the data and their meanings."""
    total, row_count = sum(len(file.records) for file in view.files), len(_select_places(view))
    rows = format_count(row_count, "row")
    sentences = [
        f"{rows}, one for each record: times in nanoseconds, sizes in bytes, bandwidths in 1e9"
        " bytes a second."
    ]
    if row_count < total:
        sentences = [
            f"{row_count:,} of {total:,} records, evenly spread: all are too much for a page. The"
            " runs' files hold them."
        ]
    lines = [Line((name, MEANINGS[name])) for name in NAMES]
    meant = make_table("columns", "Columns", make_columns(("column", "meaning"), "ll"), lines)
    return Section(
        name="data", title="Data", sentences=sentences, tables=[meant], folded=True, of_data=True
    )


SECTIONS: tuple[tuple[str, Callable[[View], Section | None]], ...] = (
    ("best", best.make_section),
    ("summary", make_summary),
    ("trouble", make_trouble),
    ("bandwidths", measured.make_bandwidths),
    ("skips", make_skips),
    ("arrival", arrival.make_arrival),
    ("skew", arrival.make_skew),
    ("pairs", measured.make_pairs),
    ("distributions", measured.make_distributions),
    ("outliers", measured.make_outliers),
    ("machines", machines.make_section),
    ("data", make_data),
)


def make_document(files: Sequence[RunFile], conclusion: Conclusion | None = None) -> Document:
    """A report on ``files``, which may be none; with ``conclusion``, on that first of all."""
    view = rows.make_view(files, conclusion)
    verdict, tone = _conclude_verdict(view)
    if (load_text := busy.of_files(files)) and not summing.count_findings(view):
        verdict = f"{verdict} {load_text[0].upper()}{load_text[1:]}."
        tone = "notice" if tone == "good" and not conclusion else tone
    makers = load_ordered("sections", SECTIONS).values()
    sections = [section for make in makers if (section := make(view)) is not None]
    return Document(
        title=_choose_title(view),
        brief=(),
        verdict=verdict,
        weight=tone,
        runs=[_describe_run(view, i) for i in range(len(files))],
        sections=sections,
        data=_flatten_records(view),
    )


def _conclude_verdict(view: View) -> tuple[str, Weight]:
    """The sentence with which a report begins, and whether it is good or bad."""
    counts = _count_statuses(view)
    total = sum(counts.values())
    counts["broken"] = sum(
        record.note.startswith(BROKE_LATER) and record.case.is_leader
        for file in view.files
        for record in file.records
    )
    troubles = {
        "wrong": "gave wrong data",
        "failed": "failed",
        "broken": "broke in a second pass over them",
    }
    if any(counts[name] for name in troubles):
        parts = [
            f"{counts[name]:,} of {format_count(total, 'case')} {word}"
            for name, word in troubles.items()
            if counts[name]
        ]
        return f"{' and '.join(parts)}.", "bad"
    if view.conclusion is not None:
        return f"{view.conclusion.headline}.", view.conclusion.weight
    if fake := sum(other.why == FAKE for other in view.others):
        return (
            f"{format_count(fake, 'case')} {ORIGINS[FAKE].reason}, whose times mean nothing.",
            "notice",
        )
    which = "the run was" if len(view.files) == 1 else "a run was"
    cut = f" before {which} cut short" if any(map(_is_cut_short, view.files)) else ""
    if not view.points:
        return _explain_no_times(view, total, cut), "notice"
    if cut:
        return f"{_describe_points(view)}{cut}.", "notice"
    return _fit_for_claims(view, counts)


def _explain_no_times(view: View, total: int, cut: str) -> str:
    """The verdict on runs of so many cases, none of which has a time; ``cut`` is the clause on runs
    that were cut short."""
    if found := summing.count_findings(view):
        return f"What {format_count(found, 'case')} found is below; no times were taken."
    if not total:
        return f"There is nothing to report: no case was run{cut}."
    reasons = Counter(other.why for other in view.others)
    if set(reasons) == {"skipped"} and not cut:
        return "No case was measured: all were skipped."
    names = {why: "without a valid time" if why in EXCLUDED else why for why in reasons}
    counted = ", ".join(f"{number:,} {names[why]}" for why, number in reasons.items())
    return f"No case has a time{cut}{': ' * bool(counted)}{counted}."


def _fit_for_claims(view: View, counts: Counter[str]) -> tuple[str, Weight]:
    """The verdict on complete runs in which nothing failed."""
    number = _describe_points(view)
    if counts["predicted"] and not counts["ok"]:
        return f"{number}; nothing was measured.", "notice"
    own_files = [file for file in view.files if not file.run.imported]
    imports = _describe_imports(view)
    if not own_files:
        return f"{number}{imports}.", "notice"
    with_data = [
        record
        for file in own_files
        for record in file.records
        if record.status == "ok" and record.case.size and record.case.is_leader
    ]
    verified = all(record.checked for record in with_data)
    data = "all results correct" if verified else "not all results were verified"
    if not with_data:
        data = "none with data to verify"
    points = _select_counted(view)
    crowded = sum(OVERSUBSCRIBED in point.flags for point in points)
    if crowded:
        remark = f"{crowded:,} with more ranks than cores, which is not fit for claims"
        return f"{number}, {data}; {remark}{imports}.", "notice"
    wide = sum(UNCONVERGED in point.flags for point in points)
    measured_points = sum(not point.predicted for point in points)
    remark = f"; {wide:,} of {measured_points:,} less precise than asked for" if wide else ""
    excluded = len(_list_excluded(view))
    remark += f"; {excluded:,} more without a valid time" if excluded else ""
    good = verified and 2 * wide <= measured_points and not imports and not excluded
    return f"{number}, {data}{remark}{imports}.", "good" if good else "notice"


def _list_excluded(view: View) -> set[tuple[int, Case]]:
    """The cases of each run of which no launch has a valid time."""
    left_out = {
        (other.run, msgspec.structs.replace(other.record.case, cycle=0))
        for other in view.others
        if other.why == INVALID and other.record.case.is_leader
    }
    return left_out - {(point.run, point.case) for point in view.points}


def _describe_imports(view: View) -> str:
    """The clause on imported logs; empty without one."""
    tools = sorted({plain_line(file.run.imported) for file in view.files if file.run.imported})
    if not tools:
        return ""
    points = _select_counted(view)
    count = sum(bool(view.files[point.run].run.imported) for point in points)
    some = f"{count:,} of them " if count < len(points) else ""
    return f"; {some}imported from {', '.join(tools)}; fields missing in the log stay empty"


def _describe_points(view: View) -> str:
    points = _select_counted(view)
    predicted = sum(point.predicted for point in points)
    nouns = {point.case.table.noun for point in points}
    what = nouns.pop() if len(nouns) == 1 else "case"
    return _describe_number(len(points) - predicted, predicted, what)


def _select_counted(view: View) -> list[Point]:
    """Points as a verdict counts them: a step is one, of which parts are measured besides. Among
    others its parts are cases, as in the rest of the page."""
    if len({point.case.table.noun for point in view.points}) > 1:
        return view.points
    return [point for point in view.points if not point.case.is_part]


def _describe_number(measured: int, predicted: int, what: str) -> str:
    """A phrase for the number of cases measured, and of those predicted."""
    parts = [f"{format_count(measured, what)} measured"] if measured or not predicted else []
    return ", ".join(
        parts
        + (
            [f"{predicted if parts else format_count(predicted, what)} predicted by a model"]
            if predicted
            else []
        )
    )


def _count_statuses(view: View) -> Counter[str]:
    return Counter(record.status for file in view.files for record in file.records)


def _is_cut_short(file: RunFile) -> bool:
    return file.end is None or file.end.exit == Exit.INTERRUPTED


def _describe_cut(label: str, file: RunFile) -> str:
    why = plain_line(file.end.note) if file.end and file.end.note else "its file has no end"
    return f"{label} was cut short after {format_count(len(file.records), 'record')}: {why}."


def _list_troubles(view: View) -> list[rows.Other]:
    return sorted(
        (o for o in view.others if o.record.status in ("wrong", "failed")),
        key=lambda o: o.record.status != "wrong",
    )


def _tell_story(view: View, run: int, record: Record) -> str:
    return plain_line(view.prefix_run(run, f"{record.status}: {tell_story(record)}"))


def _describe_cases(members: Sequence[Record]) -> str:
    """What cases have in common, and which sizes they span."""
    cases = [record.case for record in members[:1000]]
    varying, common = split_axes(cases)
    parts = [common]
    for name in varying:
        values = list(dict.fromkeys(axis_values(case)[name] for case in cases))
        values = [
            PLACES.get(value, value) if name == "place" else value for value in values if value
        ]
        parts.append(
            f"{name} "
            + ", ".join(values[:6])
            + (f" and {len(values) - 6} more" if len(values) > 6 else "")
        )
    sizes = sorted({case.nbytes for case in cases if case.nbytes})
    parts.append(
        format_size(sizes[0]) + (f" to {format_size(sizes[-1])}" if len(sizes) > 1 else "")
        if sizes
        else ""
    )
    return plain_line("; ".join(word for word in parts if word))


def _choose_title(view: View) -> str:
    if view.conclusion is not None:
        return view.conclusion.title
    names = list(dict.fromkeys(plain_line(file.run.suite.name) for file in view.files))
    return (
        f"collbench: {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
        if names
        else "collbench report"
    )


def _describe_run(view: View, number: int) -> str:
    file = view.files[number]
    run, label = file.run, view.labels[number]
    ranks = sorted({record.case.n for record in file.records})
    noun = "rank" if ranks == [1] else "ranks"
    parts = [
        label if len(view.files) > 1 or label not in run.id else "",
        f"{'/'.join(map(str, ranks[:4]))}{'/…' * (len(ranks) > 4)} {noun}" if ranks else "",
        ", ".join(sorted({record.case.backend for record in file.records})),
        f"imported from {run.imported}" if run.imported else "",
        *machines.describe_machine(file),
    ]
    return " · ".join(machines.format_fact(part) for part in parts if part)


def _select_places(view: View) -> list[tuple[int, int]]:
    """Runs and places of the records that DATA bytes hold, evenly spread."""
    places = [
        (run, index) for run, file in enumerate(view.files) for index in range(len(file.records))
    ]
    sample = thin_points(places, 50)
    row_bytes = len(msgspec.json.encode(_list_rows(_flatten_places(view, sample)))) / max(
        1, len(sample)
    )
    return thin_points(places, max(1, int(DATA / row_bytes)))


def _flatten_records(view: View) -> list[dict[str, Any]]:
    """Records as words.flatten_record has them, with texts for tuples, less the columns that none
    of them fills."""
    columns = _flatten_places(view, _select_places(view))
    return _list_rows(
        {
            name: values
            for name, values in columns.items()
            if any(value not in (None, "") for value in values)
        }
    )


def _flatten_places(view: View, places: Sequence[tuple[int, int]]) -> dict[str, list[Any]]:
    """The columns NAMES of the records at these runs and places."""
    rows = [_flatten_record(view, run, index) for run, index in places]
    return {name: _plain_column([row[name] for row in rows]) for name in NAMES}


def _list_rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _flatten_record(view: View, run: int, index: int) -> dict[str, Any]:
    record, row = view.files[run].records[index], view.derived[run][index]
    values = {"run": view.labels[run]} | flatten_record(record, row)
    return values | {"env": format_settings(record.case.env), "over": told_over(record)}


def _plain_column(values: list[Any]) -> list[Any]:
    """The values as texts and numbers that JSON has; most columns hold few different ones."""
    types = set(map(type, values))
    if types <= {NoneType, bool, int}:
        return values
    if float in types:
        return [_plain_value(value) for value in values]
    plain = {value: _plain_value(value) for value in set(values)}
    return [plain[value] for value in values]


def _plain_value(value: Any) -> Any:
    if isinstance(value, float):
        return round_finite(value)
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return plain_line(value) if isinstance(value, str) else value
