"""A table of expected bandwidths, learned from runs of nodes that should be equal.

A row's point is the median over nodes. Its share is such that a healthy node seldom fails: with a
chance of FALSE_ALARMS in any row of the table, by Student's prediction bound for one more node
(Hahn & Meeker, Statistical Intervals, §4), which is wider the fewer nodes there are.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import NamedTuple

from collbench.core.errors import NoVerdict
from collbench.core.text import format_count, format_size, plain_line
from collbench.features.health.checks.expectations import is_in_switch, measure_busbw
from collbench.features.health.checks.guidelines import is_forced
from collbench.features.health.expect.nodes import (
    MIN_NODES,
    Node,
    Outlier,
    explain_unsound,
    find_outliers,
    limit_z,
    list_unlike,
    spread_of,
)
from collbench.features.health.findings import Severity
from collbench.features.health.night import LAUNCHES, Timing, list_several
from collbench.records import stats

FALSE_ALARMS = 0.01  # chance that a healthy node fails any row of a table

MAX_SHARE = 0.97  # a loss below 3 % is one that no comparison of large sizes judges either

SICK = 1 / 3  # of a node's rows: where it is an outlier in so many, it counts nowhere

MAX_BUSBW = 1e6  # GB/s, above which no table may be


class CurveKey(NamedTuple):
    """What the rows of a curve have in common. ``switch`` is None where the library did not say."""

    collective: str
    per_host: int
    nodes: int
    device: str
    backend: str
    switch: bool | None


class LearnedRow(NamedTuple):
    """A size of a curve: the median busbw over ``nodes`` nodes in GB/s, its MAD and the share that
    suffices, and the nodes that were left out."""

    size: int
    busbw: float
    mad: float
    nodes: int
    share: float
    outliers: list[Outlier]


class Learned(NamedTuple):
    """What nodes taught. ``unsound`` are nodes that count nowhere, by the reason; ``notes`` what a
    reviewer has to know."""

    nodes: list[Node]
    curves: dict[CurveKey, list[LearnedRow]]
    unsound: dict[str, str]
    notes: list[str]
    day: date

    @property
    def hosts(self) -> list[str]:
        """All hosts of the nodes."""
        return sorted({host for node in self.nodes for host in node.machine.hosts})


def learn_table(nodes: Sequence[Node]) -> Learned:
    """The table of these nodes. Raises NoVerdict for fewer than MIN_NODES, and where no row of
    LAUNCHES launches is left on so many."""
    unsound = {node.name: reason for node in nodes if (reason := explain_unsound(node))}
    sound = [node for node in nodes if node.name not in unsound]
    if len(sound) < MIN_NODES:
        refused = f", and of these {list_several(unsound)} had wrong data or broke" * bool(unsound)
        raise NoVerdict(
            f"{format_count(len(nodes), 'node')} given{refused}: scatter between nodes needs"
            f" {MIN_NODES}",
            "measure more nodes, one run each",
        )
    busbws: dict[tuple[CurveKey, int], dict[str, float]] = defaultdict(dict)
    for node in sound:
        for timing in node.night.fit:
            if key := _find_key(node, timing):
                place = busbws[key, timing.case.size]
                place[node.name] = min(measure_busbw(timing), place.get(node.name, math.inf))
    scarce = sum(len(values) < MIN_NODES for values in busbws.values())
    kept = {at: values for at, values in busbws.items() if len(values) >= MIN_NODES}
    sick = _find_sick(kept)
    curves: dict[CurveKey, list[LearnedRow]] = defaultdict(list)
    for (key, size), values in sorted(kept.items(), key=lambda item: (str(item[0][0]), item[0][1])):
        rest = {node: busbw for node, busbw in values.items() if node not in sick}
        if row := _learn_row(size, rest, len(kept)):
            curves[key].append(row)
    lost = len(kept) - sum(map(len, curves.values()))
    if not curves:
        raise NoVerdict(
            f"no row has {LAUNCHES} launches on {MIN_NODES} nodes that agree",
            "collbench run nightly on each node measures such rows",
        )
    notes = list_unlike(sound)
    notes += [f"{format_count(scarce, 'row')} of fewer than {MIN_NODES} nodes left out"] * (
        scarce > 0
    )
    notes += [f"{format_count(lost, 'row')} on which nodes do not agree left out"] * (lost > 0)
    day = max(datetime.fromisoformat(node.file.run.started).date() for node in sound)
    return Learned([*nodes], dict(curves), unsound | sick, notes, day)


def _find_sick(rows: Mapping[tuple[CurveKey, int], Mapping[str, float]]) -> dict[str, str]:
    """The nodes that are outliers in SICK of their rows or more, each with a phrase about it."""
    counts = Counter(node for values in rows.values() for node in values)
    outliers: dict[str, list[tuple[Outlier, str]]] = defaultdict(list)
    for (key, size), busbws in rows.items():
        for outlier in find_outliers(_list_logs(busbws)):
            outliers[outlier.node].append((outlier, f"{key.collective} {format_size(size)}"))
    return {
        node: f"an outlier {_describe_worst(members, counts[node])}"
        for node, members in outliers.items()
        if len(members) >= SICK * counts[node]
    }


def _list_logs(busbws: Mapping[str, float]) -> dict[str, float]:
    return {node: math.log(busbw) for node, busbw in busbws.items()}


def _describe_worst(members: Sequence[tuple[Outlier, str]], row_count: int) -> str:
    """In how many of so many rows a node is an outlier, and how far off in the worst of them."""
    worst, name = max(members, key=lambda member: abs(member[0].z))
    side = "below" if worst.off < 0 else "above"
    return (
        f"in {len(members):,} of {format_count(row_count, 'row')}; {name}: {abs(worst.off):.1%}"
        f" {side} the median, z {worst.z:.1f}"
    )


def _find_key(node: Node, timing: Timing) -> CurveKey | None:
    """The curve that a row belongs to; None for rows that no curve is about."""
    case = timing.case
    shape = node.machine.shapes.get(case.n)
    if (
        shape is None
        or case.n < 2
        or case.subject
        or case.groups
        or case.background
        or is_forced(case)
        or not case.row.moves_data
        or not 0 < measure_busbw(timing) < MAX_BUSBW
    ):
        return None
    chose = node.chose.get(case.key)
    switch = is_in_switch(chose) if node.machine.device and chose and chose.is_heard else None
    return CurveKey(case.collective, *shape, node.machine.device, case.label, switch)


def _learn_row(size: int, busbws: Mapping[str, float], row_count: int) -> LearnedRow | None:
    """The row of one size by each node's busbw, in a table of ``row_count`` rows; None where too
    few nodes agree."""
    logs = _list_logs(busbws)
    outliers = find_outliers(logs)
    rest = [logs[node] for node in logs.keys() - {outlier.node for outlier in outliers}]
    if len(rest) < MIN_NODES - 1:
        return None
    busbw = math.exp(stats.median(rest))
    mad = stats.mad([math.exp(value) for value in rest])
    return LearnedRow(size, busbw, mad, len(rest), choose_share(rest, row_count), outliers)


def choose_share(logs: Sequence[float], row_count: int) -> float:
    """The share of the nodes' median that one more healthy node stays below with a chance of
    FALSE_ALARMS over all rows of the table; MAX_SHARE at most."""
    from scipy.stats import t as student

    count = len(logs)
    quantile = float(student.isf(FALSE_ALARMS / row_count, count - 1))
    # the median of normal values scatters by sqrt(pi/2) times what their mean does
    width = quantile * spread_of(logs) * math.sqrt(1 + math.pi / 2 / count)
    return min(MAX_SHARE, math.floor(math.exp(-width) * 1000) / 1000 or 0.001)


def choose_pattern(hosts: Sequence[str]) -> str:
    """A pattern of hosts: how all their names begin, else the names."""
    first, last = min(hosts), max(hosts)
    same = itertools.takewhile(
        lambda letters: letters[0] == letters[1], zip(first, last, strict=False)
    )
    begin = "".join(letter for letter, _ in same).rstrip("0123456789")
    if len(begin) >= 2:
        return f"^{_escape(begin)}"
    return f"^({'|'.join(map(_escape, hosts))})$"


def _escape(text: str) -> str:
    return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)


def render_table(learned: Learned, severity: Severity, machine: str = "") -> str:
    """The table as a TOML file to be reviewed; ``machine`` is a pattern of hosts' names."""
    return "\n".join([*_list_comments(learned), *_list_curves(learned, severity, machine)]) + "\n"


