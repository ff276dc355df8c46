"""What the doctor says of GPUs: all that their ranks stand on, with a remedy for what is missing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from importlib import metadata, util
from typing import Any, NamedTuple

from collbench import environment, wiring
from collbench.errors import first_line
from collbench.records import GpuState

NO_TRITON = "pip install triton: without it symm runs no reference algorithm in GPU memory"
IN_CONTAINER = "or start the container with GPUs (docker run --gpus all)"
NO_NODES = f"check CUDA_VISIBLE_DEVICES, {IN_CONTAINER}"


class Finding(NamedTuple):
    """One line of the report: what, how it stands (yes, no, note), and the reason or value."""

    what: str
    state: str
    detail: str


def findings(found: Mapping[str, Any]) -> Iterator[Finding]:
    """What GPU ranks stand on, from the driver upwards; where something is missing, what to do about it."""
    import torch

    gpus = found["gpus"]
    yield _driver(gpus, max(environment.gpu_count(), torch.cuda.device_count()))
    yield _nvml(gpus)
    yield _cuda(torch.version.cuda, gpus.get("cuda"))
    yield from _nccl()
    triton = found["libraries"].get("triton")
    yield Finding("triton", *(("yes", f"{triton}, compiles symm's kernel") if triton else ("no", NO_TRITON)))
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        yield _reach(count)
        yield from _symmetric(count)
        yield from _states(count)
    else:
        for what in ("gpu to gpu", "symmetric memory", "multicast"):
            yield Finding(what, "no", "needs a GPU that torch can use, see above")
    if any(device.get("persistence") == 0 for device in gpus["devices"]):
        yield Finding("gpu persistence", "no", "off, so that each start wakes the driver: sudo nvidia-smi -pm 1")
    for what, detail in (("gpu links", wiring.links(gpus)), ("rdma", ", ".join(wiring.adapters(found["rdma"])))):
        if detail:
            yield Finding(what, "note", detail)


def _driver(gpus: Mapping[str, Any], nodes: int) -> Finding:
    version, cuda = gpus.get("driver"), gpus.get("cuda")
    if version and nodes:
        return Finding("gpu driver", "yes", f"{version}{f', CUDA up to {cuda}' if cuda else ''}, {nodes} GPUs usable")
    if version:
        return Finding("gpu driver", "no", f"{version}, but no GPU to use: {NO_NODES}")
    return Finding("gpu driver", "no", f"no NVIDIA driver here: install it, {IN_CONTAINER}")


def _nvml(gpus: Mapping[str, Any]) -> Finding:
    wheel = next(iter(metadata.distributions(name="nvidia-ml-py")), None)
    if not util.find_spec("pynvml"):
        detail = "pip install nvidia-ml-py: without it clocks, throttling, errors and topology stay unknown"
        return Finding("nvidia-ml-py", "no", detail)
    if why_not := gpus.get("why_not"):
        return Finding("nvidia-ml-py", "no", f"{why_not}: it comes with the driver; nvidia-smi must work first")
    return Finding(
        "nvidia-ml-py", "yes", f"{wheel.version if wheel else 'found'}: clocks, throttling, errors, topology"
    )


def _cuda(built: str | None, driver: str | None) -> Finding:
    """Whether torch is built for CUDA, and for one that the driver can run: any minor version of its own major one."""
    if not built:
        return Finding("torch for CUDA", "no", "a CPU build of torch: pytorch.org/get-started names the one for CUDA")
    if driver and int(built.split(".")[0]) > int(driver.split(".")[0]):
        detail = f"built for CUDA {built}, the driver runs {driver}: update the driver, or take a torch for that"
        return Finding("torch for CUDA", "no", detail)
    return Finding("torch for CUDA", "yes", f"built for CUDA {built}")


def _nccl() -> Iterator[Finding]:
    import torch
    import torch.distributed as dist

    if not dist.is_nccl_available():
        yield Finding("nccl", "no", "this torch build has no NCCL: install one for CUDA")
        yield Finding("ranks sharing a GPU", "no", "--share-gpu needs NCCL; --backend gloo runs without")
        return
    from collbench.backends import _cuda

    version = _cuda.nccl_version()
    usable = torch.cuda.is_available()
    state = ("yes", "") if usable else ("no", ", but torch sees no usable GPU: check the driver with nvidia-smi")
    yield Finding("nccl", state[0], f"NCCL {_cuda.dotted(version)}{state[1]}")
    shares = version >= _cuda.SHARING
    detail = (
        "--share-gpu, by NCCL_MULTI_RANK_GPU_ENABLE=1"
        if shares
        else f"NCCL {_cuda.dotted(_cuda.SHARING)} or newer can: a newer torch, or its nvidia-nccl wheel"
    )
    yield Finding("ranks sharing a GPU", "yes" if shares else "no", detail)


def _reach(count: int) -> Finding:
    """Whether GPUs can read and write each other's memory."""
    import torch

    if count == 1:
        return Finding("gpu to gpu", "note", "one GPU: nothing to reach; --virtual-ranks runs symm's ranks on it")
    pairs = list(itertools.combinations(range(count), 2))
    apart = [f"{a} and {b}" for a, b in pairs if not torch.cuda.can_device_access_peer(a, b)]
    if not apart:
        return Finding("gpu to gpu", "yes", f"all {count} GPUs reach each other's memory")
    detail = (
        f"{len(apart)} of {len(pairs)} pairs cannot, {apart[0]} first: PCIe ACS, the IOMMU or the hypervisor forbids it"
    )
    return Finding("gpu to gpu", "no", detail)


def _symmetric(count: int) -> Iterator[Finding]:
    """Whether torch maps GPUs' memory into each other, and whether a switch can add up what lies at one address."""
    try:
        from torch._C._autograd import DeviceType
        from torch._C._distributed_c10d import _SymmetricMemory

        without = [str(i) for i in range(count) if not _SymmetricMemory.has_multicast_support(DeviceType.CUDA, i)]
    except (ImportError, RuntimeError) as e:
        yield Finding("symmetric memory", "no", f"not in this torch ({first_line(e)}): install a newer one")
        return
    yield Finding("symmetric memory", "yes", "for symm and torch_*, between GPUs that reach each other")
    detail = f"not on GPU {', '.join(without)}: it needs NVSwitch with its fabric manager running, and H100 or later"
    yield Finding("multicast", *(("no", detail) if without else ("yes", "the switch can reduce: torch_multimem, NVLS")))


def _states(count: int) -> Iterator[Finding]:
    """Each GPU now: no where it is held back or has errors."""
    import torch

    from collbench import gpus

    for index in range(count):
        watch = gpus.watch(torch.device("cuda", index))
        if watch is None:
            yield Finding(f"gpu {index}", "note", torch.cuda.get_device_name(index))
            continue
        state = watch.read()
        watch.close()
        troubles = [f"held back by {', '.join(state.throttle)}: check cooling and power"] * bool(state.throttle)
        troubles += [f"{state.ecc} uncorrected ECC errors: reset it, see nvidia-smi -q -d ECC"] * bool(state.ecc)
        yield Finding(f"gpu {index}", "no" if troubles else "note", "; ".join([told(state), *troubles]))


def told(state: GpuState) -> str:
    """A GPU's state in words, as far as it is known."""
    clock = f"{state.sm_mhz} of {state.sm_mhz_default} MHz" if state.sm_mhz and state.sm_mhz_default else ""
    heat = f"{state.celsius} °C" if state.celsius is not None else ""
    power = f"{state.watts:.0f} W" if state.watts is not None else ""
    return ", ".join(filter(None, [state.name, clock, heat, power]))
