"""A comparison's rows as a forest plot: a line per row with its change and interval, before what
matters and what could have been found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from collbench.features.compare.comparison import Comparison
from collbench.features.compare.verdict import Judged
from collbench.features.compare.views.verdicts import (
    UNDECIDED,
    WEIGHTS,
    Readable,
    Shown,
    strip_sides,
)
from collbench.show.document import Figure, Meta
from collbench.show.figure_style import COLOURS, escape_plotly, join_hover, log_axis, round_finite
from collbench.show.figures import Trace
from collbench.show.views.series import filter_values
from collbench.show.words import format_signed, shorten_text
from collbench.suite.case import Case

MOST = 60  # rows of a plot that can still be told apart

FARTHEST = 10.0  # times longer or shorter: ends that lie farther out are drawn here

ROW = 18  # pixels

NAME = 22  # letters of a row's name that are drawn, so that a narrow screen has room for the lines

LETTER = 0.02  # of the width of a narrow screen: names stand left of the lines, changes right

FACTOR = 2  # changes by more are also named as a factor

# colour and symbol of rows by weight; grey and hollow are those without a verdict
LOOKS = {
    "bad": (COLOURS[3], "triangle-right"),
    "notice": (COLOURS[1], "diamond"),
    "good": (COLOURS[2], "triangle-left"),
    "": (COLOURS[0], "circle"),
    "open": (COLOURS[8], "circle-open"),
}

HALF = 0.5  # of a row

PALE = 0.5  # opacity of the whisker of changes that might be missed

MATTER = "rgba(128,128,128,0.16)"


def draw_forest(view: Readable) -> Figure | None:
    """The rows with a change, in the order of their verdicts; None where there are none."""
    decided = [row for row in view.rows if row.row_verdict and row.row_verdict.delta is not None]
    if not decided:
        return None
    drawn = decided[:MOST]
    worst = max(decided, key=lambda row: (row.row_verdict and row.row_verdict.delta) or 0.0)
    excerpt = f", {len(drawn)} of {len(decided):,} rows" if len(drawn) < len(decided) else ""
    data = _draw_rows(view.comparison, drawn)
    ends = [x for trace in data for x in trace["x"] if x]
    across = log_axis("head / base - 1 (right: slower)", ends, _format_ratio)
    across["range"] = [math.log10(0.95 * min(ends)), math.log10(1.05 * max(ends))]
    longest = max(len(shorten_text(row.row, NAME)) for row in drawn)
    across["domain"] = [LETTER * (longest + 1), 1 - LETTER * 11]
    down = {"range": [len(drawn) - HALF, -HALF], "visible": False}
    names = {"domain": [0, 1], "range": [0, 1], "visible": False, "fixedrange": True}
    return Figure(
        name="changes",
        title=f"Change from base to head{excerpt}",
        caption=(
            "Per row, how much longer head takes than base: the mark is the estimate, the line"
            " through it the interval. A change within the pale whisker could have been missed"
            " (up to MDE, the smallest change that would be called one), one within the grey band"
            f" is too small to matter. Farthest to the right: {worst.row}, {worst.change}."
        ),
        data=data,
        height=110 + ROW * len(drawn),
        layout={
            "xaxis": across,
            "yaxis": down,
            "shapes": _make_background_shapes(drawn),
            "xaxis2": names,
            "plot_bgcolor": "rgba(0,0,0,0)",
            "hovermode": "closest",
        },
    )


def filter_row(comparison: Comparison, case: Case) -> Meta:
    """The values by which a page filters a row: nothing in which the sides differ."""
    has_backend = strip_sides(comparison, case).backend
    return {
        name: value
        for name, value in filter_values(case).items()
        if has_backend or name != "backend"
    }


def _format_ratio(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.3g}%" if ratio != 1 else "0"


def _finite_ratio(share: float | None) -> float | None:
    """head / base of a change; None where that is unknown or infinite, which draws nothing."""
    if share is None or not math.isfinite(share):
        return None
    return round_finite(min(max(1 + share, 1 / FARTHEST), FARTHEST))


def _make_background_shapes(rows: Sequence[Shown]) -> list[Trace]:
    """Plotly shapes behind the rows: a vertical line at no change, and a grey band of changes too
    small to matter, as wide at each row as its tau."""
    taus = enumerate(row.row_verdict.tau for row in rows if row.row_verdict)
    bands = [[*members] for _, members in groupby(taus, key=lambda item: item[1])]
    ends = {"type": "rect", "layer": "below", "line": {"width": 0}, "fillcolor": MATTER}
    zero = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    return [
        {
            **ends,
            "x0": 1 / (1 + band[0][1]),
            "x1": 1 + band[0][1],
            "y0": band[0][0] - HALF,
            "y1": band[-1][0] + HALF,
        }
        for band in bands
    ] + [{**zero, "line": {"width": 1, "color": COLOURS[8]}}]


def _draw_rows(comparison: Comparison, rows: Sequence[Shown]) -> list[Trace]:
    """Each row's traces, which a reader can narrow the page down to; then a legend."""
    data: list[Trace] = []
    verdicts: dict[str, dict[str, None]] = {}
    for index, row in enumerate(rows):
        if row.row_verdict:
            verdict = row.row_verdict.verdict
            kind = "open" if verdict in UNDECIDED else WEIGHTS[verdict]
            data += _draw_row(
                row, row.row_verdict, index, kind, filter_row(comparison, row.row_verdict.case)
            )
            verdicts.setdefault(kind, {})[verdict.lower()] = None
    for look, names in verdicts.items():
        data.append(
            _draw_mark(None, None, look, {}) | {"name": ", ".join(names), "showlegend": True}
        )
    legend = {"opacity": PALE, "name": "might be missed (up to MDE)", "showlegend": True}
    return [*data, _draw_bar(None, None, None, "open", 1, {}) | legend]


