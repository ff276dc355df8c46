"""The certificate of acceptance as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collbench.core.text import format_size, plain_line
from collbench.features.health.accept.certificate import Provenance
from collbench.features.health.accept.judgement import Acceptance, LimitedRow, State, Untested
from collbench.features.health.checks.table import describe_injected
from collbench.records.limits import Held, advise_launches
from collbench.records.origins import is_fake
from collbench.records.types import RunFile
from collbench.show import busy
from collbench.show.document import (
    Block,
    Document,
    Line,
    Section,
    Table,
    Weight,
    code_text,
    make_columns,
    tone_text,
)
from collbench.show.views import machines, run, series

SCHEMA = 1  # of the JSON

WEIGHTS: dict[State, Weight] = {
    "accepted": "good",
    "not accepted": "bad",
    "not decided": "notice",
}

VERDICTS: dict[str, tuple[str, Weight]] = {
    "met": ("passed", "good"),
    "short": ("failed", "bad"),
    "not shown": ("not decided", "notice"),
    "no answer": ("not decided", "notice"),
}

ROWS = make_columns(
    (
        *("row", "verdict", "least GB/s", "measured", "95 %", "margin", "severity"),
        *("limit from", "why"),
    ),
    "llrrrrlww",
)

BRIEF = range(7)  # of these columns stand on a terminal

REASONS = 8  # of a kind that are shown, and all in JSON

UNTESTED = make_columns(("what", "which", "why"), "lww")

FILES = make_columns(("file", "name", "bytes", "digest"), "llrl")


def make_certificate(
    acceptance: Acceptance,
    provenance: Provenance,
    files: Sequence[RunFile],
    title: str = "",
    whole: bool = False,
) -> Document:
    """The certificate; ``whole``: with the report of the runs below it, else with their machine."""
    view = series.make_view(files)
    report = run.make_document(files) if whole else None
    sections = [
        _limits_section(acceptance),
        _untested_section(acceptance.untested),
        _origin_section(provenance),
        *(report.sections if report else [machines.make_section(view)]),
    ]
    hosts = ", ".join(acceptance.hosts[:3]) + " …" * (len(acceptance.hosts) > 3)
    return Document(
        title=title or f"Acceptance of {hosts or 'a machine'}",
        verdict=describe_verdict(acceptance, files),
        weight=WEIGHTS[acceptance.state],
        runs=[describe_writing(provenance), *_describe_runs(files)],
        sections=sections,
        data=report.data if report else [],
        brief=_list_blocks(acceptance, provenance, files),
        values=plain_values(acceptance, provenance, files),
    )


def describe_verdict(acceptance: Acceptance, files: Sequence[RunFile]) -> str:
    """The state and what it is for, after the word that a fault was planted."""
    planted = describe_injected(files)
    mark = f"TEST, fault injected ({planted}): " if planted else ""
    mark += "TEST, fake GPUs: " if any(map(is_fake, files)) else ""
    load = busy.of_files(files)
    return plain_line(f"{mark}{acceptance.state}: {acceptance.summary}" + f"; {load}" * bool(load))


def describe_writing(provenance: Provenance) -> str:
    """Who wrote it, and when."""
    return plain_line(
        f"Written {provenance.written} by {provenance.by}, collbench {provenance.version}"
    )


def _describe_runs(files: Sequence[RunFile]) -> list[str]:
    return [
        plain_line(
            f"run {file.run.id}, suite {file.run.suite.name}, begun {file.run.started}:"
            f" {', '.join(machines.describe_machine(file))}"
        )
        for file in files
    ]


def _limits_section(acceptance: Acceptance) -> Section:
    counts = [VERDICTS[row.held.answer][0] for row in acceptance.rows]
    sentences = [
        ", ".join(
            f"{counts.count(word):,} {word}"
            for word in ("passed", "failed", "not decided")
            if word in counts
        )
        + "."
        if counts
        else "No row has a limit."
    ]
    sentences += [f"{finding.sentence}." for finding in acceptance.findings]
    sentences += [f"Open: {reason}." for reason in acceptance.open]
    sentences += [f"Tables differ: {text}." for text in acceptance.contradictions[:REASONS]]
    lines = [_row_line(row) for row in acceptance.rows]
    table = Table(
        name="limits",
        title="Limits",
        columns=ROWS,
        lines=lines,
        note="A row passes or fails where its whole 95 % interval does, which is wide below six"
        " launches. Hints decide nothing.",
        carded=True,
    ).drop_empty_columns()
    origins = Table(
        name="origins",
        title="Where limits are from",
        columns=make_columns(("table", "source"), "lw"),
        lines=[Line(pair) for pair in _list_origins(acceptance)],
    )
    return Section(
        name="limits",
        title="Limits",
        sentences=[plain_line(sentence) for sentence in sentences],
        tables=[table, origins] if lines else [],
    )


def _list_origins(acceptance: Acceptance) -> list[tuple[str, str]]:
    return [*dict.fromkeys((row.table, plain_line(row.origin)) for row in acceptance.rows)]


def _row_line(row: LimitedRow) -> Line:
    held, (verdict, weight) = row.held, VERDICTS[row.held.answer]
    interval = _format_interval(held.lo, held.hi)
    margin = "" if row.margin is None else f"{row.margin:+.1%}"
    measured = "" if held.busbw is None else f"{held.busbw:.4g}"
    cells = (
        *(held.row, verdict, f"{held.wanted:.4g}", measured, interval, margin, row.severity),
        *(row.table, _explain(held)),
    )
    return Line(cells, {}, weight if row.decides or weight == "good" else "notice")


def _format_interval(lo: float | None, hi: float | None) -> str:
    if lo is None:
        return ""
    return f"{lo:.4g} to {hi:.4g}" if hi is not None else "no interval"


def _explain(held: Held) -> str:
    """The reason why a row is not decided."""
    if held.answer == "not shown":
        open_ = f"the interval reaches over the limit{advise_launches(held)}"
        return open_ if held.hi else "too few samples bound it"
    return held.why


def _untested_section(untested: Sequence[Untested]) -> Section:
    lines = [Line((item.kind, plain_line(item.what), plain_line(item.why))) for item in untested]
    table = Table(name="untested", title="Not tested", columns=UNTESTED, lines=lines, carded=True)
    sentences = [] if lines else ["All rows have a limit, and all limits a row."]
    return Section(
        name="untested", title="Not tested", sentences=sentences, tables=[table] if lines else []
    )


def _origin_section(provenance: Provenance) -> Section:
    lines = [
        Line((file.kind, plain_line(file.name), f"{file.nbytes:,}", file.digest))
        for file in provenance.files
    ]
    table = Table(name="raw-data", title="Raw data", columns=FILES, lines=lines)
    sentences = [
        f"{describe_writing(provenance)}.",
        "collbench accept --verify CERTIFICATE RUN says whether a run is the one below. A digest"
        " is no signature: whoever can write the page can write another.",
    ]
    return Section(name="raw-data", title="Raw data", sentences=sentences, tables=[table])


def _list_blocks(
    acceptance: Acceptance, provenance: Provenance, files: Sequence[RunFile]
) -> list[Block]:
    """The text for a terminal."""
    hosts = ", ".join(acceptance.hosts[:4]) or "hosts that no run names"
    blocks: list[Block] = [
        tone_text("collbench accept  ", strong=True) + plain_line(hosts),
        tone_text(describe_verdict(acceptance, files), WEIGHTS[acceptance.state]),
        "",
    ]
    if acceptance.rows:
        table = Table(columns=ROWS, lines=[_row_line(row) for row in acceptance.rows])
        blocks += [table.select_columns(BRIEF)]
        blocks += [f"limits of {table}: {origin}" for table, origin in _list_origins(acceptance)]
        blocks.append("")
    blocks += [plain_line(f"open: {reason}") for reason in acceptance.open[:REASONS]]
    blocks += [f"tables differ: {text}" for text in acceptance.contradictions[:REASONS]]
    blocks += [
        plain_line(f"not tested: {item.kind} {item.what}: {item.why}")
        for item in acceptance.untested[:REASONS]
    ]
    more = len(acceptance.untested) - REASONS
    blocks += [f"not tested: {more:,} more, which -o certificate.html lists"] * (more > 0)
    blocks += [
        f"{file.kind} "
        + code_text(plain_line(file.name))
        + f", {format_size(file.nbytes)}, "
        + code_text(file.digest)
        for file in provenance.files
    ]
    return [*blocks, describe_writing(provenance)]


def plain_values(
    acceptance: Acceptance, provenance: Provenance, files: Sequence[RunFile]
) -> dict[str, Any]:
    """The certificate for programs; busbw in GB/s."""
    return {
        "schema": SCHEMA,
        "exit": acceptance.exit,
        "state": acceptance.state,
        "summary": acceptance.summary,
        "injected": describe_injected(files),
        "fake": any(map(is_fake, files)),
        "hosts": acceptance.hosts,
        "written": provenance.written,
        "by": provenance.by,
        "collbench": provenance.version,
        "files": [file._asdict() for file in provenance.files],
        "runs": [
            {
                "id": file.run.id,
                "suite": file.run.suite.name,
                "started": file.run.started,
                "command": file.run.command,
                "environment": file.run.environment,
                "libraries": sorted({world.library for world in file.worlds} - {""}),
            }
            for file in files
        ],
        "rows": [
            {
                "row": row.held.row,
                "case": row.held.key,
                "verdict": VERDICTS[row.held.answer][0],
                "why": _explain(row.held),
                "limit": row.held.wanted,
                "busbw": row.held.busbw,
                "lo": row.held.lo,
                "hi": row.held.hi,
                "margin": row.margin,
                "severity": row.severity,
                "table": row.table,
                "origin": row.origin,
            }
            for row in acceptance.rows
        ],
        "findings": acceptance.findings,
        "open": acceptance.open,
        "contradictions": acceptance.contradictions,
        "untested": [item._asdict() for item in acceptance.untested],
    }
