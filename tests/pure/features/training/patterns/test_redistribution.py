"""Redistribution: what the planned steps send, and that carried out on arrays they give each rank
what it should have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.features.training import layout, models, step, walk
from collbench.features.training.layout import Layout
from collbench.features.training.models import Model, Tensor
from collbench.features.training.patterns import redistribution
from collbench.features.training.patterns.redistribution import (
    M2N,
    MatMul2,
    Move,
    Placed,
    Redistribution,
    parse_layout,
    plan_moves,
    sent_bytes,
)
from collbench.features.training.step import Grid, Op, Step

TOY = models.find_model("toy")
Arrays = dict[int, np.ndarray]


def checked(made: Step) -> Step:
    step.refuse_step(made)
    walk.refuse_deadlock(made)
    return made


def moved(made: Step) -> list[Op]:
    return [op for op in checked(made).programs[0].ops if op.communicates]


def place(grid: Grid, dimension: str, rank: int) -> int:
    """Where a rank is in a dimension, as the groups say."""
    return next(group.index(rank) for group in grid.groups(dimension) if rank in group)


def part(grid: Grid, whole: np.ndarray, placed: Placed, rank: int) -> np.ndarray:
    """What a rank has of the whole, by cutting it in halves, thirds and so on, the outer first."""
    for axis, dimensions in enumerate(placed.axes):
        for dimension in dimensions:
            n = grid.sizes[dimension]
            whole = np.split(whole, n, axis)[place(grid, dimension, rank)]
    return whole


def given_to(grid: Grid, whole: np.ndarray, placed: Placed) -> Arrays:
    """Arrays on all ranks that are the whole, laid so; terms of a sum are made up."""
    rng = np.random.default_rng(0)
    terms = {rank: rng.integers(-9, 9, whole.shape) for rank in range(grid.world)}
    for group in grid.groups(*placed.partial):
        rest = sum(terms[rank] for rank in group[1:])
        terms[group[0]] = whole - rest  # the ranks of a group sum up to the whole
    alike: Arrays = {}
    for rank in range(grid.world):  # ranks that differ in other dimensions have the same term
        places = tuple(place(grid, d, rank) for d in placed.partial)
        first = next(
            other
            for other in grid.groups(*placed.partial)[0]
            if tuple(place(grid, d, other) for d in placed.partial) == places
        )
        alike[rank] = part(grid, terms[first], placed, rank)
    return alike


def carried_out(grid: Grid, move: Move, arrays: Arrays) -> Arrays:
    """A step, by the collectives' own definitions on the first axis."""
    found: Arrays = {}
    for group in grid.groups(move.dimension):
        n = len(group)
        if move.kind == "slice":
            outputs: list[Any] = [
                np.split(arrays[rank], n, move.to)[at] for at, rank in enumerate(group)
            ]
        else:
            ahead = max(move.to if move.kind != "all_gather" else move.axis, 0)
            inputs = [np.moveaxis(arrays[rank], ahead, 0) for rank in group]
            size = inputs[0].size * (n if move.kind == "all_gather" else 1)
            assert move.nbytes == size * inputs[0].itemsize
            outputs = COLLECTIVES[move.kind].result(inputs, np.add, 0)
            if move.kind == "all_to_all":
                apart = [[np.moveaxis(b, 0, ahead) for b in np.split(o, n)] for o in outputs]
                outputs = [np.concatenate(blocks, move.axis) for blocks in apart]
            else:
                outputs = [np.moveaxis(o, 0, ahead) for o in outputs]
        found.update(zip(group, outputs, strict=True))
    return found


def through(sizes: dict[str, int], shape: tuple[int, ...], before: str, after: str) -> list[Move]:
    """The plan from one layout to another, found right on arrays."""
    grid = Grid(sizes)
    source, target = parse_layout(before, sizes, shape), parse_layout(after, sizes, shape)
    whole = np.arange(math.prod(shape)).reshape(shape)
    arrays = given_to(grid, whole, source)
    way = plan_moves(source, target, shape, sizes, whole.itemsize)
    for move in way:
        arrays = carried_out(grid, move, arrays)
    for rank in range(grid.world):
        rest = given_to(grid, whole, target)[rank] if not target.partial else None
        if rest is not None:
            assert np.array_equal(arrays[rank], rest)
    return way


