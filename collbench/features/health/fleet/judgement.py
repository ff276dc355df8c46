"""Which nodes of a fleet are odd: single-node runs of one night, held against those of like nodes.

What is done, in order:

1. Runs of one host are one node; their launches are pooled if they are of one kind of machine.
   Nodes without a usable run are named, and their times are not judged.
2. Nodes are compared with like nodes only: those that agree in all that decides times (versions,
   settings, clocks, devices). A group of fewer than FEWEST is not judged.
3. In a group, a row's value at a node is the logarithm of the median of its launches' medians; the
   group's median of the row is taken off, so that rows can be taken together.
4. A node's deviation in a part of the rows (all; one collective; one implementation; small or large
   sizes) is the median of its rows' there: a disturbed row or two change nothing.
5. Whether a deviation is too large is told by the nodes themselves (tails.py): a t distribution
   whose tails are those of the group's bulk. Where launches scatter much, or with heavy tails, more
   is asked of a node before it is called odd.
6. Chances are adjusted for all that was tested in the whole fleet: half of CHANCE is for all rows
   together, half for the other parts, each over all nodes by Holm's procedure. A node is odd only
   below CHANCE, and if it is slower by at least LEAST. In a healthy fleet anybody is accused in one
   night of a thousand, if the slow side of its nodes is no heavier than Student's t: tails.py has
   how much oftener where it is skewed.

A group whose limit (the deviation from which on a node would have been called odd) is above BLIND
has seen nothing, and is not judged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from collbench.core.text import format_count, format_size
from collbench.features.health.findings import Finding
from collbench.features.health.fleet.places import Racks
from collbench.features.health.fleet.reading import WATCHED, Batch, Blind, NodeRun, read_runs
from collbench.features.health.fleet.tails import Tail, fit_tail
from collbench.machine import environment
from collbench.records import stats
from collbench.records.stats import Floats
from collbench.suite.case import Case

FEWEST = 8  # like nodes that can be held against each other

CHANCE = 1e-3  # that anybody is accused in a healthy fleet

LEAST = 0.03  # by which a node is slower, at least, to be odd

CRITICAL = 0.20  # from which on that is critical

BLIND = 0.25  # a limit above which a group is not judged

SMALL, LARGE = 16 << 10, 1 << 20  # bytes up to which, and from which, sizes are a part of their own

ALL = "all rows"

NO_RUN = Blind("no run of the night", idle=True)


class Node(msgspec.Struct, kw_only=True):
    """A host. ``trouble`` and ``why`` are as of NodeRun, and further: "missing", "few like it",
    "unlike rows", "scatter". ``values`` are by the number of the row, nan where there is none;
    ``deviations`` relative, by part; ``odd`` the parts in which it is too slow, the surest first,
    with the chance of that in a healthy fleet. ``wrong_runs`` are elements of wrong data by the run
    that received them, ``checked`` those that were compared. ``findings`` are of all runs of the
    night, and ``blind`` says of checks that saw nothing in any of them why."""

    host: str
    rack: str = ""
    runs: tuple[str, ...] = ()
    launches: int = 0
    digest: str = ""
    trouble: str = ""
    why: str = ""
    wrong_runs: Mapping[str, int] = {}
    wrong_cases: Sequence[str] = ()
    checked: int = 0
    findings: Sequence[Finding] = ()
    blind: Mapping[str, Blind] = {}
    values: Mapping[str, float] = {}
    deviations: Mapping[str, float] = {}
    rows: Mapping[str, float] = {}  # relative, by the name of the row
    odd: Sequence[tuple[str, float]] = ()

    @property
    def deviation(self) -> float | None:
        """In all rows; None without a verdict."""
        return self.deviations.get(ALL)

    @property
    def worst(self) -> tuple[str, float, float]:
        """Of an odd node the part to name, its deviation there and the chance: all rows where these
        are too slow, too, unless a part is slower by more than half."""
        parts = {part: (self.deviations[part], chance) for part, chance in self.odd}
        part = ALL if ALL in parts else self.odd[0][0]
        most = max(parts, key=lambda name: parts[name][0])
        if parts[most][0] > 1.5 * parts[part][0]:
            part = most
        return part, *parts[part]


class Group(NamedTuple):
    """Like nodes. ``unlike`` says in what they differ from the largest group, ``limit`` is the
    least deviation in all rows that would have been called odd, None where they are not judged, and
    then ``why``. ``levels`` are two times around which nodes gather, relative to the median."""

    digest: str
    nodes: Sequence[Node]
    unlike: str
    rows: int = 0
    limit: float | None = None
    scatter: float = 0.0
    why: str = ""
    levels: tuple[float, float] | None = None


class Fleet(NamedTuple):
    """All nodes by name, and the groups, the largest first. ``cases`` are by the name of their row,
    ``parts`` the names of rows by part."""

    nodes: Sequence[Node]
    groups: Sequence[Group]
    cases: Mapping[str, Case]
    parts: Mapping[str, Sequence[str]]
    unnamed: Sequence[NodeRun]
    night: str
    runs: Sequence[str]
    ended: str
    injected: str
    fake: bool
    checked: int

    @property
    def odd(self) -> list[Node]:
        """Odd nodes, the slowest first."""
        return sorted((n for n in self.nodes if n.odd), key=lambda node: -node.worst[1])

    @property
    def judged(self) -> list[Node]:
        """Nodes with a verdict."""
        return [node for node in self.nodes if node.deviation is not None]

    @property
    def apart(self) -> list[Node]:
        """Nodes without a verdict, by name."""
        return [node for node in self.nodes if node.deviation is None]

    @property
    def unverified(self) -> list[Node]:
        """Nodes whose times are judged, and of whose data nobody compared an element."""
        return [node for node in self.judged if not node.checked and not node.wrong_cases]

    @property
    def unsound_nodes(self) -> list[Node]:
        """Nodes of which other checks than that of times found something, by name."""
        return [node for node in self.nodes if node.findings]

    @property
    def wrong_nodes(self) -> list[Node]:
        """Nodes that received wrong data."""
        return [node for node in self.nodes if node.wrong_cases]

    @property
    def wrong_unnamed(self) -> list[NodeRun]:
        """Runs of no one node that received wrong data."""
        return [run for run in self.unnamed if run.wrong_cases]


def judge_runs(
    paths: Sequence[Path], expected: Sequence[str] = (), racks: Racks | None = None
) -> Fleet:
    """The fleet that these files are of. ``expected`` are the nodes that were to give a run, where
    that is known: others are left out."""
    return judge_batches(read_runs(paths), expected, racks)


def judge_batches(
    batches: Iterable[Batch], expected: Sequence[str] = (), racks: Racks | None = None
) -> Fleet:
    """The fleet that these runs are of."""
    gathered = _gather_runs(batches, set(expected))
    runs = [run for entries in gathered.by_host.values() for run in entries.values()]
    nights = ({run.night for run in entries.values()} for entries in gathered.by_host.values())
    night = _choose_night(chain.from_iterable(nights))
    nodes = [
        _make_node(host, list(entries.values()), gathered.digests, night)
        for host, entries in gathered.by_host.items()
    ]
    nodes += _list_missing(expected, gathered.by_host)
    for node in nodes:
        node.rack = racks.find_rack(node.host) if racks else ""
    nodes.sort(key=lambda node: natural_key(node.host))
    groups, parts = _judge_groups(nodes, gathered.facts, gathered.cases)
    return Fleet(
        nodes=nodes,
        groups=groups,
        cases=gathered.cases,
        parts=parts,
        unnamed=gathered.unnamed,
        night=night,
        runs=gathered.names,
        ended=max((run.ended or run.started for run in runs), default=""),
        injected=", ".join(dict.fromkeys(run.injected for run in runs if run.injected)),
        fake=any(run.fake for run in runs),
        checked=sum(run.checked for run in [*runs, *gathered.unnamed]),
    )


def _choose_night(nights: Iterable[str]) -> str:
    """The last of the ``nights``, of each node its own, that at least half as many have as the one
    that most have: a folder may hold several, and single nodes may have a wrong clock. Empty
    without any."""
    counts = Counter(nights)
    most = max(counts.values(), default=0)
    return max((night for night, count in counts.items() if 2 * count >= most), default="")


class _Gathered(NamedTuple):
    """Runs by host and id, the digest of each one's facts by its identity, and these facts once."""

    by_host: dict[str, dict[str, NodeRun]]
    digests: dict[int, str]
    facts: dict[str, Mapping[str, Any]]
    cases: dict[str, Case]
    unnamed: list[NodeRun]
    names: list[str]


