"""What ends a measurement from outside, and what does not."""

from __future__ import annotations

import os
import signal

import pytest

from collbench.run.interrupts import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_interrupt_and_are_given_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupts():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_what_is_held_is_done_whole() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGHUP)
            done.append("whole")
        done.append("more")
    assert done == ["whole"]


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """As nohup has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            interrupts.check()
    finally:
        signal.signal(signal.SIGHUP, before)
