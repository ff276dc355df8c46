"""Steps of training as documents: what there is, what one asks of the network and of memory, and
what it would take."""

from __future__ import annotations

from typing import Any

from collbench.core.network import describe_link
from collbench.core.text import format_count, format_duration, format_size
from collbench.features.training.count import Count, Forecast, Machine, group_words
from collbench.features.training.models import MODELS
from collbench.features.training.overlap import Overlap, measure_busy
from collbench.features.training.presets import PATTERNS, PRESETS
from collbench.features.training.step import Recorded, Step
from collbench.features.training.views.steps import (
    CLOSE,
    plain_values,
    recorded_values,
    recorded_words,
)
from collbench.features.training.views.timeline import format_signed_time
from collbench.features.training.walk import Walk
from collbench.records.stats import median
from collbench.show.document import (
    Block,
    Cell,
    Column,
    Document,
    Line,
    Table,
    code_text,
    make_columns,
    tone_text,
)


def list_presets() -> Document:
    """Presets, patterns and models."""
    presets = [
        {"workload": name, "layout": preset.layout, "options": preset.options}
        for name, preset in PRESETS.items()
    ]
    patterns = [
        {"pattern": name, "meaning": row.meaning, "source": row.source}
        for name, row in PATTERNS.items()
    ]
    models = [{"model": name} for name in MODELS]
    brief: list[Block] = []
    for rows in (presets, patterns):
        lines = [Line(tuple(row.values())) for row in rows]
        brief += [Table(columns=make_columns(tuple(rows[0]), "lww"), lines=lines), ""]
    return Document(
        title="Workloads",
        brief=[*brief, f"models: {', '.join(MODELS)}", USAGE],
        rows=presets,
        values={"presets": presets, "patterns": patterns, "models": models},
    )


USAGE = (
    code_text("collbench workload PATTERN:MODEL --show")
    + " counts one, "
    + code_text("--link ib200 --tflops 400")
    + " predicts it"
)

COLUMNS = (
    Column("phase", "left"),
    Column("group", "left"),
    Column("operation", "left"),
    Column("type", "left", priority=2),
    Column("ops"),
    Column("size"),
    Column("sent a rank"),
    Column("all ranks", priority=1),
)


def make_document(
    step: Step,
    count: Count,
    walk: Walk,
    machine: Machine | None,
    expected: Forecast | None,
    measured: Overlap | None = None,
) -> Document:
    """A step's operations by phase, group and kind, for the program that sends the most; memory;
    on a machine, the times that are expected, beside those ``measured`` in a run."""
    kinds = len(walk.actors.first)
    about = f"{step.name}: {format_count(step.world, 'rank')}"
    rows = [part._asdict() for part in count.parts]
    likeness = f"{format_count(kinds, 'kind')} of ranks" if kinds > 1 else "all ranks do the same"
    notes: list[Block] = [
        f"total: {format_count(count.ops, 'operation')} a rank, which sends"
        f" {format_size(count.sent)};"
        f" all ranks together {format_size(count.total)}",
        f"no deadlock: walked in lock step, {likeness}",
        f"memory a rank: {_describe_memory(count)}",
        *(forecast_words(machine, expected) if machine and expected else ()),
        *(
            [_compare_table(step, expected, measured, machine)]
            if machine and expected and measured
            else ()
        ),
        *(_describe_recorded(step.recorded, expected) if step.recorded else ()),
        *(f"assumed: {assumption}" for assumption in step.assumptions),
    ]
    return Document(
        title=about,
        brief=[
            tone_text(about, strong=True),
            _make_table(step, count),
            tone_text(LEGEND, "quiet"),
            *notes,
        ],
        rows=rows,
        values={
            "name": step.name,
            "world": step.world,
            "groups": {name: group_words(step, name) for name in step.groups},
            "parts": rows,
            "sent": count.sent,
            "total": count.total,
            "flops": count.flops,
            "memory": {"bytes": count.memory, "holds": count.holds},
            "kinds_of_ranks": kinds,
            "assumptions": list(step.assumptions),
            **({"forecast": _plain_values(expected)} if expected else {}),
            **({"measured": plain_values(measured)} if measured else {}),
            **({"recorded": recorded_values(step.recorded)} if step.recorded else {}),
        },
    )


def _make_table(step: Step, count: Count) -> Table:
    """A line for each part."""
    lines = [
        Line(
            (
                part.phase,
                group_words(step, part.group),
                part.kind,
                part.dtype,
                f"{part.ops:,}",
                format_size(part.nbytes),
                format_size(part.sent),
                format_size(part.total),
            )
        )
        for part in count.parts
    ]
    return Table(columns=COLUMNS, lines=lines)


