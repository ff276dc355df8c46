"""Compressed gradients: the operations and their sizes, against torch's own hooks and the DALL-E
paper's table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook, quantization_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from collbench.core.errors import UsageError
from collbench.features.training import layout, models, presets, step, walk
from collbench.features.training.layout import Layout
from collbench.features.training.models import Model, Tensor
from collbench.features.training.patterns import compressed, data_parallel
from collbench.features.training.patterns.compressed import DallE, Encoded, PowerSGD, Quantized
from collbench.features.training.step import Op, Step

RANKS = 4


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """Ranks that are not there: every operation succeeds at once and moves nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def checked(made: Step) -> list[Op]:
    """The operations of the only program, once the step is found sound."""
    step.refuse_step(made)
    walk.refuse_deadlock(made)
    (program,) = made.programs
    return list(program.ops)


def moved(made: Step, *kinds: str) -> list[Op]:
    return [op for op in checked(made) if op.communicates and (not kinds or op.kind in kinds)]


def elements(ops: list[Op], size: int = 4) -> list[int]:
    return [op.nbytes // size for op in ops]


GPT2 = models.find_model("gpt2-124m")
SMALL = [(4, 4), (40, 300), (40,), (3, 2), (64, 40, 3, 3), (700, 900), (5000,), (1, 1), (512,)]


def of(shapes: list[tuple[int, ...]]) -> Model:
    tensors = tuple(Tensor(str(n), shape, 0, 1.0) for n, shape in enumerate(shapes))
    return Model(name="small", tensors=tensors, dtype="float")


class Used(torch.nn.Module):
    """Parameters of these shapes, each used once, in order."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.all = torch.nn.ParameterList([torch.nn.Parameter(torch.rand(s)) for s in shapes])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.all:
            x = x + each.sum() * x  # the next one depends on it, so that gradients come in reverse
        return x


class Done:
    """An operation that is through; a fake group's own has no result."""

    def __init__(self, result: Any) -> None:
        self.future: torch.futures.Future[Any] = torch.futures.Future()
        self.future.set_result([result])

    def get_future(self) -> torch.futures.Future[Any]:
        return self.future


def recorded(
    monkeypatch: pytest.MonkeyPatch,
    shapes: list[tuple[int, ...]],
    hook: Callable[..., Any],
    state: Any,
    steps: int,
) -> list[tuple[str, int, str]]:
    """What torch's hook does in the last of so many steps of a real DDP: kind, bytes as collbench
    counts them, and datatype."""
    seen: list[tuple[str, int, str]] = []

    def all_reduce(tensor: torch.Tensor, *args: Any, **kw: Any) -> Done:
        seen.append(("all_reduce", tensor.nbytes, str(tensor.dtype)))
        return Done(tensor)

    def all_gather(into: list[torch.Tensor], tensor: torch.Tensor, *args: Any, **kw: Any) -> Done:
        seen.append(("all_gather", tensor.nbytes * len(into), str(tensor.dtype)))
        return Done(torch.stack([tensor] * len(into)))  # one tensor, as NCCL's futures have

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "all_gather", all_gather)
    ddp = DistributedDataParallel(Used(shapes))
    ddp.register_comm_hook(state, hook)
    for _ in range(steps):
        seen.clear()
        ddp(torch.ones(())).backward()
    return seen


def told(made: Step) -> list[tuple[str, int, str]]:
    names = {"float": "torch.float32", "uint8": "torch.uint8"}
    return [(op.kind, op.nbytes, names[op.dtype]) for op in moved(made)]


@pytest.mark.parametrize("shapes", [SMALL, SMALL[::-1], [(2, 3)], [(600, 600), (700, 500)]])
@pytest.mark.parametrize(("rank", "rate"), [(1, 2.0), (4, 2.0), (8, 20.0)])
def test_powersgd_is_torchs(
    group: None,
    monkeypatch: pytest.MonkeyPatch,
    shapes: list[tuple[int, ...]],
    rank: int,
    rate: float,
) -> None:
    state = powerSGD_hook.PowerSGDState(None, rank, 2, min_compression_rate=rate)
    real = recorded(monkeypatch, shapes, powerSGD_hook.powerSGD_hook, state, 4)
    ours = compressed.powersgd(of(shapes), Layout(dp=RANKS), PowerSGD(rank=rank, min_rate=rate))
    assert told(ours) == real


