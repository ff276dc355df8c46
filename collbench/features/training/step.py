"""A step: what one iteration of training or inference asks of the network, rank by rank in program
order, with the computation between.

A step comes from a pattern (``patterns``), from a file (``files``) or from a trace. It is counted,
walked and predicted without ranks (``count``, ``walk``), and run on ranks.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.core.text import printable_text

Whole = Annotated[int, Meta(ge=0, lt=1 << 62)]
Groups = tuple[tuple[int, ...], ...]

WORLD = ""  # the group of all ranks
MOST_RANKS = 1 << 20
POINT_TO_POINT = ("send", "recv")
LOCAL = ("compute", "wait", "mark")
Compute = Literal["auto", "none", "gemm", "copy", "spin", "sleep"]
KINDS = (*COLLECTIVES, *POINT_TO_POINT, *LOCAL)


class Op(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One operation of a rank's program; its place there is its id.

    ``nbytes`` is the size as everywhere in collbench: the whole of what an all_gather gives, a
    reduce_scatter takes and an all_to_all exchanges, and one rank's buffer for the rest. ``root``
    and ``peer`` are places in the group. ``sends`` are the elements an all_to_allv sends to each
    member. ``after`` names earlier operations of this rank that must be finished before this one
    begins; a ``wait`` without any waits for all. Operations of one ``lane`` of one group run in
    order. A call that is waited for (``"call"``) holds up the program, others do not (``"later"``).
    ``compute`` takes ``compute_ns``, or as long as its ``flops`` and ``touched`` bytes of memory
    take where it runs.
    """

    kind: str
    phase: str = ""
    group: str = WORLD
    nbytes: Whole = 0
    dtype: str = "bfloat16"
    op: str = "none"
    root: int = -1
    peer: int = -1
    tag: Whole = 0
    sends: tuple[Whole, ...] = ()
    after: tuple[Whole, ...] = ()
    lane: str = "comm"
    wait: Literal["call", "later"] = "later"
    compute_ns: Whole = 0
    flops: float = 0
    touched: Whole = 0
    source: str = ""

    @property
    def communicates(self) -> bool:
        """Whether it is a collective or a message."""
        return self.kind not in LOCAL

    @property
    def label(self) -> str:
        """The operation as messages name it: all_reduce of 4096 B float on tp."""
        where = f" on {self.group}" if self.group else ""
        if not self.communicates:
            return self.kind
        peer = {"send": f" to member {self.peer}", "recv": f" from member {self.peer}"}
        return f"{self.kind} of {self.nbytes} B {self.dtype}{where}{peer.get(self.kind, '')}"

    def sent(self, n: int, index: int = 0) -> float:
        """Bytes that a rank has to send at least, among ``n`` members; their mean over members
        where they differ."""
        if self.kind in POINT_TO_POINT:
            return self.nbytes * (self.kind == "send")
        if self.sends:
            itemsize = DTYPES[self.dtype].size
            return (sum(self.sends) - self.sends[index]) * itemsize
        row = COLLECTIVES[self.kind]
        return self.nbytes * row.traffic(n) / n if n > 1 and row.moves_data else 0.0


