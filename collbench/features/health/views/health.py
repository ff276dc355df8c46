"""A verdict on a cluster's health as a document: for people, for monitoring, for chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from collbench.core.text import format_count, plain_line
from collbench.features.health.blame import list_blamed
from collbench.features.health.expect.power import Power
from collbench.features.health.expect.view import (
    list_power_blocks,
    make_power_section,
    plain_power,
)
from collbench.features.health.findings import (
    Checked,
    Evidence,
    Finding,
    Severity,
    State,
    Subject,
    Verdict,
)
from collbench.features.health.history import view as history
from collbench.features.health.history.outlook import Outlook
from collbench.features.health.night import host_of
from collbench.records.types import RunFile
from collbench.show.document import (
    Block,
    Column,
    Gauge,
    Judgement,
    JunitCase,
    Line,
    Section,
    Table,
    Weight,
    make_columns,
    tone_text,
)
from collbench.show.views import run
from collbench.show.views.gauges import parse_time

SCHEMA = 1  # of the JSON

NAGIOS: dict[State, tuple[int, str]] = {
    "healthy": (0, "OK"),
    "unhealthy": (1, "WARNING"),
    "no verdict": (3, "UNKNOWN"),
}

CRITICAL, UNKNOWN = (2, "CRITICAL"), NAGIOS["no verdict"]

MARKS: dict[State, str] = {"healthy": "✅", "unhealthy": "❌", "no verdict": "❔"}

STATES: tuple[State, ...] = ("healthy", "unhealthy", "no verdict")

LINE = 500  # characters of a line for a chat

GROUP = "collbench.health"  # of its JUnit cases

HOSTS = 200  # lines of the grid: those with findings first

CLUSTER = "cluster"

WEIGHTS: dict[State, Weight] = {"healthy": "good", "unhealthy": "bad", "no verdict": "notice"}

GRAVITY: dict[Severity, Weight] = {"critical": "bad", "warning": "bad", "hint": "notice"}

OUTCOMES: dict[str, Weight] = {
    "passed": "good",
    "found": "notice",
    "no data": "",
    "not applicable": "",
}

CHECKS = (
    Column("check", "wrap"),
    Column("outcome", "wrap"),
    Column("what was seen, or is missing", "wrap", dim=True),
)

CELLS = {"passed": "✓", "found": "✓", "no data": "?", "not applicable": "-"}

LEGEND = (
    "✓: nothing found; ?: no data, which is no pass. The first line is about all hosts together."
)


def make_document(
    verdict: Verdict, files: Sequence[RunFile] = (), trend: Outlook | None = None
) -> Judgement:
    """The page: findings, checks by host, evidence, ``trend``; then, of ``files``, the report that
    these lead into."""
    report = run.make_document(files) if files else None
    proofs = [
        (index, proof)
        for index, finding in enumerate(verdict.findings)
        for proof in finding.evidence
    ]
    own_sections = [
        _findings_section(verdict),
        _checks_section(verdict, trend),
        *([_evidence_section(proofs, report is not None)] if proofs else []),
    ]
    own_sections += history.make_sections(trend) if trend and trend.series else []
    return Judgement(
        title=f"Health of {_name_some(verdict.hosts, 3) or 'a cluster'}",
        verdict=_make_sentence(verdict),
        weight=WEIGHTS[verdict.state],
        sections=[*own_sections, *(report.sections if report else [])],
        runs=report.runs if report else [f"run {name}" for name in verdict.runs],
        data=report.data if report else [],
        brief=_make_brief(verdict),
        line=make_line(verdict),
        values=plain_values(verdict),
        suite=f"collbench {describe_mark(verdict)}health",
        cases=junit_cases(verdict),
        gauges=list_gauges(verdict),
    )


def add_power(document: Judgement, power: Power) -> Judgement:
    """The page with what loss the table of --expect finds how often, after its own checks."""
    names = [section.name for section in document.sections]
    at = names.index("checks") + 1
    sections = [*document.sections[:at], make_power_section(power), *document.sections[at:]]
    return msgspec.structs.replace(
        document,
        sections=sections,
        brief=[*document.brief, "", *list_power_blocks(power)],
        values={**document.values, "gate_power": plain_power(power)},
    )


def _name_some(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


def _findings_section(verdict: Verdict) -> Section:
    lines = [
        Line(
            (
                finding.severity,
                finding.subject.name,
                finding.check,
                finding.what,
                finding.since,
                _format_certainty(finding),
                finding.advice,
            ),
            {},
            GRAVITY[finding.severity],
            f"finding-{index}",
            f"evidence-{index}" if finding.evidence else "",
        )
        for index, finding in enumerate(verdict.findings)
    ]
    columns = make_columns(
        ("severity", "who", "check", "what", "since", "sure", "what to do"), "lllllrl"
    )
    sentences = [] if lines else ["Nothing was found."]
    if verdict.injected:
        sentences = [
            f"A fault was planted on purpose: {verdict.injected}. This is a test of the alarm.",
            *sentences,
        ]
    table = Table(
        name="findings",
        title="Findings",
        columns=columns,
        lines=lines,
        note="Hints do not affect the verdict.",
        carded=True,
    ).drop_empty_columns()
    return Section(
        name="findings", title="Findings", sentences=sentences, tables=[table] if lines else []
    )


def _checks_section(verdict: Verdict, trend: Outlook | None) -> Section:
    nights = history.recent_nights(trend) if trend else ""
    ended = [
        Line((check.check, check.outcome, check.note), {}, _check_weight(verdict, check))
        for check in verdict.checks
    ]
    tables = (
        [Table(name="checks", title="Checks", columns=CHECKS, lines=ended, tiled=True)]
        if ended
        else []
    )
    heads, lines = make_grid(verdict)
    if len(lines) > 2:  # of one host, the other table says it all
        hosts = Table(
            name="grid",
            title="Hosts and checks",
            columns=make_columns(heads, rest="l"),
            lines=lines[: HOSTS + 1],
            note=LEGEND,
        )
        tables = [hosts, *tables]
    sentences = [nights] if nights else []
    return Section(
        name="checks",
        title="Checks",
        sentences=sentences if ended else ["No check was made."],
        tables=tables,
    )


def _check_weight(verdict: Verdict, check: Checked) -> Weight:
    graves = {
        GRAVITY[finding.severity] for finding in verdict.findings if finding.check == check.check
    }
    return "bad" if "bad" in graves else OUTCOMES[check.outcome]


def make_grid(verdict: Verdict) -> tuple[tuple[str, ...], list[Line]]:
    """Hosts by checks that apply, of both those with findings first; on the first line what is
    about no host alone."""
    guilty = {finding.check for finding in verdict.findings}
    checks = sorted(
        (c for c in verdict.checks if c.outcome != "not applicable" or c.check in guilty),
        key=lambda check: check.check not in guilty,
    )
    heads = ("host", *(check.check for check in checks))
    blamed: dict[str, dict[str, list[Severity]]] = {}
    for finding in verdict.findings:
        for host in host_of(finding.subject) or (CLUSTER,):
            blamed.setdefault(host, {}).setdefault(finding.check, []).append(finding.severity)
    hosts = sorted(
        {*verdict.hosts, *blamed} - {CLUSTER}, key=lambda host: (-len(blamed.get(host, {})), host)
    )
    return heads, [_host_line(host, blamed.get(host, {}), checks) for host in (CLUSTER, *hosts)]


def _host_line(host: str, by_check: dict[str, list[Severity]], checks: Sequence[Checked]) -> Line:
    ranked: tuple[Severity, ...] = ("critical", "warning", "hint")
    worst = {check: min(severities, key=ranked.index) for check, severities in by_check.items()}
    cells = [worst.get(check.check) or CELLS[check.outcome] for check in checks]
    weights = {GRAVITY[severity] for severity in worst.values()}
    return Line((host, *cells), {}, "bad" if "bad" in weights else "notice" if weights else "good")


def _evidence_section(proofs: Sequence[tuple[int, Evidence]], linked: bool) -> Section:
    lines = []
    for number, (index, proof) in enumerate(proofs):
        value, expected = (
            f"{figure} {proof.unit}".strip() if figure != "" else ""
            for figure in (proof.value, proof.expected)
        )
        first = number == 0 or proofs[number - 1][0] != index
        lines.append(
            Line(
                (proof.what, value, expected, proof.run, proof.case),
                {},
                "",
                f"evidence-{index}" if first else "",
                "bandwidth" if linked and proof.case else "",
            )
        )
    columns = make_columns(("what", "is", "should be", "run", "case"), rest="l")
    note = (
        "In the order of the findings. Each case's times are in the report below." if linked else ""
    )
    table = Table(name="evidence", title="Evidence", columns=columns, lines=lines, note=note)
    return Section(name="evidence", title="Evidence", sentences=[], tables=[table])


def _format_certainty(finding: Finding) -> str:
    """Never quite: what tests were made for is not all that can go wrong."""
    return (
        "" if finding.sure is None else "> 99.9%" if finding.sure > 0.999 else f"{finding.sure:.1%}"
    )


def _make_brief(verdict: Verdict) -> list[Block]:
    """The text for a terminal: the verdict, findings in words, and what each check saw."""
    about = ", ".join(verdict.hosts[:4])
    more = f" and {len(verdict.hosts) - 4} more" if len(verdict.hosts) > 4 else ""
    hosts = f"{about}{more}" or "of hosts that no run names"
    blocks: list[Block] = [tone_text("collbench health  ", strong=True) + hosts]
    if verdict.injected:
        blocks.append(tone_text(f"TEST: a fault was injected: {verdict.injected}", "notice", True))
    blocks += [tone_text(f"{verdict.phrase}: ", WEIGHTS[verdict.state]) + verdict.sentence, ""]
    for finding in verdict.findings:
        since = f", since {finding.since}" if finding.since else ""
        sentence = (
            tone_text(f"{finding.severity:<10}", GRAVITY[finding.severity])
            + f"{finding.sentence}{since}"
        )
        blocks.append(
            sentence
            + tone_text(
                f" (sure: {_format_certainty(finding)})" if _format_certainty(finding) else "",
                "quiet",
            )
        )
        blocks += [
            tone_text(f"          {_describe_proof(proof)}", "quiet")
            for proof in finding.evidence[:3]
        ]
        blocks += [f"          → {finding.advice}", ""]
    lines = [
        Line(
            (
                check.check,
                tone_text(check.outcome, _check_weight(verdict, check) or "quiet"),
                check.note,
            )
        )
        for check in verdict.checks
    ]
    return [*blocks, Table(columns=CHECKS, lines=lines)] if lines else blocks


def _describe_proof(proof: Evidence) -> str:
    value = f"{proof.value} {proof.unit}".strip()
    return f"{proof.what}: {value}" + (
        f", not {proof.expected} {proof.unit}".rstrip() if proof.expected != "" else ""
    )


def clean_verdict(verdict: Verdict) -> Verdict:
    """The verdict with all text on single lines without control characters, as hosts and notes come
    from elsewhere."""
    replace = msgspec.structs.replace

    def proof(evidence: Evidence) -> Evidence:
        texts = {
            name: value
            for name in evidence.__struct_fields__
            if isinstance(value := getattr(evidence, name), str)
        }
        return replace(evidence, **{name: plain_line(text) for name, text in texts.items()})

    def clean(finding: Finding) -> Finding:
        subject = Subject(finding.subject.kind, plain_line(finding.subject.name))
        return replace(
            finding,
            subject=subject,
            what=plain_line(finding.what),
            advice=plain_line(finding.advice),
            since=plain_line(finding.since),
            evidence=[proof(evidence) for evidence in finding.evidence],
        )

    return replace(
        verdict,
        summary=plain_line(verdict.summary),
        injected=plain_line(verdict.injected),
        runs=[*map(plain_line, verdict.runs)],
        findings=[clean(finding) for finding in verdict.findings],
        hosts=[*map(plain_line, verdict.hosts)],
        checks=[replace(check, note=plain_line(check.note)) for check in verdict.checks],
    )


def describe_mark(verdict: Verdict) -> str:
    """Words that every output carries where the fault was planted; else none."""
    return f"TEST, fault injected ({verdict.injected}): " if verdict.injected else ""


def _make_sentence(verdict: Verdict) -> str:
    return f"{describe_mark(verdict)}{verdict.phrase}: {verdict.sentence}"


def make_line(verdict: Verdict) -> str:
    """The verdict as one line for a chat."""
    grave = sum(finding.severity != "hint" for finding in verdict.findings)
    hosts = f" ({_name_some(verdict.hosts, 2)})" if verdict.hosts else ""
    count = f", {format_count(grave, 'finding')}" if grave else ""
    text = (
        f"{MARKS[verdict.state]} collbench{hosts}: {describe_mark(verdict)}{verdict.phrase}{count}:"
        f" {verdict.sentence}"
    )
    return text if len(text) <= LINE else text[: LINE - 1] + "…"


def make_nagios(verdict: Verdict) -> tuple[int, str]:
    """A plugin's exit code and line with the night and performance data: critical findings are
    CRITICAL, others a WARNING."""
    code, word = (
        CRITICAL
        if any(f.severity == "critical" for f in verdict.findings)
        else NAGIOS[verdict.state]
    )
    night = f"night {plain_line(verdict.night)}: " if verdict.night else ""
    # "|" begins performance data
    text = f"{describe_mark(verdict)}{night}{verdict.sentence}".replace("|", "/")
    data = " ".join(
        f"{severity}={number}" for severity, number in _count_severities(verdict).items()
    )
    blind = sum(check.outcome == "no data" for check in verdict.checks)
    return code, f"COLLBENCH {word} - {text} | {data} checks={len(verdict.checks)} no_data={blind}"


def make_unknown(why: str) -> str:
    """A plugin's line where there is nothing to judge."""
    return f"COLLBENCH {UNKNOWN[1]} - {plain_line(why)}".replace("|", "/")


