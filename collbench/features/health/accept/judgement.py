"""Whether machines are accepted: each row against its limits, wrong data, and what was not tested.

A row passes or fails only where its whole 95 % interval does (records/limits.py). Limits are those
of tables of expected bandwidths, of which hints decide nothing, and those of the runs' suites.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Literal, NamedTuple

import msgspec

from collbench.core.errors import Exit, NoVerdict
from collbench.core.text import format_count, format_size, plain_line
from collbench.features.health.checks import data, hosts
from collbench.features.health.checks.curves import Curve
from collbench.features.health.checks.expectations import (
    Expected,
    Machine,
    are_different,
    describe_difference,
    describe_machine,
    describe_origin,
    expect_case,
    list_choices,
)
from collbench.features.health.checks.table import GRAVE
from collbench.features.health.findings import Finding, Severity
from collbench.features.health.night import LAUNCHES, Night, list_several
from collbench.records import limits
from collbench.records.flags import INJECTED
from collbench.records.limits import Held
from collbench.records.rows import Row, group_rows
from collbench.records.types import Choice, RunFile
from collbench.suite.case import Case, Limit
from collbench.suite.case_words import describe_case
from collbench.suite.sweep import Threshold

State = Literal["accepted", "not accepted", "not decided"]

TOLERATED = (INJECTED,)  # flags that forbid no answer: a planted fault must be found

EXITS: dict[State, Exit] = {
    "accepted": Exit.OK,
    "not accepted": Exit.BAD,
    "not decided": Exit.NO_VERDICT,
}


class LimitedRow(NamedTuple):
    """A row against one of its limits: ``table`` has it, or the suite, ``origin`` says where that
    has it from; ``severity``, whether it decides."""

    held: Held
    table: str
    origin: str
    severity: Severity

    @property
    def decides(self) -> bool:
        """Whether acceptance depends on it."""
        return self.severity in GRAVE

    @property
    def margin(self) -> float | None:
        """By what share its busbw is above the limit; None where there is no busbw."""
        return None if self.held.busbw is None else self.held.busbw / self.held.wanted - 1


class Untested(NamedTuple):
    """Something that the certificate says nothing of, and why."""

    kind: Literal["case", "row", "curve", "size", "data"]
    what: str
    why: str


class Acceptance(NamedTuple):
    """The answer that rows of runs give. ``findings`` are wrong data, broken cases and hosts that
    changed from run to run, ``open`` reasons for which nothing is decided, ``contradictions`` rows
    of which tables ask different things."""

    state: State
    summary: str
    rows: list[LimitedRow]
    untested: list[Untested]
    findings: list[Finding]
    open: list[str]
    contradictions: list[str]
    hosts: list[str]

    @property
    def exit(self) -> Exit:
        """The exit code of this state."""
        return EXITS[self.state]


def judge_acceptance(files: Sequence[RunFile], curves: Sequence[Curve]) -> Acceptance:
    """The rows of these runs, of one machine, against the limits of ``curves`` and of the runs'
    suites. Raises NoVerdict where the runs are no measurement of one machine."""
    night = Night(files)
    if night.trouble:
        raise NoVerdict(night.trouble, "give runs that collbench measured on the same machines")
    machine, chose = describe_machine(night), list_choices(night)
    cases = group_rows(night.rows, lambda row: row.case)
    tried = [case for case, launches in cases.items() if not _is_skipped(launches)]
    relevant = [curve for curve in curves if machine.is_subject_of(curve)]
    rivals_by_case = [
        (case, rivals)
        for case in tried
        for rivals in expect_case(relevant, chose, case, machine.shapes)
    ]
    rows = [
        _hold_expected(rivals[0], case, cases[case], date.today())
        for case, rivals in rivals_by_case
    ]
    contradictions = [
        f"{describe_case(case)}: {describe_difference(rivals[0], rivals[-1])}"
        for case, rivals in rivals_by_case
        if are_different(rivals[0], rivals[-1])
    ]
    rows += _hold_suites(files)
    untested = [
        *_list_skipped(cases),
        *_list_unlimited(cases, {row.held.key for row in rows}),
        *_list_unmeasured(curves, machine, chose, tried),
    ]
    checks = [data.check_data(night), data.check_completeness(night)]
    untested += _list_unchecked(night)
    findings = [finding for check in checks for finding in check.findings]
    findings += hosts.find_changed(night)
    reasons = [check.missing for check in checks if check.missing]
    reasons += _list_open(rows, relevant, untested)
    state, summary = _conclude(rows, findings, reasons)
    summary = plain_line(summary)
    return Acceptance(
        state, summary, rows, untested, findings, reasons, contradictions, night.hosts
    )


def _hold_expected(
    expected: Expected, case: Case, launches: Sequence[Row], today: date
) -> LimitedRow:
    """A row against what a curve expects of it."""
    limit = Limit(busbw=expected.limit)
    held = limits.hold_row(limit, case, launches, TOLERATED, LAUNCHES)
    curve = expected.curve
    return LimitedRow(held, curve.file, describe_origin(curve, today), curve.severity)


def _hold_suites(files: Sequence[RunFile]) -> list[LimitedRow]:
    """The rows against the limits of their suites, over the launches of all runs of a suite: under
    a launcher each run has one."""
    runs_by_suite: dict[tuple[str, tuple[Threshold, ...]], list[RunFile]] = {}
    for file in files:
        suite = file.run.suite
        runs_by_suite.setdefault((suite.name, suite.thresholds), []).append(file)
    return [
        LimitedRow(held, f"suite {name}", "its min_busbw", "critical")
        for (name, _), runs in runs_by_suite.items()
        for held in limits.judge_limits(*runs, min_launches=LAUNCHES, despite=TOLERATED)
    ]


def _is_skipped(launches: Sequence[Row]) -> bool:
    """Whether a case was skipped in every launch: nothing is said of it then."""
    return all(row.unfit == ("skipped",) for row in launches)


def _list_skipped(cases: dict[Case, list[Row]]) -> list[Untested]:
    """Cases that were skipped in every launch, by their reason."""
    by_reason: dict[str, list[Case]] = {}
    for case, launches in cases.items():
        if _is_skipped(launches):
            reason = plain_line(launches[0].record.note) or "no reason given"
            by_reason.setdefault(reason, []).append(case)
    return [
        Untested("case", list_several(map(describe_case, members)), f"skipped: {reason}")
        for reason, members in by_reason.items()
    ]


def _list_unlimited(cases: dict[Case, list[Row]], limited: set[str]) -> list[Untested]:
    """Rows that were measured and have no limit."""
    return [
        Untested("row", describe_case(case), "measured, and no curve or suite has a limit for it")
        for case, launches in cases.items()
        if case.key not in limited and case.row.moves_data and not _is_skipped(launches)
    ]


def _list_unmeasured(
    curves: Sequence[Curve], machine: Machine, chose: dict[str, Choice], cases: Sequence[Case]
) -> list[Untested]:
    """Curves, and sizes of curves, that no row says anything of."""
    untested = []
    for curve in curves:
        name = _name_curve(curve)
        if not machine.has_kind(curve):
            untested.append(Untested("curve", name, "it is about other machines"))
            continue
        sizes = {case.size for case in cases if expect_case([curve], chose, case, machine.shapes)}
        if not sizes:
            untested.append(
                Untested("curve", name, "no row of its ranks, implementation and sizes")
            )
        elif missing := [size for size, _ in curve.sizes if size not in sizes]:
            listed = ", ".join(map(format_size, missing))
            untested.append(Untested("size", f"{name}: {listed}", "no row of this size"))
    return untested


def _name_curve(curve: Curve) -> str:
    return f"{curve.name}, {curve.backend or 'the library'} ({curve.file})"


def _list_unchecked(night: Night) -> list[Untested]:
    """Rows whose data nobody checked."""
    cases = dict.fromkeys(
        msgspec.structs.replace(entry.record.case, cycle=0)
        for entry in night.records
        if entry.record.status == "ok" and not entry.record.checked and entry.record.case.count
    )
    if not cases:
        return []
    names = list_several(map(describe_case, cases))
    return [Untested("data", names, "the data were not checked")]


def _list_open(
    rows: Sequence[LimitedRow], relevant: Sequence[Curve], untested: Sequence[Untested]
) -> list[str]:
    """Reasons for which the limits decide nothing."""
    deciding = [row for row in rows if row.decides]
    if not deciding:
        why = (
            "all limits are hints, which decide nothing: set severity once the table is reviewed"
            if rows
            else "no row has a limit"
        )
        return [why]
    undecided = [row.held for row in deciding if row.held.answer not in ("met", "short")]
    reasons = []
    if undecided:
        count = format_count(len(undecided), "row")
        reasons = [f"{count} not decided; {limits.describe_held(undecided[0])}"]
    names = {_name_curve(curve) for curve in relevant if curve.severity in GRAVE}
    return reasons + [
        f"{item.what}: {item.why}"
        for item in untested
        if item.kind == "curve" and item.what in names
    ]


def _describe_failure(held: Held) -> str:
    """A sentence about a row that surely has less than its limit."""
    return (
        f"{held.row} reaches {held.busbw:.4g} GB/s [{held.lo:.4g} to {held.hi:.4g}] of"
        f" {held.wanted:.4g}"
    )


def _conclude(
    rows: Sequence[LimitedRow], findings: Sequence[Finding], reasons: Sequence[str]
) -> tuple[State, str]:
    """The state, and a sentence on what it is for."""
    deciding = [row for row in rows if row.decides]
    failed = [row for row in deciding if row.held.answer == "short"]
    failed.sort(key=lambda row: row.margin or 0.0)
    wrong = [finding for finding in findings if finding.check == "data"]
    if wrong or failed:
        sentences = [finding.sentence for finding in wrong]
        sentences += [_describe_failure(row.held) for row in failed]
        more = f"; {len(sentences) - 1:,} more" if len(sentences) > 1 else ""
        return "not accepted", sentences[0] + more
    open_reasons = [*(finding.sentence for finding in findings), *reasons]
    if open_reasons:
        more = f"; {len(open_reasons) - 1:,} more" if len(open_reasons) > 1 else ""
        return "not decided", open_reasons[0] + more
    worst = min(deciding, key=lambda row: row.margin or 0.0)
    margin = f", by {worst.margin:.1%} or more" if worst.margin is not None else ""
    return "accepted", f"{format_count(len(deciding), 'row')} above the limit{margin}"
