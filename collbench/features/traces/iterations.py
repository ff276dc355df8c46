"""Iterations of a job in its trace, and the one that a step is made of.

They are marked, or nearly all calls of each rank are repetitions of one block; else the trace is
one iteration.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import NamedTuple

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.core.text import format_count
from collbench.features.traces.types import Call, Interval, RankTrace, Trace
from collbench.features.training.step import LOCAL, Recorded

UNKNOWN: Interval = (-1, -1)
MOST_COMPARED = 200_000_000  # calls, in search of a block that repeats itself
MOST_OUTSIDE = 0.1  # of a rank's calls, of the repetitions of what is an iteration
MANY = 200  # repetitions: models have fewer layers


class Iteration(NamedTuple):
    """One iteration. By rank, in the trace's order: the places of its first call and of the first
    after it, and when it began and ended, -1 where that is unknown."""

    places: tuple[tuple[int, int], ...]
    times: tuple[Interval, ...]

    @property
    def took_ns(self) -> int:
        """Its time on the slowest rank; -1 where that is unknown."""
        is_timed = all(0 <= begin <= end for begin, end in self.times)
        return max((end - begin for begin, end in self.times), default=-1) if is_timed else -1


class Found(NamedTuple):
    """All iterations of a trace, how they are told apart, and what is from begin to end of one."""

    iterations: tuple[Iteration, ...]
    how: str
    meaning: str


class Taken(NamedTuple):
    """The iteration that a step is made of, what it and those alike took, if the trace tells, and
    in words how it was chosen. ``is_whole``: it has all calls, as no iterations were found."""

    iteration: Iteration
    recorded: Recorded | None
    description: str
    is_whole: bool


def take_iteration(trace: Trace, selection: str = "") -> Taken:
    """The iteration that ``selection`` names (``3``, or ``3-5`` for several joined into one); else
    the one of median time among those of the most common calls. Raises UsageError."""
    found = _find_marked(trace) or _find_repeated(trace)
    iterations = found or _take_whole(trace)
    number = len(iterations.iterations)
    if selection:
        first, last = _parse_numbers(selection, number)
        chosen = _join_iterations(iterations.iterations[first], iterations.iterations[last])
        description = f"iteration {selection} is taken, of 0 to {number - 1}"
        times: tuple[int, ...] = (chosen.took_ns,)
    else:
        index, times = _find_typical(trace, iterations.iterations)
        chosen = iterations.iterations[index]
        description = (
            f"iteration {index} is taken: {len(times)} of {number} have its calls, and it takes"
        )
        description += " their median time" if max(times) >= 0 else " no time that is known"
    if number == 1:
        parts = zip(trace.ranks, chosen.places, strict=True)
        outside = sum(len(rank.calls) - (stop - first) for rank, (first, stop) in parts)
        description = (
            f"the one iteration is taken, without {format_count(outside, 'call')} outside of it"
            if outside
            else "all calls of the trace are taken for one iteration"
        )
    times_known = tuple(time for time in times if time >= 0)
    recorded = (
        Recorded(times_known, f"{iterations.meaning}, on the slowest rank") if times_known else None
    )
    return Taken(chosen, recorded, f"{description}; {iterations.how}", is_whole=found is None)


def _parse_numbers(selection: str, number: int) -> tuple[int, int]:
    """The first and the last iteration of "3" or "0-3", of ``number`` in the trace. Raises
    UsageError."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", selection)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first or last >= number:
        raise UsageError(
            f"--iteration {selection[:40]}: the trace has {format_count(number, 'iteration')}",
            f"choose one of 0 to {number - 1}, or several: 0-{number - 1}",
        )
    return first, last


def _join_iterations(first: Iteration, last: Iteration) -> Iteration:
    """The interval from the begin of the first iteration to the end of the last."""
    places = zip(first.places, last.places, strict=True)
    times = zip(first.times, last.times, strict=True)
    return Iteration(
        tuple((begin, stop) for (begin, _), (_, stop) in places),
        tuple((begin, end) for (begin, _), (_, end) in times),
    )


