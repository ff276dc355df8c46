"""Data parallelism with whole models on all ranks: PyTorch's DDP, Horovod, and the plain averaging
of gradients.

DDP (Li et al. 2020, arXiv 2006.15704) does here what torch 2.13 does; tests hold it against the
real one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.features.training.layout import Layout, Nothing
from collbench.features.training.models import Model, Tensor
from collbench.features.training.step import Groups, Step, Writer

MIB = 1 << 20
BROADCAST = 250 * MIB  # a DDP broadcast of parameters or buffers is closed there
NO_LIMIT = 1 << 62
ADAM = 7  # what an update of parameters reads (4) and writes (3), in their size
Mebibytes = Annotated[float, Meta(gt=0, le=1 << 20)]


def refuse_other_parallelism(
    name: str,
    layout: Layout,
    known: str = "data parallelism",
    unknown: Sequence[str] = ("tp", "cp", "ep", "pp", "chunks"),
) -> None:
    """Raises UsageError for a layout with more than what a pattern knows: one that sets any of the
    fields ``unknown``."""
    for field in unknown:
        if (size := getattr(layout, field)) != 1:
            raise UsageError(
                f"{name} has {known} only, not {field}={size}",
                f"leave {field} out of --layout",
            )


def divide_evenly(what: str, number: int, by: str, size: int) -> int:
    """The quotient. Raises UsageError where there is a rest."""
    if number % size:
        raise UsageError(f"{what}={number} is not divisible by {by}={size}")
    return number // size


def make_buckets(
    tensors: Iterable[Tensor], limits: Sequence[int], itemsize: int
) -> list[list[Tensor]]:
    """DDP's buckets: one is closed once it has reached its limit in bytes, so that it may be
    larger; the last limit is that of all further ones."""
    buckets: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if buckets[-1] and size >= limits[min(len(buckets), len(limits)) - 1]:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.numel * itemsize
    return buckets if buckets[0] else []


def fuse_buckets(tensors: Iterable[Tensor], limit: int, itemsize: int = 1) -> list[list[Tensor]]:
    """Buckets that are closed before they would exceed the limit; a larger tensor is alone."""
    buckets: list[list[Tensor]] = []
    size = limit
    for tensor in tensors:
        if size + tensor.numel * itemsize > limit or not buckets:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.numel * itemsize
    return buckets


def count_elements(tensors: Iterable[Tensor]) -> int:
    """Elements of all tensors."""
    return sum(tensor.numel for tensor in tensors)


def count_flops(tensors: Iterable[Tensor]) -> float:
    """The flops of forward with these tensors, for one token."""
    return sum(tensor.flops for tensor in tensors)


def flops_before(model: Model, buckets: Sequence[Sequence[Tensor]]) -> list[float]:
    """The flops of forward, for one token, with the parameters that backward comes to before each
    of these parts is complete. A head that is tied to the embedding comes first."""
    head = model.tensors[0] if model.tied else None
    work = [count_flops(tensor for tensor in part if tensor is not head) for part in buckets]
    return [work[0] + (head.flops if head else 0), *work[1:]]


def place_head(model: Model) -> Model:
    """The model with the flops of a tied head at its last tensor, which backward comes to first."""
    if not model.tied:
        return model
    first, *between, last = model.tensors
    moved = msgspec.structs.replace(last, flops=last.flops + first.flops)
    tensors = (msgspec.structs.replace(first, flops=0), *between, moved)
    return msgspec.structs.replace(model, tensors=tensors)


def write_operation(writer: Writer, kind: str, count: int, dtype: str, **fields: object) -> int:
    """An operation on so many elements, of dp unless it says; its id."""
    nbytes = count * DTYPES[dtype].size
    return writer.add(kind, **{"group": "dp", "nbytes": nbytes, "dtype": dtype, **fields})


def broadcast_buffers(writer: Writer, model: Model) -> None:
    """Rank 0's buffers to all, as before a forward pass."""
    for count, dtype in model.buffers:
        write_operation(writer, "broadcast", count, dtype, root=0, wait="call", source="buffers")


def count_buffer_bytes(model: Model) -> int:
    """Bytes of a model's buffers."""
    return sum(count * DTYPES[dtype].size for count, dtype in model.buffers)


def name_bucket(what: str, number: int, tensors: Sequence[Tensor]) -> str:
    """The name of a bucket: what is in it, from the first tensor to the last."""
    ends = dict.fromkeys((tensors[0].name, tensors[-1].name))
    return f"{what} {number}: {' .. '.join(ends)}"


def same_everywhere(
    name: str,
    model: Model,
    layout: Layout,
    writer: Writer,
    assumptions: tuple[str, ...] = (),
    groups: dict[str, Groups] | None = None,
    **holds: int,
) -> Step:
    """A step in which all ranks of dp do the same."""
    return Step(
        f"{name}:{model.name}",
        layout.dp,
        (writer.program(range(layout.dp), **holds),),
        groups or {"dp": layout.grid.groups("dp")},
        assumptions,
    )