def _gather_runs(batches: Iterable[Batch], wanted: set[str]) -> _Gathered:
    """All runs of ``wanted`` nodes, or of all if there are none. A run given twice counts once."""
    gathered = _Gathered({}, {}, {}, {}, [], [])
    for batch in batches:
        for name, case in batch.cases.items():
            gathered.cases.setdefault(name, case)
        for run in batch.runs:
            if not run.host:
                gathered.unnamed.append(run)
                gathered.names.append(run.run or Path(run.path).stem)
                continue
            if wanted and not {run.host, run.host.partition(".")[0]} & wanted:
                continue
            entries = gathered.by_host.setdefault(run.host, {})
            if run.run in entries:
                continue
            digest = environment.digest_facts(run.facts)
            gathered.facts.setdefault(digest, run.facts)
            gathered.digests[id(run)] = digest
            gathered.names.append(run.run)
            run.facts = {}  # of which thousands are equal
            entries[run.run] = run
    return gathered


def natural_key(name: str) -> list[tuple[int, str]]:
    """A key that sorts node2 before node10."""
    words = "".join(c if c.isdigit() else f" {c} " for c in name).split()
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]


def _list_missing(expected: Iterable[str], by_host: Mapping[str, Any]) -> list[Node]:
    """Nodes that gave no run, which a domain's name may follow there."""
    present = {*by_host, *(host.partition(".")[0] for host in by_host)}
    return [
        Node(host=name, trouble="missing", why="no run of it was given")
        for name in expected
        if name not in present
    ]


