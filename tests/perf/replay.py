"""Jobs of torch's own on Gloo, recorded, and their traces replayed, in turns.

    python tests/perf/replay.py --rounds 10 --output reports/replay.md

DDP, FSDP2 and a mixture of experts (tests/helpers/jobs.py) are run and recorded by
`collbench.record`; `collbench replay --gaps keep` then runs the step that their trace holds. Each
round starts its own ranks for both. What is compared are the replayed step and the recorded one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from collbench.records.paired import shift

HELPERS = Path(__file__).parents[1] / "helpers"
JOBS = ("ddp", "fsdp2", "moe")
STEPS, ROUNDS_OF_PARTS = 20, 15
WITHIN = 0.15


def recorded(name: str, ranks: int, folder: Path, shape: Sequence[str]) -> dict[str, Any]:
    """A job run and recorded into a folder: what it tells of itself."""
    command = [sys.executable, str(HELPERS / "jobs.py"), name, str(folder), *shape]
    command += ["--ranks", str(ranks), "--steps", str(STEPS)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def replayed(folder: Path) -> dict[str, Any]:
    """The step of the trace in a folder, replayed: its row of the run."""
    command = [sys.executable, "-m", "collbench", "replay", str(folder), "--backend", "gloo"]
    command += ["-n", str(ROUNDS_OF_PARTS), "--no-save", "--format", "json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    (row,) = json.loads(done.stdout)["steps"]
    return row  # type: ignore[no-any-return]


def compared(name: str, ranks: int, rounds: int, shape: Sequence[str]) -> str:
    """A line of the table."""
    taken = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / name
            alone = recorded(name, ranks, folder, shape)["seconds"] * 1e9
            row = replayed(folder)
        taken.append((alone, row["recorded"]["median_ns"], row["step_ns"]))
        print(name, ranks, number, *taken[-1], file=sys.stderr, flush=True)
    alone, before, after = (statistics.median(each) / 1e6 for each in zip(*taken, strict=True))
    cost = shift([each[1] / each[0] for each in taken])
    ratio = shift([each[2] / each[1] for each in taken])
    inside = ratio.lo >= 1 - WITHIN and ratio.hi <= 1 + WITHIN
    return (
        f"| {name} | {ranks} | {alone:.2f} | {before:.2f} | {after:.2f} |"
        f" {cost.estimate:.3f} [{cost.lo:.3f}, {cost.hi:.3f}] |"
        f" {ratio.estimate:.3f} [{ratio.lo:.3f}, {ratio.hi:.3f}] | {'yes' if inside else 'no'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS)
    parser.add_argument("--width", default="768")
    parser.add_argument("--layers", default="6")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    shape = ["--width", asked.width, "--layers", asked.layers]
    lines = [
        "# Jobs replayed from their traces beside the jobs themselves",
        "",
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, torch"
        f" {torch.__version__}, Gloo on loopback. `python tests/perf/replay.py --rounds"
        f" {asked.rounds}`: {asked.rounds} rounds of both in turns, each with ranks of its own;"
        f" {STEPS} steps of the job, of {asked.layers} layers of width {asked.width}, without"
        " recording and as many with it; `collbench replay --gaps keep` of the iteration of median"
        f" time, {ROUNDS_OF_PARTS} steps. Times are those of the slowest rank. Ratios are round by"
        " round (Hodges and Lehmann, signed ranks, 95 %); within: whether the whole interval of the"
        f" last lies within {WITHIN:.0%} of 1.",
        "",
        "| job | ranks | alone, ms | recorded, ms | replayed, ms | recorded / alone |"
        " replayed / recorded | within |",
        "|---|--:|--:|--:|--:|---|---|---|",
    ]
    for ranks in asked.ranks:
        lines += [compared(name, ranks, asked.rounds, shape) for name in asked.jobs]
    text = "\n".join(lines) + "\n"
    print(text)
    if asked.output:
        asked.output.write_text(text)


if __name__ == "__main__":
    main()
