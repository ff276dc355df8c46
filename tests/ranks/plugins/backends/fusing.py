"""Gloo, to which torch hands the calls of -m as one, as it does to NCCL, and which is heard on
calls of its own, as NCCL is."""

from __future__ import annotations

from collections.abc import Callable

from collbench.records.types import Choice
from collbench.run.backends._torchdist import TorchDistributed


class Fusing(TorchDistributed):
    def __init__(self) -> None:
        super().__init__("gloo")
        self.label = "nccl"

    def overheard(self, call: Callable[[], object]) -> Choice | None:
        call()
        return None


def create(name: str) -> Fusing:
    return Fusing()
