"""ZeRO: quoted numbers, the paper's volumes, and DeepSpeed's rules on small models told by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.core.errors import UsageError
from collbench.features.training import walk
from collbench.features.training.layout import Layout
from collbench.features.training.models import Model, Tensor, find_model
from collbench.features.training.patterns.zero import (
    Zero,
    Zero3,
    quantized_groups,
    zero1,
    zero2,
    zero3,
)
from collbench.features.training.step import Op, Step, refuse_step

PAPER, PAPER3 = Zero(how="paper"), Zero3(how="paper")


def ops(step: Step, kind: str = "", phase: str = "") -> list[Op]:
    """Operations of the only program, which communicate unless a kind is asked for."""
    (program,) = step.programs
    return [
        op
        for op in program.ops
        if (op.kind == kind if kind else op.communicates) and phase in ("", op.phase)
    ]


def counts(step: Step, kind: str, phase: str = "", itemsize: int = 2) -> list[int]:
    return [op.nbytes // itemsize for op in ops(step, kind, phase)]


def sound(step: Step) -> Step:
    refuse_step(step)
    walk.refuse_deadlock(step)
    return step


def flat(*sizes: int, dtype: str = "bfloat16") -> Model:
    """A model of modules with a weight each."""
    tensors = tuple(Tensor(f"m{n}.weight", (size,), n, 1.0) for n, size in enumerate(sizes))
    return Model(name="flat", tensors=tensors, layers=len(sizes), dtype=dtype)


LLAMA = [525_336_576, 494_948_352, 494_944_256]


def test_llamas_gradients_are_in_17_buckets() -> None:
    step = sound(zero2(find_model("llama3-8b"), Layout(dp=8), Zero()))
    found = counts(step, "all_reduce", "backward")
    assert (len(found), sum(found), found[:3], found[-2:]) == (
        17,
        8_030_261_248,
        LLAMA,
        [100_671_488, 525_336_576],
    )


def test_stage_3_scatters_the_same_buckets() -> None:
    step = sound(zero3(find_model("llama3-8b"), Layout(dp=8), Zero3()))
    found = counts(step, "reduce_scatter")
    assert (len(found), sum(found), found[:3]) == (17, 8_030_261_248, LLAMA)


def test_stage_1_begins_with_the_first_tensor_after_backward() -> None:
    step = sound(zero1(find_model("llama3-8b"), Layout(dp=8), Zero()))
    found = ops(step, "all_reduce", "backward")
    assert [op.nbytes // 2 for op in found[:2]] == [525_336_576, 478_175_232]


@pytest.mark.parametrize("options", [Zero3(), PAPER3])
def test_a_tied_head_ends_forward_and_begins_backward(options: Zero3) -> None:
    of = find_model("gpt2-124m")
    step = sound(zero3(of, Layout(dp=8), options))
    head = 1024 * of.tensors[0].flops
    forward, backward = (ops(step, "compute", phase) for phase in ("forward", "backward"))
    assert (forward[0].flops, forward[-1].flops) == (0, head)
    assert (backward[0].flops, backward[-1].flops) == (2 * head, 0)


def test_gpt2_is_one_bucket() -> None:
    step = sound(zero2(find_model("gpt2-124m"), Layout(dp=8), Zero()))
    assert counts(step, "all_reduce", "backward", 4) == [124_439_808]


def test_parameters_are_gathered_padded_to_two_a_rank() -> None:
    step = sound(zero2(flat(5, 6), Layout(dp=4), Zero()))
    assert counts(step, "all_gather") == [16]


def test_16_bit_models_look_for_overflow() -> None:
    step = zero1(flat(5), Layout(dp=4), Zero())
    told = [(op.kind, op.dtype, op.op) for op in ops(step, phase="optimizer")]
    assert told == [
        ("all_reduce", "uint8", "max"),
        ("all_reduce", "float", "sum"),
        ("all_gather", "bfloat16", "none"),
    ]


def test_a_large_tensor_is_cut_where_an_owners_part_exceeds_the_bucket() -> None:
    """Its parts of 10 belong to ranks 0 to 3; two exceed a bucket of 15."""
    step = sound(zero2(flat(40), Layout(dp=4), Zero(reduce_bucket_size=15)))
    assert counts(step, "all_reduce", "backward") == [20, 20]


def test_without_multi_rank_buckets_each_owner_gets_its_part() -> None:
    """Of 12, 8 and 20 elements a rank owns 10."""
    options = Zero(use_multi_rank_bucket_allreduce=False)
    step = sound(zero2(flat(12, 8, 20), Layout(dp=4), options))
    told = [(op.root, op.nbytes // 2) for op in ops(step, "reduce")]
    assert told == [(2, 10), (3, 10), (1, 10), (0, 10)]


@pytest.mark.parametrize("overlap", [False, True])
def test_overlap_hides_a_bucket_behind_backward(overlap: bool) -> None:
    """Three buckets that take as long as the computation between: with overlap only the last is
    waited for."""
    step = sound(
        zero2(flat(9, 9, 9), Layout(dp=3), Zero(reduce_bucket_size=9, overlap_comm=overlap))
    )
    took = walk.Walk(step, lambda op, party: float(op.phase == "backward")).seconds
    assert took == (4 if overlap else 6)


def test_a_bucket_is_reduced_once_the_next_gradient_is_ready() -> None:
    step = zero2(flat(9, 9, 9), Layout(dp=3), Zero(reduce_bucket_size=9))
    assert [op.flops for op in ops(step, "compute", "backward")] == [4, 2, 0]


def test_stage_3_has_three_reductions_under_way_at_most() -> None:
    made = zero3(flat(*[9] * 6), Layout(dp=3), Zero3(reduce_bucket_size=9)).programs[0].ops
    at = [number for number, op in enumerate(made) if op.kind == "reduce_scatter"]
    assert [made[number - 1].after for number in at[3:]] == [(number,) for number in at[:3]]


def test_stage_1_reduces_in_the_last_micro_batch_only() -> None:
    layout = Layout(dp=4, micro_batches=3)
    found = [len(ops(f(flat(8), layout, Zero()), "all_reduce", "backward")) for f in (zero1, zero2)]
    assert found == [1, 3]


shapes = st.lists(
    st.lists(st.integers(1, 90), min_size=1, max_size=2).map(tuple), min_size=1, max_size=8
)
drawn = shapes.map(
    lambda made: Model(
        name="drawn",
        tensors=tuple(Tensor(f"{n}.weight", shape, n // 2, 1.0) for n, shape in enumerate(made)),
        layers=-(-len(made) // 2),
        dtype="bfloat16",
    )
)


def sent(step: Step, n: int) -> float:
    return sum(op.sent(n) for op in ops(step) if op.dtype == "bfloat16")


@settings(max_examples=40, deadline=None)
@given(drawn, st.integers(1, 64))
def test_the_papers_stages_1_and_2_send_what_all_reduce_does(of: Model, n: int) -> None:
    """2 (n-1)/n P e, but for at most n - 1 elements of padding an operation."""
    for made in (zero1, zero2):
        step = sound(made(of, Layout(dp=n), PAPER))
        least = 2 * (n - 1) / n * of.nbytes
        most = least + len(ops(step)) * (n - 1) * 2
        assert least <= sent(step, n) + 1e-6 <= most + 1e-5


@settings(max_examples=40, deadline=None)
@given(drawn, st.integers(1, 64))
def test_the_papers_stage_3_sends_half_as_much_again(of: Model, n: int) -> None:
    """3 (n-1)/n P e, but for padding."""
    step = sound(zero3(of, Layout(dp=n), PAPER3))
    least = 3 * (n - 1) / n * of.nbytes
    assert least <= sent(step, n) + 1e-6 <= least + len(ops(step)) * (n - 1) * 2 + 1e-5


@pytest.mark.parametrize("stage", [1, 2])
def test_llamas_textbook_volume_is_exact(stage: int) -> None:
    of = find_model("llama3-8b")
    step = sound({1: zero1, 2: zero2}[stage](of, Layout(dp=8), PAPER))
    assert sent(step, 8) == 2 * 7 / 8 * 16_060_522_496


def test_llamas_textbook_volume_of_stage_3_is_exact() -> None:
    step = sound(zero3(find_model("llama3-8b"), Layout(dp=8), PAPER3))
    assert sent(step, 8) == 3 * 7 / 8 * 16_060_522_496


@settings(max_examples=40, deadline=None)
@given(drawn, st.integers(1, 64), st.integers(1, 3), st.integers(1, 4000), st.integers(0, 5000))
def test_stage_3_gathers_and_scatters_everything_that_is_not_kept(
    of: Model, n: int, micros: int, bucket: int, prefetch: int
) -> None:
    """Nothing small is kept: each tensor is reduced once a micro-batch, and gathered for forward
    and for backward, where fetching ahead does not find it there."""
    options = Zero3(
        reduce_bucket_size=bucket,
        prefetch_bucket_size=prefetch,
        param_persistence_threshold=0,
        max_reuse_distance=0,
    )
    step = sound(zero3(of, Layout(dp=n, micro_batches=micros), options))
    whole = sum(-(-t.numel // n) * n for t in of.tensors)
    gathered, scattered = (sum(counts(step, k)) for k in ("all_gather", "reduce_scatter"))
    least = micros * whole if prefetch else 2 * micros * whole
    assert (scattered, least <= gathered <= 2 * micros * whole) == (micros * whole, True)


def test_stage_3_keeps_small_tensors_and_gathers_them_after_the_update() -> None:
    step = sound(zero3(flat(10, 400, 6), Layout(dp=4), Zero3(param_persistence_threshold=10)))
    assert (counts(step, "all_gather", "optimizer"), counts(step, "all_gather", "forward")) == (
        [12, 8],
        [400],
    )


@pytest.mark.parametrize(("distance", "again"), [(0, 3), (1, 2), (400, 2), (401, 1), (801, 0)])
def test_what_is_used_again_soon_is_not_gathered_again(distance: int, again: int) -> None:
    """Behind the last of three modules of 200 nothing lies before its backward, behind the one
    before it 400 elements, behind the first 800."""
    options = Zero3(
        param_persistence_threshold=0, max_reuse_distance=distance, prefetch_bucket_size=0
    )
    step = sound(zero3(flat(200, 200, 200), Layout(dp=4), options))
    assert counts(step, "all_gather", "backward") == [200] * again


def test_what_comes_next_is_fetched_ahead_until_that_exceeds_its_size() -> None:
    options = Zero3(param_persistence_threshold=0, prefetch_bucket_size=300)
    step = sound(zero3(flat(200, 200, 200, 200), Layout(dp=4), options))
    assert counts(step, "all_gather", "forward") == [200, 400, 200]


def test_no_more_is_fetched_ahead_than_may_live() -> None:
    options = Zero3(
        param_persistence_threshold=0, prefetch_bucket_size=10_000, max_live_parameters=400
    )
    step = sound(zero3(flat(200, 200, 200, 200), Layout(dp=4), options))
    assert counts(step, "all_gather", "forward")[:2] == [200, 200]


def test_stage_3_norms_each_group_of_the_update() -> None:
    """A rank has 50 elements of each of four tensors, two of which make a group."""
    step = sound(zero3(flat(200, 200, 200, 200), Layout(dp=4), Zero3(sub_group_size=100)))
    assert [op.dtype for op in ops(step, "all_reduce")] == ["uint8", "float", "float"]


def hybrid(**options: object) -> Step:
    given = {"param_persistence_threshold": 0, "max_reuse_distance": 0, "prefetch_bucket_size": 0}
    made = flat(3200, 3200)
    return sound(zero3(made, Layout(dp=16, micro_batches=2), Zero3(**{**given, **options})))


def test_a_second_copy_in_the_host_serves_all_but_the_first_gathers() -> None:
    step = hybrid(zero_hpz_partition_size=8)
    assert [op.group for op in ops(step, "all_gather")] == ["dp"] * 2 + ["hpz"] * 6


def test_a_second_copy_lies_with_neighbours() -> None:
    assert hybrid(zero_hpz_partition_size=8).members("hpz", 9) == tuple(range(8, 16))


def test_quantized_weights_are_bytes_with_scales_in_float() -> None:
    """A rank's part of 200 elements is one group."""
    found = ops(hybrid(zero_quantized_weights=True), "all_gather")[:2]
    assert [(op.dtype, op.nbytes) for op in found] == [("int8", 3200), ("float", 4 * 16)]


