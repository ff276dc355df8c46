"""How much memory a case may take, and what cache it must outgrow, with a driver and NVML that are
made up."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from collbench.machine import cpus
from collbench.run import memory, plan
from collbench.run.collectives import RUNNER
from collbench.run.jobs import Job
from collbench.run.rank.payload import T
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy

GIB = 1 << 30


class Driver:
    """libcuda with GPUs of 80 GiB and 50 MiB of L2; the UUID of number i is i in every byte."""

    def __init__(self, count: int) -> None:
        self.count = count

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:
        out._obj.value = self.count
        return 0

    def cuDeviceGet(self, out: Any, index: int) -> int:
        out._obj.value = 100 + index
        return 0

    def cuDeviceGetAttribute(self, out: Any, which: int, device: ctypes.c_int) -> int:
        assert which == 38 and device.value >= 100
        out._obj.value = 50 << 20
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, device: ctypes.c_int) -> int:
        out._obj.value = 80 * GIB
        return 0

    def cuDeviceGetUuid(self, out: Any, device: ctypes.c_int) -> int:
        out._obj[:] = [device.value - 100] * 16
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three GPUs; NVML knows of the first that 70 GiB are free, of the second 20."""
    free = {
        "GPU-00000000-0000-0000-0000-000000000000": 70,
        "GPU-01010101-0101-0101-0101-010101010101": 20,
    }
    answers = {
        "DeviceGetHandleByUUID": lambda uuid: uuid if uuid in free else None,
        "DeviceGetMemoryInfo": lambda handle: SimpleNamespace(free=free[handle] * GIB),
        "Shutdown": lambda: None,
    }
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: Driver(3))
    monkeypatch.setattr(memory.nvml, "load_nvml", lambda: None)
    monkeypatch.setattr(
        memory.nvml, "ask_nvml", lambda nvml, what, *arguments: answers[what](*arguments)
    )
    memory.list_gpus.cache_clear()
    yield
    memory.list_gpus.cache_clear()


@pytest.mark.usefixtures("driver")
def test_gpus_have_what_nvml_calls_free_and_else_most_of_their_memory() -> None:
    assert [gpu.free for gpu in memory.list_gpus()] == [70 * GIB, 20 * GIB, 72 * GIB]


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("n", "policy", "free", "sharers", "base"),
    [
        (1, Policy(), 70, 1, 3 * GIB),
        (2, Policy(), 20, 1, 3 * GIB),
        (3, Policy(), 20, 1, 3 * GIB),
        (8, Policy(), 20, 1, 3 * GIB),  # each has its own, of which this process sees three
        (8, Policy(share_gpu=True), 20, 3, 3 * GIB),
        (8, Policy(virtual=True), 70, 8, 3 * GIB // 8),
    ],
)
def test_ranks_share_the_fullest_gpu(
    n: int, policy: Policy, free: int, sharers: int, base: int
) -> None:
    backend = "symm" if policy.virtual else "nccl"
    assert memory.measure_room(backend, n, policy) == (
        "on a GPU",
        free * GIB,
        50 << 20,
        sharers,
        base,
    )


