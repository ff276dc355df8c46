"""A program for mpirun: the messages that collectives send, as Open MPI counts them.

Its argument is a list of collectives and sizes in bytes; it prints one list as JSON: for each, by
rank, how many messages and how many bytes went to each rank. Run with
OMPI_MCA_pml_monitoring_enable=1. Blocks are of bytes, reduced by MAX, so that any size that n
divides can be had, and of undivided collectives any size at all.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import mpi4py
import numpy as np

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False
from mpi4py import MPI  # noqa: E402

LIBRARY = ctypes.CDLL(MPI.__file__)


def open_counter(name: str) -> Callable[[], Any]:
    """A function that reads one of the library's counters of the world, by peers."""
    index, session, handle = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    length, comm = ctypes.c_int(), ctypes.c_void_p(MPI._handleof(MPI.COMM_WORLD))
    kinds = range(10)
    get = LIBRARY.MPI_T_pvar_get_index
    assert any(get(name.encode(), kind, ctypes.byref(index)) == 0 for kind in kinds), name
    assert LIBRARY.MPI_T_pvar_session_create(ctypes.byref(session)) == 0
    references = [ctypes.byref(each) for each in (comm, handle, length)]
    assert LIBRARY.MPI_T_pvar_handle_alloc(session, index, *references) == 0
    LIBRARY.MPI_T_pvar_start(session, handle)
    values = (ctypes.c_size_t * length.value)()

    def read() -> Any:
        assert LIBRARY.MPI_T_pvar_read(session, handle, values) == 0
        return np.array(values[:])

    return read


def make_calls(nbytes: int) -> dict[str, Callable[[], Any]]:
    comm, kind = MPI.COMM_WORLD, MPI.UINT8_T
    send, recv = (np.zeros(max(nbytes, 1), np.uint8) for _ in range(2))
    whole, block = nbytes, nbytes // comm.size
    both = [send, whole, kind], [recv, whole, kind]
    blocks = [send, block, kind], [recv, block, kind]
    return {
        "all_reduce": lambda: comm.Allreduce(*both, MPI.MAX),
        "all_gather": lambda: comm.Allgather(*blocks),
        "all_to_all": lambda: comm.Alltoall(*blocks),
        "reduce_scatter": lambda: comm.Reduce_scatter_block(*blocks, MPI.MAX),
        "broadcast": lambda: comm.Bcast([recv, whole, kind], 0),
        "reduce": lambda: comm.Reduce(*both, MPI.MAX, 0),
        "barrier": comm.Barrier,
    }


def main() -> None:
    LIBRARY.MPI_T_init_thread(0, ctypes.byref(ctypes.c_int()))
    MPI.Init()
    comm = MPI.COMM_WORLD
    names = ("pml_monitoring_messages_count", "pml_monitoring_messages_size")
    counters = [open_counter(name) for name in names]
    lines = []
    for collective, nbytes in json.loads(sys.argv[1]):
        call = make_calls(nbytes)[collective]
        comm.Barrier()
        before = [read() for read in counters]
        call()
        sent = [(read() - old).tolist() for read, old in zip(counters, before, strict=True)]
        lines.append(comm.gather(sent))
    if comm.rank == 0:
        print(json.dumps(lines), flush=True)
    MPI.Finalize()


if __name__ == "__main__":
    main()
