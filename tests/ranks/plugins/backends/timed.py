"""Shared memory by a clock that is made up: a call moves its data, and is said to take 100 us, some
hundredths more in one launch than in another, and as many hundredths more as SLOWER says of a size:
SLOWER=65536:15,1048576:20.
"""

from __future__ import annotations

import os
import random
from typing import Any

from collbench.run.backends import Call
from collbench.run.backends._shm import SharedMemory
from collbench.run.rank import measure
from collbench.suite.case import Case


class Timed(SharedMemory):
    def __init__(self) -> None:
        super().__init__()
        self._now, self._called, self._chance = 0, False, random.Random()
        self._launch = self._chance.gauss(1.0, 0.01)
        measure.clock = measure.clock = self._read

    def _read(self) -> int:
        """The time; after a call it goes on to the next full millisecond, so that all ranks begin
        calls at once."""
        now, step = self._now, 10**6
        self._now = (now // step + 1) * step if self._called else now + 20
        self._called = False
        return now

    def prepare(self, case: Case, send: Any, recv: Any) -> Call:
        call = super().prepare(case, send, recv)
        slower = dict(pair.split(":") for pair in os.environ.get("SLOWER", "").split(",") if pair)
        typical = 100_000 * self._launch * (1 + float(slower.get(str(case.nbytes), 0)) / 100)

        def run() -> None:
            call.run()
            self._called = True
            self._now += int(typical * self._chance.gauss(1.0, 0.01))

        return call._replace(run=run)


def create(name: str) -> Timed:
    return Timed()
