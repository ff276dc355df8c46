"""Parts of a report's summary: floor and peak of each collective, flags with remedies, rows with
two modes, machines that other processes used."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from collbench.core.text import (
    format_bandwidth,
    format_count,
    format_duration,
    format_size,
    plain_line,
)
from collbench.records import store
from collbench.records.derive import waits_for_all
from collbench.records.flags import (
    FEW,
    OVERSUBSCRIBED,
    UNCONVERGED,
    flag_kind,
    is_without_interval,
    list_doubts,
)
from collbench.records.points import Point, is_known
from collbench.records.rows import FEWEST_LAUNCHES
from collbench.records.types import RELATIVE, VALIDATED
from collbench.run.resumption import describe_remedy
from collbench.show import busy
from collbench.show.document import Line, Table, Weight, make_columns
from collbench.show.flags import GENERAL, explain_flag, fill_limits, why_unknown
from collbench.show.views.series import View, group_series, make_table, plus_minus
from collbench.show.words import two_modes
from collbench.suite.case import Case
from collbench.suite.policy import Policy

UNKNOWN = ("-", "not known")

SCATTER = frozenset(("n<6", "unsteady", "skewed", "invalid", "bimodal", "late", "throttled"))
"""Doubts of single launches, which an interval over launches enough takes in."""


def list_floors(view: View) -> list[Line]:
    """For each collective and mode the least time at the smallest size, and the largest busbw."""
    lines = []
    for title, series in group_series(view.series).items():
        if series[0].case.subject:
            continue  # of one size, and no latency or bandwidth to be proud of
        collective, mode = title.split(", ", 1)
        names = {id(point): one.name for one in series for point in one.points}
        points = prefer_aligned([point for one in series for point in one.points])
        single = [p for p in points if single_call(p.case, view.files[p.run].run.policy)]
        smallest = min((point.size for point in single), default=0)
        floor = _describe_extreme([p for p in single if p.size == smallest], names)
        rated = [p for p in points if p.busbw is not None and math.isfinite(p.busbw)]
        peak = _describe_extreme(rated, names, peak=True)
        lines.append(Line((collective, mode, *floor, *peak), {"collective": collective}))
    return lines


def prefer_aligned(points: Sequence[Point]) -> Sequence[Point]:
    """The points whose ranks did not come apart on purpose, if there are any: times of the others
    count from the last arrival, and are no call's."""
    return [point for point in points if not point.case.arrival] or points


def count_findings(view: View) -> int:
    """Cases that found something other than times, in runs without any that has a time."""
    if view.points:
        return 0
    return sum(bool(record.findings) for file in view.files for record in file.records)


def answer_table(view: View, floors: Sequence[Line]) -> Table | None:
    """Latency floor, peak (of ``list_floors``) and data as figures to be seen at once; None unless
    there is one collective in one mode, and any of them is known."""
    if len(floors) != 1:
        return None
    _, _, floor, floor_sure, floor_at, peak, peak_sure, peak_at = map(str, floors[0].cells)
    lines = [
        Line((name, value, f"{sure}, {at}" if sure else at), weight="notice" if "(" in at else "")
        for name, value, sure, at in (
            ("latency floor", floor, floor_sure, floor_at),
            ("peak busbw", peak if peak in UNKNOWN else f"{peak} GB/s", peak_sure, peak_at),
        )
        if value != "-"
    ]
    records = [record for file in view.files if not file.run.imported for record in file.records]
    if checked := sum(record.checked for record in records):
        wrong = sum(record.wrong or 0 for record in records)
        cells = ("data", f"{wrong:,} wrong", f"of {checked:,} elements that were verified")
        lines.append(Line(cells, weight="bad" if wrong else ""))
    if not lines:
        return None
    columns = make_columns(("", "measured", "at"), "lll")
    return Table(name="answers", columns=columns, lines=lines, tiled=True)


