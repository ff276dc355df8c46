"""What stands for computation on a rank: products of matrices, copies of memory, or the time that
they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch

from collbench.run.memory import GPU_COMPUTING, HOST_COMPUTING, PAGE
from collbench.run.rank.measure import Action, clock
from collbench.run.rank.stream import Stream

SLICE_NS = 1_000_000_000  # of sleep, between signs of life
TRIED = 5  # times at most that tell how long a call takes
LONG_NS = 100_000_000  # of a call, which is tried twice: the first loads a library
TOGETHER_NS = 10_000_000  # of calls on a device between two waits for it
SWITCH_S = 5e-5  # between threads that want Python's lock; its own 5 ms would show in calls

Kind = Literal["auto", "none", "gemm", "copy", "spin", "sleep"]


class Work(NamedTuple):
    """What is to be computed: so many floating-point operations and bytes of memory touched, or
    whatever takes so many nanoseconds."""

    compute_ns: int = 0
    flops: float = 0
    touched: int = 0


class Computation:
    """What stands for computation: products of matrices and copies of memory, or the time they
    take. ``beat`` is called now and then. Where an operation says only how long it takes,
    products and copies are as many as take that long, by those of rank 0, which ``decide`` tells
    all ranks; where either would do, a host spins so long, and a device multiplies. With a
    ``stream``, each action is one launch: a thread that has to wait for Python's lock at each of
    some hundred would leave the device idle between them."""

    def __init__(
        self,
        kind: Kind,
        device: torch.device,
        beat: Action,
        decide: Callable[[list[int]], list[int]],
        finish: Action,
        stream: Stream | None = None,
    ) -> None:
        self._kind, self._beat, self._finish, self._stream = kind, beat, finish, stream
        on_host = device.type == "cpu"
        self._sizes = sizes = HOST_COMPUTING if on_host else GPU_COMPUTING
        side, number = sizes.side, torch.float32 if on_host else torch.bfloat16
        self._flops, self._rows = 2.0 * side**3, side
        self._device = device
        if kind in ("auto", "gemm"):
            self._lhs, self._rhs, self._out = (
                torch.full((side, side), 0.5, dtype=number, device=device) for _ in range(3)
            )
        if kind in ("auto", "copy"):
            self._from, self._to = (
                torch.zeros(sizes.store, dtype=torch.uint8, device=device) for _ in range(2)
            )
        self._at = 0
        units = {"gemm": partial(self._product, side), "copy": partial(self._copy, sizes.chunk)}
        self._unit_ns = 1
        self._timed = "gemm" if kind == "auto" and device.type != "cpu" else kind
        if self._timed in units:
            (self._unit_ns,) = decide([self._time_unit(self._capture_action(units[self._timed]))])

    def _capture_action(self, action: Action) -> Action:
        """Capture the action, so that one launch issues it; without a stream it stays as it is."""
        if not self._stream:
            return action
        action()  # what libraries load and allocate at first cannot be captured
        self._finish()
        return partial(self._launch_graph, self._stream.capture(action))

    def _launch_graph(self, graph: Action) -> None:
        """Launch a graph, which keeps none of the memory that it works on: this object does."""
        graph()

    def _time_unit(self, unit: Action) -> int:
        """The ns that a unit takes among others, as ``action`` does them: on a device, so many
        together that the wait for their end is little beside them."""
        number, took = 1, []
        for _ in range(TRIED):
            began = clock()
            for _ in range(number):
                unit()
                self._beat()
            self._finish()
            took.append((clock() - began) // number)
            if len(took) > 1 and min(took) > LONG_NS:
                break
            if self._device.type != "cpu":
                number = max(1, TOGETHER_NS // max(1, min(took)))
        return max(1, min(took))

    def action(self, work: Work) -> Action | None:
        """A function that does this work; None for none."""
        if self._kind in ("spin", "sleep"):
            rest = self._sleep if self._kind == "sleep" else self._spin
            return partial(rest, work.compute_ns) if work.compute_ns else None
        parts: list[Action] = []
        units = work.compute_ns / self._unit_ns
        if self._kind in ("auto", "gemm"):
            long = self._kind == "gemm" or (self._timed == "gemm" and not work.touched)
            flops = work.flops or self._flops * units * long
            parts += [partial(self._multiply, flops)] if flops else []
        if self._kind in ("auto", "copy"):
            copied = work.touched // 2 or round(self._sizes.chunk * units * (self._kind == "copy"))
            parts += [partial(self._move, copied)] if copied else []
        if self._kind == "auto" and work.compute_ns and not parts:
            return partial(run_all, [partial(self._spin, work.compute_ns)])
        return self._capture_action(partial(run_all, parts)) if parts else None

    def _multiply(self, flops: float) -> None:
        whole_count, rest = divmod(flops, self._flops)
        for _ in range(int(whole_count)):
            self._product(self._rows)
            self._beat()
        rows = round(self._rows * rest / self._flops)
        if rows or not whole_count:
            self._product(max(1, rows))

    def _product(self, rows: int) -> None:
        torch.mm(self._lhs[:rows], self._rhs, out=self._out[:rows])

    def _move(self, nbytes: int) -> None:
        whole_count, rest = divmod(nbytes, self._sizes.chunk)
        for _ in range(whole_count):
            self._copy(self._sizes.chunk)
            self._beat()
        if rest:
            self._copy(rest)

    def _copy(self, nbytes: int) -> None:
        at = self._at if self._at + nbytes <= self._sizes.store else 0
        self._to[at : at + nbytes].copy_(self._from[at : at + nbytes])
        self._at = at + -(-nbytes // PAGE) * PAGE

    def _spin(self, ns: int) -> None:
        until = clock() + ns
        while clock() < until:
            self._beat()

    def _sleep(self, ns: int) -> None:
        for remaining in range(ns, 0, -SLICE_NS):
            time.sleep(min(remaining, SLICE_NS) / 1e9)
            self._beat()


def run_all(parts: Sequence[Action]) -> None:
    """Do all parts in turn."""
    for part in parts:
        part()