def _count_severities(verdict: Verdict) -> dict[str, int]:
    return {
        name: sum(finding.severity == name for finding in verdict.findings)
        for name in ("critical", "warning", "hint")
    }


def plain_values(verdict: Verdict) -> dict[str, Any]:
    """An object: ``schema``, ``exit``, all that Verdict has, and ``blamed``: the hosts that may be
    taken out of service."""
    blamed = [blamed._asdict() for blamed in list_blamed(verdict)]
    verdict_values = msgspec.structs.asdict(verdict)
    return {"schema": SCHEMA, "exit": verdict.exit, **verdict_values, "blamed": blamed}


def junit_cases(verdict: Verdict) -> list[JunitCase]:
    """A test case per check: failed where it found a fault, skipped without data; and one for the
    verdict."""
    cases = [_junit_case(verdict, check) for check in verdict.checks]
    unknown = verdict.state == "no verdict"
    last = JunitCase(
        group=GROUP,
        name="verdict",
        outcome="error" if unknown else "passed",
        message=_make_sentence(verdict),
        kind="NO_VERDICT" if unknown else "",
    )
    return [*cases, last]


def _junit_case(verdict: Verdict, check: Checked) -> JunitCase:
    grave = [f for f in verdict.findings if f.check == check.check and f.severity != "hint"]
    if grave:
        text = "\n".join(f"{f.severity}: {f.sentence}. {f.advice}" for f in grave)
        return JunitCase(
            group=GROUP,
            name=check.check,
            outcome="failed",
            kind=grave[0].severity,
            message=plain_line(describe_mark(verdict) + text.splitlines()[0]),
            text=text,
        )
    if check.outcome in ("no data", "not applicable"):
        why = f"{check.outcome}: {check.note}"
        return JunitCase(group=GROUP, name=check.check, outcome="skipped", message=why)
    return JunitCase(group=GROUP, name=check.check, outcome="passed", message=check.note)


