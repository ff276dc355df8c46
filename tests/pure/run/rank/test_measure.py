"""What is measured of a call path, by a clock that is made up."""

from __future__ import annotations

from itertools import pairwise

import pytest

from collbench.run.rank import measure


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
