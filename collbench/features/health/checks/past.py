"""Tonight against the nights before: a gate that fresh launches confirm, changes of level, creep,
rows and ports that were otherwise."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from collbench.core.errors import UsageError
from collbench.core.text import format_count, format_duration
from collbench.features.health.checks.hosts import CheckResult
from collbench.features.health.checks.lost import find_lost
from collbench.features.health.checks.ports import find_degraded_ports
from collbench.features.health.findings import Evidence, Finding, Subject
from collbench.features.health.history import gates
from collbench.features.health.history import nights as nights_
from collbench.features.health.history.gates import LEARNING, PAST, RECENT, RERUNS
from collbench.features.health.history.levels import WINDOW
from collbench.features.health.history.outlook import Outlook, make_outlook
from collbench.features.health.history.selection import select_rows
from collbench.features.health.history.shifts import Shift
from collbench.features.health.history.ways import find_current, find_past
from collbench.features.health.night import Night, Timing
from collbench.records import stats
from collbench.records.case_rows import gather_case_rows, smallest_change
from collbench.records.types import RunFile
from collbench.suite.case import Case
from collbench.suite.case_words import describe_case

if TYPE_CHECKING:
    from collbench.features.health.history.storage import Book


Fresh = Callable[[Sequence[Case]], Night]  # launches these cases again, at once

EARLIER_NIGHTS = "earlier nights"  # what no verdict does without where there are some


class Known(NamedTuple):
    """What the history holds of tonight's rows: all nights of this machine with tonight, what
    became of their levels, and by key the smallest change that matters. ``every``: all rows of the
    machine up to tonight. ``selection``: options by which commands find it. ``current``: names of
    the outlook's rows, in the way in which the book has them measured last."""

    series: Sequence[nights_.Series]
    outlook: Outlook
    taus: Mapping[str, float]
    every: Sequence[nights_.Series]
    selection: str
    current: Collection[str]


def add_night(book: Book, files: Sequence[RunFile], machine: str = "") -> Known:
    """Add these runs, of one night, to ``book``, and return what it says of them by that night and
    those before. ``machine`` as in Book.add. Raises UsageError, also for runs that are kept under
    another machine, and CannotRun."""
    for file in files:
        book.add(file, machine)
        run_machine = book.find_machine(file.run.id)
        if machine not in ("", run_machine):
            raise UsageError(
                f"{file.run.id} was added as a run of {run_machine}, and --machine names {machine}",
                f"give --machine '{run_machine}', or leave it out",
            )
    machine = book.find_machine(files[0].run.id)
    tonight, taus = nights_.nights_of(files), _list_taus(files)
    last = max((night.day for night in tonight.values()), default="")
    kept = book.series(machine)
    every = [row.until(last) for row in kept if row.nights[0].day <= last]
    series = [row for row in every if row.key in tonight]
    outlook = make_outlook(machine, series, taus=taus)
    latest = {row.key: find_current(row).nights for row in kept if row.key in tonight}
    current = {way.name for way in outlook.series if way.nights[-1] in latest[way.key]}
    return Known(series, outlook, taus, every, book.select(machine), current)


class Candidate(NamedTuple):
    """A row that is too slow tonight, beside its past. ``night`` is tonight in the history, which
    rests on launches between two modes, too."""

    timing: Timing
    night: nights_.Night
    past: Sequence[float]
    tau: float
    gate: gates.Gate
    way: str = ""


class Unjudged(NamedTuple):
    """A row of tonight that could not be held against so many ``nights`` of its own, and why."""

    case: Case
    why: str
    nights: int


def check_past(history: Known, fresh: Fresh | None, night: Night) -> CheckResult:
    """Rows slower than in the last nights, levels that rose and stand, rows that crept away from
    their anchor, rows that are missing, and ports that were faster."""
    tonight, timings = (
        nights_.nights_of(night.files),
        {case.key: timing for case, timing in night.timings.items()},
    )
    is_auto = any(file.run.policy.sync == "auto" for file in night.files)
    judged: list[gates.Gate] = []
    candidates, unjudged = [], []
    for series in history.series:
        point, timing = tonight.get(series.key), timings.get(series.key)
        if point is None or timing is None:
            continue
        before, way = find_past(series, point)
        gate = gates.gate_night(before, point.value, history.taus[series.key])
        if blind := _explain_blind(series, point, gate, is_auto):
            unjudged.append(blind)
        elif point.valid:
            judged.append(gate)
        if point.valid and gate.state == "candidate":
            tau = history.taus[series.key]
            candidate = Candidate(timing, point, before, tau, gate, way)
            candidates += [] if _is_explained(candidate, history) else [candidate]
    last = max((point.day for point in tonight.values()), default="")
    findings = [
        *find_lost(history.every, night.files, last),
        *find_degraded_ports(night.files, _list_earlier_facts(history.series, last)),
        *_find_late([row for row in unjudged if row.why == LATE]),
        *_confirm_candidates(candidates, fresh),
        *_find_shifted(history),
        *_find_crept(history, timings),
    ]
    return _tell_judged(judged, unjudged)._replace(findings=findings)


