"""On a test's PYTHONPATH: a backend of torch.distributed that torch itself loads, as vendors ship
theirs. It is Gloo under the name fakeccl.

FAKECCL=DEVICE is what it says its tensors are on, by default the CPU. FAKECCL=accelerator has torch
take the CPU for an accelerator of one device, and writes a line to FAKECCL_LOG for each time that
one waits for it."""

import os
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist


def waited(device: torch.device) -> None:
    with Path(os.environ["FAKECCL_LOG"]).open("a") as log:
        log.write("waited\n")


def register() -> None:
    said = os.environ.get("FAKECCL", "cpu")
    if said == "accelerator":
        fake = torch.accelerator
        fake.is_available = lambda: True  # type: ignore[method-assign]
        fake.current_accelerator = lambda *_: torch.device("cpu")  # type: ignore[method-assign]
        fake.device_count = lambda: 1  # type: ignore[method-assign]
        fake.set_device_index = lambda *_: None  # type: ignore[method-assign]
        fake.synchronize = waited  # type: ignore[method-assign]
        only = SimpleNamespace(uuid="the only one")
        torch.cpu.get_device_properties = lambda *_: only  # type: ignore[attr-defined]
        said = "cpu"
    dist.Backend.register_backend("fakeccl", dist.ProcessGroupGloo, devices=[said])
