"""Transfers for every medium: a table, and in a report figures against size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from collbench.core.text import (
    format_bandwidth,
    format_count,
    format_duration,
    format_settings,
    format_size,
    plain_line,
)
from collbench.features.p2p.patterns import PATTERNS
from collbench.features.p2p.results import (
    TransferResult,
    flatten_result,
    list_results,
    select_varying,
)
from collbench.records.origins import FAKE, is_fake
from collbench.records.types import RunFile
from collbench.show.document import (
    Block,
    Cell,
    Column,
    Comment,
    Document,
    Figure,
    Line,
    Section,
    Table,
    tone_text,
)
from collbench.show.figure_style import COLOURS, SYMBOLS, escape_plotly, log_axis, sizes_axis
from collbench.show.flags import explain_row_flags
from collbench.show.views.series import View, make_table
from collbench.show.words import count_reasons, format_interval, list_caveats, warn_single_launch

COLUMNS = (
    Column("pattern", "left"),
    Column("backend", "left"),
    Column("ranks"),
    Column("pairs", "left"),
    Column("setting", "left", priority=4),
    Column("size"),
    Column("time"),
    Column("±"),
    Column("GB/s"),
    Column("total\nGB/s", priority=2),
    Column("messages/s"),
    Column("N", priority=3),
    Column("flags", "cut"),
)
MEANINGS = {
    "ping-pong": "half of a round trip",
    "one-way": "a message and its acknowledgement, a round trip",
    "both-ways": "a message, while one comes the other way",
    "window": "a message, of a window that is acknowledged once",
    "rate": "as window",
    "incast": "until rank 0 has a message of every other rank and has acknowledged each",
    "outcast": "until rank 0 has every other rank's acknowledgement",
}
MEASURES = {"time": "time of a message", "bandwidth": "bandwidth of a pair, one way"}


def make_document(file: RunFile) -> Document:
    """The transfers of a run."""
    results = list_results(file)
    head: list[Block] = [tone_text(text, "bad") for text in list_caveats(file.run, file.worlds)]
    skipped = [
        (record, None)
        for record in file.records
        if record.status == "skipped" and record.case.collective in _ROWS
    ]
    body: list[Block] = [*head]
    if results:
        body += [
            _make_table(_name_common(results), results),
            tone_text(_make_legend(results), "quiet"),
            *explain_row_flags([row for result in results for row in result.rows], file),
        ]
    body += [f"{number} skipped: {reason}" for reason, number in count_reasons((), skipped)]
    body += [] if results or skipped else ["no transfer was measured"]
    rows = [flatten_result(result) for result in results]
    values: dict[str, Any] = {
        "run": file.run.id,
        "injected": file.run.policy.inject,
        "rows": rows,
        **({FAKE: True} if is_fake(file) else {}),
    }
    title = f"Transfers, {file.run.id}"
    return Document(title=title, brief=body, comment=Comment(body), rows=rows, values=values)


_ROWS = {pattern.row for pattern in PATTERNS.values()}


def make_section(view: View) -> Section | None:
    """The transfers of a report's runs; None where there are none."""
    tables: list[Table] = []
    figures: list[Figure] = []
    for number, file in enumerate(view.files):
        if not (results := list_results(file)):
            continue
        title = view.prefix_run(number, _name_common(results))
        tables.append(_make_table(title, results))
        figures += _draw_figures(f"p2p-{number}", title, results)
    if not tables:
        return None
    every = [result for file in view.files for result in list_results(file)]
    return Section(
        name="p2p",
        title="Messages from rank to rank",
        sentences=[_make_legend(every)],
        figures=figures,
        tables=tables,
    )


def _name_common(results: Sequence[TransferResult]) -> str:
    """What all results have in common, in words."""
    varying, first = select_varying(results), results[0]
    parts = {
        "backend": first.case.label,
        "ranks": format_count(first.case.n, "rank"),
        "pairs": f"pairs {first.transfer.pairs_text}" if first.transfer.pairs else "",
        "setting": format_settings(first.case.env),
    }
    chosen = [text for name, text in parts.items() if text and not varying[name]]
    return plain_line(", ".join(["messages", *chosen]))


