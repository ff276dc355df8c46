"""Files that a shell sources: lines of export NAME="VALUE", and comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from collbench.core.collectives import COLLECTIVES
from collbench.features.advise.formats import Format, Rule
from collbench.features.advise.formats._rows import fail_line
from collbench.features.advise.formats.files import read_file
from collbench.features.advise.types import Advice

MAX_BYTES = 1 << 20
MAX_RANKS = 1024  # for which ranges of blocks are told in collbench's sizes
_LINE = re.compile(r'export ([A-Za-z_][A-Za-z0-9_]*)="([^"$`\\]*)"')


class Export(NamedTuple):
    """A variable with the line where it stands."""

    line: int
    name: str
    value: str


class ExportFile(Format, Protocol):
    """A file of variables of one library, each of which has settings by size."""

    suffix: str = ".sh"
    prefix: str  # of the library's variables

    def read_value(self, export: Export) -> Iterator[Rule]:
        """The rules of one variable. Raises UsageError with the line."""

    def read(self, text: str) -> Sequence[Rule]:
        return [rule for export in read_exports(text) for rule in self.read_value(export)]

    def use(self, path: Path) -> dict[str, str]:
        return read_variables(path, self.prefix)


def write_export(name: str, value: str) -> str:
    """The line for a variable."""
    return f'export {name}="{value}"'


def read_exports(text: str) -> Iterator[Export]:
    """The variables of a file in order. Raises UsageError for a line that a shell would take for
    something else, or a variable that stands there twice."""
    names: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if "\r" in line:
            raise fail_line(number, "it ends with a carriage return, which a shell takes for text")
        if not line.strip(" \t") or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise fail_line(number, f"'{line[:40]}' is no export NAME=\"VALUE\"")
        if match[1] in names:
            raise fail_line(number, f"{match[1]} stands there twice")
        names.add(match[1])
        yield Export(number, match[1], match[2])


def refuse_ranks(rows: Sequence[Advice]) -> str:
    """Why rows cannot be in one file of ranges, which hold for any number of ranks."""
    numbers = sorted({row.series.n for row in rows})
    if len(numbers) < 2:
        return ""
    listed = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
    return (
        f"its ranges hold for any number of ranks, and rows are for {listed}: one file for each,"
        " from runs with these ranks alone"
    )


def warn_ranks(rows: Sequence[Advice]) -> list[str]:
    """For which jobs a file of ranges is."""
    return [
        f"Only for jobs of {n} ranks: the variables know no ranks, and smaller groups in a job get"
        " these settings as well."
        for n in sorted({row.series.n for row in rows})
    ]


def parse_number(word: str, what: str, most: int, line: int) -> int:
    """A decimal number of a value. Raises UsageError with the line."""
    if not re.fullmatch(r"0|[1-9][0-9]{0,19}", word):
        raise fail_line(line, f"'{word[:20]}' is not {what}, a decimal number")
    if (number := int(word)) > most:
        raise fail_line(line, f"{number} is too much for {what}, at most {most}")
    return number


def read_variables(path: Path, prefix: str) -> dict[str, str]:
    """The variables of the file ``path``; UsageError for a file that cannot be read, and for a
    variable that does not begin with ``prefix``."""
    exports = list(read_exports(read_file(path, MAX_BYTES)))
    for each in exports:
        if not each.name.startswith(prefix):
            raise fail_line(each.line, f"{each.name} is no variable of this library")
    return {each.name: each.value for each in exports}


def derive_rules(collective: str, low: int, high: int | None, name: str) -> Iterator[Rule]:
    """A range as rules of collbench's sizes: of blocks, one for each number of ranks."""
    if not COLLECTIVES[collective].total:
        yield Rule(collective, None, None, low, high, name)
        return
    for n in range(2, MAX_RANKS + 1):
        end = None if high is None else high * n + n - 1
        yield Rule(collective, n, None, low * n, end, name)
