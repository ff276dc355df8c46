"""Files of NCCL's tuners: rows of size, algorithm, protocol and channels for a collective.

NCCL's example plug-in (plugins/tuner/example, 2.27.5 to 2.30.7) asks for one channel before it
looks for a row, and NCCL obeys: whatever has no row, and each row with -1, runs on one channel. A
row with 0 channels leaves their number to NCCL (ncclGetAlgoInfo: 0 is none asked for). So a file
for it has a row for every collective and size; those that are not advised say what NCCL chose.
Rows that the plug-in cannot follow (NCCL_ALGO in the environment, links without LL128) it passes
over, so the library's choice stands once more below the advice.

RCCL's tuners and NCCLX's leave to the library what has no row.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from collbench.core.errors import UsageError
from collbench.core.text import format_count
from collbench.features.advise.formats import Format, Rule
from collbench.features.advise.formats._rows import (
    comment,
    describe_row,
    fail_line,
    format_path,
    sort_rows,
    write_head,
)
from collbench.features.advise.libraries.nccl import (
    CHANNELS,
    FUNCTIONS,
    IMPLEMENTED,
    name_choice,
    pin,
)
from collbench.features.advise.types import Advice, Advised, Gain, Series
from collbench.records.types import Choice

END = 2**64 - 1  # sizes are size_t
LINE = 255  # bytes that a reader takes of a line; it takes the rest for another line
SMALL, LARGE, HUGE = 1 << 10, 64 << 20, 1 << 30  # beyond these NCCL's choices go on
ANY_NODES = -1  # how a row says that it holds on any number of nodes
LIBRARY_S = 0  # channels: as many as NCCL gives this algorithm and protocol
COLLECTIVES = {function: collective for collective, function in FUNCTIONS.items()}
ALGORITHMS = {
    "tree": "Tree",
    "ring": "Ring",
    "collnet_direct": "CollNetDirect",
    "collnet_chain": "CollNetChain",
    "nvls": "NVLS",
    "nvls_tree": "NVLSTree",
    "pat": "PAT",
}
PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
WORD_OF = {name: word for word, name in (ALGORITHMS | PROTOCOLS).items()}
WRITTEN = "collbench advise --write FILE writes such files"
# GPUs whose NVLink ends at their host. That of others, as GB200, may join hosts, which NCCL then
# counts as one node (MNNVL): how many nodes it has, only its log says.
ONE_HOST = re.compile(r"\b(?:V100|A100|A800|A[134]0G?|H20|[HB]\d00|L\d{1,2}S?|T4|RTX)\b")
FIELDS = ("collective", "size", "size", "algorithm", "protocol", "channels", "nodes", "ranks")


class Run(NamedTuple):
    """What NCCL ran, in its names, and the number of channels that it was to have."""

    algorithm: str
    protocol: str
    channels: int


class Row(NamedTuple):
    """A row of a tuner's file: what runs from ``low`` to ``high`` bytes, in NCCL's names."""

    series: Series
    low: int
    high: int
    algorithm: str
    protocol: str
    channels: int

    def spell(self, without: int, nodes: int) -> str:
        """The row as NCCL's example and RCCL read it; ``without`` is said where the number of
        channels is the library's. ``nodes`` are as NCCL counts them; -1: any number."""
        series = self.series
        return ",".join(
            (
                FUNCTIONS[series.collective],
                str(self.low),
                str(self.high),
                WORD_OF[self.algorithm],
                WORD_OF[self.protocol],
                str(self.channels or without),
                str(nodes),
                str(series.n),
                "-1,-1",
            )
        )


def settle_rows(advice: Advice, channels: int) -> list[Row] | str:
    """The rows that have a tuner do what the setting did, several where it had other channels or
    protocols at other sizes; else why none can, as a sentence without a full stop. By default NCCL
    has this many ``channels`` or more."""
    if why := refuse_setting(advice):
        return why
    runs: list[tuple[int, Run]] = []
    for gain, ran in zip(advice.gains, _pad(advice.rans, advice.gains), strict=True):
        run = _settle(advice, ran or Choice(), channels)
        if isinstance(run, str):
            return run
        runs.append((gain.nbytes, run))
    return _spread(advice.series, runs, advice.low, advice.high)


