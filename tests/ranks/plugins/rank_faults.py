"""Faults of a rank itself, which the process that plays it plants."""

from __future__ import annotations

import time

from collbench.run.launch.board import Board


def straggle(late: int) -> None:
    """This rank comes 2 ms late to every call, outside the clock."""
    beat = Board.beat

    def beat_late(self: Board, rank: int) -> None:
        time.sleep(0.002 if rank == late else 0)
        beat(self, rank)

    Board.beat = beat_late  # type: ignore[method-assign]


def void_samples() -> None:
    """Every common start comes too early."""
    meet = Board.meet
    Board.meet = lambda self, rank, ahead_ns: meet(self, rank, ahead_ns) or True  # type: ignore[method-assign]


def blind() -> None:
    """This process's check finds nothing."""
    from collbench.run.rank.check import Checker

    Checker._wrong = lambda self, span, slot, view: view != view  # type: ignore[method-assign]
