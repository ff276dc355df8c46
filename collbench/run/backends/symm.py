"""Reference algorithms in GPU peer memory, each call one Triton kernel (``ring@symm``)."""

from __future__ import annotations

from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.core.dtypes import OPS
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
)
