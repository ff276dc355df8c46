"""Plain memory copies by all ranks at once, aligned and rotated as collbench does; run by
executors.py.

``mpirun -n 2 python copies.py BOARD SECONDS SIZE...`` prints {size: median ns of the slowest rank}
at rank 0. Below some 64 KiB most of a time is Python's.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from collbench.machine import cpus
from collbench.run.launch.board import Board

WINDOW_NS = 200_000
clock = time.perf_counter_ns


def slowest_median(everyone: Sequence[Sequence[float]]) -> float | None:
    """The median over turns of the slowest rank, of those in which none was late (inf)."""
    slowest = np.max(everyone, axis=0)
    together = slowest[np.isfinite(slowest)]
    return float(np.median(together)) if len(together) else None


def main() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    path = Path(sys.argv[1])
    if comm.rank == 0:
        path.write_bytes(bytes(Board.size(comm.size)))
    comm.Barrier()
    board = Board.at(path, comm.size)
    found = {}
    for size in map(int, sys.argv[3:]):
        slots = max(2, min(64, -(-3 * (cpus.llc_bytes() or 32 << 20) // (2 * size))))
        pairs = [
            (np.ones(size // 4, np.float32), np.zeros(size // 4, np.float32)) for _ in range(slots)
        ]
        times, began, turn = [], time.monotonic(), 0
        enough = False
        while not enough:
            send, recv = pairs[turn % slots]
            late = board.meet(comm.rank, WINDOW_NS)
            begin = clock()
            np.copyto(recv, send)
            taken = clock() - begin
            turn += 1
            if turn > 2 * slots:
                times.append(math.inf if late else taken)
            if turn % 10 == 0 and turn > 2 * slots + 20:
                enough = comm.bcast(time.monotonic() - began > float(sys.argv[2]) or turn > 2000)
        everyone = comm.gather(times)  # as many of each, as all are told to end
        if everyone is not None and (median := slowest_median(everyone)) is not None:
            found[str(size)] = median
    if comm.rank == 0:
        print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
