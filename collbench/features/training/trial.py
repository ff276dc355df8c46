"""A step of training on one rank: its buffers, its data checked, and its three parts measured in
turns - whole, computation alone, communication alone -, so that what communication adds is a
difference of neighbours."""

from __future__ import annotations

import bisect
import math
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from collbench.core.dtypes import DTYPES
from collbench.features.training.count import count_step
from collbench.features.training.operations import (
    ALONE,
    ALONE_SHARE,
    BLAME_ROUNDS,
    BLAMED,
    COUNTED,
    CROSSING,
    FEWEST,
    LEAST,
    MESSAGE,
    MORE,
    MOST_TIMED,
    WATCHED,
    Played,
    choose_warmup,
    list_played,
    site_of,
)
from collbench.features.training.overlap import bound_mean, list_timed
from collbench.features.training.parts import COMMUNICATION, PARTS, STEP
from collbench.features.training.player import Player
from collbench.features.training.step import POINT_TO_POINT, Step, split_programs
from collbench.records import stats
from collbench.records.types import FirstWrong, GpuState, Operation, Scheme, Sent, Stop
from collbench.run.backends import Backend, Call, do_nothing
from collbench.run.jobs import Job
from collbench.run.launch.board import Phase
from collbench.run.rank import counted
from collbench.run.rank.bench import Bench, Sites
from collbench.run.rank.calls import Buffers, allocate_slots
from collbench.run.rank.check import Checker
from collbench.run.rank.computation import Computation
from collbench.run.rank.gpu import Guard, collect_worst
from collbench.run.rank.measure import (
    MAX_LOST,
    STOPS,
    Measured,
    Sampler,
    Samples,
    Steps,
    Sync,
    clock,
    has_lost,
    overhead_ns,
)
from collbench.run.rank.outcome import (
    CaseOutcome,
    MeasuredCase,
    SkippedCase,
    Timing,
    WrongData,
    fail_without_samples,
    select_timing,
)
from collbench.run.rank.payload import format_bits
from collbench.suite.policy import Policy

EVERY = 100  # rounds after each of which is asked whether they suffice, and after a quarter more
SAY_S = 1.0  # after which what there is so far is told again
LOOKS = 10  # at GPUs, at least, where rounds take all the time there is
LONG_NS = 10_000_000  # of which what a barrier leaves between ranks' starts is nothing
MOST_WATCHED = 40_000  # times of single operations in all
CHECKS = ("before timing", "after timing")  # of the data, each with data of its own


class _Ready(NamedTuple):
    """An operation ready to be called: its buffers, what they must hold, and the call."""

    what: Played
    buffers: Buffers
    checker: Checker
    call: Call


class _Known(NamedTuple):
    """What rank 0 knows of a step besides its samples: what its ``first`` run took, with
    connecting, rounds that ``warmed`` it up, how ranks start and why rounds ended, the loop's own
    time; by rank, what was seen of each operation; bytes counted; GPUs at their worst."""

    first: int
    warmed: int
    scheme: Scheme
    stop: Stop = "cut"
    overhead: int = 0
    operations: list[list[Operation]] = []
    sent: list[Sent] = []
    gpus: dict[int, GpuState] = {}


