"""The mpi backend against MPI_Allreduce in a C loop and in a plain loop of mpi4py: what collbench
and Python add.

``python tests/perf/mpi_native.py --beside PYTHON --output reports/mpi.md``, where PYTHON is that of
a virtual environment with another MPI (`pip install collbench mpi4py mpich`) and adds a table.
Each side has two ranks of the same MPI, on the same two cores, all the time; they take turns case
by case, each of them first in turns, so that what the machine does to one it does to the other a
moment later. The loops follow
what collbench chose for a size: buffers that take turns, calls to a sample, samples. The C loop is
left out without a C compiler. Nothing here is asserted in CI.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from collbench.features.health.locate.command import make_listener
from collbench.machine import cpus, environment
from collbench.records import stats
from collbench.records.derive import Derived
from collbench.records.types import Record, World
from collbench.run import session
from collbench.run.launch import mpirun
from collbench.run.launch.board import Board
from collbench.run.order import Order
from collbench.suite import grammar, sweep
from collbench.suite import policy as policy_
from collbench.suite.case import Case

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
N = 2
MOST, MICROSECOND = 0.05, 1.0  # either will do
END, ANSWERED, MEDIAN = -1, 5, 6  # of the board's last line; see mpi_loop.c


def compiled(folder: Path) -> bool:
    """Whether there is ``folder / "loop"`` now, of C."""
    mpicc = shutil.which("mpicc", path=str(BIN))
    made = mpicc and subprocess.run(
        [mpicc, "-O2", "-o", folder / "loop", HERE / "mpi_loop.c"], check=False
    )
    return bool(made) and made.returncode == 0


class Loop:
    """Another side: answers what a call takes it. Sleeps between questions."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        path = folder / name
        path.write_bytes(bytes(Board.size(N + 1)))
        command = [folder / "loop"] if name == "C" else [sys.executable, __file__, "--rank"]
        settings = {**mpirun.SETTINGS, **(mpirun.AS_ROOT if os.getuid() == 0 else {}), **os.environ}
        self._process = subprocess.Popen(
            [mpirun.find_mpirun(), "-n", str(N), *command, path], env=settings
        )
        self._words = Board.at(path, N + 1).cells[-8:]
        self._question = 0

    def ask(self, nbytes: int, slots: int, inner: int, samples: int) -> float:
        """Nanoseconds."""
        self._question += 1
        self._words[1:5] = array("q", [nbytes, slots, inner, samples])
        self._words[0] = self._question
        while self._words[ANSWERED] < self._question and self._process.poll() is None:
            time.sleep(0.05)  # seldom, since whoever wakes takes a core from the ranks
        if self._process.returncode:
            raise SystemExit(f"the loop ended with {self._process.returncode}")
        return float(self._words[MEDIAN])

    def close(self) -> None:
        self._words[1] = END
        self._words[0] = self._question + 1
        self._process.wait()


