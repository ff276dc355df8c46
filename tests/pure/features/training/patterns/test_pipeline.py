"""Pipelines: torch's own tables of actions, the share of bubbles, messages, and a large world."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from helpers.shapes import layers_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import long

from collbench.core.errors import UsageError
from collbench.features.training.layout import Layout
from collbench.features.training.models import Model, find_model
from collbench.features.training.patterns.megatron import divide_layers, megatron, schedule_stage
from collbench.features.training.patterns.transformer import Megatron
from collbench.features.training.step import Op, Step, refuse_step
from collbench.features.training.walk import Party, Walk

FEW = settings(max_examples=25, deadline=None)
LETTERS = {"FORWARD": "F", "FULL_BACKWARD": "B"}
MOVES = {"SEND_F": ("send", 0), "RECV_F": ("recv", 0), "SEND_B": ("send", 1), "RECV_B": ("recv", 1)}
PIPELINES = [(1, 1, 3), (2, 1, 2), (4, 1, 4), (4, 1, 9), (2, 2, 4), (4, 2, 8), (4, 3, 4), (3, 2, 9)]


def built(whole: Model, layout: Layout, **options: Any) -> Step:
    """A step that can be run."""
    step = megatron(whole, layout, Megatron(**options))
    refuse_step(step)
    return step


def plain(layers: int) -> Model:
    """Equal layers, and nothing before or after them."""
    return layers_alone("gpt3-175b").cut(layers)


def working(op: Op, party: Party) -> float:
    return op.flops / 1e15


# Schedules


def of_torch(pp: int, chunks: int, batches: int) -> dict[int, list[Any]]:
    """What torch's stages compute, without any process."""
    from torch.distributed.pipelining import schedules

    told: Any = SimpleNamespace(_num_stages=pp, _n_microbatches=batches, pp_group_size=pp)
    if chunks == 1:
        tables = schedules.Schedule1F1B._get_pipeline_order(told)
        assert tables is not None
    else:
        told.n_local_stages, told.microbatches_per_round = chunks, pp
        one = schedules.ScheduleInterleaved1F1B._calculate_single_rank_operations
        tables = {rank: one(told, rank) for rank in range(pp)}
    return {
        rank: [a for a in actions if a and a.computation_type.name in LETTERS]
        for rank, actions in tables.items()
    }


@pytest.mark.parametrize(("pp", "chunks", "batches"), PIPELINES)
def test_stages_compute_in_torchs_order(pp: int, chunks: int, batches: int) -> None:
    layout = Layout(pp=pp, chunks=chunks, micro_batches=batches)
    for stage, actions in of_torch(pp, chunks, batches).items():
        mine = [
            ("F" if s.forward else "B", s.chunk * pp + stage) for s in schedule_stage(stage, layout)
        ]
        assert mine == [(LETTERS[a.computation_type.name], a.stage_index) for a in actions]


@pytest.mark.parametrize(("pp", "chunks", "batches"), PIPELINES)
def test_stages_take_torchs_micro_batches(pp: int, chunks: int, batches: int) -> None:
    layout = Layout(pp=pp, chunks=chunks, micro_batches=batches)
    for stage, actions in of_torch(pp, chunks, batches).items():
        if chunks == 1 and stage == pp - 1:
            continue  # torch's table for it, which is only drawn, begins with micro-batch 1
        mine = [s.batch for s in schedule_stage(stage, layout)]
        assert mine == [a.microbatch_index for a in actions]


@pytest.mark.parametrize(("pp", "chunks", "batches"), [p for p in PIPELINES if p[0] > 1])
def test_stages_send_and_receive_as_often_as_torchs(pp: int, chunks: int, batches: int) -> None:
    from torch.distributed.pipelining.schedules import _Action, _add_send_recv

    table = of_torch(pp, chunks, batches)
    if chunks == 1:
        last = table[pp - 1]
        table[pp - 1] = [
            _Action(
                a.stage_index,
                a.computation_type,
                a.microbatch_index - (a.computation_type.name == "FORWARD"),
            )
            for a in last
        ]
    told = _add_send_recv(table, lambda stage: stage % pp, pp * chunks)
    step = built(
        plain(pp * chunks), Layout(pp=pp, chunks=chunks, micro_batches=batches, sequence=64)
    )
    for stage in range(pp):
        names = [a.computation_type.name for a in told[stage]]
        theirs = Counter(MOVES[name] for name in names if name in MOVES)
        ops = step.programs[stage].ops
        assert Counter((op.kind, op.tag) for op in ops if op.group == "pp") == theirs


