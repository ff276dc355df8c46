"""Changes of level on which neighbouring rows agree: the alarm rule that keeps change points from
crying wolf."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from collbench.features.health.history.levels import TAU, Change, find_changes
from collbench.features.health.history.nights import Series
from collbench.records import stats
from collbench.suite.case import Case

APART = 2  # nights by which neighbours that saw the same change may differ


class Turn(NamedTuple):
    """A change of one row: ``day`` is the first night after it, ``position`` the number of that
    night among all nights of the series given, ``standing`` whether the level and the last night
    still are what the change made them, to half its size, and the change did not itself bring back
    the level of before. It is ``over``, and stands no more, where a new segment began since.
    """

    series: Series
    day: str
    position: int
    change: Change
    standing: bool
    over: bool


class Shift(NamedTuple):
    """A change that ``rows`` saw: neighbours where ``agreed``, else one alone, which is no
    reason for alarm. ``delta`` is the median of theirs, ``p`` the largest; it stands in the rows
    ``stands``, and is ``over`` where each row began a new segment since, or
    is measured in that way no more."""

    day: str
    delta: float
    p: float
    rows: tuple[Series, ...]
    stands: tuple[Series, ...]
    over: bool
    agreed: bool

    @property
    def standing(self) -> bool:
        """Whether any row has kept the new level since."""
        return bool(self.stands)

    @property
    def collective(self) -> str:
        """The collective of all its rows."""
        return self.rows[0].case.collective

    @property
    def sizes(self) -> list[int]:
        """Bytes of its rows."""
        return [row.case.size for row in self.rows]


def find_shifts(series: Sequence[Series], tau: float = TAU) -> list[Shift]:
    """Every change of level by ``tau``, oldest first. Rows that differ only in size are neighbours
    if no size lies between them, and so is a whole step of training to its computation and to its
    communication; rows without a neighbour agree with nobody."""
    days = sorted({night.day for row in series for night in row.nights})
    lines: dict[tuple[str, str, Case], list[Series]] = {}
    for row in series:
        lines.setdefault((row.machine, row.way, _strip_size(row.case)), []).append(row)
    shifts = []
    for line in lines.values():
        rows = sorted(line, key=_size_order)
        shifts += [
            _make_shift(chain)
            for chain in _chain_turns([list(find_turns(row, days, tau)) for row in rows])
        ]
    return sorted(shifts, key=lambda shift: (shift.day, not shift.agreed))


def _strip_size(case: Case) -> Case:
    """The case without its size, by which rows that differ only in size are found; for rows that
    are measured together it is that of their leader."""
    like = case.leader if case.table.together else case
    return msgspec.structs.replace(like, nbytes=0, align=1)


def _size_order(series: Series) -> tuple[int, int]:
    """A key that sorts rows by size; of rows that are measured together, it puts the leader between
    the others."""
    case = series.case
    return (case.index + 1) % len(case.table.rows) if case.table.together else 0, case.nbytes


def find_turns(series: Series, days: Sequence[str], tau: float) -> Iterator[Turn]:
    """The changes within each segment of a row, by its valid nights."""
    for segment in series.segments:
        nights, over = segment.valid, series.ended or segment is not series.segments[-1]
        values = [night.value for night in nights]
        changes = find_changes(values, tau)
        ends = [0, *(change.position for change in changes), len(values)]
        levels = [sum(values[a:b]) / (b - a) for a, b in pairwise(ends) if b > a]
        for number, change in enumerate(changes):
            day, grown = nights[change.position].day, math.log1p(change.delta)
            undoes = number > 0 and abs(levels[number + 1] - levels[number - 1]) < 0.5 * abs(grown)
            now = [(value - levels[number]) / grown for value in (levels[-1], values[-1])]
            standing = not (over or undoes) and min(now) > 0.5
            yield Turn(series, day, bisect_left(days, day), change, standing, over)


def _chain_turns(rows: Sequence[Sequence[Turn]]) -> Iterator[list[Turn]]:
    """Turns of neighbouring ``rows`` that agree in time and direction, as chains; each turn is in
    one."""
    open_: list[list[Turn]] = []
    for row in rows:
        extended = []
        turns = list(row)
        for chain in open_:
            match = min(
                (turn for turn in turns if _turns_agree(chain[-1], turn)),
                default=None,
                key=lambda turn: turn.position,
            )
            if match is None:
                yield chain
            else:
                turns.remove(match)
                extended.append([*chain, match])
        open_ = [*extended, *([turn] for turn in turns)]
    yield from open_


def _turns_agree(a: Turn, b: Turn) -> bool:
    return abs(a.position - b.position) <= APART and (a.change.delta > 0) == (b.change.delta > 0)


def _make_shift(chain: Sequence[Turn]) -> Shift:
    """Named by the night in the middle of those that its rows name, the earlier of two."""
    middle = sorted(turn.position for turn in chain)[(len(chain) - 1) // 2]
    return Shift(
        day=next(turn.day for turn in chain if turn.position == middle),
        delta=stats.median([turn.change.delta for turn in chain]),
        p=max(turn.change.p for turn in chain),
        rows=tuple(turn.series for turn in chain),
        agreed=len(chain) > 1,
        stands=tuple(turn.series for turn in chain if turn.standing),
        over=all(turn.over for turn in chain),
    )
