"""Which rows of an experiment are worth another round: those that scatter too much for a verdict
yet, as far as the time goes.

Whether a row has had rounds enough is told by its scatter alone, never by the change that it shows:
who goes on until a difference looks right finds differences where there are none.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from collbench.core.text import format_count
from collbench.records.types import RunFile
from collbench.run.pace import budget_for

BUDGET = 300.0  # seconds after which no more rounds are begun than were asked for

FRESH = 4  # rounds after which ranks come from new processes, with other addresses in memory

AHEAD = 4  # rounds between two looks at what is worth while

HOPE = 1.5  # of the time that is left a row may seem to need, for what few rounds tell of scatter

LONGEST_ADVISED = 24 * 3600.0  # seconds of a budget that advice names


class Shortfall(NamedTuple):
    """What undecided rows need for which a budget left no time. Times in seconds."""

    rows: int
    pairs: float  # that the row needs which needs least time
    seconds: float  # of these pairs
    confirming: float  # to measure that row again if it seems to have changed
    time_left: float
    in_all: float  # from the start of the experiment until all rows have had what they need


def describe_shortfall(budget: str, short: Shortfall) -> str:
    """The note on rounds that ended though rows have no verdict; ``budget`` is the option."""
    several = f"the fastest of {short.rows:,} undecided rows"
    left = f"{_format_seconds(short.time_left)} of {budget} were left"
    confirming = f", and {_format_seconds(short.confirming)} to confirm a change"
    hint = f"; --budget {budget_for(short.in_all)} is enough" + " for all" * (short.rows > 1)
    return (
        f"rounds ended: {left if short.time_left > 0 else f'{budget} was used up'}, and"
        f" {several if short.rows > 1 else 'the undecided row'} needs about"
        f" {format_count(math.ceil(short.pairs), 'more pair')}"
        f" ({_format_seconds(short.seconds)})"
        + confirming * (short.confirming > 0)
        + hint * (short.in_all <= LONGEST_ADVISED)
    )


def _format_seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 1 else "less than a second"


class Judged(Protocol):
    """The verdict on a row by the rounds so far. What is lacking for a final one is reckoned as if
    further pairs scatter as those so far."""

    @property
    def key(self) -> str:
        """The key of the row's case."""

    @property
    def is_open(self) -> bool:
        """Whether more pairs might decide the row."""

    @property
    def suspected(self) -> bool:
        """Whether the row may have changed, which launches of its own should decide."""

    @property
    def lacking(self) -> float:
        """The number of pairs that the row lacks for a verdict; inf where that is unknown."""


Judge = Callable[[RunFile, RunFile], Sequence[Judged]]


class Ledger:
    """Account of what rounds cost: of every row, and beside the rows of every world."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._worlds: dict[str, object] = {}
        # the processes that load torch are renewed once in so many
        self._overheads: defaultdict[object, deque[float]] = defaultdict(
            lambda: deque(maxlen=FRESH)
        )

    def note(self, world: object, rows: Mapping[str, float], seconds: float) -> None:
        """Note the seconds that a pair of launches took, and each of its rows."""
        self._seconds.update(rows)
        self._worlds.update(dict.fromkeys(rows, world))
        self._overheads[world].append(max(0.0, seconds - sum(rows.values())))

    def seconds(self, keys: Iterable[str]) -> float:
        """The seconds that a round of these rows takes, by the last ones."""
        return self.sum_seconds(dict.fromkeys(keys, 1.0))

    def sum_seconds(self, pairs: Mapping[str, float]) -> float:
        """Seconds of so many pairs of each row: a world has as many as the row that has most."""
        most: defaultdict[object, float] = defaultdict(float)
        for key, number in pairs.items():
            most[self._worlds[key]] = max(most[self._worlds[key]], number)
        startup = sum(
            number * sum(self._overheads[world]) / len(self._overheads[world])
            for world, number in most.items()
        )
        return startup + sum(number * self._seconds[key] for key, number in pairs.items())

    def affordable(self, keys: Iterable[str], rounds: int, time_left: float) -> Sequence[str]:
        """The keys of rows that ``rounds`` rounds can measure in ``time_left`` seconds: the rows
        that cost most are dropped first."""
        remaining = sorted(keys, key=lambda key: self.seconds([key]))
        while remaining and rounds * self.seconds(remaining) >= time_left:
            remaining.pop()
        return remaining

    def worth(self, lacking: Mapping[str, float], time_left: float) -> Collection[str]:
        """Rows to go on with, of those given with the pairs that each lacks: as many as can come to
        a verdict in ``time_left`` seconds, cheapest first. A single one may seem to need HOPE times
        as much. Those that nothing bounds yet are left out."""
        open_ = {key: number for key, number in lacking.items() if 0 < number < math.inf}
        chosen: dict[str, float] = {}
        for key in sorted(open_, key=lambda key: self.sum_seconds({key: open_[key]})):
            more = {**chosen, key: open_[key]}
            if self.sum_seconds(more) > time_left * (1.0 if chosen else HOPE):
                break
            chosen = more
        return chosen if self.seconds(chosen) < time_left else ()