def _list_comments(learned: Learned) -> Iterable[str]:
    rows = sum(map(len, learned.curves.values()))
    sound = len(learned.nodes) - len(learned.unsound)
    yield "# Expected bandwidths, learned by collbench expect learn: review before it decides."
    yield f"# {format_count(rows, 'row')} of {format_count(sound, 'node')} that should be equal:"
    for node in learned.nodes:
        yield f"#   {plain_line(node.name)}: {plain_line(node.file.run.id)}"
    yield "# A point is the median over nodes. A node is left out of a row where its robust z"
    yield f"# (off the median, over 1.4826 MAD) is above 3.5 + 15/nodes, {limit_z(sound):.1f};"
    yield "# and of all rows where it is that in a third of them."
    yield "# Left out:"
    yield from (f"#   {line}" for line in describe_left_out(learned) or ["nobody"])
    yield f"# share: one more healthy node fails any row, by chance, in {FALSE_ALARMS:.0%} of cases"
    yield f"# (Student's prediction bound by the scatter over these nodes; {MAX_SHARE} at most)."
    yield "# What changes from night to night is not in this scatter."
    yield from (f"# Note: {plain_line(note)}." for note in learned.notes)


def describe_left_out(learned: Learned) -> list[str]:
    """A line for each node that was left out, of all rows or of some, the worst of them named."""
    lines = [f"{plain_line(node)}: {plain_line(why)}" for node, why in learned.unsound.items()]
    rows = sum(map(len, learned.curves.values()))
    by_node: dict[str, list[tuple[Outlier, str]]] = defaultdict(list)
    for key, curve in learned.curves.items():
        for row in curve:
            for outlier in row.outliers:
                by_node[outlier.node].append((outlier, f"{key.collective} {format_size(row.size)}"))
    lines += [
        plain_line(f"{node} {_describe_worst(members, rows)}") for node, members in by_node.items()
    ]
    return lines


