"""AMD's GPUs on machines made of files and an AMD SMI that is made up."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_amdsmi
import pytest

from collbench.core.errors import CannotRun
from collbench.machine import amd, environment, topology
from collbench.run import memory
from collbench.show.views import machines

PLACES = {
    "0000:1b:00.0": "pci0000:16/0000:16:01.0",
    "0000:1c:00.0": "pci0000:16/0000:16:02.0",
    "0000:1d:00.0": "pci0000:98/0000:98:01.0",
}
GIB = fake_amdsmi.GIB
KFD = "sys/class/kfd/kfd/topology/nodes"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three GPUs on two NUMA nodes, and a processor; the kernel's own driver, which has no
    version."""
    for number, (address, above) in enumerate(PLACES.items()):
        device = tmp_path / "sys/devices" / above / address
        put(device / "numa_node", str(number // 2))
        put(device / "local_cpulist", "0-3" if number < 2 else "4-7")
        put(device / "product_name", "Fast Accelerator")
        put(device / "mem_info_vram_total", str(192 * GIB))
        put(device / "mem_info_vram_used", str(number * GIB))
        for folder in ("devices", "drivers/amdgpu"):
            (tmp_path / "sys/bus/pci" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / "sys/bus/pci" / folder / address).symlink_to(device)
        node = tmp_path / KFD / str(number + 1)
        put(
            node / "properties",
            f"simd_count 1216\nlocation_id {0x1B + number << 8}\ndomain 0\n"
            f"unique_id {0xA0 + number}",
        )
        put(node / "caches/0/properties", "level 1\nsize 32")
        put(node / "caches/1/properties", "level 3\nsize 262144")
    put(tmp_path / KFD / "0/properties", "cpu_cores_count 96\nsimd_count 0\nlocation_id 0")
    return tmp_path


@pytest.fixture
def machine(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Describes the machine with these GPUs."""

    def described(*gpus: dict[str, Any], **further: Any) -> dict[str, Any]:
        smi = fake_amdsmi.Smi(*gpus, **further)
        monkeypatch.setitem(sys.modules, "amdsmi", smi)
        return topology.gpu_facts(root)

    return described


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A torch that is built for ROCm."""
    put(tmp_path / "torch/__init__.py", "")
    put(tmp_path / "torch" / amd.ROCM_PART, "")
    spec = SimpleNamespace(origin=str(tmp_path / "torch/__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    for name in amd.VISIBLE:
        monkeypatch.delenv(name, raising=False)


def test_each_gpu_is_described(machine: Callable[..., dict[str, Any]]) -> None:
    found = machine(fake_amdsmi.gpu(2))
    (gpu,) = found["devices"]
    assert found["vendor"] == "AMD" and found["links"] == []
    assert "ff74a1" not in gpu.pop("uuid")
    assert gpu == {
        "name": "Fast Accelerator",
        "architecture": "gfx942",
        "cores": 304,
        "memory": 192 * GIB,
        "pci": "0000:1d:00.0",
        "ecc": [1],
        "power_limit": 750_000,
        "sm_mhz": 132,
        "max_sm_mhz": 2100,
        "max_memory_mhz": 1300,
        "pcie_lanes": 8,
        "max_pcie": 5,
        "max_pcie_lanes": 16,
        "compute_partition": "SPX",
        "memory_partition": "NPS1",
        "numa": 1,
        "cpus": "4-7",
    }


def test_a_gpu_is_told_as_others_are(machine: Callable[..., dict[str, Any]]) -> None:
    (card,) = machines.describe_cards(machine(fake_amdsmi.gpu(0)))
    assert card.startswith("1 x Fast Accelerator (192 GiB, PCIe 5.0 x16, only 8 lanes in use, limi")


def test_what_amd_smi_does_not_know_is_unknown(machine: Callable[..., dict[str, Any]]) -> None:
    (gpu,) = machine({"get_gpu_asic_info": {"market_name": "N/A", "num_compute_units": "N/A"}})[
        "devices"
    ]
    assert set(gpu.values()) == {None}


def test_links_are_xgmi_where_it_joins_gpus_directly(
    machine: Callable[..., dict[str, Any]],
) -> None:
    links = {
        (0, 1): (1, fake_amdsmi.XGMI),
        (0, 2): (2, fake_amdsmi.XGMI),
        (1, 2): (1, fake_amdsmi.PCIE),
    }
    found = machine(*map(fake_amdsmi.gpu, range(3)), links=links)
    assert found["links"] == [["X", "XGMI", "SYS"], ["XGMI", "X", "SYS"], ["SYS", "SYS", "X"]]


def test_where_amd_smi_knows_no_links_the_bridges_tell(
    machine: Callable[..., dict[str, Any]],
) -> None:
    found = machine(*map(fake_amdsmi.gpu, range(3)))
    assert found["links"][0] == ["X", "PHB", "SYS"]


def test_partitions_decide_performance(machine: Callable[..., dict[str, Any]]) -> None:
    whole = {"gpus": machine(fake_amdsmi.gpu(0))}
    parted = {"gpus": machine(fake_amdsmi.gpu(0, get_gpu_compute_partition="CPX"))}
    assert environment.find_differences(whole, parted) == [
        ("gpus.devices.0.compute_partition", "SPX", "CPX")
    ]


def test_without_amd_smi_the_driver_tells_and_the_reason_stands_there(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    found = topology.gpu_facts(root)
    assert found["why_not"].startswith("AMD SMI: ") and "amdsmi" in found["why_not"]
    assert found["devices"][2] == {"name": "Fast Accelerator", "pci": "0000:1d:00.0"}


def test_nvidias_driver_goes_first(root: Path) -> None:
    put(root / "sys/module/nvidia/version", "570.1")
    assert topology.gpu_facts(root)["driver"] == "570.1"


def test_a_library_that_cannot_start_says_why_and_what_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    smi = fake_amdsmi.Smi()
    monkeypatch.setitem(sys.modules, "amdsmi", smi)

    def refuse() -> None:
        raise smi.AmdSmiException("Error code:\n\t34 | AMDSMI_STATUS_DRIVER_NOT_LOADED")

    monkeypatch.setattr(smi, "amdsmi_init", refuse)
    with pytest.raises(CannotRun, match=r"^AMD SMI: Error code: 34 \| AMDSMI_STATUS_DRIV") as told:
        amd.load_amdsmi()
    assert "/opt/rocm/share/amd_smi" in told.value.hint and "collbench[amd]" in told.value.hint


def test_a_reading_has_all_that_amd_smi_says() -> None:
    found = amd.read_state(fake_amdsmi.Smi(fake_amdsmi.gpu(0)), 0)
    assert found == amd.Reading(
        sm_mhz=2100,
        memory_mhz=900,
        celsius=41,
        watts=140,
        limit_counts={
            "prochot": 0,
            "package_power_limit": 1000,
            "socket_thermal_limit": 20,
            "regulator_thermal_limit": 0,
            "hbm_thermal_limit": 0,
        },
        throttled=False,
        ecc=2,
        xgmi_errors=5,
        pcie_replays=3,
    )


def test_older_gpus_say_less() -> None:
    older = {
        "temperature_edge": 38,
        "current_gfxclk": 1700,
        "average_socket_power": 90,
        "throttle_status": True,
    }
    smi = fake_amdsmi.Smi(
        {"get_gpu_metrics_info": older, "get_gpu_pci_replay_counter": 7, "get_gpu_ecc_count": {}}
    )
    assert amd.read_state(smi, 0) == amd.Reading(1700, None, 38, 90, {}, True, None, None, 7)


def test_a_gpu_that_says_nothing_is_unknown() -> None:
    assert amd.read_state(fake_amdsmi.Smi({}), 0) == amd.Reading(
        None, None, None, None, {}, False, None, None, None
    )


@pytest.mark.usefixtures("rocm")
@pytest.mark.parametrize(
    ("name", "value", "count"),
    [
        ("OTHER", "0", 3),
        ("HIP_VISIBLE_DEVICES", "0,1", 2),
        ("ROCR_VISIBLE_DEVICES", "GPU-1234", 1),
        ("CUDA_VISIBLE_DEVICES", "", 0),
        ("HIP_VISIBLE_DEVICES", "1,-1,0", 1),
    ],
)
def test_gpus_that_may_be_used_are_counted(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, count: int
) -> None:
    monkeypatch.setenv(name, value)
    assert environment.gpu_count(root) == count


def test_another_torch_uses_none_of_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in amd.VISIBLE:
        monkeypatch.delenv(name, raising=False)
    assert environment.gpu_count(root) == 0


@pytest.mark.usefixtures("rocm")
def test_room_on_a_gpu_is_what_the_kernel_calls_free(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1")
    assert memory._list_amd_gpus(root) == (
        memory.Gpu(192 * GIB, 256 << 20),
        memory.Gpu(191 * GIB, 256 << 20),
    )


@pytest.mark.usefixtures("rocm")
@pytest.mark.parametrize(
    ("environ", "used"),
    [
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "2"}, [2]),  # HIP's own goes first
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, [1]),  # numbers what is left
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000a1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000a2,GPU-unknown"}, [2, 0]),
        ({"HIP_VISIBLE_DEVICES": "1,7,0"}, [1]),  # there is no 7
    ],
)
def test_room_is_that_of_the_gpus_that_are_listed(
    root: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], used: list[int]
) -> None:
    for name in amd.VISIBLE:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    gpus = [memory.Gpu((192 - number) * GIB, 256 << 20) for number in used]
    assert list(memory._list_amd_gpus(root)) == gpus