class Ddp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """DDP's arguments, and which iteration is asked for: buckets are rebuilt before the second one
    (``iteration=1``), with ``static_graph`` before the third, with ``find_unused_parameters``
    never. ``init`` adds what making the model takes. Micro-batches but the last are under
    ``no_sync``."""

    bucket_cap_mb: Mebibytes | None = None
    bucket_cap_mb_list: tuple[Mebibytes, ...] = ()
    iteration: Annotated[int, Meta(ge=0, le=1 << 30)] = 2
    init: bool = False
    no_sync: bool = True
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    broadcast_buffers: bool = True
    hook: Literal["allreduce", "fp16", "bf16"] = "allreduce"

    @property
    def limits(self) -> list[int]:
        """Limits of buckets in bytes; the first bucket is small where nothing is said."""
        if self.bucket_cap_mb_list:
            return [int(cap * MIB) for cap in self.bucket_cap_mb_list]
        return [MIB, 25 * MIB] if self.bucket_cap_mb is None else [int(self.bucket_cap_mb * MIB)]

    @property
    def rebuilds(self) -> int:
        """The number of reductions before the buckets are rebuilt."""
        if self.static_graph:
            return 2
        return NO_LIMIT if self.find_unused_parameters else 1


def ddp_buckets(model: Model, options: Ddp, reduced: int = 2) -> list[list[Tensor]]:
    """The buckets that are reduced, in this order, once there were so many reductions. Before
    buckets are rebuilt they are made from the first tensor on, as one unless a list of sizes or
    ``find_unused_parameters`` asks for more, and taken in reverse."""
    itemsize = DTYPES[model.dtype].size
    if reduced >= options.rebuilds:
        return make_buckets(model.tensors[::-1], options.limits, itemsize)
    unused = options.find_unused_parameters and not options.static_graph
    several = options.bucket_cap_mb_list or unused
    limits = options.limits if several else [NO_LIMIT]
    return make_buckets(model.tensors, limits, itemsize)[::-1]


class _Ddp:
    """A program of DDP, as it is written."""

    def __init__(self, model: Model, layout: Layout, options: Ddp) -> None:
        self.model, self.options, self.ranks = model, options, layout.dp
        self.tokens = layout.tokens(model)
        self.itemsize = DTYPES[model.dtype].size
        self.w = Writer()

    def from_0(self, count: int, dtype: str, source: str) -> None:
        """A broadcast of rank 0's."""
        write_operation(self.w, "broadcast", count, dtype, root=0, wait="call", source=source)

    def init(self) -> None:
        self.w.phase = "init"
        source = "number of parameters"
        write_operation(self.w, "all_gather", self.ranks, "int64", wait="call", source=source)
        dimensions = sum(len(tensor.shape) for tensor in self.model.tensors)
        self.from_0(2 * dimensions, "int64", "shapes and strides")
        buffers = self.model.buffers if self.options.broadcast_buffers else ()
        same = [count for count, dtype in buffers if dtype == self.model.dtype]
        state = [*self.model.tensors, *(Tensor("buffers", (count,)) for count in same)]
        for number, bucket in enumerate(make_buckets(state, [BROADCAST], self.itemsize)):
            self.from_0(
                count_elements(bucket), self.model.dtype, name_bucket("broadcast", number, bucket)
            )
        for count, dtype in buffers:
            if dtype != self.model.dtype:
                self.from_0(count, dtype, "buffers")

    def forward(self, micro: int, reduced: int) -> None:
        """A forward pass, before which there were so many reductions."""
        self.w.phase = "forward"
        first = micro == 0 or not self.options.no_sync
        if first and reduced == self.options.rebuilds:
            self.from_0(len(self.model.tensors) + 1, "int32", "order of parameters")
            self.from_0(len(ddp_buckets(self.model, self.options)), "int32", "sizes of buckets")
        if first and self.options.broadcast_buffers:
            broadcast_buffers(self.w, self.model)
        self.w.compute(count_flops(self.model.tensors) * self.tokens, source="forward")

    def backward(self, reduced: int) -> None:
        """A backward pass with reduction: a bucket's begins once its last gradient is there. The
        first one of a static graph begins after all of them."""
        options, model, w = self.options, self.model, self.w
        dtype = {"fp16": "half", "bf16": "bfloat16"}.get(options.hook, model.dtype)
        buckets = ddp_buckets(model, options, reduced)
        work, waits = flops_before(model, buckets), []
        if options.static_graph and reduced == 0:
            w.compute(2 * sum(work) * self.tokens, source="backward")
            work = [0.0] * len(buckets)
            waits.append(self.used())
        for number, (bucket, inside) in enumerate(zip(buckets, work, strict=True)):
            source, count = name_bucket("bucket", number, bucket), count_elements(bucket)
            w.compute(2 * inside * self.tokens, self.copied(count, DTYPES[dtype].size), source)
            waits.append(write_operation(w, "all_reduce", count, dtype, op="sum", source=source))
        if options.find_unused_parameters and not options.static_graph:
            waits.append(self.used())
        w.wait(*waits)
        if copied := self.copied(model.parameters, DTYPES[dtype].size):
            w.compute(0, copied, "gradients from buckets")

    def used(self) -> int:
        """The reduction of which parameters were used."""
        count = len(self.model.tensors)
        return write_operation(
            self.w, "all_reduce", count, "int32", op="sum", source="parameters used"
        )

    def copied(self, count: int, reduced: int) -> int:
        """Bytes read and written where gradients are brought into their bucket and cast, or
        back."""
        copy = 0 if self.options.gradient_as_bucket_view else 2 * count * self.itemsize
        cast = 0 if self.options.hook == "allreduce" else count * (self.itemsize + reduced)
        return copy + cast


