"""Rows that earlier nights had and tonight lacks, as those of 8 GPUs where 7 are left.

A row is lost where tonight was to measure it: its record says that it cannot run here, or the same
was measured with another number of ranks or another backend than in those nights, though neither
the suite nor an option names these. What was left out for --budget is not lost, nor what the suite
has no more. Nights count that runs of the same suites made.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence

from collbench.core.text import format_count
from collbench.features.health.checks.hosts import SHOWN
from collbench.features.health.findings import Evidence, Finding, Subject
from collbench.features.health.history.gates import RECENT
from collbench.features.health.history.nights import Series
from collbench.records import store
from collbench.records.derive import NO_TIME_LEFT
from collbench.records.types import Record, Run, RunFile
from collbench.suite.case import Case
from collbench.suite.case_words import describe_case

HAD = 3  # of the last RECENT nights: what fewer had, a row or a port's rate, is not looked for

Plan = tuple[str, Hashable]  # a suite, and what a row measures but for what that leaves open
OPTIONS = {"ranks": re.compile(r"-g|--(ngpus|ranks)\b"), "backends": re.compile(r"--backend\b")}


def find_lost(every: Sequence[Series], files: Sequence[RunFile], night: str) -> list[Finding]:
    """A finding for each number of ranks and backend whose rows are lost in these runs of
    ``night``. ``every`` are all rows of the machine."""
    named = _group_named_axes(files)
    records = [(file, record) for file in files for record in file.records]
    measured_keys = {record.case.key for file, record in records if not _is_refused(file, record)}
    refused = {record.case.key for _, record in records} - measured_keys
    planned = {
        (suite := file.run.suite.name, _strip_machine(record.case, named[suite]))
        for file, record in records
    }
    measured = {
        _strip_machine(record.case, OPTIONS)
        for _, record in records
        if record.case.key in measured_keys
    }
    days = {row.key: _group_days(row, named, night) for row in every}
    present = [row for row in every if row.key in measured_keys]
    absent = [
        row
        for row in every
        if row.key not in measured_keys
        and all(each.day != night for each in row.nights)
        and (
            row.key in refused
            or (
                not planned.isdisjoint(days[row.key])
                and _strip_machine(row.case, OPTIONS) not in measured
            )
        )
    ]
    all_days = {
        day for row in (*present, *absent) for group in days[row.key].values() for day in group
    }
    last = sorted(all_days - {night})[-RECENT:]
    twins: dict[Plan, set[str]] = defaultdict(set)  # nights that had tonight's rows
    for row in present:
        for plan, group in days[row.key].items():
            twins[plan] |= group
    lost: dict[tuple[int, str], list[tuple[Case, list[str]]]] = defaultdict(list)
    for row in absent:
        if row.key in refused:
            groups = list(days[row.key].values())
        else:
            groups = [days[row.key][plan] - twins[plan] for plan in planned & days[row.key].keys()]
        had = [day for day in last if any(day in group for group in groups)]
        if len(had) >= HAD:
            lost[row.case.world, row.case.backend].append((row.case, had))
    run = files[-1].run.id
    return [_make_finding(*group, rows, last, run) for group, rows in lost.items()]


def _group_named_axes(files: Sequence[RunFile]) -> dict[str, set[str]]:
    """By suite, the axes that it or the command of one of its runs names."""
    named: dict[str, set[str]] = defaultdict(set)
    for file in files:
        named[file.run.suite.name].update(_list_named(file.run))
    return dict(named)


def _group_days(
    row: Series, named: Mapping[str, Collection[str]], night: str
) -> dict[Plan, set[str]]:
    """Nights until ``night`` that had the row, by tonight's suite that measured it and by what the
    row is to that suite. A run whose id has no suite counts for each of tonight's."""
    by_suite: dict[str, set[str]] = defaultdict(set)
    for each in row.nights:
        if each.day <= night:
            names = set(map(store.extract_name, each.runs))
            for suite in named if "" in names else names & named.keys():
                by_suite[suite].add(each.day)
    return {
        (suite, _strip_machine(row.case, named[suite])): days for suite, days in by_suite.items()
    }


def _list_named(run: Run) -> Collection[str]:
    """The axes that the suite or the command of a run names, of those that a machine may decide;
    those of the command, where a run of before does not tell."""
    if run.named_axes is not None:
        return run.named_axes
    return [axis for axis, option in OPTIONS.items() if any(map(option.match, run.command))]


def _is_refused(file: RunFile, record: Record) -> bool:
    """Whether a case could not run, for another reason than one of the suite or of --budget."""
    return (
        record.status == "skipped"
        and not record.note.startswith(NO_TIME_LEFT)
        and not any(record.case in exclude.match for exclude in file.run.suite.excludes)
    )


def _strip_machine(case: Case, named: Collection[str]) -> Hashable:
    """What a case measures, without what a suite leaves to the machine: ranks and backend, unless
    they are ``named``, and what follows from these."""
    return (
        case.world if "ranks" in named else 0,
        case.backend if "backends" in named else "",
        *(case.collective, case.algorithm, case.dtype, case.op, case.root, case.in_place),
        *(case.env, case.splits, case.arrival, case.background, case.groups.partition(" ")[0]),
        # a subject's title ends with a digest, and its size goes by its ranks
        *((case.subject.rpartition(" #")[0], 0) if case.subject else ("", case.nbytes)),
    )


def _make_finding(
    ranks: int,
    backend: str,
    rows: Sequence[tuple[Case, Sequence[str]]],
    last: Sequence[str],
    run: str,
) -> Finding:
    """The finding for ``rows``, each with those of the ``last`` nights that had it."""
    name = f"{format_count(ranks, 'rank')} of {backend}"
    nights = max(len(had) for _, had in rows)
    until = max(had[-1] for _, had in rows)
    return Finding(
        check="history",
        severity="warning",
        subject=Subject("cluster", name),
        since=next((day for day in last if day > until), "tonight"),
        what=(
            f"did not measure {format_count(len(rows), 'row')} that {nights} of the last"
            f" {format_count(len(last), 'night')} had"
        ),
        advice=(
            "look for what the machine has lost: a GPU, cores, a library (collbench doctor); if"
            " this is intended, say so by -g and --backend, or in the suite"
        ),
        evidence=[
            Evidence(what=f"{describe_case(case)}: nights", value=len(had), run=run, case=case.key)
            for case, had in rows[:SHOWN]
        ],
    )
