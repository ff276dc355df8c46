"""Which rows of an experiment are worth another round: those that scatter too much for a verdict
yet, as far as the time goes.

Whether a row has had rounds enough is told by its scatter alone, never by the change that it shows:
who goes on until a difference looks right finds differences where there are none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from collbench.records import paired
from collbench.records.types import Record, RunFile

BUDGET = 300.0  # seconds after which no more rounds are begun than were asked for


AHEAD = 4  # rounds between two looks at what is worth while


HOPE = 1.5  # of the time that is left a row may seem to need, for what few rounds tell of scatter


class Judged(Protocol):
    """A row as it is judged so far."""

    @property
    def key(self) -> str: ...

    @property
    def tau(self) -> float: ...

    @property
    def verdict(self) -> str: ...


Judge = Callable[[RunFile, RunFile], Sequence[Judged]]


class Timed(NamedTuple):
    """A pair of launches of one row: the change in log time, and what both took in seconds."""

    key: str
    change: float
    seconds: float


def timed(key: str, base: Record | None, head: Record | None) -> Timed | None:
    """None where a side has no times."""
    if not (base and head and base.times_ns and head.times_ns):
        return None
    before, after = (float(np.median(r.times_ns)) / r.inner for r in (base, head))
    return Timed(key, math.log(max(after, 1) / max(before, 1)), base.seconds + head.seconds)


class Ledger:
    """Account of what rounds have told of every row so far, and cost."""

    def __init__(self) -> None:
        self._changes: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
        self._seconds: dict[str, float] = {}
        self._beside = 0.0  # of a pair of launches, beside its rows

    def guess(self, key: str, seconds: float) -> None:
        """What a pair of launches of a row may take, before there was any."""
        self._seconds[key] = seconds

    def note(self, stage: int, pairs: Iterable[Timed], seconds: float) -> None:
        """A pair of launches that took so many seconds in all."""
        for key, change, took in pairs:
            self._changes[stage, key].append(change)
            self._seconds[key] = took
            seconds -= took
        self._beside = max(seconds, 0.0)

    def seconds(self, keys: Collection[str]) -> float:
        """What a round of these rows takes, as the last ones did."""
        return self._beside + sum(self._seconds.get(key, 0.0) for key in keys)

    def affordable(self, keys: Sequence[str], rounds: int, left: float) -> Sequence[str]:
        """Those of the rows for which so many rounds end in the time that is left: the dearest go
        first."""
        kept = sorted(keys, key=lambda key: self._seconds.get(key, 0.0))
        while kept and rounds * self.seconds(kept) >= left:
            kept.pop()
        return kept

    def missing(self, stage: int, key: str, tau: float, level: float) -> float:
        """Pairs that a row lacks for a verdict, should it go on scattering so."""
        changes = self._changes[stage, key]
        wanted = paired.enough(changes, tau, level)
        if changes and math.isinf(wanted):  # too few for that level, whatever they scatter
            wanted = paired.fewest_rounds(round(0.05 / (1 - level)))
        return max(0.0, wanted - len(changes))

    def worth(
        self, stage: int, taus: Mapping[str, float], level: float, left: float
    ) -> Sequence[str]:
        """Rows to go on with, of those given with the change that matters in each: as many as can
        come to a verdict in the time that is ``left``, cheapest first. A single one may seem to
        need HOPE times as much. Those that nothing bounds yet are left out."""
        lacking = {
            key: missing
            for key, tau in taus.items()
            if 0 < (missing := self.missing(stage, key, tau, level)) < math.inf
        }
        costs = {key: missing * self._seconds[key] for key, missing in lacking.items()}
        chosen: list[str] = []
        spent = most = 0.0
        for key in sorted(costs, key=costs.__getitem__):
            spent += costs[key]
            most = max(most, lacking[key])
            if spent + most * self._beside > left * (1.0 if chosen else HOPE):
                break
            chosen.append(key)
        return chosen if self.seconds(chosen) < left else []