@pytest.mark.parametrize(
    ("before", "after", "kinds", "share"),
    [
        ("dp.None", "None.None", ["all_gather"], 3 / 4),
        ("None.None", "dp.None", ["slice"], 0),
        ("None.None.sum:dp", "None.None", ["all_reduce"], 2 * 3 / 4),
        ("None.None.sum:dp", "None.dp", ["reduce_scatter"], 3 / 4),
        ("dp.None", "None.dp", ["all_to_all"], 3 / 16),
        ("None.dp", "dp.None", ["all_to_all"], 3 / 16),
        ("dp.None", "dp.None", [], 0),
        ("None.None.sum:dp", "None.None.sum:dp", [], 0),
    ],
)
def test_one_step_on_four_ranks(before: str, after: str, kinds: list[str], share: float) -> None:
    way = through({"dp": 4}, (8, 16), before, after)
    assert [move.kind for move in way] == kinds
    assert sum(sent_bytes(move, {"dp": 4}) for move in way) == share * 8 * 16 * 8


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ("dp+tp.None", "tp+dp.None", ["all_to_all", "all_to_all", "all_gather", "slice"]),
        ("None.None.sum:dp+tp", "None.None", ["reduce_scatter", "all_reduce", "all_gather"]),
        ("dp.tp", "tp.dp", ["all_to_all", "all_gather", "slice"]),
        ("dp.None.sum:tp", "dp+tp.None", ["reduce_scatter"]),
        ("None.None", "dp.tp", ["slice", "slice"]),
    ],
)
def test_ways_on_a_grid(before: str, after: str, kinds: list[str]) -> None:
    sizes = {"tp": 2, "dp": 2}
    way = through(sizes, (8, 8), before, after)
    cost = sum(sent_bytes(move, sizes) for move in way)
    whole = 8 * 8 * 8
    naive = (3 / 4 if "sum" not in before else 6 / 4) * whole
    assert cost <= naive
    assert sorted(move.kind for move in way) == sorted(kinds)


LAYOUTS = st.permutations(["tp", "dp", "cp"]).flatmap(
    lambda names: st.tuples(*[st.integers(-1, 2)] * 3).map(
        lambda to: tuple(zip(names, to, strict=True))
    )
)


def words(where: tuple[tuple[str, int], ...], sums: bool) -> str:
    """A layout of a matrix: each dimension on axis 0 or 1, none (-1), or in a sum (2)."""
    axes = ["+".join(d for d, to in where if to == axis) or "None" for axis in (0, 1)]
    partial = "+".join(d for d, to in where if to == 2)
    return ".".join([*axes, *([f"sum:{partial}"] if partial and sums else [])])


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.integers(1, 3)] * 3), LAYOUTS, LAYOUTS)
def test_any_way_arrives_and_sends_no_more_than_gathering_all(
    n: tuple[int, int, int], before: Any, after: Any
) -> None:
    sizes = dict(zip(("tp", "cp", "dp"), n, strict=True))
    shape = (36, 36)
    source, target = (
        Placed(tuple(tuple(d for d, to in where if to == axis) for axis in (0, 1)))
        for where in (before, after)
    )
    assume(all(36 % p.parts(sizes, axis) == 0 for p in (source, target) for axis in (0, 1)))
    way = through(sizes, shape, words(before, True), words(after, False))
    partial = math.prod(sizes[d] for d, to in before if to == 2)
    split = math.prod(sizes[d] for d, to in before if to in (0, 1))
    local = 36 * 36 * 8 // split
    most = 2 * sum((sizes[d] - 1) / sizes[d] * local for d, to in before if to == 2)
    most += (split - 1) * local
    assert sum(sent_bytes(move, sizes) for move in way) <= most + 1e-6
    assert partial > 1 or not any(COLLECTIVES[m.kind].reduces for m in way if m.kind != "slice")


