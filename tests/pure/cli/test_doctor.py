"""What the doctor says of machines with and without GPUs, drivers and libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_amdsmi
import fake_nvml
import pytest
import torch
import torch.distributed as dist

from collbench.cli import doctor, doctor_gpus
from collbench.core.errors import CannotRun
from collbench.machine import environment, gpu
from collbench.machine.load import Load
from collbench.run.backends import _cuda


class Stopped:
    """CUDA's driver where the fabric of NVSwitches is not up."""

    def cuInit(self, flags: int) -> int:
        return 802

    def cuGetErrorString(self, error: int, text: Any) -> int:
        text._obj.value = b"not yet"
        return 0


Told = dict[str, tuple[str, str]]
NOTHING = {
    "gpus": {"why_not": "NVML: no library", "driver": None, "devices": []},
    "rdma": {},
    "libraries": {},
}
TWO = {
    "gpus": {
        "driver": "570.1",
        "cuda": "12.8",
        "devices": [{}, {}],
        "links": [["X", "NV18"], ["NV18", "X"]],
    },
    "rdma": {"mlx5_0:1": {"rate": "400 Gb/sec", "state": "4: ACTIVE", "path": "PIX", "gpus": [0]}},
    "libraries": {"triton": "3.5.0"},
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Told]:
    """Findings by what they are of, on a machine with so many GPUs that torch can use."""

    def done(
        found: dict[str, Any],
        count: int = 0,
        nccl: tuple[int, ...] | None = None,
        cuda: str | None = None,
        names: Sequence[str] = ("GPU number 0", "GPU number 1"),
    ) -> Told:
        monkeypatch.setattr(environment, "gpu_count", lambda: count)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: names[index])
        monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl is not None)
        monkeypatch.setattr(_cuda, "nccl_version", lambda: nccl)
        return {what: (state, detail) for what, state, detail in doctor_gpus.gpu_findings(found)}

    return done


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> fake_nvml.Nvml:
    """A machine of two GPUs that reach each other, the second one without multicast."""
    nvml = fake_nvml.Nvml(fake_nvml.gpu(0), fake_nvml.gpu(1, CurrentClocksEventReasons=0x48))
    memory = SimpleNamespace(has_multicast_support=lambda kind, index: index == 0)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch._C._distributed_c10d, "_SymmetricMemory", memory, raising=False)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: True)
    monkeypatch.setattr(_cuda, "require_nvml", lambda *_: None)
    uuids = [SimpleNamespace(uuid=fake_nvml.UUID.format(i), name=f"Fast GPU {i}") for i in range(2)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: uuids[device.index])
    return nvml


def test_without_a_gpu_the_doctor_says_what_symm_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "has_gpus", lambda facts: False)
    for reason in ("symm needs Triton", ""):
        info = SimpleNamespace(here=lambda reason=reason: reason)
        monkeypatch.setattr(doctor, "backend_info", lambda name, info=info: info)
        members = next(members for title, members in doctor.list_findings() if title == "GPU ranks")
        told = {finding.what: finding.detail for finding in members}
        assert told["symm"] == (reason or "in Triton's interpreter, on CPUs")


