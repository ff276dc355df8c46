"""Reference algorithms in GPU peer memory, each call one Triton kernel (``ring@symm``)."""

from __future__ import annotations

import os
from importlib import util
from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.core.dtypes import OPS
from collbench.run.backends._torch_refusal import refuse_gpu_here
from collbench.suite.case import Case


def create(name: str) -> Any:
    """The backend, not opened."""
    from collbench.run.backends._symm import Symmetric

    return Symmetric()


def refuse(case: Case) -> str:
    """Why the kernel never runs ``case``; else an empty string."""
    divides = case.op in OPS and OPS[case.op].divides
    if divides and case.type.kind != "float" and case.n >> case.type.precision:
        return f"{case.dtype} does not hold {case.n}, by which avg divides"
    return ""


def refuse_here() -> str:
    """Why no rank of this machine can open it: Triton, and a GPU unless Triton interprets its
    kernel; else an empty string."""
    if util.find_spec("triton") is None:
        return "symm needs Triton, which is not installed (pip install triton)"
    if os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "y", "yes", "on", "true"):
        return ""
    return refuse_gpu_here(
        "symm", "--backend shm runs on CPUs, and symm does with TRITON_INTERPRET=1"
    )


INFO = BackendInfo(
    about="algorithms in GPU peer memory, one Triton kernel (ring@symm)",
    packages=("triton",),
    settings=("TRITON_INTERPRET", "NCCL_"),
    gpu="shared",
    native=False,
    messages=False,
    groups="none",
    background="none",
    virtual_ranks=True,
    refuse=refuse,
    here=refuse_here,
)