LATE = "ranks came late to many starts"


def _explain_blind(
    series: nights_.Series, tonight: nights_.Night, gate: gates.Gate, is_auto: bool
) -> Unjudged | None:
    """The reason why a row that has nights enough is not held against them: ranks that came late
    had to be started in another way, or tonight itself may not be judged; None where there is none,
    or the row is still learning."""
    if is_auto and gate.state == "learning":
        earlier = [night for night in series.nights if night.day < tonight.day and night.valid]
        nights = sum(nights_.began_otherwise(night, tonight) for night in earlier)
        if nights >= LEARNING:
            return Unjudged(series.case, LATE, nights)
    is_blind = tonight.unfit_reason and gate.nights >= LEARNING
    return Unjudged(series.case, tonight.unfit_reason, gate.nights) if is_blind else None


def _tell_judged(judged: Sequence[gates.Gate], unjudged: Sequence[Unjudged]) -> CheckResult:
    """What was held against earlier nights, or why nothing was: where there are nights enough, this
    is no pass."""
    learning = sum(gate.state == "learning" for gate in judged)
    blind = (
        f"{format_count(len(unjudged), 'row')} not judged: {unjudged[0].why}" if unjudged else ""
    )
    if learning < len(judged):
        note = f"{format_count(len(judged), 'row')} against up to {PAST} nights"
        more = f"{learning} still learning" * bool(learning)
        return CheckResult("; ".join(filter(None, [note, more, blind])))
    if unjudged:
        most = max(row.nights for row in unjudged)
        return CheckResult(missing=f"{blind}, beside {most} earlier nights", lacks=EARLIER_NIGHTS)
    if not judged:
        return CheckResult(
            missing=f"no row of {format_count(RERUNS, 'launch')} or more is in the history"
        )
    most = max(gate.nights for gate in judged)
    return CheckResult(
        missing=(
            f"needs {LEARNING} earlier nights of a row since its last change; no row has"
            f" {f'more than {most}' if most else 'any'} so far"
        )
    )


def _list_earlier_facts(rows: Sequence[nights_.Series], day: str) -> list[Mapping[str, Any]]:
    """The environments of the last RECENT nights before ``day`` that had any of these rows."""
    prints = {
        night.day: series.environments.get(night.fingerprint, {})
        for series in rows
        for night in series.nights
        if night.day < day
    }
    return [prints[earlier] for earlier in sorted(prints)[-RECENT:]]


def _find_late(rows: Sequence[Unjudged]) -> list[Finding]:
    """A hint about rows whose ranks could not be started as in earlier nights, in a list."""
    if not rows:
        return []
    cases = [describe_case(row.case) for row in rows]
    more = f" and {format_count(len(cases) - 1, 'more row')}" if len(cases) > 1 else ""
    return [
        Finding(
            check="history",
            severity="hint",
            subject=Subject("collective", cases[0] + more),
            since="tonight",
            what=(
                f"started by barriers, as {LATE}: not held against"
                f" {max(row.nights for row in rows)} nights that started by windows"
            ),
            advice="look for what else ran on these cores, and measure the night again",
        )
    ]


def _list_taus(files: Sequence[RunFile]) -> dict[str, float]:
    """The largest that any of the runs which have a row asks for, by its key."""
    taus: dict[str, float] = {}
    for file in files:
        for key, row in gather_case_rows([file], False, lambda _, case: case.key).items():
            tau = file.run.suite.tau(row.case, smallest_change(row, file.run.environment))
            taus[key] = max(tau, taus.get(key, 0.0))
    return taus


def _is_explained(candidate: Candidate, history: Known) -> bool:
    """Whether a standing rise explains the candidate: tonight is at most tau above the median of
    the nights since."""
    for shift in _list_risen(history):
        for row in shift.stands:
            if (row.key, row.way) == (candidate.timing.case.key, candidate.way):
                since = [n.value for n in row.nights if n.valid and n.day >= shift.day]
                return candidate.night.value - stats.median(since) <= math.log1p(candidate.tau)
    return False


def _confirm_candidates(candidates: Sequence[Candidate], fresh: Fresh | None) -> list[Finding]:
    """Only what is slow again in fresh launches is slow: on one night in many, some row is by
    chance."""
    if not candidates or fresh is None:
        return [
            _find_slower(
                candidate, candidate.gate, "hint", "one night, not measured again (--rerun)"
            )
            for candidate in candidates
        ]
    again = fresh([candidate.timing.case for candidate in candidates])
    launches = _group_launches(again.files)
    findings = []
    for candidate in candidates:
        alike = [
            launch
            for launch in launches[candidate.timing.case.key]
            if launch.manner == candidate.night.manner
        ]
        values = [math.log(row.median) for row in nights_.share_flags(alike) if not row.unfit]
        if len(values) < RERUNS:
            findings.append(
                _find_slower(
                    candidate,
                    candidate.gate,
                    "hint",
                    f"measured again, with {len(values)} launches that count",
                )
            )
            continue
        verdict = gates.confirm_reruns(candidate.past, values, candidate.tau)
        if verdict.state == "alarm":
            findings.append(
                _find_slower(
                    candidate, verdict, "warning", f"and again in {len(values)} fresh launches"
                )
            )
    return findings


