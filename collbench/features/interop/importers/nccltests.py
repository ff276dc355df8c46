"""The tables that nccl-tests and rccl-tests print, in all their dialects.

Columns differ between versions, so a row is cut at blanks and counted from the right, by the names
in the table's own header. Output of NCCL and of other processes may stand in the middle of a row:
what is left of the row is joined again where only numbers follow, and else counted as not
understood. collbench's own text is read with what it says beyond nccl-tests' format.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from collbench.core.text import format_count as plural
from collbench.features.interop.importers import (
    NOT_A_ROW,
    TYPES,
    Line,
    Reading,
    Table,
    last_digit,
    parse_number,
)
from collbench.features.interop.importers.commands import (
    PROGRAM,
    count_gpus,
    count_ranks,
    find_test,
    settings_of,
    varying_variables,
    words_of,
)
from collbench.features.interop.importers.text import cut_library_output, library_hosts, split_lines
from collbench.machine import variables
from collbench.records.types import RELATIVE, RankInfo, ToolTime
from collbench.suite.case import MODES, Mode
from collbench.suite.policy import MOST_SAMPLES, Policy

FOREIGN = re.compile(r"[NR]CCL version .*")

LIBRARY = re.compile(r"\b([NR]CCL) version (?:: )?(\S+)")

VERSION = re.compile(
    r"#? ?(nccl-tests|rccl-tests|collbench)(?: version|: Version) (\S+)(?:.* nccl-library=(\d+))?"
)

SETTINGS = re.compile(
    r"(nThread|nGpu|warmup ?iter|agg iter|iter|validation|graph|unalign)s?:? (\d{1,9})",
    re.IGNORECASE,
)

DEVICE = re.compile(
    r"#?\s+Rank\s+(\d+)(?:\s+Group\s+(\d+))?\s+Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+(\d+)\s+\[([^\]]*)\]"
    r" ?(.*)"
)

OURS = re.compile(
    r"# implementation: (?P<label>\S+), ranks (?P<n>\d{1,9}), mode (?P<mode>\w+)(?:, splits"
    r" (?P<splits>[^,]*))?(?:, arrival (?P<arrival>[^,]*))?(?:, background (?P<background>[^,]*))?"
    r"(?:, group (?P<group>\d{1,6}) of (?P<of>\d{1,6}) by (?P<groups>ranks [\d,;/]*\d|[^,]*))?"
    r"(?:, env (?P<env>.*?(?=, library |$)))?(?:, library (?P<library>.*))?"
)

REPEATED = re.compile(r"# repeated: the columns (in|out of) place")

ROW = re.compile(r"(?<!\S)\d{1,18}\s+\d{1,18}\s+[A-Za-z_]\w*(?!\S)")

KNOWN_ROW = re.compile(rf"(?<!\S)\d{{1,18}}\s+\d{{1,18}}\s+(?:{TYPES})(?!\S)")

STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")

MEASURES = ("algbw", "busbw", "#wrong", "error", "hipevt")

RANKS = {
    "rank 0": "rank 0",
    "mean over ranks": "mean",
    "fastest rank": "fastest",
    "slowest rank": "slowest",
}

SPELLED = {"char": "int8", "mulsum": "premul_sum", "": "none"}


def read_log(text: str, reading: Reading) -> None:
    """Tells ``reading`` all results in ``text``. Raises UsageError where it lacks what a person
    must add."""
    every = split_lines(text)
    hosts = library_hosts(every) | {d[4] for line in every if (d := DEVICE.match(line))}
    tables = _Tables(reading, varying_variables(every))
    for at, line in enumerate(_mark_unmeasured(every), 1):
        if line:  # empty are most of a log with NCCL_DEBUG
            tables.line(reading.locate_line(at), line, hosts)
    tables.end()


def _mark_unmeasured(every: Sequence[str]) -> list[str]:
    """The lines, with N/A where collbench's own text repeats a half for one that was not measured,
    as a remark below the table says."""
    marked: list[str] = []
    copied: set[bool] = set()
    for line in reversed(every):
        if not line:
            marked.append(line)
            continue
        if "Collective test concluded" in line:
            copied = set()
        elif match := REPEATED.match(line):
            copied.add(match[1] == "in")
        lead, rest = line.split()[:5], STAMP.sub("", line).split()[5:]
        halves = {False: rest[: len(rest) // 2], True: rest[len(rest) // 2 :]}
        text = line
        for in_place in copied if len(rest) >= 8 and ROW.match(line.lstrip()) else ():
            if halves[False][:3] == halves[True][:3] and halves[in_place][3] == "N/A":
                halves[in_place][:3] = ["N/A"] * 3
                stamp = STAMP.findall(line)
                text = " ".join([*lead, *halves[False], *halves[True], *stamp])
        marked.append(text)
    return marked[::-1]


class _Layout(NamedTuple):
    """Columns of a table: how many come before the measurements, whether a root is the last of
    them; the measurements out of place (False) and in place (True); how many columns follow them.
    """

    root: bool = True
    halves: tuple[tuple[bool, tuple[str, ...]], ...] = (
        (False, ("time", "algbw", "busbw", "#wrong")),
        (True, ("time", "algbw", "busbw", "#wrong")),
    )
    extra: int = 0


class _Tables:
    """Where a text has got to: the test under way, its settings and columns, and a row that is not
    yet whole. Processes of a test that was built without MPI run alone, each with all of its text:
    devices are then of several sets, by rank."""

    def __init__(self, reading: Reading, varying: set[str]) -> None:
        self._reading, self._varying = reading, varying
        self._command_line: list[str] = []
        self._library = ""
        self._open("")

    def _open(self, program: str) -> None:
        """A test begins."""
        self._program, self._fresh = program, bool(program)
        self._command: list[str] = []
        self._settings: dict[str, int] = {}
        self._sets: list[list[re.Match[str]]] = []  # devices, of each rank once
        self._table_count = 0
        self._rows: Counter[tuple[str, ...]] = Counter()
        self._waiting: list[tuple[int, Line, dict[str, str]]] = []
        self._layout = _Layout()
        self._places: tuple[bool, ...] = (False, True)
        self._ours: re.Match[str] | None = None
        self._average: dict[str, Any] = {}
        self._blocking = 0
        self._tables: dict[int, Table | None] = {}
        self._inside = False
        self._torn: tuple[str, str] | None = None

    def _begin(self, program: str) -> None:
        """The next test of the log begins."""
        if self._inside:
            self._reading.warn("a test begins before the last lines of the one before it")
        self._close()
        self._open(program)

    def end(self) -> None:
        self._close()
        reading = self._reading
        if self._inside:
            reading.closed = False
        if not reading.tool:
            reading.tool = "nccl-tests text"

    def line(self, where: str, text: str, hosts: Collection[str]) -> None:
        if "CCL " in text:
            match = LIBRARY.search(text)
            self._library = f"{match[1]} {match[2]}" if match else self._library
            text = FOREIGN.sub("", cut_library_output(text, hosts))
        if text.startswith("#") or VERSION.match(text) or DEVICE.match(text):
            return self._comment(text)
        row = (ROW if self._inside else KNOWN_ROW).search(text)
        if row:
            self._lose()
            self._try(where, text[row.start() :])
        elif (
            self._torn
            and text.split()
            and all(parse_number(t) is not None or t == "N/A" for t in text.split())
        ):
            self._try(self._torn[0], f"{self._torn[1]} {text}")
        elif self._inside and _is_damaged_row(text.split()):
            self._reading.lost.append((where, NOT_A_ROW))
        elif PROGRAM.search(text) and (tokens := words_of(text)):
            self._command_line = tokens

    def _comment(self, text: str) -> None:
        if match := VERSION.match(text):
            self._reading.tool = f"{match[1]} {match[2]} text"
            self._library = library_name(int(match[3] or 0), match[1]) or self._library
        elif "Collective test starting:" in text:
            program = text.partition("starting:")[2].strip()
            if self._table_count or self._command_line or program != self._program:
                self._begin(program)
        elif "nThread" in text:
            if self._table_count or self._rows or (self._command_line and not self._fresh):
                self._begin("")
            self._fresh = False
            self._settings = {
                name.lower().replace(" ", ""): int(value) for name, value in SETTINGS.findall(text)
            }
            self._set_up()
        else:
            self._describe(text)

    def _describe(self, text: str) -> None:
        """A comment about the test under way or its table."""
        if match := DEVICE.match(text):
            self._add_device(match)
        elif match := OURS.match(text):
            self._ours = match
        elif text.startswith("# time: median"):
            ranks = next(
                (value for ending, value in RANKS.items() if text.endswith(ending)), "mean"
            )
            self._average = {"over": "median", "ranks": ranks}
        elif "Blocking Enabled" in text:
            self._blocking = 2 if "no barrier" in text else 3 if "exclud" in text else 1
            self._reading.policy = msgspec.structs.replace(
                self._reading.policy, blocking=self._blocking
            )
        elif "out-of-place" in text or "in-place" in text:
            self._places = tuple(
                word == "in-place" for word in re.findall(r"(?<!\S)(?:out-of|in)-place", text)
            )
        elif "algbw" in text and "size" in text:
            self._layout, self._inside = _read_layout(text[1:].split(), self._places), True
            self._table_count += 1
            if not self._waiting:
                self._tables = {}
        elif "Out of bounds values" in text:
            self._lose()
            self._inside = False
            self._reading.failures += sum(map(int, re.findall(r": (\d{1,9}) FAILED", text)))
        elif match := re.match(r"# Avg bus bandwidth\s*: (\S+)", text):
            self._reading.averages += filter(parse_number, [match[1]])

    def _close(self) -> None:
        """The test under way is through, or another begins: shares out rows of processes that ran
        alone."""
        self._lose()
        waiting, self._waiting = self._waiting, []
        count, hosts = len(self._sets), [_list_hosts(devices) for devices in self._sets]
        is_apart = self._table_count >= count
        if count > 1:
            rank = self._sets[-1][0][1]
            self._reading.warn(
                f"rank {rank} is listed more than once: tests built without MPI run alone; "
                + (
                    f"rows are shared out to {count} of them in the order in which they stand"
                    if is_apart
                    else f"{count} of them have one table, of which no host is named"
                )
            )
        for at, line, half in waiting:
            table = self._find_table(at % count if is_apart else -1, len({*hosts}) < count)
            if table is not None:
                self._take(table, line, half)

    def _add_device(self, device: re.Match[str]) -> None:
        """Adds a device to the devices of its test, of which several may run alone."""
        lacking = [
            devices for devices in self._sets if device[1] not in {other[1] for other in devices}
        ]
        same_host = [devices for devices in lacking if device[4] in _list_hosts(devices)]
        if lacking:
            (same_host or lacking)[0].append(device)
        else:
            self._sets.append([device])

    def _set_up(self) -> None:
        """Apply the settings printed before a table: the run's command, and its policy."""
        read_settings, reading = self._settings, self._reading
        self._command, self._command_line = self._command_line or self._command, []
        if self._command and not reading.command:
            reading.command = self._command
            settings = settings_of(self._command)
            reading.settings = {name: settings[name] for name in settings.keys() - self._varying}
        reading.policy = Policy(
            iters=parse_iterations(read_settings.get("iter")),
            warmup=read_settings.get("warmupiter"),
            check=read_settings.get("validation", 1),
            agg_iters=max(1, read_settings.get("aggiter", 1)),
            unalign=read_settings.get("unalign", 0),
        )

    def _lose(self) -> None:
        """A row whose rest never came."""
        if self._torn:
            self._reading.lost.append(
                (self._torn[0], "a row torn apart by other output, or of unknown columns")
            )
            self._torn = None

    def _try(self, where: str, text: str) -> None:
        """Takes ``text`` for a whole row; else keeps it until more of it comes."""
        stamp = STAMP.search(text)
        tokens = STAMP.sub("", text).split()
        wide = sum(len(names) for _, names in self._layout.halves)
        first = max(0, len(tokens) - wide - self._layout.extra)
        lead, rest = tokens[:first], tokens[first:]
        fits = 3 <= len(lead) <= 5 and all(map(_is_measure, rest[:wide]))
        if not fits or (self._layout.root and not re.fullmatch(r"-1|\d{1,9}", lead[-1])):
            self._torn = (where, text)
            return
        self._torn, self._inside = None, True
        size, count, kind, *op_words = lead
        root = int(op_words.pop()) if self._layout.root else 0
        at = self._rows[tuple(lead)]
        self._rows[tuple(lead)] += 1
        for in_place, names in self._layout.halves:
            half, rest = dict(zip(names, rest, strict=False)), rest[len(names) :]
            line = Line(
                where=where,
                size=int(size),
                count=int(count),
                dtype=SPELLED.get(kind, kind),
                in_place=in_place,
                op=SPELLED.get("".join(op_words), "".join(op_words)),
                root=root,
                started=stamp[0].replace(" ", "T") if stamp else "",
            )
            if len(self._sets) > 1:
                self._waiting.append((at, line, half))
            elif table := self._find_table(0):
                self._take(table, line, half)

    def _take(self, table: Table, line: Line, half: Mapping[str, str]) -> None:
        """Add the result of one half of a line, out of place or in place, unless its time is not a
        number or not of whole calls."""
        time, mean = half.get("time", half.get("cputime", "")), half.get("i_min") is None
        error, wrong = half.get("error", ""), parse_number(half.get("#wrong", ""))
        line = msgspec.structs.replace(
            line, wrong=None if wrong is None else int(wrong), bad=error.endswith("*")
        )
        if parse_number(time) is None and wrong:  # by us, who show no time of wrong data
            return self._reading.add(table, line)
        if parse_number(time) is None:
            self._name_odd_half(line, time)
            return None
        microseconds = float(time)
        if "cputime" in half and (microseconds := from_bandwidth(line.size, half["algbw"])) == 0:
            self._reading.omitted["only the time to hand calls over was printed (-C)"] += 1
            return None
        note = f"{RELATIVE} {error}" if parse_number(error.rstrip("*")) else ""
        average = self._average or {"ranks": describe_averaging(self._command)}
        samples = 0 if self._average else 1 if mean else self._settings.get("iter", 0)
        spread: dict[str, Any] = {
            name: _parse_ns(half.get(f"i_{name}")) for name in ("min", "max", "p99")
        }
        printed = ToolTime(time=microseconds * 1e3, samples=samples, **average, **spread)
        return self._reading.add(
            table,
            msgspec.structs.replace(
                line,
                tool_time=printed,
                note=self._reading.rebuilt() if "cputime" in half else note,
                printed=None if "cputime" in half else (time, half["algbw"], half["busbw"]),
            ),
        )

    def _name_odd_half(self, line: Line, time: str) -> None:
        """A half that was measured, and has no time."""
        if time not in ("", "N/A"):
            place_name = "in place" if line.in_place else "out of place"
            self._reading.lost.append((f"{line.where}, {place_name}", f"a time of {time}"))

    def _find_table(self, at: int, by_process: bool = False) -> Table | None:
        """The table that rows now belong to, of the set of devices ``at`` (-1: of any); None, with
        a word about it, where it is of no collective of ours."""
        if at not in self._tables:
            self._tables[at] = self._make_table(at, by_process)
        return self._tables[at]

    def _make_table(self, at: int, by_process: bool) -> Table | None:
        """The table that begins at line ``at``; None where collbench has no such collective."""
        reading, ours = self._reading, self._ours
        command = self._command or self._command_line
        title, test = self._program.partition("_perf")[0], find_test(command)
        name, program = reading.collective(title, test), title or test
        if reason := why_foreign(name, program, ours["splits"] if ours else ""):
            reading.omitted[reason] += 1
            return None
        own_fields = _read_own_fields(ours) if ours else {}
        member_count, group = self._members(bool(ours), at)
        n = reading.ranks(own_fields.pop("n", member_count or self._asked_ranks()))
        reading.warn_if_repeated("", f"{program}_perf", bool(ours or member_count or command))
        devices = [_make_rank(i, d, own_fields.get("backend", "nccl")) for i, d in enumerate(group)]
        mode: Mode = "graph" if self._settings.get("graph") else mode_of(self._blocking)
        settings = variables.select_variables(settings_of(command))
        env = tuple((name, value) for name, value in settings.items() if name in self._varying)
        command_text = " ".join(variables.mask_words(command))
        waits = {"sync": "barrier"} if self._blocking == 1 and mode == "streaming" else {}
        facts = [] if ours else self._facts(command)
        facts.append(("process", str(at) if by_process else reading.process))
        fields = {
            "mode": mode,
            "library": self._library,
            "env": env,
            "command": command_text,
            "facts": tuple(facts),
            **waits,
            **own_fields,
        }
        return Table(
            collective=name,
            n=n,
            ranks=devices if n * own_fields.get("of", 1) == len(devices) else [],
            **fields,
        )

    def _asked_ranks(self) -> int:
        """The number of ranks that the command asks for, 0 where it does not say."""
        return count_ranks(self._command) * count_gpus(self._command)

    def _facts(self, command: Sequence[str]) -> list[tuple[str, str]]:
        """Settings that a row depends on and that Case does not hold."""
        names = ("nthread", "ngpu", "aggiter", "unalign")
        facts = [(name, str(self._settings.get(name, ""))) for name in names]
        given = " ".join(command)
        for name, option in (
            ("register", "-R|--local_register"),
            ("kernel", "-D|--device_impl\\w*"),
        ):
            match = re.search(rf"(?<!\S)(?:{option})[ =]?(\d+)", given)
            facts.append((name, match[1] if match else "0" * bool(command)))
        return [*facts, ("average", describe_averaging(command) if command else "")]

    def _members(self, ours: bool, at: int) -> tuple[int, list[re.Match[str]]]:
        """How many ranks a group has, 0 where none is listed, and the devices of the first group,
        or of all in a text of ours; none where the list is not of each rank once."""
        reading, devices = self._reading, self._sets[at] if self._sets else []
        numbers = [int(device[1]) for device in devices]
        total, groups = max(numbers, default=-1) + 1, len({device[2] for device in devices})
        if missing := total - len({*numbers}):
            reading.warn(
                f"{missing} of {total} ranks, by the highest number, are not listed, so that no"
                " host is named; --ranks N says how many there were, --host where"
            )
        if groups > 1 and not ours:
            reading.warn(
                f"groups of {total // groups} ranks ran at once; times are the mean of all groups"
            )
        if not ours:
            self._doubt_count(total)
        if missing or at < 0:
            return total // max(1, groups), []
        group = [device for device in devices if ours or device[2] == devices[0][2]]
        return len(group), group

    def _doubt_count(self, listed: int) -> None:
        """Warns where the list of devices and the settings above it disagree."""
        per_process = max(1, self._settings.get("nthread", 1)) * max(
            1, self._settings.get("ngpu", 1)
        )
        if listed % per_process:
            self._reading.warn(
                f"{per_process} GPUs a process by the log's head, and {plural(listed, 'rank')}"
                " listed: busbw depends on how many there were; --ranks N says it"
            )


