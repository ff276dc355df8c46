"""Whether rows reach the bus bandwidth that is wanted of them (Threshold.min_busbw), and what that
comes to.

A row meets its limit, or falls short of it, only where its whole 95 % interval does. An interval
that reaches over the limit shows neither; rows that were not measured, and rows whose flags forbid
that anything rests on them, are no pass.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

import msgspec

from collbench.core.errors import Exit
from collbench.core.text import format_bandwidth, format_count, format_size, plain_line
from collbench.records.origins import reasons_by_flag
from collbench.records.rows import (
    FEWEST_LAUNCHES,
    Row,
    case_time,
    group_rows,
    make_rows,
    select_deciding,
)
from collbench.records.types import RunFile
from collbench.suite.case import Case, Limit
from collbench.suite.case_words import describe_case

Launches = Mapping[Case, Sequence[Row]]


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A row, or the average of a table, against the busbw ``wanted`` of it: what it reached, with
    its 95 % interval from ``lo`` to ``hi``, in GB/s; None where that is not known. ``why`` says why
    there is no answer. ``key`` is the case's, empty for an average and for a size without rows.
    ``launches`` are behind the interval; that of one is of its samples."""

    row: str
    wanted: float
    answer: Literal["met", "short", "not shown", "no answer"]
    key: str = ""
    average: bool = False
    busbw: float | None = None
    lo: float | None = None
    hi: float | None = None
    why: str = ""
    launches: int = 0


def judge_limits(
    *files: RunFile, min_launches: int = 1, despite: Collection[str] = ()
) -> list[Held]:
    """Every row that has a limit, over the launches of all ``files``, which are runs of one suite,
    against each of its limits; a wanted size that has no row, and the averages. Rows without a
    busbw by their nature, such as a barrier's, have none. ``min_launches`` and ``despite`` as in
    hold_row."""
    limited = [
        (threshold.match, limit)
        for threshold in files[0].run.suite.thresholds
        for limit in threshold.min_busbw
    ]
    rows = group_rows(make_rows(files), lambda row: row.case) if limited else {}
    return [
        result
        for match, limit in limited
        for result in _hold_rows(
            limit,
            {c: rows[c] for c in rows if c.row.moves_data and c in match},
            despite,
            min_launches,
        )
    ]


def _hold_rows(
    limit: Limit, cases: Launches, despite: Collection[str], min_launches: int
) -> list[Held]:
    """The answer of a limit for each row that it is about."""
    tables: dict[tuple[Any, ...], dict[Case, Sequence[Row]]] = defaultdict(dict)
    for case, launches in cases.items():
        tables[_table_key(case)][case] = launches
    if limit.average:
        averages = [
            _hold_average(limit, members, despite, min_launches) for members in tables.values()
        ]
        return averages or [_hold_absent(limit, "average")]
    results: list[Held] = []
    for members in tables.values():
        nbytes = max(c.nbytes for c in members) if limit.size is None else limit.size
        matching = [
            case
            for case in members
            if case.nbytes == nbytes and not _is_form_skipped(case, members)
        ]
        results += [
            hold_row(limit, case, members[case], despite, min_launches) for case in matching
        ]
        if not matching:
            first = next(iter(members))
            results.append(
                _hold_absent(limit, describe_case(msgspec.structs.replace(first, nbytes=nbytes)))
            )
    return results or [
        _hold_absent(limit, "largest size" if limit.size is None else format_size(limit.size))
    ]


def _table_key(case: Case) -> tuple[Any, ...]:
    """The key that rows of one table of nccl-tests share: a limit is on the largest size of a
    table, or on its average."""
    details = (case.splits, case.groups, case.group, case.arrival, case.background, case.align)
    return (case.collective, case.label, case.n, case.mode, case.env, *details)


def _is_form_skipped(case: Case, cases: Launches) -> bool:
    """Whether it is only the form in place that was skipped, and the one out of place ran."""
    other = cases.get(msgspec.structs.replace(case, in_place=False), ())
    skipped = all(row.unfit == ("skipped",) for row in cases[case])
    return case.in_place and case.row.in_place is None and skipped and any(r.ran for r in other)


def _hold_absent(limit: Limit, row: str) -> Held:
    """The answer for a limit that no measured row matches."""
    return Held(
        row=row,
        wanted=limit.busbw,
        answer="no answer",
        average=limit.average,
        why="no row with a busbw was measured"
        if limit.average
        else "no row of this size was measured",
    )


