"""From a file's bytes to lines, within bounds that no honest log comes near."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import BinaryIO, NamedTuple

from collbench.core.errors import UsageError
from collbench.core.files import recognise_archive

MOST_BYTES = 16 << 20  # of a log, unpacked, without what the library says of itself

MOST_READ = 256 << 20  # bytes with all of that

MARK = " NCCL "  # in each line that NCCL writes of itself: with NCCL_DEBUG most of a log

# A time stamp (of warnings, since NCCL 2.26), host, process and thread, device, for TRACE a time,
# for WARN and TRACE the line of the source. A number may be glued to the host where it tore a row.
LIBRARY_LINE = re.compile(
    r"(?:\[[^\]\s][^\]]{2,39}\] ?)?(?<![\w.-])(?P<host>[\w.-]{1,255}+):\d{1,10}:\d{1,10} "
    r"(?:\[-?\d{1,4}\] )?(?:\d+\.\d+ )?(?:[\w./+-]{1,160}+:\d{1,6} )?NCCL [A-Z]+\b"
)

NUMBER = re.compile(r"(?<!\S)-?\d[\d.]*(?!\S)")

# as tables print them; 0 is the only whole number that begins with 0
PRINTED = r"-1|N/A|-?nan|inf|0(?![\d.])|0(?=\d)|\d+\.\d{1,2}|\d+(?:e[+-]\d+)?"

MOST_HOSTS = 4096  # whose lines are kept once each, to know them by where they tear a row

WRAPPED = re.compile(
    rb'"(log|message|MESSAGE|msg)"\s*:\s*"'
)  # a line of Docker's or journald's JSON

MOST_WRAPPED = 1 << 16  # bytes of such a line

MOST_PACKED = MOST_BYTES  # of a gzipped log

MOST_PARTS = 20_000  # that a gzipped log is made of, each of which takes time however small it is

PART = b"\x1f\x8b\x08"  # how one begins; elsewhere in a packed file these bytes are rare

MOST_LINES = 300_000  # that are not empty

MOST_EMPTY = MOST_READ // 32  # as those are left that NCCL wrote

MOST_VALUES = 1_000_000  # of JSON or CSV, each an object of its own when it is read

# what mpirun --tag-output and srun --label write before each line
LABELLED = r"\[[^]\s]*\d+,\d+\]<std\w+>: ?|[ \t]*\d+: "

# what stands before the first line of a test's settings
LABELLED_HEAD = re.compile(r"(\S[^#\n]{0,79}?)# *nThreads?:? \d")

# what stands before the '#' of a line that benchmarks begin with one
PREFIXED = re.compile(
    r"([^#]{1,160}+)#(?=#? *(?:nThread|Using devices|Rank +\d|size +count|Size|OSU|processes"
    r"|bytes|Benchmarking|Datatype|Out of bounds|Avg bus|Collective test|(?:nccl|rccl)-tests))"
)

# how lines begin that benchmarks begin with a '#', which web forms swallow
UNHASHED = re.compile(
    r"[ \t]*(?:nThreads?:? \d|Using devices|Rank +\d+ .*Pid|size +count .*time|\(B\) +\(elements\)"
    r"|out-of-place|in-place|Out of bounds values|Avg bus bandwidth|Collective test "
    r"|Blocking Enabled|OSU \w.* Test|Size +(?:Avg |Min |Max )?Lat|Datatype: |Send Buffer on "
    r"|Benchmarking \w|#processes = |bytes +#repetitions|Intel ?\(R\) MPI Bench|Calling sequence"
    r"|MPI_Datatype|\S*IMB-\w)"
)

MOST_SHAPES = 64  # of prefixes that are cut off

SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")  # which no file can hold as it is

LONGEST_LINE = 4096  # characters; what is longer is no row of any table


def bound_log(log: BinaryIO | gzip.GzipFile) -> bytes:
    """A log's lines without what NCCL says of itself; where there are more than MOST_BYTES, so many
    that they are refused."""
    buffer, room, filled, empty = io.BytesIO(), MOST_READ, 0, 0
    hosts: set[str] = set()
    for line in iter(partial(log.readline, MOST_BYTES + 1), b""):
        room -= len(line)
        rest = _cut_message(_unwrap_line(line), hosts) if room >= 0 else bytes(MOST_BYTES + 1)
        buffer.write(rest)
        empty += rest == b"\n"
        filled += len(rest) * (rest != b"\n")
        if filled > MOST_BYTES or empty > MOST_EMPTY:
            break
    return buffer.getvalue()


def _unwrap_line(line: bytes) -> bytes:
    """The line of a log that a JSON object of one line holds, as Docker keeps them."""
    if line[:1] != b"{" or len(line) > MOST_WRAPPED or not (key := WRAPPED.search(line)):
        return line
    try:
        text = json.loads(line)[key[1].decode()]
    except (ValueError, RecursionError, KeyError):
        return line
    if not isinstance(text, str):
        return line
    return text.rstrip("\r\n").encode(errors="replace") + b"\n"


def _cut_message(line: bytes, hosts: set[str]) -> bytes:
    """A line up to NCCL's message in it; an empty one for a line that is all NCCL's, but the first
    of each host and those that tell a version."""
    if MARK.encode() not in line or len(line) > LONGEST_LINE or b"CCL version " in line:
        return line
    text = line.decode("latin-1")
    match = find_library_output(text)
    if match is None:
        return line
    if is_whole_line(text, match):
        if match["host"] in hosts or len(hosts) >= MOST_HOSTS:
            return b"\n"
        hosts.add(match["host"])
    return text[: match.end()].encode("latin-1") + b"\n"


def find_library_output(text: str) -> re.Match[str] | None:
    """The match with which NCCL's own output begins in a line, None where there is none."""
    at = text.find(MARK)
    return LIBRARY_LINE.search(text, max(0, at - 480), at + 40) if at >= 0 else None


