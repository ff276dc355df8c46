"""Runs of training steps: what a step takes, what of its communication computation hides, and where
the time of its operations goes. On a terminal and in a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from collbench.core.text import format_bandwidth, format_count, format_duration, format_size
from collbench.features.training.operations import MOST_TIMED
from collbench.features.training.overlap import (
    Overlap,
    Phase,
    divide_phases,
    find_overlaps,
    list_blamed,
    list_timed,
    predict_step_ns,
    step_of,
)
from collbench.features.training.step import Program, Recorded, Step
from collbench.features.training.traffic import count_traffic
from collbench.features.training.views.timeline import (
    draw_operations,
    draw_waterfall,
    format_signed_time,
)
from collbench.records import store
from collbench.records.derive import derive_row
from collbench.records.flags import EXCLUDED
from collbench.records.origins import FAKE, is_fake, select_counting
from collbench.records.paired import Shift
from collbench.records.stats import median
from collbench.records.traffic import UNSEEN
from collbench.records.types import Operation, RunFile
from collbench.run.resumption import describe_remedy
from collbench.show.document import (
    Block,
    Cell,
    Column,
    Document,
    Figure,
    Line,
    Section,
    Table,
    make_columns,
    tone_text,
)
from collbench.show.views.series import View
from collbench.show.words import list_caveats
from collbench.suite.case import Case

COLUMNS = (  # of phases; the last two are left out where nothing was measured alone
    Column("phase", "left", priority=1),
    Column("group", "left"),
    Column("operation", "left"),
    Column("ops"),
    Column("size"),
    Column("sent", priority=3),
    Column("in step"),
    Column("waited"),
    Column("busbw\nGB/s"),
    Column("alone"),
    Column("x alone", priority=2),
)
LITTLE = 0.01  # of the communication, as computation hides nothing
LEGEND = (
    "of rank 0, in steps that were watched. In step: how long such operations were under way;"
    " waited: for how much of that the program stood still; alone: what they take by themselves,"
    " one after the other, and how many times as long they took in the step"
)
CLOSE = 0.8, 1.25  # of what was expected


def make_document(file: RunFile) -> Document:
    """The results of each step of a run."""
    overlaps = find_overlaps(select_counting(file), partial(step_of, file))
    brief: list[Block] = [tone_text(text, "bad") for text in list_caveats(file.run, file.worlds)]
    rows: list[dict[str, Any]] = []
    for overlap in overlaps:
        case = overlap.step_record.case
        step = step_of(file, case)
        phases = (
            divide_phases(step, overlap.step_record.operations[0])
            if step and overlap.step_record.operations
            else []
        )
        if len(overlaps) > 1:
            brief.append(tone_text(f"{name_step(case)} on {case.label}", strong=True))
        if overlap.step_record.stop == "cut":
            again = describe_remedy(file.run, store.run_name(file.path))
            brief.append(tone_text(f"{_describe_cut(overlap)}; {again}", "notice"))
        brief += [tone_text(text, "bad") for text in _list_exclusions(overlap)]
        brief += describe_overlap(overlap) + _describe_expected(overlap, step)
        if step and step.recorded:
            brief += ["", _recorded_table(overlap, step.recorded), ""]
        brief += _describe_contended(file, overlap, step) + _describe_wire(file, overlap, step)
        brief += _describe_untimed(overlap, step)
        if phases:
            brief += ["", _make_table(phases), tone_text(LEGEND, "quiet")]
        if step and (blame := _blamed_table(overlap, step)):
            brief.append(blame)
        brief += [f"assumed: {assumption}" for assumption in (step.assumptions if step else ())]
        values: dict[str, Any] = {"operations": [phase._asdict() for phase in phases]}
        if step and overlap.step_record.operations:
            without = list_blamed(step.program(0), overlap.step_record.operations[0])
            values["without"] = [
                {"op": blamed.at, **_plain_bounds(blamed.less)} for blamed in without
            ]
        if step and step.recorded:
            values["recorded"] = recorded_values(step.recorded)
        rows.append({**plain_values(overlap), **values})
    if not (overlaps or is_fake(file)):
        brief += ["no step was measured to its end"]
    return Document(
        title="Steps",
        brief=brief,
        rows=rows,
        values={"steps": rows, **({FAKE: True} if is_fake(file) else {})},
    )


def _describe_cut(overlap: Overlap) -> str:
    """A sentence that a run ended while the step was measured."""
    rounds = format_count(len(overlap.step_record.times_ns), "round")
    return (
        f"cut short: of {rounds} that were finished, whose data was not checked afterwards;"
        " no verdict rests on them"
    )


def _list_exclusions(overlap: Overlap) -> list[str]:
    """Sentences on why times of a step, or of its parts, count nowhere else."""
    rows = map(derive_row, (overlap.step_record, overlap.computation, overlap.communication))
    flags = {flag for row in rows if row for flag in row.flags}
    return [
        f"{flag}: {reason}; no verdict rests on what follows"
        for flag, reason in EXCLUDED.items()
        if flag in flags
    ]


def name_step(case: Case) -> str:
    """A step's name without the digest that sets steps of the same name apart."""
    return case.subject.rpartition(" #")[0]


