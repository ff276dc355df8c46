"""AMD's GPUs: by AMD SMI through its package amdsmi, which is optional, and by the kernel's files.
What a GPU, driver or version does not have is None; what is missing is never made up.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collbench.core.errors import CannotRun
from collbench.machine import sysfs

HINT = (
    "amdsmi comes with ROCm: pip install /opt/rocm/share/amd_smi; or pip install 'collbench[amd]',"
    " which takes the libamd_smi.so of a ROCm that is there"
)

XGMI = 2  # AMDSMI_LINK_TYPE_XGMI, and AMDSMI_IOLINK_TYPE_XGMI of older versions

# Counters of time for which a limit held the clocks back (MI300 and later), and the limit's name.
HELD = {
    "prochot_residency_acc": "prochot",
    "ppt_residency_acc": "package_power_limit",
    "socket_thm_residency_acc": "socket_thermal_limit",
    "vr_thm_residency_acc": "regulator_thermal_limit",
    "hbm_thm_residency_acc": "hbm_thermal_limit",
}

VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class Reading(NamedTuple):
    """A GPU now: MHz, degrees Celsius, watts, and counters. ``limit_counts`` are by
    the name of the limit that held the clock back; older GPUs only say ``throttled``."""

    sm_mhz: int | None
    memory_mhz: int | None
    celsius: int | None
    watts: float | None
    limit_counts: Mapping[str, int]
    throttled: bool
    ecc: int | None
    xgmi_errors: int | None
    pcie_replays: int | None


class Node(NamedTuple):
    """A GPU, or a partition of one, as the kernel's compute driver lists it: its PCI address, bytes
    of its largest cache, and its UUID as lists of visible GPUs have it."""

    pci: str
    cache: int
    uuid: str


def load_amdsmi() -> Any:
    """The amdsmi module, initialised. It counts no loads: who shut it down would take it, and all
    handles, from torch and whoever else has it in this process, so that nobody does. Raises
    CannotRun."""
    try:
        smi = importlib.import_module("amdsmi")
        smi.amdsmi_init()
    except Exception as e:  # AmdSmiException has no name before the import, which itself may fail
        raise CannotRun(f"AMD SMI: {' '.join(str(e).split())}", HINT) from e
    return smi


def ask_amdsmi(smi: Any, what: str, *arguments: Any) -> Any:
    """AMD SMI's answer; None where this GPU, driver or version has none. An argument such as
    AmdSmiClkType.GFX is given as text."""
    try:
        given = [
            _find_constant(smi, argument) if isinstance(argument, str) else argument
            for argument in arguments
        ]
        return getattr(smi, f"amdsmi_{what}")(*given)
    except (smi.AmdSmiException, AttributeError):
        return None


def find_handle(smi: Any, pci: str) -> Any:
    """The GPU at a PCI address, 0000:1b:00.0; None where AMD SMI knows none there."""
    handles = ask_amdsmi(smi, "get_processor_handles") or ()
    return next((gpu for gpu in handles if ask_amdsmi(smi, "get_gpu_device_bdf", gpu) == pci), None)


def describe_gpu(smi: Any, gpu: Any) -> dict[str, Any]:
    """The facts that stay the same, by the names that NVML's facts have: clocks in MHz, memory in
    bytes, power in milliwatts. ``architecture`` is gfx942 or the like; partitions are SPX, NPS1
    ..."""
    asic, pcie = (ask_amdsmi(smi, f"get_{what}", gpu) for what in ("gpu_asic_info", "pcie_info"))
    graphics, memory = (
        ask_amdsmi(smi, "get_clock_info", gpu, f"AmdSmiClkType.{kind}") for kind in ("GFX", "MEM")
    )
    uuid, blocks = (
        ask_amdsmi(smi, f"get_gpu_{what}", gpu) for what in ("device_uuid", "ecc_enabled")
    )
    cap = read_number(ask_amdsmi(smi, "get_power_cap_info", gpu), "power_cap")
    return {
        "uuid": uuid and sysfs.hash_identity(uuid),
        "name": _read_text(asic, "market_name"),
        "architecture": _read_text(asic, "target_graphics_version"),
        "cores": read_number(asic, "num_compute_units"),
        "memory": read_number(
            ask_amdsmi(smi, "get_gpu_memory_total", gpu, "AmdSmiMemoryType.VRAM")
        ),
        "pci": ask_amdsmi(smi, "get_gpu_device_bdf", gpu),
        "ecc": None if blocks is None else [int(bool(blocks))],
        "power_limit": cap and cap // 1000,
        "sm_mhz": read_number(graphics, "clk"),
        "max_sm_mhz": read_number(graphics, "max_clk"),
        "max_memory_mhz": read_number(memory, "max_clk"),
        "pcie_lanes": read_number(pcie, "pcie_metric", "pcie_width"),
        "max_pcie": read_number(pcie, "pcie_static", "pcie_interface_version"),
        "max_pcie_lanes": read_number(pcie, "pcie_static", "max_pcie_width"),
        **{
            f"{kind}_partition": ask_amdsmi(smi, f"get_gpu_{kind}_partition", gpu)
            for kind in ("compute", "memory")
        },
    }


def are_joined(smi: Any, first: Any, other: Any) -> bool:
    """Whether xGMI joins two GPUs directly."""
    link = ask_amdsmi(smi, "topo_get_link_type", first, other)
    return read_number(link, "type") == XGMI and read_number(link, "hops") == 1


def read_state(smi: Any, gpu: Any) -> Reading:
    """The GPU's state in four calls. Of several dies' clocks the highest: one at rest holds nobody
    back. Violations are told by counters of the metrics, as amdsmi_get_violation_status takes
    100 ms."""
    metrics = ask_amdsmi(smi, "get_gpu_metrics_info", gpu) or {}
    dies = metrics.get("current_gfxclks")
    clocks = [read_number(die) for die in dies] if isinstance(dies, list) else []
    clocks_read = [
        clock for clock in (*clocks, read_number(metrics, "current_gfxclk")) if clock is not None
    ]
    links = ask_amdsmi(smi, "get_gpu_ecc_count", gpu, "AmdSmiGpuBlock.XGMI_WAFL")
    errors = [read_number(links, f"{kind}_count") for kind in ("correctable", "uncorrectable")]
    replays = read_number(metrics, "pcie_replay_count_acc")
    return Reading(
        sm_mhz=max(clocks_read, default=None),
        memory_mhz=read_number(metrics, "current_uclk"),
        celsius=_first_number(metrics, "temperature_hotspot", "temperature_edge"),
        watts=_first_number(metrics, "current_socket_power", "average_socket_power"),
        limit_counts={
            name: count
            for field, name in HELD.items()
            if (count := read_number(metrics, field)) is not None
        },
        throttled=metrics.get("throttle_status") is True,
        ecc=read_number(ask_amdsmi(smi, "get_gpu_total_ecc_count", gpu), "uncorrectable_count"),
        xgmi_errors=None if None in errors else sum(filter(None, errors)),
        pcie_replays=read_number(ask_amdsmi(smi, "get_gpu_pci_replay_counter", gpu))
        if replays is None
        else replays,
    )


def read_number(answer: Any, *keys: str) -> int | None:
    """The number at these keys of an answer; None where it has none, for which amdsmi says N/A."""
    for key in keys:
        answer = answer.get(key) if isinstance(answer, Mapping) else None
    return answer if isinstance(answer, int) and not isinstance(answer, bool) else None


def list_gpu_nodes(root: Path) -> list[Node]:
    """The GPUs that this process may compute on, if its torch is built for ROCm; loads no
    library. A machine's graphics alone, beside another torch, are none."""
    every = (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*")
    places = sorted(every, key=lambda place: int(place.name) if place.name.isdigit() else -1)
    torch = importlib.util.find_spec("torch") if places else None
    if not torch or not torch.origin or not (Path(torch.origin).parent / ROCM_PART).exists():
        return []
    gpu_nodes = []
    for node in places:
        facts = {
            name: sysfs.read_integer(node / "properties", rf"^{name} (\d+)$") or 0
            for name in ("simd_count", "domain", "location_id", "unique_id")
        }
        if facts["simd_count"]:
            bus, device = facts["location_id"] >> 8 & 0xFF, facts["location_id"] >> 3 & 0x1F
            sizes = (
                sysfs.read_integer(cache / "properties", r"^size (\d+)$") or 0
                for cache in (node / "caches").glob("[0-9]*")
            )
            pci = f"{facts['domain']:04x}:{bus:02x}:{device:02x}.0"
            uuid = f"GPU-{facts['unique_id']:016x}"
            gpu_nodes.append(Node(pci, max(sizes, default=0) << 10, uuid))
    return gpu_nodes


ROCM_PART = "lib/libtorch_hip.so"  # of a torch that is built for ROCm


def select_visible(nodes: Sequence[Node], environ: Mapping[str, str]) -> list[Node]:
    """The GPUs that the environment leaves, in its order: HIP's list, or else CUDA's, numbers those
    that the list of ROCm's runtime leaves."""
    runtime, *names = VISIBLE
    visible = list(nodes)
    for name in (runtime, *[name for name in names if name in environ][:1]):
        if name in environ:
            visible = _select_listed(visible, environ[name])
    return visible


def _select_listed(nodes: Sequence[Node], listed: str) -> list[Node]:
    """The GPUs of a list of numbers and UUIDs, which ends at -1 or another number that none has, or
    where it is empty. A UUID that none has stands for the next one that is not listed."""
    chosen: list[Node] = []
    for entry in map(str.strip, listed.split(",")):
        if entry.isdecimal():
            candidates = nodes[int(entry) : int(entry) + 1]
        elif entry.startswith("GPU-"):
            rest = [node for node in nodes if node not in chosen]
            candidates = [node for node in rest if node.uuid == entry] or rest
        else:
            break
        if not candidates:
            break
        chosen.append(candidates[0])
    return chosen


def _find_constant(smi: Any, name: str) -> Any:
    kind, _, member = name.partition(".")
    return getattr(getattr(smi, kind), member)


def _read_text(answer: Any, key: str) -> str | None:
    text = answer.get(key) if isinstance(answer, Mapping) else None
    return text if isinstance(text, str) and text not in ("", "N/A") else None


def _first_number(answer: Any, *keys: str) -> int | None:
    return next((n for key in keys if (n := read_number(answer, key)) is not None), None)
