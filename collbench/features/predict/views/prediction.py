"""Predictions and fits as documents: times by size and algorithm, who wins where, counts as
fractions; constants with intervals, what they leave unexplained, and what could not be fitted."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from collbench.core.simulate import Forecast, count_costs, find_fastest
from collbench.core.text import format_bandwidth, format_duration, format_size
from collbench.features.predict.fit import Estimate, Fit, LinkFit, Segment
from collbench.records.stats import half_width
from collbench.show.document import (
    Block,
    Cell,
    Column,
    Document,
    Line,
    Table,
    make_columns,
    tone_text,
)
from collbench.show.words import PLACES, axis_values, split_axes


def list_rows(view: Forecast, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each size and algorithm: times in nanoseconds, bandwidths in GB/s or None where no
    data is moved."""
    rows = []
    for nbytes in sizes:
        seconds, bound, moved = view.seconds(nbytes), view.bound(nbytes), view.moved(nbytes)
        for name, duration in seconds.items():
            rows.append(
                {
                    "collective": view.row.name,
                    "n": view.n,
                    "size": nbytes,
                    "status": "predicted",
                    "algorithm": view.predictors[name].schedule(nbytes).name,
                    "time_ns": duration * 1e9,
                    "algbw": moved / duration / 1e9 if nbytes else None,
                    "busbw": view.row.busbw(view.n) * moved / duration / 1e9 if nbytes else None,
                    "bound_ns": bound * 1e9,
                    "best": name == find_fastest(seconds),
                }
            )
    return rows


def make_document(view: Forecast, sizes: Sequence[int], title: str) -> Document:
    """Times for every medium: the best algorithm at each size, then each algorithm's time, who wins
    where, and what is left out."""
    rows = list_rows(view, sizes)
    changes = [
        {"size": nbytes, "below": before, "from": after}
        for nbytes, before, after in view.crossovers(sizes)
    ]
    return Document(
        title=title,
        brief=[
            tone_text(title, strong=True),
            _best_table(view, sizes, rows),
            *([_times_table(view, sizes, rows)] if len(view.predictors) > 1 else []),
            *list_notes(view, sizes),
        ],
        rows=rows,
        values={
            "about": title,
            "link": view.network.link._asdict(),
            "predictions": rows,
            "crossovers": changes,
            "left_out": view.left_out,
        },
    )


BEST = (
    Column("size"),
    Column("best", "left"),
    Column("time"),
    Column("algbw\nGB/s"),
    Column("busbw\nGB/s"),
    Column("bound", dim=True),
    Column("time /\nbound", dim=True),
)


def _best_table(view: Forecast, sizes: Sequence[int], rows: Sequence[dict[str, Any]]) -> Table:
    """The best algorithm at each size."""
    lines, many = [], len(view.predictors)
    for index, nbytes in enumerate(sizes):
        best = next(row for row in rows[index * many : index * many + many] if row["best"])
        cells: list[Cell] = [
            format_size(nbytes),
            tone_text(best["algorithm"], "good", strong=True),
            tone_text(format_duration(best["time_ns"]), "good", strong=True),
            format_bandwidth(best["algbw"]),
            format_bandwidth(best["busbw"]),
            format_duration(best["bound_ns"]),
            f"{best['time_ns'] / best['bound_ns']:.2f}",
        ]
        lines.append(Line(cells))
    return Table(columns=BEST, lines=lines)


def _times_table(view: Forecast, sizes: Sequence[int], rows: Sequence[dict[str, Any]]) -> Table:
    """A line per algorithm, with its time at each size."""
    many = len(view.predictors)
    lines = []
    for at, name in enumerate(view.predictors):
        cells = [
            tone_text(
                format_duration(row["time_ns"]), "good" if row["best"] else "", bool(row["best"])
            )
            for row in rows[at::many]
        ]
        lines.append(Line([name, *cells]))
    columns = make_columns(("algorithm", *map(format_size, sizes)))
    return Table(columns=columns, lines=lines, overflow="split")


def list_notes(view: Forecast, sizes: Sequence[int]) -> list[str]:
    """Which algorithm wins where, and what is left out why."""
    changes = view.crossovers(sizes)
    sentences = [
        f"{before} beats {after} below {format_size(nbytes)}" for nbytes, before, after in changes
    ]
    if not sentences and len(sizes) > 1 and len(view.predictors) > 1:
        sentences = [f"{find_fastest(view.seconds(sizes[0]))} is the fastest at all these sizes"]
    return [*sentences, *(f"left out: {name}: {why}" for name, why in view.left_out.items())]


def make_counts(view: Forecast, sizes: Sequence[int], title: str) -> Document:
    """A, B, G and sent of each algorithm as fractions, with the segments for the largest size."""
    lines = []
    for predictor in view.predictors.values():
        schedule = predictor.schedule(max(sizes))
        lines.append(Line((schedule.name, *map(str, count_costs(schedule)))))
    bound = [
        str(Fraction(value).limit_denominator(1 << 20)) for value in view.row.bound_by_size(view.n)
    ]
    lines.append(Line(("(lower bound)", *bound, "")))
    columns = make_columns(("algorithm", "rounds A", "bytes B", "reduced G", "sent"))
    legend = (
        "B, G and sent (by the busiest rank) are multiples of the size; T = A alpha + size (B beta"
        " + G gamma) at most"
    )
    table = Table(columns=columns, lines=lines, note=legend)
    return Document(title=title, brief=[tone_text(title, strong=True), table])


