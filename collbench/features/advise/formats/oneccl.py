"""oneCCL's variables with ranges of sizes, in a file that a shell sources.

What its reader does (oneCCL 2021.16):
- A value is ALGORITHM:FROM-TO;ALGORITHM:FROM-TO;… with bounds in bytes, both inclusive; sizes that
  no range names keep the library's own algorithm. A later range replaces what an earlier one says.
- Sizes are those of a rank's part: of all_gather, reduce_scatter and all_to_all a block, that is
  collbench's size over the number of ranks.
- Ranges know nothing of ranks: they hold for any number.
- A word that it does not know ends the program; bounds are read up to what is no digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from collbench.core.collectives import COLLECTIVES
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
    describe_row,
    fail_line,
    format_path,
    refuse_shared,
    sort_rows,
    write_head,
)
from collbench.features.advise.libraries.oneccl import ALGORITHMS, PREFIX, split_word
from collbench.features.advise.types import Advice, Advised

MAX_SIZE = (1 << 64) - 1
END = "max"


class OneCclVariables(ExportFile):
    """A file of variables with ranges of sizes."""

    key = "oneccl"
    title = "oneCCL's variables by size"
    prefix = PREFIX
    by_size, covers_all = True, False

    def refuse(self, advised: Advised) -> str:
        reasons = [_refuse_row(row) for row in advised.rows]
        reasons += [refuse_ranks(advised.rows), refuse_shared(advised.rows)]
        return next(filter(None, reasons), "")

    def write(self, advised: Advised, path: Path | None = None) -> str:
        self.refuse_unsayable(advised)
        warnings = warn_ranks(advised.rows)
        lines = write_head(advised, self.title, [f"source {format_path(path)}"], warnings)
        rows = sort_rows(advised)
        for collective, group in groupby(rows, lambda row: row.series.collective):
            some = list(group)
            lines += comment(describe_row(row, advised.day) for row in some)
            if value := ";".join(filter(None, map(_write_range, some))):
                lines.append(write_export(PREFIX + ALGORITHMS[collective][0], value))
        return "\n".join(lines) + "\n"

    def read_value(self, export: Export) -> Iterator[Rule]:
        return _read_value(export)


def _refuse_row(row: Advice) -> str:
    collective = row.series.collective
    word, rest = split_word(collective, row.setting.env)
    if row.setting.backend != "oneccl":
        return f"{row.name} is a setting of backend {row.setting.backend}"
    if rest:
        return f"{rest[0][0]} holds for all sizes"
    if collective not in ALGORITHMS or word not in ALGORITHMS[collective][1]:
        return f"oneCCL has no algorithm {row.name} for {collective}"
    if collective == "all_to_allv":
        return "oneCCL compares no size of all_to_allv with its ranges"
    if row.high >= MAX_SIZE:
        return f"sizes end below {MAX_SIZE}"
    return ""


def _write_range(row: Advice) -> str:
    """A range of what the library takes for the size; empty for a row between two of them."""
    share = row.series.n if COLLECTIVES[row.series.collective].total else 1
    low, high = -(-row.low // share), row.high // share
    return f"{row.name}:{low}-{high}" if low <= high else ""


def _read_value(export: Export) -> Iterator[Rule]:
    collectives = [name for name, (word, _) in ALGORITHMS.items() if export.name == PREFIX + word]
    if not collectives:
        raise fail_line(export.line, f"{export.name} is no collective of oneCCL")
    collective, last = collectives[0], -1
    for part in export.value.split(";"):
        word, colon, sizes = part.partition(":")
        if word not in ALGORITHMS[collective][1]:
            raise fail_line(export.line, f"'{word[:30]}' is no algorithm for {collective}")
        if not colon:
            if part != export.value:
                raise fail_line(export.line, f"{word} has no sizes, and replaces all others")
            sizes = f"0-{END}"
        low, dash, high = sizes.partition("-")
        if not dash:
            raise fail_line(export.line, f"'{sizes[:30]}' is no range of sizes")
        first = parse_number(low, "a size", MAX_SIZE, export.line)
        end = None if high == END else parse_number(high, "a size", MAX_SIZE, export.line)
        if first <= last:
            raise fail_line(export.line, f"{part[:40]} overlaps, or stands behind larger sizes")
        if end is not None and end < first:
            raise fail_line(export.line, f"{part[:40]} ends before it begins")
        last = MAX_SIZE if end is None else end
        yield from derive_rules(collective, first, end, word)


FORMATS = (OneCclVariables(),)