def _make_node(host: str, runs: Sequence[NodeRun], digests: Mapping[int, str], night: str) -> Node:
    """A host by all its runs: those of the night that may be judged, of the kind of machine that
    the last of them is of; where there are none, the trouble of the last."""
    runs = sorted(runs, key=lambda run: run.started)
    for run in runs:
        if run.night != night and not run.trouble:
            run.trouble, run.why = "another night", f"{run.run} is of {run.night}, not {night}"
    usable = [run for run in runs if not run.trouble]
    tonight = [run for run in runs if run.night == night]
    wrong = [run for run in tonight if run.wrong_cases]
    last = usable[-1] if usable else runs[-1]
    alike = [run for run in usable if digests[id(run)] == digests[id(last)]]
    logs: dict[str, list[float]] = {}
    for run in alike:
        for name, medians in run.medians.items():
            logs.setdefault(name, []).extend(medians)
        run.medians = {}
    return Node(
        host=host,
        runs=tuple(run.run for run in alike or [last]),
        launches=sum(run.launches for run in alike),
        digest=digests[id(last)],
        trouble="" if usable else last.trouble,
        why="" if usable else last.why,
        wrong_runs={run.run: run.wrong for run in wrong},
        wrong_cases=[case for run in wrong for case in run.wrong_cases],
        checked=sum(run.checked for run in alike),
        findings=[finding for run in tonight for finding in run.findings],
        blind=_find_blind(tonight),
        values={name: _median_log(values) for name, values in logs.items()},
    )


def _find_blind(runs: Sequence[NodeRun]) -> dict[str, Blind]:
    """By check of WATCHED why it saw nothing in any of a node's runs of the night."""
    reasons = {name: [run.blind[name] for run in runs if name in run.blind] for name in WATCHED}
    return {
        name: min(blind, key=lambda reason: reason.idle, default=NO_RUN)
        for name, blind in reasons.items()
        if len(blind) == len(runs)
    }