def _list_curves(learned: Learned, severity: Severity, machine: str) -> Iterable[str]:
    for key, rows in learned.curves.items():
        spread = ", ".join(
            f"{format_size(row.size)} {row.mad / row.busbw:.1%} ({row.nodes})" for row in rows
        )
        pattern = machine or ("" if key.device else choose_pattern(learned.hosts))
        yield ""
        yield "[[curve]]"
        yield f"# MAD over nodes (and their number): {spread}"
        if key.device:
            yield f"device = {_quote(f'^{_escape(key.device)}$')}"
        if pattern:
            yield f"machine = {_quote(pattern)}"
        yield f"backend = {_quote(key.backend)}"
        yield f"gpus = {key.per_host}"
        yield f"nodes = {key.nodes}"
        yield f"collective = {_quote(key.collective)}"
        if key.switch is not None:
            yield f"switch = {str(key.switch).lower()}"
        yield f"points = {_list_values((row.size, f'{row.busbw:.4g}') for row in rows)}"
        yield f"share = {_list_values((row.size, f'{row.share:.3g}') for row in rows)}"
        yield f"severity = {_quote(severity)}"
        count = min(row.nodes for row in rows)
        yield f"source = {_quote(f'{count} equal nodes, runs of {learned.day}')}"
        yield f"day = {learned.day}"


def _list_values(values: Iterable[tuple[int, str]]) -> str:
    return "{ " + ", ".join(f'"{spell_size(size)}" = {value}' for size, value in values) + " }"


def spell_size(size: int) -> str:
    """A size in bytes as a table has it, exactly."""
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def _quote(text: str) -> str:
    return json.dumps(plain_line(text), ensure_ascii=False)
