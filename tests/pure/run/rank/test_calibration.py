"""Which blocks of samples are measured again, by calibrations that are made up."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from collbench.run.launch import board
from collbench.run.launch.board import Board
from collbench.run.rank import calibration
from collbench.run.rank.calibration import CAUSES, FEWEST, MOST, Blocks, Calibrator, read_signs
from collbench.run.rank.control import Control
from collbench.run.rank.measure import Protocol, Samples, Sync, _Pace
from collbench.suite.policy import Policy

USUAL = (0, 0, 0, 100_000, 20_000, 300)  # steal, delay, threads' work, ns of each kind
KINDS = ("steal", "delay", "threads", "arithmetic", "copy", "round_trip")
OFF = {
    "steal": {"steal": 200_000},
    "other processes": {"delay": 300_000},
    "frequency": {"arithmetic": 150_000, "copy": 30_000, "round_trip": 450},
    "memory": {"copy": 30_000},
    "caches": {"round_trip": 600},
}


def told(**off: int) -> np.ndarray:
    """What two ranks tell of a block, in which rank 1 is not as usual."""
    usual = dict(zip(KINDS, USUAL, strict=True))
    return np.array([list(usual.values()), list((usual | off).values())])


def some(calibrator: Calibrator, blocks: Sequence[np.ndarray], planned: int = 100) -> Blocks:
    case = Blocks(calibrator, planned)
    for each in blocks:
        case.judge(each)
    return case


@pytest.fixture
def calibrator() -> Calibrator:
    return Calibrator(Control(0, 1), board_of(1), lambda: 0.0, False)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_block_is_replaced_and_counted_by_what_was_seen_beside_it(
    calibrator: Calibrator, cause: str
) -> None:
    case = some(calibrator, [told()] * 20)
    assert case.judge(told(**OFF[cause])) == [20]
    assert case.summary and case.summary.replaced == {cause: 1}
    assert case.summary.blocks == 21


def test_the_other_speed_of_a_cache_is_as_unusual_where_it_is_the_faster(
    calibrator: Calibrator,
) -> None:
    case = some(calibrator, [told()] * 20)
    assert case.judge(told(round_trip=150)) == [20]


def test_less_steal_than_usual_disturbs_nothing(calibrator: Calibrator) -> None:
    case = some(calibrator, [told(steal=400_000)] * 20)
    assert case.judge(told()) == []


def test_nothing_is_replaced_before_it_is_known_what_is_usual_and_then_what_was_not(
    calibrator: Calibrator,
) -> None:
    case = some(calibrator, [told(copy=60_000), *[told()] * (FEWEST - 2)])
    assert case.summary and case.summary.replaced == {}
    assert case.judge(told()) == [0]


def test_small_differences_disturb_nothing(calibrator: Calibrator) -> None:
    case = some(calibrator, [told()] * 20)
    assert case.judge(told(arithmetic=115_000, copy=18_000, round_trip=330, steal=40_000)) == []


def test_a_speed_that_is_nearly_as_frequent_is_as_usual(calibrator: Calibrator) -> None:
    case = some(calibrator, [told(round_trip=ns) for ns in (300, 600) * 20])
    assert case.summary and case.summary.replaced == {}


def test_no_more_than_half_of_what_was_planned_is_replaced_and_the_rest_is_said(
    calibrator: Calibrator,
) -> None:
    some(calibrator, [told()] * 30)
    case = some(calibrator, [told(copy=60_000)] * 8, planned=10)
    assert case.summary and case.summary.replaced == {"memory": 5}
    assert case.summary.left == {"memory": 3}


def test_a_single_block_may_be_replaced_once(calibrator: Calibrator) -> None:
    some(calibrator, [told()] * 30)
    case = some(calibrator, [told(copy=60_000)] * 2, planned=1)
    assert case.summary and (case.summary.replaced, case.summary.left) == (
        {"memory": 1},
        {"memory": 1},
    )


def test_a_case_that_is_held_up_by_itself_throughout_is_not_disturbed(
    calibrator: Calibrator,
) -> None:
    some(calibrator, [told()] * 30)
    case = some(calibrator, [told(delay=400_000)] * 10)
    assert case.summary and case.summary.replaced == {}


@pytest.mark.parametrize(("cramped", "others"), [(False, 0.3), (True, 0.1)])
def test_what_the_ranks_own_threads_had_was_not_others(cramped: bool, others: float) -> None:
    seen = read_signs(np.array([[0, 0, 200_000, 1, 1, 1], [0, 500_000, 200_000, 1, 1, 1]]), cramped)
    assert seen[1, CAUSES.index("other processes")] == pytest.approx(others)


def test_what_nobody_can_tell_is_not_judged(calibrator: Calibrator) -> None:
    case = some(calibrator, [told(**dict.fromkeys(KINDS, -1))] * 20)
    assert case.judge(told(**OFF["caches"])) == []
    unknown = some(calibrator, [told()] * MOST)
    assert unknown.judge(told(**dict.fromkeys(KINDS, -1))) == []


def test_medians_are_of_the_slowest_rank_and_of_what_is_known(calibrator: Calibrator) -> None:
    case = some(calibrator, [told(copy=25_000, round_trip=-1)] * 3)
    assert case.summary
    assert case.summary.copy_ns == 25_000
    assert case.summary.round_trip_ns == 300


def test_ranks_without_a_calibrator_keep_all_blocks_and_tell_nothing() -> None:
    case = Blocks(None)
    case.before()
    assert case.after() == []
    assert case.summary is None


# in the protocol, with one rank


class Scripted(Calibrator):
    """A calibrator that looks at nothing and tells what it was given."""

    def __init__(self, script: list[np.ndarray]) -> None:
        self.cramped, self.launch, self._script = False, calibration.deque(maxlen=MOST), script

    def before(self) -> None:
        pass

    def after(self) -> np.ndarray:
        return self._script.pop(0) if self._script else told()[:1]


class Taker:
    """A sampler whose n-th block has samples of n ms, or of a second where n is in ``slow``."""

    def __init__(self, slow: Sequence[int] = ()) -> None:
        self._taken, self._slow = 0, slow

    def take(self, count: int, sync: Any) -> Samples:
        zeros = np.zeros((1, count), np.int64)
        ends = zeros + (10**9 if self._taken in self._slow else 10**6 * self._taken)
        self._taken += 1
        return Samples(zeros, ends, np.zeros(count, bool), np.ones(1, np.int64), zeros)


def measured(script: list[np.ndarray], taker: Taker) -> tuple[Samples, Protocol]:
    """40 samples in blocks of 10, of a launch in which all has been as usual."""
    calibrator, control = Scripted(script), Control(0, 1)
    calibrator.launch.extend([read_signs(told()[:1], False)] * 30)
    protocol = Protocol(
        Policy(iters=40, precision=0.05, max_seconds=1.0),
        control,
        Sync("none", control, None),
        lambda inner: taker,  # type: ignore[arg-type, return-value]
        "isolated",
        in_turns=True,
        calibrator=calibrator,
    )
    steps = protocol._measure(taker, _Pace(1.8e6, 1.8e6, 1.8e6))  # type: ignore[arg-type]
    while True:
        try:
            next(steps)
        except StopIteration as end:
            samples, *_ = end.value
            return samples, protocol


def test_samples_of_a_disturbed_block_are_measured_again() -> None:
    samples, protocol = measured([told()[:1], told(steal=300_000)[1:]], Taker())
    assert sorted(set(samples.times // 10**6)) == [0, 2, 3, 4]
    assert len(samples.times) == 40
    assert samples.switches == [4]
    assert protocol._blocks.summary and protocol._blocks.summary.replaced == {"steal": 1}


def test_no_sample_is_replaced_for_its_value() -> None:
    samples, protocol = measured([], Taker(slow=[1, 2]))
    assert list(samples.times[10:30]) == [10**9] * 20
    assert protocol._blocks.summary and protocol._blocks.summary.replaced == {}


# a word's way between two ranks


def board_of(n: int) -> Board:
    made, fd = Board.create(n)
    os.close(fd)
    return made


def test_a_word_goes_to_the_next_rank_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "LOOKS", 10**7)  # threads take turns, a few ms each
    both = board_of(2)
    other = threading.Thread(target=both.pingpong, args=(1, 0, False, 3, 4))
    other.start()
    took = both.pingpong(0, 1, True, 3, 4)
    other.join()
    assert len(took) == 3 and min(took) > 0


def test_nobody_waits_for_a_rank_that_does_not_look_nor_takes_it_for_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board, "LOOKS", 3)
    both = board_of(2)
    assert both.pingpong(0, 1, True, 3, 4) == []
    assert both.pingpong(1, 0, False, 3, 4) == []  # late: the other has given up
    other = threading.Thread(target=both.pingpong, args=(1, 0, False, 3, 4))
    monkeypatch.setattr(board, "LOOKS", 10**7)
    other.start()
    took = both.pingpong(0, 1, True, 3, 4)
    other.join()
    assert len(took) == 3  # and the next time they meet again
