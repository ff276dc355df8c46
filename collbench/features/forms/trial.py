"""Two forms of a call on one rank: their data checked, and both timed in turns, block by block."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from collbench.core.errors import CannotRun, first_line
from collbench.features.forms.calls import Place, Side, count_wrong, make_sides
from collbench.features.forms.measurable import Form
from collbench.records.types import GpuState
from collbench.run.backends import do_nothing
from collbench.run.jobs import Job, fit_policy
from collbench.run.launch.board import Phase
from collbench.run.rank.bench import Bench
from collbench.run.rank.gpu import Guard, collect_worst
from collbench.run.rank.measure import Measured, Protocol, Sampler, Steps, Sync, clock
from collbench.run.rank.outcome import (
    CaseOutcome,
    MeasuredCase,
    SkippedCase,
    fail_without_samples,
    find_wrong_data,
    select_timing,
)

NAMES = ("the form asked for", "the plain form")  # by index of the case


class FormTrial:
    """A run.runner.Trial. Raises CannotRun, on all ranks, where torch has no such group."""

    def __init__(self, bench: Bench, job: Job) -> None:
        self._bench, self._job, self._case = bench, job, job.case
        self._control, self._policy = bench.control, fit_policy(bench.policy, job)
        self._form: Form = job.subject
        self._count = partial(bench.board.count_calls, bench.rank)
        seed = self._policy.seed + zlib.crc32(job.case.subject.encode())
        try:
            self._group = bench.control.keep_group(job.case.backend)
        except (RuntimeError, ValueError, AssertionError) as e:
            raise CannotRun(
                f"torch.distributed opens no group of {job.case.backend}: {first_line(e)}",
                "--backend gloo, for example",
            ) from e
        place = Place(bench.rank, bench.control.n, self._group, bench.backend.device, seed)
        self._sides = [self._plant(side) for side in make_sides(self._form, place)]
        self._filling = 0
        self._verified = [0, 0]
        self._took = [0, 0]  # ns of the call that was checked last

    def _plant(self, side: Side) -> Side:
        """The side with the faults that are planted on this rank."""
        planted = self._bench.planted()
        return side._replace(call=planted.within(side.call, side.received)) if planted else side

    def _check(self, index: int, when: str) -> Sequence[CaseOutcome]:
        """The outcomes of both if a call of one on fresh data leaves anything else than it must;
        else nothing."""
        side = self._sides[index]
        self._filling += 1
        side.fill(self._filling)
        self._bench.backend.finish()
        self._control.barrier()
        self._count()
        began = clock()
        side.call.run()
        self._bench.backend.finish()
        self._took[index] = clock() - began
        if not self._policy.check:
            return []
        checked, bad, first = count_wrong(side, self._filling)
        own = [checked, bad, first and [self._bench.rank, *first]]
        everyone = self._control.collect(own)
        self._verified[index] += sum(ranks_checked for ranks_checked, _, _ in everyone)
        wrong = find_wrong_data(self._case, [everyone], f"of {NAMES[index]}, {when}")
        left_out = SkippedCase(f"{NAMES[index]} had wrong data {when}, which ended both")
        return [wrong[0] if at == index else left_out for at in range(2)] if wrong else []

    def _enter(self, phase: Phase) -> None:
        self._bench.board.enter(self._bench.rank, phase)

    def run(self) -> Steps[Sequence[CaseOutcome]]:
        """The outcomes of both forms, at rank 0; with a pause before each block."""
        self._enter(Phase.CHECKING)
        if self._bench.common:
            self._bench.common.refresh()
        for index in range(2):
            if wrong := self._check(index, "before timing"):
                return wrong
        firsts = tuple(self._took)
        self._enter(Phase.MEASURING)
        guards = [self._bench.make_guard() for _ in range(2)]
        measured = yield from self._in_turns(firsts, guards)
        if self._bench.common:
            self._bench.common.check()
        self._enter(Phase.CHECKING)
        for _ in range(max(1, self._policy.check)):
            for index in range(2):
                if wrong := self._check(index, "after timing"):
                    return wrong
        self._enter(Phase.REPORTING)
        gpus = [collect_worst(self._control, guard) for guard in guards]
        slowest = self._control.gather(np.array(firsts))
        if slowest is None:
            return []
        return [
            self._make_outcome(index, measured[index], int(slowest[:, index].max()), gpus[index])
            for index in range(2)
        ]

    def _in_turns(
        self, firsts: Sequence[int], guards: Sequence[Guard | None]
    ) -> Steps[list[tuple[Measured | None, Sampler]]]:
        """The samples of both forms: of each a block, by lot, until neither needs any."""
        works = [
            self._make_protocol(index, guards[index]).run(firsts[index], do_nothing)
            for index in range(2)
        ]
        done: list[tuple[Measured | None, Sampler]] = [None, None]  # type: ignore[list-item]
        lots = np.random.default_rng([self._policy.seed, self._filling])  # the same at all ranks
        unfinished = [0, 1]
        while unfinished:
            for index in lots.permutation(unfinished):
                try:
                    next(works[index])
                except StopIteration as end:
                    done[index] = end.value
                    unfinished.remove(index)
            yield
        return done

    def _make_protocol(self, index: int, guard: Guard | None) -> Protocol:
        bench = self._bench
        planted = bench.planted()
        late = planted.tarry if planted else do_nothing
        sync = Sync(bench.scheme, bench.control, bench.board, bench.meet, bench.common, late)
        if bench.policy.sync == "auto" and sync.refuse(0.0, math.inf):
            sync.scheme = "barrier"
        call, finish = self._sides[index].call.run, bench.backend.finish

        def make_sampler(inner: int) -> Sampler:
            return Sampler([(call, (0,))], inner, self._control, self._count, None, finish)

        policy, mode = self._policy, self._case.mode
        in_turns = bench.in_turns
        return Protocol(
            policy, bench.control, sync, make_sampler, mode, self._job, guard, in_turns=in_turns
        )

    def _make_outcome(
        self,
        index: int,
        result: tuple[Measured | None, Sampler],
        first: int,
        gpus: Mapping[int, GpuState],
    ) -> CaseOutcome:
        measured, sampler = result
        assert measured is not None, "rank 0 has what was measured"
        if not measured.samples.durations.size:
            invalid, hopeless = measured.invalid, measured.hopeless
            return fail_without_samples(invalid, sampler.remedy, hopeless, gpus)
        bench = self._bench
        policy = msgspec.structs.replace(self._policy, agg_iters=1)
        ranks = range(self._case.n)
        timing = select_timing(self._case, measured, bench.common, ranks, policy)
        return MeasuredCase(
            timing,
            setup=first,
            verified=self._verified[index],
            wrong=0 if policy.check else None,
            gpus=list(gpus.values()),
        )
