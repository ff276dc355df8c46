"""One case on one rank: allocate, check, measure, check."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from collbench.core.errors import CannotRun
from collbench.core.paths import find_path
from collbench.records.choice import add_names, without_effect
from collbench.records.types import Background, Choice, GpuState, Scheme, Sent
from collbench.run.backends import Call, do_nothing
from collbench.run.jobs import Job, fit_policy
from collbench.run.launch.board import Phase
from collbench.run.rank import counted
from collbench.run.rank.adding import find_adding_names
from collbench.run.rank.aside import Aside, Cadence
from collbench.run.rank.background import Behind
from collbench.run.rank.bench import Bench
from collbench.run.rank.calls import Pattern, Slot, allocate_slots, prepare_call, submit_times
from collbench.run.rank.device_clock import DeviceSampler, GraphSampler
from collbench.run.rank.global_clock import WINDOW_NS
from collbench.run.rank.gpu import Guard, collect_worst
from collbench.run.rank.measure import (
    Measured,
    Protocol,
    Sampler,
    Steps,
    Sync,
    T,
    clock,
    is_longer_than_case,
)
from collbench.run.rank.outcome import (
    CaseOutcome,
    FailedCase,
    MeasuredCase,
    Timing,
    WrongData,
    case_times,
    fail_without_samples,
    select_control,
    select_timing,
)
from collbench.run.rank.stream import Stream
from collbench.run.rank.verification import Verification

BESIDE_NS = 10 * WINDOW_NS  # the least length of a sample in worlds with a background, which goes
# on while ranks wait for a common start
FAST = 64 << 10  # bytes of a call up to which a stream may show how fast its host issues calls
UNFUSED = (
    "-m: calls are launched one after the other, as {} fuses no {} (nccl-tests has NCCL fuse them)"
)


class Seen(NamedTuple):
    """What rank 0 knows of a case once it is measured: ``gpus`` at their worst, by rank; how long
    ranks' ``firsts`` took, and to submit calls; ``bits`` by group, what the
    library ``chose`` in rank 0's, and by group what its sums ``adds_as``; by rank, how the
    background fared."""

    measured: Measured
    remedy: str
    gpus: dict[int, GpuState]
    firsts: np.ndarray
    submits: np.ndarray | None
    bits: list[list[str]]
    control: Aside | None
    chose: Choice | None
    adds_as: Sequence[tuple[str, ...]]
    sent: list[Sent]
    notes: list[str]
    backgrounds: list[Background | None]


class Trial:
    """One case on one rank, from allocation to its outcome."""

    def __init__(self, bench: Bench, job: Job, behind: Behind | None = None) -> None:
        self._bench, self._behind = bench, behind
        self._control, self._rank, self._job = bench.control, bench.rank, job
        self._group = bench.backend.control or bench.control  # this rank's group
        self._case = (
            job.case
            if self._group.idle
            else msgspec.structs.replace(job.case, group=self._group.number)
        )
        self._policy = fit_policy(bench.policy, job)
        self._planted = bench.planted()
        self._delay = self._planted.tarry if self._planted else do_nothing
        slots = [self._case] * job.rotation
        self._slots = allocate_slots(bench.backend, slots, bench.ranks, self._policy.unalign)
        with self._control.refusing_alike():  # scratch may not fit into one rank's GPU
            self._calls = [self._prepare(slot) for slot in self._slots]
        self._beat = partial(bench.board.beat, bench.rank)
        self._count = partial(bench.board.count_calls, bench.rank)
        self._data = Verification(bench, self._case, self._policy, self._slots, self._calls)
        # calls beside the samples: none where kernels are interpreted, whose time means nothing
        can_call = not bench.backend.interpreted and not job.case.background
        self._takes_control = job.control and can_call
        needs_proof = bool(find_path(job.case.env)) and not job.coarse
        self._counts_bytes = (job.counts_bytes or needs_proof) and can_call
        self._common = None if self._clock() else bench.common

    def _prepare(self, slot: Slot) -> Call:
        self._bench.board.beat(self._rank)
        call = prepare_call(self._bench.backend, self._case, slot, self._policy.virtual)
        if self._planted and slot:
            return self._planted.within(call, slot[0].recv)
        return call._replace(waits=True) if self._policy.inject else call

    def run(self) -> Steps[Sequence[CaseOutcome]]:
        """The outcome of each group, at rank 0; with a pause before each block."""
        for slot in range(len(self._slots)):
            self._data.fill(slot)
        self._enter(Phase.CHECKING)
        self._refresh_clock()
        sync = self._sync()
        if sync.refuse(0.0, math.inf):
            sync.begin_at_barrier(self._policy.sync)
        firsts = self._control.gather(np.array([self._timed_first(sync)]))
        first_ns = 0 if firsts is None else int(firsts.max())  # rank 0 decides by the slowest's
        slow = self._takes_longer_than_there_is(first_ns)
        if not slow and (wrong := self._data.check_slots([0], "before timing")):
            return wrong
        timed = self._policy.cpu_time
        submits = submit_times(self._calls[0], self._control, self._count) if timed else None
        self._beat()
        chose = self._bench.backend.overheard(self._once)
        if self._data.feeds_on_itself or slow:
            for slot in range(self._policy.agg_iters):
                self._data.fill(slot)
        self._data.keep_copies()
        self._enter(Phase.WARMING)
        guard = self._bench.make_guard()
        protocol = self._protocol(sync, guard)
        measured, sampler = yield from self._along(protocol.run(first_ns, self._measuring))
        if self._common:
            self._common.check()
        self._enter(Phase.CHECKING)
        if wrong := self._data.check_after(sampler, slow) or self._check_behind():
            return wrong
        control = self._in_other_cadence(sampler, measured, protocol.iters)
        summed = self._data.digest_results(self._from_inputs)
        adds_as = self._find_adding_names()
        sent: list[Sent] = []
        if self._counts_bytes:
            sent = counted.count_sent(self._control, self._bench.watch, self._case, self._again)
        self._enter(Phase.REPORTING)
        gpus = collect_worst(self._control, guard)
        background = self._beside_all()
        if measured is None or firsts is None:
            return []
        notes = [self._ran(), f"no window: {sync.refused}" * self._lacks_window(sync, measured)]
        remedy = sampler.remedy
        more = control, chose, adds_as, sent, notes, background
        data = Seen(measured, remedy, gpus, firsts, submits, summed, *more)
        return [self._outcome(*group, data) for group in enumerate(self._group.groups)]

    def _along(self, work: Steps[T]) -> Steps[T]:
        """``work`` with what there is in the background, once that has been timed alone."""
        if self._behind:
            self._behind.alone()
        if self._case.background:
            self._control.barrier()  # ranks without any would spin for the others
        return self._behind.along(work) if self._behind else work

    def _takes_longer_than_there_is(self, first_ns: int) -> bool:
        """Whether one call takes more than the time of the case, so that one is timed. Its own data
        is checked then, in a buffer filled anew, instead of calls' made for that alone."""
        return bool(self._control.decide([int(is_longer_than_case(self._policy, first_ns))])[0])

    def _protocol(self, sync: Sync, guard: Guard | None) -> Protocol:
        return Protocol(
            self._policy,
            self._control,
            sync,
            self._sampler,
            self._case.mode,
            msgspec.structs.replace(self._job, inner=1) if self._case.arrival else self._job,
            guard,
            lambda samples: case_times(self._case, samples, self._common),
            self._calls[0].bare,
            self._bench.in_turns,
            self._bench.calibrator,
            lambda samples: [
                case_times(self._case, samples, self._common, ranks) for ranks in self._group.groups
            ],
            BESIDE_NS if self._bench.beside and self._case.mode == "isolated" else 0,
        )

    def _measuring(self) -> None:
        self._enter(Phase.MEASURING)
        if self._behind:
            self._behind.since()

    def _outcome(self, number: int, ranks: Sequence[int], data: Seen) -> CaseOutcome:
        case, measured = self._case, data.measured
        gpus = {rank: data.gpus[rank] for rank in ranks if rank in data.gpus}
        if not measured.samples.durations.size:
            return fail_without_samples(measured.invalid, data.remedy, measured.hopeless, gpus)
        timing = select_timing(case, measured, self._common, ranks, self._policy)
        if why := self._explain_unknown_arrival(float(np.median(timing.times))):
            return FailedCase(f"--arrival {case.arrival}: {why}")
        chose = add_names(None if number else data.chose, data.adds_as[number])
        backgrounds = [
            data.backgrounds[rank] for rank in ranks if data.backgrounds
        ] + data.backgrounds
        notes = [
            data.notes[0],
            self._unfused(),
            self._calls[0].note,
            without_effect(case.env, case.collective, chose),
            *data.notes[1:],
            self._lacks_common_times(timing),
        ]
        return MeasuredCase(
            timing,
            setup=int(data.firsts[list(ranks)].max()),
            verified=self._data.totals[number],
            wrong=0 if self._policy.check and case.size else None,
            digests=data.bits[number],
            control=select_control(data.control, ranks, self._policy.agg_iters),
            submits=[] if data.submits is None else data.submits[ranks[0]].tolist(),
            gpus=list(gpus.values()),
            choice=chose,
            sent=data.sent,
            calibration=measured.calibration,
            background=next(filter(None, backgrounds), None),
            note="; ".join(filter(None, notes)),
        )

    def _refresh_clock(self) -> None:
        """Have ranks' clocks compared anew if it is time. Raises CannotRun where they do not tell
        what the case wants to know."""
        if self._common:
            self._common.refresh()
        if why := self._explain_unknown_arrival():
            raise CannotRun(f"--arrival {self._case.arrival}: {why}", "--arrival aligned")

    def _explain_unknown_arrival(self, sample_ns: float = math.inf) -> str:
        """Why clocks do not tell when the last rank arrived, where times of samples, about
        ``sample_ns``, are counted from then; else ""."""
        if not (self._case.arrival and self._common):
            return ""
        return self._common.explain_inaccuracy(sample_ns)

    def _ran(self) -> str:
        """A note on the algorithm that ran with its parameters, where these were left to it; else
        ""."""
        ran = self._calls[0].ran
        return "" if ran in ("", self._case.algorithm) else f"ran {ran}"

    def _unfused(self) -> str:
        """A note where calls cannot be issued as one (-m) on this GPU's backend; else ""."""
        backend, case, together = self._bench.backend, self._case, self._policy.agg_iters
        if not backend.stream or together == 1:
            return ""
        if backend.fuse_calls(case, ()):
            return UNFUSED.format("--inject", case.collective) if self._policy.inject else ""
        by_torch = case.backend == "nccl" and case.algorithm == "native"
        return UNFUSED.format("torch" if by_torch else case.label, case.collective)

    def _once(self) -> None:
        """The first calls as they are timed: a library may choose otherwise for what is captured,
        or fused."""
        stream = self._bench.backend.stream
        run = self._issue(self._calls[: self._policy.agg_iters])
        if stream and self._case.mode == "graph":
            run = stream.capture(run)
        run()

    def _lacks_window(self, sync: Sync, measured: Measured) -> bool:
        """Whether ranks met at a barrier as their clocks are not good enough for a window."""
        return bool(self._common and sync.refused and measured.scheme == "barrier")

    def _lacks_common_times(self, timing: Timing) -> str:
        """A note where the clocks of the ranks are not good enough for the times of a group; else
        ""."""
        if self._common is None:
            return ""
        why = self._common.explain_inaccuracy(float(np.median(timing.times)))
        return why and f"no T_glob: {why}"

    def _timed(self) -> list[tuple[Callable[[], object], tuple[int, ...]]]:
        """Calls as the policy wants them timed, with their slots: m together (-m), followed by a
        barrier (-z 1)."""
        together = self._policy.agg_iters
        groups = [
            tuple(range(s, s + together))
            for s in range(0, len(self._calls) - together + 1, together)
        ]
        return [(self._action([self._calls[s] for s in slots]), slots) for slots in groups]

    def _action(self, calls: Sequence[Call]) -> Callable[[], object]:
        run = self._issue(calls)

        def fenced() -> None:
            run()
            self._bench.backend.finish()
            if not self._group.idle:
                self._group.barrier()

        return fenced if self._policy.blocking == 1 else run

    def _issue(self, calls: Sequence[Call]) -> Callable[[], object]:
        """A function that issues the calls together: as one where the library can."""
        if len(calls) == 1:
            return calls[0].run
        if not self._policy.inject and (
            fused := self._bench.backend.fuse_calls(self._case, calls)
        ):  # a planted delay is a part of the time of a call that is issued by itself
            return fused
        submits = [call.submit for call in calls if call.submit]

        def together() -> None:
            for work in [submit() for submit in submits]:
                work.wait()

        def in_turn() -> None:
            for call in calls:
                call.run()

        return together if submits else in_turn

    def _find_adding_names(self) -> Sequence[tuple[str, ...]]:
        """By group, the algorithms that add as these calls do, where that is asked for."""
        if not self._policy.adds_as:
            return [()] * len(self._group.groups)
        return find_adding_names(
            self._bench, self._case, self._slots[0], self._from_inputs, self._beat
        )

    def _enter(self, phase: Phase) -> None:
        self._bench.board.enter(self._rank, phase)

    def _clock(self) -> Stream | None:
        """The stream whose clock makes the times of this case; None where the host's does."""
        mode = self._case.mode
        return (
            self._bench.backend.stream
            if mode == "graph"
            or (mode == "isolated" and not self._waits and not self._case.arrival)
            else None
        )

    @property
    def _waits(self) -> bool:
        """Whether the host waits for the device within a call."""
        return self._policy.blocking == 1 or any(call.waits for call in self._calls)

    def _sync(self) -> Sync:
        backend, board = self._bench.backend, self._bench.board
        pattern = self._case.arrival
        tarry = Pattern(pattern, self._group, self._policy.seed).tarry if pattern else do_nothing

        def after() -> None:
            self._delay()
            tarry()

        if self._clock():
            return Sync("device", self._control, board, backend.align, after=after)

        scheme: Scheme = "none" if self._case.mode == "host" else self._bench.scheme
        return Sync(scheme, self._control, board, self._bench.meet, self._common, after)

    def _in_other_cadence(
        self, sampler: Sampler, measured: Measured | None, iters: int | None
    ) -> Aside | None:
        cadence, most = self._other_cadence(), self._policy.max_seconds
        if cadence is None:
            return None
        return cadence.sample(sampler, measured, self._control, iters, most or math.inf)

    def _other_cadence(self) -> Cadence | None:
        """How the calls are made that are the case's control: as a program's are where the case
        aligns ranks, aligned where it does not or has some come late; of a stream of small calls by
        the device's clock, as its own time may be the host's. None where the job wants no control,
        or a device's clock would have to be set beside a host's."""
        mode, backend, board = self._case.mode, self._bench.backend, self._bench.board
        if not self._takes_control:
            return None
        if backend.stream:
            if mode != "streaming" or self._waits or self._case.size > FAST:
                return None
            sync = Sync("device", self._control, board, backend.align, after=self._delay)
            return Cadence(sync, self._on_device)
        if mode not in ("isolated", "host"):
            return None
        aligned = mode == "host" or self._case.arrival
        scheme: Scheme = self._bench.scheme if aligned else "none"
        return Cadence(Sync(scheme, self._control, board, do_nothing, self._common, self._delay))

    def _sampler(self, inner: int) -> Sampler:
        calls, count = self._timed(), self._count
        freshen = self._data.put_back if self._data.feeds_on_itself else None
        backend, stream = self._bench.backend, self._clock()
        finish = backend.finish
        if stream and self._case.mode == "graph":
            return GraphSampler(
                stream, calls, inner, self._control, count, freshen, finish, self._policy.graph
            )
        if stream:
            return self._on_device(inner)
        marks = backend.stream if self._case.mode == "streaming" else None
        return Sampler(calls, inner, self._control, count, freshen, finish, marks)

    def _on_device(self, inner: int) -> Sampler:
        """A sampler by the device's clock, for isolated calls."""
        backend = self._bench.backend
        freshen = self._data.put_back if self._data.feeds_on_itself else None
        assert backend.stream
        return DeviceSampler(
            backend.stream,
            self._timed(),
            inner,
            self._control,
            self._count,
            freshen,
            backend.finish,
        )

    def _timed_first(self, sync: Sync) -> int:
        """Duration of the first call on these buffers, from when all ranks have filled theirs. The
        library was probed with a few elements before."""
        self._bench.backend.finish()
        if sync.scheme == "none":
            self._control.barrier()
        sync()
        self._bench.backend.finish()  # where a stream waits for the others
        begin = clock()
        self._finished()
        return clock() - begin

    def _again(self) -> None:
        """Make one more call, and wait for its end."""
        if self._data.feeds_on_itself:
            self._data.fill(0)
        self._finished()

    def _finished(self) -> None:
        self._count()
        self._calls[0].run()
        self._bench.backend.finish()

    def _from_inputs(self) -> None:
        """Make one more call on what the first slot's buffers hold now, and have its result in
        them."""
        self._count()
        self._calls[0].run_with_data(self._bench.backend.finish)

    def _check_behind(self) -> Sequence[CaseOutcome]:
        """The outcome of each group if the background leaves wrong data, else nothing."""
        if not self._case.background:
            return []
        problems = self._control.collect(self._behind.wrong() if self._behind else "")
        notes = [note for note in problems if note]
        return [WrongData(len(notes), notes[0])] * len(self._group.groups) if notes else []

    def _beside_all(self) -> list[Background | None]:
        """How each rank's background fared."""
        if not self._case.background:
            return []
        result = msgspec.to_builtins(self._behind.result()) if self._behind else None
        return msgspec.convert(self._control.collect(result), list[Background | None])