def test_the_first_steps_are_plain(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    state = powerSGD_hook.PowerSGDState(None, 4, 10)
    real = recorded(monkeypatch, SMALL, powerSGD_hook.powerSGD_hook, state, 3)
    ours = compressed.powersgd(of(SMALL), Layout(dp=RANKS), PowerSGD(rank=4, plain=True))
    assert told(ours) == real
    assert len(real) == 2


@pytest.mark.parametrize("shapes", [SMALL, [(512, 2)], [(1, 511)], [(3, 2)]])
@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_int8_is_torchs(
    group: None, monkeypatch: pytest.MonkeyPatch, shapes: list[tuple[int, ...]], per: Any
) -> None:
    hook = getattr(quantization_hooks, f"quantization_per{per}_hook")
    real = recorded(monkeypatch, shapes, hook, None, 2)
    ours = compressed.quantized(of(shapes), Layout(dp=RANKS), Quantized(per=per))
    assert told(ours) == real


def test_gpt2_with_rank_4() -> None:
    ops = moved(compressed.powersgd(GPT2, Layout(dp=8), PowerSGD(rank=4)), "all_reduce")
    middle = [9_984, 27_648, 21_504] * 11
    assert elements(ops) == [2_304, 3_072, 12_288, *middle, 9_216, 229_700, 15_360]
    assert len(ops) == 39
    assert sum(elements(ops)) == 922_436


def test_plain_buckets_of_gpt2() -> None:
    ops = moved(compressed.powersgd(GPT2, Layout(dp=8), PowerSGD(plain=True)))
    assert [op.nbytes for op in ops] == [9_446_400, *[28_351_488] * 11, 176_446_464]


def test_each_sum_of_a_bucket_waits_for_the_one_before() -> None:
    ops = checked(compressed.powersgd(GPT2, Layout(dp=8), PowerSGD(rank=4)))
    ids = [n for n, op in enumerate(ops) if op.kind == "all_reduce"]
    for first, p, q in zip(ids[::3], ids[1::3], ids[2::3], strict=True):
        assert (ops[first].after, ops[p].after, ops[q].after) == ((), (first,), (p,))


def outlined(made: Step) -> list[tuple[str, str, float, int]]:
    """What a step computes and moves, without copies in memory."""
    ops = [op for op in checked(made) if op.flops or op.communicates]
    return [(op.kind, op.phase, op.flops, op.nbytes) for op in ops]


@pytest.mark.parametrize("name", ["gpt2-124m", "resnet50"])
@pytest.mark.parametrize("batches", [1, 3])
def test_a_plain_step_of_a_hook_is_ddps(name: str, batches: int) -> None:
    """Micro-batches before the last reduce nothing, a tied head comes first in backward, and
    buffers are broadcast."""
    model, on = models.find_model(name), Layout(dp=RANKS, micro_batches=batches)
    hooked = compressed.powersgd(model, on, PowerSGD(plain=True))
    assert outlined(hooked) == outlined(data_parallel.ddp(model, on, data_parallel.Ddp()))


def test_backward_takes_twice_what_forward_does() -> None:
    model = models.find_model("toy")
    ops = checked(compressed.encoded(model, Layout(dp=2, micro_batch=3), Encoded()))
    flops = {
        phase: sum(
            op.flops
            for op in ops
            if (op.phase == phase and "..." in op.source) or op.phase == phase == "forward"
        )
        for phase in ("forward", "backward")
    }
    assert flops["forward"] == 3 * 2 * (100 + 50)
    decoding = sum(op.flops for op in ops if op.source.startswith("decode"))
    assert flops["backward"] - decoding == 2 * flops["forward"]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=3).map(tuple), min_size=1),
    st.integers(1, 64),
    st.integers(1, 16),
    st.floats(0, 8),
    st.floats(0.001, 1),
)
def test_sizes_of_any_shapes(
    shapes: list[tuple[int, ...]], n: int, rank: int, rate: float, cap: float
) -> None:
    options = PowerSGD(rank=rank, min_rate=rate, bucket_cap_mb=cap)
    ops = moved(compressed.powersgd(of(shapes), Layout(dp=n), options))
    numel = [torch.Size(shape).numel() for shape in shapes]
    whole, p, q = 0, 0, 0
    for shape, number in zip(shapes, numel, strict=True):
        rows, columns = shape[0], number // shape[0]
        least = min(rank, rows, columns)
        if (rows + columns) * least * rate < number:
            p, q = p + rows * least, q + columns * least
        else:
            whole += number
    assert [sum(elements(ops[at::3])) for at in range(3)] == [whole, p, q]
    plain = moved(
        compressed.powersgd(of(shapes), Layout(dp=n), PowerSGD(bucket_cap_mb=cap, plain=True))
    )
    assert len(ops) == 3 * len(plain)
    assert all(size >= int(cap * 2**20) for size in [op.nbytes for op in plain][:-1])


