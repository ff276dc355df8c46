"""What came of steps of training: how much of its communication a step does not hide behind its
computation, of rounds that took its parts in turns, and where the time of its operations goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from collbench.features.training.operations import list_played
from collbench.features.training.parts import PARTS, STEP
from collbench.features.training.step import POINT_TO_POINT, Op, Program, Step
from collbench.features.training.walk import Party, Walk
from collbench.records import stats
from collbench.records.paired import Floats, Shift, estimate_shift
from collbench.records.types import Operation, Record, RunFile
from collbench.suite.case import Case

TELLING = 16  # values whose dependence on their neighbours is more than chance
ROUNDING = 1e-9  # of sums of times in another order


class Overlap(NamedTuple):
    """One step as it was measured; times in ns. ``bubble`` is how long ranks would wait for
    each other's computation if communication took no time. ``exposed`` is what the step takes
    beyond its computation and the bubble, by rounds, and so are ``hidden`` and ``ideal``: the share
    of its communication that computation hides (1: all, below 0: they are in each other's way),
    None where there is none to speak of, and the longer of the two, over what the step takes.
    ``share`` is what of a step is exposed, the median of the rounds.
    Intervals are at 95 %."""

    step_record: Record
    computation: Record
    communication: Record
    bubble: float
    exposed: Shift
    share: float
    hidden: Shift | None
    ideal: Shift


def find_overlaps(
    records: Iterable[Record], find_step: Callable[[Case], Step | None] = lambda case: None
) -> list[Overlap]:
    """An Overlap for each step whose parts were all measured in equally many rounds, also in a run
    that ended early. ``find_step`` gives a case's step; of one that it lacks, no bubble is
    known."""
    by_case: dict[tuple[Case, int], dict[str, Record]] = {}
    for record in records:
        if record.case.subject and (record.status == "ok" or record.stop == "cut"):
            like = msgspec.structs.replace(record.case, collective=next(iter(PARTS)))
            by_case.setdefault((like, record.world), {})[record.case.collective] = record
    complete = (parts for parts in by_case.values() if len(parts) == len(PARTS))
    return [
        _make_overlap(find_step(parts[STEP].case), *(parts[name] for name in PARTS))
        for parts in complete
        if len({len(record.times_ns) for record in parts.values()}) == 1
    ]


def _make_overlap(
    whole: Step | None, step_record: Record, computation: Record, communication: Record
) -> Overlap:
    stretch = _measure_stretch(whole, step_record) if whole else 1.0
    times = [
        np.asarray(record.times_ns, dtype=float)
        for record in (step_record, computation, communication)
    ]
    step, comp, comm = times
    bubble = stats.median(comp) * (stretch - 1)
    comp = comp * stretch
    exposed = step - comp
    # what is no more than the clock's own noise hides nothing
    talks = stats.median(comm) > 2 * communication.overhead_ns
    return Overlap(
        step_record,
        computation,
        communication,
        bubble,
        bound_mean(exposed),
        stats.median(exposed / np.maximum(step, 1.0)),
        bound_mean((comm - exposed) / comm) if talks else None,
        bound_mean(np.maximum(comp, comm) / step),
    )


def _measure_stretch(step: Step, step_record: Record) -> float:
    """How many times as long as the longest program's computation a step takes whose communication
    takes no time: 1 where ranks do not wait for each other. By the times of computations in the
    step; where these were not watched, by their FLOPs."""
    if len(step.programs) < 2:
        return 1.0
    computed = _computation_times(step, step_record.operations, 1.0)

    def seconds(op: Op, party: Party | None = None) -> float:
        if op.kind != "compute" or step.compute == "none":
            return 0.0
        return computed.get(_work_key(op), 0.0)

    longest = max(sum(map(seconds, program.ops)) for program in step.programs)
    stretch = Walk(step, seconds).seconds / longest if longest else 1.0
    return stretch if stretch > 1 + ROUNDING else 1.0


def bound_mean(values: Floats) -> Shift:
    """The centre of ``values`` with its interval. Neighbours that depend on each other are averaged
    first, where there are enough to tell."""
    block_size = max(1, math.ceil(len(values) / max(1.0, stats.count_independent(values))))
    block_size = block_size if len(values) >= TELLING else 1
    usable_count = len(values) // block_size * block_size
    return estimate_shift(values[:usable_count].reshape(-1, block_size).mean(axis=1))


class Phase(NamedTuple):
    """Operations of a kind in a phase, on rank 0. In ns: ``busy``, while one of them or more was
    under way in a step; ``waited``, of that, while the program stood still; ``alone``, the sum of
    what they take by themselves, None where that was not measured. ``sent`` bytes, the mean of all
    members, and ``bus``, those that busbw counts. Of a time in which operations of several kinds
    were waited for, each has its part, so that all phases' add up to what was waited."""

    phase: str
    group: str
    kind: str
    ops: int
    nbytes: int
    sent: float
    busy: float
    waited: float
    alone: float | None
    bus: float = 0.0

    @property
    def busbw(self) -> float | None:
        """Bytes that busbw counts, over the time in which operations were under way, GB/s; None
        where they move none."""
        return self.bus / self.busy if self.bus and self.busy else None

    @property
    def slower(self) -> float | None:
        """The ratio of operations' times in a step to their times by themselves."""
        return self.busy / self.alone if self.alone else None


def divide_phases(step: Step, operations: Sequence[Operation]) -> list[Phase]:
    """The parts of the time of rank 0's operations: medians over the steps that were watched."""
    program = step.program(0)
    if len(program.ops) != len(operations):
        return []
    count = min((len(operation.ends_ns) for operation in operations), default=0)
    places: dict[tuple[str, str, str], list[int]] = {}
    for at, op in enumerate(program.ops):
        if op.communicates and count:
            places.setdefault((op.phase, op.group, op.kind), []).append(at)
    spans = [under_way(program, operations, k) for k in range(count)]
    waits = [
        _divide_waiting(
            [union_spans(round_spans[at] for at in indices) for indices in places.values()],
            _waiting_spans(program, operations, k),
        )
        for k, round_spans in enumerate(spans)
    ]
    phases, bus_bytes = [], _list_bus_bytes(step)
    alone_times = _collect_alone_times(program, operations)
    for number, (key, indices) in enumerate(places.items()):
        ops = [program.ops[at] for at in indices]
        members = step.members(key[1], 0)
        known = ops if len(members) > 1 else []
        alone = [stats.median(alone_times[op.label]) for op in known if op.label in alone_times]
        phases.append(
            Phase(
                *key,
                len(ops),
                sum(op.nbytes for op in ops),
                sum(op.sent(len(members), members.index(0)) for op in ops),
                stats.median(
                    [
                        spans_length(union_spans(round_spans[at] for at in indices))
                        for round_spans in spans
                    ]
                ),
                stats.median([round_waits[number] for round_waits in waits]),
                sum(alone) if len(alone) == len(ops) else None,
                sum(bus_bytes.get(at, 0.0) for at in indices),
            )
        )
    return phases


def _list_bus_bytes(step: Step) -> dict[int, float]:
    """The bytes that busbw counts of each operation of rank 0; of a message at its sender."""
    return {
        played.at: played.case.moved * played.case.row.busbw(played.case.n)
        for played in list_played(step, 0, "gloo")
        if played.op.kind != "recv"
    }


def measure_busy(step: Step, operations: Sequence[Operation]) -> dict[tuple[str, str], float]:
    """How long operations of each phase and group were under way on rank 0, at least one of them,
    in ns: medians over the steps that were watched."""
    program = step.program(0)
    count = min((len(operation.ends_ns) for operation in operations), default=0)
    spans = [under_way(program, operations, k) for k in range(count)]
    places: dict[tuple[str, str], list[int]] = {}
    for at, op in enumerate(program.ops):
        if op.communicates and count:
            places.setdefault((op.phase, op.group), []).append(at)
    return {
        key: stats.median(
            [spans_length(union_spans(round_spans[at] for at in indices)) for round_spans in spans]
        )
        for key, indices in places.items()
    }


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


def list_timed(program: Program, operation_times: Sequence[Operation]) -> list[Timed]:
    """The operations of rank 0's program that were watched."""
    count = min((len(operation.ends_ns) for operation in operation_times), default=0)
    step_spans = [under_way(program, operation_times, k) for k in range(count)]
    step_still = [
        _measure_covered(spans, _waiting_spans(program, operation_times, k))
        for k, spans in enumerate(step_spans)
    ]
    alone_times = _collect_alone_times(program, operation_times)
    timed = []
    for at, (op, times) in enumerate(zip(program.ops, operation_times, strict=True)):
        if not op.communicates or not count or not all(times.ends_ns):
            continue
        spans = [round_spans[at] for round_spans in step_spans]
        still = [round_still[at] for round_still in step_still]
        took = [end - begin for begin, end in spans]
        alone = alone_times.get(op.label)
        timed.append(
            Timed(
                at,
                op,
                stats.median([begin for begin, _ in spans]),
                stats.median(took),
                1 - sum(still) / max(1, sum(took)),
                stats.median(alone) if alone else None,
            )
        )
    return timed


class Blamed(NamedTuple):
    """An operation of rank 0 that steps were measured without: how much ``less`` they took, in ns,
    by rounds; at 95 %."""

    at: int
    op: Op
    less: Shift


def list_blamed(program: Program, operation_times: Sequence[Operation]) -> list[Blamed]:
    """The operations that were left out of steps in turns, that which costs most first."""
    blamed = [
        Blamed(
            at, op, bound_mean(np.subtract(operation.with_ns, operation.without_ns, dtype=float))
        )
        for at, (op, operation) in enumerate(zip(program.ops, operation_times, strict=True))
        if operation.without_ns
    ]
    return sorted(blamed, key=lambda blamed: -blamed.less.estimate)


Spans = list[tuple[int, int]]  # apart from each other, in order


def _waiting_spans(program: Program, operations: Sequence[Operation], k: int) -> Spans:
    """The spans in which the program stood still in a step: in waits, before operations that come
    after others, in calls that it waits for, and at the end."""
    still: list[tuple[int, int]] = []
    for op, times in zip(program.ops, operations, strict=True):
        begin, end = times.begins_ns[k], times.ends_ns[k]
        if times.waits_ns and times.waits_ns[k]:
            still.append((times.waits_ns[k], begin))
        if op.kind == "wait" or (op.communicates and op.wait == "call"):
            still.append((begin, end))
    if open_ := _list_open(program):
        returns = (
            times.begins_ns[k] if _is_left(op) else times.ends_ns[k]
            for op, times in zip(program.ops, operations, strict=True)
        )
        still.append((max(returns), max(operations[at].ends_ns[k] for at in open_)))
    return union_spans(still)


def _is_left(op: Op) -> bool:
    return op.communicates and op.wait == "later"


def _list_open(program: Program) -> set[int]:
    """The operations that no other waits for, so that the program waits at its end."""
    open_: set[int] = set()
    for at, op in enumerate(program.ops):
        if op.kind == "wait" and not op.after:
            open_.clear()
        open_.difference_update(op.after)
        if _is_left(op):
            open_.add(at)
    return open_


def under_way(program: Program, operations: Sequence[Operation], k: int) -> list[tuple[int, int]]:
    """When each operation was under way in a step: from its begin, or from the end of the one
    before it in its lane of its group and of those that it comes after, which it waits for."""
    ends: dict[tuple[str, str], int] = {}
    intervals = []
    for op, operation in zip(program.ops, operations, strict=True):
        begin, end = operation.begins_ns[k], operation.ends_ns[k]
        if op.communicates and op.kind not in POINT_TO_POINT:
            lane = op.group, op.lane
            before = [ends.get(lane, 0), *(operations[needed].ends_ns[k] for needed in op.after)]
            begin = min(max(begin, *before), end)
            ends[lane] = max(end, ends.get(lane, 0))
        intervals.append((begin, end))
    return intervals


def _divide_waiting(kinds: Sequence[Spans], waiting: Spans) -> list[float]:
    """The time of each kind's spans that lies in ``waiting``, divided among kinds that are under
    way at once."""
    every = [*kinds, waiting]
    edges = np.unique([edge for spans in every for span in spans for edge in span])
    if len(edges) < 2:
        return [0.0] * len(kinds)
    active = np.zeros((len(every), len(edges)), dtype=int)
    for row, spans in zip(active, every, strict=True):
        begins, ends = np.searchsorted(edges, np.reshape(spans, (-1, 2)).T)
        row[begins] += 1
        row[ends] -= 1
    active = active.cumsum(axis=1)[:, :-1]
    counted_spans, still = active[:-1], active[-1]
    parts = counted_spans * still / np.maximum(1, counted_spans.sum(axis=0)) * np.diff(edges)
    return [float(part) for part in parts.sum(axis=1)]


def predict_step_ns(step: Step, step_record: Record, computation: Record) -> float | None:
    """The time in ns that the step would take if operations did not slow each other: each operation
    takes its time when measured by itself, and computation its time without communication, so that
    it is no less than that. None where some operation was not measured by itself, or nothing tells
    how computation is divided."""
    if not step_record.operations:
        return None
    program, operation_times = step.program(0), step_record.operations[0]
    alone_times = _collect_alone_times(program, operation_times)
    took = {op: alone_times.get(op.label) for op in {*program.ops} if op.communicates}
    talks = {op for other in step.programs for op in other.ops if op.communicates}
    missing = [
        op
        for op in talks
        if not took.get(op) and any(len(group) > 1 for group in step.family(op.group))
    ]
    if missing or not talks:
        return None
    alone = {op: stats.median(times) for op, times in took.items() if times}
    computed = _computation_times(step, step_record.operations, stats.median(computation.times_ns))
    if not computed and any(op.kind == "compute" for other in step.programs for op in other.ops):
        return None

    def seconds(op: Op, party: Party) -> float:
        if op.kind == "compute":
            return computed.get(_work_key(op), 0.0)
        return alone.get(op, 0.0) if len(party.members) > 1 else 0.0

    return Walk(step, seconds).seconds


def _computation_times(
    step: Step, rank_times: Sequence[Sequence[Operation]], total: float
) -> dict[tuple[float, ...], float]:
    """The times in ns of computations of a step, by their work, scaled so that the program that
    computes longest takes ``total``: as they were seen in the whole step, by their FLOPs where
    some were not seen. Empty where these are unknown, too."""
    seen: dict[tuple[float, ...], list[int]] = {}
    for rank, operation_times in enumerate(rank_times):
        for op, times in zip(step.program(rank).ops, operation_times, strict=True):
            if op.kind == "compute" and times.ends_ns:
                took = np.subtract(times.ends_ns, times.begins_ns).tolist()
                seen.setdefault(_work_key(op), []).extend(took)
    computations = [[op for op in program.ops if op.kind == "compute"] for program in step.programs]
    weights = {
        _work_key(op): float(op.compute_ns or op.flops) for ops in computations for op in ops
    }
    if seen.keys() >= weights.keys():
        weights = {work: stats.median(durations) for work, durations in seen.items()}
    longest = max(sum(weights.get(_work_key(op), 0.0) for op in ops) for ops in computations)
    return {work: total * weight / longest for work, weight in weights.items() if longest}


def _work_key(op: Op) -> tuple[float, ...]:
    """What decides how long a computation takes."""
    return op.compute_ns, op.flops, op.touched


def _collect_alone_times(
    program: Program, operations: Sequence[Operation]
) -> dict[str, Sequence[int]]:
    """Times of operations by themselves, by their labels."""
    pairs = zip(program.ops, operations, strict=True)
    return {op.label: operation.alone_ns for op, operation in pairs if operation.alone_ns}


def union_spans(spans: Iterable[tuple[int, int]]) -> Spans:
    """Spans that may overlap, as what at least one of them covers."""
    merged: Spans = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif end > begin:
            merged.append((begin, end))
    return merged


def spans_length(spans: Spans) -> int:
    """The length in ns of spans that do not overlap."""
    return sum(end - begin for begin, end in spans)


def common_length(some: Spans, others: Spans) -> int:
    """The total time that lies in both lists of spans."""
    return spans_length(some) + spans_length(others) - spans_length(union_spans([*some, *others]))


def _measure_covered(spans: Sequence[tuple[int, int]], cover: Spans) -> list[float]:
    """How much of each span, which may overlap, lies in ``cover``."""
    edges = np.ravel(cover)
    if not edges.size:
        return [0.0] * len(spans)
    covered = np.cumsum(np.diff(edges, prepend=edges[0]) * (np.arange(len(edges)) % 2))
    return [float(end - begin) for begin, end in np.interp(spans, edges, covered)]


def step_of(file: RunFile, case: Case) -> Step | None:
    """The step that a case of a run is of, as the run has it."""
    subject = file.run.suite.subject_finder(case)
    return subject if isinstance(subject, Step) else None
