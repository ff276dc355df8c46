"""PyTorch's execution traces: every operator of a rank in the order of calls, as
torch.profiler.ExecutionTraceObserver writes them (JSON, schema 1.0.3 and later).

Communication stands in nodes ``record_param_comms``, which NCCL's process group writes and Gloo's
does not; the operators around them (c10d::) are read instead where that is asked for. Ranks there
are places in the group. There are no times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from collbench.core.errors import UsageError
from collbench.features.traces.formats.bounded import CutError, Json, Stream
from collbench.features.traces.formats.call_names import (
    MOST,
    MOST_CALLS,
    UNREADABLE,
    Calls,
    Said,
    is_by_lists,
    is_number,
    kind_of,
    parse_listed,
)
from collbench.features.traces.types import Call, Interval, RankTrace
from collbench.features.training.step import MOST_RANKS, WORLD, Whole

COMMS = "record_param_comms"
GROUPS = "## process_group:init ##"
NO_GROUPS = "c10d operators name no group: each is taken for one of all ranks"


class _Values(msgspec.Struct):
    values: list[Any] = []
    shapes: list[Any] = []
    types: list[Any] = []


class _Attribute(msgspec.Struct):
    name: str
    value: Any = None


class _Name(msgspec.Struct):
    """What decides whether a node is looked at."""

    name: str = ""
    id: Whole = 0


class _Node(msgspec.Struct):
    id: Whole = 0
    inputs: _Values | list[Any] = msgspec.field(default_factory=_Values)
    outputs: _Values | list[Any] = msgspec.field(default_factory=_Values)
    attrs: list[_Attribute] = []


class _Group(msgspec.Struct):
    pg_name: str
    pg_desc: str = ""
    ranks: list[Annotated[int, Meta(ge=0, lt=MOST_RANKS)]] | str = []
    group_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0


class _Comms(msgspec.Struct):
    """The attributes of a node that communicates."""

    collective_name: str
    dtype: str = "byte"
    in_msg_nelems: Annotated[int, Meta(ge=0, lt=MOST)] = 0
    out_msg_nelems: Annotated[int, Meta(ge=0, lt=MOST)] = 0
    in_split_size: str = "[]"
    out_split_size: str = "[]"
    global_rank_start: int = 0
    global_rank_stride: int = 0
    pg_name: str = ""
    pg_desc: str = ""
    pg_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0
    is_asynchronized_op: Any = None


def read_rank(stream: Stream, from_ops: bool = False) -> tuple[RankTrace, tuple[str, ...]]:
    """The calls by a rank's file, and what is taken for granted. Raises UsageError."""
    source = Json(stream, "nodes")
    parsed = _Found(stream, from_ops)
    cut = ""
    try:
        for _, at, raw in source:
            parsed.add(source, at, raw)
            if parsed.nbytes > stream.limits.nbytes // 16 or len(parsed.nodes) > MOST_CALLS:
                raise stream.refused(at, "its communication takes too much memory")
    except CutError as e:
        if not parsed.nodes:
            raise
        cut = f"byte {e.at:,}"
    for _, name, at, raw in sorted(parsed.nodes):  # they are written as they end
        try:
            node = source.decode(raw, _Node, "a node")
        except UsageError as e:
            parsed.calls.lose(f"{UNREADABLE}: {e.message.partition(': a node: ')[2]}", f"byte {at}")
        else:
            parsed.take(name, node)
    schema = source.decoded("schema", Any, "")
    if "nodes" in source.header or not isinstance(schema, str):
        raise UsageError(
            f"{stream.path}: its 'nodes' are not a list", "check that it is an execution trace"
        )
    trace, assumptions = parsed.trace()
    return msgspec.structs.replace(trace, cut=cut), assumptions