@pytest.mark.parametrize("n", range(1, 65))
def test_encoded_sums_take_half_the_bytes(n: int) -> None:
    model = of([(n * 7, 11), (n,)])
    made = compressed.encoded(model, Layout(dp=n), Encoded())
    ops = moved(made)
    assert [(op.kind, op.dtype) for op in ops] == [("all_to_all", "uint8"), ("all_gather", "uint8")]
    whole = 4 * model.parameters
    assert sum(op.sent(n) for op in ops) == pytest.approx(2 * (n - 1) / n * whole / 2)


def test_encoded_blocks_are_padded_to_be_equal() -> None:
    ops = moved(compressed.encoded(of([(10,)]), Layout(dp=4), Encoded()))
    assert [op.nbytes for op in ops] == [2 * 12, 2 * 12]


@pytest.mark.parametrize("n", range(1, 65))
def test_int8_is_gathered_from_all(n: int) -> None:
    model = of([(100, 7)])
    scales, data = moved(compressed.quantized(model, Layout(dp=n), Quantized()))
    assert (scales.nbytes, data.nbytes) == (8 * n, 700 * n)


# DALL-E

LARGE = models.find_model("dalle-12b")


@pytest.fixture(scope="module")
def published() -> Step:
    return compressed.dalle(LARGE, Layout(dp=1024), DallE())


def test_factors_are_those_of_the_papers_second_table() -> None:
    d, r, m = 3968, 896, 8
    blocks = compressed.list_resblocks(LARGE, m, r)
    p, q = sum(block.p for block in blocks), sum(block.q for block in blocks)
    assert len(blocks) == 128
    assert (p, q) == (
        64 * (5 * d * r * m + 4 * d * r) // m**2,
        64 * (d * r * m + 8 * d * r) // m**2,
    )
    assert (p + q) * m / (64 * 12 * d**2) == pytest.approx(5 * r / (8 * d))


@pytest.mark.parametrize(
    ("d", "rank", "saved"), [(1920, 512, "83%"), (2688, 640, "85%"), (3968, 896, "86%")]
)
def test_compression_is_that_of_the_papers_first_table(d: int, rank: int, saved: str) -> None:
    shapes = {
        "attn.qkv": (3 * d, d),
        "attn.out": (d, d),
        "mlp.in": (4 * d, d),
        "mlp.out": (d, 4 * d),
    }
    model = Model(name="x", tensors=tuple(Tensor(name, shape, 0) for name, shape in shapes.items()))
    blocks = compressed.list_resblocks(model, 8, rank)
    left = sum(block.p + block.q for block in blocks) / (12 * d**2 / 8)
    assert f"{1 - left:.0%}" == saved


def test_operations_of_the_published_run(published: Step) -> None:
    ops = moved(published)
    half = [op for op in ops if op.dtype == "half"]
    assert [sum(op.kind == kind for op in half) for kind in ("all_gather", "reduce_scatter")] == [
        256,
        128,
    ]
    assert {op.group for op in half} == {"shard"}
    gathered = sum(op.nbytes for op in half if op.kind == "all_gather")
    assert gathered == 2 * 2 * 12 * 64 * 3968**2
    encoded = [op for op in ops if op.dtype == "uint8"]
    assert (len(encoded), {op.group for op in encoded}) == (512, {"machine"})
    factors = 64 * (2_444_288 + 888_832)
    assert sum(op.nbytes for op in encoded) == 2 * 2 * factors  # 128 divides all of them


