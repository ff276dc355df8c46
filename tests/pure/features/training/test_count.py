"""Models, layouts and presets; what steps are counted and predicted to be."""

from __future__ import annotations

import functools
import math

import pytest
from marks import long

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.core.network import LINKS, Link
from collbench.features.training import presets, step
from collbench.features.training.count import Machine, count_step, forecast_step
from collbench.features.training.layout import Layout, parse_struct
from collbench.features.training.models import MODELS, OUTSIDE, find_model
from collbench.features.training.patterns import experts
from collbench.features.training.patterns.data_parallel import Ddp
from collbench.features.training.step import Op, Program, Step, Writer
from collbench.features.training.walk import Walk

TOTALS = {  # parameters, tensors, bytes
    "gpt2-124m": (124_439_808, 148, 497_759_232),
    "resnet50": (25_557_032, 161, 102_228_128),
    "llama3-8b": (8_030_261_248, 291, 16_060_522_496),
    "llama3-70b": (70_553_706_496, 723, 141_107_412_992),
    "llama3-405b": (405_853_388_800, 1137, 811_706_777_600),
    "toy": (165, 4, 660),
}


@pytest.mark.parametrize("name", TOTALS)
def test_models_have_the_parameters_that_are_published(name: str) -> None:
    found = find_model(name)
    assert (found.parameters, len(found.tensors), found.nbytes) == TOTALS[name]


def test_layers_of_models_have_the_parameters_that_are_published() -> None:
    def numel(name: str, layer: int) -> int:
        return sum(tensor.numel for tensor in find_model(name).layer(layer))

    assert numel("llama3-8b", 31) == 218_112_000
    assert numel("llama3-8b", OUTSIDE) == 1_050_677_248
    assert numel("llama3-70b", 0) == 855_654_400
    assert numel("llama3-70b", OUTSIDE) == 2_101_354_496
    assert numel("llama3-405b", 125) == 3_187_703_808
    assert numel("llama3-405b", OUTSIDE) == 4_202_708_992
    assert numel("deepseek-v3", 2) == 583_483_392
    assert numel("deepseek-v3", 3) == 11_507_286_272
    assert find_model("deepseek-v3").parameters == 671_026_419_200
    assert round(find_model("gpt3-175b").nbytes / 1e9) == 698
    assert find_model("stack-170b").nbytes == 680_000_000_000


def test_forward_takes_the_work_that_is_known_of_it() -> None:
    """ResNet-50's 4.1 G multiply-adds an image; 2 a parameter and token where nothing attends."""
    assert sum(tensor.flops for tensor in find_model("resnet50").tensors) / 2e9 == pytest.approx(
        4.1, 0.01
    )
    llama = find_model("llama3-405b")
    flops = sum(tensor.flops for tensor in llama.tensors)
    attention = 2 * llama.context * llama.heads * llama.head_dim * llama.layers
    matrices = llama.parameters - llama.vocab * llama.hidden
    assert flops == pytest.approx(2 * matrices + attention, 1e-4)


def test_a_model_is_cut_to_its_first_layers() -> None:
    cut = find_model("llama3-8b").cut(2)
    assert cut.parameters == 2 * 218_112_000 + 1_050_677_248
    with pytest.raises(UsageError, match="has 32 layers, not 33"):
        find_model("llama3-8b").cut(33)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tq=4", "'tq=4' is no known setting"),
        ("tp", "'tp' has no value"),
        ("tp=x", "tp=x"),
        ("tp=0", "tp=0"),
        ("dp=9999999999", "dp=9999999999"),
    ],
)
def test_layouts_that_make_no_sense_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_struct(text, Layout, "--layout")


def test_what_is_not_said_stays_as_it_is_known() -> None:
    base = parse_struct("tp=8,pp=4,dp=2", Layout, "--layout")
    assert parse_struct("dp=16,sp=false", Layout, "--layout", base) == Layout(
        tp=8, pp=4, dp=16, sp=False
    )
    assert parse_struct("bucket_cap_mb_list=1/25", Ddp, "--options").bucket_cap_mb_list == (1, 25)
    assert base.on(256).dp == 8
    with pytest.raises(UsageError, match="48 ranks are no multiple of tp=8 cp=1 pp=4"):
        base.on(48)


FEWER = {"deepep:normal": "tokens=128"}  # all of its tokens take seconds to be drawn
LONGER = "megatron:llama3-405b-128k"


