"""A case's single call on one rank, timed for a row to show until the case is measured."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from collbench.run.jobs import Job
from collbench.run.launch.board import Phase
from collbench.run.rank.bench import Bench
from collbench.run.rank.calls import allocate_slots, prepare_call
from collbench.run.rank.measure import Steps, Sync, clock
from collbench.run.rank.outcome import CaseOutcome, MeasuredCase, Timing

BYTE = 0x3F  # of all data: a normal number of about one in every type of float but the narrowest


class SingleCall:
    """One call of a case on one rank, the first of its size. Its data is plain and is not
    verified; buffers are touched before the clock starts."""

    def __init__(self, bench: Bench, job: Job) -> None:
        self._bench, self._case = bench, job.case
        beat = self._beat = partial(bench.board.beat, bench.rank)
        beat()
        (self._slot,) = allocate_slots(bench.backend, [job.case], bench.ranks, bench.policy.unalign)
        with bench.control.refusing_alike():  # scratch may not fit into one rank's GPU
            self._call = prepare_call(bench.backend, job.case, self._slot, bench.policy.virtual)

    def run(self) -> Steps[Sequence[CaseOutcome]]:
        """The outcome at rank 0: one time, that of the slowest rank."""
        yield
        bench, call = self._bench, self._call
        for buffers in self._slot:
            for memory in (buffers.written, buffers.send):
                self._beat()
                memory.view(torch.uint8).fill_(BYTE)
        call.load()
        bench.backend.finish()
        sync = Sync("barrier", bench.control, bench.board)
        bench.board.enter(bench.rank, Phase.MEASURING)
        sync()
        begin = clock()
        call.run()
        bench.backend.finish()
        took = bench.control.gather(np.array([clock() - begin]))
        if took is None:
            return []
        times = [int(took.max())]
        timing = Timing(times, took.reshape(-1, 1).tolist(), stop="budget", sync=sync.scheme)
        return [MeasuredCase(timing, setup=times[0])]
