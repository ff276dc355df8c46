"""Nights made up: launches of a suite whose times follow ``alpha + beta n`` and scatter from launch to launch.

``slower`` multiplies the times of the cases it names; ``change`` may replace or drop any record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from judged import ENVIRONMENT, record, run, world

from collbench.collectives import COLLECTIVES
from collbench.health.night import Timing
from collbench.records import End, RankInfo, Record, RunFile, World
from collbench.suite import Case

SIZES = (64, 16 << 10, 1 << 20, 64 << 20)
ALPHA, BETA = 20_000.0, 0.5  # ns, ns a byte
ROUNDS = {  # of alpha, and of beta over the lower bound's: a library that is neither the best nor bad
    "all_reduce": (4, 1.2), "all_gather": (3, 1.2), "reduce_scatter": (3, 1.2), "all_to_all": (3, 1.3),
    "broadcast": (2, 1.3), "reduce": (2, 1.3), "gather": (2.2, 1.1), "scatter": (2, 1.1), "sendrecv": (1, 1.0),
    "barrier": (2, 0.0),
}  # fmt: skip
Change = Callable[[Record], Record | None]


def cases(n: int = 4, sizes: Sequence[int] = SIZES, **fields: Any) -> list[Case]:
    """Those of suite nightly."""
    found = []
    for name in ROUNDS:
        row = COLLECTIVES[name]
        own = {"op": "sum" if row.reduces else "none", "root": 0 if row.rooted else -1}
        found += [Case(collective=name, backend="gloo", n=n, nbytes=size, **{**own, **fields})
                  for size in (sizes if name != "barrier" else (0,))]  # fmt: skip
    return found


def expected(case: Case) -> float:
    """Nanoseconds a call."""
    rounds, share = ROUNDS[case.collective]
    return rounds * ALPHA + share * case.row.bound(case.n).beta * case.moved * BETA


def hosted(n: int = 4, per_host: int = 1, device: str = "cpu") -> list[RankInfo]:
    return [RankInfo(rank=r, host=f"node{r // per_host}", pid=r, cpus=[r],
                     device=device if device == "cpu" else f"{device}:{r % per_host}") for r in range(n)]  # fmt: skip


def night(
    slower: Mapping[Case, float] = {}, *, rows: Sequence[Case] = (), launches: int = 3, sigma: float = 0.01,
    seed: int = 1, change: Change = lambda record: record, worlds: Mapping[str, Any] = {}, end: int | None = 0,
    **fields: Any,
) -> RunFile:  # fmt: skip
    """A run of so many launches over ``rows``, by default cases()."""
    rng = np.random.default_rng(seed)
    told: list[World] = []
    records: list[Record] = []
    for index in range(launches):
        told.append(world(index=index, **{"ranks": hosted(), **worlds}))
        for case in rows or cases():
            middle = expected(case) * slower.get(case, 1.0) * float(np.exp(rng.normal(0, sigma)))
            made = change(record(case, middle, world=index, checked=case.n * 100))
            records += [made] if made else []
    given = {"environment": ENVIRONMENT, **fields}
    last = None if end is None else End(exit=end, ended="2026-01-02T03:09:05+00:00")
    return RunFile(run=run("night", **given), worlds=told, records=records, end=last, path=Path("night"))


def timings(
    rng: np.random.Generator, rows: Sequence[Case], launches: int, sigmas: Sequence[float],
    median: Callable[[Case], float] = expected,
) -> SimpleNamespace:  # fmt: skip
    """What guidelines ask of a Night, without records: each row with a scatter of its own, in logarithms."""
    found = []
    for case, sigma in zip(rows, sigmas, strict=True):
        values = median(case) * np.exp(rng.normal(0, sigma, launches))
        found.append(Timing(case, "night", float(case.moved), {(0, i): float(v) for i, v in enumerate(values)}, None))  # type: ignore[arg-type]
    return SimpleNamespace(fit=found)


def saved(file: RunFile, folder: Path) -> Path:
    """The run as a file of its own, where ``collbench runs`` looks if ``folder`` is COLLBENCH_HOME."""
    path = folder / "runs" / f"{file.run.id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [file.run, *file.worlds, *file.records, *([file.end] if file.end else [])]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
    return path
