"""Logs of other tools, read into records: how each kind is recognised, and the run that is made of
one.

A parser is a module of this package; its ``read(text, reading)`` tells a Reading what it finds.
Rows become records with a ToolTime instead of samples. Nothing is dropped without a word: what has
no place here is counted under a reason (``omitted``), what cannot be read is kept with its line
(``lost``), and what contradicts itself is a warning.
"""

from __future__ import annotations

import importlib
import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec

from collbench.core.collectives import COLLECTIVES, find_collective, map_collective_names
from collbench.core.dtypes import DTYPES, OPS, find_dtype
from collbench.core.errors import UsageError
from collbench.core.text import format_count
from collbench.features.interop.importers.commands import TESTS
from collbench.features.interop.importers.text import (
    Part,
    join_continued,
    restore_hashes,
    split_processes,
    strip_prefixes,
)
from collbench.machine import variables
from collbench.machine.gpu import is_fake
from collbench.records.types import Choice, RankInfo, Record, ToolTime, World
from collbench.suite import arrivals, backgrounds, sweep
from collbench.suite.case import Case, Mode
from collbench.suite.policy import Policy

NOT_A_ROW = "not a row of the table it stands in"  # why a line of a log is lost

MOST = 1 << 62  # of anything counted: what is more does not fit a record

MOST_RECORDS = 20_000  # of a log

MOST_LOGGED = 1 << 16  # ranks of a log, each of which is described

MOST_FACT = 60  # characters of what tells tables apart

MOST_NS = 1e15  # of a call, eleven days


class Format(NamedTuple):
    """``module`` reads logs in which ``mark`` is found; ``description`` say what that is."""

    module: str
    mark: re.Pattern[str]
    description: str


FORMATS = {  # the first whose mark is found; rccl-tests writes nearly what nccl-tests does
    "nccl-inspector": Format(
        "inspector",
        re.compile('"inspector_output_format_version"'),
        "inspector_output_format_version",
    ),
    "rccl-tests": Format(
        "rccl",
        re.compile(
            r'^[\[{\s"]{0,9}numCycle\b|^"?collective"? ?, ?"?(?:gpus|nodes|ranks)\b'
            r'|"(?:inPlace|algBw)"\s*:|^#? ?rccl-tests',
            re.MULTILINE,
        ),
        "rccl-tests",
    ),
    "osu": Format("mpi", re.compile(r"^[ \t]*# ?OSU ", re.MULTILINE), "# OSU"),
    "imb": Format(
        "mpi",
        re.compile(r"^[ \t]*# ?Benchmarking |Intel ?\(R\) MPI Bench", re.MULTILINE),
        "# Benchmarking",
    ),
    "nccl-tests": Format(
        "rccl",
        re.compile(
            r'nccl-tests version|nThreads?:? \d+ nGpus|^#.{0,200}\balgbw\b|"results"\s*:\s*\[',
            re.MULTILINE,
        ),
        "# nThread … nGpus",
    ),
}

# tables that look like one of these, and are of none of them or do not say all of their cases
OTHERS = {
    "collbench in IMB's columns": re.compile(
        r"^# *collbench \S+, in the columns of IMB-MPI1", re.MULTILINE
    ),
    "mscclpp-test": re.compile(
        r"^# *(?:Initializing MSCCL\+\+|minBytes.* kernel num)", re.MULTILINE
    ),
}

JSON = re.compile(r"\s*[\[{]\s*[\"{]")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a person knows of a log: the file's name, and what the log itself may leave out."""

    name: str
    collective: str = ""
    ranks: int | None = None
    host: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows of one table have in common, as in Case and World; and the ``command`` that
    printed them. ``facts`` are what else was so then, by name: tables of one case that differ in
    one are not repetitions of each other."""

    collective: str
    n: int
    backend: str = "nccl"
    algorithm: str = "native"
    mode: Mode = "streaming"
    sync: Literal["", "barrier"] = ""
    env: tuple[tuple[str, str], ...] = ()
    splits: str = ""
    arrival: str = ""
    background: str = ""
    groups: str = ""
    group: int = 0
    of: int = 1
    library: str = ""
    ranks: list[RankInfo] = []
    command: str = ""
    facts: tuple[tuple[str, str], ...] = ()


class Entry(NamedTuple):
    """A line of a table, and the case that it is a result of, or ``refused`` why there is none."""

    table: Table
    line: Line
    case: Case
    refused: str


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One result. ``size`` as Case.size has it; ``where`` it stands, for people; ``failed`` why
    there is no result.

    An ``op`` that is not told is sum, every tool's default. ``printed`` are the texts of time (µs),
    algbw and busbw, to be checked against each other; ``bad`` says that data was wrong where no
    count of it is known.
    """

    where: str
    size: int
    dtype: str
    op: str = "none"
    root: int = 0
    in_place: bool = False
    tool_time: ToolTime | None = None
    times_ns: list[int] = []
    per_rank: list[list[int]] = []
    count: int | None = None
    wrong: int | None = None
    bad: bool = False
    note: str = ""
    started: str = ""
    failed: str = ""
    printed: tuple[str, str, str] | None = None
    chose: Choice | None = None


