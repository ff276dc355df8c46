"""The map of a series: settings by size, coloured by what they save, with what is advised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collbench.core.text import format_count, format_size, plain_line
from collbench.features.advise.types import Advised, Cell, Gain, Series, describe_gain
from collbench.show.document import Figure
from collbench.show.figure_style import escape_plotly, round_finite

SCALE = ((0, "#d9822b"), (0.5, "rgba(128,128,128,0.10)"), (1, "#3b82c4"))  # slower, alike, faster
LEAST, MOST = 0.1, 0.5  # shares of time at which colours are full: so that little looks like little
WRITTEN = 24  # columns up to which cells have their gain in them
SURE = 0.05


def draw_maps(advised: Advised) -> list[Figure]:
    """A map for each series in which anything competed."""
    rivals = select_rivals(advised)
    drawn = sorted({cell.series for cell in rivals})
    return [_draw_map(advised, rivals, number, series) for number, series in enumerate(drawn)]


def select_rivals(advised: Advised) -> dict[Cell, dict[str, Gain]]:
    """What was tested, without gains that no interval bounds: those of a search, which are no
    evidence, as what it found was chosen for its luck, too."""
    tested = {
        cell: {name: gain for name, gain in gains.items() if gain.has_interval}
        for cell, gains in advised.rivals.items()
    }
    return {cell: gains for cell, gains in tested.items() if gains}


def describe_series(series: Series) -> str:
    """A series in words: all_reduce on 4 ranks, 2 hosts."""
    hosts = f", {format_count(series.nodes, 'host')}" if series.nodes > 1 else ""
    return f"{series.collective} on {format_count(series.n, 'rank')}{hosts}"


def is_sure(gain: Gain) -> bool:
    """Whether a setting is surely faster or slower at all, by however little."""
    is_other = gain.p <= SURE and (gain.lo > 0 or gain.hi < 0)
    return gain.has_interval and is_other and not gain.doubt


def _draw_map(
    advised: Advised, rivals: dict[Cell, dict[str, Gain]], number: int, series: Series
) -> Figure:
    sizes = sorted(cell.nbytes for cell in rivals if cell.series == series)
    by_size = [rivals[Cell(series, size)] for size in sizes]
    names = sorted({name for gains in by_size for name in gains})
    winners = {
        (row.name, gain.nbytes)
        for row in advised.rows
        if row.series == series
        for gain in row.gains
    }
    labels = _label_sizes(sizes)
    trace = _make_cells(by_size, names, labels)
    meta = {"collective": series.collective}
    x, y = (
        [
            label
            for name in names
            for label, size in zip(labels, sizes, strict=True)
            if (name, size) in winners
        ],
        [escape_plotly(name) for name in names for size in sizes if (name, size) in winners],
    )
    marks = {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": y,
        "name": "advised",
        "marker": {
            "symbol": "square-open",
            "size": 26,
            "color": "#2f9e66",
            "line": {"width": 3},
        },
        "hoverinfo": "skip",
        "showlegend": True,
        "meta": meta,
    }
    down = {"type": "category", "autorange": "reversed", "automargin": True}
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "size"}, "type": "category"},
        "yaxis": {"title": {"text": "setting"}, **down},
        "legend": {"orientation": "h", "y": 1.12},
    }
    title = describe_series(series)
    sure = sum(is_sure(gain) and gain.lo > 0 for gains in by_size for gain in gains.values())
    caption = (
        f"{title}: what each setting saves of the time of the library's own choice (blue: it is"
        f" faster). With *: sure ({sure} faster). Framed: advised ({len(winners)})."
    )
    return Figure(
        name=f"advice-{number}",
        title=plain_line(title),
        caption=plain_line(caption),
        data=[{**trace, "meta": meta}, *([marks] if x else [])],
        layout=layout,
        height=190 + 34 * min(24, len(names)),
    )


def _label_sizes(sizes: Sequence[int]) -> list[str]:
    """Sizes in words, in bytes where two were alike."""
    labels = [format_size(size) for size in sizes]
    return labels if len(set(labels)) == len(labels) else [f"{size:,} B" for size in sizes]


def _make_cells(
    by_size: Sequence[dict[str, Gain]], names: Sequence[str], labels: Sequence[str]
) -> dict[str, Any]:
    gains = [[at.get(name) for at in by_size] for name in names]
    most = max(abs(gain.gain) for row in gains for gain in row if gain)
    limit = round_finite(min(MOST, max(LEAST, most)))
    text = [
        [f"{round(100 * gain.gain)}{'*' if is_sure(gain) else ''}" if gain else "" for gain in row]
        for row in gains
    ]
    hover = [[_hover(gain) if gain else "not measured" for gain in row] for row in gains]
    return {
        "type": "heatmap",
        "x": list(labels),
        "y": [escape_plotly(name) for name in names],
        "z": [[round_finite(gain.gain, 4) if gain else None for gain in row] for row in gains],
        "text": text,
        "customdata": hover,
        "hovertemplate": "%{y}, %{x}: %{customdata}<extra></extra>",
        "xgap": 2,
        "ygap": 2,
        "zmin": -(limit or LEAST),
        "zmax": limit or LEAST,
        "colorscale": [list(stop) for stop in SCALE],
        "colorbar": {"title": {"text": "time saved"}, "tickformat": ".0%"},
        **({"texttemplate": "%{text}"} if len(labels) <= WRITTEN else {}),
    }


def _hover(gain: Gain) -> str:
    launches = f"{format_count(gain.launches, 'launch')} a side"
    doubt = f"; {escape_plotly(plain_line(gain.doubt))}" if gain.doubt else ""
    return f"{describe_gain(gain)}, {launches}, p {gain.p:.2g}{doubt}"
