"""Chakra's execution traces written, for simulators: NAME.RANK.et a rank, and the groups in
comm_group.json, by numbers.

A program becomes what each of its operations needs: computation and calls that are waited for hold
up what comes after them, others only who waits for them, and calls of one group come in order.
A sendrecv becomes a send and a receive. Computation that does not tell which bytes it touches
touches those of a product of square matrices with its flops: without any, ASTRA-sim skips it. What
the schema has no place for stands in attributes of our own (``dtype``, ``reduction``, ``root`` and
so on), which simulators pass over.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from collbench.core import files
from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES
from collbench.core.errors import CannotRun
from collbench.core.text import format_count
from collbench.features.traces.formats import protobuf as pb
from collbench.features.traces.formats.chakra import (
    BLOCKS,
    COLLECTIVE,
    COMPUTE,
    GROUPS,
    MARK,
    RECV,
    SEND,
    TYPES,
)
from collbench.features.traces.types import Call, RankTrace
from collbench.features.training.step import LOCAL, POINT_TO_POINT, WORLD

VERSION = "0.0.4"  # of the schema, as Chakra's own generator writes it
BOOL, INT32, INT64, UINT64, INT64_LIST, STRING = 27, 7, 9, 13, 10, 29  # in AttributeProto
Attribute = tuple[str, int, int | str | Sequence[int]]
WRITTEN = (*TYPES, *POINT_TO_POINT, *LOCAL, "sendrecv")  # kinds of calls


def write_ranks(folder: Path, name: str, ranks: Sequence[RankTrace]) -> str:
    """Writes all ranks' files into a folder: what there is to say of it. Raises UsageError and
    CannotRun."""
    unknown = {call.kind: None for rank in ranks for call in rank.calls if call.kind not in WRITTEN}
    if unknown:
        raise CannotRun(
            f"Chakra's traces have no type for {', '.join(unknown)}",
            "take a step without it, or another --format",
        )
    numbers = _number_groups(ranks)
    files.make_folder(folder)
    groups = {number: list(members) for members, number in numbers.items()}
    files.save_text(folder / GROUPS, json.dumps(groups) + "\n", "", "--output")  # others' are kept
    for rank in ranks:
        _save_bytes(folder / f"{name}.{rank.rank}.et", b"".join(_write_messages(rank, numbers)))
    number = format_count(len(ranks), "file")
    return f"wrote {number} {folder / name}.RANK.et, and groups in {GROUPS}"


def _save_bytes(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all. Raises UsageError and CannotRun."""
    files.refuse_foreign_file(path, MARK, "--output")
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError as e:
        draft.unlink(missing_ok=True)
        raise CannotRun(f"cannot write {path}: {e.strerror}", "choose another place") from e


def _number_groups(ranks: Sequence[RankTrace]) -> dict[tuple[int, ...], str]:
    """The groups that calls are of, but that of all, by their members: numbered from 1, as
    simulators read them as numbers."""
    used = {
        rank.groups[call.group]: None
        for rank in ranks
        for call in rank.calls
        if call.group != WORLD
    }
    return {members: str(number) for number, members in enumerate(used, 1)}


def _write_messages(rank: RankTrace, numbers: Mapping[tuple[int, ...], str]) -> Iterator[bytes]:
    """The messages of a rank's file."""
    head = pb.write_field(1, VERSION)
    about: tuple[Attribute, ...] = (
        ("written_by", STRING, MARK),
        ("world_size", INT64, rank.world),
    )
    for attribute in about:
        head += pb.write_field(2, b"".join(_write_attribute(attribute)))
    yield pb.delimit_message(head)
    ids: list[list[int]] = []  # of each call's nodes
    number = 0
    for call, needs in zip(rank.calls, list_dependencies(rank.calls), strict=True):
        nodes = [] if needs is None else _split_call(call, rank)
        ids.append([])
        for node in nodes:
            number += 1
            ids[-1].append(number)
            waits_for = [earlier for need in needs or () for earlier in ids[need]]
            yield _write_node(number, node, waits_for, rank, numbers)


def _split_call(call: Call, rank: RankTrace) -> list[Call]:
    """The nodes of a call: a sendrecv sends to the next member and receives from the one before."""
    if call.kind != "sendrecv":
        return [call]
    members = _list_members(call, rank)
    index = members.index(rank.rank)
    return [
        replace(call, kind=kind, peer=(index + step) % len(members))
        for kind, step in (("send", 1), ("recv", -1))
    ]


def _list_members(call: Call, rank: RankTrace) -> Sequence[int]:
    """The ranks of a call's group."""
    return rank.groups.get(call.group) or range(rank.world)


