"""What is told of a step while it is measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collbench.features.training import trial as steps
from collbench.run.rank.outcome import CaseOutcome, FailedCase, MeasuredCase, Timing


def told(monkeypatch: pytest.MonkeyPatch, *parts: CaseOutcome) -> list[Any]:
    """What is told when the rounds end, whose parts come out like this."""
    heard: list[Any] = []
    trial = steps.StepTrial.__new__(steps.StepTrial)
    trial._report_interim, trial._seed, trial._rank = heard.append, 0, 0
    trial._bench = SimpleNamespace(in_turns=False)  # type: ignore[assignment]
    trial._control = SimpleNamespace(decide=lambda values: values)  # type: ignore[assignment]
    monkeypatch.setattr(trial, "_enough", lambda rounds, seconds: 1)
    monkeypatch.setattr(trial, "_parts", lambda taken, known: list(parts))
    monkeypatch.setattr(steps, "_measure_round", lambda samplers, lots, sync: [])
    monkeypatch.setattr(steps, "_join_rounds", lambda rounds: [])
    assert list(trial._rounds([], None, None)) == [None]  # type: ignore[arg-type]
    return heard


def test_what_there_is_so_far_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    part = MeasuredCase(Timing(stop="cut"))
    assert told(monkeypatch, part, part) == [[part, part]]


def test_a_part_without_a_valid_sample_so_far_is_no_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would count as a case that has ended, and the end as another."""
    assert told(monkeypatch, MeasuredCase(Timing()), FailedCase("none")) == []
