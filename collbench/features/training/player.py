"""A rank's program of a step of training, played: its operations on their groups, its waits, and
the computation between.

An operation is started where the program starts it and waited for where the program waits for it;
on a device, both are the stream's. Where a library's calls cannot be left to themselves, each is
waited for where it is made. One that begins after others of its rank leaves that to its lane, a
thread, as frameworks leave it to a stream or to a callback; on a device, and where calls may come
from one thread alone, the program waits for the others there.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from collbench.features.training.parts import COMMUNICATION, COMPUTATION, PARTS, STEP
from collbench.features.training.step import POINT_TO_POINT, Program
from collbench.run.backends import Call
from collbench.run.rank.computation import SWITCH_S, Computation, Work, run_all
from collbench.run.rank.measure import Action, clock
from collbench.run.rank.stream import Stream


class Done:
    """The handle of an operation that has ended already."""

    def wait(self) -> None:
        """Return at once."""
        return


class _Once:
    """A handle that two threads may wait for; Gloo's of a message hold up whoever waits again."""

    def __init__(self, work: Any) -> None:
        self._work, self._lock, self._done = work, threading.Lock(), False

    def wait(self) -> None:
        with self._lock:
            if not self._done:
                self._work.wait()
            self._done = True


class _Later:
    """The handle of a call that a lane is yet to make."""

    def __init__(self) -> None:
        self._submitted = threading.Event()
        self._work: Any = None
        self._failed: list[BaseException] = []

    def make(self, after: Sequence[Any], submit: Callable[[], Any]) -> None:
        try:
            for work in after:
                work.wait()
            self._work = submit()
        except BaseException as e:
            self._failed.append(e)
        self._submitted.set()

    def wait(self) -> None:
        self._submitted.wait()
        if self._failed:
            raise self._failed[0]
        if self._work is not None:
            self._work.wait()


class Lane:
    """A thread that makes calls in their order, each once what it comes after is done."""

    def __init__(self) -> None:
        self._actions: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def hand(self, after: Sequence[Any], submit: Callable[[], Any]) -> _Once:
        """Have the lane submit a call once ``after`` is done, and return a handle to wait for."""
        later = _Later()
        self._actions.put(partial(later.make, after, submit))
        return _Once(later)

    def close(self) -> None:
        """End the thread, once what it was handed is done."""
        self._actions.put(None)

    def _run(self) -> None:
        while make := self._actions.get():
            make()


class Watched(NamedTuple):
    """When each operation of a program began and ended, by ``clock``, and when the program began to
    wait before it; 0 for what was not."""

    begins: list[int]
    ends: list[int]
    waits: list[int]


