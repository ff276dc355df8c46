"""Layers, buckets and data parallelism of Megatron-Core: published numbers, closed forms, and what
torch's own tensor parallelism does."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from helpers.shapes import layers_alone
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.core.errors import UsageError
from collbench.features.training.layout import Layout
from collbench.features.training.models import find_model
from collbench.features.training.patterns.megatron import megatron
from collbench.features.training.patterns.transformer import Megatron, make_buckets
from collbench.features.training.step import Op, Step, refuse_step
from collbench.features.training.walk import Walk

FEW = settings(max_examples=25, deadline=None)
GPT2 = [tensor.numel for tensor in find_model("gpt2-124m").tensors]


def built(
    name: str, layout: Layout, layers: int = 0, bare: bool = False, **options: object
) -> Step:
    """A step that can be run."""
    whole = layers_alone(name) if bare else find_model(name)
    cut = whole.cut(layers) if layers else whole
    step = megatron(cut, layout, Megatron(**options))  # type: ignore[arg-type]
    refuse_step(step)
    Walk(step)
    return step


def found(step: Step, group: str, place: int = 0, **fields: object) -> list[Op]:
    """A program's operations on a group, of which these fields are so."""
    return [
        op
        for op in step.programs[place].ops
        if op.communicates
        and op.group == group
        and all(getattr(op, k) == v for k, v in fields.items())
    ]


def kinds(ops: list[Op]) -> Counter[str]:
    return Counter(op.kind for op in ops)


# Buckets


def test_gpt2s_buckets_are_those_of_megatron_core() -> None:
    made = [each.elements for each in make_buckets(GPT2, 8, 40e6)]
    assert made == [40_163_328, 40_164_864, 44_111_616]


def test_without_overlap_there_is_one_bucket() -> None:
    assert [each.elements for each in make_buckets(GPT2, 8)] == [124_439_808]


def test_a_shared_embedding_has_its_own_bucket() -> None:
    made = make_buckets(GPT2, 8, 40e6, alone=[0])
    assert (made[-1].tensors, made[-1].elements) == (range(1), 38_597_376)


def test_buckets_are_padded_for_bandwidth_on_request() -> None:
    made = make_buckets([1000], 8, high=True)
    assert made[0].elements == 65_536


def test_tensors_begin_at_multiples_of_64() -> None:
    assert make_buckets([1, 1], 1)[0].elements == 128  # 0 to 1, 64 to 65, rounded up
    assert make_buckets([1] * 3, 1)[0].elements == 256


def test_nothing_is_padded_without_a_distributed_optimizer() -> None:
    assert make_buckets([1, 1, 5], 8, distributed=False)[0].elements == 7


@FEW
@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=30),
    st.integers(1, 64),
    st.integers(1, 20_000),
)
def test_buckets_hold_each_tensor_once_and_close_when_full(
    numels: list[int], n: int, limit: int
) -> None:
    made = make_buckets(numels, n, limit)
    assert [at for each in reversed(made) for at in each.tensors] == [*range(len(numels))]
    assert all(each.elements % math.lcm(n, 128) == 0 for each in made)
    for each in made:
        end = 0
        for at in reversed(each.tensors):
            assert end < limit  # else it would have been closed before
            end = -(-end // 64) * 64 + numels[at]
        assert each is made[-1] or end >= limit
        assert 0 <= each.elements - end < math.lcm(n, 128)


# Tensor and sequence parallelism


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [("llama3-405b", 268_435_456), ("llama3-70b", 134_217_728), ("llama3-8b", 67_108_864)],
)
def test_activations_of_published_models(name: str, nbytes: int) -> None:
    step = built(name, Layout(tp=8), layers=1, cp="p2p")
    assert {op.nbytes for op in found(step, "tp", kind="reduce_scatter")} == {nbytes}


@pytest.mark.parametrize(("sp", "nbytes"), [(True, 33_554_432), (False, 268_435_456)])
def test_a_pipelines_message(sp: bool, nbytes: int) -> None:
    step = built("llama3-405b", Layout(tp=8, pp=2, sp=sp), layers=2)
    assert {op.nbytes for op in found(step, "pp")} == {nbytes}


