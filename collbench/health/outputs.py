"""A verdict as other programs take it: JSON, JUnit's XML, Prometheus' text, a Nagios line, a line for a chat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from xml.etree import ElementTree

import msgspec

from collbench.formats import counted, plain
from collbench.health.findings import Evidence, Finding, State, Subject, Verdict

SCHEMA = 1
NAGIOS: dict[State, tuple[int, str]] = {"healthy": (0, "OK"), "unhealthy": (1, "WARNING"), "no verdict": (3, "UNKNOWN")}
CRITICAL, UNKNOWN = (2, "CRITICAL"), NAGIOS["no verdict"]
MARKS: dict[State, str] = {"healthy": "✅", "unhealthy": "❌", "no verdict": "❔"}
STATES: tuple[State, ...] = ("healthy", "unhealthy", "no verdict")
LINE = 500  # characters of a line for a chat

Labels = Mapping[str, str]


def cleaned(verdict: Verdict) -> Verdict:
    """All its text on single lines without control characters: hosts and notes come from elsewhere."""
    replace = msgspec.structs.replace

    def proof(one: Evidence) -> Evidence:
        texts = {name: value for name in one.__struct_fields__ if isinstance(value := getattr(one, name), str)}
        return replace(one, **{name: plain(text) for name, text in texts.items()})

    def clean(one: Finding) -> Finding:
        subject = Subject(one.subject.kind, plain(one.subject.name))
        return replace(one, subject=subject, what=plain(one.what), advice=plain(one.advice), since=plain(one.since),
                       evidence=[proof(each) for each in one.evidence])  # fmt: skip

    return replace(
        verdict, summary=plain(verdict.summary), injected=plain(verdict.injected), runs=[*map(plain, verdict.runs)],
        findings=[clean(one) for one in verdict.findings], hosts=[*map(plain, verdict.hosts)],
        checks=[replace(one, note=plain(one.note)) for one in verdict.checks],
    )  # fmt: skip


def marked(verdict: Verdict) -> str:
    """Words that every output carries where the fault was planted; else none."""
    return f"TEST, fault injected ({verdict.injected}): " if verdict.injected else ""


def as_json(verdict: Verdict) -> str:
    """An object: ``schema``, ``exit`` and all that Verdict has."""
    whole = {"schema": SCHEMA, "exit": verdict.exit, **msgspec.structs.asdict(verdict)}
    return msgspec.json.encode(whole).decode()


def line(verdict: Verdict) -> str:
    """One line for a chat, short enough to be read."""
    grave = sum(one.severity != "hint" for one in verdict.findings)
    hosts = f" ({', '.join(verdict.hosts[:2])}{' …' * (len(verdict.hosts) > 2)})" if verdict.hosts else ""
    count = f", {counted(grave, 'finding')}" if grave else ""
    text = f"{MARKS[verdict.state]} collbench{hosts}: {marked(verdict)}{verdict.state}{count}: {verdict.summary}"
    return text if len(text) <= LINE else text[: LINE - 1] + "…"


def nagios(verdict: Verdict) -> tuple[int, str]:
    """A plugin's exit code and line with performance data: critical findings are CRITICAL, others a WARNING."""
    code, word = CRITICAL if any(f.severity == "critical" for f in verdict.findings) else NAGIOS[verdict.state]
    text = f"{marked(verdict)}{verdict.summary}".replace("|", "/")  # which begins performance data
    data = " ".join(f"{severity}={number}" for severity, number in _severities(verdict).items())
    blind = sum(one.outcome == "no data" for one in verdict.checks)
    return code, f"COLLBENCH {word} - {text} | {data} checks={len(verdict.checks)} no_data={blind}"


def unknown(why: str) -> str:
    """A plugin's line where there is nothing to judge."""
    return f"COLLBENCH {UNKNOWN[1]} - {plain(why)}".replace("|", "/")


def _severities(verdict: Verdict) -> dict[str, int]:
    return {name: sum(one.severity == name for one in verdict.findings) for name in ("critical", "warning", "hint")}


def junit(verdict: Verdict) -> str:
    """A test case per check: failed where it found a fault, skipped without data; and one for the verdict."""
    suite = ElementTree.Element("testsuite", name=plain(f"{marked(verdict)}collbench health"))
    counts = {"tests": len(verdict.checks) + 1, "failures": 0, "errors": 0, "skipped": 0}
    for check in verdict.checks:
        case = ElementTree.SubElement(suite, "testcase", classname="collbench.health", name=check.check, time="0")
        grave = [f for f in verdict.findings if f.check == check.check and f.severity != "hint"]
        if grave:
            counts["failures"] += 1
            words = "\n".join(f"{f.severity}: {f.sentence}. {f.advice}" for f in grave)
            message = plain(marked(verdict) + words.splitlines()[0])
            ElementTree.SubElement(case, "failure", type=grave[0].severity, message=message).text = words
        elif check.outcome in ("no data", "not applicable"):
            counts["skipped"] += 1
            ElementTree.SubElement(case, "skipped", message=f"{check.outcome}: {check.note}")
        else:
            ElementTree.SubElement(case, "system-out").text = check.note
    case = ElementTree.SubElement(suite, "testcase", classname="collbench.health", name="verdict", time="0")
    words = f"{marked(verdict)}{verdict.state}: {verdict.summary}"
    if verdict.state == "no verdict":
        counts["errors"] += 1
        ElementTree.SubElement(case, "error", type="NO_VERDICT", message=words)
    else:
        ElementTree.SubElement(case, "system-out").text = words
    suite.attrib |= {key: str(count) for key, count in counts.items()}
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def prometheus(verdict: Verdict) -> str:
    """Gauges for node_exporter's textfile collector. Findings are counted by check, severity and subject."""
    findings: dict[tuple[tuple[str, str], ...], int] = {}
    for one in verdict.findings:
        labels = {"check": one.check, "severity": one.severity, "kind": one.subject.kind, "subject": one.subject.name}
        findings[tuple(labels.items())] = findings.get(tuple(labels.items()), 0) + 1
    families: list[tuple[str, str, list[tuple[Labels, float]]]] = [
        ("state", "1 for the state that holds.", [({"state": s}, s == verdict.state) for s in STATES]),
        ("check", "1 for each check's outcome.",
         [({"check": one.check, "outcome": one.outcome}, 1) for one in verdict.checks]),
        ("findings", "Findings, by whom they are about.", [(dict(key), number) for key, number in findings.items()]),
        ("severity", "Findings, by severity.", [({"severity": s}, n) for s, n in _severities(verdict).items()]),
        ("injected", "1 where a fault was planted on purpose.",
         [({"fault": verdict.injected}, bool(verdict.injected))]),
        ("run_end_timestamp_seconds", "When the last run ended.",
         [({}, _seconds(verdict.ended))] if verdict.ended else []),
    ]  # fmt: skip
    return "".join(_family(f"collbench_health_{name}", about, values) for name, about, values in families if values)


def _family(name: str, about: str, values: Iterable[tuple[Labels, float]]) -> str:
    """A metric in Prometheus' text format 0.0.4."""
    lines = [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
    for labels, value in values:
        told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{told}}} {float(value):.15g}" if told else f"{name} {float(value):.15g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _seconds(when: str) -> float:
    try:
        return datetime.fromisoformat(when).timestamp()
    except ValueError:
        return 0.0
