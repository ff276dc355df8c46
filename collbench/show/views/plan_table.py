"""What would run: the table of --dry-run, what it takes, and what may be refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from collbench.core.backend_info import backend_info
from collbench.core.text import format_clock, format_count, format_duration, format_size, plain_line
from collbench.run.reporter import PlanRow
from collbench.show.document import Block, Line, Table, Words, make_columns, tone_text
from collbench.show.views.run_table import tone_notice
from collbench.show.words import split_axes, word_axes
from collbench.suite.case import Case

MOST_PLANNED = 1000  # lines of --dry-run

PLANNED = (
    "moved/call: what the busiest rank sends or receives in a call",
    "memory/rank: buffers, and 256 MiB for Python and libraries",
    "buffers: send/receive pairs that take turns, 64 at most: small data may stay in a cache",
)


def describe_plan(
    rows: Sequence[PlanRow], starting: float = 0.0, fresh: bool = False, cores: int = 0
) -> list[Block]:
    """Blocks of --dry-run: what all cases share, each with the memory and time it will take, then
    the sum, with the seconds that ``starting`` ranks takes. Cycles, launches where ranks are
    ``fresh``, that are all alike are listed once. ``cores``: those that all ranks are to share, 0
    where that is not known."""
    cycle, run = "launch" if fresh else "cycle", [row for row in rows if not row.skipped]
    cycles = Counter(row.case.cycle for row in rows)
    are_alike = len(cycles) > 1 == len({*cycles.values()})
    listed = [row for row in rows if row.case.cycle == 0] if are_alike else rows
    listed = [row for row in listed if not _is_said_by_leader(row.case)] or listed
    varying, constant = split_axes([row.case for row in listed]) if rows else ([], "")
    as_one = [row.case for row in listed if row.case.table.planned_as_one]
    if len(as_one) == len(listed) and "collective" not in varying and rows:
        constant = constant.removeprefix(f"{rows[0].case.collective}, ")
    constant += f"; each of {format_count(len(cycles), cycle)}" * are_alike
    lines = []
    for row in listed[:MOST_PLANNED]:
        values = word_axes(row.case)
        values["cycle"] = f"{cycle} {row.case.cycle + 1}"
        if row.case.table.planned_as_one:
            values["collective"] = ""
        value_words = [values[name] for name in varying if values[name]]
        label = plain_line(", ".join([*value_words, row.case.mode]))
        if row.skipped:
            why = tone_text(label) + tone_text(f": {plain_line(row.skipped)}", "notice")
            lines.append(Line((why, format_size(row.case.nbytes), "", "", "", "")))
        else:
            is_one = row.case.table.planned_as_one
            memory = (
                format_size(row.case.nbytes if is_one else row.case.size),
                "-" if is_one and not row.moved else format_size(row.moved),
                format_size(row.bytes_per_rank),
            )
            time = format_duration(row.seconds * 1e9 or None)
            lines.append(Line((label, *memory, str(row.rotation), time)))
    heads = ("case", "size", "moved/call", "memory/rank", "buffers", "time")
    about, longest = (sum(row.seconds for row in run), sum(row.most for row in run))
    total = f"{format_count(len(run), 'case')}, about {format_clock(starting + about)}"
    total += f" (up to {format_clock(starting + longest)} if noisy)" * (longest > about)
    total += f", of which {format_clock(starting)} to start ranks" * (starting > 0)
    most = format_size(max((row.bytes_per_rank for row in run), default=0))
    return [
        tone_text(plain_line(constant), strong=True),
        Table(columns=make_columns(heads, "w"), lines=lines),
        *([f"and {len(listed) - MOST_PLANNED:,} more"] if listed[MOST_PLANNED:] else []),
        *(tone_text(sentence, "quiet") for sentence in PLANNED if run),
        *(tone_text(sentence, "quiet") for sentence in _describe_joint(as_one)),
        f"{total}, at most {most} a rank; {len(rows) - len(run)} skipped",
        *_may_be_refused([row.case for row in run]),
        *_describe_crowded([row.case for row in run], cores),
    ]


def _is_said_by_leader(case: Case) -> bool:
    """Whether the line of the case that leads it stands for this one, too."""
    return case.is_part and case.table.planned_as_one


def _describe_joint(leaders: Sequence[Case]) -> list[str]:
    """How many cases the lines of these leaders stand for."""
    tables = {case.table.kind: case.table for case in leaders}
    return [
        f"each {table.noun}: {format_count(len(table.rows), 'case')}, measured together"
        for table in tables.values()
    ]


def _describe_crowded(cases: Sequence[Case], cores: int) -> list[Words]:
    """How many of the planned cases have more ranks than there are cores."""
    crowded = [case for case in cases if case.world > cores and case.backend != "model"]
    if not (crowded and cores):
        return []
    where = (
        f"{format_count(max(case.world for case in crowded), 'rank')} on"
        f" {format_count(cores, 'core')}"
    )
    flagged = f"{format_count(len(crowded), 'row')} will be flagged oversubscribed"
    return [tone_notice(f"{where}: {flagged}, which is not fit for claims; -g {cores} fits")]


def _may_be_refused(cases: Sequence[Case]) -> list[Words]:
    """Which of the planned cases a run may skip, as the library says so only when it is asked."""
    unsure = [case for case in cases if backend_info(case.backend).may_refuse(case)]
    names = dict.fromkeys(f"{case.dtype} {case.op}".removesuffix(" none") for case in unsure)
    libraries = ", ".join(dict.fromkeys(case.backend for case in unsure))
    text = (
        f"{libraries} may refuse {format_count(len(unsure), 'case')} of these: {', '.join(names)}"
    )
    return [tone_notice(plain_line(text))] if unsure else []
