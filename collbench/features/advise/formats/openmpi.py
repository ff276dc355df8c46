"""Open MPI's file of rules for coll_tuned: read where coll_tuned_use_dynamic_rules is on.

What its reader does, which decides how files are written (Open MPI 5.0):
- Rules of a number of ranks hold for more, up to the next number that has rules; those of the
  smallest number hold for fewer, too. So rules for 4 ranks stand between rules for 0 and for 5
  ranks that leave the choice to the library, by algorithm 0.
- A rule's size is the least for which it holds, and the first rule must be of size 0.
- Sizes are those of the whole buffer, collbench's own count. But of scan the library compares the
  size of one element, times ranks, and of all_to_allv 0: these have no rules by size.
- Of scatter it compares what only the root has to give, and of gather what the root does not give
  in place: ranks would run different algorithms, and hang. These have no rules by size either.
- Of all_gather it compares the sender's type and count in place, too, where MPI ignores them: files
  tell what calls must give. all_to_all in place knows one algorithm.
- It skips what is no number, and knows octal and hexadecimal numbers. A file that it cannot read it
  ignores without a word. An algorithm that it does not have makes the call fail, and so does one
  for two ranks among more.
- Rules of functions that coll_tuned does not have take those from the communicator altogether.
- Algorithms that the library chooses may call functions that have rules: files tell which.
- Between hosts coll_han, of higher priority since 5.0, takes most functions from coll_tuned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from collbench.core.errors import UsageError
from collbench.features.advise.formats import Format, Rule
from collbench.features.advise.formats._rows import (
    comment,
    cut_range,
    describe_row,
    fail_line,
    format_path,
    refuse_shared,
    sort_rows,
    write_head,
)
from collbench.features.advise.libraries.openmpi import (
    DYNAMIC,
    FUNCTIONS,
    RULES,
    Function,
    Tuning,
    name_tuning,
    split_tuning,
)
from collbench.features.advise.types import Advice, Advised

_NO_SIZE = "Open MPI compares no size of {} with its rules"
_ONE_SIDED = (
    "ranks of {} need not know its size as Open MPI compares it with its rules: they could run"
    " different algorithms, and hang"
)
SIZELESS = {  # why there are no rules by size
    "all_to_allv": _NO_SIZE,
    "scan": _NO_SIZE,
    "exscan": _NO_SIZE,
    "gather": _ONE_SIDED,
    "scatter": _ONE_SIDED,
}
_IN_PLACE = (
    "MPI_Allgather in place must give sendcount and sendtype as for receiving, on all ranks: Open"
    " MPI chooses by them, though MPI ignores them there, and ranks that differ may hang."
)
_ONE_HOST = (
    "Measured on one host: on several Open MPI 5 has coll_han, not coll_tuned, run most"
    " collectives, and rows do not hold (coll_han_priority)."
)
MAX_NUMBER = (1 << 31) - 1  # of ranks, algorithms, segments
MAX_SIZE = (1 << 63) - 1
MAX_FUNCTIONS = 22
MAX_RANKS = 1 << 14  # for which ranges are written out as rules
VERSION = "rule-file-version-"


class OpenMpiRules(Format):
    """The file of coll_tuned_dynamic_rules_filename."""

    key = "openmpi"
    title = "Open MPI's rules for coll_tuned"
    suffix = ".conf"
    by_size, covers_all = True, False

    def refuse(self, advised: Advised) -> str:
        for row in advised.rows:
            collective = row.series.collective
            if collective in SIZELESS:
                return SIZELESS[collective].format(collective)
            if reason := _refuse_row(row):
                return reason
        return refuse_shared(advised.rows) or _refuse_calls(advised.rows)

    def write(self, advised: Advised, path: Path | None = None) -> str:
        self.refuse_unsayable(advised)
        name = format_path(path)
        commands = [f"export {DYNAMIC}=1", f"export {RULES}={name}"]
        lines = write_head(advised, self.title, commands, _list_warnings(advised.rows))
        lines.append("# Rules count ranks, not hosts. Algorithm 0: as the library chooses.")
        series = [list(rows) for _, rows in groupby(sort_rows(advised), lambda row: row.series)]
        blocks = [list(rows) for _, rows in groupby(series, lambda rows: rows[0].series.collective)]
        lines.append(f"{len(blocks)} # collectives")
        for block in blocks:
            lines += _write_collective(block, advised.day)
        return "\n".join(lines) + "\n"

    def read(self, text: str) -> Sequence[Rule]:
        numbers = _Numbers(text)
        count = numbers.next("the number of collectives", MAX_FUNCTIONS)
        rules: list[Rule] = []
        names: set[str] = set()
        for _ in range(count):
            name, function = _read_function(numbers)
            if name in names:
                raise fail_line(numbers.line, f"{name} has rules twice, and the last ones count")
            names.add(name)
            rules += _derive_rules(name, _read_blocks(numbers, name, function))
        numbers.close()
        return rules

    def use(self, path: Path) -> dict[str, str]:
        return {DYNAMIC: "1", RULES: str(path)}


class _Block(NamedTuple):
    """Rules from a number of ranks on: sizes from which names hold."""

    ranks: int
    names: list[tuple[int, str]]


class _Numbers:
    """The numbers of a file, as the library scans them: all else is a mistake that it would not
    tell of. ``line`` is that of the number last taken."""

    def __init__(self, text: str) -> None:
        self.line = 1
        self.version = 1
        first, _, rest = text.partition("\n")
        if first.startswith(VERSION):
            word = first.removeprefix(VERSION).split("#")[0].strip()
            if word not in ("1", "2"):
                raise fail_line(1, f"'{word[:20]}' is no version of Open MPI's rules")
            self.version, text = int(word), "\n" + rest
        self._tokens = list(_split_tokens(text))
        self._at = 0

    def next(self, what: str, most: int) -> int:
        """The next number, from 0 to ``most``."""
        if self._at == len(self._tokens):
            where = self._tokens[-1][0] if self._tokens else 1
            raise fail_line(where, f"the file ends before {what}", "Open MPI would ignore the file")
        self.line, token = self._tokens[self._at]
        self._at += 1
        if not re.fullmatch(r"0|[1-9][0-9]{0,18}", token):
            raise fail_line(self.line, f"'{token[:20]}' is not {what}, a decimal number")
        if (number := int(token)) > most:
            raise fail_line(self.line, f"{number} is too much for {what}, at most {most}")
        return number

    def has_more(self) -> bool:
        """Whether another number stands in the same line."""
        return self._at < len(self._tokens) and self._tokens[self._at][0] == self.line

    def close(self) -> None:
        """Raises UsageError where numbers are left, which the library does not read."""
        if self._at < len(self._tokens):
            line, token = self._tokens[self._at]
            raise fail_line(line, f"'{token[:20]}' follows the last announced number")


def _split_tokens(text: str) -> Iterator[tuple[int, str]]:
    """Words with their lines, without comments; what C takes for white space."""
    for number, line in enumerate(text.split("\n"), 1):
        for token in re.split(r"[ \t\v\f\r]+", line.split("#")[0]):
            if token:
                yield number, token


def _refuse_row(row: Advice) -> str:
    function = FUNCTIONS.get(row.series.collective)
    tuning, rest = split_tuning(row.series.collective, row.setting.env)
    if row.setting.backend != "mpi":
        return f"{row.name} is a setting of backend {row.setting.backend}"
    if rest:
        return f"rules have no {rest[0][0]}"
    if function is None or not 1 <= tuning.algorithm <= len(function.algorithms):
        return f"coll_tuned has no algorithm {row.name} for {row.series.collective}"
    if tuning.requests:
        return "rule files for all versions cannot hold max_requests"
    if row.high >= MAX_SIZE:
        return f"sizes end below {MAX_SIZE}"
    return ""


def _refuse_calls(rows: Sequence[Advice]) -> str:
    """Why rows together do not do what each was measured to: an algorithm calls a function that has
    rows for as many ranks."""
    for row in rows:
        function = FUNCTIONS[row.series.collective]
        number = split_tuning(row.series.collective, row.setting.env)[0].algorithm
        called = function.calls.get(number, ())
        for other in rows:
            if FUNCTIONS[other.series.collective].word in called and other.series.n == row.series.n:
                return (
                    f"{row.name} of {row.series.collective} calls {other.series.collective}, which"
                    " has rows of its own"
                )
    return ""


def _list_warnings(rows: Sequence[Advice]) -> list[str]:
    """Sentences that warn a job which reads these rows."""
    has_gather = any(row.series.collective == "all_gather" for row in rows)
    warnings = [_IN_PLACE] * has_gather
    for name in dict.fromkeys(row.series.collective for row in rows):
        ranks = {row.series.n for row in rows if row.series.collective == name}
        callers = [
            f"MPI_{function.word.capitalize()}"
            for function in FUNCTIONS.values()
            if any(FUNCTIONS[name].word in function.list_own_calls(n) for n in ranks)
        ]
        if callers:
            warnings.append(
                f"Rows of {name} also change what calls it where the library chooses:"
                f" {', '.join(callers)}."
            )
    is_local = all(row.series.nodes == 1 for row in rows)
    return [*warnings, *[_ONE_HOST] * is_local]


def _write_collective(series: Sequence[Sequence[Advice]], day: str) -> list[str]:
    """The rules of one collective: by ranks, with what gives the choice back below and above."""
    collective = series[0][0].series.collective
    by_ranks = {rows[0].series.n: rows for rows in series}
    ranks = sorted({0, *by_ranks, *(n + 1 for n in by_ranks)})
    lines = [f"{FUNCTIONS[collective].number} # {collective}", f"{len(ranks)} # numbers of ranks"]
    for n in ranks:
        lines.append(f"{n} # ranks")
        if n not in by_ranks:
            lines += ["1 # size", "0 0 0 0"]
            continue
        pieces = list(cut_range(by_ranks[n]))
        if collective == "barrier":
            pieces = pieces[:1]
        lines.append(f"{len(pieces)} # sizes")
        for low, _, row in pieces:
            if row is None:
                lines.append(f"{low} 0 0 0")
                continue
            tuning, _ = split_tuning(collective, row.setting.env)
            name = FUNCTIONS[collective].algorithms[tuning.algorithm - 1]
            fanout = tuning.fanout if name == "chain" else 0
            lines += [
                *comment([describe_row(row, day)]),
                f"{low} {tuning.algorithm} {fanout} {tuning.segment}",
            ]
    return lines


def _read_function(numbers: _Numbers) -> tuple[str, Function]:
    number = numbers.next("the number of a collective", MAX_FUNCTIONS - 1)
    for name, function in FUNCTIONS.items():
        if function.number == number:
            return name, function
    raise fail_line(
        numbers.line,
        f"coll_tuned has no collective {number}, for which Open MPI would disable its rules",
    )


def _read_blocks(numbers: _Numbers, name: str, function: Function) -> list[_Block]:
    blocks: list[_Block] = []
    for _ in range(numbers.next("how many numbers of ranks there are", MAX_NUMBER)):
        ranks = numbers.next("a number of ranks", MAX_NUMBER)
        if blocks and ranks <= blocks[-1].ranks:
            raise fail_line(numbers.line, f"{ranks} ranks come after {blocks[-1].ranks}")
        names = _read_names(numbers, name, function)
        blocks.append(_Block(ranks, names))
    for index, block in enumerate(blocks):
        first = 2 if index == 0 else block.ranks
        after = blocks[index + 1].ranks if index + 1 < len(blocks) else None
        if any(each == "two_proc" for _, each in block.names) and (first, after) != (2, 3):
            raise fail_line(numbers.line, "two_proc fails with more ranks than two")
    return blocks


def _read_names(numbers: _Numbers, name: str, function: Function) -> list[tuple[int, str]]:
    names: list[tuple[int, str]] = []
    for _ in range(numbers.next("how many sizes there are", MAX_NUMBER)):
        size = numbers.next("a size", MAX_SIZE)
        line = numbers.line
        if not names and size:
            raise fail_line(line, "the first size is not 0", "Open MPI would ignore the file")
        if names and size <= names[-1][0]:
            raise fail_line(line, f"size {size} comes after {names[-1][0]}")
        if names and (name in SIZELESS or name == "barrier"):
            raise fail_line(line, SIZELESS.get(name, _NO_SIZE).format(name))
        algorithm = numbers.next(f"an algorithm of {name}", len(function.algorithms))
        fanout = numbers.next("a fan-out", MAX_NUMBER)
        segment = numbers.next("a segment's size", MAX_NUMBER)
        more = numbers.version > 1 and numbers.has_more()
        requests = numbers.next("a number of requests", MAX_NUMBER) if more else 0
        names.append((size, name_tuning(function, Tuning(algorithm, segment, fanout, requests))))
    return names


def _derive_rules(collective: str, blocks: Sequence[_Block]) -> Iterator[Rule]:
    """What blocks say as rules: for each number of ranks that they speak of, and for all beyond."""
    plain = [not any(name for _, name in block.names) for block in blocks]
    open_end = bool(blocks) and not plain[-1]
    for index, block in enumerate(blocks):
        first = 2 if index == 0 else max(2, block.ranks)
        if index + 1 == len(blocks):
            if open_end:
                yield from _derive_block(collective, None, block)
            continue
        if plain[index] and not open_end:
            continue
        after = blocks[index + 1].ranks
        if after - first > MAX_RANKS:
            raise UsageError(f"rules of {collective} hold for {first} to {after - 1} ranks")
        for n in range(first, after):
            yield from _derive_block(collective, n, block)


def _derive_block(collective: str, n: int | None, block: _Block) -> Iterator[Rule]:
    for index, (low, name) in enumerate(block.names):
        after = block.names[index + 1][0] if index + 1 < len(block.names) else None
        yield Rule(collective, n, None, low, None if after is None else after - 1, name)


FORMATS = (OpenMpiRules(),)
