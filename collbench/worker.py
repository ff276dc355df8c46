"""A rank's life: connect, then per case prepare, check, measure, check, report.

Every rank runs ``Worker.run`` over the same plan; rank 0 hands finished records to ``emit``.
"""

from __future__ import annotations

import os
import re
import socket
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist

from collbench import backends, environment, gpus
from collbench.backends import Backend
from collbench.control import Control
from collbench.errors import CannotRun, CollbenchError, first_line
from collbench.launch.board import Board, Phase
from collbench.measure import clock
from collbench.plan import Job, Plan
from collbench.records import GpuState, RankInfo, Record, World
from collbench.room import ON_GPUS
from collbench.stream import assert_ordered
from collbench.suite import Case
from collbench.trial import Bench, Trial, allocate, prepare

Emit = Callable[[World | Record], None]
REFUSED = re.compile("invalid argument|invalid usage|no algorithm/protocol", re.IGNORECASE)  # what NCCL cannot do
_LONG = timedelta(days=1)  # libraries never give up by themselves: whoever watches the board ends a hung run


class Place(NamedTuple):
    """Where a rank stands: in the world and on its host, and how its processes were started."""

    rank: int
    n: int
    local_rank: int
    local_n: int
    launcher: str


def connect(place: Place, store: Any | None) -> Control:
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
        self._backend.policy = plan.policy
        self._held = range(plan.n) if plan.policy.virtual else range(place.rank, place.rank + 1)
        self._verdicts: dict[tuple[object, ...], str] = {}

    def run(self) -> None:
        """The whole plan. Raises CannotRun if the backend can't be opened; other errors are the caller's to report."""
        place, plan = self.place, self._plan
        self._enter(Phase.CONNECTING)
        began = clock()
        cpus, crowded = settle(place, self._control, self._policy.pin and plan.backend not in ON_GPUS)
        self._open(place)
        took = clock() - began
        watch, states = self._watch()
        world = self._describe(cpus, crowded, took, states)
        if place.rank == 0:
            self._emit(world)
        scheme = self._policy.sync
        if scheme == "auto":
            together = world.same_clock and self._board.shared
            scheme = "window" if together and not world.oversubscribed else "barrier"
        if scheme == "window" and not self._board.shared:
            raise CannotRun("--sync window needs all ranks on one host", "--sync barrier works everywhere")
        stream = self._backend.stream
        if scheme == "device" and not stream:
            raise CannotRun("--sync device needs a GPU, whose stream it waits on", "--sync barrier works everywhere")
        if stream:
            assert_ordered(stream, self._backend.align, self._control, lambda: self._board.beat(place.rank))
        policy = self._policy.resolved(world.oversubscribed)
        self._bench = Bench(
            place.rank, self._held, self._backend, self._control, self._board, policy, scheme, world.same_clock, watch
        )
        for index, job in enumerate(plan.jobs):
            self._enter(Phase.PREPARING, index)
            record = self._job(job)
            if record is not None and place.rank == 0:
                self._emit(record)
        self._enter(Phase.DONE)
        self._control.barrier()
        self._backend.close()
        if watch:
            watch.close()

    def _open(self, place: Place) -> None:
        try:
            self._backend.open(place.rank, self._plan.n, place.local_rank)
            self._board.beat(place.rank)
            trouble = None
        except CannotRun as e:
            trouble = [e.message, e.hint]
        found = [t for t in self._control.collect(trouble) if t]
        if found:
            raise CannotRun(*found[0])

    def _watch(self) -> tuple[gpus.Watch | None, list[GpuState]]:
        """What watches this rank's GPU, and all ranks' GPUs now; nothing on CPUs."""
        if not self._backend.stream:
            return None, []
        watch = gpus.watch(self._backend.device)
        return watch, gpus.everyones(self._control, watch.read() if watch else None)

    def _describe(self, cpus: list[int], crowded: bool, init_ns: int, states: list[GpuState]) -> World:
        place = self.place
        host, device, numa = socket.gethostname(), str(self._backend.device), environment.numa_of(cpus[0])
        mine = [
            RankInfo(rank=rank, host=host, pid=os.getpid(), cpus=cpus, device=device, numa=numa) for rank in self._held
        ]
        clocks, inits = zip(*self._control.collect([environment.same_clock_domain_key(), init_ns]), strict=True)
        everyone = self._control.collect(msgspec.to_builtins(mine))
        ranks = [msgspec.convert(info, RankInfo) for infos in everyone for info in infos]
        return World(
            index=self._plan.index, backend=self._plan.backend, n=self._plan.n, env=self._plan.env,
            launcher=place.launcher, ranks=ranks, oversubscribed=crowded,
            same_clock=len(set(clocks)) == 1, library=self._backend.library, init_ns=max(inits),
            virtual=self._policy.virtual, shared_gpu=self._backend.shared, interpreted=self._backend.interpreted,
            gpus=states,
        )  # fmt: skip

    def _enter(self, phase: Phase, index: int | None = None) -> None:
        self._board.enter(self.place.rank, phase, index)

    def _job(self, job: Job) -> Record | None:
        """One case: its record at rank 0."""
        case, began = job.case, time.perf_counter()
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        reason = backends.why_never(case) or self._backend.why_not(case) or self._probe(case)
        if reason:
            return Record(case=case, status="skipped", note=reason, world=self._plan.index, started=started)
        fields = Trial(self._bench, job).run()
        if self.place.rank:
            return None
        return Record(
            case=case, world=self._plan.index, started=started, rotation=job.rotation, cache=job.cache,
            copies_first=self._backend.copies_first(case), seconds=time.perf_counter() - began, **fields,
        )  # fmt: skip

    def _probe(self, case: Case) -> str:
        """The library's reason for refusing this (collective, datatype, reduction), tried once on a few elements."""
        kind = (case.collective, case.algorithm, case.dtype, case.op, case.in_place, bool(case.splits))
        if kind not in self._verdicts:
            tiny = msgspec.structs.replace(
                case, nbytes=4 * case.type.size * case.n, splits=case.splits and "uniform", align=1
            )
            try:
                (slot,) = allocate(self._backend, tiny, self._held, 0, 1)
                for buffers in slot:
                    buffers.send.zero_(), buffers.recv.zero_()
                prepare(self._backend, tiny, slot, self._policy.virtual).run()
                trouble = ""
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as e:
                if isinstance(e, dist.DistError) and not REFUSED.search(str(e)):
                    raise
                trouble = first_line(e)
            troubles = self._control.collect(trouble)
            if any(troubles) and not all(troubles):
                rank = next(r for r, t in enumerate(troubles) if t)
                raise RuntimeError(f"only some ranks refuse {case.collective}: rank {rank}: {troubles[rank]}")
            self._verdicts[kind] = f"{self._backend.library}: {troubles[0]}" if troubles[0] else ""
        return self._verdicts[kind]


def local_rank(rank: int, board: Board, channel: socket.socket) -> int:
    """A forked rank: read the plan from ``channel``, run it, write records and errors to it. Returns an exit status."""
    stream = channel.makefile("rwb")
    said = msgspec.json.decode(stream.readline())

    def say(kind: str, value: object) -> None:
        stream.write(msgspec.json.encode({kind: value}) + b"\n")
        stream.flush()

    plan = msgspec.convert(said["plan"], Plan)
    place = Place(rank, plan.processes, rank, plan.processes, "local")
    try:
        board.enter(rank, Phase.CONNECTING)
        control = connect(place, dist.FileStore(str(Path(said["store"])), plan.processes))  # type: ignore[attr-defined]
        Worker(place, plan, control, board, lambda line: say("line", line)).run()
    except CollbenchError as e:
        say("error", {"message": e.message, "hint": e.hint, "expected": True, "traceback": ""})
        return 1
    except BaseException as e:
        say("error", {"message": f"{type(e).__name__}: {first_line(e)}", "hint": "", "expected": False,
                      "traceback": traceback.format_exc()})  # fmt: skip
        return 1
    say("done", True)
    return 0
