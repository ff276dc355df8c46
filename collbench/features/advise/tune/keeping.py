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
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from collbench.core.text import format_size
from collbench.features.advise.judgement import ALPHA
from collbench.features.advise.types import Advice, Cell, Gain, Series
from collbench.features.compare.verdict import SPARED, Judged
from collbench.records import stats
from collbench.records.choice import describe_adding, describe_heard
from collbench.records.flags import OVERSUBSCRIBED
from collbench.records.types import Choice
from collbench.suite.case import Case

Kind = Literal[
    "wrong", "failed", "slower", "not held", "undecided", "no effect", "alone", "uncovered"
]
WORST: tuple[Kind, ...] = ("wrong", "failed", "slower")  # which are told first, in this order

NAMED = 3  # settings that a sentence names

Choices = Mapping[Cell, tuple[Choice | None, Choice | None]]  # of base and of head, as heard


class Fault(NamedTuple):
    """What went wrong with the file at a size: wrong data, or a call that failed."""

    kind: Literal["wrong", "failed"]
    why: str  # "5 of 16 elements are wrong"


class Removed(NamedTuple):
    """A size that a verification takes out of an advice, and why. ``wrong`` and ``failed``: so did
    a call with the file, which bars its setting from the whole series. ``slower``: the file, not
    the setting alone, made something surely slower, which goes with all of its row. ``decided``:
    fresh launches sufficed for an answer."""

    cell: Cell
    name: str  # of the setting
    kind: Kind
    why: str  # without the size: "did not hold: 1.2 % less time [-2, 4]"
    decided: bool
    gain: Gain | None = None

    @property
    def sentence(self) -> str:
        """All of it: "all_reduce, 2 ranks, ring at 64 KiB: did not hold: 1.2 % less time
        [-2, 4]"."""
        series, nbytes = self.cell
        return (
            f"{series.collective}, {series.n} ranks, {self.name} at {format_size(nbytes)}:"
            f" {self.why}"
        )

    @property
    def reason(self) -> str:
        """Why, without figures of this size alone."""
        return self.why.partition(": ")[0] if self.kind in ("not held", "undecided") else self.why


def sort_removed(removed: Iterable[Removed]) -> list[Removed]:
    """Wrong data first, then calls that failed, then what is slower."""
    ranks = {kind: rank for rank, kind in enumerate(WORST)}
    return sorted(removed, key=lambda each: (ranks.get(each.kind, len(ranks)), each.cell))


def describe_removed(removed: Iterable[Removed]) -> list[str]:
    """A sentence for each reason: sizes of a series that went for the same one are told together,
    by setting where figures differ."""
    by_why: dict[tuple[Series, Kind, str], list[Removed]] = {}
    for each in sort_removed(removed):
        by_why.setdefault((each.cell.series, each.kind, each.why), []).append(each)
    groups: dict[tuple[Series, Kind, str, str], list[Removed]] = {}
    for (series, kind, why), members in by_why.items():
        is_shared = len({each.name for each in members}) > 1
        for each in members:
            key = (series, kind, "", why) if is_shared else (series, kind, each.name, each.reason)
            groups.setdefault(key, []).append(each)
    return [_describe_group(group) for group in groups.values()]


def _describe_group(group: Sequence[Removed]) -> str:
    if len(group) == 1:
        return group[0].sentence
    series, sizes = group[0].cell.series, sorted(each.cell.nbytes for each in group)
    names = list(dict.fromkeys(each.name for each in group))
    named = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" * (len(names) > NAMED))
    place = (
        f"{series.collective}, {series.n} ranks, {named} at {len(group)} sizes from"
        f" {format_size(sizes[0])} to {format_size(sizes[-1])}"
    )
    if len({each.why for each in group}) == 1:
        return f"{place}: {group[0].why}"
    best = max(group, key=lambda each: each.gain.gain if each.gain else -math.inf)
    figures = best.why.partition(": ")[2]
    return f"{place}: {group[0].reason}" + (f", at best {figures}" if figures else "")


Nodes = Mapping[int, int]  # the number of hosts, by that of ranks


def find_case_cell(case: Case, nodes: Nodes) -> Cell:
    """The cell of a case on so many hosts, by the bytes that its call sends."""
    return Cell(Series(case.collective, case.n, nodes.get(case.n, 1)), case.size)


def choose_worst(rows: Sequence[Judged], nodes: Nodes) -> dict[Cell, Judged]:
    """The row of each cell; where it was measured in several forms (datatypes, in place), the one
    in which the file does worst, as what holds must hold in all."""
    order = {"IMPROVED": 2, "REGRESSED": 0}
    by_cell: dict[Cell, Judged] = {}
    for row in sorted(rows, key=lambda row: (order.get(row.verdict, 1), -(row.delta or 0.0))):
        by_cell.setdefault(find_case_cell(row.case, nodes), row)
    return by_cell