def _draw_row(row: Shown, verdict: Judged, index: int, kind: str, same: Meta) -> list[Trace]:
    """A row's name and change, whisker, interval and mark."""
    missed, y = verdict.mde or 0.0, index
    change = " ".join(filter(None, [row.change, format_factor(verdict.delta)]))
    lines = [row.row, f"base {row.base}, head {row.head}", change, f"MDE {row.mde}", row.why]
    hover = {"hovertext": join_hover(lines), "hoverinfo": "text"}
    return [
        _draw_labels(
            [escape_plotly(shorten_text(row.row, NAME)), escape_plotly(_change_in_short(verdict))],
            index,
            same,
        ),
        _draw_bar(_finite_ratio(1 / (1 + missed) - 1), _finite_ratio(missed), y, kind, 1, same)
        | {"opacity": PALE},
        _draw_bar(_finite_ratio(verdict.lo), _finite_ratio(verdict.hi), y, kind, 3, same),
        _draw_mark(_finite_ratio(verdict.delta), y, kind, same) | hover,
    ]


def _change_in_short(verdict: Judged) -> str:
    """A change by its estimate: +11.4%, 39x slower, ~ where zero is inside its interval."""
    if verdict.lo is not None and verdict.hi is not None and verdict.lo <= 0 <= verdict.hi:
        return "~"
    return format_factor(verdict.delta) or format_signed(verdict.delta)


def format_factor(delta: float | None) -> str:
    """A change by more than FACTOR as a factor: 39x slower; empty for any other."""
    if delta is None or not math.isfinite(delta) or delta <= -1:
        return ""
    ratio = max(1 + delta, 1 / (1 + delta))
    way = "slower" if delta > 0 else "faster"
    return f"{ratio:.3g}x {way}" if ratio > FACTOR else ""


def _draw_labels(texts: Sequence[str], y: float, same: Meta) -> Trace:
    """A row's name at the left of the figure, and its change at the right."""
    return {
        "type": "scatter",
        "mode": "text",
        "xaxis": "x2",
        "x": [0, 1],
        "y": [y, y],
        "text": texts,
        "textposition": ["middle right", "middle left"],
        "cliponaxis": False,
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": same,
    }


def _draw_mark(x: float | None, y: float | None, kind: str, same: Meta) -> Trace:
    colour, symbol = LOOKS[kind]
    line = {"width": 2, "color": colour}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x],
        "y": [y],
        "marker": {"color": colour, "symbol": symbol, "size": 9, "line": line},
        "showlegend": False,
        "meta": same,
    }


def _draw_bar(
    low: float | None, high: float | None, y: float | None, kind: str, width: int, same: Meta
) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [low, high],
        "y": [y, y],
        "line": {"width": width, "color": LOOKS[kind][0]},
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": same,
    }