def test_without_a_gpu_everything_has_a_remedy(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = told(NOTHING)
    assert {state for state, _ in found.values()} == {"no"}
    assert list(found) == [
        "gpu driver",
        "nvidia-ml-py",
        "torch for CUDA",
        "nccl",
        "ranks sharing a GPU",
        "triton",
        "gpu to gpu",
        "symmetric memory",
        "multicast",
    ]
    assert (
        "--gpus all" in found["gpu driver"][1]
        and "pip install nvidia-ml-py" in found["nvidia-ml-py"][1]
    )
    assert (
        "pip install triton" in found["triton"][1]
        and "--backend gloo" in found["ranks sharing a GPU"][1]
    )


def test_a_driver_with_which_cuda_cannot_start(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", bool)
    monkeypatch.setattr(gpu.ctypes, "CDLL", lambda name: Stopped())
    detail = doctor_gpus._check_driver({"driver": "570.1", "cuda": "12.8"}, 8, False)
    assert detail.state == "no" and "error 802, not yet" in detail.detail
    assert "systemctl status nvidia-fabricmanager" in detail.detail
    assert doctor_gpus._check_driver({"driver": "570.1"}, 8, True).state == "yes"


@pytest.mark.usefixtures("two")
def test_with_gpus(told: Callable[..., Told]) -> None:
    found = told(TWO, 2, (2, 30, 7), "12.6")
    assert found["gpu driver"] == ("yes", "570.1, CUDA up to 12.8, 2 GPUs usable")
    assert found["torch for CUDA"] == ("yes", "built for CUDA 12.6")
    assert found["nccl"] == ("yes", "NCCL 2.30.7") and found["ranks sharing a GPU"][0] == "yes"
    assert found["triton"][0] == "yes" and found["gpu to gpu"] == (
        "yes",
        "all 2 GPUs reach each other's memory",
    )
    assert found["symmetric memory"][0] == "yes"
    assert found["multicast"][0] == "no" and found["multicast"][1].startswith("not on GPU 1: ")
    assert found["gpu links"] == ("note", "NV18 between all 2")
    assert found["rdma"] == ("note", "mlx5_0:1 (400 Gb/sec, PIX to GPU 0)")


def test_each_gpu_is_told_and_what_ails_it(two: fake_nvml.Nvml, told: Callable[..., Told]) -> None:
    found = told(TWO, 2, (2, 30, 7), "12.6")
    state, detail = found["gpu 0"]
    assert state == "no" and detail.startswith(
        "Fast GPU 0, 1900 of 1980 MHz, 35 °C, 78 W; 2 uncorrected ECC errors"
    )
    assert "held back by hw_slowdown, hw_thermal_slowdown" in found["gpu 1"][1] and two.opened == 0


@pytest.mark.usefixtures("two")
def test_gpus_nvml_does_not_know_are_named(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert told(TWO, 2, (2, 30, 7), "12.6")["gpu 1"] == ("note", "GPU number 1")


@pytest.mark.usefixtures("two")
def test_gpus_that_cannot_reach_each_other(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: False)
    state, detail = told(TWO, 2, (2, 30, 7), "12.6")["gpu to gpu"]
    assert state == "no" and detail.startswith("1 of 1 pairs cannot, 0 and 1 first")


@pytest.mark.usefixtures("two")
def test_one_gpu_has_nobody_to_reach(told: Callable[..., Told]) -> None:
    state, detail = told(TWO, 1, (2, 30, 7), "12.6")["gpu to gpu"]
    assert state == "note" and "--virtual-ranks" in detail


@pytest.mark.usefixtures("two")
def test_a_torch_without_symmetric_memory(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch._C._distributed_c10d, "_SymmetricMemory")
    found = told(TWO, 2, (2, 30, 7), "12.6")
    assert found["symmetric memory"][0] == "no" and "multicast" not in found


@pytest.mark.usefixtures("two")
def test_symmetric_memory_without_nvml_has_a_remedy(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(what: str = "torch's symmetric memory") -> None:
        raise CannotRun(f"{what} needs NVML", "NVIDIA_DRIVER_CAPABILITIES")

    monkeypatch.setattr(_cuda, "require_nvml", absent)
    found = told(TWO, 2, (2, 30, 7), "12.6")
    for what in ("symmetric memory", "nccl"):
        state, detail = found[what]
        assert state == "no" and detail.endswith("needs NVML: NVIDIA_DRIVER_CAPABILITIES")


@pytest.mark.parametrize(
    ("compiler", "named", "state", "words"),
    [
        ("gcc", "", "yes", "/gcc: "),
        ("clang", "", "yes", "/clang: "),
        ("gcc", "icx", "no", "CC=icx is not found"),
        ("icx", "icx", "yes", "/icx: "),
        ("", "", "no", "apt-get install gcc"),
    ],
)
def test_triton_needs_a_c_compiler(
    told: Callable[..., Told],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    compiler: str,
    named: str,
    state: str,
    words: str,
) -> None:
    if compiler:
        (tmp_path / compiler).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", named)
    found = told({**NOTHING, "libraries": {"triton": "3.8.0"}})["c compiler"]
    assert found[0] == state and words in found[1]
    assert "c compiler" not in told(NOTHING)


@pytest.mark.parametrize(
    ("nccl", "state"),
    [((2, 29, 9), "no"), ((2, 30, 0), "yes"), ((2, 30, 3), "yes"), ((3, 0, 0), "yes")],
)
def test_ranks_share_a_gpu_from_nccl_2_30_on(
    told: Callable[..., Told], nccl: tuple[int, ...], state: str
) -> None:
    found = told(NOTHING, 0, nccl, "12.6")
    assert found["ranks sharing a GPU"][0] == state
    assert found["nccl"][0] == "no" and "no usable GPU" in found["nccl"][1]


@pytest.mark.parametrize(
    ("built", "driver", "state"),
    [(None, "12.8", "no"), ("13.0", "12.8", "no"), ("12.9", "12.4", "yes"), ("12.6", None, "yes")],
)
def test_torch_must_be_built_for_a_cuda_the_driver_has(
    told: Callable[..., Told], built: str | None, driver: str | None, state: str
) -> None:
    found = NOTHING | {"gpus": {"driver": "570.1", "cuda": driver, "devices": []}}
    assert told(found, 0, None, built)["torch for CUDA"][0] == state


def test_a_torch_too_new_for_the_driver_is_told_with_one_that_is_not(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the driver's own library, where NVML is not there."""
    monkeypatch.setattr(doctor_gpus, "driver_cuda", lambda: "12.4")
    assert told(NOTHING, 0, None, "13.0")["torch for CUDA"] == (
        "no",
        "built for CUDA 13.0, the driver runs 12.4:"
        " update the driver, or pip install 'torch==2.10.*'",
    )


def test_a_driver_without_nvml_is_there_where_torch_uses_its_gpus(
    two: fake_nvml.Nvml, told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(doctor_gpus, "driver_cuda", lambda: "12.8")
    assert told(NOTHING, 2, (2, 30, 7), "12.6")["gpu driver"] == (
        "yes",
        "version unknown, CUDA up to 12.8, 2 GPUs usable",
    )


def test_gpus_that_only_torch_sees_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gpu_count", lambda: 0)
    assert not doctor_gpus.has_gpus(NOTHING)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert doctor_gpus.has_gpus(NOTHING)


def test_a_driver_without_a_gpu_to_use(told: Callable[..., Told]) -> None:
    state, detail = told(NOTHING | {"gpus": TWO["gpus"]})["gpu driver"]
    assert state == "no" and "CUDA_VISIBLE_DEVICES" in detail


def test_nvml_that_does_not_start_says_why(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_gpus.util, "find_spec", lambda name: SimpleNamespace(name=name))
    state, detail = told(NOTHING)["nvidia-ml-py"]
    assert state == "no" and detail.startswith("NVML: no library") and "nvidia-smi" in detail


def test_persistence_that_is_off_is_told(told: Callable[..., Told]) -> None:
    found = NOTHING | {
        "gpus": {"driver": "570.1", "devices": [{"persistence": 1}, {"persistence": 0}]}
    }
    assert "nvidia-smi -pm 1" in told(found)["gpu persistence"][1]
    assert "gpu persistence" not in told(NOTHING)


@pytest.mark.parametrize(
    ("seen", "state", "says"),
    [
        (Load(1.26, 2), "no", "other processes use 1.3 of 2 CPUs: expect noisy results; stop them"),
        (Load(0.1, 2), "yes", "hardly"),
    ],
)
def test_a_busy_machine_is_told(
    monkeypatch: pytest.MonkeyPatch, seen: Load, state: str, says: str
) -> None:
    monkeypatch.setattr(doctor.load, "measure_load", lambda: {"vm": seen})
    ((what, told, detail),) = doctor._check_other_load()
    assert (what, told) == ("idle machine", state) and says in detail


def test_where_nobody_can_tell_how_busy_it_is_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor.load, "measure_load", dict)
    assert list(doctor._check_other_load()) == []


AMDS = {
    "gpus": {"vendor": "AMD", "driver": "6.12.12", "devices": [{}], "links": []},
    "rdma": {},
    "libraries": {"triton": "3.5.0"},
}


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch) -> fake_amdsmi.Smi:
    """A torch that is built for ROCm, on a machine with one GPU of AMD's."""
    smi = fake_amdsmi.Smi(fake_amdsmi.gpu(0))
    about = SimpleNamespace(name="MI300X", pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    return smi


def test_amds_gpus_are_told_with_rccl(rocm: fake_amdsmi.Smi, told: Callable[..., Told]) -> None:
    found = told(AMDS, 1, (2, 26, 6))
    assert found["gpu driver"] == ("yes", "amdgpu 6.12.12, 1 GPUs usable")
    assert found["amdsmi"] == ("yes", "clocks, throttling, errors, topology")
    assert found["torch for ROCm"] == ("yes", "built for ROCm 6.4.43482")
    assert found["nccl"] == ("yes", "RCCL 2.26.6")
    assert found["ranks sharing a GPU"] == ("no", "RCCL 2.30 or newer can: a newer torch")
    assert found["triton"][0] == "no" and "nvidia-ml-py" not in found
    assert found["gpu 0"][1].startswith("MI300X, 2100 of 2100 MHz, 41 °C, 140 W; 2 uncorrected")
    assert "amd-smi metric --ecc" in found["gpu 0"][1]


@pytest.mark.usefixtures("rocm")
def test_without_amdsmi_it_is_said_what_to_install(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    found = told(AMDS, 1, (2, 26, 6))
    assert found["amdsmi"][0] == "no" and "/opt/rocm/share/amd_smi" in found["amdsmi"][1]
    assert found["gpu 0"] == ("note", "GPU number 0")


@pytest.mark.usefixtures("rocm")
def test_a_container_without_amds_devices_is_told_how_to_start(told: Callable[..., Told]) -> None:
    found = told({**AMDS, "gpus": {"driver": None, "devices": []}}, 0, (2, 26, 6))
    state, detail = found["gpu driver"]
    assert state == "no" and detail.startswith("amdgpu of the kernel: ") and "/dev/kfd" in detail


def test_amds_gpus_need_a_torch_for_rocm(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    found = told(AMDS, 0)
    assert found["torch for ROCm"][0] == found["amdsmi"][0] == "no"
    assert "pytorch.org" in found["torch for ROCm"][1] and "torch for CUDA" not in found


@pytest.mark.parametrize(
    ("found", "count", "there"), [(NOTHING, 0, False), (NOTHING, 1, True), (AMDS, 0, True)]
)
def test_libraries_of_gpus_are_told_of_only_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], count: int, there: bool
) -> None:
    monkeypatch.setattr(environment, "gpu_count", lambda: count)
    assert doctor_gpus.has_gpus(found) is there


@pytest.mark.parametrize(
    ("found", "gpus", "says"),
    [
        ({"gloo": "yes", "shm": "yes", "mpi": "no"}, 0, "Ready: gloo, shm on 2 ranks."),
        ({"gloo": "yes", "gloo ranks": "no", "shm": "yes"}, 0, "Ready: shm on 2 ranks."),
        ({"gloo": "yes", "nccl": "yes"}, 8, "Ready: gloo on 2 ranks; nccl on 8 GPUs."),
        ({"gloo": "no"}, 0, "Nothing can run here: see above."),
    ],
)
def test_the_last_line_says_what_is_ready(found: dict[str, str], gpus: int, says: str) -> None:
    assert doctor.describe_ready(found, 2, gpus) == says


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.usefixtures("two")
def test_a_fake_gpu_is_told_as_one(
    told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    names = ["Fake H100 80GB", "NVIDIA H100 80GB HBM3"]
    about = [SimpleNamespace(uuid=fake_nvml.UUID.format(i), name=names[i]) for i in range(2)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about[device.index])
    if not watched:
        monkeypatch.setitem(sys.modules, "pynvml", None)
    found = told(TWO, 2, (2, 30, 7), "12.6", names)
    meaning = "a fake GPU: what it measures means nothing"
    assert found["gpu 0"][0] == "no" and meaning in found["gpu 0"][1]
    assert meaning not in found["gpu 1"][1]


def test_gpus_that_are_divided_are_named() -> None:
    assert doctor_gpus.check_mig([{"mig": (0, 0)}, {"name": "x"}]) is None
    found = doctor_gpus.check_mig([{"mig": (0, 0)}, {"mig": (1, 1)}, {"mig": None}])
    assert found is not None and "GPU 1:" in found.detail
