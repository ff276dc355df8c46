"""How long a case takes whose samples are replaced, on clocks that are made up: calls, pauses and
readings move them, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from collbench.features.training import trial as steps
from collbench.features.training.parts import PARTS
from collbench.records.types import GpuState
from collbench.run.backends import do_nothing
from collbench.run.jobs import Job
from collbench.run.rank import device_clock, measure
from collbench.run.rank.control import Control
from collbench.run.rank.device_clock import DeviceSampler, GraphSampler
from collbench.run.rank.gpu import MOST_PAUSE_S, Guard, Streak
from collbench.run.rank.measure import Measured, Protocol, Sampler, Samples, Sync
from collbench.run.rank.outcome import fail_without_samples
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from tests.helpers.steps import without_pause

ALONE = Control(0, 1)
MS = 1_000_000
WATCHED_NS = 2 * MS  # what reading a GPU's state takes


class Clock:
    """The time in ns, of a host and of a device that does what it is given at once."""

    def __init__(self) -> None:
        self.now, self.free = 0, 0

    def spend(self, ns: int) -> None:
        self.now += ns

    def sleep(self, seconds: float) -> None:
        self.now += int(1e9 * seconds)

    # the stream of the device

    def mark(self) -> int:
        return max(self.now, self.free)

    def hold(self, ns: int) -> None:
        self.free = max(self.free, self.now) + ns

    def reached(self, mark: int) -> bool:
        return mark <= self.now

    def elapsed(self, start: int, end: int) -> int:
        return max(5 * MS, end - start)

    def drain(self) -> None:
        self.now = max(self.now, self.free)

    def capture(self, action: Callable[[], object]) -> Callable[[], object]:
        return action


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    timers = SimpleNamespace(
        perf_counter=lambda: made.now / 1e9, perf_counter_ns=lambda: made.now, sleep=made.sleep
    )
    for module in (measure, device_clock):
        monkeypatch.setattr(module, "clock", lambda: made.now)
    monkeypatch.setattr(measure, "time", timers)
    monkeypatch.setattr(steps, "time", timers)
    return made


class Watched:
    """A GPU that is held back in some of the readings: by default in all."""

    def __init__(self, clock: Clock, reads_well: Callable[[int], bool] = lambda number: False):
        self._clock, self._reads_well, self._readings = clock, reads_well, 0

    def read(self) -> GpuState:
        self._clock.spend(WATCHED_NS)
        self._readings += 1
        well = self._reads_well(self._readings)
        return GpuState(index=0, name="x", throttle=() if well else ("hw_thermal_slowdown",))

    def close(self) -> None:
        """Nothing is held."""


class Late(Sync):
    """A start for which this rank is late, every time."""

    def __call__(self) -> bool:
        return True


class HalfLate(Sync):
    """A start for which this rank is late every other time."""

    late = False

    def __call__(self) -> bool:
        self.late = not self.late
        return self.late


class Result(NamedTuple):
    measured: Measured
    seconds: float


def protocol(
    clock: Clock,
    policy: Policy,
    mode: str = "isolated",
    call_ns: int = MS,
    guard: Guard | None = None,
    sync: type[Sync] = Sync,
    job: Job | None = None,
    device: bool = False,
    first_ns: int | None = None,
    least_ns: int = 0,
) -> Result:
    def make(inner: int) -> Sampler:
        calls = [(lambda: clock.spend(call_ns), (0,))]
        stream: Any = clock
        if device and mode == "graph":
            return GraphSampler(stream, calls, inner, ALONE, do_nothing)
        if device:
            return DeviceSampler(stream, calls, inner, ALONE, do_nothing)
        return Sampler(calls, inner, ALONE, do_nothing)

    started = sync("none", ALONE, None)
    steps = Protocol(policy, ALONE, started, make, mode, job, guard, least_ns=least_ns)
    began = clock.now
    found, _ = without_pause(steps.run(call_ns if first_ns is None else first_ns, do_nothing))
    assert found is not None
    return Result(found, (clock.now - began) / 1e9)


def quiet(clock: Clock) -> Guard:
    """The guard of a GPU that is never held back."""
    return Guard(Watched(clock, lambda number: True), clock.sleep)


def limited(seconds: float, **more: Any) -> Policy:
    return Policy(max_seconds=seconds, **more).resolved(False)


MODES = pytest.mark.parametrize("mode", ["isolated", "streaming", "host"])
LIMITS = pytest.mark.parametrize("limit", [0.05, 0.2, 2.0, 10.0])
CALLS = pytest.mark.parametrize("call_ns", [10_000, MS, 60 * MS, 700 * MS])


def longest(limit: float, call_ns: int, mode: str) -> float:
    """Three times the time of a case, and one call: in a stream a sample of 20, and of a graph
    that which goes before all samples, too."""
    calls = {"streaming": 20, "graph": 2}.get(mode, 1)
    return 3 * limit + calls * call_ns / 1e9


@MODES
@LIMITS
@CALLS
def test_a_gpu_that_is_held_back_for_good_ends_a_case_in_time(
    clock: Clock, mode: str, limit: float, call_ns: int
) -> None:
    guard = Guard(Watched(clock), clock.sleep)
    found, seconds = protocol(clock, limited(limit), mode, call_ns, guard)
    assert found.samples.durations.size == 0
    assert seconds <= longest(limit, call_ns, mode)


@MODES
@LIMITS
@CALLS
def test_ranks_that_are_never_in_time_end_a_case_in_time(
    clock: Clock, mode: str, limit: float, call_ns: int
) -> None:
    found, seconds = protocol(clock, limited(limit), mode, call_ns, sync=Late)
    assert found.samples.durations.size == 0 and list(found.invalid) == ["late start"]
    assert seconds <= longest(limit, call_ns, mode)


@LIMITS
@pytest.mark.parametrize("call_ns", [20 * MS, 60 * MS, 300 * MS])
@pytest.mark.parametrize("mode", ["isolated", "graph"])
def test_calls_that_cannot_be_launched_ahead_end_a_case_in_time(
    clock: Clock, mode: str, limit: float, call_ns: int
) -> None:
    """They take the host as long as the stream is held, at least."""
    found, seconds = protocol(clock, limited(limit), mode, call_ns, device=True)
    assert seconds <= longest(limit, call_ns, mode)
    if call_ns > device_clock.HOLD_MOST_NS:
        assert list(found.invalid) == ["launch-limited"] and not found.samples.durations.size


def test_warming_up_takes_a_quarter_of_the_time_though_its_first_call_was_quick(
    clock: Clock,
) -> None:
    """Thirty samples would show that times have settled."""
    calls = [(lambda: clock.spend(30 * MS), (0,))]
    policy, sync = limited(2.0), Sync("none", ALONE, None)
    steps = Protocol(
        policy, ALONE, sync, lambda inner: Sampler(calls, 1, ALONE, do_nothing), "host"
    )
    number, *_ = steps._warm(steps._make(1), MS)
    assert number == 17  # 0.51 s


@pytest.mark.parametrize(("call_ns", "inner"), [(10_000, 200), (MS, 2), (60 * MS, 1)])
def test_a_sample_takes_as_long_as_it_must(clock: Clock, call_ns: int, inner: int) -> None:
    found, _ = protocol(clock, limited(2.0), call_ns=call_ns, least_ns=2 * MS)
    assert found.inner == inner


@MODES
@pytest.mark.parametrize("first_ns", [15 * MS, 300 * MS, 5000 * MS])
def test_a_first_call_that_was_slow_for_another_cause_is_warmed_up_after(
    clock: Clock, mode: str, first_ns: int
) -> None:
    """As a library connects ranks, or loads its code, in it."""
    found, seconds = protocol(clock, limited(0.2), mode, 10_000, first_ns=first_ns)
    usual, _ = protocol(clock, limited(0.2), mode, 10_000)
    assert found.warmup >= usual.warmup >= measure.WARM_MIN_N and found.inner == usual.inner
    assert found.stop == usual.stop == "converged" and seconds <= longest(0.2, 10_000, mode)
    assert found.samples.durations.shape == usual.samples.durations.shape


@pytest.mark.parametrize("mode", ["isolated", "host"])
def test_calls_that_all_take_longer_than_their_case_are_made_once(clock: Clock, mode: str) -> None:
    """The sample that shows that the first call was none of its own is the one that counts."""
    found, seconds = protocol(clock, limited(0.2), mode, 700 * MS, guard=quiet(clock))
    assert found.warmup == 0 and found.samples.durations.shape == (1, 1) and seconds < 0.8


def test_a_rank_without_the_samples_goes_by_the_second_call_that_rank_0_saw(clock: Clock) -> None:
    """Which it needs to be finite."""

    class Follower(Control):
        def decide(self, values: list[int]) -> list[int]:
            return [0, 5 * MS][: len(values)]

    class Unseen(Sampler):
        def take(self, number: int, sync: Sync) -> None:
            super().take(number, sync)

    follower = Follower(0, 1)
    sampler = Unseen([(lambda: clock.spend(MS), (0,))], 1, follower, do_nothing)
    sync = Sync("none", follower, None)
    seen = Protocol(limited(0.2), follower, sync, lambda inner: sampler, "isolated")
    assert without_pause(seen._look_again(sampler)) == (None, 5 * MS)


@pytest.mark.parametrize(("call_ns", "begins"), [(700 * MS, 1), (MS, 2)])
def test_what_is_measured_begins_with_the_first_sample_that_counts(
    clock: Clock, call_ns: int, begins: int
) -> None:
    """What goes on in the background is told of from then on."""
    times: list[int] = []
    steps = Protocol(
        limited(0.2),
        ALONE,
        Sync("none", ALONE, None),
        lambda inner: Sampler([(lambda: clock.spend(call_ns), (0,))], inner, ALONE, do_nothing),
        "isolated",
    )
    found, _ = without_pause(steps.run(700 * MS, lambda: times.append(clock.now)))
    assert found is not None and len(times) == begins
    assert times[-1] <= found.samples.starts.min()


@pytest.mark.parametrize("first_ns", [15 * MS, 300 * MS])
def test_without_warm_up_the_first_call_does_not_say_how_many_make_a_sample(
    clock: Clock, first_ns: int
) -> None:
    found, _ = protocol(clock, limited(0.2, warmup=0), call_ns=10_000, first_ns=first_ns)
    usual, _ = protocol(clock, limited(0.2), call_ns=10_000)
    assert found.warmup == 0 and found.inner == usual.inner > 1


def count_calls(
    clock: Clock, warmup: int, cold_ns: int, call_ns: int, inner: int | None = None
) -> tuple[Measured, int]:
    """What comes of three samples, the first call on which took longer; and the calls made."""
    calls: list[int] = []

    def call() -> None:
        clock.spend(call_ns if calls else cold_ns)
        calls.append(clock.now)

    steps = Protocol(
        limited(2.0, iters=3, warmup=warmup),
        ALONE,
        Sync("none", ALONE, None),
        lambda inner: Sampler([(call, (0,))], inner, ALONE, do_nothing),
        "host",
        Job(Case(collective="barrier", backend="gloo", n=1, nbytes=0), 1, "cold", inner=inner),
    )
    found, _ = without_pause(steps.run(15 * MS, do_nothing))
    assert found is not None
    return found, len(calls)


@pytest.mark.parametrize("cold_ns", [10_000, 60 * MS])
def test_without_warm_up_no_sample_is_taken_where_calls_are_given(
    clock: Clock, cold_ns: int
) -> None:
    found, made = count_calls(clock, 0, cold_ns, 10_000, inner=4)
    assert (found.warmup, found.inner, made) == (0, 4, 3 * 4)


def test_one_cold_sample_of_warm_up_does_not_say_how_many_calls_make_a_sample(clock: Clock) -> None:
    found, _ = count_calls(clock, 1, cold_ns=15 * MS, call_ns=10_000)
    assert found.warmup == 1 and found.inner > 1


@pytest.mark.parametrize(("warmup", "calls"), [(0, 4), (1, 4), (2, 5), (9, 12)])
def test_calls_that_take_long_are_hardly_made_more_often_than_asked_for(
    clock: Clock, warmup: int, calls: int
) -> None:
    found, made = count_calls(clock, warmup, cold_ns=60 * MS, call_ns=60 * MS)
    assert (found.warmup, made) == (warmup, calls)


def test_the_first_block_is_as_long_as_warming_up_says(clock: Clock) -> None:
    """Of samples that the device says are short, and the host took long to issue."""
    clock.elapsed = lambda start, end: 5 * MS  # type: ignore[method-assign]
    found, seconds = protocol(clock, limited(0.8), call_ns=140 * MS, device=True)
    assert found.invalid["launch-limited"] < 10 and seconds <= 3 * 0.8


@LIMITS
@pytest.mark.parametrize("least", [1, 6, 20])
@pytest.mark.parametrize("every", [2, 3, 10])
def test_one_valid_block_in_a_few_ends_a_case_in_time(
    clock: Clock, limit: float, least: int, every: int
) -> None:
    guard = Guard(Watched(clock, lambda number: number % every == 0), clock.sleep)
    job = Job(Case(collective="barrier", backend="gloo", n=1, nbytes=0), 1, "cold", least=least)
    policy, call_ns = limited(limit), int(limit * 1e9 / 4)
    assert protocol(clock, policy, call_ns=call_ns, guard=guard, job=job).seconds <= longest(
        limit, call_ns, "isolated"
    )


def test_so_many_samples_as_asked_for_may_take_three_times_their_time_with_pauses(
    clock: Clock,
) -> None:
    """Where -n fixes their number, that is the limit, not --max-time."""
    policy = limited(0.2, iters=50, warmup=1)
    found, seconds = protocol(
        clock, policy, call_ns=60 * MS, guard=Guard(Watched(clock), clock.sleep)
    )
    assert found.samples.durations.size == 0
    assert 0.2 * 3 < seconds <= 3 * 50 * 0.060


def test_so_many_samples_as_asked_for_are_taken_though_they_take_long(clock: Clock) -> None:
    policy = limited(0.2, iters=50, warmup=1)
    found, _ = protocol(clock, policy, call_ns=60 * MS)
    assert found.samples.durations.shape == (1, 50) and found.stop == "fixed"


def test_a_case_that_had_to_wait_for_its_gpu_has_the_samples_of_any_other(clock: Clock) -> None:
    guard = Guard(Watched(clock, lambda number: number > 4), clock.sleep)
    found, seconds = protocol(clock, limited(2.0), guard=guard)
    assert found.stop == "converged" and found.invalid.keys() == {"throttled"}
    assert found.samples.durations.size >= 20 and seconds < 2


def test_after_two_cases_without_a_valid_sample_one_block_tells(clock: Clock) -> None:
    streak = Streak()
    tried = []
    for _ in range(4):
        guard = Guard(Watched(clock), clock.sleep, streak)
        found, seconds = protocol(clock, limited(2.0), guard=guard)
        tried.append((seconds > 2, list(found.hopeless)))
    assert tried == [(True, []), (True, []), (False, [0]), (False, [0])]
    assert seconds < 1
    note = fail_without_samples(found.invalid, "", found.hopeless).reason
    assert note == (
        "no valid sample (10 x throttled); only one block was tried: the 2 cases before had no"
        " valid sample either, as GPUs of rank 0 were held back;"
        " nvidia-smi -q -d PERFORMANCE says what holds the GPU back"
    )


def test_a_gpu_that_has_become_cool_is_measured_in_full(clock: Clock) -> None:
    """Though half of the first block is late, as half of all samples are."""
    streak = Streak()
    streak.count = 2
    guard = Guard(Watched(clock, lambda number: True), clock.sleep, streak)
    found, _ = protocol(clock, limited(0.2), guard=guard, sync=HalfLate)
    assert list(found.hopeless) == [0] and found.stop == "converged"


def test_a_valid_sample_has_the_next_case_tried_for_longer_again(clock: Clock) -> None:
    streak = Streak()
    for _ in range(2):
        protocol(clock, limited(0.2), guard=Guard(Watched(clock), clock.sleep, streak))
    cool = Guard(Watched(clock, lambda number: True), clock.sleep, streak)
    found, _ = protocol(clock, limited(0.2), guard=cool)
    assert list(found.hopeless) == [0] and found.stop == "converged"
    assert not Guard(None, streak=streak).is_hopeless


def test_late_ranks_are_no_reason_to_give_up_the_next_case(clock: Clock) -> None:
    streak = Streak()
    for _ in range(3):
        guard = Guard(Watched(clock, lambda number: True), clock.sleep, streak)
        found, _ = protocol(clock, limited(0.2), guard=guard, sync=Late)
        assert not found.samples.durations.size and not found.hopeless


# Steps of training


class Rounds(NamedTuple):
    """Why rounds ended, and after how many seconds; how many count, and how many a GPU spoiled."""

    stop: str
    seconds: float
    valid: int
    throttled: int


def rounds(
    clock: Clock,
    policy: Policy,
    round_ns: int,
    late: Callable[[int], bool],
    guard: Guard | None = None,
) -> Rounds:
    """The rounds of a step, of which the ``late`` ones are lost."""
    trial = steps.StepTrial.__new__(steps.StepTrial)
    trial._policy, trial._control = policy, ALONE
    trial._job = SimpleNamespace(samples=None, seconds=None)  # type: ignore[assignment]
    trial._look = trial._throttled = trial._vouched = 0
    trial._looked, trial._usable = 0.0, []
    taken: list[list[Samples]] = []
    stop = 0
    while not stop:
        number = len(taken)
        clock.spend(round_ns)
        ends = np.array([[round_ns // 3 + number % 7]])
        none, mark = np.zeros((1, 1), int), np.array([late(number)])
        part = Samples(none, ends, mark, np.zeros(1, int), none)
        trial._add_round(taken, [part] * len(PARTS))
        stop = trial._enough(taken, clock.now / 1e9)
        if guard and trial._discard_throttled(guard, taken, stop > 0):
            stop = trial._enough(taken, clock.now / 1e9)
    valid = sum(not part.late.any() for part, *_ in taken)
    return Rounds(measure.STOPS[stop], clock.now / 1e9, valid, trial._throttled)


@LIMITS
@pytest.mark.parametrize("round_ns", [10 * MS, 500 * MS, 5000 * MS])
def test_a_step_whose_rounds_are_all_late_ends_in_time(
    clock: Clock, limit: float, round_ns: int
) -> None:
    """Its parts are a case each."""
    stop, seconds, *_ = rounds(clock, limited(limit), round_ns, lambda number: True)
    assert stop in ("budget", "max_n")
    assert seconds <= len(PARTS) * 3 * limit + round_ns / 1e9


def test_a_step_with_some_late_rounds_has_enough_of_others(clock: Clock) -> None:
    stop, *_ = rounds(clock, limited(2.0), 100 * MS, lambda number: number % 3 == 0)
    assert stop in ("converged", "budget")


@LIMITS
@pytest.mark.parametrize("round_ns", [10 * MS, 500 * MS, 5000 * MS])
def test_a_step_whose_gpu_is_held_back_for_good_ends_in_time(
    clock: Clock, limit: float, round_ns: int
) -> None:
    guard = Guard(Watched(clock), clock.sleep)
    step = rounds(clock, limited(limit), round_ns, lambda number: False, guard)
    assert step.stop == "budget" and step.throttled and not step.valid
    lost = round_ns / 1e9 + MOST_PAUSE_S + WATCHED_NS / 1e9
    assert step.seconds <= len(PARTS) * 3 * limit + lost


def test_a_step_whose_gpu_is_held_back_for_a_while_has_rounds_of_the_rest(clock: Clock) -> None:
    guard = Guard(Watched(clock, lambda number: number not in (2, 3)), clock.sleep)
    step = rounds(clock, limited(2.0), 100 * MS, lambda number: False, guard)
    assert step.stop == "converged" and step.valid >= steps.LEAST and step.throttled


def test_a_step_that_converges_as_its_gpu_is_held_back_goes_on(clock: Clock) -> None:
    """The first look is the one before the end."""
    guard = Guard(Watched(clock, lambda number: number != 2), clock.sleep)
    step = rounds(clock, limited(10.0), 10 * MS, lambda number: False, guard)
    assert step.stop == "converged" and step.throttled >= steps.LEAST <= step.valid


@pytest.mark.parametrize(
    ("discarded", "note"),
    [
        ({"disturbed": 9}, "(9 x disturbed); something else had these cores, or their frequency"),
        ({"late start": 3, "disturbed": 9}, "(3 x late start, 9 x disturbed); try --sync barrier"),
        ({}, "(none was taken in time); try --sync barrier"),
    ],
)
def test_a_case_without_samples_says_why(discarded: dict[str, int], note: str) -> None:
    assert note in fail_without_samples(discarded, "--sync barrier").reason


def test_a_case_without_a_valid_sample_names_the_gpu_that_was_held_back() -> None:
    calm = GpuState(index=3, name="x", throttle=("sw_power_cap",))
    hot = GpuState(index=5, name="x", throttle=("hw_thermal_slowdown",))
    note = fail_without_samples({"throttled": 5}, "", gpus={0: calm, 1: hot}).reason
    assert "rank 1: GPU 5 was held back (hw_thermal_slowdown)" in note
    assert "rank 0" not in note
