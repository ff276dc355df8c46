from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from collbench.suite.case import BATCH_MODES, Positive

MOST_SAMPLES = 1 << 20  # of a case

Samples = Annotated[int, msgspec.Meta(ge=1, le=MOST_SAMPLES)]

MOST_SECONDS = 2.0  # of samples of a case, so that a sweep ends while a person watches

LAUNCH_SECONDS = 0.25  # of samples of a case in one of several launches, at least


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How each case is measured. Times in seconds; None: as the data decide."""

    iters: Samples | None = None  # samples, whatever their precision (``fixes_samples``)
    warmup: int | None = None  # samples before those that count
    precision: float | None = None  # half width of the interval, as a share of the median
    max_seconds: float | None = None  # of samples of a case
    min_seconds: float = 0.2
    min_iters: Samples = 20
    max_iters: Samples = 2000
    batch: int = 20  # calls of a sample in mode streaming
    sync: Literal["auto", "window", "barrier", "device"] = "auto"  # how ranks start together
    cache: Literal["cold", "hot"] = "cold"  # whether buffers take turns
    order: Literal["auto", "size", "shuffled"] = "auto"
    check: int = 1  # of the data, before and after timing; 0: none
    seed: int = 1  # of data and orders
    agg_iters: int = 1  # calls launched together, -m
    unalign: int = 0  # elements off alignment
    blocking: int = 0  # -z: 1: a barrier after each call; 2, 3: other cadences
    graph: Positive = 1  # replays of ``iters`` in mode graph
    cpu_time: bool = False  # report the host's time in place of the device's
    pin: bool = True  # bind ranks to cores
    timeout: float | None = None  # without progress
    virtual: bool = False  # all ranks on one GPU, in one process
    share_gpu: bool = False  # ranks may share a GPU
    register: Literal[0, 1, 2] = 0  # buffers with the library, -R
    fresh: bool = False  # each cycle is a launch
    bitwise: bool = False  # keep digests of rounded floats
    adds_as: bool = False  # name algorithms that add as the sums of floats do
    blame: bool = False  # measure steps without their costliest operations, too
    inject: str = ""  # faults to plant

    def fixes_samples(self, mode: str) -> bool:
        """Whether ``iters`` is the number of samples of a case in this mode; elsewhere it is that
        of the calls of a sample."""
        return self.iters is not None and mode not in BATCH_MODES

    def count_calls(self, mode: str) -> int:
        """The calls of a sample in this mode, or the fewest where times decide."""
        calls = {"streaming": self.batch, "graph": self.graph * (self.iters or 1)}
        return self.agg_iters * calls.get(mode, 1)

    def in_launches(self, number: int, launch_count: int, fixed: bool = False) -> Policy:
        """The policy with ``number`` launches in place of ``launch_count``: they share the time of
        a case, but each has LAUNCH_SECONDS where so much was allowed before. Where samples are
        ``fixed``, each has as many."""
        most = MOST_SECONDS if self.max_seconds is None else self.max_seconds
        launch_seconds = (
            self.max_seconds
            if fixed
            else min(most, max(LAUNCH_SECONDS, most * launch_count / number))
        )
        return msgspec.structs.replace(self, fresh=True, max_seconds=launch_seconds)

    def resolved(self, crowded: bool) -> Policy:
        """The policy with the defaults that depend on whether there are too few cores for all
        threads that must run: then times scatter with the scheduler, and are known well enough
        sooner."""
        most = MOST_SECONDS if self.max_seconds is None else self.max_seconds
        # else a short limit would leave no time to converge
        least = min(self.min_seconds, most / 4)
        precision = self.precision or (0.05 if crowded else 0.02)
        return msgspec.structs.replace(
            self, precision=precision, max_seconds=most, min_seconds=least
        )
