"""Nights as people read them: what changed since when and by how much, on a terminal, as a page, as plain values."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from collbench import console
from collbench.document import Document, Figure, Line, Section, Table, Weight
from collbench.figures import COLOURS, SYMBOLS, finite, hover, safe
from collbench.formats import axes, counted, duration, plain, size, worded
from collbench.history.baselines import Baseline
from collbench.history.neighbours import Shift
from collbench.history.nights import Night, Series
from collbench.history.outlook import Outlook, relative
from collbench.rows import meta
from collbench.suite import Case
from collbench.verdicts import WIDE, short, signed

BARS = "▁▂▃▄▅▆▇█"
DRAWN = 50  # bars in a line, if there is room
NAMED, FIGURED = 48, 44  # columns of a row's name at most, and of the figures beside it
RANGE = 0.1  # the least that a line of bars spans, as a share: noise shall not look like a mountain
FIGURES, CURVES = 40, 12  # of a page, and of a figure


def labels(series: Sequence[Series]) -> dict[str, str]:
    """What to call each row, by its key: in what it differs from the others, and its size."""
    varying = axes([one.case for one in series])[0] if series else []
    several = len({one.case.mode for one in series}) > 1
    return {one.key: _label(one.case, {"collective", *varying}, several) for one in series}


def _label(case: Case, varying: set[str], several: bool) -> str:
    words = worded(case)
    return plain(" ".join(filter(None, [*(words[name] for name in words if name in varying), case.mode * several,
                                        size(case.size) if case.size else ""])))  # fmt: skip


def told(shift: Shift) -> str:
    """all_reduce, 1 MiB to 8 MiB: 5.1 % slower since 2026-02-09."""
    low, high = min(shift.sizes), max(shift.sizes)
    sizes = size(low) if low == high else f"{size(low)} to {size(high)}"
    what = ", ".join(filter(None, [axes([row.case for row in shift.rows])[1], sizes if high else ""]))
    direction = "slower" if shift.delta > 0 else "faster"
    until = "" if shift.standing else "; a new segment began since" if shift.over else "; a level of before is back"
    rows = f"{counted(len(shift.rows), 'row')}, p {'=' if len(shift.rows) == 1 else '<='} {shift.p:.1g}"
    return plain(f"{what}: {abs(shift.delta):.1%} {direction} since {shift.day} ({rows}){until}")


def headline(outlook: Outlook) -> str:
    standing = [shift for shift in outlook.changed if shift.standing]
    slower = sum(shift.delta > 0 for shift in standing)
    parts = [
        f"{slower} slower" * bool(slower), f"{len(standing) - slower} faster" * (len(standing) > slower),
        f"{counted(len(outlook.creeping), 'row')} crept beyond the baseline" * bool(outlook.creeping),
    ]  # fmt: skip
    return ", ".join(filter(None, parts)) or "no change"


def weight(outlook: Outlook) -> Weight:
    bad = outlook.creeping or any(shift.standing and shift.delta > 0 for shift in outlook.changed)
    return "bad" if bad else "good" if any(n.valid for one in outlook.series for n in one.nights) else "notice"


def words(outlook: Outlook) -> list[tuple[str, Weight]]:
    """A sentence for all that happened, with its colour: what changed first."""
    names = labels(outlook.series)
    found: list[tuple[str, Weight]] = [
        (told(shift), "" if not shift.standing else "bad" if shift.delta > 0 else "good") for shift in outlook.changed
    ]
    found += [
        (f"{names[key]}: {signed(one.delta)} against the baseline, by the last {one.nights} nights", "bad")
        for key, one in outlook.creeping.items()
    ]
    found += [
        (plain(f"{one.day}: a new segment of {counted(one.rows, 'row')} begins: {one.why}"), "notice")
        for one in outlook.beginnings
    ]
    few = sum(not night.valid for one in outlook.series for night in one.nights)
    if few:
        whole = sum(len(one.nights) for one in outlook.series)
        why = next(night.why_not for one in outlook.series for night in one.nights if not night.valid)
        found.append((f"{few:,} of {whole:,} nights of rows count for nothing: {why}, for one", "notice"))
    return found


def show(outlook: Outlook, everything: bool = False) -> None:
    """Prints the trend, to a pipe as to a terminal of WIDE columns; rows without a change only if ``everything``."""
    view = Console(highlight=False)
    view.width = min(WIDE, view.width) if view.is_terminal or "COLUMNS" in os.environ else WIDE
    view.print(*in_terminal(outlook, everything, view.width), sep="\n")


def in_terminal(outlook: Outlook, everything: bool, width: int) -> list[RenderableType]:
    """What happened, then a line of bars for each row: those that changed, or all."""
    styles = {**console.STYLES, "good": "green"}
    span = f"{counted(len(outlook.days), 'night')}, {outlook.days[0]} to {outlook.days[-1]}"
    parts: list[RenderableType] = [
        Text(plain(f"collbench history of {outlook.machine}"), "bold").append(f"  {span}", "not bold"),
        Text(headline(outlook), styles[weight(outlook)]),
        *(Text(text, styles[colour]) for text, colour in words(outlook)),
    ]
    listed = [one for one in outlook.series if everything or one.key in _remarkable(outlook)]
    if listed:
        parts += ["", _grid(outlook, listed, width), ""]
    hidden = len(outlook.series) - len(listed)
    return parts + [Text(f"not shown: {counted(hidden, 'row')} without a change (--all shows them too)", "dim")] * bool(
        hidden
    )


def _remarkable(outlook: Outlook) -> dict[str, Shift | None]:
    """Keys of rows that changed or crept, with the last change of each."""
    found: dict[str, Shift | None] = dict.fromkeys(outlook.creeping)
    return found | {row.key: shift for shift in outlook.changed for row in shift.rows}


def _grid(outlook: Outlook, rows: Sequence[Series], width: int) -> Grid:
    names, changed = labels(outlook.series), _remarkable(outlook)
    named = min(NAMED, max(cell_len(names[one.key]) for one in rows))
    drawn = max(8, min(DRAWN, width - named - FIGURED, max(len(one.nights) for one in rows)))
    view = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), border_style="dim")
    view.add_column(Text("row", "bold"), overflow="fold", width=named)
    for name in ("from first to last", "latest", "change", "since", "nights"):
        left = name.startswith("from ")
        view.add_column(Text(name, "bold"), justify="left" if left else "right", no_wrap=True)
    for one in rows:
        shift, crept = changed.get(one.key), outlook.creeping.get(one.key)
        delta = shift.delta if shift else crept.delta if crept else None
        latest, valid = duration(math.exp(one.nights[-1].value)), sum(night.valid for night in one.nights)
        view.add_row(
            Text(names[one.key]), bars(relative(one), drawn), latest, signed(delta), shift.day if shift else "-",
            f"{valid}/{len(one.nights)}" if valid < len(one.nights) else str(valid),
        )  # fmt: skip
    return view


def bars(values: Sequence[float], most: int = DRAWN) -> str:
    """A character for each value, the higher the longer the time; of more than ``most``, for the medians of as many
    groups of neighbours."""
    number = min(len(values), most)
    ends = [len(values) * place // number for place in range(number + 1)]
    heights = [median(values[begin:end]) for begin, end in pairwise(ends)]
    low = min(heights)
    step = max(max(heights) - low, RANGE * low) / len(BARS)
    return "".join(BARS[min(int((height - low) / step), len(BARS) - 1)] for height in heights)


def listing(
    machine: str, machines: Sequence[str], series: Sequence[Series], baselines: Sequence[Baseline], last: int
) -> list[RenderableType]:
    """The last nights of a machine, the levels that were reviewed, and which other machines there are."""
    view = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), border_style="dim")
    for name in ("night", "fingerprint", "runs", "rows", "launches", "to judge", "why not"):
        view.add_column(Text(name, "bold"), justify="right" if name in ("rows", "launches", "to judge") else "left",
                        overflow="fold")  # fmt: skip
    nights: dict[tuple[str, str], list[Night]] = {}
    for one in series:
        for night in one.nights:
            nights.setdefault((night.day, night.fingerprint), []).append(night)
    for (day, fingerprint), found in sorted(nights.items())[-last:]:
        launches = [night.launches for night in found]
        counts = sorted({min(launches), max(launches)})
        reasons = dict.fromkeys(night.why_not for night in found if not night.valid)
        runs = dict.fromkeys(run for night in found for run in night.runs)
        view.add_row(
            day, fingerprint, Text(plain(", ".join(runs))), str(len(found)), "-".join(map(str, counts)),
            str(sum(night.valid for night in found)), Text(plain("; ".join(reasons)), "dim"),
        )  # fmt: skip
    reviewed = [
        f"{one.begins}: {counted(len(one.rows), 'row')} {'accepted' if one.accepted else 'learned'} by {one.who} "
        f"on {one.when[:10]}: {one.reason}" + f" ({one.commit})" * bool(one.commit)
        for one in baselines
    ]
    others = [name for name in machines if name != machine]
    return [
        Text(plain(f"collbench history of {machine}"), "bold"), view, *(Text(plain(text)) for text in reviewed),
        *([Text(plain(f"other machines: {', '.join(others)}"), "dim")] if others else []),
    ]  # fmt: skip


def document(outlook: Outlook) -> Document:
    """A page: what happened, a figure for each line of rows, those with a change first, and all nights as data."""
    span = f"{outlook.machine}: {counted(len(outlook.days), 'night')}, {outlook.days[0]} to {outlook.days[-1]}"
    return Document(
        title=f"History of {plain(outlook.machine)}", verdict=headline(outlook), weight=weight(outlook),
        runs=[plain(span)], sections=sections(outlook), data=flat(outlook)["nights"],
    )  # fmt: skip


def sections(outlook: Outlook) -> list[Section]:
    happened = [Line((plain(text),), {}, colour) for text, colour in words(outlook)]
    table = Table(name="happened", title="What happened", heads=("what",), lines=happened)
    lines: dict[Case, list[Series]] = {}
    for one in outlook.series:
        lines.setdefault(msgspec.structs.replace(one.case, nbytes=0), []).append(one)
    changed = _remarkable(outlook)
    order = sorted(lines.values(), key=lambda line: not any(one.key in changed for one in line))
    left = len(order) - FIGURES
    note = [f"{left} further lines of rows are in the data."] if left > 0 else []
    nothing = [] if happened else ["No change, no new segment, no row beyond its baseline."]
    return [
        Section(name="changes", title="Changes", words=nothing, tables=[table] if happened else []),
        Section(name="nights", title="Nights", words=note,
                figures=[_figure(outlook, place, line) for place, line in enumerate(order[:FIGURES])]),
    ]  # fmt: skip


def _figure(outlook: Outlook, place: int, line: Sequence[Series]) -> Figure:
    """Time over that of the first nights, a curve for each size; dotted where a segment begins, dashed where the level
    changed."""
    changed = _remarkable(outlook)
    shown = sorted(line, key=lambda one: (one.key not in changed, one.case.nbytes))[:CURVES]
    shown.sort(key=lambda one: one.case.nbytes)
    name = axes([one.case for one in line])[1]
    shifts = [shift for shift in outlook.changed if shift.rows[0].key in {one.key for one in line}]
    marks = [_mark(shift.day, "dash", signed(shift.delta), 1) for shift in shifts]
    starts = {part.nights[0].day: part.why for one in line for part in one.segments[1:]}
    marks += [_mark(day, "dot", short(why, 40), 0) for day, why in starts.items()]
    said = "; ".join(told(shift) for shift in shifts) or "No change on which neighbouring sizes agree"
    left = f", {len(shown)} of {len(line)} sizes" if len(shown) < len(line) else ""
    return Figure(
        name=f"line-{place}", title=plain(f"{name}, {line[0].case.mode}{left}"), words=f"{said}.",
        data=[_curve(one, number) for number, one in enumerate(shown)],
        layout={
            "xaxis": {"type": "date", "title": {"text": "night"}}, "hovermode": "closest",
            "yaxis": {"title": {"text": "time / that of the first nights"}, "tickformat": ".0%"},
            "shapes": [shape for shape, _ in marks], "annotations": [label for _, label in marks],
        },
    )  # fmt: skip


def _curve(one: Series, place: int) -> dict[str, Any]:
    """Nights that may not be judged are hollow."""
    text = [
        hover([f"{night.day}: {duration(math.exp(night.value))}", counted(night.launches, "launch"), night.why_not])
        for night in one.nights
    ]
    marks = [SYMBOLS[place % len(SYMBOLS)] + "-open" * (not night.valid) for night in one.nights]
    colour = COLOURS[place % len(COLOURS)]
    return {
        "type": "scatter", "mode": "lines+markers", "name": safe(size(one.case.size)), "meta": meta(one.case),
        "x": [night.day for night in one.nights], "y": [finite(value) for value in relative(one)], "text": text,
        "line": {"color": colour, "width": 2}, "marker": {"symbol": marks, "size": 6, "color": colour},
        "hovertemplate": "<b>%{fullData.name}</b><br>%{text}<extra></extra>",
    }  # fmt: skip


def _mark(day: str, dash: str, text: str, y: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A line up the figure at a night, and what stands above it (``y`` 1) or at its foot (0)."""
    at = {"xref": "x", "yref": "paper"}
    shape = {"type": "line", **at, "x0": day, "x1": day, "y0": 0, "y1": 1,
             "line": {"color": "#888", "width": 1, "dash": dash}}  # fmt: skip
    return shape, {**at, "x": day, "y": y, "yanchor": "bottom", "text": html.escape(text), "showarrow": False}


def flat(outlook: Outlook) -> dict[str, Any]:
    """Everything as plain values: changes, beginnings and creeping rows, and every night of every row."""
    return {
        "machine": outlook.machine, "tau": outlook.tau, "headline": headline(outlook),
        "changes": [_shift(shift) for shift in outlook.shifts],
        "segments": [one._asdict() for one in outlook.beginnings],
        "creeping": [{"row": key, **one._asdict()} for key, one in outlook.creeping.items()],
        "nights": [_night(one, night) for one in outlook.series for night in one.nights],
    }  # fmt: skip


def _shift(shift: Shift) -> Mapping[str, Any]:
    rows = {"collective": shift.collective, "sizes": shift.sizes, "rows": [row.key for row in shift.rows]}
    return {name: getattr(shift, name) for name in ("day", "delta", "p", "standing", "agreed")} | rows


def _night(one: Series, night: Night) -> dict[str, Any]:
    own = {"row": one.key, "collective": one.case.collective, "size": one.case.size, "night": night.day}
    said = {name: getattr(night, name) for name in ("launches", "samples", "fingerprint", "manner", "unfit")}
    return own | {"median": math.exp(night.value), **said, "runs": " ".join(night.runs)}
