"""A step made to fit the ranks there are: every operation smaller, some groups only, computation
that takes a given time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

import msgspec

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.core.text import format_size, suggest_name
from collbench.features.training.step import POINT_TO_POINT, WORLD, Groups, Op, Program, Step

replace = msgspec.structs.replace
PART = re.compile(r"[\d./]{1,20}(e-?\d{1,2})?", re.IGNORECASE)  # large exponents take hours
MOST_COMPUTE_NS = 10**15  # of an operation
LONG = ("sleep", "spin")  # computation that only takes time


def parse_share(text: str, option: str = "--scale") -> Fraction:
    """The part of every operation that is meant: 1/16, or 0.25. Raises UsageError."""
    try:
        share = Fraction(text) if PART.fullmatch(text) else Fraction(0)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise UsageError(
            f"{option} {text[:40]}: this is not a part of a step",
            "give a part such as 1/16, 0.25 or 1",
        )
    return share


def scale_step(step: Step, by: Fraction) -> Step:
    """The step with as many operations, each of so much of its elements, rounded up to what its
    group can divide and to one at least. What ranks hold shrinks with them."""
    if by == 1:
        return step
    widths = {name: {len(group) for group in step.family(name)} for name in step.used}

    def smaller(op: Op) -> Op:
        if not op.communicates:
            return replace(
                op,
                flops=float(op.flops * by),
                touched=math.ceil(op.touched * by),
                compute_ns=math.ceil(op.compute_ns * by),
            )
        itemsize, sends = DTYPES[op.dtype].size, [math.ceil(count * by) for count in op.sends]
        into = 1
        if op.kind not in POINT_TO_POINT and COLLECTIVES[op.kind].total and not sends:
            into = math.lcm(*widths[op.group])
        elements = math.ceil(op.nbytes // itemsize * by / into) * into if op.nbytes else 0
        return replace(op, nbytes=elements * itemsize, sends=tuple(sends))

    programs = tuple(
        replace(
            program,
            ops=tuple(map(smaller, program.ops)),
            holds={name: math.ceil(nbytes * by) for name, nbytes in program.holds.items()},
        )
        for program in step.programs
    )
    assumption = f"every operation has {by} of its elements, and as much less is computed"
    return _change_step(step, f"scale={by}", assumption, programs)


def slice_step(step: Step, name: str) -> Step:
    """The step of the ranks of the first group of this name among themselves; operations with
    others are left out. Raises UsageError."""
    if name not in step.groups:
        hint = suggest_name(name, step.groups) or f"one of {', '.join(step.groups)}"
        raise UsageError(f"--slice {name[:40]}: {step.name} has no such groups", hint)
    members = sorted(step.family(name)[0])  # in order, as those of the world are
    number = {rank: index for index, rank in enumerate(members)}
    groups = {
        other: tuple(
            tuple(number[rank] for rank in group) for group in family if number.keys() >= {*group}
        )
        for other, family in step.groups.items()
    }
    groups = {other: family for other, family in groups.items() if family}
    reached = _list_reached(groups, range(len(members)))
    if len(members) == step.world:
        reached = [names | {WORLD} for names in reached]
    dropped = [0, 0.0]

    def stays(op: Op, names: frozenset[str]) -> bool:
        if not op.communicates or op.group in names:
            return True
        dropped[0] += 1
        dropped[1] += op.nbytes
        return False

    programs = []
    for program in step.programs:
        used = {op.group for op in program.ops if op.communicates}
        alike: dict[frozenset[str], list[int]] = {}  # ranks by those groups that they are in
        for rank in program.ranks:
            if rank in number:
                alike.setdefault(reached[number[rank]] & used, []).append(number[rank])
        for names, ranks in alike.items():
            ops = _keep_operations(program.ops, [stays(op, names) for op in program.ops])
            programs.append(Program(tuple(ranks), ops, program.holds))
    assumption = (
        f"only the ranks of one group of {name}: {dropped[0]} operations with others left out"
    )
    return replace(
        _change_step(
            step, f"slice={name}", f"{assumption}, of {format_size(dropped[1])}", tuple(programs)
        ),
        world=len(members),
        groups=groups,
    )


def _list_reached(groups: Mapping[str, Groups], ranks: Iterable[int]) -> list[frozenset[str]]:
    """The names of the groups that each rank is in."""
    inside = {name: {rank for group in family for rank in group} for name, family in groups.items()}
    return [frozenset(name for name in inside if rank in inside[name]) for rank in ranks]


def _keep_operations(ops: Sequence[Op], stays: Sequence[bool]) -> tuple[Op, ...]:
    """The operations that stay, with what each comes after by its new place. A wait for none of
    those is none."""
    places: dict[int, int] = {}
    for old, is_kept in enumerate(stays):
        if is_kept:
            places[old] = len(places)
    operations = []
    for op, is_kept in zip(ops, stays, strict=True):
        if is_kept:
            after = tuple(places[number] for number in op.after if number in places)
            lost = op.kind == "wait" and op.after and not after
            operations.append(replace(op, after=after, kind="mark" if lost else op.kind))
    return tuple(operations)


def set_computation(step: Step, kind: str, tflops: float) -> Step:
    """The step with this kind of computation, which takes as long as at so many TFLOP/s where it is
    to take time only. Raises UsageError where nothing says how long."""
    if kind in LONG and not tflops:
        untimed = [op for p in step.programs for op in p.ops if op.flops and not op.compute_ns]
        if untimed:
            raise UsageError(
                f"--compute {kind}: nothing says how long {step.name} computes",
                "add --tflops 0.05, what a rank does in a second, or use --compute gemm",
            )

    untimed_flops = (op.flops for p in step.programs for op in p.ops if not op.compute_ns)
    most = max(untimed_flops, default=0.0)
    if kind in LONG and tflops and most > 1e3 * tflops * MOST_COMPUTE_NS:
        raise UsageError(
            f"--tflops {tflops:g}: one operation alone would compute for days",
            "give what a rank does in a second, such as 0.05",
        )

    def timed(op: Op) -> Op:
        return replace(op, compute_ns=op.compute_ns or round(op.flops / (1e3 * tflops)))

    changed = replace(step, compute=kind, recorded=None if kind == "none" else step.recorded)
    if kind in LONG and tflops:
        changed = _change_each(changed, timed)
    phrase = f"compute={kind}" + (f"@{tflops:g}" if kind in LONG and tflops else "")
    return changed if kind == "auto" else replace(changed, name=f"{step.name} {phrase}")


def replace_averages(step: Step, backend: str) -> Step:
    """The step with sums in place of averages, for a library that has none: frameworks divide by
    themselves there."""
    if not any(op.op == "avg" for program in step.programs for op in program.ops):
        return step
    assumption = (
        f"averages are sums: {backend} has no avg, and frameworks divide by themselves there"
    )
    changed = _change_each(step, lambda op: replace(op, op="sum") if op.op == "avg" else op)
    return replace(changed, assumptions=(*changed.assumptions, assumption))


def _change_each(step: Step, change: Callable[[Op], Op]) -> Step:
    programs = tuple(replace(p, ops=tuple(map(change, p.ops))) for p in step.programs)
    return replace(step, programs=programs)


def _change_step(step: Step, phrase: str, assumption: str, programs: tuple[Program, ...]) -> Step:
    return replace(
        step,
        name=f"{step.name} {phrase}",
        programs=programs,
        assumptions=(*step.assumptions, assumption),
        recorded=None,
    )
