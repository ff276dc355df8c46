"""AICB's workloads and the logs of their runs (CSV), and SimAI's workloads, which it writes, too
(text): what rank 0 of a training job calls, with sizes but without datatypes and members.

Members of groups are those of Megatron's order of ranks: tensor-parallel ones are neighbours, then
come data-parallel ones, then stages of the pipeline. Sizes are bytes as collbench has them.
Formats: aliyun/aicb, log_analyzer/log.py, workload_applyer.py and utils/benchmark_logger.py;
aliyun/SimAI, example/.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError, first_line
from collbench.features.traces.formats.bounded import HINT, Stream
from collbench.features.traces.formats.call_names import MOST, SUMS, UNREADABLE, Calls, kind_of
from collbench.features.traces.types import Call, RankTrace
from collbench.features.training.step import MOST_RANKS, WORLD

HALF = "elements are taken for half precision: the format does not say"
ORDER = "members of groups are those of Megatron's order of ranks (tp, dp, pp)"
FIRST = "rank 0 alone is told of"
COLUMNS = ("comm_type", "comm_group", "msg_size")
STAGES = "pp"


def read_rank(stream: Stream) -> tuple[RankTrace, tuple[str, ...]]:
    """The calls of rank 0 by a file of AICB, and what is taken for granted. Raises UsageError."""
    parsed, world = _Found(stream), 0
    columns: list[str] = []
    for number, line in enumerate(stream.lines(), 1):
        where = f"{stream.path}: line {number}"
        if not columns:
            if match := re.fullmatch(r"\[rank0 ~ rank(\d{1,7})\]\s*", line):
                world = int(match[1]) + 1
            elif {*COLUMNS} <= {*(columns := line.split(","))}:
                continue
            elif line.strip():
                raise UsageError(
                    f"{where}: this is not the header", f"begin with {','.join(COLUMNS)}"
                )
            columns = []
        elif line.strip():
            try:
                cells = _split_cells(columns, line, where)
            except UsageError as e:
                why = e.message.removeprefix(f"{where}: ")
                parsed.calls.lose(f"{UNREADABLE}: {why}", f"line {number}")
            else:
                parsed.take(cells, f"line {number}")
    return parsed.trace(world)


def _split_cells(columns: Sequence[str], line: str, where: str) -> dict[str, str]:
    """The cells of a line by columns; a size that is shapes has commas. Raises UsageError."""
    try:
        (cells,) = csv.reader([line], strict=True)
    except (csv.Error, ValueError) as e:
        raise UsageError(f"{where}: {first_line(e)}", HINT) from e
    at, more = columns.index("msg_size"), len(cells) - len(columns)
    if more > 0:
        cells = [*cells[:at], ",".join(cells[at : at + more + 1]), *cells[at + more + 1 :]]
    if len(cells) != len(columns):
        raise UsageError(f"{where}: {len(cells)} cells for {len(columns)} columns", HINT)
    return dict(zip(columns, cells, strict=True))


class _Found:
    """What has been found in a file: calls, where iterations end, and how many members groups
    have."""

    def __init__(self, stream: Stream) -> None:
        self.calls = Calls(stream.path)
        self.sizes: dict[str, int] = {}
        self.ends: list[int] = []  # of iterations: the places after their last calls
        self.clock = 0

    def take(self, cells: dict[str, str], at: str) -> None:
        """A line of AICB's."""
        name = cells["comm_type"].removeprefix("CommType.").strip()
        group = cells["comm_group"].removeprefix("CommGroup.").removesuffix("_group").strip()
        stage = cells.get("stage", "").strip()[:40]
        if name == "epoch_end":
            self.ends.append(self.calls.append(Call("mark", phase="epoch_end", source=at)) + 1)
        elif name == "computation":
            self._computation(cells, stage, at)
        else:
            size = cells.get("comm_group_size", "").strip()
            self.called(name, group, cells["msg_size"].strip(), size, at, stage, cells)

    def called(
        self,
        name: str,
        group: str,
        size: str,
        members: str,
        at: str,
        stage: str = "",
        cells: dict[str, str] | None = None,
    ) -> None:
        """A call of a group, of so many bytes, or one that is lost."""
        kind, nbytes = kind_of(name), _parse_whole(size)
        if not kind or nbytes is None:
            self.calls.lose(f"operation '{name}'" if not kind else f"a size of '{size[:40]}'", at)
            return
        group = WORLD if group in ("all", "all_nodes") else group[:200]
        n = _parse_whole(members)
        if n is not None and 0 < n < MOST_RANKS and group != STAGES:  # of stages it says 1
            self.sizes.setdefault(group, n)
        if kind == "all_to_allv":
            kind = "all_to_all"
        root = peer = -1
        if kind in ("send", "recv"):
            peer = int((cells or {}).get("additional", "").strip().endswith("_next"))
            if not peer:
                self.calls.lose("a message to the stage before the first", at, nbytes)
                return
        elif COLLECTIVES[kind].rooted:
            source = _parse_whole((cells or {}).get("src", ""))
            root = 0 if source is None else min(source, MOST_RANKS)
        op = "none"
        if kind in COLLECTIVES and COLLECTIVES[kind].reduces:
            op = "sum"
            self.calls.assumptions[SUMS] = None
        dtype = "uint8" if nbytes % 2 else "half"
        call = Call(kind, group, nbytes, dtype, op, root, peer, phase=stage, source=at)
        self._append_timed(call, _parse_elapsed(cells or {}))

    def _computation(self, cells: dict[str, str], stage: str, at: str) -> None:
        """A product of matrices of the shapes that stand for its size, or of a time alone."""
        shapes = [
            [int(n) for n in re.findall(r"\d{1,9}", shape)]
            for shape in re.findall(r"\(([\d, ]+)\)", cells["msg_size"])
        ]
        flops = 0.0
        if len(shapes) == 2 and shapes[0] and shapes[1]:
            flops = min(2.0 * math.prod(shapes[0][:8]) * shapes[1][-1], 1e30)
        took = _parse_elapsed(cells)
        if not flops and not took:
            self.calls.lose("a computation of no size", at)
            return
        self.computed(took, stage, at, flops)

    def computed(self, ns: int, stage: str, at: str, flops: float = 0.0) -> None:
        """Add a computation of so many nanoseconds, after the calls before it."""
        self._append_timed(Call("compute", flops=flops, phase=stage, source=at), ns)

    def _append_timed(self, call: Call, ns: int) -> None:
        """Add a call that took so many nanoseconds after those before it; 0 is unknown. Timed
        collectives held up the program; messages did not, as two ranks may exchange them."""
        begins = self.clock
        if begins + ns >= MOST:
            self.calls.lose("a time that cannot be", call.source)
            return
        self.clock += ns
        times = {"begins_ns": begins, "ends_ns": self.clock, "waits": call.kind in COLLECTIVES}
        self.calls.append(replace(call, **times) if ns else call)

    def trace(self, world: int) -> tuple[RankTrace, tuple[str, ...]]:
        """Rank 0's trace. Of several parts that end at marks the first sets the job up, and is no
        iteration. Raises UsageError where the file has no call."""
        calls, sizes = self.calls, self.sizes
        if calls.empty:
            raise UsageError(f"{calls.path}: it has no operations", HINT)
        stride, others = sizes.get("tp", 1), sizes.get("tp", 1) * sizes.get("dp", 1)
        if world and not world % others and world > others:
            sizes[STAGES] = world // others
        world = world or sizes.get(WORLD, 0) or max([others, *sizes.values()])
        for name, size in sizes.items():
            members = tuple(_list_members(name, size, stride, world, sizes))
            if max(members) < world:
                calls.group(name, members)
        calls.groups.setdefault(WORLD, tuple(range(min(world, MOST_RANKS))))
        for what in (HALF, ORDER, FIRST):
            calls.assumptions[what] = None
        marked = [*itertools.pairwise([0, *self.ends])]
        return calls.trace(0, world, marked=marked[1:] or marked), tuple(calls.assumptions)


