"""Nights as documents: what changed since when and by how much, which nights are kept, and which
levels were reviewed."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec

from collbench.core.text import format_count, format_duration, format_size, plain_line
from collbench.features.health.history.baselines import Baseline
from collbench.features.health.history.levels import LEAST
from collbench.features.health.history.nights import Night, Series
from collbench.features.health.history.outlook import Outlook, relative_times
from collbench.features.health.history.shifts import Shift
from collbench.show.document import (
    Block,
    Column,
    Document,
    Figure,
    Line,
    Section,
    Table,
    Weight,
    tone_text,
)
from collbench.show.figure_style import COLOURS, SYMBOLS, escape_plotly, join_hover, round_finite
from collbench.show.terminal import WIDE
from collbench.show.views.series import filter_values
from collbench.show.words import format_signed, shorten_text, split_axes, word_axes
from collbench.suite.case import Case

BARS = "▁▂▃▄▅▆▇█"

DRAWN = 50  # bars in a line, if there is room

NAMED, FIGURED = 48, 44  # columns of a row's name at most, and of the figures beside it

RANGE = 0.1  # the least that a line of bars spans, as a share: noise shall not look like a mountain

FIGURES, CURVES = 40, 12  # of a page, and of a figure


def label_rows(series: Sequence[Series]) -> dict[str, str]:
    """A label for each row, by its key: in what it differs from the others, and its size."""
    varying = split_axes([row.case for row in series])[0] if series else []
    several = len({row.case.mode for row in series}) > 1
    return {
        row.name: plain_line(
            _label_case(row.case, {"collective", *varying}, several)
            + (f" ({row.way})" if row.way else "")
        )
        for row in series
    }


def _label_case(case: Case, varying: set[str], several: bool) -> str:
    axis_words = word_axes(case)
    parts = [axis_words[name] for name in axis_words if name in varying]
    parts += [case.mode] if several else []
    parts += [format_size(case.size)] if case.size else []
    return plain_line(" ".join(filter(None, parts)))


def describe_shift(shift: Shift) -> str:
    """all_reduce, 1 MiB to 8 MiB: 5.1 % slower since 2026-02-09. Of a step, its parts in place of
    sizes."""
    low, high = min(shift.sizes), max(shift.sizes)
    sizes = format_size(low) if low == high else f"{format_size(low)} to {format_size(high)}"
    if shift.rows[0].case.table.together:
        sizes = " and ".join(row.case.collective for row in shift.rows) if shift.agreed else ""
    what = ", ".join(
        filter(None, [split_axes([row.case for row in shift.rows])[1], sizes if high else ""])
    )
    what += f" with {shift.rows[0].way}" if shift.rows[0].way else ""
    direction = "slower" if shift.delta > 0 else "faster"
    until = (
        ""
        if shift.standing
        else "; measured so no more"
        if all(row.ended for row in shift.rows)
        else "; a new segment began since"
        if shift.over
        else "; a level of before is back"
    )
    rows = (
        f"{format_count(len(shift.rows), 'row')}, p {'=' if len(shift.rows) == 1 else '<='}"
        f" {shift.p:.1g}"
    )
    return plain_line(
        f"{what}: {abs(shift.delta):.1%} {direction} since {shift.day} ({rows}){until}"
    )


def make_headline(outlook: Outlook) -> str:
    """One line for a trend: rows that stand slower, faster or crept, or why there is no verdict."""
    standing = [shift for shift in outlook.changed if shift.standing]
    slower = sum(shift.delta > 0 for shift in standing)
    faster, crept = len(standing) - slower, len(outlook.creeping)
    parts = {
        f"{slower} slower": slower,
        f"{faster} faster": faster,
        f"{format_count(crept, 'row')} crept beyond the baseline": crept,
    }
    if happened := ", ".join(part for part, number in parts.items() if number):
        return happened
    if outlook.most_nights < 2 * LEAST:
        few = f"{format_count(outlook.most_nights, 'night')} of a row that may be judged"
        return f"no verdict: {few}; a change needs at least {2 * LEAST}"
    return "no change"


def find_weight(outlook: Outlook) -> Weight:
    """The weight of a trend: bad where a row stands slower or crept, notice without a verdict."""
    bad = outlook.creeping or any(shift.standing and shift.delta > 0 for shift in outlook.changed)
    return "bad" if bad else "good" if outlook.most_nights >= 2 * LEAST else "notice"


def list_sentences(outlook: Outlook) -> list[tuple[str, Weight]]:
    """A sentence for all that happened, with its colour: what changed first."""
    names = label_rows(outlook.series)
    sentences: list[tuple[str, Weight]] = [
        (describe_shift(shift), "" if not shift.standing else "bad" if shift.delta > 0 else "good")
        for shift in outlook.changed
    ]
    sentences += [
        (
            (
                f"{names[name]}: {format_signed(drift.delta)} against the baseline, by the last"
                f" {drift.nights}"
                " nights"
            ),
            "bad",
        )
        for name, drift in outlook.creeping.items()
    ]
    sentences += [(text, "") for text in _describe_ways(outlook)]
    sentences += [
        (
            plain_line(
                f"{beginning.day}: a new segment of {format_count(beginning.rows, 'row')} begins:"
                f" {beginning.why}"
            ),
            "notice",
        )
        for beginning in outlook.beginnings
    ]
    few = sum(not night.valid for row in outlook.series for night in row.nights)
    if few:
        night_count = sum(len(row.nights) for row in outlook.series)
        reasons = Counter(
            night.unfit_reason for row in outlook.series for night in row.nights if not night.valid
        )
        why = reasons.most_common(1)[0][0]
        sentences.append(
            (
                f"{few:,} of {format_count(night_count, 'night')} of rows ignored, most for: {why}",
                "notice",
            )
        )
    return sentences


def _describe_ways(outlook: Outlook) -> list[str]:
    """A sentence for each way in which rows were measured by turns."""
    sentences = []
    for way, rows in outlook.ways.items():
        days = sorted({night.day for row in rows for night in row.nights})
        no_more = ", and no more since" if all(row.ended for row in rows) else ""
        sentences.append(
            plain_line(
                f"measured by turns with {way}: {format_count(len(rows), 'row')},"
                f" {format_count(len(days), 'night')}, {days[0]} to {days[-1]}{no_more}; a history"
                " of its own"
            )
        )
    return sentences


def _find_remarkable(outlook: Outlook) -> dict[str, Shift | None]:
    """Keys of rows that changed or crept, with the last change of each."""
    remarkable: dict[str, Shift | None] = dict.fromkeys(outlook.creeping)
    return remarkable | {row.name: shift for shift in outlook.changed for row in shift.rows}


def _make_brief(outlook: Outlook, everything: bool, columns: int) -> list[Block]:
    """The text for a terminal: what happened, then a line of bars for each row that changed, or for
    all rows."""
    span = f"{format_count(len(outlook.days), 'night')}, {outlook.days[0]} to {outlook.days[-1]}"
    blocks: list[Block] = [
        tone_text(f"collbench history of {outlook.machine}", strong=True) + f"  {span}",
        tone_text(make_headline(outlook), find_weight(outlook)),
        *(tone_text(text, colour) for text, colour in list_sentences(outlook)),
    ]
    listed = [row for row in outlook.series if everything or row.name in _find_remarkable(outlook)]
    if listed:
        blocks += ["", _rows_table(outlook, listed, columns), ""]
    if hidden := len(outlook.series) - len(listed):
        left_out = (
            f"not shown: {format_count(hidden, 'row')} without a change (--all shows them too)"
        )
        blocks.append(tone_text(left_out, "quiet"))
    return blocks


def _rows_table(outlook: Outlook, rows: Sequence[Series], columns: int) -> Table:
    names, changed = label_rows(outlook.series), _find_remarkable(outlook)
    name_width = min(NAMED, max(map(len, (names[row.name] for row in rows))))
    drawn = max(8, min(DRAWN, columns - name_width - FIGURED, max(len(row.nights) for row in rows)))
    lines = []
    for row in rows:
        shift, crept = changed.get(row.name), outlook.creeping.get(row.name)
        delta = shift.delta if shift else crept.delta if crept else None
        latest, valid = row.nights[-1].value, sum(night.valid for night in row.nights)
        cells = (
            names[row.name],
            draw_bars(relative_times(row), drawn),
            format_duration(math.exp(latest)),
            format_signed(delta),
            shift.day if shift else "-",
            f"{valid}/{len(row.nights)}" if valid < len(row.nights) else str(valid),
        )
        lines.append(Line(cells))
    table_columns = [
        Column("row", "wrap", width=name_width),
        Column("from first to last", "left"),
        *(Column(head) for head in ("latest", "change", "since", "nights")),
    ]
    return Table(columns=table_columns, lines=lines)


def draw_bars(values: Sequence[float], most: int = DRAWN) -> str:
    """A character for each value, the higher the longer the time; of more than ``most``, for the
    medians of as many groups of neighbours."""
    number = min(len(values), most)
    ends = [len(values) * part // number for part in range(number + 1)]
    heights = [median(values[begin:end]) for begin, end in pairwise(ends)]
    low = min(heights)
    step = max(max(heights) - low, RANGE * low) / len(BARS)
    return "".join(BARS[min(int((height - low) / step), len(BARS) - 1)] for height in heights)


def recent_nights(outlook: Outlook) -> str:
    """A sentence with a bar for each of the last 30 nights: the median of all rows' times."""
    by_day: dict[str, list[float]] = {}
    for row in outlook.series:
        for night, value in zip(row.nights, relative_times(row), strict=True):
            by_day.setdefault(night.day, []).append(value)
    days = sorted(by_day)[-30:]
    if len(days) < 2:
        return ""
    drawn = draw_bars([median(by_day[day]) for day in days], len(days))
    return f"Last {len(days)} nights, higher is slower: {drawn} {days[0]} to {days[-1]}"


