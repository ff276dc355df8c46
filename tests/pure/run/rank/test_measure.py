"""What is measured of a call path, by a clock that is made up; and when ranks meet that nothing
aligns."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest

from collbench.records.types import Scheme
from collbench.run.backends import do_nothing
from collbench.run.rank import measure
from collbench.run.rank.calibration import Blocks
from collbench.run.rank.control import Control
from collbench.run.rank.measure import Protocol, Sampler, Samples, Sync, _Pace
from collbench.suite.policy import Policy
from tests.helpers.steps import without_pause


class LoggedControl(Control):
    """The control of a single rank, which writes down that ranks meet."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(0, 1)
        self._log = log

    def barrier(self) -> None:
        self._log.append("barrier")


def test_a_call_path_is_that_of_one_call_after_as_long_a_wait_as_samples_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, called_at = 0, []

    def clock() -> int:
        nonlocal now
        now += 30
        return now

    def call() -> None:
        nonlocal now
        called_at.append(now)
        now += 500

    monkeypatch.setattr(measure, "clock", clock)
    assert measure.bare_ns(call, 3) == (3 * 500 + 30) // 3
    assert len(called_at) % 3 == 0
    firsts = called_at[::3]
    assert all(b - a > measure.WINDOW_NS for a, b in pairwise(firsts))


def sampled(scheme: Scheme, freshens: bool) -> str:
    """What a sampler of two buffers does around three samples."""
    log: list[str] = []
    control = LoggedControl(log)
    calls = [(lambda: log.append("call"), (slot,)) for slot in range(2)]
    sampler = Sampler(
        calls,
        1,
        control,
        do_nothing,
        (lambda slot: log.append(f"fill {slot}")) if freshens else None,
        lambda: log.append("finish"),
    )
    sampler.take(3, Sync(scheme, control, None, after=lambda: log.append("start")))
    return " ".join(log)


def test_unaligned_ranks_meet_once_inputs_are_put_back() -> None:
    first, later = "finish start call finish", "fill {} finish barrier start call finish"
    assert sampled("none", True) == " ".join([first, later.format(0), later.format(1)])


def test_ranks_that_are_aligned_anyway_do_not_meet_twice() -> None:
    assert sampled("barrier", True).count("barrier") == 3


def test_unaligned_calls_follow_each_other_where_no_input_is_put_back() -> None:
    assert "barrier" not in sampled("none", False)


@pytest.mark.parametrize(("scheme", "meetings"), [("none", 2), ("device", 0)])
def test_unaligned_ranks_meet_before_a_block(
    monkeypatch: pytest.MonkeyPatch, scheme: Scheme, meetings: int
) -> None:
    """What they do between blocks takes them unequally long."""
    log: list[str] = []
    control = LoggedControl(log)
    monkeypatch.setattr(Blocks, "before", lambda blocks: log.append("look"))
    policy = Policy(iters=20, precision=0.05, max_seconds=1.0)
    sync = Sync(scheme, control, None)
    calls = [(lambda: log.append("call"), (0,))]
    sampler = Sampler(calls, 1, control, do_nothing)
    protocol = Protocol(policy, control, sync, lambda inner: sampler, "host", in_turns=True)
    without_pause(protocol._measure(sampler, _Pace(1.5e6, 1.5e6, 1.5e6)))
    blocks = " ".join(log).split("look")
    assert len(blocks) == 3  # of at most 20 ms
    assert sum(block.startswith(" barrier call") for block in blocks) == meetings


@pytest.mark.parametrize(("asked", "valid"), [("auto", 10), ("window", 0)])
def test_samples_that_all_begin_too_late_are_followed_by_some_that_begin_at_a_barrier(
    asked: Literal["auto", "window"], valid: int
) -> None:
    """Another process may have come since the calls that warmed up."""
    control = Control(0, 1)

    class Late(Sync):
        def _meet(self) -> bool:
            return self.scheme == "window"

    policy = Policy(iters=10, precision=0.05, max_seconds=5.0, sync=asked)
    sync = Late("window", control, None)
    sampler = Sampler([(do_nothing, (0,))], 1, control, do_nothing)
    protocol = Protocol(policy, control, sync, lambda inner: sampler, "host")
    samples, *_ = without_pause(protocol._measure(sampler, _Pace(1e6, 1e6, 1e6)))
    assert samples is not None
    assert int((~samples.late).sum()) == valid
    assert sync.scheme == ("barrier" if asked == "auto" else "window")


