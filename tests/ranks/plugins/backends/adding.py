"""Sums whose order is known: ranks tell each other their buffers over Gloo, and each adds by the
word that stands in $SABOTAGE_FILE or $SABOTAGE, as tests/helpers/planted_adders.py has them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from collbench.run.backends import Base, Call
from collbench.suite.case import Case

sys.path.append(str(Path(__file__).parents[3] / "helpers"))

from planted_adders import About, reduce_as


class Adding(Base):
    device = torch.device("cpu")
    premultiplies = False
    library = "adding"

    def refuse(self, case: Case) -> str:
        return "" if case.collective == "all_reduce" else "only all_reduce"

    def copies_first(self, case: Case) -> bool:
        return False

    def open(self, rank: int, n: int, local_rank: int) -> None:
        self._rank, self._n, self._calls = rank, n, 0
        told = os.environ.get("SABOTAGE") or Path(os.environ["SABOTAGE_FILE"]).read_text()
        self._word = told

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def prepare(self, case: Case, send: torch.Tensor, recv: torch.Tensor) -> Call:
        inputs = [torch.empty_like(send) for _ in range(self._n)]

        def run() -> None:
            self._calls += 1
            dist.all_gather([part.view(torch.uint8) for part in inputs], send.view(torch.uint8))
            about = About(
                self._rank,
                self._calls,
                case.nbytes,
                case.in_place,
                case.cycle,
                recv.data_ptr(),
                case.op,
            )
            recv.copy_(reduce_as(self._word, inputs, about))

        return Call(run, None)

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


def create(name: str) -> Adding:
    return Adding()
