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
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist

from collbench import backends, environment
from collbench.backends import Backend
from collbench.control import Control
from collbench.errors import CannotRun, CollbenchError, first_line
from collbench.launch.board import Board, Phase
from collbench.measure import clock
from collbench.plan import Job, Plan
from collbench.records import RankInfo, Record, World
from collbench.suite import Case
from collbench.trial import Bench, Trial, allocate

Emit = Callable[[World | Record], None]
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
        self._verdicts: dict[tuple[object, ...], str] = {}

    def run(self) -> None:
        """The whole plan. Raises CannotRun if the backend can't be opened; other errors are the caller's to report."""
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
            together = world.same_clock and self._board.shared
            scheme = "window" if together and not world.oversubscribed else "barrier"
        if scheme == "window" and not self._board.shared:
            raise CannotRun("--sync window needs all ranks on one host", "--sync barrier works everywhere")
        policy = self._policy.resolved(world.oversubscribed)
        self._bench = Bench(place.rank, self._backend, self._control, self._board, policy, scheme, world.same_clock)
        for index, job in enumerate(plan.jobs):
            self._enter(Phase.PREPARING, index)
            record = self._job(job)
            if record is not None and place.rank == 0:
                self._emit(record)
        self._enter(Phase.DONE)
        self._control.barrier()
        self._backend.close()

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
                ((send, recv, _),) = allocate(self._backend, tiny, self.place.rank, 0, 1)
                self._backend.prepare(tiny, send.zero_(), recv.zero_()).run()
                trouble = ""
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as e:
                if isinstance(e, dist.DistError):
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
    place = Place(rank, plan.n, rank, plan.n, "local")
    try:
        board.enter(rank, Phase.CONNECTING)
        control = connect(place, dist.FileStore(str(Path(said["store"])), plan.n))  # type: ignore[attr-defined]
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