class _Found:
    """What has been found in a file."""

    def __init__(self, stream: Stream, from_ops: bool) -> None:
        self.calls = Calls(stream.path)
        self.rank = stream.rank
        self.nodes: list[tuple[int, str, int, bytes]] = []
        self.nbytes = 0
        self.ranks: dict[int, int] = {}  # that nodes tell, and how often
        self.marks: list[int] = []
        self.ops = 0
        self._from_ops = from_ops
        self._default = ""
        self._open: dict[tuple[str, int, bool], list[int]] = {}

    def add(self, source: Json, at: int, raw: bytes) -> None:
        """A node, kept if it is of a kind that is read."""
        try:
            node = source.decode(raw, _Name, "a node")
        except UsageError as e:
            why = e.message.partition(": a node: ")[2]
            self.calls.lose(f"{UNREADABLE}: {why}", f"byte {at}")
            return
        if node.name in (COMMS, GROUPS) or node.name.startswith(("c10d::", "ProfilerStep#")):
            self.nodes.append((node.id, node.name, at, raw))
            self.nbytes += len(raw)

    def take(self, name: str, node: _Node) -> None:
        """A node, in the order of calls."""
        if name.startswith("ProfilerStep#"):
            self.marks.append(len(self.calls.entries))
        elif name.startswith("c10d::"):
            self.ops += 1
            if self._from_ops:
                self._operator(name, node)
        elif not isinstance(node.inputs, _Values):
            if name == COMMS:
                self.calls.lose("nodes of this schema tell no sizes", f"node {node.id}")
        elif name == GROUPS:
            self._groups(node)
        elif not self._from_ops:
            self._comms(node, node.inputs.values)

    def trace(self) -> tuple[RankTrace, tuple[str, ...]]:
        """The rank's trace, and the assumptions made for it. Raises UsageError where no operation
        communicates."""
        calls = self.calls
        if calls.empty:
            raise UsageError(
                f"{calls.path}: no {COMMS}: Gloo writes none; c10d operators found: {self.ops}",
                "add --from-ops to take these, whose groups are unknown" * bool(self.ops)
                or "record a job that communicates, with torch.profiler's execution trace",
            )
        rank = max(self.ranks, key=self.ranks.__getitem__, default=self.rank)
        ends = [*self.marks[1:], len(calls.entries)]
        marked: list[Interval] = [*zip(self.marks, ends, strict=True)] if self.marks else []
        rank_trace = calls.trace(rank, marked=marked)
        return rank_trace, tuple(calls.assumptions)

    def _groups(self, node: _Node) -> None:
        """The groups that there were when the recording began."""
        assert isinstance(node.inputs, _Values)
        try:
            (text,) = node.inputs.values[:1]
            groups = msgspec.json.decode(text, type=list[_Group])
        except (ValueError, TypeError, RecursionError):  # cut, or of another form
            self.calls.lose("its list of groups is cut", f"node {node.id}", calls=0)
            return
        for group in groups:
            name, size = self._name_group(group.pg_name, group.pg_desc), group.group_size
            ranks: Sequence[int] | None = (
                parse_listed(group.ranks) if isinstance(group.ranks, str) else group.ranks
            )
            if not ranks and (ranks is not None or name == WORLD):  # torch lists none for all
                ranks = range(size)
            if ranks and size in (0, len(ranks)):  # else calls tell its members, or are lost
                self.calls.group(name, ranks, group.pg_desc)

    def _name_group(self, name: str, desc: str) -> str:
        """The name of a group; that of all has the empty one."""
        if desc == "default_pg" and not self._default:
            self._default = name
        return WORLD if name == self._default else name[:200]

    def _comms(self, node: _Node, values: list[Any]) -> None:
        """Read a record_param_comms node: a wait, or a call of a collective or message."""
        at = f"node {node.id}"
        attributes = {attribute.name: attribute.value for attribute in node.attrs}
        try:
            comms = msgspec.convert(attributes, _Comms)
        except msgspec.ValidationError as e:
            self.calls.lose("it does not say what it is" + f": {e}" * bool(attributes), at)
            return
        base = 0 if values and _is_sequence(values[0]) else 1
        number, member, *_ = [*values[base : base + 1], *values[base + 2 : base + 3], -1, -1]
        member = member if is_number(member) and 0 <= member < MOST_RANKS else -1
        key = _parse_number(number)
        group = self._name_group(comms.pg_name, comms.pg_desc)
        if comms.collective_name == "wait":
            self._wait(group if comms.pg_name else None, key, at)
        elif comms.collective_name != "init":
            self._call(node, comms, group, key, member)

    def _wait(self, group: str | None, key: tuple[int, bool], at: str) -> None:
        """A wait for the calls of this number, of any group where it names none."""
        calls_read = self.calls
        calls = next(
            (
                self._open.pop(opened)
                for opened in reversed(self._open)
                if opened[1:] == key and group in (None, opened[0])
            ),
            (),
        )
        if calls:
            calls_read.append(Call("wait", after=tuple(calls), source=at))

    def _call(
        self, node: _Node, comms: _Comms, group: str, key: tuple[int, bool], member: int
    ) -> None:
        """Add the call of a node, or note that it is lost."""
        calls, at = self.calls, f"node {node.id}"
        if group not in calls.groups and comms.global_rank_stride > 0 and comms.pg_size:
            start, stride = comms.global_rank_start, comms.global_rank_stride
            if start >= 0 and start + (comms.pg_size - 1) * stride < MOST_RANKS:
                ranks = range(start, start + comms.pg_size * stride, stride)
                calls.group(group, ranks, comms.pg_desc)
        kind = kind_of(comms.collective_name)
        sends, receives = parse_listed(comms.in_split_size), parse_listed(comms.out_split_size)
        rooted = kind in ("broadcast", "reduce", "gather", "scatter")
        members = calls.groups.get(group, ())
        if not rooted and kind not in ("send", "recv") and 0 <= member < len(members):
            rank = members[member]
            self.ranks[rank] = self.ranks.get(rank, 0) + 1
        named_call = Said(
            comms.collective_name,
            comms.dtype,
            comms.in_msg_nelems,
            comms.out_msg_nelems,
            at,
            group,
            comms.pg_size or len(members),
            sends,
            receives,
            root=member if rooted else -1,
            peer=member if kind in ("send", "recv") else -1,
        )
        blocks = str(comms.is_asynchronized_op).strip('"').lower() in ("false", "0")
        lists = is_by_lists(comms.collective_name)
        index = calls.add(named_call, number=key[0], waits=blocks, by_lists=lists)
        if index >= 0:
            self._open.setdefault((group, *key), []).append(index)

    def _operator(self, name: str, node: _Node) -> None:
        """A c10d operator, whose arguments are tensors, group, and what else its row says."""
        row = OPERATORS.get(name.removeprefix("c10d::").strip("_"))
        at = f"node {node.id}"
        if row is None or not isinstance(node.inputs, _Values):
            self.calls.lose(f"operator '{name}' is unknown", at)
            return
        self.calls.assumptions[NO_GROUPS] = None
        values = node.inputs.values
        given, got = (_count_elements(node.inputs, index) for index in (row.given, row.got))
        types = " ".join(str(kind)[:200] for kind in node.inputs.types[:2])
        dtype = re.search(r"Tensor\(([\w :]+)\)", types)

        def number(index: int) -> int:
            value = values[index] if 0 <= index < len(values) else -1
            return value if is_number(value) and 0 <= value < MOST_RANKS else -1

        sends, receives = (_list_numbers(values, index) for index in row.splits)
        named_call = Said(
            row.kind,
            dtype[1] if dtype else "",
            given,
            got,
            at,
            n=len(self.calls.groups.get(WORLD, ())),
            sends=sends,
            receives=receives,
            root=number(row.root),
            peer=number(row.peer),
        )
        if not named_call.n and row.kind in PARTS:
            named_call = named_call._replace(n=_group_ratio(given, got))
        self.calls.add(named_call, tag=max(number(row.tag), 0))


