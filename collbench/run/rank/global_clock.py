"""One clock for ranks of several hosts: each host's as a line over rank 0's, fitted, checked and
kept up to date.

Hunold and Carpen-Amarie, "Hierarchical Clock Synchronization in MPI" (CLUSTER 2018): hosts in a
binomial tree, a linear model of each clock against its parent's, merged towards the root. An offset
is the middle of the bracket that several ping-pongs leave (SKaMPI's method). Here all edges of the
tree are measured in turn, pass by pass, so that the time a drift needs to show is waited for once,
not once a level. Every other offset is held out of the fit: how far those are from the model, at
the look where they are farthest, edge by edge and added up towards the root, is its error.

What ping-pongs cannot see: a path that takes longer one way than the other. It shifts a clock by
half the difference, at most by half the round trip, and no error tells; ``hidden_ns`` is that
limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from collbench.core.text import format_duration
from collbench.run.rank.clock_links import Links
from collbench.run.rank.control import Control

PINGS = 10  # in an offset

# offsets of an edge, every other one held out, and of both the half with the wider brackets left
# out
PASSES = 80

AGAIN = 40  # of a look after a case, whose fit has those of the look before, too

SPREAD_S = 0.5  # over which those at the start are spread, for the drift to show

AGE_NS = 10_000_000_000  # older models start anew: at 1 ppm clocks drift 10 us in that time

ERROR_NS, ERROR_SHARE = (
    2000,
    0.02,
)  # from here on, the latter of a sample's time, a model is not relied upon

WINDOW_NS = 200_000  # the least time ahead of a common start

PARTS = 10**15  # of a drift: whole numbers stay exact however far apart the clocks are


class Model(NamedTuple):
    """A clock as a line over another: where this one reads t, the other reads t + offset + drift (t
    - origin). Nanoseconds, and drift in 1e-15."""

    origin: int = 0
    offset: int = 0
    drift: int = 0

    def forth(self, t: int) -> int:
        """The other clock's reading when this one reads ``t``."""
        return t + self.offset + self.drift * (t - self.origin) // PARTS

    def back(self, t: int) -> int:
        """This clock's reading when the other one reads ``t``."""
        return self.origin + (t - self.offset - self.origin) * PARTS // (PARTS + self.drift)

    def over(self, other: Model) -> Model:
        """This clock over the one that ``other`` stands over, this one standing over other's."""
        at = other.forth(self.origin + self.offset)
        return Model(
            self.origin,
            at - self.origin,
            self.drift + other.drift + self.drift * other.drift // PARTS,
        )


