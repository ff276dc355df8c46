"""Sections that judge: implementations against each other, the link and the model, and where they
change places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from collbench.core import algorithms
from collbench.core.text import counted, duration, plain, settings, size
from collbench.judge.efficiency import (
    PROBE,
    Best,
    Constants,
    Crossing,
    Merit,
    Point,
    Yardstick,
    best,
    crossings,
)
from collbench.show import figures
from collbench.show.document import Figure, Line, Section, Table
from collbench.show.views.series import (
    Series,
    View,
    chosen,
    groups,
    left_out,
    meta,
    named,
    plus_minus,
    table,
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


Where = tuple[str, ...]


WHERE = ("collective", "ranks", "type", "mode")


def implementations(view: View) -> Section:
    """The fastest at each size where there is a choice."""
    found = best(view.points)
    if not found:
        return Section(
            name="implementations",
            title="Implementations",
            words=[
                (
                    "Each case was measured with one implementation only: there is nothing to"
                    " choose from. --algo native,ring adds a reference algorithm beside the"
                    " library's own choice."
                ),
            ],
        )
    crowded = len(found) > 500
    if crowded:
        found.sort(key=lambda one: -(one.gain or 0.0) if one.clear else 0.0)
    words = [
        f"With several implementations: {counted(len(found), 'case')}.",
        *_libraries(view, found),
    ]
    if any(one.library and one.library.case.backend != one.winner.case.backend for one in found):
        words.append(
            "Some of these are on different backends: what sets them apart may be the transport."
        )
    winners = Counter(one.winner.case.label for one in found)
    words.append(
        "Lowest time: "
        + ", ".join(f"{plain(name)} in {times:,}" for name, times in winners.most_common(8))
        + "."
    )
    heads = (*WHERE, "place", "size", "best", "time", "", "library", "which")

    note = "=: as good as the best, since intervals overlap; ?: not known, for want of an interval."
    note += " Largest gains first." if crowded else ""
    shown = table(
        "best",
        "Best at each size",
        heads,
        found,
        partial(_best_line, view),
        align="lrlllrlrrrl",
        note=note,
    )
    return Section(name="implementations", title="Implementations", words=words, tables=[shown])


def _libraries(view: View, found: list[Best]) -> list[str]:
    """Sentences on each library's own choice beside reference algorithms."""
    words = [] if any(one.library for one in found) else ["No library's own choice is among them."]
    by_library: dict[str, list[Best]] = {}
    for one in found:
        if one.library and one.reference:
            by_library.setdefault(plain(one.library.case.label), []).append(one)
    for name, mine in by_library.items():
        clear = [one for one in mine if one.clear]
        ahead = sum(one.winner is one.library and not one.ties and not one.unknown for one in mine)
        open_ = sum(
            bool(one.unknown) and (one.winner is one.library or one.library in one.unknown)
            for one in mine
        )
        words.append(
            f"Of {counted(len(mine), 'case')} with reference algorithms beside what {name} chooses"
            f" itself, {name} is surely the fastest in {ahead:,}, another is surely faster in"
            f" {len(clear):,}, intervals overlap in {len(mine) - ahead - len(clear) - open_:,}, and"
            f" in {open_:,} it is not known."
        )
        if clear:
            most = max(clear, key=lambda one: one.gain or 0.0)
            words.append(f"Beside the best, {_gain(most)} at {_place(view, most.winner)}.")
    return words


