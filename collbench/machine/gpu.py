"""NVML through nvidia-ml-py, which is optional: whatever this GPU, driver or binding does not have
is None. The CUDA that the driver runs, and whether a torch is built for it.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from typing import Any

from collbench.core.errors import CannotRun

VALUE_KINDS = (
    "dVal",
    "uiVal",
    "ulVal",
    "ullVal",
    "sllVal",
    "siVal",
    "usVal",
)  # nvmlValue_t, by nvmlValueType_t

GRAPHICS, SM, MEMORY = range(3)  # nvmlClockType_t

FAKE = "Fake"  # the first word of the names of fake GPUs, and of no others
FAKE_MEANING = "a fake GPU: what it measures means nothing"


def is_fake(name: str) -> bool:
    """Whether this is the name of a fake GPU, which lives in host memory."""
    return name.split()[:1] == [FAKE]


# the last torch on PyPI for the CUDA of a driver, by its major version
TORCH_FOR = {12: "torch==2.10.*"}


def driver_cuda() -> str | None:
    """The newest CUDA that the driver runs, as 12.4; None without a driver."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


SYSTEM_NOT_READY = 802  # what CUDA says where the fabric of NVSwitches is not up


def refuse_start() -> tuple[str, str]:
    """Why CUDA cannot start with a driver that is there, and what to do; two empty strings where it
    can, and without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "", ""
    error, text = cuda.cuInit(0), ctypes.c_char_p()
    if not error:
        return "", ""
    cuda.cuGetErrorString(error, ctypes.byref(text))
    words = (text.value or b"unknown").decode(errors="replace")
    unit = "nvidia-fabricmanager"
    hint = f"systemctl status {unit} says why" if error == SYSTEM_NOT_READY else "dmesg may say why"
    return f"CUDA cannot start: error {error}, {words}", hint


def refuse_cuda(built: str, driver: str | None) -> tuple[str, str]:
    """Why a driver of one CUDA cannot run what is built for another, and what to do; two empty
    strings where it can: any minor version of its own major one, and older ones."""
    if driver is None or _major_version(built) <= _major_version(driver):
        return "", ""
    other = TORCH_FOR.get(_major_version(driver))
    return (
        f"built for CUDA {built}, the driver runs {driver}",
        f"update the driver, or pip install '{other}'" if other else "update the driver",
    )


def _major_version(version: str) -> int:
    return int(version.partition(".")[0])


def load_nvml() -> Any:
    """The pynvml module, initialised: each load is undone by ``ask(nvml, "Shutdown")``. Raises
    CannotRun."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception as e:  # NVMLError has no name before the import
        missing = isinstance(e, ImportError)
        hint = (
            "pip install 'collbench[gpu]'"
            if missing
            else "is there a driver? nvidia-smi uses the same library"
        )
        raise CannotRun(f"NVML: {e}", hint) from e
    return nvml


def ask_nvml(nvml: Any, what: str, *arguments: Any) -> Any:
    """NVML's answer; None where this GPU, driver or binding has none."""
    try:
        return getattr(nvml, f"nvml{what}")(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def read_fields(nvml: Any, gpu: Any, ids: Sequence[int | tuple[int, int]]) -> list[int | None]:
    """Field values in one call, in the order of ``ids``, each a field or a (field, scope)."""
    readings = (ask_nvml(nvml, "DeviceGetFieldValues", gpu, list(ids)) if ids else None) or ()
    values = [
        getattr(f.value, VALUE_KINDS[f.valueType], None) if f.nvmlReturn == 0 else None
        for f in readings
    ]
    return values or [None] * len(ids)


def xid_events(nvml: Any, gpu: Any) -> Any:
    """An event set that collects the GPU's critical errors from now on; None where they cannot be
    had."""
    try:
        events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
    except (nvml.NVMLError, AttributeError):
        return None
    return events
