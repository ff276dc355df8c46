"""The orders of reference algorithms: as their schedules say, as probes find them in their numbers,
and as random bits have them."""

from __future__ import annotations

import numpy as np
import pytest
from adders import answer, find_type

from collbench.core import algorithms
from collbench.core.algorithms import Variant
from collbench.core.collectives import COLLECTIVES
from collbench.core.schedule import Moves, Schedule, run_schedule
from collbench.core.sums.rounding import Rounding, draw_inputs, evaluate_tree
from collbench.core.sums.search import Finding, Question, find_order
from collbench.core.sums.symbolic import TreeRun, find_orders, join_runs
from collbench.core.sums.trees import SumTree, parse_tree

FLOAT = find_type("float")

REDUCING = ("all_reduce", "reduce", "reduce_scatter", "scan")

CASES = [
    pytest.param(row, n, id=f"{name}-{row.name}-{n}")
    for name in REDUCING
    for row in algorithms.list_algorithms(name)
    for n in range(2, 9)
    if not Variant(row).refuse(n)
]


def add_floats(schedule: Schedule, numbers: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """What the schedule makes of a row of float32 by rank, the same in all its cells, by rank and
    cell of the output."""
    inputs = [[numbers[rank]] * len(schedule.input_cells(rank)) for rank in range(schedule.n)]
    for state in run_schedule(schedule, inputs, lambda a, b: a + b):
        last = state
    return {
        (rank, cell): last[rank, cell]
        for rank in range(schedule.n)
        for cell in schedule.output_cells(rank)
    }


def list_questions(ranks: range) -> list[Question]:
    """All that is asked of an adder of the own type: every pair, at both scales."""
    asked: list[Question] = []
    chain = parse_tree("0") if len(ranks) == 1 else None

    def reply(question: Question) -> float:
        asked.append(question)
        i, j = question.probe.pair
        above = [rank for rank in question.probe.units if rank > max(i, j)]
        return sum(
            2.0 ** (question.scale.unit + question.probe.units.index(rank)) for rank in above
        )

    found = answer(find_order(ranks, FLOAT, "sum", len(ranks), True, "all"), reply)
    assert chain in (None, found.tree)
    return asked


def find_by_probes(ranks: range, results: dict[Question, float]) -> Finding:
    n = len(ranks)
    found: Finding = answer(
        find_order(ranks, FLOAT, "sum", n, True, "all"), lambda question: results[question]
    )
    return found


def list_cells(orders: list[TreeRun]) -> list[SumTree]:
    return [run.tree for run in orders for _ in range(run.length)]


def test_all_reference_cases_are_tried() -> None:
    assert len(CASES) >= 145
    assert {case.values[0].collective for case in CASES} == set(REDUCING)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("row", "n"), CASES)
def test_a_reference_adds_in_the_order_that_its_schedule_says(
    row: algorithms.Algorithm, n: int
) -> None:
    schedule = Variant(row).schedule(n)
    random = draw_inputs(FLOAT, n, "sum", 40, 1)
    questions = sorted({q for last in range(n) for q in list_questions(range(last + 1))})
    probes = np.array(
        [[q.probe.value(rank, q.scale, "sum") for q in questions] for rank in range(n)]
    ).reshape(n, len(questions))
    results = add_floats(schedule, np.hstack([random, probes]).astype(np.float32))
    known: dict[bytes, SumTree] = {}
    for rank, orders in enumerate(find_orders(schedule)):
        if orders is None:
            continue
        trees = list_cells(orders)
        cells = schedule.output_cells(rank)
        assert len(trees) == len(cells)
        for tree, cell in zip(trees, cells, strict=True):
            result = results[rank, cell].astype(np.float64)
            key = result.tobytes()
            if known.get(key) == tree:
                continue
            answers = dict(zip(questions, result[40:].tolist(), strict=True))
            ranks = range(rank + 1 if row.collective == "scan" else n)
            found = find_by_probes(ranks, answers)
            assert (found.tree, found.low_tree) == (tree, tree)
            predicted = evaluate_tree(tree, dict(enumerate(random)), FLOAT, "sum", Rounding(24), n)
            assert predicted.tolist() == result[:40].tolist()
            known[key] = tree


@pytest.mark.parametrize("root", [0, 2])
def test_only_the_root_of_a_reduction_has_an_order(root: int) -> None:
    schedule = algorithms.find_variant("reduce", "chain:segments=1").schedule(4, root)
    defined = [orders is not None for orders in find_orders(schedule)]
    assert defined == [rank == root for rank in range(4)]


def test_a_ring_adds_each_chunk_from_another_rank_on() -> None:
    orders = find_orders(algorithms.find_variant("all_reduce", "ring").schedule(4))[0]
    assert orders is not None
    chains = {str(run.tree) for run in orders}
    assert len(chains) == 4
    assert all(run.length == 1 for run in orders)


def test_a_scan_adds_up_the_ranks_below() -> None:
    for row in algorithms.list_algorithms("scan"):
        orders = find_orders(Variant(row).schedule(5))
        leaves = [runs[0].tree.leaves for runs in orders if runs]
        assert leaves == [list(range(rank + 1)) for rank in range(5)]


def make_schedule(*moves: tuple[int, int]) -> Schedule:
    """A reduction to rank 0 of moves in one step."""
    step = [Moves(np.array([m[0] for m in moves]), np.array([m[1] for m in moves]), 0, 0, True)]
    return Schedule("made", "reduce", 4, 0, 1, lambda: iter(step))


@pytest.mark.parametrize(
    ("moves", "text"),
    [
        (((1, 0), (2, 0), (3, 0)), "((0+1)+2)+3"),
        (((3, 0), (1, 0), (2, 0)), "((0+3)+1)+2"),
    ],
)
def test_moves_into_one_cell_add_in_the_order_in_which_they_are_listed(
    moves: tuple[tuple[int, int], ...], text: str
) -> None:
    orders = find_orders(make_schedule(*moves))[0]
    assert orders == [TreeRun(parse_tree(text), 1)]


def test_neighbours_of_one_order_are_joined() -> None:
    a, b = parse_tree("0+1"), parse_tree("0+2")
    runs = [TreeRun(tree, 1) for tree in (a, a, b, a)]
    assert join_runs(runs) == [TreeRun(a, 2), TreeRun(b, 1), TreeRun(a, 1)]


@pytest.mark.parametrize("name", sorted(set(COLLECTIVES) & set(REDUCING)))
def test_every_collective_that_reduces_is_here(name: str) -> None:
    assert any(case.values[0].collective == name for case in CASES)  # type: ignore[attr-defined]
