"""What `collbench tune` says in the end: the answer, how to use the file, the rows, what went, and
where the runs are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collbench.core.text import format_count, format_size, plain_line
from collbench.features.advise.tune.confirm import Verified
from collbench.features.advise.tune.request import TuneRequest
from collbench.features.advise.tune.screen import Screening
from collbench.features.advise.types import Advised
from collbench.show import terminal
from collbench.show.document import Line, Table, make_columns


def describe_answer(verified: Verified, default: str) -> str:
    """The first sentence: what is surely faster, or that nothing is, or that nothing was
    decided."""
    rows = verified.advised.rows
    if rows:
        gains = [gain.gain for row in rows for gain in row.gains]
        least, most = 100 * min(gains), 100 * max(gains)
        sizes = format_count(len(gains), "size")
        return (
            f"{format_count(len(rows), 'row')} of settings, at {sizes}, surely faster than"
            f" {default}: {least:.0f} to {most:.0f} % less time."
        )
    if verified.code == 3:
        return f"Nothing could be decided: {_describe_undecided(verified)}."
    return f"Nothing is surely faster than {default}."


def _describe_undecided(verified: Verified) -> str:
    reasons = [each.why for each in verified.removed] or ["nothing was measured"]
    return reasons[0] if len(reasons) == 1 else f"{reasons[0]} (and {len(reasons) - 1} others)"


def describe_use(request: TuneRequest, advised: Advised, path: Path) -> str:
    """How a job comes by the file."""
    used = request.format.use(path.absolute())
    if not advised.rows:
        return f"{path} changes nothing; it says so."
    if not used:
        return f"Read {path}: it says what to set, and where that holds."
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in used.items())
    return f"To use it: export {words}"


def make_table(advised: Advised) -> Table:
    """The rows with the least gain of each."""
    heads = ("collective", "ranks", "from", "to", "setting", "less time", "95 %", "launches")
    lines = []
    for row in advised.rows:
        gain, lo, hi = (100 * value for value in row.gain)
        lines.append(
            Line(
                (
                    row.series.collective,
                    str(row.series.n),
                    format_size(row.gains[0].nbytes),
                    format_size(row.gains[-1].nbytes),
                    plain_line(row.name),
                    f"{gain:.1f} %",
                    f"{lo:.1f} to {hi:.1f}",
                    str(min(each.launches for each in row.gains)),
                )
            )
        )
    return Table(columns=make_columns(heads), lines=lines)


def list_removed(verified: Verified) -> list[str]:
    """A sentence for each size that was proposed and went, those that the file slowed first."""
    return [plain_line(each.sentence) for each in verified.removed]


def tell_result(
    request: TuneRequest,
    screening: Screening,
    verified: Verified,
    write: Path,
    job: Any,
    out: Sequence[Path],
) -> None:
    """Print all of it, and write the reports."""
    blocks: list[Any] = [describe_answer(verified, request.default_name)]
    slower = [each.sentence for each in verified.removed if each.kind == "slower"]
    blocks += [plain_line(sentence) for sentence in slower]
    blocks.append(describe_use(request, verified.advised, write))
    if job is not None:
        from collbench.features.advise import worth

        blocks += worth.describe_worth(worth.value_advice(verified.advised, job))
    if verified.advised.rows:
        blocks += ["", make_table(verified.advised)]
    others = [each for each in list_removed(verified) if each not in slower]
    if others:
        blocks += ["", "Proposed by short launches, and not advised:", *others]
    notes = [plain_line(note) for note in verified.advised.notes]
    blocks += notes
    runs = ", ".join(str(path) for path in verified.paths)
    blocks += ["", f"verified by {runs}" if runs else "nothing was verified"]
    blocks.append(f"searched by {', '.join(screening.runs)}")
    terminal.print_blocks(*blocks)
