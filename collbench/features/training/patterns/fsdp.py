"""Data parallelism with parameters split over ranks by layers: FSDP2 and its hybrid, HSDP.

Passes gather here what they compute with as torch 2.13 does; tests hold the operations against the
real ones. The interface is that of Zhao et al. 2023 (arXiv 2304.11277), by tensors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from collbench.core.dtypes import DTYPES
from collbench.features.training.layout import Layout, Size
from collbench.features.training.models import OUTSIDE, Model, Tensor
from collbench.features.training.patterns.data_parallel import (
    ADAM,
    count_flops,
    divide_evenly,
    name_bucket,
    refuse_other_parallelism,
    same_everywhere,
    write_operation,
)
from collbench.features.training.step import Grid, Groups, Step, Writer

MASTER = 4  # bytes of a parameter in the optimizer, and of each of Adam's two moments


def pad_to_multiple(count: int, n: int) -> int:
    """The next multiple of n."""
    return -(-count // n) * n


class Ahead:
    """Forward and backward passes that gather the parameters of a layer while the one before it is
    computed. The ``root`` has what is outside of the layers: it is gathered first, its head is
    computed last."""

    def __init__(
        self,
        model: Model,
        layout: Layout,
        layers: Sequence[Sequence[Tensor]],
        size: Callable[[Sequence[Tensor]], int],
        dtypes: tuple[str, str],
    ) -> None:
        self.layers, self.size, (self.gathered, self.reduced) = layers, size, dtypes
        self.tokens, self.w = layout.tokens(model), Writer()
        self.root: Sequence[Tensor] = ()
        self.group = self.again = "dp"  # where parameters are gathered, and in backward
        self.root_again = ""
        self.replicas, self.shards = 1, layout.dp
        self.op = "avg" if self.reduced in ("float", "bfloat16") else "sum"
        self.before: tuple[int, ...] = ()  # the reduce_scatter under way
        self.reductions: list[int] = []

    def gather(self, unit: Sequence[Tensor], group: str) -> tuple[int, ...]:
        """Begin to gather the parameters of a unit; the operations' numbers to wait for."""
        if not unit or not group:
            return ()
        source = name_bucket("gather", len(self.w.ops), unit)
        count = self.size(unit)
        return (
            write_operation(self.w, "all_gather", count, self.gathered, group=group, source=source),
        )

    def ready(self, ids: Sequence[int]) -> None:
        """Wait for operations with these numbers."""
        if ids:
            self.w.wait(*ids)

    def compute(self, unit: Sequence[Tensor], times: int) -> None:
        """Compute with a unit, so many times its forward flops."""
        if unit:
            source = name_bucket("compute", len(self.w.ops), unit)
            self.w.compute(times * count_flops(unit) * self.tokens, source=source)

    def forward(self) -> None:
        """Write the operations of a forward pass."""
        self.w.phase = "forward"
        self.ready(self.gather(self.root, self.group))
        self._through(self.layers, self.group, 1, False)
        self.compute(self.root, 1)

    def backward(self, reduces: bool) -> None:
        """Write the operations of a backward pass; gradients are reduced in the last one of a step
        only."""
        self.w.phase = "backward"
        self.ready(self.gather(self.root, self.root_again))
        self._through(self.layers[::-1], self.again, 2, reduces)
        if reduces and self.root:
            self.reduce(self.root)
        self.ready(self.reductions)
        self.before, self.reductions = (), []

    def _through(
        self, layers: Sequence[Sequence[Tensor]], group: str, times: int, reduces: bool
    ) -> None:
        """Write a pass over ``layers``: each is gathered while the one before computes, ``times``
        as much as in forward, and its gradients are reduced if ``reduces``."""
        coming = self.gather(layers[0], group) if layers else ()
        if times == 2:
            self.compute(self.root, times)
        for layer, following in zip(layers, [*layers, ()][1:], strict=True):
            self.ready(coming)
            coming = self.gather(following, group)
            self.compute(layer, times)
            if reduces:
                self.reduce(layer)

    def reduce(self, unit: Sequence[Tensor]) -> None:
        """The reduction of a unit, once that of the one before is done; then, between replicas,
        that of a rank's part."""
        self.ready(self.before)
        count, source = self.size(unit), name_bucket("gradients", len(self.w.ops), unit)
        fields: dict[str, object] = {"op": self.op, "source": source}
        at = write_operation(
            self.w, "reduce_scatter", count, self.reduced, group=self.group, **fields
        )
        self.before = (at,)
        if self.replicas > 1:
            part = count // self.shards
            fields |= {"group": "replicate", "after": (at,)}
            at = write_operation(self.w, "all_reduce", part, self.reduced, **fields)
        self.reductions.append(at)