def _group_launches(files: Sequence[RunFile]) -> Mapping[str, list[nights_.NightLaunch]]:
    """The launches that a history would take, by the key of rows."""
    launches_by_key: dict[str, list[nights_.NightLaunch]] = defaultdict(list)
    for file in files:
        for case, launches in nights_.launches_of(file).items():
            launches_by_key[case.key] += launches
    return launches_by_key


def _find_slower(candidate: Candidate, gate: gates.Gate, severity: str, how: str) -> Finding:
    """The finding for a row that is slower tonight than in past nights."""
    usual = math.exp(stats.median(candidate.past[-PAST:]))
    evidence = Evidence(
        what=f"{describe_case(candidate.timing.case)}: median",
        value=format_duration(math.exp(candidate.night.value)),
        expected=format_duration(usual),
        run=candidate.timing.run,
        case=candidate.timing.case.key,
    )
    return Finding(
        check="history",
        severity="warning" if severity == "warning" else "hint",
        evidence=[evidence],
        since="tonight",
        subject=Subject("collective", describe_case(candidate.timing.case)),
        what=(
            f"takes {gate.delta:.1%} longer than in the last {gate.nights} nights"
            f"{f' with {candidate.way}' if candidate.way else ''} (z {gate.z:.1f}),"
            f" {how}"
        ),
        advice="look at the other findings and at collbench pairs for who is at fault",
    )


def _advise(rows: Sequence[nights_.Series], since: str, history: Known) -> str:
    """The commands that show how these rows, all of one way, changed, and that accept their level
    since a night: of all rows of the machine, unless these are selected. Only the way measured last
    can be accepted; for another one, words on when it can."""
    selection = history.selection + select_rows([row.case for row in rows])
    show = f"collbench history trend{selection} shows what changed when; if the change is intended,"
    if all(row.name in history.current for row in rows):
        accept = f"collbench history baseline accept{selection} --since {since} --reason '…'"
        return f"{show} accept it: {accept}"
    way = f"with {rows[0].way}" if rows[0].way else "measured this way"
    return (
        f"{show} accept it after the next night {way}: health prints the command then, as only"
        " what was measured last can be accepted"
    )


def _list_risen(history: Known) -> list[Shift]:
    """Levels that rose, on which neighbouring sizes agree, and that did not fall again."""
    return [shift for shift in history.outlook.changed if shift.standing and shift.delta > 0]


def _find_shifted(history: Known) -> list[Finding]:
    """A finding for each level that rose and stands."""
    findings = []
    for shift in _list_risen(history):
        rows = [
            Evidence(
                what=f"{describe_case(row.case)}: nights",
                value=len(row.nights),
                run=row.nights[-1].runs[-1],
                case=row.key,
            )
            for row in shift.stands
        ]
        kind = "part" if shift.stands[0].case.table.together else "size"
        more = f" and {format_count(len(rows) - 1, f'more {kind}')}" if len(rows) > 1 else ""
        way = f" with {shift.stands[0].way}" if shift.stands[0].way else ""
        cases = describe_case(shift.stands[0].case) + more
        findings.append(
            Finding(
                check="history",
                severity="warning",
                subject=Subject("collective", cases),
                since=shift.day,
                what=f"takes {shift.delta:.1%} longer{way}",
                advice=_advise(shift.stands, shift.day, history),
                evidence=rows,
                sure=max(0.0, 1 - WINDOW * shift.p),  # the night was chosen among so many
            )
        )
    return findings


def _find_crept(history: Known, timings: Mapping[str, Timing]) -> list[Finding]:
    """A finding for each row that has become slower than its anchor, little by little."""
    findings = []
    for series in history.outlook.series:
        drift, timing = history.outlook.creeping.get(series.name), timings.get(series.key)
        if drift and timing:
            since = series.segments[-1].valid[-drift.nights].day
            findings.append(
                Finding(
                    check="history",
                    severity="warning",
                    subject=Subject("collective", describe_case(timing.case)),
                    advice=_advise([series], since, history),
                    what=(
                        f"crept to {drift.delta:.1%} above its anchor, by the last {drift.nights}"
                        f" nights{f' with {series.way}' if series.way else ''}"
                    ),
                    evidence=[
                        Evidence(
                            what="nights", value=len(series.nights), run=timing.run, case=series.key
                        )
                    ],
                )
            )
    return findings
