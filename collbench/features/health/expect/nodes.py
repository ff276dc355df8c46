"""Nodes that should be equal, each by a run of its own: read, and those that are unlike named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collbench.core.errors import NoVerdict, UsageError
from collbench.features.health.checks import data
from collbench.features.health.checks.expectations import (
    Machine,
    describe_machine,
    list_choices,
)
from collbench.features.health.checks.table import describe_injected
from collbench.features.health.night import Night, list_several
from collbench.machine import environment
from collbench.records import origins, run_file, stats, store
from collbench.records.types import Choice, RunFile

MIN_NODES = 6  # of which two may be sick, and the median is still that of healthy ones

FLOOR = 0.01  # of a median: scatter below is not believed, as figures are not that exact


class Node(NamedTuple):
    """A node, by the names of its hosts, with its run."""

    name: str
    night: Night
    machine: Machine
    chose: dict[str, Choice]

    @property
    def file(self) -> RunFile:
        """Its run."""
        return self.night.files[0]


class Outlier(NamedTuple):
    """How far a node is from the median of the others: as a share, and as a robust z."""

    node: str
    off: float
    z: float


def read_nodes(names: Sequence[str]) -> list[Node]:
    """A node for each run. Raises UsageError for a node with two runs, NoVerdict for runs that tell
    nothing of a machine."""
    files = []
    for path in dict.fromkeys(map(store.find_run, names)):
        if run_file.is_running(path):
            raise NoVerdict(run_file.describe_running(path), "use it once it has ended")
        files.append(run_file.read_digest(path))
    nodes = [make_node(file) for file in files]
    by_name: dict[str, str] = {}
    for node in nodes:
        if other := by_name.get(node.name):
            raise UsageError(
                f"{other} and {node.file.run.id} are both runs of {node.name}",
                "give one run for each node",
            )
        by_name[node.name] = node.file.run.id
    return nodes


def make_node(file: RunFile) -> Node:
    """The node that a run was made on. Raises NoVerdict for one that tells nothing of it."""
    night = Night([file])
    planted = describe_injected([file])
    reason = f"{file.run.id}: a fault was planted: {planted}" if planted else night.trouble
    if reason:
        raise NoVerdict(reason, "give runs that were measured on healthy nodes")
    origins.refuse_fake(file, "learn")
    return describe_node(night)


def describe_node(night: Night) -> Node:
    """The node that the runs of a night were made on."""
    name = list_several(night.hosts, 8) or night.files[0].run.id
    return Node(name, night, describe_machine(night), list_choices(night))


def explain_unsound(node: Node) -> str:
    """The reason why nothing of a node counts: its data were wrong, or cases broke; else empty."""
    findings = [
        *data.check_data(node.night).findings,
        *data.check_completeness(node.night).findings,
    ]
    return findings[0].sentence if findings else ""


def list_unlike(nodes: Sequence[Node]) -> list[str]:
    """Sentences about nodes whose machine or software differs from the first one's."""
    sentences = []
    for node in nodes[1:]:
        first, other = nodes[0].file, node.file
        differences = environment.find_differences(
            first.run.environment, other.run.environment, first.backends | other.backends
        )
        if differences:
            listed = environment.list_facts(differences)
            sentences.append(f"{node.name} is unlike {nodes[0].name}: {listed}")
    return sentences


def limit_z(count: int) -> float:
    """The robust z beyond which one of so many values is an outlier. Of normal values, the MAD of
    few of which is a poor measure, one is called so in some 4 rows of 100 (simulated; tested)."""
    return 3.5 + 15 / count


def find_outliers(logs: dict[str, float]) -> list[Outlier]:
    """The nodes whose values, given as logarithms, are outliers; of fewer than MIN_NODES none."""
    if len(logs) < MIN_NODES:
        return []
    values = [*logs.values()]
    middle = stats.median(values)
    scale = max(1.4826 * stats.mad(values), FLOOR)
    return [
        Outlier(node, math.expm1(value - middle), (value - middle) / scale)
        for node, value in logs.items()
        if abs(value - middle) > limit_z(len(logs)) * scale
    ]


def spread_of(logs: Sequence[float]) -> float:
    """The standard deviation of at least two logarithms."""
    return float(np.std(logs, ddof=1))
