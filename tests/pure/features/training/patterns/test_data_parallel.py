"""DDP, Horovod and plain averaging: quoted numbers, rules of buckets and closed forms."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.core.errors import UsageError
from collbench.features.training import walk
from collbench.features.training.layout import Layout, Nothing, parse_struct
from collbench.features.training.models import Model, Tensor, find_model
from collbench.features.training.patterns.data_parallel import (
    MIB,
    Ddp,
    Horovod,
    averaging,
    count_elements,
    ddp,
    ddp_buckets,
    fuse_buckets,
    horovod,
    make_buckets,
)
from collbench.features.training.step import Op, Step, refuse_step


def ops(step: Step, kind: str = "", phase: str = "") -> list[Op]:
    """Operations of the only program, which communicate unless a kind is asked for."""
    (program,) = step.programs
    return [
        op
        for op in program.ops
        if (op.kind == kind if kind else op.communicates) and phase in ("", op.phase)
    ]


def reduced(name: str, options: Ddp, ranks: int = 8) -> list[int]:
    step = ddp(find_model(name), Layout(dp=ranks), options)
    walk.refuse_deadlock(step)
    return [op.nbytes for op in ops(step, "all_reduce")]


def test_gpt2_is_reduced_in_13_buckets() -> None:
    found = reduced("gpt2-124m", Ddp())
    assert found == [9_446_400, *[28_351_488] * 11, 176_446_464]


def test_gpt2s_first_iteration_has_one() -> None:
    assert reduced("gpt2-124m", Ddp(iteration=0)) == [497_759_232]


def test_llamas_head_is_a_bucket_alone() -> None:
    found = reduced("llama3-8b", Ddp())
    assert (len(found), found[:6], found[-1]) == (
        162,
        [1_050_673_152, 117_448_704, 117_440_512, 117_440_512, 33_562_624, 50_331_648],
        1_050_681_344,
    )


def test_llamas_layers_repeat() -> None:
    found = reduced("llama3-8b", Ddp())
    assert found[6:11] == found[1:6]


@pytest.mark.parametrize(("name", "number"), [("llama3-70b", 482), ("llama3-405b", 884)])
def test_larger_models_have_as_many_buckets(name: str, number: int) -> None:
    assert len(reduced(name, Ddp())) == number


def test_resnet50_is_reduced_as_a_trace_of_two_gpus_has_it() -> None:
    found = [nbytes // 4 for nbytes in reduced("resnet50", Ddp(), 2)]
    assert found == [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]


def test_resnet50s_buffers_are_broadcast_before_forward() -> None:
    step = ddp(find_model("resnet50"), Layout(dp=2), Ddp())
    told = [(op.kind, op.nbytes, op.dtype, op.root) for op in ops(step, phase="forward")]
    assert told == [("broadcast", 4 * 53_120, "float", 0), ("broadcast", 8 * 53, "int64", 0)]


def test_before_the_second_iteration_rank_0_tells_the_new_order() -> None:
    step = ddp(find_model("toy"), Layout(dp=2), Ddp(iteration=1))
    told = [(op.kind, op.nbytes, op.dtype) for op in ops(step, phase="forward")]
    assert told == [("broadcast", 4 * 5, "int32"), ("broadcast", 4 * 1, "int32")]


def test_parameters_are_broadcast_250_mib_at_a_time() -> None:
    """A tensor is not cut: three parts of Llama's layers, and each of the large matrices' with what
    comes before it."""
    step = ddp(find_model("llama3-8b"), Layout(dp=2), Ddp(init=True))
    found = [op.nbytes for op in ops(step, "broadcast", "init")][1:]
    assert (sum(found), min(found[:-1]) >= 250 * MIB) == (16_060_522_496, True)


tensors = st.lists(
    st.lists(st.integers(1, 300), min_size=1, max_size=2), min_size=1, max_size=30
).map(lambda shapes: [Tensor(f"{n}.weight", tuple(s), n, n) for n, s in enumerate(shapes)])


@settings(max_examples=60, deadline=None)
@given(tensors, st.lists(st.integers(1, 1 << 20), min_size=1, max_size=3))
def test_a_bucket_is_closed_once_it_has_its_size(made: list[Tensor], limits: list[int]) -> None:
    found = make_buckets(made, limits, 4)
    each = limits + [limits[-1]] * len(found)
    full = [
        4 * count_elements(b) >= each[n] > 4 * count_elements(b[:-1])
        for n, b in enumerate(found[:-1])
    ]
    assert ([*itertools.chain(*found)], all(full)) == (made, True)


@settings(max_examples=60, deadline=None)
@given(tensors, st.integers(1, 100_000))
def test_a_fused_bucket_ends_before_it_would_exceed(made: list[Tensor], limit: int) -> None:
    found = fuse_buckets(made, limit)
    fits = [count_elements(b) <= limit or len(b) == 1 for b in found]
    full = [count_elements(b) + after[0].numel > limit for b, after in itertools.pairwise(found)]
    assert ([*itertools.chain(*found)], all(fits), all(full)) == (made, True, True)


FOURS = [Tensor(f"{n}.weight", (4,)) for n in range(4)]


def test_a_bucket_that_has_just_its_size_is_closed() -> None:
    assert [len(bucket) for bucket in make_buckets(FOURS, [16, 32], 4)] == [1, 2, 1]


def test_what_just_fits_is_fused() -> None:
    assert [len(bucket) for bucket in fuse_buckets(FOURS, 8)] == [2, 2]


@settings(max_examples=60, deadline=None)
@given(tensors, st.integers(1, 64), st.integers(1, 4), st.booleans())
def test_volume_is_that_of_the_closed_form(
    made: list[Tensor], n: int, micros: int, no_sync: bool
) -> None:
    """All gradients once: 2 (n-1)/n P e a rank, and again a micro-batch without no_sync."""
    of = Model(name="drawn", tensors=tuple(made), dtype="bfloat16")
    step = ddp(of, Layout(dp=n, micro_batches=micros), Ddp(no_sync=no_sync, bucket_cap_mb=0.01))
    refuse_step(step)
    walk.refuse_deadlock(step)
    sent = sum(op.sent(n) for op in ops(step))
    times = 1 if no_sync else micros
    assert sent == pytest.approx(times * 2 * (n - 1) / n * of.parameters * 2)


@settings(max_examples=30, deadline=None)
@given(tensors, st.sampled_from([Ddp(), Ddp(static_graph=True, iteration=0)]), st.booleans())
def test_backward_computes_twice_what_forward_does(
    made: list[Tensor], options: Ddp, tied: bool
) -> None:
    of = Model(name="drawn", tensors=tuple(made), dtype="float", tied=tied)
    step = ddp(of, Layout(dp=2, micro_batch=3), options)
    forward, backward = (
        sum(op.flops for op in ops(step, "compute", phase)) for phase in ("forward", "backward")
    )
    assert (forward, backward) == (3 * sum(t.flops for t in made), 2 * forward)


def test_a_tied_head_is_computed_before_the_first_bucket() -> None:
    of = find_model("gpt2-124m")
    first = ops(ddp(of, Layout(dp=2), Ddp()), "compute", "backward")[0]
    assert first.flops == 2 * 1024 * (of.tensors[0].flops + 2 * 768 * 4 * 768)


def test_buckets_are_reduced_while_backward_goes_on() -> None:
    """With computation and reductions of a second a bucket the last reduction alone is exposed."""
    step = ddp(find_model("gpt2-124m"), Layout(dp=2), Ddp(gradient_as_bucket_view=True))
    walked = walk.Walk(step, lambda op, party: float(op.phase == "backward"))
    assert walked.seconds == 13 + 1


def test_views_of_buckets_save_the_copies() -> None:
    def held(view: bool) -> int:
        step = ddp(find_model("toy"), Layout(dp=2), Ddp(gradient_as_bucket_view=view))
        return step.programs[0].holds["buckets"]

    assert (held(True), held(False)) == (0, 660)


def test_a_static_graph_is_reduced_after_all_of_its_first_backward_pass() -> None:
    step = ddp(find_model("toy"), Layout(dp=2), Ddp(static_graph=True, iteration=0))
    kinds = [(op.kind, op.dtype) for op in ops(step)]
    assert kinds == [("all_reduce", "int32"), ("all_reduce", "float")]


def test_half_the_bytes_with_fp16() -> None:
    assert sum(reduced("toy", Ddp(hook="fp16"))) * 2 == sum(reduced("toy", Ddp()))


def test_lists_of_sizes_are_written_with_slashes() -> None:
    options = parse_struct("bucket_cap_mb_list=1/25.5", Ddp, "--options")
    assert options.limits == [MIB, 25 * MIB + MIB // 2]


def test_a_size_that_is_said_is_that_of_the_first_bucket_too() -> None:
    assert Ddp(bucket_cap_mb=25).limits == [25 * MIB]


def test_before_buckets_are_rebuilt_they_are_made_from_the_front() -> None:
    options = Ddp(find_unused_parameters=True, bucket_cap_mb=2e-4)
    found = [[t.name for t in b] for b in ddp_buckets(find_model("toy"), options)]
    assert found == [["net2.bias"], ["net1.bias", "net2.weight"], ["net1.weight"]]


@pytest.mark.parametrize(
    ("layout", "options", "said"),
    [
        (Layout(dp=2, pp=4), Ddp(), "pp=4"),
        (Layout(dp=2, micro_batches=3), Ddp(static_graph=True), "3 micro-batches"),
    ],
)
def test_what_cannot_be_is_refused(layout: Layout, options: Ddp, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ddp(find_model("toy"), layout, options)


def test_averaging_reduces_parameter_by_parameter_after_backward() -> None:
    step = averaging(find_model("toy"), Layout(dp=4), Nothing())
    walk.refuse_deadlock(step)
    told = [(op.nbytes, op.op, op.wait, op.source) for op in ops(step, "all_reduce")]
    assert told == [
        (400, "sum", "call", "net1.weight"),
        (40, "sum", "call", "net1.bias"),
        (200, "sum", "call", "net2.weight"),
        (20, "sum", "call", "net2.bias"),
    ]


def test_averaging_hides_nothing() -> None:
    step = averaging(find_model("toy"), Layout(dp=4), Nothing())
    assert walk.Walk(step, lambda op, party: 1.0).seconds == 1 + 1 + 4 + 1


def test_horovod_fuses_gpt2_below_64_mib() -> None:
    step = horovod(find_model("gpt2-124m"), Layout(dp=8), Horovod())
    walk.refuse_deadlock(step)
    found = [op.nbytes for op in ops(step)]
    assert (sum(found), max(found[:-1]) <= 64 * MIB) == (497_759_232, True)


def test_horovod_leaves_the_embedding_alone() -> None:
    step = horovod(find_model("gpt2-124m"), Layout(dp=8), Horovod())
    assert ops(step)[-1].nbytes == 50_257 * 768 * 4


def test_without_a_buffer_horovod_reduces_each_gradient() -> None:
    step = horovod(find_model("toy"), Layout(dp=2), Horovod(fusion_mb=0, compression="fp16"))
    assert [op.nbytes for op in ops(step)] == [10, 100, 20, 200]


def test_horovod_begins_with_every_parameter() -> None:
    step = horovod(find_model("toy"), Layout(dp=2), Horovod(init=True))
    assert [op.nbytes for op in ops(step, "broadcast", "init")] == [400, 40, 200, 20]
