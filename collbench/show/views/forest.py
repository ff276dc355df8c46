"""A comparison's rows as a forest plot: a line per row with its change and interval, before what
matters and what could have been found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from collbench.judge.comparison import Comparison
from collbench.show.document import Figure, Meta
from collbench.show.figures import COLOURS, Trace, finite, hover, log_axis, safe
from collbench.show.views.series import meta
from collbench.show.views.verdicts import UNDECIDED, WEIGHTS, Readable, Shown, undivided
from collbench.show.words import short
from collbench.suite.case import Case

MOST = 60  # rows of a plot that can still be told apart


FARTHEST = 10.0  # times longer or shorter: ends that lie farther out are drawn here


ROW = 34  # pixels: a line's name stands above it, so that a narrow screen has room for both


NAME = 28  # letters of a row's name that are drawn


# colour and symbol of rows by weight; grey and hollow are those without a verdict
LOOKS = {
    "bad": (COLOURS[3], "triangle-right"),
    "notice": (COLOURS[1], "diamond"),
    "good": (COLOURS[2], "triangle-left"),
    "": (COLOURS[0], "circle"),
    "open": (COLOURS[8], "circle-open"),
}


MIDDLE, BELOW = 0.42, 0.65  # below its name: a row's line and its end, in rows


PALE = 0.22  # opacity of the bar of changes that might be missed


MATTER = "rgba(128,128,128,0.16)"


def figure(view: Readable) -> Figure | None:
    """The rows with a change, in the order of their verdicts; None where there are none."""
    known = [row for row in view.rows if row.judged and row.judged.delta is not None]
    if not known:
        return None
    drawn = known[:MOST]
    worst = max(known, key=lambda row: (row.judged and row.judged.delta) or 0.0)
    left = f", {len(drawn)} of {len(known):,} rows" if len(drawn) < len(known) else ""
    data = _data(view.comparison, drawn)
    ends = [x for trace in data for x in trace["x"] if x]
    across = log_axis("head / base - 1 (to the right: slower)", ends, _change)
    across["range"] = [math.log10(0.95 * min(ends)), math.log10(1.05 * max(ends))]
    down = {"range": [len(drawn) - 1 + BELOW, BELOW - 1], "visible": False}
    at = {"xref": "paper", "x": 0, "xanchor": "left", "showarrow": False}
    names = [f"<b>{safe(short(row.row, NAME))}</b>  {safe(row.change)}" for row in drawn]
    return Figure(
        name="changes",
        title=f"Change from base to head{left}",
        words=(
            "Per row, how much longer head takes than base: the mark is the estimate, the line"
            " through it the interval. A change within the row's pale bar could have been missed"
            " (up to MDE, the smallest change that would be found), one within the grey band is too"
            f" small to matter. Farthest to the right: {worst.row}, {worst.change}."
        ),
        data=data,
        height=110 + ROW * len(drawn),
        layout={
            "xaxis": across,
            "yaxis": down,
            "shapes": _shapes(drawn),
            "annotations": [{**at, "y": place, "text": name} for place, name in enumerate(names)],
            "hovermode": "closest",
        },
    )


def about(comparison: Comparison, case: Case) -> Meta:
    """What a page filters a row by: nothing in which the sides differ."""
    known = undivided(comparison, case).backend
    return {name: value for name, value in meta(case).items() if known or name != "backend"}


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.3g}%" if ratio != 1 else "0"


def _ratio(share: float | None) -> float | None:
    """head / base of a change; None where that is unknown or infinite, which draws nothing."""
    if share is None or not math.isfinite(share):
        return None
    return finite(min(max(1 + share, 1 / FARTHEST), FARTHEST))


def _shapes(rows: Sequence[Shown]) -> list[Trace]:
    """The line of no change, and behind it the band of what does not matter, which is as wide as
    each row's tau."""
    taus = enumerate(row.judged.tau for row in rows if row.judged)
    bands = [[*members] for _, members in groupby(taus, key=lambda item: item[1])]
    ends = {"type": "rect", "layer": "below", "line": {"width": 0}, "fillcolor": MATTER}
    zero = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    return [
        {
            **ends,
            "x0": 1 / (1 + band[0][1]),
            "x1": 1 + band[0][1],
            "y0": band[0][0] - 1 + BELOW,
            "y1": band[-1][0] + BELOW,
        }
        for band in bands
    ] + [{**zero, "line": {"width": 1, "color": COLOURS[8]}}]


def _data(comparison: Comparison, rows: Sequence[Shown]) -> list[Trace]:
    """Traces of rows that are about the same together, since a reader can narrow the page down to
    them; then a legend for each colour."""
    groups: dict[tuple[str, str], list[tuple[int, Shown]]] = {}
    verdicts: dict[str, list[str]] = {}
    for place, row in enumerate(rows):
        if row.judged:
            verdict = row.judged.verdict
            kind = "open" if verdict in UNDECIDED else WEIGHTS[verdict]
            same = str(about(comparison, row.judged.case))
            groups.setdefault((same, kind), []).append((place, row))
            verdicts.setdefault(kind, []).append(row.verdict.lower())
    data = [
        trace
        for (_, kind), members in groups.items()
        for trace in _traces(comparison, kind, members)
    ]
    names = {kind: ", ".join(dict.fromkeys(words)) for kind, words in verdicts.items()}
    data += [_marks(kind, [None], [None], {}) | {"name": name} for kind, name in names.items()]
    bar = _bars([(None, None, 0)], "open", 10, {})
    words = {"opacity": PALE, "name": "might be missed (up to MDE)", "showlegend": True}
    return [*data, bar | words]


def _traces(comparison: Comparison, kind: str, members: Sequence[tuple[int, Shown]]) -> list[Trace]:
    """Pale bars, intervals and marks of rows of one kind that are about the same."""
    known = [(place, row.judged) for place, row in members if row.judged]
    same = about(comparison, known[0][1].case)
    mdes = [(row.mde or 0.0, place) for place, row in known]
    missed = [(_ratio(1 / (1 + mde) - 1), _ratio(mde), place) for mde, place in mdes]
    bounds = [(_ratio(row.lo), _ratio(row.hi), place) for place, row in known]
    x, y = [_ratio(row.delta) for _, row in known], [place + MIDDLE for place, _ in known]
    texts = [
        hover([row.row, f"base {row.base}, head {row.head}", row.change, f"MDE {row.mde}", row.why])
        for _, row in members
    ]
    return [
        _bars(missed, kind, 10, same) | {"opacity": PALE},
        _bars(bounds, kind, 2, same),
        _marks(kind, x, y, same) | {"showlegend": False, "hovertext": texts, "hoverinfo": "text"},
    ]


def _marks(kind: str, x: list[Any], y: list[Any], about: Meta) -> Trace:
    colour, symbol = LOOKS[kind]
    marker = {"color": colour, "symbol": symbol, "size": 9, "line": {"width": 2, "color": colour}}
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, "meta": about}


def _bars(ends: Sequence[tuple[Any, Any, int]], kind: str, width: int, about: Meta) -> Trace:
    """Lines from one x to another at a y."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x for low, high, _ in ends for x in (low, high, None)],
        "y": [y for *_, place in ends for y in (place + MIDDLE, place + MIDDLE, None)],
        "line": {"width": width, "color": LOOKS[kind][0]},
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": about,
    }
