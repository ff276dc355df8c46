"""Sections of what was measured: curves, distributions, outliers, pairs."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from collbench.core.groups import count_placed_ranks
from collbench.core.text import (
    format_bandwidth,
    format_count,
    format_duration,
    format_size,
    plain_line,
)
from collbench.records.columns import BOUNDING
from collbench.records.flags import EXCLUDED, list_doubts
from collbench.records.points import Point, find_best
from collbench.records.rows import MEASURED
from collbench.records.types import Record
from collbench.show import figures
from collbench.show.document import Figure, Line, Section, Table
from collbench.show.views import summary as summing
from collbench.show.views.series import (
    Series,
    View,
    choose_series,
    figure_name,
    group_series,
    left_out,
    make_table,
    merge_groups,
    name_mode,
    plus_minus,
)
from collbench.show.words import OPTIONAL, format_optional

CURVES, CDFS = 60, 12  # lines in a figure


ALL = 120  # lines in a section's figures of one kind


MATRICES, STRIPS = 6, 6


BUSBW = (
    "busbw is the traffic of the busiest link per second, so that collectives and rank counts can"
    " be compared. Both axes are logarithmic."
)


HOLLOW = "A hollow marker is a case in doubt: its flags say why."


PAIR = re.compile(r"\bpair (\d+)-(\d+)\b")


def draw_best(view: View) -> list[Figure]:
    """Time against size in each mode, to stand beside the table of what is best at each size there;
    none where a mode takes several figures."""
    modes = {name_mode(one.winner) for one in find_best(view.points)}
    found = {
        title: series
        for title, series in _swept_series(view).items()
        if title.partition(", ")[2] in modes
    }
    if len(found) != len(modes):
        return []
    drawn = [one for title, series in found.items() for one in _draw_curves(title, series, CURVES)]
    return [one for one in drawn if one.name.endswith("-time")]


def _swept_series(view: View) -> dict[str, list[Series]]:
    """Series of several sizes, by the title of the figures that they stand in."""
    found = merge_groups(group_series(one for one in view.series if not one.case.subject))
    return {
        title: series
        for title, series in found.items()
        if len({point.size for one in series for point in one.points}) > 1
    }


def _draw_curves(title: str, series: Sequence[Series], most: int) -> list[Figure]:
    shown = choose_series(series, most)
    return figures.draw_curves(figure_name(title), title, _describe_peaks(shown), shown)


def make_bandwidths(view: View) -> Section:
    """busbw and time against size: a figure each for every collective and mode, or for all
    collectives of a mode where there is one implementation. What has one size, as steps have,
    stands in the table alone."""
    found = _swept_series(view)
    drawn: list[Figure] = []
    words = figures.describe_thinning(view.series)
    origins = _explain_origins(view.points)
    closing = [
        *summing.describe_traffic(view),
        *(f"{told}." for told in summing.describe_modes(view)),
    ]
    most = _share_lines(CURVES, len(found))
    beside = draw_best(view)
    for title, series in found.items():
        words += [
            f"{title}: {line}" for line in left_out(min(most, len(series)), len(series), "lines")
        ]
        drawn += [one for one in _draw_curves(title, series, most) if one not in beside]
    if drawn:
        hollow = any(list_doubts(point) for one in view.series for point in one.points)
        closing = [*origins, BUSBW, *[HOLLOW] * hollow, *closing]
    else:
        words = origins or ["Nothing was measured."]
    points = [(one, point) for one in view.series for point in one.points]
    return Section(
        name="bandwidth",
        title="Bandwidth and time",
        words=words,
        figures=drawn,
        tables=[_times_table(points, folded=bool(drawn))] if points else [],
        closing=closing,
    )


def _times_table(points: Sequence[tuple[Series, Point]], folded: bool) -> Table:
    told = [format_optional(point.first, point.case.mode) for _, point in points]
    names = [name for name in OPTIONAL if any(one[name] for one in told)]
    more = [f"{name}, GB/s" if name.endswith("bw") else name for name in names]
    figures = ("size", "time", "±", "algbw, GB/s", "busbw, GB/s")
    return make_table(
        "times",
        "Times and bandwidths",
        ("collective", "mode", "case", *figures, *more, "flags"),
        points,
        partial(_time_line, names),
        align="lllrrrrr" + "".join("l" if name == "ran" else "r" for name in names) + "l",
        folded=folded,
        common=2,
    )


def _explain_origins(points: Sequence[Point]) -> list[str]:
    """Sentences on where times come from: medians over samples, or another tool's figures."""
    words = []
    if any(not point.over and not point.predicted for point in points):
        words.append(
            "Times are medians over samples, each that of its slowest rank; a band is their 95 %"
            " interval."
        )
    kinds = list(dict.fromkeys(point.over for point in points if point.over))
    return words + (
        [f"Imported times are what the tool printed: {'; '.join(kinds)}."] if kinds else []
    )