class Player:
    """A program with its ``calls``, by place. ``patient``: handles may be waited for by another
    thread; ``lanes``: calls may be made by others, too."""

    def __init__(
        self,
        program: Program,
        calls: Mapping[int, Call],
        computation: Computation,
        beat: Action,
        patient: bool,
        lanes: bool = False,
    ) -> None:
        self._program, self._calls, self._computation = program, calls, computation
        self._beat, self._patient = beat, patient
        self._works: list[Any] = [Done()] * len(program.ops)
        self._computed = {
            at: action
            for at, op in enumerate(program.ops)
            if op.kind == "compute"
            and (action := computation.action(Work(op.compute_ns, op.flops, op.touched)))
        }
        self._before: dict[int, list[int]] = {}  # what calls that lanes make come after
        self._waits = self._waited(lanes)
        self._shared = {at for places in self._before.values() for at in places}
        self._lanes = {self._lane(at): Lane() for at in self._before}
        self._interval = sys.getswitchinterval()
        if self._lanes:
            sys.setswitchinterval(SWITCH_S)
        self._starts = {at: self._start(at) for at in calls}
        self._plays = {part: [act for _, act in self._acts(part)] for part in PARTS}

    def close(self) -> None:
        """End the threads of all lanes."""
        for lane in self._lanes.values():
            lane.close()
        sys.setswitchinterval(self._interval)

    def play(self, part: str) -> Action:
        """A function that plays this part from its begin to its end on the host."""
        return partial(run_all, self._plays[part])

    def without(self, at: int | None) -> Action:
        """A function that plays the whole step but for this operation with others."""
        return partial(run_all, [act for _, act in self._acts(STEP, at)])

    def watched(self) -> Watched:
        """Play the step once more and time each operation by the host's clock. A second thread
        waits for the operations in their order, where a handle may be waited for twice; else an
        operation ends where the program waits for it."""
        count = len(self._program.ops)
        begins, ends, waits = ([0] * (count + 1) for _ in range(3))  # the last is the step's end
        started: queue.SimpleQueue[int | None] = queue.SimpleQueue()

        def see() -> None:
            while (at := started.get()) is not None:
                self._works[at].wait()
                ends[at] = ends[at] or clock()

        watcher = threading.Thread(target=see, daemon=True)
        if self._patient:
            watcher.start()
        for at, act in self._acts(STEP):
            waits[at], begins[at] = begins[at], clock()  # a wait is the first of two acts
            act()
            if act is self._starts.get(at) and self._leaves(at):
                if self._patient:
                    self._works[at] = _Once(self._works[at])
                    started.put(at)
                continue
            now = clock()
            for operation in self._waits[at]:
                ends[operation] = ends[operation] or now
            if at not in self._calls or not self._leaves(at):
                ends[at] = now
        started.put(None)
        if self._patient:
            watcher.join()
        return Watched(begins[:count], ends[:count], waits[:count])

    def watched_on(self, stream: Stream) -> Watched:
        """Play the step once more and time each operation by a device's clock, from a mark at the
        step's begin: when ``stream`` came to the operation, and when the stream, or the library's
        stream on which the operation runs, had done it."""
        count, origin = len(self._program.ops), stream.mark()
        marks: dict[int, tuple[Any, Any]] = {}
        waited: dict[int, Any] = {}
        for at, act in self._acts(STEP):
            begin = stream.mark()
            if at in marks:  # a wait is the first of two acts
                waited[at], _ = marks[at]
            act()
            op = self._program.ops[at] if at < count else None
            if op and act is self._starts.get(at) and self._leaves(at):
                marks[at] = begin, stream.mark_after(self._works[at], (op.group, op.lane))
            elif op:
                marks[at] = begin, stream.mark()
        stream.drain()
        begins, ends, waits = ([0] * count for _ in range(3))
        for at, (begin, end) in marks.items():
            while not stream.reached(end):  # beside the stream that was drained
                time.sleep(0)
            begins[at], ends[at] = (stream.elapsed(origin, mark) for mark in (begin, end))
        for at, begin in waited.items():
            waits[at] = stream.elapsed(origin, begin)
        return Watched(begins, ends, waits)

    def _leaves(self, at: int) -> bool:
        """Whether an operation is only started where it stands."""
        return bool(self._calls[at].submit) and self._program.ops[at].wait == "later"

    def _lane(self, at: int) -> tuple[str, str]:
        op = self._program.ops[at]
        return op.group, op.lane

    def _waited(self, lanes: bool) -> list[list[int]]:
        """The operations that the program waits for before each operation, and at the end; each is
        named where it is first waited for. Waits that ``lanes`` do are noted and left out."""
        waited: list[list[int]] = []
        ops = self._program.ops
        open_: dict[int, None] = {}
        for at, op in enumerate(ops):
            awaited = [number for number in op.after or open_ if number in open_]
            leaves = lanes and at in self._calls and self._leaves(at)
            if leaves and op.after and op.kind not in POINT_TO_POINT:
                waited.append([])
                self._before[at] = awaited
            elif op.kind == "wait" or op.after:
                waited.append(awaited)
                for number in awaited:
                    del open_[number]
            else:
                waited.append([])
            if at in self._calls and self._leaves(at):
                open_[at] = None
        return [*waited, [*open_]]

    def _acts(self, part: str, lacking: int | None = None) -> Iterator[tuple[int, Action]]:
        """The actions of a part, each with the index of its operation, but for operation
        ``lacking``; at last the waits for what has not been waited for."""
        talks = part != COMPUTATION
        for at, places in enumerate(self._waits):
            if talks and (waits := [number for number in places if number != lacking]):
                yield at, partial(self._wait, waits)
            if part != COMMUNICATION and at in self._computed:
                yield at, self._computed[at]
            elif talks and at in self._calls and at != lacking:
                yield at, self._starts[at]

    def _start(self, at: int) -> Action:
        """A function that starts operation ``at`` and, unless the program waits for it later, waits
        for its end."""
        call, works, leaves = self._calls[at], self._works, self._leaves(at)
        lane, before = self._lanes.get(self._lane(at)), self._before.get(at, [])

        def start() -> None:
            if lane:
                works[at] = lane.hand([works[number] for number in before], call.submit or call.run)
                if not leaves:
                    works[at].wait()
            elif leaves and call.submit:
                works[at] = _Once(call.submit()) if at in self._shared else call.submit()
            else:
                call.run()
            self._beat()

        return start

    def _wait(self, places: Sequence[int]) -> None:
        for at in places:
            self._works[at].wait()
        self._beat()
