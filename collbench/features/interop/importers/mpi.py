"""The tables of the OSU Micro-Benchmarks and of the Intel MPI Benchmarks.

Both time each call by itself, all processes meeting in a barrier between calls, and print over
processes the least, greatest and average of each one's mean. Their sizes are those of a call's
arguments, so one block's where a buffer has a block for each process; only Reduce_scatter counts
the whole. OSU does not print how many processes there were.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from collbench.core.collectives import COLLECTIVES, Collective
from collbench.features.interop.importers import (
    FORMATS,
    NOT_A_ROW,
    Line,
    Reading,
    Table,
    commands,
    parse_number,
)
from collbench.features.interop.importers.text import cut_library_output, library_hosts, split_lines
from collbench.machine import variables
from collbench.records.types import VALIDATED, ToolTime
from collbench.suite.policy import Policy


class Test(NamedTuple):
    """A benchmark of ours: the collective, and whether a printed size is that of one of n
    blocks."""

    collective: str
    block: bool = False


TESTS = {
    "allreduce": Test("all_reduce"),
    "reduce": Test("reduce"),
    "bcast": Test("broadcast"),
    "broadcast": Test("broadcast"),
    "allgather": Test("all_gather", True),
    "gather": Test("gather", True),
    "scatter": Test("scatter", True),
    "alltoall": Test("all_to_all", True),
    "all-to-all personalized exchange": Test("all_to_all", True),
    "reduce_scatter": Test("reduce_scatter"),
    "barrier": Test("barrier"),
}

OSU = {**TESTS, "reduce_scatter_block": Test("reduce_scatter")}

IMB = {**TESTS, "reduce_scatter_block": Test("reduce_scatter", True), "sendrecv": Test("sendrecv")}

OTHERS = {
    "latency": "half the round trip of a ping-pong is no sendrecv",
    "pingpong": "half the round trip of a ping-pong is no sendrecv",
    "pingping": "two messages that cross are no ring of sendrecv",
    "exchange": "exchange with both neighbours is no sendrecv",
}

TYPES = {
    "char": "int8",
    "byte": "uint8",
    "int": "int32",
    "float": "float",
    "double": "double",
    "int8_t": "int8",
    "uint8_t": "uint8",
    "int32_t": "int32",
    "uint32_t": "uint32",
    "int64_t": "int64",
    "uint64_t": "uint64",
    "long": "int64",
}

LIBRARIES = {"NCCL": "nccl", "RCCL": "nccl"}  # what is not MPI, by the backend it is to us

OSU_HEAD = re.compile(
    r"# ?OSU (?P<library>\w+)(?P<memory>(?:-[A-Z]+)?(?: MANAGED)?) (?P<test>.+?)(?: Latency)? Test"
    r"(?: v(?P<version>\S+))?\s*$"
)

OSU_COLUMNS = re.compile(
    r"Size|(?P<rank>Avg |Min |Max )?Lat(?:ency)? ?\(us\)|Iterations|Validation|P\d+ Tail"
    r" Lat\(us\)|Transmit Size"
)

INTEL_HEAD = re.compile(r"^# ?Benchmarking \S|Intel ?\(R\) MPI Benchmarks [^,]+,")

IMB_COLUMNS = {
    "t_min[usec]": "Min",
    "t_max[usec]": "Max",
    "t_avg[usec]": "Avg",
    "#bytes": "Size",
    "bytes": "Size",
    "#repetitions": "Iterations",
    "repetitions": "Iterations",
}

UNUSED_COLUMNS = ("Mbytes/sec", "Msg/sec", "t[usec]")

FAILURE = re.compile(
    r"DATA VALIDATION ERROR|Validation (?:failed|error)|^\d+: Error \w+, ?size", re.IGNORECASE
)


def read_log(text: str, reading: Reading) -> None:
    """Tells ``reading`` all results in ``text``: each table by the tool that printed it. Raises
    UsageError where it lacks what a person must add."""
    every = split_lines(text)
    hosts, varying = library_hosts(every), commands.varying_variables(every)
    lines = [cut_library_output(line, hosts).strip() for line in every]
    first = next(filter(None, map(_find_tool, lines)), _Osu)
    tables: _Tables = first(reading, varying)
    tools: dict[str, None] = {}
    for at, line in enumerate(lines, 1):
        kind = _find_tool(line)
        if kind is not None and not isinstance(tables, kind):
            tools[reading.tool] = None
            before, tables = tables, kind(reading, varying)
            tables.continue_after(before)
        tables.any_line(reading.locate_line(at), line)
    tables.end()
    reading.tool = ", ".join(tool for tool in {**tools, reading.tool: None} if tool)


def _find_tool(line: str) -> type[_Tables] | None:
    """The reader of the tool that begins its output, or a table, with a line; None for others."""
    if OSU_HEAD.match(line):
        return _Osu
    return _Intel if INTEL_HEAD.search(line) else None


class _Tables(ABC):
    """Where a text has got to: the benchmark under way, or why it has no place here, and its
    columns."""

    def __init__(self, reading: Reading, varying: set[str]) -> None:
        self._reading, self._varying = reading, varying
        self._first: list[str] = []
        self._command: list[str] = []
        self._is_fresh = False  # the command has started no table yet
        self._version = ""
        self._table: Table | None = None
        self._test: Test | None = None
        self._why = self._name = ""
        self._columns: Sequence[str] = ()
        self._n = 0
        self._backend = "mpi"
        self._library = ""
        self._memory: tuple[str, ...] = ()  # what buffers are in, where not in the host's
        self._types: dict[bool, str] = {}
        reading.policy = Policy(sync="barrier")

    def continue_after(self, other: _Tables) -> None:
        """Go on where another tool's tables end, with the command that was given last."""
        self._first, self._command = other._first, other._command
        self._is_fresh = other._is_fresh

    def any_line(self, where: str, text: str) -> None:
        self._reading.failures += bool(FAILURE.search(text))
        if tokens := commands.words_of(text):
            self._take_command(tokens)
        elif FORMATS["nccl-tests"].mark.search(text):
            self._columns, self._test = ("Size",), None
            self._why = "nccl-tests' tables: --from nccl-tests reads them"
        else:
            self.line(where, text)

    def _take_command(self, tokens: list[str]) -> None:
        """A command, unless it is what the launcher before it runs."""
        self._first = self._first or tokens
        if (
            not self._is_fresh
            or commands.is_launch(tokens)
            or not commands.is_launch(self._command)
        ):
            self._command, self._is_fresh = tokens, True

    @abstractmethod
    def line(self, where: str, text: str) -> None:
        """Take in a line that is no command."""

    def end(self) -> None:
        self._reading.command = self._reading.command or self._first

    def _open(self, where: str, name: str, tests: Mapping[str, Test], tool: str) -> None:
        self._columns, self._table = (), None
        self._where, self._name = where, f"{tool} {name}"
        self._test = tests.get(name.lower())
        why = OTHERS.get(name.lower(), "collbench has no such collective, or not in this form")
        self._why = f"{tool} {name}: {why}"

    def _row(self, where: str, text: str, streaming: bool = False) -> None:
        """A line of the table, or what else stands between its lines."""
        tokens = text.split()
        if not tokens or not (re.match(r"\d|-", tokens[0]) or self._is_damaged_row(tokens)):
            return
        if not self._columns:
            if len(tokens) > 1 and None not in map(parse_number, tokens):
                self._reading.lost.append((where, "a row of numbers under no names of columns"))
            return
        if self._test is None:
            self._reading.omitted[self._why] += 1
            return
        reason = (
            " ".join(tokens[1:])
            if len(tokens) > 1 and tokens[1].startswith(("out-of-mem", "int-over", "time-out"))
            else ""
        )
        cells = dict(zip(self._columns, tokens, strict=False))
        values = {name: parse_number(cell) for name, cell in cells.items()}
        size = cells.get("Size", "0")
        if not size.isdecimal() or (
            not reason and (len(tokens) != len(self._columns) or self._time(values) is None)
        ):
            self._reading.lost.append((where, NOT_A_ROW))
            return
        self._add(where, self._test, int(size), values, reason, streaming, cells)

    def _is_damaged_row(self, tokens: Sequence[str]) -> bool:
        """Whether a line is most likely a row whose size is damaged at its beginning: a number
        follows a word that has digits."""
        words = tokens[:2] if self._columns else ()
        is_numbered = len(words) > 1 and re.search(r"\d", words[0]) is not None
        return is_numbered and parse_number(words[1]) is not None

    def _add(
        self,
        where: str,
        test: Test,
        size: int,
        values: Mapping[str, float | None],
        reason: str,
        streaming: bool,
        cells: Mapping[str, str],
    ) -> None:
        """The result that a row of the table is; ``reason`` is why there is none."""
        row = COLLECTIVES[test.collective]
        table = self._table = self._table or self._begin_table(row, streaming)
        n = table.n
        kind = self._types.get(row.reduces, "float" if row.reduces else "int8")
        printed = None if reason else self._parse_times(values)
        checked, defects = cells.get("Validation", ""), values.get("defects") or 0.0
        note = {"Pass": VALIDATED, "Fail": "validation failed"}.get(checked, "")
        self._reading.add(
            table,
            Line(
                where=where,
                size=size * (n if test.block else 1),
                dtype=kind,
                op="sum" if row.reduces else "none",
                tool_time=printed,
                failed=reason,
                bad=checked == "Fail" or defects > 0,
                note=f"{cells['defects']} defects" if defects else note,
            ),
        )

    def _begin_table(self, row: Collective, streaming: bool) -> Table:
        """Begin a table, with the values that all of its rows share."""
        rank_count = self._n or commands.count_ranks(self._command)
        name = " ".join((self._name, *self._memory))
        is_told = bool(self._n or (rank_count and self._is_fresh))
        self._reading.warn_if_repeated(self._where, name, is_told)
        self._is_fresh = False
        mode: Any = "streaming" if streaming or row.pairwise else "isolated"
        settings = variables.select_variables(commands.settings_of(self._command))
        env = [(name, value) for name, value in settings.items() if name in self._varying]
        if self._memory:
            env.append(("buffers", "-".join(self._memory)))
        return Table(
            collective=row.name,
            n=self._reading.ranks(rank_count),
            backend=self._backend,
            mode=mode,
            library=self._library,
            env=tuple(env),
            sync="barrier" if mode == "isolated" else "",
            command=" ".join(variables.mask_words(self._command)),
            facts=(("tool", self._version), ("ranks", str(rank_count or ""))),
        )

    def _time(self, values: Mapping[str, float | None]) -> float | None:
        """The slowest process's mean in microseconds, or where only it is printed the mean of
        all."""
        return values.get("Max", values.get("Avg"))

    def _parse_times(self, values: Mapping[str, float | None]) -> ToolTime:
        means = [1e3 * (values.get(name) or 0.0) for name in ("Min", "Avg", "Max")]
        return ToolTime(
            time=1e3 * (self._time(values) or 0.0),
            ranks="slowest" if "Max" in values else "mean",
            samples=int(max(0, min(values.get("Iterations") or 0, 1e15))),
            by_rank=(
                (means[0], means[1], means[2]) if {"Min", "Avg", "Max"} <= values.keys() else None
            ),
        )