class Program(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What some ranks do, all the same, and the bytes each of them ``holds``, by what they are."""

    ranks: tuple[Whole, ...]
    ops: tuple[Op, ...]
    holds: dict[str, Whole] = {}


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What iterations of a job took that did what a step does, in ns, and from when to when."""

    times_ns: tuple[Whole, ...]
    meaning: str


class Step(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One iteration of all ranks. Each of ``groups`` is a family of disjoint groups under one name,
    as the rows of a grid are. ``assumptions`` say what the source of the step leaves open.
    ``compute`` is how computation is played where the step is run. A step of a trace whose
    computation is as it was there tells what was ``recorded``."""

    name: str
    world: Annotated[int, Meta(ge=0, le=MOST_RANKS)]
    programs: tuple[Program, ...]
    groups: dict[str, Groups] = {}
    assumptions: tuple[str, ...] = ()
    compute: Compute = "auto"
    version: Literal[1] = 1
    recorded: Recorded | None = None

    @property
    def title(self) -> str:
        """The step's name with a digest of its programs: two steps of one title are the same."""
        bare = msgspec.structs.replace(self, name="", assumptions=(), recorded=None)
        digest = hashlib.blake2b(msgspec.json.encode(bare), digest_size=3).hexdigest()
        return f"{printable_text(self.name)[:180]} #{digest}"

    def family(self, name: str) -> Groups:
        """The groups of this name."""
        return self.groups[name] if name != WORLD else (tuple(range(self.world)),)

    def members(self, name: str, rank: int) -> tuple[int, ...]:
        """The ranks of the group of this name that ``rank`` is in. Raises UsageError where there is
        none."""
        for group in self.family(name):
            if rank in group:
                return group
        raise UsageError(
            f"rank {rank} is in no group '{name}', but takes part in its operation",
            "add it to a group, or leave it out of the operation",
        )

    def program(self, rank: int) -> Program:
        """A rank's program; an empty one where none is its."""
        return next(
            (program for program in self.programs if rank in program.ranks), Program((rank,), ())
        )

    @property
    def used(self) -> list[str]:
        """The names of the groups on which there are operations, in the order of first use."""
        ops = (op for program in self.programs for op in program.ops)
        return list(dict.fromkeys(op.group for op in ops if op.communicates))


class Grid(NamedTuple):
    """Ranks on a grid: its dimensions with their sizes, the one in which neighbours differ by 1
    first (Megatron's order is tp-cp-ep-dp-pp)."""

    sizes: Mapping[str, int]

    @property
    def world(self) -> int:
        """Ranks in all."""
        return math.prod(self.sizes.values())

    def groups(self, *dimensions: str) -> Groups:
        """The ranks that differ in these dimensions only, by the others' places."""
        import numpy as np

        names = list(self.sizes)
        axes = [len(names) - 1 - names.index(d) for d in dimensions]
        ranks = np.arange(self.world).reshape([self.sizes[name] for name in reversed(names)])
        n = math.prod(self.sizes[d] for d in dimensions)
        moved = np.moveaxis(ranks, sorted(axes), range(-len(axes), 0)) if axes else ranks
        return tuple(map(tuple, moved.reshape(-1, n).tolist()))

    def ranks(self, dimension: str, index: int) -> tuple[int, ...]:
        """The ranks at one place of a dimension."""
        stride = 1
        for name, size in self.sizes.items():
            if name == dimension:
                return tuple(r for r in range(self.world) if r // stride % size == index)
            stride *= size
        raise KeyError(dimension)


ORDER = re.compile(r"order:((?:[a-z]{1,8}\d{1,7}-?)+)/([a-z-]+)")


def parse_order(text: str, world: int) -> Groups:
    """The groups that ``order:tp2-dp4/tp`` names: a grid with its dimensions, the fastest first,
    and those in which members of a group differ. Raises UsageError."""
    match = ORDER.fullmatch(text)
    sized = re.findall(r"([a-z]+)(\d+)", match[1]) if match else []
    grid = Grid({name: int(size) for name, size in sized})
    dimensions = match[2].split("-") if match else []
    once = len({*dimensions}) == len(dimensions) and len(grid.sizes) == len(sized)
    if not match or grid.world != world or not {*dimensions} <= {*grid.sizes} or not once:
        raise UsageError(
            f"'{text[:80]}' is not a grid of {world} ranks",
            "write it as order:tp2-dp4/tp, for example",
        )
    return grid.groups(*dimensions)


class Writer:
    """A program as it is written down, operation by operation."""

    def __init__(self, phase: str = "") -> None:
        self.ops: list[Op] = []
        self.phase = phase

    def add(self, kind: str, **fields: object) -> int:
        """Add an operation, of the current phase unless ``fields`` name one, and return its id."""
        self.ops.append(Op(kind=kind, **{"phase": self.phase, **fields}))  # type: ignore[arg-type]
        return len(self.ops) - 1

    def compute(self, flops: float = 0, touched: int = 0, source: str = "") -> int:
        """Computation in the caller's thread, or on its current stream."""
        return self.add("compute", flops=flops, touched=touched, lane="compute", source=source)

    def wait(self, *ids: int) -> int:
        """A wait for these operations, or for all so far."""
        return self.add("wait", after=ids)

    def program(self, ranks: Iterable[int], **holds: int) -> Program:
        """The program of these ranks, of the operations written so far; ``holds`` are bytes by
        kind."""
        return Program(tuple(ranks), tuple(self.ops), holds)


def split_programs(step: Step) -> list[Program]:
    """The programs of a step, each split by the sizes of its ranks' groups; none without ranks."""
    families = {name: step.family(name) for name in step.used}
    sizes = {
        name: {rank: len(group) for group in family for rank in group}
        for name, family in families.items()
        if len({*map(len, family)}) > 1
    }
    programs = []
    for program in step.programs:
        used = {op.group for op in program.ops if op.communicates} & sizes.keys()
        alike: dict[tuple[int, ...], list[int]] = {}
        for rank in program.ranks:
            alike.setdefault(tuple(sizes[name].get(rank, 0) for name in used), []).append(rank)
        programs += [msgspec.structs.replace(program, ranks=tuple(r)) for r in alike.values()]
    return programs


class Misplaced(UsageError):
    """An operation of a rank that cannot be."""

    def __init__(self, message: str, rank: int, op: int) -> None:
        super().__init__(message)
        self.rank, self.op = rank, op


def refuse_step(step: Step) -> None:
    """Raises UsageError for a step that says what cannot be, with the place where it does."""
    _refuse_groups(step)
    places = {name: _place_ranks(step, name) for name in (WORLD, *step.groups)}
    listed: set[int] = set()
    for program in step.programs:
        if twice := listed.intersection(program.ranks):
            raise UsageError(f"rank {min(twice)} has two programs", "give each rank one program")
        listed.update(program.ranks)
        within = {
            name: _Within.of([place_of[rank] for rank in program.ranks if rank in place_of])
            for name, place_of in places.items()
        }
        for number, op in enumerate(program.ops):
            if trouble := _find_trouble(op, number, within, len(program.ranks)):
                rank = program.ranks[0]
                where = f"rank {rank}, op {number} ({op.kind})"
                raise Misplaced(f"{step.name}: {where}: {trouble}", rank, number)
    if without := {*range(step.world)} - listed:
        raise UsageError(f"rank {min(without)} has no program", "give it an empty program")


class _Place(NamedTuple):
    """Where a rank is in its group of ``n`` members."""

    at: int
    n: int


class _Within(NamedTuple):
    """Where so many ranks are in their groups of one name, and how large these are."""

    ranks: int
    places: frozenset[_Place]
    sizes: frozenset[int]

    @classmethod
    def of(cls, places: Sequence[_Place]) -> _Within:
        return cls(len(places), frozenset(places), frozenset(location.n for location in places))


def _place_ranks(step: Step, name: str) -> dict[int, _Place]:
    return {
        rank: _Place(at, len(group)) for group in step.family(name) for at, rank in enumerate(group)
    }


def _refuse_groups(step: Step) -> None:
    if not 0 < step.world <= MOST_RANKS:
        raise UsageError(f"a step cannot have {step.world} ranks", f"take from 1 to {MOST_RANKS:,}")
    for name, family in step.groups.items():
        ranks = [rank for group in family for rank in group]
        if not name or len({*ranks}) < len(ranks) or not all(family):
            raise UsageError(
                f"groups '{name}': they have no name, no ranks or share some",
                "give them a name, and put each rank in one of them at most",
            )
        if ranks and max(ranks) >= step.world:
            raise UsageError(f"groups '{name}': there is no rank {max(ranks)} of {step.world}")


def _find_trouble(op: Op, number: int, within: Mapping[str, _Within], ranks: int) -> str:
    """The reason why an operation of so many ranks is invalid, by the groups of each name; else an
    empty string."""
    for word, what, allowed in ((op.kind, "kind", KINDS), (op.dtype, "datatype", (*DTYPES,))):
        if word not in allowed:
            return f"there is no {what} '{word[:40]}'"
    if any(needed >= number for needed in op.after):
        return f"it begins after op {max(op.after)}, which is not before it"
    if not op.communicates or not ranks:
        return ""
    group = within.get(op.group)
    if group is None or group.ranks < ranks:
        return f"there is no group '{op.group[:40]}' that it is in"
    if op.nbytes % DTYPES[op.dtype].size:
        return f"{op.nbytes} B are not a whole number of elements of {op.dtype}"
    return _find_misplaced(op, group)


def _find_misplaced(op: Op, group: _Within) -> str:
    """The reason why the members that an operation names are invalid; else an empty string."""
    n = min(group.sizes)
    if op.kind in POINT_TO_POINT:
        if not 0 <= op.peer < n:
            return f"peer {op.peer} is none of {n} members"
        itself = any(_Place(op.peer, size) in group.places for size in group.sizes)
        return "it is with itself" if itself else ""
    row = COLLECTIVES[op.kind]
    if row.rooted and not 0 <= op.root < n:
        return f"root {op.root} is none of {n} members"
    if row.uneven and group.sizes != {len(op.sends)}:
        return f"sends has {len(op.sends)} numbers for {max(group.sizes)} members"
    return ""
