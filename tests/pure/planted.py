"""Nights made up: runs of three launches whose levels are known, with scatter from night to night and odd nights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from judged import ENVIRONMENT, case, record, run, world

from collbench import store
from collbench.records import End, RunFile
from collbench.suite import Case

FIRST = datetime(2026, 1, 2, 1, 0, tzinfo=UTC)  # of the night of 2026-01-01
ODD = 0.05  # share of nights on which a row takes 5 to 25 % longer
Level = Callable[[Case, int], float]  # how much longer than at first a row takes in a night, as a share


def scatter(rng: np.random.Generator, nights: int, sigma: float) -> np.ndarray:
    """Logarithms about 0: normal, with odd nights."""
    odd = rng.random(nights) < ODD
    return rng.normal(0, sigma, nights) + np.where(odd, np.log1p(rng.uniform(0.05, 0.25, nights)), 0)


def suite(*collectives: str, sizes: Sequence[int] = tuple(1 << power for power in range(16, 25))) -> list[Case]:
    return [case(nbytes, collective=name, op="sum" if name == "all_reduce" else "none")
            for name in collectives for nbytes in sizes]  # fmt: skip


def night(number: int, medians: dict[Case, float], launches: int = 3, **fields: Any) -> RunFile:
    """One run: each row's launches within 2 ppm of its median."""
    given = {"started": (FIRST + timedelta(days=number)).isoformat(), "environment": ENVIRONMENT | {"host": "node1"}}
    records = [
        record(what, median * (1 + 1e-6 * (place - 1)), world=place)
        for place in range(launches) for what, median in medians.items()
    ]  # fmt: skip
    worlds = [world(index=place) for place in range(launches)]
    name = f"night-{number:03d}"
    told = run(**{"name": name, **given, **fields})
    return RunFile(run=told, worlds=worlds, records=records, end=End(exit=0, ended=""), path=Path(name))


def nights(
    cases: Sequence[Case], number: int, level: Level = lambda *_: 0.0, sigma: float = 0.01, seed: int = 1
) -> Iterator[RunFile]:
    """So many nights of the same rows, each around 1 ms with its own scatter."""
    rng = np.random.default_rng(seed)
    logs = {what: scatter(rng, number, sigma) for what in cases}
    for place in range(number):
        yield night(place, {what: 1e6 * float(np.exp(logs[what][place])) * (1 + level(what, place)) for what in cases})


def write(file: RunFile, folder: Path) -> Path:
    """The run as a file of its own."""
    writer = store.Writer(folder / f"{file.run.id}.jsonl", file.run)
    for line in (*file.worlds, *file.records, *([file.end] if file.end else [])):
        writer.write(line)
    writer.close()
    return writer.path
