"""The doctor's checks of GPUs: all that their ranks stand on, and a remedy for what is missing."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata, util
from typing import Any, NamedTuple

from collbench.core.errors import CannotRun, first_line
from collbench.machine import environment
from collbench.machine.gpu import FAKE_MEANING, driver_cuda, is_fake, refuse_cuda, refuse_start
from collbench.records.types import GpuState
from collbench.show.views import machines

NO_TRITON = "pip install triton: without it symm runs no reference algorithm in GPU memory"

IN_CONTAINER = "or start the container with GPUs (docker run --gpus all)"

NO_HIP = "not built for it: pytorch.org/get-started names the one for ROCm"
NOT_FOR_AMD = "symm's kernel has NVIDIA's instructions: it runs on no GPU of AMD's"
NO_KFD = "no GPU to use: check HIP_VISIBLE_DEVICES; docker run --device /dev/kfd --device /dev/dri"

NO_NODES = f"check CUDA_VISIBLE_DEVICES, {IN_CONTAINER}"


class Finding(NamedTuple):
    """One line of the report: what, how it stands (yes, no, note), and the reason or value."""

    what: str
    state: str
    detail: str


NO_GPU = Finding("GPUs", "note", f"no driver of NVIDIA or AMD: install it, {IN_CONTAINER}")


def gpu_findings(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """A line for each thing that GPU ranks stand on, from the driver upwards; where something is
    missing, what to do about it."""
    import torch

    gpus = facts["gpus"]
    usable = max(environment.gpu_count(), torch.cuda.device_count())
    if torch.version.hip or "vendor" in gpus:
        yield from _check_rocm(gpus.get("driver"), torch.version.hip, usable)
    else:
        yield _check_driver(gpus, usable, torch.cuda.is_available())
        yield _check_nvml(gpus)
        yield _check_cuda(torch.version.cuda, gpus.get("cuda") or driver_cuda())
    yield from _check_nccl()
    triton = facts["libraries"].get("triton")
    kernel = ("yes", f"{triton}, compiles symm's kernel") if triton else ("no", NO_TRITON)
    yield Finding("triton", *(("no", NOT_FOR_AMD) if torch.version.hip else kernel))
    if triton and not torch.version.hip:
        yield _check_compiler()
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        yield _check_peer_access(count)
        yield from _check_symmetric_memory(count)
        yield from _check_states(count)
    else:
        for what in ("gpu to gpu", "symmetric memory", "multicast"):
            yield Finding(what, "no", "needs a GPU that torch can use, see above")
    if any(device.get("persistence") == 0 for device in gpus["devices"]):
        yield Finding(
            "gpu persistence",
            "no",
            "off, so that each start wakes the driver: sudo nvidia-smi -pm 1",
        )
    if divided := check_mig(gpus["devices"]):
        yield divided
    for what, detail in (
        ("gpu links", machines.describe_links(gpus)),
        ("rdma", ", ".join(machines.describe_adapters(facts["rdma"]))),
    ):
        if detail:
            yield Finding(what, "note", detail)


def _check_rocm(driver: str | None, hip: str | None, usable: int) -> Iterator[Finding]:
    """The software that ranks on AMD's GPUs need, where it differs from NVIDIA's."""
    from collbench.run.rank import gpu

    about = f"amdgpu {driver or 'of the kernel'}"
    detail = f"{about}, {usable} GPUs usable" if usable else f"{about}: {NO_KFD}"
    yield Finding("gpu driver", "yes" if usable else "no", detail)
    missing = gpu.explain_unwatched()
    unread = "clocks, throttling, errors, topology"
    detail = f"{missing}: without it {unread} stay unknown" if missing else unread
    yield Finding("amdsmi", "no" if missing else "yes", detail)
    detail = f"built for ROCm {hip}" if hip else NO_HIP
    yield Finding("torch for ROCm", "yes" if hip else "no", detail)


def _check_driver(gpus: Mapping[str, Any], nodes: int, works: bool) -> Finding:
    """The driver, whose version only NVML and the kernel module tell; where torch ``works`` with a
    GPU there is one."""
    version, cuda = gpus.get("driver"), gpus.get("cuda") or driver_cuda()
    version = version or ("version unknown" if works else None)
    reason, hint = ("", "") if works else refuse_start()
    if version and nodes and reason:
        return Finding("gpu driver", "no", f"{version}, {nodes} GPUs, but {reason}: {hint}")
    if version and nodes:
        return Finding(
            "gpu driver",
            "yes",
            f"{version}{f', CUDA up to {cuda}' if cuda else ''}, {nodes} GPUs usable",
        )
    if version:
        return Finding("gpu driver", "no", f"{version}, but no GPU to use: {NO_NODES}")
    return Finding("gpu driver", "no", f"no NVIDIA driver here: install it, {IN_CONTAINER}")


def _check_nvml(gpus: Mapping[str, Any]) -> Finding:
    wheel = next(iter(metadata.distributions(name="nvidia-ml-py")), None)
    if not util.find_spec("pynvml"):
        detail = (
            "pip install nvidia-ml-py: without it clocks, throttling, errors and topology stay"
            " unknown"
        )
        return Finding("nvidia-ml-py", "no", detail)
    if why_not := gpus.get("why_not"):
        return Finding(
            "nvidia-ml-py", "no", f"{why_not}: it comes with the driver; nvidia-smi must work first"
        )
    return Finding(
        "nvidia-ml-py",
        "yes",
        f"{wheel.version if wheel else 'found'}: clocks, throttling, errors, topology",
    )


def _check_cuda(built: str | None, driver: str | None) -> Finding:
    """Whether torch is built for CUDA, and for one that the driver can run."""
    if not built:
        return Finding(
            "torch for CUDA",
            "no",
            "a CPU build of torch: pytorch.org/get-started names the one for CUDA",
        )
    reason, hint = refuse_cuda(built, driver)
    if reason:
        return Finding("torch for CUDA", "no", f"{reason}: {hint}")
    return Finding("torch for CUDA", "yes", f"built for CUDA {built}")


def _check_compiler() -> Finding:
    """The C compiler with which Triton builds what launches a kernel: that of CC, else gcc or
    clang."""
    about = partial(Finding, "c compiler")
    needed = "Triton needs it to launch symm's kernel"
    from_environment = os.environ.get("CC")
    compiler = next(
        filter(
            None, map(shutil.which, [from_environment] if from_environment else ["gcc", "clang"])
        ),
        None,
    )
    if compiler:
        return about("yes", f"{compiler}: {needed}")
    missing = (
        f"CC={from_environment} is not found"
        if from_environment
        else "no gcc or clang (apt-get install gcc)"
    )
    return about("no", f"{missing}: {needed}")


def _check_nccl() -> Iterator[Finding]:
    import torch
    import torch.distributed as dist

    if not dist.is_nccl_available():
        yield Finding("nccl", "no", "this torch build has no NCCL: install one for CUDA")
        yield Finding(
            "ranks sharing a GPU", "no", "--share-gpu needs NCCL; --backend gloo runs without"
        )
        return
    from collbench.run.backends import _cuda

    version = _cuda.nccl_version()
    state = ("yes", "")
    if not torch.cuda.is_available():
        state = ("no", ", but torch sees no usable GPU, see above")
    else:
        try:
            _cuda.require_nvml(_cuda.library_name())
        except CannotRun as e:
            state = ("no", f": {e.message}: {e.hint}")
    yield Finding(
        "nccl", state[0], f"{_cuda.library_name()} {_cuda.format_version(version)}{state[1]}"
    )
    shares = version >= _cuda.SHARING
    detail = (
        "--share-gpu, by NCCL_MULTI_RANK_GPU_ENABLE=1"
        if shares
        else (
            f"{_cuda.library_name()} {_cuda.format_version(_cuda.SHARING)} or newer can: a newer"
            " torch" + ", or its nvidia-nccl wheel" * (torch.version.hip is None)
        )
    )
    yield Finding("ranks sharing a GPU", "yes" if shares else "no", detail)


def _check_peer_access(count: int) -> Finding:
    """Whether GPUs can read and write each other's memory."""
    import torch

    if count == 1:
        return Finding(
            "gpu to gpu",
            "note",
            "one GPU: nothing to reach; --virtual-ranks runs symm's ranks on it",
        )
    pairs = list(itertools.combinations(range(count), 2))
    blocked = [f"{a} and {b}" for a, b in pairs if not torch.cuda.can_device_access_peer(a, b)]
    if not blocked:
        return Finding("gpu to gpu", "yes", f"all {count} GPUs reach each other's memory")
    detail = (
        f"{len(blocked)} of {len(pairs)} pairs cannot, {blocked[0]} first: PCIe ACS, the IOMMU or"
        " the hypervisor forbids it"
    )
    return Finding("gpu to gpu", "no", detail)


