"""oneCCL on Intel's GPUs, where torch is built with it."""

from __future__ import annotations

from functools import partial
from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.run.backends._torch_refusal import refuse, refuse_library_here

INFO = BackendInfo(
    about="torch.distributed on Intel's GPUs, where torch is built with it",
    tags=False,
    lacks=("scan",),
    refuse=refuse,
    here=partial(refuse_library_here, "xccl"),
)


def create(name: str) -> Any:
    """The backend, not opened."""
    from collbench.run.backends._torchdist import TorchDistributed

    return TorchDistributed(name)
