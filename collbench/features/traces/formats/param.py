"""PARAM's communication traces: a list of calls a rank, as its replay tool takes them (JSON).

Sizes are elements that a call takes in and gives out, peers and roots ranks of the job.
Format: facebookresearch/param, train/comms/pt/commsTraceParser.py, "basic".
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from collbench.core.errors import UsageError
from collbench.features.traces.formats.bounded import HINT, CutError, Json, Stream
from collbench.features.traces.formats.call_names import MOST, UNREADABLE, Calls, Said, kind_of
from collbench.features.traces.types import Call, RankTrace
from collbench.features.training.step import MOST_RANKS, WORLD

Elements = Annotated[int, Meta(ge=0, lt=MOST)] | None
Rank = Annotated[int, Meta(ge=-1, lt=MOST_RANKS)] | None
Size = Annotated[int, Meta(ge=0, lt=1 << 24)] | None
Ranks = list[Annotated[int, Meta(ge=0, lt=MOST_RANKS)]] | None


class _Entry(msgspec.Struct):
    comms: str | None = None
    compute: str | None = None
    req: Any = None
    startTime_ns: Annotated[float, Meta(ge=0, lt=MOST)] | None = None  # noqa: N815 - the file's
    world_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] | None = None
    root: Rank = None
    pg_id: Any = None
    pg_desc: str | None = None
    global_ranks: Ranks = None
    in_msg_size: Elements = None
    out_msg_size: Elements = None
    dtype: str | None = None
    in_split: list[Annotated[int, Meta(ge=0, lt=MOST)]] | None = None
    out_split: list[Annotated[int, Meta(ge=0, lt=MOST)]] | None = None
    src_rank: Rank = None
    dst_rank: Rank = None
    markers: list[Any] | None = None
    count: Annotated[int, Meta(ge=0, lt=1 << 24)] | None = None
    mm_dim: Size = None
    mm0_dim0: Size = None
    mm0_dim1: Size = None
    mm1_dim1: Size = None


def read_rank(stream: Stream) -> tuple[RankTrace, tuple[str, ...]]:
    """The calls by a rank's file, and what is taken for granted. Raises UsageError."""
    source, parsed = Json(stream), _Found(stream)
    cut = ""
    try:
        for number, (_, at, raw) in enumerate(source):
            try:
                entry = source.decode(raw, _Entry, "a call")
            except UsageError as e:
                why = e.message.partition(": a call: ")[2]
                parsed.calls.lose(f"{UNREADABLE}: {why}", f"byte {at}")
                continue
            if entry.comms is None and entry.compute is None:
                raise stream.refused(at, "it is neither comms nor compute")
            parsed.take(entry, f"entry {number}")
    except CutError as e:
        if parsed.calls.empty:
            raise
        cut = f"byte {e.at:,}"
    if parsed.calls.empty:
        raise UsageError(f"{stream.path}: it has no calls", HINT)
    calls = parsed.calls
    if parsed.world_name in calls.groups:
        calls.name_world(parsed.world_name)
        calls.entries = [
            msgspec.structs.replace(call, group=WORLD) if call.group == parsed.world_name else call
            for call in calls.entries
        ]
    trace = calls.trace(stream.rank, parsed.world)
    return msgspec.structs.replace(trace, cut=cut), tuple(calls.assumptions)


class _Found:
    """What has been found in a file. ``whole`` is the name of the first group of all ranks."""

    def __init__(self, stream: Stream) -> None:
        self.calls = Calls(stream.path)
        self.world = 0
        self.world_name = ""
        self._open: dict[str, int] = {}

    def take(self, entry: _Entry, at: str) -> None:
        """Add the call, wait or computation of one entry, or note that it is lost."""
        phase = str(entry.markers[-1]).strip("# ")[:40] if entry.markers else ""
        if entry.comms is None:
            return self._compute(entry, at, phase)
        kind, group = kind_of(entry.comms), self._group(entry)
        key = f"{group} {entry.req}"[:100]
        if entry.comms.lower() == "wait":
            if (call := self._open.pop(key, None)) is not None:
                self.calls.append(Call("wait", after=(call,), phase=phase, source=at))
            return None
        if entry.comms.lower() == "init":
            return None
        members = self.calls.groups.get(group) or range(entry.world_size or 0)
        peer = entry.dst_rank if kind == "send" else entry.src_rank
        named_call = Said(
            entry.comms,
            entry.dtype or "byte",
            entry.in_msg_size or 0,
            entry.out_msg_size or 0,
            at,
            group,
            len(members),
            tuple(entry.in_split or ()),
            tuple(entry.out_split or ()),
            root=_member_place(entry.root, members),
            peer=_member_place(peer, members),
        )
        issued = -1 if entry.startTime_ns is None else round(entry.startTime_ns)
        call = self.calls.add(named_call, phase=phase, issued_ns=issued)
        if call >= 0:
            self._open[key] = call
        return None

    def _group(self, entry: _Entry) -> str:
        """The name of the call's group, whose ranks are kept."""
        name = "" if entry.pg_id is None else str(entry.pg_id)[:200]
        ranks = tuple(entry.global_ranks or ())
        if ranks and name not in self.calls.groups:
            self.calls.group(name, ranks, entry.pg_desc or "")
        size = entry.world_size or len(ranks)
        if size > self.world:
            self.world, self.world_name = size, name
        return name

    def _compute(self, entry: _Entry, at: str, phase: str) -> None:
        """A product of matrices; of other computation nothing is known here."""
        rows, inner, columns = (
            entry.mm_dim if entry.mm_dim is not None else size
            for size in (entry.mm0_dim0, entry.mm0_dim1, entry.mm1_dim1)
        )
        if rows is None or inner is None or columns is None:
            self.calls.lose(f"computation '{entry.compute}' is unknown", at)
            return
        times = 1 if entry.count is None else entry.count
        flops = 2.0 * rows * inner * columns * times
        self.calls.append(Call("compute", flops=flops, phase=phase, source=at))


def _member_place(rank: int | None, members: tuple[int, ...] | range) -> int:
    """The place of a rank in its group; -1 where it is in none."""
    return members.index(rank) if rank is not None and rank in members else -1