def test_the_step_of_a_redistribution() -> None:
    layout = Layout(tp=4, dp=2, sequence=64)
    made = redistribution.redistribute(
        models.find_model("llama3-8b"), layout, Redistribution("tp,None -> None,tp")
    )
    (op,) = moved(made)
    assert (op.kind, op.group, op.nbytes, op.wait) == (
        "all_to_all",
        "tp",
        64 * 4096 * 2 // 4,
        "call",
    )
    assert made.groups == {"tp": ((0, 1, 2, 3), (4, 5, 6, 7))}
    holds = made.programs[0].holds
    assert holds["source"] == holds["target"] == 64 * 4096 * 2 // 4


def test_two_products_of_matrices() -> None:
    made = redistribution.matmul2(TOY, Layout(dp=4), MatMul2(64, 32, 48, 16, "float"))
    y, dy, dw = moved(made)
    assert (y.kind, y.phase, y.nbytes) == ("all_gather", "forward", 64 * 48 * 4)
    assert y.sent(4) == 3 / 4 * 64 * 48 * 4
    assert (dy.kind, dy.phase, dy.nbytes) == ("reduce_scatter", "backward", 64 * 48 * 4)
    assert (dw.kind, dw.nbytes) == ("all_reduce", 32 * 48 * 4)
    flops = sum(op.flops for op in made.programs[0].ops)
    assert flops == 2 * (64 * 32 * 48 * 2 + 64 * 48 * 16 * 3) / 4


@pytest.mark.parametrize(("n", "batches"), [(1, 1), (2, 1), (2, 4), (4, 2)])
def test_two_products_on_two_stages(n: int, batches: int) -> None:
    layout, options = Layout(dp=n, pp=2, micro_batches=batches), MatMul2(64, 32, 48, 16, "float")
    made = redistribution.matmul2(TOY, layout, options)
    walk.refuse_deadlock(made)
    assert made.world == 2 * n
    first, second = (made.program(rank) for rank in (0, n))
    sent = [op for op in (*first.ops, *second.ops) if op.kind == "send"]
    assert len(sent) == 2 * batches  # rows there, and their gradient back
    assert sum(op.nbytes for op in sent) == 2 * 64 * 48 * 4 // n
    flops = sum(op.flops for program in (first, second) for op in program.ops)
    assert flops == 2 * (64 * 32 * 48 * 2 + 64 * 48 * 16 * 3) / n
    assert {op.group for op in first.ops if op.communicates} <= {"pp", "dp"}
    alone = redistribution.matmul2(TOY, Layout(dp=n), options)
    if n > 1:  # what stages of dp ranks send each other is what one stage does
        inside = [op for p in (first, second) for op in p.ops if op.group == "dp"]
        assert sum(op.sent(n) for op in inside) == sum(op.sent(n) for op in moved(alone))


def test_two_products_have_two_stages() -> None:
    with pytest.raises(UsageError, match="pp=3"):
        redistribution.matmul2(TOY, Layout(dp=2, pp=3), MatMul2(64, 32, 48, 16))
    with pytest.raises(UsageError, match="batch=64 is not divisible by dp=2 and micro_batches=3"):
        redistribution.matmul2(TOY, Layout(dp=2, pp=2, micro_batches=3), MatMul2(64, 32, 48, 16))