def _time_line(names: Sequence[str], item: tuple[Series, Point]) -> Line:
    one, point = item
    rates = (
        (format_bandwidth(point.algbw), format_bandwidth(point.busbw)) if point.size else ("-", "-")
    )
    told = format_optional(point.first, point.case.mode)
    cells = (
        point.case.collective,
        point.case.mode,
        one.name,
        format_size(point.size) if point.size else "-",
        format_duration(point.median),
        plus_minus(point),
        *rates,
        *(told[name] for name in names),
        " ".join(point.flags),
    )
    return Line(cells, one.meta)


def make_distributions(view: View) -> Section | None:
    """Spread of samples: their cumulative share at a few sizes; None where no case has samples of
    its own."""
    found = {
        key: series
        for key, series in group_series(view.series).items()
        if any(_has_samples(view, point) for one in series for point in one.points)
    }
    drawn = [
        figure for title, series in found.items() for figure in _draw_spread(view, title, series)
    ]
    if not drawn:
        return None
    known = [point for point in view.points if not point.predicted]
    short = sum(point.first.times.p95 is None for point in known)
    words = [
        "Samples of each case's first launch, at a few sizes, of the fastest implementations and of"
        f" libraries. p95 takes {BOUNDING['p95']} samples and p99 {BOUNDING['p99']}: {short:,} of"
        f" {format_count(len(known), 'case')}"
        " have too few even for p95.",
    ]
    batches = dict.fromkeys(
        p.case.mode for p in known if _has_samples(view, p) and view.record(p).inner > 1
    )
    if batches:
        words.append(
            f"{', '.join(batches)}: a sample may be the mean of several calls, and then its tails"
            " are not those of single calls."
        )
    return Section(
        name="distribution", title="Distribution", words=words, figures=drawn, folded=True
    )