def per_layer(phase: str, sp: bool) -> Counter[str]:
    """Collectives on tp that a layer more brings."""
    layout = Layout(tp=4, sp=sp)
    one, two = (
        kinds(found(built("llama3-8b", layout, layers=n), "tp", phase=phase)) for n in (1, 2)
    )
    return two - one


@pytest.mark.parametrize(
    ("phase", "sp", "expected"),
    [
        ("forward", False, {"all_reduce": 2}),
        ("backward", False, {"all_reduce": 2}),
        ("forward", True, {"all_gather": 2, "reduce_scatter": 2}),
        ("backward", True, {"all_gather": 4, "reduce_scatter": 2}),
    ],
)
def test_collectives_of_a_layer(phase: str, sp: bool, expected: dict[str, int]) -> None:
    assert per_layer(phase, sp) == expected


@contextmanager
def fake_world(n: int) -> Iterator[None]:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=n, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@functools.cache
def of_torch(sp: bool) -> tuple[Counter[str], Counter[str]]:
    """Collectives in forward and backward of a layer that torch makes parallel on four ranks."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(16), nn.LayerNorm(16)
            self.qkv, self.o = nn.Linear(16, 48, bias=False), nn.Linear(48, 16, bias=False)
            self.up, self.down = nn.Linear(16, 64, bias=False), nn.Linear(64, 16, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.o(torch.relu(self.qkv(self.n1(x))))
            return x + self.down(torch.relu(self.up(self.n2(x))))

    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        column, row = {}, {}
        if sp:
            column = {"input_layouts": Shard(1)}
            row = {"output_layouts": Shard(1), "use_local_output": False}
        plan = {name: ColwiseParallel(**column) for name in ("qkv", "up")}
        plan |= {name: RowwiseParallel(**row) for name in ("o", "down")}
        plan |= {name: SequenceParallel() for name in ("n1", "n2") if sp}
        layer = parallelize_module(Layer(), mesh, plan)
        x = torch.randn(2, 2 if sp else 8, 16, requires_grad=True)
        forward, backward = CommDebugMode(), CommDebugMode()
        with forward:
            y = layer(DTensor.from_local(x, mesh, [Shard(1)]) if sp else x)
        with backward:
            (y * y).sum().backward()
        names = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
        counts = []
        for mode in (forward, backward):
            told = {str(k).split(".")[-1]: v for k, v in mode.get_comm_counts().items()}
            counts.append(Counter({names.get(k, k): v for k, v in told.items()}))
    return counts[0], counts[1]


@pytest.mark.parametrize("sp", [False, True])
def test_forward_communicates_as_torchs_parallel_layer(sp: bool) -> None:
    assert per_layer("forward", sp) == of_torch(sp)[0]


@pytest.mark.parametrize("sp", [False, True])
def test_backward_does_too_but_for_inputs_that_are_gathered_again(sp: bool) -> None:
    again = Counter({"all_gather": 2 if sp else 0})
    # of the test's loss
    scalar = Counter({"all_reduce": of_torch(sp)[1]["all_reduce"] if sp else 0})
    assert per_layer("backward", sp) == of_torch(sp)[1] - scalar + again


def test_inputs_are_gathered_again_beside_the_gradient_of_inputs() -> None:
    step = built("llama3-8b", Layout(tp=4), layers=1)
    ops = step.programs[0].ops
    again = [at for at, op in enumerate(ops) if op.kind == "all_gather" and op.phase == "backward"]
    later = [at for at in again if ops[at].group == "tp" and ops[at].wait == "later"]
    assert [ops[at + 1].kind for at in later] == ["compute"] * 3  # two of the layer, the head's


@FEW
@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.booleans(),
)
def test_volume_over_tp(tp: int, cp: int, layers: int, batches: int, sp: bool) -> None:
    layout = Layout(tp=tp, cp=cp, micro_batches=batches, sequence=512, sp=sp)
    step = built("gpt3-175b", layout, layers=layers, bare=True)
    size = 512 // cp * 12_288 * 4
    ops = [op for op in found(step, "tp") if op.phase in {"forward", "backward"}]
    sent = sum(op.sent(tp) for op in ops)
    # an all_reduce sends as much as a reduce_scatter and an all_gather
    halves = 0 if tp == 1 else 10 if sp else 8
    assert sent == pytest.approx(layers * batches * halves * (tp - 1) / tp * size)


def test_the_loss_over_a_divided_vocabulary() -> None:
    step = built("llama3-8b", Layout(tp=4), layers=1)
    ops = found(step, "tp", kind="all_reduce", phase="forward")
    assert [(op.op, op.nbytes, op.dtype) for op in ops] == [
        ("max", 32_768, "float"),
        ("sum", 32_768, "float"),
        ("sum", 32_768, "float"),
    ]


@pytest.mark.parametrize(("sp", "kind"), [(False, "all_reduce"), (True, "reduce_scatter")])
def test_the_embedding_is_summed(sp: bool, kind: str) -> None:
    step = built("llama3-8b", Layout(tp=4, sp=sp), layers=1)
    first = found(step, "tp", phase="forward")[0]
    assert (first.kind, first.nbytes, first.source) == (kind, 67_108_864, "embedding")


def test_learned_positions_are_added_to_whole_sequences() -> None:
    step = built("gpt2-124m", Layout(tp=4), layers=1)
    ops = [op for op in found(step, "tp") if op.source == "embedding"]
    assert [(op.kind, op.phase, op.nbytes) for op in ops] == [
        ("all_reduce", "forward", 1024 * 768 * 4),
        ("all_gather", "backward", 1024 * 768 * 4),
    ]


@pytest.mark.parametrize("pp", [1, 2])
def test_a_tied_head_behind_bare_layers_computes_logits_and_loss(pp: int) -> None:
    step = built("gpt3-175b", Layout(tp=2, pp=pp, sequence=64), layers=2)
    head = [op for op in step.programs[-1].ops if op.source == "head"]
    assert kinds([op for op in head if op.communicates]) == {
        "all_gather": 2,
        "all_reduce": 3,
        "reduce_scatter": 1,
    }
    logits = 2.0 * 50_432 * 12_288 * 64 / 2
    assert sum(op.flops for op in head) == pytest.approx(3 * logits)


def test_gradients_of_norms_are_summed_where_sequences_are_divided() -> None:
    step = built("llama3-8b", Layout(tp=4), layers=2)
    assert [op.nbytes for op in found(step, "tp", phase="optimizer")] == [5 * 4096 * 4]
    whole = built("llama3-8b", Layout(tp=4, sp=False), layers=2)
    assert found(whole, "tp", phase="optimizer") == []


def test_gradients_of_all_that_tp_does_not_divide_are_summed() -> None:
    step = built("gpt2-124m", Layout(tp=4), layers=1)
    (summed,) = found(step, "tp", phase="optimizer")
    norms, biases = 3 * 2 * 768, 2 * 768  # biases of the two matrices that are divided by rows
    assert (summed.kind, summed.nbytes) == ("all_reduce", (norms + biases) * 4)


def test_a_model_without_such_tensors_sums_nothing() -> None:
    step = built("gpt3-175b", Layout(tp=4, sequence=64), layers=1)
    assert found(step, "tp", phase="optimizer") == []


# Context parallelism

LONG = Layout(tp=8, cp=16, sequence=131_072)


def test_a_ring_of_keys_and_values() -> None:
    step = built("llama3-405b", LONG, layers=1)
    forward = found(step, "cp", kind="sendrecv", phase="forward")
    backward = found(step, "cp", kind="sendrecv", phase="backward")
    assert [op.nbytes for op in forward] == [4 << 20] * 15
    assert [op.nbytes for op in backward] == [4 << 20] * 30


def test_all_keys_and_all_values_are_gathered_in_both_passes() -> None:
    step = built("llama3-405b", LONG, layers=1, cp="all_gather")
    gathers = [("all_gather", phase, 32 << 20) for phase in ("forward", "backward") for _ in "kv"]
    assert [(op.kind, op.phase, op.nbytes) for op in found(step, "cp")] == [
        *gathers,
        *[("reduce_scatter", "backward", 32 << 20)] * 2,
    ]
    assert any("again in backward" in assumption for assumption in step.assumptions)


def test_ulysses_exchanges_queries_keys_values_and_results() -> None:
    step = built("llama3-8b", Layout(cp=8), layers=1, cp="a2a")
    whole, keys = 1024 * 4096 * 2, 1024 * 8 * 128 * 2
    ops = found(step, "cp", kind="all_to_all")
    assert [op.nbytes for op in ops if op.phase == "forward"] == [whole, keys, keys, whole]
    assert [op.nbytes for op in ops if op.phase == "backward"] == [whole, whole, keys, keys]


@pytest.mark.parametrize(
    ("cp", "sizes"),
    [
        ("p2p", [320] * 3),  # three times keys and values
        ("all_gather", [4 * 192, 4 * 128] * 3),
        ("a2a", [192, 192, 128, 128, 128, 192, 192, 128]),
    ],
)
def test_values_may_be_narrower_than_keys(cp: str, sizes: list[int]) -> None:
    """DeepSeek-V3's heads: 192 wide keys and queries, 128 wide values and results."""
    latent = find_model("deepseek-v3").cut(1)
    model = msgspec.structs.replace(latent, experts=None)
    step = megatron(model, Layout(cp=4, sequence=4), Megatron(cp=cp))  # type: ignore[arg-type]
    ops = [op for op in found(step, "cp") if cp != "p2p" or op.phase == "forward"]
    assert [op.nbytes for op in ops] == [128 * 2 * size for size in sizes]


