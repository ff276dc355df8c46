"""torch's own kernels of one kind on symmetric memory: _torchsymm.py runs them."""

from __future__ import annotations

from typing import Any

from collbench.run.backends._torch_kernels import describe

INFO = describe("torch_multimem", "torch's kernels with the switch adding up (NVLS)")


def create(name: str) -> Any:
    """The backend, not opened."""
    from collbench.run.backends._torchsymm import TorchSymmetric

    return TorchSymmetric(name)
