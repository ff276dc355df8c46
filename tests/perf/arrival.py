"""What a program sees against what collbench says: bare loops of the same calls, the default mode,
host and isolated, in turns.

The bare loops are the plainest torch.distributed (or mpi4py) programs: they load, connect, warm up
and time each call, pinned to nothing. They call each size for as long as collbench may: where a
library's threads are more than the cores, the kernel takes up to seconds to settle where each runs,
and until then calls take several times as long. One loop calls on one buffer, the other in turn on
as many as collbench's default, so that the cache holds none. Algorithms of collbench's own are the
same messages in both. A median is of the slowest rank of each call; what is shown are medians over
turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from collbench.core.text import format_duration, format_size

SIZES = (8, 4096, 256 << 10, 4 << 20)
OPTIONS = {
    "default": (),
    "hot": ("--cache", "hot"),
    "host": ("--mode", "host"),
    "isolated": ("--mode", "isolated"),
}
ONE, MANY = "bare loop, one buffer", "bare loop"  # as many buffers as the default
AGAIN = "bare loop again"  # the same program once more in the turn: how far it repeats itself
SIDES = (ONE, MANY, *OPTIONS, AGAIN)
NEAR, APART = 0.25, 1.25
IMPLEMENTATIONS = ("gloo", "ring@gloo", "recursive_doubling@gloo", "mpi")
BLOCK = 20  # calls of a bare loop, between which rank 0 looks at the time
WARM = 20  # calls of a bare loop before these, at least one on each buffer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--seconds", type=float, default=1, help="that a size is called for")
    parser.add_argument("--only", nargs="+", choices=IMPLEMENTATIONS, default=IMPLEMENTATIONS)
    parser.add_argument("--bare", nargs=4, help=argparse.SUPPRESS)  # what, rank, n, buffers
    given = parser.parse_args()
    if given.bare:
        what, rank, n, buffers = given.bare
        numbers = dict(zip(SIZES, map(int, buffers.split(",")), strict=True))
        if what == "mpi":
            return bare_mpi(numbers, given.seconds)
        return bare_gloo(what, int(rank), int(n), numbers, given.seconds)
    text = report(given)
    if given.output:
        given.output.write_text(text)
    print(text)
    return None


def report(given: argparse.Namespace) -> str:
    lines = [
        "| implementation | n | size | bare loop | default | default over bare | mode"
        " | bare loop again | bare loop, one buffer | hot | host | isolated | why |",
        "|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|---|",
    ]
    near = repeated = total = 0
    for n in given.ranks:
        for what in given.only:
            found = measured(what, n, given.turns, given.seconds)
            for nbytes in SIZES:
                said = [row[nbytes] for row in found["default"]]
                middle = {
                    side: statistics.median(row[nbytes]["median"] for row in rows)
                    for side, rows in found.items()
                }
                close = abs(middle["default"] / middle[MANY] - 1) <= NEAR
                near, total = near + close, total + 1
                repeated += abs(middle[AGAIN] / middle[MANY] - 1) <= NEAR
                cells = [what, str(n), format_size(nbytes), format_duration(middle[MANY])]
                cells += [format_duration(middle["default"])]
                cells += [f"{middle['default'] / middle[MANY]:.2f}{'' if close else ' !'}"]
                others = (AGAIN, ONE, "hot", "host", "isolated")
                cells += [said[0]["mode"], *(format_duration(middle[side]) for side in others)]
                lines.append("| " + " | ".join([*cells, why(said)]) + " |")
                print(lines[-1], file=sys.stderr, flush=True)
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    return (
        "# What a program sees, and what collbench says\n\n"
        f"all_reduce, float, max, in place; {cpu}, {os.cpu_count()} cores, {datetime.now(UTC):%F}."
        f" Medians of {given.turns} turns, in each of which two bare loops (torch.distributed or"
        " mpi4py, pinned to nothing; on as many buffers as the default, and on one), the default,"
        " `--cache hot`, `--mode host`, `--mode isolated` and the first bare loop again follow each"
        f" other, {given.seconds:g} s a size each. {near} of {total} defaults are within {NEAR:.0%}"
        " of the bare loop on as many buffers; the others are marked !. Of that loop's own"
        f" repetitions {repeated} are: this is what the machine repeats. `why` is what the"
        " default's own rows said in most turns (flags; as control: the median of the calls in the"
        " other cadence, where it differs). Made by `python tests/perf/arrival.py`.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def measured(
    what: str, n: int, turns: int, seconds: float
) -> dict[str, list[dict[int, dict[str, Any]]]]:
    """Rows by size, of each turn, for each side."""
    found: dict[str, list[dict[int, dict[str, Any]]]] = {side: [] for side in SIDES}
    first = ours(what, n, "default", seconds)
    many = [first[nbytes]["rotation"] for nbytes in SIZES]
    buffers = {ONE: [1] * len(SIZES), MANY: many, AGAIN: many}
    for turn in range(turns):
        for place in range(len(SIDES)):
            side = SIDES[(turn + place) % len(SIDES)]
            bare = side in buffers
            found[side].append(
                loop(what, n, buffers[side], seconds) if bare else ours(what, n, side, seconds)
            )
    return found


def why(said: list[dict[str, Any]]) -> str:
    """What the default's rows say of themselves in most turns."""
    flags = [flag for row in said for flag in row["flags"]]
    words = [flag for flag in dict.fromkeys(flags) if flags.count(flag) * 2 > len(said)]
    controls = [
        row["control"]
        for row in said
        if row.get("control") and not 1 / APART < row["control"] / row["median"] < APART
    ]
    if len(controls) * 2 > len(said):
        words.append(f"as control {format_duration(statistics.median(controls))}")
    return ", ".join(words)


