"""Jobs of torch's own on Gloo, recorded, and their traces replayed, in turns.

    python tests/perf/replay.py --rounds 10 --output reports/replay.md

DDP, FSDP2 and a mixture of experts (tests/helpers/jobs.py) are run and recorded by
`collbench.record`; a suite of their traces then runs the steps that these hold, as `collbench
replay --gaps keep` does. Each round starts its own ranks for both. What is compared are the
replayed step and the recorded one.
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
from typing import NamedTuple

import torch

from collbench.features.training.overlap import step_of
from collbench.records import run_file
from collbench.records.paired import estimate_shift

HELPERS = Path(__file__).parents[1] / "helpers"
JOBS = ("ddp", "views", "fsdp2", "moe")
STEPS, REPLAYS = 20, 15
WITHIN = 0.15


class Row(NamedTuple):
    """Nanoseconds of a step: the job alone and while it was recorded, by the job's own clock; as
    its trace tells it, and replayed."""

    alone: float
    beside: float
    recorded: float
    replayed: float


def taken(names: Sequence[str], ranks: int, shape: Sequence[str]) -> dict[str, Row]:
    """One round: the jobs, and the steps of their traces."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, path = Path(scratch), Path(scratch) / "run.jsonl"
        command = [sys.executable, str(HELPERS / "jobs.py"), ",".join(names), scratch, *shape]
        command += ["--ranks", str(ranks), "--steps", str(STEPS)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        told = json.loads(done.stdout.splitlines()[-1])
        tables = "".join(f'[[workload]]\ntrace = "{name}"\n' for name in names)
        suite = folder / "traces.toml"
        suite.write_text(f'[axes]\nbackends = "gloo"\n[policy]\niters = {REPLAYS}\n{tables}')
        command = [sys.executable, "-m", "collbench", "run", str(suite), "--output", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        file = run_file.read_file(path)
    found = {}
    for record in file.records:
        step = step_of(file, record.case)
        if record.case.collective == "step" and step and step.recorded:
            name = step.name.removeprefix("replay:")
            before = statistics.median(step.recorded.times_ns)
            plain, beside = (told[name][kind] * 1e9 for kind in ("seconds", "recorded"))
            found[name] = Row(plain, beside, before, statistics.median(record.times_ns))
    return found


def line(name: str, ranks: int, rows: Sequence[Row]) -> str:
    """A line of the table."""
    alone, _, before, after = (statistics.median(each) / 1e6 for each in zip(*rows, strict=True))
    cost = estimate_shift([each.beside / each.alone for each in rows])
    ratio = estimate_shift([each.replayed / each.recorded for each in rows])
    inside = ratio.lo >= 1 - WITHIN and ratio.hi <= 1 + WITHIN
    outside = ratio.hi < 1 - WITHIN or ratio.lo > 1 + WITHIN
    within = "yes" if inside else "no" if outside else "not told"
    return (
        f"| {name} | {ranks} | {alone:.2f} | {before:.2f} | {after:.2f} |"
        f" {cost.estimate:.3f} [{cost.lo:.3f}, {cost.hi:.3f}] |"
        f" {ratio.estimate:.3f} [{ratio.lo:.3f}, {ratio.hi:.3f}] | {within} |"
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
    before = os.getloadavg()[0]
    shape = ["--width", asked.width, "--layers", asked.layers]
    lines = [
        "# Jobs replayed from their traces beside the jobs themselves",
        "",
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, torch"
        f" {torch.__version__}, Gloo on loopback. `python tests/perf/replay.py --rounds"
        f" {asked.rounds}`: {asked.rounds} rounds of both in turns, each with ranks of its own;"
        f" {STEPS} steps of the job, of {asked.layers} layers of width {asked.width}, without"
        " recording and as many with it, whichever first in turns; replayed is the iteration of"
        f" median time, computing as it did between calls, {REPLAYS} times. Times are medians over"
        " steps of the slowest rank's. *recorded / alone* is of steps that the job timed itself,"
        " with recording and without; *recorded, ms*, and what the replay is compared to, is what"
        " the trace tells. Ratios are"
        " round by round (Hodges and Lehmann, signed ranks, 95 %); within: whether the whole"
        f" interval of the last lies within {WITHIN:.0%} of 1, or outside (no).",
        "",
        "| job | ranks | alone, ms | recorded, ms | replayed, ms | recorded / alone |"
        " replayed / recorded | within |",
        "|---|--:|--:|--:|--:|---|---|---|",
    ]
    for ranks in asked.ranks:
        rounds = []
        for number in range(asked.rounds):
            turn = ["--recorded-first"] * (number % 2)
            rounds.append(taken(asked.jobs, ranks, [*shape, *turn]))
            print(ranks, number, rounds[-1], file=sys.stderr, flush=True)
        lines += [line(name, ranks, [each[name] for each in rounds]) for name in asked.jobs]
    after = os.getloadavg()[0]
    told = (
        f"Load of a minute: {before:.1f} before, {after:.1f} after; two ranks alone make about 2."
    )
    text = "\n".join([*lines, "", told]) + "\n"
    print(text)
    if asked.output:
        asked.output.write_text(text)


if __name__ == "__main__":
    main()