class _Osu(_Tables):
    def line(self, where: str, text: str) -> None:
        if match := OSU_HEAD.match(text):
            reading = self._reading
            reading.tool = f"OSU Micro-Benchmarks {match['version'] or ''}".strip()
            self._version = reading.tool
            self._backend = LIBRARIES.get(match["library"], "mpi")
            self._library = match["library"]
            self._types = {True: "float", False: "float"} if self._backend == "nccl" else {}
            self._memory = tuple(re.findall(r"\w+", match["memory"]))
            self._open(where, match["test"], OSU, "OSU")
            if "_" in match["library"]:
                self._test = None
                self._why = f"OSU {match['library']} {match['test']}: one-sided, so no collective"
        elif match := re.match(
            r"# Send Buffer on \w+ \((\w+)\) and Receive Buffer on \w+ \((\w+)", text
        ):
            self._memory = (*self._memory, match[1], match[2])
        elif match := re.match(r"# Datatype: MPI_(\w+)", text):
            word = match[1].lower()
            self._types = {reduces: TYPES.get(word, match[1]) for reduces in (True, False)}
        elif text.startswith("#") and re.search(r"\(us\)|\(MB/s\)|MB/s", text):
            rest = OSU_COLUMNS.sub("", text).strip("# ")
            names = [(m["rank"] or m[0]).strip() for m in OSU_COLUMNS.finditer(text)]
            self._columns = ["Avg" if name.startswith("Lat") else name for name in names]
            if rest or "Avg" not in self._columns:
                if self._test or not self._why:
                    self._why = f"{self._name or 'a table'}: columns that are not read"
                self._test = None
                self._columns = self._columns or ["Size"]
        elif not text.startswith("#"):
            self._row(where, text)