@FEW
@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 3))
def test_messages_over_all_boundaries(pp: int, chunks: int, rounds: int) -> None:
    batches = pp * rounds
    layout = Layout(pp=pp, chunks=chunks, micro_batches=batches, sequence=64)
    step = built(plain(pp * chunks), layout)
    sends = Counter(op.tag for p in step.programs for op in p.ops if op.kind == "send")
    assert sends == {0: batches * (pp * chunks - 1), 1: batches * (pp * chunks - 1)}


def test_warm_up() -> None:
    for stage, passes in enumerate([3, 2, 1, 0]):
        slots = schedule_stage(stage, Layout(pp=4, micro_batches=8))
        assert [s.forward for s in slots].index(False) == passes + 1
    for stage, passes in enumerate([10, 8, 6, 4]):  # 2 (P - s - 1) + (v - 1) P
        slots = schedule_stage(stage, Layout(pp=4, chunks=2, micro_batches=8))
        assert [s.forward for s in slots].index(False) == passes + 1


def test_gpipe_computes_all_forward_passes_first() -> None:
    slots = schedule_stage(1, Layout(pp=4, micro_batches=5), gpipe=True)
    assert [(s.forward, s.batch) for s in slots] == [
        *((True, n) for n in range(5)),
        *((False, n) for n in range(5)),
    ]


# Time


@pytest.mark.parametrize(("pp", "chunks", "batches"), PIPELINES)
def test_the_bubble(pp: int, chunks: int, batches: int) -> None:
    layout = Layout(pp=pp, chunks=chunks, micro_batches=batches, sequence=64)
    step = built(plain(2 * pp * chunks), layout)
    busy = sum(op.flops for op in step.programs[0].ops) / 1e15
    idle = 1 - busy / Walk(step, working).seconds
    assert idle == pytest.approx((pp - 1) / (batches * chunks + pp - 1))


@pytest.mark.parametrize("batches", [2, 4, 9])
def test_gpipes_bubble_is_that_of_1f1b(batches: int) -> None:
    layout = Layout(pp=4, micro_batches=batches, sequence=64)
    step = built(plain(4), layout, schedule="gpipe")
    busy = sum(op.flops for op in step.programs[0].ops) / 1e15
    idle = 1 - busy / Walk(step, working).seconds
    assert idle == pytest.approx(3 / (batches + 3))


def test_pairs_that_were_not_batched_would_wait_for_ever() -> None:
    step = built(plain(2), Layout(pp=2, micro_batches=4, sequence=64))
    blocking = [
        msgspec.structs.replace(
            program,
            ops=tuple(
                msgspec.structs.replace(op, wait="call") if op.group == "pp" else op
                for op in program.ops
            ),
        )
        for program in step.programs
    ]
    with pytest.raises(UsageError, match="deadlock"):
        Walk(msgspec.structs.replace(step, programs=tuple(blocking)))


@FEW
@given(
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2, 4]),
    dp=st.integers(1, 4),
    pp=st.sampled_from([1, 2, 4]),
    chunks=st.integers(1, 2),
    rounds=st.integers(1, 3),
    sp=st.booleans(),
    kind=st.sampled_from(["p2p", "all_gather", "a2a"]),
    overlap=st.booleans(),
)
def test_any_layout_can_be_run(
    tp: int, cp: int, dp: int, pp: int, chunks: int, rounds: int, sp: bool, kind: Any, overlap: bool
) -> None:
    if kind == "a2a" and tp * cp > 8:
        cp = 1
    chunks = chunks if pp > 1 else 1
    layout = Layout(
        tp=tp, cp=cp, dp=dp, pp=pp, chunks=chunks, micro_batches=pp * rounds, sequence=64, sp=sp
    )
    step = built(
        find_model("llama3-8b").cut(8),
        layout,
        cp=kind,
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap,
        calculate_per_token_loss=overlap,
    )
    walk = Walk(step)
    assert (len(step.programs), len(walk.ops)) == (pp, pp)
    assert all(span for spans in walk.spans for span in spans)


# What is composed


def test_layers_of_llama3_405bs_stages() -> None:
    assert divide_layers(126, 16, ()) == [7, *[8] * 14, 7]


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (Layout(tp=8, pp=16, dp=128, micro_batches=16), {}),
        long(
            Layout(tp=8, cp=16, pp=16, dp=8, micro_batches=16, sequence=131_072),
            {"cp": "all_gather"},
        ),
    ],
)
def test_16384_ranks_are_16_programs(layout: Layout, options: dict[str, Any]) -> None:
    step = built(find_model("llama3-405b"), layout, **options)
    walk = Walk(step)
    assert (layout.world, len(step.programs), len(walk.ops)) == (16_384, 16, 16)
    assert max(map(len, walk.ops)) < 5_000