def test_two_products_give_numpys_result_and_gradients() -> None:
    """What the plan says, done on arrays: outputs and all gradients are those of the whole."""
    n, rng = 4, np.random.default_rng(1)
    sizes = {"dp": n}
    grid = Grid(sizes)
    x, w, v = (rng.integers(-9, 9, s) for s in ((8, 6), (6, 12), (12, 16)))
    dz = rng.integers(-9, 9, (8, 16))
    kinds: list[str] = []

    def to(arrays: Arrays, before: str, after: str) -> Arrays:
        shape = (8, 12) if arrays[0].shape != (6, 12) else (6, 12)
        way = plan_moves(
            parse_layout(before, sizes, shape), parse_layout(after, sizes, shape), shape, sizes, 8
        )
        for move in way:
            kinds.append(move.kind)
            arrays = carried_out(grid, move, arrays)
        return arrays

    rows, columns = np.split(x, n), np.split(v, n, 1)
    y = to({r: rows[r] @ w for r in range(n)}, "dp.None", "None.None")
    z = np.concatenate([y[r] @ columns[r] for r in range(n)], 1)
    assert np.array_equal(z, x @ w @ v)
    above = np.split(dz, n, 1)
    dv = np.concatenate([y[r].T @ above[r] for r in range(n)], 1)
    assert np.array_equal(dv, (x @ w).T @ dz)
    dy = to({r: above[r] @ columns[r].T for r in range(n)}, "None.None.sum:dp", "dp.None")
    dw = to({r: rows[r].T @ dy[r] for r in range(n)}, "None.None.sum:dp", "None.None")
    assert all(np.array_equal(dw[r], x.T @ (dz @ v.T)) for r in range(n))
    made = redistribution.matmul2(TOY, Layout(dp=n), MatMul2(8, 6, 12, 16, "int64"))
    assert kinds == [op.kind for op in moved(made)]


@pytest.mark.parametrize("n", range(1, 65))
def test_bytes_of_two_products_for_any_number_of_ranks(n: int) -> None:
    options = MatMul2(64 * n, 8, 8, 2 * n, "half")
    made = redistribution.matmul2(TOY, Layout(dp=n), options)
    total = sum(op.sent(n) for op in moved(made))
    assert total == pytest.approx((n - 1) / n * (2 * 64 * n * 8 + 2 * 8 * 8) * 2)


