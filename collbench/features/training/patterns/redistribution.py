"""Redistribution: from one way in which a tensor lies on a grid of devices to another, by the steps
that move the fewest bytes; and from a trainer's ranks to a generator's.

``dp.None`` is a matrix whose rows are split over the ranks of dp and whose columns are whole (a
comma does, too), as MindSpore's ``layout("dp", "None")`` is; ``dp+tp.None`` has its rows split over
dp and each part of them over tp. ``None.None.sum:tp`` is a matrix of which each rank of tp has a
term of the sum.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta

from collbench.core import splits
from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, find_dtype
from collbench.core.errors import UsageError
from collbench.features.training.layout import Layout
from collbench.features.training.models import Model
from collbench.features.training.patterns.data_parallel import refuse_other_parallelism
from collbench.features.training.step import Op, Program, Step, Writer

if TYPE_CHECKING:
    import numpy as np

Whole = Annotated[int, Meta(ge=1, le=1 << 30)]
Shape = tuple[int, ...]

ON_GRID = ("ranks of tp, cp, dp and pp", ("ep", "chunks"))  # what a grid has, and has not
MOST_AXES = 6
MOST_ELEMENTS = 1 << 60
HINT = (
    "give for each axis None, or dimensions joined with +, and sum: with dimensions:"
    " dp.None->None.tp"
)


class Redistribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``move`` is LAYOUT->LAYOUT of a tensor of this shape and datatype; without these, of the
    model's activations (tokens, hidden)."""

    move: str = "tp.None->None.tp"
    shape: tuple[Whole, ...] = ()
    dtype: str = ""