def list_kept(
    machine: str,
    machines: Sequence[str],
    series: Sequence[Series],
    baselines: Sequence[Baseline],
    last: int,
) -> Document:
    """The last nights of a machine, the levels that were reviewed, and which other machines there
    are."""
    reviewed = [
        f"{level.begins}: {format_count(len(level.rows), 'row')}"
        f" {'accepted' if level.accepted else 'learned'}"
        f" by {level.who} on {level.when[:10]}: {level.reason}"
        + (f" ({level.commit})" if level.commit else "")
        for level in baselines
    ]
    title = f"collbench history of {machine}"
    blocks: list[Block] = [tone_text(title, strong=True), _nights_table(series, last), *reviewed]
    if others := [name for name in machines if name != machine]:
        blocks.append(tone_text(f"other machines: {', '.join(others)}", "quiet"))
    return Document(title=title, brief=blocks)


NIGHTS = (
    Column("night", "wrap"),
    Column("fingerprint", "wrap"),
    Column("runs", "wrap"),
    Column("rows"),
    Column("launches"),
    Column("to judge"),
    Column("why not", "wrap", dim=True),
)


def _nights_table(series: Sequence[Series], last: int) -> Table:
    nights: dict[tuple[str, str], list[Night]] = {}
    for row in series:
        for night in row.nights:
            nights.setdefault((night.day, night.fingerprint), []).append(night)
    lines = []
    for (day, fingerprint), entries in sorted(nights.items())[-last:]:
        launches = [night.launches for night in entries]
        reasons = dict.fromkeys(night.unfit_reason for night in entries if not night.valid)
        cells = (
            day,
            fingerprint,
            ", ".join(dict.fromkeys(run for night in entries for run in night.runs)),
            str(len(entries)),
            "-".join(map(str, sorted({min(launches), max(launches)}))),
            str(sum(night.valid for night in entries)),
            "; ".join(reasons),
        )
        lines.append(Line(cells))
    return Table(columns=NIGHTS, lines=lines)


