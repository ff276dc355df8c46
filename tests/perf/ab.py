"""How often `collbench ab` is wrong here, and whether it finds what is planted. Writes a report of
both.

python tests/perf/ab.py --home FOLDER --repetitions 20 --output reports/ab.md

Repetitions of `ab --suite pr --aa`, then one experiment in which calls of three of eight sizes take
15 % longer (a backend of tests/ranks/plugins, $DRAG). Experiments already in FOLDER count, so that
it can be gone on with.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from collbench.judge import comparison
from collbench.machine import environment
from collbench.records import store
from collbench.records.derive import derive
from collbench.records.types import RunFile
from collbench.suite.grammar import parse_size

PLUGINS = Path(__file__).parents[1] / "ranks" / "plugins"
IMPORTED = {
    "PYTHONPATH": os.pathsep.join(filter(None, (str(PLUGINS), os.environ.get("PYTHONPATH"))))
}
SIZES = ("1K", "4K", "16K", "64K", "256K", "1M", "4M", "16M")
SLOWED = ("256K", "1M", "4M")
SHARE = 0.15
SUITE = f"""
description = "Eight sizes, three of which head slows down."
[axes]
collectives = "all_reduce"
sizes = {json.dumps(SIZES)}
ranks = 2
backends = "dragging"
algorithms = "ring"
in_place = true
[policy]
max_seconds = "0.2s"
"""


def run(home: Path, *args: str, **env: str) -> None:
    command = [sys.executable, "-m", "collbench", *args]
    surroundings = {**os.environ, "COLLBENCH_HOME": str(home), **env}
    done = subprocess.run(command, env=surroundings, stdout=subprocess.PIPE, text=True, check=False)
    print(f"{' '.join(args)}: exit {done.returncode}", file=sys.stderr)


def experiments(home: Path, tag: str) -> list[tuple[RunFile, RunFile]]:
    """Base and head of every finished experiment of that tag."""
    files = [store.digest(path) for path in sorted((home / "runs").glob("*.jsonl"))]
    mine = [
        file
        for file in files
        if file.run.tag.startswith(tag) and file.end and file.end.exit in comparison.WHOLE
    ]
    sides = {
        (file.run.pairing.experiment, file.run.pairing.side): file
        for file in mine
        if file.run.pairing
    }
    return [
        (sides[name, "base"], sides[name, "head"])
        for name, side in sides
        if side == "base" and (name, "head") in sides
    ]


def plant(home: Path, rounds: str) -> None:
    """Times of base, measured first, say how many microseconds 15 % are."""
    suite = home / "planted.toml"
    suite.write_text(SUITE)
    run(home, "run", str(suite), "--tag", "unslowed", "--format", "csv", **IMPORTED)
    before = store.read(sorted((home / "runs").glob("*-planted-*.jsonl"))[-1])
    medians = {r.case.nbytes: row.median for r in before.records if (row := derive(r))}
    slowed = [parse_size(size) for size in SLOWED]
    drag = ",".join(f"{size}:{SHARE * medians[size] / 1000:.3f}" for size in slowed)
    sides = "--suite", str(suite), "--head", f"DRAG={drag}", "--rounds", rounds
    run(home, "ab", *sides, "--tag", "planted", **IMPORTED)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument(
        "--rounds", default="40,60", help="of the planted slowdown: one launch in eight is odd here"
    )
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    args.home.mkdir(parents=True, exist_ok=True)
    while len(experiments(args.home, "aa")) < args.repetitions:
        run(
            args.home,
            "ab",
            "--suite",
            "pr",
            "--aa",
            "--tag",
            f"aa{len(experiments(args.home, 'aa')) + 1}",
        )
    if not experiments(args.home, "planted"):
        plant(args.home, args.rounds)
    args.output.write_text("\n".join(lines(args.home)) + "\n")


def lines(home: Path) -> list[str]:
    machine = environment.gather()
    found = ["# Is collbench ab right?", ""]
    torch, day = machine["libraries"].get("torch"), datetime.now(UTC)
    found += [
        (
            f"{machine['cpu']['model']}, {machine['cpu']['cores']} cores, {platform.system()}"
            f" {machine['kernel']},"
        ),
        f"torch {torch}, {day:%Y-%m-%d}. Made by `python tests/perf/ab.py`.",
        "",
        "## Both sides the same (`collbench ab --suite pr --aa`)",
        "",
        "| experiment | rows | could have failed | verdicts | median MDE | exit |",
        "|---|--:|--:|---|--:|--:|",
    ]
    total: Counter[str] = Counter()
    for number, (base, head) in enumerate(experiments(home, "aa"), 1):
        judged = comparison.compare(base, head, comparison.Rules())
        verdicts = Counter(row.verdict for row in judged.rows)
        total.update(verdicts)
        middle = sorted(row.mde or 0.0 for row in judged.rows)[len(judged.rows) // 2]
        words = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        gates = sum(row.gates for row in judged.rows)
        total["could have failed"] += gates
        found.append(
            f"| {number} | {len(judged.rows)} | {gates} | {words} | {middle:.0%} | {judged.exit} |"
        )
    found += [
        "",
        "All together: "
        + ", ".join(f"{count} {verdict}" for verdict, count in total.most_common())
        + ".",
        "",
    ]
    for base, head in experiments(home, "planted")[-1:]:
        judged = comparison.compare(base, head, comparison.Rules())
        slowed = judged.head.pairing.variant if judged.head.pairing else ""
        found += [
            f"## {SHARE:.0%} planted at {', '.join(SLOWED)} (`ab --head {slowed}`)",
            "",
            "| size | base | change [interval] | MDE | verdict | pairs |",
            "|--:|--:|---|--:|---|--:|",
        ]
        for row in judged.rows:
            change = (
                f"{row.delta:+.1%} [{row.lo:+.1%}, {row.hi:+.1%}]"
                if row.delta is not None and row.lo is not None
                else "-"
            )
            base_us = f"{row.base.median / 1000:.1f} us" if row.base else "-"
            found.append(
                f"| {row.case.nbytes} | {base_us} | {change} | {row.mde or 0:.0%} | {row.verdict} |"
                f" {row.pairs} |"
            )
        found += ["", f"Exit code {judged.exit}: {judged.reason}."]
    return found


if __name__ == "__main__":
    main()
