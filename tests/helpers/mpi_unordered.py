"""Whether collectives of MPI are right for an operation that does not commute.

Started by mpirun with cases as JSON: [["all_reduce", "1024"], ...], sizes in bytes. Rank 0 prints
for each whether all ranks had the right result. The operation puts affine maps x -> a x + b one
into the other, as pairs of numbers modulo a prime: it is associative, and its order matters.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from mpi4py import MPI

PRIME = 1_000_003


def combine(first: Any, second: Any) -> Any:
    """The map that does the second and then the first."""
    both = np.empty_like(first)
    both[:, 0] = first[:, 0] * second[:, 0] % PRIME
    both[:, 1] = (first[:, 0] * second[:, 1] + first[:, 1]) % PRIME
    return both


def draw(rank: int, count: int) -> Any:
    return np.random.default_rng(rank).integers(2, PRIME, size=(count, 2), dtype="i8")


def operate(incoming: Any, result: Any, _: Any) -> None:
    first, second = (np.frombuffer(part, "i8").reshape(-1, 2) for part in (incoming, result))
    second[:] = combine(first, second)


def main() -> None:
    world = MPI.COMM_WORLD
    pair = MPI.INT64_T.Create_contiguous(2).Commit()
    operation = MPI.Op.Create(operate, commute=False)
    right = []
    for collective, nbytes in json.loads(sys.argv[1]):
        count = int(nbytes) // 16
        sent, result = draw(world.rank, count), np.zeros((count, 2), "i8")
        expected = draw(world.size - 1, count)
        for rank in reversed(range(world.size - 1)):
            expected = combine(draw(rank, count), expected)
        if collective == "all_reduce":
            world.Allreduce([sent, count, pair], [result, count, pair], operation)
        else:
            world.Reduce([sent, count, pair], [result, count, pair], operation, 0)
        looks = collective == "all_reduce" or world.rank == 0
        is_right = bool((result == expected).all()) if looks else True
        right.append(all(world.allgather(is_right)))
    if world.rank == 0:
        print(json.dumps(right))


main()