@pytest.mark.parametrize(
    ("move", "shape", "words"),
    [
        ("dp.None", (8, 8), "no -> and second layout"),
        ("dp.None->None", (8, 8), "has 1 axes, the tensor 2"),
        ("xp.None->None.None", (8, 8), "no dimension 'xp'"),
        ("dp.dp->None.None", (8, 8), "dp twice"),
        ("dp.None->None.None", (9, 8), "9 is not divisible by the 4 parts of axis 0"),
        ("dp.None->None.None.sum:dp", (8, 8), "cannot be taken apart"),
        ("None->dp", (), "not a tensor"),
        ("None.->dp.None", (8, 8), "no dimension ''"),
        ("None.None->None.None", (1 << 30, 1 << 30), "not a tensor"),
    ],
)
def test_what_is_no_redistribution(move: str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        redistribution.redistribute(TOY, Layout(dp=4), Redistribution(move, shape))


@pytest.mark.parametrize(
    ("options", "words"), [(MatMul2(batch=6), "batch=6 "), (MatMul2(outputs=6), "outputs=6 ")]
)
def test_products_that_cannot_be_divided(options: MatMul2, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        redistribution.matmul2(TOY, Layout(dp=4), options)


# m2n

MATRICES = Model(
    name="m",
    tensors=(Tensor("a", (24, 48)), Tensor("b", (48,)), Tensor("c", (48, 24))),
    dtype="float",
)


def table(made: Step, at: int) -> np.ndarray:
    """Who sends how many elements of a tensor to whom."""
    of_rank = {rank: program for program in made.programs for rank in program.ranks}
    return np.array([of_rank[rank].ops[at].sends for rank in range(made.world)])


def test_a_generator_gets_every_shard_once() -> None:
    made = checked(redistribution.m2n(MATRICES, Layout(dp=6), M2N("dp.None->tp.None", tp=4, dp=2)))
    assert made.world == 6 + 8
    for at, tensor in enumerate(MATRICES.tensors):
        whole = table(made, at)
        shard = tensor.numel // (4 if len(tensor.shape) > 1 else 1)
        assert whole.sum(0).tolist() == [0] * 6 + [shard] * 8
        assert whole[6:].sum() == 0


def test_whom_rows_come_from() -> None:
    made = redistribution.m2n(MATRICES, Layout(dp=6), M2N("dp.None->tp.None", tp=4))
    # 24 rows: 4 on each trainer, 6 for each generator
    assert table(made, 0)[:6, 6:].tolist() == [
        [4 * 48, 0, 0, 0],
        [2 * 48, 2 * 48, 0, 0],
        [0, 4 * 48, 0, 0],
        [0, 0, 4 * 48, 0],
        [0, 0, 2 * 48, 2 * 48],
        [0, 0, 0, 4 * 48],
    ]


def test_what_is_there_already_is_not_sent() -> None:
    made = redistribution.m2n(MATRICES, Layout(dp=4), M2N("dp.None->None.tp", tp=4, colocated=True))
    assert made.world == 4
    assert table(made, 0).tolist() == (6 * 12 * (1 - np.eye(4, dtype=int))).tolist()
    same = redistribution.m2n(MATRICES, Layout(dp=4), M2N("dp.None->tp.None", tp=4, colocated=True))
    assert table(same, 0).sum() == table(same, 2).sum() == 0


def test_replicas_take_turns() -> None:
    made = redistribution.m2n(MATRICES, Layout(dp=4), M2N("None.None->None.None", tp=1, dp=8))
    assert table(made, 0)[:4].sum(1).tolist() == [2 * 24 * 48] * 4


def test_the_size_is_what_passes_the_busiest_rank() -> None:
    made = redistribution.m2n(MATRICES, Layout(dp=2), M2N("dp.None->tp.None", tp=4))
    whole = table(made, 0)
    busiest = max(whole.sum(0).max(), whole.sum(1).max())
    assert {p.ops[0].nbytes for p in made.programs} == {4 * busiest} == {4 * 2 * 24 * 48 // 4}


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["dp.None", "None.dp", "tp.dp", "dp+tp.None", "tp.None", "None.None"]),
    st.sampled_from(["tp.None", "None.tp", "tp+dp.None", "None.None", "dp.tp"]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_every_rank_ends_with_its_part(
    before: str, after: str, tp: int, dp: int, colocated: bool
) -> None:
    """Elements are counted one by one: what a rank has already and what it gets is its part."""
    layout, to = Layout(tp=tp, dp=dp), {"tp": dp, "dp": tp}
    made = redistribution.m2n(
        MATRICES, layout, M2N(f"{before}->{after}", tp=dp, dp=tp, colocated=colocated)
    )
    shape, first = (24, 48), 0 if colocated else tp * dp
    numbers = np.arange(24 * 48).reshape(shape)
    source, target = parse_layout(before, layout.grid.sizes, shape), parse_layout(after, to, shape)
    whole = table(checked(made), 0)
    for rank in range(tp * dp):
        wanted = {*part(Grid(to), numbers, target, rank).ravel().tolist()}
        had = {*part(layout.grid, numbers, source, rank).ravel().tolist()} if colocated else set()
        assert whole[:, first + rank].sum() == len(wanted - had)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (M2N("dp.None->tp.None", tp=5), "24 is not divisible by the 5 parts"),
        (M2N("dp.None->tp.None", tp=4096), "too many"),
        (M2N("dp.None.sum:tp->tp.None"), "which parameters are not"),
        (M2N("dp.None->pp.None"), "no dimension 'pp'"),
        (M2N("dp.None"), "no -> and second layout"),
    ],
)
def test_what_is_no_m2n(options: M2N, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        redistribution.m2n(MATRICES, Layout(tp=2, dp=2), options)


def test_options_are_written_as_text() -> None:
    said = "move=tp.None->None.None,shape=64/32,dtype=float"
    options = layout.parse_struct(said, Redistribution, "--options")
    (op,) = moved(redistribution.redistribute(TOY, Layout(tp=2), options))
    assert (op.kind, op.nbytes, op.dtype) == ("all_gather", 64 * 32 * 4, "float")