class Reading:
    """What a parser has found so far. ``closed`` is False for a log that ends before its tool
    did. ``counts`` has the number of ranks of each table, 0 for one that does not say its own.
    With ``corrects`` the user's number (--ranks) is taken instead."""

    def __init__(self, request: Asked, corrects: bool = False) -> None:
        self.request, self._corrects = request, corrects
        self.counts: set[int] = set()
        self.tool = ""
        self.command: list[str] = []
        self.started = self.ended = ""
        self.settings: dict[str, str] = {}
        self.policy = Policy()
        self.closed = True
        self.failures = 0
        self.worlds: list[World] = []
        self.records: list[Record] = []
        self.warnings: list[str] = []
        self.lost: list[tuple[str, str]] = []
        self.omitted: Counter[str] = Counter()
        self.process = ""  # the label of the one whose text is read, where several have a table
        self.numbers: Sequence[int] = ()  # of that text's lines, in the file
        self.averages: list[str] = []  # bus bandwidths, as printed at the end of tables
        self._entries: list[Entry] = []
        self._tests: set[str] = set()  # tests that had a table
        self._last: tuple[Table, int] | None = None

    def collective(self, title: str, test: str = "") -> str:
        """Which of ours a table is of, "" where it is of none: as its ``title`` says, else the
        user, the ``test`` that a command names, or the file's name. Raises UsageError where none
        of them tells."""
        is_known = title.lower() in TESTS
        name = title if is_known else self.request.collective or title or test
        name = name or _find_collective(self.request.name)
        if not name:
            raise UsageError(
                f"{self.request.name}: cannot tell which collective this is",
                "name it, as in --collective all_reduce",
            )
        return map_collective_names().get(name.lower(), "")

    def ranks(self, printed: int) -> int:
        """The number of ranks of a table: ``printed``, the log's, else (0) the user's (--ranks),
        which also corrects the only number that a log says. Raises UsageError where neither is
        known."""
        given = self.request.ranks or 0
        self.counts.add(printed)
        is_printed = 0 < printed <= MOST_LOGGED and not self._corrects
        count = printed if is_printed else given or printed
        if not count:
            raise UsageError(
                f"{self.request.name}: it does not say how many ranks there were", "give --ranks N"
            )
        if not 0 < count <= MOST_LOGGED:
            raise UsageError(f"{self.request.name}: no machine has {count} ranks", "give --ranks N")
        if printed and given not in (0, printed):
            taken = "is taken" if count == given else "is for tables that do not say"
            self.warn(f"the log says {printed} ranks; --ranks {given} {taken}")
        return count

    @property
    def is_corrected(self) -> bool:
        """Whether the user gives another number of ranks than the only one that the log says."""
        (count,) = self.counts if len(self.counts) == 1 else (0,)
        return count not in (0, self.request.ranks or count)

    def locate_line(self, at: int) -> str:
        """The place in the file of a line of the text that is read, ``at`` from 1 on."""
        return f"line {self.numbers[at - 1]}"

    def warn_if_repeated(self, where: str, name: str, is_told: bool) -> None:
        """Warns of one more table of a test unless the log tells how many ranks ran it."""
        if name in self._tests and not is_told:
            self.warn(
                f"{where}: one more table of {name}, and nothing says how many ranks ran it: taken"
                " for a repetition of the one before"
            )
        self._tests.add(name)

    def warn(self, warning: str) -> None:
        """Add a warning, unless it was given already."""
        if warning not in self.warnings:
            self.warnings.append(warning)

    def rebuilt(self) -> str:
        """The note of a record whose time was made of a bandwidth."""
        self.warn(
            "times of -C are those to hand calls over: taken instead is size / algbw, rounded"
        )
        return "time made of the printed algbw, up to 1 % off (-C)"

    def add(self, table: Table, line: Line) -> None:
        """A record of ``line``; or what is wrong with it. Raises UsageError for one too many."""
        if len(self._entries) + len(self.lost) >= MOST_RECORDS:
            raise UsageError(f"{self.request.name}: more than {MOST_RECORDS} results", "split it")
        if odd := _no_time(line):
            self.lost.append((line.where, f"a time of {odd[0] / 1e3:g} us"))
            return
        if line.op not in ("none", *OPS):
            self.omitted[f"there is no reduction '{line.op}' in collbench"] += 1
            return
        try:
            case = _make_case(table, line)
            refused = line.failed or sweep.refuse_case(case)
            self._compare(case, line, bool(refused))
        except ValueError as e:  # a file of another version or hand
            self.omitted[str(e)] += 1
            return
        except UsageError as e:
            self.omitted[e.message] += 1
            return
        self._entries.append(Entry(table, line, case, refused))

    def finish(self) -> None:
        """Makes records of all lines. What differs between tables of one case is a setting of
        theirs, so that they are cases of their own; what differs in nothing is a repetition."""
        names = self._differing_facts()
        cycles: Counter[Case] = Counter()
        commands: dict[Case, str] = {}
        tables: dict[int, Table] = {}
        for table, line, requested, refused in self._entries:
            own_table = tables.setdefault(id(table), _with_settings(table, names))
            case = msgspec.structs.replace(requested, env=own_table.env)
            if (first := commands.setdefault(case, table.command)) != table.command:
                self.warn(
                    f"'{table.command}' repeats what '{first}' ran: taken for repetitions of one"
                    " measurement"
                )
            cycles[case] += 1
            counted_case = msgspec.structs.replace(case, cycle=cycles[case] - 1)
            if refused:
                self.records.append(
                    Record(case=counted_case, status="skipped", note=refused, started=line.started)
                )
            else:
                world = self._world(own_table, case.world)
                self.records.append(_make_record(counted_case, own_table, line, world))

    def _differing_facts(self) -> list[str]:
        """The facts in which tables of one case differ where both tell."""
        values: dict[tuple[Case, str], set[str]] = {}
        for table, _, case, refused in self._entries:
            for name, value in () if refused else facts_of(table):
                values.setdefault((case, name), set()).add(value)
        return list(
            dict.fromkeys(name for (_, name), readings in values.items() if len(readings) > 1)
        )

    def _compare(self, case: Case, line: Line, refused: bool) -> None:
        """Warns where the log's own numbers do not fit together, most likely because ranks are
        counted wrongly. Raises UsageError for blocks so uneven that the case would be another one.
        """
        if refused or line.tool_time is None:
            return
        if abs(case.size - line.size) > 0.01 * line.size:
            raise UsageError(
                f"{case.nbytes} B of {case.dtype} do not divide evenly over {case.n} ranks"
            )
        if line.count is not None and case.count != line.count:
            self.warnings.append(
                f"{line.where}: {line.count} elements are not what {case.n} ranks make of"
                f" {line.size} B"
            )
        if line.printed is None or None in map(parse_number, line.printed):
            return
        time, *bandwidths = line.printed
        slack = 500 * last_digit(time)  # half a unit of the last place, in nanoseconds
        least, most = (
            case.moved / t if t > 0 else math.inf
            for t in (line.tool_time.time + slack, line.tool_time.time - slack)
        )
        factor = case.row.busbw(case.n)
        # the oldest count no bytes that a rank sends itself
        net = (1.0, factor) if case.row.total else (1.0,)
        for name, text, factors in zip(
            ("algbw", "busbw"), bandwidths, (net, (factor,)), strict=True
        ):
            value, half = float(text), last_digit(text) / 2
            if not any(
                0.998 * least * f - half <= value <= 1.002 * most * f + half for f in factors
            ):
                self.warnings.append(
                    f"{line.where}: {name} {text} is not what {case.n} ranks make of {line.size} B"
                    f" in {time} us"
                )
                return

    def _world(self, table: Table, n: int) -> int:
        """The index of the world of ``n`` ranks that ``table`` ran in."""
        if self._last is not None and self._last[0] is table:
            return self._last[1]
        given = self.request.host
        ranks = [msgspec.structs.replace(r, host=r.host or given) for r in table.ranks]
        if given and any(rank.host != given for rank in ranks):
            self.warn(f"the log says on which hosts it ran; --host {given} is left out")
        world = World(
            index=0,
            backend=table.backend,
            n=n,
            env=table.env,
            launcher="",
            ranks=ranks,
            oversubscribed=False,
            same_clock=False,
            library=table.library,
            fake=any(is_fake(device_name(rank)) for rank in ranks),
        )
        same = (w.index for w in self.worlds if msgspec.structs.replace(w, index=0) == world)
        index = next(same, len(self.worlds))
        if index == len(self.worlds):
            self.worlds.append(msgspec.structs.replace(world, index=index))
        self._last = (table, index)
        return index


