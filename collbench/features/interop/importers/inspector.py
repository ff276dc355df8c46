"""What NCCL's Inspector writes (plugins/profiler/inspector of NCCL and RCCL): a line of JSON for
every call that an application made, by each process of its own calls.

It names neither datatype, reduction, root nor placement, so that bytes are shown as int8, and of
what NCCL ran only the channels, where it is told to be verbose. Calls of one communicator,
collective and size are one record, each of them a sample: of a file that holds all ranks' lines
the slowest rank's time, else the mean of those that there are.
"""

from __future__ import annotations

import statistics
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from collbench.core.collectives import COLLECTIVES
from collbench.core.text import format_count
from collbench.features.interop.importers import MOST_NS, Line, Reading, Table
from collbench.features.interop.importers.text import refuse_too_many_values
from collbench.records.types import Choice, ToolTime
from collbench.suite.case import Whole

# The Inspector's names, and whether its size is a rank's block. It knows no bandwidth of All2All,
# of whose size nothing is said, nor what another SendRecv sends.
NAMES = {
    "AllReduce": ("all_reduce", False),
    "AllGather": ("all_gather", True),
    "ReduceScatter": ("reduce_scatter", True),
    "Broadcast": ("broadcast", False),
    "Reduce": ("reduce", False),
}

MARK = "inspector_output_format_version"  # in every line

UNTOLD = "datatype, reduction, root and placement are not in it"

LONGEST = 1 << 16  # bytes of a line: with events of all channels some 12 KiB

MOST_US = int(MOST_NS / 1e3)


class _Header(msgspec.Struct):
    id: str
    rank: Whole
    n_ranks: Whole
    comm_name: str = ""


class _Metadata(msgspec.Struct):
    inspector_output_format_version: str = ""
    dump_timestamp_us: Whole = 0


class _Trace(msgspec.Struct):
    """What NCCL_INSPECTOR_DUMP_VERBOSE=1 adds: an event for each channel."""

    kernel_events: list[Any] = []


class _Call(msgspec.Struct):
    coll: str
    coll_sn: Whole
    coll_msg_size_bytes: Whole
    coll_exec_time_us: Whole
    coll_timing_source: str = ""
    event_trace_sn: _Trace | None = None


class _Entry(msgspec.Struct):
    header: _Header
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    coll_perf: _Call | None = None
    p2p_perf: Any = None


class _Kind(NamedTuple):
    """What calls of one record have in common."""

    communicator: str
    name: str
    n: int
    coll: str
    nbytes: int
    clock: str


class _Calls(NamedTuple):
    """The calls of one kind: the first line, microseconds by call and rank, and the numbers of
    channels that any rank told."""

    where: str
    times: dict[int, dict[int, int]]
    channels: set[int]


def read_log(text: str, reading: Reading) -> None:
    """Tells ``reading`` all calls in ``text``. Raises UsageError where they are too many."""
    by_kind: dict[_Kind, _Calls] = {}
    stamps: list[int] = []
    if MARK not in text:
        return
    for at, line in enumerate(refuse_too_many_values(text, reading.request.name).split("\n"), 1):
        where = reading.locate_line(at)
        try:
            entry = _read_entry(line) if line.strip() else None
        except (ValueError, RecursionError) as e:  # no JSON, or of another kind
            reading.lost.append((where, str(e)))
            continue
        if entry is None:
            continue
        about, call = entry.metadata, entry.coll_perf
        reading.tool = f"NCCL Inspector {about.inspector_output_format_version[:20]}".strip()
        stamps.append(about.dump_timestamp_us)
        if call is None or call.coll not in NAMES:
            reading.omitted[_why_foreign(call, entry.p2p_perf)] += 1
        else:
            _take_call(reading, by_kind, where, entry.header, call)
    reading.started, reading.ended = (_format_iso(pick(stamps, default=0)) for pick in (min, max))
    for kind, calls in by_kind.items():
        _add_calls(reading, kind, calls)


