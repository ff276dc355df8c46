"""Times of one case: aligned starts, warm-up until steady, and samples until the median is known
well enough.

All ranks run the same code; rank 0 sees all ranks' times between blocks and decides for everyone,
so that no rank ever issues a different number of calls than another.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Generator, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from collbench.records import stats
from collbench.records.types import Calibration, Scheme, Stop
from collbench.run.backends import do_nothing
from collbench.run.jobs import Job
from collbench.run.launch.board import Board
from collbench.run.rank.calibration import Blocks, Calibrator
from collbench.run.rank.control import Control
from collbench.run.rank.global_clock import WINDOW_NS, GlobalClock
from collbench.run.rank.gpu import Guard
from collbench.run.rank.library_calls import compile_loop
from collbench.run.rank.stream import Stream
from collbench.suite.policy import Policy

CLOCK_FLOOR_NS = 25_000  # below this one clock pair per call would cost over 0.5 %
WARM_CAP_S, WARM_CAP_N, WARM_MIN_S, WARM_MIN_N = 2.0, 200, 0.05, 5
WARM_SHARE = 0.25  # of the time a case may be measured
MAX_LATE = 0.25
MIN_LATE = 3  # samples that all begin late, before others begin at a barrier
SETTLED = 10  # samples of a new length that are not counted
BLOCK_S = 1.0  # of samples at most, between which rank 0 looks at them
MAX_LOST = (
    1.5  # times a case's time, spent on samples that are thrown away and on pauses after them
)
MOST_OVER = (
    2.0  # times a case's time, in which it gets its fewest samples where some are thrown away
)
PAUSE_SHARE = 0.25  # of a case's time: no pause is longer
ALONE_SHARE = 0.5  # of a case's time, for calls by the host's clock beside a device's
TURN_S, SETTLE_S = 0.02, 0.001  # of a block that others have had a turn before, and of its first
# calls, which are not counted: they find what the others left in the caches
MOST_SETTLE = 3  # such calls
clock = time.perf_counter_ns
Action = Callable[[], object]
STOPS: tuple[Stop, ...] = ("", "converged", "max_n", "budget", "fixed")
T = TypeVar("T")
Steps = Generator[None, None, T]  # work that pauses where others may have the machine


def bare_ns(call: Action, inner: int) -> int:
    """Median ns that a call takes of a sample of ``inner`` such on this rank alone, each sample
    after as long a wait as ranks' for a common start."""
    took, loop = [], compile_loop([call])
    batch = (loop.make_batch(0, inner),) if loop else (call,) * inner
    for _ in range(51):
        until = clock() + WINDOW_NS
        while clock() < until:
            pass
        begin = clock()
        for action in batch:
            action()
        took.append((clock() - begin) // inner)
    return int(np.median(took))


def is_longer_than_case(policy: Policy, ns: float) -> bool:
    """Whether what took so long took more than the time of its case."""
    return ns > 1e9 * (policy.max_seconds or math.inf)


def has_lost(elapsed: float, valid: int, tried: int, most: float) -> bool:
    """Whether samples that are thrown away have cost ``most`` seconds of those elapsed, where so
    many of those tried are valid; or have come so near to it that another would end farther beyond.
    """
    return is_overdue(elapsed * (1 - valid / tried), valid, tried, most)


def is_overdue(elapsed: float, valid: int, tried: int, most: float) -> bool:
    """Whether ``most`` seconds are over, or so nearly that another sample would end farther beyond,
    where some samples are thrown away."""
    return valid < tried and elapsed * (1 + 0.5 / tried) >= most


def count_preemptions() -> int:
    """How often the kernel has taken this thread off its core."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class Sync:
    """Brings ranks to a common start: ``window`` (spin until a deadline, on the ``common`` clock of
    several hosts where there is one, else on the board), ``barrier`` (own messages), ``device`` (by
    ``align``, a collective on the stream) or ``none``. ``refused`` is why there is no window.
    ``after`` is done last, outside any clock.
    """

    def __init__(
        self,
        scheme: Scheme,
        control: Control,
        board: Board | None,
        align: Action = do_nothing,
        common: GlobalClock | None = None,
        after: Action = do_nothing,
    ) -> None:
        self.scheme, self.refused, self._after = scheme, "", after
        self._control = control
        self._board = board
        self._align = align
        self._common = common

    def refuse(self, late: float, sample_ns: float) -> bool:
        """Whether a window is out of place: for the share of starts it came too early for, or
        hosts' clocks."""
        if self.scheme == "window":
            self.refused = f"{late:.0%} of starts came late" if late > MAX_LATE else ""
            self.refused = self.refused or (
                self._common.explain_inaccuracy(sample_ns) if self._common else ""
            )
        return bool(self.refused)

    def begin_at_barrier(self, asked: str) -> None:
        """Begin the next samples at a barrier, unless the user ``asked`` for a scheme."""
        if asked == "auto":
            self.scheme = "barrier"

    def __call__(self) -> bool:
        """Wait for the common start; whether this rank was late for it."""
        late = self._meet()
        self._after()
        return late

    def _meet(self) -> bool:
        if self.scheme == "window" and self._common is not None:
            return self._common.meet()
        if self.scheme == "window" and self._board is not None:
            return self._board.meet(self._control.rank, WINDOW_NS)
        if self.scheme == "barrier":
            self._control.barrier()
        elif self.scheme == "device":
            self._align()
        return False


class Samples(NamedTuple):
    """Blocks of all ranks, at rank 0 only: int64 arrays of shape (ranks, samples), in ns; which
    samples some rank was late for; how often the kernel took each rank off its core meanwhile; and
    what the samples took by a device's clock, zeros where none was read beside the host's. By a
    device's clock alone, all starts are 0: ranks share none.
    """

    starts: np.ndarray
    ends: np.ndarray
    late: np.ndarray
    switches: np.ndarray
    device: np.ndarray

    @property
    def durations(self) -> np.ndarray:
        """Ends less starts, in ns, shape (ranks, samples)."""
        return np.asarray(self.ends - self.starts)

    @property
    def times(self) -> np.ndarray:
        """The time of each sample: on its slowest rank."""
        return np.asarray(self.durations.max(axis=0))

    @classmethod
    def concatenate(cls, blocks: Sequence[Samples]) -> Samples:
        """The samples of all blocks, in order."""
        starts, ends, late, device = (np.hstack([b[k] for b in blocks]) for k in (0, 1, 2, 4))
        return cls(starts, ends, late, np.sum([b.switches for b in blocks], axis=0), device)

    @property
    def none(self) -> Samples:
        """These samples with none selected: arrays of length 0."""
        return self.only(np.zeros(len(self.late), bool))._replace(switches=0 * self.switches)

    def only(self, chosen: np.ndarray) -> Samples:
        """Samples where ``chosen``, a mask, is true."""
        starts, ends, device = (
            values[:, chosen] for values in (self.starts, self.ends, self.device)
        )
        return Samples(starts, ends, self.late[chosen], self.switches, device)


Times = Callable[[Samples], np.ndarray]
GroupTimes = Callable[[Samples], Sequence[np.ndarray]]


class Sampler:
    """Takes samples of one rank: each is ``inner`` calls under one clock pair, buffers taking turns
    call by call.

    ``calls`` are pairs of an action and the slots of buffers it uses. ``finish()`` returns when the
    device has done what was issued, and is part of the sample. ``freshen(slot)`` puts back the
    input of a slot that the call before has overwritten; it runs outside the clock, just before the
    sample after, so that what the last sample left can still be checked; ranks that nothing else
    aligns meet once it has run, as none may wait in its sample for another that still puts inputs
    back. Where ``marks`` is the device's stream, it times the same calls too. ``again`` is what a
    check may repeat: calls as they are timed, each slot used once. ``count()`` is called before
    each sample (Board.count_calls).
    """

    timed_by: Literal["host", "device"] = "host"
    # why samples are replaced, and what helps if all are
    cause, remedy = "late start", '--sync barrier (in a suite: sync = "barrier" in [policy])'

    def __init__(
        self,
        calls: Sequence[tuple[Action, Sequence[int]]],
        inner: int,
        control: Control,
        count: Callable[..., object],
        freshen: Callable[[int], object] | None = None,
        finish: Action = do_nothing,
        marks: Stream | None = None,
    ) -> None:
        self.inner, self.calls, self.again = inner, calls, calls
        self._batches = self._make_batches()
        self._count = count
        self._freshen, self._finish, self._marks = freshen, finish, marks
        self._control = control
        self._next = 0
        self._waited: list[float] = []
        self.dirty: Sequence[int] = ()

    def _make_batches(self) -> list[tuple[tuple[Action, ...], list[int]]]:
        """What samples do by turns, with the slots they use: each call, or one action that makes
        all of a sample's where these are a library's functions."""
        calls, inner = self.calls, self.inner
        self._loop = compile_loop([call for call, _ in calls])
        batches = []
        for first in range(0, math.lcm(len(calls), inner), inner):
            chosen = [calls[(first + k) % len(calls)] for k in range(inner)]
            actions = tuple(call for call, _ in chosen)
            if self._loop:
                actions = (self._loop.make_batch(first, inner),)
            batches.append((actions, sorted({slot for _, used in chosen for slot in used})))
        return batches

    @property
    def called(self) -> int:
        """Calls so far."""
        return self._next * self.inner

    @property
    def used(self) -> set[int]:
        """Slots that calls were made on."""
        return {slot for _, slots in self._batches[: self._next] for slot in slots}

    def take(self, count: int, sync: Sync) -> Samples | None:
        """``count`` samples, gathered at rank 0 (None elsewhere). What happens between them is kept
        as short as can be: ranks that nothing aligns feel it."""
        begins, ends, lates, times = ([0] * count for _ in range(4))
        turn, turns, marks = self._next, len(self._batches), self._marks
        before = count_preemptions()
        for i in range(count):
            batch, slots = self._batches[(turn + i) % turns]
            if self._freshen:
                is_renewed = bool(self.dirty)
                self._renew(slots)
                self._finish()
                if is_renewed and sync.scheme == "none":
                    self._control.barrier()  # it takes ranks unequally long
            self._count()
            lates[i] = sync()
            first = marks and marks.mark()
            begins[i] = clock()
            for call in batch:
                call()
            last = marks and marks.mark()
            issued = clock() if marks else 0
            self._finish()
            ends[i] = clock()
            if marks:
                times[i] = marks.elapsed(first, last)
                self._waited.append((ends[i] - issued) / max(1, ends[i] - begins[i]))
        self._next += count
        return self._gathered(begins, ends, lates, times, before)

    def waited(self) -> list[float]:
        """By rank, the typical share of a sample for which its host waited for its device once all
        was issued; empty where the stream was not looked at."""
        return self._control.collect(float(np.median(self._waited))) if self._waited else []

    def _renew(self, slots: Sequence[int]) -> None:
        """Put back the inputs that the last sample overwrote; the next one overwrites those of
        ``slots``."""
        if self._freshen:
            for slot in self.dirty:
                self._freshen(slot)
            self.dirty = slots

    def _gathered(
        self,
        begins: list[int],
        ends: list[int],
        lates: Sequence[int],
        times: list[int],
        before: int,
    ) -> Samples | None:
        switched = [count_preemptions() - before] * len(begins)
        everyone = self._control.gather(np.array([begins, ends, lates, switched, times]))
        if everyone is None:
            return None
        starts, stops, late_any, switches, device = everyone.transpose(1, 0, 2)
        return Samples(starts, stops, late_any.any(axis=0), switches[:, 0], device)

    def repeats(self, call_ns: float) -> int:
        """Calls a sample needs for the clock to be fine enough, by what one takes."""
        return stats.inner_repeats(call_ns, CLOCK_FLOOR_NS)

    def idle(self) -> Sampler:
        """This sampler around a call that does nothing, which measures what sampling itself
        takes."""
        return Sampler(
            [(do_nothing, ())],
            1 if self._loop else self.inner,
            self._control,
            do_nothing,
            None,
            self._finish,
            self._marks,
        )

    def alone(self, call_ns: float, seconds: float) -> list[int]:
        """Times of some single calls by the host's clock, where samples are by the device's; at
        rank 0. They take about so many seconds at most, and there are none in 0 seconds."""
        return []


def overhead_ns(sampler: Sampler, control: Control) -> int:
    """Median ns between the clock reads of a sample whose calls do nothing, at rank 0."""
    samples = sampler.idle().take(50, Sync("none", control, None))
    return int(np.median(samples.durations[0])) if samples is not None else 0


class Measured(NamedTuple):
    """The outcome at rank 0: valid samples of all ranks and how they were taken."""

    samples: Samples
    inner: int
    warmup: int
    steady: bool
    stop: Stop
    scheme: Scheme
    invalid: dict[str, int]
    overhead_ns: int
    clock: Literal["host", "device"]
    host_ns: list[int]
    call_path_ns: int | None
    calibration: Calibration | None = None
    waited: Sequence[float] = ()  # by rank, as Sampler.waited has it
    hopeless: Sequence[int] = ()  # ranks for whose GPUs only one block was tried


class _Pace(NamedTuple):
    """What a sample has taken in warm-up, in ns: the median of its own time, with all that is done
    around it, and of its time in the group of ranks that took least."""

    sample: float
    total: float
    quickest: float


class _Block(NamedTuple):
    """Samples taken together, at rank 0: whether a GPU was held back meanwhile, which blocks are
    now known to be disturbed, and the seconds all of it took."""

    samples: Samples | None
    held_back: bool
    disturbed: Sequence[int]
    seconds: float


class Protocol:
    """Runs the measuring protocol for one case. ``make(inner)`` builds the sampler for so many
    calls a sample, or more; ``job`` may fix how many samples are taken, and of how many calls,
    whatever they say. In the modes where many calls make a sample, the policy's ``iters`` is the
    number of these. On GPUs every rank has a ``guard``: samples that it finds spoiled are replaced.
    ``times`` says what samples took, if not Samples.times, and ``group_times`` the same of each
    group of ranks: all of them must settle and converge, as each has a row; how many calls make a
    sample is as the slowest needs. ``bare`` is Call's. ``in_turns``: others have the machine
    between blocks, which are short then, and have a ``calibrator`` on CPUs. A sample takes
    ``least_ns``, unless its calls are given.

    Samples that are replaced, whatever for, and the pauses after them take at most MAX_LOST times
    the policy's max_seconds, or the time of ``iters`` samples if that is longer.
    """

    def __init__(
        self,
        policy: Policy,
        control: Control,
        sync: Sync,
        make: Callable[[int], Sampler],
        mode: str,
        job: Job | None = None,
        guard: Guard | None = None,
        times: Times | None = None,
        bare: Action | None = None,
        in_turns: bool = False,
        calibrator: Calibrator | None = None,
        group_times: GroupTimes | None = None,
        least_ns: int = 0,
    ) -> None:
        self._least_ns = least_ns
        self._policy, self._bare = policy, bare
        self._in_turns, self._calibrator = in_turns, calibrator
        self._blocks = Blocks(calibrator)  # of samples, in _take_block
        self._times: Times = times or (lambda samples: samples.times)
        self._group_times: GroupTimes = group_times or (lambda samples: [self._times(samples)])
        self._guard, self._throttled, self._disturbed = guard, 0, 0
        self._control = control
        self._sync = sync
        self._make = make
        assert policy.precision and policy.max_seconds is not None, "a resolved policy is needed"
        self._least = job.least if job else 1
        self._precision, self._most_seconds = policy.precision, policy.max_seconds
        batches = {"streaming": policy.batch, "graph": policy.graph * (policy.iters or 0)}
        calls = batches.get(mode, 0)
        self._inner = (job.inner if job else None) or calls
        self._skips_warming = policy.warmup == 0 and bool(self._inner)
        self._first = self._inner if self._skips_warming else max(1, calls)
        self.iters = (job.samples if job else None) or (None if mode in batches else policy.iters)

    def run(self, first_ns: int, on_measure: Action) -> Steps[tuple[Measured | None, Sampler]]:
        """Warm up, choose how many calls make a sample, measure, with a pause before each block.
        ``first_ns``, of which rank 0's counts, is what the first call took."""
        sampler = self._make(self._first)
        warmed, pace, steady, late = self._warm(sampler, first_ns * sampler.inner)
        only = None
        if not warmed and not self._skips_warming:
            on_measure()
            only, again_ns = yield from self._look_again(sampler)
            if only is None:
                warmed, pace, steady, late = self._warm(sampler, again_ns)
                warmed += 1
        typical, around = pace.sample, pace.total - pace.sample
        call_ns = typical / sampler.inner
        least = stats.inner_repeats(call_ns, self._least_ns)
        repeats = self._inner or max(sampler.repeats(call_ns), least)
        longer = max(repeats, sampler.inner) / sampler.inner
        refused = self._sync.refuse(late, pace.quickest * longer)
        repeats, swap = self._control.decide([repeats, int(refused)])
        if swap:
            self._sync.begin_at_barrier(self._policy.sync)
        if repeats > sampler.inner:
            typical, dirty = typical / sampler.inner, sampler.dirty
            sampler = self._make(repeats)
            sampler.dirty = [*sampler.dirty, *dirty]
            typical *= sampler.inner
            sampler.take(SETTLED, self._sync)
            only = None
        if only is None:
            on_measure()
        pace = pace._replace(sample=typical, total=typical + around)
        samples, stop, valid_any, hopeless = yield from self._measure(sampler, pace, only)
        overhead = overhead_ns(sampler, self._control)
        aside = ALONE_SHARE * self._most_seconds if valid_any else 0.0
        alone = sampler.alone(pace.total / sampler.inner, aside)
        waited = sampler.waited()
        if samples is None:
            return None, sampler
        valid = ~samples.late.astype(bool)
        dropped = int((~valid).sum())
        causes = {sampler.cause: dropped, "throttled": self._throttled}
        if not valid.any():
            causes["disturbed"] = self._disturbed  # why there is none
        usable = samples.only(valid)
        invalid = {cause: number for cause, number in causes.items() if number}
        bare = bare_ns(self._bare, sampler.inner) if self._bare else None
        fixed = self._policy.warmup
        warmed = warmed if fixed is None else fixed
        how = sampler.inner, warmed, steady, stop, self._sync.scheme, invalid, overhead
        return (
            Measured(
                usable, *how, sampler.timed_by, alone, bare, self._blocks.summary, waited, hopeless
            ),
            sampler,
        )

    def _warm(self, sampler: Sampler, first_ns: float) -> tuple[int, _Pace, bool, float]:
        """Samples taken, what one takes (at rank 0), whether times of all groups had settled, the
        share of late ones. More are taken than asked for where these do not tell how many calls
        make a sample."""
        fixed, most = self._policy.warmup, self._most_seconds
        longest = min(WARM_CAP_S, most / 2, max(WARM_MIN_S, WARM_SHARE * most))
        block = max(1, min(10, int(longest / 2 * 1e9 / max(first_ns, 1))))
        if is_longer_than_case(self._policy, first_ns):
            block = 0  # the first call has touched all there is, and took more time than there is
        if fixed is not None:
            block = 0 if self._skips_warming else fixed or min(block, 1)
        (block,) = self._control.decide([block])
        begun, done, times, steady, late = time.perf_counter(), 0, np.zeros(0), True, 0
        elapsed, blocks, quickest = 0.0, list[Samples](), first_ns
        while block:
            samples = sampler.take(block, self._sync)
            done += block
            if samples is not None:
                blocks.append(samples)
                so_far = Samples.concatenate(blocks)
                times, by_group = self._times(so_far), self._group_times(so_far)
                late += int(samples.late.sum())
                elapsed = time.perf_counter() - begun
                steady = all(map(stats.is_steady, by_group))
                quickest = min(float(np.median(group[-10:])) for group in by_group)
                enough = steady and done >= WARM_MIN_N and elapsed >= WARM_MIN_S
                spent = done >= WARM_CAP_N or elapsed >= longest
                fits = int((longest - elapsed) / max(elapsed, 1e-9) * done)
                if fixed is not None:
                    sized = bool(self._inner) or done >= WARM_MIN_N
                    enough, fits = sized or elapsed >= WARM_MIN_S, 1
                block = max(1, min(10, fits))
                block = 0 if enough or spent else block
            (block,) = self._control.decide([block])
        typical = float(np.median(times[-10:])) if len(times) else first_ns
        total = max(typical, 1e9 * elapsed / done) if len(times) else first_ns
        pace = _Pace(typical, total, quickest)
        return done, pace, steady or fixed is not None, late / max(1, done)

    def _look_again(self, sampler: Sampler) -> Steps[tuple[_Block | None, float]]:
        """A block of one sample, where the first call took longer than its case may. What else a
        first call does (a library connects ranks, or loads its code) may have made it so: of a
        sample that takes less, there is no block, but how many ns it took, the same at all
        ranks."""
        block = yield from self._take_block(sampler, 1)
        took = int(self._times(block.samples).max()) if block.samples is not None else 0
        slow, took = self._control.decide([int(is_longer_than_case(self._policy, took)), took])
        if slow:
            return block, took
        self._blocks = Blocks(self._calibrator)
        return None, took

    def _take_block(self, sampler: Sampler, number: int, settle: int = 0) -> Steps[_Block]:
        """So many samples, after some that are not counted, with a pause before."""
        begun = time.perf_counter()
        yield
        self._blocks.before()
        if self._sync.scheme == "none":
            self._control.barrier()  # ranks pause, and look at the machine, unequally long
        if settle:
            sampler.take(settle, self._sync)
        samples = sampler.take(number, self._sync)
        held_back, disturbed = self._held_back(), self._blocks.after()
        return _Block(samples, held_back, disturbed, time.perf_counter() - begun)

    def _measure(
        self, sampler: Sampler, pace: _Pace, only: _Block | None = None
    ) -> Steps[tuple[Samples | None, Stop, bool, list[int]]]:
        """The samples of all ranks, at rank 0; why they ended, whether any is valid, and the ranks
        for whose GPUs only one block was tried. ``only`` is a first block, if there is one. Where
        the first few samples all began too late for their windows, the next begin at a barrier."""
        begun = time.perf_counter() - (only.seconds if only else 0.0)
        hopeless = self._hopeless()
        blocks: list[Samples] = []
        samples_so_far: Samples | None = None  # all of them
        longest = min(BLOCK_S, self._most_seconds)
        long, between = (TURN_S, WINDOW_NS) if self._in_turns else (longest, 0)
        most = max(1, int(1e9 * long / max(pace.sample + between, 1)))
        settle = min(MOST_SETTLE, int(1e9 * SETTLE_S / max(pace.sample, 1))) * self._in_turns
        block = self.iters or max(1, min(10, int(1e9 * longest / max(pace.total, 1))))
        all_of_them = (self.iters or 0) * pace.total / 1e9
        patience = MAX_LOST * max(self._most_seconds, all_of_them)
        enough = min(MIN_LATE, self.iters or MIN_LATE)
        stop = valid = swap = 0
        block, settle = self._control.decide([min(block, most), settle])
        self._blocks.planned = (self.iters or self._policy.max_iters) // most
        while True:
            taken = only or (yield from self._take_block(sampler, block, settle))
            only, held_back, samples = None, taken.held_back, taken.samples
            if samples is not None:
                self._throttled += len(samples.late) * held_back
                blocks.append(samples.none if held_back else samples)
                for index in taken.disturbed:
                    self._disturbed += len(blocks[index].late)
                    blocks[index] = blocks[index].none
                samples_so_far = Samples.concatenate(blocks)
                elapsed, valid = time.perf_counter() - begun, int(not samples_so_far.late.all())
                late = len(samples_so_far.late) >= enough and not valid
                swap = int(late and self._sync.refuse(1.0, pace.quickest))
                time_left = 0.0 if hopeless and not valid else patience
                block, stop = self._next_block(samples_so_far, elapsed, most, time_left)
            block, stop, valid, swap = self._control.decide([block, stop, valid, swap])
            if swap:
                self._sync.begin_at_barrier(self._policy.sync)
            if block == 0:
                if self._guard:
                    self._guard.end(bool(valid))
                return samples_so_far, STOPS[stop], bool(valid), hopeless
            if held_back and self._guard:
                self._guard.pause(PAUSE_SHARE * self._most_seconds)

    def _hopeless(self) -> list[int]:
        """Ranks whose GPUs have been held back so long that one more block tells."""
        if self._guard is None:
            return []
        everyone = self._control.collect(self._guard.is_hopeless)
        return [rank for rank, hopeless in enumerate(everyone) if hopeless]

    def _held_back(self) -> bool:
        """Whether some rank's GPU was, in the block that has just been taken."""
        return self._guard is not None and any(self._control.collect(self._guard.bad()))

    def _next_block(
        self, samples: Samples, elapsed: float, most: int, patience: float
    ) -> tuple[int, int]:
        """Size of the next block, or 0 and the reason to stop; ``patience`` is how many seconds
        may be lost."""
        policy = self._policy
        usable = samples.only(~samples.late.astype(bool))
        times, by_group = self._times(usable), self._group_times(usable)
        n, tried = len(times), len(samples.late) + self._throttled + self._disturbed
        lost = has_lost(elapsed, n, tried, patience)
        if self.iters is not None:
            missing = self.iters - n
            exhausted = tried >= 3 * self.iters or lost
            if missing <= 0 or exhausted:
                return 0, STOPS.index("max_n" if missing > 0 else "fixed")
            return min(missing, most), 0
        interval = self._precision, policy.min_iters
        narrow = n and all(stats.is_converged(each, *interval, 0.0, 0.0) for each in by_group)
        if narrow and times.sum() / 1e9 >= policy.min_seconds:
            return 0, STOPS.index("converged")
        if tried >= policy.max_iters:  # very short samples may take less than min_seconds
            return 0, STOPS.index("converged" if narrow else "max_n")
        # another would end farther beyond than this is before
        spent = elapsed * (1 + 0.5 / tried) >= self._most_seconds and n >= self._least
        overdue = is_overdue(elapsed, n, tried, MOST_OVER * self._most_seconds)
        if spent or lost or overdue:
            return 0, STOPS.index("budget")
        samples_left = max(self._least - n, int((self._most_seconds - elapsed) / elapsed * tried))
        return max(1, min(stats.next_block(tried), most, samples_left, policy.max_iters - tried)), 0
