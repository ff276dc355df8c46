"""Sections that judge: implementations against their link and the model, and where the fastest
changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from collbench.core import algorithms
from collbench.core.text import (
    format_count,
    format_duration,
    format_settings,
    format_size,
    plain_line,
)
from collbench.features.predict.efficiency import (
    PROBE,
    Constants,
    Crossing,
    Merit,
    Yardstick,
    find_crossings,
)
from collbench.records.points import Point, find_best
from collbench.show import figures
from collbench.show.document import Figure, Line, Section, Table
from collbench.show.views.series import (
    Series,
    View,
    choose_series,
    figure_name,
    filter_values,
    group_series,
    left_out,
    make_table,
    merge_groups,
)
from collbench.show.words import PLACES
from collbench.suite.policy import Policy

REMARKS = 8


COMPARED = 2000  # cases of which efficiency is worked out


LINES, ALL = 40, 120  # in a figure, and in a section


MANNER = (
    ("agg_iters", "-m {}"),
    ("blocking", "-z {}"),
    ("unalign", "-u {}"),
    ("pin", "--no-pin"),
    ("cache", "--cache {}"),
)


EFFICIENCIES = (  # a field of Merit, what it is called, and how to read it
    (
        "link",
        "link efficiency",
        "busbw over that of sendrecv; the dotted line is as good as sendrecv.",
    ),
    (
        "share",
        "bound efficiency",
        "The least possible time over that measured; surely above the dotted line is an error of"
        " measuring, and listed first below.",
    ),
)


Where = tuple[str, ...]


WHERE = ("collective", "ranks", "type", "mode")


OVER = 1.5  # of sendrecv's busbw: more is no merit of what reaches it


MEANT = (
    "Link efficiency: busbw over that of sendrecv at the same size, ranks, datatype and backend."
    " Bound efficiency: the time that no algorithm on point-to-point links beats, over the time"
    " measured. Model ratio: the time measured over that of the algorithm's own schedule on such"
    " links; a library's choice has none."
)


def make_efficiency(view: View) -> Section | None:
    """The three numbers of each case, and the constants they rest on; None where there is no
    collective to be set against its link."""
    series = [
        one
        for one in view.series
        if one.case.collective != PROBE and one.case.n > 1 and not one.case.subject
    ]
    if not series:
        return None
    stick = Yardstick(view.files, view.points)
    per_series = max(4, COMPARED // len(series))
    picked = choose_series(series, COMPARED // 4)
    merits = [
        (one, [stick.merit(point) for point in figures.thin_points(one.points, per_series)])
        for one in picked
    ]
    every = [merit for _, found in merits for merit in found]
    words = [
        *_list_missing(view, series, stick),
        *left_out(len(every), sum(len(one.points) for one in series), "cases worked out;"),
        *figures.describe_thinning(picked),
        *_list_alarms(view, every),
        *_faster_than_sendrecv(every),
    ]
    known = [merit for merit in every if merit.link is not None or merit.share is not None]
    if not known:
        return Section(name="efficiency", title="Efficiency", words=words)
    return Section(
        name="efficiency",
        title="Efficiency",
        words=words,
        figures=_draw_shares(view, merits),
        tables=[_merits_table(view, known), _links_table(view, stick.constants)],
        closing=[MEANT],
    )


def _merits_table(view: View, known: list[Merit]) -> Table:
    """A line per case, those that cannot be true first."""
    numbers = ("size", "time", "link", "bound", "of bound", "time / model")
    return make_table(
        "merits",
        "Efficiency",
        (*WHERE, "implementation", *numbers, "set by"),
        sorted(known, key=lambda merit: not merit.alarming),
        partial(_merit_line, view),
        align="lrlllrrrrrrl",
        what="cases",
        common=len(WHERE),
        folded=True,
        note=(
            "bound: the least time; of bound: its share of the time; set by: what makes the bound."
        ),
    )


def _links_table(view: View, found: Sequence[Constants]) -> Table:
    return make_table(
        "links",
        "Links",
        ("link", "from", "alpha", "1 / beta", "1 / gamma", "n½", "note"),
        found,
        partial(_link_line, view),
        align="llrrrrl",
        note=(
            "alpha: time of a message; 1 / beta: rate on the wire at its best; 1 / gamma: rate"
            " of reducing; n½: size at which both halves of a message's time are equal."
        ),
    )


def make_crossovers(view: View) -> Section | None:
    """Sizes at which the fastest implementation gives way to another; None where none does."""

    def place(point: Point, nbytes: int) -> tuple[object, ...]:
        return point.run, nbytes, msgspec.structs.replace(point.case, nbytes=0)

    first = [(w, w.size) for one in find_best(view.points) for w in (one.winner, *one.ties)]
    leading = {place(*one) for one in first}
    found = [
        one
        for one in find_crossings([one.points for one in view.series])
        if {place(one.before, one.low), place(one.after, one.high)} <= leading
    ]
    if not found:
        return None
    words = [
        "Where the fastest changes: the one is surely faster at the smaller size, the other at the"
        " larger. In between, times are read off straight lines between the medians, both axes"
        " logarithmic."
    ]
    found.sort(key=lambda one: (one.before.run, one.before.case.collective, one.size))

    heads = (*WHERE, "place", "faster below", "faster above", "between", "about")
    shown = make_table(
        "crossovers",
        "Crossovers",
        heads,
        found,
        partial(_crossing_line, view),
        align="lrllllll",
        what="crossovers",
        common=len(WHERE) + 1,
    )
    return Section(name="crossovers", title="Crossovers", words=words, tables=[shown])


def _filter_values(view: View, point: Point) -> Where:
    case = point.case
    env = f" {format_settings(case.env)}" if case.env else ""
    split = f" {case.splits}" if case.splits else ""
    name = view.titled(point.run, plain_line(f"{case.collective}{split}{env}"))
    return (
        name,
        format_count(case.n, "rank"),
        case.dtype if case.size else "",
        case.mode + (", predicted" if point.predicted else ""),
    )


def _describe_place(view: View, point: Point) -> str:
    name, ranks, kind, _ = _filter_values(view, point)
    return ", ".join(
        filter(
            None,
            [
                name,
                ranks,
                kind,
                PLACES["in" if point.case.in_place else "out"],
                format_size(point.size),
            ],
        )
    )


def _list_missing(view: View, series: Iterable[Series], stick: Yardstick) -> list[str]:
    """Remarks on links: which lack sendrecv and how to add it, or from which other run it was
    taken."""
    alone: dict[tuple[object, ...], list[Point]] = {}
    words: dict[str, None] = {}
    for one in series:
        case = one.case
        known = stick.link(one.points[0])
        name = f"{plain_line(case.backend)} on {case.n} ranks, {case.dtype}, {case.mode}"
        if known is None:
            imported = bool(view.files[one.run].run.imported)
            alone.setdefault((case.backend, case.n, case.dtype, case.mode, imported), []).extend(
                one.points
            )
        elif known.refused:
            words[
                f"The link of {name} could not be fitted to sendrecv: {plain_line(known.refused)}."
            ] = None
        elif known.source != one.run:
            words[
                f"{name}: sendrecv is that of run {view.labels[known.source]}, on the same machine."
            ] = None
        if known and known.note and case.row.reduces:
            words[f"{name}: {plain_line(known.note)}."] = None
    told = [_suggest_command(view, points) for points in alone.values()] + list(words)
    return [*told[:REMARKS], *left_out(min(REMARKS, len(told)), len(told), "such remarks")]


def _suggest_command(view: View, points: list[Point]) -> str:
    """The command that measures sendrecv beside these points, which have none."""
    run = view.files[points[0].run].run
    case, sizes = points[0].case, [point.case.nbytes for point in points if point.case.nbytes]
    own = all(
        point.case.algorithm != "native" for point in points
    )  # a transport without a sendrecv of its own
    command = [
        f"collbench sendrecv --backend {plain_line(case.backend)}",
        f"--algo {algorithms.list_algorithms(PROBE)[0].name}" if own else "",
        f"-g {case.n} -d {case.dtype} --mode {case.mode}",
        f"-b {min(sizes)} -e {max(sizes)}" if sizes else "",
    ]
    command += [
        option
        for name, option in MANNER
        if getattr(run.policy, name) != getattr(Policy(), name)
        for option in [option.format(getattr(run.policy, name))]
    ]
    where = f"{plain_line(case.backend)} on {case.n} ranks, {case.dtype}, {case.mode}"
    lacking = (
        f"sendrecv was not measured with {where}, in the same manner: without it there is no"
        " efficiency to tell. "
    )
    if run.imported:
        return lacking + "Put its test and the others into one log, and import that."
    return (
        f"{lacking}Measure it on the same machine ({' '.join(filter(None, command))}), and report"
        " both runs together."
    )


def _list_alarms(view: View, merits: list[Merit]) -> list[str]:
    """More than the bound allows is an error of measuring, unless the network itself reduces or
    copies."""
    bad = [merit for merit in merits if merit.alarming]
    if not bad:
        return []
    worst = max(bad, key=lambda merit: merit.share or 0.0)
    where = f"{_describe_place(view, worst.point)} ({plain_line(worst.point.case.label)})"
    return [
        f"Alarm: in {format_count(len(bad), 'case')}, surely less time than is possible over"
        " links as"
        f" sendrecv shows them; the worst reaches {worst.share:.0%} of the bound, at {where}."
        " Unless the network reduces or copies by itself, or ranks share memory, such times or"
        " those of sendrecv are wrong."
    ]


def _faster_than_sendrecv(merits: list[Merit]) -> list[str]:
    """Why a share of sendrecv's bandwidth can be far above 100 %."""
    number = sum((merit.link or 0.0) > OVER for merit in merits)
    if not number:
        return []
    return [
        f"In {format_count(number, 'case')} link efficiency is above {OVER:.0%}: there sendrecv"
        " itself"
        " is slow or disturbed (see its flags), and the figure says nothing about the link."
    ]


