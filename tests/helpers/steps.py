"""Work that pauses, done without a pause."""

from __future__ import annotations

from typing import TypeVar

from collbench.run.rank.measure import Steps

T = TypeVar("T")


def without_pause(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