def _list_members(name: str, n: int, tp: int, world: int, sizes: dict[str, int]) -> Iterator[int]:
    """The members of rank 0's group of a name, of ``n``, by Megatron's order."""
    step = {
        WORLD: 1,
        "tp": 1,
        "ep_tp": 1,
        "dp": tp,
        "ep": tp,
        "ep_dp": tp * sizes.get("ep", 1),
        "dp_ep": tp * sizes.get("ep", 1),
        "pp": world // n,
        "embedding": world // n,
    }.get(name, 1)
    yield from (index * max(step, 1) for index in range(n))


def _parse_elapsed(cells: Mapping[str, str]) -> int:
    """The time of a line in ns; 0 where there is none. A workload has it in ns; a log of a run, of
    which each line that was timed has a bandwidth, has it in ms."""
    text = cells.get("_elapsed_time", "").strip()
    if not re.fullmatch(r"\d{1,18}(\.\d*)?(e[+-]?\d{1,2})?", text):
        return 0
    is_log = re.match(r"\d", cells.get("algbw", "").strip()) is not None
    return round(min(float(text) * (1e6 if is_log else 1), MOST))


def _parse_whole(text: str) -> int | None:
    """A number of bytes, or of ranks; None where it is none."""
    match = re.fullmatch(r"(\d{1,18})(?:\.0*)?", text.strip())
    return int(match[1]) if match else None


