"""Reference algorithms over memory that the ranks of one host share: moves are direct reads of a
peer's buffer.

Buffers and scratch lie in anonymous shared memory, laid out alike on all ranks. Ranks tell each
other how far they are by one counter each, which only grows; a step waits for the counters its
program names, works on plain views, and raises its own. Large buffers go through the program in
slices, so that what one rank has just written is read while it is still in the cache.

This rests on x86's total store order: a counter is never seen to rise before the data it stands for
(numpy, torch and libc fence what they write past the cache).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import torch

from collbench.core.backend_info import backend_info
from collbench.core.errors import CannotRun
from collbench.core.program import Action, Bank, Term
from collbench.machine import environment
from collbench.run.backends import Base, Call, _memory
from collbench.run.backends._compiled import Compiled
from collbench.run.backends._reducers import Operation, find_arithmetic, finish_mean, fold_values
from collbench.run.rank.control import make_world_control
from collbench.suite.case import Case

HALFWAY = 15e3  # alpha / beta in bytes: about 3 us, and 5 GB/s

SLICE_BYTES = 1 << 20  # of a rank's row that go through the program together

PIECE_BYTES = 64 << 10  # least of a cell, lest Python's own time count

LINE = 8  # 64-bit words between two counters, so that no two share a cache line

PATIENCE = 2000  # looks at a counter before giving the core away between looks

Tensor = torch.Tensor

Scripted = tuple[tuple[tuple[int, int], ...], tuple[Operation, ...], int]


class SharedMemory(Base):
    """Schedules on memory that ranks of one host share."""

    def __init__(self) -> None:
        self.library = "collbench shared memory (buffers are allocated in it)"
        self._buffers: list[Tensor] = []
        self._scratch: list[Tensor] = []
        self._base = 0

    def open(self, rank: int, n: int, local_rank: int) -> None:
        if missing := backend_info("shm").here():
            raise CannotRun(missing, "use --backend gloo, which runs here")
        self._rank, self._control = rank, self.find_group(rank, n)
        everyone = make_world_control().collect(
            [environment.host_name(), sorted(os.sched_getaffinity(0))]
        )
        near = [
            cores for host, cores in everyone if host == environment.host_name()
        ]  # of any group
        self._patience = (
            PATIENCE if len(near) <= len({core for cores in near for core in cores}) else 0
        )
        _memory.one_host(self._control, "shm", "--backend gloo joins hosts")
        self._counters = _memory.share_memory(self._control, n * LINE * 8)[0].numpy().data.cast("q")

    def allocate(self, nbytes: int) -> Tensor:
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        # before the new ones, so that two cases never share the memory
        self._buffers, self._scratch = ([], [])
        self._buffers = _memory.share_memory(self._control, nbytes)
        return self._buffers[self._rank]

    def _room(self, nbytes: int) -> list[Tensor]:
        """Every rank's scratch, of at least that many bytes."""
        if nbytes and (not self._scratch or len(self._scratch[0]) < nbytes):
            self._scratch = []
            self._scratch = _memory.share_memory(self._control, nbytes)
        return self._scratch

    def prepare(self, case: Case, send: Tensor, recv: Tensor) -> Call:
        compiled = Compiled(case, HALFWAY, waits=True)
        script = _Script(compiled, case, self._rank, self._banks(compiled, case, send, recv))
        program, finish, span = tuple(script.lines()), script.finish, script.span
        counters, patience, own_line = self._counters, self._patience, self._rank * LINE

        def run() -> None:
            base = self._base
            for waits, operations, publish in program:
                for at, progress in waits:
                    if counters[at] < base + progress:
                        _await_progress(counters, at, base + progress, patience)
                for function, arguments in operations:
                    function(*arguments)
                if publish:
                    counters[own_line] = base + publish
            for function, arguments in finish:
                function(*arguments)
            self._base = base + span

        return Call(run, None, compiled.name)

    def _banks(
        self, compiled: Compiled, case: Case, send: Tensor, recv: Tensor
    ) -> list[dict[Bank, Tensor]]:
        starts = _memory.buffer_starts(case, self._rank, self._buffers[self._rank], send, recv)
        room = -(-compiled.row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        extra = sorted(compiled.program.banks - {Bank.INPUT, Bank.OUTPUT}) if room else []
        scratch = self._room(room * len(extra))
        banks = []
        for rank in range(case.n):
            spans = zip((Bank.INPUT, Bank.OUTPUT), starts[rank], strict=True)
            banks.append({bank: self._buffers[rank][start:] for bank, start in spans})
            banks[rank] |= {bank: scratch[rank][room * k :] for k, bank in enumerate(extra)}
        return banks

    def finish(self) -> None:
        """Nothing to wait for: calls return when they are done."""

    def close(self) -> None:
        self._buffers, self._scratch = [], []


def _await_progress(counters: memoryview, at: int, progress: int, patience: int) -> None:
    """Look until the counter is there; after ``patience`` looks, let others have the core in
    between."""
    looks = 0
    while counters[at] < progress:
        looks += 1
        if looks > patience:
            os.sched_yield()


class _Script:
    """A rank's program, slice after slice, with its operations on views."""

    def __init__(
        self, compiled: Compiled, case: Case, rank: int, banks: list[dict[Bank, Tensor]]
    ) -> None:
        self._compiled, self._rank, self._banks = compiled, rank, banks
        self._has_data = compiled.schedule.has_data
        self._arithmetic = find_arithmetic(case.op, case.type, torch.device("cpu"))
        cell = compiled.row_bytes // compiled.schedule.width
        self._slices = max(1, min(compiled.row_bytes // SLICE_BYTES, cell // PIECE_BYTES))
        self.span = self._slices * compiled.program.progress + 1
        output = compiled.output(rank)
        self.finish = tuple(
            finish_mean(
                self._arithmetic,
                case.op,
                banks[rank][Bank.OUTPUT][output.start : output.stop],
                case.n,
            )
        )

    def lines(self) -> Iterator[Scripted]:
        """(counters to wait for, operations, what to publish), in order, for all slices.

        Inputs are there from the first slice on, and that all has been read is seen at the end of
        the last.
        """
        for part in range(self._slices):
            done = part * self._compiled.program.progress
            for waits, actions, _, publish in self._compiled.program.ranks[self._rank]:
                leaving = bool(waits) and not actions
                if (publish == 1 and part) or (leaving and part < self._slices - 1):
                    continue
                waits_for = tuple(
                    (peer * LINE, done + progress)
                    for peer, progress in waits
                    if progress > 1 or not part
                )
                operations = tuple(
                    operation for action in actions for operation in self._operations(action, part)
                )
                if waits_for or operations or publish:
                    yield waits_for, operations, publish and done + publish

    def _operations(self, action: Action, part: int) -> Iterator[Operation]:
        if not self._has_data:
            return
        bank, cell, cells, terms = action
        spots = [
            [
                self._banks[term.rank][bank][start:stop]
                for bank, start, stop in self._compiled.spots(term, cells, part, self._slices)
            ]
            for term in (Term(self._rank, bank, cell), *terms)
        ]
        for out, *values in zip(*spots, strict=True):
            yield from fold_values(self._arithmetic, out, values)
