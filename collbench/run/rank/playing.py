"""A rank's program of a step of training, played: its operations on their groups, its waits, and
the computation between.

An operation is started where the program starts it and waited for where the program waits for it;
on a device, both are the stream's. Where a library's calls cannot be left to themselves, each is
waited for where it is made. One that begins after others of its rank waits for them there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from collbench.core.collectives import PARTS
from collbench.run.backends import Call
from collbench.run.rank.gpu import Stream
from collbench.run.rank.measure import Action, clock
from collbench.workload.step import Compute, Op, Program

STEP, COMPUTATION, COMMUNICATION = PARTS
SIDE = {"cpu": 256, "cuda": 2048}  # of the square matrices that are multiplied, by device
CHUNK, STORE = 4 << 20, 64 << 20  # bytes that are copied at a time, and that these go through
SLICE_NS = 1_000_000_000  # of sleep, between signs of life
TRIED = 5  # calls that tell how long one takes


class Computation:
    """What stands for computation: products of matrices and copies of memory, or the time they
    take. ``beat`` is called now and then. Where an operation says only how long it takes,
    products and copies are as many as take that long, by those of rank 0, which ``decide`` tells
    all ranks; where either would do, a host spins so long, and a device multiplies."""

    def __init__(
        self,
        kind: Compute,
        device: torch.device,
        beat: Action,
        decide: Callable[[list[int]], list[int]],
        finish: Action,
    ) -> None:
        self._kind, self._beat = kind, beat
        side = SIDE.get(device.type, SIDE["cuda"])
        number = torch.float32 if device.type == "cpu" else torch.bfloat16
        self._flops, self._rows = 2.0 * side**3, side
        self._device = device
        if kind in ("auto", "gemm"):
            self._left, self._right, self._out = (
                torch.full((side, side), 0.5, dtype=number, device=device) for _ in range(3)
            )
        if kind in ("auto", "copy"):
            self._from, self._to = (
                torch.zeros(STORE, dtype=torch.uint8, device=device) for _ in range(2)
            )
        self._at = 0
        units = {"gemm": partial(self._product, side), "copy": partial(self._copy, CHUNK)}
        self._unit_ns = 1
        self._timed = "gemm" if kind == "auto" and device.type != "cpu" else kind
        if self._timed in units:
            took = []
            for _ in range(TRIED):
                began = clock()
                units[self._timed]()
                finish()
                took.append(clock() - began)
            (self._unit_ns,) = decide([max(1, min(took))])

    def action(self, op: Op) -> Action | None:
        """What an operation computes; None for nothing."""
        if self._kind in ("spin", "sleep"):
            rest = self._sleep if self._kind == "sleep" else self._spin
            return partial(rest, op.compute_ns) if op.compute_ns else None
        parts: list[Action] = []
        units = -(-op.compute_ns // self._unit_ns)
        if self._kind in ("auto", "gemm"):
            long = self._kind == "gemm" or (self._timed == "gemm" and not op.touched)
            flops = op.flops or self._flops * units * long
            parts += [partial(self._multiply, flops)] if flops else []
        if self._kind in ("auto", "copy"):
            touched = op.touched or (2 * CHUNK * units if self._kind == "copy" else 0)
            parts += [partial(self._move, touched // 2)] if touched else []
        if self._kind == "auto" and op.compute_ns and not parts:
            parts.append(partial(self._spin, op.compute_ns))
        return partial(_all, parts) if parts else None

    def _multiply(self, flops: float) -> None:
        whole, rest = divmod(flops, self._flops)
        for _ in range(int(whole)):
            self._product(self._rows)
            self._beat()
        if rows := round(self._rows * rest / self._flops):
            self._product(rows)

    def _product(self, rows: int) -> None:
        torch.mm(self._left[:rows], self._right, out=self._out[:rows])

    def _move(self, nbytes: int) -> None:
        for _ in range(nbytes // CHUNK):
            self._copy(CHUNK)
            self._beat()
        self._copy(nbytes % CHUNK)

    def _copy(self, nbytes: int) -> None:
        at = self._at
        self._to[at : at + nbytes].copy_(self._from[at : at + nbytes])
        self._at = (at + CHUNK) % STORE

    def _spin(self, ns: int) -> None:
        until = clock() + ns
        while clock() < until:
            self._beat()

    def _sleep(self, ns: int) -> None:
        for left in range(ns, 0, -SLICE_NS):
            time.sleep(min(left, SLICE_NS) / 1e9)
            self._beat()


def _all(parts: Sequence[Action]) -> None:
    for part in parts:
        part()


class Done:
    """The handle of what was waited for where it was made."""

    def wait(self) -> None:
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


class Watched(NamedTuple):
    """When each operation of a program began and ended, by ``clock``; 0 for one that was not."""

    begins: list[int]
    ends: list[int]


class Player:
    """A program with its ``calls``, by place. ``patient``: handles may be waited for by another
    thread."""

    def __init__(
        self,
        program: Program,
        calls: Mapping[int, Call],
        computation: Computation,
        beat: Action,
        patient: bool,
    ) -> None:
        self._program, self._calls, self._computation = program, calls, computation
        self._beat, self._patient = beat, patient
        self._works: list[Any] = [Done()] * len(program.ops)
        self._computed = {
            at: action
            for at, op in enumerate(program.ops)
            if op.kind == "compute" and (action := computation.action(op))
        }
        self._waits = self._waited()
        self._starts = {at: self._start(at) for at in calls}
        self._plays = {part: [act for _, act in self._acts(part)] for part in PARTS}

    def play(self, part: str) -> Action:
        """What plays this part from its begin to its end on the host."""
        return partial(_all, self._plays[part])

    def without(self, at: int | None) -> Action:
        """What plays the whole step but for this operation with others."""
        return partial(_all, [act for _, act in self._acts(STEP, at)])

    def watched(self) -> Watched:
        """One step more, watched: another thread waits for each operation in its order, where it
        may; else an operation's end is seen where the program waits for it."""
        count = len(self._program.ops)
        begins, ends = [0] * (count + 1), [0] * (count + 1)  # the last is the step's end
        started: queue.SimpleQueue[int | None] = queue.SimpleQueue()

        def see() -> None:
            while (at := started.get()) is not None:
                self._works[at].wait()
                ends[at] = ends[at] or clock()

        watcher = threading.Thread(target=see, daemon=True)
        if self._patient:
            watcher.start()
        for at, act in self._acts(STEP):
            begins[at] = clock()
            act()
            if act is self._starts.get(at) and self._leaves(at):
                if self._patient:
                    self._works[at] = _Once(self._works[at])
                    started.put(at)
                continue
            ends[at] = clock()
            for each in self._waits[at]:
                ends[each] = ends[each] or ends[at]
        started.put(None)
        if self._patient:
            watcher.join()
        return Watched(begins[:count], ends[:count])

    def watched_on(self, stream: Stream) -> Watched:
        """The same by a device's clock, after a mark at the step's begin: when its stream came to
        each operation, and when it, or what the operation started beside it, was through."""
        count, origin = len(self._program.ops), stream.mark()
        marks: dict[int, tuple[Any, Any]] = {}
        for at, act in self._acts(STEP):
            begin = stream.mark()
            act()
            op = self._program.ops[at] if at < count else None
            if op and act is self._starts.get(at) and self._leaves(at):
                marks[at] = begin, stream.mark_after(self._works[at], (op.group, op.lane))
            elif op:
                marks[at] = begin, stream.mark()
        stream.drain()
        begins, ends = [0] * count, [0] * count
        for at, (begin, end) in marks.items():
            while not stream.reached(end):  # beside the stream that was drained
                time.sleep(0)
            begins[at], ends[at] = (stream.elapsed(origin, mark) for mark in (begin, end))
        return Watched(begins, ends)

    def _leaves(self, at: int) -> bool:
        """Whether an operation is only started where it stands."""
        return bool(self._calls[at].submit) and self._program.ops[at].wait == "later"

    def _waited(self) -> list[list[int]]:
        """The operations that are waited for at each place, and at the end: each where it is
        first."""
        found, ops = [], self._program.ops
        open_: dict[int, None] = {}
        for at, op in enumerate(ops):
            mine = [each for each in op.after or open_ if each in open_]
            if op.kind == "wait" or op.after:
                found.append(mine)
                for each in mine:
                    del open_[each]
            else:
                found.append([])
            if at in self._calls and self._leaves(at):
                open_[at] = None
        return [*found, [*open_]]

    def _acts(self, part: str, lacking: int | None = None) -> Iterator[tuple[int, Action]]:
        """What is done in a part, but for one operation, with the place of the operation that it is
        of; at last what nobody has waited for is."""
        talks = part != COMPUTATION
        for at, places in enumerate(self._waits):
            if talks and (waits := [each for each in places if each != lacking]):
                yield at, partial(self._wait, waits)
            if part != COMMUNICATION and at in self._computed:
                yield at, self._computed[at]
            elif talks and at in self._calls and at != lacking:
                yield at, self._starts[at]

    def _start(self, at: int) -> Action:
        call, works = self._calls[at], self._works
        submit = call.submit if self._leaves(at) else None

        def start() -> None:
            if submit:
                works[at] = submit()
            else:
                call.run()
            self._beat()

        return start

    def _wait(self, places: Sequence[int]) -> None:
        for at in places:
            self._works[at].wait()
        self._beat()