def _find_typical(trace: Trace, iterations: Sequence[Iteration]) -> tuple[int, tuple[int, ...]]:
    """The place of the iteration of median time among those of the most common calls, the last of
    them where times are unknown; and what these took."""
    keys = [
        tuple(
            tuple(_call_key(call) for call in rank.calls[slice(*places)] if _is_communicating(call))
            for rank, places in zip(trace.ranks, rank_calls.places, strict=True)
        )
        for rank_calls in iterations
    ]
    common = Counter(key for key in keys if any(key)) or Counter(keys)
    (most, _), *_ = common.most_common(1)
    typical = [index for index, key in enumerate(keys) if key == most]
    times = {index: iterations[index].took_ns for index in typical}
    timed = sorted((ns, index) for index, ns in times.items() if ns >= 0)
    chosen = timed[(len(timed) - 1) // 2][1] if timed else typical[-1]
    return chosen, tuple(times.values())


def _is_communicating(call: Call) -> bool:
    return call.kind not in LOCAL


def _call_key(call: Call) -> Hashable:
    """The fields of a call that are equal in every iteration; sizes of unequal blocks are not."""
    uneven = call.kind in COLLECTIVES and COLLECTIVES[call.kind].uneven
    nbytes = 0 if uneven else call.nbytes
    return call.kind, call.group, nbytes, call.dtype, call.root, call.peer


def call_time(call: Call) -> int:
    """The time in ns at which the program made a call, or the first known of it; -1 where none is
    known."""
    return next((ns for ns in (call.issued_ns, call.begins_ns, call.ends_ns) if ns >= 0), -1)


def _find_marked(trace: Trace) -> Found | None:
    """The iterations that are marked, by their times or else by the places of their calls. Raises
    UsageError where some ranks have more marks."""
    clocks = [[*accumulate(map(call_time, rank.calls), max)] for rank in trace.ranks]
    timed = all(clock[-1] >= 0 for clock in clocks if clock)
    marks = [rank.steps if timed and rank.steps else rank.marked for rank in trace.ranks]
    numbers = {len(mark): rank.rank for mark, rank in zip(marks, trace.ranks, strict=True)}
    if len(numbers) > 1:
        counts = [f"rank {rank} has {number}" for number, rank in sorted(numbers.items())]
        raise UsageError(
            f"ranks do not have as many marked iterations: {', '.join(counts)}",
            "all ranks must mark each of their iterations; collbench trace names who hung a job",
        )
    every = [
        _cut_ranks(trace.ranks, timed, clocks, number, marked)
        for number, marked in enumerate(zip(*marks, strict=True))
    ]
    by_kernels = timed and any(rank.steps and rank.marked for rank in trace.ranks)
    meaning = "from a mark's begin to its end"
    meaning = "from its first kernel to the next one's" if by_kernels else meaning
    return Found(tuple(every), "marked in the trace", meaning) if every else None


def _cut_ranks(
    ranks: Sequence[RankTrace],
    timed: bool,
    clocks: Sequence[Sequence[int]],
    number: int,
    marks: Sequence[Interval],
) -> Iteration:
    """The part of each rank's trace that belongs to an iteration, by the rank's marks, which are
    times or indices of calls."""
    places, times = [], []
    for rank, clock, mark in zip(ranks, clocks, marks, strict=True):
        by_time = timed and bool(rank.steps)
        first, stop = (bisect_left(clock, ns) for ns in mark) if by_time else mark
        if by_time and rank.marked:
            first, stop = rank.marked[number]
        places.append((min(first, len(clock)), min(stop, len(clock))))
        times.append(mark if by_time else UNKNOWN)
    return Iteration(tuple(places), tuple(times))


def _find_repeated(trace: Trace) -> Found | None:
    """The iterations that show as the longest block that each rank repeats in nearly all its
    calls."""
    blocks = [_Block.of(rank) for rank in trace.ranks]
    number = min((block.number for block in blocks), default=0)
    if number < 2:
        return None
    every = [
        Iteration(
            tuple(block.places(k) for block in blocks),
            tuple(block.times(k, number) for block in blocks),
        )
        for k in range(number)
    ]
    how = f"no marks, but calls that repeat every {blocks[0].period} on rank {trace.ranks[0].rank}"
    return Found(tuple(every), how, "from its first call to the first of the next")


def _take_whole(trace: Trace) -> Found:
    places = tuple((0, len(rank.calls)) for rank in trace.ranks)
    times = tuple(measure_extent(rank.calls) for rank in trace.ranks)
    how = "no marks, and no calls that repeat themselves all along"
    return Found((Iteration(places, times),), how, "from its first call to the end of its last")


def measure_extent(calls: Sequence[Call]) -> Interval:
    """From the first of a rank's calls to the end of its last, as far as that is known."""
    begins = [ns for call in calls if (ns := call_time(call)) >= 0]
    ends = [
        max(call.issued_ns + max(0, call.length_ns), call.begins_ns, call.ends_ns) for call in calls
    ]
    return (min(begins), max(ends)) if begins else UNKNOWN


class _Block(NamedTuple):
    """Calls of a rank that it repeats so often one after the other: the first is the ``start``-th
    of those with others, whose places are ``talks``."""

    calls: Sequence[Call]
    talks: Sequence[int]
    start: int
    period: int
    number: int

    @classmethod
    def of(cls, rank: RankTrace) -> _Block:
        talks = [index for index, call in enumerate(rank.calls) if _is_communicating(call)]
        return cls(
            rank.calls, talks, *_find_longest([_call_key(rank.calls[index]) for index in talks])
        )

    def places(self, k: int) -> tuple[int, int]:
        return self._first(k), self._first(k + 1)

    def _first(self, k: int) -> int:
        at = self.start + k * self.period
        return self.talks[at] if at < len(self.talks) else len(self.calls)

    def times(self, k: int, number: int) -> Interval:
        """Its last one has no end: what comes after it need not be another."""
        begin, stop = self.places(k)
        last = k + 1 == number
        return UNKNOWN if last else (call_time(self.calls[begin]), call_time(self.calls[stop]))


def _find_longest(keys: Sequence[Hashable]) -> tuple[int, int, int]:
    """The longest block that is repeated at once and is no repetition itself: where it first
    begins, its length, and how often it comes; (0, 0, 0) for none. Its repetitions are nearly all
    keys (_is_nearly_all): layers of one iteration are repeated in a part of it only."""
    import numpy as np

    numbers: dict[Hashable, int] = {}
    ids = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    most = min(len(ids) // 2, MOST_COMPARED // max(1, len(ids)))
    few = int(len(ids) * MOST_OUTSIDE)
    for period in range(most, 0, -1):
        same = np.concatenate(([False], ids[period:] == ids[:-period], [False]))
        runs = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2)
        lengths = runs[:, 1] - runs[:, 0]
        least = max(period, len(ids) - period - max(period, few))
        for at in np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths >= least)]:
            begin, covered = int(runs[at][0]), int(lengths[at]) + period
            number, after = covered // period, len(ids) - begin - covered
            if _is_nearly_all(period, number, begin, after, few) and not _is_repetition(
                ids[begin : begin + period].tolist()
            ):
                return begin, period, number
    return 0, 0, 0


def _is_nearly_all(period: int, number: int, before: int, after: int, few: int) -> bool:
    """Whether ``number`` repetitions of ``period`` keys are nearly all, with so many keys before
    and after them. Both together are no longer than the block and at most a ``few``, as more
    follows layers than that: gradients, the optimizer. Set-up before iterations may be longer: a
    block where three or more repetitions end the trace, and a few where there are MANY."""
    most = min(period, few)
    most_before = few if number >= MANY else most if after or number < 3 else period
    return after <= most and before + after <= most_before


def _is_repetition(block: Sequence[int]) -> bool:
    n = len(block)
    return any(n % part == 0 and block[part:] == block[:-part] for part in range(1, n // 2 + 1))
