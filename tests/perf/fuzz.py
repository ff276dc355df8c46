"""Files of every kind changed at random, given to what reads them: how many are read or refused.

``python tests/perf/fuzz.py --number 100000`` takes half an hour; ``--kind`` chooses some. Whatever
ends neither well nor in an error for people is printed with its seed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import factories
import mutations

LEAST = 0.5  # seconds from which a mutation is said to be slow


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
        os.environ["COLLBENCH_HOME"] = folder
        factories.write(factories.stored({factories.case(): 1e6}, name="good"), Path(folder))
        for kind in given.kind or mutations.KINDS:
            seeds = range(given.seed, given.seed + given.number)
            counts, longest = tally(kind, seeds, given.commands, Path(folder))
            faults += counts["fault"]
            read = counts["read"] + counts["read, and by the command"]
            refused = given.number - read - counts["fault"]
            ran = counts["read, and by the command"] + counts["refused by the command"]
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            print(
                f"{kind:12} {given.number:7} {read:9} {refused:8} {ran:11} {counts['fault']:7}"
                f" {longest:6.2f} s {rss:3} MiB",
                flush=True,
            )
    return int(faults > 0)


def tally(kind: str, seeds: range, every: int, folder: Path) -> tuple[Counter[str], float]:
    """What became of them, and how long the longest took."""
    counts: Counter[str] = Counter()
    longest = 0.0
    for seed in seeds:
        began = time.process_time()
        try:
            said = mutations.tried(
                mutations.KINDS[kind], seed, folder / "x.jsonl", seed % every == 0
            )
        except (Exception, AssertionError):
            said = "fault"
            if counts["fault"] < 20:
                last = traceback.format_exc().splitlines()
                print(kind, seed, *last[-6:], sep="\n  ", flush=True)
        for left in folder.glob("runs/*"):
            left.unlink()
        counts[said] += 1
        longest = max(longest, time.process_time() - began)
    return counts, longest


if __name__ == "__main__":
    sys.exit(main())