def efficiency(view: View) -> Section:
    """The three numbers of each case, and the constants they rest on."""
    series = [one for one in view.series if one.case.collective != PROBE and one.case.n > 1]
    if not series:
        return Section(
            name="efficiency",
            title="Efficiency",
            words=[
                "There is no collective here to be set against its link: nothing but sendrecv, or"
                " one rank only."
            ],
        )
    stick = Yardstick(view.files, view.points)
    per_series = max(4, COMPARED // len(series))
    picked = chosen(series, COMPARED // 4)
    merits = [
        (one, [stick.merit(point) for point in figures.thinned(one.points, per_series)])
        for one in picked
    ]
    every = [merit for _, found in merits for merit in found]
    words = [
        (
            "Link efficiency: busbw over that of sendrecv at the same size, ranks, datatype and"
            " backend. Bound efficiency: the time that no algorithm on point-to-point links beats,"
            " over the time measured. Model ratio: the time measured over that of the algorithm's"
            " own schedule on such links; a library's choice has none."
        ),
        *_missing(view, series, stick),
        *left_out(len(every), sum(len(one.points) for one in series), "cases worked out;"),
        *figures.dropped(picked),
        *_alarms(view, every),
    ]
    known = [merit for merit in every if merit.link is not None or merit.share is not None]
    if not known:
        return Section(name="efficiency", title="Efficiency", words=words)
    return Section(
        name="efficiency",
        title="Efficiency",
        words=words,
        figures=_shares(view, merits),
        tables=[_merits(view, known), _links(view, stick.constants)],
    )


def _merits(view: View, known: list[Merit]) -> Table:
    """A line per case, those that cannot be true first."""
    numbers = ("size", "time", "link", "bound", "of bound", "time / model")
    return table(
        "merits",
        "Efficiency",
        (*WHERE, "implementation", *numbers, "set by"),
        sorted(known, key=lambda merit: not merit.alarming),
        partial(_merit_line, view),
        align="lrlllrrrrrrl",
        what="cases",
        note=(
            "bound: the least time; of bound: its share of the time; set by: what makes the bound."
        ),
    )


def _links(view: View, found: Sequence[Constants]) -> Table:
    return table(
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


def crossovers(view: View) -> Section:
    """Sizes at which one implementation gives way to another."""
    found = crossings([one.points for one in view.series])
    words = [
        "Where two implementations surely change places: with intervals apart on both sides. The"
        " size at which both take as long is read off straight lines between the medians, both axes"
        " logarithmic."
    ]
    if not found:
        return Section(
            name="crossovers",
            title="Crossovers",
            words=["No two implementations surely change places at these sizes."],
        )
    found.sort(
        key=lambda one: (
            "native" not in (one.before.case.algorithm, one.after.case.algorithm),
            one.size,
        )
    )

    heads = (*WHERE, "place", "faster below", "faster above", "between", "about")
    note = "Those that the library's own choice takes part in come first."
    shown = table(
        "crossovers",
        "Crossovers",
        heads,
        found,
        partial(_crossing_line, view),
        align="lrllllll",
        note=note,
        what="crossovers",
    )
    return Section(name="crossovers", title="Crossovers", words=words, tables=[shown])


def _where(view: View, point: Point) -> Where:
    case = point.case
    env = f" {settings(case.env)}" if case.env else ""
    split = f" {case.splits}" if case.splits else ""
    name = view.titled(point.run, plain(f"{case.collective}{split}{env}"))
    return (
        name,
        str(case.n),
        case.dtype if case.size else "",
        case.mode + (", predicted" if point.predicted else ""),
    )


def _place(view: View, point: Point) -> str:
    name, ranks, kind, _ = _where(view, point)
    return ", ".join(
        filter(
            None,
            [
                name,
                counted(int(ranks), "rank"),
                kind,
                PLACES["in" if point.case.in_place else "out"],
                size(point.size),
            ],
        )
    )


def _gain(one: Best) -> str:
    if one.library is None or one.gain is None:
        return "not measured"
    name = plain(one.library.case.label)
    if one.library is one.winner:
        return f"{name} is the best" + (
            " (tie)" if one.ties else " (not sure)" if one.unknown else ""
        )
    times = f"{one.gain + 1:,.0f}" if one.gain >= 99 else f"{one.gain + 1:.3g}"
    more = f"takes {one.gain:.0%} longer" if one.gain < 1 else f"takes {times} times as long"
    return f"{name} {more}" + (
        "" if one.clear else " (not sure)" if one.library in one.unknown else " (tie)"
    )


def _best_line(view: View, one: Best) -> Line:
    point = one.winner
    ties = "".join(
        f" {sign} {', '.join(plain(point.case.label) for point in others)}"
        for sign, others in (("=", one.ties), ("?", one.unknown))
        if others
    )
    cells = (
        *_where(view, point),
        "in" if point.case.in_place else "out",
        size(point.size),
        plain(point.case.label) + ties,
        duration(point.median),
        plus_minus(point),
        duration(one.library.median) if one.library else "-",
        _gain(one),
    )
    about = {name: value for name, value in meta(point.case).items() if name != "backend"}
    return Line(cells, about, "notice" if one.clear else "")


def _missing(view: View, series: Iterable[Series], stick: Yardstick) -> list[str]:
    """Remarks on links: which lack sendrecv and how to add it, or from which other run it was
    taken."""
    alone: dict[tuple[object, ...], list[Point]] = {}
    words: dict[str, None] = {}
    for one in series:
        case = one.case
        known = stick.link(one.points[0])
        name = f"{plain(case.backend)} on {case.n} ranks, {case.dtype}, {case.mode}"
        if known is None:
            imported = bool(view.files[one.run].run.imported)
            alone.setdefault((case.backend, case.n, case.dtype, case.mode, imported), []).extend(
                one.points
            )
        elif known.refused:
            words[
                f"The link of {name} could not be fitted to sendrecv: {plain(known.refused)}."
            ] = None
        elif known.source != one.run:
            words[
                f"{name}: sendrecv is that of run {view.labels[known.source]}, on the same machine."
            ] = None
        if known and known.note and case.row.reduces:
            words[f"{name}: {plain(known.note)}."] = None
    told = [_add(view, points) for points in alone.values()] + list(words)
    return [*told[:REMARKS], *left_out(min(REMARKS, len(told)), len(told), "such remarks")]


def _add(view: View, points: list[Point]) -> str:
    """The command that measures sendrecv beside these points, which have none."""
    run = view.files[points[0].run].run
    case, sizes = points[0].case, [point.case.nbytes for point in points if point.case.nbytes]
    own = all(
        point.case.algorithm != "native" for point in points
    )  # a transport without a sendrecv of its own
    command = [
        f"collbench sendrecv --backend {plain(case.backend)}",
        f"--algo {algorithms.of(PROBE)[0].name}" if own else "",
        f"-g {case.n} -d {case.dtype} --mode {case.mode}",
        f"-b {min(sizes)} -e {max(sizes)}" if sizes else "",
    ]
    command += [
        option
        for name, option in MANNER
        if getattr(run.policy, name) != getattr(Policy(), name)
        for option in [option.format(getattr(run.policy, name))]
    ]
    where = f"{plain(case.backend)} on {case.n} ranks, {case.dtype}, {case.mode}"
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


def _alarms(view: View, merits: list[Merit]) -> list[str]:
    """More than the bound allows is an error of measuring, unless the network itself reduces or
    copies."""
    bad = [merit for merit in merits if merit.alarming]
    if not bad:
        return []
    worst = max(bad, key=lambda merit: merit.share or 0.0)
    where = f"{_place(view, worst.point)} ({plain(worst.point.case.label)})"
    return [
        f"Alarm: in {counted(len(bad), 'case')}, surely less time than is possible over links as"
        f" sendrecv shows them; the worst reaches {worst.share:.0%} of the bound, at {where}."
        " Unless the network reduces or copies by itself, or ranks share memory, such times or"
        " those of sendrecv are wrong."
    ]


def _merit_line(view: View, merit: Merit) -> Line:
    point = merit.point
    cells = (
        *_where(view, point),
        plain(point.case.label) + (" in place" if point.case.in_place else ""),
        size(point.size),
        duration(point.median),
        _share(merit.link),
        duration(merit.bound),
        _share(merit.share),
        "-" if merit.model is None else f"{merit.model:.2f}",
        merit.limit or "-",
    )
    return Line(cells, meta(point.case), "bad" if merit.alarming else "")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}" if value >= 0.095 else f"{value:.1%}"


def _link_line(view: View, found: Constants) -> Line:
    case = found.probe
    about = {"backend": plain(found.backend), "dtype": found.dtype, "ranks": str(found.ranks)}
    name = f"{plain(found.backend)}, {found.ranks} ranks, {found.dtype}, {found.mode}"
    source = f"{view.titled(found.source, 'sendrecv')} {plain(case.label)}"
    if found.alpha is None or found.beta is None:
        return Line((name, source, "-", "-", "-", "-", plain(found.refused)), about, "notice")
    cells = (
        duration(found.alpha),
        f"{1 / found.beta:.3g} GB/s",
        f"{1 / found.gamma:.3g} GB/s" if found.gamma else "-",
        size(found.alpha / found.beta),
        plain(found.note),
    )
    return Line((name, source, *cells), about)


def _shares(view: View, merits: list[tuple[Series, list[Merit]]]) -> list[Figure]:
    """Link and bound efficiency against size, for each collective and mode."""
    colours = figures.palette(view.series)
    by_series = {id(one): found for one, found in merits}
    grouped = groups(one for one, _ in merits)
    drawn = []
    for which, series in grouped.items():
        for name, title, words in (
            (
                "link",
                "link efficiency",
                "busbw over that of sendrecv; the dotted line is as good as sendrecv.",
            ),
            (
                "share",
                "bound efficiency",
                "The least possible time over that measured; above the dotted line is an error.",
            ),
        ):
            lines = []
            for one in chosen(series, max(6, min(LINES, ALL // len(grouped)))):
                values = [
                    (m.point, v)
                    for m in by_series[id(one)]
                    if (v := getattr(m, name)) is not None and m.point.size
                ]
                lines += [(one, figures.thinned(values))] if values else []
            if lines:
                drawn.append(
                    figures.shares(
                        f"{named(which)}-{name}", f"{which}: {title}", words, title, lines, colours
                    )
                )
    return drawn


def _crossing_line(view: View, one: Crossing) -> Line:
    before, after = one.before.case, one.after.case
    cells = (
        *_where(view, one.before),
        "in" if before.in_place else "out",
        plain(before.label),
        plain(after.label),
        f"{size(one.low)} … {size(one.high)}",
        size(one.size),
    )
    about = {
        name: value
        for name, value in meta(before).items()
        if name != "backend" or after.backend == before.backend
    }
    return Line(cells, about)