def _median_log(logs: list[float]) -> float:
    """The logarithm of the median of values whose logarithms these are."""
    logs.sort()
    low, high = logs[(len(logs) - 1) // 2], logs[len(logs) // 2]
    return low if low == high else math.log((math.exp(low) + math.exp(high)) / 2)


def list_parts(cases: Mapping[str, Case]) -> dict[str, list[str]]:
    """The names of rows by part: all of them, those of each collective, of each implementation, and
    of small and of large sizes; of two rows at least, and none that is another part again."""
    parts: dict[str, list[str]] = {ALL: list(cases)}
    for name, case in cases.items():
        parts.setdefault(case.collective, []).append(name)
        parts.setdefault(case.label, []).append(name)
        if case.size and case.size <= SMALL:
            parts.setdefault(f"sizes up to {format_size(SMALL)}", []).append(name)
        elif case.size >= LARGE:
            parts.setdefault(f"sizes from {format_size(LARGE)}", []).append(name)
    distinct: dict[tuple[str, ...], str] = {}
    for part, names in parts.items():
        if len(names) > 1 or part == ALL:
            distinct.setdefault(tuple(names), part)
    return {part: list(names) for names, part in distinct.items()}


class _Test(NamedTuple):
    """A part of the rows of a group: each node's deviation, and the tail that it is judged by."""

    part: str
    nodes: Sequence[Node]
    deviations: Floats
    tail: Tail


def _judge_groups(
    nodes: Sequence[Node], facts: Mapping[str, Mapping[str, Any]], cases: Mapping[str, Case]
) -> tuple[list[Group], dict[str, list[str]]]:
    """The groups of like nodes, the largest first, and the parts that were tested. The nodes get
    their deviations and what they are odd in."""
    by_digest: dict[str, list[Node]] = {}
    for node in nodes:
        if not node.trouble:
            by_digest.setdefault(node.digest, []).append(node)
    ordered = sorted(by_digest.items(), key=lambda item: (-len(item[1]), item[0]))
    parts = list_parts(cases)
    tests: list[_Test] = []
    groups: list[Group] = []
    total = sum(len(members) for _, members in ordered if len(members) >= FEWEST)
    for digest, members in ordered:
        differences = [
            (key, facts[ordered[0][0]].get(key), facts[digest].get(key))
            for key in sorted({*facts[ordered[0][0]], *facts[digest]})
            if facts[ordered[0][0]].get(key) != facts[digest].get(key)
        ]
        group = Group(digest, members, environment.list_facts(differences))
        group, group_tests = _test_group(group, parts, total)
        groups.append(group)
        tests += group_tests
    _find_odd(tests)
    return groups, parts


def _refuse_group(group: Group, trouble: str, why: str) -> tuple[Group, list[_Test]]:
    for node in group.nodes:
        node.trouble, node.why, node.deviations, node.rows = trouble, why, {}, {}
    return group._replace(why=why), []


def _test_group(
    group: Group, parts: Mapping[str, Sequence[str]], total: int
) -> tuple[Group, list[_Test]]:
    """The tests of a group, of nodes that have at least half of its rows; none where it cannot be
    judged, and then it says why."""
    if len(group.nodes) < FEWEST:
        like = format_count(len(group.nodes), "usable node")
        unlike = f", unlike the largest group: {group.unlike}" if group.unlike else ""
        return _refuse_group(
            group, "few like it", f"{like} of its kind, and {FEWEST} are needed{unlike}"
        )
    counts = Counter(name for node in group.nodes for name in node.values)
    names = [name for name, count in counts.items() if 2 * count >= len(group.nodes)]
    nodes = []
    for node in group.nodes:
        present = sum(name in node.values for name in names)
        if 2 * present >= len(names) and present:
            nodes.append(node)
        else:
            node.trouble = "unlike rows"
            node.why = f"{present} of {format_count(len(names), 'row')} that its like have"
    if len(nodes) < FEWEST:
        return _refuse_group(group, "few like it", f"only {len(nodes)} have the same rows")
    values = np.array([[node.values.get(name, math.nan) for name in names] for node in nodes])
    off = values - np.nanmedian(values, axis=0)
    index = {name: number for number, name in enumerate(names)}
    tests = []
    for part, part_names in parts.items():
        columns = [index[name] for name in part_names if name in index]
        if not columns or (part != ALL and len(columns) < 2):
            continue
        block = off[:, columns]
        has_rows = 2 * np.isfinite(block).sum(axis=1) >= len(columns)
        members = [node for node, has in zip(nodes, has_rows, strict=True) if has]
        if len(members) >= FEWEST:
            deviations = np.nanmedian(block[has_rows], axis=1)
            tests.append(_Test(part, members, deviations, fit_tail(deviations)))
    limit = _find_limit(tests[0].tail, total)
    modes = stats.find_modes(np.exp(tests[0].deviations))
    group = group._replace(
        rows=len(names),
        limit=limit,
        scatter=tests[0].tail.scale,
        levels=(modes[0] - 1, modes[1] - 1) if modes else None,
    )
    if limit > BLIND:
        return _refuse_group(
            group,
            "scatter",
            f"its like scatter so much that only a node {limit:.0%} slower would stand out",
        )
    for number, node in enumerate(nodes):
        row_values = [float(value) for value in off[number]]
        node.rows = {
            name: math.expm1(value)
            for name, value in zip(names, row_values, strict=True)
            if math.isfinite(value)
        }
    return group, tests


def _find_limit(tail: Tail, total: int) -> float:
    """The relative deviation in all rows from which on a node is odd."""
    return max(LEAST, math.expm1(tail.limit(CHANCE / 2 / max(1, total))))


def _find_odd(tests: Sequence[_Test]) -> None:
    """Set every node's deviations and the parts in which it is odd."""
    found: dict[int, dict[str, float]] = {}
    deviations: dict[int, dict[str, float]] = {}
    parts = dict.fromkeys(test.part for test in tests)
    for part in parts:
        of_part = [test for test in tests if test.part == part]
        members = [node for test in of_part for node in test.nodes]
        values = np.concatenate([test.deviations for test in of_part])
        chances = np.concatenate([test.tail.chance(test.deviations) for test in of_part])
        share = 2 if part == ALL else 2 * max(1, len(parts) - 1)
        adjusted = stats.adjust_holm(chances.tolist())
        for node, value, chance in zip(members, values.tolist(), adjusted, strict=True):
            delta = math.expm1(value)
            deviations.setdefault(id(node), {})[part] = delta
            if share * chance < CHANCE and delta >= LEAST:
                found.setdefault(id(node), {})[part] = share * chance
    nodes = {id(node): node for test in tests for node in test.nodes}
    for key, node in nodes.items():
        node.deviations = deviations[key]
        node.odd = sorted(found.get(key, {}).items(), key=lambda item: item[1])
