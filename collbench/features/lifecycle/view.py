"""Lives and losses of a run as a document, and as a section of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from collbench.core.errors import Exit
from collbench.core.text import (
    format_count,
    format_duration,
    format_settings,
    format_size,
    plain_line,
)
from collbench.features.lifecycle import rows
from collbench.features.lifecycle.request import TOLD
from collbench.features.lifecycle.summary import (
    LifeSummary,
    LossSummary,
    PhaseTime,
    Spread,
    judge_lives,
    summarize_lives,
)
from collbench.records.stats import half_width
from collbench.records.types import RunFile
from collbench.show.document import (
    Block,
    Comment,
    Document,
    Line,
    Section,
    Table,
    make_columns,
    tone_text,
)
from collbench.show.views.series import View
from collbench.show.words import format_interval, list_caveats

NAMES = {
    rows.START: "process start",
    rows.JOIN: "rendezvous",
    rows.INIT: "init",
    rows.FIRST: "first call",
    rows.NTH: "n-th call",
    rows.GROUPS: "new groups",
    rows.DESTROY: "destroy",
}
NOTE = (
    "Time: from the last rank's start to the last rank's end; median over launches. memory: the"
    " largest growth of any rank. ±∞: one launch has no interval."
)
LOSS_NOTE = (
    "detected: from the kill until the last of the other ranks has seen an error or was notified;"
    " recovered: until the last of them has done a correct all_reduce of the smaller group; medians"
    " over kills. detected by: how ranks learned of it first; with the way notified a rank may see"
    " an error before. ±∞: one kill has no interval."
)
HOW = {"error": "an error", TOLD: "notification", "never": "never"}
MOST_FAILURES = 20  # named in a table's note


def _format_spread(time: Spread | None) -> tuple[str, str]:
    """The median, and its interval in short."""
    if time is None:
        return "-", ""
    half = half_width(time.median, time.lo, time.hi)
    return format_duration(time.median), format_interval(half)


def _format_memory(value: float | None) -> str:
    if value is None:
        return "-"
    return ("-" if value < 0 else "") + format_size(abs(value))


def _name_owner(backend: str, ranks: int, env: Any) -> str:
    settings = format_settings(env)
    return plain_line(f"{backend}, {format_count(ranks, 'rank')}" + (f", {settings}" * bool(env)))


def _describe_phase(phase: PhaseTime) -> str:
    parts = ", ".join(f"{name} {format_duration(ns)}" for name, ns in phase.parts.items())
    return phase.of or parts


def make_phase_table(phases: Sequence[PhaseTime], title: str = "") -> Table:
    """A line for each phase of the lives of one communicator."""
    heads = ["phase", "detail", "time", "95 %", "launches", "memory"]
    with_device = any(phase.device is not None for phase in phases)
    heads += ["GPU memory"] * with_device
    lines = []
    for phase in phases:
        cells = [NAMES[phase.phase], _describe_phase(phase), *_format_spread(phase.time)]
        cells += [str(phase.time.launches), _format_memory(phase.resident)]
        cells += [_format_memory(phase.device)] * with_device
        lines.append(Line(tuple(cells)))
    return Table(columns=make_columns(heads, "ll"), lines=lines, title=title, note=NOTE)


def make_loss_table(losses: Sequence[LossSummary], title: str = "") -> Table:
    """A line for each way in which ranks went on."""
    heads = ("way", "kills", "came back", "detected", "95 %", "recovered", "95 %", "detected by")
    lines = []
    for loss in losses:
        how = ", ".join(f"{count} {HOW[name]}" for name, count in loss.how.items())
        cells = (
            loss.loss.way_name,
            str(loss.kills),
            str(loss.recovered),
            *_format_spread(loss.known),
            *_format_spread(loss.back),
            how,
        )
        lines.append(Line(cells, weight="" if loss.recovered == loss.kills else "bad"))
    return Table(columns=make_columns(heads, "lrrrrrrc"), lines=lines, title=title, note=LOSS_NOTE)


def make_tables(summary: LifeSummary, prefix: str = "") -> list[Table]:
    """The tables of a run, one for each communicator's owner."""
    tables = []
    for owner in dict.fromkeys((p.backend, p.ranks, p.env) for p in summary.phases):
        phases = [p for p in summary.phases if (p.backend, p.ranks, p.env) == owner]
        tables.append(make_phase_table(phases, prefix + _name_owner(*owner)))
    for owner in dict.fromkeys((p.backend, p.ranks, p.env) for p in summary.losses):
        losses = [p for p in summary.losses if (p.backend, p.ranks, p.env) == owner]
        title = f"{prefix}{_name_owner(*owner)}: a rank killed"
        tables.append(make_loss_table(losses, title))
    return tables


