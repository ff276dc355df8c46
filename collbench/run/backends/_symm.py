"""Reference algorithms over memory that GPUs read from each other: a call is one launch of one
kernel (_kernel.py), which walks a table of instructions (_instructions.py).

Buffers, scratch and lines of progress are torch's symmetric memory, one process per GPU; or, of
virtual ranks, plain memory of the one GPU that they share, in one launch whose blocks are all
resident. In Triton's interpreter the ranks are CPU processes and the memory is shared by them.

Nothing is done on the host between steps, and what a call must know of those before it (the
lines' base) lies in device memory, so that CUDA graphs can replay it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from collbench.core.dtypes import OPS
from collbench.core.errors import CannotRun, first_line
from collbench.core.program import Bank
from collbench.run.backends import Base, Call, _cuda, _instructions, _memory
from collbench.run.backends._compiled import VECTOR, Compiled
from collbench.run.rank.control import Control
from collbench.suite.case import Case

HALFWAY = 500e3  # alpha / beta in bytes: about 2 us, and 250 GB/s

PATIENCE = 20_000_000  # us that a rank waits for a peer's progress before giving it up

INTERPRETED_PATIENCE = 50_000  # looks at it in the interpreter, of some 300 us each

INTERPRETED_CHANNELS = 4  # one after the other, but never waiting for each other

ROUNDS_FLOAT8 = (8, 9)  # the first compute capability that converts to and from f8e4m3

Tensor = torch.Tensor


class Reach(NamedTuple):
    """Memory of all ranks: ``local`` is what this process allocated, ``at`` every rank's address as
    seen from here, ``handle`` what keeps it there."""

    local: Tensor
    at: list[int]
    handle: object = None


Allot = Callable[[int], Reach]  # so many bytes for every rank; all ranks call it together


class Symmetric(Base):
    """Schedules as one Triton kernel, on memory that GPUs map of each other."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.premultiplies = False
        self.library = "collbench kernel over symmetric memory"
        self._buffers: Reach | None = None
        self._scratch: Reach | None = None
        self._tapes: dict[tuple[Case, bytes], tuple[Tensor, int]] = {}
        self._meet: Callable[[], object] = lambda: None

    def refuse(self, case: Case) -> str:
        if case.mode == "graph" and not self.stream:
            return "CUDA graphs need a GPU"
        divides = case.op in OPS and OPS[case.op].divides
        if divides and case.dtype == "bfloat16" and self.interpreted:
            return "Triton's interpreter cuts means off where GPUs round them to bfloat16"
        if case.row.reduces and case.dtype == "f8e4m3" and self.stream:
            capability = torch.cuda.get_device_capability(self.device)
            if capability < ROUNDS_FLOAT8:
                return f"Triton has no f8e4m3 on compute capability {capability[0]}.{capability[1]}"
        return ""

    def copies_first(self, case: Case) -> bool:
        return False

    def open(self, rank: int, n: int, local_rank: int) -> None:
        self._rank, self._n = rank, n
        self._ranks = range(n) if self.policy.virtual else range(rank, rank + 1)
        self._control = Control(0, 1) if self.policy.virtual else Control(rank, n)
        self._walker = _load_kernel()
        self.interpreted = self._walker.INTERPRETED
        self._allot, self._most = self._on_host() if self.interpreted else self._on_gpus(local_rank)
        self._lines = self._allot(self._most * _instructions.line_bytes(n))
        self._lines.local.zero_()
        self._claim = torch.zeros(1, dtype=torch.int32, device=self.device)
        on_gpu = self.device.type == "cuda"
        self._report = torch.zeros(self._walker.REPORT_WORDS, dtype=torch.int64, pin_memory=on_gpu)
        self._report_words = self._report.numpy()  # which the host reads at the price of memory
        self.finish()
        self._control.barrier()  # all progress is 0
        if not self.policy.virtual:
            meeting = _instructions.write_barrier(rank, n, self._walker.choose_peer_limit())
            self._meet = self._launch(
                Case(collective="barrier", backend="symm", n=n, nbytes=0),
                self._on_device(meeting),
                1,
                self._bases([(0, 0)] * n, [], 0),
            )

    def _on_host(self) -> tuple[Allot, int]:
        """Ranks are processes on CPUs, in Triton's interpreter."""
        if self.policy.virtual:
            raise CannotRun(
                "virtual ranks need a GPU: Triton's interpreter runs them one after the other",
                "leave --virtual-ranks out",
            )
        _memory.one_host(self._control, "symm", "--backend gloo joins hosts")

        def allot(nbytes: int) -> Reach:
            everyone = _memory.share_memory(self._control, nbytes)
            return Reach(everyone[self._rank], [memory.data_ptr() for memory in everyone], everyone)

        self.library += " (Triton's interpreter)"
        return allot, INTERPRETED_CHANNELS

    def _on_gpus(self, local_rank: int) -> tuple[Allot, int]:
        """How memory is allotted, and as many blocks for each rank as are sure to be resident
        together: one for each multiprocessor."""
        if not torch.cuda.is_available() or torch.version.hip:
            raise CannotRun(
                "symm needs an NVIDIA GPU and a CUDA build of torch: its kernel has NVIDIA's"
                " instructions",
                "use --backend shm on CPUs; to try symm's kernel there, set TRITON_INTERPRET=1",
            )
        virtual = self.policy.virtual
        if not virtual:
            _memory.one_host(self._control, "symm", "--backend nccl joins hosts")
        seat = _cuda.Seat(torch.device("cuda", local_rank), len(self._ranks))
        if not virtual:
            sharing = self.policy.share_gpu
            seat = _cuda.choose_seat(self._control, local_rank, sharing, "symm", False)
            self.shared = seat.sharers > 1
        self.device = seat.device
        self.stream = _cuda.settle_stream(self.device, self._control, self.policy.pin)
        processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        most = min(self._control.collect(processors)) // seat.sharers
        if not most:
            raise CannotRun(
                f"{seat.sharers} ranks need a multiprocessor each, and there are {processors}",
                "ask for fewer with -g",
            )
        self.library += f" (Triton {self._walker.triton.__version__}){seat.how}"
        return (self._virtual if virtual else self._symmetric), most

    def _virtual(self, nbytes: int) -> Reach:
        with self._control.refusing_alike():
            memory = torch.empty(self._n * nbytes, dtype=torch.uint8, device=self.device)
        return Reach(memory, [memory.data_ptr() + rank * nbytes for rank in range(self._n)])

    def _symmetric(self, nbytes: int) -> Reach:
        local_memory, handle = _cuda.map_symmetric(
            self._control, nbytes, self.device, dist.group.WORLD, multicast=False
        )
        pointers = list(handle.buffer_ptrs)
        past = local_memory.data_ptr() - pointers[self._rank]
        return Reach(local_memory, [pointer + past for pointer in pointers], handle)

    def allocate(self, nbytes: int) -> Tensor:
        self._buffers = self._scratch = (
            None  # before the new ones, so that two cases never share the memory
        )
        self._tapes = {}
        if self.stream:
            torch.cuda.empty_cache()  # of copies that the case before had, which others cannot use
        if self.policy.virtual:
            memory: Tensor = super().allocate(nbytes)
            return memory
        self._buffers = self._allot(_whole_pages(nbytes))
        return self._buffers.local

    def prepare(self, case: Case, send: Tensor, recv: Tensor) -> Call:
        assert self._buffers
        starts = _memory.buffer_starts(case, self._rank, self._buffers.local, send, recv)
        pairs = [
            (base + at, base + to) for base, (at, to) in zip(self._buffers.at, starts, strict=True)
        ]
        return self._prepared(case, pairs)

    def prepare_all(self, case: Case, sends: Sequence[Tensor], recvs: Sequence[Tensor]) -> Call:
        pairs = [
            (send.data_ptr(), recv.data_ptr()) for send, recv in zip(sends, recvs, strict=True)
        ]
        return self._prepared(case, pairs)

    def _prepared(self, case: Case, pairs: Sequence[tuple[int, int]]) -> Call:
        """The call on buffers at these addresses of every rank's input and output."""
        compiled = Compiled(case, HALFWAY, waits=True)
        room = _whole_pages(compiled.row_bytes)
        extra = sorted(compiled.program.banks - {Bank.INPUT, Bank.OUTPUT}) if room else []
        bases = self._bases(pairs, extra, room)
        tape_key = case, (bases % VECTOR).tobytes()
        if fresh := tape_key not in self._tapes:
            parts = _instructions.count_channels(compiled, self._most)
            tape = _instructions.write_tape(
                case, compiled, self._ranks, parts, bases, self._walker.choose_peer_limit()
            )
            self._tapes[tape_key] = self._on_device(tape), parts
        launch = self._launch(case, *self._tapes[tape_key], bases, compiles=fresh)
        return Call(launch, None, compiled.name)

    def _bases(
        self, pairs: Sequence[tuple[int, int]], extra: Sequence[Bank], room: int
    ) -> _instructions.Words:
        """Every rank's addresses, as tapes number them; each of the extra banks has ``room`` bytes
        of scratch."""
        needed = room * len(extra)
        if needed and (
            self._scratch is None or len(self._scratch.local) < needed * len(self._ranks)
        ):
            self._scratch = None
            self._scratch = self._allot(needed)
        bases = np.zeros((self._n, _instructions.ADDRESSES), np.int64)
        bases[:, : len(pairs[0])] = pairs
        for at, bank in enumerate(extra):
            assert self._scratch
            bases[:, bank] = [base + room * at for base in self._scratch.at]
        bases[:, _instructions.LINES] = self._lines.at
        return bases

    def _launch(
        self,
        case: Case,
        tape: Tensor,
        parts: int,
        bases: _instructions.Words,
        compiles: bool = True,
    ) -> Callable[[], object]:
        """What launches the kernel. Where it ``compiles``, all ranks have compiled it when this
        returns, as none may wait in a kernel for one that does, or all raise CannotRun."""
        patience = INTERPRETED_PATIENCE if self.interpreted else PATIENCE
        first, chosen = self._ranks.start, self._walker.kernel_options(case, self.policy.virtual)
        given = tape, self._on_device(bases), self._claim, self._report, first, patience
        if compiles:
            with self._control.refusing_alike():
                self._compile(given, chosen)
        return partial(self._walker.walk[parts, len(self._ranks)], *given, **chosen)

    def _compile(self, given: tuple[Any, ...], chosen: dict[str, Any]) -> None:
        if self.interpreted:
            return
        try:
            kernel = self._walker.walk.warmup(*given, grid=(1,), **chosen)
            _ = kernel.run  # Triton compiles the launcher, and loads the kernel, when first asked
        except Exception as e:  # of Triton, a compiler that it calls, or the driver
            raise CannotRun(
                f"Triton cannot compile here: {first_line(e)}",
                "install gcc if it is missing; collbench doctor says what else is",
            ) from e

    def _on_device(self, array: _instructions.Words) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def align(self) -> None:
        self._meet()

    def finish(self) -> None:
        """Raises RuntimeError if a rank of this process has waited in vain."""
        if self.stream:
            self.stream.drain()
        if self._report_words[0]:
            _, rank, channel, peer, awaited, reached = self._report_words.tolist()
            progress = (  # below: of earlier calls
                f"progress {awaited} awaited, {max(reached, 0)} seen (channel {channel})"
            )
            raise RuntimeError(f"rank {rank} waited in vain for rank {peer}: {progress}")

    def close(self) -> None:
        self._buffers = self._scratch = None


def _load_kernel() -> Any:
    """The module of the kernel, which is only there with Triton."""
    try:
        from collbench.run.backends import _kernel
    except ImportError as e:
        raise CannotRun(f"symm needs Triton: {first_line(e)}", "pip install triton") from e
    return _kernel


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