@pytest.mark.parametrize(
    ("count", "groups"), [(200, 1), (8000, 1), (16_000, 2), (32_768, 8), (65_667_072, 10_688)]
)
def test_groups_of_quantized_weights(count: int, groups: int) -> None:
    """The last is an eighth of Llama's embedding, 8 x 3 x 167 x 2^14: 64 x 167 is the first divisor
    above 8,209."""
    found = quantized_groups(count)
    assert (count % (8 * found), count / found < 16_000) == (0, True)
    assert found == groups


@pytest.mark.parametrize("count", [*range(8, 2000, 8), 120_000, 131_064, 8 * 10_007])
def test_groups_are_the_first_that_divide_weights(count: int) -> None:
    """Where no group is doubled after that, as in such small weights."""
    first = next(g for g in range(-(-count // 8000), count) if count % (8 * g) == 0)
    assert quantized_groups(count) == first


def test_groups_of_many_weights_are_found_at_once() -> None:
    prime = (1 << 61) - 1
    assert quantized_groups(8 * prime) == prime
    with pytest.raises(UsageError, match="no groups of eights"):
        quantized_groups(8 * prime + 1)


def test_weights_without_groups_of_eights_are_refused() -> None:
    with pytest.raises(UsageError, match="203 elements"):
        quantized_groups(203)


def matrices(*shapes: tuple[int, ...]) -> Model:
    tensors = tuple(Tensor(f"m{n}.weight", shape, n) for n, shape in enumerate(shapes))
    return Model(name="matrices", tensors=tensors, layers=len(shapes), dtype="half")


def test_quantized_gradients_are_exchanged_in_the_host_and_between_hosts() -> None:
    """64 x 32 elements in 4 bits are 1024 bytes, of which a rank has an eighth after the first
    exchange; there are as many scales as the larger dimension has."""
    options = Zero3(zero_quantized_gradients=True)
    step = sound(zero3(matrices((64, 32)), Layout(dp=16), options))
    assert [(op.group, op.dtype, op.nbytes) for op in ops(step, "all_to_all")] == [
        ("node", "int8", 1024),
        ("node", "float", 4 * 64),
        ("across", "int8", 128),
        ("across", "float", 4 * 8),
    ]


def test_what_cannot_be_quantized_is_scattered() -> None:
    """A vector, and a matrix that 2 x 16 does not divide."""
    options = Zero3(zero_quantized_gradients=True)
    step = sound(zero3(matrices((64,), (3, 5)), Layout(dp=16), options))
    assert counts(step, "reduce_scatter") == [64, 16]


def test_one_host_quantizes_no_gradients() -> None:
    step = zero3(matrices((64, 32)), Layout(dp=8), Zero3(zero_quantized_gradients=True))
    assert not ops(step, "all_to_all")


@pytest.mark.parametrize(
    ("dp", "options", "said"),
    [
        (12, Zero3(zero_hpz_partition_size=8), "zero_hpz_partition_size=8"),
        (12, Zero3(zero_quantized_gradients=True), "node=8"),
    ],
)
def test_hosts_have_to_be_whole(dp: int, options: Zero3, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        zero3(matrices((64, 32)), Layout(dp=dp), options)


@pytest.mark.parametrize(
    ("made", "held"),
    [
        (zero1(flat(64), Layout(dp=8), PAPER), (128, 128, 96)),
        (zero2(flat(64), Layout(dp=8), PAPER), (128, 16, 96)),
        (zero3(flat(64), Layout(dp=8), PAPER3), (16, 16, 96)),
    ],
)
def test_a_rank_holds_what_the_paper_says(made: Step, held: tuple[int, ...]) -> None:
    """2 + 2 + 12 bytes a parameter, of which a stage divides the last, the last two or all."""
    holds = made.programs[0].holds
    assert (holds["parameters"], holds["gradients"], holds["optimizer"]) == held
