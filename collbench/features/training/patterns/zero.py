"""ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054), in which the optimizer's state, gradients and
parameters are split over ranks: as in the paper, and as DeepSpeed does it; and ZeRO++ (Wang et al.
2023, arXiv 2306.10209) as DeepSpeed does it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.features.training.layout import Layout, Size
from collbench.features.training.models import Model, Tensor
from collbench.features.training.patterns.data_parallel import (
    ADAM,
    count_elements,
    count_flops,
    divide_evenly,
    flops_before,
    fuse_buckets,
    make_buckets,
    name_bucket,
    place_head,
    refuse_other_parallelism,
    same_everywhere,
    write_operation,
)
from collbench.features.training.patterns.fsdp import MASTER, Ahead, pad_to_multiple
from collbench.features.training.step import Grid, Step, Writer

Count = Annotated[int, Meta(ge=0, le=1 << 62)]
How = Literal["deepspeed", "paper"]
DEEPSPEED = "transcribed from DeepSpeed edaa722, not run: "


def list_units(model: Model) -> list[list[Tensor]]:
    """Tensors that are gathered together: a layer's, and what is before and behind the layers."""
    return [list(part) for _, part in itertools.groupby(model.tensors, lambda t: t.layer)]


class Zero(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """DeepSpeed's settings of stages 1 and 2, sizes in elements; or ``how=paper``."""

    how: How = "deepspeed"
    reduce_bucket_size: Annotated[int, Meta(ge=1, le=1 << 62)] = 500_000_000
    use_multi_rank_bucket_allreduce: bool = True
    overlap_comm: bool = False


class _Zero:
    """A program of ZeRO, as it is written."""

    def __init__(self, model: Model, layout: Layout, stage: int) -> None:
        refuse_other_parallelism(f"zero{stage}", layout)
        self.model, self.layout, self.n, self.stage = model, layout, layout.dp, stage
        self.tokens = layout.tokens(model)
        self.w = Writer()
        self.groups = {"dp": layout.grid.groups("dp")}

    def passes(self, backward: Callable[[bool], None]) -> None:
        """Forward passes, and backward passes, which are told whether they are the last."""
        for micro in range(self.layout.micro_batches):
            self.w.phase = "forward"
            self.w.compute(count_flops(self.model.tensors) * self.tokens, source="forward")
            self.w.phase = "backward"
            backward(micro == self.layout.micro_batches - 1)

    def update(self, norms: int = 1) -> None:
        """DeepSpeed's look for overflow and the norm of gradients, then the update of a share."""
        self.w.phase = "optimizer"
        small = {"wait": "call", "group": "dp"}
        if norms and DTYPES[self.model.dtype].size < MASTER:
            write_operation(self.w, "all_reduce", 1, "uint8", op="max", source="overflow", **small)
        for _ in range(norms):
            write_operation(
                self.w, "all_reduce", 1, "float", op="sum", source="norm of gradients", **small
            )
        self.w.compute(0, ADAM * MASTER * self.share, "Adam")

    @property
    def share(self) -> int:
        """Elements of a rank's part of all parameters, padded to two per rank as DeepSpeed does."""
        return pad_to_multiple(self.model.parameters, 2 * self.n) // self.n

    def step(self, parameters: int, gradients: int, *assumptions: str, **holds: int) -> Step:
        itemsize = DTYPES[self.model.dtype].size
        return same_everywhere(
            f"zero{self.stage}",
            self.model,
            self.layout,
            self.w,
            (*assumptions, "Adam, with parameters and two moments in float"),
            self.groups,
            parameters=parameters * itemsize,
            gradients=gradients * itemsize,
            optimizer=3 * MASTER * self.share,
            **holds,
        )


class _Partitioned(_Zero):
    """Stages 1 and 2 as DeepSpeed does them."""

    def __init__(self, model: Model, layout: Layout, stage: int, options: Zero) -> None:
        super().__init__(model, layout, stage)
        self.options = options
        places = itertools.accumulate((t.numel for t in model.tensors), initial=0)
        self.begins = dict(zip((t.name for t in model.tensors), places, strict=False))
        self.last: tuple[int, ...] = ()  # reductions that are under way

    def pieces(self, bucket: Iterable[Tensor]) -> list[tuple[int, int]]:
        """A bucket's parts by the rank that owns them, with their elements, in its order."""
        owned: list[tuple[int, int]] = []
        for tensor in bucket:
            at, end = self.begins[tensor.name], self.begins[tensor.name] + tensor.numel
            while at < end:
                owner = at // self.share
                till = min(end, (owner + 1) * self.share)
                before = owned.pop()[1] if owned and owned[-1][0] == owner else 0
                owned.append((owner, before + till - at))
                at = till
        return owned

    def reduce(self, bucket: Sequence[Tensor], source: str) -> None:
        """The reduction of a bucket: to all, cut behind each piece with which it exceeds its size,
        or each owner's part to it."""
        limit, w, dtype = self.options.reduce_bucket_size, self.w, self.model.dtype
        if self.last:
            w.wait(*self.last)
        wait = "later" if self.options.overlap_comm else "call"
        ids, owned, count = [], defaultdict[int, int](int), 0
        for owner, size in self.pieces(bucket):
            owned[owner] += size
            count += size
            if self.options.use_multi_rank_bucket_allreduce and count > limit:
                ids.append(
                    write_operation(
                        w, "all_reduce", count, dtype, op="sum", wait=wait, source=source
                    )
                )
                count = 0
        if not self.options.use_multi_rank_bucket_allreduce:
            fields = {"op": "sum", "wait": wait, "source": source}
            ids = [
                write_operation(w, "reduce", n, dtype, root=to, **fields) for to, n in owned.items()
            ]
        elif count:
            ids.append(
                write_operation(w, "all_reduce", count, dtype, op="sum", wait=wait, source=source)
            )
        self.last = tuple(ids) if self.options.overlap_comm else ()

    def backward(self, last: bool) -> None:
        """Stage 1 reduces after the last backward pass, from the first tensor on; stage 2 and
        overlap_comm while gradients become ready, a bucket once the next gradient is."""
        model = self.model
        hooked = self.stage == 2 or self.options.overlap_comm
        reduces = self.stage == 2 or last
        if not hooked or not reduces:
            self.w.compute(2 * count_flops(model.tensors) * self.tokens, source="backward")
        if not reduces:
            return
        tensors = model.tensors[::-1] if hooked else model.tensors
        buckets = fuse_buckets(tensors, self.options.reduce_bucket_size)
        ready = [
            [*bucket[number > 0 :], *following[:1]]
            for number, (bucket, following) in enumerate(
                zip(buckets, [*buckets[1:], []], strict=True)
            )
        ]
        for number, (bucket, work) in enumerate(
            zip(buckets, flops_before(model, ready), strict=True)
        ):
            source = name_bucket("bucket", number, bucket)
            copied = 2 * count_elements(bucket) * DTYPES[model.dtype].size
            self.w.compute(2 * work * self.tokens if hooked else 0, copied, source)
            self.reduce(bucket, source)
        if self.last:
            self.w.wait(*self.last)
            self.last = ()

    def make_step(self) -> Step:
        self.passes(self.backward)
        self.update()
        nbytes = self.share * self.n
        write_operation(
            self.w, "all_gather", nbytes, self.model.dtype, wait="call", source="parameters"
        )
        bucket = self.options.reduce_bucket_size * DTYPES[self.model.dtype].size
        return self.step(
            self.model.parameters,
            self.share if self.stage == 2 else self.model.parameters,
            DEEPSPEED + "stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads and"
            " average_tensor; utils.py, all_gather_dp_groups",
            "all parameters are in one group of the optimizer",
            buckets=bucket * (1 + self.options.overlap_comm),
        )


def _zero_paper(model: Model, layout: Layout, stage: int) -> Step:
    """Stages 1 and 2 of the paper: gradients are reduced and scattered, at the end or by layers,
    and the new parameters gathered."""
    on = _Zero(model, layout, stage)
    parts = [list(model.tensors)] if stage == 1 else list_units(model)[::-1]

    def backward(last: bool) -> None:
        for number, (part, work) in enumerate(zip(parts, flops_before(model, parts), strict=True)):
            on.w.compute(2 * work * on.tokens, source=name_bucket("backward", number, part))
            if stage == 2 or last:
                count, source = (
                    pad_to_multiple(count_elements(part), on.n),
                    name_bucket("gradients", number, part),
                )
                write_operation(on.w, "reduce_scatter", count, model.dtype, op="avg", source=source)
        if stage == 2 or last:
            on.w.wait()

    on.passes(backward)
    on.update(norms=0)
    elements = pad_to_multiple(model.parameters, on.n)
    write_operation(on.w, "all_gather", elements, model.dtype, wait="call", source="parameters")
    return on.step(model.parameters, on.share if stage == 2 else model.parameters)


class Zero3(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """DeepSpeed's settings of stage 3 and ZeRO++, sizes in elements; or ``how=paper``. A host has
    ``node`` GPUs."""

    how: How = "deepspeed"
    reduce_bucket_size: Annotated[int, Meta(ge=1, le=1 << 62)] = 500_000_000
    prefetch_bucket_size: Count = 50_000_000
    param_persistence_threshold: Count = 100_000
    max_live_parameters: Count = 1_000_000_000
    max_reuse_distance: Count = 1_000_000_000
    sub_group_size: Count = 1_000_000_000
    zero_hpz_partition_size: Size = 1
    zero_quantized_weights: bool = False
    zero_quantized_gradients: bool = False
    node: Size = 8


def quantized_groups(count: int) -> int:
    """How many groups with a scale each DeepSpeed's CUDAQuantizer divides weights into: near 8,000
    elements each, in eights. Raises UsageError where there is no such number."""
    eights, group_count = count // 8, 0
    if eights and not count % 8:  # of an eighth's divisors the least that is not too small
        most = eights // -(-count // 8000)  # eights that a group may have: 1000 at most
        group_count = eights // next(k for k in range(most, 0, -1) if eights % k == 0)
    while group_count and count % (16 * group_count) == 0 and count / group_count > 8000:
        group_count *= 2
    if not group_count or count / group_count >= 16000:
        raise UsageError(
            f"zero_quantized_weights: DeepSpeed finds no groups of eights for {count} elements",
            "choose another dp, or set zero_quantized_weights=false",
        )
    return group_count


class _Fetched(_Zero):
    """Stage 3 as DeepSpeed does it once it has seen a step: a module's parameters are gathered
    before it, where they are not there, and then those that are used next; they are let go after
    it, unless used again soon."""

    def __init__(self, model: Model, layout: Layout, options: Zero3) -> None:
        super().__init__(model, layout, 3)
        self.options, self.sizes = options, [t.numel for t in model.tensors]
        by_module = itertools.groupby(
            enumerate(model.tensors), lambda item: item[1].name.rpartition(".")[0]
        )
        modules = [[at for at, _ in members] for _, members in by_module]
        self.trace = [*modules, *modules[::-1]]
        behind = [*itertools.accumulate(sum(self.sizes[at] for at in m) for m in modules[::-1])]
        self.behind = [*behind[-2::-1], 0]  # elements of the modules after each
        self.persistent = {
            at for at, n in enumerate(self.sizes) if n <= options.param_persistence_threshold
        }
        self.gathered, self.near = set(self.persistent), set[int]()
        self.flying: dict[int, tuple[int, ...]] = {}
        self.fetched: list[int] = []  # the last step that a parameter is known to be used in
        self.queue: deque[tuple[int, int]] = deque()
        self.live = self.peak = 0
        self.events: deque[int] = deque()
        self._name_groups()

    def _name_groups(self) -> None:
        """Add the groups that secondary partitions and quantized gradients need."""
        n, hpz, node = self.n, self.options.zero_hpz_partition_size, self.options.node
        if hpz > 1:
            rest = divide_evenly("dp", n, "zero_hpz_partition_size", hpz)
            self.groups["hpz"] = Grid({"hpz": hpz, "rest": rest}).groups("hpz")
        self.exchanged = self.options.zero_quantized_gradients and n > node
        if self.exchanged:
            grid = Grid({"node": node, "across": divide_evenly("dp", n, "node", node)})
            self.groups |= {name: grid.groups(name) for name in grid.sizes}

    def gather(self, indices: Iterable[int]) -> None:
        """Write a gather of these parameters, or two where some have a copy in their host."""
        for near, members in itertools.groupby(
            sorted(indices, key=lambda at: (at not in self.near, at)), lambda at: at in self.near
        ):
            ats = list(members)
            group, n = ("hpz", self.options.zero_hpz_partition_size) if near else ("dp", self.n)
            count = sum(pad_to_multiple(self.sizes[at], self.n) for at in ats)
            source = name_bucket("gather", len(self.w.ops), [self.model.tensors[at] for at in ats])
            fields = {"group": group, "source": source}
            if self.options.zero_quantized_weights:
                scales = quantized_groups(count // n) * n
                gathered = write_operation(self.w, "all_gather", count, "int8", **fields)
                ids: tuple[int, ...] = (
                    gathered,
                    write_operation(self.w, "all_gather", scales, "float", **fields),
                )
            else:
                ids = (write_operation(self.w, "all_gather", count, self.model.dtype, **fields),)
            self.flying |= dict.fromkeys(ats, ids)
            self.live += sum(self.sizes[at] for at in ats)
        self.peak = max(self.peak, self.live)

    def fetch(self, step: int) -> None:
        """Write the gathers of parameters that the module at ``step`` lacks and a wait for them,
        then gathers ahead, as far as memory allows."""
        module = self.trace[step]
        if lacking := [at for at in module if at not in self.gathered and at not in self.flying]:
            self.gather(lacking)
        if ids := {operation for at in module for operation in self.flying.pop(at, ())}:
            self.w.wait(*sorted(ids))
        self.gathered.update(module)
        fresh = len([at for at in module if self.fetched[at] < step])
        while self.queue and fresh:
            at, used = self.queue.popleft()
            self.fetched[at], fresh = used, fresh - 1
        room = min(self.options.max_live_parameters - self.live, self.options.prefetch_bucket_size)
        ahead, size = set[int](), 0
        while self.queue and size < room:
            at, used = self.queue.popleft()
            self.fetched[at] = max(self.fetched[at], used)
            if at not in self.gathered and at not in self.flying and at not in ahead:
                ahead.add(at)
                size += self.sizes[at]
        self.gather(ahead)

    def release(self, step: int) -> None:
        """Release the parameters of the module at ``step``, but for small ones, those known to be
        used next, and in forward those that backward uses soon."""
        modules = len(self.trace) // 2
        if step < modules and 2 * self.behind[step] < self.options.max_reuse_distance:
            return
        gone = {at for at in self.trace[step] if self.fetched[at] <= step + 1} - self.persistent
        self.gathered -= gone
        self.live -= sum(self.sizes[at] for at in gone)
        if self.options.zero_hpz_partition_size > 1:
            self.near |= gone

    def reduce(self, bucket: Sequence[Tensor]) -> None:
        """The reduction of a bucket, at most three at a time."""
        while len(self.events) > 2:
            self.w.wait(self.events.popleft())
        if self.exchanged:
            for tensor in bucket[::-1]:
                self.exchange(tensor)
        else:
            self.scatter(bucket[::-1])
        self.events.append(len(self.w.ops) - 1)

    def scatter(self, tensors: Sequence[Tensor]) -> None:
        """A reduce_scatter of tensors, each padded."""
        count = sum(pad_to_multiple(tensor.numel, self.n) for tensor in tensors)
        source = name_bucket("gradients", len(self.w.ops), tensors)
        write_operation(self.w, "reduce_scatter", count, self.model.dtype, op="sum", source=source)

    def exchange(self, tensor: Tensor) -> None:
        """ZeRO++'s reduction in 4 bits with scales: among the GPUs of a host, then between hosts.
        A tensor of one dimension, or that is not divisible, is reduced as ever."""
        if len(tensor.shape) == 1 or tensor.numel % (2 * self.n):
            self.scatter([tensor])
            return
        node = self.options.node
        scales = max(*tensor.shape[:2], self.n)
        data = tensor.numel // 2
        after: tuple[int, ...] = ()
        for name, count, size in (("node", data, scales), ("across", data // node, scales // node)):
            ranks = node if name == "node" else self.n // node
            divide_evenly(f"{tensor.name}'s scales", size, "ranks", ranks)
            for many, dtype in ((count, "int8"), (size, "float")):
                fields = {"group": name, "source": tensor.name, "after": after}
                after = (write_operation(self.w, "all_to_all", many, dtype, **fields),)

    def run(self) -> None:
        """A micro-batch, forward and backward."""
        steps = [(at, step) for step, module in enumerate(self.trace) for at in module]
        self.queue, self.fetched, self.live = deque(steps), [-1] * len(self.sizes), 0
        open_, size = list[Tensor](), 0
        for step, module in enumerate(self.trace):
            back = step >= len(self.trace) // 2
            self.w.phase = "backward" if back else "forward"
            self.fetch(step)
            tensors = [self.model.tensors[at] for at in module]
            source = tensors[0].name.rpartition(".")[0]
            self.w.compute((1 + back) * count_flops(tensors) * self.tokens, source=source)
            for tensor in tensors[::-1] if back else ():
                if open_ and size + tensor.numel > self.options.reduce_bucket_size:
                    self.reduce(open_)
                    open_, size = [], 0
                open_.append(tensor)
                size += tensor.numel
            self.release(step)
        self.reduce(open_)
        self.w.wait()

    def make_step(self) -> Step:
        for _ in range(self.layout.micro_batches):
            self.run()
        parts = [Tensor(t.name, (-(-t.numel // self.n),)) for t in self.model.tensors]
        self.update(len(make_buckets(parts, [self.options.sub_group_size], 1)))
        for at in sorted(self.persistent):
            count, name = pad_to_multiple(self.sizes[at], self.n), self.model.tensors[at].name
            write_operation(self.w, "all_gather", count, self.model.dtype, source=name)
        self.w.wait()
        size = DTYPES[self.model.dtype].size
        return self.step(
            self.share + sum(self.sizes[at] for at in self.persistent),
            self.share,
            DEEPSPEED + "stage3.py, partitioned_param_coordinator.py, coalesced_collectives.py",
            "the third step or a later one, when the order of modules is known; modules without"
            " parameters of their own, which fetch ahead, too, are left out",
            gathered=self.peak * size,
            buckets=self.options.reduce_bucket_size * size,
        )


def zero1(model: Model, layout: Layout, options: Zero) -> Step:
    """A step of ZeRO stage 1: the optimizer's state is split."""
    if options.how == "paper":
        return _zero_paper(model, layout, 1)
    return _Partitioned(model, layout, 1, options).make_step()


def zero2(model: Model, layout: Layout, options: Zero) -> Step:
    """A step of ZeRO stage 2: gradients are split, too."""
    if options.how == "paper":
        return _zero_paper(model, layout, 2)
    return _Partitioned(model, layout, 2, options).make_step()


def zero3(model: Model, layout: Layout, options: Zero3) -> Step:
    """A step of ZeRO stage 3: parameters are split, too, and gathered for forward and for
    backward."""
    model = place_head(model)
    if options.how == "deepspeed":
        return _Fetched(model, layout, options).make_step()
    zero = _Zero(model, layout, 3)
    on = Ahead(
        model,
        layout,
        list_units(model),
        lambda unit: pad_to_multiple(count_elements(unit), layout.dp),
        (model.dtype, model.dtype),
    )
    zero.w = on.w
    for _ in range(layout.micro_batches):
        on.forward()
        on.backward(True)
    zero.update(norms=0)
    largest = sorted((on.size(unit) for unit in on.layers), reverse=True)
    gathered = sum(largest[:2]) * DTYPES[model.dtype].size
    return zero.step(zero.share, zero.share, gathered=gathered)
