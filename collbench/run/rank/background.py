"""What a rank does in the background while a case is measured: computation in a thread of its own,
or another collective on a communicator of its own, again and again, each time timed.

A collective's ranks have to end after as many calls. So after every few they add up, on the same
communicator, who of them has been told to stop, and stop once all are.
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple, TypeVar, cast

import msgspec
import numpy as np

from collbench.core.errors import CannotRun
from collbench.records.types import BACKGROUND_SAMPLES, Background
from collbench.run.backends import Backend, do_nothing
from collbench.run.rank.bench import Bench, Sites
from collbench.run.rank.calls import allocate_slots
from collbench.run.rank.check import Checker
from collbench.run.rank.computation import SWITCH_S, TRIED, Computation, Work
from collbench.run.rank.measure import Action, Steps, clock
from collbench.suite import backgrounds
from collbench.suite.case import Case

UNIT_NS = 1_000_000  # of computation, which is timed as one
TOGETHER = 8  # calls of a collective between two questions whether to stop
FEWEST, LEAST_S = 20, 0.2  # that are timed alone, and for how long
SPUN = 1 << 20  # numbers that are added up to find how long that takes
PAUSE_S = 0.01  # between looks at what it does
T = TypeVar("T")


class Task(NamedTuple):
    """Something to do again and again: ``once`` does it, ``over`` says whether to stop, on all
    ranks alike, after every ``together`` times; ``wrong``, which does it once more, on all ranks,
    what is wrong with the data that it left and leaves, empty if nothing is."""

    once: Action
    over: Callable[[bool], bool]
    together: int
    wrong: Callable[[], str]


def make_background(bench: Bench, case: Case, sites: Sites) -> Behind | None:
    """The background of a case on this rank; None for none. All ranks ask."""
    if not case.background:
        return None
    with bench.control.refusing_alike():
        _refuse_sharing_queue(bench.backend, case)
    other = backgrounds.background_case(case)
    if other is None:
        task = _make_computation(bench, case)
    else:
        family = backgrounds.parse_background(case.background).family(case.world)
        backend = sites.at(family, "background")  # which all ranks make
        with bench.control.refusing_alike():  # scratch may not fit into one rank's GPU
            if not any(bench.rank in group for group in family):
                allocate_slots(backend, [], [])  # which all ranks do together
                return None
            task = _make_collective(bench, other, backend)
    beat = partial(bench.board.beat, bench.rank)
    return Behind(task, bench.backend, beat)


def _refuse_sharing_queue(backend: Backend, case: Case) -> None:
    """Raises CannotRun where the background would be issued to the device without a stream of its
    own: a case's calls would wait in one queue with it, and be timed until both are done."""
    on_host = backgrounds.parse_background(case.background).kind in ("sleep", "spin")
    if backend.device.type != "cpu" and backend.stream is None and not on_host:
        raise CannotRun(
            f"a background on {backend.device.type} would share a stream with {case.backend}, and"
            " be part of its times",
            "--background sleep and spin stay on the host",
        )


def _make_computation(bench: Bench, case: Case) -> Task:
    kind, backend = backgrounds.parse_background(case.background).kind, bench.backend
    if kind == "spin":
        return Task(_make_spin(bench.control.decide), bool, 1, str)
    unit = Work(UNIT_NS)
    once = Computation(
        kind,  # type: ignore[arg-type]
        backend.device,
        do_nothing,
        bench.control.decide,
        backend.finish,
        backend.stream,
    ).action(unit)
    assert once is not None, "a unit of computation takes time"
    return Task(once, bool, 1, str)


