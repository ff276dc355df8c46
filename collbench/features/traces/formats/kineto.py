"""Kineto's traces, as torch.profiler exports them (JSON of Chrome's trace viewer): kernels with
times, those of NCCL with what they communicate.

Kernels of coalesced calls, and those that PyTorch before 2.3 wrote, do not say what they are. Long
lists are cut with "..."; groups are then taken from ``distributedInfo``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from collbench.core.errors import UsageError
from collbench.core.text import format_count
from collbench.features.traces.formats.bounded import CutError, Json, Stream
from collbench.features.traces.formats.call_names import (
    MOST,
    Calls,
    Said,
    is_by_lists,
    is_number,
    kind_of,
    parse_listed,
    parse_microseconds,
)
from collbench.features.traces.types import Interval, RankTrace
from collbench.features.training.step import MOST_RANKS, WORLD
from collbench.machine.gpu import is_fake

MOST_KEPT = 6_000_000
READ = ("kernel", "user_annotation", "cuda_runtime", "cuda_driver")
FEWER = "profile fewer steps"
Time = float | str
Elements = Annotated[int, Meta(ge=-(1 << 31), lt=MOST)]  # below 0: more than 32 bits hold
Rank = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
T = TypeVar("T")
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


class _Category(msgspec.Struct):
    cat: str = ""


class _Iterations(NamedTuple):
    """The ``marks`` of iterations on the CPU, when they were on the GPU (``windows``), and whether
    kernels belong to them by their launch."""

    marks: Sequence[Interval]
    windows: tuple[Interval, ...]
    by_launch: bool


class _Group(msgspec.Struct):
    pg_name: str = ""
    pg_desc: str = ""
    ranks: list[Rank] | str = []
    pg_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0
    group_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0


class _Device(msgspec.Struct):
    name: str = ""


class _World(msgspec.Struct):
    rank: Rank | None = None
    world_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0
    backend: str = ""
    pg_config: list[_Group] = []


def read_rank(stream: Stream) -> tuple[RankTrace, tuple[str, ...]]:
    """The calls by a rank's file, and what is taken for granted; of a file that is cut, up to
    there. Raises UsageError."""
    source, parsed = Json(stream, "traceEvents"), _Found(stream)
    cut = ""
    try:
        for _, at, raw in source:
            parsed.take(raw, at, source)
            if parsed.kept_count > MOST_KEPT:
                raise stream.refused(at, f"more than {MOST_KEPT:,} kernels and launches", FEWER)
    except CutError as e:
        if not parsed.events:
            raise
        cut = f"byte {e.at:,}"
    if "traceEvents" in source.header:
        raise UsageError(
            f"{stream.path}: its 'traceEvents' are not a list", "check that it is a trace"
        )
    world = parsed.header(source, "distributedInfo", _World, _World())
    base = parsed.header(source, "baseTimeNanoseconds", Base, 0)
    devices = parsed.header(source, "deviceProperties", list[_Device], [])
    trace, assumptions = parsed.trace(world, base)
    fake = any(is_fake(device.name) for device in devices)
    return msgspec.structs.replace(trace, cut=cut, fake=fake), assumptions


NCCL = re.compile(r"nccl|rccl|msccl", re.IGNORECASE)
OTHERS = re.compile(
    r"cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|multimem|nvshmem"
    r"|deep_ep",
    re.IGNORECASE,
)
LAUNCHES = re.compile(r"(?:cuda|hip|cu)(?:Graph)?Launch\w*|\w*LaunchKernel\w*")
SPAN = "gloo:"  # begins the names of Gloo's spans
NO_LAUNCH = (
    "the trace has no launches of most kernels: each belongs to the iteration in which it began"
)
UNNAMED = "kernels do not say what they communicate, as of torch before 2.3 and coalesced calls"
BEYOND = "marked iterations in which no kernel was launched are left out"
Kernel = tuple[int, int, int]  # begin, end, correlation


class _Found:
    """What has been found in a file; times are of its clock, which a base is added to at the end,
    as that may stand there."""

    def __init__(self, stream: Stream) -> None:
        self.calls = Calls(stream.path)
        self.rank = stream.rank
        self.events = 0
        self.spans = 0  # of Gloo
        self.kernels: list[tuple[int, int, int, _Comms]] = []
        self.launched: dict[int, int] = {}
        self.steps: list[Interval] = []
        self.computing: list[Kernel] = []
        self.unnamed: list[Kernel] = []

    def header(self, source: Json, key: str, kind: type[T], default: T) -> T:
        """The value under a key of the file's header; the default where it cannot be read."""
        try:
            return source.decoded(key, kind, default)
        except UsageError as e:
            self.calls.lose(e.message.partition(": ")[2], calls=0)
            return default

    def take(self, raw: bytes, at: int, source: Json) -> None:
        """Read one event. An event with a value that cannot be read is noted as lost."""
        self.events += 1
        try:
            event = source.decode(raw, _Event, "an event")
        except UsageError as e:
            return self._lose(raw, at, source, e)
        if event.cat == "kernel":
            self._kernel(event, at, source)
        elif event.cat == "user_annotation" and event.name.startswith("ProfilerStep#"):
            if (mark := _event_interval(event)) is None:
                self.calls.lose("marks of iterations have no time", f"byte {at}", calls=0)
            else:
                self.steps.append(mark)
        elif event.cat in ("cuda_runtime", "cuda_driver") and LAUNCHES.fullmatch(event.name):
            self._launch(event, at, source)
        self.spans += event.name.startswith(SPAN)
        return None

    def _lose(self, raw: bytes, at: int, source: Json, error: UsageError) -> None:
        """An event of which a value cannot be read, unless it is of a kind that is not read."""
        try:
            category = source.decode(raw, _Category, "an event").cat
        except UsageError:
            category = "kernel"
        if category in READ:
            why = error.message.partition(": an event: ")[2]
            self.calls.lose(f"events have a value that cannot be read: {why}", f"byte {at}")

    def _kernel(self, event: _Event, at: int, source: Json) -> None:
        """Note a kernel's interval: of a call of NCCL, of other communication, or of
        computation."""
        when, location = _event_interval(event), f"byte {at}"
        talks = NCCL.search(event.name)
        other = not talks and OTHERS.search(event.name)
        if when is None or when == (0, 0):
            why = "calls have no time" if talks or other else "kernels that compute have no time"
            self.calls.lose(why, location, calls=int(bool(talks or other)))
            return
        if not talks:
            target = self.unnamed if other else self.computing
            target.append((*when, self._correlation(event, source)))
            if other:
                why = (
                    f"kernels that communicate without NCCL are not read: {_short_name(event.name)}"
                )
                self.calls.lose(why, location)
            return
        try:
            comms = source.decode(event.args, _Comms, "a kernel's args")
        except UsageError as e:
            self.calls.lose(f"kernels have {e.message.partition(': ')[2]}", location)
            self.unnamed.append((*when, self._correlation(event, source)))
            return
        if comms.name:
            self.kernels.append((*when, at, comms))
        else:
            what = event.name[:60].split("_")[0]
            self.calls.lose(f"{UNNAMED}: {what}", location)
            self.unnamed.append((*when, self._correlation(event, source)))

    def _correlation(self, event: _Event, source: Json) -> int:
        try:
            return source.decode(event.args, _Correlated, "").correlation
        except UsageError:
            return -1

    def _launch(self, event: _Event, at: int, source: Json) -> None:
        when, correlation = _event_interval(event), self._correlation(event, source)
        if when is None or correlation < 0:
            self.calls.lose("launches have no time or no number", f"byte {at}", calls=0)
        else:
            self.launched[correlation] = when[0]

    @property
    def kept_count(self) -> int:
        """How much is kept of it."""
        lists = (self.kernels, self.launched, self.steps, self.computing, self.unnamed)
        return sum(map(len, lists))

    def trace(self, world: _World, base: int) -> tuple[RankTrace, tuple[str, ...]]:
        """The rank's trace, and the assumptions made for it. Raises UsageError where no kernel
        communicates."""
        calls, default = self.calls, ""
        for group in world.pg_config:
            ranks = (
                parse_listed(group.ranks) if isinstance(group.ranks, str) else tuple(group.ranks)
            )
            size = group.pg_size or group.group_size
            if group.pg_desc == "default_pg":
                default = default or group.pg_name
                ranks = ranks or tuple(range(world.world_size))
            if ranks and (not size or len(ranks) == size):
                calls.group(group.pg_name, ranks, group.pg_desc)
        steps = self._iterations()
        placed = sorted((self._placed(kernel, steps), kernel[0], kernel) for kernel in self.kernels)
        places = [0] * (len(steps.windows) + 1)
        for step, _, (begins, ends, at, comms) in placed:
            default = default or (comms.group if comms.described == "default_pg" else "")
            self._call(calls, comms, at, default, (base + begins, base + ends), base)
            for later in range(step + 1, len(places)):
                places[later] = len(calls.entries)
        self._refuse_silent()
        if default in calls.groups:
            calls.name_world(default)
        rank = self.rank if world.rank is None else world.rank
        windows, busy, unnamed = (
            tuple((base + begins, base + ends) for begins, ends in intervals)
            for intervals in (
                steps.windows,
                _union_kernels(self.computing),
                _union_kernels(self.unnamed),
            )
        )
        marked = [*pairwise(places)] if steps.by_launch else []
        rank_trace = calls.trace(rank, world.world_size, windows, busy, marked, world.backend[:20])
        unnamed = (*unnamed, *rank_trace.unnamed)
        return msgspec.structs.replace(rank_trace, unnamed=unnamed), tuple(calls.assumptions)

    def _refuse_silent(self) -> None:
        """Raises UsageError where nothing communicates."""
        if not self.calls.empty:
            return
        complaint = f"{self.calls.path}: no kernel of it communicates"
        if self.spans:
            complaint += f"; the {format_count(self.spans, 'span')} of Gloo in it are not read"
            raise UsageError(complaint, "record jobs on Gloo with collbench.record")
        if self.computing:
            raise UsageError(complaint, "profile a step in which ranks communicate")
        raise UsageError(
            f"{complaint}: it has no kernels",
            "profile with ProfilerActivity.CUDA; record jobs on CPUs with collbench.record",
        )

    def _iterations(self) -> _Iterations:
        """The marked iterations on the GPU: each from the first kernel that was launched in it to
        the next one's; where launches are unknown, as they are marked."""
        marks = sorted({*self.steps})
        talking = ((begins, ends, comms.correlation) for begins, ends, _, comms in self.kernels)
        firsts: dict[int, int] = {}
        lasts: dict[int, int] = {}
        unknown = 0
        for begins, ends, correlation in chain(talking, self.computing, self.unnamed):
            unknown += self._issued(correlation) is None
            step = self._launched_in(correlation, marks)
            if step >= 0:
                firsts[step] = min(begins, firsts.get(step, begins))
                lasts[step] = max(ends, lasts.get(step, ends))
        kernels = len(self.kernels) + len(self.computing) + len(self.unnamed)
        if marks and (not firsts or 2 * unknown > kernels):
            self.calls.assumptions[NO_LAUNCH] = None
            return _Iterations(marks, tuple(marks), False)
        if len(firsts) < len(marks):
            self.calls.assumptions[BEYOND] = None
        steps = sorted(firsts)
        begins_of = [*accumulate((firsts[step] for step in steps), max)]
        ends_of = [*begins_of[1:], max(lasts.values(), default=0)]
        windows = tuple(zip(begins_of, ends_of, strict=True)) if steps else ()
        return _Iterations([marks[step] for step in steps], windows, True)

    def _issued(self, correlation: Any) -> int | None:
        """The time in ns at which a kernel was launched, if the trace tells."""
        return self.launched.get(correlation) if is_number(correlation) else None

    def _launched_in(self, correlation: Any, marks: Sequence[Interval]) -> int:
        """The place of the iteration in which a kernel was launched; -1 where that is unknown."""
        issued = self._issued(correlation)
        if issued is None or not marks or issued >= marks[-1][1]:
            return -1
        return bisect_right(marks, issued, key=lambda mark: mark[0]) - 1

    def _placed(self, kernel: tuple[int, int, int, _Comms], steps: _Iterations) -> int:
        """The place of its iteration: -1 before the first, their number after the last."""
        begins, _, _, comms = kernel
        issued = self._issued(comms.correlation)
        if issued is None or not steps.by_launch:
            return bisect_right(steps.windows, begins, key=lambda window: window[0]) - 1
        if steps.marks and issued >= steps.marks[-1][1]:
            return len(steps.marks)
        return bisect_right(steps.marks, issued, key=lambda mark: mark[0]) - 1

    def _call(
        self, calls: Calls, comms: _Comms, at: int, default: str, when: Interval, base: int
    ) -> None:
        """Add the call of a kernel of NCCL, or note that it is lost; ``base`` (ns) is subtracted
        from its times."""
        name, location = comms.group[:200], f"byte {at}"
        if name not in calls.groups and (ranks := _list_members(comms)):
            calls.group(name, ranks, comms.described)
        kind, n = kind_of(comms.name), comms.size or len(calls.groups.get(name, ()))
        sends, receives = parse_listed(comms.sends), parse_listed(comms.receives)
        root = _parse_rank(comms.rank)
        if root < 0:
            peer = _parse_rank(comms.target if kind == "send" else comms.source)
            members = calls.groups.get(name, ())
            root = members.index(peer) if peer in members else -1
        given, got = comms.given, comms.got
        if (given if kind == "all_gather" else got if kind == "reduce_scatter" else -1) >= 0:
            given, got = max(0, given), max(0, got)  # the other follows from it
        if min(given, got) < 0:
            calls.lose(f"{kind or comms.name}: more elements than 32 bits hold", location)
            self.unnamed.append((when[0] - base, when[1] - base, -1))
            return
        named_call = Said(
            comms.name,
            comms.dtype,
            given,
            got,
            location,
            WORLD if name and name == default else name,
            n,
            sends,
            receives,
            root=root,
            peer=root,
        )
        issued = self.launched.get(comms.correlation) if is_number(comms.correlation) else None
        ends = when[1] if when[1] > when[0] else -1  # no kernel takes no time
        fields: dict[str, object] = {"begins_ns": when[0], "ends_ns": ends}
        fields["by_lists"] = is_by_lists(comms.name)
        if issued is not None:
            fields["issued_ns"] = base + issued
        number = _parse_rank(comms.number, MOST)
        waits = comms.later in (False, "false", "0")
        if calls.add(named_call, number=number, waits=waits, **fields) < 0:
            self.unnamed.append((when[0] - base, when[1] - base, -1))


