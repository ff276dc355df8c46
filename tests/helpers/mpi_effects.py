"""A program for the mpirun of any MPI: what collectives do, so far as it can be seen from outside.

Its argument is a list of collectives and sizes in bytes; it prints one list as JSON. Of those that
reduce it has, by rank, how long the operands were of which the library asked an operation of its
user's; of the others the bytes that crossed the loopback interface, over the size, at least over
some calls, since others' traffic only adds to them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "funneled"  # as collbench has it: MPICH shares memory without threads only
from mpi4py import MPI  # noqa: E402

COMM, KIND = MPI.COMM_WORLD, MPI.BYTE
TRIES, CALLS = 4, 10
LENGTHS: list[int] = []


def add(operand: Any, result: Any, kind: Any) -> None:
    LENGTHS.append(len(operand))
    into = np.frombuffer(result, np.uint8)
    np.maximum(into, np.frombuffer(operand, np.uint8), out=into)


def count_loopback() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()
    line = next(each for each in lines if each.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def measure_traffic(call: Callable[[], Any]) -> int:
    call()
    sent = []
    for _ in range(TRIES):
        COMM.Barrier()
        before = count_loopback()
        COMM.Barrier()
        for _ in range(CALLS):
            call()
        COMM.Barrier()
        sent.append(count_loopback() - before)
        COMM.Barrier()
    return min(sent) // CALLS


def main() -> None:
    op = MPI.Op.Create(add, commute=True)
    results: list[Any] = []
    for collective, nbytes in json.loads(sys.argv[1]):
        block = nbytes // COMM.size
        send, recv = (np.zeros(nbytes, np.uint8) for _ in range(2))
        both = [send, nbytes, KIND], [recv, nbytes, KIND]
        blocks = [send, block, KIND], [recv, block, KIND]
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda b=both: COMM.Allreduce(*b, op),
            "reduce": lambda b=both: COMM.Reduce(*b, op, 0),
            "reduce_scatter": lambda b=blocks: COMM.Reduce_scatter_block(*b, op),
            "broadcast": lambda b=both: COMM.Bcast(b[1], 0),
            "all_gather": lambda b=blocks: COMM.Allgather(*b),
            "all_to_all": lambda b=blocks: COMM.Alltoall(*b),
        }
        if "reduce" in collective:
            for _ in range(8):  # MPICH begins to share memory after some calls
                LENGTHS.clear()
                calls[collective]()
            results.append(COMM.gather(list(LENGTHS)))
        else:
            results.append(measure_traffic(calls[collective]) / nbytes)
    if COMM.rank == 0:
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
