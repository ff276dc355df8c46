"""How GPUs and adapters are wired, of machines made of files and an NVML that is made up; and how
that is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fake_nvml
import pytest

from collbench.machine import environment, topology
from collbench.show.document import Line
from collbench.show.views import machines

ROOT_0, ROOT_1 = "pci0000:16/0000:16:01.0", "pci0000:98/0000:98:01.0"
SWITCH_0 = f"{ROOT_0}/0000:17:00.0"
# GPUs 1b to 1f: two on a switch, one behind a second one of it, two on the other node; adapters 40
# to 42
PLACES = {
    "0000:1b:00.0": f"{SWITCH_0}/0000:18:00.0",
    "0000:1c:00.0": f"{SWITCH_0}/0000:18:01.0",
    "0000:1d:00.0": f"{SWITCH_0}/0000:18:02.0/0000:20:00.0/0000:21:00.0",
    "0000:1e:00.0": ROOT_1,
    "0000:1f:00.0": "pci0000:b0/0000:b0:01.0",
    "0000:40:00.0": f"{SWITCH_0}/0000:18:03.0",
    "0000:41:00.0": "pci0000:16/0000:16:02.0",
    "0000:42:00.0": "pci0000:98/0000:98:02.0",
}
NODES = {"0000:1e:00.0": 1, "0000:1f:00.0": 1, "0000:40:00.0": -1, "0000:42:00.0": 1}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The machine of PLACES, with adapters mlx5_0 to mlx5_2 and one that is not on PCI."""
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    for address, above in PLACES.items():
        device = tmp_path / "sys/devices" / above / address
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{NODES.get(address, 0)}\n")
        (device / "local_cpulist").write_text("0-3\n")
        (tmp_path / "sys/bus/pci/devices" / address).symlink_to(device)
    for index, address in enumerate(["0000:40:00.0", "0000:41:00.0", "0000:42:00.0", None]):
        adapter = tmp_path / f"sys/class/infiniband/mlx5_{index}"
        (adapter / "ports/1").mkdir(parents=True)
        (adapter / "ports/1/rate").write_text("400 Gb/sec (4X NDR)\n")
        (adapter / "ports/1/state").write_text("4: ACTIVE\n" if index else "1: DOWN\n")
        if address:
            (adapter / "device").symlink_to((tmp_path / "sys/bus/pci/devices" / address).resolve())
    return tmp_path