class StepTrial:
    """One step on one rank, from its groups to the outcomes of its parts. ``report`` gets at rank
    0, now and then, the outcomes so far."""

    def __init__(
        self,
        bench: Bench,
        job: Job,
        sites: Sites,
        report: Callable[[Sequence[CaseOutcome]], object],
    ) -> None:
        self._report_interim = report
        self._bench, self._job, self._step = bench, job, job.subject
        self._control, self._policy, self._rank = bench.control, bench.policy, bench.rank
        self._seed = self._policy.seed + zlib.crc32(job.case.subject.encode())
        self._beat = partial(bench.board.beat, bench.rank)
        self._count = partial(bench.board.count_calls, bench.rank)
        self._sites: dict[tuple[str, str], Backend] = {}
        self._on_device = bench.backend.stream is not None
        for name, lane in _list_used(self._step, self._on_device):
            self._sites[name, lane] = sites.at(self._step.family(name), lane)
        with self._control.refusing_alike():  # scratch may not fit into one rank's GPU
            self._ops = self._prepared()
        self._program = self._step.program(bench.rank)
        backend = bench.backend
        self._finish = backend.finish
        computation = Computation(
            self._step.compute, backend.device, self._beat, self._control.decide, backend.finish
        )
        calls = {operation.what.at: operation.call for operation in self._ops}
        patient = job.case.backend != "mpi"  # which calls from one thread alone
        lanes = patient and not backend.stream
        self._player = Player(self._program, calls, computation, self._beat, patient, lanes)
        self._planted = bench.planted()
        self._common = bench.common
        self._checked = self._total = self._took = self._look = 0
        self._throttled = self._vouched = 0  # rounds thrown away; those up to the last look at GPUs
        self._usable: list[int] = []  # numbers of the rounds without a late sample
        self._looked = 0.0

    def _prepared(self) -> list[_Ready]:
        """The operations that this rank has with others, with a buffer each."""
        case, prepared = self._job.case, []
        checkers: dict[tuple[object, ...], Checker] = {}
        every = list_played(self._step, self._rank, case.backend, case.algorithm)
        for site, backend in self._sites.items():
            site_operations = [o for o in every if o.find_site(self._on_device) == site]
            slots = allocate_slots(backend, [operation.case for operation in site_operations], [0])
            for operation, (buffers,) in zip(site_operations, slots, strict=True):
                key = operation.case, operation.meeting
                data_key = f"{case.subject} {operation.meeting} {operation.case.key}"
                checkers[key] = checkers.get(key) or Checker(
                    operation.case,
                    self._policy.seed,
                    _buffer_rank(operation),
                    backend.device,
                    backend.premultiplies,
                    self._beat,
                    zlib.crc32(data_key.encode()),
                )
                prepared.append(
                    _Ready(
                        operation,
                        buffers,
                        checkers[key],
                        _prepare_call(operation, backend, buffers),
                    )
                )
        return sorted(prepared, key=lambda operation: operation.what.at)

    def run(self) -> Steps[Sequence[CaseOutcome]]:
        """The outcome of each part, in the order of PARTS, at rank 0; with a pause before each
        round."""
        self._enter(Phase.CHECKING)
        if self._common:
            self._common.refresh()
        connecting = self._connect_ranks() if self._on_device else 0
        sync = self._sync()
        if wrong := self._check(0):
            return wrong
        first = self._took
        self._enter(Phase.WARMING)
        samplers = [self._sampler(self._action(part)) for part in PARTS]
        warmed = self._warm(samplers, sync, first)
        self._enter(Phase.MEASURING)
        conditions = _Known(connecting + first, warmed, sync.scheme)
        guard = self._bench.make_guard()
        samples, stop = yield from self._rounds(samplers, sync, conditions, guard)
        if self._common:
            self._common.check()
        sent = self._sent()
        everyones = self._time_operations(sync, samples)
        self._enter(Phase.CHECKING)
        if wrong := self._check(1):
            return wrong
        self._player.close()
        self._enter(Phase.REPORTING)
        overhead = overhead_ns(samplers[0], self._control)
        gpus = collect_worst(self._control, guard)
        if self._rank:
            return []
        conditions = _Known(*conditions[:2], sync.scheme, stop, overhead, everyones, sent, gpus)
        return self._parts(samples, conditions)

    def _connect_ranks(self) -> int:
        """Make the first call of each site, of messages that of each two ranks, in an order that is
        the same on all ranks: there the library connects them, and the host waits meanwhile. The ns
        that it took."""
        began = clock()
        first: dict[tuple[object, ...], Call] = {}
        for operation in self._ops:
            key = (*operation.what.find_site(True), *operation.what.both_ends)
            first.setdefault(key, operation.call)
        for _, call in sorted(first.items(), key=lambda item: item[0]):
            call.run()
            self._finish()
            self._beat()
        return clock() - began

    def _enter(self, phase: Phase) -> None:
        self._bench.board.enter(self._rank, phase)

    def _sync(self) -> Sync:
        bench, late = self._bench, self._planted.tarry if self._planted else do_nothing
        sync = Sync(bench.scheme, self._control, bench.board, bench.meet, self._common, late)
        if sync.refuse(0.0, math.inf):
            sync.begin_at_barrier(self._policy.sync)
        return sync

    def _action(self, part: str) -> Callable[[], object]:
        return self._make_call(part).run

    def _make_call(self, part: str) -> Call:
        """A part of the step as one call, with the faults that are planted in it."""
        call = Call(self._player.play(part), None, waits=True)
        if self._planted and self._ops:
            return self._planted.within(call, self._ops[0].buffers.recv)
        return call

    def _sampler(self, run: Callable[[], object]) -> Sampler:
        return Sampler([(run, ())], 1, self._control, self._count, None, self._finish)

    def _warm(self, samplers: Sequence[Sampler], sync: Sync, first: int) -> int:
        """Rounds that are not counted. Steps that take long enough, or too often find a rank late
        for a window, then begin at a barrier."""
        (rounds,) = self._control.decide([choose_warmup(self._policy, first / 1e9)])
        warm_samples = [sampler.take(1, sync) for _ in range(rounds) for sampler in samplers]
        late = [
            bool(part_samples.late.any())
            for part_samples in warm_samples
            if part_samples is not None
        ]
        refused = sync.refuse(sum(late) / max(1, len(late)), first)
        (swap,) = self._control.decide([int(refused or first > LONG_NS)])
        if swap:
            sync.begin_at_barrier(self._policy.sync)
        if not (self._rank or self._bench.in_turns):
            latest = [
                int(part_samples.times.sum())
                for part_samples in warm_samples[-len(PARTS) :]
                if part_samples is not None
            ]
            parts = latest or [first, first // 2, first // 2]
            self._report_interim([MeasuredCase(Timing(stop="cut"), setup=ns) for ns in parts])
        return rounds

    def _rounds(
        self,
        samplers: Sequence[Sampler],
        sync: Sync,
        conditions: _Known,
        guard: Guard | None = None,
    ) -> Steps[tuple[list[Samples], Stop]]:
        """Rounds of one sample of each part, in an order drawn each time; at rank 0. Outcomes are
        reported about every second, and once more after the last round, as it takes long until
        data is checked again. Where the first rounds all find a rank late for their windows, the
        next begin at a barrier."""
        lots = np.random.default_rng([self._seed, 1])  # the same at all ranks
        rounds: list[list[Samples]] = []
        began, stop = time.perf_counter(), 0
        reported = self._looked = began
        while not stop:
            yield
            self._add_round(rounds, _measure_round(samplers, lots, sync))
            stop = 0 if self._rank else self._enough(rounds, time.perf_counter() - began)
            if guard and self._discard_throttled(guard, rounds, stop > 0) and not self._rank:
                stop = self._enough(rounds, time.perf_counter() - began)
            due = stop or time.perf_counter() - reported > SAY_S
            if due and not (self._rank or self._bench.in_turns):
                known = conditions._replace(scheme=sync.scheme)
                interim = self._parts(_join_rounds(rounds), known)
                if all(isinstance(part, MeasuredCase) for part in interim):
                    self._report_interim(interim)  # else it would be taken for what came of it
                reported = time.perf_counter()
            refused = self._begin_too_late(len(rounds)) and sync.refuse(1.0, math.inf)
            stop, swap = self._control.decide([stop, int(refused)])
            if swap:
                sync.begin_at_barrier(self._policy.sync)
        return _join_rounds(rounds), STOPS[stop]

    def _add_round(self, rounds: list[list[Samples]], parts: list[Samples]) -> None:
        """Add the samples of a round, and note its number where none of them is late."""
        if not any(part.late.any() for part in parts):
            self._usable.append(len(rounds))
        rounds.append(parts)

    def _discard_throttled(self, guard: Guard, rounds: list[list[Samples]], is_last: bool) -> bool:
        """Look at GPUs after the last round, or if the last look is long ago; whether one is held
        back now. Then the rounds since that look count as late."""
        now, longest = time.perf_counter(), most_seconds(self._job, self._policy, LEAST) / LOOKS
        (is_due,) = self._control.decide([int(is_last or now - self._looked > longest)])
        if not is_due:
            return False
        first, self._vouched, self._looked = self._vouched, len(rounds), now
        if not any(self._control.collect(guard.bad())):
            return False
        for number in range(first, len(rounds)):
            rounds[number] = [
                part._replace(late=np.ones_like(part.late)) for part in rounds[number]
            ]
        del self._usable[bisect.bisect_left(self._usable, first) :]
        self._throttled += len(rounds) - first
        guard.pause()
        return True

    def _begin_too_late(self, taken: int) -> bool:
        """Whether all of the first rounds have found a rank late, of so many taken so far; not
        counting those that a GPU held back has spoilt."""
        return taken - self._throttled >= FEWEST and not self._usable

    def _enough(self, rounds: Sequence[Sequence[Samples]], seconds: float) -> int:
        """Why there are rounds enough, as a place in STOPS; 0 where there are not."""
        policy, number = self._policy, len(self._usable)
        requested = self._job.samples or policy.iters
        limit = max(
            most_seconds(self._job, policy, LEAST), (requested or 0) * seconds / len(rounds)
        )
        if has_lost(seconds, number, len(rounds), MAX_LOST * limit):
            return STOPS.index("budget")
        if len(rounds) - self._throttled > 3 * max(FEWEST, number, requested or 0):
            return STOPS.index("max_n")
        if requested is not None or not number:
            return STOPS.index("fixed") if requested and number >= requested else 0
        assert policy.precision and policy.max_seconds is not None, "a resolved policy is needed"
        if number < EVERY or number >= self._look:
            self._look = number + stats.next_block(number)
            usable = [rounds[at] for at in self._usable]
            step_times, silent, _ = (
                Samples.concatenate(part).times for part in zip(*usable, strict=True)
            )
            exposed = bound_mean(np.asarray(step_times - silent, dtype=float))
            narrow = exposed.hi - exposed.lo <= 2 * policy.precision * float(np.median(step_times))
            least = policy.precision, LEAST, seconds, policy.min_seconds
            if narrow and stats.is_converged(step_times, *least):
                return STOPS.index("converged")
        if number >= policy.max_iters:
            return STOPS.index("max_n")
        spent = seconds * (1 + 0.5 / number) >= most_seconds(self._job, policy, number)
        return STOPS.index("budget") if spent and number >= FEWEST else 0

    def _time_operations(
        self, sync: Sync, step_samples: Sequence[Samples]
    ) -> list[list[Operation]]:
        """The times of each operation of the ranks that were watched, rank 0 first; none where that
        has too many."""
        if len(self._step.program(0).ops) > MOST_TIMED:
            return []
        alone = self._alone(sync, step_samples)
        operation_times = self._gathered(self._watch_steps(sync), alone)
        if self._policy.blame:
            self._blame(operation_times[0], sync)
        return operation_times

    def _alone(self, sync: Sync, step_samples: Sequence[Samples]) -> dict[str, list[int]]:
        """Times of operations by themselves, by what they are: on the slowest rank, at rank 0. All
        ranks take part in each, those that have no such operation by doing nothing. Messages are
        left out, and where there is no time for more, operations are."""
        first: dict[str, Call] = {}
        for operation in self._ops:
            if operation.what.op.kind not in POINT_TO_POINT:
                first.setdefault(operation.what.op.label, operation.call)
        names = sorted({name for names in self._control.collect([*first]) for name in names})
        spent, times = 0.0, {}
        most = ALONE_SHARE * sum(part.times.sum() for part in step_samples) / 1e9
        for name in names:
            (is_within,) = self._control.decide([int(spent <= most)])
            if not is_within:
                break
            began = time.perf_counter()
            sampler = self._sampler(first[name].run if name in first else do_nothing)
            sampler.take(1, sync)
            samples = sampler.take(ALONE, sync)
            spent += time.perf_counter() - began
            if samples is not None:
                times[name] = samples.times.tolist()
        return times

    def _sent(self) -> list[Sent]:
        """What left all hosts in the communication of a step, twice; nothing of one so small that
        what surrounds messages counts, or so large that it is not made again."""
        total, n = count_step(self._step).total, self._control.n
        if not counted.SMALLEST * n < total < counted.LARGE:
            return []
        play = self._player.play(COMMUNICATION)

        def again() -> None:
            play()
            self._finish()

        return [counted.count_once(self._control, self._bench.watch, again) for _ in range(COUNTED)]

    def _watch_steps(self, sync: Sync) -> list[list[list[list[int]]]]:
        """By rank, what it saw of each step that was watched. Where operations of all ranks are too
        many, rank 0 alone is watched, once at least."""
        total = sum(len(program.ops) * len(program.ranks) for program in self._step.programs)
        counts = total, len(self._step.program(0).ops)
        of_all, of_first = (MOST_WATCHED // (2 * max(1, count)) for count in counts)
        most = min(WATCHED, of_all or max(1, of_first))
        steps = [self._once_watched(sync) for _ in range(most)]
        if of_all:
            return self._control.collect(steps)
        return [self._control.broadcast(steps)]

    def _once_watched(self, sync: Sync) -> list[list[int]]:
        """The times at which operations of a watched step began and ended, and the program began to
        wait before them, in ns after this rank's begin."""
        sync()
        if stream := self._bench.backend.stream:
            return [*self._player.watched_on(stream)]
        began = clock()
        watched = self._player.watched()
        return [[max(0, ns - began) if ns else 0 for ns in times] for times in watched]

    def _blame(self, operation_times: list[Operation], sync: Sync) -> None:
        """Adds to rank 0's operations what steps take without those that it waits for longest: each
        left out by all that meet in it, in rounds, beside the whole step."""
        self._beat()  # each of these takes long where there are many operations
        timed = list_timed(self._step.program(0), operation_times)
        self._beat()
        longest = sorted(timed, key=lambda entry: (entry.took * (entry.hidden - 1), -entry.took))[
            :BLAMED
        ]
        case = self._job.case
        first = {
            operation.at: operation.who
            for operation in list_played(self._step, 0, case.backend, case.algorithm)
        }
        self._beat()
        index_of = {operation.what.who: operation.what.at for operation in self._ops}
        places = [entry.at for entry in longest if entry.at in first]
        plays = [self._player.without(index_of.get(first[at])) for at in places]
        samplers = [self._sampler(play) for play in (self._action(STEP), *plays)]
        lots = np.random.default_rng([self._seed, 2])
        rounds = [_measure_round(samplers, lots, sync) for _ in range(BLAME_ROUNDS)]
        usable = [
            round_samples
            for round_samples in rounds
            if not any(part_samples.late.any() for part_samples in round_samples)
        ]
        if self._rank or not usable:
            return
        step_times, *without = (
            Samples.concatenate(part).times.tolist() for part in zip(*usable, strict=True)
        )
        for at, times in zip(places, without, strict=True):
            operation_times[at] = replace(operation_times[at], with_ns=step_times, without_ns=times)

    def _gathered(
        self, watched: Sequence[list[list[list[int]]]], alone: dict[str, list[int]]
    ) -> list[list[Operation]]:
        """The times of each operation of the ranks that were watched, by rank."""
        operations = []
        for rank, steps in enumerate(watched):
            ops = self._step.program(rank).ops
            operations.append(
                [
                    Operation(
                        begins_ns=[step[0][at] for step in steps],
                        ends_ns=[step[1][at] for step in steps],
                        waits_ns=waits if any(waits := [step[2][at] for step in steps]) else [],
                        alone_ns=alone.get(op.label, []) if rank == 0 else [],
                    )
                    for at, op in enumerate(ops)
                ]
            )
        return operations

    def _parts(
        self, samples_by_part: Sequence[Samples], conditions: _Known
    ) -> Sequence[CaseOutcome]:
        """The outcome of each part."""
        return [
            self._outcome(index, samples, conditions)
            for index, samples in enumerate(samples_by_part)
        ]

    def _outcome(self, index: int, samples: Samples, conditions: _Known) -> CaseOutcome:
        """The outcome of the step's case ``index``, counted from the last of its siblings, from
        that case's samples. Why rounds ended is told of the step and its exposed time, whatever the
        part: "converged" does not say that the part's own interval is narrow."""
        case = self._job.case.siblings[::-1][index]
        late = samples.late.astype(bool)
        counts = {Sampler.cause: int(late.sum()) - self._throttled, "throttled": self._throttled}
        causes = {cause: count for cause, count in counts.items() if count}
        if late.all():
            return fail_without_samples(causes, Sampler.remedy, gpus=conditions.gpus)
        usable = samples.only(~late)
        how = (
            conditions.warmed,
            True,
            conditions.stop,
            conditions.scheme,
            causes,
            conditions.overhead,
        )
        measured = Measured(usable, 1, *how, "host", [], None)
        timing = select_timing(case, measured, self._common, range(self._control.n), self._policy)
        part = MeasuredCase(
            timing, wrong=0 if self._policy.check else None, gpus=[*conditions.gpus.values()]
        )
        if index:
            return part
        return part._replace(
            setup=conditions.first,
            verified=self._total,
            operations=conditions.operations,
            sent=conditions.sent,
        )

    def _check(self, number: int) -> Sequence[CaseOutcome]:
        """The outcome of each part if what any operation of one step received differs anywhere,
        else nothing. Buffers are filled before it with other data than at the check before, which
        every step since has sent: a result that is left of an earlier step is wrong."""
        if not self._policy.check:
            return []
        slots = [len(CHECKS) * operation.what.turn + number for operation in self._ops]
        for operation, slot in zip(self._ops, slots, strict=True):
            operation.checker.poison(operation.buffers.written)
            operation.checker.fill_send(operation.buffers.send, slot)
            operation.call.load()
        self._finish()
        self._control.barrier()
        began = clock()
        step = self._make_call(STEP)
        step.run()
        self._finish()
        self._took = clock() - began
        for operation in self._ops:
            operation.call.store()
        step.store()
        wrong, worst = 0, None
        for operation, slot in zip(self._ops, slots, strict=True):
            if operation.what.op.kind == "send":
                continue
            checked, bad, where = operation.checker.check_recv(operation.buffers.recv, slot)
            self._checked += checked
            wrong += bad
            worst = worst or (where and [operation.what.at, *where])
        everyone = self._control.collect([self._checked, wrong, worst])
        self._total = sum(checked for checked, _, _ in everyone)
        is_wrong = any(wrong for _, wrong, _ in everyone)
        return self._wrong(everyone, CHECKS[number]) if is_wrong else []

    def _wrong(self, everyone: Sequence[Any], when: str) -> Sequence[CaseOutcome]:
        """The outcomes of a step of which some operation had wrong data: no part of it is timed."""
        total = sum(wrong for _, wrong, _ in everyone)
        rank, worst = next((rank, answer[2]) for rank, answer in enumerate(everyone) if answer[2])
        at, index, *bits = worst
        op = self._step.program(rank).ops[at]
        got, expected = (format_bits(pattern, DTYPES[op.dtype]) for pattern in bits)
        where = f"op {at} ({op.label}{f', {op.phase}' if op.phase else ''})"
        note = (
            f"{total} wrong elements {when}, first in {where} on rank {rank} at {index}: {got}"
            f" instead of {expected}"
        )
        first = FirstWrong(rank=rank, index=index, got=got, expected=expected, when=when)
        untimed = SkippedCase(f"the step had wrong data {when}")
        return [WrongData(total, note, first), *[untimed] * (len(PARTS) - 1)]


def most_seconds(job: Job, policy: Policy, rounds: int) -> float:
    """The seconds that rounds of all parts may take, of which there are so many already: of a job's
    own share of a budget as much as leaves time for each operation by itself."""
    if job.seconds is not None:
        return job.seconds / (1 + ALONE_SHARE)
    return len(PARTS) * (policy.max_seconds or 0.0) * (1 if rounds >= LEAST else MORE)


def _measure_round(
    samplers: Sequence[Sampler], lots: np.random.Generator, sync: Sync
) -> list[Samples]:
    """A sample of each in an order that is drawn, at rank 0."""
    by_part = {
        int(index): samplers[index].take(1, sync) for index in lots.permutation(len(samplers))
    }
    return [samples for _, samples in sorted(by_part.items()) if samples is not None]


def _join_rounds(rounds: Sequence[Sequence[Samples]]) -> list[Samples]:
    """The samples of each part, at rank 0. Where somebody was late for one of a round, all of it
    counts as late."""
    parts = [Samples.concatenate(part) for part in zip(*rounds, strict=True)]
    late = [part.late.astype(bool) for part in parts]
    return [part._replace(late=np.logical_or.reduce(late)) for part in parts]


def _list_used(step: Step, on_device: bool) -> list[tuple[str, str]]:
    """Groups of more than one rank with the lanes on them, in an order that is the same on all
    ranks."""
    used = {
        (group, lane)
        for program in split_programs(step)
        for group, lane in {site_of(op) for op in program.ops if op.communicates}
        if len(step.members(group, program.ranks[0])) > 1
    }
    return sorted(
        (group, site_lane)
        for group, lane in used
        for site_lane in (CROSSING if on_device and lane == MESSAGE else (lane,))
    )


def _buffer_rank(operation: Played) -> int:
    """The rank whose data an operation's buffers hold, in its case: the sender is the first."""
    if operation.op.kind in POINT_TO_POINT:
        return int(operation.op.kind == "recv")
    return operation.rank


def _prepare_call(operation: Played, backend: Backend, buffers: Buffers) -> Call:
    op = operation.op
    if op.kind in POINT_TO_POINT:
        return backend.message(op.kind == "send", buffers.recv, op.peer, op.tag)
    return backend.prepare(operation.case, buffers.send, buffers.recv)
