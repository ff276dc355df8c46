"""The checks of a night, as a table, and the verdict that they come to together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from collbench.core.feature import load_ordered
from collbench.core.text import format_count, plain_line
from collbench.features.health.checks import data, expectations, guidelines, hosts, ports
from collbench.features.health.checks.guidelines import (
    Claim,
    find_missed,
    make_finding,
    select_testable,
)
from collbench.features.health.checks.hosts import CheckResult
from collbench.features.health.findings import Checked, Finding, Severity, State, Verdict
from collbench.features.health.history.nights import look_up_night
from collbench.features.health.night import LAUNCHES, Night
from collbench.records.origins import is_fake
from collbench.records.types import RunFile
from collbench.show import busy

RANKING: tuple[Severity, ...] = ("critical", "warning", "hint")

GRAVE: tuple[Severity, ...] = ("critical", "warning")


class Check(NamedTuple):
    """``needed`` names what no verdict can do without: of each, one check at least must have had
    something to see."""

    name: str
    look: Callable[[Night], CheckResult]
    needed: str = ""


NEEDS = {  # rows that a guideline holds against each other
    "monotony": "two sizes of a collective, one at least twice the other",
    "split": "two sizes of a collective, one a multiple of the other",
    "composition": "a collective and others that together do the same, at one size",
    "library": "a collective by native and by an algorithm, on one backend",
    "link": "a collective and sendrecv, at one size from 1 MiB on",
}


def _make_guideline(name: str, claims: Callable[[Night], list[Claim]], advice: str) -> Check:
    return Check(name, partial(_hold_claims, name, claims, advice), "times")


def _hold_claims(
    name: str, claims: Callable[[Night], list[Claim]], advice: str, night: Night
) -> CheckResult:
    """A finding for each claim that surely does not hold; of several claims about a case, for the
    worst alone. What was not tested is no pass."""
    claim_list = claims(night)
    every = select_testable(claim_list)
    shared = f"{LAUNCHES} launches that have all rows of a claim"
    if not every:
        needs = f"not tested: needs {shared if claim_list else NEEDS[name]}"
        return CheckResult(missing=night.unfit if not night.fit and night.timings else needs)
    worst = {missed.claim.timing.case: missed for missed in reversed(find_missed(every))}
    note = f"{format_count(len(every), 'claim')} over {LAUNCHES} launches or more"
    untestable = len(claim_list) - len(every)
    short = f"{format_count(untestable, 'claim')} not tested: needs {shared}" * bool(untestable)
    return CheckResult(
        "; ".join(filter(None, [note, short, night.unfit])),
        [make_finding(name, missed, advice) for missed in reversed(worst.values())],
    )


def _check_link(night: Night) -> CheckResult:
    """Guidelines between rows of a collective and of sendrecv; hints on one host, where there is
    nothing but memory between ranks, and healthy libraries move it as they like."""
    advice = "it uses links worse than sendrecv: look at channels and algorithm"
    result = _hold_claims("link", guidelines.claim_link, advice, night)
    if night.wired:
        return result
    return result._replace(
        findings=[msgspec.structs.replace(finding, severity="hint") for finding in result.findings]
    )


CHECKS: tuple[Check, ...] = (
    Check("data", data.check_data, "data"),
    Check("completeness", data.check_completeness, "complete runs"),
    Check("repeatability", data.check_repeatability),
    _make_guideline(
        "monotony",
        guidelines.claim_monotony,
        "more data take less time: the library changes its algorithm too late",
    ),
    _make_guideline(
        "split", guidelines.claim_split, "pieces are faster than the whole: so is another algorithm"
    ),
    _make_guideline(
        "composition",
        guidelines.claim_composition,
        "tune the library's choice of algorithm, or call the others",
    ),
    _make_guideline(
        "library",
        guidelines.claim_library,
        "let the library use that algorithm, by NCCL_ALGO or a tuner",
    ),
    Check("link", _check_link, "times"),
    Check("expectation", expectations.check_expectations),
    Check("stragglers", hosts.check_stragglers),
    Check("pairs", hosts.check_pairs),
    Check("gpus", hosts.check_gpus),
    Check("ports", ports.check_ports),
    Check("counters", ports.check_counters),
    Check("alike", hosts.check_alike),
)


def judge_night(files: Sequence[RunFile], more: Iterable[Check] = ()) -> Verdict:
    """The verdict on a night of runs; ``more`` are checks beyond CHECKS, as those that need a
    history.

    Missing data is never a pass: without findings, a night is healthy only where every need of the
    checks was seen to.
    """
    night = Night(files)
    ids = [file.run.id for file in files]
    if night.trouble or not files:
        return Verdict(
            state="no verdict",
            summary=night.trouble or "there are no runs",
            findings=[],
            checks=[],
            runs=ids,
            fake=any(map(is_fake, files)),
            hosts=night.hosts,
        )
    table = load_ordered(
        "checks", [(check.name, check) for check in (*CHECKS[:2], *more, *CHECKS[2:])]
    )
    results = [(check, check.look(night)) for check in table.values()]
    findings = sorted(
        (f for _, result in results for f in result.findings),
        key=lambda f: RANKING.index(f.severity),
    )
    checks = [_make_result(check, result) for check, result in results]
    lacking = _find_lacking(results)
    grave = [finding for finding in findings if finding.severity in GRAVE]
    state: State = "unhealthy" if grave else "no verdict" if lacking else "healthy"
    return Verdict(
        state=state,
        summary=_summarise(state, grave, lacking, checks, findings),
        findings=findings,
        checks=checks,
        runs=ids,
        injected=describe_injected(files),
        hosts=night.hosts,
        ended=max(map(_end_time, files)),
        night=look_up_night(max(file.run.started for file in files)),
        busy=busy.of_files(files),
    )


def describe_injected(files: Iterable[RunFile]) -> str:
    """The faults that were planted in these runs, in the words of --inject."""
    faults = dict.fromkeys(str(getattr(file.run.policy, "inject", "")) for file in files)
    return ", ".join(filter(None, faults))


def _end_time(file: RunFile) -> str:
    return file.end.ended if file.end and file.end.ended else file.run.started


def _make_result(check: Check, result: CheckResult) -> Checked:
    if result.idle and not result.findings:
        return Checked(check.name, "not applicable", result.idle)
    if result.missing and not result.findings:
        return Checked(check.name, "no data", result.missing)
    note = "; ".join(dict.fromkeys(filter(None, [result.note, result.missing])))
    return Checked(check.name, "found" if result.findings else "passed", note)


def _find_lacking(results: Iterable[tuple[Check, CheckResult]]) -> dict[str, str]:
    """The data that no check saw though a verdict needs it, and the first reason why; and what one
    check alone can see, and did not. Hints do not stand in for what a check lacked."""
    results = list(results)
    met: dict[str, bool] = {}
    why: dict[str, str] = {}
    for check, result in results:
        has_grave = any(finding.severity in GRAVE for finding in result.findings)
        blind = bool(result.missing or result.idle) and not has_grave
        if check.needed:
            met[check.needed] = met.get(check.needed, False) or not blind
            if blind:
                why.setdefault(check.needed, result.missing or result.idle)
    lacking = {need: why[need] for need, satisfied in met.items() if not satisfied}
    return lacking | {result.lacks: result.missing for _, result in results if result.lacks}


def _summarise(
    state: State,
    grave: Sequence[Finding],
    lacking: dict[str, str],
    checks: Sequence[Checked],
    findings: Sequence[Finding],
) -> str:
    """One sentence on who is at fault, on what is missing, or on how much was checked."""
    if state == "unhealthy":
        worst = grave[0]
        more = f"; {format_count(len(grave) - 1, 'more finding')}" if len(grave) > 1 else ""
        since = f", since {worst.since}" if worst.since else ""
        return plain_line(f"{worst.sentence}{since}{more}")
    if state == "no verdict":
        return plain_line("; ".join(f"{need}: {why}" for need, why in lacking.items()))
    passed = sum(check.outcome in ("passed", "found") for check in checks)
    blind = sum(check.outcome == "no data" for check in checks)
    text = f"{format_count(passed, 'check')} passed, {blind:,} had no data"
    return text + (f", {format_count(len(findings), 'hint')}" if findings else "")