def _describe_extreme(
    points: Sequence[Point], names: Mapping[int, str], *, peak: bool = False
) -> tuple[str, str, str]:
    """A figure (see choose_extreme), its interval, and where, with the reasons to doubt it;
    ``names`` are those of points' series, by id."""
    if not points:
        return "-", "", ""
    point = choose_extreme(points, peak=peak)
    if point is None:
        return "not known", "", why_unknown(points)
    figure = format_bandwidth(point.busbw) if peak else format_duration(point.median)
    sure = "" if is_without_interval(point) else plus_minus(point, of_rate=peak)
    spot = ", ".join([*[format_size(point.size)] * bool(point.size), names[id(point)]])
    doubted = f" ({', '.join(flags)})" if (flags := list_point_doubts(point)) else ""
    return figure, sure, f"{spot}{doubted}"


def choose_extreme(points: Sequence[Point], *, peak: bool = False) -> Point | None:
    """The point of the least time (of a ``peak``: of the highest busbw) that is known: one without
    a doubt, unless one with a doubt is surely better; for the least time, one of an unsure time,
    too. None where no point's time is known."""
    known_points = [point for point in points if is_known(point)]
    good = [point for point in known_points if not list_point_doubts(point)]
    if peak:
        most = max((_rate_at(point, point.bounds[0]) for point in good), default=math.inf)
        surely = [point for point in known_points if _rate_at(point, point.bounds[1]) > most]
    else:
        least = min((point.bounds[0] for point in good), default=-math.inf)
        bounded = [point for point in points if FEW not in point.ungated]
        surely = [point for point in bounded if point.bounds[1] < least]
    return max(
        surely or good or known_points,
        key=lambda point: (point.busbw or 0.0) if peak else -point.median,
        default=None,
    )


def _rate_at(point: Point, time: float) -> float:
    """The bus bandwidth that a point would have at another time."""
    return (point.busbw or 0.0) * point.median / time if time > 0 else math.inf


def list_point_doubts(point: Point) -> list[str]:
    """The doubts of a point, without those of SCATTER where launches enough bound its time."""
    doubts = list_doubts(point)
    if point.launches < FEWEST_LAUNCHES:
        return doubts
    return [flag for flag in doubts if flag_kind(flag) not in SCATTER]


def single_call(case: Case, policy: Policy) -> bool:
    """Whether a case's time is that of one call on its own; calls issued together have no
    latency, and one with a wait for all ranks has more."""
    alone = policy.agg_iters == 1 and not waits_for_all(case, policy)
    return case.mode in ("isolated", "host") and alone


def flag_table(view: View) -> Table:
    """The flags that occurred, doubts first, then most frequent first."""
    flags = Counter(
        kind for point in view.points for kind in dict.fromkeys(map(flag_kind, point.flags))
    )
    doubted = {flag_kind(flag) for point in view.points for flag in list_doubts(point)}
    limits = _fill_limits(view)
    commands = {tuple(file.run.command[:2]) for file in view.files}
    command = commands.pop() if len(commands) == 1 else ()
    lines = []
    for flag, times in sorted(flags.items(), key=lambda item: (item[0] not in doubted, -item[1])):
        row = explain_flag(flag, limits, command)
        weight: Weight = "notice" if flag in doubted else ""
        lines.append(Line((flag, f"{times:,}", row.meaning, row.remedy), {}, weight))
    columns = make_columns(("flag", "cases", "meaning", "what to do"), "lrll")
    flags_text = ", ".join(f"{line.cells[0]} {line.cells[1]}" for line in lines)
    title = f"Flags of {format_count(len(view.points), 'case')}: {flags_text}"
    return make_table("flags", title, columns, lines, folded=True)


def _fill_limits(view: View) -> dict[str, str]:
    """The limits that stand in flags' texts, where all runs have the same policy; else general
    words."""
    policies = list(dict.fromkeys(file.run.policy for file in view.files))
    ways = {describe_remedy(file.run, store.run_name(file.path)) for file in view.files}
    again = {"again": ways.pop()} if len(ways) == 1 else {}
    if len(policies) != 1:
        return GENERAL | again
    crowded = {world.cramped for file in view.files for world in file.worlds}
    stops = {view.record(p).stop for p in view.points if UNCONVERGED in p.flags}
    commands = [word for file in view.files for word in file.run.command]
    return fill_limits(policies[0], crowded, stops, commands) | again


