"""One case on one rank: allocate, check, measure, check."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from collbench import payload
from collbench.backends import Backend, Call
from collbench.check import Checker
from collbench.choice import without_effect
from collbench.collectives import OPS
from collbench.control import Control
from collbench.device_clock import DeviceSampler, GraphSampler
from collbench.gpus import Guard, Watch, everyones
from collbench.launch.board import Board, Phase
from collbench.measure import Measured, Protocol, Sampler, Sync, clock
from collbench.plan import PAGE, Job
from collbench.records import PER_RANK_SAMPLES, FirstWrong
from collbench.stream import Stream
from collbench.suite import Case, Policy

THROTTLED = "nvidia-smi -q -d PERFORMANCE says what holds the GPU back"
CALLED_AGAIN = 4  # calls made once more after timing, on fresh buffers


class Bench(NamedTuple):
    """What all cases of a world share on this rank: a resolved policy, and a scheme of Sync's. ``held`` are the ranks
    whose buffers are in this process: its own, or all virtual ones. ``watch`` is of this rank's GPU, if it has one."""

    rank: int
    held: Sequence[int]
    backend: Backend
    control: Control
    board: Board
    policy: Policy
    scheme: str
    same_clock: bool
    watch: Watch | None = None


class Buffers(NamedTuple):
    """One slot's views: what the call reads and writes, and in place the one buffer behind both."""

    send: torch.Tensor
    recv: torch.Tensor
    whole: torch.Tensor | None


Slot = list[Buffers]  # one entry for each rank that this process holds


