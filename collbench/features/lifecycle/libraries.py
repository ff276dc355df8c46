"""The libraries whose communicators live: torch.distributed's, and MPI."""

from __future__ import annotations

import importlib
import operator
import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist

from collbench.core.collectives import find_collective
from collbench.features.lifecycle.instructions import Instructions
from collbench.run.mpi_library import initialise_mpi, load_mpi

AHEAD_NS = 3_000_000  # from the last rank's coming to the common start
make_store: Any = dist.TCPStore  # type: ignore[attr-defined]
prefix_store: Any = dist.PrefixStore  # type: ignore[attr-defined]
PERIOD = 251  # of the data; its sums over 2**13 ranks are exact in float32


class CheckedCall(NamedTuple):
    """A collective that is ready to be called, after a ``reset`` of its buffers each time. ``run``
    returns when this rank is done; ``count_wrong`` is of the last result."""

    reset: Callable[[], object]
    run: Callable[[], object]
    count_wrong: Callable[[], int]
    elements: int


class Library(Protocol):
    """What a process of a life does with its library. ``meets``: ranks find each other in a store
    before the library makes anything."""

    meets: bool

    def join(self) -> None: ...
    def make(self) -> None: ...
    def align(self, name: str, one_clock: bool) -> None: ...
    def make_call(self, collective: str, nbytes: int) -> CheckedCall: ...
    def add_group(self, number: int) -> Any: ...
    def drop_group(self, group: Any) -> None: ...
    def leave(self) -> None: ...
    def measure_device(self) -> int: ...


def load_library(given: Instructions) -> Library:
    """The library of a backend, loaded, and nothing made yet."""
    for module in given.imports:
        importlib.import_module(module)
    return Mpi(given) if given.backend == "mpi" else Torch(given)


