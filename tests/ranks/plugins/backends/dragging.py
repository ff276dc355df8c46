"""Shared memory that takes a share longer at some sizes: DRAG=0.15:65536,4194304 adds 15 % of each such call's time."""

from __future__ import annotations

import os
import time
from typing import Any

from collbench.backends import Call
from collbench.backends.shm import SharedMemory
from collbench.suite import Case


class Dragging(SharedMemory):
    def prepare(self, case: Case, send: Any, recv: Any) -> Call:
        call = super().prepare(case, send, recv)
        share, _, sizes = os.environ.get("DRAG", "").partition(":")
        if str(case.nbytes) not in sizes.split(","):
            return call

        def run() -> None:
            begin = time.perf_counter()
            call.run()
            now = time.perf_counter()
            until = now + float(share) * (now - begin)
            while time.perf_counter() < until:
                pass

        return call._replace(run=run)


def create(name: str) -> Dragging:
    return Dragging()
