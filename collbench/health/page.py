"""A verdict for people: as a document (page, Markdown) and on a terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from collbench import sections, trends
from collbench.document import Document, Line, Section, Table, Weight
from collbench.formats import counted
from collbench.health.findings import Checked, Evidence, Finding, Severity, State, Verdict
from collbench.health.night import host_of
from collbench.health.outputs import marked
from collbench.history.outlook import Outlook
from collbench.records import RunFile

WIDE = 120
HOSTS = 200  # lines of the grid: those with findings first
CLUSTER = "cluster"
WEIGHTS: dict[State, Weight] = {"healthy": "good", "unhealthy": "bad", "no verdict": "notice"}
GRAVITY: dict[Severity, Weight] = {"critical": "bad", "warning": "bad", "hint": "notice"}
OUTCOMES: dict[str, Weight] = {"passed": "good", "found": "notice", "no data": "notice", "not applicable": ""}
STYLES: dict[Weight, str] = {"good": "green", "bad": "bold red", "notice": "yellow", "": "dim"}
CELLS = {"passed": "✓", "found": "✓", "no data": "?", "not applicable": "-"}
LEGEND = (
    "✓: nothing found; ?: no data, which is no pass; -: does not apply. The first line is about all hosts together."
)


def document(verdict: Verdict, files: Sequence[RunFile] = (), trend: Outlook | None = None) -> Document:
    """The page: findings, checks by host, evidence, ``trend``; then, of ``files``, the report that these lead into."""
    report = sections.document(files) if files else None
    proofs = [(place, proof) for place, one in enumerate(verdict.findings) for proof in one.evidence]
    shown = [_findings(verdict), _checks(verdict), *([_evidence(proofs, report is not None)] if proofs else [])]
    shown += trends.sections(trend) if trend and trend.series else []
    words = f"{marked(verdict)}{verdict.state}: {verdict.summary}"
    return Document(
        title="Health of " + (", ".join(verdict.hosts[:3]) + " …" * (len(verdict.hosts) > 3) or "a cluster"),
        verdict=words, weight=WEIGHTS[verdict.state], sections=[*shown, *(report.sections if report else [])],
        runs=report.runs if report else [f"run {name}" for name in verdict.runs], data=report.data if report else [],
    )  # fmt: skip


def _findings(verdict: Verdict) -> Section:
    lines = [
        Line(
            (one.severity, one.subject.name, one.check, one.what, one.since, _sure(one), one.advice), {},
            GRAVITY[one.severity], f"finding-{place}", f"evidence-{place}" if one.evidence else "",
        )
        for place, one in enumerate(verdict.findings)
    ]  # fmt: skip
    heads = ("severity", "who", "check", "what", "since", "sure", "what to do")
    words = [] if lines else ["Nothing was found."]
    if verdict.injected:
        words = [f"A fault was planted on purpose: {verdict.injected}. This is a test of the alarm.", *words]
    table = Table(name="findings", title="Findings", heads=heads, lines=lines, align="lllllrl",
                  note="Hints alone make nobody unhealthy.")  # fmt: skip
    return Section(name="findings", title="Findings", words=words, tables=[table] if lines else [])


def _checks(verdict: Verdict) -> Section:
    ended = [Line((one.check, one.outcome, one.note), {}, _weight(verdict, one)) for one in verdict.checks]
    tables = [Table(name="checks", title="Checks", heads=("check", "outcome", "what was seen, or is missing"),
                    lines=ended, align="lll")] if ended else []  # fmt: skip
    heads, lines = grid(verdict)
    if len(lines) > 1:
        hosts = Table(name="grid", title="Hosts and checks", heads=heads, lines=lines[: HOSTS + 1], note=LEGEND,
                      align="l" * len(heads))  # fmt: skip
        tables = [hosts, *tables]
    return Section(name="checks", title="Checks", words=[] if ended else ["No check was made."], tables=tables)


def _weight(verdict: Verdict, check: Checked) -> Weight:
    graves = {GRAVITY[one.severity] for one in verdict.findings if one.check == check.check}
    return "bad" if "bad" in graves else OUTCOMES[check.outcome]


def grid(verdict: Verdict) -> tuple[tuple[str, ...], list[Line]]:
    """Hosts by checks, of both those with findings first; on the first line what is about no host alone."""
    guilty = {one.check for one in verdict.findings}
    checks = sorted(verdict.checks, key=lambda check: check.check not in guilty)
    heads = ("host", *(check.check for check in checks))
    blamed: dict[str, dict[str, list[Severity]]] = {}
    for one in verdict.findings:
        for host in host_of(one.subject) or (CLUSTER,):
            blamed.setdefault(host, {}).setdefault(one.check, []).append(one.severity)
    hosts = sorted({*verdict.hosts, *blamed} - {CLUSTER}, key=lambda host: (-len(blamed.get(host, {})), host))
    return heads, [_row(host, blamed.get(host, {}), checks) for host in (CLUSTER, *hosts)]


def _row(host: str, found: dict[str, list[Severity]], checks: Sequence[Checked]) -> Line:
    ranked: tuple[Severity, ...] = ("critical", "warning", "hint")
    worst = {check: min(severities, key=ranked.index) for check, severities in found.items()}
    cells = [worst.get(check.check) or CELLS[check.outcome] for check in checks]
    weights = {GRAVITY[severity] for severity in worst.values()}
    return Line((host, *cells), {}, "bad" if "bad" in weights else "notice" if weights else "good")


def _evidence(proofs: Sequence[tuple[int, Evidence]], linked: bool) -> Section:
    lines = []
    for number, (place, proof) in enumerate(proofs):
        value, expected = (
            f"{figure} {proof.unit}".strip() if figure != "" else "" for figure in (proof.value, proof.expected)
        )
        first = number == 0 or proofs[number - 1][0] != place
        lines.append(Line((proof.what, value, expected, proof.run, proof.case), {}, "", f"evidence-{place}" * first,
                          "bandwidth" * (linked and bool(proof.case))))  # fmt: skip
    heads = ("what", "is", "should be", "run", "case")
    note = "In the order of the findings. Each case's times are in the report below." if linked else ""
    table = Table(name="evidence", title="Evidence", heads=heads, lines=lines, align="lllll", note=note)
    return Section(name="evidence", title="Evidence", words=[], tables=[table])


def _sure(one: Finding) -> str:
    """Never quite: what tests were made for is not all that can go wrong."""
    return "" if one.sure is None else "> 99.9%" if one.sure > 0.999 else f"{one.sure:.1%}"


def shown(verdict: Verdict) -> str:
    """For standard output, coloured if that is a terminal: the verdict, findings in words, what each check saw."""
    view = Console(highlight=False)
    view.width = min(WIDE, view.width) if view.is_terminal or "COLUMNS" in os.environ else WIDE
    with view.capture() as text:
        view.print(*_parts(verdict), sep="\n")
    return text.get()


def _parts(verdict: Verdict) -> list[RenderableType]:
    weight = WEIGHTS[verdict.state]
    about = ", ".join(verdict.hosts[:4]) + (f" and {len(verdict.hosts) - 4} more" if len(verdict.hosts) > 4 else "")
    parts: list[RenderableType] = [Text("collbench health  ", "bold").append(about or "", "not bold")]
    parts += [Text(f"TEST: a fault was injected: {verdict.injected}", "bold yellow")] if verdict.injected else []
    parts += [Text(f"{verdict.state}: ", STYLES[weight]).append(verdict.summary, "not bold"), ""]
    for one in verdict.findings:
        told = Text(f"{one.severity:<10}", STYLES[GRAVITY[one.severity]])
        told.append(one.sentence + (f", since {one.since}" if one.since else ""), "not bold")
        told.append(f" (sure: {_sure(one)})" if one.sure is not None else "", "dim")
        parts += [told, *(Text(f"          {_proof(proof)}", "dim") for proof in one.evidence[:3])]
        parts += [Text(f"          → {one.advice}"), ""]
    view = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), border_style="dim")
    for name in ("check", "outcome", "what was seen, or is missing"):
        view.add_column(Text(name, "bold"), overflow="fold")
    for check in verdict.checks:
        outcome = Text(check.outcome, STYLES[_weight(verdict, check)])
        view.add_row(Text(check.check), outcome, Text(check.note, "dim"))
    return [*parts, view] if verdict.checks else parts


def _proof(proof: Evidence) -> str:
    value = f"{proof.value} {proof.unit}".strip()
    return f"{proof.what}: {value}" + (f", not {proof.expected} {proof.unit}".rstrip() if proof.expected != "" else "")


def summary(verdict: Verdict) -> str:
    """What is said on standard error beside an exit code other than 0."""
    return f"{marked(verdict)}{verdict.state}: {counted(len(verdict.findings), 'finding')}, {verdict.summary}"
