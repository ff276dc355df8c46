"""Compressed gradients: PowerSGD and int8 as torch's hooks of DDP do them, sums of encoded blocks,
and DALL-E's two levels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.features.training.layout import Layout
from collbench.features.training.models import OUTSIDE, Model, Tensor
from collbench.features.training.patterns import data_parallel as data
from collbench.features.training.patterns.codec import FORMATS
from collbench.features.training.patterns.fsdp import pad_to_multiple
from collbench.features.training.step import Grid, Program, Step, Writer

Whole = Annotated[int, Meta(ge=1, le=1 << 30)]
Rate = Annotated[float, Meta(ge=0, le=1e6)]
Cap = Annotated[float, Meta(ge=0, le=1 << 20)]
Bucket = Sequence[Tensor]
Send = Callable[[Writer, Bucket, str], "Sent"]

INLINE = (
    "what a hook computes between its operations holds up the backward pass after it, as it does"
    " where callbacks run in the caller's thread"
)
SUMS = (
    "no library reduces 1-6-9: encoded blocks go to all_to_all, are decoded, added in float,"
    " encoded and gathered"
)


class PowerSGD(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of torch's PowerSGDState: ``rank`` of the factors, ``min_rate`` that compression has
    to reach; ``plain`` is one of the first steps, which are not compressed. ``bucket_cap_mb`` left
    at 0 is 25 after a first bucket of 1 MiB."""

    rank: Whole = 1
    min_rate: Rate = 2.0
    plain: bool = False
    bucket_cap_mb: Cap = 0


class Encoded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The 16-bit format in which DDP's buckets are summed."""

    format: Literal["1-6-9", "1-6-9:59"] = "1-6-9"
    bucket_cap_mb: Cap = 0


