"""What is told of a step: which part of its communication computation hides, in words that do not
say more than the interval does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from collbench.core.collectives import PARTS
from collbench.records.steps import Overlap, overlaps
from collbench.records.types import Record
from collbench.show.views import steps
from collbench.suite.case import Case

MS = 1_000_000


def overlap(step: Sequence[float], computation: float, communication: float) -> Overlap:
    times = zip(PARTS, (step, [computation] * len(step), [communication] * len(step)), strict=True)
    records = [
        Record(
            case=Case(
                collective=part, backend="gloo", n=2, nbytes=8, dtype="uint8", step="x layers=2 #1"
            ),
            status="ok",
            times_ns=[round(each * MS) for each in of],
        )
        for part, of in times
    ]
    (one,) = overlaps(records)
    return one


@pytest.mark.parametrize(
    ("step", "computation", "communication", "words"),
    [
        ((11, 11.1, 11, 10.9, 11, 11.1, 11, 10.9), 10, 4, "computation hides 75% [7"),
        ((16, 16.1, 16, 15.9, 16, 16.1, 16, 15.9), 10, 4, "are in each other's way"),
        ((14.1, 13.9, 14, 14.2, 13.8, 14, 14.1, 13.9), 10, 4, "hides nothing for sure"),
        ((11, 11.1, 11), 10, 4, "too few rounds to tell"),
        ((4, 4.1, 4, 3.9, 4, 4.1, 4, 3.9), 0.01, 4, "no computation to hide it behind"),
        ((10, 10.1, 10, 9.9, 10, 10.1, 10, 9.9), 10, 0, "no communication to hide"),
    ],
)
def test_what_is_hidden_is_told_as_surely_as_it_is_known(
    step: Sequence[float], computation: float, communication: float, words: str
) -> None:
    exposed, hidden = steps.sentences(overlap(step, computation, communication))
    assert words in hidden
    assert exposed.startswith("exposed communication ")


def test_time_that_a_step_saves_has_its_sign() -> None:
    one = overlap((9, 9.1, 9, 8.9, 9, 9.1, 9, 8.9), 10, 4)
    exposed, _ = steps.sentences(one)
    assert exposed.startswith("exposed communication -1.00 ms [-1.0")


def test_a_step_is_named_without_its_digest() -> None:
    assert steps.named(overlap((1.0,) * 6, 1, 1).whole.case) == "x layers=2"
