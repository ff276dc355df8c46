"""What a transformer's layers do with a micro-batch on a grid of ranks, as blocks of operations.

Tensor parallelism is that of Megatron-LM (arXiv 1909.08053), sequence parallelism that of
Korthikanti et al. (arXiv 2205.05198); context parallel ranks come to keys and values by ring
attention (arXiv 2310.01889), all_gathers as for Llama 3 (arXiv 2407.21783), or Ulysses (arXiv
2309.14509). Data is parallel as in Megatron-Core: buckets, and a distributed optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.features.training.layout import Layout, Size
from collbench.features.training.models import Model, Tensor
from collbench.features.training.step import WORLD, Grid, Groups, Writer

INSTANCE = "instance"  # ranks that share an instance of the distributed optimizer
EMBEDDING, HEAD = "embedding", "head"
POSITIONS = "wpe"  # learned positions, which are added to whole sequences
WHOLE = ("norm", "ln_", POSITIONS, "wq_a", "wkv_a", "gate", "c_proj.bias")  # not divided over tp


class Megatron(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of Megatron-Core by its own names, with overlap and the distributed optimizer;
    the ``schedule`` is interleaved where a stage has several chunks. ``cp`` is how context parallel
    ranks come to each other's keys and values (``a2a`` is Ulysses), ``layers`` how many each part
    of the pipeline has, where these are not equally many."""

    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    cp: Literal["p2p", "all_gather", "a2a"] = "p2p"
    layers: tuple[Size, ...] = ()
    use_distributed_optimizer: bool = True
    num_distributed_optimizer_instances: Size = 1
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    grad_reduce_in_fp32: bool = True
    pad_buckets_for_high_nccl_busbw: bool = False
    calculate_per_token_loss: bool = False


class Bucket(NamedTuple):
    """Gradients that are reduced at once: ``elements`` with padding, and the places of its tensors
    in the order of first use."""

    elements: int
    tensors: range