@pytest.mark.parametrize(
    "name", [name for name in presets.PRESETS if name != LONGER] + [long(LONGER)]
)
def test_presets_are_steps_that_end(name: str) -> None:
    made = presets.find_step(name, options=FEWER.get(name, ""))
    step.refuse_step(made)
    assert Walk(made).seconds == 0
    assert count_step(made).sent > 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dpp:gpt2-124m", "no workload"),
        ("ddp:gpt5", "no model 'gpt5'"),
        ("ddp", "no model is named"),
        ("m2n:x", "x"),
        ("nowhere.toml", "nowhere.toml"),
    ],
)
def test_names_that_stand_for_nothing_are_refused(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        presets.find_step(name)


LAYOUTS = {"dalle": "dp=8", "moe": "pp=1,dp=64"}  # the fewest ranks that they run on; else dp=4
REFUSED = {
    "dalle": {"resnet50": "has no layers", "toy": "10 rows, not divisible by shards=8"},
    "megatron": {
        "deepseek-v3": "has experts",
        "llama3-405b": "4 layers are not divisible",
        "resnet50": "is not a transformer",
        "stack-170b": "is not a transformer",
        "toy": "is not a transformer",
    },
    "moe": dict.fromkeys({*MODELS} - {"deepseek-v3"}, "has no experts"),
}


def test_every_pattern_runs_every_model_that_it_can_or_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(experts, "draw_routing", functools.cache(experts.draw_routing))
    for pattern, row in presets.PATTERNS.items():
        layout = LAYOUTS.get(pattern, "dp=4")
        for name in MODELS if not row.move else ():
            if why := REFUSED.get(pattern, {}).get(name):
                with pytest.raises(UsageError, match=why):
                    presets.find_step(f"{pattern}:{name}", layout, layers=_few(name))
            else:
                step.refuse_step(presets.find_step(f"{pattern}:{name}", layout, layers=_few(name)))


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("dalle:12b", "tp=2,dp=512", "dalle has data parallelism only, not tp=2"),
        ("matmul2:toy", "tp=2", "matmul2 has data and pipeline parallelism only, not tp=2"),
        ("deepep:ll", "ep=8", "deepep has ranks of dp only, not ep=8"),
        ("redistribute:tp.None->None.tp", "ep=2", "ranks of tp, cp, dp and pp only, not ep=2"),
        ("m2n:dp.None->tp.None", "chunks=2", "ranks of tp, cp, dp and pp only, not chunks=2"),
    ],
)
def test_a_layout_of_which_a_pattern_would_leave_out_a_part_is_refused(
    name: str, layout: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as error:
        presets.find_step(name, layout)
    assert error.value.hint == f"leave {layout.partition('=')[0]} out of --layout"


def _few(name: str) -> int:
    """Four layers, which deepseek-v3 needs for one with experts; none of what has no layers."""
    return min(4, find_model(name).layers)


@pytest.mark.slow
def test_a_step_of_16384_gpus_is_counted_by_its_kinds_of_ranks() -> None:
    made = presets.find_step("megatron:llama3-405b", world=16384)
    found = count_step(made)
    walk = Walk(made)
    assert (made.world, len(walk.actors.first)) == (16384, 16)
    assert found.ops == 1348


def simple(**fields: object) -> Step:
    w = Writer("backward")
    w.compute(flops=3e9)
    w.add(
        "all_reduce", **{"group": "dp", "nbytes": 1 << 20, "dtype": "float", "op": "sum", **fields}
    )
    w.wait()
    return Step(
        "x",
        8,
        (w.program(range(8), parameters=100, gradients=50),),
        {"dp": ((0, 1, 2, 3), (4, 5, 6, 7))},
    )


def test_counts_are_those_of_the_operations() -> None:
    found = count_step(simple())
    (part,) = found.parts
    assert part[:6] == ("backward", "dp", "all_reduce", "float", 4, 1)
    assert part.sent == found.sent == 2 * 3 / 4 * (1 << 20)
    assert found.total == 8 * found.sent
    assert (found.flops, found.memory, found.holds) == (
        3e9,
        150,
        {"parameters": 100, "gradients": 50},
    )


@pytest.mark.parametrize(
    "kind", [name for name, row in COLLECTIVES.items() if row.moves_data and not row.uneven]
)
@pytest.mark.parametrize("n", [2, 3, 8])
def test_what_a_rank_sends_is_the_tables_least(kind: str, n: int) -> None:
    op = Op(kind=kind, nbytes=24 * n, dtype="float")
    assert math.isclose(op.sent(n), COLLECTIVES[kind].traffic(n) * 24 * n / n)
    assert op.sent(1) == 0


def test_a_forecast_is_the_bound_of_the_link_that_members_share() -> None:
    inside, between = Link(1e-6, 1e-9, 0), Link(5e-6, 4e-9, 0)
    row, size = COLLECTIVES["all_reduce"].bound(4), 1 << 20
    near = forecast_step(simple(), Machine(between, inside, 4)).step
    far = forecast_step(simple(), Machine(between, inside, 1)).step
    assert near == pytest.approx(row.alpha * 1e-6 + row.beta * size * 1e-9)
    assert far == pytest.approx(row.alpha * 5e-6 + row.beta * size * 4e-9)


def test_what_computation_hides_is_not_exposed() -> None:
    machine = Machine(LINKS["eth10"], LINKS["nvlink"], 1, flops=1e12)
    after = forecast_step(simple(), machine)
    assert after.computation == pytest.approx(3e-3)
    assert after.exposed == pytest.approx(after.communication)
    w = Writer()
    w.add("all_reduce", nbytes=1 << 20, dtype="float", op="sum")
    w.compute(flops=1e12)
    w.wait()
    hidden = forecast_step(Step("x", 8, (w.program(range(8)),)), machine)
    assert hidden.exposed == pytest.approx(0)
    assert hidden.communication == pytest.approx(after.communication, 1)


INSIDE, BETWEEN = Link(1e-6, 1e-9, 0), Link(5e-6, 4e-9, 0)


def forecast_alone(world: int, node: int, **fields: object) -> float:
    """Seconds of one operation of all ranks, ``node`` of them on a host."""
    w = Writer()
    w.add(**{"dtype": "float", "wait": "call", **fields})  # type: ignore[arg-type]
    step = Step("x", world, (w.program(range(world)),))
    return forecast_step(step, Machine(BETWEEN, INSIDE, node)).step


@pytest.mark.parametrize(
    ("world", "node", "inside", "between"),
    [
        (9, 8, 16 / 9, 1.0),
        (3, 2, 4 / 3, 1.0),
        (12, 8, 11 / 6, 1 / 4),
        (16, 8, 15 / 8, 2 / 16),
        (17, 8, 32 / 17, 1.0),
    ],
)
def test_an_all_reduce_on_unequal_hosts_takes_what_it_has_to(
    world: int, node: int, inside: float, between: float
) -> None:
    size = 1 << 30
    seconds = forecast_alone(world, node, kind="all_reduce", nbytes=size, op="sum")
    assert seconds == pytest.approx(max(inside * INSIDE.beta, between * BETWEEN.beta) * size, 1e-4)


@pytest.mark.parametrize("kind", ["gather", "scatter"])
@pytest.mark.parametrize(("root", "between"), [(0, 1 / 12), (8, 8 / 12 / 4)])
def test_the_roots_host_bounds_a_rooted_collective(kind: str, root: int, between: float) -> None:
    """Twelve ranks, on a host of eight and one of four."""
    size = 12 << 26
    seconds = forecast_alone(12, 8, kind=kind, nbytes=size, root=root)
    assert seconds == pytest.approx(max(11 / 12 * 1e-9, between * 4e-9) * size, 1e-4)


def test_a_message_takes_the_link_between_its_ends() -> None:
    """Ranks 0 and 1 are on one host, 2 and 3 on another."""

    def took(sender: int, receiver: int) -> float:
        fields = {"group": "pp", "nbytes": 4000, "dtype": "float", "wait": "call"}
        sends, receives, rest = Writer(), Writer(), Writer()
        sends.add("send", peer=receiver, **fields)
        receives.add("recv", peer=sender, **fields)
        others = {*range(4)} - {sender, receiver}
        written = (sends.program([sender]), receives.program([receiver]), rest.program(others))
        step = Step("x", 4, written, {"pp": ((0, 1, 2, 3),)})
        return forecast_step(step, Machine(BETWEEN, INSIDE, 2)).step

    assert took(0, 1) == took(3, 2) == pytest.approx(1e-6 + 4000 * 1e-9)
    assert took(1, 2) == took(3, 0) == pytest.approx(5e-6 + 4000 * 4e-9)


def test_ranks_of_one_program_are_counted_by_the_sizes_of_their_groups() -> None:
    """Two ranks send 1 of a size each, six 10/6."""
    w, size = Writer(), 6 << 20
    w.add("all_reduce", group="g", nbytes=size, dtype="float", op="sum")
    made = Step("x", 8, (w.program(range(8)),), {"g": ((0, 1), (2, 3, 4, 5, 6, 7))})
    (part,) = count_step(made).parts
    assert (part.members, part.ops) == (6, 1)
    assert part.total == pytest.approx((2 * 1 + 6 * 10 / 6) * size)


def test_ranks_that_follow_one_without_company_are_counted() -> None:
    w = Writer()
    w.add("all_reduce", group="g", nbytes=64, dtype="float", op="sum")
    found = count_step(Step("x", 3, (w.program(range(3)),), {"g": ((0,), (1, 2))}))
    assert (found.sent, found.total) == (64, 128)


def exchange(*programs: tuple[int, ...]) -> Step:
    """An all_to_allv; each rank with blocks of its own, or all with the same."""
    n, most = len(programs[0]), max(map(sum, programs))
    written = []
    for at, sends in enumerate(programs):
        w = Writer()
        w.add("all_to_allv", nbytes=4 * most, dtype="float", sends=sends, wait="call")
        written.append(w.program([at] if len(programs) > 1 else range(n)))
    return Step("x", n, tuple(written))


def test_ranks_of_one_program_are_counted_by_the_blocks_that_each_sends() -> None:
    """Rank 0 keeps 1000 elements, and rank 1 sends as many."""
    found = count_step(exchange((1000, 0)))
    (part,) = found.parts
    assert (part.sent, part.total, part.ops, found.sent, found.total) == (4000, 4000, 1, 4000, 4000)
    found = count_step(exchange((10, 20, 30)))
    assert (found.sent, found.total) == (4 * 50, 4 * 120)


def test_a_forecast_leaves_out_the_block_that_a_rank_keeps() -> None:
    machine = Machine(BETWEEN, INSIDE, 4)
    assert forecast_step(exchange((1000, 0)), machine).step == pytest.approx(1e-6 + 4000 * 1e-9)
    kept = exchange((1000, 0), (0, 1000))
    assert forecast_step(kept, machine).step == pytest.approx(1e-6)
    sent = exchange((1000, 0), (1000, 0))
    assert forecast_step(sent, machine).step == pytest.approx(1e-6 + 4000 * 1e-9)


@pytest.mark.parametrize(
    ("node", "seconds"), [(4, 2e-6 + 12_000 * 1e-9), (1, 10e-6 + 12_000 * 4e-9)]
)
def test_a_rank_that_others_send_to_receives_through_one_port(node: int, seconds: float) -> None:
    """Three send 1000 elements each to rank 0, on one host or on four."""
    incast = exchange((0, 0, 0, 0), *[(1000, 0, 0, 0)] * 3)
    assert forecast_step(incast, Machine(BETWEEN, INSIDE, node)).step == pytest.approx(seconds)


def test_exchanges_of_a_step_are_told_apart_by_what_others_send() -> None:
    """Rank 0 sends nothing twice, and receives 1000 elements and then 3000."""
    incast = [exchange((0, 0), (count, 0)) for count in (1000, 3000)]
    both = [
        Program(first.ranks, first.ops + second.ops)
        for first, second in zip(*(step.programs for step in incast), strict=True)
    ]
    machine = Machine(BETWEEN, INSIDE, 2)
    found = forecast_step(Step("x", 2, tuple(both)), machine).step
    assert found == pytest.approx(2e-6 + 16_000 * 1e-9)


def test_blocks_for_a_ranks_own_host_stay_there() -> None:
    """Two ranks a host: the first exchange stays in hosts, of the second a third leaves them."""
    machine = Machine(BETWEEN, INSIDE, 2)
    near = exchange((0, 900, 0, 0), (900, 0, 0, 0), (0, 0, 0, 900), (0, 0, 900, 0))
    assert forecast_step(near, machine).step == pytest.approx(5e-6 + 3600 * 1e-9)
    far = exchange((0, 600, 300, 0), (600, 0, 0, 300), (300, 0, 0, 600), (0, 300, 600, 0))
    assert forecast_step(far, machine).step == pytest.approx(5e-6 + 1200 * 4e-9)


@pytest.mark.parametrize(
    "pattern", ["ddp", "averaging", "horovod", "zero1", "zero2", "zero3", "fsdp2", "megatron"]
)
def test_attention_takes_what_the_layouts_sequence_asks_of_it(pattern: str) -> None:
    model, sequence = find_model("llama3-8b").cut(2), 131_072
    attention = 2 * model.heads * model.head_dim * model.layers
    flops = sum(tensor.flops for tensor in model.tensors)
    flops += attention * (sequence - model.context)
    made = presets.find_step(f"{pattern}:llama3-8b", f"tp=1,dp=2,sequence={sequence}", layers=2)
    assert count_step(made).flops == pytest.approx(3 * flops * sequence)


def test_only_attention_depends_on_the_sequence() -> None:
    gpt2, resnet = find_model("gpt2-124m"), find_model("resnet50")
    longer = gpt2.set_sequence(4096)
    changed = [a.name for a, b in zip(gpt2.tensors, longer.tensors, strict=True) if a != b]
    assert changed == [f"h.{n}.attn.c_proj.weight" for n in range(12)]
    assert gpt2.set_sequence(0) is gpt2.set_sequence(1024) is gpt2
    assert resnet.set_sequence(4096) is resnet