class Quantized(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scale and zero point for each bucket (``tensor``) or each ``channel`` elements of it."""

    per: Literal["tensor", "channel"] = "tensor"
    channel: Whole = 512
    bucket_cap_mb: Cap = 0


class DallE(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``shards`` of the parameters lie on the GPUs of a machine, and each of them compresses its
    own with a rank of ``rank / shards``. ``wire`` is what the factors are summed in."""

    shards: Whole = 8
    rank: Whole = 896
    wire: Literal["1-6-9", "1-6-9:59", "half", "float"] = "1-6-9"


class Sent(NamedTuple):
    """An operation after which a bucket is there, and the work that is left then."""

    last: int
    flops: float = 0
    touched: int = 0


class Factors(NamedTuple):
    """How a matrix of ``rows`` and ``columns`` is compressed: to ``p`` and ``q`` elements."""

    rows: int
    columns: int
    rank: int

    @property
    def p(self) -> int:
        """Elements of the left factor."""
        return self.rows * self.rank

    @property
    def q(self) -> int:
        """Elements of the right factor."""
        return self.columns * self.rank

    @property
    def flops(self) -> float:
        """FLOPs of one of the products: P, Q, and the gradient from both."""
        return 2.0 * self.rows * self.columns * self.rank

    @property
    def orthogonal(self) -> float:
        """Flops that make the left factor's columns orthogonal."""
        return 2.0 * self.rows * self.rank * self.rank


def factor_tensor(tensor: Tensor, rank: int) -> Factors:
    """The factors of a tensor that PowerSGD views as a matrix: its first axis by the rest."""
    rows = tensor.shape[0]
    columns = tensor.numel // rows
    return Factors(rows, columns, min(rows, columns, rank))


def _make_ddp(
    model: Model, layout: Layout, cap: float, send: Send, **holds: int
) -> tuple[Step, list[list[Tensor]]]:
    """A step of DDP whose hook sends each bucket as ``send`` does; micro-batches but the last are
    under ``no_sync``."""
    data.refuse_other_parallelism("ddp", layout)
    buckets = data.ddp_buckets(model, data.Ddp(bucket_cap_mb=cap or None))
    writer = Writer("forward")
    data.broadcast_buffers(writer, model)
    data.write_passes(writer, model, layout)
    sent = []
    work = data.flops_before(model, buckets)
    for number, (bucket, flops) in enumerate(zip(buckets, work, strict=True)):
        source = f"{bucket[0].name}..., bucket {number}"
        writer.compute(2 * layout.tokens(model) * flops, source=source)
        sent.append(send(writer, bucket, source))
    for sent_bucket in sent:
        writer.wait(sent_bucket.last)
        if sent_bucket.flops or sent_bucket.touched:
            writer.compute(sent_bucket.flops, sent_bucket.touched)
    writer.phase = "optimizer"
    writer.compute(touched=5 * 4 * model.parameters)
    memory = {"parameters": model.nbytes, "gradients": model.nbytes, "buckets": model.nbytes}
    memory |= {"optimizer": 8 * model.parameters, "buffers": data.count_buffer_bytes(model)}
    program = writer.program(range(layout.world), **memory, **holds)
    name = f"{model.name} on {layout.world} ranks"
    return Step(name, layout.world, (program,), {"dp": layout.grid.groups("dp")}), buckets


def powersgd(model: Model, layout: Layout, options: PowerSGD) -> Step:
    """A step of DDP with torch's powerSGD_hook: three all_reduces a bucket, of what is not
    compressed, of P and of Q."""
    size = DTYPES[model.dtype].size

    def compressed(tensor: Tensor) -> Factors | None:
        """The factors, where they save enough."""
        factors = factor_tensor(tensor, options.rank)
        worth = (factors.p + factors.q) * options.min_rate < tensor.numel and not options.plain
        return factors if worth else None

    def send(writer: Writer, bucket: Bucket, source: str) -> Sent:
        add = functools.partial(
            writer.add, "all_reduce", group="dp", dtype=model.dtype, op="sum", source=source
        )
        if options.plain:
            return Sent(add(nbytes=data.count_elements(bucket) * size))
        factored = [factors for factors in map(compressed, bucket) if factors]
        rest = data.count_elements(tensor for tensor in bucket if not compressed(tensor))
        flops = sum(factors.flops for factors in factored)
        writer.compute(
            flops, 4 * size * data.count_elements(bucket), f"error feedback and P, {source}"
        )
        last = add(nbytes=rest * size)
        last = add(nbytes=sum(factors.p for factors in factored) * size, after=(last,))
        orthogonal = sum(factors.orthogonal for factors in factored)
        _write_computation(writer, last, flops + orthogonal, source=f"Q, {source}")
        last = add(nbytes=sum(factors.q for factors in factored) * size, after=(last,))
        return Sent(last, flops, 3 * size * data.count_elements(bucket))

    of_all = [factors for factors in map(compressed, model.tensors) if factors]
    holds = {
        "factors": sum(factors.p + factors.q for factors in of_all) * size,
        "errors": 0 if options.plain else model.nbytes,
    }
    step, _ = _make_ddp(model, layout, options.bucket_cap_mb, send, **holds)
    return msgspec.structs.replace(step, name=f"powersgd: {step.name}", assumptions=(INLINE,))


def _write_computation(
    writer: Writer, after: int, flops: float = 0, touched: int = 0, source: str = ""
) -> int:
    """Computation once an operation is done."""
    return writer.add(
        "compute", after=(after,), lane="compute", flops=flops, touched=touched, source=source
    )


def _write_sum(
    writer: Writer, elements: int, wire: str, group: str, n: int, source: str, *after: int
) -> int:
    """A sum of elements in a datatype, or in a format that has to be encoded and decoded; the
    operation after which it is there, still encoded."""
    if wire in DTYPES:
        nbytes = elements * DTYPES[wire].size
        return writer.add(
            "all_reduce",
            group=group,
            nbytes=nbytes,
            dtype=wire,
            op="sum",
            source=source,
            after=after,
        )
    padded = pad_to_multiple(elements, n)
    add = functools.partial(writer.add, group=group, nbytes=2 * padded, dtype="uint8")
    writer.add(
        "compute", lane="compute", touched=6 * elements, source=f"encode {source}", after=after
    )
    sent = add("all_to_all", source=f"{wire} codes of {source}")
    _write_computation(writer, sent, padded, 2 * padded, f"decode, add and encode {source}")
    return add("all_gather", source=f"{wire} codes of {source}", after=(sent,))


def encoded(model: Model, layout: Layout, options: Encoded) -> Step:
    """A step of DDP whose buckets are summed in a format of 16 bits that no library reduces."""

    def send(writer: Writer, bucket: Bucket, source: str) -> Sent:
        elements = data.count_elements(bucket)
        last = _write_sum(writer, elements, options.format, "dp", layout.dp, source)
        return Sent(last, touched=6 * elements)

    step, buckets = _make_ddp(model, layout, options.bucket_cap_mb, send)
    holds = 2 * 2 * max(map(data.count_elements, buckets))
    return _add_memory(
        step,
        f"encoded {options.format}: {step.name}",
        (SUMS, _describe_number_format(options.format)),
        codes=holds,
    )


def _add_memory(step: Step, name: str, assumptions: tuple[str, ...], **holds: int) -> Step:
    """The step with more bytes a rank."""
    programs = tuple(
        msgspec.structs.replace(program, holds={**program.holds, **holds})
        for program in step.programs
    )
    return msgspec.structs.replace(step, name=name, programs=programs, assumptions=assumptions)


def _describe_number_format(wire: str) -> str:
    """A sentence on the 16-bit format called ``wire``: its bias, its largest number, and which of
    IEEE 754's special values it has."""
    form = FORMATS[wire]
    return (
        f"{form.name} has a bias of {form.bias}, and so {form.largest:g} as its largest number, and"
        " IEEE 754's infinities, NaN and subnormals; the paper gives the numbers of bits, and once"
        " a largest number slightly less than 16"
    )


def quantized(model: Model, layout: Layout, options: Quantized) -> Step:
    """A step of DDP with torch's quantization hooks: an all_gather of scales and zero points, and
    one of all ranks' int8, which is as many times the data as there are ranks."""
    n, size = layout.dp, DTYPES[model.dtype].size

    def send(writer: Writer, bucket: Bucket, source: str) -> Sent:
        elements, channels = data.count_elements(bucket), 1
        if options.per == "channel":  # torch pads a whole channel where none is needed
            channels = elements // options.channel + 1
            elements = channels * options.channel
        add = functools.partial(writer.add, "all_gather", group="dp", source=source)
        writer.compute(touched=size * elements, source=f"range of {source}")
        last = add(nbytes=2 * 4 * channels * n, dtype="float")
        _write_computation(writer, last, touched=(size + 1) * elements, source=f"quantize {source}")
        last = add(nbytes=elements * n, dtype="uint8", after=(last,))
        return Sent(last, touched=(1 + 2 * 4) * elements * n)

    step, buckets = _make_ddp(model, layout, options.bucket_cap_mb, send)
    largest = max(map(data.count_elements, buckets)) + options.channel * (options.per == "channel")
    return _add_memory(
        step,
        f"int8 per {options.per}: {step.name}",
        (INLINE,),
        gathered=n * largest,
        sums=4 * largest,
    )


class Block(NamedTuple):
    """A resblock: its matrices' elements, their factors on one GPU, and its forward FLOPs."""

    name: str
    numel: int
    factors: tuple[Factors, ...]
    flops: float

    @property
    def p(self) -> int:
        """Elements of all left factors."""
        return sum(factors.p for factors in self.factors)

    @property
    def q(self) -> int:
        """Elements of all right factors."""
        return sum(factors.q for factors in self.factors)

    @property
    def products(self) -> float:
        """Flops of all products."""
        return sum(factors.flops for factors in self.factors)


def dalle(model: Model, layout: Layout, options: DallE) -> Step:
    """A step of DALL-E: parameters in shards within a machine, gathered for each resblock and
    their gradients scattered, and between machines PowerSGD on each shard. What is sensitive goes
    as float in one all_reduce."""
    data.refuse_other_parallelism("dalle", layout)
    for number, what in ((layout.dp, "GPUs"), (options.rank, "ranks of the factors")):
        if number % options.shards:
            raise UsageError(
                f"{number} {what} are not divisible by shards={options.shards}",
                "choose shards= that divides both the GPUs and rank=",
            )
    grid = Grid({"shard": options.shards, "machine": layout.dp // options.shards})
    return Step(
        name=f"dalle: {model.name} on {grid.world} ranks",
        world=grid.world,
        programs=(_DallE(model, layout, options).program(),),
        groups={name: grid.groups(name) for name in grid.sizes},
        assumptions=(
            "from arXiv 2102.12092, appendices D and E; its code is not public",
            "sensitive parameters are gathered once a step, and with the norm it is told whether"
            " all numbers are finite",
            "Adam's mean in 1-6-9 and variance in 0-6-10 are kept, and moved by no operation",
            *(
                (
                    "each micro-batch gathers parameters and scatters gradients; their sum is"
                    " compressed once",
                )
                if layout.micro_batches > 1
                else ()
            ),
            *(
                (SUMS, INLINE, _describe_number_format(options.wire))
                if options.wire in FORMATS
                else ()
            ),
        ),
    )


class _DallE:
    """The program that every GPU has, as it is written."""

    def __init__(self, model: Model, layout: Layout, options: DallE) -> None:
        self.options = options
        self.machines = layout.dp // options.shards
        self.tokens, self.micro_batches = layout.tokens(model), layout.micro_batches
        outside = [tensor for tensor in model.tensors if tensor.layer == OUTSIDE]
        self.head = data.count_flops(outside) * self.tokens
        self.writer = Writer("forward")
        self.blocks = list_resblocks(model, options.shards, options.rank)
        self.sensitive = -(-count_sensitive(model) // options.shards)  # of one GPU
        self.last: dict[tuple[str, str], int] = {}  # by what and block: when it is there

    def program(self) -> Program:
        writer, nbytes = self.writer, 4 * self.sensitive * self.options.shards
        self.inside("all_gather", "sensitive", nbytes, "float")
        for micro in range(self.micro_batches):
            writer.phase = "forward"
            self.forward()
            writer.phase = "backward"
            self.backward(self.blocks[::-1], micro == self.micro_batches - 1)
        scattered = self.inside("reduce_scatter", "sensitive", nbytes, "float")
        self.sum("sensitive", self.sensitive, "float", scattered)
        self.inside("all_reduce", "norm", 4, "float")
        writer.wait()
        writer.phase = "optimizer"
        shard = sum(block.numel for block in self.blocks) // self.options.shards
        writer.compute(sum(block.products for block in self.blocks), 10 * shard)
        largest = max(block.numel for block in self.blocks)
        code = 2 if self.options.wire != "float" else 4
        return writer.program(
            range(self.machines * self.options.shards),
            parameters=2 * shard,
            errors=2 * shard,
            moments=4 * shard,
            sensitive=4 * 4 * self.sensitive,
            gathered=2 * 2 * largest + nbytes,
            factors=code * sum(block.p + block.q for block in self.blocks),
        )

    def forward(self) -> None:
        """A forward pass: a block is gathered while the one before it computes. A head is
        sensitive, and so is gathered once a step."""
        self.gather(self.blocks[0])
        for block, following in zip(self.blocks, [*self.blocks[1:], None], strict=True):
            self.gather(following)
            self.work(self.last["all_gather", block.name], block.flops * self.tokens)
        if self.head:
            self.work(self.last["all_gather", "sensitive"], self.head)

    def backward(self, blocks: Sequence[Block], is_last: bool) -> None:
        """A backward pass; in the last one, gradients of one block while the factors of the two
        before it are on their way."""
        self.gather(blocks[0])
        if self.head:
            self.work(self.last["all_gather", "sensitive"], 2 * self.head)
        stages = (self.gradient, self.first, self.second) if is_last else (self.gradient,)
        for turn in range(len(blocks) + 2):
            for late, stage in enumerate(stages):
                if 0 <= turn - late < len(blocks):
                    stage(blocks, turn - late)

    def gradient(self, blocks: Sequence[Block], at: int) -> None:
        """Forward again and backward; the parameters of the next come once the gradients before
        are scattered."""
        if at + 1 < len(blocks):
            before = [self.last["reduce_scatter", blocks[at - 1].name]] if at else []
            self.gather(blocks[at + 1], *before)
        self.work(self.last["all_gather", blocks[at].name], 3 * blocks[at].flops * self.tokens)
        self.inside("reduce_scatter", blocks[at].name, 2 * blocks[at].numel)

    def first(self, blocks: Sequence[Block], at: int) -> None:
        """The errors with the gradient in them, and their P."""
        block = blocks[at]
        scattered = self.last["reduce_scatter", block.name]
        self.work(scattered, block.products, 6 * block.numel // self.options.shards)
        self.sum(f"P of {block.name}", block.p, self.options.wire)

    def second(self, blocks: Sequence[Block], at: int) -> None:
        block = blocks[at]
        orthogonal = sum(factors.orthogonal for factors in block.factors)
        self.work(self.last["sum", f"P of {block.name}"], orthogonal + block.products)
        self.sum(f"Q of {block.name}", block.q, self.options.wire)

    def gather(self, block: Block | None, *after: int) -> None:
        if block:
            self.inside("all_gather", block.name, 2 * block.numel, after=after)

    def inside(
        self, kind: str, source: str, nbytes: int, dtype: str = "half", after: tuple[int, ...] = ()
    ) -> int:
        """An operation in the machine."""
        op = "none" if kind == "all_gather" else "sum"
        number = self.writer.add(
            kind, group="shard", nbytes=nbytes, dtype=dtype, op=op, source=source, after=after
        )
        self.last[kind, source] = number
        return number

    def sum(self, source: str, elements: int, wire: str, *after: int) -> None:
        """Add a sum of ``elements`` between the machines."""
        self.last["sum", source] = _write_sum(
            self.writer, elements, wire, "machine", self.machines, source, *after
        )

    def work(self, after: int, flops: float, touched: int = 0) -> None:
        _write_computation(self.writer, after, flops, touched)


def count_sensitive(model: Model) -> int:
    """Elements that are neither compressed nor of 16 bits: embeddings, unembeddings, gains and
    biases. Where a model names none, those that DALL-E's paper tells of: vocabularies of 16,384
    and 8,192 both ways, 256 places of text and as many padding tokens, 32 rows and columns."""
    elements = data.count_elements(
        tensor for tensor in model.tensors if tensor.layer == OUTSIDE or len(tensor.shape) == 1
    )
    around = 2 * (16384 + 8192) + 2 * 256 + 2 * 32
    return elements or model.hidden * (around + 13 * model.layers)


def list_resblocks(model: Model, shards: int, rank: int) -> list[Block]:
    """Attention and MLP of each layer. Raises UsageError where a matrix has no equal shards."""
    blocks: dict[tuple[int, bool], list[Tensor]] = {}
    for tensor in model.tensors:
        if tensor.layer != OUTSIDE and len(tensor.shape) > 1:
            mlp = any(word in tensor.name for word in ("mlp", "feed_forward", "ffn"))
            blocks.setdefault((tensor.layer, mlp), []).append(tensor)
    if not blocks:
        raise UsageError(f"{model.name} has no layers", "take a transformer, such as dalle-12b")
    return [
        Block(
            f"layer {layer}, {'MLP' if mlp else 'attention'}",
            data.count_elements(tensors),
            tuple(
                factors for tensor in tensors for factors in _shard_factors(tensor, shards, rank)
            ),
            sum(tensor.flops for tensor in tensors),
        )
        for (layer, mlp), tensors in blocks.items()
    ]


def _shard_factors(tensor: Tensor, shards: int, rank: int) -> list[Factors]:
    """The factors of a GPU's shard, each of q, k and v by itself: cut along the output, the second
    matrix of an MLP along its input, which is longer."""
    out, into = tensor.shape[0], tensor.numel // tensor.shape[0]
    parts = 3 if "qkv" in tensor.name or "c_attn" in tensor.name else 1
    out //= parts
    if max(out, into) % shards:
        raise UsageError(
            f"{tensor.name} has {max(out, into)} rows, not divisible by shards={shards}",
            "choose another shards=",
        )
    rows, columns = (into // shards, out) if into > out else (into, out // shards)
    return [Factors(rows, columns, min(rows, columns, rank // shards))] * parts