def refuse_setting(advice: Advice) -> str:
    """The reason why no tuner can do what the setting does, whatever NCCL runs; empty if one may
    be able to."""
    series, setting = advice.series, advice.setting
    if series.collective not in FUNCTIONS:
        return f"NCCL asks no tuner about {series.collective}"
    if setting.backend not in ("nccl", "rccl") or setting.algorithm != "native":
        return f"{advice.name} is no algorithm of NCCL, which a tuner could name"
    settable = ("NCCL_ALGO", "NCCL_PROTO", *CHANNELS)
    unknown = [name for name, _ in setting.env if name not in settable]
    if unknown:
        return f"a tuner cannot set {unknown[0]}"
    return ""


def has_least_channels(advice: Advice) -> bool:
    """Whether the setting asks for a least number of channels, which a tuner can give only if NCCL
    has as many by itself."""
    return pin(advice.series.collective, advice.setting.env).least > 0


def _settle(advice: Advice, ran: Choice, most: int) -> Run | str:
    """The setting's run at a size, by what it asks for and what was heard of it. A tuner's
    number of channels is cut to what the communicator has, at least ``most`` by default."""
    collective = advice.series.collective
    pinned, has = pin(collective, advice.setting.env), IMPLEMENTED[collective]
    algorithm = pinned.algorithms[0] if len(pinned.algorithms) == 1 else ran.algorithm
    protocols = [name for name in has.get(algorithm, ()) if name in pinned.protocols]
    protocol = protocols[0] if len(protocols) == 1 else ran.protocol
    if algorithm not in pinned.algorithms or protocol not in protocols:
        return (
            f"it is not known which algorithm and protocol {advice.name} ran for {collective} at "
            "all sizes, and a tuner's row names both"
        )
    if not (pinned.least or pinned.most):
        return Run(algorithm, protocol, LIBRARY_S)
    if not (channels := ran.channels or pinned.channels):
        return f"it is not known how many channels {advice.name} had, and a tuner sets a number"
    if pinned.least and channels > most:
        own = f"said {most} at most" if most else "did not say how many it has"
        return (
            f"{advice.name} had {channels} channels, and a tuner can lower their number, not raise"
            f" it: NCCL by itself {own}"
        )
    return Run(algorithm, protocol, channels)


def _pad(choices: Sequence[Choice | None], gains: Sequence[Gain]) -> Sequence[Choice | None]:
    """What ran at each size, which is not known where there is not one for each."""
    return choices if len(choices) == len(gains) else [None] * len(gains)


def list_advised(advised: Advised) -> tuple[list[tuple[Advice, list[Row]]], str]:
    """All advice with its rows, and why some of it has none, which is empty where all has."""
    settled: list[tuple[Advice, list[Row]]] = []
    channels: dict[tuple[int, int], int] = {}
    for series, _, choice in _list_heard(advised):
        place = series.n, series.nodes
        channels[place] = max(channels.get(place, 0), choice.channels if choice else 0)
    for advice in sort_rows(advised):
        rows = settle_rows(advice, channels[advice.series.n, advice.series.nodes])
        if isinstance(rows, str):
            return [], rows
        settled.append((advice, rows))
    return settled, ""


