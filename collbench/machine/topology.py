"""GPUs and RDMA adapters: what they are, and how they are wired to each other and to the CPUs.

Paths have the names of nvidia-smi topo -m: NV# (so many NVLinks), PIX (one PCIe bridge between
them), PXB (several), PHB (the host bridge), NODE (host bridges of one NUMA node), SYS (between NUMA
nodes); and XGMI where that joins two of AMD's GPUs directly.

Which rack each host is in, as a file says: TOML or JSON with a table ``hosts`` from a host's
name to its rack's.

[hosts]
node01 = "rack1"
node02 = "rack1"
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from collbench.core import files
from collbench.core.errors import CannotRun, UsageError
from collbench.machine import amd, sysfs
from collbench.machine.gpu import GRAPHICS, MEMORY, SM, ask_nvml, load_nvml

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")  # nearest first

LEVELS = dict(
    zip((0, 10, 20, 30, 40, 50), ("PIX", *PATHS), strict=True)
)  # nvmlGpuTopologyLevel_t; 0 is one board

SWITCH = 2  # nvmlIntNvLinkDeviceType_t

MAX_LINKS = 18  # where the binding does not say NVML_NVLINK_MAX_LINKS

GPU_FACTS: dict[str, tuple[Any, ...]] = {  # NVML's questions
    "name": ("Name",),
    "capability": ("CudaComputeCapability",),
    "cores": ("NumGpuCores",),
    "mig": ("MigMode",),
    "ecc": ("EccMode",),
    "persistence": ("PersistenceMode",),
    "power_limit": ("PowerManagementLimit",),
    "sm_mhz": ("ClockInfo", SM),
    "max_sm_mhz": ("MaxClockInfo", SM),
    "max_memory_mhz": ("MaxClockInfo", MEMORY),
    "default_mhz": ("DefaultApplicationsClock", GRAPHICS),
    "pcie": ("CurrPcieLinkGeneration",),
    "pcie_lanes": ("CurrPcieLinkWidth",),
    "max_pcie": ("MaxPcieLinkGeneration",),
    "max_pcie_lanes": ("MaxPcieLinkWidth",),
}

# Counters that should not rise: of sysfs-class-net-statistics, and of InfiniBand and RoCE ports.
# What is merely dropped for want of a listener is not among them.
NIC_ERRORS = (
    "statistics/rx_errors",
    "statistics/tx_errors",
    "statistics/rx_missed_errors",
    "carrier_down_count",
)

RDMA_ERRORS = {  # with where they stick; the InfiniBand Architecture Specification's PortCounters
    "symbol_error": 0xFFFF,
    "link_error_recovery": 0xFF,
    "link_downed": 0xFF,
    "port_rcv_errors": 0xFFFF,
    "port_xmit_discards": 0xFFFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
}

RETRIES = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
)  # hw_counters

PORT_FACTS = {"rate": "rate", "state": "state", "link": "link_layer", "firmware": "../../fw_ver"}

AMD, AMD_DRIVER = "AMD", "sys/class/kfd"


class _Gpu(NamedTuple):
    """NVML's handle, the PCI address as NVML writes it, the device's folder in sysfs, and where its
    NVLinks end."""

    handle: Any
    pci: str | None
    folder: Path
    ends: Counter[str]


def gpu_facts(root: Path) -> dict[str, Any]:
    """Facts by NVML, or by AMD SMI where AMD's compute driver is there and NVIDIA's is not:
    ``links[i][j]`` is the path from device i to j. Without it, what the driver puts in files, and
    ``why_not``."""
    if (root / AMD_DRIVER).exists() and not (root / "sys/module/nvidia").exists():
        return _amd_facts(root)
    try:
        nvml = load_nvml()
    except CannotRun as e:
        files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
        devices = [
            {"name": sysfs.find_in_file(f, r"^Model:\s*(.+)"), "pci": f.parent.name} for f in files
        ]
        return {
            "why_not": e.message,
            "driver": sysfs.read_text(root / "sys/module/nvidia/version"),
            "devices": devices,
        }
    driver, cuda = (
        ask_nvml(nvml, f"SystemGet{what}") for what in ("DriverVersion", "CudaDriverVersion")
    )
    gpus = [
        _find_gpu(nvml, ask_nvml(nvml, "DeviceGetHandleByIndex", i), root)
        for i in range(ask_nvml(nvml, "DeviceGetCount") or 0)
    ]
    devices = [_describe_gpu(nvml, gpu) for gpu in gpus]
    links = [[_find_link(nvml, gpu, other) for other in gpus] for gpu in gpus]
    ask_nvml(nvml, "Shutdown")
    return {
        "driver": driver,
        "cuda": cuda and f"{cuda // 1000}.{cuda % 1000 // 10}",
        "devices": devices,
        "links": links if len(links) > 1 else [],
    }


def cpus_near(pci: str, root: Path) -> list[int]:
    """The CPUs on the node of a device, by its PCI address as NVML or sysfs writes it; empty where
    the kernel does not tell."""
    return sysfs.cpu_list(_device_folder(pci, root) / "local_cpulist")


def rdma_facts(root: Path, devices: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Ports of adapters as InfiniBand and RoCE name them; ``gpu_facts`` are the indices of the
    nearest, ``path`` the way."""
    ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    return {
        f"{port.parts[-3]}:{port.name}": (
            {fact: sysfs.read_text(port / file) for fact, file in PORT_FACTS.items()}
            | _find_surroundings(port.parents[1] / "device", devices, root)
        )
        for port in ports
    }


