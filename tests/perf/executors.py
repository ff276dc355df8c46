"""Reference algorithms over shared memory and over messages, against Gloo, Open MPI and plain
memory copies.

``python tests/perf/executors.py --output reports/executors.md`` (make perf). Rounds are interleaved
in one session; each figure is the median over rounds of a run's median. collbench measures all
implementations, Open MPI's too, in the one mode that ``--mode`` names. Nothing here is asserted in
CI: machines differ.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from collbench.machine import cpus, environment
from collbench.records import derive, run_file

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
Figures = dict[
    tuple[str, int, int], list[float]
]  # (implementation, ranks, size) -> medians in ns, one a round
# Bytes an algorithm must read and write on 2 ranks, over those of a copy: one_shot reads 2 buffers
# and writes 1; the others read 1 and write half to add up a half, then read and write a half
TRAFFIC = {"one_shot": 3 / 2}
SHARED = ("one_shot", "two_shot", "ring", "halving_doubling")
SIZES, LARGE = [8 << 2 * k for k in range(13)], [16 << 20, 64 << 20]
BOUND_FROM = 64 << 10  # bytes; shorter copies by numpy take mostly Python's time


def measure(found: Figures, folder: Path, *options: str) -> None:
    path = folder / f"{sum(map(len, found.values()))}.jsonl"
    always = ("--place", "out", "--format", "csv", "--output", str(path))
    command = [str(BIN / "collbench"), "all_reduce", *options, *always]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = run_file.read_file(path)
    for record in file.records:
        row = derive.derive_row(record, file.worlds[0])
        if row is not None:
            found[record.case.label, record.case.n, record.case.nbytes].append(row.times.median)


def measure_copies(found: Figures, folder: Path, seconds: str, sizes: list[int]) -> None:
    command = [
        str(BIN / "mpirun"),
        "-n",
        "2",
        "--bind-to",
        "none",
        sys.executable,
        str(HERE / "copies.py"),
        str(folder / "board"),
        seconds,
        *map(str, sizes),
    ]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **allowed}
    )
    for size, median in msgspec.json.decode(done.stdout.strip().splitlines()[-1]).items():
        found["copy", 2, int(size)].append(median)


def table(found: Figures, sizes: list[int]) -> list[str]:
    """Best shared-memory algorithm per size against the rest."""
    lines = [
        "| size | best on shm | time | gloo | ratio | Open MPI | ratio | of the copy bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size in sizes:
        shared = {name: find_median(found, f"{name}@shm", 2, size) for name in SHARED}
        best = min(SHARED, key=lambda name: (math.isnan(shared[name]), shared[name]))
        ours = shared[best]
        gloo, mpi, copy = (find_median(found, name, 2, size) for name in ("gloo", "mpi", "copy"))
        bound = "-"
        if size >= BOUND_FROM:
            bound = f"{TRAFFIC.get(best, 1.25) * copy / ours:.0%}"
        lines.append(
            f"| {size} | {best} | {ours / 1e3:.1f} us | {gloo / 1e3:.1f} us | {gloo / ours:.1f} x |"
            f" {mpi / 1e3:.1f} us | {mpi / ours:.2f} x | {bound} |"
        )
    return lines


def find_median(found: Figures, label: str, n: int, size: int) -> float:
    """Nanoseconds, over rounds; NaN where no round has measured it, as a busy machine can keep
    ranks from starting together."""
    return statistics.median(found[label, n, size] or [math.nan])


def ring_table(found: Figures, sizes: list[int]) -> list[str]:
    lines = ["| ranks | size | gloo | ring@gloo | ratio |", "|---|---|---|---|---|"]
    for n in (2, 4):
        for size in sizes:
            native, ring = (find_median(found, label, n, size) for label in ("gloo", "ring@gloo"))
            lines.append(
                f"| {n} | {size} | {native / 1e6:.2f} ms | {ring / 1e6:.2f} ms |"
                f" {ring / native:.3f} |"
            )
    return lines


def measured(found: Figures, chosen: argparse.Namespace) -> None:
    """Runs all implementations of a round, one after another."""
    mode, most = ("--mode", chosen.mode), float(chosen.max_time)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "shm" in chosen.only:
            listed = ",".join(map(str, SIZES))
            common = ["--sizes", listed, "-g", "2", "--max-time", f"{most}s", *mode]
            for backend in ("gloo", "mpi"):
                measure(found, folder, "--backend", backend, *common)
            measure(found, folder, "--backend", "shm", "--algo", ",".join(SHARED), *common)
            measure_copies(found, folder, chosen.max_time, SIZES)
        if "ring" in chosen.only:
            listed = ",".join(map(str, LARGE))
            common = ["--sizes", listed, "--max-time", f"{4 * most}s", *mode]
            for n in ("2", "4"):
                measure(found, folder, "--algo", "native,ring", "-g", n, *common)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-time", default="0.5")
    parser.add_argument("--mode", choices=("isolated", "host"), default="isolated")
    parser.add_argument("--only", default="shm,ring")
    chosen = parser.parse_args()
    found: Figures = defaultdict(list)
    for _ in range(chosen.rounds):
        measured(found, chosen)
    about = environment.gather_facts()
    lines = [
        "# Reference algorithms against libraries",
        "",
        (
            f"all_reduce, float, out of place, `--mode {chosen.mode}`,"
            f" {about['cpu'].get('model')}, {cpus.core_count()} cores,"
            f" torch {about['libraries'].get('torch')},"
            f" {datetime.now(UTC):%Y-%m-%d}; medians of {chosen.rounds} interleaved rounds, all"
            " implementations measured by collbench. Made by `python tests/perf/executors.py`. The"
            " best on shm is the least of four, chosen and reported from the same rounds. Buffers"
            " of shm lie in memory that the ranks share before the clock starts; libraries have to"
            " copy what a program gives them, within their times. The copy bound is the time that"
            " plain copies by both ranks at once (numpy, buffers of their own) would take to move"
            " the bytes the algorithm must move; below 64 KiB most of such a time is Python's, and"
            " it is left out. Where Gloo's threads share cores with ranks,"
            " small sizes take it milliseconds when ranks are aligned, and far less as programs"
            " call it ([arrival.md](arrival.md)): ratios to it say little there."
        ),
    ]
    tables = {"shm": lambda: table(found, SIZES), "ring": lambda: ring_table(found, LARGE)}
    for name, make in tables.items():
        lines += ["", *make()] if name in chosen.only else []
    chosen.output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
