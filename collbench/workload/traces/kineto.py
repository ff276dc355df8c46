"""Kineto's traces, as torch.profiler exports them (JSON of Chrome's trace viewer): kernels with
times, those of NCCL with what they communicate.

Kernels of coalesced calls, and those that PyTorch before 2.3 wrote, do not say what they are. Long
lists are cut with "..."; groups are then taken from ``distributedInfo``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from collbench.core.errors import UsageError
from collbench.workload.step import MOST_RANKS, WORLD
from collbench.workload.traces.bounded import Json, Stream
from collbench.workload.traces.calls import (
    MOST,
    Calls,
    Said,
    is_number,
    kind_of,
    listed,
    nanoseconds,
    rank_in,
)
from collbench.workload.traces.types import Interval, RankTrace

MOST_KEPT = 3_000_000
FEWER = "profile fewer steps"
Time = float | str
Elements = Annotated[int, Meta(ge=0, lt=MOST)]
Rank = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
Base = Annotated[int, Meta(ge=0, lt=MOST >> 1)]


class _Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    ts: Time = 0.0
    dur: Time = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Comms(msgspec.Struct):
    """What a kernel of NCCL communicates. ``rank`` is a place in the group: the root's, the peer's,
    else the rank's own; ``source`` and ``target`` are ranks of the job."""

    name: str = msgspec.field(name="Collective name", default="")
    dtype: str = msgspec.field(name="dtype", default="byte")
    given: Elements = msgspec.field(name="In msg nelems", default=0)
    got: Elements = msgspec.field(name="Out msg nelems", default=0)
    sends: str = msgspec.field(name="In split size", default="[]")
    receives: str = msgspec.field(name="Out split size", default="[]")
    size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = msgspec.field(name="Group size", default=0)
    group: str = msgspec.field(name="Process Group Name", default="")
    described: str = msgspec.field(name="Process Group Description", default="")
    ranks: str = msgspec.field(name="Process Group Ranks", default="")
    rank: Any = msgspec.field(name="Rank", default=None)
    source: Any = msgspec.field(name="Src Rank", default=None)
    target: Any = msgspec.field(name="Dst Rank", default=None)
    start: Any = msgspec.field(name="Global rank start", default=None)
    stride: Any = msgspec.field(name="Global rank stride", default=None)
    number: Any = msgspec.field(name="Seq", default=None)
    later: Any = msgspec.field(name="Is asynchronized op", default=None)
    correlation: Any = msgspec.field(name="correlation", default=None)


class _Correlated(msgspec.Struct):
    correlation: int = -1


class _Group(msgspec.Struct):
    pg_name: str = ""
    pg_desc: str = ""
    ranks: list[Rank] | str = []
    pg_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0
    group_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0


class _World(msgspec.Struct):
    rank: Rank | None = None
    world_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0
    backend: str = ""
    pg_config: list[_Group] = []


def read(stream: Stream) -> tuple[RankTrace, tuple[str, ...]]:
    """What a rank's file tells, and what is taken for granted. Raises UsageError."""
    source, found = Json(stream, "traceEvents"), _Found(stream)
    for _, at, raw in source:
        found.take(source.decode(raw, _Event, f"byte {at:,}, an event"), at, source)
        if found.held > MOST_KEPT:
            raise stream.refused(at, f"more than {MOST_KEPT:,} kernels and launches", FEWER)
    if "traceEvents" in source.header:
        raise UsageError(f"{stream.path}: traceEvents: they are no list", "is it a trace?")
    world = source.decoded("distributedInfo", _World, _World())
    base = source.decoded("baseTimeNanoseconds", Base, 0)
    return found.trace(world, base)


COMMUNICATES = re.compile(r"nccl|rccl", re.IGNORECASE)
LAUNCHES = re.compile(r"(?:cuda|hip|cu)Launch\w*|\w*LaunchKernel\w*")


