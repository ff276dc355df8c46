"""How long a case is measured, in how many launches."""

from __future__ import annotations

import pytest

from collbench.suite.policy import LAUNCH_SECONDS, MOST_SECONDS, Policy


@pytest.mark.parametrize(
    ("asked", "number", "of", "each"),
    [
        (None, 4, 1, MOST_SECONDS / 4),
        (None, 10, 1, LAUNCH_SECONDS),
        (5.0, 10, 3, 1.5),
        (0.1, 10, 1, 0.1),  # less was wanted in one launch, too
    ],
)
def test_launches_share_the_time_of_a_case(
    asked: float | None, number: int, of: int, each: float
) -> None:
    policy = Policy(max_seconds=asked).in_launches(number, of)
    assert (policy.fresh, policy.max_seconds) == (True, each)


def test_fixed_repetitions_are_those_of_each_launch() -> None:
    assert Policy(iters=5).in_launches(10, 1, fixed=True).max_seconds is None


@pytest.mark.parametrize(
    ("mode", "fixed", "calls"),
    [("isolated", True, 3), ("host", True, 3), ("streaming", False, 21), ("graph", False, 30)],
)
def test_iters_are_samples_or_the_calls_of_one_by_the_mode(
    mode: str, fixed: bool, calls: int
) -> None:
    policy = Policy(iters=5, agg_iters=3, batch=7, graph=2)
    assert (policy.fixes_samples(mode), policy.count_calls(mode)) == (fixed, calls)
    assert not Policy().fixes_samples(mode)
