"""The least time and highest bandwidth of a run, over launches, in sentences below its table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from collbench.core.text import format_bandwidth, format_duration, format_size, plain_line
from collbench.records.derive import Derived
from collbench.records.flags import is_without_interval
from collbench.records.points import Point, make_points
from collbench.records.rows import make_rows
from collbench.run.reporter import Gathered, Outcome
from collbench.show.document import Words, tone_text
from collbench.show.flags import name_flags, why_unknown
from collbench.show.views.series import plus_minus
from collbench.show.views.summary import (
    choose_extreme,
    list_point_doubts,
    prefer_aligned,
    single_call,
)
from collbench.show.words import split_axes, word_axes
from collbench.suite.case import Case

Timed = Sequence[tuple[Case, Derived]]


def describe_best(run: Gathered, outcomes: Sequence[Outcome]) -> Iterable[Words]:
    """A line for each mode and collective: its latency floor and its peak bus bandwidth."""
    good = [
        (record.case, row)
        for record, row in outcomes
        if row and record.status in ("ok", "predicted") and not record.case.subject
    ]
    every_point = make_points(make_rows([run.digest])) if good else []
    for mode, name in dict.fromkeys((case.mode, case.collective) for case, _ in good):
        rows = [(case, row) for case, row in good if (case.mode, case.collective) == (mode, name)]
        rows = [(case, row) for case, row in rows if not case.arrival] or rows
        points = prefer_aligned(
            [p for p in every_point if (p.case.mode, p.case.collective) == (mode, name)]
        )
        varying, _ = split_axes([case for case, _ in rows])
        if len({case.size for case, _ in rows}) == 1:
            world = run.worlds.get(next(r.world for r, _ in outcomes if r.case == rows[0][0]))
            precision = run.run.policy.resolved(bool(world and world.cramped)).precision
            fixed = run.run.policy.fixes_samples(mode)
            phrases = [_only_size(rows, points, varying, None if fixed else precision)]
        else:
            is_single = single_call(rows[0][0], run.run.policy)
            phrases = [_describe_floor(rows, points, varying)] if is_single else []
            phrases += _describe_peak(rows, points, varying)
        if phrases:
            yield tone_text(plain_line(f"{name}, {mode}: {'; '.join(phrases)}"))


def _only_size(
    rows: Timed, points: Sequence[Point], varying: Sequence[str], precision: float | None
) -> str:
    """The fastest case where there is one size, and whether it is less precise than asked for."""
    point = choose_extreme(points)
    if point is None:
        return f"time at {format_size(rows[0][0].size)} not known{_explain_unknown(rows)}"
    rate = f", busbw {format_bandwidth(point.busbw)} GB/s" if point.busbw is not None else ""
    half = point.half_width
    vague = precision is not None and math.isfinite(half) and half > precision
    less = f": less precise than the ±{100 * (precision or 0):.2g} % asked for" if vague else ""
    return f"{_describe_figure(format_duration(point.median), point, varying)}{rate}{less}"


def _describe_floor(rows: Timed, points: Sequence[Point], varying: Sequence[str]) -> str:
    """The least time at the smallest size, where latency is all that there is."""
    least = min(case.size for case, _ in rows)
    point = choose_extreme([point for point in points if point.size == least])
    if point is None:
        smallest = [(case, row) for case, row in rows if case.size == least]
        return f"latency floor not known at {format_size(least)}{_explain_unknown(smallest)}"
    return f"latency floor {_describe_figure(format_duration(point.median), point, varying)}"


def _describe_peak(rows: Timed, points: Sequence[Point], varying: Sequence[str]) -> list[str]:
    """The phrase for the highest bus bandwidth, in a list; an empty list where no row has any."""
    rated = [(case, row) for case, row in rows if row.busbw is not None]
    if not rated:
        return []
    point = choose_extreme([point for point in points if point.busbw is not None], peak=True)
    if point is None:
        return [f"peak busbw not known{_explain_unknown(rated)}"]
    figure = f"{format_bandwidth(point.busbw)} GB/s"
    return [f"peak busbw {_describe_figure(figure, point, varying, of_rate=True)}"]


def _describe_figure(
    figure: str, point: Point, varying: Sequence[str], *, of_rate: bool = False
) -> str:
    """The phrase for a figure: with its interval, the case that it is of, and its flags."""
    sure = "" if is_without_interval(point) else f" {plus_minus(point, of_rate=of_rate)}"
    flags = name_flags(point.pooled, list_point_doubts(point))
    doubted = f" ({', '.join(flags)})" if flags else ""
    return f"{figure}{sure} at {describe_point(point.case, varying)}{doubted}"


def _explain_unknown(rows: Timed) -> str:
    return f" ({why_unknown([row for _, row in rows])})"


def describe_point(case: Case, varying: Sequence[str]) -> str:
    """The size of a case, then in brackets its values on the axes ``varying``: 1 MiB (ring,
    gloo)."""
    values = word_axes(case)
    details = ", ".join(values[name] for name in varying if values[name])
    return format_size(case.size) + (f" ({details})" if details else "")
