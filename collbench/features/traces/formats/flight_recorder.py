"""PyTorch's flight recorder: what ranks of a job last called, which is written when it hangs, as a
pickle or as JSON, a file a rank.

It has sizes, groups and how far each call came; not roots, reductions, nor, before version 2.11,
the blocks of an uneven exchange. It keeps a number of calls (TORCH_NCCL_TRACE_BUFFER_SIZE, from
torch 2.9 on also TORCH_FR_BUFFER_SIZE) and loses those before. Only events that are timed
(TORCH_NCCL_ENABLE_TIMING) tell how long a call took, and not when: a watchdog discovers ends up to
100 ms later, of many calls at once. Format: torch/csrc/distributed/c10d/FlightRecorder.hpp, version
2.10.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from collbench.core.errors import UsageError, first_line
from collbench.features.traces.formats import pickle_values as pickled
from collbench.features.traces.formats.bounded import HINT, Json, Stream
from collbench.features.traces.formats.call_names import UNREADABLE, Calls, Said, parse_listed
from collbench.features.traces.types import OVERFLOWED, SKIPPED, Call, Known, RankTrace
from collbench.features.training.step import POINT_TO_POINT, WORLD

Stamp = Annotated[int, Meta(ge=0, lt=1 << 62)] | None
Sizes = Annotated[
    list[Annotated[list[Annotated[int, Meta(ge=0, lt=1 << 48)]], Meta(max_length=64)]],
    Meta(max_length=1 << 16),
]
Splits = Annotated[list[Annotated[int, Meta(ge=0, lt=1 << 48)]], Meta(max_length=1 << 16)]
Reached = int | Annotated[str, Meta(pattern=r"^-?\d{1,18}$")]
NO_TYPES = "this form of dumps has no datatypes: an element is taken for a byte"
Words = Annotated[list[str], Meta(max_length=1 << 16)]
DEFAULT = "default_pg"
MOST = 1_000_000  # entries and tensors of them


class Entry(msgspec.Struct):
    """A call, as far as it is read."""

    profiling_name: str
    process_group: tuple[str, str] = ("", "")
    record_id: Known = -1
    collective_seq_id: Known = -1
    p2p_seq_id: Known = -1
    is_p2p: bool = False
    input_sizes: Sizes = []
    output_sizes: Sizes = []
    input_dtypes: Words = []
    output_dtypes: Words = []
    state: str = ""
    time_created_ns: Stamp = None
    duration_ms: Annotated[float, Meta(ge=0, lt=1e12)] | None = None
    input_split_sizes: Splits = []
    output_split_sizes: Splits = []
    pg_id: Known = -1
    seq_id: Known = -1  # of torch 2.2, which has no collective_seq_id


class _Status(msgspec.Struct):
    """How far a rank came on a group, by the numbers of its collectives."""

    last_enqueued_collective: Reached | None = None
    last_started_collective: Reached = -1
    last_completed_collective: Reached = -1


class _Dump(NamedTuple):
    """What a file has: groups by name, entries, and how far the rank came by the number of a group
    in its process."""

    groups: dict[str, _Group]
    entries: list[Entry]
    reached: dict[str, _Status]


class _Group(msgspec.Struct):
    ranks: str = ""
    desc: str = ""


def read_rank(stream: Stream, packed: bool, limit: int) -> tuple[RankTrace, tuple[str, ...]]:
    """The last ``limit`` calls by a rank's file, a pickle where it is ``packed``, and what is taken
    for granted. Raises UsageError."""
    calls = Calls(stream.path)
    groups, entries, reached = _read_pickle(stream, calls) if packed else _read_json(stream, calls)
    for name, group in groups.items():
        if ranks := parse_listed(group.ranks):
            calls.group(name, ranks, group.desc)
    descriptions = [(name, group.desc) for name, group in groups.items()]
    descriptions += [entry.process_group for entry in entries]
    world = next((name for name, desc in descriptions if desc == DEFAULT), WORLD)
    if world in calls.groups:
        calls.name_world(world)
    entries.sort(key=lambda entry: entry.record_id)
    reached_by_name = _by_group(groups, entries, reached)
    overwritten = max(0, entries[0].record_id) if entries else 0
    if overwritten:
        calls.lose(OVERFLOWED, calls=overwritten)
    if skipped := max(0, len(entries) - limit):
        calls.lose(SKIPPED, calls=skipped)
        calls.assumptions[f"of each dump the last {limit:,} calls are read"] = None
    entries = entries[skipped:]
    for entry in entries:
        _take_entry(
            calls, entry, WORLD if entry.process_group[0] == world else entry.process_group[0]
        )
    backend = entries[0].profiling_name.partition(":")[0][:20] if entries else ""
    trace = calls.trace(stream.rank, backend=backend)
    by_name = {WORLD if name == world else name: status for name, status in reached_by_name.items()}
    only_active = not entries or (
        overwritten + skipped > 0 and all(entry.state != "completed" for entry in entries)
    )
    trace = msgspec.structs.replace(trace, reached=by_name, only_active=only_active)
    return trace, tuple(calls.assumptions)


def _by_group(
    groups: Mapping[str, _Group], entries: Sequence[Entry], reached: Mapping[str, _Status]
) -> dict[str, tuple[int, int, int]]:
    """How far the rank came, by the name of a group: entries tell the number that a group has in
    the process, or the order of both does."""
    names = {str(entry.pg_id): entry.process_group[0] for entry in entries}
    numbers = [group_name for group_name in reached if group_name.isdecimal()]
    if len(numbers) == len(groups) and all(name.isdecimal() for name in groups):
        in_order = zip(sorted(numbers, key=int), sorted(groups, key=int), strict=True)
        names = dict(in_order) | names
    elif len(numbers) == len(groups) == 1:
        names = {numbers[0]: next(iter(groups))} | names
    numbers_by_group = {
        names[number]: tuple(
            max(-1, int(-1 if value is None else value))
            for value in (
                status.last_enqueued_collective,
                status.last_started_collective,
                status.last_completed_collective,
            )
        )
        for number, status in reached.items()
        if number in names and status.last_enqueued_collective is not None
    }
    return {name: (counts[0], counts[1], counts[2]) for name, counts in numbers_by_group.items()}


def _read_pickle(stream: Stream, calls: Calls) -> _Dump:
    content: Any = pickled.read_value(stream)
    if isinstance(content, list):
        content = {"entries": [_of_torch_2_2(entry) for entry in content]}
        calls.assumptions[NO_TYPES] = None
    if not isinstance(content, dict):
        raise UsageError(f"{stream.path}: it is not a dump of the flight recorder", HINT)
    entries = content.get("entries", [])
    groups = _convert_value(stream, content.get("pg_config", {}), dict[str, _Group], "pg_config")
    if not isinstance(entries, list | tuple):
        raise UsageError(f"{stream.path}: its 'entries' are not a list", HINT)
    try:
        reached = msgspec.convert(content.get("pg_status", {}), dict[str, _Status])
    except (msgspec.ValidationError, RecursionError) as e:
        calls.lose(f"pg_status: {first_line(e)}", calls=0)
        reached = {}
    return _Dump(groups, [*_convert_entries(stream, calls, entries)], reached)


def _of_torch_2_2(entry: Any) -> Any:
    """An entry of the list that torch 2.2 wrote, which names no groups, with those of today."""
    if not isinstance(entry, dict):
        return entry
    number = entry.get("pg_id", 0)
    group = (str(number), DEFAULT if number == 0 else "")
    sequence = entry.get("seq_id", -1)
    return {"process_group": group, "collective_seq_id": sequence, **entry}


def _convert_entries(
    stream: Stream, calls: Calls, entries: list[Any] | tuple[Any, ...]
) -> Iterator[Entry]:
    """The entries of a dump in order; an entry with a value that cannot be read is noted as lost.
    Raises UsageError where entries and tensors are too many; a list that several entries share
    counts each time."""
    budget = MOST
    for number, entry in enumerate(entries):
        if isinstance(entry, dict):
            lists = (entry.get(f"{way}_{what}") for way in ("input", "output") for what in KEYS)
            budget -= 1 + sum(len(shapes) for shapes in lists if isinstance(shapes, list | tuple))
        if budget < 0:
            raise UsageError(
                f"{stream.path}: its entries and their tensors are too many, above {MOST:,}", HINT
            )
        try:
            yield msgspec.convert(entry, Entry)
        except (msgspec.ValidationError, RecursionError) as e:
            calls.lose(f"{UNREADABLE}: {first_line(e)}", f"entry {number}")


KEYS = ("sizes", "dtypes")


def _convert_value(stream: Stream, value: Any, kind: Any, what: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as e:
        raise UsageError(f"{stream.path}: {what}: {first_line(e)}", HINT) from e


def _read_json(stream: Stream, calls: Calls) -> _Dump:
    source = Json(stream, "entries")
    entries: list[Entry] = []
    for number, (_, at, raw) in enumerate(source):
        if number >= MOST:
            raise stream.refused(at, f"more than {MOST:,} entries")
        try:
            entries.append(source.decode(raw, Entry, "an entry"))
        except UsageError as e:
            calls.lose(f"{UNREADABLE}: {e.message.partition(': an entry: ')[2]}", f"byte {at}")
    try:
        reached = source.decoded("pg_status", dict[str, _Status], {})
    except UsageError as e:
        calls.lose(e.message.partition(": ")[2], calls=0)
        reached = {}
    return _Dump(source.decoded("pg_config", dict[str, _Group], {}), entries, reached)


PEERS = re.compile(r"(\w+) (\d{1,7})(?:->|<-)(\d{1,7})")


def _take_entry(calls: Calls, entry: Entry, group: str) -> None:
    """Add the call of one entry. The entry of a coalesced call gives its times and state to the
    calls in it, which have entries of their own."""
    name = entry.profiling_name.partition(":")[2] or entry.profiling_name
    at = f"record {entry.record_id}"
    fields: dict[str, Any] = {
        "number": entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id,
        "state": entry.state if entry.state in ("scheduled", "started", "completed") else "",
    } | _entry_times(entry)
    if name.startswith("coalesced"):
        return _spread_members(calls.entries, group, fields, entry)
    peers = PEERS.fullmatch(name)
    dtypes = {*entry.input_dtypes, *entry.output_dtypes}
    is_message = entry.is_p2p or peers is not None
    if len(dtypes) > 1:
        calls.lose("several datatypes in one call", at)
        return calls.locate_lost(group, entry.collective_seq_id, is_message)
    given, got = (
        sum(map(_multiply_shape, sizes)) for sizes in (entry.input_sizes, entry.output_sizes)
    )
    named_call = Said(
        peers[1] if peers else name,
        next(iter(dtypes), "byte"),
        given,
        got,
        at,
        group,
        sends=tuple(entry.input_split_sizes),
        receives=tuple(entry.output_split_sizes),
        peer=int(peers[3]) if peers else -1,
    )
    given_fields = {key: value for key, value in fields.items() if value not in ("", None)}
    if calls.add(named_call, **given_fields) < 0:
        calls.locate_lost(group, entry.collective_seq_id, is_message)
    return None


def _multiply_shape(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total = min(total * size, 1 << 62)
    return total


def _entry_times(entry: Entry) -> dict[str, int]:
    """When it was issued and how long it took, as far as the entry tells."""
    created, took_ms = entry.time_created_ns, entry.duration_ms
    times = {} if created is None else {"issued_ns": created}
    return times | ({} if took_ms is None else {"length_ns": round(took_ms * 1e6)})


def _spread_members(calls: list[Call], group: str, fields: dict[str, Any], entry: Entry) -> None:
    """Gives the members of a coalesced call, which are the last of the group's with its number, its
    state and length. Messages have numbers of their own, but in old dumps."""
    shared_fields = {k: v for k, v in fields.items() if k not in ("number", "issued_ns") and v}
    for index in range(len(calls) - 1, -1, -1):
        call = calls[index]
        if call.group != group:
            continue
        is_other = entry.p2p_seq_id >= 0 and entry.is_p2p != (call.kind in POINT_TO_POINT)
        if is_other or call.number != fields["number"] or call.took_ns >= 0:
            return
        calls[index] = msgspec.structs.replace(call, **shared_fields)