def is_whole_line(text: str, match: re.Match[str]) -> bool:
    """Whether nothing of a table stands before NCCL's output."""
    return not match["host"].startswith("-") and not NUMBER.search(text[: match.start()])


def library_hosts(every: Iterable[str]) -> set[str]:
    """The hosts of lines that are all NCCL's."""
    outputs = ((line, match) for line in every if (match := find_library_output(line)))
    return {match["host"] for line, match in outputs if is_whole_line(line, match)}


def cut_library_output(text: str, hosts: Iterable[str]) -> str:
    """The text before NCCL's output in a line, with the number that is glued to one of ``hosts``;
    the whole line where there is none of it."""
    match = find_library_output(text)
    if match is None:
        return text
    glued = "" if is_whole_line(text, match) else _glued_number(match["host"], hosts)
    return text[: match.start()] + glued


def _glued_number(token: str, hosts: Iterable[str]) -> str:
    """The number before a host's name, "" if there is none."""
    for host in sorted(hosts, key=len, reverse=True):
        before = token.removesuffix(host)
        if before != token and (not before or re.fullmatch(PRINTED, before)):
            return before
    number = re.match(rf"({PRINTED})(?=[A-Za-z\d])", token)
    return number[1] if number else ""


def decode_log(data: bytes, name: str) -> str:
    """A log's text, unpacked if need be. Raises UsageError for what is no text."""
    _refuse_archive(data, name)
    if data[:2] == PART[:2]:
        data = _unpack_log(data, name)
        _refuse_archive(data, name)
    *lines, _ = data.split(b"\n")
    empty = lines.count(b"")
    if len(data) - empty > MOST_BYTES:
        raise UsageError(
            f"{name} is larger than {MOST_BYTES >> 20} MiB",
            "cut it to the tables, with grep for example",
        )
    is_full = len(lines) - empty > MOST_LINES
    if is_full or empty > MOST_EMPTY:
        many = f"{MOST_LINES} lines" if is_full else f"{MOST_EMPTY} lines that are empty or NCCL's"
        raise UsageError(
            f"{name} has more than {many}",
            "cut it to the tables, with grep for example",
        )
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UsageError(f"{name} is UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8")
    if b"\0" in data:
        raise UsageError(
            f"{name} is not text", "give the log that the tool printed, or its JSON or CSV"
        )
    return data.decode("utf-8-sig", errors="replace")


def _unpack_log(data: bytes, name: str) -> bytes:
    """The bytes of a gzipped log, as bound_log has them. Raises UsageError for one that is broken,
    or larger than would be read."""
    if len(data) > MOST_PACKED or data.count(PART) > MOST_PARTS:
        many = f"is packed in more than {MOST_PARTS:,} parts"
        large = f"is larger than {MOST_PACKED >> 20} MiB though packed"
        raise UsageError(
            f"{name} {large if len(data) > MOST_PACKED else many}",
            "unpack it and cut it to the tables, with zcat and grep for example",
        )
    try:
        with gzip.open(io.BytesIO(data)) as packed:
            return bound_log(packed)
    except (OSError, EOFError, zlib.error) as e:
        raise UsageError(f"{name}: cannot unpack it: {e}", "check that the file is whole") from e