def describe_overlap(overlap: Overlap) -> list[str]:
    """Sentences on a step's time, and on its communication that nothing hides."""
    bubble = f" and a bubble of {format_duration(overlap.bubble)}" if overlap.bubble else ""
    lines = [
        f"exposed communication {format_within(overlap.exposed)}: {overlap.share:.0%} of the step"
        f" (step less computation{bubble}, round by round)",
    ]
    parts = (overlap.computation, overlap.communication)
    computation, communication = (median(record.times_ns) for record in parts)
    if overlap.hidden is None or computation < LITTLE * communication:
        what = (
            "communication to hide" if overlap.hidden is None else "computation to hide it behind"
        )
        return [*lines, f"there is no {what}"]
    if math.isinf(overlap.hidden.hi):
        sentence = "too few rounds to tell what of the communication computation hides"
    elif overlap.hidden.lo <= 0 and overlap.hidden.hi >= 1:  # nothing, all, and more than there is
        sentence = "steps scatter too much to tell what of the communication computation hides"
    elif overlap.hidden.lo > 0:
        sentence = f"computation hides {format_shares(overlap.hidden)} of the communication"
    elif overlap.hidden.hi < 0:
        sentence = (
            "computation and communication are in each other's way: together they take"
            f" {format_shares(overlap.hidden, -1)} of the communication longer than one after the"
            " other"
        )
    else:
        hidden = format_shares(overlap.hidden)
        sentence = f"computation hides nothing for sure: {hidden} of the communication"
    return [*lines, sentence]


def _describe_expected(overlap: Overlap, step: Step | None) -> list[Block]:
    """Text on the time that the step would take by its operations' times one by one, and on what it
    took; empty where that is unknown."""
    ns = predict_step_ns(step, overlap.step_record, overlap.computation) if step else None
    if not ns:
        return []
    took = median(overlap.step_record.times_ns)
    sentence = (
        f"with every operation at its stand-alone speed: {format_duration(ns)}; measured"
        f" {took / ns:.2f} × that"
    )
    return [sentence if CLOSE[0] <= took / ns <= CLOSE[1] else tone_text(sentence, "notice")]


def recorded_words(recorded: Recorded) -> str:
    """A sentence on the times of the trace's iterations, and from when to when they count."""
    number = len(recorded.times_ns)
    return f"median of {format_count(number, 'iteration')} of the trace, {recorded.meaning}"


def recorded_values(recorded: Recorded) -> dict[str, Any]:
    """A recorded step's times and their median, as programs read them."""
    return {"median_ns": median(recorded.times_ns), **msgspec.structs.asdict(recorded)}


def _recorded_table(overlap: Overlap, recorded: Recorded) -> Table:
    """A table of the step's time beside its time in the trace."""
    before, row = median(recorded.times_ns), derive_row(overlap.step_record)
    ends = (row.times.lo, row.times.hi) if row else (math.inf, math.inf)
    ratios = [f"{ns / before:.3f}" if before and math.isfinite(ns) else "-" for ns in ends]
    took = median(overlap.step_record.times_ns)
    lines = [
        Line(("recorded", format_duration(before), "", "")),
        Line(
            (
                "replayed",
                format_duration(took),
                _format_ends(*ends),
                f"{took / max(1.0, before):.3f} [{ratios[0]}, {ratios[1]}]",
            )
        ),
    ]
    return Table(
        name="recorded",
        title="Replayed beside recorded",
        columns=make_columns(("step", "median", "95 %", "replayed / recorded")),
        lines=lines,
        note=f"recorded: {recorded_words(recorded)}; the ratio's interval is that of the replayed"
        " median alone",
    )


def _describe_contended(file: RunFile, overlap: Overlap, step: Step | None) -> list[Block]:
    """Text that computation takes cores from communication; empty where there are enough for
    both."""
    cramped = any(w.cramped for w in file.worlds if w.index == overlap.step_record.world)
    if not cramped or step is None or step.compute in ("none", "sleep"):
        return []
    sentence = (
        "contended: ranks have fewer cores than threads that must run, so that computation and"
        " communication share them"
    )
    return [tone_text(sentence, "notice")]


