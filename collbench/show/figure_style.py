"""How charts look: colours, marks, axes, and how numbers are written on them."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from collbench.core.text import format_size, plain_line
from collbench.show.views.series import Series

COLOURS = (
    "#3b82c4",
    "#d9822b",
    "#2f9e66",
    "#c4504b",
    "#8e6bbf",
    "#1fa3b5",
    "#d462a6",
    "#96792f",
    "#7a8793",
    "#8a9a1b",
    *("#82bdf0", "#f0b070", "#74cf9f", "#ea938f", "#c4aee6", "#7fd6e0", "#f0a0cf", "#c9b06a"),
)

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "pentagon")

MOST_POINTS = 48  # of a line

TICKS = 7

LABELLED = "<b>%{fullData.name}</b><br>%{text}<extra></extra>"


def escape_plotly(text: str) -> str:
    """``text`` on one line, so that plotly shows it literally."""
    return html.escape(plain_line(text), quote=False)


def join_hover(lines: Iterable[str]) -> str:
    """Lines of a hover text, escaped for plotly; empty ones are left out."""
    return "<br>".join(escape_plotly(line) for line in lines if line)


def round_finite(value: float | None, digits: int = 6) -> float | None:
    """``value`` to a few significant digits, all that a figure shows; None for infinity and NaN."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def format_rate(value: float) -> str:
    """GB/s in the unit that suits: 5 kB/s, 20 GB/s."""
    units = {1.0: "GB/s", 1e-3: "MB/s", 1e-6: "kB/s"}
    scale = next((scale for scale in units if value >= 0.999 * scale), 1e-6)
    return f"{format_number(float(f'{value / scale:.3g}'))} {units[scale]}"


def format_number(value: float) -> str:
    """A number without an exponent, however small."""
    return np.format_float_positional(value, trim="-")


def thin_points(points: Sequence[Any], most: int = MOST_POINTS) -> list[Any]:
    """Points evenly spaced, at most ``most``, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[int(i)] for i in np.linspace(0, len(points) - 1, most).round()]


def choose_colours(series: Iterable[Series]) -> dict[str, str]:
    """A colour for each series of a figure, by its name. In and out of place share one; where there
    are more than colours, so do all of an implementation."""
    every = list(series)
    kinds: list[tuple[Any, ...]] = [_colour_key(row) for row in every]
    if len(set(kinds)) > len(COLOURS):
        kinds = [(row.case.label,) for row in every]
    places = {kind: index for index, kind in enumerate(dict.fromkeys(kinds))}
    return {
        row.name: COLOURS[places[kind] % len(COLOURS)]
        for row, kind in zip(every, kinds, strict=True)
    }


def _colour_key(series: Series) -> tuple[Any, ...]:
    return (
        series.run,
        series.points[0].predicted,
        msgspec.structs.replace(series.case, in_place=False),
    )


def sizes_axis(sizes: Iterable[int]) -> dict[str, Any]:
    """A logarithmic axis of sizes with ticks at powers of two."""
    positive = [size for size in sizes if size > 0]
    if not positive:
        return {"title": {"text": "size"}}
    low, high = math.floor(math.log2(min(positive))), math.ceil(math.log2(max(positive)))
    step = max(1, math.ceil((high - low) / TICKS))
    ticks = [2**power for power in range(low, high + 1, step)]
    return {
        "type": "log",
        "title": {"text": "size (log)"},
        "tickvals": ticks,
        "ticktext": [format_size(tick) for tick in ticks],
    }


def log_axis(
    title: str, values: Iterable[float | None], show: Callable[[float], str]
) -> dict[str, Any]:
    """A logarithmic axis with ticks at powers of ten, at 1, 2 and 5 or more of each where there
    are few, and evenly spaced where values are close together."""
    positive = [value for value in values if value is not None and value > 0]
    if not positive:
        return {"title": {"text": title}}
    least, most = min(positive), max(positive)
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    parts = (1,) if high - low >= 4 else (1, 2, 5) if most >= 20 * least else (1, 2, 3, 4, 5, 6, 8)
    ticks = [float(f"{part}e{power}") for power in range(low, high + 1) for part in parts]
    if most < 5 * least:
        rough = max(most - least, 0.02 * most) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(part * unit for part in (1, 2, 5, 10) if part * unit >= rough)
        places = range(math.floor(least / step), math.ceil(most / step) + 1)
        ticks = [tick for mark in places if (tick := round_finite(mark * step))]
    return {
        "type": "log",
        "title": {"text": f"{title} (log)"},
        "tickvals": ticks,
        "ticktext": [show(tick) for tick in ticks],
    }


def fade_colour(colour: str, opacity: float) -> str:
    """A colour "#rrggbb" with an opacity of 0..1, as CSS writes it: "rgba(31,119,180,0.5)"."""
    return f"rgba({','.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))},{opacity})"