def _make_table(title: str, results: Sequence[TransferResult]) -> Table:
    varying = select_varying(results)
    table = make_table("p2p", title, COLUMNS, results, _make_line, what="transfers")
    shown = [index for index, column in enumerate(COLUMNS) if varying.get(column.head, True)]
    return table.select_columns(shown)


def _make_line(result: TransferResult) -> Line:
    transfer, case, time = result.transfer, result.case, result.time
    problem = tone_text(plain_line(result.problem), "bad") if result.problem else ""
    numbers: tuple[Cell, ...] = ("-",) * 6
    if time:
        numbers = (
            format_duration(result.median),
            format_interval(result.half_width),
            format_bandwidth(result.bandwidth),
            format_bandwidth(result.total_bandwidth),
            _format_rate(result.rate),
            f"{time.samples:,}",
        )
    cells = (
        transfer.label,
        case.label,
        str(case.n),
        plain_line(transfer.pairs_text) or "all to 0",
        plain_line(format_settings(case.env)),
        format_size(case.nbytes),
        *numbers,
        problem or " ".join(result.flags),
    )
    return Line(cells)


def _format_rate(rate: float) -> str:
    """Messages a second, with K or M."""
    for unit, scale in (("M", 1e6), ("K", 1e3)):
        if rate >= scale:
            return f"{rate / scale:.3g} {unit}"
    return f"{rate:.3g}"


def _make_legend(results: Sequence[TransferResult]) -> str:
    """What the times of the patterns shown are of."""
    names = dict.fromkeys(result.transfer.pattern for result in results)
    meanings = "; ".join(f"{name}: {MEANINGS[name]}" for name in names)
    alone = warn_single_launch(result.time.launches for result in results if result.time)
    return (
        f"time: {meanings}. GB/s: of one pair and one way; total: of all pairs and both ways; of"
        " incast and outcast both are rank 0's. ±: the wider side of the 95 % interval, relative"
        " to time; above 100 % time is hardly known. A flag with ! is a severe one."
        + f" {alone}"
        * bool(alone)
    )


def _draw_figures(name: str, title: str, results: Sequence[TransferResult]) -> list[Figure]:
    """Time and bandwidth against size, a line for each pattern and whatever else differs."""
    lines: dict[str, list[TransferResult]] = {}
    varying = select_varying(results)
    for result in results:
        if result.time:
            parts = {
                "backend": result.case.label,
                "ranks": format_count(result.case.n, "rank"),
                "pairs": result.transfer.pairs_text,
                "setting": format_settings(result.case.env),
            }
            words = [text for key, text in parts.items() if varying[key] and text]
            lines.setdefault(", ".join([result.transfer.label, *words]), []).append(result)
    lines = {label: points for label, points in lines.items() if len(points) > 1}
    if not lines:
        return []
    return [_draw_figure(f"{name}-{measure}", title, measure, lines) for measure in MEASURES]


def _draw_figure(
    name: str, title: str, measure: str, lines: dict[str, list[TransferResult]]
) -> Figure:
    data = []
    values: list[float] = []
    for index, (label, points) in enumerate(lines.items()):
        y = [p.median if measure == "time" else p.bandwidth for p in points]
        values += [value for value in y if math.isfinite(value) and value > 0]
        colour = COLOURS[index % len(COLOURS)]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": escape_plotly(label),
                "x": [point.case.nbytes for point in points],
                "y": y,
                "text": [escape_plotly(_describe_point(point)) for point in points],
                "hoverinfo": "text+name",
                "line": {"color": colour},
                "marker": {"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 6, "color": colour},
                "meta": {},
            }
        )
    show = format_duration if measure == "time" else format_bandwidth
    sizes = [point.case.nbytes for points in lines.values() for point in points]
    words = MEASURES[measure]
    return Figure(
        name=name,
        title=f"{title}: {words} against size",
        caption=f"The {words}, by size, for each pattern; both axes are logarithmic.",
        data=data,
        layout={
            "xaxis": sizes_axis(sizes),
            "yaxis": log_axis(words if measure == "time" else "GB/s", values, show),
        },
    )


def _describe_point(result: TransferResult) -> str:
    return (
        f"{format_size(result.case.nbytes)}: {format_duration(result.median)}"
        f" {format_interval(result.half_width)}, {format_bandwidth(result.bandwidth)} GB/s,"
        f" {_format_rate(result.rate)} messages/s"
    )