def _merit_line(view: View, merit: Merit) -> Line:
    point = merit.point
    cells = (
        *_filter_values(view, point),
        plain_line(point.case.label) + (" in place" if point.case.in_place else ""),
        format_size(point.size),
        format_duration(point.median),
        _format_share(merit.link),
        format_duration(merit.bound),
        _format_share(merit.share),
        "-" if merit.model is None else f"{merit.model:.2f}",
        merit.limit or "-",
    )
    return Line(cells, filter_values(point.case), "bad" if merit.alarming else "")


def _format_share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}" if value >= 0.095 else f"{value:.1%}"


def _link_line(view: View, found: Constants) -> Line:
    case = found.probe
    about = {"backend": plain_line(found.backend), "dtype": found.dtype, "ranks": str(found.ranks)}
    name = f"{plain_line(found.backend)}, {found.ranks} ranks, {found.dtype}, {found.mode}"
    source = f"{view.titled(found.source, 'sendrecv')} {plain_line(case.label)}"
    if found.alpha is None or found.beta is None:
        return Line((name, source, "-", "-", "-", "-", plain_line(found.refused)), about, "notice")
    cells = (
        format_duration(found.alpha),
        f"{1 / found.beta:.3g} GB/s",
        f"{1 / found.gamma:.3g} GB/s" if found.gamma else "-",
        format_size(found.alpha / found.beta),
        plain_line(found.note),
    )
    return Line((name, source, *cells), about)