def test_one_float_sum_is_of_what_is_sensitive(published: Step) -> None:
    elements = 3968 * (2 * 24576 + 2 * 256 + 2 * 32 + 13 * 64)
    (op,) = [op for op in moved(published) if op.dtype == "float" and op.group == "machine"]
    assert (op.kind, op.op, op.nbytes) == ("all_reduce", "sum", 4 * elements // 8)
    assert compressed.count_sensitive(LARGE) == elements


def test_a_model_that_names_its_gains_and_embeddings() -> None:
    assert (
        compressed.count_sensitive(GPT2)
        == (50257 + 1024 + 2) * 768 + 12 * (4 + 3 + 1 + 4 + 1) * 768
    )
    numel = sum(block.numel for block in compressed.list_resblocks(GPT2, 8, 64))
    assert numel + compressed.count_sensitive(GPT2) == GPT2.parameters


def test_each_micro_batch_gathers_and_the_last_one_compresses() -> None:
    made = compressed.dalle(LARGE.cut(2), Layout(dp=16, micro_batches=3), DallE())
    kinds = [op.kind for op in moved(made) if op.dtype == "half"]
    assert (kinds.count("all_gather"), kinds.count("reduce_scatter")) == (3 * 8, 3 * 4)
    assert len([op for op in moved(made) if op.dtype == "uint8"]) == 2 * 2 * 4
    once = compressed.dalle(LARGE.cut(2), Layout(dp=16), DallE())
    flops = [
        sum(op.flops for op in checked(each) if op.phase == "forward") for each in (made, once)
    ]
    assert flops[0] == pytest.approx(3 * flops[1])


def test_a_head_is_computed_too() -> None:
    ops = checked(compressed.dalle(GPT2, Layout(dp=8), DallE(rank=64)))
    forward = sum(op.flops for op in ops if op.phase == "forward")
    assert forward == pytest.approx(1024 * sum(tensor.flops for tensor in GPT2.tensors))


def test_groups_are_machines_and_places_in_them(published: Step) -> None:
    assert published.groups["shard"][1] == tuple(range(8, 16))
    assert published.groups["machine"][1] == tuple(range(1, 1024, 8))


def test_parameters_are_a_shard_of_24_GB(published: Step) -> None:
    holds = published.programs[0].holds
    assert holds["parameters"] == holds["errors"] == 2 * 12 * 64 * 3968**2 // 8
    assert holds["moments"] == 2 * holds["parameters"]


def test_gathering_and_gradients_overlap_sums(published: Step) -> None:
    seconds = {"compute": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5}

    def took(op: Op, party: walk.Party) -> float:
        return seconds.get(op.kind, 0.0) if op.flops or op.group == "shard" else 0.0

    whole = walk.Walk(published, took).seconds
    alone = walk.Walk(published, lambda op, m: took(op, m) if op.kind == "compute" else 0.0).seconds
    apart = walk.Walk(published, lambda op, m: took(op, m) if op.kind != "compute" else 0.0).seconds
    assert apart > 190
    assert whole - alone < 0.05 * apart


@pytest.mark.parametrize("wire", ["half", "float"])
def test_a_wire_that_libraries_reduce_takes_one_all_reduce(wire: Any) -> None:
    made = compressed.dalle(LARGE.cut(2), Layout(dp=16), DallE(wire=wire))
    sums = [op for op in moved(made, "all_reduce") if op.source[:2] in ("P ", "Q ")]
    assert len(sums) == 2 * 4
    size = {"half": 2, "float": 4}[wire]
    assert sum(op.nbytes for op in sums) == 2 * (2_444_288 + 888_832) * size


@pytest.mark.parametrize(
    ("model", "layout", "options", "number"),
    [
        ("dalle-12b", Layout(dp=12), DallE(), "12 GPUs"),
        ("dalle-12b", Layout(dp=16), DallE(rank=100), "100 ranks"),
        ("dalle-12b", Layout(dp=14), DallE(shards=7), "shards=7"),
        ("resnet50", Layout(dp=8), DallE(), "no layers"),
    ],
)
def test_what_cannot_be_sharded(model: str, layout: Layout, options: DallE, number: str) -> None:
    with pytest.raises(UsageError, match=number):
        compressed.dalle(models.find_model(model), layout, options)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("rank=4,min_rate=3,plain=true", PowerSGD(4, 3.0, True)),
        ("bucket_cap_mb=1.5", PowerSGD(bucket_cap_mb=1.5)),
        ("format=1-6-9:59", Encoded("1-6-9:59")),
        ("per=channel,channel=128", Quantized("channel", 128)),
        ("shards=4,rank=512,wire=half", DallE(4, 512, "half")),
    ],
)
def test_options_are_written_as_text(text: str, options: Any) -> None:
    assert layout.parse_struct(text, type(options), "--options") == options


@pytest.mark.parametrize(
    "text", ["format=0-6-10", "format=1-6-8", "rank=0", "wire=int8", "shards=0", "min_rate=-1"]
)
def test_options_that_are_none(text: str) -> None:
    name, _, _ = text.partition("=")
    kinds: dict[str, Any] = {"format": Encoded, "rank": PowerSGD, "min_rate": PowerSGD}
    with pytest.raises(UsageError, match=name):
        layout.parse_struct(text, kinds.get(name, DallE), "--options")


@pytest.mark.parametrize("wire", ["1-6-9", "1-6-9:59"])
def test_what_a_format_leaves_open_is_told_with_its_largest_number(wire: Any) -> None:
    largest = {"1-6-9": "4.29077e+09", "1-6-9:59": "15.9844"}[wire]
    for made in (
        compressed.encoded(GPT2, Layout(dp=2), Encoded(wire)),
        compressed.dalle(LARGE.cut(1), Layout(dp=8), DallE(wire=wire)),
    ):
        assert any(f"and so {largest} as its largest number" in each for each in made.assumptions)


@pytest.mark.parametrize("name", ["powersgd", "encoded", "int8", "dalle"])
def test_compression_knows_no_other_parallelism(name: str) -> None:
    with pytest.raises(UsageError, match="data parallelism only, not tp=2"):
        presets.find_step(f"{name}:gpt2-124m", "tp=2,dp=8")
