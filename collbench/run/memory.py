"""Room for a case's buffers, and the cache that they must outgrow: this host's, or that of its
GPUs.

GPUs are asked through the driver's library and NVML, since whoever plans a run loads no torch.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from collbench.core.backend_info import backend_info
from collbench.core.errors import CannotRun
from collbench.machine import amd, cpus, memory, sysfs
from collbench.machine import gpu as nvml
from collbench.run.jobs import Job
from collbench.suite.case import Skip
from collbench.suite.policy import Policy

RANK_BYTES = (
    256 << 20
)  # a forked rank's own pages beyond its buffers: 70 MiB idle, up to 220 MiB seen at 1 GiB

GPU_RANK_BYTES = (
    3 << 30
)  # a CUDA context and NCCL's own buffers, with all-to-all connections; a guess on the safe side

PAGE = 4096

L2_BYTES = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE


class Computing(NamedTuple):
    """What computation on a rank works on: square matrices of ``side`` rows of numbers of
    ``itemsize`` bytes, and copies of ``chunk`` bytes at a time that go through two stores."""

    side: int
    itemsize: int
    chunk: int
    store: int  # bytes of each


HOST_COMPUTING = Computing(256, 4, 4 << 20, 64 << 20)

# copies are to take much longer than their launch, and to outgrow caches of 256 MiB
GPU_COMPUTING = Computing(4096, 2, 64 << 20, 1 << 30)

WORKSPACE = 32 << 20  # of a library that multiplies matrices: cuBLAS's for a stream


def count_computing_bytes(kind: str, on_gpu: bool) -> int:
    """Bytes of a rank for computation of this kind, on its GPU or on its host."""
    sizes = GPU_COMPUTING if on_gpu else HOST_COMPUTING
    multiplied = 3 * sizes.side**2 * sizes.itemsize + (WORKSPACE if on_gpu else 0)
    copied = 2 * sizes.store
    return multiplied * (kind in ("auto", "gemm")) + copied * (kind in ("auto", "copy"))


class Room(NamedTuple):
    """``available`` bytes for ``sharers`` ranks, each taking ``base`` beyond buffers; ``where``
    completes "needs …"."""

    where: str
    available: int
    cache: int
    sharers: int
    base: int


AVAILABLE = "MiB are available"  # ends what is said of a case that does not fit


def explain_no_room(what: str, needed: int, room: Room) -> str:
    """Why what needs so many bytes is skipped."""
    return f"{what} needs {needed >> 20:,} MiB {room.where}, {room.available >> 20:,} {AVAILABLE}"


def fit_job(job: Job, what: str, needed: int, room: Room) -> Job | Skip:
    """The job, or that what it needs, with all ranks that share the room, is not there."""
    if needed <= room.available:
        return job
    return Skip(job.case, explain_no_room(what, needed, room))


Rooms = Callable[[str, int, Policy], Room]


class Gpu(NamedTuple):
    """Bytes of memory that are free, and of L2 cache."""

    free: int
    l2: int


def measure_room(backend: str, n: int, policy: Policy) -> Room:
    """The memory and cache that n ranks share: of the GPUs they use, or of this host."""
    info = backend_info(backend)
    gpus = list_gpus() if info.gpu else ()
    if not gpus:
        available, _ = memory.memory_limit()
        return Room("on this host", available, cpus.llc_bytes() or 32 << 20, n, info.rank_bytes)
    used = gpus[: 1 if policy.virtual else n]
    # a launcher may show each rank its own GPU only, of which the others are no sharers
    alone = info.gpu == "each" and not (policy.virtual or policy.share_gpu)
    sharers = 1 if alone else math.ceil(n / len(used))
    free, l2 = min(gpu.free for gpu in used), max(gpu.l2 for gpu in used)
    return Room("on a GPU", free, l2, sharers, GPU_RANK_BYTES // (sharers if policy.virtual else 1))


@functools.cache
def list_gpus() -> Sequence[Gpu]:
    """The GPUs that CUDA shows this process, else AMD's; empty without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return _list_amd_gpus(sysfs.ROOT)
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_describe_gpu(cuda, index) for index in range(count.value))


def _describe_gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, l2, total, uuid = (
        ctypes.c_int(),
        ctypes.c_int(),
        ctypes.c_size_t(),
        (ctypes.c_ubyte * 16)(),
    )
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetAttribute(ctypes.byref(l2), L2_BYTES, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    cuda.cuDeviceGetUuid(ctypes.byref(uuid), device)
    return Gpu(_free_bytes(bytes(uuid).hex(), total.value), l2.value)


def _list_amd_gpus(root: Path) -> Sequence[Gpu]:
    """AMD's GPUs by the kernel's files, those that the environment leaves."""
    nodes = amd.select_visible(amd.list_gpu_nodes(root), os.environ)
    sizes = [
        [
            sysfs.read_integer(root / "sys/bus/pci/devices" / node.pci / f"mem_info_vram_{what}")
            or 0
            for what in ("total", "used")
        ]
        for node in nodes
    ]
    return tuple(
        Gpu(total - used, node.cache) for node, (total, used) in zip(nodes, sizes, strict=False)
    )


def _free_bytes(uuid: str, total: int) -> int:
    """Bytes that NVML says are free on a GPU; where it does not say, nine tenths of the memory."""
    uuid_text = f"GPU-{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}"
    try:
        library = nvml.load_nvml()
    except CannotRun:
        return total * 9 // 10
    handle = nvml.ask_nvml(library, "DeviceGetHandleByUUID", uuid_text)
    info = handle and nvml.ask_nvml(library, "DeviceGetMemoryInfo", handle)
    nvml.ask_nvml(library, "Shutdown")
    return min(int(info.free), total) if info else total * 9 // 10
