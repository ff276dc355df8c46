"""Files that have to name a setting for every size: after a verification, the sizes at which it is
no faster, but evidently as fast as the library's own choice, are filled by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collbench.core.text import format_size
from collbench.features.advise.fills import is_as_fast
from collbench.features.advise.tune.keeping import (
    Findings,
    Kept,
    Removed,
    Terms,
    is_trusted,
    sort_removed,
)
from collbench.features.advise.types import Advice, Cell, Gain, Series, Setting

NAMED = 4  # sizes that a sentence names


class Covered(NamedTuple):
    """Rows and what went, and by cell what fills a size: setting, its name and what it saves."""

    kept: Kept
    fills: dict[Cell, tuple[Setting, str, Gain]]


def cover_sizes(rows: Sequence[Advice], kept: Kept, found: Findings, terms: Terms) -> Covered:
    """The rows of those series in which the setting of every size is faster, or as fast. ``rows``
    were verified, and have a setting for every size."""
    fills: dict[Cell, tuple[Setting, str, Gain]] = {}
    gone: list[Removed] = []
    for series in sorted({row.series for row in kept.rows}):
        own = [row for row in kept.rows if row.series == series]
        open_sizes, chosen = _fill_series(series, rows, own, found, terms)
        if open_sizes:
            gone += _remove_rows(own, open_sizes)
        else:
            fills |= chosen
    lost = {each.cell.series for each in gone}
    removed = [each for each in kept.removed if each.cell not in fills]
    remaining = tuple(row for row in kept.rows if row.series not in lost)
    return Covered(Kept(remaining, tuple(sort_removed([*removed, *gone]))), fills)


def _fill_series(
    series: Series, rows: Sequence[Advice], own: Sequence[Advice], found: Findings, terms: Terms
) -> tuple[list[int], dict[Cell, tuple[Setting, str, Gain]]]:
    """The sizes for which there is nothing as fast, and what fills the others."""
    held = {gain.nbytes for row in own for gain in row.gains}
    against: list[int] = []
    chosen: dict[Cell, tuple[Setting, str, Gain]] = {}
    for size in found.sizes[series]:
        if size in held:
            continue
        cell = Cell(series, size)
        row = next((r for r in rows if r.series == series and r.low <= size <= r.high), None)
        judge, gain = found.judged.get(cell), found.gains.get(cell)
        is_fast = (
            judge is not None
            and gain is not None
            and is_as_fast(gain, judge.tau)
            and is_trusted(judge, terms.despite_oversubscription)
        )
        if row is None or not is_fast or gain is None:
            against.append(size)
        else:
            chosen[cell] = (row.setting, row.name, gain)
    return against, chosen


def _remove_rows(rows: Sequence[Advice], against: Sequence[int]) -> list[Removed]:
    names = ", ".join(map(format_size, against[:NAMED]))
    more = f" and {len(against) - NAMED} more sizes" if len(against) > NAMED else ""
    why = (
        "is faster, but the file has to name a setting for every size, and none is known to be as"
        f" fast as the library's own choice at {names}{more}"
    )
    return [
        Removed(Cell(row.series, gain.nbytes), row.name, "uncovered", why, True, gain)
        for row in rows
        for gain in row.gains
    ]
