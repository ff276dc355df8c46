"""Times of one case: aligned starts, warm-up until steady, and samples until the median is known well enough.

All ranks run the same code; rank 0 sees all ranks' times between blocks and decides for everyone, so that no rank ever
issues a different number of calls than another.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from collbench import stats
from collbench.control import Control
from collbench.launch.board import Board
from collbench.plan import Job
from collbench.suite import Policy

CLOCK_FLOOR_NS = 25_000  # below this one clock pair per call would cost over 0.5 %
WINDOW_NS = 200_000
WARM_CAP_S, WARM_CAP_N, WARM_MIN_S, WARM_MIN_N = 2.0, 200, 0.05, 5
MAX_LATE = 0.25

clock = time.perf_counter_ns
Action = Callable[[], object]
Stop = Literal["", "converged", "max_n", "budget", "fixed"]
STOPS: tuple[Stop, ...] = ("", "converged", "max_n", "budget", "fixed")


def nothing() -> None:
    """The call that overhead is measured with."""


class Sync:
    """Brings ranks to a common start: ``window`` (spin until a deadline), ``barrier`` (own messages) or ``none``."""

    def __init__(self, scheme: str, control: Control, board: Board | None) -> None:
        self.scheme = scheme
        self._control = control
        self._board = board

    def __call__(self) -> bool:
        """Wait for the common start; whether this rank was late for it."""
        if self.scheme == "window" and self._board is not None:
            return self._board.meet(self._control.rank, WINDOW_NS)
        if self.scheme == "barrier":
            self._control.barrier()
        return False


class Samples(NamedTuple):
    """Blocks of all ranks, at rank 0 only: int64 arrays of shape (ranks, samples), in ns; which samples some rank was
    late for; and how often the kernel took a rank off its core meanwhile."""

    starts: np.ndarray
    ends: np.ndarray
    late: np.ndarray
    switches: int

    @property
    def durations(self) -> np.ndarray:
        return np.asarray(self.ends - self.starts)

    def plus(self, other: Samples) -> Samples:
        starts, ends = (np.hstack(pair) for pair in ((self.starts, other.starts), (self.ends, other.ends)))
        return Samples(starts, ends, np.hstack((self.late, other.late)), self.switches + other.switches)

    def only(self, chosen: np.ndarray) -> Samples:
        """The samples where ``chosen`` is true."""
        return Samples(self.starts[:, chosen], self.ends[:, chosen], self.late[chosen], self.switches)


class Sampler:
    """Takes samples of one rank: each is ``inner`` calls under one clock pair, buffers taking turns call by call.

    ``calls`` are pairs of an action and the slots of buffers it uses. ``finish()`` returns when the device has done
    what was issued, and is part of the sample. ``freshen(slot)`` puts back the input of a slot that the call before
    has overwritten; it runs outside the clock, just before the sample after, so that what the
    last sample left can still be checked.
    """

    def __init__(
        self,
        calls: Sequence[tuple[Action, Sequence[int]]],
        inner: int,
        control: Control,
        beat: Action,
        freshen: Callable[[int], object] | None = None,
        finish: Action = nothing,
    ) -> None:
        self.inner, self.calls = inner, calls
        turns = math.lcm(len(calls), inner) // inner
        chosen = [[calls[(t * inner + k) % len(calls)] for k in range(inner)] for t in range(turns)]
        self._batches = [
            (tuple(c for c, _ in batch), sorted({s for _, used in batch for s in used})) for batch in chosen
        ]
        self._beat = beat
        self._freshen, self._finish = freshen, finish
        self._control = control
        self._next = 0
        self.dirty: Sequence[int] = ()

    @property
    def used(self) -> set[int]:
        """Slots that calls were made on."""
        return {slot for _, slots in self._batches[: self._next] for slot in slots}

    def take(self, count: int, sync: Sync) -> Samples | None:
        """``count`` samples, gathered at rank 0 (None elsewhere). What happens between them is kept as short as can be:
        ranks that nothing aligns feel it."""
        begins, ends, lates = [0] * count, [0] * count, [False] * count
        turn, turns = self._next, len(self._batches)
        switched = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        for i in range(count):
            batch, slots = self._batches[(turn + i) % turns]
            if self._freshen:
                for slot in self.dirty:
                    self._freshen(slot)
                self._finish()
                self.dirty = slots
            self._beat()
            lates[i] = sync()
            begins[i] = clock()
            for call in batch:
                call()
            self._finish()
            ends[i] = clock()
        self._next += count
        switched = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - switched
        everyone = self._control.gather(np.array([begins, ends, lates, [switched] * count]))
        if everyone is None:
            return None
        starts, stops, late_any, switches = everyone.transpose(1, 0, 2)
        return Samples(starts, stops, late_any.any(axis=0), int(switches[:, 0].sum()))


class Measured(NamedTuple):
    """The outcome at rank 0: valid samples of all ranks and how they were taken."""

    samples: Samples
    inner: int
    warmup: int
    steady: bool
    stop: Stop
    scheme: str
    invalid: dict[str, int]
    overhead_ns: int


class Protocol:
    """Runs the measuring protocol for one case. ``make(inner)`` builds the sampler for that many calls a sample;
    ``job`` may fix how many samples are taken, and of how many calls, whatever they say."""

    def __init__(
        self, policy: Policy, control: Control, sync: Sync, make: Callable[[int], Sampler], mode: str,
        job: Job | None = None,
    ) -> None:  # fmt: skip
        self._policy = policy
        self._control = control
        self._sync = sync
        self._make = make
        assert policy.precision and policy.max_seconds is not None, "a resolved policy is needed"
        self._precision, self._most_seconds = policy.precision, policy.max_seconds
        self._streaming = mode == "streaming"
        self._inner = job.inner if job else None
        self._iters = (job.samples if job else None) or (None if self._streaming else policy.iters)

    def run(self, first_ns: int, on_measure: Action) -> tuple[Measured | None, Sampler]:
        """Warm up, choose how many calls make a sample, measure. ``first_ns`` is what this rank's first call took."""
        sampler = self._make(self._policy.batch if self._streaming else 1)
        warmed, typical, steady, late = self._warm(sampler, first_ns * sampler.inner)
        repeats = 1 if self._streaming else self._inner or stats.inner_repeats(typical, CLOCK_FLOOR_NS)
        (repeats, swap) = self._control.decide([repeats, int(late > MAX_LATE and self._sync.scheme == "window")])
        if swap and self._policy.sync == "auto":
            self._sync.scheme = "barrier"
        if repeats > 1:
            typical /= sampler.inner
            sampler = self._make(repeats)
            typical *= sampler.inner
            sampler.take(10, self._sync)
        on_measure()
        samples, stop = self._measure(sampler, typical)
        overhead = self._overhead(sampler.inner)
        if samples is None:
            return None, sampler
        valid = ~samples.late.astype(bool)
        late_starts = int((~valid).sum())
        kept = samples.only(valid)
        invalid = {"late start": late_starts} if late_starts else {}
        return Measured(kept, sampler.inner, warmed, steady, stop, self._sync.scheme, invalid, overhead), sampler

    def _warm(self, sampler: Sampler, first_ns: float) -> tuple[int, float, bool, float]:
        """Samples taken, a typical one's time in ns (at rank 0), whether times had settled, the share of late ones."""
        fixed = self._policy.warmup
        block = max(1, min(10, int(WARM_CAP_S / 2 * 1e9 / max(first_ns, 1))))
        (block,) = self._control.decide([block if fixed is None else fixed])
        begun, done, seen, steady, late = time.perf_counter(), 0, np.zeros(0), True, 0
        while block:
            samples = sampler.take(block, self._sync)
            done += block
            if samples is not None:
                seen = np.concatenate([seen, samples.durations.max(axis=0)])
                late += int(samples.late.sum())
                elapsed = time.perf_counter() - begun
                steady = stats.steady(seen)
                enough = steady and done >= WARM_MIN_N and elapsed >= WARM_MIN_S
                spent = elapsed >= WARM_CAP_S or done >= WARM_CAP_N
                block = 0 if enough or spent or fixed is not None else block
            (block,) = self._control.decide([block])
        typical = float(np.median(seen[-10:])) if len(seen) else first_ns
        return done, typical, steady or fixed is not None, late / max(1, done)

    def _measure(self, sampler: Sampler, typical_ns: float) -> tuple[Samples | None, Stop]:
        begun = time.perf_counter()
        kept: Samples | None = None
        second = max(1, int(1e9 / max(typical_ns, 1)))  # about one second of samples: no block is longer
        block = self._iters or min(10, second)
        stop = 0
        (block,) = self._control.decide([min(block, second)])
        while True:
            samples = sampler.take(block, self._sync)
            if samples is not None:
                kept = samples if kept is None else kept.plus(samples)
                block, stop = self._next_block(kept, time.perf_counter() - begun, second)
            block, stop = self._control.decide([block, stop])
            if block == 0:
                return kept, STOPS[stop]

    def _next_block(self, kept: Samples, elapsed: float, second: int) -> tuple[int, int]:
        """Size of the next block, or 0 and the reason to stop."""
        policy = self._policy
        times = kept.durations.max(axis=0)[~kept.late.astype(bool)]
        n, tried = len(times), len(kept.late)
        if self._iters is not None:
            missing = self._iters - n
            exhausted = tried >= 3 * self._iters
            if missing <= 0 or exhausted:
                return 0, STOPS.index("max_n" if missing > 0 else "fixed")
            return min(missing, second), 0
        if n and stats.converged(times, self._precision, policy.min_iters, times.sum() / 1e9, policy.min_seconds):
            return 0, STOPS.index("converged")
        if tried >= policy.max_iters:  # of very short samples even that many may take less than min_seconds
            narrow = n and stats.converged(times, self._precision, policy.min_iters, 0.0, 0.0)
            return 0, STOPS.index("converged" if narrow else "max_n")
        if elapsed >= self._most_seconds:
            return 0, STOPS.index("budget")
        left = int((self._most_seconds - elapsed) / elapsed * tried)
        return max(1, min(stats.next_block(tried), second, left, policy.max_iters - tried)), 0

    def _overhead(self, inner: int) -> int:
        """Median ns between the clock reads of a sample whose calls do nothing."""
        idle = Sampler([(nothing, ())], inner, self._control, nothing)
        samples = idle.take(50, Sync("none", self._control, None))
        return int(np.median(samples.durations[0])) if samples is not None else 0


def shape(measured: Measured, same_clock: bool, per_rank: int) -> dict[str, object]:
    """The Record fields that hold times. Starts, skew and T_glob exist only where all ranks read one clock."""
    samples = measured.samples
    durations = samples.durations
    fields: dict[str, object] = {
        "times_ns": durations.max(axis=0).tolist(),
        "per_rank": durations[:, :per_rank].tolist(),
        "inner": measured.inner,
        "warmup": measured.warmup,
        "steady": measured.steady,
        "stop": measured.stop,
        "sync": measured.scheme,
        "invalid": measured.invalid,
        "overhead_ns": measured.overhead_ns,
        "preempted": samples.switches,
    }
    if same_clock:
        first = samples.starts.min(axis=0)
        fields["starts_ns"] = (samples.starts - first)[:, :per_rank].tolist()
        fields["glob_ns"] = (samples.ends.max(axis=0) - first).tolist()
        fields["skew_ns"] = (samples.starts.max(axis=0) - first).tolist()
    return fields
