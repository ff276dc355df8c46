"""What writers and readers of files share: comments at the top and above rows, and the rows of a
series in order."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.core.text import format_count, format_size, plain_line
from collbench.core.version import __version__
from collbench.features.advise.formats import MARK
from collbench.features.advise.libraries.unordered import describe_unordered
from collbench.features.advise.types import Advice, Advised

WIDTH = 96  # of comments; readers take lines of up to 255 bytes
MAX_PATH = 120  # so that commands fit as well
MAX_HOSTS = 8  # that are named


def describe_row(row: Advice, day: str) -> str:
    """One line for the comment above a row: sizes, setting, gain with its interval, launches and
    day."""
    gain, lo, hi = row.gain
    if not all(each.launches for each in row.gains):
        return plain_line(f"{_describe_place(row)}, proposed from short launches, not verified")
    return plain_line(
        f"{_describe_place(row)}, {gain:.1%} less time [{lo:.1%}, {hi:.1%}],"
        f" {_describe_launches(row, day)}"
    )


def write_head(
    advised: Advised,
    title: str,
    commands: Sequence[str] = (),
    warnings: Sequence[str] = (),
    sign: str = "#",
) -> list[str]:
    """The comments at the top of a file: what it is and what made it, where and how it was
    measured, how a job uses it, what else to know. ``commands`` are lines for a shell, ``warnings``
    what users of this kind of file must know first."""
    lines = comment(_describe_origin(advised, title), sign)
    if not advised.rows:
        nothing = (
            "Nothing could be decided: no row"
            if advised.is_undecided
            else "No setting is surely faster than the library's own choice: no row"
        )
        return [*lines, *comment([f"{nothing}, this file changes nothing.", *advised.notes], sign)]
    unordered = describe_unordered(advised)
    lines += comment([*filter(None, [unordered]), *warnings], sign)
    if commands:
        lines += comment(["To use it, in the shell or the script that starts the job:"], sign)
        lines += [f"{sign}   {command}" for command in commands]
        lines += comment([_describe_reach(commands)], sign)
    if _adds_otherwise(advised):
        lines += comment(
            ["Results may differ in the last bits from those of the library's own choice."], sign
        )
    return [*lines, *comment((note for note in advised.notes if note != unordered), sign)]


def comment(sentences: Iterable[str], sign: str = "#") -> list[str]:
    """Lines of comments, each short and in ASCII, whatever the sentences hold. None begins with a
    blank after the sign, as commands do."""
    lines = []
    for sentence in sentences:
        text = plain_line(sentence).encode("ascii", "replace").decode()
        lines += textwrap.wrap(" ".join(text.split()), WIDTH - len(sign) - 1)
    return [f"{sign} {line}" for line in lines]


def format_path(path: Path | None, companion: str = "") -> str:
    """The name of a file in a command of a comment: FILE where it is not known, or no line in ASCII
    could hold it."""
    text = str(path) if path else ""
    fits = text and text.isascii() and text.isprintable() and len(text) <= MAX_PATH
    if not fits or "*/" in text:
        return "FILE" + companion
    return shlex.quote(text + companion)


def _describe_origin(advised: Advised, title: str) -> Iterator[str]:
    yield f"{MARK} {__version__}: {title}"
    if advised.command:
        yield f"made by: {advised.command}"
    where = [advised.version or "an unknown version", *_describe_worlds(advised)]
    where += [f"hosts {', '.join(advised.hosts[:MAX_HOSTS])}"] if advised.hosts else []
    if len(advised.hosts) > MAX_HOSTS:
        where[-1] += f" and {len(advised.hosts) - MAX_HOSTS} more"
    where += [each for each in (advised.forms, advised.device) if each]
    yield f"measured with {'; '.join(where)}"
    if advised.runs:
        yield f"runs, the last of {advised.day}: {', '.join(advised.runs)}"
    least, most = (f"{100 * tau:.2g}%" for tau in advised.taus)
    counts = [f"a gain counts from {least if least == most else f'{least} to {most}, by row'}"]
    if advised.is_same_order:
        counts.append("only settings that keep the order of summation")
    yield "; ".join(counts)


def _describe_worlds(advised: Advised) -> list[str]:
    """Ranks and hosts that were measured: "2 and 4 ranks on 1 host"."""
    series = [row.series for row in advised.rows] + [each.cell.series for each in advised.unadvised]
    ranks: dict[int, set[int]] = {}
    for each in series:
        ranks.setdefault(each.nodes, set()).add(each.n)
    worlds = []
    for nodes, numbers in sorted(ranks.items()):
        ascending = sorted(numbers)
        head = ", ".join(map(str, ascending[:-1]))
        n = f"{head} and {ascending[-1]} ranks" if head else format_count(ascending[0], "rank")
        worlds.append(f"{n} on {format_count(nodes, 'host')}")
    return worlds


def _describe_reach(commands: Sequence[str]) -> str:
    """Who must see the file."""
    if any(command.startswith("source") for command in commands):
        return (
            "All ranks need these variables, on every host. Without them the library chooses as"
            " before."
        )
    return (
        "On several hosts the file must be at this place on each, the same: ranks that differ in"
        " their rules may hang. Without the variables the library chooses as before."
    )


def _adds_otherwise(advised: Advised) -> bool:
    """Whether a row may add in another order than the default; two ranks have but one."""
    reducing = any(
        COLLECTIVES[row.series.collective].reduces and row.series.n > 2 for row in advised.rows
    )
    return reducing and not advised.is_same_order


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


def refuse_shared(rows: Sequence[Advice]) -> str:
    """Why rows can be in no file by sizes: two of a series overlap, or settings are collbench's own
    algorithms, or two rows are of as many ranks on different numbers of hosts."""
    for row in rows:
        if row.setting.algorithm != "native":
            return f"{row.name} is an algorithm of collbench's own, which the library cannot run"
    for before, after in pairwise(sorted(rows, key=lambda row: (*row.series, row.low))):
        if before.series == after.series and after.low <= before.high:
            return f"rows of {before.series.collective} overlap at {after.low} bytes"
    places: dict[tuple[str, int], int] = {}
    for row in rows:
        key = row.series.collective, row.series.n
        if places.setdefault(key, row.series.nodes) != row.series.nodes:
            return (
                f"the file cannot tell hosts apart, and {key[0]} has rows for several host counts"
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
