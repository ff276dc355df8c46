"""Rounds of transfers on one rank: its messages prepared, their data checked, and the rounds
timed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
import torch

from collbench.features.p2p.layout import lay_out, list_own, measure_buffers
from collbench.features.p2p.measurable import Transfer
from collbench.features.p2p.patterns import Transmission
from collbench.records import stats
from collbench.records.types import GpuState
from collbench.run.backends import Call, Message, do_nothing
from collbench.run.jobs import Job, fit_policy
from collbench.run.launch.board import Phase
from collbench.run.memory import PAGE
from collbench.run.rank.bench import Bench
from collbench.run.rank.check import Checker
from collbench.run.rank.gpu import Guard, collect_worst
from collbench.run.rank.library_calls import join_calls
from collbench.run.rank.measure import Measured, Protocol, Sampler, Samples, Steps, Sync, clock
from collbench.run.rank.outcome import (
    CaseOutcome,
    MeasuredCase,
    fail_without_samples,
    find_wrong_data,
    select_timing,
)
from collbench.suite.case import Case

SAMPLE_NS = 200_000  # of rounds in a sample, so that a start that is late by 1 us is 0.5 % of it


class _RoundSampler(Sampler):
    """Takes samples of many rounds back to back, as loops of other benchmarks are."""

    def repeats(self, call_ns: float) -> int:
        """Rounds that a sample needs, by what one takes."""
        return stats.inner_repeats(call_ns, SAMPLE_NS)


class TransferTrial:
    """A run.runner.Trial. A call of the sampler is a round; a record's call is a message of it."""

    def __init__(self, bench: Bench, job: Job) -> None:
        self._bench, self._case = bench, job.case
        self._control, self._policy = bench.control, fit_policy(bench.policy, job)
        self._transfer: Transfer = job.subject
        per_round = self._transfer.messages
        inner = job.inner and max(1, job.inner // per_round)
        self._job = msgspec.structs.replace(job, inner=inner)
        self._beat = partial(bench.board.beat, bench.rank)
        self._count = partial(bench.board.count_calls, bench.rank)
        phases = list_own(self._transfer, bench.rank)
        self._in_a_round = sum(map(len, self._transfer.phases))
        self._own = [message for phase in phases for message in phase]
        self._buffers = self._allocate()
        self._checkers = {length: self._make_checker(length) for length in self._lengths()}
        self._planted = bench.planted()
        with self._control.refusing_alike():  # scratch may not fit into one rank's GPU
            self._call = self._prepare(phases)
        self._fillings = self._compared = 0

    def _lengths(self) -> set[int]:
        return {self._transfer.length_of(message.is_ack) for message in self._own}

    def _allocate(self) -> dict[int, torch.Tensor]:
        """A buffer for each of this rank's messages, by its number."""
        raw = self._bench.backend.allocate(measure_buffers(self._transfer) + PAGE)
        first = -raw.data_ptr() % PAGE
        offsets, _ = lay_out(self._transfer, self._bench.rank)
        return {
            message.number: raw[start : start + self._transfer.length_of(message.is_ack)]
            for message in self._own
            for start in (first + offsets[message.number],)
        }

    def _make_checker(self, length: int) -> Checker:
        """What fills and compares messages of one length: as a broadcast's root has its buffer."""
        case = Case(
            collective="broadcast",
            backend=self._case.backend,
            n=2,
            nbytes=length,
            dtype=self._case.dtype,
            root=0,
        )
        key = zlib.crc32(self._case.key.encode())  # no two cases share data
        device = self._bench.backend.device
        return Checker(case, self._policy.seed, 0, device, beat=self._beat, key=key)

    def _prepare(self, phases: Sequence[Sequence[Transmission]]) -> Call:
        """A round of this rank as one call, with the faults that are planted here."""
        rank, backend = self._bench.rank, self._bench.backend
        batches = []
        for phase in phases:
            receives_first = sorted(phase, key=lambda message: message.source == rank)
            messages = [
                Message(
                    message.source == rank,
                    self._buffers[message.number],
                    message.target if message.source == rank else message.source,
                    int(message.is_ack),
                )
                for message in receives_first
            ]
            batches.append(backend.message_batch(messages).run)
        call = Call(join_calls(batches) if batches else do_nothing, None)
        if not self._planted:
            return call
        received = [self._buffers[m.number] for m in self._own if m.target == rank]
        return self._planted.within(call, received[0] if received else torch.empty(0))

    def _fill(self) -> None:
        """Other data than ever before in what this rank sends, and poison in what it receives."""
        self._fillings += 1
        for message in self._own:
            buffer = self._buffers[message.number]
            checker = self._checkers[len(buffer)]
            if message.source == self._bench.rank:
                checker.fill_send(buffer, self._key(message))
            else:
                checker.poison(buffer)
        self._bench.backend.finish()
        self._control.barrier()

    def _key(self, message: Transmission) -> int:
        """What a message's data are drawn by: no two are alike, nor those of two fillings."""
        return self._fillings * self._in_a_round + message.number

    def _check(self, when: str) -> Sequence[CaseOutcome]:
        """The outcome if any rank has received anything else than was sent, else nothing."""
        if not self._policy.check:
            return []
        self._call.store()
        wrong, first = 0, None
        for message in self._own:
            if message.target != self._bench.rank:
                continue
            buffer = self._buffers[message.number]
            checked, bad, where = self._checkers[len(buffer)].check_recv(buffer, self._key(message))
            self._compared += checked
            wrong += bad
            first = first or (where and [self._bench.rank, *where])
        everyone = self._control.collect([self._compared, wrong, first])
        self._verified = sum(checked for checked, _, _ in everyone)
        return find_wrong_data(self._case, [everyone], when)

    def _check_again(self, when: str) -> Sequence[CaseOutcome]:
        """Some rounds on fresh buffers, untimed, whose data is compared."""
        for _ in range(self._policy.check):
            self._fill()
            self._call.run()
            self._bench.backend.finish()
            if wrong := self._check(when):
                return wrong
        return []

    def _enter(self, phase: Phase) -> None:
        self._bench.board.enter(self._bench.rank, phase)

    def _make_sampler(self, inner: int) -> Sampler:
        finish = self._bench.backend.finish
        return _RoundSampler(
            [(self._call.run, (0,))], inner, self._control, self._count, None, finish
        )

    def _select_times(self, samples: Samples) -> np.ndarray:
        """The time of each sample: of the slowest rank among those whose clocks count."""
        return np.asarray(samples.durations[self._transfer.timed_ranks].max(axis=0))

    def run(self) -> Steps[Sequence[CaseOutcome]]:
        """The outcome of the case, at rank 0; with a pause before each block."""
        bench = self._bench
        self._enter(Phase.CHECKING)
        self._verified = 0
        if bench.common:
            bench.common.refresh()
        self._fill()
        began = clock()
        self._call.run()
        bench.backend.finish()
        firsts = self._control.gather(np.array([clock() - began]))
        first_ns = 0 if firsts is None else int(firsts.max())  # rank 0 may have no messages
        if wrong := self._check("before timing"):
            return wrong
        self._enter(Phase.WARMING)
        guard = bench.make_guard()
        measured, sampler = yield from self._make_protocol(guard).run(
            first_ns, partial(self._enter, Phase.MEASURING)
        )
        if bench.common:
            bench.common.check()
        self._enter(Phase.CHECKING)
        wrong = self._check("after timing")
        if wrong := wrong or self._check_again("after timing, on fresh buffers"):
            return wrong
        self._enter(Phase.REPORTING)
        gpus = collect_worst(self._control, guard)
        if measured is None:
            return []
        if not measured.samples.durations.size:
            failed = fail_without_samples(measured.invalid, sampler.remedy, measured.hopeless, gpus)
            return [failed]
        return [self._make_outcome(measured, first_ns, gpus)]

    def _make_protocol(self, guard: Guard | None) -> Protocol:
        bench = self._bench
        late = self._planted.tarry if self._planted else do_nothing
        sync = Sync(bench.scheme, bench.control, bench.board, bench.meet, bench.common, late)
        if bench.policy.sync == "auto" and sync.refuse(0.0, math.inf):
            sync.scheme = "barrier"
        return Protocol(
            self._policy,
            bench.control,
            sync,
            self._make_sampler,
            self._case.mode,
            self._job,
            guard,
            self._select_times,
            in_turns=bench.in_turns,
            calibrator=bench.calibrator,
        )

    def _make_outcome(
        self, measured: Measured, first: int, gpus: dict[int, GpuState]
    ) -> MeasuredCase:
        bench = self._bench
        policy = msgspec.structs.replace(self._policy, agg_iters=1)
        ranks = range(self._case.n)
        timing = select_timing(self._case, measured, bench.common, ranks, policy)
        return MeasuredCase(
            timing._replace(
                times=self._select_times(measured.samples).tolist(),
                calls=measured.inner * self._transfer.messages,
            ),
            setup=first,
            verified=self._verified,
            wrong=0 if policy.check else None,
            gpus=list(gpus.values()),
        )
