"""Sections of what was measured: curves, distributions, outliers, pairs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial

import msgspec

from collbench.core.groups import count_placed_ranks
from collbench.core.text import (
    format_bandwidth,
    format_count,
    format_duration,
    format_size,
    plain_line,
)
from collbench.records.columns import BOUNDING
from collbench.records.flags import list_doubts
from collbench.records.points import Point
from collbench.show import figures
from collbench.show.document import Figure, Line, Section, Table, make_columns
from collbench.show.views import summary as summing
from collbench.show.views.series import (
    Series,
    View,
    choose_series,
    group_series,
    left_out,
    make_table,
    merge_groups,
    name_figure,
    name_mode,
    plus_minus,
)
from collbench.show.words import (
    OPTIONAL,
    format_optional,
    read_optional,
    split_axes,
    warn_single_launch,
    word_axes,
)
from collbench.suite.case import Case

CURVES, CDFS = 60, 12  # lines in a figure

ALL = 120  # lines in a section's figures of one kind

MATRICES, STRIPS = 6, 6

BUSBW = (
    "busbw is the traffic of the busiest link per second, so that collectives and rank counts can"
    " be compared. Both axes are logarithmic."
)

HOLLOW = "A hollow marker is a case in doubt: its flags say why."


def draw_best(view: View) -> list[Figure]:
    """Time against size in each mode, to stand beside the table of what is best at each size there;
    none where a mode takes several figures."""
    modes = {name_mode(best.winner) for best in view.best}
    swept = {
        title: series
        for title, series in _swept_series(view).items()
        if title.partition(", ")[2] in modes
    }
    if len(swept) != len(modes):
        return []
    drawn = [
        figure for title, series in swept.items() for figure in _draw_curves(title, series, CURVES)
    ]
    return [figure for figure in drawn if figure.name.endswith("-time")]


def _swept_series(view: View) -> dict[str, list[Series]]:
    """Series of several sizes, by the title of the figures that they stand in."""
    grouped = merge_groups(
        group_series(series for series in view.series if not series.case.subject)
    )
    return {
        title: series
        for title, series in grouped.items()
        if len({point.size for one_series in series for point in one_series.points}) > 1
    }


def _draw_curves(title: str, series: Sequence[Series], most: int) -> list[Figure]:
    drawn_series = choose_series(series, most)
    return figures.draw_curves(
        name_figure(title), title, _describe_peaks(drawn_series), drawn_series
    )


def make_bandwidths(view: View) -> Section:
    """busbw and time against size: a figure each for every collective and mode, or for all
    collectives of a mode where there is one implementation. What has one size, as steps have,
    stands in the table alone."""
    swept = _swept_series(view)
    drawn: list[Figure] = []
    sentences = figures.describe_thinning(view.series)
    origins = _explain_origins(view.points)
    closing = [
        *summing.describe_traffic(view),
        *(f"{sentence}." for sentence in summing.describe_modes(view)),
    ]
    most = _share_lines(CURVES, len(swept))
    best_figures = draw_best(view)
    for title, series in swept.items():
        sentences += [
            f"{title}: {line}" for line in left_out(min(most, len(series)), len(series), "lines")
        ]
        drawn += [
            figure for figure in _draw_curves(title, series, most) if figure not in best_figures
        ]
    if drawn:
        hollow = any(list_doubts(point) for series in view.series for point in series.points)
        closing = [*origins, BUSBW, *[HOLLOW] * hollow, *closing]
    else:
        nothing = "No case has a time." if summing.count_findings(view) else "Nothing was measured."
        sentences = origins or [nothing]
    points = [(series, point) for series in view.series for point in series.points]
    return Section(
        name="bandwidth",
        title="Bandwidth and time",
        sentences=sentences,
        figures=drawn,
        tables=[_times_table(points, folded=bool(drawn))] if points else [],
        closing=closing,
    )


def _times_table(points: Sequence[tuple[Series, Point]], folded: bool) -> Table:
    filled = {name for _, point in points for name in read_optional(point.pooled, point.case.mode)}
    names = [name for name in OPTIONAL if name in filled]
    more = [f"{name}, GB/s" if name.endswith("bw") else name for name in names]
    figures = ("size", "time", "±", "algbw, GB/s", "busbw, GB/s")
    align = "lllrrrrr" + "".join("l" if name == "ran" else "r" for name in names) + "l"
    return make_table(
        "times",
        "Times and bandwidths",
        make_columns(("collective", "mode", "case", *figures, *more, "flags"), align),
        points,
        partial(_time_line, names),
        folded=folded,
        common=2,
    )


def _explain_origins(points: Sequence[Point]) -> list[str]:
    """Sentences on where times come from: medians over samples, or another tool's figures."""
    sentences = []
    if any(not point.over and not point.predicted for point in points):
        sentences.append(
            "Times are medians over samples, each that of its slowest rank; a band is their 95 %"
            " interval."
        )
        alone = warn_single_launch(point.launches for point in points if not point.predicted)
        sentences += [alone] * bool(alone)
    kinds = list(dict.fromkeys(point.over for point in points if point.over))
    return sentences + (
        [f"Imported times are what the tool printed: {'; '.join(kinds)}."] if kinds else []
    )


