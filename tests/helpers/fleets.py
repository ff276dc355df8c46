"""Fleets of many nodes, made of a few real runs or of plain numbers, for tests and figures.

A node's run has the records of real launches: each is a launch of the seeds with all its times
multiplied, so that samples keep their shape, flags and ranks, and the median is what the fleet
says it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from factories import ENDED, ENVIRONMENT, NIGHTLY, ranks, run, swept, world

from collbench.features.health.fleet.reading import Batch, NodeRun
from collbench.records import rows, run_file
from collbench.records.types import End, Record, Run, World
from collbench.suite.case import Case

TIMES = ("times_ns", "per_rank", "starts_ns", "glob_ns", "skew_ns", "control_ns")

CASES = swept(
    "all_reduce", "all_gather", "broadcast", "sendrecv", sizes=(64, 16 << 10, 1 << 20, 16 << 20)
)


class Seeds(NamedTuple):
    """Cases with their usable launches: records, and how far the launches' medians lie from the
    case's, as logarithms."""

    run: Run
    world: World
    records: Mapping[Case, Sequence[Record]]
    medians: Mapping[Case, float]
    offsets: Mapping[Case, Sequence[float]]


def read_seeds(paths: Sequence[Path]) -> Seeds:
    """The launches of real runs that may be judged, of cases with four at least. Others' load is
    left out: the machine that they were measured on is shared."""
    files = [run_file.read_file(path) for path in paths]
    records: dict[Case, list[Record]] = {}
    logs: dict[Case, list[float]] = {}
    for row in rows.select_gateable(rows.make_rows(files)):
        bare = msgspec.structs.replace(row.cycles[0].record, load={}, case=row.case, world=0)
        records.setdefault(row.case, []).append(bare)
        logs.setdefault(row.case, []).append(math.log(row.median))
    medians = {case: float(np.median(values)) for case, values in logs.items()}
    return Seeds(
        msgspec.structs.replace(files[0].run, load={}),
        files[0].worlds[0],
        {case: found for case, found in records.items() if len(found) >= 4},
        medians,
        {case: [v - medians[case] for v in values] for case, values in logs.items()},
    )


class Scatter(NamedTuple):
    """How nodes and launches differ, as shares: nodes in all rows, a node's launches in all rows,
    and each row of a launch. ``heavy`` is the degrees of freedom of t distributions, 0 for normal
    ones."""

    node: float = 0.003
    launch: float = 0.003
    row: float = 0.02
    heavy: float = 0.0

    def draw(self, rng: np.random.Generator, size: Any) -> np.ndarray:
        """Numbers of scale 1."""
        return rng.standard_t(self.heavy, size) if self.heavy else rng.normal(size=size)


DEDICATED = Scatter()


def draw_logs(
    rng: np.random.Generator,
    nodes: int,
    launches: int,
    cases: Sequence[Case],
    scatter: Scatter = DEDICATED,
    offsets: Mapping[Case, Sequence[float]] | None = None,
) -> np.ndarray:
    """How far each launch's row lies from the fleet's, as logarithms: nodes, launches, cases. With
    ``offsets`` of real launches rows scatter as these do, brought to the scatter of a row."""
    of_node = scatter.node * scatter.draw(rng, (nodes, 1, 1))
    of_launch = scatter.launch * scatter.draw(rng, (nodes, launches, 1))
    of_row = scatter.row * scatter.draw(rng, (nodes, launches, len(cases)))
    if offsets:
        for index, case in enumerate(cases):
            real = np.array(offsets[case])
            middle = 1.4826 * np.median(np.abs(real - np.median(real)))
            scaled = real * (scatter.row / middle) if scatter.row else real
            of_row[:, :, index] = rng.choice(scaled, (nodes, launches))
    return of_node + of_launch + of_row


def name_node(number: int) -> str:
    """r00-n00 …: racks of 20 nodes."""
    return f"r{number // 20:02}-n{number % 20:02}"