@pytest.mark.usefixtures("driver")
def test_what_does_not_fit_a_gpu_is_skipped_with_need_and_limit() -> None:
    case = Case(collective="all_reduce", backend="nccl", n=2, nbytes=16 * GIB, op="sum")
    jobs, (skip,) = plan.fit_jobs(
        [case], Policy(), lambda case: memory.measure_room(case.backend, case.n, Policy())
    )
    assert not jobs and "MiB on a GPU, 20,480 MiB are available" in skip.reason


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(("background", "more"), [("copy", 2 * GIB), ("gemm", 96 << 20)])
def test_what_computes_in_the_background_of_a_case_is_counted(background: str, more: int) -> None:
    """On a GPU, which all of it must fit, and in what --dry-run says of a rank."""
    alone = Case(collective="all_reduce", backend="nccl", n=1, nbytes=GIB, op="sum")
    beside = msgspec.structs.replace(alone, background=background)
    needed = [RUNNER.measure_memory(Job(case, 1, ""), Policy()) for case in (alone, beside)]
    assert needed[1] - needed[0] >= more
    room = memory.Room("on a GPU", 2 * GIB + (9 << 20) + more // 2, 0, 1, 0)
    assert isinstance(RUNNER.fit(alone, Policy(), room, None), Job)
    assert isinstance(RUNNER.fit(beside, Policy(), room, None), Skip)


def test_what_a_library_keeps_of_its_own_is_counted_with_each_pair_of_buffers() -> None:
    """The last result of each, and of MLX a copy of the input."""
    case = Case(collective="all_reduce", backend="mlx", n=2, nbytes=GIB, op="sum")
    one, four = (RUNNER.measure_memory(Job(case, number, ""), Policy()) for number in (1, 4))
    assert four - one >= 3 * 4 * GIB
    job = RUNNER.fit(case, Policy(), memory.Room("on this host", 17 * GIB, 64 * GIB, 1, 0), None)
    assert isinstance(job, Job) and job.rotation == 4


def test_what_sums_are_compared_with_takes_memory_by_the_rank_on_hosts() -> None:
    def measure(backend: str, n: int) -> int:
        case = Case(collective="all_reduce", backend=backend, n=n, nbytes=8, op="sum")
        return RUNNER.measure_memory(Job(case, 1, ""), Policy())

    assert measure("gloo", 1002) - measure("gloo", 2) >= 1000 * 8 * T
    assert measure("nccl", 1002) == measure("nccl", 2)


def test_a_collective_in_the_background_must_fit_too() -> None:
    alone = Case(collective="all_reduce", backend="gloo", n=2, nbytes=8, op="sum")
    beside = msgspec.structs.replace(alone, background="all_to_all:1G")
    room = memory.Room("on this host", 3 * GIB, 0, 2, 0)
    assert isinstance(RUNNER.fit(alone, Policy(), room, None), Job)
    assert isinstance(RUNNER.fit(beside, Policy(), room, None), Skip)


@pytest.mark.parametrize("kind", ["none", "sleep", "spin"])
def test_what_only_takes_time_takes_no_memory(kind: str) -> None:
    assert memory.count_computing_bytes(kind, on_gpu=True) == 0


def test_what_is_copied_on_a_gpu_is_larger_than_its_caches() -> None:
    """An Infinity Cache of AMD's has 256 MiB."""
    sizes = memory.GPU_COMPUTING
    assert sizes.store >= 4 * 256 << 20 and sizes.store % sizes.chunk == 0


def test_a_job_is_skipped_only_beyond_the_room_and_a_hint_says_what_takes_less() -> None:
    case = Case(collective="all_reduce", backend="gloo", n=2, nbytes=8, op="sum")
    job, room = Job(case, 1, "hot"), memory.Room("on this host", 3 << 20, 0, 2, 0)
    assert memory.fit_job(job, "it", 3 << 20, room) is job
    skip = memory.fit_job(job, "it", 5000 << 20, room)
    assert isinstance(skip, Skip)
    assert skip.reason == "it needs 5,000 MiB on this host, 3 MiB are available"
    assert "smaller sizes" in plan.nothing_runs([skip.reason]).hint


@pytest.mark.usefixtures("driver")
def test_cpu_backends_stay_on_the_host() -> None:
    found = memory.measure_room("gloo", 4, Policy())
    assert found.where == "on this host" and found.sharers == 4
    assert found.cache == (cpus.llc_bytes() or 32 << 20)


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(memory.ctypes, "CDLL", missing)
    memory.list_gpus.cache_clear()
    assert (
        memory.list_gpus() == ()
        and memory.measure_room("nccl", 2, Policy()).where == "on this host"
    )
    memory.list_gpus.cache_clear()