def make_document(outlook: Outlook, everything: bool = False, columns: int = WIDE) -> Document:
    """The events, and the course of each row: on a terminal of so many ``columns`` those that
    changed or ``everything``; on a page a figure for each line of rows, those with a change first,
    and all nights as data."""
    span = (
        f"{outlook.machine}: {format_count(len(outlook.days), 'night')}, {outlook.days[0]} to"
        f" {outlook.days[-1]}"
    )
    values = flatten_outlook(outlook)
    return Document(
        title=f"History of {plain_line(outlook.machine)}",
        verdict=make_headline(outlook),
        weight=find_weight(outlook),
        runs=[plain_line(span)],
        sections=make_sections(outlook),
        data=values["nights"],
        brief=_make_brief(outlook, everything, columns),
        values=values,
    )


def make_sections(outlook: Outlook) -> list[Section]:
    """The changes, and each line of rows over its nights, if it has several; folded where nothing
    changed."""
    happened = [Line((plain_line(text),), {}, colour) for text, colour in list_sentences(outlook)]
    table = Table(
        name="happened", title="What happened", columns=[Column("what", "left")], lines=happened
    )
    lines: dict[tuple[Case, str], list[Series]] = {}
    for row in outlook.series:
        if len(row.nights) > 1:
            like = msgspec.structs.replace(row.case, nbytes=0)
            lines.setdefault((like, row.way), []).append(row)
    changed = _find_remarkable(outlook)
    order = sorted(lines.values(), key=lambda line: not any(row.name in changed for row in line))
    omitted = len(order) - FIGURES
    note = [f"{omitted} further lines of rows are in the data."] if omitted > 0 else []
    nothing = [] if happened else ["No change, no new segment, no row beyond its baseline."]
    tables = [table] if happened else []
    changes = Section(name="changes", title="Changes", sentences=nothing, tables=tables)
    if not order:
        return [changes]
    drawn = [_draw_figure(outlook, index, line) for index, line in enumerate(order[:FIGURES])]
    nights = Section(
        name="nights", title="Nights", sentences=note, figures=drawn, folded=not changed
    )
    return [changes, nights]


