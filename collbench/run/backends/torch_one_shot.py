"""torch's own kernels of one kind on symmetric memory: _torchsymm.py runs them."""

from __future__ import annotations

from typing import Any

from collbench.run.backends._torch_kernels import describe

INFO = describe("torch_one_shot", "torch's one-shot all_reduce: each rank reads all others")


def create(name: str) -> Any:
    """The backend, not opened."""
    from collbench.run.backends._torchsymm import TorchSymmetric

    return TorchSymmetric(name)
