"""What ends a measurement from outside, and what does not."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

import pytest

from collbench.core.errors import CannotRun
from collbench.survive.signals import ONE_WISH, STOPPING, Interrupts, keep_handlers


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_interrupt_and_are_given_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupts():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", STOPPING)
def test_a_library_that_takes_a_signal_for_itself_does_not_get_it(number: signal.Signals) -> None:
    """UCX takes SIGHUP, in C, of which Python knows nothing."""
    taken = ctypes.CDLL(None).signal
    taken.argtypes = (ctypes.c_int, ctypes.c_void_p)
    with pytest.raises(KeyboardInterrupt), Interrupts():
        with keep_handlers():
            taken(number, signal.SIG_IGN.value)
        os.kill(os.getpid(), number)


def test_what_is_held_is_done_whole() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        with interrupts.uninterrupted():
            os.kill(os.getpid(), signal.SIGHUP)
            done.append("whole")
        done.append("more")
    assert done == ["whole"]


def test_a_second_signal_does_not_cut_short_what_cleans_up() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            with interrupts.shielded():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("whole")
            done.append("and the rest")
    assert done == ["whole", "and the rest"]


def test_a_signal_that_follows_another_at_once_is_the_same_wish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the first and what cleans up lie moments in which nothing is held."""
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            done.append("whole")
    assert done == ["whole"]
    with Interrupts():  # a later one is a wish of its own
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        later = time.monotonic() + 2 * ONE_WISH
        monkeypatch.setattr(time, "monotonic", lambda: later)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_first_signal_that_comes_while_all_is_cleaned_up_is_told_after() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        with interrupts.shielded():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("whole")
        done.append("more")
    assert done == ["whole"]


def test_what_failed_while_it_cleaned_up_spares_nothing_after() -> None:
    with Interrupts() as interrupts:
        with suppress(ValueError), interrupts.shielded():
            raise ValueError
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """As nohup has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            interrupts.check()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_that_python_drops_comes_again() -> None:
    class Dropping:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    lost = []
    with pytest.raises(KeyboardInterrupt), Interrupts():
        Dropping()
        lost.append("for a moment")
        while True:
            time.sleep(0.01)
    assert lost == ["for a moment"]


def test_what_destructors_raise_of_themselves_is_still_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Faulty:
        def __del__(self) -> None:
            raise ValueError

    told: list[type[BaseException] | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: told.append(lost.exc_type))
    with Interrupts():
        Faulty()
    assert told == [ValueError]


def test_one_that_a_library_swallows_is_raised_before_anything_is_begun() -> None:
    with Interrupts() as interrupts:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts:
            pass


def test_what_failed_while_signals_were_held_holds_none_of_the_next() -> None:
    with Interrupts() as interrupts:
        with suppress(ValueError), interrupts, interrupts.uninterrupted():
            raise ValueError
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_signals_left_to_the_system_are_not_python_s() -> None:
    with Interrupts() as interrupts:
        interrupts.leave_to_the_system()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_error_that_a_library_makes_of_one_is_an_interrupt() -> None:
    """As Python itself does where a class is made."""
    with pytest.raises(KeyboardInterrupt), Interrupts():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError from None


def test_an_error_meant_for_people_stays_one() -> None:
    with pytest.raises(CannotRun), Interrupts():
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        raise CannotRun("no room")


def test_what_is_held_within_what_is_held_is_held_to_the_end_of_all() -> None:
    interrupts, done = Interrupts(), []
    with pytest.raises(KeyboardInterrupt), interrupts:
        with interrupts.uninterrupted():
            with interrupts.uninterrupted():
                os.kill(os.getpid(), signal.SIGTERM)
            done.append("inner")
        done.append("outer")
    assert done == ["inner"]
