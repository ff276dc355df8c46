"""What torch's own data parallelism asks of a process group, recorded on the fake one: no process
is started and nothing is sent. Operations are told as collbench tells them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from collbench.core.dtypes import DTYPES
from collbench.features.training.models import OUTSIDE, Model, Tensor
from collbench.features.training.step import Step

NAMES = {d.torch: d.name for d in DTYPES.values()}
KINDS = {  # c10d's operation, and which of its arguments has the whole size
    "allgather_": ("all_gather", 0),
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "allreduce_": ("all_reduce", 0),
    "broadcast_": ("broadcast", 0),
}


class Told(NamedTuple):
    """An operation: its kind, size in bytes, datatype, and the ranks of its group."""

    kind: str
    nbytes: int
    dtype: str
    ranks: tuple[int, ...] = ()


def told(step: Step, phase: str = "", ranks: bool = False) -> list[Told]:
    """The operations of rank 0's program, in its order."""
    first = next(program for program in step.programs if 0 in program.ranks)
    return [
        Told(op.kind, op.nbytes, op.dtype, step.members(op.group, 0) if ranks else ())
        for op in first.ops
        if op.communicates and phase in ("", op.phase)
    ]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


class Recorded(TorchDispatchMode):
    """All that goes to a process group while it is active; with ``ranks`` the groups, too."""

    def __init__(self, ranks: bool = False) -> None:
        super().__init__()
        self.ops: list[Told] = []
        self.ranks = ranks

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function.namespace == "c10d":
            kind, place = KINDS[function._schema.name.removeprefix("c10d::")]
            whole = list(_tensors(args[place]))
            ranks = tuple(_members(args)) if self.ranks else ()
            nbytes = sum(tensor.numel() * tensor.element_size() for tensor in whole)
            self.ops.append(Told(kind, nbytes, NAMES[str(whole[0].dtype)[6:]], ranks))
        return function(*args, **(kwargs or {}))

    def hook(self, state, bucket):  # type: ignore[no-untyped-def]  # DDP looks at annotations
        """A hook of DDP that only records the bucket, as its all_reduce."""
        buffer = bucket.buffer()
        nbytes = buffer.numel() * buffer.element_size()
        self.ops.append(Told("all_reduce", nbytes, NAMES[str(buffer.dtype)[6:]]))
        return done(buffer)


def _members(args: Any) -> list[int]:
    for each in args:
        if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(each._type()):
            return dist.get_process_group_ranks(dist.ProcessGroup.unbox(each))
    raise AssertionError("an operation without a process group")


def done(value: Any) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future


@contextmanager
def fake_group(ranks: int) -> Iterator[None]:
    """A process group of so many ranks of which this process is the first, and which computes in
    one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
        torch.set_num_threads(threads)


def as_model(module: torch.nn.Module) -> Model:
    """The model that a module is. ``layers.N.`` in a parameter's name is its layer."""
    tensors = []
    for at, parameter in module.named_parameters():
        parts = at.split(".")
        layer = int(parts[1]) if parts[0] == "layers" else OUTSIDE
        tensors.append(Tensor(at, tuple(parameter.shape), layer, 2.0 * math.prod(parameter.shape)))
    buffers: dict[str, int] = {}
    for buffer in module.buffers():
        dtype = NAMES[str(buffer.dtype)[6:]]
        buffers[dtype] = buffers.get(dtype, 0) + buffer.numel()
    return Model(
        name="made up",
        tensors=tuple(tensors),
        layers=1 + max(tensor.layer for tensor in tensors),
        dtype="float",
        tied=False,
        buffers=tuple((count, dtype) for dtype, count in buffers.items()),
    )