@FEW
@given(
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([2, 4, 8]), st.integers(1, 3), st.integers(1, 3)
)
def test_volume_over_cp(tp: int, cp: int, layers: int, batches: int) -> None:
    layout = Layout(tp=tp, cp=cp, micro_batches=batches, sequence=1024)
    keys = 2 * 1024 // cp * 8 // tp * 128 * 2
    ring = found(built("llama3-70b", layout, layers=layers), "cp")
    assert sum(op.sent(cp) for op in ring) == 3 * (cp - 1) * keys * layers * batches
    gathers = found(built("llama3-70b", layout, layers=layers, cp="all_gather"), "cp")
    assert sum(op.sent(cp) for op in gathers) == 3 * (cp - 1) * keys * layers * batches


@pytest.mark.parametrize("kind", ["p2p", "all_gather", "a2a"])
def test_computation_is_the_same_however_keys_come(kind: str) -> None:
    def flops(step: Step) -> float:
        return sum(op.flops for op in step.programs[0].ops)

    alone = flops(built("llama3-8b", Layout(sequence=4096), layers=2))
    shared = flops(built("llama3-8b", Layout(cp=8, sequence=4096), layers=2, cp=kind))
    assert 8 * shared == pytest.approx(alone)


# Data parallelism


@pytest.mark.parametrize("n", [2, 3, 8, 64])
def test_each_gradient_is_reduced_and_each_parameter_gathered_once(n: int) -> None:
    step = built("gpt2-124m", Layout(dp=n, micro_batches=3))
    made = [
        each.elements for each in make_buckets([50_304 * 768, *GPT2[1:]], n, max(40e6, 1e6 * n))
    ]
    reduced = found(step, "dp", kind="reduce_scatter")
    gathered = found(step, "dp", kind="all_gather")
    assert [(op.nbytes, op.dtype) for op in reduced] == [(4 * each, "float") for each in made]
    assert [op.nbytes for op in gathered] == [4 * each for each in reversed(made)]


