"""One call of a backend on this rank, with its buffers: filled, made and checked by hand."""

from __future__ import annotations

import ctypes
import gc
import os
import zlib
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from collbench.run.backends import Backend
from collbench.run.rank.bench import Bench
from collbench.run.rank.calls import allocate_slots
from collbench.run.rank.check import Checker
from collbench.run.rank.control import Control
from collbench.suite.case import Case


class Rig:
    """A call of ``case`` by an opened backend, in buffers of its own. ``control`` is the group that
    the backend was opened for; data differ with the case and the number that they are filled by."""

    def __init__(self, bench: Bench, backend: Backend, control: Control, case: Case) -> None:
        rank = control.rank
        ((buffers,),) = allocate_slots(backend, [case], [rank])
        self._backend, self._buffers = backend, buffers
        self._count = partial(bench.board.count_calls, bench.rank)
        self.case = case
        self.call = backend.prepare(case, buffers.send, buffers.recv)
        beat = partial(bench.board.beat, bench.rank)
        key = zlib.crc32(case.key.encode())
        self._checker = Checker(case, 1, rank, backend.device, backend.premultiplies, beat, key)

    def fill(self, number: int) -> None:
        """Poison what the call writes, and fill what it reads."""
        self._checker.poison(self._buffers.written)
        self._checker.fill_send(self._buffers.send, number)
        self.call.load()
        self._backend.finish()

    def run(self) -> None:
        """Make the call, and wait until this rank's part is done."""
        self._count()
        self.call.run()
        self._backend.finish()

    def count_wrong(self, number: int) -> int:
        """Elements of what the call received that are not what data of this ``number`` give."""
        self.call.store()
        _, wrong, _ = self._checker.check_recv(self._buffers.recv, number)
        return wrong

    def is_poisoned(self) -> bool:
        """Whether what the call writes still is as ``fill`` left it."""
        self.call.store()
        poisoned = self._buffers.recv.clone()
        self._checker.poison(poisoned)
        return self._is_alike(poisoned, self._buffers.recv)

    def has_kept_input(self, number: int) -> bool:
        """Whether what the call read is as it was filled by this ``number``."""
        kept = self._buffers.send.clone()
        self._checker.fill_send(kept, number)
        return self._is_alike(kept, self._buffers.send)

    def _is_alike(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        return torch.equal(one.view(self._checker.bits), other.view(self._checker.bits))


class Footprint(NamedTuple):
    """What this process holds."""

    resident: int  # bytes
    allocated: int  # bytes, by C's malloc; 0 where that does not tell
    descriptors: int
    threads: int
    mappings: int


def take_footprint() -> Footprint:
    """What this process holds now, by Linux's /proc, once nothing waits to be collected."""
    gc.collect()
    proc = Path("/proc/self")
    pages = int((proc / "statm").read_text().split()[1])
    return Footprint(
        pages * os.sysconf("SC_PAGE_SIZE"),
        count_allocated(),
        len(list((proc / "fd").iterdir())),
        len(list((proc / "task").iterdir())),
        (proc / "maps").read_text().count("\n"),
    )


class _Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def count_allocated() -> int:
    """Bytes that C's malloc has handed out and not got back, which the resident set does not show
    where it has some in reserve; 0 where the C library does not tell."""
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return 0
    tell.restype = _Mallinfo
    info = tell()
    return int(info.uordblks + info.hblkhd)


def read_thread_seconds() -> dict[str, float]:
    """The processor time that each thread of this process has had, by its number."""
    tick = os.sysconf("SC_CLK_TCK")
    seconds = {}
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        seconds[task.name] = (int(fields[11]) + int(fields[12])) / tick
    return seconds