def busy_runs(view: View) -> list[str]:
    """A sentence for each of several runs whose machine other processes used meanwhile."""
    if len(view.files) == 1:  # the headline says it
        return []
    return [
        view.prefix_run(run, load_text)
        for run, f in enumerate(view.files)
        if (load_text := busy.describe_run_load(f.run, f.records, f.end))
    ]


def describe_modes(view: View) -> list[str]:
    """A sentence where cases of a report were measured in two modes."""
    return two_modes((p.case, p.pooled, view.record(p).inner) for p in view.points)


def describe_crowded(view: View) -> list[str]:
    """A sentence where cases had more ranks than cores."""
    many = sum(OVERSUBSCRIBED in point.flags for point in view.points)
    if not many:
        return []
    return [
        f"More ranks than cores in {many:,} of {format_count(len(view.points), 'case')}: such times"
        " include waiting for a core and are not fit for claims about a network or a library."
    ]


def describe_late(view: View) -> list[str]:
    """A sentence for each rank that came late most often, in any launch, three at most."""
    late_counts = Counter(
        (point.run, flag.partition(":")[2])
        for point in view.points
        for flag in point.flags
        if flag_kind(flag) == "late"
    )
    return [
        view.prefix_run(run, f"rank {rank} came late in {format_count(times, 'case')}.")
        for (run, rank), times in late_counts.most_common(3)
    ]


def describe_verified(view: View) -> list[str]:
    """Sentences on the data that collbench verified, and on what the logs of other tools report."""
    records = [record for file in view.files if not file.run.imported for record in file.records]
    checked = sum(record.checked for record in records)
    lines = _describe_reported(view) if any(file.run.imported for file in view.files) else []
    if checked:
        wrong = sum(record.wrong or 0 for record in records)
        result = f"{wrong:,} of them wrong" if wrong else "none wrong"
        return [f"{checked:,} elements were verified, {result}.", *lines]
    has_data = any(record.status == "ok" and record.case.size for record in records)
    return ["Data was not verified.", *lines] if has_data else lines


def _describe_reported(view: View) -> list[str]:
    """What logs report of the data, which their tools checked."""
    counts = [
        record.wrong
        for file in view.files
        if file.run.imported
        for record in file.records
        if record.wrong is not None
    ]
    if not counts:
        return _by_tools(view)
    return [f"{_name_logs(view)} {format_count(sum(counts), 'wrong element')}."]


def _name_logs(view: View) -> str:
    """The subject of what imported logs say."""
    return "The log reports" if len(view.files) == 1 else "The logs report"


def _by_tools(view: View) -> list[str]:
    """What imported logs say about the data, where they do not count verified elements."""
    notes = [record.note for file in view.files for record in file.records]
    errors = [
        note.removeprefix(RELATIVE).strip(" *") for note in notes if note.startswith(RELATIVE)
    ]
    if errors:
        return [
            f"{RELATIVE.capitalize()} of the data, as its tool saw it: {max(errors, key=float)}."
        ]
    passed = notes.count(VALIDATED)
    return [
        f"The tool validated the data of {format_count(passed, 'case')}."
        if passed
        else "No log says that data was verified."
    ]


def describe_averages(view: View) -> list[str]:
    """The average bus bandwidths that imported logs end with."""
    imported = ((run, file.run) for run, file in enumerate(view.files) if file.run.imported)
    return [
        view.prefix_run(n, f"{plain_line(r.suite.description)}.")
        for n, r in imported
        if r.suite.description
    ]


def describe_traffic(view: View) -> list[str]:
    """A sentence for each implementation that sends more bytes than its table has, with the
    reason."""
    moves_of = {
        (p.run, p.case.collective, p.case.label, p.case.n): plain_line(p.first.moves)
        for p in view.points
        if p.first.carried > 1
    }
    return [
        view.prefix_run(run, f"{name} of {label}, {format_count(n, 'rank')}: {moves}.")
        for (run, name, label, n), moves in moves_of.items()
    ]
