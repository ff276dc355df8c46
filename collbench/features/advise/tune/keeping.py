"""What a verification leaves of an advice: sizes that fresh launches confirm, at two neighbouring
measured sizes at least, and a sentence for each that goes.

A size stays where its verdict is IMPROVED by the second stage of the experiment: launches other
than those that raised the suspicion, faster by more than what matters, at Bonferroni's level over
all rows of that stage. Holm's method rejects whatever Bonferroni's does, so that the chance of any
wrong row in a file is at most 5 % by either; no second adjustment is due.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from collbench.core.text import format_size
from collbench.features.advise.judgement import adjust_by_holm
from collbench.features.advise.types import Advice, Cell, Gain, Series
from collbench.features.compare.verdict import SPARED, Judged
from collbench.records.choice import describe_adding, describe_heard
from collbench.records.flags import OVERSUBSCRIBED
from collbench.records.types import Choice
from collbench.suite.case import Case

Kind = Literal["slower", "not held", "undecided", "no effect", "alone"]

Choices = Mapping[Cell, tuple[Choice | None, Choice | None]]  # of base and of head, as heard


class Removed(NamedTuple):
    """A size that a verification takes out of an advice, and why. ``slower``: the file, not the
    setting alone, made something surely slower, which goes with all of its row. ``decided``: fresh
    launches sufficed for an answer."""

    cell: Cell
    name: str  # of the setting
    kind: Kind
    why: str  # without the size: "did not hold: -1.2 % [-4, +2]"
    decided: bool
    gain: Gain | None = None

    @property
    def sentence(self) -> str:
        """All of it, as "all_reduce, 2 ranks, ring at 64 KiB: did not hold: -1.2 % [-4, +2]"."""
        series, nbytes = self.cell
        return (
            f"{series.collective}, {series.n} ranks, {self.name} at {format_size(nbytes)}:"
            f" {self.why}"
        )


def find_case_cell(case: Case, nodes: int = 1) -> Cell:
    """The cell of a case on so many hosts."""
    return Cell(Series(case.collective, case.n, nodes), case.nbytes)


def choose_worst(rows: Sequence[Judged], nodes: int = 1) -> dict[Cell, Judged]:
    """The row of each cell; where it was measured in several forms (datatypes, in place), the one
    in which the file does worst, as what holds must hold in all."""
    order = {"IMPROVED": 2, "REGRESSED": 0}
    by_cell: dict[Cell, Judged] = {}
    for row in sorted(rows, key=lambda row: (order.get(row.verdict, 1), -(row.delta or 0.0))):
        by_cell.setdefault(find_case_cell(row.case, nodes), row)
    return by_cell


def measure_gains(rows: Sequence[Judged], nodes: int = 1) -> dict[Cell, Gain]:
    """What head saves in each cell whose change has an interval, in its worst form. The p of rows
    of the second stage are adjusted by Holm over all of these."""
    tested = [row for row in rows if row.stage == 2 and row.p is not None]
    adjusted = adjust_by_holm([row.p or 0.0 for row in tested])
    p_by_key = dict(zip([row.key for row in tested], adjusted, strict=True))
    return {
        cell: Gain(
            nbytes=cell.nbytes,
            gain=-(row.delta or 0.0),
            lo=-row.hi,
            hi=-row.lo,
            p=p_by_key.get(row.key, 1.0 if row.p is None else row.p),
            launches=row.pairs,
            is_paired=True,
            default=row.base.median,
            setting=row.head.median,
        )
        for cell, row in choose_worst(rows, nodes).items()
        if row.base and row.head and row.lo is not None and row.hi is not None
    }


def is_trusted(row: Judged, despite_oversubscription: bool = False) -> bool:
    """Whether flags of the launches leave the row its verdict; ``despite_oversubscription`` counts
    that of shared cores for nothing, as a user asked."""
    if not row.spared:
        return True
    doubts, _, rest = row.spared.partition(f": {SPARED}")
    return despite_oversubscription and doubts == OVERSUBSCRIBED and not rest


def has_slowed(row: Judged) -> bool:
    """Whether fresh launches show the row to be surely slower with the file, flags or not."""
    return row.verdict == "REGRESSED" and row.stage == 2


def describe_failing(row: Judged | None, choices: tuple[Choice | None, Choice | None]) -> Removed:
    """Why a row without the verdict IMPROVED goes; its cell and name are yet to be filled in."""
    cell, name = Cell(Series("", 0, 0), 0), ""
    if row is None or row.delta is None:
        reason = row.why if row and row.why else "no fresh launch measured it"
        return Removed(cell, name, "undecided", f"not verified: {reason}", False)
    interval = ""
    if row.lo is not None and row.hi is not None:
        interval = f" [{-100 * row.hi:+.0f}, {-100 * row.lo:+.0f}]"
    figures = f"{-100 * row.delta:+.1f} %{interval}"
    if row.verdict != "IMPROVED" and (same := describe_sameness(*choices)):
        return Removed(cell, name, "no effect", f"had no effect: {same}: {figures}", True)
    if row.verdict == "SUSPECT" and row.delta < 0:
        return Removed(cell, name, "undecided", f"not confirmed: {figures}", False)
    if row.verdict == "IMPROVED":  # of launches with flags that leave no verdict
        return Removed(cell, name, "undecided", f"not verified: {row.spared or row.why}", False)
    if row.verdict not in ("SAME", "SMALL", "REGRESSED"):
        return Removed(cell, name, "undecided", f"launches scatter too much: {figures}", False)
    return Removed(cell, name, "not held", f"did not hold: {figures}", True)


def describe_sameness(base: Choice | None, head: Choice | None) -> str:
    """By what the library showed that the file changed nothing: empty where it changed something,
    and where that is not known."""
    if (heard := describe_heard(head)) and heard == describe_heard(base):
        return f"{heard} ran as before"
    if base and head and base.adds_as and base.adds_as == head.adds_as:
        return f"adds as before ({describe_adding(head)})"
    return ""


def find_break(below: int, above: int) -> int:
    """The last byte that goes with ``below``, where settings change between two measured sizes."""
    return math.isqrt(below * above)


def split_row(
    row: Advice, gains: Mapping[int, Gain], sizes: Sequence[int], day: str
) -> list[Advice]:
    """What is left of a row with fresh ``gains`` of the sizes that hold: a row for each stretch of
    two or more neighbouring ``sizes``, which are all that were measured, ascending."""
    held = [size in gains and row.low <= size <= row.high for size in sizes]
    stretches = []
    for holds, group in itertools.groupby(range(len(sizes)), key=held.__getitem__):
        indices = list(group)
        if holds and len(indices) > 1:
            stretches.append((indices[0], indices[-1]))
    covered = [index for index, size in enumerate(sizes) if row.low <= size <= row.high]
    return [
        msgspec.structs.replace(
            row,
            low=row.low if first == covered[0] else find_break(*sizes[first - 1 : first + 1]) + 1,
            high=row.high if last == covered[-1] else find_break(*sizes[last : last + 2]),
            below=row.below if first == covered[0] else None,
            above=row.above if last == covered[-1] else None,
            gains=tuple(gains[size] for size in sizes[first : last + 1]),
            default_rans=select_choices(row, row.default_rans, sizes[first : last + 1]),
            rans=select_choices(row, row.rans, sizes[first : last + 1]),
            verified=day,
        )
        for first, last in stretches
    ]


def select_choices(
    row: Advice, choices: Sequence[Choice | None], sizes: Sequence[int]
) -> tuple[Choice | None, ...]:
    """Of the choices for each of the row's gains those at these sizes; empty where all are
    unknown."""
    by_size = dict(zip((gain.nbytes for gain in row.gains), choices, strict=False))
    selected = tuple(by_size.get(size) for size in sizes)
    return selected if any(selected) else ()


def add_choices(row: Advice, choices: Choices) -> Advice:
    """The row with what fresh launches heard of the library's choice on both sides, where they
    heard anything."""
    pairs = [choices.get(Cell(row.series, gain.nbytes), (None, None)) for gain in row.gains]
    sides = []
    for index, known in ((0, row.default_rans), (1, row.rans)):
        heard = [pair[index] if _is_heard(pair[index]) else None for pair in pairs]
        before = known or (None,) * len(pairs)
        both = tuple(new or old for new, old in zip(heard, before, strict=True))
        sides.append(both if any(both) else ())
    return msgspec.structs.replace(
        row,
        default_rans=sides[0],
        rans=sides[1],
        default_ran=next(filter(None, sides[0]), row.default_ran),
        ran=next(filter(None, sides[1]), row.ran),
    )


def _is_heard(choice: Choice | None) -> bool:
    return bool(choice and choice.is_heard)


class Kept(NamedTuple):
    """What is left of an advice, and what went, surely slower ones first."""

    rows: tuple[Advice, ...]
    removed: tuple[Removed, ...]


def keep_confirmed(
    rows: Sequence[Advice],
    judged: Mapping[Cell, Judged],
    gains: Mapping[Cell, Gain],
    sizes_by_series: Mapping[Series, Sequence[int]],
    choices: Choices,
    day: str,
    despite_oversubscription: bool = False,
    is_everywhere: bool = False,
) -> Kept:
    """The rows with what fresh launches measured, without the sizes that they did not confirm.
    ``judged`` has sizes next to those of the rows, too, which the file must not slow down; where
    the setting ``is_everywhere``, not only in its rows, it must slow down no size of the
    series."""
    kept: list[Advice] = []
    removed: list[Removed] = []
    slowed = {cell: judge for cell, judge in judged.items() if has_slowed(judge)}
    for row in rows:
        sizes = sizes_by_series[row.series]
        covered = [size for size in sizes if row.low <= size <= row.high]
        harmed = _find_harm(row, sizes, slowed, is_everywhere)
        if harmed:
            removed += [_remove_harmful(row, size, harmed, gains) for size in covered]
            continue
        held: dict[int, Gain] = {}
        for size in covered:
            cell = Cell(row.series, size)
            judge = judged.get(cell)
            trusted = judge and is_trusted(judge, despite_oversubscription)
            if judge and trusted and judge.verdict == "IMPROVED" and judge.stage == 2:
                held[size] = gains[cell]
            else:
                failing = describe_failing(judge, choices.get(cell, (None, None)))
                removed.append(failing._replace(cell=cell, name=row.name, gain=gains.get(cell)))
        stretches = [add_choices(part, choices) for part in split_row(row, held, sizes, day)]
        kept += stretches
        written = {gain.nbytes for stretch in stretches for gain in stretch.gains}
        for size in held.keys() - written:
            why = "holds, but at no neighbouring size"
            cell = Cell(row.series, size)
            removed.append(Removed(cell, row.name, "alone", why, True, gains[cell]))
    removed.sort(key=lambda each: (each.kind != "slower", each.cell))
    return Kept(tuple(kept), tuple(removed))


def _find_harm(
    row: Advice, sizes: Sequence[int], slowed: Mapping[Cell, Judged], is_everywhere: bool
) -> str:
    """Where the file with this row is surely slower: in the row, or at a size next to it, or at any
    of the series. Empty where nowhere."""
    covered = [index for index, size in enumerate(sizes) if row.low <= size <= row.high]
    near = sizes[max(0, covered[0] - 1) : covered[-1] + 2] if covered else ()
    worst = [
        (judge.delta or 0.0, size)
        for size in (sizes if is_everywhere else near)
        if (judge := slowed.get(Cell(row.series, size)))
    ]
    if not worst:
        return ""
    delta, size = max(worst)
    return f"{format_size(size)} {100 * delta:+.1f} % time"


def _remove_harmful(row: Advice, size: int, harmed: str, gains: Mapping[Cell, Gain]) -> Removed:
    cell = Cell(row.series, size)
    why = f"is surely slower with the file: {harmed}"
    return Removed(cell, row.name, "slower", why, True, gains.get(cell))
