"""Sections that judge: implementations against their link and the model, and where the fastest
changes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from collbench.core import algorithms
from collbench.core.groups import MEETING
from collbench.core.paths import VARIABLE as PATH
from collbench.core.paths import find_path, strip_preset
from collbench.core.text import (
    format_count,
    format_duration,
    format_settings,
    format_size,
    plain_line,
)
from collbench.features.predict import fit
from collbench.features.predict.efficiency import (
    PROBE,
    Constants,
    Crossing,
    Merit,
    Yardstick,
    find_crossings,
)
from collbench.records.points import Point
from collbench.records.types import Run
from collbench.show import figure_style, figures
from collbench.show.document import Cell, Figure, Line, Section, Table, code_text, make_columns
from collbench.show.views.series import (
    Series,
    View,
    choose_series,
    filter_values,
    group_series,
    left_out,
    make_table,
    merge_groups,
    name_figure,
)
from collbench.show.words import PLACES
from collbench.suite.case import Case
from collbench.suite.grammar import sweep_sizes
from collbench.suite.policy import Policy

REMARKS, SIZES = 8, 6  # and sizes that one names

COMPARED = 2000  # cases of which efficiency is worked out

LINES, ALL = 40, 120  # in a figure, and in a section

MANNER = (
    ("agg_iters", "-m {}"),
    ("blocking", "-z {}"),
    ("unalign", "-u {}"),
    ("pin", "--no-pin"),
    ("register", "-R {}"),
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
        row_series
        for row_series in view.series
        if row_series.case.collective != PROBE
        and row_series.case.n > 1
        and not row_series.case.subject
        and not row_series.case.arrival  # whose times leave out what was done before the last came
    ]
    if not series:
        return None
    stick = Yardstick(view.files, view.points)
    per_series = max(4, COMPARED // len(series))
    picked = choose_series(series, COMPARED // 4)
    merits = [
        (
            row_series,
            [
                stick.merit(point)
                for point in figure_style.thin_points(row_series.points, per_series)
            ],
        )
        for row_series in picked
    ]
    every = [merit for _, series_merits in merits for merit in series_merits]
    sentences: list[Cell] = [
        *_list_missing(view, series, stick),
        *left_out(
            len(every), sum(len(row_series.points) for row_series in series), "cases worked out;"
        ),
        *figures.describe_thinning(picked),
        *_list_alarms(view, every),
        *_faster_than_sendrecv(every),
    ]
    judged_merits = [merit for merit in every if merit.link is not None or merit.share is not None]
    if not judged_merits:
        return Section(name="efficiency", title="Efficiency", sentences=sentences)
    return Section(
        name="efficiency",
        title="Efficiency",
        sentences=sentences,
        figures=_draw_shares(merits),
        tables=[_merits_table(view, judged_merits), _links_table(view, stick.constants)],
        closing=[MEANT],
    )


def _merits_table(view: View, judged_merits: list[Merit]) -> Table:
    """A line per case, those that cannot be true first."""
    numbers = ("size", "time", "link", "bound", "of bound", "time / model")
    return make_table(
        "merits",
        "Efficiency",
        make_columns((*WHERE, "implementation", *numbers, "set by"), "lrlllrrrrrrl"),
        sorted(judged_merits, key=lambda merit: not merit.alarming),
        partial(_merit_line, view),
        what="cases",
        common=len(WHERE),
        folded=True,
        note=(
            "bound: the least time; of bound: its share of the time; set by: what makes the bound."
        ),
    )


def _links_table(view: View, constants: Sequence[Constants]) -> Table:
    return make_table(
        "links",
        "Links",
        make_columns(("link", "from", "alpha", "1 / beta", "1 / gamma", "n½", "note"), "llrrrrl"),
        constants,
        partial(_link_line, view),
        note=(
            "alpha: time of a message; 1 / beta: rate on the wire at its best; 1 / gamma: rate"
            " of reducing; n½: size at which both halves of a message's time are equal."
        ),
    )


def make_crossovers(view: View) -> Section | None:
    """Sizes at which the fastest implementation gives way to another; None where none does."""

    def identify_point(point: Point, nbytes: int) -> tuple[object, ...]:
        return point.run, nbytes, msgspec.structs.replace(point.case, nbytes=0)

    first = [(w, w.size) for best in view.best for w in (best.winner, *best.ties)]
    leading = {identify_point(*best) for best in first}
    crossings = [
        crossing
        for crossing in find_crossings([series.points for series in view.series])
        if {
            identify_point(crossing.before, crossing.low),
            identify_point(crossing.after, crossing.high),
        }
        <= leading
    ]
    if not crossings:
        return None
    sentences = [
        "Where the fastest changes: the one is surely faster at the smaller size, the other at the"
        " larger. In between, times are read off straight lines between the medians, both axes"
        " logarithmic."
    ]
    crossings.sort(
        key=lambda crossing: (crossing.before.run, crossing.before.case.collective, crossing.size)
    )

    heads = (*WHERE, "place", "faster below", "faster above", "between", "about")
    table = make_table(
        "crossovers",
        "Crossovers",
        make_columns(heads, "lrllllll"),
        crossings,
        partial(_crossing_line, view),
        what="crossovers",
        common=len(WHERE) + 1,
    )
    return Section(name="crossovers", title="Crossovers", sentences=sentences, tables=[table])


def _filter_values(view: View, point: Point) -> Where:
    case = point.case
    env = f" {format_settings(case.env)}" if case.env else ""
    split = f" {case.splits}" if case.splits else ""
    name = view.prefix_run(point.run, plain_line(f"{case.collective}{split}{env}"))
    return (
        name,
        format_count(case.n, "rank"),
        case.dtype if case.size else "",
        case.mode + (", predicted" if point.predicted else ""),
    )


def _describe_place(view: View, point: Point) -> str:
    """A phrase for the point: operation, ranks, datatype, in or out of place, and size."""
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


def _list_missing(view: View, series: Iterable[Series], stick: Yardstick) -> list[Cell]:
    """Remarks on links: which lack sendrecv, throughout or at some sizes, and how to add it, or
    from which other run it was taken."""
    alone: dict[tuple[object, ...], list[Point]] = {}
    notes: dict[str, None] = {}
    for row_series in series:
        case = row_series.case
        link = stick.link(row_series.points[0])
        name = _describe_wires(case)
        if missing := [
            point
            for point in row_series.points
            if link is None or (point.busbw is not None and stick.probe(point) is None)
        ]:
            imported = bool(view.files[row_series.run].run.imported)
            # a command measures all groups at once
            wires = fit.wire_key(msgspec.structs.replace(case, group=0))
            alone.setdefault((*wires, case.n, imported, link is None), []).extend(missing)
        if link is None:
            continue
        if link.refused:
            notes[
                f"The link of {name} could not be fitted to sendrecv: {plain_line(link.refused)}."
            ] = None
        elif link.source != row_series.run:
            notes[
                f"{name}: sendrecv is that of run {view.labels[link.source]}, on the same machine."
            ] = None
        if link.note and case.row.reduces:
            notes[f"{name}: {plain_line(link.note)}."] = None
    commands = [_suggest_command(view, points, key[-1] is True) for key, points in alone.items()]
    sentences = [*commands, *notes]
    return [
        *sentences[:REMARKS],
        *left_out(min(REMARKS, len(sentences)), len(sentences), "such remarks"),
    ]


def _describe_wires(case: Case) -> str:
    """A phrase for what cases over the same wires have in common (fit.wire_key)."""
    parts = [
        f"{case.backend} on {case.n} ranks",
        case.dtype,
        case.mode,
        format_settings(case.env),
        f"in groups by {case.groups}" if case.groups else "",
        f"beside {case.background}" if case.background else "",
    ]
    return plain_line(", ".join(filter(None, parts)))


def _suggest_command(view: View, points: list[Point], is_alone: bool) -> Cell:
    """The command that measures sendrecv beside these points, which have none of their sizes; nor,
    if ``is_alone``, of others."""
    run = view.files[points[0].run].run
    sizes = [format_size(size) for size in sorted({point.case.nbytes for point in points})]
    where, without, runs = ", in the same manner", "no efficiency to tell", "both"
    if not is_alone:
        more = f" and {len(sizes) - SIZES:,} more sizes" if len(sizes) > SIZES else ""
        where = f" at {', '.join(sizes[:SIZES])}{more}"
        without, runs = "no link efficiency there", "all"
    lacking = (
        f"sendrecv was not measured with {_describe_wires(points[0].case)}{where}:"
        f" without it there is {without}. "
    )
    if run.imported:
        return lacking + "Put its test and the others into one log, and import that."
    command = _format_command(run, points)
    if not command:
        return lacking + "Measure it in the same run."
    line = code_text(command)
    return (
        f"{lacking}Measure it on the same machine (" + line + f"), and report {runs} runs together."
    )


def _format_command(run: Run, points: list[Point]) -> str:
    """The command that measures sendrecv over the wires of points of a run; empty where there is
    none: groups of named ranks are no rule, and commas in --env part values."""
    case, sizes = points[0].case, [point.case.nbytes for point in points if point.case.nbytes]
    path = find_path(case.env)
    settings = [(key, value) for key, value in strip_preset(case.env) if key != PATH]
    meeting = MEETING.fullmatch(case.groups)
    rule = case.groups.partition(" ")[0] if meeting else case.groups
    if " " in rule or any("," in value for _, value in settings):
        return ""
    # a path's settings are those of all backends of the run
    backends = run.suite.values("backends") if path else (case.backend,)
    # a transport without a sendrecv of its own
    is_scheduled = all(point.case.algorithm != "native" for point in points)
    command = [
        f"collbench sendrecv --backend {','.join(backends)}",
        f"--algo {algorithms.list_algorithms(PROBE)[0].name}" if is_scheduled else "",
        f"-g {case.world} -d {case.dtype} --mode {case.mode}",
        _select_sizes(sizes) if sizes else "",
        *(f"--env {shlex.quote(f'{name}={value}')}" for name, value in settings),
        f"--path {shlex.quote(path)}" if path else "",
        f"--split {shlex.quote(rule)}" if rule else "",
        f"--background {shlex.quote(case.background)}" if case.background else "",
    ]
    command += [
        option.format(getattr(run.policy, name))
        for name, option in MANNER
        if getattr(run.policy, name) != getattr(Policy(), name)
    ]
    return plain_line(" ".join(filter(None, command)))


def _select_sizes(sizes: Iterable[int]) -> str:
    """The options that measure all these sizes: a sweep that doubles if it comes to each, else a
    list."""
    listed = sorted({*sizes})
    if {*listed} <= {*sweep_sizes(listed[0], listed[-1])}:
        return f"-b {listed[0]} -e {listed[-1]}"
    return f"--sizes {','.join(map(str, listed))}"


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


def _link_line(view: View, constants: Constants) -> Line:
    case = constants.probe
    about = {
        "backend": plain_line(constants.backend),
        "dtype": constants.dtype,
        "ranks": str(constants.ranks),
    }
    backend = plain_line(constants.backend)
    name = f"{backend}, {constants.ranks} ranks, {constants.dtype}, {constants.mode}"
    source = f"{view.prefix_run(constants.source, 'sendrecv')} {plain_line(case.label)}"
    if constants.alpha is None or constants.beta is None:
        return Line(
            (name, source, "-", "-", "-", "-", plain_line(constants.refused)), about, "notice"
        )
    cells = (
        format_duration(constants.alpha),
        f"{1 / constants.beta:.3g} GB/s",
        f"{1 / constants.gamma:.3g} GB/s" if constants.gamma else "-",
        format_size(constants.alpha / constants.beta),
        plain_line(constants.note),
    )
    return Line((name, source, *cells), about)


def _draw_shares(merits: list[tuple[Series, list[Merit]]]) -> list[Figure]:
    """Link and bound efficiency against size, a figure each as ``merge_groups`` has it."""
    by_line = {
        (row_series.run, row_series.case, row_series.points[0].predicted): series_merits
        for row_series, series_merits in merits
    }
    grouped = merge_groups(group_series(row_series for row_series, _ in merits))
    drawn = []
    for which, series in grouped.items():
        for name, title, meaning in EFFICIENCIES:
            lines = []
            for row_series in choose_series(series, max(6, min(LINES, ALL // len(grouped)))):
                values = [
                    (m.point, v)
                    for m in by_line[
                        row_series.run, row_series.case, row_series.points[0].predicted
                    ]
                    if (v := getattr(m, name)) is not None and m.point.size
                ]
                lines += [(row_series, figure_style.thin_points(values))] if values else []
            if lines:
                full_title = f"{which}: {title}"
                drawn.append(
                    figures.draw_shares(
                        f"{name_figure(which)}-{name}", full_title, meaning, title, lines
                    )
                )
    return drawn


def _crossing_line(view: View, crossing: Crossing) -> Line:
    before, after = crossing.before.case, crossing.after.case
    cells = (
        *_filter_values(view, crossing.before),
        "in" if before.in_place else "out",
        plain_line(before.label),
        plain_line(after.label),
        f"{format_size(crossing.low)} … {format_size(crossing.high)}",
        format_size(crossing.size),
    )
    about = {
        name: value
        for name, value in filter_values(before).items()
        if name != "backend" or after.backend == before.backend
    }
    return Line(cells, about)