def _check_symmetric_memory(count: int) -> Iterator[Finding]:
    """Whether torch maps GPUs' memory into each other, and whether a switch can add up what lies at
    one address."""
    import torch

    from collbench.run.backends import _cuda

    try:
        _cuda.require_nvml()
        gpus = [torch.device("cuda", index) for index in range(count)]
        without = [str(gpu.index) for gpu in gpus if not _cuda.has_multicast(gpu)]
    except (ImportError, RuntimeError) as e:
        yield Finding(
            "symmetric memory", "no", f"not in this torch ({first_line(e)}): install a newer one"
        )
        return
    except CannotRun as e:
        yield Finding("symmetric memory", "no", f"{e.message}: {e.hint}")
        return
    yield Finding(
        "symmetric memory", "yes", "for symm and torch_*, between GPUs that reach each other"
    )
    detail = (
        f"not on GPU {', '.join(without)}: it needs NVSwitch with its fabric manager running, and"
        " H100 or later"
    )
    yield Finding(
        "multicast",
        *(("no", detail) if without else ("yes", "the switch can reduce: torch_multimem, NVLS")),
    )


def _check_states(count: int) -> Iterator[Finding]:
    """The state of each GPU now: "no" where a GPU is held back or has errors."""
    import torch

    from collbench.run.rank import gpu

    for index in range(count):
        watch = gpu.open_watch(torch.device("cuda", index))
        name = torch.cuda.get_device_name(index)
        fake = [FAKE_MEANING] * is_fake(name)
        if watch is None:
            yield Finding(f"gpu {index}", "no" if fake else "note", "; ".join([name, *fake]))
            continue
        state = watch.read()
        watch.close()
        troubles = fake + [
            f"held back by {', '.join(state.throttle)}: check cooling and power"
        ] * bool(state.throttle)
        troubles += [
            f"{state.ecc} uncorrected ECC errors: reset it, see "
            + ("amd-smi metric --ecc" if torch.version.hip else "nvidia-smi -q -d ECC")
        ] * bool(state.ecc)
        yield Finding(
            f"gpu {index}",
            "no" if troubles else "note",
            "; ".join([describe_gpu_state(state), *troubles]),
        )


