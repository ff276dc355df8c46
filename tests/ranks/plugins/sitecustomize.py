"""On a test's PYTHONPATH: collbench finds this folder's backends and algorithms.

SABOTAGE=slow-start:RANK:0 delays a rank; SABOTAGE=straggle:RANK:0 has it come 2 ms late to every
call, outside the clock; never-in-time voids every sample. CLOCKS=LIMIT gives every rank of a
launcher a host of its own, whose clock started a quarter of an hour after the last one's and drifts
30 ppm more; hosts' clocks are then relied upon below an error of LIMIT ns, whatever a sample takes.
CLOCKS=one gives them hosts only."""

import os
import socket
import time
from pathlib import Path

import collbench.core.algorithms
import collbench.run.backends
from collbench.run.launch.board import Board

collbench.run.backends.__path__.append(str(Path(__file__).parent / "backends"))
collbench.core.algorithms.__path__.append(str(Path(__file__).parent / "algorithms"))

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
if "CLOCKS" in os.environ and "RANK" in os.environ:
    from collbench.machine import environment
    from collbench.run.rank import clocks

    rank, true = int(os.environ["RANK"]), time.perf_counter_ns
    began = true()
    socket.gethostname = environment.host = lambda: f"host{rank}"
    clocks.WINDOW_NS = (
        20_000_000  # ranks that share cores with other tests come to an earlier start late
    )
if os.environ.get("CLOCKS", "one") != "one" and "RANK" in os.environ:
    time.perf_counter_ns = lambda: true() + rank * (900 * 10**9 + (true() - began) * 30 // 10**6)
    environment.same_clock_domain_key = environment.boot_id = lambda root=None: f"clock{rank}"
    clocks.ERROR_NS, clocks.ERROR_SHARE = int(os.environ["CLOCKS"]), float("inf")
if what == "slow-start":
    slow, forks = int(rest.partition(":")[0]), []
    os.register_at_fork(
        before=lambda: forks.append(1),
        after_in_child=lambda: time.sleep(3600) if len(forks) == slow + 1 else None,
    )