# SimAI

MOST_LAYERS = 100_000
HEADERS = ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER", "MICRO", "DATA", "MODEL")
COMMS = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "BROADCAST": "broadcast",
}


def read_simai(stream: Stream) -> tuple[RankTrace, tuple[str, ...]]:
    """The calls by a file of SimAI: layers, forward in their order and backward in reverse. Raises
    UsageError."""
    lines = stream.lines()
    head = next(lines, "").split()
    if not head or head[0] not in HEADERS:
        raise UsageError(f"{stream.path}: line 1 is not a header of SimAI's", HINT)
    numbers = {
        word.rstrip(":"): _parse_whole(value) or 0 for word, value in itertools.pairwise(head)
    }
    parsed = _Found(stream)
    tp, ep = numbers.get("model_parallel_NPU_group", 0), numbers.get("ep", 0)
    world, pp = numbers.get("all_gpus", 0), max(numbers.get("pp", 0), 1)
    if world > MOST_RANKS:
        raise UsageError(
            f"{stream.path}: {world:,} ranks are too many", f"take at most {MOST_RANKS:,} ranks"
        )
    parsed.sizes |= {name: n for name, n in (("tp", tp), ("ep", ep)) if 0 < n < MOST_RANKS}
    if 0 < world <= MOST_RANKS and tp and not world % (tp * pp):
        parsed.sizes["dp"] = world // (tp * pp)
        if ep and not parsed.sizes["dp"] % ep:
            parsed.sizes["dp_ep"] = parsed.sizes["dp"] // ep
    layers = []
    for number, line in enumerate(lines, 2):
        if number > 2 and (cells := line.split()):  # the second line is how many there are
            layers.append((number, cells[:12]))
            if len(cells) < 11 or len(layers) > MOST_LAYERS:
                what = f"{len(cells)} of 12 cells, layer {len(layers)} of {MOST_LAYERS:,} at most"
                raise UsageError(f"{stream.path}: line {number}: {what}", HINT)
    for number, cells in layers:
        _take_phase(parsed, number, cells, "forward", 2, "tp")
    for number, cells in reversed(layers):
        _take_phase(parsed, number, cells, "input gradient", 5, "tp")
        _take_phase(parsed, number, cells, "weight gradient", 8, "dp")
    parsed.ends.append(len(parsed.calls.entries))
    return parsed.trace(world)


def _take_phase(
    parsed: _Found, number: int, cells: Sequence[str], phase: str, at: int, usual: str
) -> None:
    """A layer's computation and communication of one of its three phases."""
    where = f"line {number} {cells[0][:60]}"
    took, name, size = _parse_whole(cells[at]), cells[at + 1].upper(), cells[at + 2]
    if took is None:
        parsed.calls.lose(f"a time of '{cells[at][:40]}'", where)
    elif took > 1:  # 1 stands for none
        parsed.computed(took, phase, where)
    if name == "NONE":
        return
    bare, _, suffix = name.partition("_")
    group = suffix.lower() or usual
    parsed.called(COMMS.get(bare, name), group, size, "", where, phase)