class MatMul2(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """X (batch, inputs) times W (inputs, hidden), and that times V (hidden, outputs)."""

    batch: Whole = 8192
    inputs: Whole = 4096
    hidden: Whole = 4096
    outputs: Whole = 4096
    dtype: str = "half"


class M2N(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How matrices lie on the trainer's grid, which is the layout's, and on a generator's of ``tp``
    times ``dp`` ranks. These come after the trainer's, or are the first of them (``colocated``)."""

    move: str = "dp.None->tp.None"
    tp: Whole = 4
    dp: Whole = 1
    colocated: bool = False


class Placed(NamedTuple):
    """The dimensions of the grid over which each axis is split, the outer one first, and those over
    which a sum is still to be taken."""

    axes: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()

    def parts(self, sizes: Mapping[str, int], axis: int) -> int:
        """The number of parts an axis is split into."""
        return math.prod(sizes[d] for d in self.axes[axis])

    def local(self, shape: Shape, sizes: Mapping[str, int]) -> Shape:
        """The shape of each rank's part of a tensor of ``shape``."""
        return tuple(length // self.parts(sizes, at) for at, length in enumerate(shape))

    def split(self, axis: int, dimension: str) -> Placed:
        """This layout with ``axis`` split over ``dimension`` as well, which must not split an axis
        yet."""
        axes = tuple((*a, dimension) if at == axis else a for at, a in enumerate(self.axes))
        return self._replace(axes=axes)

    def without(self, dimension: str) -> Placed:
        """This layout with no axis split, and no sum to be taken, over ``dimension``."""
        axes = tuple(tuple(d for d in axis if d != dimension) for axis in self.axes)
        return Placed(axes, tuple(d for d in self.partial if d != dimension))


class Move(NamedTuple):
    """A step: ``slice`` or a collective on the groups of a dimension, which takes the tensor as it
    lies from ``axis`` to ``to`` (-1 for no axis). ``nbytes`` is the size of the collective."""

    kind: str
    dimension: str
    axis: int
    to: int
    nbytes: int
    placed: Placed


def parse_layout(text: str, sizes: Mapping[str, int], shape: Shape) -> Placed:
    """A layout of a tensor of this shape on a grid. Raises UsageError."""
    parts = [word.strip() for word in re.split(r"[.,]", text)]
    partial = [d for word in parts if word[:4] == "sum:" for d in word[4:].split("+")]
    axes = [word for word in parts if word[:4] != "sum:"]
    if len(axes) != len(shape):
        raise UsageError(f"'{text[:60]}' has {len(axes)} axes, the tensor {len(shape)}", HINT)
    axis_dimensions = [() if word in ("None", "-") else tuple(word.split("+")) for word in axes]
    used = [*itertools.chain(*axis_dimensions), *partial]
    for dimension in used:
        if dimension not in sizes:
            hint = f"use a dimension of the grid: {', '.join(sizes)}"
            raise UsageError(f"'{text[:60]}': there is no dimension '{dimension[:20]}'", hint)
        if used.count(dimension) > 1:
            raise UsageError(
                f"'{text[:60]}' has {dimension} twice", "put each dimension in one place"
            )
    real = tuple(tuple(d for d in axis if sizes[d] > 1) for axis in axis_dimensions)
    placed = Placed(real, tuple(sorted(d for d in partial if sizes[d] > 1)))
    for at, length in enumerate(shape):
        if length % placed.parts(sizes, at):
            raise UsageError(
                f"'{text[:60]}': {length} is not divisible by the {placed.parts(sizes, at)} parts"
                f" of axis {at}",
                "choose another shape, or fewer ranks of that dimension",
            )
    return placed


def parse_ends(text: str) -> tuple[str, str]:
    """The two layouts of LAYOUT->LAYOUT. Raises UsageError."""
    source, arrow, target = text.partition("->")
    if not arrow:
        raise UsageError(
            f"'{text[:60]}' has no -> and second layout", f"write LAYOUT->LAYOUT: {HINT}"
        )
    return source, target


def list_moves(
    placed: Placed, shape: Shape, sizes: Mapping[str, int], itemsize: int
) -> Iterator[Move]:
    """All steps from here, each on one dimension of the grid: a partial sum becomes whole
    (all_reduce) or split (reduce_scatter), a split axis whole (all_gather) or another one is split
    instead (all_to_all), and of what is whole a part is kept (slice)."""
    local_shape = placed.local(shape, sizes)
    nbytes = math.prod(local_shape) * itemsize
    inner = {axis[-1]: at for at, axis in enumerate(placed.axes) if axis}
    split = {d for axis in placed.axes for d in axis}
    for dimension, n in sizes.items():
        if n == 1 or (dimension in split and dimension not in inner):
            continue
        away, at = placed.without(dimension), inner.get(dimension, -1)
        kind = "slice"
        if dimension in placed.partial:
            kind = "reduce_scatter"
            yield Move("all_reduce", dimension, -1, -1, nbytes, away)
        elif at >= 0:
            kind = "all_to_all"
            yield Move("all_gather", dimension, at, -1, nbytes * n, away)
        for to, length in enumerate(local_shape):
            if to != at and length % n == 0:
                yield Move(kind, dimension, at, to, nbytes, away.split(to, dimension))


def sent_bytes(move: Move, sizes: Mapping[str, int]) -> float:
    """Bytes that a rank has to send at least."""
    return (
        0.0
        if move.kind == "slice"
        else Op(move.kind, nbytes=move.nbytes).sent(sizes[move.dimension])
    )


def plan_moves(
    source: Placed, target: Placed, shape: Shape, sizes: Mapping[str, int], itemsize: int
) -> list[Move]:
    """The steps that send the fewest bytes, and of these ways one with the fewest steps. Raises
    UsageError where none leads there."""
    if extra := {*target.partial} - {*source.partial}:
        raise UsageError(f"a sum over {', '.join(extra)} cannot be taken apart", HINT)
    serial = itertools.count()
    queue: list[tuple[float, int, int, Placed, tuple[Move, ...]]] = [(0.0, 0, 0, source, ())]
    visited: set[Placed] = set()
    while queue:
        cost, steps, _, placed, way = heapq.heappop(queue)
        if placed == target:
            return list(way)
        if placed in visited:
            continue
        visited.add(placed)
        for move in list_moves(placed, shape, sizes, itemsize):
            if move.placed not in visited:
                next_cost = cost + sent_bytes(move, sizes)
                heapq.heappush(
                    queue, (next_cost, steps + 1, next(serial), move.placed, (*way, move))
                )
    raise UsageError("no steps lead there: axes are not divisible between", "choose another shape=")


def write_moves(writer: Writer, way: Sequence[Move], type_: str, source: str) -> None:
    """The operations of a plan, each begun when the one before is done. What does not lie in one
    piece in memory is put there first or after."""
    for move in way:
        touched = 2 * move.nbytes if max(move.axis, move.to) > 0 or move.kind == "slice" else 0
        if move.kind != "slice":
            writer.add(
                move.kind,
                group=move.dimension,
                nbytes=move.nbytes,
                dtype=type_,
                op="sum" if COLLECTIVES[move.kind].reduces else "none",
                wait="call",
                source=source,
            )
        if touched:
            writer.compute(touched=touched, source=f"{move.kind} of {source} in memory")


def _make_spmd(name: str, layout: Layout, writer: Writer, **holds: int) -> Step:
    """A step in which all ranks of a layout do the same."""
    groups = {op.group: layout.grid.groups(op.group) for op in writer.ops if op.communicates}
    return Step(name, layout.world, (writer.program(range(layout.world), **holds),), groups)


def redistribute(model: Model, layout: Layout, options: Redistribution) -> Step:
    """A step that moves one tensor from a layout to another, on the grid of tp, cp, dp and pp."""
    refuse_other_parallelism("redistribute", layout, *ON_GRID)
    shape = options.shape or (layout.tokens(model), model.hidden)
    if len(shape) > MOST_AXES or not 0 < math.prod(shape) < MOST_ELEMENTS:
        text = "/".join(map(str, shape))
        raise UsageError(
            f"shape={text[:60]} is not a tensor's", f"give up to {MOST_AXES} axes, none of them 0"
        )
    type_ = find_dtype(options.dtype or model.dtype)
    sizes = layout.grid.sizes
    first, second = parse_ends(options.move)
    source, target = parse_layout(first, sizes, shape), parse_layout(second, sizes, shape)
    way = plan_moves(source, target, shape, sizes, type_.size)
    writer = Writer("redistribute")
    write_moves(writer, way, type_.name, " x ".join(map(str, shape)))
    local = [math.prod(end.local(shape, sizes)) for end in (source, target)]
    largest = max((move.nbytes for move in way), default=0)
    return _make_spmd(
        f"redistribute: {options.move[:80]}",
        layout,
        writer,
        source=local[0] * type_.size,
        target=local[1] * type_.size,
        between=largest,
    )


def matmul2(model: Model, layout: Layout, options: MatMul2) -> Step:
    """Two products, the first with its rows on the ranks of dp, the second with its columns: Y is
    gathered between, and its gradient reduced and scattered. W is whole on all ranks, and its
    gradient summed. With pp=2 each product is a stage of a pipeline."""
    known, unknown = "data and pipeline parallelism", ("tp", "cp", "ep", "chunks")
    refuse_other_parallelism("matmul2", layout, known, unknown)
    n, sizes, type_ = layout.dp, layout.grid.sizes, find_dtype(options.dtype)
    b, k, h, m = options.batch, options.inputs, options.hidden, options.outputs
    parts = n * (layout.micro_batches if layout.pp > 1 else 1)
    for what, length, by in (("batch", b, parts), ("outputs", m, n)):
        if length % by:
            among = f"dp={n}" if by == n else f"dp={n} and micro_batches={layout.micro_batches}"
            raise UsageError(
                f"{what}={length} is not divisible by {among}", f"choose another {what}="
            )
    if layout.pp > 1:
        return _two_stages(layout, options)
    writer = Writer("forward")

    def to(before: str, after: str, shape: Shape, source: str) -> None:
        from_layout, target = parse_layout(before, sizes, shape), parse_layout(after, sizes, shape)
        write_moves(
            writer, plan_moves(from_layout, target, shape, sizes, type_.size), type_.name, source
        )

    writer.compute(2.0 * b * k * h / n, source="Y = X W")
    to("dp.None", "None.None", (b, h), "Y")
    writer.compute(2.0 * b * h * m / n, source="Z = Y V")
    writer.phase = "backward"
    writer.compute(4.0 * b * h * m / n, source="gradients of Y and V")
    to("None.None.sum:dp", "dp.None", (b, h), "gradient of Y")
    writer.compute(2.0 * b * k * h / n, source="gradient of W")
    to("None.None.sum:dp", "None.None", (k, h), "gradient of W")
    step = _make_spmd(
        f"matmul2 on {layout.world} ranks",
        layout,
        writer,
        parameters=type_.size * (k * h + h * m // n),
        gradients=type_.size * (k * h + h * m // n),
        activations=type_.size * (b * k // n + b * h // n + b * h + b * m // n),
        sums=type_.size * b * h,
    )
    assumption = (
        "MindSpore was not run: the layouts are given, and the steps between are searched here"
    )
    return msgspec.structs.replace(step, assumptions=(assumption,))


def _two_stages(layout: Layout, options: MatMul2) -> Step:
    """The products on the two stages of a pipeline: each rank of the first sends its rows of Y to
    the rank beside it, micro-batch by micro-batch, and gets their gradient back."""
    if layout.pp != 2:
        raise UsageError(f"pp={layout.pp}: two products have two stages", "use pp=1 or pp=2")
    n, sizes, type_ = layout.dp, {"dp": layout.dp}, find_dtype(options.dtype)
    k, h, m, batches = options.inputs, options.hidden, options.outputs, layout.micro_batches
    b = options.batch // batches
    first, second = Writer("forward"), Writer("forward")

    def to(writer: Writer, before: str, after: str, shape: Shape, source: str) -> None:
        from_layout, target = parse_layout(before, sizes, shape), parse_layout(after, sizes, shape)
        write_moves(
            writer, plan_moves(from_layout, target, shape, sizes, type_.size), type_.name, source
        )

    def message(kind: str, writer: Writer, peer: int, tag: int, source: str) -> None:
        fields = {"nbytes": b * h // n * type_.size, "dtype": type_.name, "wait": "call"}
        writer.add(kind, group="pp", peer=peer, tag=tag, source=source, **fields)

    for batch in range(batches):
        rows = f"Y of micro-batch {batch}"
        first.compute(2.0 * b * k * h / n, source="Y = X W")
        message("send", first, 1, 0, rows)
        message("recv", second, 0, 0, rows)
        to(second, "dp.None", "None.None", (b, h), rows)
        second.compute(2.0 * b * h * m / n, source="Z = Y V")
    first.phase = second.phase = "backward"
    for batch in range(batches):
        rows = f"gradient of Y of micro-batch {batch}"
        second.compute(4.0 * b * h * m / n, source="gradients of Y and V")
        to(second, "None.None.sum:dp", "dp.None", (b, h), rows)
        message("send", second, 0, 1, rows)
        message("recv", first, 1, 1, rows)
        first.compute(2.0 * b * k * h / n, source="gradient of W")
    to(first, "None.None.sum:dp", "None.None", (k, h), "gradient of W")
    weights, width = (k * h, h * m // n), type_.size
    holdings = [
        {"parameters": width * stage_weights, "gradients": width * stage_weights}
        for stage_weights in weights
    ]
    holdings[0]["activations"] = width * options.batch * (k + h) // n
    holdings[1] |= {"activations": width * options.batch * (h + m // n), "sums": width * b * h}
    stages = [tuple(group[at] for group in layout.grid.groups("pp")) for at in (0, 1)]
    groups = {op.group for op in (*first.ops, *second.ops) if op.communicates}
    return Step(
        f"matmul2 on {layout.world} ranks, two stages",
        layout.world,
        tuple(
            writer.program(ranks, **holds)
            for writer, ranks, holds in zip((first, second), stages, holdings, strict=True)
        ),
        {name: layout.grid.groups(name) for name in groups},
        (
            "MindSpore was not run: the layouts are given, and the steps between are searched here",
            "all passes forward before those backward, and the gradient of W summed once, at the"
            " end",
        ),
    )


class _Grid(NamedTuple):
    """Ranks from ``first`` up on a grid, on which a tensor of this shape lies."""

    sizes: Mapping[str, int]
    first: int
    shape: Shape
    placed: Placed

    def boxes(self) -> dict[tuple[tuple[int, int], ...], list[int]]:
        """The ranks that have each block, by its bounds on every axis."""
        ranks_by_box: dict[tuple[tuple[int, int], ...], list[int]] = {}
        local = self.placed.local(self.shape, self.sizes)
        for rank in range(math.prod(self.sizes.values())):
            box = []
            for axis, length in zip(self.placed.axes, local, strict=True):
                at = functools.reduce(lambda at, d: at * self.sizes[d] + self.at(rank, d), axis, 0)
                box.append((at * length, (at + 1) * length))
            ranks_by_box.setdefault(tuple(box), []).append(self.first + rank)
        return ranks_by_box

    def at(self, rank: int, dimension: str) -> int:
        """The place of a rank in a dimension."""
        before = itertools.takewhile(lambda name: name != dimension, self.sizes)
        return rank // math.prod(self.sizes[name] for name in before) % self.sizes[dimension]


def count_fetched(source: _Grid, target: _Grid, world: int) -> np.ndarray:
    """Elements that rank i sends to rank j, for each block of the target once: none that j has, and
    from replicas in turn."""
    import numpy as np

    table = np.zeros((world, world), np.int64)
    owners = source.boxes()
    for box, ranks in target.boxes().items():
        for had, replicas in owners.items():
            bounds = zip(box, had, strict=True)
            number = math.prod(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in bounds)
            for rank in ranks:
                if rank not in replicas:
                    table[replicas[rank % len(replicas)], rank] += number
    return table


def m2n(model: Model, layout: Layout, options: M2N) -> Step:
    """A model's parameters from a trainer's ranks to a generator's, one all_to_allv for each."""
    refuse_other_parallelism("m2n", layout, *ON_GRID)
    trainers, generators = layout.world, options.tp * options.dp
    first = 0 if options.colocated else trainers
    world = max(trainers, first + generators)
    if world > splits.MOST_RANKS:
        raise UsageError(f"{world} ranks are too many", f"take at most {splits.MOST_RANKS}")
    before, after = parse_ends(options.move)
    if "sum:" in options.move:
        raise UsageError(
            f"'{options.move[:60]}': 'sum:' is for shares that are added up, which parameters"
            " are not",
            HINT,
        )
    sizes = {"tp": options.tp, "dp": options.dp}

    @functools.cache
    def table(shape: Shape) -> np.ndarray:
        source, target = (
            parse_layout(_adapt_layout(text, shape, is_full), grid, shape)
            for text, grid, is_full in ((before, layout.grid.sizes, False), (after, sizes, True))
        )
        from_grid = _Grid(layout.grid.sizes, 0, shape, source)
        return count_fetched(from_grid, _Grid(sizes, first, shape, target), world)

    size = DTYPES[model.dtype].size
    busiest = {
        shape: splits.count_busiest(table(shape)) for shape in {t.shape for t in model.tensors}
    }
    rows: dict[tuple[Op, ...], list[int]] = {}
    for rank in range(world):
        ops = tuple(
            Op(
                kind="all_to_allv",
                phase="weights",
                nbytes=busiest[tensor.shape] * size,
                dtype=model.dtype,
                sends=tuple(table(tensor.shape)[rank].tolist()),
                source=tensor.name,
            )
            for tensor in model.tensors
        )
        rows.setdefault(ops, []).append(rank)
    return Step(
        name=f"m2n: {model.name}, {options.move[:80]}",
        world=world,
        programs=tuple(Program(tuple(ranks), ops) for ops, ranks in rows.items()),
        groups={},
        assumptions=(
            "vectors are split as the first axis of matrices on the trainer, and whole on the"
            " generator",
            "of equal replicas each has its turn; nccl_m2n may choose others",
        ),
    )


def _adapt_layout(text: str, shape: Shape, is_full: bool) -> str:
    """A layout of matrices as one of tensors with fewer or more axes; vectors may be whole."""
    parts = re.split(r"[.,]", text)
    if is_full and len(shape) == 1:
        return "None"
    return ".".join([*parts, *["None"] * len(shape)][: len(shape)])