def hold_row(
    limit: Limit,
    case: Case,
    launches: Sequence[Row],
    despite: Collection[str] = (),
    min_launches: int = 1,
) -> Held:
    """The answer of a limit for one row, over its launches. ``despite`` are flags that do not
    forbid one; a row that rests on fewer than ``min_launches`` launches has none."""
    about: dict[str, Any] = {"row": describe_case(case), "key": case.key, "wanted": limit.busbw}
    fit = select_deciding(launches, despite)
    left_out = [cycle for row in launches for cycle in row.left_out]
    broken = [cycle for cycle in left_out if cycle.unfit in ("wrong", "failed")]
    if broken or not fit:
        first = (broken or left_out)[0]
        reason = reasons_by_flag("excluded").get(first.unfit, first.unfit)
        why = f"{reason}: {first.record.note}" if first.record.note else reason
        return Held(**about, answer="no answer", why=plain_line(why))
    derived, time = fit[0].derived, case_time(fit)
    if derived is None or derived.busbw is None or math.isnan(derived.busbw):
        return Held(**about, answer="no answer", why="there is no busbw")
    work = derived.busbw * derived.times.median  # bytes that count, in GB/s times ns
    busbw, lo = work / time.median, work / time.hi
    hi = work / time.lo if time.lo > 0 else math.inf
    flags = sorted({flag for row in fit for flag in row.ungated} - {*despite})
    flags += ["predicted"] * any(row.predicted for row in fit)
    doubt = f"the row cannot be relied on ({', '.join(flags)})" if flags else ""
    count = len({row.launch for row in fit})
    too_few = f"{format_count(count, 'launch')}, and {min_launches} are needed"
    why = doubt or (too_few if count < min_launches else "")
    return Held(**about, **_hold_busbw(limit, busbw, lo, hi, why), launches=count)


def _hold_average(
    limit: Limit, cases: Launches, despite: Collection[str], min_launches: int
) -> Held:
    """The mean busbw of the rows that were not skipped. Its interval is the mean of theirs, which
    is wide enough even if all err the same way."""
    ran = {c: rows for c, rows in cases.items() if any(row.unfit != ("skipped",) for row in rows)}
    results = [
        hold_row(limit, case, launches, despite, min_launches) for case, launches in ran.items()
    ]
    first = next(iter(cases))
    name = f"average of {first.collective} on {format_count(first.n, 'rank')}, {first.label}"
    about: dict[str, Any] = {"row": plain_line(name), "wanted": limit.busbw, "average": True}
    unsure = [result for result in results if result.answer == "no answer"]
    if unsure or not results:
        why = unsure[0].why if unsure else "nothing was measured"
        many = f"{len(unsure)} of {format_count(len(results), 'row')}: " if unsure else ""
        return Held(**about, answer="no answer", why=many + why)
    busbw, lo, hi = (
        fmean(math.inf if value is None else value for value in values)
        for values in zip(
            *((result.busbw, result.lo, result.hi) for result in results), strict=True
        )
    )
    launches = min(result.launches for result in results)
    return Held(**about, **_hold_busbw(limit, busbw, lo, hi, ""), launches=launches)


def _hold_busbw(limit: Limit, busbw: float, lo: float, hi: float, why: str) -> dict[str, Any]:
    answer = "met" if lo >= limit.busbw else "short" if hi < limit.busbw else "not shown"
    bounds = {"lo": lo, "hi": hi if math.isfinite(hi) else None}
    return {"answer": "no answer" if why else answer, "busbw": busbw, **bounds, "why": why}


def advise_launches(result: Held) -> str:
    """What makes the interval of a row narrower that rests on few launches; "" for others."""
    few = 1 < result.launches < FEWEST_LAUNCHES
    return f"; {FEWEST_LAUNCHES} launches make it narrower (--launches {FEWEST_LAUNCHES})" * few


def describe_held(result: Held) -> str:
    """A line about a row that does not meet its limit."""
    minimum = f"{result.wanted:g}" + " (90 % of NCCL_TESTS_MIN_BW)" * result.average
    if result.busbw is None:
        return f"{result.row}: {minimum} GB/s of busbw wanted, no answer: {result.why}"
    bounded = result.hi is not None
    interval = (
        f"{format_bandwidth(result.lo)} to {format_bandwidth(result.hi)}"
        + " in this launch" * (result.launches == 1)
        if bounded
        else "no interval"
    )
    ends = {
        "short": "too little",
        "not shown": "not shown, as the 95 % interval reaches over it" + advise_launches(result),
        "met": "met",
    }
    got = f"{format_bandwidth(result.busbw)} GB/s of busbw [{interval}], {minimum} wanted"
    return f"{result.row}: {got}: {ends.get(result.answer, f'no answer, {result.why}')}"


def find_limits_exit(results: Sequence[Held]) -> Exit:
    """1 where a row falls short; else 3 where one has no answer, or none is shown; else 0."""
    answers = {result.answer for result in results}
    if "short" in answers:
        return Exit.BAD
    return Exit.NO_VERDICT if answers - {"met"} else Exit.OK
