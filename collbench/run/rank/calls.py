"""The calls of a case on one rank: the buffers that they read and write, and what is done to them
on purpose - faults planted in them (suite/faults.py), and ranks coming apart before them
(suite/arrivals.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch

from collbench.run.backends import Backend, Call, do_nothing
from collbench.run.memory import PAGE
from collbench.run.rank import payload
from collbench.run.rank.control import Control
from collbench.run.rank.measure import clock
from collbench.suite import arrivals
from collbench.suite.case import Case
from collbench.suite.faults import Fault


class Buffers(NamedTuple):
    """One slot's views: what the call reads and writes, and in place the one buffer behind both."""

    send: torch.Tensor
    recv: torch.Tensor
    memory: torch.Tensor | None

    @property
    def written(self) -> torch.Tensor:
        """The memory that a call may write to."""
        return self.recv if self.memory is None else self.memory


Slot = list[Buffers]  # one entry for each rank that this process holds


class _Laid(NamedTuple):
    """The buffers of one rank's slot: elements of each, with the bytes it takes."""

    case: Case
    placement: payload.Placement | None
    lengths: list[int]
    strides: list[int]

    @classmethod
    def of(cls, case: Case, rank: int, unalign: int) -> _Laid:
        placement = payload.in_place_offsets(case, rank) if case.in_place else None
        lengths = [placement.total] if placement else list(case.counts)
        strides = [-(-(length + unalign) * case.type.size // PAGE) * PAGE for length in lengths]
        return cls(case, placement, lengths, strides)


def allocate_slots(
    backend: Backend, slots: Sequence[Case], ranks: Sequence[int], unalign: int = 0
) -> list[Slot]:
    """Page-aligned buffers (shifted by ``unalign`` elements) for a case each, in place as views of
    one; contents are undefined."""
    laid = [[_Laid.of(case, rank, unalign) for rank in ranks] for case in slots]
    raw = backend.allocate(sum(sum(layout.strides) for slot in laid for layout in slot) + PAGE)
    at = -raw.data_ptr() % PAGE
    slots_made: list[Slot] = []
    for slot in laid:
        slots_made.append([])
        for case, placement, lengths, strides in slot:
            kind, views = getattr(torch, case.type.torch), []
            for length, stride in zip(lengths, strides, strict=True):
                start = at + unalign * kind.itemsize
                views.append(raw[start : start + length * kind.itemsize].view(kind))
                at += stride
            if placement:
                send, recv = (
                    views[0][o : o + c] for o, c in zip(placement, case.counts, strict=False)
                )
                views = [send, recv, *views]
            slots_made[-1].append(Buffers(views[0], views[1], views[2] if placement else None))
    return slots_made


def copy_slots(slots: Sequence[Slot], room: int) -> list[list[torch.Tensor]]:
    """Copies of all slots, rank by rank; nothing where the device has not twice the room for it, as
    libraries may want some, too."""
    written = [[buffers.written for buffers in slot] for slot in slots]
    if 2 * sum(buffer.nbytes for slot in written for buffer in slot) > room:
        return []
    with suppress(torch.cuda.OutOfMemoryError):  # others may have looked at the same room
        return [[tensor.clone() for tensor in slot] for slot in written]
    return []


def prepare_call(backend: Backend, case: Case, slot: Slot, virtual: bool) -> Call:
    """A call on the buffers of a slot: this rank's, or all ranks' where they are virtual."""
    if virtual:
        return backend.prepare_all(
            case, [buffers.send for buffers in slot], [buffers.recv for buffers in slot]
        )
    if not slot:  # a rank that is in no group
        return Call(do_nothing, None)
    ((send, recv, _),) = slot
    call = backend.prepare(case, send, recv)
    assert isinstance(call, Call), f"prepare() returned {call!r}, which is no Call"
    return call


FATAL_CALL = 3  # of the first case: ranks have met, and what they send is known to arrive

DROPPED = 70  # exit status

_SLEEPS = 2e-3  # seconds; the rest is spent on the core, as sleeping is not more exact


class Planted:
    """The faults of one rank in one case. ``finish`` returns when a device has done what was
    issued; ``retract`` takes back that a call was about to be."""

    def __init__(
        self,
        faults: list[Fault],
        seed: int,
        finish: Callable[[], object],
        retract: Callable[[], object] = do_nothing,
    ) -> None:
        self._faults, self._finish, self._retract = faults, finish, retract
        self._rng = np.random.default_rng([seed, *(fault.rank for fault in faults)])
        self._calls = 0
        self._flips = False  # whether a result is yet to be corrupted

    def within(self, call: Call, recv: torch.Tensor) -> Call:
        """The call with the faults in it, where ``recv`` is what it receives into."""

        def run() -> None:
            self._calls += 1
            for fault in self._faults:
                self._end(fault)
            began = time.perf_counter()
            call.run()
            self._finish()
            took = time.perf_counter() - began
            for fault in self._faults:
                self._after(fault, took)

        def store() -> None:
            call.store()
            if self._flips:
                self._flips = False
                flip_bit(recv)

        return call._replace(run=run, store=store, submit=None, waits=True)

    def tarry(self) -> None:
        """Come late to a call, all ranks having been told to start."""
        wait_seconds(sum(fault.amount for fault in self._faults if fault.kind == "late"))

    def _end(self, fault: Fault) -> None:
        if fault.kind == "drop" and self._calls == FATAL_CALL:
            os._exit(DROPPED)
        if fault.kind == "hang" and self._calls == FATAL_CALL:
            self._retract()
            while True:
                time.sleep(1)

    def _after(self, fault: Fault, took: float) -> None:
        if fault.kind in ("slow-rank", "jitter"):
            wait_seconds(
                took * fault.amount * (self._rng.random() if fault.kind == "jitter" else 1.0)
            )
        elif fault.kind == "corrupt":
            self._flips = self._calls == 1


def wait_seconds(seconds: float) -> None:
    """Wait so long: asleep at first, then spinning, since sleep ends late."""
    until = time.perf_counter() + seconds
    if seconds > _SLEEPS:
        time.sleep(seconds - _SLEEPS)
    while time.perf_counter() < until:
        pass


def flip_bit(buffer: torch.Tensor) -> None:
    """Turns the bit of the first element that no tolerance hides: a float's sign, an integer's top
    bit."""
    first = buffer[:1].view(torch.uint8)
    if len(first):
        first[-1] ^= 0x80


class Pattern:
    """Has ranks of a group that were told to start together come apart: one of them late, by turns
    (``one-late:50us``), or each by a time drawn anew (``random:100us``)."""

    def __init__(self, arrival: str, group_control: Control, seed: int) -> None:
        self._kind, self._spread = arrivals.parse_arrival(arrival)
        self._group, self._turn = group_control, 0
        self._rng = np.random.default_rng([seed, group_control.rank, group_control.number])

    def tarry(self) -> None:
        """Wait as long as the pattern has this rank arrive late for its next call."""
        self._turn += 1
        if self._kind == "random":
            wait_seconds(self._spread * self._rng.random())
        elif self._turn % self._group.n == self._group.rank:
            wait_seconds(self._spread)


def submit_times(call: Call, control: Control, count: Callable[[], None]) -> np.ndarray | None:
    """The time that each rank takes to hand a call over, without waiting for it, at rank 0; None
    where it must wait."""
    # a rank that is in no group takes part, and hands nothing over
    if not all(control.collect(call.submit is not None or call.run is do_nothing)):
        return None
    times = []
    for _ in range(20):
        count()
        control.barrier()
        begin = clock()
        work = call.submit() if call.submit else None
        times.append(clock() - begin)
        if work is not None:
            work.wait()
    return control.gather(np.array(times))
