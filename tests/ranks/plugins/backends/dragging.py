"""Shared memory whose calls take longer at some sizes: DRAG=65536:500,1048576:3000 adds 500 us to
those of 64 KiB and 3 ms to those of 1 MiB, on every rank."""

from __future__ import annotations

import os
import time
from typing import Any

from collbench.run.backends import Call
from collbench.run.backends._shm import SharedMemory
from collbench.suite.case import Case


class Dragging(SharedMemory):
    def prepare(self, case: Case, send: Any, recv: Any) -> Call:
        call = super().prepare(case, send, recv)
        extra = dict(pair.split(":") for pair in os.environ.get("DRAG", "").split(",") if pair)
        if str(case.nbytes) not in extra:
            return call
        nanoseconds = int(1000 * float(extra[str(case.nbytes)]))

        def run() -> None:
            until = time.perf_counter_ns() + nanoseconds
            while time.perf_counter_ns() < until:
                pass
            call.run()

        return call._replace(run=run)


def create(name: str) -> Dragging:
    return Dragging()
