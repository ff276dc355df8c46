"""The least time and the highest bandwidth of a run, as sentences below its table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from collbench.core.text import format_bandwidth, format_duration, format_size, plain_line
from collbench.records.derive import Derived
from collbench.records.flags import is_known, is_without_interval, list_doubts
from collbench.run.reporter import Gathered, Outcome
from collbench.show.document import Words, tone_text
from collbench.show.flags import name_flags, why_unknown
from collbench.show.views.summary import single_call
from collbench.show.words import format_interval, split_axes, word_axes
from collbench.suite.case import Case


def describe_best(run: Gathered, outcomes: Sequence[Outcome]) -> Iterable[Words]:
    """A line for each mode and collective: its latency floor and its peak bus bandwidth."""
    good = [
        (record.case, row)
        for record, row in outcomes
        if row and record.status in ("ok", "predicted") and not record.case.subject
    ]
    for mode, name in dict.fromkeys((case.mode, case.collective) for case, _ in good):
        rows = [(case, row) for case, row in good if (case.mode, case.collective) == (mode, name)]
        varying, _ = split_axes([case for case, _ in rows])
        if len({case.size for case, _ in rows}) == 1:
            world = run.worlds.get(next(r.world for r, _ in outcomes if r.case == rows[0][0]))
            precision = run.run.policy.resolved(bool(world and world.cramped)).precision
            fixed = run.run.policy.iters is not None
            phrases = [_only_size(rows, varying, None if fixed else precision)]
        else:
            phrases = (
                [_describe_floor(rows, varying)] if single_call(rows[0][0], run.run.policy) else []
            )
            phrases += _describe_peak(rows, varying)
        if phrases:
            yield tone_text(plain_line(f"{name}, {mode}: {'; '.join(phrases)}"))


Timed = Sequence[tuple[Case, Derived]]


def _only_size(rows: Timed, varying: Sequence[str], precision: float | None) -> str:
    """The fastest row where there is one size, and whether it is less precise than asked for."""
    chosen = find_fastest(rows)
    if chosen is None:
        return f"time at {format_size(rows[0][0].size)} not known{_explain_unknown(rows)}"
    case, row = chosen
    rate = f", busbw {format_bandwidth(row.busbw)} GB/s" if row.busbw is not None else ""
    half = row.half_width
    vague = precision is not None and math.isfinite(half) and half > precision
    less = f": less precise than the ±{100 * (precision or 0):.2g} % asked for" if vague else ""
    return f"{_describe_figure(format_duration(row.times.median), case, row, varying)}{rate}{less}"


def _describe_floor(rows: Timed, varying: Sequence[str]) -> str:
    """The least time at the smallest size, where latency is all that there is."""
    least = min(case.size for case, _ in rows)
    smallest = [(case, row) for case, row in rows if case.size == least]
    if (chosen := find_fastest(smallest)) is None:
        return f"latency floor not known at {format_size(least)}{_explain_unknown(smallest)}"
    case, row = chosen
    return (
        f"latency floor {_describe_figure(format_duration(row.times.median), case, row, varying)}"
    )


def _describe_peak(rows: Timed, varying: Sequence[str]) -> list[str]:
    """The phrase for the highest bus bandwidth, in a list; an empty list where no row has any."""
    rated = [(case, row) for case, row in rows if row.busbw is not None]
    if not rated:
        return []
    if (chosen := find_highest(rated)) is None:
        return [f"peak busbw not known{_explain_unknown(rated)}"]
    case, row = chosen
    return [
        f"peak busbw {_describe_figure(f'{format_bandwidth(row.busbw)} GB/s', case, row, varying)}"
    ]


def find_fastest(rows: Timed) -> tuple[Case, Derived] | None:
    """The row of the least time that is known: one without a doubt, unless one with a doubt took
    surely less. None where no row's time is known."""
    known_rows = [(case, row) for case, row in rows if is_known(row)]
    if not known_rows:
        return None
    good = [pair for pair in known_rows if not list_doubts(pair[1])]
    surely = [
        pair
        for pair in known_rows
        if good and pair[1].times.hi < min(row.times.lo for _, row in good)
    ]
    return min(surely or good or known_rows, key=lambda pair: pair[1].times.median)


def find_highest(rows: Timed) -> tuple[Case, Derived] | None:
    """The row of the highest bus bandwidth that is known: one without a doubt, unless one with a
    doubt surely has more. None where no row's is known."""
    known_rows = [(case, row) for case, row in rows if is_known(row)]
    if not known_rows:
        return None
    good = [pair for pair in known_rows if not list_doubts(pair[1])]
    most = max((_upper_busbw(row) for _, row in good), default=math.inf)
    surely = [pair for pair in known_rows if _lower_busbw(pair[1]) > most]
    return max(surely or good or known_rows, key=lambda pair: pair[1].busbw or 0.0)


def _upper_busbw(row: Derived) -> float:
    return (row.busbw or 0.0) * row.times.median / row.times.lo if row.times.lo > 0 else math.inf


def _lower_busbw(row: Derived) -> float:
    return (row.busbw or 0.0) * row.times.median / row.times.hi


def _describe_figure(figure: str, case: Case, row: Derived, varying: Sequence[str]) -> str:
    """The phrase for a figure of a row: with its interval, the point it is of, and its flags."""
    sure = "" if is_without_interval(row) else f" {format_interval(row.half_width)}"
    doubted = f" ({', '.join(name_flags(row, flags))})" if (flags := list_doubts(row)) else ""
    return f"{figure}{sure} at {describe_point(case, varying)}{doubted}"


def _explain_unknown(rows: Timed) -> str:
    return f" ({why_unknown([row for _, row in rows])})"


def describe_point(case: Case, varying: Sequence[str]) -> str:
    """The size of a case, then in brackets its values on the axes ``varying``: 1 MiB (ring,
    gloo)."""
    values = word_axes(case)
    details = ", ".join(values[name] for name in varying if values[name])
    return format_size(case.size) + (f" ({details})" if details else "")