def list_troubles(summary: LifeSummary) -> list[str]:
    """What failed and what was left out, in sentences."""
    failures = [*summary.failures, *(text for loss in summary.losses for text in loss.failures)]
    shown = [f"failed: {plain_line(text)}" for text in failures[:MOST_FAILURES]]
    if len(failures) > MOST_FAILURES:
        shown.append(f"and {len(failures) - MOST_FAILURES} more failed")
    return shown + [f"left out: {plain_line(text)}" for text in summary.left_out]


def make_document(file: RunFile) -> Document:
    """All that a run has to say of lives and losses."""
    summary = summarize_lives(file)
    brief: list[Block] = [tone_text(text, "bad") for text in list_caveats(file.run, file.worlds)]
    if judge_lives(file) == Exit.NO_VERDICT:
        brief.insert(0, tone_text("no verdict, as no life and no loss has a time", "notice"))
    for table in make_tables(summary):
        brief += ["", table]
    troubles = list_troubles(summary)
    brief += [""] * bool(troubles)
    brief += [tone_text(text, "bad" if text.startswith("failed") else "quiet") for text in troubles]
    if summary.is_empty:
        brief.append("no life was measured")
    phases = [flatten_phase(phase) for phase in summary.phases]
    losses = [flatten_loss(loss) for loss in summary.losses]
    planted = file.run.policy.inject
    values = {
        "run": file.run.id,
        "injected": planted,
        "phases": phases,
        "losses": losses,
        "failures": summary.failures,
        "left_out": summary.left_out,
    }
    return Document(
        title="Life of a communicator",
        brief=brief,
        comment=Comment([block for block in brief if block != ""]),
        values=values,
        rows=[{**row, "injected": planted} for row in (*phases, *losses)],
    )


def make_section(view: View) -> Section | None:
    """The lives of a report's runs; None where there are none."""
    tables: list[Table] = []
    troubles: list[str] = []
    for number, file in enumerate(view.files):
        summary = summarize_lives(file)
        tables += make_tables(summary, view.prefix_run(number, ""))
        troubles += list_troubles(summary)
    return _make_section(tables, troubles)


def _make_section(tables: list[Table], troubles: list[str]) -> Section | None:
    if not tables and not troubles:
        return None
    sentence = (
        "Each launch starts new processes, which find each other, make a communicator, call it,"
        " make further groups and end. Intervals are over launches, at 95 %."
    )
    return Section(
        name="lifecycle",
        title="Life of a communicator",
        sentences=[sentence, *troubles],
        tables=tables,
    )


def _flatten_spread(name: str, time: Spread | None) -> dict[str, Any]:
    ends = {"median": time.median, "lo": time.lo, "hi": time.hi} if time else {}
    return {
        f"{name}_{end}_ns": value if math.isfinite(value := ends.get(end, math.nan)) else None
        for end in ("median", "lo", "hi")
    }


def flatten_phase(phase: PhaseTime) -> dict[str, Any]:
    """A phase as plain values; times in ns, memory in bytes."""
    return {
        "phase": phase.phase,
        "backend": phase.backend,
        "ranks": phase.ranks,
        "settings": format_settings(phase.env),
        "of": phase.of,
        **_flatten_spread("time", phase.time),
        "launches": phase.time.launches,
        "resident_bytes": phase.resident,
        "device_bytes": phase.device,
        **{f"{name}_ns": ns for name, ns in phase.parts.items()},
    }


def flatten_loss(loss: LossSummary) -> dict[str, Any]:
    """A loss as plain values."""
    return {
        "phase": "loss",
        "backend": loss.backend,
        "ranks": loss.ranks,
        "settings": format_settings(loss.env),
        "of": loss.loss.way_name,
        "victim": loss.loss.victim,
        "killed": loss.kills,
        "recovered": loss.recovered,
        **_flatten_spread("known", loss.known),
        **_flatten_spread("recovered", loss.back),
        "how": loss.how,
        "doing": loss.doing,
        "failures": loss.failures,
    }
