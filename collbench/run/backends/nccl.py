"""NCCL, and RCCL on AMD's GPUs: torch.distributed's library for GPUs, and algorithms by its
messages (``ring@nccl``)."""

from __future__ import annotations

from functools import partial
from typing import Any

from collbench.core.backend_info import NCCL_WHEELS, BackendInfo
from collbench.run.backends._torch_refusal import refuse, refuse_gpu_here

INFO = BackendInfo(
    about="torch.distributed on GPUs (AMD's: RCCL); algorithms by its messages (ring@nccl)",
    packages=NCCL_WHEELS,
    settings=("NCCL_", "RCCL_", "TORCH_NCCL_"),
    gpu="each",
    mode="streaming",
    tags=False,
    lacks=("scan",),
    registers=True,
    averages=True,
    refuse=refuse,
    here=partial(refuse_gpu_here, "nccl"),
)


def create(name: str) -> Any:
    """The backend, not opened."""
    from collbench.run.backends._torchdist import TorchDistributed

    return TorchDistributed(name)