def measure_gains(
    rows: Sequence[Judged], nodes: Nodes, heads: int = 1, despite_oversubscription: bool = False
) -> dict[Cell, Gain]:
    """The gain of head in each cell whose change has an interval, in its worst form, with the
    lowest end of all forms' intervals. The p of rows of the second stage are adjusted by Holm over
    all of these, and by Bonferroni over so many ``heads``."""
    most: dict[Cell, float] = {}  # more time that head may take, in any form
    for row in rows:
        if row.hi is not None:
            cell = find_case_cell(row.case, nodes)
            most[cell] = max(row.hi, most.get(cell, row.hi))
    tested = [row for row in rows if row.stage == 2 and row.p is not None]
    adjusted = stats.adjust_holm([row.p or 0.0 for row in tested])
    p_by_key = dict(zip([row.key for row in tested], adjusted, strict=True))
    return {
        cell: Gain(
            nbytes=cell.nbytes,
            gain=-(row.delta or 0.0),
            lo=-most[cell],
            hi=-row.lo,
            p=min(1.0, heads * p_by_key.get(row.key, 1.0 if row.p is None else row.p)),
            launches=row.pairs,
            is_paired=True,
            default=row.base.median,
            setting=row.head.median,
            doubt="" if is_trusted(row, despite_oversubscription) else row.spared,
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


def is_confirmed(row: Judged, despite_oversubscription: bool, tests: int = 0) -> bool:
    """Whether fresh launches show the row to be surely faster, and may be relied upon. ``tests``
    are all that were made where one experiment does not hold them all: the level is theirs."""
    is_sure = not tests or (row.p is not None and row.p * tests <= ALPHA)
    is_faster = row.verdict == "IMPROVED" and row.stage == 2
    return is_faster and is_sure and is_trusted(row, despite_oversubscription)


def describe_change(delta: float, lo: float | None = None, hi: float | None = None) -> str:
    """A change in time, with its interval in the same direction: 3.0 % less time [1, 5]."""
    sign, word = (-1, "less") if delta <= 0 else (1, "more")
    interval = ""
    if lo is not None and hi is not None:
        ends = sorted((100 * sign * lo, 100 * sign * hi))
        interval = f" [{_round(ends[0])}, {_round(ends[1])}]"
    return f"{100 * abs(delta):.1f} % {word} time{interval}"


def _round(percent: float) -> str:
    return f"{percent:.0f}".replace("-0", "0") if abs(percent) < 1 else f"{percent:.0f}"


NOWHERE = Cell(Series("", 0, 0), 0)


def describe_failing(
    row: Judged | None, choices: tuple[Choice | None, Choice | None], order_tells: bool = True
) -> Removed:
    """Why a row that is not confirmed goes; its cell and name are yet to be filled in.
    ``order_tells``: that both sides add alike shows that the setting had no effect."""
    if row is None or row.delta is None:
        reason = row.why if row and row.why else "no fresh launch measured it"
        return Removed(NOWHERE, "", "undecided", f"not verified: {reason}", False)
    figures = describe_change(row.delta, row.lo, row.hi)
    is_decided = row.verdict in ("SAME", "SMALL", "REGRESSED")
    same = describe_sameness(*choices, order_tells and is_decided)
    if row.verdict != "IMPROVED" and same:
        return Removed(NOWHERE, "", "no effect", f"had no effect: {same}", True)
    if row.verdict == "SUSPECT" and row.delta < 0:
        return Removed(NOWHERE, "", "undecided", f"not confirmed: {figures}", False)
    if row.verdict == "IMPROVED":  # of launches with flags, or not at the level of all tests
        doubt = row.spared or row.why
        why = f"not verified: {doubt}" if doubt else f"not confirmed: {figures}"
        return Removed(NOWHERE, "", "undecided", why, False)
    if not is_decided:
        return Removed(NOWHERE, "", "undecided", f"launches scatter too much: {figures}", False)
    return Removed(NOWHERE, "", "not held", f"did not hold: {figures}", True)


def describe_sameness(base: Choice | None, head: Choice | None, order_tells: bool) -> str:
    """By what the library showed that the file changed nothing: empty where it changed something,
    and where that is not known."""
    if (heard := describe_heard(head)) and heard == describe_heard(base):
        return f"the library logged {heard} as before"
    if order_tells and base and head and base.adds_as and base.adds_as == head.adds_as:
        return f"it added in the order of before ({describe_adding(head)})"
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
    """What is left of an advice, and what went, wrong data first."""

    rows: tuple[Advice, ...]
    removed: tuple[Removed, ...]


class Findings(NamedTuple):
    """What fresh launches found, by cell: the row in the form that does worst, gains, what the
    library showed of its choices, and faults with the file. ``sizes`` are all that count as
    neighbours, ascending."""

    judged: Mapping[Cell, Judged]
    gains: Mapping[Cell, Gain]
    sizes: Mapping[Series, Sequence[int]]
    choices: Choices
    faults: Mapping[Cell, Fault]


class Terms(NamedTuple):
    """How rows are kept. ``is_everywhere``: what the head sets holds for all sizes of a series, not
    in its rows alone. ``tests`` as of is_confirmed; ``is_same_order``: only settings that add as
    the default does were proposed, so that adding alike shows nothing."""

    day: str
    despite_oversubscription: bool = False
    is_everywhere: bool = False
    is_same_order: bool = False
    tests: int = 0


def keep_confirmed(rows: Sequence[Advice], found: Findings, terms: Terms) -> Kept:
    """The rows with what fresh launches measured, without the sizes that they did not confirm, and
    without rows whose setting computed wrong data, failed, or slowed something down."""
    kept: list[Advice] = []
    removed: list[Removed] = []
    for row in rows:
        covered = [size for size in found.sizes[row.series] if row.low <= size <= row.high]
        if harm := find_fault(row, rows, found) or _find_harm(row, rows, found, terms):
            cells = [Cell(row.series, size) for size in covered]
            removed += [
                Removed(cell, row.name, *harm, True, found.gains.get(cell)) for cell in cells
            ]
            continue
        parts, gone = _keep_row(row, covered, found, terms)
        kept += parts
        removed += gone
    return Kept(tuple(kept), tuple(sort_removed(removed)))


def _keep_row(
    row: Advice, covered: Sequence[int], found: Findings, terms: Terms
) -> tuple[list[Advice], list[Removed]]:
    """What is left of a row that does no harm, and what went of it."""
    held: dict[int, Gain] = {}
    removed: list[Removed] = []
    order_tells = row.series.n > 2 and not terms.is_same_order
    for size in covered:
        cell = Cell(row.series, size)
        judge = found.judged.get(cell)
        if judge and is_confirmed(judge, terms.despite_oversubscription, terms.tests):
            held[size] = found.gains[cell]
            continue
        failing = describe_failing(judge, found.choices.get(cell, (None, None)), order_tells)
        removed.append(failing._replace(cell=cell, name=row.name, gain=found.gains.get(cell)))
    parts = [
        add_choices(part, found.choices)
        for part in split_row(row, held, found.sizes[row.series], terms.day)
    ]
    written = {gain.nbytes for part in parts for gain in part.gains}
    for size in held.keys() - written:
        why = "holds, but at no neighbouring size (-f 2 measures closer ones)"
        cell = Cell(row.series, size)
        removed.append(Removed(cell, row.name, "alone", why, True, found.gains[cell]))
    return parts, removed


def find_fault(row: Advice, rows: Sequence[Advice], found: Findings) -> tuple[Kind, str] | None:
    """What bars a row's setting from its whole series: a fault at a size that this setting had by
    any row; or at a size that no row covers, where only the file can be to blame."""
    faults = []
    for cell, fault in found.faults.items():
        if cell.series != row.series:
            continue
        having = [
            other.setting
            for other in rows
            if other.series == cell.series and other.low <= cell.nbytes <= other.high
        ]
        if not having or row.setting in having:
            faults.append((fault.kind != "wrong", cell.nbytes, fault))
    if not faults:
        return None
    _, size, fault = min(faults)
    words = "gives wrong data" if fault.kind == "wrong" else "fails"
    return fault.kind, f"{words} with the file: {format_size(size)}: {fault.why}"


def _find_harm(
    row: Advice, rows: Sequence[Advice], found: Findings, terms: Terms
) -> tuple[Kind, str] | None:
    """Where the file with this row is surely slower: in the row, or at a size next to it; at any
    of the series where the setting holds for all of them, or no row is near."""
    sizes = found.sizes[row.series]
    own, every = (
        {size for each in some for size in list_near(each, sizes)}
        for some in ([row], [each for each in rows if each.series == row.series])
    )
    worst = [
        (judge.delta or 0.0, size)
        for size in sizes
        if terms.is_everywhere or size in own or size not in every
        if (judge := found.judged.get(Cell(row.series, size))) and has_slowed(judge)
    ]
    if not worst:
        return None
    delta, size = max(worst)
    return (
        "slower",
        f"is surely slower with the file: {format_size(size)}, {describe_change(delta)}",
    )


def list_near(row: Advice, sizes: Sequence[int]) -> Sequence[int]:
    """The sizes of a row and those next to it."""
    covered = [index for index, size in enumerate(sizes) if row.low <= size <= row.high]
    return sizes[max(0, covered[0] - 1) : covered[-1] + 2] if covered else ()
