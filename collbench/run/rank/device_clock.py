"""Samples by a device's clock: calls wait on the stream until several samples are issued, and the
device times them.

So what it costs the host to launch a call is no part of the sample, and what aligns ranks is a
collective on the same stream just before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from collbench.records import stats
from collbench.run.backends import do_nothing
from collbench.run.rank.control import Control
from collbench.run.rank.measure import Action, Sampler, Samples, Sync, clock, count_preemptions
from collbench.run.rank.stream import Stream

AHEAD = 16  # samples issued while the stream is held

HOLD_NS, HOLD_MOST_NS = 2_000_000, 50_000_000

SHORT_NS, SPAN_NS = (
    50_000,
    100_000,
)  # calls shorter than the first are sampled together, for at least the second

LEAST_NS = 1_000  # of any call: two marks alone are as far apart

ALONE = 20  # calls for the host's clock


class DeviceSampler(Sampler):
    """Takes samples by the clock of a device: each is ``inner`` calls between two marks on
    ``stream``.

    The stream is kept busy until 16 samples are issued (or one, behind what puts its input back),
    each behind what ``sync`` issues to align ranks. A sample counts as late if the device came to
    its start before all of it was issued: then the host's launching may be part of it. In that case
    the stream is held longer from then on, up to 50 ms, and then for fewer samples at once. Ranks
    need not hold it equally long: the alignment makes up for that.

    Ranks may issue unequal numbers of samples before they wait for the device. So one that waits
    counts as having issued all: whoever is behind it has yet to issue some. ``finish()`` waits for
    the stream, and raises what a call on it could not.
    """

    timed_by: Literal["host", "device"] = "device"
    cause, remedy = "launch-limited", '--mode host (in a suite: modes = "host" in [axes])'

    def __init__(
        self,
        stream: Stream,
        calls: Sequence[tuple[Action, Sequence[int]]],
        inner: int,
        control: Control,
        count: Callable[..., object],
        freshen: Callable[[int], object] | None = None,
        finish: Action | None = None,
    ) -> None:
        super().__init__(calls, inner, control, count, freshen, finish or stream.drain)
        self._stream = stream
        self._ahead, self._hold_ns = AHEAD, HOLD_NS

    def take(self, count: int, sync: Sync) -> Samples | None:
        """``count`` samples, at rank 0; None at others. Their starts are 0."""
        times: list[int] = []
        lates: list[int] = []
        before = count_preemptions()
        while len(times) < count:
            begun = clock()
            queued = self._queue(min(self._ahead, count - len(times)), sync)
            issued_ns = clock() - begun
            ahead = count - len(times) - len(queued)
            self._count(ahead)
            self._finish()
            self._count(-ahead)
            times += [self._stream.elapsed(start, end) for start, end, _ in queued]
            lates += [late for _, _, late in queued]
            if any(lates[-len(queued) :]):
                self._hold_longer(issued_ns)
        return self._gathered([0] * count, times, lates, [0] * count, before)

    def _queue(self, count: int, sync: Sync) -> list[tuple[Any, Any, bool]]:
        """Issue samples: their marks, and whether the first was reached before all was issued."""
        stream, queued = self._stream, []
        for number in range(count):
            batch, slots = self._batches[self._next % len(self._batches)]
            self._next += 1
            self._renew(slots)
            self._count()
            if (
                self._freshen or not number
            ):  # putting inputs back takes more launches than a held stream takes in
                stream.hold(self._hold_ns)
            sync()
            start = stream.mark()
            for call in batch:
                call()
            end = stream.mark()
            queued.append((start, end, stream.reached(start)))
        return queued

    def _hold_longer(self, issued_ns: int) -> None:
        if self._hold_ns < HOLD_MOST_NS:
            self._hold_ns = min(HOLD_MOST_NS, max(2 * self._hold_ns, 2 * issued_ns))
        else:
            self._ahead = max(1, self._ahead // 2)

    def repeats(self, call_ns: float) -> int:
        """Calls to a sample so that it lasts long enough for the clock, 1 where one call does."""
        return 1 if call_ns >= SHORT_NS else stats.inner_repeats(max(call_ns, LEAST_NS), SPAN_NS)

    def idle(self) -> Sampler:
        """A sampler of two marks with no call between them."""
        return DeviceSampler(self._stream, [(do_nothing, ())], 1, self._control, do_nothing)

    def alone(self, call_ns: float, seconds: float) -> list[int]:
        """Times of up to ALONE single calls by the host's clock, in at most so many seconds; empty
        at ranks but 0."""
        fits = int(1e9 * seconds / max(call_ns, 1))
        (count,) = self._control.decide([max(1, min(ALONE, fits)) if seconds else 0])
        if not count:
            return []
        host = Sampler(self.calls, 1, self._control, self._count, self._freshen, self._finish)
        host.dirty = self.dirty
        samples = host.take(count, Sync("barrier", self._control, None))
        self.dirty = host.dirty
        return [] if samples is None else samples.times.tolist()


class GraphSampler(DeviceSampler):
    """Each sample replays ``replays`` times a graph of so many calls that it is ``inner`` calls in
    all, or more: every buffer has its turn in the graph equally often. The graph is replayed once
    before samples are taken. If a call's input is an earlier call's result, the check captures and
    replays a second graph, with one call per buffer.
    """

    def __init__(
        self,
        stream: Stream,
        calls: Sequence[tuple[Action, Sequence[int]]],
        inner: int,
        control: Control,
        count: Callable[..., object],
        freshen: Callable[[int], object] | None = None,
        finish: Action | None = None,
        replays: int = 1,
    ) -> None:
        rounds = math.ceil(inner / replays / len(calls))
        super().__init__(stream, calls, rounds * len(calls), control, count, freshen, finish)
        ((batch, slots),) = self._batches
        count()
        replay = stream.capture(lambda: [call() for call in batch])
        replay()
        self._finish()
        self._batches = [((replay,) * replays, slots)]
        checked_replay = replay
        if rounds > 1 and freshen:  # some of its inputs are results, which nothing can check
            checked_replay = stream.capture(lambda: [call() for call, _ in calls])
        self.again = [(checked_replay, slots)]
        self.dirty = slots
        self.inner *= replays

    def repeats(self, call_ns: float) -> int:
        """Calls to a sample so that it lasts long enough for the clock."""
        return stats.inner_repeats(max(call_ns, LEAST_NS), SPAN_NS)
