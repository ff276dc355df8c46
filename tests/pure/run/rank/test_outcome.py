"""The times of each group of ranks that are measured at once, judged by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collbench.records.types import Stop
from collbench.run.rank.measure import Measured, Samples
from collbench.run.rank.outcome import Timing, select_timing
from collbench.suite.case import Case
from collbench.suite.policy import Policy

CASE = Case(collective="all_reduce", backend="gloo", n=2, nbytes=64, groups="div:2", of=2)
POLICY = Policy().resolved(False)
GROUPS = ((0, 1), (2, 3))
N = 200
SLOW = np.full(N, 1_000_000)
WIDE = np.tile([10_000, 20_000], N // 2)
NARROW = np.full(N, 10_000)


def measured(*by_group: np.ndarray, stop: Stop = "converged", **more: Any) -> Measured:
    """What two groups of two ranks each took, in ns."""
    ends = np.repeat(np.array(by_group, np.int64), 2, axis=0)
    zeros = np.zeros_like(ends)
    samples = Samples(zeros, ends, np.zeros(N, bool), np.zeros(4, np.int64), zeros)
    how = 1, 30, True, stop, "window", {}, 0, "host", [], None
    return Measured(samples, *how, **more)  # type: ignore[arg-type]


def select(found: Measured, common: Any = None) -> list[Timing]:
    return [select_timing(CASE, found, common, ranks, POLICY) for ranks in GROUPS]


@pytest.mark.parametrize(
    ("stop", "of_narrow", "of_wide"),
    [
        ("converged", "converged", "budget"),
        ("budget", "converged", "budget"),
        ("max_n", "converged", "max_n"),
        ("fixed", "fixed", "fixed"),
    ],
)
def test_a_group_has_converged_if_its_own_interval_is_narrow(
    stop: Stop, of_narrow: Stop, of_wide: Stop
) -> None:
    stops = [timing.stop for timing in select(measured(SLOW, WIDE, stop=stop))]
    assert stops == [of_narrow, of_wide]


def test_ranks_that_are_no_groups_stop_as_they_were_told() -> None:
    found = measured(WIDE, WIDE, stop="converged")
    assert select_timing(CASE, found, None, range(4), POLICY).stop == "converged"


class CoarseClock:
    """A common clock that is good enough for samples of more than 100 us."""

    error_ns = 2000

    def explain_inaccuracy(self, sample_ns: float) -> str:
        return "too coarse" if sample_ns < 100_000 else ""

    def converted(self, times: np.ndarray) -> np.ndarray:
        return times


def test_a_group_whose_times_are_too_short_for_the_clock_has_no_starts() -> None:
    slow, quick = select(measured(SLOW, NARROW), CoarseClock())
    assert slow.starts and slow.spans and slow.clock_error == 2000
    assert not quick.starts and not quick.spans


def test_how_long_hosts_waited_is_that_of_the_group() -> None:
    timings = select(measured(SLOW, NARROW, waited=[0.5, 0.4, 0.1, 0.2]))
    assert [timing.waited for timing in timings] == [0.4, 0.1]
