"""Names of orders from the bits of random sums, of which the order is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from collbench.core.dtypes import DTYPES
from collbench.core.sums.families import Rule, list_rules
from collbench.core.sums.names import list_references
from collbench.core.sums.recognition import (
    Run,
    Sums,
    cut_runs,
    draw_numbers,
    find_runs,
    list_candidates,
    list_roundings,
    name_runs,
)
from collbench.core.sums.rounding import Rounding, evaluate_tree, round_values
from collbench.core.sums.symbolic import TreeRun
from collbench.core.sums.trees import SumTree, parse_tree

ELEMENTS = 1024

Orders = Sequence[Sequence[TreeRun] | None]


def make_sums(
    runs: Sequence[TreeRun], n: int, dtype: str = "float", op: str = "sum", rounding: object = None
) -> Sums:
    """What a library makes of random numbers, that adds as ``runs`` say, lengths in shares."""
    kind = DTYPES[dtype]
    used = rounding if isinstance(rounding, Rounding) else Rounding(kind.precision)
    inputs = draw_numbers(kind, n, op, ELEMENTS, 7)
    total = sum(run.length for run in runs)
    trees = [run.tree for run in runs for _ in range(run.length * ELEMENTS // total)]
    trees += [runs[-1].tree] * (ELEMENTS - len(trees))
    by_tree = {
        tree: evaluate_tree(tree, dict(enumerate(inputs)), kind, op, used, n) for tree in {*trees}
    }
    results = np.array([by_tree[tree][index] for index, tree in enumerate(trees)])
    return Sums(inputs[:, None, :], results[None, :])


def name_outputs(
    collective: str, n: int, outputs: Orders, dtype: str = "float", op: str = "sum", **more: object
) -> tuple[str, ...]:
    """The names found of sums that are added as ``outputs`` say."""
    for rounding in list_roundings(DTYPES[dtype], op):
        runs = [
            None
            if of_rank is None
            else find_runs(
                make_sums(of_rank, n, dtype, op, **more),
                list_candidates(collective, n, 0, rank),
                DTYPES[dtype],
                op,
                rounding,
            )
            for rank, of_rank in enumerate(outputs)
        ]
        if all(found for found, of_rank in zip(runs, outputs, strict=True) if of_rank):
            return name_runs(collective, n, 0, runs)
    return ()


def spread(tree: SumTree, n: int) -> Orders:
    return [[TreeRun(tree, 1)]] * n


@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "reduce_scatter", "scan"])
@pytest.mark.parametrize("n", [4, 6])
def test_each_reference_algorithm_is_among_the_names_of_its_sums(collective: str, n: int) -> None:
    names = {
        reference.name: name_outputs(collective, n, reference.outputs)
        for reference in list_references(collective, n)
    }
    assert [name for name, found in names.items() if name not in found] == []


def test_a_family_is_named_that_no_reference_algorithm_has() -> None:
    tree = parse_tree("(0+((1+3)+5))+(2+4)")
    assert name_outputs("all_reduce", 6, spread(tree, 6)) == ("2-ary by levels",)


def test_references_come_before_families() -> None:
    found = name_outputs("all_reduce", 4, spread(parse_tree("(0+1)+(2+3)"), 4))
    rules = list_rules(4)
    assert [name in rules for name in found] == sorted(name in rules for name in found)
    assert found[0] not in rules and found[-1] in rules


def test_chunks_that_begin_elsewhere_are_a_rotated_ring() -> None:
    ring = next(r for r in list_references("all_reduce", 4) if r.name == "ring")
    runs = ring.outputs[0] or ()
    rotated = [*runs[1:], *runs[:1]]
    assert name_outputs("all_reduce", 4, [rotated] * 4) == ("ring, 1 chunk on",)


def test_an_order_without_a_name_has_none() -> None:
    tree = parse_tree("(0+2)+((1+4)+(3+5))")
    assert name_outputs("all_reduce", 6, spread(tree, 6)) == ()


def test_one_rank_that_adds_otherwise_leaves_no_name() -> None:
    trees = [Rule.build_tree(list_rules(6)[name], 6) for name in ("linear up", "2-ary heap")]
    outputs = [[TreeRun(trees[rank == 5], 1)] for rank in range(6)]
    assert name_outputs("all_reduce", 6, outputs) == ()


@pytest.mark.parametrize("dtype", ["double", "half", "bfloat16", "f8e5m2"])
def test_types_are_rounded_at_every_node(dtype: str) -> None:
    found = name_outputs("all_reduce", 4, spread(parse_tree("((0+1)+2)+3"), 4), dtype)
    assert "linear up" in found and "linear down" not in found


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "f8e5m2"])
@pytest.mark.parametrize("tree", ["0+(1+(2+3))", "(0+1)+(2+3)"])
def test_narrow_types_that_are_rounded_once_show_the_order_in_float(dtype: str, tree: str) -> None:
    once = Rounding(24, frozenset())
    outputs = spread(parse_tree(tree), 4)
    found = name_outputs("all_reduce", 4, outputs, dtype, rounding=once)
    assert found == name_outputs("all_reduce", 4, outputs)


def test_what_any_order_gives_has_no_name() -> None:
    once = Rounding(24, frozenset())
    outputs = spread(parse_tree("0+(1+(2+3))"), 4)
    assert name_outputs("all_reduce", 4, outputs, "f8e4m3", rounding=once) == ()


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "f8e4m3", "f8e5m2"])
def test_no_sum_of_narrow_numbers_leaves_the_type(dtype: str) -> None:
    kind = DTYPES[dtype]
    numbers = draw_numbers(kind, 8, "sum", 4096, 3)
    assert (numbers == round_values(numbers, kind.precision, kind.emin)).all()
    assert abs(numbers).sum(axis=0).max() < 2.0 ** (kind.emax + 1)


def test_ranks_added_all_at_once_are_named() -> None:
    outputs = spread(parse_tree("together{0, 1, 2, 3}"), 4)
    assert name_outputs("all_reduce", 4, outputs) == ("all at once",)
    assert name_outputs("all_reduce", 4, outputs, "bfloat16") == ("all at once",)


@pytest.mark.parametrize("division", ["after", "before"])
def test_avg_divides_before_or_after(division: str) -> None:
    rounding = Rounding(24, None, division)  # type: ignore[arg-type]
    tree = list_rules(6)["linear up"].build_tree(6)
    found = name_outputs("all_reduce", 6, spread(tree, 6), op="avg", rounding=rounding)
    assert "linear up" in found


def test_runs_are_as_long_as_they_fit() -> None:
    matches = np.array([[1, 1, 1, 0, 0, 1], [1, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]], bool)
    assert cut_runs(matches) == [Run(0, 3), Run(1, 3)]


def test_an_element_that_no_order_gives_leaves_no_runs() -> None:
    assert cut_runs(np.array([[1, 1, 0], [1, 0, 0]], bool)) is None


def test_two_orders_that_fit_as_long_leave_no_runs() -> None:
    assert cut_runs(np.array([[1, 1, 1], [1, 1, 1]], bool)) is None


def test_above_64_ranks_only_families_are_tried() -> None:
    n = 65
    candidates = list_candidates("all_reduce", n, 0, 0)
    assert {rule.build_tree(n) for rule in list_rules(n).values()} <= {*candidates}
    assert len(candidates) < n
