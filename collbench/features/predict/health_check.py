"""A check of a night's health: nothing may be faster than links allow."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.core.text import format_count, format_duration
from collbench.features.health.checks.hosts import CheckResult
from collbench.features.health.checks.table import Check
from collbench.features.health.findings import Evidence, Finding, Subject
from collbench.features.health.night import Night, list_several
from collbench.features.predict.efficiency import PROBE, Merit, Yardstick
from collbench.suite.case_words import describe_case


def _check_bound(night: Night) -> CheckResult:
    """Large data that takes less time than over the links as sendrecv finds them: one of the two
    was measured wrongly, or sendrecv is slow. A message may well cost more in sendrecv, and a
    switch that adds up moves less.
    """
    points = night.points
    if not any(point.case.collective == PROBE for point in points):
        return CheckResult(
            missing="no sendrecv of three launches or more tells what the links can do"
        )
    stick = Yardstick(night.files, points)
    merits = [
        stick.merit(point)
        for point in points
        if point.case.collective != PROBE and point.first.wirebw is None
    ]
    judged_merits = [
        merit for merit in merits if merit.share is not None and merit.limit == "bytes"
    ]
    if not judged_merits:
        why = list_several(
            dict.fromkeys(constants.refused for constants in stick.constants if constants.refused)
        )
        return CheckResult(missing=why or "no row is bound by its links")
    fast = sorted(
        (merit for merit in judged_merits if merit.alarming),
        key=lambda merit: -(merit.share or 0.0),
    )
    note = f"{format_count(len(judged_merits), 'row')} against the least time possible"
    return CheckResult(note, [_too_fast(night, fast)] if fast else [])


def _too_fast(night: Night, merits: Sequence[Merit]) -> Finding:
    """The finding for rows that are faster than the bound allows."""
    evidence = [
        Evidence(
            what=f"{describe_case(merit.point.case)}: median",
            value=format_duration(merit.point.median),
            expected=f"at least {format_duration(merit.bound)}",
            run=night.files[merit.point.run].run.id,
            case=merit.point.case.key,
        )
        for merit in merits
    ]
    more = f", as are {format_count(len(merits) - 1, 'other row')}" if len(merits) > 1 else ""
    return Finding(
        check="bound",
        severity="hint",
        subject=Subject("collective", describe_case(merits[0].point.case)),
        evidence=evidence,
        what=f"is {merits[0].share:.2f} × faster than the links, judged by sendrecv{more}",
        advice=("re-measure sendrecv; if it holds, distrust these rows"),
    )


BOUND = Check("bound", _check_bound)