def list_defaults(advised: Advised, is_whole: bool) -> tuple[dict[Series, list[Row]], str]:
    """What the library itself chose, as rows, by series: those of which every measured size was
    heard. Between two sizes the break is their geometric mean. ``is_whole``: rows over all sizes,
    for series measured so widely that the choices at both ends go on. The text says why a heard
    choice is none of a tuner's."""
    heard: dict[Series, dict[int, Choice | None]] = {}
    for series, nbytes, choice in _list_heard(advised):
        if series.collective in FUNCTIONS:
            heard.setdefault(series, {})[nbytes] = choice
    rows: dict[Series, list[Row]] = {}
    why = ""
    for series, by_size in sorted(heard.items()):
        choices = [(nbytes, choice) for nbytes, choice in sorted(by_size.items()) if choice]
        has = IMPLEMENTED[series.collective]
        strange = [each for _, each in choices if each.protocol not in has.get(each.algorithm, ())]
        if strange:
            what = strange[0].algorithm
            why = f"NCCL ran {what} for {series.collective}, for which it asks no tuner"
        elif len(choices) == len(by_size) and (not is_whole or _goes_on(choices)):
            runs = [(nbytes, Run(each.algorithm, each.protocol, 0)) for nbytes, each in choices]
            ends = (0, END) if is_whole else (choices[0][0], choices[-1][0])
            rows[series] = _spread(series, runs, *ends)
    return rows, why


def _goes_on(choices: Sequence[tuple[int, Choice]]) -> bool:
    """Whether NCCL chooses below the first size and above the last one what it chose there: LL for
    what is smaller than what has LL, and for large messages no more than one protocol."""
    (least, first), (most, last) = choices[0], choices[-1]
    is_steady = most >= HUGE or (most >= LARGE and last.protocol == "Simple")
    return (least <= SMALL or first.protocol == "LL") and is_steady


def _list_heard(advised: Advised) -> Iterator[tuple[Series, int, Choice | None]]:
    for each in advised.unadvised:
        yield each.cell.series, each.cell.nbytes, _heard(each.default_ran)
    for advice in advised.rows:
        choices = _pad(advice.default_rans, advice.gains)
        for gain, choice in zip(advice.gains, choices, strict=True):
            yield advice.series, gain.nbytes, _heard(choice)


def _heard(choice: Choice | None) -> Choice | None:
    return choice if choice and choice.algorithm else None


def _spread(series: Series, runs: Sequence[tuple[int, Run]], first: int, last: int) -> list[Row]:
    """Rows from the first to the last size, for what ran at some between; neighbours that ran the
    same are one row, others part at their geometric mean."""
    rows: list[Row] = []
    for run, group in itertools.groupby(runs, key=lambda each: each[1]):
        sizes = [nbytes for nbytes, _ in group]
        low = first
        if rows:
            middle = math.isqrt(rows[-1].high * sizes[0])
            rows[-1] = rows[-1]._replace(high=middle)
            low = middle + 1
        rows.append(Row(series, low, sizes[-1], *run))
    rows[-1] = rows[-1]._replace(high=last)
    return rows


def _list_worlds(advised: Advised) -> list[tuple[int, int]]:
    """Numbers of nodes and ranks that were measured, of collectives that tuners are asked about."""
    series = [advice.series for advice in advised.rows]
    series += [each.cell.series for each in advised.unadvised]
    return sorted({(each.nodes, each.n) for each in series if each.collective in FUNCTIONS})


def _count_nodes(advised: Advised) -> dict[tuple[int, int], int]:
    """NCCL's number of nodes by those of hosts and ranks, as NCCL said it. Where NCCL did not say
    it, that of hosts; ANY_NODES where NVLink may join several of them."""
    said: dict[tuple[int, int], set[int]] = {}
    for series, _, choice in _list_heard(advised):
        if choice and choice.nodes:
            said.setdefault((series.nodes, series.n), set()).add(choice.nodes)
    is_within = advised.version.startswith("RCCL") or ONE_HOST.search(advised.device)
    counts = {}
    for hosts, n in _list_worlds(advised):
        numbers = said.get((hosts, n), set())
        default = hosts if is_within or hosts == 1 else ANY_NODES
        counts[hosts, n] = numbers.pop() if len(numbers) == 1 else default
    return counts


