"""What writers and readers of files share: comments above rows, and the rows of a series in
order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from collbench.core.errors import UsageError
from collbench.core.text import format_size, plain_line
from collbench.features.advise.formats import MARK
from collbench.features.advise.types import Advice, Advised


def describe_row(row: Advice, day: str) -> str:
    """One line for the comment above a row: sizes, setting, gain with its interval, launches and
    day."""
    gain, lo, hi = row.gain
    return plain_line(
        f"{_describe_place(row)}, {gain:.1%} less time [{lo:.1%}, {hi:.1%}],"
        f" {_describe_launches(row, day)}"
    )


def describe_advised(advised: Advised, title: str) -> list[str]:
    """Lines for the comment at the top of a file: what it is, of which runs; and that nothing is
    advised, if so."""
    lines = [f"{MARK}: {title}, measured with {advised.version or 'an unknown version'}"]
    lines += [f"run {run}" for run in advised.runs]
    if not advised.rows:
        lines.append("No setting is surely faster than the library's own choice.")
    return [plain_line(line) for line in lines]


def describe_fill(row: Advice, day: str) -> str:
    """The same of sizes at which the setting is no faster, and evidently no slower."""
    worst = min(row.gains, key=lambda gain: gain.lo)
    time, lo, hi = (-100 * each for each in (worst.gain, worst.hi, worst.lo))
    return plain_line(
        f"{_describe_place(row)}, as fast as the library's own choice: {time:+.1f} % time"
        f" [{lo:+.1f}, {hi:+.1f}], {_describe_launches(row, day)}"
    )


def _describe_place(row: Advice) -> str:
    series = row.series
    hosts = f" on {series.nodes} hosts" if series.nodes > 1 else ""
    sizes = f"{format_size(row.low)} to {format_size(row.high)}"
    return f"{series.collective}, {series.n} ranks{hosts}, {sizes}: {row.name}"


def _describe_launches(row: Advice, day: str) -> str:
    launches = min(each.launches for each in row.gains)
    when = f"verified {row.verified}" if row.verified else f"measured {day}"
    return f"{launches} launches a side, {when}" + (f"; {row.remark}" if row.remark else "")


def sort_rows(advised: Advised) -> list[Advice]:
    """The rows by collective, ranks, hosts and sizes."""
    return sorted(advised.rows, key=lambda row: (*row.series, row.low))


def refuse_shared(rows: Sequence[Advice], knows_hosts: bool = False) -> str:
    """Why rows can be in no file by sizes: two of a series overlap, or settings are collbench's own
    algorithms; where files know nothing of hosts, two rows of as many ranks on different ones."""
    for row in rows:
        if row.setting.algorithm != "native":
            return f"{row.name} is an algorithm of collbench's own, which the library cannot run"
    for before, after in pairwise(sorted(rows, key=lambda row: (*row.series, row.low))):
        if before.series == after.series and after.low <= before.high:
            return f"rows of {before.series.collective} overlap at {after.low} bytes"
    places: dict[tuple[str, int], int] = {}
    for row in rows:
        key = row.series.collective, row.series.n
        if places.setdefault(key, row.series.nodes) != row.series.nodes and not knows_hosts:
            return (
                f"it holds for {key[1]} ranks on any number of hosts, and {key[0]} has rows for"
                " several"
            )
    return ""


def cut_range(rows: Sequence[Advice]) -> Iterator[tuple[int, int | None, Advice | None]]:
    """All sizes from 0 to the end in pieces: the first and the last size (None: the end), and the
    row that holds there, if any. The rows are those of one series, in order, without overlap."""
    at = 0
    for row in rows:
        if at < row.low:
            yield at, row.low - 1, None
        yield row.low, row.high, row
        at = row.high + 1
    yield at, None, None


def fail_line(number: int, reason: str, hint: str = "") -> UsageError:
    """The error for a line of a file."""
    return UsageError(f"line {number}: {reason}", hint)
