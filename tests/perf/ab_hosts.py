"""Experiments on two hosts of a lab, under torchrun: with two equal sides, and with two algorithms
of which one sends twice as much.

``python tests/perf/ab_hosts.py --output reports/ab.md`` (root, ip and tc) makes it a section of
that report. Hosts are namespaces of one kernel on links of 1 Gb/s, with one rank each.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import sections

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))

import launching
import network
from network import Lab

from collbench.features.compare import comparison
from collbench.records import run_file

SUITE = """
description = "All_reduces between two hosts."
[axes]
collectives = "all_reduce"
sizes = ["4K", "256K", "1M", "4M"]
ranks = 2
backends = "gloo"
algorithms = "{algorithm}"
in_place = true
[policy]
max_seconds = "0.3s"
"""
# what is asked, and how much longer it should take where the link decides
SIDES = {
    "both sides the same": (("--aa",), "native", 0.0),
    "ring against reduce_broadcast, which sends all twice": (
        ("--base", "algo:ring", "--head", "algo:reduce_broadcast"),
        "ring",
        1.0,
    ),
}


def lines(name: str, folder: Path, budget: str) -> list[str]:
    """A row of the table for each row of one experiment."""
    sides, algorithm, wanted = SIDES[name]
    suite = folder / "hosts.toml"
    suite.write_text(SUITE.format(algorithm=algorithm))
    home = folder / algorithm  # a folder of its own
    asked = ("ab", "--suite", str(suite), *sides, "--budget", budget, "--tau", "10%")
    with Lab(hosts=2) as lab:
        surroundings = {"COLLBENCH_HOME": str(home)}
        done = launching.run(lab, launching.torchrun, *asked, seconds=580, **surroundings)
    if done[0].returncode not in comparison.WHOLE:
        raise SystemExit(f"{name}: {done[0].returncode}\n{done[0].stdout}\n{done[0].stderr}")
    base, head = (run_file.read_digest(path) for path in sorted((home / "runs").glob("*.jsonl")))
    judged = comparison.compare_runs(base, head, comparison.Rules(tau=0.1))
    return [
        f"| {name} | {row.case.nbytes >> 10} KiB | {wanted:+.0%} | {row.delta or 0:+.1%}"
        f" [{row.lo or 0:+.1%}, {row.hi or 0:+.1%}] | {row.mde or 0:.1%} | {row.verdict} |"
        for row in judged.rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args()
    if reason := network.why_not():
        raise SystemExit(reason)
    found = [
        f"## Two hosts under torchrun, 1 Gb/s, gloo (`--budget {asked.budget} --tau 10%`)",
        "",
        sections.machine("ab_hosts.py"),
        "",
        "| sides | size | by the bytes alone | change [interval] | MDE | verdict |",
        "|---|--:|--:|--:|--:|---|",
    ]
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for name in SIDES:
            found += lines(name, Path(folder), asked.budget)
    sections.write(asked.output, "Is collbench ab right?", [found])


if __name__ == "__main__":
    main()