def test_gradients_of_bfloat16_are_half() -> None:
    whole = built("llama3-8b", Layout(dp=4), layers=2)
    half = built("llama3-8b", Layout(dp=4), layers=2, grad_reduce_in_fp32=False)
    totals = [sum(op.nbytes for op in found(s, "dp", kind="reduce_scatter")) for s in (whole, half)]
    assert totals[0] == 2 * totals[1]


def test_without_a_distributed_optimizer_gradients_are_all_reduced() -> None:
    step = built("gpt2-124m", Layout(dp=8), use_distributed_optimizer=False)
    ops = [op for op in found(step, "dp") if op.phase == "backward"]
    assert kinds(ops) == {"all_reduce": 3}
    assert sum(op.nbytes for op in ops) == 4 * (124_439_808 + 47 * 768)


def test_parameters_come_after_the_optimizer_where_nothing_overlaps() -> None:
    step = built("gpt2-124m", Layout(dp=8), overlap_param_gather=False, overlap_grad_reduce=False)
    gathers = found(step, "dp", kind="all_gather")
    assert [op.phase for op in gathers] == ["optimizer"]


def test_reductions_overlap_the_last_backward_only() -> None:
    step = built("gpt2-124m", Layout(dp=8, micro_batches=3))
    ops = step.programs[0].ops
    last = max(at for at, op in enumerate(ops) if op.kind == "compute" and op.phase == "forward")
    reduced = [at for at, op in enumerate(ops) if op.kind == "reduce_scatter"]
    assert min(reduced) > last
    assert any(op.kind == "compute" and op.flops for op in ops[reduced[0] : reduced[-1]])


