"""Figures of a report as plain plotly JSON. plotly reads HTML in what it writes, so all text passes
through ``escape_plotly``.

Values that are not finite become None, which JSON can say and plotly leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from collbench.core.text import format_bandwidth, format_count, format_duration, format_size
from collbench.records.flags import list_doubts
from collbench.records.points import Point
from collbench.records.types import Record
from collbench.show.document import Figure, Meta
from collbench.show.figure_style import (
    COLOURS,
    LABELLED,
    MOST_POINTS,
    SYMBOLS,
    choose_colours,
    escape_plotly,
    fade_colour,
    format_number,
    format_rate,
    join_hover,
    log_axis,
    round_finite,
    sizes_axis,
    thin_points,
)
from collbench.show.views.series import Series

Trace = dict[str, Any]

LATE = (
    (0, "rgba(128,128,128,0.08)"),
    (0.5, "#e6a23c"),
    (1, "#c4302b"),
)  # on light and on dark paper

GOOD = "Cividis"  # the same to those who see no red or green

WRITTEN = 16  # rows and columns up to which cells have their text in them

MOST_DOTS = 600  # of a strip

MOST_SHARE = 3.0  # drawn: a single point far above would flatten all others


def describe_thinning(series: Sequence[Series]) -> list[str]:
    """The sentence that says at how many of its sizes each line is drawn, where not at all of
    them."""
    most = max((len(row.points) for row in series), default=0)
    return (
        [f"Of up to {most:,} sizes, each line is drawn at {MOST_POINTS}, evenly spread."]
        if most > MOST_POINTS
        else []
    )


def hover_lines(point: Point) -> list[str]:
    """Lines of text with all that is known of a point, shown where the pointer rests on it."""
    row, case = point.pooled, point.case
    bounds = (
        f" [{format_duration(point.lo)}, {format_duration(point.hi)}]"
        if math.isfinite(point.lo) and math.isfinite(point.hi)
        else ""
    )
    tails = {"p95": row.times.p95, "p99": row.times.p99, "max": row.times.max}
    parts = [
        f"{name} {format_duration(value)}"
        for name, value in tails.items()
        if round_finite(value) is not None
    ]
    samples = f"N {point.samples:,}" + (
        f", N_eff {point.n_eff:,.0f}" if math.isfinite(point.n_eff) else ""
    )
    launches = f", {point.launches} launches" if point.launches > 1 else ""
    return [
        f"{format_size(point.size)}"
        + (f", count {case.count:,}" if point.size and not case.splits else ""),
        f"{point.over or 'median'} {format_duration(point.median)}{bounds}"
        + ("" if bounds or point.predicted else ", no interval"),
        "predicted" if point.predicted else ", ".join(parts),
        (
            f"busbw {format_bandwidth(point.busbw)} GB/s, algbw {format_bandwidth(point.algbw)}"
            " GB/s"
            if point.size
            else ""
        ),
        f"ran {row.chose}" if row.chose else "",
        row.moves if row.carried > 1 else "",
        (
            f"wirebw {format_bandwidth(row.wirebw * row.times.median / point.median)} GB/s"
            if row.wirebw is not None
            else ""
        ),
        "" if point.predicted else samples + launches,
        "flags: " + " ".join(point.flags) if point.flags else "",
    ]


def draw_line(
    series: Series, x: list[Any], y: list[Any], colour: str, index: int, **more: Any
) -> Trace:
    """A series' line: colour by implementation, dashes in place, symbols to tell the rest apart."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape_plotly(series.name),
        "legendgroup": escape_plotly(series.name),
        "x": x,
        "y": y,
        "meta": series.meta,
        "line": {"color": colour, "width": 2, "dash": "dash" if series.case.in_place else "solid"},
        "marker": {"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 6, "color": colour},
        **more,
    }


def draw_band(
    series: Series,
    sides: Sequence[tuple[Any, float | None, float | None]],
    colour: str,
    opacity: float,
) -> Trace:
    """The area between (x, low, high): a polygon for each stretch in which both are known."""
    x: list[Any] = []
    y: list[Any] = []
    stretch: list[tuple[Any, float, float]] = []
    for at, low, high in [*sides, (None, None, None)]:
        if low is not None and high is not None:
            stretch.append((at, low, high))
            continue
        if len(stretch) > 1:
            x += [*(s[0] for s in stretch), *(s[0] for s in reversed(stretch)), None]
            y += [*(s[1] for s in stretch), *(s[2] for s in reversed(stretch)), None]
        stretch = []
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x[:-1],
        "y": y[:-1],
        "fill": "toself",
        "hoverinfo": "skip",
        "fillcolor": fade_colour(colour, opacity),
        "line": {"width": 0},
        "showlegend": False,
        "legendgroup": escape_plotly(series.name),
        "meta": series.meta,
    }


