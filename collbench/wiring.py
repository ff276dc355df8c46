"""GPUs and RDMA adapters in words, and how they are wired as nvidia-smi topo -m tables it: of what environment.gather
knows of a machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from collbench.document import Line
from collbench.formats import counted, plain, size

Facts = Mapping[str, Any]


def cards(gpus: Facts) -> list[str]:
    """Each kind of GPU with its number, memory and settings; PCIe lanes where fewer are in use than there are."""
    kinds = Counter(_card(device) for device in gpus.get("devices") or [])
    return [f"{number} x {kind}" for kind, number in kinds.items()]


def _card(device: Facts) -> str:
    lanes, most = device.get("pcie_lanes"), device.get("max_pcie_lanes")
    modes = {name: (device.get(name) or [None])[0] for name in ("ecc", "mig")}
    told = [
        str(device.get("name")),
        size(device["memory"]) if device.get("memory") else "",
        f"PCIe {device['max_pcie']}.0 x{most}" if device.get("max_pcie") and most else "",
        f"only {lanes} lanes in use" if lanes and most and lanes < most else "",
        f"limited to {device['power_limit'] / 1000:g} W" if device.get("power_limit") else "",
        "" if modes["ecc"] is None else f"ECC {'on' if modes['ecc'] else 'off'}",
        "MIG on" if modes["mig"] else "",
        "persistence off" if device.get("persistence") == 0 else "",
    ]
    return plain(told[0]) + (f" ({', '.join(rest)})" if (rest := [word for word in told[1:] if word]) else "")


def links(gpus: Facts) -> str:
    """Paths between GPUs, the most frequent first; empty for fewer than two."""
    rows = gpus.get("links") or []
    paths = Counter(str(path or "unknown") for index, row in enumerate(rows) for path in row[index + 1 :])
    if len(paths) == 1:
        return f"{plain(next(iter(paths)))} between all {len(rows)}"
    return ", ".join(f"{plain(path)} between {counted(number, 'pair')}" for path, number in paths.most_common())


def adapters(rdma: Facts) -> list[str]:
    """Each port of an RDMA adapter with its rate, and the way to the nearest GPUs."""
    return [_port(name, port) for name, port in rdma.items()]


def _port(name: str, port: Facts) -> str:
    state = str(port.get("state") or "").rpartition(" ")[2]  # the kernel writes 4: ACTIVE
    near = f"{port['path']} to GPU {', '.join(map(str, port['gpus']))}" if port.get("path") else ""
    told = ", ".join(filter(None, [port.get("rate"), "" if state == "ACTIVE" else state.lower(), near]))
    return plain(f"{name} ({told})" if told else name)


def matrix(gpus: Facts) -> tuple[tuple[str, ...], list[Line]]:
    """Heads and lines of the table of paths, with each GPU's CPUs and NUMA node."""
    rows, devices = gpus.get("links") or [], gpus.get("devices") or []
    heads = ("", *(f"GPU {index}" for index in range(len(rows))), "CPUs", "NUMA node")
    lines = []
    for index, (row, device) in enumerate(zip(rows, devices, strict=True)):
        numa = device.get("numa")
        about = (plain(str(device.get("cpus") or "?")), "?" if numa is None else str(numa))
        lines.append(Line((f"GPU {index}", *(plain(str(path or "?")) for path in row), *about)))
    return heads, lines
