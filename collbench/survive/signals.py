"""Ctrl-C and termination, from a command's first moment to its last."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from collbench.core.errors import CollbenchError

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = 0.001  # seconds
ONE_WISH = 1.0  # seconds in which a signal that follows another says nothing new


class Interrupts:
    """Within its ``with`` blocks SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, unless they
    are ignored (nohup): at once, or after what must not be cut in two (``uninterrupted``).

    A signal that follows within ONE_WISH is the same wish: a person presses twice, a launcher
    passes on what its whole group has got. Where others lose the exception, it is raised again:
    Python drops those of destructors, a library may make an error of its own of it. ``requested``
    is whether a signal came."""

    def __init__(self) -> None:
        self.requested = self._holding = False
        self._raised = -ONE_WISH
        self._before: list[tuple[list[tuple[signal.Signals, Any]], Callable[[Any], Any]]] = []

    def __enter__(self) -> Interrupts:
        handlers: list[tuple[signal.Signals, Any]] = [
            (number, signal.signal(number, self._stop))
            for number in STOPPING
            if signal.getsignal(number) is not signal.SIG_IGN
        ]
        self._before.append((handlers, sys.unraisablehook))
        sys.unraisablehook = self._lost
        self.check()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        handlers, sys.unraisablehook = self._before.pop()
        for number, handler in handlers:
            signal.signal(number, handler)
        was_requested, self._holding = self.requested, False
        if not self._before:
            self.requested, self._raised = False, -ONE_WISH
        if was_requested and isinstance(error, Exception) and not isinstance(error, CollbenchError):
            raise KeyboardInterrupt from error

    def _stop(self, number: int, frame: FrameType | None) -> None:
        new = number == signal.SIGALRM or time.monotonic() - self._raised > ONE_WISH
        if new and not self._holding:
            self._raise()
        self.requested = True

    def _raise(self) -> None:
        self.requested, self._raised = True, time.monotonic()
        raise KeyboardInterrupt

    def _lost(self, lost: Any) -> None:
        """Has an interrupt that was dropped come again in a moment: one that is raised in here
        would be dropped, too."""
        if self.requested and issubclass(lost.exc_type, KeyboardInterrupt):
            signal.signal(signal.SIGALRM, self._stop)
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            self._before[0][1](lost)

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Do what is within whole, unless it fails: then no signal disturbs what cleans up."""
        before, self._holding = self._holding, bool(self._before)  # nothing comes outside of all
        yield
        self._holding = before
        if not before:
            self.check()

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Clean up within to the end, whether it fails or not, though signals come again and
        again."""
        before, was_requested, self._holding = self._holding, self.requested, True
        try:
            yield
        finally:
            self._holding = before
        if not was_requested and not before:
            self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt where a signal has come."""
        if self.requested:
            self._raise()

    def leave_to_the_system(self) -> None:
        """SIGTERM and SIGHUP end this process without Python from now on: a library's call does not
        wait for it."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == self._stop:
                signal.signal(number, signal.SIG_DFL)


@contextmanager
def keep_handlers() -> Iterator[None]:
    """Takes back what a library that initialises within makes of SIGINT, SIGTERM and SIGHUP: on
    SIGHUP UCX, which MPI libraries load, prints more instead of letting the process end."""
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    yield
    for number, handler in handlers.items():
        if handler is not None:  # None: not set by Python, and before this library
            signal.signal(number, handler)


def name_signal(number: int) -> str:
    """The name of a signal: SIGKILL; "signal 40" of one that has none."""
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")


interrupts = Interrupts()  # of this process, whose signals they are
