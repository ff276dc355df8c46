"""What a step asks of the network and of memory, counted without ranks; and what it would take on a
network of known links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from collbench.core.collectives import COLLECTIVES, Hosts
from collbench.core.dtypes import DTYPES
from collbench.core.network import Link, Network, bound_on_hosts
from collbench.features.training.step import (
    POINT_TO_POINT,
    WORLD,
    Op,
    Program,
    Step,
    split_programs,
)
from collbench.features.training.walk import Actors, Party, Walk


class Part(NamedTuple):
    """Operations of one kind on groups of one name, in one phase: those of the program that sends
    the most, of ``members`` ranks each. ``nbytes`` is the sum of their sizes, ``sent`` the bytes
    that a rank has to send at least, ``total`` those of all ranks."""

    phase: str
    group: str
    kind: str
    dtype: str
    members: int
    ops: int
    nbytes: int
    sent: float
    total: float


class Count(NamedTuple):
    """``parts`` in order of first use. ``sent`` are the bytes that the busiest rank has to send at
    least, ``total`` those of all ranks, ``ops`` the busiest rank's operations; ``holds`` the most
    bytes that any rank has of each kind, ``memory`` those of the rank that has most in all."""

    parts: tuple[Part, ...]
    ops: int
    sent: float
    total: float
    flops: float
    holds: dict[str, int]
    memory: int


class _Key(NamedTuple):
    phase: str
    group: str
    kind: str
    dtype: str


class _Sum(NamedTuple):
    """What the operations of one key come to, in one program."""

    members: int = 1
    ops: int = 0
    nbytes: int = 0
    sent: float = 0.0

    def plus(self, number: int, op: Op, members: int, index: int) -> _Sum:
        ops, nbytes = self.ops + number, self.nbytes + number * op.nbytes
        return _Sum(members, ops, nbytes, self.sent + number * op.sent(members, index))


def count_step(step: Step) -> Count:
    """The counts of a step."""
    places: dict[str, dict[int, int]] = {}
    program_sums: list[tuple[int, dict[_Key, _Sum]]] = [
        (len(ranks), sums)
        for program in split_programs(step)
        for ranks, sums in _sum_program(step, program, places)
    ]
    keys = dict.fromkeys(key for _, sums in program_sums for key in sums)
    parts = []
    for key in keys:
        present = [(ranks, sums[key]) for ranks, sums in program_sums if key in sums]
        most = max(
            (rank_sum for _, rank_sum in present),
            key=lambda rank_sum: (rank_sum.sent, rank_sum.ops),
        )
        total = sum(ranks * rank_sum.sent for ranks, rank_sum in present)
        parts.append(Part(*key, *most, total))
    sent = [sum(item.sent for item in sums.values()) for _, sums in program_sums]
    holds: Counter[str] = Counter()
    for program in step.programs:
        holds |= Counter(program.holds)
    return Count(
        parts=tuple(parts),
        ops=max((sum(item.ops for item in sums.values()) for _, sums in program_sums), default=0),
        sent=max(sent, default=0.0),
        total=sum(part.total for part in parts),
        flops=max((sum(op.flops for op in program.ops) for program in step.programs), default=0.0),
        holds=dict(holds),
        memory=max((sum(program.holds.values()) for program in step.programs), default=0),
    )


def _sum_program(
    step: Step, program: Program, places: dict[str, dict[int, int]]
) -> Iterator[tuple[tuple[int, ...], dict[_Key, _Sum]]]:
    """The sums of a program whose ranks have groups of one size, for those that keep the same
    blocks; ``places`` are as in _divide_ranks."""
    by_shape: dict[
        tuple[object, ...], tuple[Op, int]
    ] = {}  # the first of those alike, and how many
    for op in program.ops:
        shape = op.kind, op.phase, op.group, op.dtype, op.nbytes, op.sends
        first, number = by_shape.get(shape, (op, 0))
        by_shape[shape] = first, number + 1
    talks = [(op, number) for op, number in by_shape.values() if op.communicates]
    for ranks in _divide_ranks(step, program.ranks, [op for op, _ in talks], places):
        sums: dict[_Key, _Sum] = {}
        for op, number in talks:
            members = step.members(op.group, ranks[0])
            index = members.index(ranks[0])
            key = _Key(op.phase, op.group, op.kind, op.dtype)
            sums[key] = sums.get(key, _Sum()).plus(number, op, len(members), index)
        yield ranks, sums


def _divide_ranks(
    step: Step, ranks: tuple[int, ...], ops: Iterable[Op], places: dict[str, dict[int, int]]
) -> Iterable[tuple[int, ...]]:
    """Ranks with these operations, by how large the blocks are that each keeps for itself.
    ``places`` are those of ranks in groups of a name, and grow with the names that are met."""
    uneven = [op for op in ops if len({*op.sends}) > 1]
    if len(ranks) < 2 or not uneven:
        return [ranks]
    for name in {op.group for op in uneven} - places.keys():
        family = step.family(name)
        places[name] = {rank: at for group in family for at, rank in enumerate(group)}
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank in ranks:
        own = tuple(op.sends[places[op.group][rank]] for op in uneven)
        alike.setdefault(own, []).append(rank)
    return map(tuple, alike.values())


class Machine(NamedTuple):
    """Links between hosts and within one of ``node`` ranks, and how many floating-point operations
    a rank does in a second; computation takes no time where that is 0."""

    link: Link
    inside: Link
    node: int = 1
    flops: float = 0.0

    def seconds(self, op: Op, party: Party) -> float:
        """The least seconds that an operation takes: the bounds of ``core.collectives`` on this
        network."""
        if op.kind == "compute":
            computed = op.flops / self.flops if self.flops else 0.0
            return op.compute_ns / 1e9 or computed
        hosts = Counter(rank // self.node for rank in party.members)
        if op.kind in POINT_TO_POINT:
            link = self.link if len(hosts) > 1 else self.inside
            return link.alpha + op.nbytes * link.beta
        if len(party.members) == 1:
            return 0.0
        alpha, beta, gamma = self._bound(op, party.members, hosts)
        if COLLECTIVES[op.kind].uneven:
            return alpha + self._exchange_seconds(op, party, len(hosts) == 1)
        return alpha + op.nbytes * (beta + gamma)

    def _bound(
        self, op: Op, members: tuple[int, ...], hosts: Counter[int]
    ) -> tuple[float, float, float]:
        row, n = COLLECTIVES[op.kind], len(members)
        if len(hosts) in (1, n):
            return Network(self.inside if len(hosts) == 1 else self.link).bound(row, n)
        root = members[op.root if row.rooted else 0]
        shape = Hosts(n, len(hosts), min(hosts.values()), hosts[root // self.node])
        return bound_on_hosts(row, shape, self.link, self.inside)

    def _exchange_seconds(self, op: Op, party: Party, is_near: bool) -> float:
        """The seconds in which the busiest rank sends and receives blocks of these lengths: all but
        its own on the best link, and those of other hosts on the link between."""
        homes = [rank // self.node for rank in party.members]
        moved = outside = 0
        for index in map(party.members.index, party.ranks):
            for blocks in (op.sends, [row[index] for row in party.table]):
                home = homes[index]
                far = sum(count for count, at in zip(blocks, homes, strict=True) if at != home)
                moved, outside = max(moved, sum(blocks) - blocks[index]), max(outside, far)
        best = self.inside.beta if is_near else min(self.inside.beta, self.link.beta)
        return DTYPES[op.dtype].size * max(moved * best, outside * self.link.beta)


class Forecast(NamedTuple):
    """Seconds a step takes on a machine: whole, its computation alone, its communication alone, and
    by phase the seconds in which some operation of the busiest rank is under way, and of rank 0."""

    step: float
    computation: float
    communication: float
    phases: dict[tuple[str, str], float]
    rank_0_phases: dict[tuple[str, str], float]

    @property
    def exposed(self) -> float:
        """The seconds that communication adds to computation."""
        return self.step - self.computation


def forecast_step(step: Step, machine: Machine, actors: Actors | None = None) -> Forecast:
    """The time that a step would take; ``actors`` as in Walk. Raises UsageError where it would
    never end."""
    seconds_of: dict[tuple[object, ...], float] = {}

    def silent(op: Op, party: Party) -> float:
        return machine.seconds(op, party) if op.kind == "compute" else 0.0

    def idle(op: Op, party: Party) -> float:
        if op.kind == "compute":
            return 0.0
        place = id(party)  # of actors, who stay
        shape = op.kind, op.nbytes, op.dtype, op.sends, op.root, place
        if shape not in seconds_of:
            seconds_of[shape] = machine.seconds(op, party)
        return seconds_of[shape]

    def both(op: Op, party: Party) -> float:
        return silent(op, party) + idle(op, party)

    walk = Walk(step, both, actors)
    by_actor = [dict(_list_busy(walk, actor)) for actor in range(len(walk.ops))]
    phases: dict[tuple[str, str], float] = {}
    for busy in by_actor:
        phases |= {key: max(phases.get(key, 0.0), seconds) for key, seconds in busy.items()}
    computation, communication = (
        Walk(step, seconds, walk.actors).seconds for seconds in (silent, idle)
    )
    rank_0_phases = by_actor[walk.actors.kind[0]]
    return Forecast(walk.seconds, computation, communication, phases, rank_0_phases)


def _list_busy(walk: Walk, actor: int) -> Iterator[tuple[tuple[str, str], float]]:
    """The time in which at least one operation of each phase and group is under way."""
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for op, span in zip(walk.ops[actor], walk.spans[actor], strict=True):
        if op.communicates and span:
            spans.setdefault((op.phase, op.group), []).append(span)
    for key, key_spans in spans.items():
        busy, until = 0.0, 0.0
        for begin, end in sorted(key_spans):
            busy += max(0.0, end - max(begin, until))
            until = max(until, end)
        yield key, busy


def group_words(step: Step, name: str) -> str:
    """A group as tables name it: dp of 8."""
    if name == WORLD:
        return "world"
    sizes = {len(group) for group in step.family(name)}
    return f"{name} of {'/'.join(map(str, sorted(sizes)))}"
