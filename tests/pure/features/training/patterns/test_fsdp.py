"""FSDP2 and HSDP: quoted numbers, closed forms, and the operations of torch's own fully_shard on
its fake process group."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import Recorded, Told, as_model, fake_group, told
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from collbench.core.errors import UsageError
from collbench.features.training import walk
from collbench.features.training.layout import Layout, parse_struct
from collbench.features.training.models import OUTSIDE, Model, Tensor, find_model
from collbench.features.training.patterns.fsdp import Fsdp2, fsdp2
from collbench.features.training.step import Step, refuse_step

RANKS = 8
VOCAB, D, FFN = 1003, 64, 172


class Layer(nn.Module):
    """A layer with a dimension that 8 does not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qk = nn.RMSNorm(D), nn.Linear(D, 80, bias=False)
        self.w1, self.w2 = nn.Linear(D, FFN, bias=False), nn.Linear(FFN, D, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.w2(torch.relu(self.w1(self.qk(self.norm(x))[..., :D])))


class Whole(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, D)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(D), nn.Linear(D, VOCAB, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


class Rootless(nn.Module):
    """One without parameters outside of its layers, of uneven shapes."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(layers - 1))
        self.layers.append(nn.Linear(D, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.one_hot(x % D, D).float().requires_grad_()
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(scope="module")
def group():
    with fake_group(RANKS):
        yield


TORCH = {"float": torch.float32, "bfloat16": torch.bfloat16, "half": torch.float16}


def recorded(kind: type[nn.Module], options: Fsdp2, micros: int) -> list[Told]:
    """What real FSDP2 does in its second step, with the groups."""
    shape = (options.replicas, RANKS // options.replicas)
    mesh = (
        init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        if options.replicas > 1
        else init_device_mesh("cpu", (RANKS,))
    )
    policy = MixedPrecisionPolicy(
        param_dtype=TORCH.get(options.param_dtype), reduce_dtype=TORCH.get(options.reduce_dtype)
    )
    said = {"layers": None, "all": True, "none": False}
    reshard = said.get(options.reshard_after_forward, options.reshard_after_forward)
    made = kind(3)
    for layer in made.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(made, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    for _ in range(2):
        with Recorded(ranks=True) as mode:
            for micro in range(micros):
                made.set_requires_gradient_sync(not options.no_sync or micro == micros - 1)
                made(torch.randint(0, VOCAB, (2, 5))).float().sum().backward()
    return mode.ops


CASES = {
    "defaults": Fsdp2(),
    "mixed": Fsdp2(param_dtype="bfloat16"),
    "16 bits": Fsdp2(param_dtype="bfloat16", reduce_dtype="param"),
    "all": Fsdp2(reshard_after_forward="all"),
    "none": Fsdp2(reshard_after_forward="none"),
    "4": Fsdp2(reshard_after_forward=4),
    "1": Fsdp2(reshard_after_forward=1),
    "8": Fsdp2(reshard_after_forward=8),
    "hybrid": Fsdp2(replicas=2, param_dtype="bfloat16"),
    "hybrid, 2": Fsdp2(replicas=2, reshard_after_forward=2),
    "hybrid, all": Fsdp2(replicas=4, reshard_after_forward="all"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("kind", [Whole, Rootless])
@pytest.mark.parametrize("case", CASES)
def test_operations_are_those_of_torch(case: str, kind: type[nn.Module]) -> None:
    step = fsdp2(as_model(kind(3)), Layout(dp=RANKS), CASES[case])
    assert told(step, ranks=True) == recorded(kind, CASES[case], 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("no_sync", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
def test_micro_batches_are_those_of_torch(replicas: int, no_sync: bool) -> None:
    options = Fsdp2(replicas=replicas, no_sync=no_sync)
    step = fsdp2(as_model(Whole(3)), Layout(dp=RANKS, micro_batches=3), options)
    assert told(step, ranks=True) == recorded(Whole, options, 3)


def moved(step: Step, kind: str, phase: str = "") -> list[int]:
    return [op.nbytes for op in told(step, phase) if op.kind == kind]


@pytest.fixture(scope="module")
def llama() -> Step:
    return fsdp2(find_model("llama3-8b"), Layout(dp=8), Fsdp2())


def test_llama_gathers_all_parameters_in_forward(llama: Step) -> None:
    assert (len(found := moved(llama, "all_gather", "forward")), sum(found)) == (33, 16_060_522_496)


def test_llama_gathers_its_layers_again_in_backward(llama: Step) -> None:
    found = moved(llama, "all_gather", "backward")
    assert (len(found), sum(found)) == (32, 13_959_168_000)


def test_llama_reduces_in_float(llama: Step) -> None:
    found = moved(llama, "reduce_scatter", "backward")
    assert (len(found), sum(found)) == (33, 32_121_044_992)


def test_a_layer_of_llama_is_gathered_and_reduced_whole(llama: Step) -> None:
    layer = moved(llama, "all_gather")[1], moved(llama, "reduce_scatter")[0]
    assert layer == (436_224_000, 872_448_000)


def test_a_rank_has_an_eighth_of_a_layer(llama: Step) -> None:
    assert moved(llama, "all_gather")[1] / 8 == 54_528_000


def test_the_first_dimension_is_padded() -> None:
    step = fsdp2(as_model(Whole(2)), Layout(dp=8), Fsdp2())
    assert [nbytes / 4 for nbytes in moved(step, "all_gather", "forward")] == [
        129_088,
        27_456,
        27_456,
    ]


@st.composite
def models(draw: st.DrawFn) -> Model:
    layers = draw(st.integers(1, 4))
    shapes = st.lists(st.lists(st.integers(1, 70), min_size=1, max_size=3), min_size=1, max_size=3)
    tensors = [
        Tensor(f"layers.{n}.{at}.weight", tuple(shape), n, 1.0)
        for n in range(layers)
        for at, shape in enumerate(draw(shapes))
    ]
    root = [Tensor("root.weight", tuple(shape)) for shape in draw(shapes)[:1]]
    assert root[0].layer == OUTSIDE
    return Model(name="drawn", tensors=(*root, *tensors), layers=layers, dtype="bfloat16")


@settings(max_examples=40, deadline=None)
@given(models(), st.integers(1, 64), st.integers(1, 3))
def test_volume_is_that_of_the_closed_form(of: Model, n: int, micros: int) -> None:
    """Layers are gathered twice, the root once, all is reduced once, a micro-batch."""
    step = fsdp2(of, Layout(dp=n, micro_batches=micros), Fsdp2())
    refuse_step(step)
    walk.refuse_deadlock(step)
    size = {t.name: math.ceil(t.shape[0] / n) * n * math.prod(t.shape[1:]) for t in of.tensors}
    whole = sum(size.values())
    root = size["root.weight"]
    sent = sum(op.sent(n) for op in step.programs[0].ops if op.communicates)
    assert sent == pytest.approx(micros * (n - 1) / n * ((2 * whole - root) * 2 + whole * 4))


@settings(max_examples=20, deadline=None)
@given(models(), st.sampled_from([(2, 2), (4, 2), (2, 8), (3, 5)]))
def test_replicas_reduce_a_ranks_part(of: Model, grid: tuple[int, int]) -> None:
    replicas, shards = grid
    step = fsdp2(of, Layout(dp=replicas * shards), Fsdp2(replicas=replicas))
    walk.refuse_deadlock(step)
    scattered = moved(step, "reduce_scatter")
    assert moved(step, "all_reduce") == [nbytes // shards for nbytes in scattered]


def test_replicas_are_far_apart_and_shards_neighbours() -> None:
    step = fsdp2(find_model("toy"), Layout(dp=8), Fsdp2(replicas=2))
    assert (step.members("shard", 5), step.members("replicate", 5)) == ((4, 5, 6, 7), (1, 5))


def test_predivided_gradients_are_summed() -> None:
    step = fsdp2(find_model("toy"), Layout(dp=2), Fsdp2(reduce_dtype="half"))
    assert {op.op for op in step.programs[0].ops if op.kind == "reduce_scatter"} == {"sum"}


def test_a_layer_is_gathered_while_the_one_before_is_computed() -> None:
    """With gathers as long as a layer's computation only the root's and the first are waited
    for."""
    of = as_model(Rootless(4))
    of = Model(name="even", tensors=of.tensors[:6], layers=3, dtype="float")
    step = fsdp2(of, Layout(dp=2), Fsdp2())
    took = walk.Walk(step, lambda op, party: float(op.kind in ("all_gather", "compute")))
    assert took.seconds == 1 + 3 + 1 + 3 + 1  # the last second is the optimizer's


def test_a_reduction_begins_once_the_one_before_has_ended() -> None:
    made = fsdp2(as_model(Whole(3)), Layout(dp=2), Fsdp2()).programs[0].ops
    at = [number for number, op in enumerate(made) if op.kind == "reduce_scatter"]
    assert [made[number - 1].after for number in at[1:]] == [(number,) for number in at[:-1]]


@pytest.mark.parametrize(
    ("layout", "options", "number"),
    [
        (Layout(dp=8), Fsdp2(replicas=3), "replicas=3"),
        (Layout(dp=8), Fsdp2(reshard_after_forward=3), "reshard_after_forward=3"),
        (Layout(dp=8, tp=2), Fsdp2(), "tp=2"),
    ],
)
def test_what_does_not_divide_is_told(layout: Layout, options: Fsdp2, number: str) -> None:
    with pytest.raises(UsageError, match=number):
        fsdp2(find_model("toy"), layout, options)


def test_a_number_of_ranks_can_be_said() -> None:
    assert parse_struct("reshard_after_forward=4", Fsdp2, "--options").reshard_after_forward == 4