def _draw_shares(view: View, merits: list[tuple[Series, list[Merit]]]) -> list[Figure]:
    """Link and bound efficiency against size, a figure each as ``merge_groups`` has it."""
    by_line = {(one.run, one.case, one.points[0].predicted): found for one, found in merits}
    grouped = merge_groups(group_series(one for one, _ in merits))
    drawn = []
    for which, series in grouped.items():
        for name, title, words in EFFICIENCIES:
            lines = []
            for one in choose_series(series, max(6, min(LINES, ALL // len(grouped)))):
                values = [
                    (m.point, v)
                    for m in by_line[one.run, one.case, one.points[0].predicted]
                    if (v := getattr(m, name)) is not None and m.point.size
                ]
                lines += [(one, figures.thin_points(values))] if values else []
            if lines:
                whole = f"{which}: {title}"
                drawn.append(
                    figures.draw_shares(f"{figure_name(which)}-{name}", whole, words, title, lines)
                )
    return drawn


def _crossing_line(view: View, one: Crossing) -> Line:
    before, after = one.before.case, one.after.case
    cells = (
        *_filter_values(view, one.before),
        "in" if before.in_place else "out",
        plain_line(before.label),
        plain_line(after.label),
        f"{format_size(one.low)} … {format_size(one.high)}",
        format_size(one.size),
    )
    about = {
        name: value
        for name, value in filter_values(before).items()
        if name != "backend" or after.backend == before.backend
    }
    return Line(cells, about)