def _read_entry(line: str) -> _Entry:
    """Raises ValueError where the line is none, or contradicts itself."""
    if len(line) > LONGEST:
        raise ValueError(f"longer than {LONGEST >> 10} KiB")
    entry = msgspec.json.decode(line, type=_Entry)
    if entry.header.rank >= entry.header.n_ranks:
        raise ValueError(f"rank {entry.header.rank} of {entry.header.n_ranks}")
    if entry.coll_perf and not 0 < entry.coll_perf.coll_exec_time_us < MOST_US:
        raise ValueError(f"a time of {entry.coll_perf.coll_exec_time_us} us")
    return entry


def _why_foreign(call: _Call | None, message: Any) -> str:
    if call:
        return f"the Inspector's {call.coll[:20]} says too little to be a case of collbench"
    return "messages between two ranks" if message else "neither a call nor a message"


def _take_call(
    reading: Reading, by_kind: dict[_Kind, _Calls], where: str, head: _Header, call: _Call
) -> None:
    """Note the times of one call under its kind."""
    kind = _Kind(
        head.id[:40],
        head.comm_name[:40],
        head.n_ranks,
        call.coll,
        call.coll_msg_size_bytes,
        call.coll_timing_source[:20],
    )
    calls = by_kind.setdefault(kind, _Calls(where, {}, set()))
    calls.channels.add(len(call.event_trace_sn.kernel_events) if call.event_trace_sn else 0)
    times = calls.times.setdefault(call.coll_sn, {})
    if head.rank in times:
        reading.lost.append((where, f"call {call.coll_sn} of rank {head.rank} once more"))
    times.setdefault(head.rank, call.coll_exec_time_us)


def _add_calls(reading: Reading, kind: _Kind, calls: _Calls) -> None:
    """Add a record of all calls of a kind: a call takes as long as on its slowest rank or, where
    ranks are missing, the mean of those there are."""
    name, block = NAMES[kind.coll]
    n = reading.ranks(kind.n)
    rank_set = {rank for ranks in calls.times.values() for rank in ranks}
    is_complete = n == kind.n and all(len(ranks) == n for ranks in calls.times.values())
    pick = max if is_complete else statistics.fmean
    times = [round(1e3 * pick(ranks.values())) for _, ranks in sorted(calls.times.items())]
    note = [
        f"communicator {' '.join(filter(None, (kind.communicator, kind.name)))}: {UNTOLD}",
        "" if is_complete else f"of {format_count(len(rank_set), 'rank')} of {n}",
        f"timed by {kind.clock}" * bool(kind.clock),
        _format_channels(calls.channels),
    ]
    is_uniform = len(calls.channels) == 1 and max(calls.channels)
    # as the application called it: not aligned, one call at a time
    facts = (
        ("communicator", " ".join(filter(None, (kind.communicator, kind.name)))),
        ("clock", kind.clock),
    )
    table = Table(collective=name, n=n, mode="host", facts=facts)
    line = Line(
        where=calls.where,
        size=kind.nbytes * (n if block else 1),
        dtype="int8",
        op="sum" if COLLECTIVES[name].reduces else "none",
        tool_time=ToolTime(
            time=statistics.median(times),
            over="median",
            ranks="slowest" if is_complete else "mean",
            samples=len(times),
        ),
        times_ns=times,
        note="; ".join(filter(None, note)),
        chose=Choice(channels=max(calls.channels)) if is_uniform else None,
    )
    reading.add(table, line)


def _format_channels(channels: set[int]) -> str:
    """A number of channels, or those that calls or ranks differ in; 0 is of lines without them."""
    least, most = min(channels - {0}, default=0), max(channels)
    phrase = format_count(most, "channel") if least == most else f"{least} to {most} channels"
    return f"on {phrase}" if most else ""


def _format_iso(microseconds: int) -> str:
    """The time of a stamp in ISO form; "" where it is none."""
    try:
        stamp = datetime.fromtimestamp(microseconds / 1e6, UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return stamp.isoformat(timespec="milliseconds") if microseconds else ""
