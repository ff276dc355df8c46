"""A run in the columns of IMB-MPI1, of the Intel MPI Benchmarks 2021.

A rank's time is the mean of its calls, of which ranks' times were kept (Record.per_rank), as IMB's
is; t_min, t_max and t_avg are over ranks. ``#bytes`` is the size of one block where a buffer has a
block for each rank, but for Reduce_scatter. Mbytes/sec, which only Sendrecv has, is what a rank
sends and receives over t_max.

A table never mixes two implementations, numbers of ranks, types or placements: the line below its
name says which. Lines that IMB does not write are comments, as is a case that has no times by rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO

from collbench.core.text import plain_line
from collbench.core.version import __version__
from collbench.records.flags import list_doubts
from collbench.records.types import End, Record
from collbench.run.reporter import Gathered, Outcome
from collbench.show.flags import name_flags
from collbench.show.nccl import describe_block
from collbench.show.views import run_table
from collbench.show.words import PLACES, count_reasons, list_caveats, tell_story
from collbench.suite.case import Case

NAMES = {
    "all_reduce": "Allreduce",
    "all_gather": "Allgather",
    "all_to_all": "Alltoall",
    "all_to_allv": "Alltoallv",
    "broadcast": "Bcast",
    "reduce_scatter": "Reduce_scatter",
    "sendrecv": "Sendrecv",
}  # others are capitalised

BLOCKS = ("all_gather", "all_to_all", "all_to_allv", "gather", "scatter")  # of which IMB counts one

WIDTH = 13  # of a column

TIMES = ("t_min[usec]", "t_max[usec]", "t_avg[usec]")


def average_times(record: Record) -> list[float]:
    """Microseconds that a call takes each rank, on average; empty where its times were not kept."""
    return [statistics.fmean(times) / record.inner / 1e3 for times in record.per_rank if times]


def list_columns(case: Case) -> list[str]:
    """Names of the columns of the table that ``case`` is in."""
    sizes = ["#bytes"] if case.row.moves_data else []
    return [*sizes, "#repetitions", *TIMES, *["Mbytes/sec"] * (case.collective == "sendrecv")]


def format_row(record: Record, means: Sequence[float]) -> str:
    """A line of a table: the times by rank ``means``, in microseconds, over ranks."""
    case, slowest = record.case, max(means)
    size = case.size // (case.n if case.collective in BLOCKS else 1)
    counts = [size] * case.row.moves_data + [len(record.per_rank[0]) * record.inner]
    values = [min(means), slowest, statistics.fmean(means)]
    if case.collective == "sendrecv":
        values.append(2 * size / slowest if slowest else 0.0)
    cells = [f"{count:{WIDTH}d}" for count in counts]
    return "".join([*cells, *(f"{value:{WIDTH}.2f}" for value in values)])


def name_benchmark(case: Case) -> str:
    """The name that IMB has for a collective, or would have; of a step its own."""
    return plain_line(case.subject) or NAMES.get(case.collective, case.collective.capitalize())


def describe_table(case: Case) -> str:
    """What the cases of a table share and IMB has no column for."""
    kinds = [case.dtype] * case.row.moves_data + [case.op] * case.row.reduces
    kinds += [f"root {case.root}"] * case.row.rooted
    return ", ".join([describe_block(case), *kinds, PLACES["in" if case.in_place else "out"]])


class Text(Gathered):
    """Tables when the run ends, after a head with the command."""

    needs_samples = True

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def end(self, end: End, path: Path | None) -> None:
        super().end(end, path)
        tables: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in self.outcomes:
            case = outcome[0].case
            if outcome[0].status != "skipped":
                key = name_benchmark(case), describe_table(case)
                tables.setdefault(key, []).append(outcome)
        lines = list(self._write_head())
        for (name, about), outcomes in tables.items():
            lines += write_table(name, about, sorted(outcomes, key=lambda o: o[0].case.size))
        lines += ["", *(f"# {plain_line(text)}" for text in self._list_remarks(end))]
        self._out.write("\n".join(lines) + "\n")
        self._out.flush()

    def _write_head(self) -> Iterator[str]:
        facts, rule = self.run.environment, "#" + "-" * 64
        started = datetime.fromisoformat(self.run.started).astimezone()
        yield from (rule, f"#    collbench {__version__}, in the columns of IMB-MPI1", rule)
        date = started.strftime("%a %b %d %H:%M:%S %Y")  # local, without a zone, as IMB's
        values = {"Date": date, "Machine": facts.get("machine"), "Release": facts.get("kernel")}
        for name, value in values.items():
            yield f"# {name:<21} : {plain_line(str(value or ''))}"
        libraries = dict.fromkeys(world.library for world in self.worlds.values())
        yield f"# {'Library':<21} : {plain_line(', '.join(filter(None, libraries)))}"
        yield from ("", "# Calling sequence was: ", "")
        yield f"# {plain_line(' '.join(self.run.command))}"
        yield from (f"# {plain_line(text)}" for text in self._list_caveats())

    def _list_caveats(self) -> list[str]:
        return list_caveats(self.run, self.worlds.values())

    def _list_remarks(self, end: End) -> Iterator[str]:
        """What all tables need said below them."""
        for reason, number in count_reasons(self.skips, self.arrived):
            yield f"{number} skipped: {reason}"
        yield from run_table.describe_dropped(self)
        yield from run_table.explain_flags(self)
        yield from [busy] if (busy := run_table.describe_busy(self)) else []
        yield from self._list_caveats()
        yield from [f"ended early: {end.note}"] if end.note else []


def write_table(name: str, about: str, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The lines of a table; the outcomes are in the order of sizes."""
    case = outcomes[0][0].case
    columns = list_columns(case)
    rule = "#" + "-" * (WIDTH * len(columns) - 1)
    yield from ("", rule, f"# Benchmarking {name} ", f"# #processes = {case.n} ", f"# {about}")
    yield from (rule, "".join(f"{column:>{WIDTH}}" for column in columns))
    for record, row in outcomes:
        size = f"{record.case.size} bytes"
        if record.status in ("failed", "wrong"):
            yield f"# {record.status}: {plain_line(tell_story(record))}"
        elif means := average_times(record):
            yield format_row(record, means)
        else:
            yield f"# {size}: without t_min, t_max and t_avg, as no times by rank were recorded"
        if row and (doubts := list_doubts(row)):
            yield f"# {size}: {' '.join(name_flags(row, doubts))}"
