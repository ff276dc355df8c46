"""Chakra's execution traces (MLCommons), as simulators take them: a file of protocol buffers a
rank, NAME.RANK.et, and comm_group.json beside them for all.

They tell bytes, no datatypes and, but for what ``write`` adds, neither reductions nor roots; those
that were converted from PyTorch's have messages without peers. Nodes that stand for operators of
the CPU are left out. The schema is that of mlcommons/chakra, schema/protobuf/et_def.proto.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS
from collbench.core.errors import UsageError, first_line
from collbench.features.traces.formats import protobuf as pb
from collbench.features.traces.formats.bounded import HINT, Stream
from collbench.features.traces.formats.call_names import MOST, SUMS, UNREADABLE, Calls, is_number
from collbench.features.traces.types import Call, RankTrace
from collbench.features.training.step import MOST_RANKS, POINT_TO_POINT, WORLD

GROUPS = "comm_group.json"
MARK = "collbench"  # in the metadata of files that ``write`` made
METADATA, COMPUTE, SEND, RECV, COLLECTIVE = 1, 4, 5, 6, 7  # NodeType
COLLECTIVES_BY_TYPE = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",  # in blocks
    "barrier",
)
TYPES = {name: COLLECTIVES_BY_TYPE.index(name) for name in COLLECTIVES_BY_TYPE} | {"all_to_allv": 6}
BLOCKS = ("all_gather", "gather")  # whose input is one rank's part
UNTYPED = "Chakra tells bytes, not datatypes: uint8 is moved where none is told"
LAID = "nodes have no start times: computation is laid end to end"
Rank = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]


class Node(NamedTuple):
    """A node, as far as it is read; ``attributes`` by name."""

    id: int
    name: str
    kind: int
    needs: tuple[int, ...]
    begins_us: int
    took_us: int
    values: str
    attributes: dict[str, Any]


def read_rank(stream: Stream) -> tuple[RankTrace, tuple[str, ...]]:
    """The calls by a rank's file, and what is taken for granted. Raises UsageError."""
    parsed = _Found(stream.path)
    for number, (at, message) in enumerate(pb.read_messages(stream)):
        try:
            if not number:
                parsed.about(message)
                continue
            node = _read_node(message)
        except (pb.Broken, UnicodeDecodeError, struct.error) as e:
            if not number:
                raise stream.refused(at, f"its metadata: {first_line(e)}") from e
            parsed.calls.lose(f"{UNREADABLE}: {first_line(e)}", f"byte {at}")
            continue
        parsed.take(node)
    calls = parsed.calls
    if calls.empty:
        raise UsageError(f"{stream.path}: nothing in it communicates", HINT)
    marked = [(0, len(calls.entries))] if parsed.is_ours else []
    return calls.trace(stream.rank, parsed.world, marked=marked), tuple(calls.assumptions)


def _read_node(message: bytes) -> Node:
    """A node of its bytes. Raises Broken, and UnicodeDecodeError."""
    numbers = dict.fromkeys((1, 3, 6, 7), 0)
    needs: list[int] = []
    name, values, raw = "", "", []
    for number, value in pb.read_fields(message):
        if number in numbers and isinstance(value, int):
            numbers[number] = value
        elif number in (4, 5):
            needs += pb.unpack_numbers(value)
        elif number == 2 and isinstance(value, bytes):
            name = value.decode()
        elif number == 8 and isinstance(value, bytes):
            values = next((v.decode() for n, v in pb.read_fields(value) if n == 1 and v), "")  # type: ignore[union-attr]
        elif number == 10 and isinstance(value, bytes):
            raw.append(value)
    attributes = dict(map(_read_attribute, raw)) if numbers[3] != 0 else {}
    return Node(
        numbers[1], name, numbers[3], tuple(needs), numbers[6], numbers[7], values, attributes
    )


def _read_attribute(message: bytes) -> tuple[str, Any]:
    """An attribute's name and value; lists of numbers as lists, what is of another type as None."""
    name = ""
    content: Any = None
    for number, value in pb.read_fields(message):
        if number == 1 and isinstance(value, bytes):
            name = value.decode()
        elif number in (7, 9, 11, 13) and isinstance(value, int):
            content = pb.sign_number(value) if number in (7, 9) else value
        elif number in (15, 17) and isinstance(value, int):
            content = value >> 1 ^ -(value & 1)
        elif number == 27 and isinstance(value, int):
            content = bool(value)
        elif number in (3, 5) and isinstance(value, bytes):
            content = struct.unpack("<d" if number == 3 else "<f", value)[0]
        elif number == 29 and isinstance(value, bytes):
            content = value.decode()
        elif number in (8, 10, 12, 14) and isinstance(value, bytes):
            content = [
                n for where, v in pb.read_fields(value) if where == 1 for n in pb.unpack_numbers(v)
            ]
    return name, content


