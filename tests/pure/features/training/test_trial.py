"""What is told of a step while it is measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collbench.features.training import trial as steps
from collbench.run.rank.control import Control
from collbench.run.rank.measure import Samples, Sync
from collbench.run.rank.outcome import CaseOutcome, FailedCase, MeasuredCase, Timing
from tests.helpers.steps import without_pause

KNOWN = steps._Known(0, 0, "window")


def told(monkeypatch: pytest.MonkeyPatch, *parts: CaseOutcome) -> list[Any]:
    """What is told when the rounds end, whose parts come out like this."""
    heard: list[Any] = []
    trial = steps.StepTrial.__new__(steps.StepTrial)
    trial._report_interim, trial._seed, trial._rank = heard.append, 0, 0
    trial._throttled, trial._policy = 0, SimpleNamespace(sync="auto")  # type: ignore[assignment]
    trial._bench = SimpleNamespace(in_turns=False)  # type: ignore[assignment]
    trial._control = SimpleNamespace(decide=lambda values: values)  # type: ignore[assignment]
    monkeypatch.setattr(trial, "_enough", lambda rounds, seconds: 1)
    monkeypatch.setattr(trial, "_parts", lambda taken, known: list(parts))
    monkeypatch.setattr(steps, "_measure_round", lambda samplers, lots, sync: [])
    monkeypatch.setattr(steps, "_join_rounds", lambda rounds: [])
    sync: Any = SimpleNamespace(scheme="window")
    assert list(trial._rounds([], sync, KNOWN)) == [None]
    return heard


def test_what_there_is_so_far_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    part = MeasuredCase(Timing(stop="cut"))
    assert told(monkeypatch, part, part) == [[part, part]]


def test_a_part_without_a_valid_sample_so_far_is_no_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would count as a case that has ended, and the end as another."""
    assert told(monkeypatch, MeasuredCase(Timing()), FailedCase("none")) == []


@pytest.mark.parametrize(
    ("asked", "late_while", "scheme"),
    [
        ("auto", ("window",), "barrier"),  # late at each start until ranks meet
        ("auto", (), "window"),
        ("window", ("window",), "window"),  # what is asked for stays
    ],
)
def test_rounds_that_all_begin_too_late_are_followed_by_some_that_begin_at_a_barrier(
    monkeypatch: pytest.MonkeyPatch, asked: str, late_while: tuple[str, ...], scheme: str
) -> None:
    trial = steps.StepTrial.__new__(steps.StepTrial)
    trial._seed, trial._rank, trial._throttled = 0, 0, 0
    trial._policy = SimpleNamespace(sync=asked)  # type: ignore[assignment]
    trial._bench = SimpleNamespace(in_turns=True)  # type: ignore[assignment]
    trial._control = SimpleNamespace(decide=lambda values: values)  # type: ignore[assignment]
    sync = Sync("window", Control(0, 1), None)

    def measure_round(samplers: Any, lots: Any, sync: Any) -> list[Samples]:
        zeros = np.zeros((1, 1), int)
        late = np.array([int(sync.scheme in late_while)])
        return [Samples(zeros, zeros + 1, late, np.zeros(1, int), zeros[:0])]

    monkeypatch.setattr(steps, "_measure_round", measure_round)
    monkeypatch.setattr(trial, "_enough", lambda rounds, seconds: int(len(rounds) == 20))
    samples, _ = without_pause(trial._rounds([], sync, KNOWN))
    assert sync.scheme == scheme
    late = int(samples[0].late.sum())
    assert late == (0 if not late_while else 20 if asked == "window" else steps.FEWEST)
