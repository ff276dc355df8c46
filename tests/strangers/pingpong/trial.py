"""A ping-pong on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from collbench.run.backends import Call, do_nothing
from collbench.run.jobs import Job
from collbench.run.rank.bench import Bench
from collbench.run.rank.calls import allocate_slots
from collbench.run.rank.library_calls import join_calls
from collbench.run.rank.measure import Protocol, Sampler, Steps, Sync, clock
from collbench.run.rank.outcome import (
    CaseOutcome,
    MeasuredCase,
    fail_without_samples,
    find_wrong_data,
    select_timing,
)

PING, PONG = 1, 2  # tags
CLEARED, VALUES = 255, 128  # what nobody sends; how many values are sent in turn


class PingPongTrial:
    """A run.runner.Trial. Each call that is checked sends another value than the one before."""

    def __init__(self, bench: Bench, job: Job) -> None:
        self._bench, self._job = bench, job
        (((self._send, self._recv, _),),) = allocate_slots(bench.backend, [job.case], [0])
        peer = 1 - bench.rank
        calls = [
            bench.backend.message(True, self._send, peer, PONG if bench.rank else PING).run,
            bench.backend.message(False, self._recv, peer, PING if bench.rank else PONG).run,
        ]
        call = Call(join_calls(calls[::-1] if bench.rank else calls), None)
        self._planted = bench.planted()  # the faults of --inject
        self._call = self._planted.within(call, self._recv) if self._planted else call
        self._calls = 0

    def _choose_value(self, rank: int) -> int:
        return (2 * self._calls + rank) % VALUES

    def _call_anew(self) -> int:
        """Nanoseconds of a call that sends a new value into a cleared buffer."""
        bench = self._bench
        self._calls += 1
        self._send.fill_(self._choose_value(bench.rank))
        self._recv.fill_(CLEARED)
        bench.backend.finish()
        bench.control.barrier()
        began = clock()
        self._call.run()
        bench.backend.finish()
        return clock() - began

    def _check(self, when: str) -> Sequence[CaseOutcome]:
        """The outcome if a rank received anything else than was sent, else nothing."""
        bench = self._bench
        if not bench.policy.check:
            return []
        self._call.store()
        expected = self._choose_value(1 - bench.rank)
        wrong = (self._recv != expected).nonzero().flatten().tolist()
        first = [bench.rank, wrong[0], int(self._recv[wrong[0]]), expected] if wrong else None
        everyone = bench.control.collect([len(self._recv), len(wrong), first])
        return find_wrong_data(self._job.case, [everyone], when)

    def _make_sampler(self, inner: int) -> Sampler:
        bench = self._bench
        count = partial(bench.board.count_calls, bench.rank)
        play = [(self._call.run, ())]
        return Sampler(play, inner, bench.control, count, None, bench.backend.finish)

    def run(self) -> Steps[Sequence[CaseOutcome]]:
        bench, case = self._bench, self._job.case
        first = self._call_anew()
        if wrong := self._check("before timing"):
            return wrong
        late = self._planted.tarry if self._planted else do_nothing
        sync = Sync(bench.scheme, bench.control, bench.board, bench.meet, bench.common, late)
        protocol = Protocol(
            bench.policy, bench.control, sync, self._make_sampler, case.mode, self._job
        )
        measured, sampler = yield from protocol.run(first, do_nothing)
        self._call_anew()
        if wrong := self._check("after timing"):
            return wrong
        if bench.rank:
            return []
        if measured is None or not measured.samples.durations.size:
            return [fail_without_samples(measured.invalid if measured else {}, sampler.remedy)]
        timing = select_timing(case, measured, bench.common, range(2), bench.policy)
        checked, wrong_count = (2 * case.nbytes, 0) if bench.policy.check else (0, None)
        return [MeasuredCase(timing, setup=first, verified=checked, wrong=wrong_count)]
