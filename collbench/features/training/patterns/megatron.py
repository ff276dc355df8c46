"""Megatron-Core's training step: tensor, sequence, context, data and pipeline parallelism on one
grid of ranks. The pipelines are those of Narayanan et al. (arXiv 2104.04473) and GPipe.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.features.training.layout import Layout
from collbench.features.training.models import OUTSIDE, Model, Tensor
from collbench.features.training.patterns.transformer import (
    EMBEDDING,
    HEAD,
    INSTANCE,
    Block,
    Blocks,
    Megatron,
    Part,
    Section,
    has_partial_gradient,
)
from collbench.features.training.step import WORLD, Step

SOURCE = "Megatron-LM d98e8a64"


class Slot(NamedTuple):
    """A pass of a micro-batch through one of a stage's chunks."""

    forward: bool
    chunk: int
    batch: int


def schedule_stage(stage: int, layout: Layout, gpipe: bool = False) -> list[Slot]:
    """The order in which a pipeline stage computes: some forward passes to warm up, then one
    forward and one backward in turn, and the backward passes that are left."""
    pp, chunks, batches = layout.pp, layout.chunks, range(layout.micro_batches)
    order = [
        (chunk, batch)
        for first in batches[::pp]
        for chunk in range(chunks)
        for batch in batches[first : first + pp]
    ]
    forward = [Slot(True, chunk, batch) for chunk, batch in order]
    backward = [Slot(False, chunks - 1 - chunk, batch) for chunk, batch in order]
    behind = pp - 1 - stage
    warm = behind if chunks == 1 else 2 * behind + (chunks - 1) * pp
    warm = len(order) if gpipe else min(warm, len(order))
    pairs = zip(forward[warm:], backward, strict=False)
    return [*forward[:warm], *(s for pair in pairs for s in pair), *backward[len(order) - warm :]]