def read_counters(root: Path) -> dict[str, int]:
    """The errors that this host's network ports have counted since they came up: by port and
    counter, which are sysfs's. A host's own and virtual ones have none."""
    real = [path for path in (root / "sys/class/net").glob("*") if (path / "device").exists()]
    counter_files = {
        f"{path.name} {name.rpartition('/')[2]}": path / name
        for path in real
        for name in NIC_ERRORS
    }
    for port in (root / "sys/class/infiniband").glob("*/ports/*"):
        places = (
            (port / "counters" / name for name in RDMA_ERRORS),
            (port / "hw_counters" / name for name in RETRIES),
        )
        counter_files |= {
            f"{port.parts[-3]}:{port.name} {path.name}": path for paths in places for path in paths
        }
    texts = {name: sysfs.read_text(path) for name, path in sorted(counter_files.items())}
    return {name: int(text) for name, text in texts.items() if text and text.isdecimal()}


def _amd_facts(root: Path) -> dict[str, Any]:
    # none where it is the kernel's own
    version = sysfs.read_text(root / "sys/module/amdgpu/version")
    try:
        smi = amd.load_amdsmi()
    except CannotRun as e:
        places = sorted((root / "sys/bus/pci/drivers/amdgpu").glob("*:*"))
        described = [
            {"name": sysfs.read_text(at / "product_name"), "pci": at.name} for at in places
        ]
        return {"vendor": AMD, "why_not": e.message, "driver": version, "devices": described}
    handles = amd.ask_amdsmi(smi, "get_processor_handles") or []
    devices = [amd.describe_gpu(smi, gpu) for gpu in handles]
    places = [_device_folder(device["pci"], root) for device in devices]
    for device, folder in zip(devices, places, strict=True):
        device |= {"numa": _numa_node(folder), "cpus": sysfs.read_text(folder / "local_cpulist")}
    links = [
        [
            "X"
            if gpu is other
            else "XGMI"
            if amd.are_joined(smi, gpu, other)
            else _find_path(folder, other_folder)
            for other, other_folder in zip(handles, places, strict=True)
        ]
        for gpu, folder in zip(handles, places, strict=True)
    ]
    return {
        "vendor": AMD,
        "driver": version,
        "devices": devices,
        "links": links if len(links) > 1 else [],
    }


def _find_gpu(nvml: Any, handle: Any, root: Path) -> _Gpu:
    pci = ask_nvml(nvml, "DeviceGetPciInfo", handle)
    return _Gpu(
        handle,
        pci and pci.busId,
        _device_folder(pci and pci.busId, root),
        _nvlink_ends(nvml, handle),
    )


def _describe_gpu(nvml: Any, gpu: _Gpu) -> dict[str, Any]:
    """Clocks in MHz, memory in bytes, power in milliwatts; ``nvlinks`` are those that are up;
    ``mig`` and ``ecc`` are modes now and after a reset."""
    uuid, memory = (
        ask_nvml(nvml, f"DeviceGet{fact}", gpu.handle) for fact in ("UUID", "MemoryInfo")
    )
    return {
        "uuid": uuid and sysfs.hash_identity(uuid),
        "memory": memory and memory.total,
        "pci": gpu.pci,
        "numa": _numa_node(gpu.folder),
        "cpus": sysfs.read_text(gpu.folder / "local_cpulist"),
        "nvlinks": gpu.ends.total(),
        **{
            name: ask_nvml(nvml, f"DeviceGet{fact}", gpu.handle, *which)
            for name, (fact, *which) in GPU_FACTS.items()
        },
    }


