"""The fastest implementation at each size: by how much, against which library, and where intervals
cannot tell; at the end of a run on a terminal, and at the head of a report."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collbench.core.text import format_count, format_duration, format_size, plain_line
from collbench.records.flags import list_doubts
from collbench.records.points import Best, Point
from collbench.show.document import Cell, Line, Section, Table, make_columns, tone_text
from collbench.show.views.measured import draw_best
from collbench.show.views.series import MOST, View, filter_values, name_mode, plus_minus
from collbench.show.words import AXES, axis_values, split_axes, word_axes
from collbench.suite.case import Case

TITLE = "Best at each size: "

NAMED = 1  # of those that tie with the best, this many are named


def make_section(view: View) -> Section | None:
    """The section that a report begins with; None where each case has one implementation only."""
    if not (best_list := view.best):
        return None
    sentences = _libraries(best_list)
    if any(
        best.library and best.library.case.backend != best.winner.case.backend for best in best_list
    ):
        sentences.append(
            "Some of these are on different backends: what sets them apart may be the transport."
        )
    tables = [
        msgspec.structs.replace(table, title=table.title.removeprefix(TITLE))
        for table in make_tables(view)
    ]
    drawn = draw_best(view)
    return Section(
        name="best",
        title=TITLE.removesuffix(": "),
        sentences=sentences,
        figures=drawn,
        tables=tables,
        side_by_side=bool(drawn),
    )


def make_tables(view: View) -> list[Table]:
    """One for each mode, as modes measure different things."""
    by_mode: dict[str, list[Best]] = {}
    for best in view.best:
        by_mode.setdefault(name_mode(best.winner), []).append(best)
    return [_make_table(mode, best_of_mode, view.labels) for mode, best_of_mode in by_mode.items()]


def _make_table(mode: str, best_list: list[Best], labels: Sequence[str]) -> Table:
    """A line for each case that several implementations share, the largest gains first where there
    are too many. What all cases have in common stands in the title."""
    crowded = len(best_list) > MOST
    if crowded:
        best_list = sorted(best_list, key=lambda best: -(best.gain or 0.0) if best.clear else 0.0)[
            :MOST
        ]
    cases = [best.winner.case for best in best_list]
    varying = _list_varying(cases)
    same = set(AXES) - {"implementation"} - set(split_axes(cases)[0])
    common = [word for name, word in word_axes(cases[0]).items() if name in same and word]
    libraries = list(
        dict.fromkeys(_label_point(p) for best in best_list for p in _list_native_points(best))
    )
    others = any(_name_next(best) != "-" for best in best_list)
    leading = ["run"] * (len({best.winner.run for best in best_list}) > 1) + varying

    def line(best: Best) -> Line:
        point = best.winner
        places = {"run": labels[point.run], **axis_values(point.case)}
        cells: list[Cell] = [places[name] for name in leading]
        cells += [format_size(point.size) if point.size else "-", _name_winners(best)]
        cells += [format_duration(point.median), plus_minus(point)]
        cells += [_name_next(best)] * others
        cells += [_compare_library(best, name) for name in libraries]
        return Line(cells, {k: v for k, v in filter_values(point.case).items() if k != "backend"})

    heads = (*leading, "size", "best", "time", "±", *["next"] * others, *libraries)
    most = "Largest gains first." * crowded
    return Table(
        name=f"best-{mode.replace(', ', '-')}",
        title=f"{TITLE}{plain_line(', '.join([*common, mode]))}",
        columns=make_columns(heads, "l" * len(leading) + "rwrr" + "w" * others),
        lines=[*map(line, best_list)],
        note=" ".join(filter(None, [_explain_signs(best_list), most])),
    )


def _list_varying(cases: Sequence[Case]) -> list[str]:
    """The axes along which cases of some collective differ, and the collective where it does."""
    by_collective: dict[str, list[Case]] = {}
    for case in cases:
        by_collective.setdefault(case.collective, []).append(case)
    varying_names = {
        name for members in by_collective.values() for name in split_axes(members)[0]
    } - {"implementation"}
    return [name for name in split_axes(cases)[0] if name in varying_names or name == "collective"]


def _label_point(point: Point) -> str:
    return plain_line(point.case.label)


def _list_native_points(best: Best) -> list[Point]:
    """The points at which a library chose the algorithm itself."""
    every = (best.winner, *best.ties, *best.unknown, *best.slower)
    return [point for point in every if point.case.algorithm == "native"]


def _name_winners(best: Best) -> Cell:
    """The best, those that may be as good, and why to doubt its time: ring@shm = gloo (bimodal)."""
    label = tone_text(_label_point(best.winner), "good", strong=not (best.ties or best.unknown))
    for sign, others in (("=", best.ties), ("?", best.unknown)):
        names = [_label_point(point) for point in others]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        label += f" {sign} {', '.join(names[:NAMED])}{more}" if names else ""
    if flags := list_doubts(best.winner):
        label += tone_text(f" ({', '.join(flags)})", "notice")
    return label


def _name_next(best: Best) -> str:
    """The fastest algorithm that is surely slower, and how many times as long it takes."""
    point = next((point for point in best.slower if point.case.algorithm != "native"), None)
    return f"{_label_point(point)} {_format_factor(point, best)}" if point else "-"


def _compare_library(best: Best, name: str) -> Cell:
    """How many times as long the library of this name takes."""
    point = next(
        (point for point in _list_native_points(best) if _label_point(point) == name), None
    )
    if point is None or point is best.winner:
        return "-" if point is None else tone_text("best", "good")
    if point in best.ties:
        return "tie"
    return _format_factor(point, best) + "?" * (point in best.unknown)


def _format_factor(point: Point, best: Best) -> str:
    ratio = point.median / best.winner.median
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.3g}x"


def _explain_signs(best_list: Sequence[Best]) -> str:
    """What the signs in the lines mean."""
    explanations = ["1.08x: 8 % slower than the best"] * any(best.slower for best in best_list)
    explanations += ["= and tie: intervals overlap"] * any(best.ties for best in best_list)
    explanations += ["?: not known, for want of an interval"] * any(
        best.unknown for best in best_list
    )
    explanations += ["in brackets: why to doubt that time"] * any(
        list_doubts(o.winner) for o in best_list
    )
    return "; ".join(explanations) + "." * bool(explanations)


def _libraries(best_list: Sequence[Best]) -> list[str]:
    """A sentence for each library that was measured beside reference algorithms."""
    by_library: dict[str, list[tuple[Best, Point]]] = {}
    for best in best_list:
        for point in _list_native_points(best) if best.reference else ():
            by_library.setdefault(_label_point(point), []).append((best, point))
    return [_describe_library(name, cases) for name, cases in by_library.items()]


def _describe_library(name: str, cases: Sequence[tuple[Best, Point]]) -> str:
    """A sentence on the cases that a library has a point of."""
    slower = [(best, point) for best, point in cases if point in best.slower]
    unknown = [
        best for best, point in cases if best.unknown and point in (best.winner, *best.unknown)
    ]
    tied = [
        best
        for best, point in cases
        if point in best.ties or (point is best.winner and best.ties and not best.unknown)
    ]
    ahead = len(cases) - len(slower) - len(unknown) - len(tied)
    parts = [f"{name} is the fastest in {ahead:,} of {format_count(len(cases), 'case')}"]
    if slower:
        best, point = max(slower, key=lambda pair: pair[1].median / pair[0].winner.median)
        where = f"{point.case.collective} of {format_size(point.size)}"
        at = f"{_format_factor(point, best)}, {where}"
        parts.append(f"slower than another in {len(slower):,} (at most {at})")
    parts += [f"tied in {len(tied):,}"] if tied else []
    parts += [f"not known in {len(unknown):,}"] if unknown else []
    return f"{', '.join(parts)}."