LEGEND = (
    "size: sum of the operations' sizes; sent: bytes that a rank, or all, have to send at least;"
    " of programs that differ, the one that sends the most"
)


def _describe_memory(count: Count) -> str:
    """The memory that a rank needs, and for what; from 1 GB on in GB, too, as models are spoken
    of."""

    def format_memory(nbytes: float) -> str:
        return format_size(nbytes) + (f" = {nbytes / 1e9:,.0f} GB" if nbytes >= 1e9 else "")

    parts = [f"{format_memory(nbytes)} {what}" for what, nbytes in count.holds.items() if nbytes]
    return f"{format_size(count.memory)} ({', '.join(parts)})" if parts else "unknown"


def forecast_words(machine: Machine, expected: Forecast) -> list[str]:
    """A sentence on the time that a step would take, and on its communication that computation does
    not hide."""
    inside = f" ({describe_link(machine.inside)} inside)" if machine.node > 1 else ""
    hosts = f"hosts of {format_count(machine.node, 'rank')}{inside}"
    hosts += f", between them {describe_link(machine.link)}"
    if not expected.computation:
        took = f"communication takes at least {format_duration(expected.communication * 1e9)}"
        return [f"predicted: {took} on {hosts}; --tflops adds computation"]
    share = expected.exposed / expected.step if expected.step else 0.0
    speed = (
        f"{machine.flops / 1e12:g} TFLOP/s a rank"
        if machine.flops
        else "computation as long as the step says"
    )
    return [
        f"predicted: a step takes {format_duration(expected.step * 1e9)}, computation alone"
        f" {format_duration(expected.computation * 1e9)}, communication alone"
        f" {format_duration(expected.communication * 1e9)}, exposed"
        f" {format_duration(expected.exposed * 1e9)}"
        f" ({share:.0%})",
        f"on {hosts}; {speed}; each operation takes its lower bound there, so that real ones take"
        " longer",
    ]


def _compare_table(step: Step, expected: Forecast, overlap: Overlap, machine: Machine) -> Table:
    """A table of a step's time predicted on a ``machine`` beside its time in a run, whole and by
    phase of rank 0."""
    took, computation, communication = (
        median(record.times_ns)
        for record in (overlap.step_record, overlap.computation, overlap.communication)
    )
    measured = (took, computation + overlap.bubble, communication, overlap.exposed.estimate)
    predictions = (expected.step, expected.computation, expected.communication, expected.exposed)
    names = ("step", "computation", "communication", "exposed")
    rows = [*zip(names, predictions, measured, strict=True)]
    under_way = (
        measure_busy(step, overlap.step_record.operations[0])
        if overlap.step_record.operations
        else {}
    )
    rows += [
        (f"{phase or 'under way'}, {group or 'world'}", expected.rank_0_phases[phase, group], ns)
        for (phase, group), ns in under_way.items()
        if (phase, group) in expected.rank_0_phases
    ]
    lines = [
        Line(
            (
                name,
                format_duration(seconds * 1e9),
                format_signed_time(ns),
                _format_ratio(ns, seconds * 1e9),
            )
        )
        for name, seconds, ns in rows
    ]
    return Table(
        columns=make_columns(("", "predicted", "measured", "measured /\npredicted")),
        lines=lines,
        note=f"computation: predicted as {'--tflops' if machine.flops else 'the step'} says; both"
        " with waits for others' (the bubble); phases: while operations of the group were under way"
        " on rank 0",
    )


def _describe_recorded(recorded: Recorded, expected: Forecast | None) -> list[str]:
    """A sentence, in a list, on the step's time in its trace and on the predicted time over
    that."""
    took = median(recorded.times_ns)
    lines = [f"recorded: {format_duration(took)}, {recorded_words(recorded)}"]
    if expected and took:
        lines.append(f"predicted / recorded: {expected.step * 1e9 / took:.2f}")
    return lines


def _format_ratio(ns: float, predicted: float) -> Cell:
    if predicted <= 0 or ns <= 0:
        return "-"
    times = f"{ns / predicted:.2f}"
    return times if CLOSE[0] <= ns / predicted <= CLOSE[1] else tone_text(times, "notice")


def _plain_values(expected: Forecast) -> dict[str, Any]:
    return {
        "step_ns": expected.step * 1e9,
        "computation_ns": expected.computation * 1e9,
        "communication_ns": expected.communication * 1e9,
        "exposed_ns": expected.exposed * 1e9,
        "phases": [
            {"phase": phase, "group": group, "busy_ns": seconds * 1e9}
            for (phase, group), seconds in expected.phases.items()
        ],
    }
