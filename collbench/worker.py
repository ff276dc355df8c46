"""A rank's life: connect, then per case prepare, check, measure, check, report.

Every rank runs ``Worker.run`` over the same plan; rank 0 hands finished records to ``emit``.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from collbench import backends, environment, payload
from collbench.backends import Backend, Call
from collbench.check import Checker
from collbench.collectives import OPS
from collbench.control import Control
from collbench.errors import CannotRun, CollbenchError
from collbench.launch.board import Board, Phase
from collbench.measure import Protocol, Sampler, Sync, clock, shape
from collbench.plan import PAGE, Job, Plan
from collbench.records import PER_RANK_SAMPLES, FirstWrong, RankInfo, Record, World
from collbench.suite import Case

Emit = Callable[[World | Record], None]
_LONG = timedelta(days=1)  # libraries never give up by themselves: whoever watches the board ends a hung run


class Place(NamedTuple):
    """Where a rank stands: in the world and on its host, and how its processes were started."""

    rank: int
    n: int
    local_rank: int
    local_n: int
    launcher: str


class Buffers(NamedTuple):
    """One slot's views: what the call reads and writes, and in place the one buffer behind both."""

    send: torch.Tensor
    recv: torch.Tensor
    whole: torch.Tensor | None


def connect(place: Place, store: dist.Store | None) -> Control:
    """Join the control group, on Gloo; without a store by the launcher's MASTER_ADDR and MASTER_PORT."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module=r"torch\.distributed")
    if store is None:
        dist.init_process_group("gloo", timeout=_LONG)
    else:
        dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.n, timeout=_LONG)
    return Control(place.rank, place.n)


def settle(place: Place, control: Control, wanted: bool) -> tuple[list[int], bool]:
    """Give each rank of a host cores of its own if there are enough and nobody has bound it yet.

    Returns the CPUs this rank may use, and whether any host has more ranks than cores for them.
    """
    cpus = environment.usable_cpus()
    cores = cpus[: environment.core_count()]
    everyone = control.collect([environment.host(), cores])
    shared = {host: {c for h, mine in everyone for c in mine if h == host} for host, _ in everyone}
    counts = Counter(host for host, _ in everyone)
    share = len(cores) // place.local_n
    if wanted and share and len(shared[environment.host()]) == len(cores):
        at = place.local_rank * share
        os.sched_setaffinity(0, cores[at : at + share])
    crowded = any(counts[host] > len(shared[host]) for host in counts)
    return sorted(os.sched_getaffinity(0)), crowded


class Worker:
    """One rank of one world."""

    def __init__(self, place: Place, plan: Plan, control: Control, board: Board, emit: Emit) -> None:
        self.place = place
        self._plan = plan
        self._policy = plan.policy
        self._control = control
        self._board = board
        self._emit = emit
        self._backend: Backend = backends.find(plan.backend)
        self._verdicts: dict[tuple[object, ...], str] = {}

    def run(self) -> None:
        """The whole plan. Raises CannotRun if the backend can't be opened; any other error is the caller's to report."""
        place, plan = self.place, self._plan
        self._enter(Phase.CONNECTING)
        began = clock()
        cpus, crowded = settle(place, self._control, self._policy.pin)
        self._open(place)
        world = self._describe(cpus, crowded, clock() - began)
        if place.rank == 0:
            self._emit(world)
        scheme = self._policy.sync
        if scheme == "auto":
            scheme = "window" if world.same_clock and not world.oversubscribed else "barrier"
        self._precision = self._policy.precision or (0.05 if world.oversubscribed else 0.02)
        self._world, self._scheme = world, scheme
        for index, job in enumerate(plan.jobs):
            self._enter(Phase.PREPARING, index)
            record = self._job(job)
            if record is not None and place.rank == 0:
                self._emit(record)
        self._enter(Phase.DONE)
        self._control.barrier()

    def _open(self, place: Place) -> None:
        try:
            self._backend.open(place.rank, place.n, place.local_rank)
            self._board.beat(place.rank)
            trouble = None
        except CannotRun as e:
            trouble = [e.message, e.hint]
        found = [t for t in self._control.collect(trouble) if t]
        if found:
            raise CannotRun(*found[0])

    def _describe(self, cpus: list[int], crowded: bool, init_ns: int) -> World:
        place = self.place
        info = RankInfo(
            rank=place.rank, host=socket.gethostname(), pid=os.getpid(), cpus=cpus, device=str(self._backend.device),
            numa=environment.numa_of(cpus[0]),
        )  # fmt: skip
        clocks, inits = zip(*self._control.collect([environment.same_clock_domain_key(), init_ns]), strict=True)
        ranks = [msgspec.convert(r, RankInfo) for r in self._control.collect(msgspec.to_builtins(info))]
        return World(
            index=self._plan.index, backend=self._plan.backend, n=place.n, env=self._plan.env, launcher=place.launcher,
            ranks=ranks, oversubscribed=crowded, same_clock=len(set(clocks)) == 1, library=self._backend.library,
            init_ns=max(inits),
        )  # fmt: skip

    def _enter(self, phase: Phase, index: int | None = None) -> None:
        self._board.enter(self.place.rank, phase, index)

    def _job(self, job: Job) -> Record | None:
        """One case: its record at rank 0."""
        case, began = job.case, time.perf_counter()
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        reason = self._backend.why_not(case) or self._probe(case)
        if reason:
            return Record(case=case, status="skipped", note=reason, world=self._plan.index, started=started)
        run = _CaseRun(self, job)
        fields = run.go()
        if self.place.rank:
            return None
        return Record(
            case=case, world=self._plan.index, started=started, rotation=job.rotation, cache=job.cache,
            copies_first=self._backend.copies_first(case), seconds=time.perf_counter() - began, **fields,
        )  # fmt: skip

    def _probe(self, case: Case) -> str:
        """The library's own reason for refusing this (collective, datatype, reduction), tried once on a few elements."""
        kind = (case.collective, case.algorithm, case.dtype, case.op, case.in_place, bool(case.splits))
        if kind not in self._verdicts:
            tiny = msgspec.structs.replace(case, nbytes=4 * case.type.size * case.n, splits=case.splits and "uniform", align=1)
            try:
                send, recv, _ = allocate(tiny, 0, self._backend.device, self.place.rank)
                self._backend.prepare(tiny, send.zero_(), recv.zero_()).run()
                trouble = ""
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as e:
                if isinstance(e, dist.DistError):
                    raise
                trouble = str(e).splitlines()[0] or type(e).__name__
            troubles = self._control.collect(trouble)
            if any(troubles) and not all(troubles):
                rank = next(r for r, t in enumerate(troubles) if t)
                raise RuntimeError(f"only some ranks refuse {case.collective}: rank {rank}: {troubles[rank]}")
            self._verdicts[kind] = f"{self._backend.library}: {troubles[0]}" if troubles[0] else ""
        return self._verdicts[kind]


