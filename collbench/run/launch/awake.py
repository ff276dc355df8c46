"""The time that a process has had: no limit is over because all were suspended for long, as by
Ctrl-Z, docker pause or scontrol suspend, while the monotonic clock ran on."""

from __future__ import annotations

import time

GAP_SECONDS = 2.0  # more than passes between two readings where nothing is suspended


class AwakeClock:
    """Seconds of the monotonic clock, of which at most GAP_SECONDS pass between two readings."""

    def __init__(self) -> None:
        self._last = self._seconds = time.monotonic()

    def read(self) -> float:
        """The seconds so far."""
        now = time.monotonic()
        self._seconds += min(now - self._last, GAP_SECONDS)
        self._last = now
        return self._seconds
