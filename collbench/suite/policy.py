from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from collbench.suite.case import Positive

MOST_SAMPLES = 1 << 20  # of a case


Samples = Annotated[int, msgspec.Meta(ge=1, le=MOST_SAMPLES)]


MOST_SECONDS = 2.0  # of samples of a case, so that a sweep ends while a person watches


LAUNCH_SECONDS = 0.25  # of samples of a case in one of several launches, at least


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How each case is measured; times in seconds. None: as the data decide. ``batch`` calls make a
    sample in streaming mode, ``graph`` replays of ``iters`` in graph mode. ``fresh`` cycles are
    launches. ``blame`` leaves operations out of steps. ``inject`` plants faults.
    """

    iters: Samples | None = None
    warmup: int | None = None
    precision: float | None = None
    max_seconds: float | None = None
    min_seconds: float = 0.2
    min_iters: Samples = 20
    max_iters: Samples = 2000
    batch: int = 20
    sync: Literal["auto", "window", "barrier", "device"] = "auto"
    cache: Literal["cold", "hot"] = "cold"
    order: Literal["auto", "size", "shuffled"] = "auto"
    check: int = 1
    seed: int = 1
    agg_iters: int = 1
    unalign: int = 0
    blocking: int = 0
    graph: Positive = 1
    cpu_time: bool = False
    pin: bool = True
    timeout: float | None = None
    virtual: bool = False
    share_gpu: bool = False
    register: Literal[0, 1, 2] = 0
    fresh: bool = False
    bitwise: bool = False
    blame: bool = False
    inject: str = ""

    def in_launches(self, number: int, of: int) -> Policy:
        """The policy with so many launches in place of ``of``: the time of a case is divided among
        them, but each has LAUNCH_SECONDS where so much was allowed before."""
        most = MOST_SECONDS if self.max_seconds is None else self.max_seconds
        each = (
            self.max_seconds if self.iters else min(most, max(LAUNCH_SECONDS, most * of / number))
        )
        return msgspec.structs.replace(self, fresh=True, max_seconds=each)

    def resolved(self, crowded: bool) -> Policy:
        """The policy with the defaults that depend on whether there are too few cores for all
        threads that must run: then times scatter with the scheduler, and are known well enough
        sooner."""
        most = MOST_SECONDS if self.max_seconds is None else self.max_seconds
        least = min(
            self.min_seconds, most / 4
        )  # else a short limit would leave no time to converge
        precision = self.precision or (0.05 if crowded else 0.02)
        return msgspec.structs.replace(
            self, precision=precision, max_seconds=most, min_seconds=least
        )