def allocate(case: Case, unalign: int, device: torch.device, rank: int) -> Buffers:
    """Page-aligned buffers (shifted by ``unalign`` elements), in place as views of one; contents are undefined."""
    kind = getattr(torch, case.type.torch)
    if case.in_place:
        send_at, recv_at, total = payload.in_place_offsets(case, rank)
        whole = _aligned(total, unalign, kind, device)
        send, recv = case.counts
        return Buffers(whole[send_at : send_at + send], whole[recv_at : recv_at + recv], whole)
    send, recv = case.counts
    return Buffers(_aligned(send, unalign, kind, device), _aligned(recv, unalign, kind, device), None)


def _aligned(count: int, unalign: int, kind: torch.dtype, device: torch.device) -> torch.Tensor:
    spare = PAGE // kind.itemsize
    raw = torch.empty(count + unalign + spare, dtype=kind, device=device)
    start = -raw.data_ptr() % PAGE // kind.itemsize + unalign
    return raw[start : start + count]


class _CaseRun:
    """One case on one rank, from allocation to the fields of its record."""

    def __init__(self, worker: Worker, job: Job) -> None:
        self._worker, self._job, self._case = worker, job, job.case
        self._policy, self._control = worker._policy, worker._control
        self._rank = worker.place.rank
        device = worker._backend.device
        self._slots = [allocate(self._case, self._policy.unalign, device, self._rank) for _ in range(job.rotation)]
        self._calls = [worker._backend.prepare(self._case, b.send, b.recv) for b in self._slots]
        self._checker = Checker(self._case, self._policy.seed, self._rank, device)
        # repeated in place, a reduction feeds on its own result: inputs are put back before each call
        self._grows = self._case.in_place and self._case.row.reduces and not OPS[self._case.op].idempotent
        self._checked = self._total = 0

    def go(self) -> dict[str, Any]:
        worker, case = self._worker, self._case
        for slot in range(len(self._slots)):
            self._fill(slot)
        worker._enter(Phase.CHECKING)
        sync = Sync("none" if case.mode == "host" else worker._scheme, self._control, worker._board)
        setup = self._timed_first(sync)
        wrong = self._check([0], "before timing")
        if wrong:
            return wrong
        submit = self._submit_times() if self._policy.cpu_time else []
        self._fill(0)
        worker._enter(Phase.WARMING)
        protocol = Protocol(self._policy, self._control, sync, self._sampler, worker._precision, case.mode)
        measured, sampler = protocol.run(setup, lambda: worker._enter(Phase.MEASURING))
        worker._enter(Phase.CHECKING)
        wrong = self._check(sorted(sampler.used if not self._grows else set(sampler.dirty)), "after timing")
        wrong = wrong or self._check_again()
        if wrong:
            return wrong
        worker._enter(Phase.REPORTING)
        firsts = self._control.gather(np.array([setup]))
        if measured is None or firsts is None:
            return {}
        fields = shape(measured, worker._world.same_clock, PER_RANK_SAMPLES)
        fields["inner"] = measured.inner * self._policy.agg_iters
        return {
            **fields,
            "status": "ok", "setup_ns": int(firsts.max()), "checked": self._total, "submit_ns": submit,
            "wrong": 0 if self._policy.check and case.size else None,
        }  # fmt: skip

    def _timed(self) -> list[tuple[Callable[[], object], tuple[int, ...]]]:
        """Calls as the policy wants them timed, with their slots: issued m together (-m), followed by a barrier (-z 1)."""
        together = self._policy.agg_iters
        groups = [tuple(range(s, s + together)) for s in range(0, len(self._calls) - together + 1, together)]
        return [(self._action([self._calls[s] for s in slots]), slots) for slots in groups]

    def _action(self, calls: Sequence[Call]) -> Callable[[], object]:
        def together() -> None:
            for work in [call.submit() for call in calls]:
                work.wait()

        run = together if len(calls) > 1 else calls[0].run

        def fenced() -> None:
            run()
            self._control.barrier()

        return fenced if self._policy.blocking == 1 else run

    def _sampler(self, inner: int) -> Sampler:
        beat = lambda: self._worker._board.beat(self._rank)  # noqa: E731
        calls = self._timed()
        inner = min(inner, len(calls)) if self._grows else inner
        return Sampler(calls, inner, self._control, beat, self._fill if self._grows else None)

    def _timed_first(self, sync: Sync) -> int:
        """Duration of the first call ever made on these buffers: connections, channels, registration and all."""
        sync()
        begin = clock()
        self._calls[0].run()
        return clock() - begin

    def _submit_times(self) -> list[int]:
        """What it takes a rank to hand a call over, without waiting for it; rank 0's are kept."""
        times = []
        for _ in range(20):
            self._control.barrier()
            begin = clock()
            work = self._calls[0].submit()
            times.append(clock() - begin)
            work.wait()
        return times

    def _fill(self, slot: int) -> None:
        buffers = self._slots[slot]
        self._checker.poison(buffers.recv if buffers.whole is None else buffers.whole)
        self._checker.fill_send(buffers.send, slot)

    def _check(self, slots: list[int], when: str) -> dict[str, Any]:
        """Fields of a wrong record if any rank's receive buffer differs anywhere, else nothing."""
        if not self._policy.check or not self._case.size:
            return {}
        wrong, first = 0, None
        for slot in slots:
            checked, bad, where = self._checker.check_recv(self._slots[slot].recv, slot)
            self._checked += checked
            wrong += bad
            first = first or where
        findings = self._control.collect([self._checked, wrong, list(first) if first else None])
        self._total = sum(f[0] for f in findings)
        bad_ranks = [(r, f) for r, f in enumerate(findings) if f[1]]
        if not bad_ranks:
            return {}
        rank, (_, _, (index, got, expected)) = bad_ranks[0]
        show = lambda bits: payload.show(bits, self._case.type)  # noqa: E731
        found = FirstWrong(rank=rank, index=index, got=show(got), expected=show(expected), when=when)
        total = sum(f[1] for _, f in bad_ranks)
        note = f"{total} wrong elements {when}, first on rank {rank} at {index}: {found.got} instead of {found.expected}"
        return {"status": "wrong", "wrong": total, "first_wrong": found, "checked": self._total, "note": note}

    def _check_again(self) -> dict[str, Any]:
        """Checks beyond the first (-c N), each of one more call on fresh buffers."""
        for _ in range(self._policy.check - 1):
            self._fill(0)
            self._control.barrier()
            self._calls[0].run()
            if wrong := self._check([0], "in a repeated check"):
                return wrong
        return {}


def local_rank(rank: int, board: Board, channel: socket.socket) -> int:
    """A forked rank: read the plan from ``channel``, run it, write records and errors to it. Returns an exit status."""
    stream = channel.makefile("rwb")
    said = msgspec.json.decode(stream.readline())

    def say(kind: str, value: object) -> None:
        stream.write(msgspec.json.encode({kind: value}) + b"\n")
        stream.flush()

    plan = msgspec.convert(said["plan"], Plan)
    place = Place(rank, plan.n, rank, plan.n, "local")
    try:
        board.enter(rank, Phase.CONNECTING)
        control = connect(place, dist.FileStore(str(Path(said["store"])), plan.n))
        Worker(place, plan, control, board, lambda line: say("line", line)).run()
    except CollbenchError as e:
        say("error", {"message": e.message, "hint": e.hint, "expected": True, "traceback": ""})
        return 1
    except BaseException as e:
        text = str(e).splitlines()[0] if str(e) else ""
        say("error", {"message": f"{type(e).__name__}: {text}", "hint": "", "expected": False,
                      "traceback": traceback.format_exc()})  # fmt: skip
        return 1
    say("done", True)
    return 0