LEGEND = (
    "± bounds 95 %; intervals by samples or cycles hold within their launch; error: largest misfit"
    " of the model; signs: its changes of sign along the sizes, observed/expected by chance; n½ ="
    " alpha / beta. A series' own beta holds what reducing costs"
)


def make_fitted(fits: Sequence[Fit], links: Sequence[LinkFit]) -> Document:
    """The document of `fit`: each series in its segments, the links that series share, the times
    behind them, and reasons why something was not fitted.

    In JSON ``series`` and ``links`` as in ``fit``: times in ns, constants in ns and ns a byte.
    """
    done = [fit for fit in fits if fit.segments]
    varying, constant = split_axes([fit.case for fit in fits]) if fits else ([], "nothing to fit")
    names = {
        id(fit): _name_fit(fit, varying, len({other.case.mode for other in fits}) > 1)
        for fit in fits
    }
    brief: list[Block] = [tone_text(constant, strong=True)]
    if done:
        sources = [f"{names[id(fit)]}: {fit.model}, {fit.resampled}" for fit in done]
        brief += [_series_table(done, names), tone_text("; ".join([LEGEND, *sources]), "quiet"), ""]
    if links:
        sources = [f"{link.name}: {len(link.members)} series, {link.resampled}" for link in links]
        brief += [_links_table(links), tone_text("; ".join(sources), "quiet"), ""]
    if done:
        brief += [_points_table(done, names), ""]
    lines = [f"{names[id(fit)]}: {fit.refused}" for fit in fits if fit.refused]
    lines += [
        f"{link.name}: {reason}" for link in links for reason in (link.refused, link.note) if reason
    ]
    brief += [tone_text(line, "notice") for line in dict.fromkeys(lines)]
    return Document(title="Fit", brief=brief, values={"series": fits, "links": links})


def _name_fit(fit: Fit, varying: Sequence[str], modes: bool) -> str:
    values = axis_values(fit.case)
    axis_words = [PLACES.get(values[name], values[name]) for name in varying if values[name]]
    return " ".join([*axis_words, *([fit.case.mode] if modes else [])]) or fit.case.label


def _series_table(fits: Sequence[Fit], names: dict[int, str]) -> Table:
    flagged = any(fit.flags for fit in fits)
    lines = []
    for fit in fits:
        quality = [
            f"{fit.worst:.0%}",
            f"{fit.runs[0]}/{fit.runs[1]:.0f}",
            " ".join(fit.flags),
        ]
        for number, part in enumerate(fit.segments):
            fixed = [
                f"{format_size(part.first)}…{format_size(part.last)}",
                _format_time(part.alpha),
                _format_rate(part.beta),
                _format_half(part),
            ]
            last = ["", "", ""] if number else quality
            lines.append(["" if number else names[id(fit)], *fixed, *last])
    heads = ("series", "sizes", "alpha", "1 / beta", "n½", "error", "signs", "flags")
    return _make_flagged_table(heads, lines, flagged)


def _links_table(links: Sequence[LinkFit]) -> Table:
    lines = [
        [
            link.name,
            _format_time(link.alpha),
            _format_rate(link.beta),
            _format_rate(link.gamma),
            _format_half(link),
            f"{link.condition:.2g}",
            " ".join(link.flags),
        ]
        for link in links
    ]
    heads = ("link", "alpha", "1 / beta", "1 / gamma", "n½", "condition", "flags")
    return _make_flagged_table(heads, lines, any(link.flags for link in links))


def _make_flagged_table(
    heads: tuple[str, ...], lines: Sequence[Sequence[str]], flagged: bool
) -> Table:
    """A table whose last column, the flags, is left out where there are none."""
    columns = make_columns(heads, f"w{'r' * (len(heads) - 2)}w")
    table = Table(columns=columns, lines=[Line(line) for line in lines])
    return table if flagged else table.select_columns(range(len(heads) - 1))


def _points_table(fits: Sequence[Fit], names: dict[int, str]) -> Table:
    """Measured times, and how far from them the model is."""
    columns = [
        {at: f"{format_duration(got)} {model / got - 1:+4.0%}" for at, got, model in fit.points}
        for fit in fits
    ]
    every = sorted(set().union(*columns))
    lines = [Line((format_size(at), *(column.get(at, "") for column in columns))) for at in every]
    heads = ("size", *(names[id(fit)] for fit in fits))
    return Table(columns=make_columns(heads, "r"), lines=lines, overflow="split")


def _format_time(estimate: Estimate | None) -> str:
    return f"{format_duration(estimate.value)} {_format_bounds(estimate)}" if estimate else "-"


def _format_rate(estimate: Estimate | None) -> str:
    if not estimate:
        return "-"
    rate = Estimate(1 / estimate.value, 1 / estimate.hi, 1 / estimate.lo)
    return f"{rate.value:.3g} GB/s {_format_bounds(rate)}"


def _format_bounds(estimate: Estimate) -> str:
    return f"±{half_width(estimate.value, estimate.lo, estimate.hi):.1%}"


def _format_half(part: Segment | LinkFit) -> str:
    return format_size(part.alpha.value / part.beta.value) if part.alpha and part.beta else "-"