class _Found:
    """What has been found in a file."""

    def __init__(self, path: Path) -> None:
        self.calls = Calls(path)
        self.world = 0
        self._clock = 0
        self.is_ours = False  # and so has one iteration
        self._places: dict[int, int] = {}
        for name, ranks in _read_groups(path).items():
            if name in ("", "0"):
                self.world = max(self.world, len(ranks))
                name = WORLD  # noqa: PLW2901
            self.calls.group(name, ranks)
        self._default = "0" if WORLD in self.calls.groups else WORLD

    def about(self, message: bytes) -> None:
        """The metadata before all nodes, in which ``write`` tells the world."""
        raw = [value for number, value in pb.read_fields(message) if number == 2]
        attributes = dict(_read_attribute(value) for value in raw if isinstance(value, bytes))
        self.world = max(self.world, _read_number(attributes, "world_size", MOST_RANKS, 0))
        self.is_ours = attributes.get("written_by") == MARK
        if self.world:
            self.calls.groups.setdefault(WORLD, tuple(range(self.world)))

    def take(self, node: Node) -> None:
        """A node, in the file's order."""
        attributes = node.attributes
        if node.kind == METADATA:
            if "process_group:init" in node.name:
                self._groups(node)
            return
        if attributes.get("is_cpu_op") is True or node.kind not in (
            COMPUTE,
            SEND,
            RECV,
            COLLECTIVE,
        ):
            return
        call = self._computation(node) if node.kind == COMPUTE else self._communication(node)
        if call is not None:
            needs = {self._places[need] for need in node.needs if need in self._places}
            after = tuple(sorted(need for need in needs if not self._is_in_order(need, call)))
            self._places[node.id] = self.calls.append(msgspec.structs.replace(call, after=after))

    def _is_in_order(self, earlier: int, call: Call) -> bool:
        """Whether both are collectives of one group, which come one after the other anyway."""
        before = self.calls.entries[earlier]
        return before.group == call.group and {before.kind, call.kind} <= COLLECTIVES.keys()

    def _computation(self, node: Node) -> Call | None:
        attributes = node.attributes
        flops = attributes.get("num_ops")
        flops = float(flops) if isinstance(flops, int | float) and 0 <= flops < MOST else 0.0
        took = _read_number(attributes, "duration_ns", MOST, node.took_us * 1000)
        if node.begins_us and node.begins_us * 1000 + took < MOST:
            begins = node.begins_us * 1000
        else:
            self.calls.assumptions[LAID] = None
            begins = self._clock
        if begins + took >= MOST:
            self.calls.lose("a time that cannot be", f"node {node.id}")
            return None
        self._clock = begins + took
        fields: dict[str, Any] = {}
        if took:
            fields = {"begins_ns": begins, "ends_ns": begins + took}
        phase = _read_word(attributes, "phase")
        return Call("compute", flops=flops, phase=phase, source=_name_node(node), **fields)

    def _communication(self, node: Node) -> Call | None:
        attributes, at = node.attributes, f"node {node.id}"
        size = _read_number(attributes, "comm_size", MOST, -1)
        kind = {SEND: "send", RECV: "recv"}.get(node.kind, "")
        if not kind:
            number = _read_number(attributes, "comm_type", len(COLLECTIVES_BY_TYPE), -1)
            kind = COLLECTIVES_BY_TYPE[number] if number >= 0 else ""
        if not kind or size < 0:
            what = "no size" if kind else f"no collective ({str(attributes.get('comm_type'))[:20]})"
            self.calls.lose(f"a node tells {what}", at, max(size, 0))
            return None
        name = _read_word(attributes, "pg_name", 200)
        group = WORLD if name == self._default else name
        members = self.calls.groups.get(group, ())
        if description := _read_word(attributes, "pg_desc", 200):
            self.calls.described[group] = description
        n = len(members) or (self.world if group == WORLD else 0)
        if kind in BLOCKS and not n:
            self.calls.lose(f"{kind} of a group whose members are not in the file", at, size)
            return None
        fields = self._sized(kind, size, n, attributes, at)
        if fields is None:
            return None
        if kind in POINT_TO_POINT:
            peer = _read_number(
                attributes, "comm_dst" if kind == "send" else "comm_src", MOST_RANKS, -1
            )
            fields["peer"] = members.index(peer) if peer in members else -1 if members else peer
            fields["tag"] = _read_number(attributes, "comm_tag", 1 << 31, 0)
        elif COLLECTIVES[kind].rooted:
            root = _read_number(attributes, "root", MOST_RANKS, -1)
            fields["root"] = members.index(root) if root in members else -1 if members else root
        begins = node.begins_us * 1000
        if begins and begins + node.took_us * 1000 < MOST:
            fields |= {"begins_ns": begins, "ends_ns": begins + node.took_us * 1000}
        return Call(
            group=group, phase=_read_word(attributes, "phase"), source=_name_node(node), **fields
        )

    def _sized(
        self, kind: str, size: int, n: int, attributes: dict[str, Any], at: str
    ) -> dict[str, Any] | None:
        """Kind, bytes, datatype and reduction of a collective or a message; None where it is
        lost."""
        dtype = _read_word(attributes, "dtype")
        if dtype not in DTYPES:
            self.calls.assumptions[UNTYPED] = None
            dtype = "uint8"
        width = DTYPES[dtype].size
        nbytes = size * n if kind in BLOCKS else size
        if nbytes >= MOST or nbytes % width:
            self.calls.lose(f"a size of {nbytes:,} B of {dtype}", at, size)
            return None
        fields: dict[str, Any] = {"kind": kind, "nbytes": nbytes, "dtype": dtype}
        sends, receives = (attributes.get(key) for key in ("sends", "receives"))
        if kind == "all_to_all" and isinstance(sends, list):
            if (n and len(sends) != n) or max(
                [*sends, *(receives or [])], default=0
            ) >= MOST // width:
                self.calls.lose("blocks for other members than its group has", at, size)
                return None
            fields |= {"kind": "all_to_allv", "sends": tuple(sends)}
            fields["receives"] = tuple(receives) if isinstance(receives, list) else ()
            fields["nbytes"] = _read_number(attributes, "whole_size", MOST, nbytes)
        if kind in COLLECTIVES and COLLECTIVES[kind].reduces:
            fields["op"] = _read_word(attributes, "reduction")
            if fields["op"] not in OPS:
                self.calls.assumptions[SUMS] = None
                fields["op"] = "sum"
        return fields

    def _groups(self, node: Node) -> None:
        """The groups of PyTorch's that a converted trace has."""
        match = re.search(r"\[\{.*\}\]", node.values, re.DOTALL)
        try:
            groups = msgspec.json.decode(match[0] if match else "", type=list[_Group])
        except (msgspec.DecodeError, RecursionError):
            self.calls.lose("its list of groups is cut", f"node {node.id}", calls=0)
            return
        for group in groups:
            ranks = tuple(group.ranks or range(group.group_size))
            if group.pg_desc == "default_pg" or (not group.ranks and self._default == WORLD):
                self._default = group.pg_name
                self.world = max(self.world, len(ranks))
            name = WORLD if group.pg_name == self._default else group.pg_name[:200]
            self.calls.group(name, self.calls.groups.get(name, ranks), group.pg_desc)


class _Group(msgspec.Struct):
    pg_name: str
    pg_desc: str = ""
    ranks: list[Rank] = []
    group_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0


def _read_groups(path: Path) -> dict[str, list[int]]:
    """The groups that the file beside a trace tells, where there is one. Raises UsageError."""
    groups_file = path.with_name(GROUPS)
    if not groups_file.is_file():
        return {}
    with Stream(groups_file) as stream:
        raw = stream.read_all()
        try:
            return msgspec.json.decode(raw, type=dict[str, list[Rank]]) if raw.strip() else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise UsageError(
                f"{groups_file}: {first_line(e)}", 'write it as {"1": [0, 1]}, for example'
            ) from e


def _name_node(node: Node) -> str:
    return f"node {node.id} {node.name[:100]}".strip()


def _read_number(attributes: dict[str, Any], key: str, most: int, default: int) -> int:
    """A number that an attribute tells, where it is one below ``most``."""
    value = attributes.get(key)
    return value if is_number(value) and 0 <= value < most else default  # type: ignore[return-value,operator]


def _read_word(attributes: dict[str, Any], key: str, longest: int = 40) -> str:
    value = attributes.get(key)
    return value[:longest] if isinstance(value, str) else ""
