"""Files of every kind changed at random, given to what reads them: how many are read or refused.

``python tests/perf/fuzz.py --number 100000`` takes half an hour; ``--kind`` chooses some. Whatever
ends neither well nor in an error for people is printed with its seed, and the exit code is 1. Each
500 are tried in a process of their own, of which the largest is told: a command reads few files.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import factories
import mutations

EACH = 500  # mutations of a process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=1000, help="mutations a kind")
    parser.add_argument("--commands", type=int, default=100, help="of so many one by a command")
    parser.add_argument("--kind", action="append", choices=mutations.KINDS)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    given = parser.parse_args()
    faults = 0
    print("kind           tried      read  refused  by command  faults  longest    RSS", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.kind or mutations.KINDS:
            seeds = range(given.seed, given.seed + given.number)
            counts, longest, rss = tally(kind, seeds, given.commands, folder)
            faults += counts["fault"]
            read = counts["read"] + counts["read, and by the command"]
            refused = given.number - read - counts["fault"]
            ran = counts["read, and by the command"] + counts["refused by the command"]
            print(
                f"{kind:12} {given.number:7} {read:9} {refused:8} {ran:11} {counts['fault']:7}"
                f" {longest:6.2f} s {rss:3} MiB",
                flush=True,
            )
    return int(faults > 0)


def tally(kind: str, seeds: range, every: int, folder: str) -> tuple[Counter[str], float, int]:
    """What became of them, how long the longest took (s), and the most memory (MiB)."""
    parts = [seeds[at : at + EACH] for at in range(0, len(seeds), EACH)]
    counts: Counter[str] = Counter()
    longest, most = 0.0, 0
    with multiprocessing.get_context("fork").Pool(maxtasksperchild=1) as pool:
        for found, took, rss in pool.imap_unordered(
            partial(tried, kind, every=every, folder=folder), parts
        ):
            counts += found
            longest, most = max(longest, took), max(most, rss)
    return counts, longest, most


def tried(kind: str, seeds: range, every: int, folder: str) -> tuple[Counter[str], float, int]:
    """The same of some, in this process."""
    counts: Counter[str] = Counter()
    longest = 0.0
    with tempfile.TemporaryDirectory(dir=folder) as mine:
        home = Path(mine)
        os.environ["COLLBENCH_HOME"] = mine
        factories.write(factories.stored({factories.case(): 1e6}, name="good"), home)
        for seed in seeds:
            began = time.process_time()
            by_command = seed % every == 0
            try:
                said = mutations.tried(mutations.KINDS[kind], seed, home / "x.jsonl", by_command)
            except (Exception, AssertionError):
                said = "fault"
                last = traceback.format_exc().splitlines()
                print(kind, seed, *last[-6:], sep="\n  ", flush=True)
            for left in home.glob("runs/*"):
                left.unlink()
            counts[said] += 1
            longest = max(longest, time.process_time() - began)
    return counts, longest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    sys.exit(main())