def make_inputs(collective: str, nbytes: int, world: int) -> list[np.ndarray]:
    """What every rank sends: small whole numbers as float32, whose sums are exact."""
    row = find_collective(collective)
    count = max(1, nbytes // 4 // (world if row.total else 1))
    length = row.counts(world, count)[0]
    pattern = (np.arange(length) % PERIOD).astype(np.float32)
    return [pattern + np.float32(rank) for rank in range(world)]


def make_expected(collective: str, inputs: list[np.ndarray], rank: int) -> np.ndarray:
    """What this rank must receive, by the one definition of the collective."""
    results = find_collective(collective).result(inputs, operator.add, 0)
    return np.asarray(results[rank])


class Torch:
    """A backend of torch.distributed, as a program uses it: init_process_group of this backend."""

    meets = True

    def __init__(self, given: Instructions) -> None:
        self._given, self._generation = given, 0
        self.rank, self.world = given.rank, given.world
        self._device = torch.device("cpu")
        if given.backend == "nccl":
            torch.cuda.set_device(given.local_rank % max(1, torch.cuda.device_count()))
            self._device = torch.device("cuda", torch.cuda.current_device())
            if given.way:  # errors are to be raised here, and no watchdog is to end the process
                os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
                os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        torch.set_num_threads(1)

    def _connect(self) -> Any:
        host, port = self._given.address
        limit = timedelta(seconds=self._given.patience)
        return make_store(host, port, is_master=False, timeout=limit, wait_for_workers=False)

    def join(self) -> None:
        """Connect to the store, and wait until all ranks have."""
        self._store = self._connect()
        self._wait_for_all("joined", self.world)

    def _wait_for_all(self, name: str, world: int) -> bytes:
        """Wait in the store until all ranks have come; what the last one has left."""
        if self._store.add(f"{name} came", 1) == world:
            self._store.set(f"{name} go", str(time.monotonic_ns() + AHEAD_NS))
        text: bytes = self._store.get(f"{name} go")
        return text

    def align(self, name: str, one_clock: bool) -> None:
        """Let all ranks go on at one moment; where they read no common clock, as the store tells
        them. Nothing of the library is called."""
        start = int(self._wait_for_all(f"align {name}", self.world))
        while one_clock and time.monotonic_ns() < start:
            pass

    def make(self) -> None:
        """The default process group, with its communicator where the library makes it at once."""
        given = self._given
        # ranks come to know of a loss at times apart by as much as a library waits
        patience = given.limit if self._generation else given.patience
        bound: dict[str, Any] = {"device_id": self._device} if self._device.type == "cuda" else {}
        dist.init_process_group(
            given.backend,
            store=prefix_store(f"generation {self._generation}", self._store),
            rank=self.rank,
            world_size=self.world,
            timeout=timedelta(seconds=patience),
            **bound,
        )

    def make_call(self, collective: str, nbytes: int) -> CheckedCall:
        """A collective on the default group."""
        inputs = make_inputs(collective, nbytes, self.world)
        expected = torch.from_numpy(make_expected(collective, inputs, self.rank))
        given = torch.from_numpy(inputs[self.rank]).to(self._device)
        in_place = collective in ("all_reduce", "broadcast")
        recv = given.clone() if in_place else torch.zeros_like(expected, device=self._device)
        issue = {
            "all_reduce": partial(dist.all_reduce, recv),
            "all_gather": partial(dist.all_gather_into_tensor, recv, given),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, recv, given),
            "broadcast": partial(dist.broadcast, recv, 0),
            "all_to_all": partial(dist.all_to_all_single, recv, given),
        }[collective]

        def reset() -> None:  # sums of sums would outgrow what is exact
            recv.copy_(given if in_place else torch.zeros_like(recv))

        def run() -> None:
            issue()
            if self._device.type == "cuda":
                torch.cuda.synchronize()

        def count_wrong() -> int:
            return int((recv.cpu() != expected).sum())

        return CheckedCall(reset, run, count_wrong, len(expected))

    def add_group(self, number: int) -> Any:
        """A further group of all ranks."""
        return dist.new_group(
            list(range(self.world)), timeout=timedelta(seconds=self._given.patience)
        )

    def drop_group(self, group: Any) -> None:
        """Done with a further group."""
        dist.destroy_process_group(group)

    def leave(self) -> None:
        """Destroy all groups."""
        dist.destroy_process_group()

    def leave_broken(self) -> None:
        """Destroy what there is of groups; it need not be whole."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def measure_device(self) -> int:
        """Bytes that are taken of the GPU; 0 without one."""
        if self._device.type != "cuda":
            return 0
        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    def open_news(self) -> Callable[[], bool]:
        """A function that says whether a rank was reported lost, on a connection of its own."""
        store = self._connect()
        return lambda: bool(store.check(["lost"]))

    def wait_for_lost(self) -> int:
        """The rank that whoever watches has reported lost."""
        if not hasattr(self, "_store"):
            self._store = self._connect()
        self._store.set_timeout(timedelta(seconds=self._given.limit))
        return int(self._store.get("lost"))

    def remake(self, lost: int, shrink: bool) -> None:
        """The group of those that are left."""
        if shrink:
            dist.shrink_group([lost], shrink_flags=1)
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
            return
        self.rank, self.world = self.rank - (self.rank > lost), self.world - 1
        self._generation += 1
        self.make()

    def abort(self) -> None:
        """Have calls of other threads give up, where the backend can."""
        if dist.is_initialized():
            dist.distributed_c10d._abort_process_group()


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

    def make_call(self, collective: str, nbytes: int) -> CheckedCall:
        """A collective on the communicator of all ranks."""
        inputs = make_inputs(collective, nbytes, self.world)
        expected = make_expected(collective, inputs, self.rank)
        given = inputs[self.rank]
        in_place = collective == "broadcast"
        recv = given.copy() if in_place else np.zeros_like(expected)
        issue = {
            "all_reduce": partial(self._world.Allreduce, given, recv),
            "all_gather": partial(self._world.Allgather, given, recv),
            "reduce_scatter": partial(self._world.Reduce_scatter_block, given, recv),
            "broadcast": partial(self._world.Bcast, recv, 0),
            "all_to_all": partial(self._world.Alltoall, given, recv),
        }[collective]

        def reset() -> None:
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
