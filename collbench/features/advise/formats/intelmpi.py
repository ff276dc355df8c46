"""Intel MPI's I_MPI_ADJUST variables with ranges of sizes, in a file that a shell sources.

What the library does (2021.18, by what its calls send and add; its manual says otherwise):
- A value is PRESET:FROM-TO;PRESET:FROM-TO;… Only the upper bounds count, inclusive: each preset
  holds from where the one before ends, the first from 0, and the last to the end.
- So a variable takes over all sizes of its collective. No preset gives the library's tuned choice
  back: 0 is its basic one.
- With ranks (@4-4) only the last range of as many ranks counts, for all sizes, and those of the
  next number hold for ranks that have none: sizes and ranks cannot be told together.
- Sizes are those of a rank's part: of all_gather, reduce_scatter and all_to_all a block, that is
  collbench's size over the number of ranks.
- One number that is too large, and the variable is ignored.

Therefore a collective is written only if rows cover all of its sizes that were measured, or fills:
presets that are as fast as the library's own choice (Advised.fills), and for one number of ranks.
Where two of them leave unmeasured sizes between them, the lower one holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from collbench.core.collectives import COLLECTIVES
from collbench.core.text import format_size
from collbench.features.advise.fills import list_uncovered, sort_all
from collbench.features.advise.formats import Rule
from collbench.features.advise.formats._exports import (
    Export,
    ExportFile,
    derive_rules,
    parse_number,
    refuse_ranks,
    warn_ranks,
    write_export,
)
from collbench.features.advise.formats._rows import (
    comment,
    describe_fill,
    describe_row,
    fail_line,
    format_path,
    refuse_shared,
    write_head,
)
from collbench.features.advise.libraries.intelmpi import (
    FUNCTIONS,
    PREFIX,
    name_preset,
    split_preset,
)
from collbench.features.advise.types import Advice, Advised

MAX_SIZE = (1 << 31) - 1


class IntelMpiVariables(ExportFile):
    """A file of I_MPI_ADJUST variables."""

    key = "intelmpi"
    title = "Intel MPI's I_MPI_ADJUST variables"
    prefix = PREFIX
    by_size, covers_all = True, True

    def refuse(self, advised: Advised) -> str:
        rows = sort_all(advised)
        reasons = [_refuse_row(row) for row in rows]
        reasons += [refuse_ranks(rows), refuse_shared(rows), _refuse_gaps(advised)]
        return next(filter(None, reasons), "")

    def write(self, advised: Advised, path: Path | None = None) -> str:
        self.refuse_unsayable(advised)
        warnings = [
            *warn_ranks(advised.rows),
            "Intel MPI goes on with the first and the last preset beyond the sizes that were"
            " measured.",
        ]
        lines = write_head(advised, self.title, [f"source {format_path(path)}"], warnings)
        for collective, group in groupby(sort_all(advised), lambda row: row.series.collective):
            rows = list(group)
            for row in rows:
                describe = describe_fill if row in advised.fills else describe_row
                lines += comment([describe(row, advised.day)])
            lines.append(write_export(PREFIX + FUNCTIONS[collective].word, _write_value(rows)))
        return "\n".join(lines) + "\n"

    def read_value(self, export: Export) -> Iterator[Rule]:
        return _read_value(export)


def _refuse_row(row: Advice) -> str:
    function = FUNCTIONS.get(row.series.collective)
    preset, rest = split_preset(row.series.collective, row.setting.env)
    if row.setting.backend != "mpi":
        return f"{row.name} is a setting of backend {row.setting.backend}"
    if function is None or (preset is None and not rest):
        return f"it is not known how Intel MPI counts sizes of {row.series.collective}"
    if rest:
        return f"{rest[0][0]} holds for all sizes"
    if preset is None or preset > function.presets:
        return f"Intel MPI has no {row.name} for {row.series.collective}"
    if row.high > MAX_SIZE:
        return f"sizes end at {MAX_SIZE}"
    return ""


def _refuse_gaps(advised: Advised) -> str:
    """Why rows and fills cannot stand for all sizes of their collectives."""
    for cell in list_uncovered(advised)[:1]:
        return (
            "Intel MPI's ranges take over all sizes of a collective, none gives the library's own"
            f" choice back, and for {cell.series.collective} of {cell.series.n} ranks and"
            f" {format_size(cell.nbytes)} no setting is known to be as fast"
        )
    return ""


def _write_value(rows: Sequence[Advice]) -> str:
    share = rows[0].series.n if COLLECTIVES[rows[0].series.collective].total else 1
    presets = [split_preset(row.series.collective, row.setting.env)[0] for row in rows]
    if len(rows) == 1:
        return str(presets[0])
    ends = [(after.low - 1) // share for after in rows[1:]] + [MAX_SIZE]
    starts = [0, *(end + 1 for end in ends)]
    return ";".join(
        f"{preset}:{start}-{end}" for preset, start, end in zip(presets, starts, ends, strict=False)
    )


def _read_value(export: Export) -> Iterator[Rule]:
    line = export.line
    collectives = [name for name, each in FUNCTIONS.items() if export.name == PREFIX + each.word]
    if not collectives:
        raise fail_line(line, f"{export.name} is no variable that collbench knows")
    collective, at = collectives[0], 0
    most = FUNCTIONS[collective].presets
    parts = export.value.split(";")
    for part in parts:
        word, colon, sizes = part.partition(":")
        preset = parse_number(word, f"a preset of {collective}", most, line)
        if not colon and len(parts) == 1:
            sizes = f"0-{MAX_SIZE}"
        if "@" in sizes:
            raise fail_line(line, "of several ranges for as many ranks only the last one counts")
        low, dash, high = sizes.partition("-")
        if not dash:
            raise fail_line(line, f"'{part[:30]}' has no range of sizes")
        first = parse_number(low, "a size", MAX_SIZE, line)
        end = parse_number(high, "a size", MAX_SIZE, line)
        if first != at:
            raise fail_line(line, f"{part[:40]} holds from {at} on, as lower bounds do not count")
        if end < first:
            raise fail_line(line, f"{part[:40]} ends before it begins")
        at = end + 1
        yield from derive_rules(
            collective, first, None if end == MAX_SIZE else end, name_preset(preset)
        )
    if at <= MAX_SIZE:
        raise fail_line(line, f"the last preset holds beyond {at - 1}, too")


FORMATS = (IntelMpiVariables(),)
