"""Groups of a trace, those of like use as one family under one name; and the ranks that a trace
lacks, if they do what the others do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.core.text import printable_text
from collbench.features.traces.types import Call, RankTrace
from collbench.features.training.step import KINDS, LOCAL, POINT_TO_POINT, WORLD, Groups, Op


class Group(NamedTuple):
    """A group of a trace, by its name there and its members in order."""

    name: str
    members: tuple[int, ...]


class Place(NamedTuple):
    """A call: the one at this place among the calls of this rank."""

    rank: int
    at: int


def group_of(rank: RankTrace, call: Call) -> Group:
    """The group that a call is in; one without members where the trace does not know it."""
    members = rank.groups.get(call.group, ())
    everyone = call.group == WORLD and not members
    return Group(call.group, tuple(range(rank.world)) if everyone else members)


class Families:
    """The groups that calls use, by the name of their family. Of one family are groups of one
    description and size that come at the same place among those a rank uses, and share no rank."""

    def __init__(self, ranks: Sequence[RankTrace], calls: Mapping[Place, Call]) -> None:
        everyone = tuple(range(max(rank.world for rank in ranks)))
        self.groups: dict[str, list[tuple[int, ...]]] = {WORLD: [everyone]}
        self._names: dict[Group, str] = {}
        same_words: dict[tuple[str, int, int], list[str]] = defaultdict(list)
        called: dict[int, list[Call]] = defaultdict(list)
        for call_place in sorted(calls):
            called[call_place.rank].append(calls[call_place])
        for rank in ranks:
            used = dict.fromkeys(group_of(rank, call) for call in called[rank.rank])
            for nth, group in enumerate(used):
                if group.name != WORLD and group not in self._names:
                    description = rank.described.get(group.name, "")
                    self._add(group, description, same_words[description, nth, len(group.members)])

    def _add(self, group: Group, description: str, names: list[str]) -> None:
        """Add a group to the first family of ``names`` in which no group shares a member with it,
        else to a new one."""
        for name in names:
            if all({*group.members}.isdisjoint(other) for other in self.groups[name]):
                break
        else:
            name = self._fresh(description or group.name)
            names.append(name)
            self.groups[name] = []
        self.groups[name].append(group.members)
        self._names[group] = name

    def _fresh(self, description: str) -> str:
        """A name that no family has."""
        name = printable_text(description)[:30].strip() or "group"
        more = (f"{name} {k}" for k in range(2, len(self.groups) + 2))
        return next(candidate for candidate in (name, *more) if candidate not in self.groups)

    def name(self, group: Group) -> str:
        """The name of a family of groups; WORLD for all ranks."""
        return self._names.get(group, WORLD)

    def members(self, name: str, rank: int) -> tuple[int, ...]:
        """The members of this rank's group in a family."""
        return next(group for group in self.groups[name] if rank in group)

    def on(self, ranks: Sequence[int]) -> dict[str, Groups]:
        """The families, in which a rank's number is its index in ``ranks``."""
        number = {rank: index for index, rank in enumerate(ranks)}
        return {
            name: tuple(tuple(number[rank] for rank in group) for group in sorted(family))
            for name, family in self.groups.items()
            if name != WORLD
        }


def complete_programs(
    families: Families, programs: Mapping[int, Sequence[Op]], missing: Sequence[int]
) -> dict[int, list[Op]]:
    """The programs of ``missing`` ranks, in order: what all others do, with the ends of messages
    moved with the rank. Their groups join ``families``. Raises UsageError where the others do not
    all do the same, or nobody says with whom a missing rank is in a group."""
    first, *others = programs
    like = _move_operations(families, first, programs[first], -1)
    for rank in others:
        if differs := _describe_difference(
            like, _move_operations(families, rank, programs[rank], -1)
        ):
            raise UsageError(
                f"--assume-symmetric: ranks {first} and {rank} differ in {differs}",
                "give the files of all ranks",
            )
    if uneven := next((op for op in like if len({*op.sends}) > 1), None):
        raise UsageError(
            f"--assume-symmetric: nothing says what missing ranks send in {uneven.label}",
            "give the files of all ranks, or --rebalance mean",
        )
    completed = {}
    for rank in missing:
        for name in {op.group for op in like if op.communicates}:
            _cover_group(families, name, rank, {*programs, *missing})
        completed[rank] = _move_operations(families, rank, like, 1)
    return completed


def _move_operations(families: Families, rank: int, ops: Sequence[Op], sign: int) -> list[Op]:
    """A rank's operations with the ends of messages as so many places on (``sign`` -1), and from
    such back."""

    def moved(op: Op) -> Op:
        if op.kind not in POINT_TO_POINT:
            return op
        members = families.members(op.group, rank)
        return replace(op, peer=(op.peer + sign * members.index(rank)) % len(members))

    return [*map(moved, ops)]


def _describe_difference(some: Sequence[Op], others: Sequence[Op]) -> str:
    """The first operation that ranks do not both have, whatever they compute between."""
    both = [_leave_out_computation(ops) for ops in (some, others)]
    for first, other in zip(*both, strict=False):
        if first != other:
            return f"{first.label}, and {other.label}"
    numbers = [len(ops) for ops in both]
    return "" if numbers[0] == numbers[1] else f"the number of operations, {numbers}"


def _leave_out_computation(ops: Sequence[Op]) -> list[Op]:
    """All operations but compute, without sources; ``after`` is renumbered to match."""
    places: dict[int, int] = {}
    for at, op in enumerate(ops):
        if op.kind != "compute":
            places[at] = len(places)
    return [
        replace(ops[at], source="", after=tuple(places[before] for before in ops[at].after))
        for at in places
    ]


def _cover_group(families: Families, name: str, rank: int, inside: set[int]) -> None:
    """Adds the group of a family that a missing rank, below which all have theirs, begins."""
    family = families.groups[name]
    covered = {member for group in family for member in group}
    if rank in covered:
        return
    like = min(family)
    moved = tuple(member + rank - min(like) for member in like)
    if not {*moved} <= inside - covered:
        raise UsageError(
            f"--assume-symmetric: no trace says which ranks share group '{name}' with rank {rank}",
            "give the files of all ranks",
        )
    family.append(moved)


def explain_unknown(rank: RankTrace, call: Call) -> str:
    """The reason why a call with other ranks is invalid; an empty string where it is valid, or with
    no other."""
    if call.kind in LOCAL:
        return ""
    if call.kind not in KINDS:
        return f"there is no operation '{call.kind[:40]}'"
    if call.dtype not in DTYPES:
        return f"there is no datatype '{call.dtype[:40]}'"
    members = group_of(rank, call).members
    talks = call.kind in POINT_TO_POINT
    why = ""
    if rank.rank not in members:
        why = f"there is no group '{call.group[:40]}' with rank {rank.rank}"
    elif call.nbytes % DTYPES[call.dtype].size:
        why = f"{call.nbytes} B are not a whole number of elements"
    elif talks and (not 0 <= call.peer < len(members) or members[call.peer] == rank.rank):
        why = f"nothing says who the other end of the {call.kind} is"
    return why