def _list_hosts(devices: Sequence[re.Match[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(device[4] for device in devices))


def _read_layout(names: Sequence[str], places: Sequence[bool]) -> _Layout:
    """The columns that a header names."""
    halves: list[list[str]] = []
    extra = 0
    for name in names:
        if name in ("time", "cputime"):
            halves.append([name])
        elif halves and (name in MEASURES or name.startswith("i_")):
            halves[-1].append(re.sub(r"\W*$", "", name))
        elif halves and name != "timestamp":
            extra += 1
    if not halves or not all({"algbw", "busbw"} <= set(half) for half in halves):
        return _Layout()  # a header that is torn too
    order = places if len(places) == len(halves) else (False, True)
    return _Layout("root" in names, tuple(zip(order, map(tuple, halves), strict=False)), extra)


def _is_damaged_row(tokens: Sequence[str]) -> bool:
    """Whether a line of a table that does not begin as a row is most likely a damaged one: it
    begins with two numbers, or at least half of it are numbers."""
    numbers = [_is_measure(token) for token in tokens]
    return sum(numbers) > 1 and (all(numbers[:2]) or 2 * sum(numbers) >= len(numbers))


def _is_measure(text: str) -> bool:
    return text in ("N/A", "nan", "inf", "-nan") or parse_number(text.rstrip("*")) is not None


def mode_of(blocking: int) -> Mode:
    """The mode that nccl-tests' option -z (0 to 3) stands for."""
    return {2: "host", 3: "isolated"}.get(blocking, "streaming")  # type: ignore[return-value]


def parse_iterations(printed: int | None) -> int | None:
    """The number of iterations that a log prints; None where a policy cannot have that number."""
    return printed if printed and 0 < printed <= MOST_SAMPLES else None


def _parse_ns(microseconds: str | float | None) -> float | None:
    value = None if microseconds is None else parse_number(str(microseconds))
    return None if value is None else value * 1e3


def from_bandwidth(size: int, algbw: str) -> float:
    """Microseconds that a printed bandwidth stands for; 0 where rounding left less than 1 % of it
    sure."""
    value = parse_number(algbw) or 0.0
    return size / value / 1e3 if value and last_digit(algbw) / 2 <= 0.01 * value else 0.0


def describe_averaging(command: Sequence[str]) -> str:
    """The rank, or the mean over ranks, that a row's time is of (-a)."""
    given = re.search(r" (?:-a ?|--average[ =])([0-3])(?= |$)", " ".join(command))
    return ("rank 0", "mean", "fastest", "slowest")[int(given[1]) if given else 1]


def why_foreign(name: str, program: str, splits: str = "") -> str:
    """The reason why rows of this collective cannot be imported; "" if they can."""
    if name == "all_to_allv" and not splits:
        return "alltoallv: the log does not say how blocks were divided"
    return "" if name else f"collbench has no collective '{program}'"


def library_name(encoded: int, tool: str = "nccl-tests") -> str:
    """The library's version in words: NCCL 2.30.4 for 23004 (and, before 2.9, for 2304); "" for
    0."""
    base = 1000 if encoded < 10000 else 10000
    version = f"{encoded // base}.{encoded % base // 100}.{encoded % 100}"
    return f"{'RCCL' if tool == 'rccl-tests' else 'NCCL'} {version}" if encoded else ""


def _make_rank(index: int, device: re.Match[str], backend: str) -> RankInfo:
    _, _, pid, host, device_index, bus, name = device.groups()
    text = f"cuda:{device_index} [{bus}] {name}" if backend == "nccl" else name
    return RankInfo(rank=index, host=host, pid=int(pid), cpus=[], device=text)


def _read_own_fields(match: re.Match[str]) -> dict[str, Any]:
    """The fields of Table that collbench adds to nccl-tests' text."""
    algorithm, _, backend = match["label"].rpartition("@")
    env = tuple(tuple(word.split("=", 1)) for word in (match["env"] or "").split() if "=" in word)
    return {
        "backend": backend,
        "algorithm": algorithm or "native",
        "n": int(match["n"]),
        "splits": match["splits"] or "",
        "arrival": match["arrival"] or "",
        "background": match["background"] or "",
        "groups": match["groups"] or "",
        "group": int(match["group"] or 0),
        "of": int(match["of"] or 1),
        "mode": match["mode"] if match["mode"] in MODES else "streaming",
        "env": env,
        "library": match["library"] or "",
    }