def draw_curves(
    name: str, title: str, captions: Mapping[str, str], series: Sequence[Series]
) -> list[Figure]:
    """busbw and time against size, each with its interval as a band and its own of ``captions``. A
    figure without a value is left out."""
    figures, colours = [], choose_colours(series)
    for measure, show in (("busbw", format_rate), ("time", format_duration)):
        data: list[Trace] = []
        for index, one_series in enumerate(series):
            data += _draw_curve(one_series, measure, colours[one_series.name], index)
        values = [y for trace in data for y in trace["y"] if y]
        if not values:
            continue
        axis = log_axis(measure, values, show)
        what = f"{title}: {measure} against size"
        figures.append(_against_size(f"{name}-{measure}", what, captions[measure], data, axis))
    return figures


def _against_size(
    name: str, title: str, caption: str, data: list[Trace], upward: dict[str, Any], **layout: Any
) -> Figure:
    """A figure over message sizes; dashes are drawn solid where all lines are dashed."""
    across = sizes_axis(x for trace in data for x in trace["x"] if x)
    strokes = [stroke for trace in data if "dash" in (stroke := trace.get("line", {}))]
    if all(stroke["dash"] == "dash" for stroke in strokes):
        for stroke in strokes:  # dashes tell in place from out of place, where there are both
            stroke["dash"] = "solid"
    layout = {"xaxis": across, "yaxis": upward, "hovermode": "closest", **layout}
    return Figure(name=name, title=title, caption=caption, data=data, layout=layout)


def _draw_curve(series: Series, measure: str, colour: str, index: int) -> list[Trace]:
    """A series' line, hollow where a point is in doubt, and its band; a rate's bounds are computed
    from those of the time."""
    points = [
        p
        for p in thin_points(series.points)
        if p.size > 0 and _point_value(p, measure, p.median) is not None
    ]
    if not points:
        return []
    x = [point.size for point in points]
    sides = [
        (p.size, _point_value(p, measure, p.lo), _point_value(p, measure, p.hi)) for p in points
    ]
    text = [join_hover(hover_lines(point)) for point in points]
    drawn = draw_line(
        series,
        x,
        [_point_value(p, measure, p.median) for p in points],
        colour,
        index,
        text=text,
        hovertemplate=LABELLED,
    )
    if any(map(list_doubts, points)):
        symbol = drawn["marker"]["symbol"]
        symbols = [f"{symbol}-open" if list_doubts(point) else symbol for point in points]
        drawn["marker"] = {**drawn["marker"], "symbol": symbols, "size": 8}
    area = draw_band(series, sides, colour, 0.18)
    return [area, drawn] if area["x"] else [drawn]


def _point_value(point: Point, measure: str, time: float) -> float | None:
    """``measure`` for a call that takes ``time``; None where it is unknown or zero."""
    reached = None if measure == "time" else point.busbw
    if not math.isfinite(time) or time <= 0 or (measure != "time" and not reached):
        return None
    return round_finite(time if reached is None else reached * point.median / time)


def draw_distribution(
    name: str, title: str, caption: str, cases: Sequence[tuple[Series, Point, Record]]
) -> Figure:
    """The share of samples that took no longer, of one size each: at most 100 steps a line. Dashes
    by size."""
    data, colours = [], choose_colours(one_series for one_series, *_ in cases)
    sizes = sorted({point.size for _, point, _ in cases})
    for index, (one_series, point, record) in enumerate(cases):
        ordered = np.sort(np.asarray(record.times_ns, float) / record.inner)
        levels = np.arange(1, len(ordered) + 1) / len(ordered)
        keep = thin_points(range(len(ordered)), 100)
        label = f"{one_series.name}, {format_size(point.size)}" if point.size else one_series.name
        data.append(
            draw_line(
                one_series,
                [round_finite(ordered[i]) for i in keep],
                [round_finite(levels[i], 4) for i in keep],
                colours[one_series.name],
                index,
                text=[f"{levels[i]:.1%} within {format_duration(ordered[i])}" for i in keep],
                mode="lines",
                hovertemplate=LABELLED,
            )
            | {"name": escape_plotly(label), "legendgroup": escape_plotly(label)}
        )
        dash = ("solid", "dash", "dot")[sizes.index(point.size) % 3]
        data[-1]["line"] |= {"shape": "hv", "dash": dash}
    upward = {"title": {"text": "share of samples"}, "range": [0, 1.02], "tickformat": ".0%"}
    axis = log_axis("time of a sample", [x for trace in data for x in trace["x"]], format_duration)
    return Figure(
        name=name,
        title=title,
        caption=caption,
        data=data,
        layout={"xaxis": axis, "yaxis": upward, "hovermode": "closest"},
    )


