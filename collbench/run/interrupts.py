"""Ctrl-C and termination while something is measured."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Within its ``with`` block SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, unless it is
    ignored (nohup): at once, or after what
    must not be cut in two (``held``), or at the next ``check`` where the exception was lost on its
    way (Python drops those raised in destructors)."""

    def __init__(self) -> None:
        self._asked = self._holding = False

    def __enter__(self) -> Interrupts:
        self._before = [
            (number, signal.signal(number, self._stop))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if not self._holding:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is done within is done whole, unless it fails: then no signal disturbs what cleans
        up."""
        self._holding = True
        yield
        self._holding = False
        self.check()

    def check(self) -> None:
        if self._asked:
            raise KeyboardInterrupt