def _make_spin(decide: Callable[[list[int]], list[int]]) -> Action:
    """A unit of sums over one number that is there again and again: numpy holds neither memory's
    bandwidth nor Python's lock meanwhile, as a loop of Python's would."""

    def spin(count: int) -> None:
        np.add.reduce(np.broadcast_to(np.float64(1), count))

    took = []
    for _ in range(TRIED):
        began = clock()
        spin(SPUN)
        took.append(clock() - began)
    (count,) = decide([SPUN * UNIT_NS // min(took)])
    return partial(spin, count)


def _make_collective(bench: Bench, case: Case, backend: Backend) -> Task:
    """The library's own, on a backend of its own, with data that is checked, in each group
    another."""
    group_control = backend.control or bench.control
    flag = msgspec.structs.replace(
        case, collective="all_reduce", nbytes=4, dtype="int32", op="sum", root=-1, splits=""
    )
    (buffers,), (flag_buffers,) = allocate_slots(backend, [case, flag], [0])
    key = zlib.crc32(case.key.encode()) + group_control.number
    beat = partial(bench.board.beat, bench.rank)
    checker = Checker(
        case,
        bench.policy.seed,
        group_control.rank,
        backend.device,
        backend.premultiplies,
        beat,
        key,
    )
    checker.poison(buffers.written)
    checker.fill_send(buffers.send, 0)
    call, vote = (
        backend.prepare(buffers_case, case_buffers.send, case_buffers.recv)
        for buffers_case, case_buffers in ((case, buffers), (flag, flag_buffers))
    )

    call.load()

    def over(stop: bool) -> bool:
        flag_buffers.send.fill_(int(stop))
        vote.run_with_data()
        return int(flag_buffers.recv.item()) == case.n

    def find_wrong(filling: int) -> str:
        call.store()
        _, bad, where = checker.check_recv(buffers.recv, filling)
        what = f"{case.collective} in the background on rank {bench.rank}"
        return f"{bad} wrong elements of {what}, first at {where[0]}" if bad and where else ""

    def wrong() -> str:
        """Check what the last call left, then make one more on other data and check that, as the
        first may be what an earlier call left."""
        left = find_wrong(0)
        checker.poison(buffers.written)
        checker.fill_send(buffers.send, 1)
        call.load()
        backend.finish()  # the call is on another stream than what fills its buffers
        group_control.barrier()
        with backend.stream.use_lane("background") if backend.stream else nullcontext():
            call.run()
            if backend.stream:
                backend.stream.drain()
        return left or find_wrong(1)

    return Task(call.run, over, TOGETHER, wrong)


class Behind:
    """A task in a thread behind the rank's own, between ``_go`` and ``_rest``."""

    def __init__(self, task: Task, backend: Backend, beat: Action) -> None:
        self._task, self._backend, self._beat = task, backend, beat
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: list[BaseException] = []
        self._times: list[int] = []
        self._alone: list[int] = []
        self._began = self._went_ns = 0
        self._interval = sys.getswitchinterval()

    def alone(self) -> None:
        """Time the task by itself, the rank's own thread asleep."""
        self._go()
        until, previous_count = time.monotonic() + LEAST_S, -1
        while (time.monotonic() < until or len(self._times) < FEWEST) and not self._failed:
            time.sleep(PAUSE_S)
            previous_count = self._beat_since(previous_count)
        self._rest()
        self._alone = self.since()

    def along(self, work: Steps[T]) -> Steps[T]:
        """``work`` with the task going on behind it, but for where it pauses. What it raises is not
        held up by other ranks, for which the task may wait."""
        while True:
            self._go()
            try:
                next(work)
            except StopIteration as end:
                self._rest()
                return cast(T, end.value)
            self._rest()
            yield

    def since(self) -> list[int]:
        """The time of each repetition since this was last asked; the first belongs to another
        time."""
        times = self._times[1:]
        self._times.clear()
        self._began, self._went_ns = clock(), 0
        return times[:BACKGROUND_SAMPLES]

    def result(self) -> Background:
        """Its times alone and while calls were measured, in ns."""
        went_ns = self._went_ns
        return Background(alone_ns=self._alone, during_ns=self.since(), went_ns=went_ns)

    def wrong(self) -> str:
        """A sentence on what is wrong with the data that it left, and leaves when it is done once
        more, as all ranks do; "" where nothing is."""
        return self._task.wrong()

    def _go(self) -> None:
        self._stop.clear()
        self._began = clock()
        sys.setswitchinterval(SWITCH_S)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _rest(self) -> None:
        """Waits until all ranks' have stopped. Raises what ended the task."""
        assert self._thread is not None, "what rests has gone"
        self._stop.set()
        previous_count = -1
        while self._thread.is_alive():
            self._thread.join(PAUSE_S)
            previous_count = self._beat_since(previous_count)
        sys.setswitchinterval(self._interval)
        self._went_ns += clock() - self._began
        if self._failed:
            raise self._failed[0]

    def _beat_since(self, previous_count: int) -> int:
        """The number of repetitions so far; a sign of life where there were fewer before: a task
        that hangs is to be found."""
        if len(self._times) != previous_count:
            self._beat()
        return len(self._times)

    def _run(self) -> None:
        stream, stop = self._backend.stream, False
        try:
            with stream.use_lane("background") if stream else nullcontext():
                while not stop:
                    for _ in range(self._task.together):
                        began = clock()
                        self._task.once()
                        if stream:
                            stream.drain()
                        self._times.append(clock() - began)
                    stop = self._task.over(self._stop.is_set())
        except BaseException as e:
            self._failed.append(e)