def _draw_spread(view: View, title: str, series: Sequence[Series]) -> list[Figure]:
    sizes = sorted({point.size for one in series for point in one.points})
    picked = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})
    outside = [one for one in series if not one.case.in_place]  # in place, samples spread alike
    few = _select_fastest(outside or series, max(2, CDFS // len(picked)))
    cases = [
        (one, point, view.record(point))
        for at in picked
        for one in few
        for point in one.points
        if point.size == at and _has_samples(view, point)
    ]
    if not cases:
        return []
    at = " at " + ", ".join(format_size(at) for at in picked) if picked[-1] else ""
    words = (
        f"Share of samples that took no longer than a time{at}, for"
        f" {format_count(len(cases), 'case')}."
    )
    return [
        figures.draw_distribution(
            f"{figure_name(title)}-cdf", f"{title}: how samples spread", words, cases
        )
    ]


def _select_fastest(series: Sequence[Series], most: int) -> list[Series]:
    """Libraries, then those that are the fastest over all their sizes."""

    def merit(one: Series) -> tuple[bool, float]:
        mean = sum(math.log(point.median or 1.0) for point in one.points) / len(one.points)
        return one.case.algorithm != "native", mean

    kept = sorted(series, key=merit)[:most]
    return [one for one in series if one in kept]


def make_outliers(view: View) -> Section | None:
    """The cases with the largest share of samples far out, sample by sample; None where there are
    none."""
    severe = [point for point in view.points if point.first.times.severe_outliers]
    severe.sort(key=lambda point: -point.first.times.severe_outliers / point.first.times.samples)
    if not severe:
        return None
    home = {(point.run, point.case): one for one in view.series for point in one.points}

    def line(point: Point) -> Line:
        row, one = point.first, home[point.run, point.case]
        counts = (
            f"{row.times.severe_outliers:,}",
            f"{row.times.samples:,}",
            format_duration(row.times.median),
            f"{row.times.max / row.times.median:.1f}",
        )
        return Line((point.case.collective, one.name, format_size(point.size), *counts), one.meta)

    cases = [
        (home[p.run, p.case], p, view.record(p)) for p in severe[:500] if _has_samples(view, p)
    ][:STRIPS]
    words = [
        f"Samples farther than 3 interquartile ranges out: in {len(severe):,} of"
        f" {format_count(len(view.points), 'case')}. They are counted and kept: no sample is"
        " left out"
        " because of its value."
    ]
    told = "Time of each sample over its case's median, of the cases with most outliers. "
    told += "Of long cases, only some of the ordinary samples are drawn."
    drawn = figures.draw_samples("outliers", "Samples in the order measured", told, cases)
    heads = ("collective", "case", "size", "outliers", "samples", "median", "max / median")
    shown = make_table(
        "outliers",
        "Cases with outliers",
        heads,
        severe,
        line,
        align="ll",
        folded=True,
        what="cases",
    )
    return Section(
        name="outliers",
        title="Outliers",
        words=words,
        figures=[drawn] if cases else [],
        tables=[shown],
        folded=True,
    )


def make_pairs(view: View) -> Section | None:
    """A matrix for each run, collective, mode and backend that was measured by pairs: what each
    pair reaches at its largest size; None where none was."""
    grouped: dict[tuple[int, str, str, str], dict[tuple[int, int], tuple[int, float]]] = (
        defaultdict(dict)
    )
    for run, file in enumerate(view.files):
        for record, row in zip(file.records, view.derived[run], strict=True):
            pair, case = pair_of(record), record.case
            if record.status not in MEASURED or (row and EXCLUDED.keys() & row.flags):
                continue
            if pair and row and row.busbw is not None:
                peaks = grouped[run, case.collective, case.mode, case.backend]
                peaks[pair] = max(peaks.get(pair, (-1, 0.0)), (case.size, row.busbw))
                if (
                    count_placed_ranks(case.groups) and not case.row.one_way
                ):  # both directions at once
                    peaks[pair[::-1]] = peaks[pair]
    if not grouped:
        return None
    shown = list(grouped.items())[:MATRICES]
    drawn = [_draw_pairs(view, place, *item) for place, item in enumerate(shown)]
    words = left_out(len(shown), len(grouped), "matrices")
    return Section(name="pairs", title="Pairs", words=words, figures=drawn)


def _draw_pairs(
    view: View,
    place: int,
    key: tuple[int, str, str, str],
    found: dict[tuple[int, int], tuple[int, float]],
) -> Figure:
    run, collective, mode, backend = key
    ranks = sorted({rank for pair in found for rank in pair})
    rates = [[found[a, b][1] if (a, b) in found else None for b in ranks] for a in ranks]
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
    words = f"busbw of {format_count(len(found), 'pair')} of ranks, each at its largest size."
    title = view.titled(run, f"busbw between pairs, {collective}, {plain_line(backend)}, {mode}")
    about = {"collective": collective, "backend": plain_line(backend)}
    return figures.draw_heatmap(f"pairs-{place}", title, words, matrix, about)


def pair_of(record: Record) -> tuple[int, int] | None:
    """The ranks between which a record was measured: its pair's, else as its note or its splits
    say: ``pair I-J``."""
    if record.case.n == 2 and count_placed_ranks(record.case.groups):
        return record.case.pair
    match = PAIR.search(record.note) or PAIR.search(record.case.splits)
    return (int(match[1]), int(match[2])) if match else None


def _share_lines(most: int, among: int) -> int:
    """Lines for each of several figures, few enough that their sum stays bounded."""
    return max(6, min(most, ALL // max(1, among)))


def _has_samples(view: View, point: Point) -> bool:
    return not point.predicted and len(view.record(point).times_ns) > 1


def _describe_peaks(series: Sequence[Series]) -> dict[str, str]:
    """The highest busbw and the lowest time of these curves, in words."""
    points = [(point, one) for one in series for point in one.points if point.size]
    if not points:
        return {}
    least, quick = min(points, key=lambda pair: pair[0].median)
    most, wide = max(points, key=lambda pair: pair[0].busbw or 0.0)
    words = {
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
    return {name: f"{lines}; {what}." for name, what in words.items()}