def bracket_offset(trips: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    """(time, offset, width) by the ping-pongs (before, told, after): told lies between the other
    two, whatever each way took, so that the offset does between the tightest limits; it is put into
    the middle."""
    most = min(reading - before for before, reading, _ in trips)
    least = max(reading - after for _, reading, after in trips)
    return (trips[0][0] + trips[-1][2]) // 2, (least + most) // 2, max(1, most - least)


def fit_model(points: np.ndarray) -> Model:
    """The line through (time, offset, width) rows, the narrow weighing most: half its width is what
    an offset errs."""
    times, offsets, widths = points.T
    # floats hold differences only, which are small
    origin, first = (int(times[-1]), int(offsets[-1]))
    x, y, weight = (
        (times - origin).astype(float),
        (offsets - first).astype(float),
        1.0 / widths.astype(float) ** 2,
    )
    weight /= weight.sum()
    mid, level = weight @ x, weight @ y
    spread = weight @ (x - mid) ** 2
    drift = float(weight @ ((x - mid) * (y - level)) / spread) if spread else 0.0
    return Model(origin, first + round(level - drift * mid), round(drift * PARTS))


def select_narrower(points: np.ndarray) -> np.ndarray:
    """The half with the narrower brackets, in their order: in the others somebody was kept from
    answering, which says nothing of the clocks."""
    return points[np.sort(np.argsort(points[:, 2], kind="stable")[: (len(points) + 1) // 2])]


def estimate_error(model: Model, points: np.ndarray) -> int:
    """How far offsets are from a model, in ns: no more than 1 of 20 farther."""
    off = [abs(model.forth(t) - t - offset) for t, offset, _ in points.tolist()]
    return int(np.quantile(off, 0.95, method="higher"))


def parent_place(index: int) -> int:
    """A place's parent in the binomial tree; the root's is -1."""
    return index - (1 << index.bit_length() >> 1) if index else -1


def make_tree(domains: Sequence[str]) -> list[int | None]:
    """Each rank's parent: the first ranks of all domains are one binomial tree, the ranks of a
    domain one each."""
    leaders = [domains.index(name) for name in dict.fromkeys(domains)]
    parents: list[int | None] = []
    for rank, domain in enumerate(domains):
        peers = (
            leaders
            if rank in leaders
            else [other for other in range(len(domains)) if domains[other] == domain]
        )
        parents.append(peers[parent_place(peers.index(rank))] if rank else None)
    return parents


class History:
    """At rank 0, what was measured of every clock since the last new start, and what follows from
    it: ``models`` over the root's clock, their error, and the limit of what stays hidden, in ns;
    both are those of the batch for which they are largest. A batch is an int64 array of shape
    (clocks, passes, 3), its rows a clock's (time, offset to its parent, width)."""

    def __init__(self) -> None:
        self._batches: list[np.ndarray] = []
        self.models: list[Model] = []
        self.error_ns = self.hidden_ns = 0

    def add(self, batch: np.ndarray, anew: bool) -> None:
        """Take a batch in; ``anew`` forgets those before. Else the last two stay, and what is not
        too old."""
        newest = batch[0, -1, 0]
        kept_batches = (
            [] if anew else [old for old in self._batches[:-1] if newest - old[0, -1, 0] < AGE_NS]
        )
        self._batches = [*kept_batches, *([] if anew else self._batches[-1:]), batch]
        self.models, errors, hidden = [Model()], [0], [0]
        for index, up in enumerate(map(parent_place, range(1, len(batch))), 1):
            # each batch by itself: of all together, one that has drifted might be left out
            fitting_trips = [select_narrower(trips[index, ::2]) for trips in self._batches]
            checking_trips = [select_narrower(trips[index, 1::2]) for trips in self._batches]
            edge = fit_model(np.concatenate(fitting_trips))
            error = max(estimate_error(edge, trips) for trips in checking_trips)
            half_width = max(int(trips[:, 2].min()) // 2 for trips in fitting_trips)
            self.models.append(edge.over(self.models[up]))
            errors.append(errors[up] + error)
            hidden.append(hidden[up] + half_width)
        self.error_ns, self.hidden_ns = max(errors), max(hidden)


class GlobalClock:
    """One rank's share of the common clock, which is rank 0's; all ranks call its methods together.

    ``domains[r]`` is equal for ranks that read one clock: the first of them measures for all.
    ``beat`` is called between passes; ``read`` is the clock that samples are timed with,
    CLOCK_MONOTONIC, which NTP may bend: the check after a case sees it. ``trouble`` says why there
    is no common clock; then only ``explain_inaccuracy`` and ``close`` are of use.
    """

    def __init__(
        self,
        control: Control,
        domains: Sequence[str],
        beat: Callable[[], object],
        read: Callable[[], int],
    ) -> None:
        self._control, self._beat, self._read = control, beat, read
        names = list(dict.fromkeys(domains))
        self._leaders = [domains.index(name) for name in names]
        self._places = [names.index(name) for name in domains]
        above = make_tree(domains)
        up, below = (
            above[control.rank],
            [rank for rank in range(control.n) if above[rank] == control.rank],
        )
        foreign = [
            rank
            for rank in (up, *below)
            if rank is not None and domains[rank] != domains[control.rank]
        ]
        self._up, self._below = (
            (up if up in foreign else None),
            [rank for rank in below if rank in foreign],
        )
        self._links = Links(control, up, below)
        self.trouble = self._links.trouble
        self._history = History()
        self._models = [Model()] * len(names)
        self.error_ns = self.hidden_ns = 0
        self._checked: int | None = None
        self._ahead = WINDOW_NS
        self.refresh()

    @property
    def exact(self) -> bool:
        """Whether all ranks read one clock anyway."""
        return len(self._leaders) == 1

    def explain_inaccuracy(self, sample_ns: float = math.inf) -> str:
        """Why ranks' times of samples of ``sample_ns`` cannot be told on one clock, or nothing."""
        if self.trouble or self.exact:
            return self.trouble
        few = self.error_ns >= ERROR_NS
        if not few and self.error_ns < ERROR_SHARE * sample_ns:
            return ""
        limit = format_duration(ERROR_NS) if few else f"{ERROR_SHARE:.0%} of the time"
        return f"hosts' clocks are known to {format_duration(self.error_ns)} only, not to {limit}"

    def refresh(self) -> None:
        """Start anew if the last look is too long ago: before a case."""
        if self.trouble:
            return
        now = self._read()
        (stale,) = self._control.decide(
            [int(self._checked is None or now - self._checked > AGE_NS)]
        )
        if stale:
            self._look(PASSES, SPREAD_S / PASSES, anew=True)
            self._ahead = self._exchange_ns()

    def check(self) -> None:
        """Look again, after a case: ``error_ns`` is then that of a model which spans it."""
        if not self.trouble:
            self._look(AGAIN, 0.0, anew=False)

    def close(self) -> None:
        """Close the connections by which ranks compare clocks."""
        self._links.close()

    def meet(self) -> bool:
        """Agree with all ranks on a start time and spin until it; whether this rank was late for
        it.

        The start lies ahead of when the last one came, so that nobody is late because an earlier
        sample took long.
        """
        model = self._models[self._places[self._control.rank]]
        start = model.back(self._links.latest(model.forth(self._read()), self._ahead))
        late = self._read() >= start
        while self._read() < start:
            pass
        return late

    def converted(self, times: np.ndarray) -> np.ndarray:
        """Rank by rank readings (int64, shape (ranks, samples)) as rank 0's clock would have shown
        them."""
        origins, offsets, drifts = np.array([self._models[index] for index in self._places]).T[
            :, :, None
        ]
        return np.asarray(
            times + offsets + np.rint((times - origins) * (drifts / PARTS)).astype(np.int64)
        )

    def _look(self, passes: int, gap_s: float, anew: bool) -> None:
        self._checked = self._read()
        if self.exact:
            return
        points = np.zeros((passes, 3), np.int64)
        for i in range(passes):
            self._beat()
            time.sleep(gap_s)
            points[i] = self._pass()
        everyone = self._control.gather(points)
        state = [0] * (2 + 3 * len(self._leaders))
        if everyone is not None:
            self._history.add(everyone[self._leaders], anew)
            state = [
                self._history.error_ns,
                self._history.hidden_ns,
                *(n for m in self._history.models for n in m),
            ]
        self.error_ns, self.hidden_ns, *flat = self._control.decide(state)
        self._models = [Model(*flat[i : i + 3]) for i in range(0, len(flat), 3)]

    def _pass(self) -> tuple[int, int, int]:
        """Every edge of the tree measured once, from the root down; this rank's (time, offset to
        its parent, width)."""
        reading = (self._read(), 0, 1)
        if self._up is not None:
            reading = bracket_offset(self._links.ask(self._up, PINGS, self._read))
        for below in self._below:
            self._links.serve(below, PINGS, self._read)
        return reading

    def _exchange_ns(self) -> int:
        """How far ahead a start lies: three times what the slowest rank takes to tell and be told,
        200 us at least."""
        took = np.zeros(PINGS, np.int64)
        for i in range(PINGS):
            begin = self._read()
            self._links.latest(0, 0)
            took[i] = self._read() - begin
        everyone = self._control.gather(took)
        slowest = 0 if everyone is None else int(np.median(everyone, axis=1).max())
        (ahead,) = self._control.decide([max(WINDOW_NS, 3 * slowest)])
        return ahead