class _Found:
    """What has been found in a file; times are of its clock, which a base is added to at the end,
    as that may stand there."""

    def __init__(self, stream: Stream) -> None:
        self.made = Calls(stream.path)
        self.kernels: list[tuple[int, int, int, _Comms]] = []
        self.launched: dict[int, int] = {}
        self.steps: list[Interval] = []
        self.busy = _Union()

    def take(self, event: _Event, at: int, source: Json) -> None:
        """One event."""
        if event.cat == "kernel":
            begins, ends = _interval(event, at, source)
            if not COMMUNICATES.search(event.name):
                self.busy.add(begins, ends)
                return
            said = source.decode(event.args, _Comms, f"byte {at:,}, a kernel's args")
            if said.name:
                self.kernels.append((begins, ends, at, said))
            else:
                what = event.name[:60].split("_")[0]
                self.made.lose(f"kernels do not say what they communicate: {what}", f"byte {at}")
        elif event.cat == "user_annotation" and event.name.startswith("ProfilerStep#"):
            self.steps.append(_interval(event, at, source))
        elif event.cat in ("cuda_runtime", "cuda_driver") and LAUNCHES.fullmatch(event.name):
            launch = source.decode(event.args, _Correlated, f"byte {at:,}, a launch's args")
            self.launched[launch.correlation] = _interval(event, at, source)[0]

    @property
    def held(self) -> int:
        """How much is kept of it."""
        return sum(map(len, (self.kernels, self.launched, self.steps, self.busy.found)))

    def trace(self, world: _World, base: int) -> tuple[RankTrace, tuple[str, ...]]:
        """What came of it. Raises UsageError where nothing communicates."""
        made, default = self.made, ""
        for group in world.pg_config:
            ranks = listed(group.ranks) if isinstance(group.ranks, str) else tuple(group.ranks)
            size = group.pg_size or group.group_size
            if group.pg_desc == "default_pg":
                default = default or group.pg_name
                ranks = ranks or tuple(range(world.world_size))
            if ranks and (not size or len(ranks) == size):
                made.group(group.pg_name, ranks, group.pg_desc)
        for begins, ends, at, said in sorted(self.kernels, key=lambda kernel: kernel[0]):
            default = default or (said.group if said.described == "default_pg" else "")
            self._call(made, said, at, default, (base + begins, base + ends), base)
        if made.empty:
            raise UsageError(
                f"{made.path}: no kernel of it communicates",
                "traces of Gloo have none: record with collbench.record",
            )
        if default in made.groups:
            made.name_world(default)
        rank = rank_in(made.path) if world.rank is None else world.rank
        steps, busy = (
            [(base + begins, base + ends) for begins, ends in each]
            for each in (sorted({*self.steps}), self.busy.merged())
        )
        told = made.trace(rank, world.world_size, steps, busy, backend=world.backend[:20])
        return told, tuple(made.assumptions)

    def _call(
        self, made: Calls, said: _Comms, at: int, default: str, when: Interval, base: int
    ) -> None:
        name, place = said.group[:200], f"byte {at}"
        if name not in made.groups and (ranks := _members(said)):
            made.group(name, ranks, said.described)
        kind, n = kind_of(said.name), said.size or len(made.groups.get(name, ()))
        sends, receives = listed(said.sends), listed(said.receives)
        there = _rank(said.rank)
        if there < 0:
            peer = _rank(said.target if kind == "send" else said.source)
            members = made.groups.get(name, ())
            there = members.index(peer) if peer in members else -1
        told = Said(
            said.name,
            said.dtype,
            said.given,
            said.got,
            place,
            WORLD if name and name == default else name,
            n,
            sends,
            receives,
            root=there,
            peer=there,
        )
        issued = self.launched.get(said.correlation) if is_number(said.correlation) else None
        fields: dict[str, object] = {"begins_ns": when[0], "ends_ns": when[1]}
        if issued is not None:
            fields["issued_ns"] = base + issued
        number = _rank(said.number, MOST)
        made.add(told, number=number, waits=said.later in (False, "false", "0"), **fields)


def _members(said: _Comms) -> tuple[int, ...]:
    """The ranks of its group, as they are listed or follow each other; nothing where neither is
    told."""
    ranks = listed(said.ranks)
    if ranks and (not said.size or len(ranks) == said.size):
        return ranks
    start, stride = _rank(said.start), _rank(said.stride)
    if said.size and start >= 0 < stride and start + (said.size - 1) * stride < MOST_RANKS:
        return tuple(start + place * stride for place in range(said.size))
    return ()


def _rank(value: Any, most: int = MOST_RANKS) -> int:
    """A number that may be told as one or as text; -1 where it is none."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value):
        value = int(value)
    return value if is_number(value) and 0 <= value < most else -1


def _interval(event: _Event, at: int, source: Json) -> Interval:
    """When an event began and ended, in nanoseconds. Raises UsageError."""
    try:
        begins, took = (nanoseconds(float(time)) for time in (event.ts, event.dur))
    except ValueError:
        begins = took = -1
    if begins < 0 or took < 0 or begins + took >= MOST >> 1:
        raise source.stream.refused(at, "an event's time is none")
    return begins, begins + took


class _Union:
    """The union of intervals, which come in about the order of time."""

    def __init__(self) -> None:
        self.found: list[Interval] = []
        self._enough = 1 << 17

    def add(self, begins: int, ends: int) -> None:
        self.found.append((begins, ends))
        if len(self.found) > self._enough:
            self.found = self.merged()
            self._enough = max(1 << 17, 2 * len(self.found))

    def merged(self) -> list[Interval]:
        """In the order of time, none touching another."""
        made: list[Interval] = []
        for begins, ends in sorted(self.found):
            if made and begins <= made[-1][1]:
                made[-1] = (made[-1][0], max(made[-1][1], ends))
            else:
                made.append((begins, ends))
        return made
