"""Reference algorithms over shared memory and over messages, against Gloo, Open MPI and plain
memory copies.

``python tests/perf/executors.py --output reports/executors.md`` (make perf). Rounds are interleaved
in one session; each figure is the median over rounds of a run's median. Nothing here is asserted in
CI: machines differ.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from collbench.machine import environment
from collbench.records import derive, store

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
Figures = dict[
    tuple[str, int, int], list[float]
]  # (implementation, ranks, size) -> medians in ns, one a round
# Bytes an algorithm must read and write on 2 ranks, over those of a copy: one_shot reads 2 buffers
# and writes 1; the others read 1 and write half to add up a half, then read and write a half
TRAFFIC = {"one_shot": 3 / 2}
SHARED = ("one_shot", "two_shot", "ring", "halving_doubling")


def measure(found: Figures, folder: Path, *options: str) -> None:
    path = folder / f"{sum(map(len, found.values()))}.jsonl"
    always = ("--place", "out", "--format", "csv", "--output", str(path))
    command = [str(BIN / "collbench"), "all_reduce", *options, *always]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = store.read(path)
    for record in file.records:
        row = derive.derive(record, file.worlds[0])
        if row is not None:
            found[record.case.label, record.case.n, record.case.nbytes].append(row.median)


def measure_mpi(found: Figures, folder: Path, seconds: str, sizes: list[int]) -> None:
    command = [
        str(BIN / "mpirun"),
        "-n",
        "2",
        "--bind-to",
        "none",
        sys.executable,
        str(HERE / "mpi_loop.py"),
        str(folder / "board"),
        seconds,
        *map(str, sizes),
    ]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **allowed}
    )
    for name, median in msgspec.json.decode(done.stdout.strip().splitlines()[-1]).items():
        word, size = name.split()
        found[word, 2, int(size)].append(median)


def table(found: Figures, sizes: list[int]) -> list[str]:
    """Best shared-memory algorithm per size against the rest."""
    lines = [
        "| size | best on shm | time | gloo | ratio | Open MPI | ratio | of the copy bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size in sizes:

        def time(label: str, size: int = size) -> float:
            return statistics.median(found[label, 2, size])

        best = min(SHARED, key=lambda name: time(f"{name}@shm"))
        ours, gloo, mpi, copy = time(f"{best}@shm"), time("gloo"), time("mpi"), time("copy")
        lines.append(
            f"| {size} | {best} | {ours / 1e3:.1f} us | {gloo / 1e3:.1f} us | {gloo / ours:.1f} x |"
            f" {mpi / 1e3:.1f} us | {mpi / ours:.2f} x |"
            f" {TRAFFIC.get(best, 1.25) * copy / ours:.0%} |"
        )
    return lines


def ring_table(found: Figures, sizes: list[int]) -> list[str]:
    lines = ["| ranks | size | gloo | ring@gloo | ratio |", "|---|---|---|---|---|"]
    for n in (2, 4):
        for size in sizes:
            native, ring = (
                statistics.median(found[label, n, size]) for label in ("gloo", "ring@gloo")
            )
            lines.append(
                f"| {n} | {size} | {native / 1e6:.2f} ms | {ring / 1e6:.2f} ms |"
                f" {ring / native:.3f} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-time", default="0.5")
    parser.add_argument("--only", default="shm,ring")
    chosen = parser.parse_args()
    sizes, large = [8 << 2 * k for k in range(13)], [16 << 20, 64 << 20]
    found: Figures = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(chosen.rounds):
            if "shm" in chosen.only:
                listed = ",".join(map(str, sizes))
                common = ("--sizes", listed, "-g", "2", "--max-time", f"{chosen.max_time}s")
                measure(found, Path(folder), "--backend", "gloo", *common)
                measure(
                    found, Path(folder), "--backend", "shm", "--algo", ",".join(SHARED), *common
                )
                measure_mpi(found, Path(folder), chosen.max_time, sizes)
            if "ring" in chosen.only:
                for n in ("2", "4"):
                    measure(
                        found,
                        Path(folder),
                        "--algo",
                        "native,ring",
                        "--sizes",
                        ",".join(map(str, large)),
                        "-g",
                        n,
                        "--max-time",
                        f"{4 * float(chosen.max_time)}s",
                    )
    about = environment.gather()
    lines = [
        "# Reference algorithms against libraries",
        "",
        (
            f"all_reduce, float, out of place, isolated calls, {about['cpu'].get('model')},"
            f" {environment.core_count()} cores, torch {about['libraries'].get('torch')},"
            f" {datetime.now(UTC):%Y-%m-%d}; medians of {chosen.rounds} interleaved rounds. Made by"
            " `python tests/perf/executors.py`. The copy bound is the time that plain copies by"
            " both ranks at once (numpy, same buffers) would take to move the bytes the algorithm"
            " must move. It is beaten where one rank finds in the shared cache what the other has"
            " just read or written."
        ),
    ]
    tables = {"shm": lambda: table(found, sizes), "ring": lambda: ring_table(found, large)}
    for name, make in tables.items():
        lines += ["", *make()] if name in chosen.only else []
    chosen.output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