class _Row(NamedTuple):
    """Which argument of an operator is what, by place; -1 is none."""

    kind: str
    given: int = 0
    got: int = 0
    root: int = -1
    peer: int = -1
    tag: int = -1
    splits: tuple[int, int] = (-1, -1)


PARTS = ("all_gather", "reduce_scatter", "gather", "scatter")
# by the operator's name without underscores at its ends (torch/csrc/distributed/c10d/Ops.cpp)
OPERATORS = {
    "allreduce": _Row("all_reduce"),
    "allreduce_coalesced": _Row("all_reduce"),
    "broadcast": _Row("broadcast", root=2),
    "reduce": _Row("reduce", root=3),
    "allgather": _Row("all_gather", 1, 0),
    "allgather_base": _Row("all_gather", 1, 0),
    "allgather_into_tensor_coalesced": _Row("all_gather", 1, 0),
    "reduce_scatter": _Row("reduce_scatter", 1, 0),
    "reduce_scatter_base": _Row("reduce_scatter", 1, 0),
    "reduce_scatter_tensor_coalesced": _Row("reduce_scatter", 1, 0),
    "gather": _Row("gather", 1, 0, root=3),
    "scatter": _Row("scatter", 1, 0, root=3),
    "alltoall": _Row("all_to_all", 1, 0),
    "alltoall_base": _Row("all_to_allv", 1, 0, splits=(4, 3)),
    "barrier": _Row("barrier"),
    "send": _Row("send", peer=2, tag=3),
    "recv": _Row("recv", peer=2, tag=3),
}


def _is_sequence(value: Any) -> bool:
    """Whether a value is a call's number, alone or with whether it is a message's: no tensors."""
    pair = value if isinstance(value, list) and len(value) == 2 else (value, False)
    return is_number(pair[0]) and isinstance(pair[1], bool)


def _parse_number(value: Any) -> tuple[int, bool]:
    """The number of a call in its group, and whether it is that of a message; -1 where it is none.
    It stands alone, or with the other beside it."""
    first, *rest = value if isinstance(value, list) and value else (value,)
    good = is_number(first) and 0 <= first < MOST
    return first if good else -1, rest[:1] == [True]


def _count_elements(values: _Values, index: int) -> int:
    """Elements of all tensors of an argument, by their shapes."""
    return min(_multiply_shape(values.shapes[index]), MOST) if index < len(values.shapes) else 0


def _multiply_shape(shape: Any) -> int:
    """Elements of a shape, or of a list of such, which may be lists again."""
    if not isinstance(shape, list) or not shape:
        return 0 if shape != [] else 1
    if all(is_number(size) and size >= 0 for size in shape):
        return min(math.prod(shape[:64]), MOST)
    return sum(map(_multiply_shape, shape))


def _list_numbers(values: Sequence[Any], index: int) -> tuple[int, ...]:
    numbers = values[index] if 0 <= index < len(values) else []
    good = isinstance(numbers, list) and all(is_number(n) and 0 <= n < MOST for n in numbers)
    return tuple(numbers) if good else ()


def _group_ratio(given: int, got: int) -> int:
    """The members of a group of which one side has a part, the other all."""
    small, large = sorted((given, got))
    return large // small if small and not large % small else 0
