"""Fits as people read them: constants with intervals, what they leave unexplained, and what could not be fitted."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.fit import Estimate, Fit, LinkFit, Segment
from collbench.formats import PLACES, along, axes, duration, plain, size

BESIDE = 4  # series in one table of sizes
LEGEND = (
    "± bounds 95 %; off: largest difference between model and measurement; runs: changes of its sign along the sizes"
    "/what chance makes; n½ = alpha / beta. A series' own beta holds what reducing costs"
)


def table(fits: Sequence[Fit], links: Sequence[LinkFit]) -> list[RenderableType]:
    """Each series in its segments, the links that series share, the times behind them, and reasons."""
    done = [one for one in fits if one.segments]
    varying, constant = axes([one.case for one in fits]) if fits else ([], "nothing to fit")
    names = {id(one): _name(one, varying, len({other.case.mode for other in fits}) > 1) for one in fits}
    parts: list[RenderableType] = [Text(plain(constant), "bold")]
    if done:
        sources = [f"{names[id(one)]}: {one.model}, {one.resampled}" for one in done]
        parts += [_series(done, names), Text("; ".join([LEGEND, *sources]), "dim"), ""]
    if links:
        sources = [f"{link.name}: {len(link.members)} series, {link.resampled}" for link in links]
        parts += [_links(links), Text("; ".join(sources), "dim"), ""]
    for start in range(0, len(done), BESIDE):
        parts += [_points(done[start : start + BESIDE], names), ""]
    lines = [f"{names[id(one)]}: {one.refused}" for one in fits if one.refused]
    lines += [f"{link.name}: {reason}" for link in links for reason in (link.refused, link.note) if reason]
    return [*parts, *(Text(plain(line), "yellow") for line in dict.fromkeys(lines))]


def _name(one: Fit, varying: Sequence[str], modes: bool) -> str:
    values = along(one.case)
    words = [PLACES.get(values[name], values[name]) for name in varying if values[name]]
    return " ".join([*words, *([one.case.mode] if modes else [])]) or one.case.label


def _series(fits: Sequence[Fit], names: dict[int, str]) -> Table:
    flagged = ["flags"] if any(one.flags for one in fits) else []
    view = _plain("series", "sizes", "alpha", "1 / beta", "n½", "off", "runs", *flagged)
    for one in fits:
        runs = f"{one.runs[0]}/{one.runs[1]:.0f}"
        whole = [f"{one.worst:.0%}", runs, *(" ".join(one.flags) for _ in flagged)]
        for number, part in enumerate(one.segments):
            fixed = [f"{size(part.first)}…{size(part.last)}", _time(part.alpha), _rate(part.beta), _half(part)]
            view.add_row(*map(Text, ["", *fixed] if number else [names[id(one)], *fixed, *whole]))
    return view


def _links(links: Sequence[LinkFit]) -> Table:
    flagged = ["flags"] if any(link.flags for link in links) else []
    view = _plain("link", "alpha", "1 / beta", "1 / gamma", "n½", "condition", *flagged)
    for link in links:
        columns = [_time(link.alpha), _rate(link.beta), _rate(link.gamma), _half(link), f"{link.condition:.2g}"]
        view.add_row(*map(Text, [link.name, *columns, *(" ".join(link.flags) for _ in flagged)]))
    return view


def _points(fits: Sequence[Fit], names: dict[int, str]) -> Table:
    """Measured times, and how far from them the model is."""
    view = _plain("size", *(names[id(one)] for one in fits))
    cells = [{at: f"{duration(got)} {model / got - 1:+4.0%}" for at, got, model in one.points} for one in fits]
    for at in sorted(set().union(*cells)):
        view.add_row(size(at), *(Text(column.get(at, "")) for column in cells))
    return view


def _time(found: Estimate | None) -> str:
    return f"{duration(found.value)} {_bounds(found)}" if found else "-"


def _rate(found: Estimate | None) -> str:
    return f"{1 / found.value:.3g} GB/s {_bounds(found)}" if found else "-"


def _bounds(found: Estimate) -> str:
    return f"±{max(found.hi - found.value, found.value - found.lo) / found.value:.1%}"


def _half(part: Segment | LinkFit) -> str:
    return size(part.alpha.value / part.beta.value) if part.alpha and part.beta else "-"


def _plain(*heads: str) -> Table:
    view = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), border_style="dim")
    for head in heads:
        words = head in ("series", "link", "flags")
        view.add_column(
            Text(plain(head), "bold"), justify="left" if words else "right", no_wrap=not words, overflow="fold",
            min_width=10 if words else None,
        )  # fmt: skip
    return view


def as_json(fits: Sequence[Fit], links: Sequence[LinkFit]) -> str:
    """An object of ``series`` and ``links``, as in ``fit``: times in ns, constants in ns and ns a byte."""
    return msgspec.json.format(msgspec.json.encode({"series": fits, "links": links})).decode()