def ddp(model: Model, layout: Layout, options: Ddp) -> Step:
    """A step of DistributedDataParallel: buckets of gradients are reduced while backward goes
    on."""
    refuse_other_parallelism("ddp", layout)
    micros = layout.micro_batches
    if options.static_graph and options.no_sync and micros > 1:
        raise UsageError(
            f"{micros} micro-batches under no_sync with static_graph: torch fails in the first one",
            "set no_sync=false or static_graph=false",
        )
    on = _Ddp(model, layout, options)
    if options.init:
        on.init()
    for micro in range(micros):
        passed = options.iteration if options.no_sync else options.iteration * micros + micro
        on.forward(micro, passed)
        on.w.phase = "backward"
        if micro == micros - 1 or not options.no_sync:
            on.backward(passed)
        else:
            on.w.compute(2 * count_flops(model.tensors) * on.tokens, source="backward")
    on.w.phase = "optimizer"
    on.w.compute(0, ADAM * model.nbytes, "Adam")
    return same_everywhere(
        "ddp",
        model,
        layout,
        on.w,
        (
            "gradients are ready in the reverse of the order of first use",
            "Adam, with two moments in the parameters' datatype",
        ),
        parameters=model.nbytes,
        gradients=model.nbytes,
        buckets=0 if options.gradient_as_bucket_view else model.nbytes,
        optimizer=2 * model.nbytes,
        buffers=count_buffer_bytes(model),
    )


def write_passes(w: Writer, model: Model, layout: Layout) -> None:
    """Forward and backward of all micro-batches but the last backward pass."""
    work = count_flops(model.tensors) * layout.tokens(model)
    for micro in range(layout.micro_batches):
        w.phase = "forward"
        w.compute(work, source="forward")
        w.phase = "backward"
        if micro < layout.micro_batches - 1:
            w.compute(2 * work, source="backward")


def averaging(model: Model, layout: Layout, options: Nothing) -> Step:
    """A step of PyTorch's tutorial on writing distributed applications: after backward each
    parameter's gradient is reduced by itself, waited for, and divided."""
    refuse_other_parallelism("averaging", layout)
    w = Writer()
    write_passes(w, model, layout)
    w.compute(2 * count_flops(model.tensors) * layout.tokens(model), source="backward")
    for tensor in model.tensors:
        name = tensor.name
        write_operation(
            w, "all_reduce", tensor.numel, model.dtype, op="sum", wait="call", source=name
        )
    w.phase = "optimizer"
    w.compute(0, 3 * model.nbytes, "SGD")
    return same_everywhere(
        "averaging", model, layout, w, parameters=model.nbytes, gradients=model.nbytes
    )


class Horovod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Horovod's fusion threshold and compression; ``init`` adds the broadcasts of parameters."""

    fusion_mb: Annotated[float, Meta(ge=0, le=1 << 20)] = 64
    compression: Literal["none", "fp16"] = "none"
    init: bool = False


def horovod(model: Model, layout: Layout, options: Horovod) -> Step:
    """A step of Horovod (Sergeev and Del Balso 2018, arXiv 1802.05799): gradients that fit into
    the fusion buffer together are reduced together."""
    refuse_other_parallelism("horovod", layout)
    w = Writer("init")
    if options.init:
        for t in model.tensors:
            write_operation(w, "broadcast", t.numel, model.dtype, root=0, source=t.name)
        w.wait()
    write_passes(w, model, layout)
    dtype = "half" if options.compression == "fp16" else model.dtype
    size = DTYPES[dtype].size
    limit = int(options.fusion_mb * MIB)
    buckets = fuse_buckets(model.tensors[::-1], limit, size)
    for number, (bucket, work) in enumerate(
        zip(buckets, flops_before(model, buckets), strict=True)
    ):
        count, source = count_elements(bucket), name_bucket("fusion", number, bucket)
        w.compute(2 * work * layout.tokens(model), 2 * count * size, source)
        write_operation(w, "all_reduce", count, dtype, op="avg", source=source)
    w.wait()
    w.phase = "optimizer"
    w.compute(0, ADAM * model.nbytes, "Adam")
    return same_everywhere(
        "horovod",
        model,
        layout,
        w,
        (
            "gradients are fused in the order in which they are ready, and none waits for a"
            " cycle's end: which are ready together depends on HOROVOD_CYCLE_TIME",
            "64 MiB are what Horovod's documentation says; later code begins with 128 MiB",
        ),
        parameters=model.nbytes,
        gradients=model.nbytes,
        buffer=limit,
        optimizer=2 * model.nbytes,
    )
