"""Which GPU an NCCL rank gets, when ranks share one, and memory that NCCL registers: a CUDA that
only takes notes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from collbench.core.errors import CannotRun
from collbench.machine import environment
from collbench.machine import gpu as nvml
from collbench.run.backends import _cuda, _torch_refusal, _torchdist
from collbench.run.rank.control import Control
from collbench.suite.policy import Policy

ALONE = Control(0, 1)
ENABLE = "NCCL_MULTI_RANK_GPU_ENABLE"


class Told(Control):
    """A control group whose other ranks say what a test has them say."""

    def __init__(self, others: list[list[Any]]) -> None:
        super().__init__(0, 1)
        self._others = others

    def collect(self, value: Any) -> list[Any]:
        return [*super().collect(value), *self._others]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``gpus(count, version)``: so many here, with that NCCL."""

    def there_are(count: int, version: tuple[int, ...] = (2, 30, 4)) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda: version)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"gpu {index}")
        )

    monkeypatch.setenv(ENABLE, "0")
    monkeypatch.delenv("NCCL_MAX_CTAS", raising=False)
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    monkeypatch.setattr(_cuda, "MPS", "/nowhere")
    return there_are


def beside(
    count: int, gpus: int, version: tuple[int, ...] = (2, 30, 4), host: str = "", mine: int = 0
) -> Told:
    """So many other ranks, on another host or with those local ranks of this one that are not
    ``mine``."""
    others = range(count) if host else [rank for rank in range(count + 1) if rank != mine]
    where, machine = host or environment.host_name(), host or environment.boot_id()
    missing = ["", ""] if gpus else ["there is no GPU here", "buy one"]
    names = [f"{machine} gpu {rank % gpus}" if gpus else "" for rank in others]
    return Told([[where, name, list(version), *missing] for name in names])


def test_containers_of_one_machine_share_a_gpu_that_both_take(gpus: Any) -> None:
    """By whatever names they call themselves."""
    gpus(2)
    other = ["container", f"{environment.boot_id()} gpu 1", [2, 30, 4], "", ""]
    assert _cuda.choose_seat(Told([other]), 1, False, "nccl").sharers == 2
    assert _cuda.choose_seat(Told([other]), 0, False, "nccl").sharers == 1