class _Intel(_Tables):
    """Settings stand before the first table, the number of processes in the head of each."""

    def __init__(self, reading: Reading, varying: set[str]) -> None:
        super().__init__(reading, varying)
        self._calling = False
        self._words: list[str] = []  # of the run's own command
        reading.tool = "Intel MPI Benchmarks"

    def line(self, where: str, text: str) -> None:
        reading = self._reading
        self._calling = self._calling and (bool(text.strip()) or not self._words)
        if match := re.match(r"# ?Benchmarking (\S+)", text):
            self._calling = False
            self._open(where, match[1], IMB, "IMB")
            if match[1].startswith("Multi-"):
                self._why = f"IMB {match[1]}: groups that run at once disturb each other"
        elif match := re.match(r"#\s*#processes = (\d{1,9})", text):
            self._n = int(match[1])
        elif match := re.search(r"Intel ?\(R\) MPI Benchmarks ([^,]+),", text):
            reading.tool = f"Intel MPI Benchmarks {match[1].strip()}"
        elif match := re.match(
            r"# (Date|MPI Version|MPI_Datatype(?: for reductions)?)\s*: *(.*\S)", text
        ):
            self._setting(match[1], match[2])
        elif "Calling sequence was" in text:
            self._calling, self._words = True, []
        elif "#repetitions" in text or "#bytes" in text:
            self._columns = [IMB_COLUMNS.get(name, name) for name in text.lstrip("# ").split()]
            self._calling = False
            for name in {*self._columns} - {*IMB_COLUMNS.values(), *UNUSED_COLUMNS, "defects"}:
                reading.warn(f"the column '{name}' is not read")
        elif self._calling and (text.startswith("#") or not self._words):
            self._words += text.lstrip("#").split()
            reading.command = reading.command or self._words  # of several runs the first's
        elif text.strip() and not text.startswith("#"):
            self._row(
                where,
                text,
                streaming=_option_word(self._words, "sync") in ("off", "0", "no", "disable"),
            )

    def _setting(self, name: str, value: str) -> None:
        if name == "Date":
            try:
                self._reading.started = datetime.strptime(value, "%a %b %d %H:%M:%S %Y").isoformat()
            except ValueError:
                return
        elif name == "MPI Version":
            self._library = f"MPI {value}"
        else:
            reduces = name.endswith("reductions")
            word = _option_word(self._words, "red_data_type" if reduces else "data_type")
            self._types[reduces] = TYPES.get(word or value.removeprefix("MPI_").lower(), value)


def _option_word(command: Sequence[str], option: str) -> str:
    """The word after ``-option``, "" where it is not given."""
    return next((value for word, value in itertools.pairwise(command) if word == f"-{option}"), "")