def ours(what: str, n: int, side: str, seconds: float) -> dict[int, dict[str, Any]]:
    """Rows of a collbench run, by size."""
    algorithm, _, backend = what.rpartition("@")
    command = [sys.executable, "-m", "collbench", "all_reduce", "-g", str(n), "--backend", backend]
    command += ["--sizes", ",".join(map(str, SIZES)), "--place", "in", "-o", "max", "--no-save"]
    command += ["--max-time", f"{seconds:g}s", "--format", "json"]
    command += ["--algo", algorithm] if algorithm else []
    command += OPTIONS[side]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["records"]
    return {row["nbytes"]: row for row in rows if row["median"]}


def loop(what: str, n: int, buffers: list[int], seconds: float) -> dict[int, dict[str, Any]]:
    """Medians of a bare loop, by size, on so many buffers of each."""
    turns = ",".join(map(str, buffers))
    with tempfile.TemporaryDirectory() as folder:
        settings = {**os.environ, "MEET": str(Path(folder) / "meet"), "OMP_NUM_THREADS": "1"}
        me = [sys.executable, str(Path(__file__).resolve()), f"--seconds={seconds}", "--bare"]
        if what == "mpi":
            mpirun = str(Path(sys.executable).parent / "mpirun")
            start = [mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
            commands = [[*start, "-n", str(n), *me, "mpi", "0", str(n), turns]]
        else:
            commands = [[*me, what, str(rank), str(n), turns] for rank in range(n)]
        running = [
            subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True)
            for command in commands
        ]
        texts = [process.communicate()[0] for process in running]
    (text,) = (text for text in texts if text.strip())
    return {int(nbytes): {"median": median} for nbytes, median in json.loads(text).items()}


def call_for_seconds(
    calls: Sequence[Callable[[], object]], lasts: Callable[[bool], bool], seconds: float
) -> list[int]:
    """Times of the calls in turn, in ns, until rank 0 finds, as all hear by ``lasts``, that so many
    seconds are up."""
    times: list[int] = []
    for call in itertools.islice(itertools.cycle(calls), max(WARM, len(calls))):
        call()
    following = itertools.cycle(calls)
    until = time.perf_counter() + seconds
    while lasts(time.perf_counter() < until):
        for call in itertools.islice(following, BLOCK):
            begin = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - begin)
    return times


def bare_gloo(what: str, rank: int, n: int, buffers: dict[int, int], seconds: float) -> None:
    import torch
    import torch.distributed as dist

    from collbench.run.backends import _wire

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['MEET']}", rank=rank, world_size=n
    )

    def lasts(goes_on: bool) -> bool:
        told = torch.tensor(goes_on)
        dist.broadcast(told, 0)
        return bool(told)

    room, medians = _wire.Room(torch.device("cpu")), {}
    for nbytes in SIZES:
        data = [torch.ones(nbytes // 4) for _ in range(buffers[nbytes])]
        calls = [prepare_call(what, each, rank, n, room) for each in data]
        times = call_for_seconds(calls, lasts, seconds)
        everyone: list[Any] = [None] * n
        dist.all_gather_object(everyone, times)
        medians[nbytes] = statistics.median(map(max, zip(*everyone, strict=True)))
    if rank == 0:
        print(json.dumps(medians), flush=True)
    dist.destroy_process_group()


def prepare_call(what: str, data: Any, rank: int, n: int, room: Any) -> Callable[[], object]:
    """torch's own call, or the messages that collbench's algorithm sends, without collbench around
    them."""
    import torch.distributed as dist

    from collbench.run.backends import _wire
    from collbench.suite.case import Case

    if what == "gloo":
        return lambda: dist.all_reduce(data, dist.ReduceOp.MAX)
    case = Case(
        collective="all_reduce",
        backend="gloo",
        n=n,
        nbytes=4 * len(data),
        algorithm=what.partition("@")[0],
        dtype="float",
        op="max",
        in_place=True,
    )
    return _wire.prepare_messages(case, data, data, rank, dist.group.WORLD, room, near=range(n)).run


def bare_mpi(buffers: dict[int, int], seconds: float) -> None:
    import numpy as np
    from mpi4py import MPI

    world, medians = MPI.COMM_WORLD, {}
    for nbytes in SIZES:
        data = [np.ones(nbytes // 4, dtype=np.float32) for _ in range(buffers[nbytes])]
        calls = [partial(world.Allreduce, MPI.IN_PLACE, each, MPI.MAX) for each in data]
        times = call_for_seconds(calls, world.bcast, seconds)
        everyone = world.allgather(times)
        medians[nbytes] = statistics.median(map(max, zip(*everyone, strict=True)))
    if world.rank == 0:
        print(json.dumps(medians), flush=True)


if __name__ == "__main__":
    main()