def test_instances_of_the_optimizer() -> None:
    step = built("gpt2-124m", Layout(dp=8), num_distributed_optimizer_instances=2)
    inner = found(step, "dp-inner", kind="reduce_scatter")
    outer = found(step, "dp-outer", kind="all_reduce")
    assert [op.nbytes // 4 for op in inner] == [op.nbytes for op in outer]
    assert step.groups["dp-inner"] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert step.groups["dp-outer"] == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_gradients_are_reduced_over_context_and_data() -> None:
    step = built("llama3-8b", Layout(tp=2, cp=2, dp=2), layers=1)
    assert step.groups["dp-cp"] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert found(step, "dp") == []


def test_what_ranks_hold() -> None:
    held = built("gpt2-124m", Layout(dp=8)).programs[0].holds
    elements = 124_439_808 + 47 * 768  # padded
    assert held["parameters"] == 4 * elements
    assert held["gradients"] == 4 * elements
    assert held["optimizer"] == 12 * elements // 8


# Bad input


@pytest.mark.parametrize(
    ("name", "layout", "options", "words"),
    [
        ("gpt2-124m", Layout(tp=8), {}, "12 heads are not divisible by 8"),
        ("llama3-8b", Layout(tp=16), {}, "8 heads of keys are not divisible by 16"),
        ("llama3-8b", Layout(tp=2, cp=8), {"cp": "a2a"}, "8 heads of keys"),
        ("llama3-8b", Layout(pp=5), {}, "32 layers are not divisible by the 5 parts"),
        ("llama3-8b", Layout(cp=3), {}, "8192 tokens are not divisible by cp=3"),
        ("llama3-8b", Layout(tp=8, sequence=4), {}, "4 tokens of a micro-batch"),
        ("llama3-8b", Layout(pp=2, chunks=2, micro_batches=3), {}, "3 micro-batches"),
        ("llama3-8b", Layout(chunks=2), {}, "chunks=2 need an interleaved pipeline"),
        ("llama3-8b", Layout(pp=2, chunks=2, micro_batches=2), {"schedule": "gpipe"}, "chunks=2"),
        ("llama3-8b", Layout(pp=2), {"layers": (30, 1)}, "layers= has 31 layers in 2 parts"),
        (
            "llama3-8b",
            Layout(dp=3),
            {"num_distributed_optimizer_instances": 2},
            "3 ranks of cp x dp",
        ),
        ("deepseek-v3", Layout(), {}, "has experts, which the pattern megatron"),
        ("resnet50", Layout(), {}, "not a transformer"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_its_number(
    name: str, layout: Layout, options: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        megatron(find_model(name), layout, msgspec.convert(options, Megatron))


def test_a_padded_vocabulary_is_said() -> None:
    step = built("gpt2-124m", Layout(tp=4))
    assert "vocabulary padded from 50257 to 50688, a multiple of 128 x tp" in step.assumptions
