"""A machine's AMD SMI that is made up, as the package amdsmi shows it: what a GPU is not given, it
does not support."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30
XGMI, PCIE = 2, 1


def metrics(**facts: Any) -> dict[str, Any]:
    """What an MI300 at rest says in one answer, with N/A where it has nothing to say."""
    return {
        "temperature_edge": "N/A",
        "temperature_hotspot": 41,
        "average_socket_power": "N/A",
        "current_socket_power": 140,
        "current_gfxclk": "N/A",
        "current_gfxclks": [132, 2100, 131, 133, 132, 132, 131, 133],
        "current_uclk": 900,
        "throttle_status": "N/A",
        "pcie_replay_count_acc": 3,
        "prochot_residency_acc": 0,
        "ppt_residency_acc": 1000,
        "socket_thm_residency_acc": 20,
        "vr_thm_residency_acc": 0,
        "hbm_thm_residency_acc": 0,
        **facts,
    }


def gpu(number: int, **facts: Any) -> dict[str, Any]:
    """A GPU; ``facts`` are answers by question."""
    return {
        "get_gpu_device_bdf": f"0000:{0x1B + number:02x}:00.0",
        "get_gpu_device_uuid": f"{number:02x}ff74a1-0000-1000-80ea-e8ae8e2d9d9a",
        "get_gpu_asic_info": {
            "market_name": "Fast Accelerator",
            "target_graphics_version": "gfx942",
            "num_compute_units": 304,
        },
        "get_clock_info": {
            "GFX": {"clk": 132, "min_clk": 132, "max_clk": 2100},
            "MEM": {"clk": 900, "min_clk": 900, "max_clk": 1300},
        },
        "get_power_cap_info": {"power_cap": 750_000_000},
        "get_pcie_info": {
            "pcie_static": {"max_pcie_width": 16, "pcie_interface_version": 5},
            "pcie_metric": {"pcie_width": 8},
        },
        "get_gpu_memory_total": 192 * GIB,
        "get_gpu_ecc_enabled": 24575,
        "get_gpu_total_ecc_count": {"correctable_count": 9, "uncorrectable_count": 2},
        "get_gpu_ecc_count": {"correctable_count": 4, "uncorrectable_count": 1},
        "get_gpu_compute_partition": "SPX",
        "get_gpu_memory_partition": "NPS1",
        "get_gpu_metrics_info": metrics(),
        **facts,
    }


class Smi:
    """Handles are indices. ``links`` are (hops, type) by pair of GPUs."""

    class AmdSmiException(Exception):
        pass

    __spec__ = SimpleNamespace(name="amdsmi")
    AmdSmiClkType = SimpleNamespace(GFX="GFX", MEM="MEM")
    AmdSmiMemoryType = SimpleNamespace(VRAM="VRAM")
    AmdSmiGpuBlock = SimpleNamespace(XGMI_WAFL="XGMI_WAFL")

    def __init__(
        self, *gpus: dict[str, Any], links: dict[tuple[int, int], tuple[int, int]] | None = None
    ) -> None:
        self.gpus, self.links = gpus, links or {}

    def amdsmi_init(self) -> None:
        """The first call counts, and others do nothing."""

    def amdsmi_shut_down(self) -> None:
        raise AssertionError("takes it from all who have it in this process")

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(len(self.gpus)))

    def amdsmi_get_clock_info(self, gpu: int, kind: str) -> Any:
        return self._known(gpu, "get_clock_info")[kind]

    def amdsmi_topo_get_link_type(self, one: int, other: int) -> dict[str, int]:
        pair = (min(one, other), max(one, other))
        if pair not in self.links:
            raise self.AmdSmiException("Error code:\n\t2 | not supported")
        hops, kind = self.links[pair]
        return {"hops": hops, "type": kind}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        question = name.removeprefix("amdsmi_")
        if question == name:
            raise AttributeError(name)
        return lambda gpu, *_: self._known(gpu, question)

    def _known(self, gpu: int, question: str) -> Any:
        if question not in self.gpus[gpu]:
            raise self.AmdSmiException("Error code:\n\t2 | not supported")
        return self.gpus[gpu][question]