def _describe_untimed(overlap: Overlap, step: Step | None) -> list[str]:
    """A sentence, in a list, that a step has too many operations to time them; empty where it has
    not."""
    count = len(step.program(0).ops) if step else 0
    if count <= MOST_TIMED or overlap.step_record.operations:
        return []
    return [f"no single operation was timed: rank 0 has {count:,}, more than {MOST_TIMED:,}"]


def _describe_wire(file: RunFile, overlap: Overlap, step: Step | None) -> list[Block]:
    """Text on the bytes that links carried, against what the operations need; empty where that is
    unknown."""
    library = next((w.library for w in file.worlds if w.index == overlap.step_record.world), "")
    carried = (
        count_traffic(step, overlap.step_record.case, overlap.step_record.sent, library)
        if step
        else None
    )
    if carried is None:
        return []
    share = carried.counted_bytes / carried.needed_bytes
    if share < UNSEEN:
        return ["no counter saw the data, as in shared memory"]
    sentence = (
        f"links carried {format_size(carried.counted_bytes)} for"
        f" {format_size(carried.needed_bytes)} that a step has to send"
    )
    more = carried.known_bytes / carried.needed_bytes
    if more > 1:
        sentence += f": {share:.2f}x, where {more:.2f}x is known of this library"
    return [sentence if more > 1 else f"{sentence} ({share:.2f}x)"]


def format_within(value: Shift) -> str:
    """A time with its interval."""
    return f"{format_signed_time(value.estimate)} {_format_ends(value.lo, value.hi)}"


def format_shares(value: Shift, sign: int = 1) -> str:
    """A share with its interval."""
    if math.isinf(value.hi):
        return f"{sign * value.estimate:.0%} (too few rounds to bound it)"
    ends = sorted((sign * value.lo, sign * value.hi))
    return f"{sign * value.estimate:.0%} [{ends[0]:.0%}, {ends[1]:.0%}]"


def _make_table(phases: list[Phase]) -> Table:
    """A line for each kind of operation in each phase."""
    alone = any(phase.alone is not None for phase in phases)
    lines = [
        Line(
            (
                phase.phase,
                phase.group or "world",
                phase.kind,
                f"{phase.ops:,}",
                format_size(phase.nbytes),
                format_size(phase.sent),
                format_duration(phase.busy),
                format_duration(phase.waited),
                format_bandwidth(phase.busbw),
                *(_alone_cells(phase) if alone else ()),
            )
        )
        for phase in phases
    ]
    return Table(columns=COLUMNS if alone else COLUMNS[:-2], lines=lines)


def _blamed_table(overlap: Overlap, step: Step) -> Table | None:
    """A table of the time that steps save without single operations; None where none was left
    out."""
    blamed_list = (
        list_blamed(step.program(0), overlap.step_record.operations[0])
        if overlap.step_record.operations
        else []
    )
    total = overlap.exposed.estimate
    lines = [
        Line(
            (
                f"{blamed.at}: {blamed.op.kind} of {format_size(blamed.op.nbytes)},"
                f" {blamed.op.source}".rstrip(", "),
                format_within(blamed.less),
                f"{blamed.less.estimate / total:.0%}" if total > 0 else "-",
            )
        )
        for blamed in blamed_list
    ]
    columns = make_columns(("left out", "the step takes less", "of the exposed"), "w")
    note = "each left out on all its ranks, in rounds of their own beside the whole step"
    table = Table(
        name="blame", title="Without one operation", columns=columns, lines=lines, note=note
    )
    return table if blamed_list else None


def _alone_cells(phase: Phase) -> tuple[Cell, Cell]:
    """The cells on what operations take by themselves, and on the ratio of their time in a step to
    that."""
    if phase.alone is None or phase.slower is None:
        return "-", "-"
    times = f"{phase.slower:.2f}"
    close = CLOSE[0] <= phase.slower <= CLOSE[1]
    return format_duration(phase.alone), times if close else tone_text(times, "notice")


def plain_values(overlap: Overlap) -> dict[str, Any]:
    """A step as programs read it, in ns."""
    case = overlap.step_record.case
    bounds = {
        name: None if value is None else _plain_bounds(value)
        for name, value in (
            ("exposed_ns", overlap.exposed),
            ("hidden", overlap.hidden),
            ("ideal", overlap.ideal),
        )
    }
    parts = {
        f"{record.case.collective}_ns": median(record.times_ns)
        for record in (overlap.step_record, overlap.computation, overlap.communication)
    }
    about = {"workload": case.subject, "implementation": case.label, "ranks": case.n}
    rounds = len(overlap.step_record.times_ns)
    return {**about, "rounds": rounds, **parts, "bubble_ns": overlap.bubble, **bounds}