def plain_batch(
    logs: np.ndarray,
    cases: Sequence[Case] = CASES,
    slower: Mapping[int, float] | None = None,
    facts: Mapping[int, Mapping[str, Any]] | None = None,
) -> Batch:
    """The fleet as it is once its files are read."""
    names = {case.key: case for case in cases}
    runs = []
    for number in range(len(logs)):
        extra = math.log1p((slower or {}).get(number, 0.0))
        medians = {
            name: (13.0 + logs[number, :, index] + extra).tolist()
            for index, name in enumerate(names)
        }
        runs.append(
            NodeRun(
                path=f"{number}.jsonl",
                run=f"run-{number}",
                host=name_node(number),
                started="2026-01-02T03:04:05+00:00",
                night="2026-01-01",
                facts=dict((facts or {}).get(number, {"kernel": "6.1"})),
                medians=medians,
                launches=logs.shape[1],
                checked=1,
            )
        )
    return Batch(runs, names)


def node_lines(
    number: int,
    logs: np.ndarray,
    cases: Sequence[Case] = CASES,
    *,
    slower: float = 0.0,
    host: str = "",
    seeds: Seeds | None = None,
    rng: np.random.Generator | None = None,
    end: End | None = ENDED,
    environment: Mapping[str, Any] = ENVIRONMENT,
    **fields: Any,
) -> list[Run | World | Record | End]:
    """The lines of a node's run: ``logs`` are by launch and case. Without seeds, of seven samples
    around each median."""
    host = host or name_node(number)
    about = {"environment": {**environment, "host": host}, "suite": NIGHTLY, **fields}
    first = run(f"night-{number}", **about)
    if seeds:
        facts = {**seeds.run.environment, **dict(environment), "host": host}
        first = msgspec.structs.replace(seeds.run, id=f"night-{number}", environment=facts)
    lines: list[Run | World | Record | End] = [first]
    for launch in range(len(logs)):
        if seeds:
            members = [
                msgspec.structs.replace(rank, host=host, pid=rank.pid + 100 * launch)
                for rank in seeds.world.ranks
            ]
            lines.append(msgspec.structs.replace(seeds.world, index=launch, ranks=members))
        else:
            lines.append(world(launch, n=4, ranks=ranks([host] * 4)))
        for index, case in enumerate(cases):
            off = float(logs[launch, index]) + math.log1p(slower)
            cycle = msgspec.structs.replace(case, cycle=launch)
            if seeds and rng is not None:
                choice = int(rng.integers(len(seeds.records[case])))
                real = seeds.records[case][choice]
                own = seeds.offsets[case][choice]
                lines.append(_scale_record(real, cycle, launch, math.exp(off - own)))
            else:
                middle = math.exp(13 + off)
                times = [round(middle * (1 + 0.004 * step)) for step in range(-3, 4)]
                lines.append(
                    Record(
                        case=cycle,
                        status="ok",
                        world=launch,
                        times_ns=times,
                        sync="window",
                        cache="cold",
                        checked=1,
                    )
                )
    return [*lines, end] if end else lines


def _scale_record(real: Record, case: Case, launch: int, factor: float) -> Record:
    """A real launch's record with all its times multiplied."""
    scaled = {
        name: np.rint(np.array(values, dtype=float) * factor).astype(np.int64).tolist()
        for name in TIMES
        if (values := getattr(real, name))
    }
    record = msgspec.structs.replace(real)
    for name, values in scaled.items():
        msgspec.structs.force_setattr(record, name, values)
    msgspec.structs.force_setattr(record, "case", case)
    msgspec.structs.force_setattr(record, "world", launch)
    return record


def write_node(path: Path, lines: Sequence[Run | World | Record | End]) -> Path:
    """A run's file of these lines."""
    encoder = msgspec.json.Encoder()
    path.write_bytes(b"\n".join(map(encoder.encode, lines)) + b"\n")
    return path
