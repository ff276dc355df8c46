"""A backend of torch.distributed, as a program uses it: its life on one rank."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from collbench.features.lifecycle.instructions import Instructions
from collbench.features.lifecycle.libraries import CheckedCall, Variant
from collbench.run.rank.tensor_collectives import all_gather, reduce_scatter

AHEAD_NS = 3_000_000  # from the last rank's coming to the common start
LOADED = "loaded"  # in the store, once each rank has loaded its library, or ended
LOOK = 1.0  # seconds between looks whether that is there
make_store: Any = dist.TCPStore  # type: ignore[attr-defined]
prefix_store: Any = dist.PrefixStore  # type: ignore[attr-defined]


class Torch:
    """A libraries.Library, and what a loss needs besides. The default process group is of the
    backend, as init_process_group makes it."""

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
        """Connect to the store, and wait until all ranks have; the library's patience begins once
        all have loaded it."""
        self._store, until = self._connect(), math.inf
        self._come_to("joined", self.world)
        patience = self._given.patience
        while True:
            try:
                self._store.wait(["joined go"], timedelta(seconds=min(LOOK, patience)))
                return
            except RuntimeError as e:
                now = time.monotonic()
                if now > until:
                    missing = f"a rank has not come within {patience:g} s"
                    raise RuntimeError(missing) from e
                if self._store.check([LOADED]):
                    until = min(until, now + patience)

    def _come_to(self, name: str, world: int) -> None:
        """Say that this rank has come; the last one says when all go on."""
        if self._store.add(f"{name} came", 1) == world:
            self._store.set(f"{name} go", str(time.monotonic_ns() + AHEAD_NS))

    def _wait_for_all(self, name: str, world: int) -> bytes:
        """Wait in the store until all ranks have come; what the last one has left."""
        self._come_to(name, world)
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

    def make_call(self, collective: str, variants: Sequence[Variant]) -> CheckedCall:
        """A collective on the default group."""
        tensors = [(torch.from_numpy(send), torch.from_numpy(recv)) for send, recv in variants]
        given, expected = tensors[0][0].to(self._device, copy=True), tensors[0][1]
        in_place = collective in ("all_reduce", "broadcast")
        recv = given.clone() if in_place else torch.zeros_like(expected, device=self._device)
        issue = {
            "all_reduce": partial(dist.all_reduce, recv),
            "all_gather": partial(all_gather, recv, given),
            "reduce_scatter": partial(reduce_scatter, recv, given),
            "broadcast": partial(dist.broadcast, recv, 0),
            "all_to_all": partial(dist.all_to_all_single, recv, given),
        }[collective]

        needs_wait = self._device.type == "cuda" and bool(self._given.way)

        def reset(variant: int) -> None:  # sums of sums would outgrow what is exact
            nonlocal expected
            sent, expected = tensors[variant]
            given.copy_(sent)
            recv.copy_(given if in_place else torch.zeros_like(recv))

        def run() -> None:
            if needs_wait:  # torch 2.8 on reports errors only from wait()
                issue(async_op=True).wait()
            else:
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