def _time_line(names: Sequence[str], item: tuple[Series, Point]) -> Line:
    series, point = item
    rates = (
        (format_bandwidth(point.algbw), format_bandwidth(point.busbw)) if point.size else ("-", "-")
    )
    values = format_optional(point.pooled, point.case.mode)
    cells = (
        point.case.collective,
        point.case.mode,
        series.name,
        format_size(point.size) if point.size else "-",
        format_duration(point.median),
        plus_minus(point),
        *rates,
        *(values[name] for name in names),
        " ".join(point.flags),
    )
    return Line(cells, series.meta)


def make_distributions(view: View) -> Section | None:
    """Spread of samples: their cumulative share at a few sizes; None where no case has samples of
    its own."""
    grouped = {
        key: series
        for key, series in group_series(view.series).items()
        if any(_has_samples(view, point) for one_series in series for point in one_series.points)
    }
    drawn = [
        figure for title, series in grouped.items() for figure in _draw_spread(view, title, series)
    ]
    if not drawn:
        return None
    measured = [point for point in view.points if not point.predicted]
    short = sum(point.first.times.p95 is None for point in measured)
    sentences = [
        "Samples of each case's first launch, at a few sizes, of the fastest implementations and of"
        f" libraries. p95 takes {BOUNDING['p95']} independent samples and p99 {BOUNDING['p99']}:"
        f" {short:,} of {format_count(len(measured), 'case')} have too few even for p95.",
    ]
    batches = dict.fromkeys(
        p.case.mode for p in measured if _has_samples(view, p) and view.record(p).inner > 1
    )
    if batches:
        sentences.append(
            f"{', '.join(batches)}: a sample may be the mean of several calls, and then its tails"
            " are not those of single calls."
        )
    return Section(
        name="distribution", title="Distribution", sentences=sentences, figures=drawn, folded=True
    )


