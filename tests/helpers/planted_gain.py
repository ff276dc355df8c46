"""A library with a gain to be found: a ring in shared memory, whose calls of three sizes take
1/0.85 of their time unless the environment has PLANTED=fast, which thus saves 15 % of it.

collbench tune all_reduce --backend tests/helpers/planted_gain.py --env PLANTED=fast,slow

The call is made, and then waited on top for as long as it lacks. That is exact where ranks begin
together, as in isolated calls.
"""

from __future__ import annotations

import os
from time import perf_counter_ns
from typing import Any

import msgspec

from collbench.run.backends import Base, Call
from collbench.run.backends import shm as real

GAIN = 0.15
SIZES = (256 << 10, 1 << 20, 4 << 20)
VARIABLE, FAST = "PLANTED", "fast"


def as_ring(case: Any) -> Any:
    """The case as shared memory runs it, which has algorithms and none of its own."""
    return msgspec.structs.replace(case, algorithm="ring") if case.algorithm == "native" else case


INFO = real.INFO._replace(
    about="a ring in shared memory, three sizes of which are slow without PLANTED=fast",
    settings=(VARIABLE, "NO_SUCH_SETTING"),
    native=True,
    refuse=lambda case: real.INFO.refuse(as_ring(case)),
    name="planted_gain",
    contract=1,
)


def create(name: str) -> Any:
    """The backend, not opened."""
    kind: type[Base] = type(real.create("shm"))

    class Planted(kind):  # type: ignore[misc, valid-type]
        """Shared memory, but for the time of some calls."""

        def prepare(self, case: Any, send: Any, recv: Any) -> Call:
            call: Call = super().prepare(as_ring(case), send, recv)
            if case.nbytes not in SIZES or os.environ.get(VARIABLE) == FAST:
                return call
            return call._replace(run=lambda: spin_after(call.run))

    return Planted()


def spin_after(run: Any) -> None:
    """Make a call, and wait for as long as it lacks of 1/0.85 of its time."""
    began = perf_counter_ns()
    run()
    until = began + (perf_counter_ns() - began) / (1 - GAIN)
    while perf_counter_ns() < until:
        pass