def _refuse_nodes(advised: Advised) -> str:
    """The reason why rows of as many ranks on different numbers of hosts cannot be told apart."""
    counts = _count_nodes(advised)
    for (world, count), (other, other_count) in itertools.combinations(counts.items(), 2):
        is_apart = count != other_count and ANY_NODES not in (count, other_count)
        if world[1] == other[1] and not is_apart:
            return (
                f"NVLink may join hosts of {advised.device or 'these GPUs'} to one node of NCCL's,"
                f" so that rows of {world[1]} ranks on {format_count(world[0], 'host')} may hold on"
                f" {format_count(other[0], 'host')}, too: write a file for each"
            )
    return ""


# the example plug-in of NCCL


class Example(Format):
    """NCCL's example plug-in."""

    key = "nccl"
    title = "the file of NCCL's example tuner plug-in"
    suffix = ".conf"
    by_size, covers_all = True, False
    collectives, sizes = tuple(FUNCTIONS), ("1K", "64M")

    def refuse(self, advised: Advised) -> str:
        if advised.version.startswith("RCCL"):
            return "these runs are RCCL's, whose tuner has rules of its own: --for rccl"
        if why := list_advised(advised)[1]:
            return why
        defaults, why = list_defaults(advised, is_whole=True)
        worlds = _list_worlds(advised)
        if why or not worlds:
            return why or "no collective was measured that NCCL asks a tuner about"
        if why := _refuse_nodes(advised):
            return why
        for nodes, n in worlds:
            lacking = [name for name in FUNCTIONS if Series(name, n, nodes) not in defaults]
            if lacking:
                return (
                    "NCCL's example plug-in runs on one channel whatever has no row, and what NCCL "
                    f"itself chooses for {', '.join(lacking)} with {n} ranks on "
                    f"{format_count(nodes, 'host')} is not known at all sizes: measure each "
                    "without settings from 1K to 64M or more with NCCL 2.24 or later, which says "
                    "what it chose"
                )
        return ""

    def write(self, advised: Advised, path: Path | None = None) -> str:
        worlds = ", ".join(
            f"{format_count(n, 'rank')} on {format_count(nodes, 'host')}"
            for nodes, n in _list_worlds(advised)
        )
        warnings = [
            "NCCL's example plug-in runs communicators of other sizes than those of this file on "
            f"ONE channel, and so slowly: use it only for communicators of {worlds}.",
            "0 channels: as many as NCCL gives. Unset NCCL_ALGO and NCCL_PROTO: they go before "
            "rows, and calls that no row fits have one channel. Kernels for symmetric memory ask "
            "no tuner.",
        ]
        if ANY_NODES in _count_nodes(advised).values():
            warnings.append(
                "-1 nodes: NCCL counts hosts that NVLink joins as one node, so rows of several "
                "hosts hold on any number of them."
            )
        head = write_head(
            advised,
            self.title,
            ["export NCCL_TUNER_PLUGIN=libnccl-tuner-example.so", _export(path, "NCCL")],
            warnings,
        )
        defaults = list_defaults(advised, is_whole=True)[0]
        rows = [row for series in sorted(defaults) for row in defaults[series]]
        below = (
            "not advised, or where a row above cannot be followed: as NCCL itself chose, and "
            "beyond the measured sizes as it did at the nearest"
        )
        return _write_rows(advised, head, below, rows, LIBRARY_S)

    def read(self, text: str) -> Sequence[Rule]:
        rules = [_read_row(*line, least_channels=0) for line in _split(text)]
        _refuse_gaps(rules)
        return rules

    def use(self, path: Path) -> dict[str, str]:
        return {
            "NCCL_TUNER_PLUGIN": "libnccl-tuner-example.so",
            "NCCL_TUNER_CONFIG_FILE": str(path),
        }


def _export(path: Path | None, library: str) -> str:
    return f"export {library}_TUNER_CONFIG_FILE={format_path(path)}"


