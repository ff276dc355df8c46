"""Steps made smaller, cut to a group, or told how to compute."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.core import splits
from collbench.core.errors import UsageError
from collbench.features.training import operations, presets, reshape, walk
from collbench.features.training.step import Op, Program, Recorded, Step, refuse_step


@given(st.integers(1, 10_000), st.integers(2, 9), st.fractions(Fraction(1, 5000), 1))
def test_a_part_of_every_operation_is_one_that_its_group_can_divide(
    blocks: int, n: int, part: Fraction
) -> None:
    whole = Op(kind="all_gather", nbytes=4 * n * blocks, dtype="float")
    step = reshape.scale_step(Step("x", n, (Program((*range(n),), (whole,)),)), part)
    refuse_step(step)
    (op,) = step.programs[0].ops
    assert op.nbytes % (4 * n) == 0
    assert op.nbytes >= 4 * n
    assert 0 <= op.nbytes - whole.nbytes * part < 4 * n


def test_a_part_has_as_many_operations_and_says_so() -> None:
    whole = presets.find_step("fsdp2:llama3-8b", world=4, layers=2)
    part = reshape.scale_step(whole, Fraction(1, 64))
    assert len(part.programs[0].ops) == len(whole.programs[0].ops)
    assert part.name == "fsdp2:llama3-8b layers=2 scale=1/64"
    assert any("1/64 of its elements" in each for each in part.assumptions)
    flops = [sum(op.flops for op in step.programs[0].ops) for step in (part, whole)]
    assert flops[0] == pytest.approx(flops[1] / 64)
    assert part.programs[0].holds["parameters"] * 64 == pytest.approx(
        whole.programs[0].holds["parameters"], abs=64
    )


def test_a_part_of_unequal_blocks_is_one_that_all_ranks_agree_on() -> None:
    part = reshape.scale_step(presets.find_step("m2n:dp.None->tp.None"), Fraction(1, 256))
    walk.refuse_deadlock(part)
    refuse_step(part)


def test_a_scaled_exchange_is_as_large_as_its_blocks() -> None:
    """Each block is rounded up, and with them the buffer that is divided."""
    whole = presets.find_step("deepep:ll", "dp=4")
    cases = [
        played.case
        for played in operations.list_played(reshape.scale_step(whole, Fraction(1, 128)), 0, "gloo")
        if played.case.splits
    ]
    assert cases
    for case in cases:
        assert case.nbytes == splits.table_bytes(case.splits, case.n)


@pytest.mark.parametrize("text", ["0", "-1", "2", "1/0", "x", "1" * 21, "nan"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--scale"):
        reshape.parse_share(text)


def test_a_slice_is_what_one_group_does_among_itself() -> None:
    whole = presets.find_step("megatron:llama3-8b", "tp=2,dp=2,pp=2,micro_batches=2", layers=2)
    part = reshape.slice_step(whole, "tp")
    refuse_step(part)
    walk.refuse_deadlock(part)
    assert part.world == 2
    kept = [op for program in part.programs for op in program.ops if op.communicates]
    assert kept
    assert {part.members(op.group, 0) for op in kept} == {(0, 1)}
    assert not any(op.kind in ("send", "recv") for op in kept)
    (told,) = [each for each in part.assumptions if "left out" in each]
    first = next(program for program in whole.programs if 0 in program.ranks)
    dropped = sum(op.communicates and op.group not in part.groups for op in first.ops)
    assert f": {dropped} operations with others left out" in told


def test_a_slice_of_no_group_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="--slice tq") as error:
        reshape.slice_step(presets.find_step("megatron:llama3-8b"), "tq")
    assert "tp" in error.value.hint


def test_what_waits_for_operations_that_are_left_out_waits_no_more() -> None:
    ops = (
        Op(kind="all_reduce", group="far", nbytes=4, dtype="float", op="sum"),
        Op(kind="all_reduce", group="near", nbytes=4, dtype="float", op="sum"),
        Op(kind="wait", after=(0,)),
        Op(kind="wait", after=(0, 1)),
    )
    groups = {"near": ((0, 1), (2, 3)), "far": ((0, 2), (1, 3))}
    part = reshape.slice_step(Step("x", 4, (Program((0, 1, 2, 3), ops),), groups), "near")
    found = [(op.kind, op.after) for op in part.programs[0].ops]
    assert found == [("all_reduce", ()), ("mark", ()), ("wait", (0,))]


def test_time_alone_needs_to_know_how_long() -> None:
    step = presets.find_step("toy:ddp")
    with pytest.raises(UsageError, match="nothing says how long") as error:
        reshape.set_computation(step, "sleep", 0)
    assert "--tflops" in error.value.hint
    made = reshape.set_computation(step, "sleep", 1e-6)
    flops = [op.flops for op in step.programs[0].ops]
    assert [op.compute_ns for op in made.programs[0].ops] == [round(f / 1e-3) for f in flops]
    assert made.name.endswith("compute=sleep@1e-06")


def test_averages_are_sums_where_there_are_none_and_it_is_said() -> None:
    step = presets.find_step("fsdp2:llama3-8b", layers=1)
    made = reshape.replace_averages(step, "gloo")
    assert {op.op for op in made.programs[0].ops} == {"none", "sum"}
    assert "gloo has no avg" in made.assumptions[-1]
    toy = presets.find_step("toy:ddp")
    assert reshape.replace_averages(toy, "gloo") is toy


def test_a_title_tells_steps_apart_that_have_one_name() -> None:
    one, other = (
        Step("x", 1, (Program((0,), (Op(kind="compute", flops=flops),)),)) for flops in (1.0, 2.0)
    )
    assert one.title != other.title
    assert one.title.startswith("x #")
    assert one.title == Step("x", 1, one.programs, assumptions=("told",)).title


def test_what_was_recorded_is_that_of_the_step_as_it_was() -> None:
    op = Op(kind="all_reduce", nbytes=64, dtype="float", op="sum", group="dp")
    recorded = Recorded((5,), "from begin to end")
    step = Step("x", 2, (Program((0, 1), (op,)),), {"dp": ((0, 1),)}, recorded=recorded)
    assert (
        reshape.replace_averages(reshape.set_computation(step, "sleep", 0), "gloo").recorded
        == recorded
    )
    for other in (
        reshape.scale_step(step, Fraction(1, 2)),
        reshape.slice_step(step, "dp"),
        reshape.set_computation(step, "none", 0),
    ):
        assert other.recorded is None


def reduce_on(*names: str) -> tuple[Op, ...]:
    return tuple(
        Op(kind="all_reduce", group=name, nbytes=4, dtype="float", op="sum") for name in names
    )


def test_a_slice_of_all_ranks_keeps_what_all_do() -> None:
    step = Step("x", 3, (Program((0, 1, 2), reduce_on("", "dp")),), {"dp": ((2, 0, 1),)})
    part = reshape.slice_step(step, "dp")
    refuse_step(part)
    assert [op.group for op in part.programs[0].ops] == ["", "dp"]
    assert part.members("dp", 0) == (2, 0, 1)
    assert "0 operations with others left out" in part.assumptions[-1]


def test_a_slice_leaves_out_what_all_do_where_it_is_not_all() -> None:
    step = Step("x", 4, (Program((0, 1, 2, 3), reduce_on("", "dp")),), {"dp": ((0, 1), (2, 3))})
    part = reshape.slice_step(step, "dp")
    refuse_step(part)
    assert [op.group for op in part.programs[0].ops] == ["dp"]


def test_an_operation_stays_for_ranks_whose_group_is_in_the_slice() -> None:
    """Of b's groups the first lies in the slice, the second only with rank 2."""
    groups = {"a": ((0, 1, 2), (3, 4, 5)), "b": ((0, 1), (2, 3), (4, 5))}
    step = Step("x", 6, (Program((*range(6),), reduce_on("a", "b")),), groups)
    part = reshape.slice_step(step, "a")
    refuse_step(part)
    walk.refuse_deadlock(part)
    found = {program.ranks: [op.group for op in program.ops] for program in part.programs}
    assert found == {(0, 1): ["a", "b"], (2,): ["a"]}
    assert "1 operations with others left out" in part.assumptions[-1]