def _draw_figure(outlook: Outlook, index: int, line: Sequence[Series]) -> Figure:
    """Time over that of the first nights, a curve for each size; dotted where a segment begins,
    dashed where the level changed."""
    changed = _find_remarkable(outlook)
    drawn = sorted(line, key=lambda row: (row.name not in changed, row.case.nbytes))[:CURVES]
    drawn.sort(key=lambda row: row.case.nbytes)
    name = split_axes([row.case for row in line])[1]
    name += f", with {line[0].way}" if line[0].way else ""
    of_line = {row.name for row in line}
    shifts = [shift for shift in outlook.changed if shift.rows[0].name in of_line]
    marks = [_draw_mark(shift.day, "dash", format_signed(shift.delta), 1) for shift in shifts]
    starts = {part.nights[0].day: part.why for row in line for part in row.beginnings}
    marks += [_draw_mark(day, "dot", shorten_text(why, 40), 0) for day, why in starts.items()]
    summary = (
        "; ".join(describe_shift(shift) for shift in shifts)
        or "No change on which neighbouring sizes agree"
    )
    excerpt = f", {len(drawn)} of {len(line)} sizes" if len(drawn) < len(line) else ""
    return Figure(
        name=f"line-{index}",
        title=plain_line(f"{name}, {line[0].case.mode}{excerpt}"),
        caption=f"{summary}.",
        data=[_draw_curve(row, number) for number, row in enumerate(drawn)],
        layout={
            "xaxis": {"type": "date", "title": {"text": "night"}},
            "hovermode": "closest",
            "yaxis": {"title": {"text": "time / that of the first nights"}, "tickformat": ".0%"},
            "shapes": [shape for shape, _ in marks],
            "annotations": [label for _, label in marks],
        },
    )


def _draw_curve(row: Series, index: int) -> dict[str, Any]:
    """Nights that may not be judged are hollow."""
    text = [
        join_hover(
            [
                f"{night.day}: {format_duration(math.exp(night.value))}",
                format_count(night.launches, "launch"),
                night.unfit_reason,
            ]
        )
        for night in row.nights
    ]
    marks = [SYMBOLS[index % len(SYMBOLS)] + "-open" * (not night.valid) for night in row.nights]
    colour = COLOURS[index % len(COLOURS)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape_plotly(format_size(row.case.size)),
        "meta": filter_values(row.case),
        "x": [night.day for night in row.nights],
        "y": [round_finite(value) for value in relative_times(row)],
        "text": text,
        "line": {"color": colour, "width": 2},
        "marker": {"symbol": marks, "size": 6, "color": colour},
        "hovertemplate": "<b>%{fullData.name}</b><br>%{text}<extra></extra>",
    }


def _draw_mark(day: str, dash: str, text: str, y: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A line up the figure at a night, and what stands above it (``y`` 1) or at its foot (0)."""
    at = {"xref": "x", "yref": "paper"}
    shape = {
        "type": "line",
        **at,
        "x0": day,
        "x1": day,
        "y0": 0,
        "y1": 1,
        "line": {"color": "#888", "width": 1, "dash": dash},
    }
    return shape, {
        **at,
        "x": day,
        "y": y,
        "yanchor": "bottom",
        "text": html.escape(text),
        "showarrow": False,
    }


def flatten_outlook(outlook: Outlook) -> dict[str, Any]:
    """Everything as plain values: changes, beginnings and creeping rows, and every night of every
    row."""
    return {
        "machine": outlook.machine,
        "tau": outlook.tau,
        "headline": make_headline(outlook),
        "changes": [_flatten_shift(shift) for shift in outlook.shifts],
        "segments": [beginning._asdict() for beginning in outlook.beginnings],
        "creeping": [{"row": name, **drift._asdict()} for name, drift in outlook.creeping.items()],
        "ways": {way: [row.key for row in rows] for way, rows in outlook.ways.items()},
        "nights": [_flatten_night(row, night) for row in outlook.series for night in row.nights],
    }


def _flatten_shift(shift: Shift) -> Mapping[str, Any]:
    rows = {
        "collective": shift.collective,
        "sizes": shift.sizes,
        "rows": [row.key for row in shift.rows],
        "way": shift.rows[0].way,
    }
    return {
        name: getattr(shift, name) for name in ("day", "delta", "p", "standing", "agreed")
    } | rows


def _flatten_night(row: Series, night: Night) -> dict[str, Any]:
    fields = {
        "row": row.key,
        "collective": row.case.collective,
        "size": row.case.size,
        "night": night.day,
        "way": row.way,
    }
    details = {
        name: getattr(night, name)
        for name in ("launches", "samples", "fingerprint", "manner", "unfit")
    }
    return fields | {"median": math.exp(night.value), **details, "runs": " ".join(night.runs)}