def test_to_nccl_instances_of_one_gpu_are_one_gpu(
    gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes by PCI addresses, which instances share; symm is told them apart."""
    gpus(1)
    of_rank = SimpleNamespace(uuid="MIG-0", pci_domain_id=0, pci_bus_id=15, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: of_rank)
    where, machine = environment.host_name(), environment.boot_id()
    of_nccl = Told([[where, f"{machine} 0000:0f:00.0", [2, 30, 4], "", ""]])
    with pytest.raises(CannotRun, match="2 ranks need a GPU each, and there is 1"):
        _cuda.choose_seat(of_nccl, 0, False, "nccl")
    of_symm = Told([[where, f"{machine} MIG-1", [2, 30, 4], "", ""]])
    assert _cuda.choose_seat(of_symm, 0, False, "symm", of_nccl=False).sharers == 1


def test_every_rank_has_a_gpu_where_there_are_enough(gpus: Any) -> None:
    gpus(4)
    assert _cuda.choose_seat(beside(3, 4, mine=2), 2, False, "nccl") == (
        torch.device("cuda", 2),
        1,
        "",
    )
    crowded = _cuda.choose_seat(beside(7, 4, host="elsewhere"), 3, True, "nccl")
    assert crowded.sharers == 2  # there are 7 ranks on 4 elsewhere
    assert _cuda.choose_seat(beside(4, 4, host="elsewhere"), 3, True, "nccl").sharers == 1


def test_ranks_that_see_only_their_own_gpu_do_not_share_it(gpus: Any) -> None:
    gpus(1)
    neighbours = Told(
        [[environment.host_name(), f"gpu of rank {rank}", [2, 28, 9], "", ""] for rank in (1, 2)]
    )
    assert _cuda.choose_seat(neighbours, 2, False, "nccl") == (torch.device("cuda", 0), 1, "")


def test_nobody_shares_a_gpu_unasked(gpus: Any) -> None:
    gpus(1)
    with pytest.raises(CannotRun, match="8 ranks need a GPU each, and there is 1 on ") as caught:
        _cuda.choose_seat(beside(7, 1), 0, False, "nccl")
    assert "--share-gpu" in caught.value.hint and os.environ[ENABLE] == "0"


@pytest.mark.parametrize(
    ("version", "backend", "of_nccl", "hint"),
    [
        ((2, 30, 4), "nccl", True, "ask for fewer with -g, or add --share-gpu"),
        ((2, 30, 4), "torch_one_shot", True, "ask for fewer with -g, or add --share-gpu"),
        ((2, 28, 9), "symm", False, "ask for fewer with -g, or add --share-gpu"),
        (
            (2, 28, 9),
            "torch_one_shot",
            True,
            "ask for fewer with -g, or add --share-gpu with NCCL 2.30 or newer",
        ),
    ],
)
def test_every_backend_that_can_share_is_told_how(
    gpus: Any, version: tuple[int, ...], backend: str, of_nccl: bool, hint: str
) -> None:
    gpus(1, version)
    with pytest.raises(CannotRun) as caught:
        _cuda.choose_seat(beside(1, 1, version), 0, False, backend, of_nccl)
    assert caught.value.hint == hint


def test_ranks_take_turns_on_gpus_if_allowed_and_nccl_is_told_before_it_starts(gpus: Any) -> None:
    gpus(2)
    seats = [
        _cuda.choose_seat(beside(4, 2, mine=local_rank), local_rank, True, "nccl")
        for local_rank in range(5)
    ]
    assert [seat.device.index for seat in seats] == [0, 1, 0, 1, 0]
    assert {seat.sharers for seat in seats} == {3}
    assert os.environ[ENABLE] == "1"
    assert os.environ["NCCL_NVLS_ENABLE"] == "0"
    assert os.environ["NCCL_MAX_CTAS"] == "5"  # of 16 for the three ranks of a GPU
    assert {seat.how for seat in seats} == {
        ", up to 3 ranks a GPU by turns, NCCL_MAX_CTAS=5, NCCL_NVLS_ENABLE=0"
    }


def test_what_the_user_says_of_shared_gpus_is_kept_and_told(
    gpus: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus(1)
    monkeypatch.setenv("NCCL_MAX_CTAS", "2")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    (tmp_path / "control").touch()
    seat = _cuda.choose_seat(beside(1, 1), 0, True, "nccl")
    assert seat.how == ", up to 2 ranks a GPU, NCCL_MAX_CTAS=2, NCCL_NVLS_ENABLE=0"


def test_symm_shares_a_gpu_whatever_nccl_there_is(gpus: Any) -> None:
    gpus(1, (2, 28, 9))
    assert _cuda.choose_seat(beside(1, 1), 0, True, "symm", of_nccl=False).sharers == 2
    assert os.environ[ENABLE] == "0" and "NCCL_MAX_CTAS" not in os.environ
    with pytest.raises(CannotRun, match="2 ranks need a GPU each"):
        _cuda.choose_seat(beside(1, 1), 0, False, "symm", of_nccl=False)


def test_torch_gives_back_what_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_SYMMMEM_IMPLICIT_POOL", raising=False)
    monkeypatch.setattr(_cuda, "require_nvml", lambda: None)
    assert hasattr(_cuda.symmetric_memory(), "rendezvous")
    assert os.environ["TORCH_SYMMMEM_IMPLICIT_POOL"] == "0"


def test_symmetric_memory_needs_nvml_on_nvidias_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(_cuda, "ctypes", SimpleNamespace(CDLL=absent))
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(CannotRun, match=r"needs NVML, and libnvidia-ml\.so\.1") as caught:
        _cuda.symmetric_memory()
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in caught.value.hint
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert hasattr(_cuda.symmetric_memory(), "rendezvous")


NAMES = tuple(_cuda.WITHOUT_MULTICAST)


class Mapped:
    """torch's symmetric memory, which keeps its two settings as they are at each rendezvous."""

    def __init__(self, trouble: str = "") -> None:
        self._trouble = trouble
        self.settings: list[tuple[str | None, ...]] = []

    def empty(self, nbytes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(nbytes, dtype=dtype)

    def rendezvous(self, memory: torch.Tensor, group: str) -> str:
        self.settings.append(tuple(map(os.environ.get, NAMES)))
        if self._trouble:
            raise RuntimeError(self._trouble)
        return "a handle"


def mapped(memory: Mapped, monkeypatch: pytest.MonkeyPatch, multicast: bool) -> None:
    monkeypatch.setattr(_cuda, "symmetric_memory", lambda: memory)
    found, handle = _cuda.map_symmetric(ALONE, 64, CPU, "7", multicast)
    assert (found.nbytes, handle) == (64, "a handle")


def test_only_what_needs_multicast_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order worlds of one process come. torch sets none up where GPUs' numbers may be
    alike, so that is not said either then."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    memory = Mapped()
    for multicast in (False, True, False):
        mapped(memory, monkeypatch, multicast)
        assert not set(NAMES) & set(os.environ)
    assert memory.settings == [("1", "1"), (None, None), ("1", "1")]


@pytest.mark.parametrize("multicast", [True, False])
def test_what_the_user_has_set_holds(multicast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "0")
    memory = Mapped()
    mapped(memory, monkeypatch, multicast)
    assert memory.settings == [("0", "0")]
    assert [os.environ[name] for name in NAMES] == ["0", "0"]


def test_a_fabric_that_is_not_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Mapped("CUDA driver error: system not yet initialized\nwith a trace")
    with pytest.raises(CannotRun, match="the NVSwitch fabric is not up") as caught:
        mapped(memory, monkeypatch, True)
    assert caught.value.hint == "systemctl status nvidia-fabricmanager says why"


def test_memory_that_another_rank_cannot_map_is_refused_on_this_one_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_cuda, "symmetric_memory", Mapped)
    with pytest.raises(CannotRun, match="planted"):
        _cuda.map_symmetric(Told([["planted", "a hint"]]), 64, CPU, "7", False)


def test_an_nccl_that_cannot_share_says_so_on_every_rank(gpus: Any) -> None:
    gpus(1, (2, 29, 7))
    with pytest.raises(CannotRun, match=r"NCCL 2\.29\.7 .* 2\.30 and newer"):
        _cuda.choose_seat(beside(1, 1), 0, True, "nccl")
    gpus(1)
    with pytest.raises(CannotRun, match=r"NCCL 2\.27\.5 "):
        _cuda.choose_seat(beside(1, 1, (2, 27, 5)), 0, True, "nccl")  # the other rank's


def test_rocms_library_has_its_own_name(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    gpus(1, (2, 26, 6))
    with pytest.raises(CannotRun, match=r"RCCL 2\.26\.6 puts one rank on a GPU"):
        _cuda.choose_seat(beside(1, 1, (2, 26, 6)), 0, True, "nccl")


@pytest.mark.parametrize(
    ("hip", "missing", "library"),
    [
        (None, "", "NCCL 2.30.4 (torch {}, built with 2.30.4)"),
        ("6.4", "", "RCCL 2.30.4 (torch {}, built with 2.30.4)"),
        (
            "6.4",
            "AMD SMI: nothing (pip)",
            "RCCL 2.30.4 (torch {}, built with 2.30.4), GPUs not watched: AMD SMI: nothing (pip)",
        ),
    ],
)
def test_the_record_names_the_library_and_why_gpus_are_not_watched(
    gpus: Any, monkeypatch: pytest.MonkeyPatch, hip: str | None, missing: str, library: str
) -> None:
    gpus(1)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(_torchdist, "explain_unwatched", lambda device: missing)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(_cuda, "require_nvml", lambda what: None)
    zeros = torch.zeros
    here = {"device": "cpu"}
    monkeypatch.setattr(torch, "zeros", lambda *n, **kind: zeros(*n, **{**kind, **here}))
    backend = _torchdist.TorchDistributed("nccl")
    backend.policy, backend.label = Policy(pin=False), "torch_one_shot"  # which listens to no log
    backend._take_seat(ALONE, 0)
    assert backend.library == library.format(torch.__version__)


@pytest.mark.parametrize(
    ("mine", "reason"),
    [
        (
            0,
            f"{environment.host_name()} torch {torch.__version__} is built for CUDA 13.0, the"
            " driver",
        ),
        (1, "elsewhere there is no GPU here"),
    ],
)
def test_a_host_without_a_gpu_stops_all_ranks(
    gpus: Any, monkeypatch: pytest.MonkeyPatch, mine: int, reason: str
) -> None:
    gpus(mine)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(environment, "gpu_count", lambda: 1)
    monkeypatch.setattr(nvml, "driver_cuda", lambda: "12.4")
    with pytest.raises(CannotRun) as caught:
        _cuda.choose_seat(beside(1, 1 - mine, host="elsewhere"), 0, True, "nccl")
    needs = "backend nccl needs a GPU that torch can use; on "
    assert caught.value.message.startswith(needs + reason)
    assert "--backend gloo runs on CPUs" in caught.value.hint


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``blind(built, driver, gpus)``: a torch for that CUDA finds none of so many GPUs."""

    def finds_none(built: str | None, driver: str | None, gpus: int = 2) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.version, "cuda", built)
        monkeypatch.setattr(environment, "gpu_count", lambda: gpus)
        monkeypatch.setattr(nvml, "driver_cuda", lambda: driver)

    return finds_none


@pytest.mark.parametrize(
    ("facts", "reason", "hint"),
    [
        ((None, "12.4"), "is built without CUDA or ROCm", "pytorch.org/get-started"),
        (("13.0", None, 0), "there is no GPU here", "CUDA_VISIBLE_DEVICES"),
        (
            ("13.0", "12.4"),
            "is built for CUDA 13.0, the driver runs 12.4",
            "update the driver, or pip install 'torch==2.10.*'",
        ),
        (("12.8", "11.8"), "is built for CUDA 12.8, the driver runs 11.8", "update the driver"),
        (("12.8", "12.4"), "finds no GPU that it can use", "nvidia-smi shows"),
        (("12.8", None), "finds no GPU that it can use", "nvidia-smi shows"),
    ],
)
def test_why_torch_can_use_no_gpu(
    blind: Any, facts: tuple[Any, ...], reason: str, hint: str
) -> None:
    blind(*facts)
    found = _torch_refusal.missing_gpu()
    assert reason in found[0] and hint in found[1]


def test_nothing_is_missing_where_torch_uses_a_gpu(gpus: Any) -> None:
    gpus(1)
    assert _torch_refusal.missing_gpu() == ("", "")


def test_the_drivers_cuda_is_asked_of_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(at: Any) -> int:
        at._obj.value = 12040
        return 0

    library = SimpleNamespace(cuDriverGetVersion=version)
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: library)
    assert nvml.driver_cuda() == "12.4"


def test_without_a_driver_its_cuda_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(nvml.ctypes, "CDLL", missing)
    assert nvml.driver_cuda() is None


class Nccl:
    """A process group's NCCL part. ``accepts`` is what its register_mem_pool knows besides the
    pool."""

    mem_allocator = "NCCL's allocator"

    def __init__(self, notes: list[str], accepts: str = "symm") -> None:
        self._notes, self._accepts = notes, accepts

    def register_mem_pool(self, pool: Any, **named: Any) -> None:
        if set(named) - {self._accepts}:
            raise TypeError("register_mem_pool(): incompatible function arguments")
        self._notes.append(f"register {pool} {named}")

    def deregister_mem_pool(self, pool: Any) -> None:
        self._notes.append(f"deregister {pool}")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    pools: list[str] = []

    def pool(allocator: str) -> str:
        assert allocator == Nccl.mem_allocator
        pools.append(f"pool {len(pools)}")
        return pools[-1]

    @contextmanager
    def within(chosen: str) -> Iterator[None]:
        said.append(f"into {chosen}")
        yield
        said.append(f"out of {chosen}")

    monkeypatch.setattr(torch.cuda, "MemPool", pool)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", within)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: said.append("synchronize"))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: said.append("all_reduce"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda group: said.append("destroy"))
    return said


def group(nccl: Any) -> Any:
    return SimpleNamespace(_get_backend=lambda device: nccl)


CPU = torch.device("cpu")


@pytest.mark.parametrize(("level", "named"), [(1, "{}"), (2, "{'symm': True}")])
def test_buffers_are_registered_until_the_next_are_wanted(
    notes: list[str], level: int, named: str
) -> None:
    held = _cuda.Registered(group(Nccl(notes)), ALONE, CPU, level)
    assert notes == ["all_reduce", "into pool 0", "out of pool 0", f"register pool 0 {named}"]
    notes.clear()
    assert held.allocate(100).nbytes == 100
    assert notes == [
        "synchronize",
        "deregister pool 0",
        "into pool 1",
        "out of pool 1",
        f"register pool 1 {named}",
    ]
    notes.clear()
    held.release()
    held.release()
    assert notes == ["synchronize", "deregister pool 1"]


def test_a_torch_or_nccl_that_cannot_register_says_which_can(
    notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotRun, match="symmetric windows") as caught:
        _cuda.Registered(group(Nccl(notes, accepts="nothing")), ALONE, CPU, 2)
    assert "torch 2.9" in caught.value.hint
    with pytest.raises(CannotRun, match="ncclCommRegister") as caught:
        _cuda.Registered(group(SimpleNamespace()), ALONE, CPU, 1)
    assert "torch 2.7" in caught.value.hint

    def refuse(self: Nccl, pool: Any) -> None:
        raise RuntimeError("NCCL error: unhandled system error\nmore")

    def full(self: Nccl, pool: Any) -> None:
        raise RuntimeError("NCCL error: ncclMemAlloc failed: out of memory")

    monkeypatch.setattr(Nccl, "register_mem_pool", full)
    with pytest.raises(CannotRun, match="no memory for registered buffers"):
        _cuda.Registered(group(Nccl(notes)), ALONE, CPU, 1)
    monkeypatch.setattr(Nccl, "register_mem_pool", refuse)
    monkeypatch.setattr(_cuda, "nccl_version", lambda: (2, 18, 3))
    with pytest.raises(
        CannotRun, match=r"NCCL 2.18.3 refuses .*: NCCL error: unhandled system error$"
    ):
        _cuda.Registered(group(Nccl(notes)), ALONE, CPU, 1)


class WithoutAllocator(Nccl):
    @property
    def mem_allocator(self) -> str:  # type: ignore[override]
        raise RuntimeError("NCCL mem allocator is not supported in this NCCL version")


@pytest.mark.parametrize(
    ("multicast", "message"),
    [
        (
            False,
            "torch registers memory only where GPUs have NVLink multicast (NVSwitch);"
            " Fast GPU has none here",
        ),
        (
            True,
            "NCCL 2.18.3 refuses ncclCommRegister (-R 1): NCCL mem allocator is not supported in"
            " this NCCL version",
        ),
    ],
)
def test_gpus_without_multicast_are_not_taken_for_an_old_nccl(
    notes: list[str], monkeypatch: pytest.MonkeyPatch, multicast: bool, message: str
) -> None:
    monkeypatch.setattr(_cuda, "nccl_version", lambda: (2, 18, 3))
    monkeypatch.setattr(_cuda, "has_multicast", lambda device: multicast)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Fast GPU")
    with pytest.raises(CannotRun) as caught:
        _cuda.Registered(group(WithoutAllocator(notes)), ALONE, CPU, 1)
    assert caught.value.message == message


def test_the_backend_allocates_registered_memory_and_lets_go_of_it_before_the_group(
    notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = _torchdist.TorchDistributed("nccl")
    backend.policy = Policy(register=1)
    backend._at = _torchdist._Site(0, 1, group(Nccl(notes)))
    backend._registered = _cuda.Registered(backend._at.group, ALONE, CPU, backend.policy.register)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: notes.append("empty the cache"))
    backend.stream = SimpleNamespace()
    assert backend.allocate(64).nbytes == 64
    assert notes.index("deregister pool 0") < notes.index("empty the cache")
    assert notes.index("empty the cache") < notes.index("into pool 1")
    backend.close()
    assert notes[-4:] == ["register pool 1 {}", "synchronize", "deregister pool 1", "destroy"]
