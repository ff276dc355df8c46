"""DDP's steps held against torch's own DDP, on its fake process group."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from recorded import Recorded, Told, as_model, done, fake_group, told
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from collbench.core.dtypes import DTYPES
from collbench.features.training.layout import Layout
from collbench.features.training.models import MODELS, find_model
from collbench.features.training.patterns.data_parallel import MIB, Ddp, ddp, make_buckets

RANKS = 8
SMALL = 1e-3  # MiB, so that small models have several buckets


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net1, self.net2 = nn.Linear(10, 10), nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net2(torch.relu(self.net1(x)))


class Normed(nn.Module):
    """One with buffers of two datatypes."""

    def __init__(self) -> None:
        super().__init__()
        self.net1, self.norm, self.net2 = nn.Linear(10, 30), nn.BatchNorm1d(30), nn.Linear(30, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net2(torch.relu(self.norm(self.net1(x))))


class Block(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.ln_1, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ln_2, self.fc, self.out = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.ln_1(x)).chunk(3, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended)
        return x + self.out(torch.relu(self.fc(self.ln_2(x))))


class Gpt(nn.Module):
    """A small GPT-2, its head tied to the embedding."""

    def __init__(self, vocab: int = 97, d: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(32, d)
        self.layers = nn.ModuleList(Block(d) for _ in range(layers))
        self.ln_f = nn.LayerNorm(d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.ln_f(x) @ self.wte.weight.T


MADE = {"toy": Toy, "normed": Normed, "gpt": Gpt}


def batch(kind: str) -> torch.Tensor:
    return torch.randint(0, 97, (2, 8)) if kind == "gpt" else torch.randn(4, 10)


@pytest.fixture(autouse=True, scope="module")
def group():
    with fake_group(RANKS):
        yield


def recorded(kind: str, options: Ddp, micros: int, iterations: int) -> list[list[Told]]:
    """What real DDP does when it is made, and in each iteration."""
    arguments = {
        name: getattr(options, name)
        for name in ("find_unused_parameters", "gradient_as_bucket_view", "static_graph")
    }
    arguments["broadcast_buffers"] = options.broadcast_buffers
    if options.bucket_cap_mb_list:
        arguments["bucket_cap_mb_list"] = list(options.bucket_cap_mb_list)
    elif options.bucket_cap_mb is not None:
        arguments["bucket_cap_mb"] = options.bucket_cap_mb
    with Recorded() as mode:
        made = DistributedDataParallel(MADE[kind](), **arguments)
    found, mode.ops = [mode.ops], []
    made.register_comm_hook(None, mode.hook)
    for _ in range(iterations):
        for micro in range(micros):
            waits = options.no_sync and micro < micros - 1
            with mode, made.no_sync() if waits else nullcontext():
                made(batch(kind)).sum().backward()
        found.append(mode.ops)
        mode.ops = []
    return found


def written(kind: str, options: Ddp, micros: int, iterations: int) -> list[list[Told]]:
    """What the pattern says of the same."""
    of, layout = as_model(MADE[kind]()), Layout(dp=RANKS, micro_batches=micros)
    given = {name: getattr(options, name) for name in options.__struct_fields__}
    steps = [ddp(of, layout, Ddp(**{**given, "iteration": i})) for i in range(iterations)]
    start = ddp(of, layout, Ddp(**{**given, "init": True}))
    return [told(start, "init"), *(told(step) for step in steps)]


CASES = {
    "defaults": Ddp(),
    "small": Ddp(bucket_cap_mb=SMALL),
    "smaller": Ddp(bucket_cap_mb=SMALL / 5),
    "list": Ddp(bucket_cap_mb_list=(SMALL / 5, SMALL, SMALL / 2)),
    "unused": Ddp(find_unused_parameters=True),
    "unused in buckets": Ddp(find_unused_parameters=True, bucket_cap_mb=SMALL),
    "unused, list": Ddp(find_unused_parameters=True, bucket_cap_mb_list=(SMALL, SMALL / 3)),
    "static": Ddp(static_graph=True, bucket_cap_mb=SMALL),
    "static, unused": Ddp(static_graph=True, find_unused_parameters=True, bucket_cap_mb=SMALL),
    "view": Ddp(gradient_as_bucket_view=True, bucket_cap_mb=SMALL),
    "no buffers": Ddp(broadcast_buffers=False),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("case", CASES)
def test_iterations_are_those_of_torch(case: str, kind: str) -> None:
    assert written(kind, CASES[case], 1, 4) == recorded(kind, CASES[case], 1, 4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("no_sync", [True, False])
@pytest.mark.parametrize("case", ["small", "unused in buckets", "static"])
def test_micro_batches_are_those_of_torch(case: str, no_sync: bool, kind: str) -> None:
    given = {name: getattr(CASES[case], name) for name in Ddp.__struct_fields__}
    options = Ddp(**{**given, "no_sync": no_sync})
    if options.static_graph and no_sync:
        with pytest.raises(RuntimeError, match="expect_autograd_hooks_"):
            recorded(kind, options, 3, 1)
        return
    assert written(kind, options, 3, 3) == recorded(kind, options, 3, 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("hook", "real"),
    [("fp16", default_hooks.fp16_compress_hook), ("bf16", default_hooks.bf16_compress_hook)],
)
def test_compressed_gradients_are_those_of_torchs_hooks(hook: str, real: Callable) -> None:
    seen: list[Told] = []

    def all_reduce(tensor: torch.Tensor, **given: object) -> mock.Mock:
        dtype = {torch.float16: "half", torch.bfloat16: "bfloat16"}[tensor.dtype]
        seen.append(Told("all_reduce", tensor.numel() * tensor.element_size(), dtype))
        return mock.Mock(get_future=lambda: done([tensor]))

    def compress(state, bucket):  # by another name: DDP asks for NCCL where it knows bf16's
        return real(state, bucket)

    made = DistributedDataParallel(Gpt(), bucket_cap_mb=SMALL)
    made.register_comm_hook(None, compress)
    with mock.patch.object(default_hooks.dist, "all_reduce", all_reduce):
        for _ in range(2):
            seen.clear()
            made(batch("gpt")).sum().backward()
    options = Ddp(hook=hook, bucket_cap_mb=SMALL, iteration=2)
    assert told(ddp(as_model(Gpt()), Layout(dp=RANKS), options)) == seen


@pytest.mark.parametrize("name", MODELS)
def test_buckets_are_those_of_torchs_rule(name: str) -> None:
    of = find_model(name)
    dtype = getattr(torch, DTYPES[of.dtype].torch)
    tensors = of.tensors[::-1]
    meta = [torch.empty(tensor.shape, dtype=dtype, device="meta") for tensor in tensors]
    place = {tensor.name: at for at, tensor in enumerate(tensors)}
    for limits in ([MIB, 25 * MIB], [5 * MIB], [MIB, 64 * MIB, 2 * MIB]):
        expected, _ = dist._compute_bucket_assignment_by_size(
            meta, limits, [False] * len(meta), [*range(len(meta))]
        )
        found = make_buckets(tensors, limits, DTYPES[of.dtype].size)
        assert [[place[tensor.name] for tensor in bucket] for bucket in found] == expected
