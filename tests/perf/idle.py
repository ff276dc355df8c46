"""What the waiting side of an experiment costs the other: CPU time of both sides' ranks by turn.

``python tests/perf/idle.py [--rounds 6,6] [--suite pr]`` runs ``ab --aa`` and prints, by backend,
how much CPU time the ranks of the side whose turn it was have used, and those of the one that
waited, with all their threads; a turn is from the word to go to the next. ``--output`` makes it a
section of a report.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import sections

from collbench.__main__ import main as command
from collbench.run.launch.local import LocalWatch

Used = dict[LocalWatch, float]  # seconds of CPU of a world's ranks


class Meter:
    """Reads all worlds' CPU time whenever one gets its turn."""

    def __init__(self) -> None:
        self._worlds: list[LocalWatch] = []
        self._turn: tuple[LocalWatch, float, Used] | None = None
        self.spent: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self.turns: defaultdict[str, list[float]] = defaultdict(list)

    def go(self, watch: LocalWatch) -> None:
        self._worlds = [w for w in self._worlds if w.busy() and w is not watch] + [watch]
        now, used = time.perf_counter(), {w: cpu(w) for w in self._worlds}
        if self._turn is not None:
            active, began, before = self._turn
            both = len(before.keys() & used.keys()) == 2
            if both and active in used:
                backend = active.plan.backend
                self.turns[backend].append(now - began)
                for world in before.keys() & used.keys():
                    who = "active" if world is active else "waiting"
                    self.spent[backend, who].append(used[world] - before[world])
        self._turn = watch, time.perf_counter(), {w: cpu(w) for w in self._worlds}


def cpu(watch: LocalWatch) -> float:
    """Seconds of CPU that a world's ranks have used, with all threads they have had."""
    total = 0.0
    for pid in watch.pids.values():
        with suppress(OSError):
            total += time.clock_gettime((~pid << 3) | 2)  # Linux's clock of a process
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", default="6,6")
    parser.add_argument("--suite", default="pr")
    parser.add_argument("--budget", help="as of collbench ab")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    meter, go = Meter(), LocalWatch.go

    def counted(self: LocalWatch) -> None:
        meter.go(self)
        go(self)

    LocalWatch.go = counted  # type: ignore[method-assign]
    sys.argv = ["collbench", "ab", "--aa", "--suite", asked.suite, "--rounds", asked.rounds]
    sys.argv += ["--budget", asked.budget] if asked.budget else []
    try:
        command()
    except SystemExit as end:
        print(f"exit {end.code}")
    found = [
        f"## What the waiting side costs the other (`collbench {' '.join(sys.argv[1:])}`)",
        "",
        sections.machine("idle.py"),
        "",
        "| backend | turns | seconds | CPU s, active | CPU s, waiting | waiting / active |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for backend, seconds in meter.turns.items():
        active, waiting = (sum(meter.spent[backend, who]) for who in ("active", "waiting"))
        found.append(
            f"| {backend} | {len(seconds)} | {sum(seconds):.1f} | {active:.2f} | {waiting:.4f} |"
            f" {waiting / active:.2%} |"
        )
    print("\n".join(found))
    if asked.output:
        sections.write(asked.output, "Is collbench ab right?", [found])


if __name__ == "__main__":
    main()