def _refuse_archive(data: bytes, name: str) -> None:
    """Raises UsageError for a file of files, or one packed other than by gzip."""
    what, unpack = recognise_archive(data)
    if what:
        raise UsageError(f"{name} is {what}", f"unpack it first: {unpack} {name}")


class Part(NamedTuple):
    """The text of a process, and the number in its file of each of its lines."""

    text: str
    numbers: Sequence[int]


def _make_part(lines: Iterable[tuple[int, str]]) -> Part:
    """A part of these numbered lines, of empty ones in a row the first."""
    pairs = pairwise(chain([(0, "-")], lines))
    left = [numbered for (_, before), numbered in pairs if before or numbered[1]]
    return Part("\n".join(line for _, line in left), [at for at, _ in left])


def split_processes(text: str) -> dict[str, Part]:
    """The part of each process that printed a whole table of nccl-tests, by the label that a
    launcher put before its lines; all of it under "" where fewer than two did."""
    part = _make_part(enumerate(text.split("\n"), 1))
    every = part.text.split("\n")
    heads = {match[1] for line in every if (match := LABELLED_HEAD.match(line))}
    labels = [
        label
        for label in sorted(heads, key=len, reverse=True)[:MOST_SHAPES]
        if any(line.startswith(label) and "algbw" in line for line in every)
    ]
    if len(labels) < 2:
        return {"": part}
    of_line = [next((label for label in labels if line.startswith(label)), "") for line in every]
    lines = [*zip(part.numbers, every, of_line, strict=True)]
    return {
        label: _make_part((at, line * (owner in ("", label))) for at, line, owner in lines)
        for label in sorted(labels)
    }


def strip_prefixes(text: str) -> str:
    """``text`` without what others put before each line: labels of ranks, time stamps, hosts,
    indentation. Taken for such is what stands before the '#' of two lines and differs there in
    numbers and blanks only; numbers alone are none, as rows begin with some."""
    every = text.split("\n")
    shapes = Counter(
        _prefix_pattern(match[1])
        for match in filter(None, map(PREFIXED.match, (line for line in every if "#" in line)))
        if re.search(r"[^\d ]|^ +$", match[1])
    )
    before = [shape for shape, times in shapes.most_common(MOST_SHAPES) if times > 1]
    prefix = re.compile("|".join(f"(?:{shape})" for shape in [*before, LABELLED]))
    cuts = ((line, prefix.match(line)) for line in every)
    return "\n".join(line[match.end() :] if match else line for line, match in cuts)


def _prefix_pattern(prefix: str) -> str:
    """A regular expression for lines that begin with ``prefix``, with any numbers and blanks in
    their places; where it is blank, for indented comments alone."""
    if not prefix.strip():
        return r"[ \t]+(?=#)"
    parts = re.split(r"([ \t]*\d+|[ \t]+)", prefix)
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = (r"[ \t]*+\d++" if p[-1].isdigit() else r"[ \t]++" for p in parts[1::2])
    return "".join(parts)


def restore_hashes(text: str) -> str:
    """``text`` with a '#' before the lines that benchmarks print with one."""
    every = text.split("\n")
    return "\n".join(f"# {line.strip()}" if UNHASHED.match(line) else line for line in every)


def join_continued(text: str) -> str:
    """``text`` with commands on one line that a backslash continues on the next, and as many lines
    as before."""
    return re.sub(
        r"(?:[^\n]{0,2000}\\\r?\n){1,50}[^\n]*",
        lambda m: re.sub(r"\\\r?\n\s*", " ", m[0]) + "\n" * m[0].count("\n"),
        text,
    )


def refuse_too_many_values(text: str, name: str) -> str:
    """The text of JSON or CSV. Raises UsageError where it holds more values than memory would."""
    if sum(map(text.count, ",[{")) > MOST_VALUES:
        raise UsageError(f"{name} holds more than {MOST_VALUES} values", "split it")
    return SURROGATE.sub(r"\\ufffd", text)


def split_lines(text: str) -> list[str]:
    """Lines without their ends; those too long to be a table's are empty."""
    return [line.rstrip("\r") if len(line) <= LONGEST_LINE else "" for line in text.split("\n")]
