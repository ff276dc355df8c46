"""Planted losses: runs of made-up nodes, whose launches are real, that a table of expected
bandwidths is to find.

Real are the launches of reports/runs/ring-or-one-shot, of two algorithms. A node is made of some of
them, with all of their times multiplied by a factor of the node's own.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from collbench.features.health.checks.curves import Curve, load_curves
from collbench.features.health.checks.expectations import check_expectations
from collbench.features.health.expect import learning, nodes
from collbench.features.health.expect.nodes import Node
from collbench.features.health.night import Night
from collbench.records import run_file
from collbench.records.types import End, RankInfo, Record, RunFile, World
from collbench.suite.case import Case

REAL = Path(__file__).parents[2] / "reports" / "runs" / "ring-or-one-shot"
SCATTER = 0.03  # between nodes, of logarithms


class Real(NamedTuple):
    """Real launches: a run's description, and of each launch its world and the records of its
    rows."""

    file: RunFile
    launches: list[tuple[World, list[Record]]]


def list_real() -> list[Path]:
    """The files of the real launches."""
    return sorted(REAL.glob("*.jsonl"))


def digest_real() -> str:
    """The first 12 digits of the SHA-256 of these files."""
    whole = hashlib.sha256()
    for path in list_real():
        whole.update(path.read_bytes())
    return whole.hexdigest()[:12]


def read_real() -> Real:
    """The launches, each with the rows of the larger sizes that all of them have, of both sides.
    Launches that took only what was undecided yet are left out."""
    files = [run_file.read_file(path) for path in list_real()]
    by_round: dict[tuple[int, int], list[tuple[World, Record]]] = {}
    for file in files:
        worlds = {world.index: world for world in file.worlds}
        for record in file.records:
            world = worlds[record.world]
            if record.status == "ok" and record.case.nbytes >= 16 << 10:
                by_round.setdefault((world.stage, world.round), []).append((world, record))
    fullest = max(map(len, by_round.values()))
    by_round = {at: members for at, members in by_round.items() if 2 * len(members) > fullest}
    shared = set.intersection(*({_name_row(r) for _, r in m} for m in by_round.values()))
    launches = [
        (members[0][0], [record for _, record in members if _name_row(record) in shared])
        for _, members in sorted(by_round.items())
    ]
    about = msgspec.structs.replace(files[0].run, pairing=None, load={})
    return Real(msgspec.structs.replace(files[0], run=about), launches)


def _name_row(record: Record) -> Case:
    """What a record has in common with its like in other launches."""
    return msgspec.structs.replace(record.case, cycle=0)


def make_run(real: Real, name: str, chosen: Sequence[int], factor: float) -> RunFile:
    """A run of a node: these real launches, all times multiplied by ``factor``."""
    worlds, records = [], []
    for index, at in enumerate(chosen):
        world, rows = real.launches[at]
        ranks = [
            RankInfo(rank=rank.rank, host=name, pid=10 * index + rank.rank, cpus=rank.cpus)
            for rank in world.ranks
        ]
        worlds.append(
            msgspec.structs.replace(world, index=index, stage=0, round=0, ranks=ranks, together="")
        )
        records += [_scale_record(record, index, factor) for record in rows]
    about = msgspec.structs.replace(real.file.run, id=f"run-{name}")
    return RunFile(
        run=about, worlds=worlds, records=records, end=End(exit=0, ended=""), path=Path(name)
    )


def _scale_record(record: Record, world: int, factor: float) -> Record:
    times = [max(1, round(time * factor)) for time in record.times_ns]
    case = msgspec.structs.replace(record.case, cycle=world)
    unused = {"per_rank": [], "starts_ns": [], "load": {}}  # which no gate of busbw reads
    return msgspec.structs.replace(record, world=world, times_ns=times, case=case, **unused)


class MadeNode(NamedTuple):
    """A node: its name, its launches, and how much longer than others' its calls take."""

    name: str
    launches: tuple[int, ...]
    factor: float


def make_nodes(real: Real, rng: np.random.Generator, count: int, launches: int) -> list[MadeNode]:
    return [
        MadeNode(
            f"node{number:02d}",
            tuple(map(int, rng.choice(len(real.launches), launches, replace=False))),
            float(np.exp(rng.normal(0, SCATTER))),
        )
        for number in range(count)
    ]


def learn(real: Real, made: Sequence[MadeNode]) -> tuple[list[Curve], list[Node]]:
    """The table that these nodes teach, read back from its file, and the nodes."""
    runs = [make_run(real, node.name, node.launches, node.factor) for node in made]
    read = [nodes.make_node(run) for run in runs]
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "ours.toml"
        table.write_text(learning.render_table(learning.learn_table(read), "critical"))
        return load_curves(table), read


def is_found(
    real: Real, node: MadeNode, chosen: Sequence[int], loss: float, curves: list[Curve]
) -> bool:
    """Whether the gate finds a planted run of these launches of the node."""
    run = make_run(real, node.name, chosen, node.factor / (1 - loss))
    return bool(check_expectations(Night([run]), curves).findings)
