"""On a test's PYTHONPATH: collbench finds this folder's backends and algorithms.

SABOTAGE=slow-start:RANK:0 delays a rank;
SABOTAGE=straggle:RANK:0 has it come 2 ms late to every call, outside the clock; never-in-time voids every sample."""

import os
import time
from pathlib import Path

import collbench.algorithms
import collbench.backends
from collbench.launch.board import Board

collbench.backends.__path__.append(str(Path(__file__).parent / "backends"))
collbench.algorithms.__path__.append(str(Path(__file__).parent / "algorithms"))

what, _, rest = os.environ.get("SABOTAGE", "").partition(":")
if what == "straggle":
    beat, late = Board.beat, int(rest.partition(":")[0])

    def straggle(self: Board, rank: int) -> None:
        time.sleep(0.002 if rank == late else 0)
        beat(self, rank)

    Board.beat = straggle  # type: ignore[method-assign]
if what == "never-in-time":
    meet = Board.meet
    Board.meet = lambda self, rank, ahead_ns: meet(self, rank, ahead_ns) or True  # type: ignore[method-assign]
if what == "slow-start":
    slow, forks = int(rest.partition(":")[0]), []
    os.register_at_fork(
        before=lambda: forks.append(1),
        after_in_child=lambda: time.sleep(3600) if len(forks) == slow + 1 else None,
    )
