"""What NCCL's ranks need besides NCCL: a GPU each, or a share of one, and on demand memory that it
has registered."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collbench.core.errors import CannotRun, first_line
from collbench.machine import environment
from collbench.run.backends import each_needs_one
from collbench.run.rank import ncclog
from collbench.run.rank.control import Control

SHARING = (
    2,
    30,
)  # the first NCCL that puts several ranks on a GPU, if NCCL_MULTI_RANK_GPU_ENABLE says so


OPTIONS = ("", "ncclCommRegister (-R 1)", "symmetric windows (-R 2)")


SINCE = ("", "2.7", "2.9")  # the first torch that can


class Seat(NamedTuple):
    """A rank's GPU, and whether any rank of this world shares its own with others."""

    device: torch.device
    shared: bool


def seat(control: Control, local_rank: int, sharing: bool, backend: str) -> Seat:
    """A GPU for this rank, of those that it sees (all ranks call this together). Where a host has
    more ranks than GPUs and ``sharing`` is allowed they take turns, which NCCL must hear of before
    it is started. Raises CannotRun, on all ranks alike."""
    mine = torch.cuda.device_count() if torch.cuda.is_available() else 0
    version = nccl_version() if mine else (0, 0)
    uuid = str(torch.cuda.get_device_properties(local_rank % mine).uuid) if mine else ""
    everyone = control.collect([environment.host(), uuid, version])
    if not all(uuid for _, uuid, _ in everyone):
        raise CannotRun(
            f"backend {backend} needs an NVIDIA GPU and a CUDA build of torch",
            "--backend gloo runs on CPUs",
        )
    ranks = Counter(host for host, _, _ in everyone)
    seats = Counter(host for host, _ in {(host, uuid) for host, uuid, _ in everyone})
    crowded = {host: gpus for host, gpus in seats.items() if gpus < ranks[host]}
    for host, gpus in crowded.items():
        if not sharing:
            raise CannotRun(
                f"{each_needs_one(ranks[host], gpus)} on {host}",
                "ask for fewer with -g, or --share-gpu (on nccl)",
            )
    oldest = min(tuple(version) for _, _, version in everyone)
    if crowded and oldest < SHARING:
        raise CannotRun(
            f"NCCL {dotted(oldest)} puts one rank on a GPU; {dotted(SHARING)} and newer can"
            " share it",
            "a newer torch or nvidia-nccl wheel, or --backend gloo",
        )
    if crowded:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    return Seat(torch.device("cuda", local_rank % mine), bool(crowded))


def nccl_version() -> tuple[int, ...]:
    """Major, minor and patch of the NCCL that is loaded. torch itself knows only the one it was
    built with."""
    ask, code = ncclog.loaded("ncclGetVersion"), ctypes.c_int()
    if ask is None or ask(ctypes.byref(code)):
        return tuple(torch.cuda.nccl.version()[:3])  # type: ignore[no-untyped-call]
    return code.value // 10000, code.value // 100 % 100, code.value % 100


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


class Registered:
    """Memory from NCCL's own allocator, registered with a group's communicator: one allocation at a
    time. ``level`` is nccl-tests' -R: 1 locally, 2 as a symmetric window (which NCCL may do without
    where GPUs cannot reach each other).
    """

    def __init__(self, group: Any, control: Control, device: torch.device, level: int) -> None:
        self._nccl, self._device, self._level = group._get_backend(device), device, level
        self._control = control
        self._pool: Any = None
        dist.all_reduce(
            torch.zeros(1, device=device), group=group
        )  # it takes a communicator to register with
        self.allocate(1)  # so that what cannot work is known before any case

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Bytes for buffers (all ranks call this together); those of the last time must be out of
        use. Raises CannotRun on all ranks alike, and before any of them waits for the others in a
        registration."""
        self.release()
        pool = memory = trouble = None
        try:
            pool = torch.cuda.MemPool(self._nccl.mem_allocator)
            with torch.cuda.use_mem_pool(pool):
                memory = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        except (AttributeError, RuntimeError) as e:
            trouble = self._reason(e)
        for found in filter(None, self._control.collect(trouble)):
            raise CannotRun(*found)
        assert memory is not None
        try:
            self._nccl.register_mem_pool(pool, **{"symm": True} if self._level == 2 else {})
        except (AttributeError, TypeError, RuntimeError) as e:
            raise CannotRun(*self._reason(e)) from e
        self._pool = pool
        return memory

    def _reason(self, error: Exception) -> tuple[str, str]:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            return (
                f"no memory for registered buffers: {first_line(error)}",
                "smaller sizes, or leave -R out",
            )
        if isinstance(error, RuntimeError):
            return f"NCCL refuses {OPTIONS[self._level]}: {first_line(error)}", "leave -R out"
        missing = f"torch {torch.__version__} does not offer {OPTIONS[self._level]}"
        return missing, f"torch {SINCE[self._level]} does"

    def release(self) -> None:
        if self._pool is not None:
            torch.cuda.synchronize(self._device)
            self._nccl.deregister_mem_pool(self._pool)
            self._pool = None