def draw_shares(
    name: str,
    title: str,
    caption: str,
    label: str,
    lines: Sequence[tuple[Series, list[tuple[Point, float]]]],
) -> Figure:
    """A share against size, each series a line; a thin line marks 100 %. What lies above MOST_SHARE
    is left out, as its words then say."""
    colours = choose_colours(one_series for one_series, _ in lines)
    above = sum(share > MOST_SHARE for _, values in lines for _, share in values)
    caption += f" {format_count(above, 'point')} above {MOST_SHARE:.0%} left out." if above else ""
    lines = [
        (one_series, [(p, v) for p, v in values if v <= MOST_SHARE]) for one_series, values in lines
    ]
    data = [
        draw_line(
            one_series,
            [p.size for p, _ in values],
            [round_finite(share) for _, share in values],
            colours[one_series.name],
            index,
            text=[
                join_hover(
                    [f"{format_size(p.size)}: {share:.1%}", f"time {format_duration(p.median)}"]
                )
                for p, share in values
            ],
            hovertemplate=LABELLED,
        )
        for index, (one_series, values) in enumerate(lines)
    ]
    unit = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": 1,
        "y1": 1,
        "line": {"color": "#888", "width": 1, "dash": "dot"},
    }
    upward = {"title": {"text": label}, "tickformat": ".0%", "rangemode": "tozero"}
    return _against_size(name, title, caption, data, upward, shapes=[unit])


class Matrix(NamedTuple):
    """Rows ``y`` by columns ``x``: values, what is said of each, the axes' titles. ``good``: the
    more, the better.

    Colours reach up to the largest value or to ``least``, so that little never looks like much."""

    x: Sequence[str]
    y: Sequence[str]
    z: Sequence[Sequence[float | None]]
    text: Sequence[Sequence[str]]
    labels: tuple[str, str]
    legend: str
    good: bool = False
    least: float = 0.0


def draw_heatmap(name: str, title: str, caption: str, matrix: Matrix, meta: Meta) -> Figure:
    """A matrix as colours; its texts show where one points and, where more is better, in the
    cells."""
    written = matrix.good and max(len(matrix.x), len(matrix.y)) <= WRITTEN
    trace = {
        "type": "heatmap",
        "x": [escape_plotly(label) for label in matrix.x],
        "y": [escape_plotly(label) for label in matrix.y],
        "z": [[round_finite(value, 4) for value in row] for row in matrix.z],
        "text": [[escape_plotly(cell) for cell in row] for row in matrix.text],
        "meta": meta,
        "hovertemplate": "%{y}, %{x}: %{text}<extra></extra>",
        "xgap": 2,
        "ygap": 2,
        "zmin": 0,
        "zmax": round_finite(
            max(matrix.least, *(value or 0.0 for row in matrix.z for value in row)), 4
        ),
        "colorscale": GOOD if matrix.good else [list(stop) for stop in LATE],
        **({"texttemplate": "%{text}"} if written else {}),
        "colorbar": {
            "title": {"text": matrix.legend},
            **({} if matrix.good else {"tickformat": ".0%"}),
        },
    }
    down = {"type": "category", "autorange": "reversed", "automargin": True}
    layout = {
        "xaxis": {"title": {"text": matrix.labels[0]}, "type": "category"},
        "yaxis": {"title": {"text": matrix.labels[1]}, **down},
    }
    height = 160 + 26 * min(24, len(matrix.y))
    return Figure(
        name=name, title=title, caption=caption, data=[trace], layout=layout, height=height
    )


def draw_samples(
    name: str, title: str, caption: str, cases: Sequence[tuple[Series, Point, Record]]
) -> Figure:
    """Each sample over the median, in the order measured. Of long cases, ordinary samples are shown
    in part."""
    data = []
    for index, (one_series, point, record) in enumerate(cases):
        ratios = np.asarray(record.times_ns, float) / np.median(record.times_ns)
        low, high = np.quantile(ratios, (0.25, 0.75))
        odd = np.flatnonzero((ratios > 2.5 * high - 1.5 * low) | (ratios < 2.5 * low - 1.5 * high))
        half = MOST_DOTS // 2
        chosen = np.union1d(
            thin_points(odd.tolist(), half), thin_points(range(len(ratios)), half)
        ).astype(int)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape_plotly(
                    f"{one_series.case.collective} {one_series.name}, {format_size(point.size)}"
                ),
                "x": chosen.tolist(),
                "y": [round_finite(value, 4) for value in ratios[chosen]],
                "meta": one_series.meta,
                "marker": {
                    "color": COLOURS[index % len(COLOURS)],
                    "symbol": SYMBOLS[index % len(SYMBOLS)],
                    "size": 5,
                },
                "hovertemplate": (
                    "<b>%{fullData.name}</b><br>sample %{x}: %{y:.2f} times the"
                    " median<extra></extra>"
                ),
            }
        )
    upward = log_axis("time / median", [y for trace in data for y in trace["y"]], format_number)
    layout = {
        "xaxis": {"title": {"text": "sample, in the order measured"}},
        "yaxis": upward,
        "hovermode": "closest",
    }
    return Figure(name=name, title=title, caption=caption, data=data, layout=layout)
