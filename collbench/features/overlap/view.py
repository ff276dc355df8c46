"""Collectives measured with something in their background, as a document: how much each slows the
other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from collbench.core.text import format_count, format_size, plain_line
from collbench.features.overlap.judgement import HIDDEN, Overlapped, judge_overlaps
from collbench.records.paired import Shift
from collbench.records.types import RunFile
from collbench.show.document import Block, Comment, Document, Line, Section, Table, make_columns
from collbench.show.views.series import View
from collbench.show.words import list_caveats
from collbench.suite import backgrounds
from collbench.suite.case import Case

COLUMNS = make_columns(
    ("collective", "size", "background", "slower by it", "itself slower", "both", ""), "llwrrrl"
)
LEGEND = (
    "slower by it: what the collective takes with that in the background over what it takes alone;"
    " itself slower: the same of the background; both: how much gets done in a given time, where 1"
    " is what gets done of one after the other, and 2 is all."
    f" hides: {HIDDEN} or more; shares: more than 1; hinders: less. The intervals of a"
    " column hold for all rows together at 95 %"
)


def make_document(file: RunFile, overlaps: Sequence[Overlapped]) -> Document:
    """The rows of a run for every medium."""
    head = list_caveats(file.run, file.worlds)
    rounds = min((overlap.rounds for overlap in overlaps), default=0)
    head += [f"{format_count(rounds, 'round')}, the collective alone and with each in every one"]
    if any(world.cramped for world in file.worlds):
        head += [
            "contended: ranks have fewer cores than threads that must run: computation in the"
            " background takes cores from communication"
        ]
    body: list[Block] = [*head, _make_table(overlaps), LEGEND]
    rows = [_flatten_row(overlap) for overlap in overlaps]
    return Document(
        title=f"Overlap, {file.run.id}",
        brief=body,
        comment=Comment(body),
        rows=rows,
        values={"run": file.run.id, "injected": file.run.policy.inject, "rows": rows},
    )


def make_section(view: View) -> Section | None:
    """The section on a report's runs; None where nothing had a background, and was measured
    alone."""
    tables = [
        replace(
            _make_table(overlaps), title=view.prefix_run(number, "Two things at once"), note=LEGEND
        )
        for number, file in enumerate(view.files)
        if (overlaps := judge_overlaps(file))
    ]
    if not tables:
        return None
    sentences = ["Rounds have each collective alone, and with what is named in its background."]
    return Section(name="overlap", title="Overlap", sentences=sentences, tables=tables)


def _make_table(overlaps: Sequence[Overlapped]) -> Table:
    return Table(columns=COLUMNS, lines=[Line(_format_cells(overlap)) for overlap in overlaps])


def _format_cells(overlap: Overlapped) -> tuple[str, ...]:
    case = overlap.case
    return (
        plain_line(f"{case.collective} {case.label}{_describe_group(case)}"),
        format_size(case.size),
        plain_line(f"{case.background}{_describe_elsewhere(case)}"),
        *(_format_interval(shift) for shift in (overlap.slower, overlap.other, overlap.both)),
        overlap.verdict,
    )


def _describe_group(case: Case) -> str:
    """The words that name a case's group, as ", group 0 of host"; "" where ranks are not
    divided."""
    return f", group {case.group} of {case.groups}" if case.groups else ""


def _describe_elsewhere(case: Case) -> str:
    """That none of the collective's ranks does what is in the background, if so."""
    return " on other ranks" if backgrounds.count_ranks(case) == 0 else ""


def _format_interval(shift: Shift) -> str:
    if not math.isfinite(shift.hi):
        return f"{shift.estimate:.2f}x"
    return f"{shift.estimate:.2f}x [{shift.lo:.2f}, {shift.hi:.2f}]"


def _flatten_row(overlap: Overlapped) -> dict[str, Any]:
    """A row as an object of the JSON output; ends of an interval without bounds are None."""
    case = overlap.case
    shifts = {"slower": overlap.slower, "background_slower": overlap.other, "both": overlap.both}
    bounds = {
        f"{name}{end}": getattr(shift, field) if not end or math.isfinite(shift.hi) else None
        for name, shift in shifts.items()
        for end, field in (("", "estimate"), ("_lo", "lo"), ("_hi", "hi"))
    }
    return {
        "collective": case.collective,
        "implementation": case.label,
        "ranks": case.n,
        "nbytes": case.size,
        "groups": case.groups,
        "group": case.group,
        "background": case.background,
        "background_ranks": backgrounds.count_ranks(case),
        "rounds": overlap.rounds,
        **bounds,
        "verdict": overlap.verdict,
    }
