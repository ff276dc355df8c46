"""From a file's bytes to lines, within bounds that no honest log comes near."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections import Counter
from functools import partial
from typing import BinaryIO

from collbench.core.errors import UsageError

MOST_BYTES = 16 << 20  # of a log, unpacked, without what the library says of itself


MOST_READ = 256 << 20  # bytes with all of that


DEBUGGING = re.compile(rb" NCCL (?:INFO|TRACE) ")  # with NCCL_DEBUG most of a log


MOST_PACKED = 4 << 20  # bytes of what unpacks to that, lest there be a million parts


MOST_LINES = 300_000


MOST_VALUES = 1_000_000  # of JSON or CSV, each an object of its own when it is read


# what mpirun --tag-output and srun --label write before each line
LABELLED = r"\[[^]\s]*\d+,\d+\]<std\w+>: ?|[ \t]*\d+: "


# what stands before the '#' of a line that benchmarks begin with one
PREFIXED = re.compile(
    r"([^#]{1,160}+)#(?=#? *(?:nThread|Using devices|Rank +\d|size +count|Size|OSU|processes"
    r"|bytes|Benchmarking|Datatype|Out of bounds|Avg bus|Collective test|(?:nccl|rccl)-tests))"
)


MOST_SHAPES = 64  # of prefixes that are cut off


SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")  # which no file can hold as it is


LONGEST_LINE = 4096  # characters; what is longer is no row of any table


def bounded(log: BinaryIO | gzip.GzipFile) -> bytes:
    """A log's bytes without NCCL's debugging lines; where there are more than MOST_BYTES, so many
    that they are refused."""
    kept, left = io.BytesIO(), MOST_READ
    for line in iter(partial(log.readline, MOST_BYTES + 1), b""):
        left -= len(line)
        if not DEBUGGING.search(line) or left < 0:
            kept.write(line if left >= 0 else bytes(MOST_BYTES + 1))
        if kept.tell() > MOST_BYTES:
            break
    return kept.getvalue()


def decode(data: bytes, name: str) -> str:
    """A log's text, unpacked if need be. Raises UsageError for what is no text."""
    if data[:2] == b"\x1f\x8b" and len(data) <= MOST_PACKED:
        try:
            with gzip.open(io.BytesIO(data)) as packed:
                data = bounded(packed)
        except (OSError, EOFError, zlib.error) as e:
            raise UsageError(f"{name}: cannot unpack it: {e}", "is it whole?") from e
    if len(data) > MOST_BYTES:
        raise UsageError(
            f"{name} is larger than {MOST_BYTES >> 20} MiB",
            "cut it to the tables, with grep for example",
        )
    if data.count(b"\n") > MOST_LINES:
        raise UsageError(
            f"{name} has more than {MOST_LINES} lines",
            "cut it to the tables, with grep for example",
        )
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UsageError(f"{name} is UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8")
    if b"\0" in data:
        raise UsageError(
            f"{name} is not text", "give the log that the tool printed, or its JSON or CSV"
        )
    return data.decode("utf-8-sig", errors="replace")


def unprefixed(text: str) -> str:
    """``text`` without what others put before each line: labels of ranks, time stamps, hosts,
    indentation. Taken for such is what stands before the '#' of two lines and differs there in
    numbers and blanks only; numbers alone are none, as rows begin with some."""
    every = text.split("\n")
    found = Counter(
        _shape(match[1])
        for match in filter(None, map(PREFIXED.match, (line for line in every if "#" in line)))
        if re.search(r"[^\d ]|^ +$", match[1])
    )
    before = [shape for shape, times in found.most_common(MOST_SHAPES) if times > 1]
    prefix = re.compile("|".join(f"(?:{shape})" for shape in [*before, LABELLED]))
    cuts = ((line, prefix.match(line)) for line in every)
    return "\n".join(line[match.end() :] if match else line for line, match in cuts)


def _shape(prefix: str) -> str:
    """A pattern of it with any numbers and blanks; of indentation, before comments alone."""
    if not prefix.strip():
        return r"[ \t]+(?=#)"
    parts = re.split(r"([ \t]*\d+|[ \t]+)", prefix)
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = (r"[ \t]*+\d++" if p[-1].isdigit() else r"[ \t]++" for p in parts[1::2])
    return "".join(parts)


def sane(text: str, name: str) -> str:
    """The text of JSON or CSV. Raises UsageError where it holds more values than memory would."""
    if sum(map(text.count, ",[{")) > MOST_VALUES:
        raise UsageError(f"{name} holds more than {MOST_VALUES} values", "split it")
    return SURROGATE.sub(r"\\ufffd", text)


def lines(text: str) -> list[str]:
    """Lines without their ends; those too long to be a table's are empty."""
    return [line.rstrip("\r") if len(line) <= LONGEST_LINE else "" for line in text.split("\n")]
