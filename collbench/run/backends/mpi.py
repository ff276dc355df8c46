"""MPI by mpi4py: the library's own collectives on CPU buffers, and reference algorithms by its
messages (``ring@mpi``).

MPI is initialised for the main thread only, which makes all calls, and works on a communicator of
this backend's own; control messages never pass through it.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from collbench.core.errors import CannotRun, first_line
from collbench.run.backends import Base, Call, _wire
from collbench.run.rank.control import Control
from collbench.suite.case import Case

if TYPE_CHECKING:
    from mpi4py import MPI


# alpha / beta in bytes: about 1 us, and 5 GB/s, of Open MPI and MPICH in the memory of one machine
HALFWAY = 5e3


MOST = (1 << 31) - 1  # elements to a call, by the int that MPI 3 has for them


INSTALL = "pip install 'collbench[mpi]' brings mpi4py and an MPI"


_TYPES = {
    "int8": "INT8_T",
    "uint8": "UINT8_T",
    "int32": "INT32_T",
    "uint32": "UINT32_T",
    "int64": "INT64_T",
    "uint64": "UINT64_T",
    "float": "FLOAT",
    "double": "DOUBLE",
}


_REDUCTIONS = {
    "sum": "SUM",
    "prod": "PROD",
    "min": "MIN",
    "max": "MAX",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}


Tensor = torch.Tensor


Spec = (
    Any  # a buffer as mpi4py takes it: [array, datatype], IN_PLACE, or None where a rank has none
)


class _Sides(NamedTuple):
    """A collective's arguments on this rank: its buffers as MPI is to be told of them, and ``op``
    if it reduces."""

    case: Case
    rank: int
    send: Spec
    recv: Spec
    op: Any

    def at_root(self, spec: Spec) -> Spec:
        """What only the root passes."""
        return spec if self.rank == self.case.root else None


def _uneven(at: _Sides) -> tuple[Spec, Spec]:
    table = at.case.matrix * (1 if at.case.dtype in _TYPES else at.case.type.size)
    (send, kind), (recv, _) = at.send, at.recv
    return [send, table[at.rank].tolist(), kind], [recv, table[:, at.rank].tolist(), kind]


def _shift(at: _Sides) -> tuple[Any, ...]:
    return at.send, (at.rank + 1) % at.case.n, 0, at.recv, (at.rank - 1) % at.case.n, 0


# mpi4py's method, whose non-blocking twin is named alike (Iallreduce), and its arguments
CALLS: dict[str, tuple[str, Callable[[_Sides], tuple[Any, ...]]]] = {
    "all_reduce": ("Allreduce", lambda at: (at.send, at.recv, at.op)),
    "all_gather": ("Allgather", lambda at: (at.send, at.recv)),
    "reduce_scatter": ("Reduce_scatter_block", lambda at: (at.send, at.recv, at.op)),
    "all_to_all": ("Alltoall", lambda at: (at.send, at.recv)),
    "all_to_allv": ("Alltoallv", _uneven),
    "broadcast": ("Bcast", lambda at: (at.recv, at.case.root)),
    "reduce": ("Reduce", lambda at: (at.send, at.at_root(at.recv), at.op, at.case.root)),
    "gather": ("Gather", lambda at: (at.send, at.at_root(at.recv), at.case.root)),
    "scatter": ("Scatter", lambda at: (at.at_root(at.send), at.recv, at.case.root)),
    "sendrecv": ("Sendrecv", _shift),
    "scan": ("Scan", lambda at: (at.send, at.recv, at.op)),
    "barrier": ("Barrier", lambda at: ()),
}


class _Requests(NamedTuple):
    requests: list[MPI.Request]
    wait_all: Callable[[list[MPI.Request]], object]

    def wait(self) -> None:
        self.wait_all(self.requests)


class Mpi(Base):
    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.premultiplies = False
        self.library = "MPI"
        self._most = MOST

    def why_not(self, case: Case) -> str | None:
        if case.mode == "graph":
            return "mpi runs on CPUs and cannot be captured in a CUDA graph"
        return self._why_not_native(case) if case.algorithm == "native" else None

    def _why_not_native(self, case: Case) -> str | None:
        if case.row.reduces and case.op not in _REDUCTIONS:
            return f"MPI has no reduction {case.op}"
        if case.row.reduces and case.dtype not in _TYPES:
            return f"MPI has no datatype {case.dtype} to reduce"
        if (
            case.row.reduces
            and case.op == "sum"
            and case.type.size == 1
            and self.library.startswith("Open MPI")
        ):
            return (
                "Open MPI saturates most sums of 8-bit integers and wraps the others (its issue"
                " 8045)"
            )
        elements = max(case.counts) * (1 if case.dtype in _TYPES else case.type.size)
        if elements > self._most:
            return f"{self.library} takes at most {self._most:,} elements, as MPI did before 4.0"
        if case.in_place and case.collective == "reduce_scatter":
            return (
                "MPI's in-place reduce_scatter leaves results at the start of the buffer, not in"
                " each rank's block"
            )
        return None

    def copies_first(self, case: Case) -> bool:
        return case.algorithm == "native" and not case.in_place and case.collective == "broadcast"

    def open(self, rank: int, n: int, local_rank: int) -> None:
        mpi = _initialised()
        world = mpi.COMM_WORLD
        self.library = spoken(mpi.Get_library_version())
        at = self.control or Control(rank, n)
        place, size = at.members[rank], n * len(at.groups)
        if (world.rank, world.size) != (place, size):
            raise CannotRun(
                f"{self.library} sees rank {world.rank} of {world.size}, the launcher rank {place}"
                f" of {size}",
                "mpi needs the mpirun of the MPI that mpi4py uses; without a launcher collbench"
                " finds it",
            )
        self._mpi, self._rank, self._comm = mpi, rank, world.Split(at.number, rank)
        self._most = MOST if mpi.Get_version() < (4, 0) else MOST << 32

    def allocate(self, nbytes: int) -> Tensor:
        self._room = _wire.Room(self.device)
        return torch.empty(nbytes, dtype=torch.uint8)

    def prepare(self, case: Case, send: Tensor, recv: Tensor) -> Call:
        if case.algorithm != "native":
            return _wire.prepare(
                case, send, recv, self._rank, self._comm, self._room, self._posted, HALFWAY
            )
        name, arguments = CALLS[case.collective]
        given = arguments(self._sides(case, send, recv))
        run = partial(getattr(self._comm, name), *given)
        start = partial(getattr(self._comm, f"I{name.lower()}"), *given)
        if (
            self.copies_first(case) and self._rank == case.root
        ):  # of a broadcast only the root's input counts
            copy = partial(np.copyto, _bytes(recv), _bytes(send))
            return Call(lambda: (copy(), run()), lambda: (copy(), self._handle([start()]))[1])
        return Call(run, lambda: self._handle([start()]))

    def _handle(self, requests: list[MPI.Request]) -> _Requests:
        return _Requests(requests, self._mpi.Request.Waitall)

    def _sides(self, case: Case, send: Tensor, recv: Tensor) -> _Sides:
        """In place MPI takes one buffer; of a rooted collective only the root's is both."""
        kind = getattr(self._mpi, _TYPES.get(case.dtype, "BYTE"))
        op = getattr(self._mpi, _REDUCTIONS[case.op]) if case.row.reduces else None
        shared = (
            case.row.in_place
            if case.in_place and (not case.row.rooted or self._rank == case.root)
            else None
        )
        read = self._mpi.IN_PLACE if shared in ("same", "block of recv") else [_bytes(send), kind]
        written = self._mpi.IN_PLACE if shared == "block of send" else [_bytes(recv), kind]
        return _Sides(case, self._rank, read, written, op)

    def _posted(self, messages: _wire.Messages, comm: MPI.Comm) -> _wire.Post:
        """A step's messages as MPI's non-blocking ones."""
        recvs = [
            partial(comm.Irecv, [_bytes(tensor), self._mpi.BYTE], peer)
            for tensor, peer in messages.recvs
        ]
        sends = [
            partial(comm.Isend, [_bytes(tensor), self._mpi.BYTE], peer)
            for tensor, peer in messages.sends
        ]
        starts = (*recvs, *sends)
        return lambda: [self._handle([start() for start in starts])]

    def finish(self) -> None:
        """Nothing to wait for: calls return when they are done."""

    def close(self) -> None:
        self._comm.Free()
        atexit.register(self._mpi.Finalize)


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.view(torch.uint8).numpy()


def load() -> Any:
    """The MPI module, MPI not initialised. Raises CannotRun with the reason."""
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise CannotRun(f"MPI cannot be loaded: {first_line(e)}", INSTALL) from e
    return MPI


def _initialised() -> Any:
    """The MPI module, MPI initialised for calls by this thread. MPI ends with the process where the
    last world was left in good order; else it does not, since MPI_Finalize would wait for ranks
    that are stuck."""
    MPI = load()
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    atexit.unregister(MPI.Finalize)
    return MPI


def spoken(version: str) -> str:
    """Name and version out of what MPI_Get_library_version returns."""
    first = version.splitlines()[0].strip("\0 ")
    found = re.match(r"(.+?)(?: Version)?[\s:]+v?(\d[\w.]*)", first)
    return f"{found[1]} {found[2]}" if found else first


def create(name: str) -> Mpi:
    return Mpi()