def _list_members(comms: _Comms) -> tuple[int, ...]:
    """The ranks of its group, as they are listed or follow each other; nothing where neither is
    told."""
    ranks = parse_listed(comms.ranks)
    if ranks and (not comms.size or len(ranks) == comms.size):
        return ranks
    start, stride = _parse_rank(comms.start), _parse_rank(comms.stride)
    if comms.size and start >= 0 < stride and start + (comms.size - 1) * stride < MOST_RANKS:
        return tuple(start + index * stride for index in range(comms.size))
    return ()


def _parse_rank(value: Any, most: int = MOST_RANKS) -> int:
    """A number that may be told as one or as text; -1 where it is none."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value):
        value = int(value)
    return value if is_number(value) and 0 <= value < most else -1


def _event_interval(event: _Event) -> Interval | None:
    """The begin and the end of an event, in ns; None where that is not told."""
    try:
        begins, took = (parse_microseconds(float(time)) for time in (event.ts, event.dur))
    except ValueError:
        return None
    if begins < 0 or took < 0 or begins + took >= MOST >> 1:
        return None
    return begins, begins + took


def _short_name(name: str) -> str:
    """A kernel's name without its arguments."""
    return re.split(r"[(<]", name.removeprefix("void "))[0][:60]


def _union_kernels(kernels: Iterable[Kernel]) -> list[Interval]:
    """The intervals in which one of these kernels or more was under way, in the order of time."""
    spans: list[Interval] = []
    for begins, ends, _ in sorted(kernels):
        if spans and begins <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], ends))
        elif ends > begins:
            spans.append((begins, ends))
    return spans