def rank(path: Path) -> None:
    """What mpi_loop.c does, by mpi4py, on memory as collbench has it (numpy would ask for huge
    pages)."""
    import torch
    from mpi4py import MPI

    comm, board = MPI.COMM_WORLD, Board.at(path, N + 1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[comm.rank]})
    words, question, clock = board.cells[-8:], 1, time.perf_counter_ns
    meeting = Board.at(path, N)
    while True:
        while words[0] < question:
            time.sleep(0.02)
        nbytes, slots, inner, samples = words[1:5]
        if nbytes == END:
            return
        pairs = [
            (torch.ones(nbytes // 4).numpy(), torch.ones(nbytes // 4).numpy()) for _ in range(slots)
        ]
        took, turn = [], 0
        for i in range(-samples // 4 - 10, samples):
            late = meeting.meet(comm.rank, 200_000)
            begin = clock()
            for _ in range(inner):
                comm.Allreduce(*pairs[turn])
                turn = (turn + 1) % slots
            end = clock()
            if i >= 0:
                took.append(np.inf if late else (end - begin) / inner)
        slowest = np.array(took)
        comm.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
        if comm.rank == 0:
            words[MEDIAN] = round(np.median(slowest[slowest < np.inf]))
            words[ANSWERED] = question
        question += 1


class Turns:
    """Each size once to choose by, then ``rounds`` times on all sides, sizes in an order of the
    round's own, and sides in one that each round begins with the next of them."""

    def __init__(self, loops: Sequence[Loop], sizes: Sequence[int], rounds: int) -> None:
        self._loops = loops
        rng = np.random.default_rng(1)
        self._left = [
            (size, cycle) for cycle in range(1, rounds + 1) for size in rng.permutation(sizes)
        ]
        self._like: dict[int, Record] = {}
        self.library = ""
        self.paths: dict[int, list[float]] = defaultdict(list)
        # by size, of each turn: the loops', collbench's
        self.took: dict[int, list[list[float]]] = defaultdict(list)
        self._theirs: dict[int, float] = {}  # by place among the loops, of this turn
        self._mine = 0.0
        self._behind: tuple[int, list[int]] | None = None  # the turn's size, loops still to ask

    def world(self, world: World) -> None:
        self.library = world.library

    def record(self, record: Record, row: Derived | None) -> None:
        size = record.case.nbytes
        if row is None:
            raise SystemExit(f"not measured: {record.note}")
        if size in self._like:
            self._mine = row.times.median
            self.paths[size].append(record.call_path_ns or np.nan)
        self._like[size] = record

    def next_cases(self) -> list[Case]:
        self._end()
        if not self._left:
            return []
        size, cycle = self._left.pop(0)
        mine = len(self._loops)
        order = [(cycle + place) % (mine + 1) for place in range(mine + 1)]
        at = order.index(mine)
        self._theirs = {}
        self._ask(size, order[:at])
        self._behind = size, order[at + 1 :]
        return [msgspec.structs.replace(self._like[size].case, cycle=cycle)]

    def _end(self) -> None:
        """Ends the turn in which collbench has measured: the loops behind it are asked."""
        if self._behind is None:
            return
        size, places = self._behind
        self._ask(size, places)
        theirs = [self._theirs[place] for place in range(len(self._loops))]
        self.took[size].append([*theirs, self._mine])
        self._behind = None

    def _ask(self, size: int, places: Sequence[int]) -> None:
        like = self._like[size]
        for place in places:
            loop = self._loops[place]
            self._theirs[place] = loop.ask(size, like.rotation, like.inner, len(like.times_ns))


def within(low: float, high: float, share: float) -> str:
    """Whether an interval of microseconds lies within a share, or else within one microsecond."""
    if -share <= low and high <= share:
        return "yes"
    if low >= -MICROSECOND and high <= MICROSECOND:
        return "yes (1 us)"
    most = max(share, MICROSECOND)
    return "no" if low > most or high < -most else "not shown"


def line(size: int, took: Sequence[Sequence[float]], paths: Sequence[float]) -> str:
    """A size's row: medians, and the medians of the turns' differences with their intervals."""
    *loops, mine = np.array(took).T / 1e3
    told = [f"{np.median(side):.2f}" for side in (mine, *loops)]
    for plain in loops:
        apart, low, high = stats.median_interval(sorted(mine - plain), len(mine))
        verdict = within(low, high, MOST * float(np.median(plain)))
        told.append(
            f"{apart:+.2f} [{low:+.2f}, {high:+.2f}] ({apart / np.median(plain):+.1%}) {verdict}"
        )
    spread = [f"{np.percentile(side, 90) / np.percentile(side, 10):.1f}" for side in (mine, *loops)]
    path = f"{np.median(paths) / 1e3:.2f}"
    return f"| {size} | {' | '.join([*told, path, ', '.join(spread)])} |"


def measured(chosen: argparse.Namespace) -> list[str]:
    """The section on the MPI that this Python's mpi4py uses."""
    sizes = [grammar.parse_size(size, "--sizes") for size in chosen.sizes.split(",")]
    axes = sweep.Axes(
        collectives=("all_reduce",),
        sizes=tuple(sizes),
        ranks=(N,),
        backends=("mpi",),
        in_place=(False,),
    )
    policy = policy_.Policy(iters=chosen.samples, sync="window", order="size")
    with tempfile.TemporaryDirectory() as folder:
        names = (["C"] if compiled(Path(folder)) else []) + ["mpi4py"]
        loops = [Loop(Path(folder), name) for name in names]
        turns = Turns(loops, sizes, chosen.rounds)
        order = Order(
            suite=sweep.Suite(name="mpi", axes=axes, policy=policy),
            command=sys.argv,
            save=False,
            next_cases=turns.next_cases,
        )
        try:
            session.execute_order(order, lambda: make_listener(turns))
        finally:
            for loop in loops:
                loop.close()
    heads = [*(f"{name} loop" for name in names), *(f"over the {name} loop" for name in names)]
    return [
        "",
        f"## {turns.library}",
        "",
        f"| size | collbench | {' | '.join(heads)} | call path | turns differ |",
        f"|---|---|{'---|' * len(heads)}---|---|",
        *(line(size, turns.took[size], turns.paths[size]) for size in sizes),
    ]


def beside(python: str, chosen: argparse.Namespace) -> list[str]:
    """The section that another Python makes."""
    options = [f"--{name}={getattr(chosen, name)}" for name in ("rounds", "sizes", "samples")]
    told = subprocess.run(
        [python, __file__, *options], stdout=subprocess.PIPE, text=True, check=True
    )
    return ["", *told.stdout[told.stdout.index("## ") :].splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--sizes", default="8,512,4K,32K,256K,2M,16M")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--beside", metavar="PYTHON", help="another, whose mpi4py has another MPI")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank:
        return rank(chosen.rank)
    cpu = environment.gather_facts()["cpu"].get("model")
    sections = [*measured(chosen), *(beside(chosen.beside, chosen) if chosen.beside else [])]
    lines = [
        "# The mpi backend against plain loops",
        "",
        (
            f"all_reduce, float, out of place, {N} ranks, isolated calls, {cpu},"
            f" {cpus.core_count()} cores, {datetime.now(UTC):%Y-%m-%d}, us; at the end the"
            f" machine's load was {os.getloadavg()[2]:.1f}. Medians of"
            f" {chosen.rounds} turns of {chosen.samples} samples of the slowest rank; all sides'"
            " ranks stay alive and take turns case by case, each of them first in turns. Over a"
            " loop: the median of the turns' differences, its 95 % interval, and whether that is"
            " within 5 % (yes), or only within 1 us (yes (1 us)). Where a loop is slower than"
            " collbench, the sides differ by more than what collbench adds. Call path:"
            " what collbench's call takes with no elements on MPI_COMM_SELF, as it stands in the"
            " records; nothing is subtracted. Turns differ, by 90th over 10th percentile: each"
            " side's. Made by `python tests/perf/mpi_native.py --beside PYTHON`."
        ),
        *sections,
    ]
    if chosen.output:
        chosen.output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return None


if __name__ == "__main__":
    main()