def _draw_spread(view: View, title: str, series: Sequence[Series]) -> list[Figure]:
    sizes = sorted({point.size for one_series in series for point in one_series.points})
    picked = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
    outside = [
        one_series for one_series in series if not one_series.case.in_place
    ]  # in place, samples spread alike
    few = _select_fastest(outside or series, max(2, CDFS // len(picked)))
    cases = [
        (one_series, point, view.record(point))
        for at in picked
        for one_series in few
        for point in one_series.points
        if point.size == at and _has_samples(view, point)
    ]
    if not cases:
        return []
    at = " at " + ", ".join(format_size(at) for at in picked) if picked[-1] else ""
    caption = (
        f"Share of samples that took no longer than a time{at}, for"
        f" {format_count(len(cases), 'case')}."
    )
    return [
        figures.draw_distribution(
            f"{name_figure(title)}-cdf", f"{title}: how samples spread", caption, cases
        )
    ]


def _select_fastest(series: Sequence[Series], most: int) -> list[Series]:
    """Libraries, then those that are the fastest over all their sizes."""

    def merit(series: Series) -> tuple[bool, float]:
        mean = sum(math.log(point.median or 1.0) for point in series.points) / len(series.points)
        return series.case.algorithm != "native", mean

    fastest = sorted(series, key=merit)[:most]
    return [one_series for one_series in series if one_series in fastest]


def make_outliers(view: View) -> Section | None:
    """The cases with the largest share of samples far out, sample by sample; None where there are
    none."""
    severe = [point for point in view.points if point.pooled.times.severe_outliers]
    severe.sort(key=lambda point: -point.pooled.times.severe_outliers / point.samples)
    if not severe:
        return None
    home = {(point.run, point.case): series for series in view.series for point in series.points}

    def line(point: Point) -> Line:
        times, series = point.pooled.times, home[point.run, point.case]
        counts = (
            f"{times.severe_outliers:,}",
            f"{point.samples:,}",
            format_duration(point.median),
            f"{times.max / point.median:.1f}",
        )
        return Line(
            (point.case.collective, series.name, format_size(point.size), *counts), series.meta
        )

    cases = [
        (home[p.run, p.case], p, view.record(p)) for p in severe[:500] if _has_samples(view, p)
    ][:STRIPS]
    sentences = [
        f"Samples farther than 3 interquartile ranges out: in {len(severe):,} of"
        f" {format_count(len(view.points), 'case')}. They are counted and kept: no sample is"
        " left out"
        " because of its value."
    ]
    caption = "Time of each sample over its case's median, of the cases with most outliers. "
    caption += "Of long cases, only some of the ordinary samples are drawn."
    caption += " Of several launches, the first is drawn." * any(
        p.launches > 1 for _, p, _ in cases
    )
    drawn = figures.draw_samples("outliers", "Samples in the order measured", caption, cases)
    heads = ("collective", "case", "size", "outliers", "samples", "median", "max / median")
    table = make_table(
        "outliers",
        "Cases with outliers",
        make_columns(heads, "ll"),
        severe,
        line,
        folded=True,
        what="cases",
    )
    return Section(
        name="outliers",
        title="Outliers",
        sentences=sentences,
        figures=[drawn] if cases else [],
        tables=[table],
        folded=True,
    )


_Pair = tuple[int, int]


def make_pairs(view: View) -> Section | None:
    """A matrix for each run and kind of case that was measured by pairs: what each pair reaches at
    its largest size; None where none was."""
    grouped: dict[tuple[int, Case, str, str], dict[_Pair, Point]] = {}
    for point in view.points:
        pair = _find_pair(point.case)
        if pair and point.busbw is not None:
            alike = msgspec.structs.replace(point.case, nbytes=0, root=-1, groups="", group=0, of=1)
            rule = re.split("[: ]", point.case.groups)[0]  # as many at once as can be, or alone
            peaks = grouped.setdefault((point.run, alike, name_mode(point), rule), {})
            if pair not in peaks or peaks[pair].size < point.size:
                peaks[pair] = point
    if not grouped:
        return None
    varying, _ = split_axes([case for _, case, *_ in grouped])
    rules = {rule for *_, rule in grouped}
    drawn_pairs = list(grouped.items())[:MATRICES]
    drawn = []
    for index, ((run, case, mode, rule), peaks) in enumerate(drawn_pairs):
        axes = word_axes(case)
        more = [axes[name] for name in varying if name not in ("collective", "implementation")]
        more += [rule] * (len(rules) > 1)
        kind = ", ".join(filter(None, [case.collective, case.label, mode, *more]))
        title = view.prefix_run(run, plain_line(f"busbw between pairs, {kind}"))
        drawn.append(_draw_pairs(view, f"pairs-{index}", title, list(peaks.items())))
    sentences = left_out(len(drawn_pairs), len(grouped), "matrices")
    return Section(name="pairs", title="Pairs", sentences=sentences, figures=drawn)


def _draw_pairs(view: View, name: str, title: str, peaks: Sequence[tuple[_Pair, Point]]) -> Figure:
    """A heat map of the rate between each pair of ranks."""
    case, run = peaks[0][1].case, peaks[0][1].run
    rate_of_pair = {pair: point.busbw for pair, point in peaks}
    if not case.row.one_way:  # both directions at once
        rate_of_pair |= {pair[::-1]: rate for pair, rate in rate_of_pair.items()}
    ranks = sorted({rank for pair in rate_of_pair for rank in pair})
    rates = [[rate_of_pair.get((a, b)) for b in ranks] for a in ranks]
    hosts = {info.rank: info.host for world in view.worlds[run].values() for info in world.ranks}
    several = len(set(hosts.values())) > 1
    names = [
        f"rank {rank} on {plain_line(hosts[rank])}" if several and rank in hosts else f"rank {rank}"
        for rank in ranks
    ]
    text = [[format_bandwidth(rate) if rate is not None else "-" for rate in row] for row in rates]
    matrix = figures.Matrix(
        x=names, y=names, z=rates, text=text, labels=("to", "from"), legend="GB/s", good=True
    )
    caption = f"busbw of {format_count(len(peaks), 'pair')} of ranks, each at its largest size."
    about = {"collective": case.collective, "backend": plain_line(case.backend)}
    return figures.draw_heatmap(name, title, caption, matrix, about)


def _find_pair(case: Case) -> _Pair | None:
    """The ranks of a case of one pair among several; where both send, the lower one first."""
    if case.n != 2 or not count_placed_ranks(case.groups):
        return None
    low, high = case.pair if case.row.one_way else sorted(case.pair)
    return low, high


def _share_lines(most: int, among: int) -> int:
    """Lines for each of several figures, few enough that their sum stays bounded."""
    return max(6, min(most, ALL // max(1, among)))


def _has_samples(view: View, point: Point) -> bool:
    return not point.predicted and len(view.record(point).times_ns) > 1


def _describe_peaks(series: Sequence[Series]) -> dict[str, str]:
    """The highest busbw and the lowest time of these curves, in words."""
    points = [
        (point, one_series) for one_series in series for point in one_series.points if point.size
    ]
    if not points:
        return {}
    least, quick = min(points, key=lambda pair: pair[0].median)
    most, wide = max(points, key=lambda pair: pair[0].busbw or 0.0)
    captions = {
        "time": (
            f"the lowest is {format_duration(least.median)} at {format_size(least.size)}"
            f" ({quick.name})"
        ),
        "busbw": (
            f"the highest is {format_bandwidth(most.busbw)} GB/s at {format_size(most.size)}"
            f" ({wide.name})"
        ),
    }
    lines = format_count(len(series), "line")
    return {name: f"{lines}; {what}." for name, what in captions.items()}
