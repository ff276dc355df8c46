"""What stands for computation on a rank: products of matrices, copies of memory, or the time that
they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch

from collbench.run.rank.measure import Action, clock

SIDE = {"cpu": 256, "cuda": 2048}  # of the square matrices that are multiplied, by device
CHUNK, STORE = 4 << 20, 64 << 20  # bytes that are copied at a time, and that these go through
SLICE_NS = 1_000_000_000  # of sleep, between signs of life
TRIED = 5  # times that tell how long a call takes
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
    all ranks; where either would do, a host spins so long, and a device multiplies."""

    def __init__(
        self,
        kind: Kind,
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
            self._lhs, self._rhs, self._out = (
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
            (self._unit_ns,) = decide([self._time_unit(units[self._timed], finish)])

    def _time_unit(self, unit: Action, finish: Action) -> int:
        """The ns that a unit takes among others, as ``action`` does them: on a device, so many
        together that the wait for their end is little beside them."""
        number, took = 1, []
        for _ in range(TRIED):
            began = clock()
            for _ in range(number):
                unit()
                self._beat()
            finish()
            took.append((clock() - began) // number)
            if self._device.type != "cpu":
                number = max(1, TOGETHER_NS // max(1, min(took)))
        return max(1, min(took))

    def action(self, work: Work) -> Action | None:
        """A function that does this work; None for none."""
        if self._kind in ("spin", "sleep"):
            rest = self._sleep if self._kind == "sleep" else self._spin
            return partial(rest, work.compute_ns) if work.compute_ns else None
        parts: list[Action] = []
        units = -(-work.compute_ns // self._unit_ns)
        if self._kind in ("auto", "gemm"):
            long = self._kind == "gemm" or (self._timed == "gemm" and not work.touched)
            flops = work.flops or self._flops * units * long
            parts += [partial(self._multiply, flops)] if flops else []
        if self._kind in ("auto", "copy"):
            touched = work.touched or (2 * CHUNK * units if self._kind == "copy" else 0)
            parts += [partial(self._move, touched // 2)] if touched else []
        if self._kind == "auto" and work.compute_ns and not parts:
            parts.append(partial(self._spin, work.compute_ns))
        return partial(run_all, parts) if parts else None

    def _multiply(self, flops: float) -> None:
        whole_count, rest = divmod(flops, self._flops)
        for _ in range(int(whole_count)):
            self._product(self._rows)
            self._beat()
        if rows := round(self._rows * rest / self._flops):
            self._product(rows)

    def _product(self, rows: int) -> None:
        torch.mm(self._lhs[:rows], self._rhs, out=self._out[:rows])

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
        for remaining in range(ns, 0, -SLICE_NS):
            time.sleep(min(remaining, SLICE_NS) / 1e9)
            self._beat()


def run_all(parts: Sequence[Action]) -> None:
    """Do all parts in turn."""
    for part in parts:
        part()
