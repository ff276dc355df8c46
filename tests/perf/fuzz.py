"""Files of every kind changed at random, given to what reads them: how many are read or refused.

``python tests/perf/fuzz.py --number 100000`` takes half an hour; ``--kind`` chooses some. Whatever
ends neither well nor in an error for people is printed with its seed, and the exit code is 1. Each
500 are tried in a process of their own, of which the largest is told: a command reads few files.
One that is killed is a fault, too, and its other files are in no column.
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
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import cast

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
            refused = given.number - read - counts["fault"] - counts["killed"]
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
    for found, took, rss in try_parts(kind, parts, every, folder):
        counts += found
        longest, most = max(longest, took), max(most, rss)
    return counts, longest, most


def try_parts(
    kind: str, parts: Sequence[range], every: int, folder: str
) -> Iterator[tuple[Counter[str], float, int]]:
    """The same of each part, in a process of its own: one fault where that is killed, of which
    nothing else is known."""
    fork = multiprocessing.get_context("fork")
    left, running = [*parts], dict[Connection, tuple[range, ForkProcess]]()
    while left or running:
        while left and len(running) < (os.cpu_count() or 1):
            seeds = left.pop(0)
            here, there = fork.Pipe(duplex=False)
            process = fork.Process(target=send, args=(there, kind, seeds, every, folder))
            process.start()
            there.close()
            running[here] = seeds, process
        for here in cast(list[Connection], wait([*running])):
            seeds, process = running.pop(here)
            try:
                yield here.recv()
            except EOFError:
                print(kind, f"killed in seeds {seeds[0]} to {seeds[-1]}", sep="\n  ", flush=True)
                yield Counter(fault=1, killed=len(seeds) - 1), 0.0, 0
            process.join()
            here.close()


def send(to: Connection, kind: str, seeds: range, every: int, folder: str) -> None:
    to.send(tried(kind, seeds, every=every, folder=folder))


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
