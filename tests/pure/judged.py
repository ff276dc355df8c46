"""Runs to compare, made up: ``experiment`` for the two sides of `collbench ab`, ``stored`` for one run by itself.

A launch is given by its median in ns. ``change`` may replace or drop (None) any record on its way into the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collbench.records import End, Pairing, Record, Run, RunFile, World
from collbench.suite import Axes, Case, Policy, Suite

ENVIRONMENT = {  # of a machine that nobody else uses, so that 5 % matter
    "kernel": "6.1.0", "product": "PowerEdge R750", "cpu": {"model": "Xeon", "cores": 8, "physical": 8},
    "container": {"cpu_quota": None}, "libraries": {"torch": "2.6.0"}, "python": "3.11.9",
}  # fmt: skip
AXES = Axes(collectives=("all_reduce",), sizes=(1 << 20,), ranks=(4,))
SUITE = Suite(name="pr", axes=AXES)

Rounds = Sequence[tuple[float | None, float | None]]  # (base, head) of each round; None: that side has no such launch
Change = Callable[[str, World, Record], Record | None]


def case(nbytes: int = 1 << 20, **fields: Any) -> Case:
    return Case(**{"collective": "all_reduce", "backend": "gloo", "n": 4, "op": "sum", "nbytes": nbytes, **fields})


def cases(number: int) -> list[Case]:
    return [case(4 * (i + 1)) for i in range(number)]


def record(what: Case, median: float, **fields: Any) -> Record:
    """Seven samples around the median."""
    times = [round(median * (1 + 0.004 * step)) for step in range(-3, 4)]
    return Record(**{"case": what, "status": "ok", "times_ns": times, "sync": "window", "cache": "cold", **fields})


def world(**fields: Any) -> World:
    given = {"index": 0, "backend": "gloo", "n": 4, "env": (), "launcher": "local", "ranks": []}
    return World(**{**given, "oversubscribed": False, "same_clock": True, **fields})


def run(name: str, **fields: Any) -> Run:
    given = {"id": name, "started": "2026-01-02T03:04:05+00:00", "command": ["collbench"], "suite": SUITE}
    return Run(**{**given, "policy": Policy(), "environment": ENVIRONMENT, **fields})


def ratios(*changes: float, base: float = 1e6) -> Rounds:
    """A round for each head / base - 1."""
    return [(base, base * (1 + change)) for change in changes]


def noisy(change: float, number: int, seed: int, sigma: float = 0.01, base: float = 1e6) -> Rounds:
    """Rounds whose launches scatter by ``sigma`` on each side, with a true change of head."""
    logs = np.random.default_rng(seed).normal((0, np.log1p(change)), sigma, (number, 2))
    return [(base * float(b), base * float(h)) for b, h in np.exp(logs)]


def experiment(
    first: Mapping[Case, Rounds],
    second: Mapping[Case, Rounds] = {},
    change: Change = lambda side, world, record: record,
    aa: bool = False,
    differs: tuple[str, ...] = (),
    sides: Mapping[str, Mapping[str, Any]] = {},
) -> tuple[RunFile, RunFile]:
    """Base and head: each row's rounds of stage 1, those of stage 2 where it has one; fields of each side's Run."""
    files = []
    for place, side in enumerate(("base", "head")):
        worlds: list[World] = []
        records: list[Record] = []
        for stage, rows in ((1, first), (2, second)):
            for number in range(max(map(len, rows.values()), default=0)):
                here = world(index=len(worlds), stage=stage, round=number)
                worlds.append(here)
                for what, rounds in rows.items():
                    median = rounds[number][place] if number < len(rounds) else None
                    made = change(side, here, record(what, median, world=here.index)) if median is not None else None
                    records += [made] if made else []
        pairing = Pairing(experiment="e", side=side, variant=side, differs=differs, aa=aa)
        told = run(f"e-{side}", pairing=pairing, **sides.get(side, {}))
        files.append(RunFile(run=told, worlds=worlds, records=records, end=End(exit=0, ended=""), path=Path(side)))
    return files[0], files[1]


def stored(rows: Mapping[Case, float | Record], name: str = "run", end: int | None = 0, **fields: Any) -> RunFile:
    """A run of one launch. ``end`` is how it ended, None for one that was cut short; ``fields`` are its Run's."""
    records = [row if isinstance(row, Record) else record(what, row, world=0) for what, row in rows.items()]
    last = None if end is None else End(exit=end, ended="")
    return RunFile(run=run(name, **fields), worlds=[world()], records=records, end=last, path=Path(name))
