"""A machine's nights as a whole: what changed when, what began a new segment, what creeps away from
its anchor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from collbench.features.health.history.gates import RECENT, Creep, find_creep
from collbench.features.health.history.levels import TAU
from collbench.features.health.history.nights import Series, first_level
from collbench.features.health.history.shifts import Shift, find_shifts
from collbench.features.health.history.ways import split_ways
from collbench.records import stats


class Beginning(NamedTuple):
    """A new segment of so many ``rows``: the night, and why."""

    day: str
    why: str
    rows: int


class Outlook(NamedTuple):
    """``series`` are the rows, ``days`` all their nights; changes were looked for from ``tau``, the
    least of all rows. ``creeping`` rows are beyond their anchor without a change that stands and
    says so."""

    machine: str
    tau: float
    series: Sequence[Series]
    days: Sequence[str]
    shifts: Sequence[Shift]
    beginnings: Sequence[Beginning]
    creeping: Mapping[str, Creep]

    @property
    def most_nights(self) -> int:
        """The nights that may be judged of the row that has most."""
        return max(
            (sum(night.valid for night in series.nights) for series in self.series), default=0
        )

    @property
    def ways(self) -> dict[str, list[Series]]:
        """The rows of each way, by its words, where rows were measured in several by turns."""
        rows: dict[str, list[Series]] = {}
        for row in self.series:
            if row.way:
                rows.setdefault(row.way, []).append(row)
        return rows

    @property
    def changed(self) -> list[Shift]:
        """Changes on which neighbours agree."""
        return [shift for shift in self.shifts if shift.agreed]


def make_outlook(
    machine: str,
    series: Sequence[Series],
    tau: float = TAU,
    taus: Mapping[str, float] = {},
) -> Outlook:
    """``taus`` are the smallest changes that matter of rows by key, in place of ``tau``. Neighbours
    need not have the same: of theirs the median holds. Of a row that was measured in several ways,
    each is held against its own last reviewed level."""
    series = [way for row in series for way in split_ways(row)]
    taus_by_key = {row.key: taus.get(row.key, tau) for row in series}
    tau = min(taus_by_key.values(), default=tau)
    shifts = [
        shift
        for shift in find_shifts(series, tau)
        if abs(shift.delta) >= stats.median([taus_by_key[row.key] for row in shift.rows])
    ]
    explained = {
        row.name for shift in shifts if shift.agreed and shift.delta > 0 for row in shift.stands
    }
    drifts = {
        row.name: _find_creep(row, taus_by_key[row.key])
        for row in series
        if row.name not in explained and not row.ended
    }
    begun = Counter((part.nights[0].day, part.why) for row in series for part in row.beginnings)
    return Outlook(
        machine=machine,
        tau=tau,
        series=series,
        shifts=shifts,
        days=sorted({night.day for row in series for night in row.nights}),
        beginnings=[Beginning(day, why, rows) for (day, why), rows in sorted(begun.items())],
        creeping={name: drift for name, drift in drifts.items() if drift.found},
    )


def _find_creep(series: Series, tau: float) -> Creep:
    """Against the level that was reviewed last, and, where the last segment began since or there is
    none, against that with which this began: the greater of both."""
    if not series.segments:
        return Creep(False, 0.0, 0)
    last, review = series.segments[-1], series.reviews[-1] if series.reviews else None
    levels = [review.level] if review else []
    if review is None or review.night.day < last.nights[0].day:
        level = first_level(last)
        levels += [] if level is None else [level]
    values = [night.value for night in last.valid]
    creeps = [find_creep(values, level, tau) for level in levels]
    return max(creeps, key=lambda creep: (creep.found, creep.delta), default=Creep(False, 0.0, 0))


def relative_times(series: Series) -> list[float]:
    """Each night's time over the median of the first RECENT valid ones, or of all nights where none
    is valid."""
    first = [night.value for night in series.nights if night.valid] or [
        night.value for night in series.nights
    ]
    level = stats.median(first[:RECENT])
    return [math.exp(night.value - level) for night in series.nights]