def check_mig(devices: Sequence[Mapping[str, Any]]) -> Finding | None:
    """Which GPUs are divided into instances, by their facts; None where none is."""
    divided = [
        str(number) for number, device in enumerate(devices) if (device.get("mig") or [0])[0]
    ]
    if not divided:
        return None
    detail = f"on for GPU {', '.join(divided)}: ranks measure instances, not whole GPUs"
    return Finding("MIG", "note", detail)


def describe_gpu_state(state: GpuState) -> str:
    """A GPU's state in words, as far as it is known."""
    clock = (
        f"{state.sm_mhz} of {state.sm_mhz_default} MHz"
        if state.sm_mhz and state.sm_mhz_default
        else ""
    )
    heat = f"{state.celsius} °C" if state.celsius is not None else ""
    power = f"{state.watts:.0f} W" if state.watts is not None else ""
    return ", ".join(filter(None, [state.name, clock, heat, power]))


def has_gpus(facts: Mapping[str, Any]) -> bool:
    """Whether there is a GPU or what belongs to one; where not, its libraries say nothing."""
    import torch

    gpus = facts["gpus"]
    vendor = environment.gpu_count() or gpus.get("driver") or torch.version.hip or "vendor" in gpus
    return bool(vendor) or torch.cuda.is_available()