def _write_rows(
    advised: Advised, head: Sequence[str], below: str, defaults: Sequence[Row], without: int
) -> str:
    lines = [*head]
    counts = _count_nodes(advised)

    def spell(row: Row) -> str:
        return row.spell(without, counts[row.series.nodes, row.series.n])

    for advice, rows in list_advised(advised)[0]:
        lines += ["#", *comment([describe_row(advice, advised.day)]), *map(spell, rows)]
    if defaults:
        lines += ["#", *comment([below]), *map(spell, defaults)]
    return "\n".join(lines) + "\n"


def _split(text: str) -> Iterator[tuple[int, list[str]]]:
    """The fields of each row, with its line. Raises UsageError where a reader would take other
    fields: it cuts long lines in two, and joins what stands on both sides of an empty field."""
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.removesuffix("\r")
        if len(line.encode(errors="surrogatepass")) > LINE or "\0" in line:
            raise _misread(number, f"is longer than {LINE} bytes: the rest counts as another line")
        if line.startswith("#") or not line:
            continue
        fields = [field.strip(" \t") for field in line.split(",")]
        if "" in fields:
            raise _misread(number, "has an empty field, in place of which the next one is read")
        if not len(FIELDS) <= len(fields) <= len(FIELDS) + 2:
            raise _misread(number, f"has {len(fields)} fields, and 8 to 10 are read")
        yield number, fields


def _misread(number: int, why: str) -> UsageError:
    return fail_line(number, f"the row {why}", WRITTEN)


def _read_row(number: int, fields: list[str], least_channels: int) -> Rule:
    """The rule of a row. Raises UsageError for what NCCL's example takes silently for another
    word or number, and RCCL skips."""
    for word, known, instead in (
        (fields[0], COLLECTIVES, "allreduce"),
        (fields[3], ALGORITHMS, "ring"),
        (fields[4], PROTOCOLS, "simple"),
    ):
        if word not in known:
            raise _misread(number, f"has the unknown word {word!r}, which is read as {instead}")
    for name, value in zip(FIELDS[1:3], fields[1:3], strict=True):
        if not re.fullmatch(r"\d{1,20}", value, re.ASCII) or int(value) > END:
            raise _misread(number, f"has the {name} {value!r}, which is no number of bytes")
    low, high = map(int, fields[1:3])
    if high == 2**32 - 1:
        raise _misread(number, f"ends at 4294967295, which is 4 GiB: all sizes end at {END}")
    if low > high:
        raise _misread(number, f"goes from {low} down to {high}, and so fits no size")
    channels = _read_number(number, "channels", fields[5])
    if channels < least_channels:
        raise _misread(number, f"has {channels} channels, by which the plug-in gives one")
    nodes, n = (_read_number(number, *each) for each in zip(FIELDS[6:], fields[6:8], strict=True))
    if 0 in (nodes, n) or any(field != "-1" for field in fields[8:]):
        raise _misread(number, "holds for some calls only, which collbench cannot tell apart")
    name = name_choice(ALGORITHMS[fields[3]], PROTOCOLS[fields[4]], max(channels, 0))
    anyone = (None if n == -1 else n, None if nodes == -1 else nodes)
    return Rule(COLLECTIVES[fields[0]], *anyone, low, None if high == END else high, name)


def _read_number(number: int, name: str, value: str) -> int:
    if not re.fullmatch(r"-1|\d{1,9}", value, re.ASCII):
        raise _misread(number, f"has {name} {value!r}, of which only the leading digits are read")
    return int(value)


def _refuse_gaps(rules: Sequence[Rule]) -> None:
    """Raises UsageError for the first collective and size that has no row, and so one channel."""
    worlds = sorted({(rule.n or 0, rule.nodes or 0) for rule in rules}) or [(0, 0)]
    for n, nodes in worlds:
        for collective in FUNCTIONS:
            fitting = [
                rule
                for rule in rules
                if rule.collective == collective
                and rule.n in (None, n)
                and rule.nodes in (None, nodes)
            ]
            gap = _find_gap([(rule.low, rule.high) for rule in fitting])
            if gap is not None:
                raise UsageError(
                    f"no row for {collective} of {gap} bytes with {n or 'any'} ranks: the plug-in "
                    "runs it on one channel",
                    WRITTEN,
                )


