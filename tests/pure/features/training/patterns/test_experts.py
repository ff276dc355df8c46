"""Expert parallelism: how many ranks a token goes to, what is drawn, and what the ways send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.core.errors import UsageError
from collbench.features.training.layout import Layout
from collbench.features.training.models import Experts, Model, Tensor, find_model
from collbench.features.training.patterns.experts import (
    LATENTS,
    Exchange,
    Moe,
    deepep,
    draw_routing,
    expect_ranks,
    fill_parts,
    keep_own_experts,
    moe,
)
from collbench.features.training.step import Op, Step, refuse_step
from collbench.features.training.walk import Walk

FEW = settings(max_examples=20, deadline=None)
V3 = Experts(256, 8, 2048, nodes=8, limit=4)
FREE = msgspec.structs.replace(V3, limit=8)


def small(experts: int = 16, top: int = 4) -> Model:
    """Two layers, the second with experts."""

    def matrices(at: str, layer: int, width: int, share: float = 1) -> list[Tensor]:
        shapes = [("w1", (width, 64)), ("w3", (width, 64)), ("w2", (64, width))]
        return [Tensor(f"{at}.{n}", s, layer, 2.0 * 64 * width * share) for n, s in shapes]

    tensors: list[Tensor] = []
    for n in range(2):
        for name in ("qkv", "out"):
            tensors.append(Tensor(f"{n}.attn.{name}", (64, 64), n, 8192))
        if n == 0:
            tensors += matrices("0.ffn", 0, 128)
            continue
        tensors.append(Tensor("1.ffn.gate.weight", (experts, 64), 1, 128.0 * experts))
        for each in range(experts):
            tensors += matrices(f"1.ffn.experts.{each}", 1, 32, top / experts)
        tensors += matrices("1.ffn.shared_experts", 1, 32)
    shape = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 4, "head_dim": 16, "ffn": 128}
    routed = Experts(experts, top, 32, shared=1, dense=1)
    return Model(name="small", tensors=tuple(tensors), context=32, experts=routed, **shape)


def built(layout: Layout, whole: Model | None = None, **options: Any) -> Step:
    """A step that can be run."""
    step = moe(whole or small(), layout, Moe(**options))
    refuse_step(step)
    Walk(step)
    return step


def exchanged(step: Step, place: int = 0, kind: str = "all_to_allv") -> list[Op]:
    return [op for op in step.programs[place].ops if op.kind == kind]


# Expectations


@pytest.mark.parametrize(
    ("experts", "ranks", "number"),
    [(FREE, 64, 7.676), (V3, 64, 7.359), (V3, 8, 3.629), (FREE, 8, 5.295)],
)
def test_expected_ranks_of_a_token(experts: Experts, ranks: int, number: float) -> None:
    assert round(expect_ranks(experts, ranks), 3) == number


@FEW
@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8))
def test_expected_ranks_have_bounds(ranks: int, each: int, top: int) -> None:
    top = min(top, ranks * each)
    number = expect_ranks(Experts(ranks * each, top, 1), ranks)
    assert max(1, top / each) - 1e-9 <= number <= min(top, ranks) + 1e-9


@pytest.mark.parametrize(
    ("experts", "ranks"),
    [
        *((FREE, 64), (V3, 64), (FREE, 8), (V3, 8), (V3, 2), (V3, 4), (V3, 16), (V3, 32)),
        (Experts(24, 3, 1, nodes=6, limit=2), 4),  # groups that lie on two ranks
    ],
)
def test_what_is_drawn_is_what_is_expected(experts: Experts, ranks: int) -> None:
    table = draw_routing("uniform", 400, experts, ranks, min(ranks, 8))
    assert table.tokens is not None
    mean = table.tokens.sum() / (400 * ranks)
    assert mean == pytest.approx(expect_ranks(experts, ranks), rel=0.02)


def test_nodes_that_tokens_go_to_are_as_many_as_expected() -> None:
    drawn, expected = (draw_routing(how, 400, V3, 16, 8).nodes for how in ("uniform", "even"))
    assert drawn is not None and expected is not None
    assert drawn.mean() == pytest.approx(expected.mean(), rel=0.02)


# Tables


@FEW
@given(
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 4),
    st.sampled_from(["uniform", "zipf:1.0", "zipf:3"]),
    st.integers(0, 1000),
)
def test_tables_are_consistent(ranks: int, top: int, routing: str, seed: int) -> None:
    table = draw_routing(routing, 50, Experts(16, top, 1), ranks, 2 if ranks > 1 else 1, seed)
    assert table.tokens is not None and table.nodes is not None
    assert (table.copies.sum(axis=1) == 50 * top).all()
    assert (table.tokens <= table.copies).all()
    assert (table.tokens <= 50).all() and (table.tokens.sum(axis=1) >= 50).all()
    assert (table.nodes.sum(axis=1) <= table.tokens.sum(axis=1)).all()


def test_experts_of_a_token_differ() -> None:
    table = draw_routing("zipf:3", 100, Experts(8, 8, 1), 8, 8)
    assert (table.copies == 100).all()  # all eight, each once


def test_a_seed_gives_the_same_again() -> None:
    first, again, other = (draw_routing("uniform", 50, V3, 8, 8, seed).copies for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_nodes_are_limited() -> None:
    table = draw_routing("uniform", 200, msgspec.structs.replace(V3, limit=2), 64, 8)
    assert table.nodes is not None
    assert (table.nodes.sum(axis=1) <= 2 * 200).all()
    free = draw_routing("uniform", 200, FREE, 64, 8)
    assert free.nodes is not None
    assert (free.nodes.sum(axis=1) > 4 * 200).all()


def test_popular_experts_get_more() -> None:
    table = draw_routing("zipf:1.0", 500, FREE, 8, 8)
    busy = table.copies.sum(axis=0)
    assert (np.diff(busy) < 0).all()


def test_a_matrix_is_read(tmp_path: Path) -> None:
    file = tmp_path / "counts"
    file.write_text("4 0 0 0\n1, 1, 1, 1\n")
    table = draw_routing(f"matrix:{file}", 2, Experts(4, 2, 1), 2, 8)
    assert table.copies.tolist() == [[4, 0], [2, 2]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4 0 0 0\n", "has 1 lines"),
        ("4 0 0 0\n1 1 1\n", "some of another length"),
        ("4 0 0 0\n1 1 1 2\n", "line 2 has a sum of 5"),
        ("4 0 0 0\n5 -1 0 0\n", "line 2 has a sum"),
        ("4 0 0 x\n1 1 1 1\n", "cannot read"),
    ],
)
def test_a_bad_matrix_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "counts"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        draw_routing(f"matrix:{file}", 2, Experts(4, 2, 1), 2, 8)


def test_a_missing_matrix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        draw_routing(f"matrix:{tmp_path / 'none'}", 2, Experts(4, 2, 1), 2, 8)


@pytest.mark.parametrize(("layout", "ranks"), [(Layout(dp=4, ep=4), 1), (Layout(dp=6, ep=2), 3)])
def test_instances_divide_the_ranks_that_have_the_same_experts(layout: Layout, ranks: int) -> None:
    words = f"{ranks} ranks of one expert are not divisible by 2"
    with pytest.raises(UsageError, match=words):
        built(layout, num_distributed_optimizer_instances=2)


# What is sent


def test_megatrons_copies_of_tokens() -> None:
    options = Exchange(way="alltoall", routing="even", tokens=4096)
    step = deepep(find_model("deepseek-v3"), Layout(dp=64), options)
    refuse_step(step)
    tokens = [op for op in exchanged(step) if op.source == "tokens"]
    assert 2 * sum(tokens[0].sends) == 469_762_048
    assert [op.phase for op in tokens] == ["dispatch", "combine"]


@pytest.mark.parametrize(("limit", "ranks"), [(8, 7.676), (4, 7.359)])
def test_bytes_of_deepeps_normal_mode(limit: int, ranks: float) -> None:
    options = Exchange(tokens=512, limit=limit)
    step = deepep(find_model("deepseek-v3"), Layout(dp=64), options)
    refuse_step(step)
    Walk(step)
    sent = {"rail": 0, "node": 0}
    back = {"rail": 0, "node": 0}
    for program in step.programs:
        for op in program.ops:
            into = sent if op.phase == "dispatch" else back
            into[op.group] += sum(op.sends) * (1 if op.dtype == "uint8" else 2)
    tokens = 512 * 64
    assert sent["node"] / tokens == pytest.approx(ranks * 7392, rel=0.01)
    assert back["node"] / tokens == pytest.approx(ranks * 14_336, rel=0.01)
    assert sent["rail"] * 14_336 == back["rail"] * 7392
    if limit == 4:
        assert sent["rail"] / tokens == pytest.approx(3.629 * 7392, rel=0.01)


def test_bytes_that_are_expected_of_4096_tokens() -> None:
    tokens = 4096 * expect_ranks(FREE, 64)
    assert round(tokens * 7392 / 1e6, 1) == 232.4
    assert round(tokens * 14_336 / 1e6, 1) == 450.7
    table = draw_routing("even", 4096, FREE, 64, 64)
    assert table.tokens is not None
    assert int(table.tokens[0].sum()) == 64 * 492  # 491.3 to each, rounded up


def test_deepep_within_a_node_goes_straight() -> None:
    step = deepep(find_model("deepseek-v3"), Layout(dp=8), Exchange(tokens=64))
    assert [op.group for op in exchanged(step)] == ["ep", "ep"]


def test_low_latency_sends_each_choice() -> None:
    options = Exchange(way="deepep-ll", tokens=128, experts=288)
    step = deepep(find_model("deepseek-v3"), Layout(dp=32), options)
    refuse_step(step)
    there, back = exchanged(step)
    assert sum(there.sends) == 128 * 8 * 7408
    assert sum(op.sends[0] * 2 for op in (p.ops[1] for p in step.programs)) == 128 * 8 * 14_336
    assert (there.group, back.group) == ("ep", "ep")


@FEW
@given(st.sampled_from(["alltoall", "deepep", "deepep-ll"]), st.integers(0, 50))
def test_what_one_sends_back_the_other_gets(way: Any, seed: int) -> None:
    step = deepep(small(), Layout(dp=8), Exchange(way=way, tokens=20, node_ranks=4, seed=seed))
    there = [exchanged(step, place)[0] for place in range(8)]
    back = [exchanged(step, place)[-1] for place in range(8)]
    members = step.groups[there[0].group][0]
    one, other = there[0].sends[0] or 1, back[members[0]].sends[0] or 1
    for i, a in enumerate(members):
        for j, b in enumerate(members):
            assert there[a].sends[j] * other == back[b].sends[i] * one


def test_sizes_are_those_of_the_busiest_rank() -> None:
    step = deepep(small(), Layout(dp=8), Exchange(way="alltoall", tokens=20, routing="zipf:2"))
    matrix = np.array([exchanged(step, place)[0].sends for place in range(8)])
    assert exchanged(step)[0].nbytes == 2 * max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())


# Steps


def test_a_layers_exchange_by_all_to_all() -> None:
    step = built(Layout(ep=4, dp=4), routing="even")
    ops = [op for op in step.programs[0].ops if op.group == "ep" and op.communicates]
    h, t = 64, 32 * 4  # numbers, copies of tokens
    assert [(op.kind, op.phase, op.source, sum(op.sends)) for op in ops] == [
        ("all_gather", "dispatch", "counts of tokens", 0),
        ("all_to_allv", "dispatch", "tokens", t * h),
        ("all_to_allv", "dispatch", "probabilities", t),
        ("all_to_allv", "combine", "tokens", t * h),
        ("all_to_allv", "dispatch", "tokens", t * h),  # backward of combine
        ("all_to_allv", "combine", "probabilities", t),
        ("all_to_allv", "combine", "tokens", t * h),
    ]
    assert ops[0].nbytes == 4 * 16 * 8


def test_a_layers_exchange_by_all_gather() -> None:
    step = built(Layout(ep=4, dp=4), way="allgather")
    ops = [op for op in step.programs[0].ops if op.group == "ep" and op.communicates]
    tokens, chances = 4 * 32 * 64 * 2, 4 * 32 * 16
    assert [(op.kind, op.nbytes) for op in ops] == [
        ("all_gather", chances),
        ("all_gather", 4 * chances),
        ("all_gather", tokens),
        ("reduce_scatter", tokens),
        ("all_gather", tokens),
        ("reduce_scatter", tokens),
        ("reduce_scatter", 4 * chances),
    ]


@FEW
@given(
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
    st.sampled_from([2, 4]),
    st.sampled_from(["alltoall", "allgather", "deepep", "deepep-ll"]),
    st.integers(1, 3),
)
def test_any_layout_can_be_run(tp: int, cp: int, pp: int, dp: int, way: Any, batches: int) -> None:
    layout = Layout(tp=tp, cp=cp, pp=pp, dp=dp, ep=dp, micro_batches=batches)
    step = built(layout, way=way, node_ranks=2)
    assert len(step.programs) == pp * (1 if way == "allgather" else dp)


def test_experts_are_computed_with_what_comes() -> None:
    steps = [built(Layout(ep=ep, dp=4), routing="uniform") for ep in (1, 4)]
    flops = [
        sum(op.flops * len(program.ranks) for program in step.programs for op in program.ops)
        for step in steps
    ]
    assert flops[0] == pytest.approx(flops[1])


def test_gradients_of_experts_are_reduced_by_those_who_have_them() -> None:
    step = built(Layout(tp=2, ep=4, dp=4), routing="even")
    assert step.groups["edp"] == ((0, 4), (1, 5), (2, 6), (3, 7))
    reduced = exchanged(step, kind="reduce_scatter")
    experts = [op.nbytes for op in reduced if op.group == "edp"]
    assert experts == [4 * 4 * 3 * 64 * 32]  # float, of four experts


def test_the_same_experts_have_no_group_where_each_rank_has_others() -> None:
    step = built(Layout(ep=4, dp=4), routing="even")
    assert "edp" not in step.groups


def test_deepseek_v3_on_1024_ranks() -> None:
    layout = Layout(ep=64, dp=64, pp=16, micro_batches=4)
    step = built(layout, find_model("deepseek-v3"), routing="even")
    assert (step.world, len(step.programs)) == (1024, 16)
    tokens = [op for op in exchanged(step, 3) if op.source == "tokens"]
    assert len(tokens) == 4 * 4 * 4  # layers, micro-batches; there and back, twice
    assert {2 * sum(op.sends) for op in tokens} == {469_762_048}
    assert "layers of the pipeline's parts: " + "4, " * 15 + "1" in step.assumptions
    assert LATENTS not in step.assumptions


def test_gradients_of_routers_and_latents_are_summed_over_tp() -> None:
    layout = Layout(tp=2, ep=2, dp=2)
    step = built(layout, find_model("deepseek-v3").cut(4), way="allgather")
    (summed,) = [op for op in step.programs[0].ops if op.source.startswith("gradients of what")]
    layer = (1536 + 576) * 7168 + 2 * 7168 + 1536 + 512  # projections to latents, norms
    assert summed.group == "tp"
    assert summed.nbytes == 4 * (4 * layer + 256 * 7168 + 7168)  # one router, and the last norm
    assert LATENTS in step.assumptions


def test_a_routers_bias_has_no_gradient() -> None:
    model = keep_own_experts(find_model("deepseek-v3").cut(4), 1)
    names = {tensor.name for tensor in model.tensors}
    assert "layers.3.ffn.gate.weight" in names
    assert "layers.3.ffn.gate.bias" not in names


def test_deepseek_v3s_expert_parameters_are_whole() -> None:
    layout = Layout(ep=64, dp=64, pp=16, micro_batches=2)
    step = built(layout, find_model("deepseek-v3"), way="allgather")
    middle = step.programs[3].holds["parameters"] / 2  # four layers of attention and four experts
    assert middle == pytest.approx(4 * (187_121_664 + 5 * 44_040_192 + 257 * 7168), rel=1e-4)


def test_layers_are_filled_up() -> None:
    assert fill_parts(61, 16) == (*[4] * 15, 1)
    assert fill_parts(64, 16) == ()


# Bad input


@pytest.mark.parametrize(
    ("layout", "options", "words"),
    [
        (Layout(ep=3, dp=3), {}, "16 experts are not divisible by 3"),
        (Layout(ep=4, dp=2), {}, "2 ranks of tp x cp x dp are not divisible by 4"),
        (Layout(ep=4, dp=4), {"node_ranks": 3}, "4 ranks of ep are not divisible by 3"),
        (Layout(ep=4, dp=4), {"limit": 2}, "limit=2 is more than the 1 groups"),
        (Layout(tp=2, ep=4, dp=4, sp=False), {}, "tp=2 with experts needs sp"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    layout: Layout, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        moe(small(), layout, Moe(**options))


@pytest.mark.parametrize(
    ("ranks", "words", "key"),
    [
        (3, "8 experts are not divisible by 3 \\(dp\\)", "dp= in --layout, or -g"),
        (8, "8 ranks of dp are not divisible by 3", "dp= in --layout, or -g, or node_ranks"),
    ],
)
def test_deepep_names_the_key_of_its_ranks(ranks: int, words: str, key: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        deepep(small(), Layout(dp=ranks), Exchange(experts=8, top=2, node_ranks=3))
    assert raised.value.hint == f"change {key}"


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(UsageError, match="no experts"):
        moe(find_model("llama3-8b"), Layout(), Moe())


def test_counts_do_not_tell_what_deepep_sends(tmp_path: Path) -> None:
    file = tmp_path / "counts"
    file.write_text("\n".join(["8 " * 16] * 4))
    with pytest.raises(UsageError, match="once to each rank"):
        moe(small(), Layout(ep=4, dp=4), Moe(way="deepep", routing=f"matrix:{file}"))


@pytest.mark.parametrize("routing", ["zipf", "zipf:-1", "matrix:", "other"])
def test_routings_are_those_of_the_grammar(routing: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"routing": routing}, Moe)