def test_the_embedding_of_both_ends_is_summed() -> None:
    step = built(find_model("gpt2-124m"), Layout(tp=2, dp=2, pp=3, micro_batches=3))
    assert step.groups["embd"] == ((0, 8), (1, 9), (2, 10), (3, 11))
    counts = [[op.nbytes for op in p.ops if op.group == "embd"] for p in step.programs]
    assert counts == [[50_432 // 2 * 768 * 4], [], [50_432 // 2 * 768 * 4]]


def test_an_untied_one_is_not() -> None:
    step = built(find_model("llama3-8b").cut(2), Layout(pp=2))
    assert not any(op.group == "embd" for p in step.programs for op in p.ops)


@pytest.mark.parametrize(
    ("options", "group"),
    [
        ({}, ""),
        ({"use_distributed_optimizer": False}, "tp-pp"),
        ({"num_distributed_optimizer_instances": 2}, "instance"),
    ],
)
def test_the_norm_of_gradients_is_one_number(options: dict[str, Any], group: str) -> None:
    step = built(find_model("llama3-8b").cut(2), Layout(tp=2, dp=2, pp=2), **options)
    for program in step.programs:
        scalars = [op for op in program.ops if op.source == "norm of gradients"]
        assert [(op.kind, op.nbytes, op.group) for op in scalars] == [("all_reduce", 4, group)]


def test_each_instance_of_the_optimizer_sums_its_own_norm() -> None:
    """Half of the data parallel ranks of all stages, and of the ranks of tp and cp."""
    model, instances = find_model("llama3-8b").cut(2), {"num_distributed_optimizer_instances": 2}
    step = built(model, Layout(dp=4, pp=2), **instances)
    assert step.groups["instance"] == ((0, 1, 4, 5), (2, 3, 6, 7))
    step = built(model, Layout(tp=2, cp=2, dp=2), **instances)
    assert step.groups["instance"] == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_the_last_stage_tells_loss_and_tokens() -> None:
    step = built(find_model("llama3-8b").cut(2), Layout(dp=2, pp=2))
    counts = [[op.nbytes for op in p.ops if "told" in op.source] for p in step.programs]
    assert counts == [[], [8]]


def test_tokens_are_counted_where_the_loss_is_per_token() -> None:
    step = built(find_model("llama3-8b").cut(2), Layout(dp=2, pp=2), calculate_per_token_loss=True)
    tokens = [op for op in step.programs[0].ops if op.source == "tokens"]
    assert [(op.kind, op.root, op.group) for op in tokens] == [
        ("broadcast", 1, "pp"),
        ("all_reduce", -1, "dp"),
    ]


def test_further_stages_have_one_bucket_after_their_last_backward() -> None:
    step = built(find_model("llama3-8b").cut(8), Layout(dp=2, pp=2, micro_batches=4))
    counts = []
    for program in step.programs:
        ops = [op for op in program.ops if op.kind == "reduce_scatter"]
        counts.append(len(ops))
    assert counts[0] > 1
    assert counts[1] == 1
    last = step.programs[1].ops
    at = next(n for n, op in enumerate(last) if op.kind == "reduce_scatter")
    assert not any(op.kind == "compute" and op.flops for op in last[at:])


def test_an_interleaved_stage_reduces_a_chunk_before_all_are_through() -> None:
    step = built(find_model("llama3-8b").cut(8), Layout(dp=2, pp=2, chunks=2, micro_batches=4))
    for program in step.programs:
        at = next(n for n, op in enumerate(program.ops) if op.kind == "reduce_scatter")
        assert any(op.kind == "compute" and op.flops for op in program.ops[at:])


def test_further_stages_reduce_a_chunk_as_many_passes_later() -> None:
    step = built(find_model("llama3-8b").cut(8), Layout(dp=2, pp=2, chunks=2, micro_batches=4))
    passed = []
    for program in step.programs:
        at = next(n for n, op in enumerate(program.ops) if op.kind == "reduce_scatter")
        backward = [
            op for op in program.ops[:at] if op.kind == "compute" and op.phase == "backward"
        ]
        passed.append(len(backward))
    assert passed == [6, 7]  # chunk 1 is through after six of eight
