"""A ping-pong on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from collbench.run.backends import do_nothing
from collbench.run.jobs import Job
from collbench.run.rank.bench import Bench
from collbench.run.rank.calls import allocate_slots
from collbench.run.rank.measure import Protocol, Sampler, Steps, Sync, clock
from collbench.run.rank.outcome import (
    CaseOutcome,
    MeasuredCase,
    WrongData,
    fail_without_samples,
    select_timing,
)

PING, PONG = 1, 2  # tags


class PingPongTrial:
    """A run.runner.Trial. Rank 0 sends ones, and wants twos back."""

    def __init__(self, bench: Bench, job: Job) -> None:
        self._bench, self._job = bench, job
        (((self._send, self._recv, _),),) = allocate_slots(bench.backend, [job.case], [0])
        self._send.fill_(bench.rank + 1)
        self._recv.fill_(0)
        peer = 1 - bench.rank
        calls = [
            bench.backend.message(True, self._send, peer, PONG if bench.rank else PING),
            bench.backend.message(False, self._recv, peer, PING if bench.rank else PONG),
        ]
        self._calls = calls[::-1] if bench.rank else calls

    def _play(self) -> None:
        for call in self._calls:
            call.run()

    def _make_sampler(self, inner: int) -> Sampler:
        bench = self._bench
        count = partial(bench.board.count_calls, bench.rank)
        play = [(self._play, ())]
        return Sampler(play, inner, bench.control, count, None, bench.backend.finish)

    def run(self) -> Steps[Sequence[CaseOutcome]]:
        bench, case = self._bench, self._job.case
        began = clock()
        self._play()
        first = clock() - began
        sync = Sync(bench.scheme, bench.control, bench.board, bench.meet, bench.common, do_nothing)
        protocol = Protocol(
            bench.policy, bench.control, sync, self._make_sampler, case.mode, self._job
        )
        measured, sampler = yield from protocol.run(first, do_nothing)
        differing = bench.control.collect(int((self._recv != 2 - bench.rank).sum()))
        if bench.rank:
            return []
        if wrong := sum(differing):
            return [WrongData(wrong, f"{wrong} wrong elements")]
        if measured is None or not measured.samples.durations.size:
            return [fail_without_samples(measured.invalid if measured else {}, sampler.remedy)]
        timing = select_timing(case, measured, bench.common, range(2), bench.policy)
        return [MeasuredCase(timing, setup=first, verified=2 * case.nbytes, wrong=0)]
