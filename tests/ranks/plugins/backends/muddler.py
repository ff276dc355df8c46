"""Gloo whose operations of steps of training are not what they should be: what stands in
$SABOTAGE_FILE is WHAT:RANK:CALL, for example swap:1:2 (on rank 1, its third call prepared).

``swap`` makes the call on the next one's buffers and that one on its, as buckets in another order;
``short`` leaves out the last element, as another bucket size; ``stale`` works on what was in the
buffers at first; ``freeze`` leaves what its first call has left; ``replay`` brings that result each
time; ``drop`` does nothing; ``elsewhere`` talks to the group opened first. Rank -1: all of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist

from collbench.run.backends import Call
from collbench.run.backends._torchdist import TorchDistributed
from collbench.suite.case import Case


class Nothing:
    def wait(self) -> None:
        return


class Muddler(TorchDistributed):
    opened: list[Muddler] = []
    prepared = 0
    kept: list[tuple[Any, Any]] = []

    def __init__(self) -> None:
        super().__init__("gloo")
        what, rank, call = Path(os.environ["SABOTAGE_FILE"]).read_text().split(":")
        self._what, self._at_rank, self._at_call = what, int(rank), int(call)

    def open(self, rank: int, n: int, local_rank: int) -> None:
        super().open(rank, n, local_rank)
        self.own = not Muddler.opened  # the worker's, which only tries what there is
        Muddler.opened.append(self)

    def prepare(self, case: Case, send: Any, recv: Any) -> Call:
        if self.own:
            return super().prepare(case, send, recv)
        number = Muddler.prepared - self._at_call
        Muddler.prepared += 1
        if number not in (0, 1) or self._at_rank not in (-1, dist.get_rank()):
            return super().prepare(case, send, recv)
        if self._what == "swap":
            Muddler.kept.append((send, recv))
            calls: list[Call] = []

            def other() -> Call:
                if not calls:
                    calls.append(super(Muddler, self).prepare(case, *Muddler.kept[1 - number]))
                return calls[0]

            return Call(lambda: other().run(), lambda: other().submit())
        if number:
            return super().prepare(case, send, recv)
        match self._what:
            case "short":
                return super().prepare(case, send[:-1], recv[:-1])
            case "stale":
                return super().prepare(case, send.clone(), recv.clone())
            case "freeze" | "replay":
                return self._freeze(case, send, recv)
            case "drop":
                return Call(lambda: None, Nothing)
        self._at, kept = Muddler.opened[1]._at, self._at
        call = super().prepare(case, send, recv)
        self._at = kept
        return call

    def _freeze(self, case: Case, send: Any, recv: Any) -> Call:
        into = recv.clone()
        true, first = super().prepare(case, send, into), list[Any]()

        def run() -> None:
            true.run()
            if not first or self._what == "replay":
                first.append(into.clone())
                recv.copy_(first[0])

        def submit() -> Nothing:
            run()
            return Nothing()

        return Call(run, submit)


def create(name: str) -> Muddler:
    return Muddler()
