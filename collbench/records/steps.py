"""What came of steps of training: how much of its communication a step does not hide behind its
computation, of rounds that took its parts in turns, and where the time of its operations goes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from collbench.core.collectives import PARTS
from collbench.records import stats
from collbench.records.paired import Floats, Shift, shift
from collbench.records.types import Operation, Record, RunFile
from collbench.suite.case import Case
from collbench.workload.step import Op, Program, Step

TELLING = 16  # values whose dependence on their neighbours is more than chance


class Overlap(NamedTuple):
    """One step as it was measured; times in ns. ``exposed`` is what the step takes beyond its
    computation, by rounds, and so are ``hidden`` and ``ideal``: the share of its communication that
    computation hides (1: all, below 0: they are in each other's way), None where there is none to
    speak of, and the longer of the two, over what the step takes. Intervals are at 95 %."""

    whole: Record
    computation: Record
    communication: Record
    exposed: Shift
    hidden: Shift | None
    ideal: Shift


def overlaps(records: Iterable[Record]) -> list[Overlap]:
    """One for each step of which all parts were measured, in as many rounds."""
    found: dict[tuple[Case, int], dict[str, Record]] = {}
    for record in records:
        if record.case.step and record.status == "ok":
            like = msgspec.structs.replace(record.case, collective=next(iter(PARTS)))
            found.setdefault((like, record.world), {})[record.case.collective] = record
    complete = (parts for parts in found.values() if len(parts) == len(PARTS))
    return [
        _overlap(*(parts[name] for name in PARTS))
        for parts in complete
        if len({len(record.times_ns) for record in parts.values()}) == 1
    ]


def _overlap(whole: Record, computation: Record, communication: Record) -> Overlap:
    each = [
        np.asarray(record.times_ns, dtype=float) for record in (whole, computation, communication)
    ]
    step, comp, comm = each
    exposed = step - comp
    # what is no more than the clock's own noise hides nothing
    talks = stats.median(comm) > 2 * communication.overhead_ns
    return Overlap(
        whole,
        computation,
        communication,
        bounded(exposed),
        bounded((comm - exposed) / comm) if talks else None,
        bounded(np.maximum(comp, comm) / step),
    )


def bounded(values: Floats) -> Shift:
    """Their centre with its interval: of means over so many neighbours as make them independent,
    where there are enough to tell."""
    apart = max(1, math.ceil(len(values) / max(1.0, stats.n_eff(values))))
    apart = apart if len(values) >= TELLING else 1
    kept = len(values) // apart * apart
    return shift(values[:kept].reshape(-1, apart).mean(axis=1))


class Phase(NamedTuple):
    """Operations of a kind in a phase, on rank 0. In ns: ``busy``, while one of them or more was
    under way in a step; ``waited``, of that, while the program stood still; ``alone``, the sum of
    what they take by themselves, None where that was not measured. ``sent`` bytes."""

    phase: str
    group: str
    kind: str
    ops: int
    nbytes: int
    sent: float
    busy: float
    waited: float
    alone: float | None

    @property
    def busbw(self) -> float | None:
        """Bytes that the rank had to send, over the time in which it may have done so; GB/s."""
        return self.sent / self.busy if self.busy else None


def phases(step: Step, operations: Sequence[Operation]) -> list[Phase]:
    """Where the time of rank 0's operations goes: medians over the steps that were watched."""
    program = step.program(0)
    if len(program.ops) != len(operations):
        return []
    count = min((len(one.ends_ns) for one in operations), default=0)
    keys = [(op.phase, op.group, op.kind) for op in program.ops]
    waits = [_waiting(program, operations, at) for at in range(count)]
    found = []
    for key in dict.fromkeys(keys):
        places = [at for at, each in enumerate(keys) if each == key]
        ops = [program.ops[at] for at in places]
        if not ops[0].communicates or not count:
            continue
        spans = [
            _union((operations[at].begins_ns[k], operations[at].ends_ns[k]) for at in places)
            for k in range(count)
        ]
        alone = [stats.median(told) for op in ops if (told := _alone(program, operations, op))]
        members = step.members(key[1], 0)
        found.append(
            Phase(
                *key,
                len(ops),
                sum(op.nbytes for op in ops),
                sum(op.sent(len(members), members.index(0)) for op in ops),
                stats.median([_length(each) for each in spans]),
                stats.median([_common(a, b) for a, b in zip(spans, waits, strict=True)]),
                sum(alone) if len(alone) == len(ops) else None,
            )
        )
    return found


class Timed(NamedTuple):
    """An operation with others at its place in the program of rank 0: when it began and how long it
    was under way in a step, in ns, medians over those watched; ``hidden``, the share of that in
    which the program did not stand still; ``alone``, what it takes by itself, None if not known."""

    at: int
    op: Op
    begins: float
    took: float
    hidden: float
    alone: float | None


def operations(program: Program, seen: Sequence[Operation]) -> list[Timed]:
    """The operations of rank 0's program that were watched."""
    count = min((len(one.ends_ns) for one in seen), default=0)
    waits = [_waiting(program, seen, at) for at in range(count)]
    found = []
    for at, (op, times) in enumerate(zip(program.ops, seen, strict=True)):
        if not op.communicates or not count or not all(times.ends_ns):
            continue
        spans = [*zip(times.begins_ns, times.ends_ns, strict=True)]
        still = [_common(_union([span]), wait) for span, wait in zip(spans, waits, strict=True)]
        took = [end - begin for begin, end in spans]
        alone = _alone(program, seen, op)
        found.append(
            Timed(
                at,
                op,
                stats.median(times.begins_ns),
                stats.median(took),
                1 - sum(still) / max(1, sum(took)),
                stats.median(alone) if alone else None,
            )
        )
    return found


Spans = list[tuple[int, int]]  # apart from each other, in order


def _waiting(program: Program, operations: Sequence[Operation], k: int) -> Spans:
    """When the program stood still in a step: in waits, and in calls that it waits for."""
    still = (
        at
        for at, op in enumerate(program.ops)
        if op.kind == "wait" or (op.communicates and op.wait == "call")
    )
    return _union((operations[at].begins_ns[k], operations[at].ends_ns[k]) for at in still)


def _alone(program: Program, operations: Sequence[Operation], op: Op) -> Sequence[int]:
    """Times of the like of an operation by itself."""
    return next(
        (
            seen.alone_ns
            for other, seen in zip(program.ops, operations, strict=True)
            if seen.alone_ns and other.words == op.words
        ),
        (),
    )


def _union(spans: Iterable[tuple[int, int]]) -> Spans:
    found: Spans = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > begin:
            found.append((begin, end))
    return found


def _length(spans: Spans) -> int:
    return sum(end - begin for begin, end in spans)


def _common(some: Spans, others: Spans) -> int:
    """How long both are under way."""
    return _length(some) + _length(others) - _length(_union([*some, *others]))


def step_of(file: RunFile, case: Case) -> Step | None:
    """The step that a case of a run is of, as the run has it."""
    return next((step for step in file.run.suite.steps if step.title == case.step), None)
