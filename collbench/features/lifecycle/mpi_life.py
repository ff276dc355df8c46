"""MPI by mpi4py: its life on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from collbench.features.lifecycle.instructions import Instructions
from collbench.features.lifecycle.libraries import CheckedCall, Variant
from collbench.run.mpi_library import initialise_mpi, load_mpi


class Mpi:
    """MPI by mpi4py. MPI_Init finds the others itself, and communicators of all ranks are split
    off."""

    meets = False

    def __init__(self, given: Instructions) -> None:
        self._mpi = load_mpi()
        self.rank = given.rank

    def make(self) -> None:
        """MPI_Init, in which the communicator of all ranks is made."""
        initialise_mpi()
        self._world = self._mpi.COMM_WORLD
        self.rank, self.world = self._world.Get_rank(), self._world.Get_size()

    def align(self, name: str, one_clock: bool) -> None:
        """Let all ranks go on at about one moment, by a barrier of MPI's."""
        self._world.Barrier()

    def make_call(self, collective: str, variants: Sequence[Variant]) -> CheckedCall:
        """A collective on the communicator of all ranks."""
        given, expected = variants[0][0].copy(), variants[0][1]
        in_place = collective == "broadcast"
        recv = given.copy() if in_place else np.zeros_like(expected)
        issue = {
            "all_reduce": partial(self._world.Allreduce, given, recv),
            "all_gather": partial(self._world.Allgather, given, recv),
            "reduce_scatter": partial(self._world.Reduce_scatter_block, given, recv),
            "broadcast": partial(self._world.Bcast, recv, 0),
            "all_to_all": partial(self._world.Alltoall, given, recv),
        }[collective]

        def reset(variant: int) -> None:
            nonlocal expected
            given[:], expected = variants[variant]
            recv[:] = given if in_place else 0

        def count_wrong() -> int:
            return int((recv != expected).sum())

        return CheckedCall(reset, issue, count_wrong, len(expected))

    def add_group(self, number: int) -> Any:
        """A further communicator of all ranks."""
        return self._world.Split(0, self.rank)

    def drop_group(self, group: Any) -> None:
        """Done with a further communicator."""
        group.Free()

    def leave(self) -> None:
        """MPI_Finalize."""
        self._mpi.Finalize()

    def measure_device(self) -> int:
        """0: MPI is measured on CPUs."""
        return 0

    def join(self) -> None:
        """Nothing: MPI_Init does it."""