class Fsdp2(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """fully_shard's settings, with torchtitan's datatypes: ``param_dtype`` is the model's where it
    is not said. After forward parameters of ``layers`` are let go, of ``all`` (the root's, too) or
    ``none``; a number reshards all to so many ranks. More than one replica is HSDP: whole copies
    between which gradients are reduced. ``no_sync`` reduces in the last micro-batch only."""

    param_dtype: Literal["model", "float", "bfloat16", "half"] = "model"
    reduce_dtype: Literal["param", "float", "bfloat16", "half"] = "float"
    reshard_after_forward: Literal["layers", "all", "none"] | Size = "layers"
    replicas: Size = 1
    no_sync: bool = False


HSDP = {"shard": ("again", "rest"), "replicate": ("replicate",)}


def _arrange_groups(on: Ahead, options: Fsdp2) -> dict[str, Groups]:
    """The groups, and who gathers in which of them."""
    reshard = options.reshard_after_forward
    again = reshard if isinstance(reshard, int) else on.shards
    rest = divide_evenly("ranks of a replica", on.shards, "reshard_after_forward", again)
    grid = Grid({"again": again, "rest": rest, "replicate": options.replicas})
    groups = {"dp": grid.groups(*grid.sizes)}
    if options.replicas > 1:
        groups = {name: grid.groups(*dimensions) for name, dimensions in HSDP.items()}
        on.group = on.again = "shard"
    if reshard in ("none", 1):
        on.again = ""
    elif rest > 1:
        on.again = "reshard"
        groups["reshard"] = grid.groups("again")
    on.root_again = "" if reshard == "layers" else on.again
    return groups


def fsdp2(model: Model, layout: Layout, options: Fsdp2) -> Step:
    """A step of FSDP2, each layer and the root a group of parameters of its own."""
    refuse_other_parallelism("fsdp2", layout)
    shards = divide_evenly("dp", layout.dp, "replicas", options.replicas)
    params = model.dtype if options.param_dtype == "model" else options.param_dtype
    reduced = params if options.reduce_dtype == "param" else options.reduce_dtype

    def size(unit: Sequence[Tensor]) -> int:
        """Elements with the first dimension of each tensor padded."""
        return sum(pad_to_multiple(t.shape[0], shards) * math.prod(t.shape[1:]) for t in unit)

    by_layer = defaultdict[int, list[Tensor]](list)
    for tensor in model.tensors:
        by_layer[tensor.layer].append(tensor)
    root = by_layer.pop(OUTSIDE, [])
    on = Ahead(model, layout, [by_layer[n] for n in sorted(by_layer)], size, (params, reduced))
    on.root, on.shards, on.replicas = root, shards, options.replicas
    groups = _arrange_groups(on, options)
    for micro in range(layout.micro_batches):
        on.forward()
        on.backward(not options.no_sync or micro == layout.micro_batches - 1)
    part = size(model.tensors) // shards
    on.w.phase = "optimizer"
    on.w.compute(0, ADAM * MASTER * part, "Adam")
    largest = sorted((size(unit) for unit in on.layers), reverse=True)
    alive = largest if not on.again else largest[:2]
    # torch adds up micro-batches that are not reduced in whole tensors of the reduced type
    is_held = options.no_sync and layout.micro_batches > 1
    held = {"unreduced": size(model.tensors) * DTYPES[reduced].size} if is_held else {}
    return same_everywhere(
        "fsdp2",
        model,
        layout,
        on.w,
        ("the shards, their gradients and Adam's two moments are in float, as in torchtitan",),
        groups,
        parameters=MASTER * part,
        gradients=MASTER * part,
        optimizer=2 * MASTER * part,
        gathered=(size(root) + sum(alive)) * DTYPES[params].size,
        **held,
    )
