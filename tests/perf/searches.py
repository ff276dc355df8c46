"""Searches one after another by one world of ranks, for confusion.py, which plants other faults in
between.

``python tests/perf/searches.py FOLDER SIZE SAMPLES [FAULTS]`` on every rank. Rank 0 begins search N
once FOLDER/go.N is there, and then adds a line to FOLDER/told; FOLDER/end ends it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import msgspec

from collbench.features.health.locate import findings
from collbench.features.health.locate import search as locate
from collbench.features.health.locate.command import Searching, make_listener
from collbench.features.health.pairs import command as pairs
from collbench.records.types import World
from collbench.run import session
from collbench.suite import policy as suite
from collbench.suite.case import Case

TIMEOUT = 20.0


class Searches(Searching):
    def __init__(self, folder: Path) -> None:
        super().__init__(locate.Rules())
        self._folder, self._number = folder, 0
        self.crowded = False

    def world(self, world: World) -> None:
        super().world(world)
        self.crowded = world.oversubscribed

    def next_cases(self) -> list[Case]:
        if self._search and (cases := super().next_cases()):
            return cases
        if self.located:
            self._tell(self.located)
        while not (self._folder / f"go.{self._number}").exists():
            if (self._folder / "end").exists():
                return []
            time.sleep(0.02)
        self._number += 1
        self._search = self.located = None
        return super().next_cases()

    def _tell(self, found: locate.Located) -> None:
        names = [unit.name for unit in self.units]
        named = findings.make_findings(found, names, crowded=self.crowded)
        told = {
            "named": [finding.subject.name for finding in named],
            "open": found.open,
            "words": findings.describe_outcome(found, names, crowded=self.crowded),
        }
        with (self._folder / "told").open("a") as out:
            out.write(json.dumps(told) + "\n")


def main() -> None:
    folder, size, samples, faults = [*sys.argv[1:], ""][:4]
    searches = Searches(Path(folder))

    policy = suite.Policy(iters=int(samples), warmup=1, timeout=TIMEOUT, inject=faults)
    order = pairs.order_of("locate", [size], policy, backend="gloo")
    order = msgspec.structs.replace(order, save=False, next_cases=searches.next_cases)
    session.execute_order(order, lambda: make_listener(searches))


if __name__ == "__main__":
    main()