def allocate(backend: Backend, case: Case, held: Sequence[int], unalign: int, slots: int) -> list[Slot]:
    """Page-aligned buffers (shifted by ``unalign`` elements), in place as views of one; contents are undefined."""
    kind = getattr(torch, case.type.torch)
    placements = [payload.in_place_offsets(case, rank) if case.in_place else None for rank in held]
    lengths = [[placement.total] if placement else list(case.counts) for placement in placements]
    strides = [[-(-(length + unalign) * kind.itemsize // PAGE) * PAGE for length in mine] for mine in lengths]
    raw = backend.allocate(sum(map(sum, strides)) * slots + PAGE)
    at = -raw.data_ptr() % PAGE
    found: list[Slot] = []
    for _ in range(slots):
        found.append([])
        for placement, mine, steps in zip(placements, lengths, strides, strict=True):
            views = []
            for length, stride in zip(mine, steps, strict=True):
                start = at + unalign * kind.itemsize
                views.append(raw[start : start + length * kind.itemsize].view(kind))
                at += stride
            if placement:
                send, recv = (views[0][o : o + c] for o, c in zip(placement, case.counts, strict=False))
                views = [send, recv, *views]
            found[-1].append(Buffers(views[0], views[1], views[2] if placement else None))
    return found


def prepare(backend: Backend, case: Case, slot: Slot, virtual: bool) -> Call:
    """A call on the buffers of a slot: this rank's, or all ranks' where they are virtual."""
    if virtual:
        return backend.prepare_all(case, [each.send for each in slot], [each.recv for each in slot])
    ((send, recv, _),) = slot
    return backend.prepare(case, send, recv)


class Trial:
    """One case on one rank, from allocation to the fields of its record."""

    def __init__(self, bench: Bench, job: Job) -> None:
        self._bench, self._case = bench, job.case
        self._control, self._rank, self._job = bench.control, bench.rank, job
        self._policy = bench.policy
        if job.warmup is not None:
            self._policy = msgspec.structs.replace(bench.policy, warmup=job.warmup)
        device = bench.backend.device
        self._slots = allocate(bench.backend, self._case, bench.held, self._policy.unalign, job.rotation)
        self._calls = [self._prepare(slot) for slot in self._slots]
        seed = self._policy.seed + zlib.crc32(self._case.key.encode())  # no two cases share data
        self._checkers = [Checker(self._case, seed, rank, device, bench.backend.premultiplies) for rank in bench.held]
        # repeated in place, a reduction feeds on its own result: inputs are put back before each call
        self._grows = self._case.in_place and self._case.row.reduces and not OPS[self._case.op].idempotent
        self._checked = self._total = 0

    def _prepare(self, slot: Slot) -> Call:
        self._bench.board.beat(self._rank)
        return prepare(self._bench.backend, self._case, slot, self._policy.virtual)

    def run(self) -> dict[str, Any]:
        case = self._case
        for slot in range(len(self._slots)):
            self._fill(slot)
        self._enter(Phase.CHECKING)
        sync = self._sync()
        setup = self._timed_first(sync)
        wrong = self._check([0], "before timing")
        if wrong:
            return wrong
        submit = self._submit_times() if self._policy.cpu_time else []
        self._bench.board.beat(self._rank)
        chose = self._bench.backend.overheard(self._once)
        self._fill(0)
        self._enter(Phase.WARMING)
        guard = Guard(self._bench.watch) if self._bench.backend.stream else None
        protocol = Protocol(self._policy, self._control, sync, self._sampler, case.mode, self._job, guard)
        measured, sampler = protocol.run(setup, lambda: self._enter(Phase.MEASURING))
        self._enter(Phase.CHECKING)
        # in place, where a batch used a slot twice, its input was no longer what the check knows
        repeated = sampler.inner > len(sampler.calls)
        left = sampler.used if not self._grows else set() if repeated else set(sampler.dirty)
        wrong = self._check(sorted(left), "after timing") or self._check_again(sampler)
        if wrong:
            return wrong
        self._enter(Phase.REPORTING)
        gpus = everyones(self._control, guard.state) if guard else []
        firsts = self._control.gather(np.array([setup]))
        if measured is None or firsts is None:
            return {}
        if not measured.samples.durations.size:
            counts = ", ".join(f"{count} x {cause}" for cause, count in measured.invalid.items())
            remedy = THROTTLED if "throttled" in measured.invalid else f"try {sampler.remedy}"
            return {
                "status": "failed",
                "note": f"no valid sample ({counts}); {remedy}",
                "invalid": measured.invalid,
                "gpus": gpus,
            }
        by_rank = not self._policy.virtual  # whose times cannot be told apart
        fields = shape(measured, self._bench.same_clock and by_rank, PER_RANK_SAMPLES if by_rank else 0)
        fields["inner"] = measured.inner * self._policy.agg_iters
        fields["host_ns"] = [ns // self._policy.agg_iters for ns in measured.host_ns]
        return {
            **fields,
            "status": "ok", "setup_ns": int(firsts.max()), "checked": self._total, "submit_ns": submit,
            "note": "; ".join(filter(None, [self._ran(), without_effect(case.env, case.collective, chose)])),
            "chose": chose, "gpus": gpus,
            "wrong": 0 if self._policy.check and case.size else None,
        }  # fmt: skip

    def _ran(self) -> str:
        """What the algorithm's parameters came to, where that was left to it."""
        ran = self._calls[0].ran
        return "" if ran in ("", self._case.algorithm) else f"ran {ran}"

    def _once(self) -> None:
        """The first call as its mode makes it: a library may choose otherwise for what is captured."""
        run, stream = self._calls[0].run, self._bench.backend.stream
        if stream and self._case.mode == "graph":
            run = stream.capture(run)
        run()

    def _timed(self) -> list[tuple[Callable[[], object], tuple[int, ...]]]:
        """Calls as the policy wants them timed, with their slots: m together (-m), followed by a barrier (-z 1)."""
        together = self._policy.agg_iters
        groups = [tuple(range(s, s + together)) for s in range(0, len(self._calls) - together + 1, together)]
        return [(self._action([self._calls[s] for s in slots]), slots) for slots in groups]

    def _action(self, calls: Sequence[Call]) -> Callable[[], object]:
        submits = [call.submit for call in calls if call.submit]

        def together() -> None:
            for work in [submit() for submit in submits]:
                work.wait()

        def in_turn() -> None:
            for call in calls:
                call.run()

        run = calls[0].run if len(calls) == 1 else together if submits else in_turn

        def fenced() -> None:
            run()
            self._bench.backend.finish()
            self._control.barrier()

        return fenced if self._policy.blocking == 1 else run

    def _enter(self, phase: Phase) -> None:
        self._bench.board.enter(self._rank, phase)

    def _clock(self) -> Stream | None:
        """The stream whose clock makes the times of this case; None where the host's does."""
        mode, waits = self._case.mode, self._policy.blocking == 1 or any(call.waits for call in self._calls)
        return self._bench.backend.stream if mode == "graph" or (mode == "isolated" and not waits) else None

    def _sync(self) -> Sync:
        backend, board = self._bench.backend, self._bench.board
        if self._clock():
            return Sync("device", self._control, board, backend.align)

        def meet() -> None:
            backend.align()
            backend.finish()

        return Sync("none" if self._case.mode == "host" else self._bench.scheme, self._control, board, meet)

    def _sampler(self, inner: int) -> Sampler:
        beat = partial(self._bench.board.beat, self._rank)
        calls = self._timed()
        freshen = self._fill if self._grows else None
        stream = self._clock()
        if stream and self._case.mode == "graph":
            return GraphSampler(stream, calls, inner, self._control, beat, freshen, self._policy.graph)
        if stream:
            return DeviceSampler(stream, calls, inner, self._control, beat, freshen)
        backend = self._bench.backend
        marks = backend.stream if self._case.mode == "streaming" else None
        return Sampler(calls, inner, self._control, beat, freshen, backend.finish, marks)

    def _timed_first(self, sync: Sync) -> int:
        """Duration of the first call on these buffers. The library was probed with a few elements before."""
        self._bench.backend.finish()
        sync()
        begin = clock()
        self._calls[0].run()
        self._bench.backend.finish()
        return clock() - begin

    def _submit_times(self) -> list[int]:
        """What it takes a rank to hand a call over, without waiting for it; rank 0's are kept; none if it must wait."""
        submit = self._calls[0].submit
        if submit is None:
            return []
        times = []
        for _ in range(20):
            self._bench.board.beat(self._rank)
            self._control.barrier()
            begin = clock()
            work = submit()
            times.append(clock() - begin)
            work.wait()
        return times

    def _fill(self, slot: int) -> None:
        for checker, buffers in zip(self._checkers, self._slots[slot], strict=True):
            checker.poison(buffers.recv if buffers.whole is None else buffers.whole)
            checker.fill_send(buffers.send, slot)

    def _check(self, slots: list[int], when: str) -> dict[str, Any]:
        """Fields of a wrong record if any rank's receive buffer differs anywhere, else nothing."""
        if not self._policy.check or not self._case.size:
            return {}
        wrong, first = 0, None
        for slot in slots:
            for rank, checker, buffers in zip(self._bench.held, self._checkers, self._slots[slot], strict=True):
                checked, bad, where = checker.check_recv(buffers.recv, slot)
                self._checked += checked
                wrong += bad
                first = first or (where and [rank, *where])
        findings = self._control.collect([self._checked, wrong, first])
        self._total = sum(f[0] for f in findings)
        bad_ranks = [f for f in findings if f[1]]
        if not bad_ranks:
            return {}
        rank, index, got, expected = bad_ranks[0][2]
        got, expected = (payload.show(bits, self._case.type) for bits in (got, expected))
        found = FirstWrong(rank=rank, index=index, got=got, expected=expected, when=when)
        total = sum(f[1] for f in bad_ranks)
        note = (
            f"{total} wrong elements {when}, first on rank {rank} at {index}: {found.got} instead of {found.expected}"
        )
        return {"status": "wrong", "wrong": total, "first_wrong": found, "checked": self._total, "note": note}

    def _check_again(self, sampler: Sampler) -> dict[str, Any]:
        """What timed calls left behind may be older than the last of them: so some of the buffers are poisoned and
        filled anew, the same calls are made once more, untimed, and all is compared again; -c N does so N times."""
        again = [(call, slots) for call, slots in sampler.again if sampler.used.issuperset(slots)][:CALLED_AGAIN]
        fresh = sorted({slot for _, slots in again for slot in slots})
        for _ in range(self._policy.check):
            for slot in fresh:
                self._fill(slot)
            self._bench.backend.finish()
            self._control.barrier()
            for call, _ in again:
                self._bench.board.beat(self._rank)
                call()
            self._bench.backend.finish()
            if wrong := self._check(fresh, "after timing, on fresh buffers"):
                return wrong
        return {}


def shape(measured: Measured, same_clock: bool, per_rank: int) -> dict[str, object]:
    """The Record fields that hold times. Starts, skew and T_glob exist only where all ranks read one clock; times of
    each rank are kept for the first ``per_rank`` samples, if any."""
    samples = measured.samples
    durations = samples.durations
    fields: dict[str, object] = {
        "times_ns": durations.max(axis=0).tolist(),
        "per_rank": durations[:, :per_rank].tolist() if per_rank else [],
        "inner": measured.inner,
        "warmup": measured.warmup,
        "steady": measured.steady,
        "stop": measured.stop,
        "sync": measured.scheme,
        "invalid": measured.invalid,
        "overhead_ns": measured.overhead_ns,
        "preempted": samples.switches,
        "clock": measured.clock,
        "host_ns": measured.host_ns,
    }
    if samples.device.any():
        fields["device_ns"] = samples.device.max(axis=0).tolist()
    if same_clock and measured.clock == "host":
        first = samples.starts.min(axis=0)
        fields["starts_ns"] = (samples.starts - first)[:, :per_rank].tolist()
        fields["glob_ns"] = (samples.ends.max(axis=0) - first).tolist()
        fields["skew_ns"] = (samples.starts.max(axis=0) - first).tolist()
    return fields