@pytest.mark.parametrize(("iters", "scheme"), [(10, "window"), (1, "barrier")])
def test_one_late_sample_of_some_long_ones_is_no_reason_for_a_barrier(
    iters: int, scheme: Scheme
) -> None:
    control, late = Control(0, 1), [True]

    class LateOnce(Sync):
        def _meet(self) -> bool:
            return bool(late and late.pop())

    sync = LateOnce("window", control, None)
    sampler = Sampler([(do_nothing, (0,))], 1, control, do_nothing)
    policy = Policy(iters=iters, precision=0.05, max_seconds=5.0)
    protocol = Protocol(policy, control, sync, lambda inner: sampler, "host")
    without_pause(protocol._measure(sampler, _Pace(1e9, 1e9, 1e9)))
    assert sync.scheme == scheme


def samples_of(*by_rank: np.ndarray) -> Samples:
    """Samples of ranks, in ns."""
    ends = np.array(by_rank, np.int64)
    zeros = np.zeros_like(ends)
    return Samples(zeros, ends, np.zeros(ends.shape[1], bool), np.zeros(2, np.int64), zeros)


def make_protocol(sampler: Any = None, groups: bool = False, sync: Sync | None = None) -> Protocol:
    """A protocol of ranks of which each is a group, or all are one."""
    control = Control(0, 1)
    return Protocol(
        Policy().resolved(False),
        control,
        sync or Sync("none", control, None),
        lambda inner: sampler,
        "isolated",
        group_times=(lambda samples: [*samples.durations]) if groups else None,
    )


def next_block(*by_rank: np.ndarray, groups: bool) -> tuple[int, int]:
    """What a protocol decides by such samples."""
    return make_protocol(groups=groups)._next_block(samples_of(*by_rank), 0.5, 1000, 3.0)


def test_a_case_goes_on_until_the_times_of_each_group_have_converged() -> None:
    slow, wide = np.full(300, 10**6), np.tile([10_000, 20_000], 150)
    converged = 0, measure.STOPS.index("converged")
    assert next_block(slow, wide, groups=False) == converged
    assert next_block(slow, slow, groups=True) == converged
    size, stop = next_block(slow, wide, groups=True)
    assert size > 0 and stop == 0


class Wandering:
    """A sampler of two ranks, of which the second is quicker, and takes longer each time."""

    inner = 1

    def __init__(self) -> None:
        self._taken = 0

    def take(self, count: int, sync: Sync) -> Samples:
        self._taken += count
        rising = np.arange(self._taken - count, self._taken)
        return samples_of(np.full(count, 10**6), 10_000 + 1000 * rising)


@pytest.mark.parametrize(("groups", "steady"), [(False, True), (True, False)])
def test_times_have_settled_where_those_of_each_group_have(groups: bool, steady: bool) -> None:
    _, _, settled, _ = make_protocol(Wandering(), groups)._warm(Wandering(), 10**6)  # type: ignore[arg-type]
    assert settled is steady


class CoarseClock:
    """A common clock that is good enough for samples of more than 500 us."""

    def explain_inaccuracy(self, sample_ns: float) -> str:
        return "too coarse" if sample_ns < 500_000 else ""

    def meet(self) -> bool:
        return False


class Quick(Wandering):
    """A sampler of two ranks of which the second is quicker."""

    def take(self, count: int, sync: Sync) -> Samples:
        return samples_of(np.full(count, 10**6), np.full(count, 10_000))

    def repeats(self, call_ns: float) -> int:
        return 1


@pytest.mark.parametrize(("groups", "scheme"), [(False, "window"), (True, "barrier")])
def test_a_window_that_is_too_coarse_for_the_quickest_group_is_refused(
    groups: bool, scheme: Scheme
) -> None:
    common: Any = CoarseClock()
    sync = Sync("window", Control(0, 1), None, common=common)
    steps = make_protocol(Quick(), groups, sync).run(10**6, do_nothing)
    next(steps)  # up to the first block
    assert sync.scheme == scheme
