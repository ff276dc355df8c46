"""What a step asks of the network and of memory, counted without ranks; and what it would take on a
network of known links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from collbench.core.collectives import COLLECTIVES
from collbench.core.network import Link, Network, TwoLevel
from collbench.features.training.step import POINT_TO_POINT, WORLD, Op, Program, Step
from collbench.features.training.walk import Actors, Walk


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
    program_sums: list[tuple[int, dict[_Key, _Sum]]] = [
        (len(program.ranks), _sum_program(step, program)) for program in step.programs
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


def _sum_program(step: Step, program: Program) -> dict[_Key, _Sum]:
    """The sums of a program, for the first of its ranks."""
    sums: dict[_Key, _Sum] = {}
    by_shape: dict[
        tuple[object, ...], tuple[Op, int]
    ] = {}  # the first of those alike, and how many
    for op in program.ops if program.ranks else ():
        shape = op.kind, op.phase, op.group, op.dtype, op.nbytes, op.sends
        first, number = by_shape.get(shape, (op, 0))
        by_shape[shape] = first, number + 1
    for op, number in by_shape.values():
        if op.communicates:
            members = step.members(op.group, program.ranks[0])
            index = members.index(program.ranks[0])
            key = _Key(op.phase, op.group, op.kind, op.dtype)
            sums[key] = sums.get(key, _Sum()).plus(number, op, len(members), index)
    return sums


class Machine(NamedTuple):
    """Links between hosts and within one of ``node`` ranks, and how many floating-point operations
    a rank does in a second; computation takes no time where that is 0."""

    link: Link
    inside: Link
    node: int = 1
    flops: float = 0.0

    def seconds(self, op: Op, members: tuple[int, ...]) -> float:
        """The least seconds that an operation takes: the bounds of ``core.collectives`` on this
        network."""
        if op.kind == "compute":
            computed = op.flops / self.flops if self.flops else 0.0
            return op.compute_ns / 1e9 or computed
        network, n = self._network(members), len(members)
        if op.kind in POINT_TO_POINT:
            return network.link.alpha + op.nbytes * network.link.beta
        if n == 1:
            return 0.0
        row = COLLECTIVES[op.kind]
        alpha, beta, gamma = network.bound(row, n)
        return alpha + (op.sent(n) if row.uneven else op.nbytes) * (beta + gamma)

    def _network(self, members: tuple[int, ...]) -> Network:
        hosts = Counter(rank // self.node for rank in members)
        if len(hosts) == 1:
            return Network(self.inside)
        at_once = min(hosts.values())
        return TwoLevel(self.link, self.inside, at_once) if at_once > 1 else Network(self.link)


class Forecast(NamedTuple):
    """Seconds a step takes on a machine: whole, its computation alone, its communication alone, and
    by phase the seconds in which some operation of the busiest rank is under way."""

    step: float
    computation: float
    communication: float
    phases: dict[tuple[str, str], float]

    @property
    def exposed(self) -> float:
        """The seconds that communication adds to computation."""
        return self.step - self.computation


def forecast_step(step: Step, machine: Machine, actors: Actors | None = None) -> Forecast:
    """The time that a step would take; ``actors`` as in Walk. Raises UsageError where it would
    never end."""
    seconds_of: dict[tuple[object, ...], float] = {}

    def silent(op: Op, members: tuple[int, ...]) -> float:
        return machine.seconds(op, members) if op.kind == "compute" else 0.0

    def idle(op: Op, members: tuple[int, ...]) -> float:
        if op.kind == "compute":
            return 0.0
        shape = op.kind, op.nbytes, op.dtype, op.sends, id(members)  # of actors, who stay
        if shape not in seconds_of:
            seconds_of[shape] = machine.seconds(op, members)
        return seconds_of[shape]

    def both(op: Op, members: tuple[int, ...]) -> float:
        return silent(op, members) + idle(op, members)

    walk = Walk(step, both, actors)
    phases: dict[tuple[str, str], float] = {}
    for actor in range(len(walk.ops)):
        for key, seconds in _list_busy(walk, actor):
            phases[key] = max(phases.get(key, 0.0), seconds)
    computation, communication = (
        Walk(step, seconds, walk.actors).seconds for seconds in (silent, idle)
    )
    return Forecast(walk.seconds, computation, communication, phases)


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
