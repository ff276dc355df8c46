"""Predictions and fits as documents: times by size and algorithm, who wins where, counts as
fractions; constants with intervals, what they leave unexplained, and what could not be fitted."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from collbench.core.simulate import Forecast, best, count
from collbench.core.text import bandwidth, duration, size
from collbench.features.predict.fit import Estimate, Fit, LinkFit, Segment
from collbench.show.document import Block, Cell, Document, Line, Table, toned
from collbench.show.words import PLACES, along, axes


def rows(view: Forecast, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """One for each size and algorithm, times in nanoseconds; bandwidths in GB/s are None where
    there is no data."""
    found = []
    for nbytes in sizes:
        seconds, bound, moved = view.seconds(nbytes), view.bound(nbytes), view.moved(nbytes)
        for name, taken in seconds.items():
            found.append(
                {
                    "collective": view.row.name,
                    "n": view.n,
                    "size": nbytes,
                    "status": "predicted",
                    "algorithm": view.predictors[name].schedule(nbytes).name,
                    "time_ns": taken * 1e9,
                    "algbw": nbytes / taken / 1e9 if nbytes else None,
                    "busbw": view.row.busbw(view.n) * moved / taken / 1e9 if nbytes else None,
                    "bound_ns": bound * 1e9,
                    "best": name == best(seconds),
                }
            )
    return found


def document(view: Forecast, sizes: Sequence[int], title: str) -> Document:
    """Times for every medium: the best algorithm at each size, then each algorithm's time, who wins
    where, and what is left out."""
    found = rows(view, sizes)
    changes = [
        {"size": nbytes, "below": before, "from": after}
        for nbytes, before, after in view.crossovers(sizes)
    ]
    return Document(
        title=title,
        brief=[
            toned(title, strong=True),
            _best(view, sizes, found),
            *([_times(view, sizes, found)] if len(view.predictors) > 1 else []),
            *notes(view, sizes),
        ],
        rows=found,
        values={
            "about": title,
            "link": view.network.link._asdict(),
            "predictions": found,
            "crossovers": changes,
            "left_out": view.left_out,
        },
    )


def _best(view: Forecast, sizes: Sequence[int], found: Sequence[dict[str, Any]]) -> Table:
    """The best algorithm at each size."""
    heads = ("size", "best", "time", "algbw\nGB/s", "busbw\nGB/s", "bound", "time /\nbound")
    lines, many = [], len(view.predictors)
    for place, nbytes in enumerate(sizes):
        best = next(row for row in found[place * many : place * many + many] if row["best"])
        cells: list[Cell] = [
            size(nbytes),
            toned(best["algorithm"], "good", strong=True),
            toned(duration(best["time_ns"]), "good", strong=True),
            bandwidth(best["algbw"]),
            bandwidth(best["busbw"]),
            duration(best["bound_ns"]),
            f"{best['time_ns'] / best['bound_ns']:.2f}",
        ]
        lines.append(Line(cells))
    return Table(heads=heads, lines=lines, align="rl", quiet=("bound", "time /\nbound"))


def _times(view: Forecast, sizes: Sequence[int], found: Sequence[dict[str, Any]]) -> Table:
    """A line per algorithm, with its time at each size."""
    many = len(view.predictors)
    lines = []
    for at, name in enumerate(view.predictors):
        cells = [
            toned(duration(row["time_ns"]), "good" if row["best"] else "", bool(row["best"]))
            for row in found[at::many]
        ]
        lines.append(Line([name, *cells]))
    return Table(heads=("algorithm", *map(size, sizes)), lines=lines, align="lr", split=True)


def notes(view: Forecast, sizes: Sequence[int]) -> list[str]:
    """Which algorithm wins where, and what is left out why."""
    changes = view.crossovers(sizes)
    words = [f"{before} beats {after} below {size(nbytes)}" for nbytes, before, after in changes]
    if not words and len(sizes) > 1 and len(view.predictors) > 1:
        words = [f"{best(view.seconds(sizes[0]))} is the fastest at all these sizes"]
    return [*words, *(f"left out: {name}: {why}" for name, why in view.left_out.items())]


def counts(view: Forecast, sizes: Sequence[int], title: str) -> Document:
    """A, B, G and sent of each algorithm as fractions, with the segments for the largest size."""
    lines = []
    for predictor in view.predictors.values():
        schedule = predictor.schedule(sizes[-1])
        lines.append(Line((schedule.name, *map(str, count(schedule)))))
    bound = [str(Fraction(value).limit_denominator(1 << 20)) for value in view.row.bound(view.n)]
    lines.append(Line(("(lower bound)", *bound, "")))
    heads = ("algorithm", "rounds A", "bytes B", "reduced G", "sent")
    legend = (
        "B, G and sent (by the busiest rank) are multiples of the size; T = A alpha + size (B beta"
        " + G gamma) at most"
    )
    table = Table(heads=heads, lines=lines, note=legend)
    return Document(title=title, brief=[toned(title, strong=True), table])


LEGEND = (
    "± bounds 95 %; error: largest misfit of the model; signs: its changes of sign along the sizes,"
    " observed/expected by chance; n½ = alpha / beta. A series' own beta holds what"
    " reducing costs"
)


def fitted(fits: Sequence[Fit], links: Sequence[LinkFit]) -> Document:
    """Each series in its segments, the links that series share, the times behind them, and reasons.

    In JSON ``series`` and ``links`` as in ``fit``: times in ns, constants in ns and ns a byte."""
    done = [one for one in fits if one.segments]
    varying, constant = axes([one.case for one in fits]) if fits else ([], "nothing to fit")
    names = {
        id(one): _name(one, varying, len({other.case.mode for other in fits}) > 1) for one in fits
    }
    brief: list[Block] = [toned(constant, strong=True)]
    if done:
        sources = [f"{names[id(one)]}: {one.model}, {one.resampled}" for one in done]
        brief += [_series(done, names), toned("; ".join([LEGEND, *sources]), "quiet"), ""]
    if links:
        sources = [f"{link.name}: {len(link.members)} series, {link.resampled}" for link in links]
        brief += [_links(links), toned("; ".join(sources), "quiet"), ""]
    if done:
        brief += [_points(done, names), ""]
    lines = [f"{names[id(one)]}: {one.refused}" for one in fits if one.refused]
    lines += [
        f"{link.name}: {reason}" for link in links for reason in (link.refused, link.note) if reason
    ]
    brief += [toned(line, "notice") for line in dict.fromkeys(lines)]
    return Document(title="Fit", brief=brief, values={"series": fits, "links": links})


def _name(one: Fit, varying: Sequence[str], modes: bool) -> str:
    values = along(one.case)
    words = [PLACES.get(values[name], values[name]) for name in varying if values[name]]
    return " ".join([*words, *([one.case.mode] if modes else [])]) or one.case.label


def _series(fits: Sequence[Fit], names: dict[int, str]) -> Table:
    flagged = any(one.flags for one in fits)
    lines = []
    for one in fits:
        whole = [f"{one.worst:.0%}", f"{one.runs[0]}/{one.runs[1]:.0f}", " ".join(one.flags)]
        for number, part in enumerate(one.segments):
            fixed = [
                f"{size(part.first)}…{size(part.last)}",
                _time(part.alpha),
                _rate(part.beta),
                _half(part),
            ]
            last = ["", "", ""] if number else whole
            lines.append(["" if number else names[id(one)], *fixed, *last])
    heads = ("series", "sizes", "alpha", "1 / beta", "n½", "error", "signs", "flags")
    return _flagged(heads, lines, flagged)


def _links(links: Sequence[LinkFit]) -> Table:
    lines = [
        [
            link.name,
            _time(link.alpha),
            _rate(link.beta),
            _rate(link.gamma),
            _half(link),
            f"{link.condition:.2g}",
            " ".join(link.flags),
        ]
        for link in links
    ]
    heads = ("link", "alpha", "1 / beta", "1 / gamma", "n½", "condition", "flags")
    return _flagged(heads, lines, any(link.flags for link in links))


def _flagged(heads: tuple[str, ...], lines: Sequence[Sequence[str]], flagged: bool) -> Table:
    """A table whose last column, the flags, is left out where there are none."""
    width = len(heads) - (not flagged)
    align = f"w{'r' * (len(heads) - 2)}w"
    shown = [Line(line[:width]) for line in lines]
    return Table(heads=heads[:width], lines=shown, align=align[:width])


def _points(fits: Sequence[Fit], names: dict[int, str]) -> Table:
    """Measured times, and how far from them the model is."""
    columns = [
        {at: f"{duration(got)} {model / got - 1:+4.0%}" for at, got, model in one.points}
        for one in fits
    ]
    every = sorted(set().union(*columns))
    lines = [Line((size(at), *(column.get(at, "") for column in columns))) for at in every]
    heads = ("size", *(names[id(one)] for one in fits))
    return Table(heads=heads, lines=lines, align="r", split=True)


def _time(found: Estimate | None) -> str:
    return f"{duration(found.value)} {_bounds(found)}" if found else "-"


def _rate(found: Estimate | None) -> str:
    return f"{1 / found.value:.3g} GB/s {_bounds(found)}" if found else "-"


def _bounds(found: Estimate) -> str:
    return f"±{max(found.hi - found.value, found.value - found.lo) / found.value:.1%}"


def _half(part: Segment | LinkFit) -> str:
    return size(part.alpha.value / part.beta.value) if part.alpha and part.beta else "-"