def _nvlink_ends(nvml: Any, gpu: Any) -> Counter[str]:
    """Where the GPU's active NVLinks end: PCI addresses as in sysfs, "switch" or "unknown". A
    switch that a virtual machine does not see has an empty address (NCCL, graph/xml.cc)."""
    ends = Counter[str]()
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", MAX_LINKS)):
        if ask_nvml(nvml, "DeviceGetNvLinkState", gpu, link) == 1:
            pci = ask_nvml(nvml, "DeviceGetNvLinkRemotePciInfo", gpu, link)
            switched = ask_nvml(nvml, "DeviceGetNvLinkRemoteDeviceType", gpu, link) == SWITCH or (
                pci and not pci.busId
            )
            ends["switch" if switched else format_pci_address(pci.busId) if pci else "unknown"] += 1
    return ends


def _find_link(nvml: Any, gpu: _Gpu, other: _Gpu) -> str | None:
    """The path between two GPUs, None where nothing tells it."""
    if gpu is other:
        return "X"
    direct = gpu.ends[format_pci_address(other.pci)] if other.pci else 0
    if bonded := direct or min(gpu.ends["switch"], other.ends["switch"]):
        return f"NV{bonded}"
    level = ask_nvml(nvml, "DeviceGetTopologyCommonAncestor", gpu.handle, other.handle)
    return LEVELS.get(level) or _find_path(gpu.folder, other.folder)


def _find_surroundings(adapter: Path, devices: list[dict[str, Any]], root: Path) -> dict[str, Any]:
    paths = [_find_path(adapter, _device_folder(device.get("pci"), root)) for device in devices]
    nearest = min(filter(None, paths), key=PATHS.index, default=None)
    near = [index for index, path in enumerate(paths) if path and path == nearest]
    return {"numa": _numa_node(adapter), "path": nearest, "gpus": near}


def format_pci_address(pci: str) -> str:
    """NVML's 00000000:1B:00.0 as sysfs writes it, 0000:1b:00.0."""
    domain, _, rest = pci.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _device_folder(pci: str | None, root: Path) -> Path:
    return root / "sys/bus/pci/devices" / (format_pci_address(pci) if pci else "unknown")


def _numa_node(folder: Path) -> int | None:
    node = sysfs.read_integer(folder / "numa_node")
    return None if node == -1 else node


def _find_path(gpu: Path, other: Path) -> str | None:
    """The path between two PCI devices by the bridges above each, None where the kernel shows none
    for one of them."""
    above = [_list_bridges(gpu), _list_bridges(other)]
    if not all(above):
        return None
    shared = sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*above, strict=False))
    )
    if (
        shared > 1
    ):  # a switch's ports are bridges too: behind one switch, both are one downstream port away
        return "PIX" if max(map(len, above)) - shared <= 2 else "PXB"
    if shared == 1:
        return "PHB"
    return "NODE" if _numa_node(gpu) == _numa_node(other) else "SYS"


def _list_bridges(folder: Path) -> tuple[str, ...]:
    """A device's way from the host bridge: pci0000:16, 0000:16:01.0 and so on, itself last; empty
    if not known."""
    parts = folder.resolve().parts
    starts = [
        index
        for index, part in enumerate(parts)
        if re.fullmatch(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", part)
    ]
    return parts[starts[0] :] if starts else ()


MOST_BYTES = 4 << 20

HINT = 'write a table [hosts] with lines such as node01 = "rack1", or the same as JSON'


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hosts: dict[str, str]


def read_racks(path: Path, option: str = "--topology") -> dict[str, str]:
    """Raises UsageError where the file is none, too large, or says something else."""
    try:
        if path.suffix == ".json":
            racks = msgspec.json.decode(files.read_bytes(path, MOST_BYTES), type=_File)
        else:
            racks = msgspec.convert(files.read_toml(path, MOST_BYTES)[1], _File)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as e:
        raise UsageError(f"{option}: cannot read {path}: {e}", HINT) from e
    if not racks.hosts or not all(
        name.strip() and name.isprintable() for pair in racks.hosts.items() for name in pair
    ):
        raise UsageError(f"{option}: {path} names no hosts, or one without a name", HINT)
    return racks.hosts


def list_missing_hosts(racks: dict[str, str], hosts: Iterable[str]) -> list[str]:
    """Hosts of which the file says nothing; without a file none is missed."""
    return sorted(set(hosts) - racks.keys()) if racks else []
