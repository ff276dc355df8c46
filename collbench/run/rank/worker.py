"""A rank's life: connect, then per case prepare, check, measure, check, report.

Every rank runs ``Worker.run`` over the same plan; rank 0 hands finished records to ``emit``.
"""

from __future__ import annotations

import importlib
import math
import os
import socket
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from collbench.core import groups
from collbench.core.backend_info import backend_info, find_origin, register_file
from collbench.core.backend_sources import list_imports
from collbench.core.errors import CannotRun, RunBroken, first_line
from collbench.machine import cpus, descriptors, environment, sysfs, topology
from collbench.machine.load import Others
from collbench.records.derive import NOT_VERIFIED
from collbench.records.types import Cache, GpuState, RankInfo, Record, Scheme, World
from collbench.run import backends, refusal
from collbench.run.backends import REFUSALS, REFUSED, Backend
from collbench.run.collectives import buffer_bytes
from collbench.run.jobs import Job, Plan
from collbench.run.launch.board import Board, Phase
from collbench.run.launch.world import Asked, Channel, Failure, Said
from collbench.run.rank import gpu
from collbench.run.rank.bench import Bench, Sites
from collbench.run.rank.calibration import Calibrator
from collbench.run.rank.calls import allocate_slots, prepare_call
from collbench.run.rank.check import why_blind
from collbench.run.rank.control import LONG, Control, batch_store_requests
from collbench.run.rank.cores import Cores, settle_cores
from collbench.run.rank.global_clock import GlobalClock
from collbench.run.rank.measure import Steps, clock
from collbench.run.rank.outcome import (
    AboutCase,
    CaseOutcome,
    FailedCase,
    SkippedCase,
    record_of,
)
from collbench.run.rank.stream import assert_ordered
from collbench.run.runner import runner_of
from collbench.suite.case import Case
from collbench.suite.policy import Policy

Emit = Callable[[World | Record], None]

Further = Callable[[], list[Job]]  # at rank 0, what an open plan goes on with; nothing ends it

# the note of a case whose trial never called Bench.list_faults, which reports the query
FAULTS_UNSUPPORTED = "no fault was planted: {} cases do not support --inject; leave it out"

Turn = Callable[[int], object]  # at rank 0, wait for the turn of a world that is at a job


class Place(NamedTuple):
    """Where a rank stands: in the world and on its host, and how its processes were started."""

    rank: int
    n: int
    local_rank: int
    local_n: int
    launcher: str


def connect_control(setup: Place, store: Any) -> Control:
    """Join the control group, on Gloo. ``store`` must live as long as any process group. Gloo's
    thread for this group (none of what is measured) no longer pushes this one off a core they
    share, to spin for a lock that it holds.

    torch's monitor of NCCL stays off unless the user has set it: every second it would ask the
    store, under a launcher by this rank's Python, and -T limits how long ranks may stand still.
    """
    descriptors.raise_limit()
    torch.set_num_threads(1)
    # sums that several calls of a sample make in place may outgrow their type
    np.seterr(over="ignore", invalid="ignore")
    warnings.filterwarnings("ignore", module=r"torch\.distributed")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    with batch_store_requests():
        dist.init_process_group(
            "gloo", store=store, rank=setup.rank, world_size=setup.n, timeout=LONG
        )
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended, or may not be told
            if (thread / "comm").read_text() == "gloo_tcp_loop\n":
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))
    return Control(setup.rank, setup.n)


def load_sources(plan: Plan) -> None:
    """Load what has the plan's backend from outside of this package: modules that register it with
    torch.distributed, or a file. Raises CannotRun, UsageError."""
    for module in list_imports():
        try:
            importlib.import_module(module)
        except Exception as e:
            raise CannotRun(
                f"--import {module}: {type(e).__name__}: {first_line(e)}",
                f'python -c "import {module}" shows where',
            ) from e
    if plan.file:
        register_file(plan.file)


def judge_cache(job: Job, device: torch.device, policy: Policy) -> Cache:
    """Whether a job's data are in caches, for its record: on an accelerator that its plan did not
    know they are cold if they outgrow the cache there, and small where torch does not tell that
    cache's size."""
    case = job.case
    is_planned = case.subject or device.type == "cpu" or backend_info(case.backend).gpu
    if job.cache != "cold" or is_planned:
        return job.cache
    nbytes = math.inf
    with suppress(Exception):  # whatever a vendor's module raises that does not tell it
        nbytes = getattr(torch, device.type).get_device_properties(device).L2_cache_size
    return "cold" if job.rotation * buffer_bytes(case, policy) >= 3 * nbytes else "small"