def facts_of(table: Table) -> list[tuple[str, str]]:
    """Facts of a table that Case does not hold, as far as the log tells."""
    hosts = sorted({rank.host for rank in table.ranks if rank.host})
    devices = sorted({name for rank in table.ranks if (name := device_name(rank))})
    facts = [
        ("host", "+".join(hosts)),
        ("device", "+".join(devices)),
        ("library", table.library),
        ("sync", table.sync or "none"),
        *table.facts,
    ]
    return [(name, value) for name, value in facts if value]


def _with_settings(table: Table, names: Sequence[str]) -> Table:
    """The table with those of its facts as settings."""
    settings = ((name, _shorten_fact(value)) for name, value in facts_of(table) if name in names)
    return msgspec.structs.replace(table, env=(*table.env, *settings))


def _shorten_fact(value: str) -> str:
    """A fact in one word of bounded length, and another one for each."""
    word = re.sub(r"[\s,=]+", "-", variables.mask_text(value))
    return (
        word if len(word) <= MOST_FACT else f"{word[:MOST_FACT]}-{zlib.crc32(value.encode()):08x}"
    )


def _make_case(table: Table, line: Line) -> Case:
    """The case that a line is a result of. Raises UsageError where collbench has none such."""
    if line.size >= 1 << 60:
        raise UsageError(f"{line.size} B are more than any machine holds")
    row = COLLECTIVES[table.collective]
    op = {(True, "none"): "sum", (False, line.op): "none"}.get((row.reduces, line.op), line.op)
    return Case(
        collective=row.name,
        backend=table.backend,
        n=table.n,
        nbytes=line.size,
        algorithm=table.algorithm,
        dtype=find_dtype(line.dtype).name,
        op=op,
        root=max(0, line.root) if row.rooted else -1,
        in_place=line.in_place,
        mode=table.mode,
        env=table.env,
        splits=table.splits,
        arrival=arrivals.normalise_arrival(table.arrival) if table.arrival else "",
        background=backgrounds.normalise_background(table.background),
        groups=table.groups,
        group=table.group,
        of=table.of,
    )


