"""What torch.distributed's libraries run nowhere, and why they cannot run here. Loads no torch
before it is asked about this machine."""

from __future__ import annotations

from collbench.machine import environment, gpu
from collbench.suite.case import Case

WAITING = frozenset(
    {"barrier"}
)  # returns when all is done; other calls on NCCL when the current stream is behind them


def refuse(case: Case) -> str:
    """Why torch's backend of a case never runs it; else an empty string."""
    name, native = case.backend, case.algorithm == "native"
    if case.mode == "graph" and name != "nccl":
        return f"{name} cannot be captured in a CUDA graph"
    if case.mode == "graph" and native and case.collective in WAITING:
        return f"torch's {case.collective} waits for the device, which a CUDA graph cannot"
    if case.mode == "graph" and case.n == 1 and case.in_place and not _scales(case):
        return "one rank has nothing to do in place (an empty CUDA graph)"
    if native and (reason := _refuse_reduction(case)):
        return reason
    if case.row.pairwise and native and case.n == 1:
        return f"{name} does not send to itself"
    return ""


def _scales(case: Case) -> bool:
    """Whether NCCL multiplies what a rank contributes, even of one rank: its only kernel there."""
    return case.op == "premul_sum" or (case.op == "avg" and case.type.kind == "float")


def _refuse_reduction(case: Case) -> str:
    """Why no library of torch's has the reduction of a case, or none that gives its results."""
    if case.op == "premul_sum" and case.backend != "nccl":
        return f"premul_sum is an NCCL reduction; {case.backend} has none"
    multiplies = case.op == "avg" and case.backend != "gloo"  # TorchDistributed.premultiplies
    return case.type.refuse_inverse(case.n) if multiplies else ""


def missing_gpu() -> tuple[str, str]:
    """Why torch can use no GPU here, and what to do about it; two empty strings where it can."""
    import torch

    name = f"torch {torch.__version__}"
    if torch.cuda.is_available():
        return "", ""
    if not (torch.version.cuda or torch.version.hip):
        return f"{name} is built without CUDA or ROCm", "pytorch.org/get-started names one with it"
    if not environment.gpu_count():
        return "there is no GPU here", "check CUDA_VISIBLE_DEVICES, or docker run --gpus all"
    reason, hint = gpu.refuse_cuda(torch.version.cuda or "0", gpu.driver_cuda())
    if reason:
        return f"{name} is {reason}", hint
    reason, hint = gpu.refuse_start()
    if reason:
        return reason, hint
    tool = "amd-smi" if torch.version.hip else "nvidia-smi"
    return f"{name} finds no GPU that it can use", f"{tool} shows whether the driver works"


def refuse_gpu_here(name: str, instead: str = "--backend gloo runs on CPUs") -> str:
    """Why no rank of this machine can open a backend that needs GPUs and NCCL; ``instead`` says
    what runs without."""
    if environment.gpu_count():
        return ""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return f"backend {name} needs torch, which cannot be imported here"
    reason, hint = missing_gpu()
    if not reason and dist.is_available() and dist.is_nccl_available():
        return ""
    reason = reason or f"torch {torch.__version__} has no NCCL"
    ways = "; ".join(filter(None, [hint, instead]))
    return f"backend {name} needs a GPU that torch can use: {reason} ({ways})"


def refuse_library_here(name: str) -> str:
    """Why no rank of this machine can open a library that torch is built with or not."""
    try:
        import torch.distributed as dist
    except ImportError:
        return f"backend {name} needs torch, which cannot be imported here"
    if dist.is_available() and dist.is_backend_available(name):
        return ""
    return f"backend {name} is not in this torch, which was built without {name.upper()}"
