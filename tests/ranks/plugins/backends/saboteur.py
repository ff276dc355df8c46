"""Gloo (saboteur_shm: shared memory) with one planted fault: $SABOTAGE, or what stands in
$SABOTAGE_FILE, is WHAT:RANK:CALL, for example corrupt:1:3 (on rank 1, at its third call).

``corrupt`` flips a bit of the last element received; ``kill``, ``stop`` and ``raise`` end, stop or
fail the rank; ``interrupt`` is Ctrl-C for who has started its parent; ``sleep`` hangs it before the
call, ``never-leave`` stops it after the last; ``refuse`` has it refuse to be opened, ``crash`` fail
there; ``refuse-all`` has every rank refuse to be opened, ``refuse-size`` refuse cases of so many
bytes, for which by ``no-memory`` the rank has no room; by ``refuse-calls`` every call raises, by
``break`` all that follows does, too; ``lazy`` has every rank do nothing from that call on;
``straggle:RANK:0`` has a rank come 2 ms late to every call, outside the clock, ``never-in-time``
voids every sample, ``blind:RANK:0`` has a rank's check find nothing. With ``-each`` behind it
(lazy-each) a fault is planted in every case, whose calls are counted by themselves. With ``-again``
behind it, calls count once the run's file, $SABOTAGE_RUN, has a record: of one case, in its second
pass.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import rank_faults
import torch
import torch.distributed as dist

from collbench.core.errors import CannotRun
from collbench.run.backends import Call
from collbench.run.backends._torchdist import TorchDistributed
from collbench.suite.case import Case


class Sabotage:
    """What goes before a backend in a class's bases."""

    def plan(self) -> None:
        told = os.environ.get("SABOTAGE") or Path(os.environ["SABOTAGE_FILE"]).read_text()
        what, rank, call = told.split(":")
        self._what = what.removesuffix("-each").removesuffix("-again")
        self._at_rank, self._at_call = int(rank), int(call)
        self._by_case, self._again = what.endswith("-each"), what.endswith("-again")
        self._calls: Counter[Case | None] = Counter()
        self._broken = False

    def open(self, rank: int, n: int, local_rank: int) -> None:
        super().open(rank, n, local_rank)
        self._mine = dist.get_rank() == self._at_rank
        if self._what == "refuse-all" or (self._mine and self._what == "refuse"):
            raise CannotRun("planted", "a hint")
        if self._mine and self._what == "crash":
            raise ArithmeticError("planted")
        if self._what == "straggle":
            rank_faults.straggle(self._at_rank)
        if self._what == "never-in-time":
            rank_faults.void_samples()
        if self._mine and self._what == "blind":
            rank_faults.blind()

    def prepare(self, case: Case, send: Any, recv: Any) -> Call:
        if self._what == "refuse-size" and case.nbytes == self._at_call:
            raise CannotRun("planted", "a hint")
        if self._what == "no-memory" and self._mine and case.nbytes == self._at_call:
            raise torch.cuda.OutOfMemoryError("planted")
        call = super().prepare(case, send, recv)
        if self._what in ("refuse-calls", "break"):
            return call._replace(run=self._fail)
        if (
            not self._mine and self._what != "lazy"
        ) or case.nbytes < 64:  # the library is probed with a few elements: leave that alone
            return call
        if self._again and '"line":"record"' not in Path(os.environ["SABOTAGE_RUN"]).read_text():
            return call

        counted = case if self._by_case else None

        def run() -> None:
            self._calls[counted] += 1
            due = self._calls[counted] == self._at_call
            if due:
                self._before()
            if self._what != "lazy" or self._calls[counted] < self._at_call:
                call.run()
            if due and self._what == "corrupt":
                recv.view(torch.uint8)[-1] ^= 1

        return Call(run, call.submit)

    def _fail(self) -> None:
        self._broken = self._what == "break"
        raise RuntimeError("planted")

    def finish(self) -> None:
        super().finish()
        if self._broken:
            raise RuntimeError("planted: the device is gone")

    def close(self) -> None:
        if self._mine and self._what == "never-leave":
            os.kill(os.getpid(), signal.SIGSTOP)
        super().close()

    def _before(self) -> None:
        match self._what:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "interrupt":
                os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGINT)
                time.sleep(3600)
            case "raise":
                raise ArithmeticError("planted")
            case "sleep":
                time.sleep(3600)


class Saboteur(Sabotage, TorchDistributed):
    def __init__(self) -> None:
        super().__init__("gloo")
        self.plan()


def create(name: str) -> Saboteur:
    return Saboteur()