def _make_record(case: Case, table: Table, line: Line, world: int) -> Record:
    checked = 0 if line.wrong is None else case.counts[1] * case.n  # what every rank received
    status: Any = (
        "wrong" if line.wrong or line.bad else "predicted" if table.backend == "model" else "ok"
    )
    return Record(
        case=case,
        status=status,
        world=world,
        note=line.note or (format_count(line.wrong, "wrong element") if line.wrong else ""),
        started=line.started,
        times_ns=line.times_ns,
        per_rank=line.per_rank,
        told=line.tool_time,
        chose=line.chose,
        sync=table.sync,
        wrong=None if line.wrong is None else min(line.wrong, MOST),
        checked=min(checked, MOST),
    )


def _no_time(line: Line) -> list[float]:
    """Numbers of a line that are printed as times and can be none; nothing that moves data takes
    none."""
    if line.tool_time is None:
        return []
    printed = line.tool_time
    given = (
        printed.time,
        printed.min,
        printed.max,
        printed.p50,
        printed.p95,
        printed.p99,
        *(printed.by_rank or ()),
    )
    odd = [value for value in given if value is not None and not 0 <= value < MOST_NS]
    return odd or [0.0] * bool(line.size and not printed.time)


def _find_collective(name: str) -> str:
    """The collective that whole words of a file's name speak of, "" if none; all_reduce is not
    taken for reduce."""
    text = f"_{re.sub(r'[^a-z]+', '_', name.rpartition('/')[2].lower())}_"
    names = map_collective_names()
    return next(
        (names[word] for word in sorted(names, key=len, reverse=True) if f"_{word}_" in text), ""
    )