def make_buckets(
    numels: Sequence[int],
    n: int,
    limit: float = math.inf,
    alone: Sequence[int] = (),
    distributed: bool = True,
    high: bool = False,
) -> list[Bucket]:
    """Tensors of so many elements, given in the order of first use, as buckets for ``n`` ranks in
    the order in which backward fills them. A bucket is closed once it has ``limit`` elements;
    tensors at the places ``alone`` have their own. With a distributed optimizer each tensor begins
    at a multiple of 64, and a bucket ends at one of 128 and n (and of 2^16 if ``high``)."""
    buckets: list[Bucket] = []
    end, last = 0, len(numels)
    multiple = math.lcm(n, 128, 1 << 16 if high else 1) if distributed else 1

    def close(first: int) -> None:
        nonlocal end, last
        if last > first:
            buckets.append(Bucket(-(-end // multiple) * multiple, range(first, last)))
        end, last = 0, first

    for at in reversed(range(len(numels))):
        is_alone = distributed and at in alone
        if is_alone:
            close(at + 1)
        end = (-(-end // 64) * 64 if distributed else end) + numels[at]
        if end >= limit or is_alone:
            close(at)
    close(0)
    return buckets


class Section(NamedTuple):
    """A layer of the model with its tensors, or what comes before or after all of them."""

    name: str
    tensors: tuple[Tensor, ...]


Part = tuple[Section, ...]  # what a stage of the pipeline has of the model, or a chunk of it


class Block(Writer):
    """A stretch of a program that is repeated. Computation is joined until something else comes,
    and named by ``source``."""

    def __init__(self, phase: str) -> None:
        super().__init__(phase)
        self.source = ""
        self._flops = 0.0
        self._after: tuple[int, ...] = ()

    def work(self, flops: float, *after: int) -> None:
        """Adds so much computation, once these operations are finished."""
        if after:
            self.flush()
        self._flops, self._after = self._flops + flops, self._after + after

    def flush(self) -> None:
        """Write down the computation that has been collected, as one operation."""
        if self._flops or self._after:
            fields = {"flops": self._flops, "after": self._after, "source": self.source}
            self.add("compute", lane="compute", **fields)
        self._flops, self._after = 0.0, ()

    def comm(self, kind: str, **fields: object) -> int:
        """A communication that comes after the computation so far; its id."""
        self.flush()
        return self.add(kind, **{"source": self.source, **fields})

    def paste(self, other: Block) -> None:
        """Add another's operations, which name each other by their places there."""
        base = len(self.ops)
        self.ops.extend(other.ops)
        for at, op in enumerate(other.ops, base):
            if op.after:
                after = tuple(base + number for number in op.after)
                self.ops[at] = msgspec.structs.replace(op, after=after)


class Gradients(NamedTuple):
    """A bucket of a part: reduced over ``group`` once backward is through its section ``first``,
    and its parameters gathered before forward comes there."""

    group: str
    elements: int
    first: int


class Blocks:
    """What the parts of the pipeline do with one micro-batch, as blocks of operations, on a rank of
    this layout; every rank of a stage does the same. ``size`` are the bytes of a micro-batch's
    activations between two layers, ``message`` those that a pipeline stage sends."""

    def __init__(self, model: Model, layout: Layout, options: Megatron) -> None:
        refuse_shape(model, layout, options)
        self.model, self.layout, self.options = model, layout, options
        self.tokens = layout.tokens(model)
        self.itemsize = DTYPES[model.dtype].size
        self.size = self.tokens * model.hidden * self.itemsize
        self.sp = layout.sp and layout.tp > 1
        self.message = self.size // (layout.tp if self.sp else 1)
        multiple = 128 * layout.tp
        self.vocab = -(-model.vocab // multiple) * multiple
        self.v_dim = model.v_dim or model.head_dim
        self.keys, self.values = (
            self._count_head_bytes(model.kv_heads, width) for width in (model.head_dim, self.v_dim)
        )
        self.grad = "float" if options.grad_reduce_in_fp32 else model.dtype
        self.data = "dp" if layout.cp == 1 else "dp-cp"

    def forward(self, part: Part, gathered: Sequence[Gradients] = ()) -> Block:
        """A forward pass, in which the parameters are gathered first, each bucket while the one
        before it is computed with."""
        block = Block("forward")
        chains = [
            [gradients for gradients in reversed(gathered) if gradients.group == group]
            for group in dict.fromkeys(gradients.group for gradients in gathered)
        ]
        ids = [self.gather(block, chain[0]) for chain in chains]
        for at, section in enumerate(part):
            block.source = section.name
            for number, chain in enumerate(chains):
                while chain and chain[0].first <= at:
                    block.flush()
                    block.wait(ids[number])
                    chain.pop(0)
                    if chain:
                        ids[number] = self.gather(block, chain[0])
            self._section(block, section, True)
        block.flush()
        return block

    def backward(self, part: Part, reduced: Sequence[Gradients] = ()) -> Block:
        """A backward pass, in which these buckets are reduced as soon as they are full."""
        block = Block("backward")
        for at, section in reversed([*enumerate(part)]):
            block.source = section.name
            self._section(block, section, False)
            for gradients in reduced:
                if gradients.first == at:
                    block.flush()
                    self.reduce(block, gradients)
        block.flush()
        return block

    def _section(self, block: Block, section: Section, forward: bool) -> None:
        if section.name == EMBEDDING:
            self._embed_tokens(block, section, forward)
        elif section.name == HEAD:
            flops = 2.0 * self.vocab * self.model.hidden * self.tokens / self.layout.tp
            (self._loss if forward else self.column_backward)(block, flops)
        else:
            for half in (self._half, self.ffn)[:: 1 if forward else -1]:
                half(block, section, forward)

    def _embed_tokens(self, block: Block, section: Section, forward: bool) -> None:
        """A lookup in the ranks' parts of the vocabulary, the results of which are summed. Learned
        positions are added to the sum of the whole sequence, which is divided after that."""
        if not forward:
            self.row_backward(block, 0)
        elif self.sp and any(POSITIONS in tensor.name for tensor in section.tensors):
            self._over_tp(block, "all_reduce")
        else:
            self.row_forward(block, 0)

    def _loss(self, block: Block, flops: float) -> None:
        """The head and a loss over a vocabulary that is divided: the largest logit, the target's,
        and the sum of all exponentials."""
        self.column_forward(block, flops)
        for op in ("max", "sum", "sum") if self.layout.tp > 1 else ():
            fields = {"nbytes": 4 * self.tokens, "dtype": "float", "op": op, "wait": "call"}
            block.comm("all_reduce", group="tp", **fields)

    def _over_tp(self, block: Block, kind: str, wait: str = "call") -> int:
        op = "none" if kind == "all_gather" else "sum"
        fields = {"nbytes": self.size, "dtype": self.model.dtype, "op": op, "wait": wait}
        return block.comm(kind, group="tp", **fields)

    def column_forward(self, block: Block, flops: float) -> None:
        """A matrix divided by columns, all inputs of which each rank needs."""
        if self.sp:
            self._over_tp(block, "all_gather")
        block.work(flops)

    def column_backward(self, block: Block, flops: float) -> None:
        """The gradient of the inputs is reduced while that of the weights is computed; the inputs
        come again while the former is computed, where they are divided."""
        again = [self._over_tp(block, "all_gather", "later")] if self.sp else []
        block.work(flops)
        if self.layout.tp > 1:
            kind = "reduce_scatter" if self.sp else "all_reduce"
            reduced = self._over_tp(block, kind, "later")
            block.work(flops, *again)
            block.flush()
            block.wait(reduced)
        else:
            block.work(flops)

    def row_forward(self, block: Block, flops: float) -> None:
        """A matrix divided by rows, the results of which are summed."""
        block.work(flops)
        if self.layout.tp > 1:
            self._over_tp(block, "reduce_scatter" if self.sp else "all_reduce")

    def row_backward(self, block: Block, flops: float) -> None:
        """The backward pass of a layer that is cut by rows."""
        if self.sp:
            self._over_tp(block, "all_gather")
        block.work(2 * flops)

    def flops(self, tensors: Iterable[Tensor]) -> float:
        """The flops of a rank with these for a micro-batch in forward, beside attention's
        scores."""
        share = self.tokens / self.layout.tp
        return sum(min(t.flops, 2.0 * t.numel) for t in tensors) * share

    def _half(self, block: Block, section: Section, forward: bool) -> None:
        """Attention with the projections around it."""
        *into, out = (t for t in section.tensors if t.flops and is_attention(t))
        scores = (out.flops - 2.0 * out.numel) * self.tokens / self.layout.tp
        first, then = self.flops(into if forward else [out]), self.flops([out] if forward else into)
        core = {"p2p": self._ring, "all_gather": self._gathered, "a2a": self._ulysses}
        (self.column_forward if forward else self.row_backward)(block, first)
        if self.layout.cp == 1:
            block.work(scores if forward else 2 * scores)
        else:
            core[self.options.cp](block, scores, forward)
        (self.row_forward if forward else self.column_backward)(block, then)

    def _count_head_bytes(self, heads: int, width: int) -> int:
        """Bytes of a rank's part of so many heads, each of ``width`` numbers a token."""
        return self.tokens * heads // self.layout.tp * width * self.itemsize

    def _over_cp(self, block: Block, kind: str, nbytes: int, **fields: object) -> int:
        return block.comm(kind, group="cp", nbytes=nbytes, dtype=self.model.dtype, **fields)

    def _ring(self, block: Block, scores: float, forward: bool) -> None:
        """Keys and values go around, and in backward their gradients, each round beside the
        computation with what the round before it brought."""
        flops = scores / self.layout.cp * (1 if forward else 2)
        nbytes = self.keys + self.values
        came: list[int] = []
        gone: list[int] = []
        for _ in range(self.layout.cp - 1):
            ring = self._over_cp(block, "sendrecv", nbytes)
            block.work(flops, *came)
            if not forward:
                gone = [self._over_cp(block, "sendrecv", nbytes, lane="gradients")]
            came = [ring]
        block.work(flops, *came)
        if gone:
            block.flush()
            block.wait(*gone)

    def _gathered(self, block: Block, scores: float, forward: bool) -> None:
        """Write the gathers of all keys and of all values, in backward once more, and there the
        sums of their gradients."""
        sizes = [nbytes * self.layout.cp for nbytes in (self.keys, self.values)]
        for nbytes in sizes:
            self._over_cp(block, "all_gather", nbytes, wait="call")
        block.work(scores if forward else 2 * scores)
        for nbytes in () if forward else sizes:
            self._over_cp(block, "reduce_scatter", nbytes, op="sum", wait="call")

    def _ulysses(self, block: Block, scores: float, forward: bool) -> None:
        """Heads for tokens: queries, keys and values to ranks that have all tokens of some heads,
        and what comes out back; in backward the other way."""
        model = self.model
        queries, outputs = (
            self._count_head_bytes(model.heads, width) for width in (model.head_dim, self.v_dim)
        )
        into, out = (queries, self.keys, self.values), (outputs,)
        for nbytes in into if forward else out:
            self._over_cp(block, "all_to_all", nbytes, wait="call")
        block.work(scores if forward else 2 * scores)
        for nbytes in out if forward else into:
            self._over_cp(block, "all_to_all", nbytes, wait="call")

    def ffn(self, block: Block, section: Section, forward: bool) -> None:
        """The operations after attention."""
        self.dense(block, [t for t in section.tensors if t.flops and not is_attention(t)], forward)

    def dense(self, block: Block, tensors: Sequence[Tensor], forward: bool) -> None:
        """Matrices of which the last is divided by rows, the others by columns."""
        *into, out = tensors
        if forward:
            self.column_forward(block, self.flops(into))
            self.row_forward(block, self.flops([out]))
        else:
            self.row_backward(block, self.flops([out]))
            self.column_backward(block, self.flops(into))

    def numel(self, tensor: Tensor) -> int:
        """Elements of a tensor that a rank of tp has."""
        if is_whole(tensor):
            return tensor.numel
        rows = self.vocab if tensor.shape[0] == self.model.vocab else tensor.shape[0]
        return rows * math.prod(tensor.shape[1:]) // self.layout.tp

    def list_gradients(self, part: Part, chunk: int, stage: int) -> list[Gradients]:
        """The buckets of a part, in the order in which backward fills them. Those of a pipeline's
        further stages and chunks are one."""
        sized = [(self.numel(t), at) for at, section in enumerate(part) for t in section.tensors]
        return self.bucketed(sized, self.data, part, chunk + stage == 0)

    def bucketed(
        self, sized: Sequence[tuple[int, int]], group: str, part: Part, several: bool
    ) -> list[Gradients]:
        """Buckets of tensors with so many elements in so many a section."""
        options, n = self.options, self.width(group)
        several = several and options.overlap_grad_reduce
        shared = self.model.tied and self.layout.pp > 1
        if not sized:
            return []
        alone = [0] if part[0].name == EMBEDDING else [len(sized) - 1] * (part[-1].name == HEAD)
        buckets = make_buckets(
            [numel for numel, _ in sized],
            n // options.num_distributed_optimizer_instances,
            max(40e6, 1e6 * self.width(self.data)) if several else math.inf,
            alone if shared else (),
            options.use_distributed_optimizer,
            options.pad_buckets_for_high_nccl_busbw,
        )
        return [
            Gradients(group, bucket.elements, sized[bucket.tensors[0]][1]) for bucket in buckets
        ]

    def width(self, group: str) -> int:
        """Ranks that have the same parameters."""
        layout = self.layout
        same = layout.cp * layout.dp
        return same * layout.tp // layout.ep if group == "edp" else same

    def several(self, group: str) -> bool:
        """Whether a group has more than one rank."""
        alone = {"tp": self.layout.tp, "embd": self.layout.pp, self.data: self.width(self.data)}
        world, instances = self.layout.world, self.options.num_distributed_optimizer_instances
        alone |= {"tp-pp": self.layout.tp * self.layout.pp}
        alone |= {WORLD: world, INSTANCE: world // instances}
        return alone[group] > 1

    def optimized(self, bucket: Gradients) -> int:
        """Elements of a bucket that a rank updates."""
        n = self.width(bucket.group) // self.options.num_distributed_optimizer_instances
        return bucket.elements // (n if self.options.use_distributed_optimizer else 1)

    def gather(self, writer: Writer, bucket: Gradients) -> int:
        """The parameters of a bucket, of which each rank has updated its share."""
        nbytes = bucket.elements * self.itemsize
        fields = {"dtype": self.model.dtype, "source": f"parameters from section {bucket.first} on"}
        return writer.add("all_gather", group=self.inner(bucket.group), nbytes=nbytes, **fields)

    def reduce(self, writer: Writer, bucket: Gradients) -> None:
        """The gradients of a bucket, for all ranks or each its share; several instances of the
        optimizer then reduce what each rank has of them."""
        nbytes = bucket.elements * DTYPES[self.grad].size
        source = f"gradients down to section {bucket.first}"
        fields = {"dtype": self.grad, "op": "sum", "source": source}
        if not self.options.use_distributed_optimizer:
            writer.add("all_reduce", group=bucket.group, nbytes=nbytes, **fields)
            return
        inner, instances = (
            self.inner(bucket.group),
            self.options.num_distributed_optimizer_instances,
        )
        done = writer.add("reduce_scatter", group=inner, nbytes=nbytes, **fields)
        if instances > 1:
            share = nbytes * instances // self.width(bucket.group)
            group = f"{bucket.group}-outer"
            writer.add("all_reduce", group=group, nbytes=share, after=(done,), **fields)

    def inner(self, group: str) -> str:
        """The ranks of a group that share an instance of the optimizer."""
        several = self.options.num_distributed_optimizer_instances > 1
        return f"{group}-inner" if several else group

    def groups(self) -> dict[str, Groups]:
        """The groups of this layout by name; ``embd`` are the ends of a pipeline."""
        layout, grid = self.layout, self.layout.grid
        names = {"tp": ("tp",), "cp": ("cp",), self.data: ("cp", "dp"), "pp": ("pp",)}
        families = {name: grid.groups(*dimensions) for name, dimensions in names.items()}
        families["embd"] = tuple((pipeline[0], pipeline[-1]) for pipeline in families["pp"])
        families["tp-pp"] = grid.groups("tp", "pp")
        experts = Grid({"ep": layout.ep, "edp": self.width("edp"), "pp": layout.pp})
        families |= {name: experts.groups(name) for name in ("ep", "edp")}
        instances = self.options.num_distributed_optimizer_instances
        stage = layout.world // layout.pp
        families[INSTANCE] = tuple(
            tuple(rank for rank in range(layout.world) if rank % stage * instances // stage == at)
            for at in range(instances)
        )
        for name in (self.data, "edp") if instances > 1 else ():
            family = families[name]
            inner = len(family[0]) // instances
            cut = [group[at : at + inner] for group in family for at in range(0, len(group), inner)]
            families[f"{name}-inner"] = tuple(cut)
            outer = [group[at::inner] for group in family for at in range(inner)]
            families[f"{name}-outer"] = tuple(outer)
        return families


def is_attention(tensor: Tensor) -> bool:
    """Whether a tensor is of attention."""
    return "att" in tensor.name


def is_whole(tensor: Tensor) -> bool:
    """Whether each rank of tp has all of a tensor."""
    return any(name in tensor.name for name in WHOLE)


def has_partial_gradient(tensor: Tensor) -> bool:
    """Whether a rank of tp has its own tokens' part of a tensor's gradient where the sequence is
    divided: true of all that tp does not divide, but for learned positions."""
    return is_whole(tensor) and POSITIONS not in tensor.name


def refuse_shape(model: Model, layout: Layout, options: Megatron) -> None:
    """Raises UsageError for what cannot be divided so, with the number that is wrong."""
    tp, cp, tokens = layout.tp, layout.cp, layout.tokens(model)
    pp, chunks, batches = layout.pp, layout.chunks, layout.micro_batches
    instances = options.num_distributed_optimizer_instances
    if not model.heads:
        raise UsageError(f"{model.name} is not a transformer", "take one, as llama3-8b")
    ulysses = cp if options.cp == "a2a" else 1
    like = tp * cp * layout.dp // layout.ep  # ranks that have the same experts
    for what, number, by, name in (
        ("heads", model.heads, tp * ulysses, "tp x cp" if ulysses > 1 else "tp"),
        ("heads of keys", model.kv_heads, tp * ulysses, "tp x cp" if ulysses > 1 else "tp"),
        ("columns of the MLP", model.ffn, tp, "tp"),
        ("tokens of a micro-batch", tokens, tp if layout.sp else 1, "tp"),
        ("ranks of tp x cp x dp", tp * cp * layout.dp, layout.ep, "ep"),
        ("ranks of cp x dp", cp * layout.dp, instances, "optimizer instances"),
        ("ranks of one expert", like, instances if model.experts else 1, "optimizer instances"),
        ("micro-batches", batches, pp if chunks > 1 else 1, "pp, as an interleaved pipeline needs"),
    ):
        if number % by:
            raise UsageError(
                f"{number} {what} are not divisible by {by} ({name})", "choose another --layout"
            )
    if chunks > 1 and (pp == 1 or options.schedule == "gpipe"):
        raise UsageError(
            f"chunks={chunks} need an interleaved pipeline", "use pp=2 or more, and schedule=1f1b"
        )
    if instances > 1 and not options.use_distributed_optimizer:
        raise UsageError(
            f"{instances} instances are set of a distributed optimizer that is off",
            "set num_distributed_optimizer_instances=1 or use_distributed_optimizer=true",
        )