def divide_layers(layers: int, parts: int, given: Sequence[int]) -> list[int]:
    """How many layers each part of the pipeline has: as told, equally many, or as if embedding and
    loss were a layer each. Raises UsageError."""
    if given:
        if len(given) != parts or sum(given) != layers:
            raise UsageError(
                f"layers= has {sum(given)} layers in {len(given)} parts",
                f"give {layers} in {parts} parts, as pp x chunks has",
            )
        return [*given]
    if layers % parts == 0:
        return [layers // parts] * parts
    per_part, rest = divmod(layers + 2, parts)
    if rest or per_part < 2:
        raise UsageError(
            f"{layers} layers are not divisible by the {parts} parts of the pipeline (pp x chunks)",
            "choose another pp, or say how many each part has, as in layers=4/3/3",
        )
    return [per_part - 1, *[per_part] * (parts - 2), per_part - 1]


def make_parts(model: Model, layers: Sequence[int], tied: bool) -> list[Part]:
    """The parts of the pipeline, of so many layers; with ``tied`` the last one has an embedding of
    its own as head; without it the head of a tied model has no tensors."""
    first = [*itertools.takewhile(lambda tensor: tensor.layer == OUTSIDE, model.tensors)]
    by_layer: dict[int, list[Tensor]] = {number: [] for number in range(OUTSIDE, model.layers)}
    for tensor in model.tensors[len(first) :]:
        by_layer[tensor.layer].append(tensor)
    last = [*by_layer[OUTSIDE], *first[:1]] if tied else by_layer[OUTSIDE]
    has_head = bool(last or (first and model.tied))
    made_parts: list[Part] = []
    for end, count in zip(itertools.accumulate(layers), layers, strict=True):
        sections = [Section(f"layer {n}", tuple(by_layer[n])) for n in range(end - count, end)]
        if not made_parts and first:
            sections.insert(0, Section(EMBEDDING, tuple(first)))
        if len(made_parts) == len(layers) - 1 and has_head:
            sections.append(Section(HEAD, tuple(last)))
        made_parts.append(tuple(sections))
    return made_parts


class Stage:
    """A stage of the pipeline as it writes its program; ``parts`` are its chunks of the model."""

    def __init__(self, blocks: Blocks, stage: int, parts: Sequence[Part]) -> None:
        self.blocks, self.at, self.parts, self.writer = blocks, stage, parts, Block("backward")
        self.buckets = [
            blocks.list_gradients(part, chunk, stage) for chunk, part in enumerate(parts)
        ]
        self.shared = [
            [b for b in chunk_buckets if blocks.width(b.group) > 1]
            for chunk_buckets in self.buckets
        ]
        self.unreduced = {*range(len(parts))}  # chunks whose gradients are not reduced yet
        self.early = blocks.options.overlap_grad_reduce and stage == 0 and len(parts) == 1
        self.slots = schedule_stage(stage, blocks.layout, blocks.options.schedule == "gpipe")

    def passes(self) -> None:
        """All passes with the messages between them. A pipeline of one chunk waits for each
        message, a send together with the receive that goes the other way; an interleaved one
        receives a pass ahead, and does not wait for sends."""
        ahead, writer, batches = len(self.parts) > 1, self.writer, self.blocks.layout.micro_batches
        overlap = self.blocks.options.overlap_grad_reduce
        blocks_by_key: dict[tuple[bool, int, bool], Block] = {}
        done: list[Slot] = []
        posted = self._receive(self.slots[:1])
        for number, slot in enumerate(self.slots):
            following = self.slots[number + 1 : number + 2]
            coming, posted = posted, self._receive(following) if ahead else []
            if coming:
                writer.wait(*coming)
            special = slot.batch == (0 if slot.forward else batches - 1)
            key = (slot.forward, slot.chunk, special)
            if key not in blocks_by_key:
                blocks_by_key[key] = self._make_block(slot, special)
            writer.paste(blocks_by_key[key])
            sent = self._move(slot, True)
            if sent and following and following[0].forward == slot.forward and not ahead:
                writer.wait(*sent)
                sent = []
            posted = posted if ahead else [*sent, *self._receive(following)]
            done += [] if slot.forward else [slot]
            late = len(done) - 1 - self.at
            if overlap and not slot.forward and late >= 0 and done[late].batch == batches - 1:
                self._reduce(done[late].chunk)

    def _make_block(self, slot: Slot, special: bool) -> Block:
        """The operations of a chunk's forward or backward pass; in the ``special`` one, the first
        forward or the last backward, with those on parameters that ranks share."""
        blocks, part, shared = self.blocks, self.parts[slot.chunk], self.shared[slot.chunk]
        if not slot.forward:
            return blocks.backward(part, shared if special and self.early else ())
        early = blocks.options.use_distributed_optimizer and blocks.options.overlap_param_gather
        return blocks.forward(part, shared if special and early else ())

    def _receive(self, slots: Sequence[Slot]) -> list[int]:
        return self._move(slots[0], False) if slots else []

    def _move(self, slot: Slot, out: bool) -> list[int]:
        """The message that a pass sends or needs, unless it is at an end of the pipeline."""
        pp, step = self.blocks.layout.pp, 1 if slot.forward == out else -1
        if pp == 1 or not 0 <= slot.chunk * pp + self.at + step < pp * len(self.parts):
            return []
        kind = "send" if out else "recv"
        fields = {"nbytes": self.blocks.message, "dtype": self.blocks.model.dtype, "group": "pp"}
        fields |= {"peer": (self.at + step) % pp, "tag": 0 if slot.forward else 1}
        lane = f"{kind} {'next' if step > 0 else 'previous'}"
        source = f"{'activations' if slot.forward else 'gradients'} of micro-batch {slot.batch}"
        return [self.writer.add(kind, phase="pipeline", lane=lane, source=source, **fields)]

    def _reduce(self, chunk: int) -> None:
        if chunk in self.unreduced and not self.early:
            for gradients in self.shared[chunk]:
                self.blocks.reduce(self.writer, gradients)
        self.unreduced -= {chunk}

    def finish(self) -> None:
        """The reductions that are left, the norm of all gradients, and the optimizer's step."""
        blocks, writer, layout = self.blocks, self.writer, self.blocks.layout
        options, ends = blocks.options, self.at in {0, layout.pp - 1}
        for chunk in sorted(self.unreduced):
            self._reduce(chunk)
        writer.wait()
        writer.phase = "optimizer"
        sections = itertools.chain.from_iterable(self.parts)
        tensors = [tensor for section in sections for tensor in section.tensors]
        partial = sum(tensor.numel for tensor in tensors if has_partial_gradient(tensor))
        grad, size = blocks.grad, DTYPES[blocks.grad].size
        if blocks.sp and partial:
            self._sum("tp", partial * size, grad, "gradients of what tp does not divide")
        if blocks.model.tied and layout.pp > 1 and ends:
            nbytes = blocks.vocab * blocks.model.hidden // layout.tp * size
            self._sum("embd", nbytes, grad, "gradient of the embedding, which is the head, too")
        if options.calculate_per_token_loss:
            if layout.pp > 1:
                fields = {"nbytes": 4, "dtype": "int32", "source": "tokens", "wait": "call"}
                writer.add("broadcast", group="pp", root=layout.pp - 1, **fields)
            self._sum(blocks.data, 4, "int32", "tokens")
        shared = WORLD if options.num_distributed_optimizer_instances == 1 else INSTANCE
        norm_group = shared if options.use_distributed_optimizer else "tp-pp"
        self._sum(norm_group, 4, "float", "norm of gradients")
        share = sum(blocks.optimized(b) for chunk_buckets in self.buckets for b in chunk_buckets)
        writer.compute(touched=share * 32, source="Adam")
        if options.use_distributed_optimizer and not options.overlap_param_gather:
            writer.wait(
                *(blocks.gather(writer, b) for chunk_shared in self.shared for b in chunk_shared)
            )
        if self.at == layout.pp - 1 and blocks.model.vocab:
            self._sum(blocks.data, 8, "float", "loss and tokens, to be told")

    def _sum(self, group: str, nbytes: int, dtype: str, source: str) -> None:
        """An all_reduce that is waited for, where there is more than one rank."""
        if self.blocks.several(group):
            fields = {"nbytes": nbytes, "dtype": dtype, "op": "sum", "source": source}
            self.writer.add("all_reduce", group=group, wait="call", **fields)

    @property
    def holds(self) -> dict[str, int]:
        """Bytes that a rank of this stage holds, by kind."""
        blocks = self.blocks
        buckets = [b for chunk_buckets in self.buckets for b in chunk_buckets]
        elements = sum(b.elements for b in buckets)
        return {
            "parameters": elements * blocks.itemsize,
            "gradients": elements * DTYPES[blocks.grad].size,
            "optimizer": 12 * sum(map(blocks.optimized, buckets)),
            "buffers": blocks.size,
        }


def megatron(model: Model, layout: Layout, options: Megatron) -> Step:
    """A step of Megatron-Core, one program for each stage of the pipeline. Raises UsageError."""
    if model.experts:
        raise UsageError(
            f"{model.name} has experts, which the pattern megatron lacks",
            "use the pattern moe",
        )
    return assemble_step("megatron", [Blocks(model, layout, options)], options.layers)


def assemble_step(
    name: str, places: Sequence[Blocks], layers: Sequence[int], assumptions: tuple[str, ...] = ()
) -> Step:
    """The step of all stages, in each of which ranks have these blocks in turn."""
    blocks, number = places[0], len(places)
    model, layout = blocks.model, blocks.layout
    counts = divide_layers(model.layers, layout.pp * layout.chunks, layers)
    cut = make_parts(model, counts, model.tied and layout.pp > 1)
    programs = []
    for at in range(layout.pp):
        ranks = layout.grid.ranks("pp", at)
        for index, stage_blocks in enumerate(places):
            stage = Stage(stage_blocks, at, cut[at :: layout.pp])
            stage.passes()
            stage.finish()
            programs.append(stage.writer.program(ranks[index::number], **stage.holds))
    step = Step(f"{name}:{model.name}", layout.world, tuple(programs))
    groups = blocks.groups()
    used = {group: groups[group] for group in step.used if group}
    assumptions = (*list_assumptions(blocks, counts), *assumptions)
    return msgspec.structs.replace(step, groups=used, assumptions=assumptions)


def list_assumptions(blocks: Blocks, counts: Sequence[int]) -> Iterator[str]:
    """Assumptions: read in a framework's source without running it, or left open."""
    layout, model, options = blocks.layout, blocks.model, blocks.options
    yield f"transcribed from {SOURCE}, not run; with overlap and distributed optimizer"
    if blocks.vocab != model.vocab:
        yield f"vocabulary padded from {model.vocab} to {blocks.vocab}, a multiple of 128 x tp"
    if len({*counts}) > 1:
        yield f"layers of the pipeline's parts: {', '.join(map(str, counts))}"
    if layout.cp > 1 and options.cp == "p2p":
        yield "gradients of keys and values go around cp - 1 times, in the model's datatype"
    if layout.cp > 1 and options.cp == "all_gather":
        yield "keys and values are gathered one by one, again in backward (TransformerEngine)"
    if layout.chunks > 1:
        yield "sends of the interleaved pipeline are waited for at the end of backward alone"
    if layout.pp > 1:
        yield "a send ends with its receive (rendezvous)"