def last_digit(text: str) -> float:
    """The worth of one unit in the last place of a printed number: 0.01 for 12.34, 1e6 for
    1.2e+07."""
    exponent = Decimal(text).as_tuple().exponent
    return 10.0**exponent if isinstance(exponent, int) else 0.0


def parse_number(text: str) -> float | None:
    """The number that a program printed, None for nan, inf and anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_log(text: str, request: Asked, kind: str = "auto") -> Reading:
    """Everything that ``text`` says, by the parser for ``kind`` (of FORMATS, or auto). Raises
    UsageError where it is of no known kind, says too little, or holds no result."""
    if text.startswith('{"line":"run"'):
        raise UsageError(
            f"{request.name} is a run of collbench already",
            "give it to collbench report or compare as it is",
        )
    if request.collective:
        request = msgspec.structs.replace(
            request, collective=find_collective(request.collective).name
        )
    is_json = JSON.match(text) is not None
    parts = {"": Part(text, range(1, text.count("\n") + 2))} if is_json else split_processes(text)
    if not is_json:
        parts = {
            label: part._replace(text=restore_hashes(join_continued(strip_prefixes(part.text))))
            for label, part in parts.items()
        }
    text = "\n".join(part.text for part in parts.values())
    if other := next((name for name, mark in OTHERS.items() if mark.search(text)), ""):
        raise UsageError(
            f"{request.name} is a log of {other}, which is not read",
            "collbench help import says which logs are",
        )
    is_auto = kind == "auto"
    if is_auto:
        kind = next(
            (name for name, log_format in FORMATS.items() if log_format.mark.search(text)), ""
        )
    if not kind:
        marks = ", ".join(
            f"'{log_format.description}' ({name})" for name, log_format in FORMATS.items()
        )
        raise UsageError(
            f"{request.name} is not a log of a known kind",
            f"name its kind with --from; looked for {marks}",
        )
    reading = _read_parts(parts, Reading(request), kind)
    if reading.is_corrected:
        reading = _read_parts(parts, Reading(request, corrects=True), kind)
    if is_auto and not is_json:
        _warn_of_others(text, kind, reading)
    reading.finish()
    if not any(record.told or record.status == "wrong" for record in reading.records):
        why = [*(f"{where}: {reason}" for where, reason in reading.lost), *reading.omitted]
        why += [record.note for record in reading.records]
        why += [f"nothing in it looks like '{FORMATS[kind].description}' and a table"]
        raise UsageError(
            ": ".join([request.name, "no result in it", *why[:1]]),
            f"name another kind with --from: it was read as {kind}",
        )
    return reading


def _read_parts(parts: Mapping[str, Part], reading: Reading, kind: str) -> Reading:
    """What the parser for ``kind`` finds in the texts of processes."""
    parser = importlib.import_module(f"collbench.features.interop.importers.{FORMATS[kind].module}")
    for label, part in parts.items():
        reading.process, reading.numbers = label, part.numbers
        parser.read_log(part.text, reading)
    return reading


def _warn_of_others(text: str, kind: str, reading: Reading) -> None:
    """Warns of tables of other tools in a log that is read as ``kind``, which are left out."""
    module = FORMATS[kind].module
    others = {
        log_format.module: name
        for name, log_format in FORMATS.items()
        if log_format.module != module and log_format.mark.search(text)
    }
    for name in others.values():
        if any(f"--from {name} " in reason for reason in reading.omitted):
            continue  # said there, with their number
        reading.warn(
            f"the log has tables of {name}, too, which are left out: --from {name} reads them"
        )


def device_name(rank: RankInfo) -> str:
    """The name of a rank's device, without its number and address."""
    return re.sub(r"^cuda:\d+ (\[[^]]*\] )?", "", rank.device)


TYPES = "|".join(
    sorted({"char", *(word for d in DTYPES.values() for word in (d.name, *d.aliases))}, key=len)
)