@pytest.fixture
def machine(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Describes the machine with these GPUs."""

    def described(
        *gpus: dict[str, Any], ancestors: dict[tuple[int, int], int] | None = None
    ) -> dict[str, Any]:
        nvml = fake_nvml.Nvml(*gpus, ancestors=ancestors)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        found = topology.gpu_facts(root)
        assert nvml.opened == 0
        return found

    return described


def far(number: int) -> tuple[int, str]:
    return 0, f"00000000:{0x1B + number:02X}:00.0"


def test_direct_links_are_counted_by_pair(machine: Any) -> None:
    found = machine(
        fake_nvml.gpu(0, links=[far(1), far(1), far(2), None]),
        fake_nvml.gpu(1, links=[far(0), far(0), far(7)]),
        fake_nvml.gpu(2, links=[far(0)]),
        ancestors={(1, 2): 50},
    )
    assert found["links"] == [["X", "NV2", "NV1"], ["NV2", "X", "SYS"], ["NV1", "SYS", "X"]]
    assert [device["nvlinks"] for device in found["devices"]] == [3, 3, 1]


@pytest.mark.parametrize("end", [(2, "00000000:C0:00.0"), (2, ""), (255, "")])
def test_links_through_a_switch_reach_all_on_it(machine: Any, end: tuple[int, str]) -> None:
    found = machine(
        fake_nvml.gpu(0, links=[end] * 18),
        fake_nvml.gpu(1, links=[end] * 17),
        fake_nvml.gpu(2),
        ancestors={(0, 2): 30, (1, 2): 40},
    )
    assert found["links"] == [["X", "NV17", "PHB"], ["NV17", "X", "NODE"], ["PHB", "NODE", "X"]]


@pytest.mark.parametrize(
    ("level", "path"),
    [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")],
)
def test_levels_have_the_names_of_nvidia_smi(machine: Any, level: int, path: str) -> None:
    found = machine(fake_nvml.gpu(0), fake_nvml.gpu(1), ancestors={(0, 1): level})
    assert found["links"] == [["X", path], [path, "X"]]


def test_where_nvml_knows_no_ancestor_the_bridges_tell(machine: Any) -> None:
    links = machine(*(fake_nvml.gpu(number) for number in range(5)))["links"]
    assert links[0] == ["X", "PIX", "PXB", "SYS", "SYS"] and links[3] == [
        "SYS",
        "SYS",
        "SYS",
        "X",
        "NODE",
    ]
    lost = machine(fake_nvml.gpu(0, PciInfo=fake_nvml.REFUSED), fake_nvml.gpu(1))
    assert lost["links"] == [["X", None], [None, "X"]]


def test_each_gpu_is_described(machine: Any) -> None:
    (gpu,) = machine(
        fake_nvml.gpu(
            3,
            EccMode=[1, 0],
            MigMode=[0, 0],
            PersistenceMode=0,
            PowerManagementLimit=700_000,
            MaxPcieLinkWidth=16,
            CurrPcieLinkWidth=8,
            MaxPcieLinkGeneration=5,
            CurrPcieLinkGeneration=1,
            CudaComputeCapability=(9, 0),
            NumGpuCores=16896,
        )
    )["devices"]
    assert (gpu["pci"], gpu["numa"], gpu["cpus"]) == ("00000000:1E:00.0", 1, "0-3")
    assert (gpu["ecc"], gpu["persistence"], gpu["capability"], gpu["cores"]) == (
        [1, 0],
        0,
        (9, 0),
        16896,
    )
    assert (gpu["pcie"], gpu["pcie_lanes"], gpu["max_pcie"], gpu["max_pcie_lanes"]) == (1, 8, 5, 16)
    assert gpu["memory"] is None and fake_nvml.UUID.format(3) not in gpu["uuid"]


def test_one_gpu_has_no_links(machine: Any) -> None:
    found = machine(fake_nvml.gpu(0))
    assert found["links"] == [] and (found["driver"], found["cuda"]) == ("570.1", "12.8")


def test_adapters_know_their_nearest_gpus(machine: Any, root: Path) -> None:
    devices = machine(*(fake_nvml.gpu(number) for number in range(5)))["devices"]
    ports = topology.rdma_facts(root, devices)
    near = {name: (port["path"], port["gpus"], port["numa"]) for name, port in ports.items()}
    assert near == {
        "mlx5_0:1": ("PIX", [0, 1], None),
        "mlx5_1:1": ("PHB", [0, 1, 2], 0),
        "mlx5_2:1": ("PHB", [3], 1),
        "mlx5_3:1": (None, [], None),
    }
    assert topology.rdma_facts(root, [])["mlx5_0:1"]["path"] is None


def test_a_fingerprint_rests_on_links_and_modes(machine: Any) -> None:
    plain = {
        "gpus": machine(fake_nvml.gpu(0, EccMode=[1, 1]), fake_nvml.gpu(1), ancestors={(0, 1): 50})
    }
    busy = {
        "gpus": machine(
            fake_nvml.gpu(0, EccMode=[1, 1], CurrPcieLinkGeneration=1),
            fake_nvml.gpu(1),
            ancestors={(0, 1): 50},
        )
    }
    linked = {
        "gpus": machine(
            fake_nvml.gpu(0, EccMode=[0, 1], links=[far(1)]), fake_nvml.gpu(1, links=[far(0)])
        )
    }
    assert environment.make_fingerprint(plain) == environment.make_fingerprint(busy)
    assert [path for path, _, _ in environment.find_differences(plain, linked)] == [
        "gpus.devices.0.ecc.0",
        "gpus.devices.0.nvlinks",
        "gpus.devices.1.nvlinks",
        "gpus.links.0.1",
        "gpus.links.1.0",
    ]


def test_cards_are_told_by_kind() -> None:
    full = {
        "name": "Fast GPU",
        "memory": 80 << 30,
        "max_pcie": 5,
        "max_pcie_lanes": 16,
        "pcie_lanes": 16,
        "power_limit": 700_000,
        "ecc": [1, 1],
        "mig": [0, 0],
        "persistence": 1,
    }
    odd = full | {"pcie_lanes": 8, "ecc": [0, 0], "mig": [1, 1], "persistence": 0}
    assert machines.describe_cards({"devices": [full, {"name": "Old"}, full, odd]}) == [
        "2 x Fast GPU (80 GiB, PCIe 5.0 x16, limited to 700 W, ECC on)",
        "1 x Old",
        (
            "1 x Fast GPU (80 GiB, PCIe 5.0 x16, only 8 lanes in use, limited to 700 W, ECC off,"
            " MIG on, persistence off)"
        ),
    ]
    assert machines.describe_cards({}) == []


def test_links_are_told_by_how_frequent_they_are() -> None:
    assert machines.describe_links({"links": [["X", "NV4"], ["NV4", "X"]]}) == "NV4 between all 2"
    three = [["X", "SYS", None], ["SYS", "X", "SYS"], [None, "SYS", "X"]]
    assert (
        machines.describe_links({"links": three}) == "SYS between 2 pairs, unknown between 1 pair"
    )
    assert machines.describe_links({"links": []}) == machines.describe_links({}) == ""


def test_adapters_are_told_with_their_way_to_gpus(machine: Any, root: Path) -> None:
    devices = machine(fake_nvml.gpu(0), fake_nvml.gpu(1))["devices"]
    assert machines.describe_adapters(topology.rdma_facts(root, devices)) == [
        "mlx5_0:1 (400 Gb/sec (4X NDR), down, PIX to GPU 0, 1)",
        "mlx5_1:1 (400 Gb/sec (4X NDR), PHB to GPU 0, 1)",
        "mlx5_2:1 (400 Gb/sec (4X NDR), SYS to GPU 0, 1)",
        "mlx5_3:1 (400 Gb/sec (4X NDR))",
    ]
    assert machines.describe_adapters({"old:1": {"rate": None, "state": None}}) == ["old:1"]


def test_the_table_is_that_of_nvidia_smi(machine: Any) -> None:
    heads, lines = machines.make_matrix(
        machine(fake_nvml.gpu(0), fake_nvml.gpu(3), ancestors={(0, 1): 50})
    )
    assert heads == ("", "GPU 0", "GPU 1", "CPUs", "NUMA node")
    assert lines == [
        Line(("GPU 0", "X", "SYS", "0-3", "0")),
        Line(("GPU 1", "SYS", "X", "0-3", "1")),
    ]


def test_errors_of_ports_are_read_by_name_and_what_is_no_number_is_left_out(root: Path) -> None:
    one, two = (f"mlx5_{index}/ports/1" for index in range(2))
    counters = {
        f"{one}/counters/symbol_error": "12",
        f"{two}/hw_counters/out_of_sequence": "3",
        f"{two}/counters/link_downed": "N/A",
        f"{two}/counters/port_rcv_data": "99",
    }
    for name, text in counters.items():
        (root / "sys/class/infiniband" / name).parent.mkdir(exist_ok=True)
        (root / "sys/class/infiniband" / name).write_text(f"{text}\n")
    for name in ("eth0", "veth1"):
        (root / f"sys/class/net/{name}/statistics").mkdir(parents=True)
        (root / f"sys/class/net/{name}/statistics/rx_errors").write_text("4\n")
    (root / "sys/class/net/eth0/device").mkdir()
    assert topology.read_counters(root) == {
        "eth0 rx_errors": 4,
        "mlx5_0:1 symbol_error": 12,
        "mlx5_1:1 out_of_sequence": 3,
    }
