"""A form's trial on one rank, with a clock that tells who had the time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collbench.features.forms import trial
from collbench.features.forms.calls import Side

FILLING, MEETING, CALLING, ENDING, COMPARING = 10_000, 1_000, 7, 2, 100_000  # ns of each


class _Clock:
    """A clock that stands still but for what is made to pass."""

    now = 0

    def spend(self, ns: int) -> Any:
        """What takes so long."""

        def take(*_: Any) -> None:
            self.now += ns

        return take


def make_trial(clock: _Clock) -> trial.FormTrial:
    """A trial whose parts take the times above, and whose data are right."""

    def expect(filling: int) -> np.ndarray:
        clock.spend(COMPARING)()
        return np.zeros(4, np.uint8)

    received = SimpleNamespace(cpu=lambda: SimpleNamespace(numpy=lambda: np.zeros(4, np.uint8)))
    call = SimpleNamespace(run=clock.spend(CALLING), store=lambda: None)
    side = Side(call, received, clock.spend(FILLING), expect)  # type: ignore[arg-type]
    made = object.__new__(trial.FormTrial)
    made._bench = SimpleNamespace(  # type: ignore[assignment]
        rank=0,
        backend=SimpleNamespace(finish=clock.spend(ENDING)),
        board=SimpleNamespace(enter=lambda rank, phase: None),
        common=None,
        make_guard=lambda: None,
    )
    made._control = SimpleNamespace(  # type: ignore[assignment]
        barrier=clock.spend(MEETING),
        collect=lambda own: [own],
        gather=lambda own: np.array([own]),
    )
    made._policy = SimpleNamespace(check=1)  # type: ignore[assignment]
    made._case, made._count = None, lambda: None  # type: ignore[assignment]
    made._sides, made._filling = [side, side], 0
    made._verified, made._took = [0, 0], [0, 0]
    return made


def test_a_first_call_is_neither_filling_nor_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seen = _Clock(), []

    def measure(self: trial.FormTrial, firsts: Any, guards: Any) -> Any:
        seen.append(list(firsts))
        yield
        return [None, None]

    monkeypatch.setattr(trial, "clock", lambda: clock.now)
    monkeypatch.setattr(trial.FormTrial, "_in_turns", measure)
    monkeypatch.setattr(
        trial.FormTrial, "_make_outcome", lambda self, index, measured, first, gpus: first
    )
    steps = make_trial(clock).run()
    next(steps)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert seen == [[CALLING + ENDING] * 2]
    assert end.value.value == [CALLING + ENDING] * 2
