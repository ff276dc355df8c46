"""Operations of a training step by themselves: which of them head does slower or faster than base.

A launch's time of an operation is the median over the steps that were watched. Of the ranks that
meet in it, the one that has it under way for the shortest counts: that rank came last, so that its
time is the operation's, and not that of waiting for others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from collbench.features.compare.sides import Pair, common_places
from collbench.features.compare.verdict import CHANGED, FEWEST_UNPAIRED, UNTIMED, Compared, Judged
from collbench.features.training.operations import list_played
from collbench.features.training.overlap import step_of, under_way
from collbench.features.training.parts import PARTS
from collbench.features.training.step import Step
from collbench.records import paired, stats
from collbench.records.case_rows import CaseRows
from collbench.records.paired import Floats
from collbench.records.rows import Row
from collbench.records.types import RunFile
from collbench.suite.case import Case

MOST = 20  # operations of a step that are compared, the longest ones


def explain_rows(
    base: RunFile, head: RunFile, pairs: Sequence[Pair], rows: Sequence[Judged], in_pairs: bool
) -> list[Judged]:
    """The rows, those of whole steps with the operations that changed. All operations count that
    did for sure where the step or a part of it changed, too; else those that changed by what
    matters."""
    total_name = next(iter(PARTS))
    moved = {
        replace(row.case, collective=total_name)
        for row in rows
        if row.case.subject and row.verdict in (*CHANGED, "SUSPECT")
    }
    explained = list(rows)
    steps = [
        at for at, row in enumerate(rows) if row.case.subject and row.case.collective == total_name
    ]
    for at in steps:
        row, pair = rows[at], pairs[at]
        step = _common_step(step_of(base, row.case), step_of(head, row.case))
        if step and pair.base and pair.head and row.verdict not in UNTIMED:
            watch = _Watch(step, row.case)
            tau = 0.0 if row.case in moved else row.tau
            judge = _rule_by_pairs if in_pairs else _rule_by_launches
            changed = judge(watch, pair.base, pair.head, tau, len(steps))
            explained[at] = replace(row, operations=changed)
    return explained


def _common_step(base: Step | None, head: Step | None) -> Step | None:
    """The step of both sides, if it is one."""
    return base if base and head and base.programs == head.programs else None


class _Watch:
    """What launches' watched steps tell of the operations of rank 0 that talk to others."""

    def __init__(self, step: Step, case: Case) -> None:
        self.step = step
        operations = list_played(step, 0, case.backend, case.algorithm)
        number = {operation.who: at for at, operation in enumerate(operations)}
        self.places = [operation.at for operation in operations]
        self._met_operations = [
            [
                (operation.at, number[operation.who])
                for operation in rank_operations
                if operation.who in number
            ]
            for rank_operations in (
                list_played(step, rank, case.backend, case.algorithm) for rank in range(step.world)
            )
        ]

    def took(self, row: Row) -> Floats:
        """Logarithms of what each operation took in a launch; nothing where none was watched."""
        every = row.record.operations
        count = min(
            (len(record.ends_ns) for rank_records in every for record in rank_records), default=0
        )
        if not count or len(every) != self.step.world:
            return np.array([])
        took = np.full((count, len(self.places)), np.inf)
        for rank, records in enumerate(every):
            program = self.step.program(rank)
            for k in range(count):
                spans = under_way(program, records, k)
                for at, number in self._met_operations[rank]:
                    begin, end = spans[at]
                    took[k, number] = min(took[k, number], end - begin)
        middle: Floats = np.median(took, axis=0)
        return np.log(np.maximum(middle, stats.TINY))


def _rule_by_pairs(
    watch: _Watch, base: CaseRows, head: CaseRows, tau: float, steps: int
) -> list[Compared]:
    """What the first stage flags, at the strictest level for all operations that its rounds allow;
    where there is a second, what that confirms at a level for all that are flagged."""
    first, second = (_launch_tables(watch, base, head, stage) for stage in (1, 2))
    if len(first[0]) < paired.FEWEST:
        return []
    numbers = _select_longest(first)
    tests = min(len(numbers), paired.most_tests(len(first[0])))
    flagged = _find_changed(
        watch, first, numbers, tau, paired.bonferroni_level(tests), False, in_pairs=True
    )
    if not len(second[0]):
        return flagged
    before = {change.at: change.delta for change in flagged}
    numbers = [watch.places.index(at) for at in before]
    level = paired.bonferroni_level(len(before) * steps)
    again = _find_changed(watch, second, numbers, tau, level, True, in_pairs=True)
    return [change for change in again if change.delta * before[change.at] > 0]


def _rule_by_launches(
    watch: _Watch, base: CaseRows, head: CaseRows, tau: float, steps: int
) -> list[Compared]:
    """The operations that changed, of launches that form no pairs, at a level for all operations of
    all steps."""
    both = tuple(
        _make_table([watch.took(row) for row in s.launches.values()]) for s in (base, head)
    )
    if min(map(len, both)) < FEWEST_UNPAIRED:
        return []
    numbers = _select_longest(both)
    level = paired.bonferroni_level(len(numbers) * steps)
    return _find_changed(watch, both, numbers, tau, level, True, in_pairs=False)


def _launch_tables(watch: _Watch, base: CaseRows, head: CaseRows, stage: int) -> tuple[Floats, ...]:
    """Tables of both sides: a line for each launch of a stage that both sides have."""
    places = [launch_key for launch_key in common_places(base, head) if launch_key[0] == stage]
    both = [
        [watch.took(side.launches[launch_key]) for side in (base, head)] for launch_key in places
    ]
    usable = [tables for tables in both if all(map(len, tables))]
    return _make_table([tables[0] for tables in usable]), _make_table(
        [tables[1] for tables in usable]
    )


def _make_table(lines: Sequence[Floats]) -> Floats:
    return np.array([line for line in lines if len(line)])


def _select_longest(both: Sequence[Floats]) -> list[int]:
    """The numbers of the operations that take longest on both sides, which says nothing of how they
    differ."""
    middle = sum(np.median(side, axis=0) for side in both)
    return [int(at) for at in np.argsort(-np.asarray(middle), kind="stable")[:MOST]]


def _find_changed(
    watch: _Watch,
    both: Sequence[Floats],
    numbers: Sequence[int],
    tau: float,
    level: float,
    confirmed: bool,
    in_pairs: bool,
) -> list[Compared]:
    """The operations whose change is not zero at ``level`` and at least ``tau``, largest first."""
    changes = []
    for number in numbers:
        before, after = (side[:, number] for side in both)
        shift = (
            paired.estimate_shift(after - before, level)
            if in_pairs
            else paired.unpaired_shift(before, after, level)
        )
        delta, lo, hi = (math.expm1(end) for end in shift[:3])
        if not (math.isfinite(hi) and (lo > 0 or hi < 0)) or abs(delta) < tau:
            continue
        at = watch.places[number]
        op = watch.step.program(0).ops[at]
        base, head = (math.exp(float(np.median(side))) for side in (before, after))
        about = {"at": at, "kind": op.kind, "nbytes": op.nbytes, "of": op.source or op.phase}
        figures = {"base": base, "head": head, "delta": delta, "lo": lo, "hi": hi, "level": level}
        changes.append(Compared(**about, **figures, confirmed=confirmed))  # type: ignore[arg-type]
    return sorted(changes, key=lambda change: -abs(change.head - change.base))