def _write_node(
    number: int,
    call: Call,
    needs: Sequence[int],
    rank: RankTrace,
    numbers: Mapping[tuple[int, ...], str],
) -> bytes:
    """The message of a node, which waits for the nodes ``needs``."""
    took = max(call.took_ns, 0)
    message = pb.write_field(1, number) + pb.write_field(2, _name_call(call))
    message += pb.write_field(3, _node_kind(call))
    message += pb.write_packed(5, needs)
    if took:
        message += pb.write_field(7, max(1, round(took / 1000)))
    for attribute in _list_attributes(call, rank, numbers, took):
        message += pb.write_field(10, b"".join(_write_attribute(attribute)))
    return pb.delimit_message(message)


def list_dependencies(calls: Sequence[Call]) -> Iterator[list[int] | None]:
    """The calls, by their places, that each must wait for; None for what is no work, as a wait."""
    frontier: set[int] = set()  # what the program has waited for
    last: dict[tuple[str, bool], int] = {}  # by group, and whether it is a message
    open_calls: set[int] = set()
    real: dict[int, set[int]] = {}  # what stands for a call: itself, or what a wait is for
    for index, call in enumerate(calls):
        after = {earlier for before in call.after for earlier in real[before]}
        if call.kind == "mark":  # nothing that takes time
            real[index] = after
            yield None
            continue
        if call.kind == "wait":
            waited = after if call.after else open_calls
            frontier = frontier | waited
            open_calls = open_calls - waited
            real[index] = set(waited)
            yield None
            continue
        real[index] = {index}
        needs = frontier | after
        if call.kind not in ("compute", *POINT_TO_POINT):
            lane = (call.group, False)
            needs |= {last[lane]} if lane in last else set()
            last[lane] = index
        yield sorted(needs)
        if call.kind == "compute" or call.waits:
            frontier = {index}
        open_calls.add(index)


def _name_call(call: Call) -> str:
    return " ".join(filter(None, (call.kind, call.phase, call.source)))[:200]


def _node_kind(call: Call) -> int:
    return {"compute": COMPUTE, "send": SEND, "recv": RECV}.get(call.kind, COLLECTIVE)


def _list_attributes(
    call: Call, rank: RankTrace, numbers: Mapping[tuple[int, ...], str], took: int
) -> Iterator[Attribute]:
    """The attributes of a call's node: name, type and value of each; ``took`` is its time in ns."""
    yield "is_cpu_op", BOOL, 0
    if call.phase:
        yield "phase", STRING, call.phase
    if call.kind == "compute":
        touched = call.touched or _count_operand_bytes(call)
        least = 1 if touched else 0  # ASTRA-sim divides by it
        yield "num_ops", INT64, max(round(call.flops), least)
        yield "tensor_size", UINT64, touched
        if took % 1000:
            yield "duration_ns", UINT64, took
        return
    members = tuple(_list_members(call, rank))
    size = call.nbytes // len(members) if call.kind in BLOCKS else call.nbytes
    if call.sends:
        size = sum(call.sends) * DTYPES[call.dtype].size
    yield "comm_size", INT64, size
    if call.group != WORLD:
        yield "pg_name", STRING, numbers[members]
        yield "pg_desc", STRING, call.group
    yield "dtype", STRING, call.dtype
    if call.kind in POINT_TO_POINT:
        peer = members[call.peer]
        src, dst = (rank.rank, peer) if call.kind == "send" else (peer, rank.rank)
        yield "comm_src", INT32, src
        yield "comm_dst", INT32, dst
        yield "comm_tag", INT32, call.tag
        return
    yield "comm_type", INT64, TYPES[call.kind]
    row = COLLECTIVES[call.kind]
    if row.rooted:
        yield "root", INT32, members[call.root]
    if row.reduces:
        yield "reduction", STRING, call.op
    if row.uneven:
        yield "whole_size", INT64, call.nbytes
        yield "sends", INT64_LIST, call.sends
        yield "receives", INT64_LIST, call.receives


def _count_operand_bytes(call: Call) -> int:
    """Bytes of the three square matrices of a product with a call's flops."""
    side = math.cbrt(call.flops / 2)
    return math.ceil(3 * side**2) * DTYPES[call.dtype].size


def _write_attribute(attribute: Attribute) -> Iterator[bytes]:
    """An AttributeProto's fields."""
    name, field_number, value = attribute
    yield pb.write_field(1, name)
    single = pb.write_packed(1, value) if isinstance(value, list | tuple) else value
    yield pb.write_field(field_number, single)  # type: ignore[arg-type]