def _find_gap(ranges: Iterable[tuple[int, int | None]]) -> int | None:
    """The smallest size that no range holds."""
    covered = 0
    for low, high in sorted(ranges, key=lambda each: each[0]):
        if low > covered:
            break
        if high is None:
            return None
        covered = max(covered, high + 1)
    return covered


# RCCL's own tuner


class Rccl(Format):
    """The tuner inside RCCL (its csv_tuner.cc), and its example plug-in since 2025."""

    key = "rccl"
    title = "the file of RCCL's tuner"
    suffix = ".csv"
    by_size, covers_all = True, False
    collectives, sizes = tuple(FUNCTIONS), ("1K", "64M")

    def refuse(self, advised: Advised) -> str:
        if not advised.version.startswith("RCCL"):
            return "these runs are NCCL's, whose plug-in has rules of its own: --for nccl"
        return list_advised(advised)[1]

    def write(self, advised: Advised, path: Path | None = None) -> str:
        warnings = [
            "RCCL reads this file in place of the rccl_tuner_<arch>.csv that it ships for the GPU: "
            "append the rows of that one, of which the first that fits counts.",
            "-1 channels: as many as RCCL gives. Unset NCCL_ALGO and NCCL_PROTO, which go before "
            "rows.",
        ]
        head = write_head(advised, self.title, [_export(path, "NCCL")], warnings)
        defaults = list_defaults(advised, is_whole=False)[0]
        below = "as RCCL itself chose, by the file that it ships"
        rows = [row for series in sorted(defaults) for row in defaults[series]]
        return _write_rows(advised, head, below, rows, -1)

    def read(self, text: str) -> Sequence[Rule]:
        rules = []
        for number, fields in _split(text):
            if fields[5] == "0":
                raise _misread(number, "has 0 channels, of which RCCL warns: -1 are its own number")
            rules.append(_read_row(number, fields, least_channels=-1))
        return rules

    def use(self, path: Path) -> dict[str, str]:
        return {"NCCL_TUNER_CONFIG_FILE": str(path)}


# NCCLX's tuner


class Ncclx(Format):
    """The tuner inside NCCLX (its meta/tuner), which goes by bytes a rank: the collective's size
    over the number of ranks, rounded down. A file with a mistake keeps communicators from
    opening."""

    key = "ncclx"
    title = "the file of NCCLX's tuner"
    suffix = ".csv"
    by_size, covers_all = True, False
    collectives, sizes = tuple(FUNCTIONS), ("1K", "64M")

    def refuse(self, advised: Advised) -> str:
        if advised.version.startswith("RCCL"):
            return "these runs are RCCL's, whose tuner has rules of its own: --for rccl"
        settled, why = list_advised(advised)
        counts = _count_nodes(advised)
        series = [advice.series for advice, _ in settled]
        uneven = [each for each in series if each.n % counts[each.nodes, each.n]]
        if any(counts[each.nodes, each.n] == ANY_NODES for each in series):
            return (
                f"NVLink may join hosts of {advised.device or 'these GPUs'} to one node, and NCCLX"
                " goes by ranks on each node: --for nccl takes any number of nodes"
            )
        if not why and uneven:
            nodes = counts[uneven[0].nodes, uneven[0].n]
            where = f"{uneven[0].n} ranks on {format_count(nodes, 'node')}"
            return f"{where} have no equal number a node, by which NCCLX goes"
        return why

    def write(self, advised: Advised, path: Path | None = None) -> str:
        warnings = [
            "Bytes are those of the collective over its ranks, rounded down. -1 channels: as many "
            "as NCCLX gives. Unset NCCL_ALGO and NCCL_PROTO, which go before rows.",
        ]
        lines = write_head(advised, self.title, [_export(path, "NCCLX")], warnings)
        counts = _count_nodes(advised)
        for advice, rows in list_advised(advised)[0]:
            nodes = counts[advice.series.nodes, advice.series.n]
            lines += ["#", *comment([describe_row(advice, advised.day)])]
            lines += [_spell_ncclx(row, nodes) for row in rows]
        return "\n".join(lines) + "\n"

    def read(self, text: str) -> Sequence[Rule]:
        rules = []
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.strip(" \t\r\n")
            if line and not line.startswith("#"):
                rules.append(_read_ncclx(number, line))
        return rules

    def use(self, path: Path) -> dict[str, str]:
        if path.suffix == ".json":
            raise UsageError(
                f"{path}: NCCLX reads a file of this name as JSON", "name it .csv instead"
            )
        return {"NCCLX_TUNER_CONFIG_FILE": str(path)}


