"""All ranks of an all_reduce in one process, for trying virtual ranks without a GPU. ``wrong:RANK``
in SABOTAGE_FILE spoils what it gets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from collbench.run.backends import Base, Call
from collbench.suite.case import Case


class Imagined(Base):
    device = torch.device("cpu")
    premultiplies = False
    library = "imagination"

    def refuse(self, case: Case) -> str:
        return "" if (case.collective, case.op) == ("all_reduce", "sum") else "beyond imagination"

    def copies_first(self, case: Case) -> bool:
        return False

    def open(self, rank: int, n: int, local_rank: int) -> None:
        pass

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def prepare_all(self, case: Case, sends: Sequence[Any], recvs: Sequence[Any]) -> Call:
        what, _, rank = Path(os.environ["SABOTAGE_FILE"]).read_text().partition(":")
        wrong = int(rank) if what == "wrong" else -1

        def run() -> None:
            total = torch.stack(list(sends)).sum(0)
            for rank, recv in enumerate(recvs):
                recv.copy_(-total - 1 if rank == wrong else total)

        return Call(run, None)

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


def create(name: str) -> Imagined:
    return Imagined()
