"""From a file's bytes to lines, within bounds that no honest log comes near."""

from __future__ import annotations

import gzip
import io
import zlib

from collbench.core.errors import UsageError

MOST_BYTES = 1 << 28  # of a log, unpacked


MOST_LINES = 5_000_000


LONGEST_LINE = 4096  # characters; what is longer is no row of any table


def decode(data: bytes, name: str) -> str:
    """A log's text, unpacked if need be. Raises UsageError for what is no text."""
    if data[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(MOST_BYTES + 1)
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
            f"{name} is no text", "give the log that the tool printed, or its JSON or CSV"
        )
    return data.decode("utf-8-sig", errors="replace")


def lines(text: str) -> list[str]:
    """Lines without their ends; those too long to be a table's are empty."""
    return [line.rstrip("\r") if len(line) <= LONGEST_LINE else "" for line in text.split("\n")]
