"""A sweep of four cases of Gloo, each of which is long: a script for Warm.start with an algorithm
and the path of the run's file. Prints what a reporter is told of cases, one JSON a line."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from collbench.core.errors import Exit
from collbench.records.derive import Derived
from collbench.records.types import Record
from collbench.run import pace, session
from collbench.run.order import Order
from collbench.run.reporter import Reporter
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite


class Teller(Reporter):
    """Prints what it is told of cases."""

    needs_samples = True

    def show_coarse(self, record: Record, row: Derived | None) -> None:
        assert row is not None
        self._tell("called", record)

    def record(self, record: Record, row: Derived | None) -> None:
        self._tell("measured", record)

    def _tell(self, what: str, record: Record) -> None:
        print(msgspec.json.encode((what, record)).decode(), flush=True)


def main() -> None:
    algorithm, path = sys.argv[1:]
    pace.LONG_RUN = pace.LONG_CASE = 0.0
    axes = Axes(
        collectives=("all_reduce",),
        backends=("gloo",),
        algorithms=(algorithm,),
        sizes=(1 << 16, 1 << 12),
        ranks=(2,),
        in_place=(False, True),
    )
    suite = Suite(name="x", axes=axes, policy=Policy(max_seconds=0.1))
    order = Order(suite=suite, command=["collbench"], output=Path(path))
    assert session.execute_order(order, Teller) == Exit.OK


if __name__ == "__main__":
    main()
