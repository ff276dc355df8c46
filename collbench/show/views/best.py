"""The fastest implementation at each size: by how much, against which library, and where intervals
cannot tell; at the end of a run on a terminal, and at the head of a report."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collbench.core.text import format_count, format_duration, format_size, plain_line
from collbench.records.flags import list_doubts
from collbench.records.points import Best, Point, find_best
from collbench.show.document import Cell, Line, Section, Table, tone_text
from collbench.show.views.measured import draw_best
from collbench.show.views.series import MOST, View, filter_values, name_mode, plus_minus
from collbench.show.words import AXES, axis_values, split_axes, word_axes
from collbench.suite.case import Case

TITLE = "Best at each size: "


NAMED = 1  # of those that tie with the best, this many are named


def make_section(view: View) -> Section | None:
    """What a report begins with; None where each case has one implementation only."""
    if not (found := find_best(view.points)):
        return None
    words = _libraries(found)
    if any(one.library and one.library.case.backend != one.winner.case.backend for one in found):
        words.append(
            "Some of these are on different backends: what sets them apart may be the transport."
        )
    shown = [
        msgspec.structs.replace(one, title=one.title.removeprefix(TITLE))
        for one in make_tables(view)
    ]
    drawn = draw_best(view)
    return Section(
        name="best",
        title=TITLE.removesuffix(": "),
        words=words,
        figures=drawn,
        tables=shown,
        beside=bool(drawn),
    )


def make_tables(view: View) -> list[Table]:
    """One for each mode, as modes measure different things."""
    by_mode: dict[str, list[Best]] = {}
    for one in find_best(view.points):
        by_mode.setdefault(name_mode(one.winner), []).append(one)
    return [_make_table(mode, found, view.labels) for mode, found in by_mode.items()]


def _make_table(mode: str, found: list[Best], labels: Sequence[str]) -> Table:
    """A line for each case that several implementations share, the largest gains first where there
    are too many. What all cases have in common stands in the title."""
    crowded = len(found) > MOST
    if crowded:
        found = sorted(found, key=lambda one: -(one.gain or 0.0) if one.clear else 0.0)[:MOST]
    cases = [one.winner.case for one in found]
    varying = _list_varying(cases)
    same = set(AXES) - {"implementation"} - set(split_axes(cases)[0])
    common = [word for name, word in word_axes(cases[0]).items() if name in same and word]
    libraries = list(dict.fromkeys(_label_point(p) for one in found for p in _libraries_of(one)))
    others = any(_name_next(one) != "-" for one in found)
    leading = ["run"] * (len({one.winner.run for one in found}) > 1) + varying

    def line(one: Best) -> Line:
        point = one.winner
        places = {"run": labels[point.run], **axis_values(point.case)}
        cells: list[Cell] = [places[name] for name in leading]
        cells += [format_size(point.size) if point.size else "-", _name_winners(one)]
        cells += [format_duration(point.median), plus_minus(point)]
        cells += [_name_next(one)] * others
        cells += [_compare_library(one, name) for name in libraries]
        return Line(cells, {k: v for k, v in filter_values(point.case).items() if k != "backend"})

    most = "Largest gains first." * crowded
    return Table(
        name=f"best-{mode.replace(', ', '-')}",
        title=f"{TITLE}{plain_line(', '.join([*common, mode]))}",
        heads=(*leading, "size", "best", "time", "±", *["next"] * others, *libraries),
        lines=[*map(line, found)],
        align="l" * len(leading) + "rwrr" + "w" * others + "r" * len(libraries),
        note=" ".join([_explain_signs(found), most]).strip(),
    )


def _list_varying(cases: Sequence[Case]) -> list[str]:
    """The axes along which cases of some collective differ, and the collective where it does."""
    of: dict[str, list[Case]] = {}
    for case in cases:
        of.setdefault(case.collective, []).append(case)
    own = {name for members in of.values() for name in split_axes(members)[0]} - {"implementation"}
    return [name for name in split_axes(cases)[0] if name in own or name == "collective"]


def _label_point(point: Point) -> str:
    return plain_line(point.case.label)


def _libraries_of(one: Best) -> list[Point]:
    """Those of what libraries choose themselves."""
    every = (one.winner, *one.ties, *one.unknown, *one.slower)
    return [point for point in every if point.case.algorithm == "native"]


def _name_winners(one: Best) -> Cell:
    """The best, those that may be as good, and why to doubt its time: ring@shm = gloo (bimodal)."""
    told = tone_text(_label_point(one.winner), "good", strong=not (one.ties or one.unknown))
    for sign, others in (("=", one.ties), ("?", one.unknown)):
        names = [_label_point(point) for point in others]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        told += f" {sign} {', '.join(names[:NAMED])}{more}" if names else ""
    if flags := list_doubts(one.winner):
        told += tone_text(f" ({', '.join(flags)})", "notice")
    return told


def _name_next(one: Best) -> str:
    """The fastest algorithm that is surely slower, and how many times as long it takes."""
    point = next((point for point in one.slower if point.case.algorithm != "native"), None)
    return f"{_label_point(point)} {_format_factor(point, one)}" if point else "-"


def _compare_library(one: Best, name: str) -> Cell:
    """How many times as long the library of this name takes."""
    point = next((point for point in _libraries_of(one) if _label_point(point) == name), None)
    if point is None or point is one.winner:
        return "-" if point is None else tone_text("best", "good")
    if point in one.ties:
        return "tie"
    return _format_factor(point, one) + "?" * (point in one.unknown)


def _format_factor(point: Point, one: Best) -> str:
    ratio = point.median / one.winner.median
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.3g}x"


def _explain_signs(found: Sequence[Best]) -> str:
    """What the signs in the lines mean."""
    told = ["1.08x: 8 % slower than the best"] * any(one.slower for one in found)
    told += ["= and tie: intervals overlap"] * any(one.ties for one in found)
    told += ["?: not known, for want of an interval"] * any(one.unknown for one in found)
    told += ["in brackets: why to doubt that time"] * any(list_doubts(o.winner) for o in found)
    return "; ".join(told) + "." * bool(told)


def _libraries(found: Sequence[Best]) -> list[str]:
    """A sentence for each library that was measured beside reference algorithms."""
    by_library: dict[str, list[Best]] = {}
    for one in found:
        if one.library and one.reference:
            by_library.setdefault(_label_point(one.library), []).append(one)
    words = []
    for name, mine in by_library.items():
        slower = [one for one in mine if one.clear]
        ahead = sum(one.winner is one.library and not one.ties and not one.unknown for one in mine)
        unknown = sum(
            bool(one.unknown) and (one.winner is one.library or one.library in one.unknown)
            for one in mine
        )
        tied = len(mine) - ahead - len(slower) - unknown
        parts = [f"{name} is the fastest in {ahead:,} of {format_count(len(mine), 'case')}"]
        if slower:
            most = max(slower, key=lambda one: one.gain or 0.0)
            assert most.library
            where = f"{most.winner.case.collective} of {format_size(most.winner.size)}"
            at = f"{_format_factor(most.library, most)}, {where}"
            parts.append(f"slower than another in {len(slower):,} (at most {at})")
        parts += [f"tied in {tied:,}"] if tied else []
        parts += [f"not known in {unknown:,}"] if unknown else []
        words.append(f"{', '.join(parts)}.")
    return words