class Worker:
    """A rank at work: it opens backends, measures its jobs and reports to rank 0. ``is_last``: no
    later world of this process has the plan's backend."""

    def __init__(
        self,
        setup: Place,
        plan: Plan,
        control: Control,
        board: Board,
        emit: Emit,
        next_jobs: Further = list,
        turn: Turn = lambda job: None,
        is_last: bool = True,
    ) -> None:
        self.setup, self._is_last = setup, is_last
        self._next_jobs, self._turn = next_jobs, turn
        self._plan = plan
        self._policy = plan.policy
        self._control = control
        self._board = board
        self._emit = emit
        load_sources(plan)
        self._backend: Backend = backends.find_backend(plan.backend)
        self._backend.policy = plan.policy
        self._group = control  # this rank's group
        self._verdicts: dict[tuple[object, ...], str] = {}
        self._clocks = ""  # that somebody has locked, in words
        self.is_open = False  # whether all ranks have opened the world
        self._blind: dict[str, str] = {}  # why data cannot be verified, by element type

    def run(self) -> None:
        """Run the whole plan. Raises CannotRun where the world cannot be opened, RunBroken where it
        can on some ranks only: either on all ranks alike, and before any case. Other errors are
        the caller's to report."""
        opened, plan = ExitStack(), self._plan
        try:
            self._begin(opened)
        except (CannotRun, RunBroken):
            with suppress(Exception):  # of a backend that is open in part
                opened.close()
            raise
        done = 0
        while done < len(plan.jobs) or self._goes_on():
            self._enter(Phase.PREPARING, done)
            self._at = done
            for record in self._job(plan.jobs[done]):
                self._emit(record)
            done += 1
        self._enter(Phase.DONE)
        self._control.barrier()
        opened.close()

    def _begin(self, opened: ExitStack) -> None:
        """Open the world and tell of it. What is to be closed goes to ``opened``."""
        setup, plan = self.setup, self._plan
        self._enter(Phase.CONNECTING)
        began = clock()
        if self._is_last:
            opened.callback(self._backend.leave)
        self._others = Others(setup.rank, self._control.collect)
        info = backend_info(plan.backend)
        binds = self._policy.pin and info.binds and not info.gpu
        cores = settle_cores(setup.rank, self._control, info.threads or 1, binds)
        self._divide()
        opened.callback(self._group.leave)
        opened.callback(self._backend.close)
        self._open(setup)
        self._backend.align()  # NCCL connects ranks with their first call
        self._backend.finish()
        took = clock() - began
        watch, states = self._watch()
        if watch:
            opened.callback(watch.close)
        common = self._common()
        if common:
            opened.callback(common.close)
        world = self._describe(cores, took, states, common)
        self._bench = self._benched(world, common, watch)
        self._sites = Sites(self._backend, plan.backend, setup.local_rank, self._control)
        opened.callback(self._sites.close)
        self.is_open = True
        if setup.rank == 0:
            self._emit(world)

    def _benched(self, world: World, common: GlobalClock | None, watch: gpu.Watch | None) -> Bench:
        """The bench that all cases share. Raises CannotRun where the policy's way of starting
        together cannot be had."""
        sync, stream = self._policy.sync, self._backend.stream
        default: Scheme = "barrier" if world.oversubscribed else "window"
        scheme: Scheme = default if sync == "auto" else sync
        if scheme == "window" and common and common.trouble:
            if sync == "window":
                raise CannotRun(
                    f"--sync window: {common.trouble}", "use --sync barrier, which works everywhere"
                )
            scheme = "barrier"
        if scheme == "device" and not stream:
            raise CannotRun(
                "--sync device needs a GPU, whose stream it waits on",
                "use --sync barrier, which works everywhere",
            )
        rank, board = self.setup.rank, self._board
        if stream:
            assert_ordered(stream, self._backend.align, self._control, lambda: board.beat(rank))
        policy = self._policy.resolved(world.cramped)
        in_turns = self._plan.in_turns or any(job.companion for job in self._plan.jobs)
        calibrator = None
        if in_turns and not backend_info(self._plan.backend).gpu and not world.oversubscribed:
            calibrator = Calibrator(self._control, board, self._others.stolen, world.cramped)
        return Bench(
            rank,
            self._ranks,
            self._backend,
            self._control,
            board,
            policy,
            scheme,
            common,
            watch,
            in_turns,
            calibrator,
            gpu.Streak(),
            self._plan.beside,
        )

    def _goes_on(self) -> bool:
        """Whether the plan is open and rank 0 has been told more, which is then part of it."""
        if not self._plan.open:
            return False
        jobs = self._next_jobs() if self.setup.rank == 0 else []
        more = msgspec.convert(self._control.broadcast(msgspec.to_builtins(jobs)), list[Job])
        self._plan.jobs.extend(more)
        return bool(more)

    def _divide(self) -> None:
        """Make the groups that are measured at once; the backend then works within this rank's."""
        rule, hosts = self._plan.groups, self._control.collect(environment.host_name())
        for group_rule in dict.fromkeys((rule, *self._plan.rules)):
            if wrong := groups.describe_misplaced(group_rule, hosts):
                raise CannotRun(
                    wrong, "use --split mod:8, div:8 or another that goes by rank alone"
                )
        if rule:
            self._group = self._backend.control = self._control.divided(
                groups.list_members(rule, self._plan.n)
            )
        own_rank = range(self._group.rank, self._group.rank + 1)
        self._ranks = range(self._plan.n) if self._policy.virtual else own_rank
        self._backend.hosts = hosts * self._plan.n if self._policy.virtual else hosts

    def _make_bench(self, case: Case) -> Bench:
        """The bench that a case is measured on: this rank's in its group, if it has been placed in
        one."""
        if not groups.count_placed_ranks(case.groups):
            self._backend.control = self._group if self._plan.groups else None
            return self._bench
        group_control = self._backend.control = self._control.among(
            groups.list_members(case.groups, case.world)
        )
        return self._bench._replace(ranks=[] if group_control.idle else [group_control.rank])

    def _open(self, setup: Place) -> None:
        try:
            self._backend.open(
                self._group.rank, self._plan.n // len(self._group.groups), setup.local_rank
            )
            self._board.beat(setup.rank)
            trouble = None
        except CannotRun as e:
            trouble = [e.message, e.hint]
        everyone = self._control.collect([environment.host_name(), trouble])
        failed = [(rank, *answer) for rank, answer in enumerate(everyone) if answer[1]]
        if len(failed) == len(everyone):
            raise CannotRun(*failed[0][2])
        for rank, host, (message, hint) in failed:
            raise RunBroken(f"rank {rank} on {host}, unlike others: {message}", hint)

    def _watch(self) -> tuple[gpu.Watch | None, list[GpuState]]:
        """What watches this rank's GPU, and all ranks' GPUs now; nothing on CPUs. Where clocks are
        locked, the world's library says so."""
        stream = self._backend.stream
        if not stream:
            return None, []
        watch = gpu.open_watch(self._backend.device)
        self._clocks = gpu.merge_by_rank(self._control, watch.find_lock(stream) if watch else "")
        return watch, gpu.collect_states(self._control, watch.read() if watch else None)

    def _common(self) -> GlobalClock | None:
        """The clock that ranks agree on by messages; None where all read one and share a board
        beside."""
        domains = self._control.collect(environment.same_clock_domain_key())
        if self._control.n == 1 or (self._board.shared and len(set(domains)) == 1):
            return None
        return GlobalClock(self._control, domains, lambda: self._board.beat(self.setup.rank), clock)

    def _describe(
        self,
        cores: Cores,
        init_ns: int,
        states: list[GpuState],
        common: GlobalClock | None,
    ) -> World:
        setup = self.setup
        host, device = environment.host_name(), gpu.describe_device(self._backend.device)
        own_cpus = sorted(os.sched_getaffinity(0))  # a GPU's rank was bound while it was opened
        members = self._group.members if self._plan.groups else range(self._plan.n)
        numa = cpus.find_numa(own_cpus)
        rank_info = [
            RankInfo(
                rank=members[rank],
                host=host,
                pid=os.getpid(),
                cpus=own_cpus,
                device=device,
                numa=numa,
            )
            for rank in self._ranks
        ]
        counters = topology.read_counters(sysfs.ROOT) if setup.local_rank == 0 else {}
        fake = gpu.is_fake(self._backend.device)
        origin = self._plan.file and find_origin(self._plan.backend)
        everyone = self._control.collect(
            [init_ns, msgspec.to_builtins(rank_info), host, counters, fake]
        )
        inits, infos, hosts, host_counters, fakes = zip(*everyone, strict=True)
        gpu_use = backend_info(self._plan.backend).gpu
        without_gpus = any(fakes) or self._backend.interpreted or self._policy.virtual
        ranks = [msgspec.convert(info, RankInfo) for of_rank in infos for info in of_rank]
        return World(
            index=self._plan.index,
            backend=self._plan.backend,
            n=self._plan.n,
            env=self._plan.env,
            launcher=setup.launcher,
            ranks=ranks,
            oversubscribed=cores.oversubscribed,
            cramped=cores.cramped and not gpu_use,
            few_cores=cores.bound and gpu_use == "each" and not without_gpus,
            same_clock=common is None or common.exact,
            library=", ".join(filter(None, (self._backend.library, origin, self._clocks))),
            init_ns=max(inits),
            virtual=self._policy.virtual,
            shared_gpu=self._backend.shared,
            interpreted=self._backend.interpreted,
            fake=any(fakes),
            gpus=states,
            counters={
                name: counts for name, counts in zip(hosts, host_counters, strict=True) if counts
            },
            clock_error_ns=common.error_ns if common else 0,
            clock_hidden_ns=common.hidden_ns if common else 0,
        )

    def _enter(self, phase: Phase, index: int | None = None) -> None:
        self._board.enter(self.setup.rank, phase, index)

    def _job(self, job: Job) -> list[Record]:
        """One case in every group, and what is to be done beside: records at rank 0, of each case
        the first group's last."""
        self._wait_for_turn()
        jobs = [job, *([job.companion] if job.companion else [])]
        works = [self._case(job) for job in jobs]
        outcomes: list[list[Record]] = [[]] * len(jobs)
        spent = [0.0] * len(jobs)
        unfinished = list(range(len(jobs)))
        lots = np.random.default_rng([self._policy.seed, self._at])  # the same at all ranks
        while unfinished:
            for index in lots.permutation(unfinished):
                began = time.perf_counter()
                try:
                    next(works[index])
                except StopIteration as end:
                    outcomes[index] = end.value
                    unfinished.remove(index)
                spent[index] += time.perf_counter() - began
                if index in unfinished:
                    self._wait_for_turn()
        load = self._others.since()  # of all of it: jobs that take turns have no time of their own
        return [
            record
            if record.status == "skipped"
            else msgspec.structs.replace(record, seconds=seconds, load=load)
            for seconds, records in zip(spent, outcomes, strict=True)
            for record in records
        ]

    def _wait_for_turn(self) -> None:
        """Wait, with all ranks asleep, until the launcher lets this world go on: of worlds that
        take turns, only one measures at a time."""
        if not self._plan.in_turns:
            return
        self._control.barrier()  # before the other world begins, all have ended
        self._others.pause()
        if self.setup.rank == 0:
            self._turn(self._at)
        self._control.barrier()
        self._others.resume()

    def _case(self, job: Job) -> Steps[list[Record]]:
        case = job.case
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        about = AboutCase(self._plan.index, started, self._policy.inject)
        bench = self._make_bench(case)
        untried: CaseOutcome
        try:
            if reason := self._refuse(job, bench):
                untried = SkippedCase(reason)
            elif blind := self._why_unverified(job):
                untried = FailedCase(blind)
            else:
                return (yield from self._measured(job, bench, about))
        except CannotRun as e:  # raised by all ranks alike, as Backend has it
            untried = SkippedCase(e.reason)
        return self._records(case, [untried] * len(case.siblings), about)

    def _measured(self, job: Job, bench: Bench, about: AboutCase) -> Steps[list[Record]]:
        """The case's records, once it has been tried."""
        case = job.case
        tried = about._replace(
            rotation=job.rotation,
            cache=judge_cache(job, self._backend.device, self._policy),
            copies_first=not case.subject and self._backend.copies_first(case),
        )
        emit = partial(self._send_interim, case, about)
        queries: list[bool] = []
        bench = bench._replace(on_fault_query=partial(queries.append, True))
        trial = runner_of(case).make_trial(bench, job, self._sites, emit)
        outcomes = yield from trial.run()
        has_reason = any(isinstance(outcome, FailedCase | SkippedCase) for outcome in outcomes)
        if self._policy.inject and not (queries or has_reason):
            outcomes = [FailedCase(FAULTS_UNSUPPORTED.format(case.table.noun))] * len(case.siblings)
        return self._records(case, outcomes, tried)

    def _records(
        self, case: Case, outcomes: Sequence[CaseOutcome], about: AboutCase
    ) -> list[Record]:
        """A record of each sibling by its outcome, at rank 0."""
        if self.setup.rank:
            return []
        return [record_of(sibling, outcomes[sibling.index], about) for sibling in case.siblings]

    def _send_interim(self, case: Case, about: AboutCase, outcomes: Sequence[CaseOutcome]) -> None:
        """Hand over what there is of a case that is still measured."""
        for record in self._records(case, outcomes, about):
            self._emit(record)

    def _refuse(self, job: Job, bench: Bench) -> str:
        """Why the job cannot be run here; else an empty string."""
        case = job.case

        def refuse(single: Case) -> str:
            return refusal.refuse_opened(single, self._backend)

        runner = runner_of(case)
        if reason := runner.refuse(case, job.subject, refuse):
            return reason
        tried = (self._probe(probe, bench.ranks) for probe in runner.list_probes(job))
        return next(filter(None, tried), "")

    def _why_unverified(self, job: Job) -> str:
        """Why no result of the job could be verified, as a rank's check has missed an error that
        was made on purpose, once for each element type; else an empty string."""
        if not self._policy.check:
            return ""
        dtypes = runner_of(job.case).list_dtypes(job)
        for dtype in dtypes:
            if dtype not in self._blind:
                why_not = why_blind(dtype, self._backend.device)
                reasons = self._control.collect([why_not, str(self._backend.device)])
                self._blind[dtype] = next(
                    (
                        f"{NOT_VERIFIED}rank {rank} misses errors in data on {device}: {why};"
                        " -c 0 measures without"
                        for rank, (why, device) in enumerate(reasons)
                        if why
                    ),
                    "",
                )
        return next(filter(None, (self._blind[dtype] for dtype in dtypes)), "")

    def _locate_in_file(self, error: BaseException) -> str:
        """Where in a file's backend an error comes from, as what its author sees as a refusal may
        be a mistake of its own; else an empty string."""
        file = self._plan.file
        if file is None:
            return ""
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file.path]
        return f" ({file.label}, line {lines[-1]})" if lines else ""

    def _probe(self, case: Case, ranks: Sequence[int]) -> str:
        """The library's reason for refusing this (collective, datatype, reduction), tried once on a
        few elements."""
        kind = (
            case.collective,
            case.algorithm,
            case.dtype,
            case.op,
            case.in_place,
            bool(case.splits),
        )
        if kind not in self._verdicts:
            tiny = msgspec.structs.replace(
                case, nbytes=4 * case.type.size * case.n, splits=case.splits and "uniform", align=1
            )
            try:
                (slot,) = allocate_slots(self._backend, [tiny], ranks)
                for buffers in slot:
                    buffers.send.zero_(), buffers.recv.zero_()
                call = prepare_call(self._backend, tiny, slot, self._policy.virtual)
                call.run_with_data(self._backend.finish)  # which raises what a call could not
                trouble = "" if ranks else None
            except REFUSALS as e:
                if isinstance(e, dist.DistError) and not REFUSED.match(str(e)):
                    raise
                self._backend.finish()  # raises where the device is broken, not the call refused
                trouble = first_line(e) + self._locate_in_file(e)
            troubles = [
                trouble for trouble in self._control.collect(trouble) if trouble is not None
            ]
            if any(troubles) and not all(troubles):
                rank = next(r for r, t in enumerate(troubles) if t)
                raise RuntimeError(
                    f"only some ranks refuse {case.collective}: rank {rank}: {troubles[rank]}"
                )
            refusal = f"{self._backend.library} refuses {case.collective} of {case.dtype}"
            self._verdicts[kind] = f"{refusal}: {troubles[0]}" if troubles[0] else ""
        return self._verdicts[kind]


def local_rank(rank: int, board: Board, at: socket.socket) -> int:
    """A forked rank: read the plan from the socket, run it, write records and errors to it. Returns
    an exit status."""
    stream = at.makefile("rwb")
    channel = Channel(stream, stream)
    try:
        orders = msgspec.json.decode(stream.readline(), type=Asked)
        n = orders.plan.processes
        setup = Place(rank, n, rank, n, "local")
        board.enter(rank, Phase.CONNECTING)
        control = connect_control(setup, dist.FileStore(orders.store, n))  # type: ignore[attr-defined]
        Worker(
            setup, orders.plan, control, board, channel.line, channel.next_jobs, channel.turn
        ).run()
    except BaseException as e:
        channel.send(Said(error=Failure.of(e)))
        return 1
    channel.send(Said(done=True))
    return 0
