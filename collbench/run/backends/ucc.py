"""UCC, where torch is built with it."""

from __future__ import annotations

from functools import partial
from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.run.backends._torch_refusal import refuse, refuse_library_here

INFO = BackendInfo(
    about="torch.distributed with UCC, where torch is built with it",
    settings=("UCC_", "NCCL_", "RCCL_"),
    lacks=("scan",),
    refuse=refuse,
    here=partial(refuse_library_here, "ucc"),
)


def create(name: str) -> Any:
    """The backend, not opened."""
    from collbench.run.backends._torchdist import TorchDistributed

    return TorchDistributed(name)