def _plain_bounds(value: Shift) -> dict[str, float | None]:
    return {
        "estimate": value.estimate,
        "lo": _finite_value(value.lo),
        "hi": _finite_value(value.hi),
    }


def _finite_value(value: float) -> float | None:
    return value if math.isfinite(value) else None


def make_section(view: View) -> Section | None:
    """The steps of a report's runs; None where there are none."""
    tables: list[Table] = []
    drawn: list[Figure] = []
    for number, file in enumerate(view.files):
        for overlap in find_overlaps(select_counting(file), partial(step_of, file)):
            case = overlap.step_record.case
            title = view.prefix_run(
                number, f"{name_step(case)} on {case.label}, {format_count(case.n, 'rank')}"
            )
            step = step_of(file, case)
            notes = [_describe_cut(overlap)] if overlap.step_record.stop == "cut" else []
            note = "; ".join([*notes, *_describe_untimed(overlap, step)])
            tables.append(replace(_parts_table(title, overlap), note=note))
            if step and step.recorded:
                recorded_table = _recorded_table(overlap, step.recorded)
                tables.append(replace(recorded_table, title=f"{title}: replayed beside recorded"))
            if step is None or not overlap.step_record.operations:
                continue
            phases = divide_phases(step, overlap.step_record.operations[0])
            tables += [
                replace(_make_table(phases), title=f"{title}: by phase", note=LEGEND),
                _operations_table(title, step.program(0), overlap.step_record.operations[0]),
            ]
            if blame := _blamed_table(overlap, step):
                tables.append(replace(blame, title=f"{title}: without one operation"))
            drawn += [
                draw_waterfall(title, overlap, phases),
                draw_operations(title, step, overlap.step_record.operations),
            ]
    if not tables:
        return None
    sentences = [
        "The whole step, its computation alone and its communication alone were measured in turns,"
        " in rounds. Exposed is the step less its computation, round by round; hidden is the share"
        " of the communication that this leaves out, below 0 where the two hinder each other."
        " Intervals are at 95 %.",
    ]
    if any(line.cells[0] == "bubble" for table in tables for line in table.lines):
        sentences.append(
            "Bubble is how long ranks would wait for each other's computation if communication took"
            " no time; it is no part of exposed."
        )
    return Section(
        name="steps", title="Training steps", sentences=sentences, figures=drawn, tables=tables
    )


def _parts_table(title: str, overlap: Overlap) -> Table:
    """A table of the times of a step and its parts, with their intervals."""
    lines = []
    for record in (overlap.step_record, overlap.computation, overlap.communication):
        row = derive_row(record)
        ends = (row.times.lo, row.times.hi) if row else (math.inf, math.inf)
        lines.append(
            (record.case.collective, format_duration(median(record.times_ns)), _format_ends(*ends))
        )
    if overlap.bubble:
        lines.append(("bubble", format_duration(overlap.bubble), ""))
    exposed = overlap.exposed
    lines.append(
        ("exposed", format_signed_time(exposed.estimate), _format_ends(exposed.lo, exposed.hi))
    )
    if overlap.hidden is not None:
        share, _, between = format_shares(overlap.hidden).partition(" ")
        lines.append(("hidden", share, between))
    columns = make_columns(("", "median", "95 %"))
    return Table(name="steps", title=title, columns=columns, lines=[Line(line) for line in lines])


def _format_ends(lo: float, hi: float) -> str:
    bounded = math.isfinite(lo + hi)
    return (
        f"[{format_signed_time(lo)}, {format_signed_time(hi)}]"
        if bounded
        else "(too few rounds to bound it)"
    )


def _operations_table(title: str, program: Program, operation_times: Sequence[Operation]) -> Table:
    """A line for each operation of rank 0 with others: what it takes by itself and in the step, and
    how much of that the program did not wait for."""
    lines = [
        Line(
            (
                str(timed.at),
                timed.op.phase,
                timed.op.label,
                timed.op.source,
                *(
                    "-" if ns is None else format_duration(ns)
                    for ns in (timed.alone, timed.begins, timed.took)
                ),
                f"{timed.hidden:.0%}",
            )
        )
        for timed in list_timed(program, operation_times)
    ]
    heads = ("op", "phase", "operation", "of", "alone", "begins", "in step", "hidden")
    note = "medians over the steps that were watched; hidden: while the program did not wait"
    return Table(
        name="operations",
        title=f"{title}: each operation of rank 0",
        columns=make_columns(heads, "rlll"),
        lines=lines,
        note=note,
        folded=True,
    )