def _spell_ncclx(row: Row, nodes: int) -> str:
    n = row.series.n
    return ",".join(
        (
            FUNCTIONS[row.series.collective],
            f"[{row.low // n},{row.high // n}]",
            WORD_OF[row.algorithm],
            WORD_OF[row.protocol],
            str(row.channels or -1),
            str(nodes),
            str(n // nodes),
        )
    )


def _read_ncclx(number: int, line: str) -> Rule:
    """The rule of NCCLX's row. Raises UsageError for what NCCLX refuses, by which no communicator
    opens, and for ranges of nodes and ranks, which collbench does not write."""
    fields = [field.strip(" \t") for field in re.split(r",(?![^(\[]*[)\]])", line)]
    if not 7 <= len(fields) <= 8:
        raise _misread(number, f"has {len(fields)} fields, and 7 or 8 are read")
    for word, known in ((fields[0], COLLECTIVES), (fields[2], ALGORITHMS), (fields[3], PROTOCOLS)):
        if word not in known:
            raise _misread(number, f"has the unknown word {word!r}")
    numbers = re.fullmatch(r"-?\d{1,9}(,\d{1,18})?", ",".join((fields[4], *fields[7:])), re.ASCII)
    if numbers is None:
        raise _misread(number, "has channels or a size of chunks that are no number")
    if int(fields[4]) == 0 or int(fields[4]) < -1:
        raise _misread(number, f"has {fields[4]} channels: -1 are the library's own number")
    if not all(re.fullmatch(r"[1-9]\d{0,8}", each, re.ASCII) for each in fields[5:7]):
        raise _misread(number, "needs a number of nodes and one of ranks on each")
    nodes, local = map(int, fields[5:7])
    low, high = _read_interval(number, fields[1])
    n = nodes * local
    name = name_choice(ALGORITHMS[fields[2]], PROTOCOLS[fields[3]], max(int(fields[4]), 0))
    end = None if high is None else high * n + n - 1
    return Rule(COLLECTIVES[fields[0]], n, nodes, low * n, end, name)


def _read_interval(number: int, text: str) -> tuple[int, int | None]:
    """The least and largest number of NCCLX's interval: 5, *, [0,8], (1,), [2,9)."""
    if text == "*":
        return 0, None
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return int(text), int(text)
    match = re.fullmatch(r"([(\[])\s*(\d{0,18})\s*,\s*(\d{0,18})\s*([)\]])", text, re.ASCII)
    if match is None:
        raise _misread(number, f"has {text!r}, which is no interval")
    low = int(match[2]) + (match[1] == "(") if match[2] else 0
    high = int(match[3]) - (match[4] == ")") if match[3] else None
    if high is not None and low > high:
        raise _misread(number, f"has the interval {text!r}, which fits no size")
    return low, high


FORMATS = (Example(), Rccl(), Ncclx())