def list_gauges(verdict: Verdict) -> list[Gauge]:
    """The gauges for monitoring. Findings are counted by check, severity and subject."""
    blamed = {blamed.host for blamed in list_blamed(verdict)}
    judged = {*(verdict.hosts if verdict.judged_hosts is None else verdict.judged_hosts)}
    ended = parse_time(verdict.ended)
    findings: dict[tuple[tuple[str, str], ...], int] = {}
    for finding in verdict.findings:
        labels = {
            "check": finding.check,
            "severity": finding.severity,
            "kind": finding.subject.kind,
            "subject": finding.subject.name,
        }
        findings[tuple(labels.items())] = findings.get(tuple(labels.items()), 0) + 1
    return [
        Gauge(
            "collbench_health_state",
            "1 for the state that holds.",
            [({"state": s}, s == verdict.state) for s in STATES],
        ),
        Gauge(
            "collbench_health_check",
            "1 for each check's outcome.",
            [({"check": check.check, "outcome": check.outcome}, 1) for check in verdict.checks],
        ),
        Gauge(
            "collbench_health_findings",
            "Findings, by whom they are about.",
            [(dict(key), number) for key, number in findings.items()],
        ),
        Gauge(
            "collbench_health_severity",
            "Findings, by severity.",
            [({"severity": s}, n) for s, n in _count_severities(verdict).items()],
        ),
        Gauge(
            "collbench_health_host_blamed",
            "1 where a host may be taken out of service, as findings blame it with certainty.",
            [
                ({"host": host}, host in blamed)
                for host in verdict.hosts
                if host in blamed or host in judged
            ],
        ),
        Gauge(
            "collbench_health_injected",
            "1 where a fault was planted on purpose.",
            [({"fault": verdict.injected}, bool(verdict.injected))],
        ),
        Gauge(
            "collbench_health_fake",
            "1 where a run was measured on a fake GPU.",
            [({}, verdict.fake)],
        ),
        Gauge(
            "collbench_health_run_end_timestamp_seconds",
            "When the last run ended.",
            [] if ended is None else [({}, ended)],
        ),
    ]
