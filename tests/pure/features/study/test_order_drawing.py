"""Trees of additions of a recorded run, drawn; what the run lacks, and options that do not go with
it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from factories import (
    CHAIN,
    DOUBLING,
    RING,
    case,
    make_file,
    order_file,
    order_pieces,
    order_record,
    order_subject,
    record,
    saved,
    size_order,
)
from typer.testing import CliRunner

from collbench.cli import main
from collbench.core.dtypes import DTYPES
from collbench.core.errors import Exit, UsageError
from collbench.core.sums.families import build_chain
from collbench.core.sums.recorded import RecordedOrder
from collbench.core.sums.rounding import EXACT, Rounding, draw_inputs, evaluate_tree
from collbench.core.sums.trees import make_leaf, parse_tree
from collbench.features.order.findings import Piece, RankPieces
from collbench.features.study.order_drawing import add_along, draw_tree, make_nodes, parse_numbers

FLOAT = Rounding(24)


def order(n: int = 4, dtype: str = "float", op: str = "sum") -> RecordedOrder:
    return RecordedOrder("", "all_reduce", n, DTYPES[dtype], op, 64, [], 1, 1)


def drawn(tree: str, rounding: Rounding = FLOAT) -> str:
    return "\n".join(draw_tree(parse_tree(tree), rounding))


def test_a_tree_has_a_line_for_each_node_and_rank() -> None:
    assert drawn("(0+1)+(2+3)") == "+*\n├─ +*\n│  ├─ 0\n│  └─ 1\n└─ +*\n   ├─ 2\n   └─ 3"


def test_a_star_stands_where_the_sum_is_rounded_to_the_element_type() -> None:
    once = Rounding(24, frozenset())
    within = Rounding(24, frozenset({0b0011}))
    assert drawn("(0+1)+2", once) == "+*\n├─ +\n│  ├─ 0\n│  └─ 1\n└─ 2"
    assert drawn("(0+1)+2", within).startswith("+*\n├─ +*\n")
    assert drawn("exact{0, 1, 2+3}", Rounding(EXACT)).startswith("exact*\n├─ 0\n├─ 1\n└─ +\n")


def test_a_long_chain_has_a_line_for_each_addition() -> None:
    lines = draw_tree(build_chain(range(16)), FLOAT)
    assert lines[0] in ("0", "1") and lines[-1] == "+ 15 *" and len(lines) == 16


def test_what_is_added_to_a_long_chain_is_text_or_a_number_of_ranks() -> None:
    tree = "(" * 11 + "0" + "".join(f"+{rank})" for rank in range(1, 12))
    assert "+ (12+13) *" in drawn(f"{tree}+(12+13)")
    many = "+".join(["((20+21)+(22+23))", "((24+25)+(26+27))"])
    assert "+ ((20+21)+(22+23))+" not in drawn(f"{tree}+({many})")


def test_a_tree_of_many_ranks_is_cut() -> None:
    lines = draw_tree(build_chain(range(400)), FLOAT)
    assert len(lines) == 151 and lines[-1] == "and 250 more lines"


def test_a_leaf_is_a_tree() -> None:
    assert draw_tree(make_leaf(2), FLOAT) == ["2"]
    assert make_nodes(make_leaf(2), FLOAT).leaf_count == 1


@pytest.mark.parametrize(
    ("dtype", "rounding"),
    [("float", FLOAT), ("bfloat16", Rounding(8)), ("bfloat16", Rounding(24, frozenset()))],
)
def test_partial_sums_are_those_of_the_evaluation(dtype: str, rounding: Rounding) -> None:
    tree = parse_tree("(0+(1+2))+3")
    numbers = [float(v) for v in draw_inputs(DTYPES[dtype], 4, "sum", 1, 3)[:, 0]]
    sums = add_along(tree, numbers, order(dtype=dtype), rounding)
    inner, middle, _ = sums.nodes
    assert float(inner) == pytest.approx(numbers[1] + numbers[2], rel=1e-2)
    assert float(middle) == pytest.approx(numbers[0] + float(inner), rel=1e-2)
    inputs = {rank: draw_inputs(DTYPES[dtype], 4, "sum", 1, 3)[rank] for rank in range(4)}
    expected = evaluate_tree(tree, inputs, DTYPES[dtype], "sum", rounding, 4)
    assert float(sums.result) == pytest.approx(
        float(expected[0]), rel=2.0 ** -DTYPES[dtype].precision
    )


def test_a_small_number_is_lost_in_one_order_and_not_in_the_other() -> None:
    numbers = parse_numbers("16777216,1,-16777216,0", order())
    lost = add_along(parse_tree("((0+1)+2)+3"), numbers, order(), FLOAT)
    kept = add_along(parse_tree("((0+2)+1)+3"), numbers, order(), FLOAT)
    assert (lost.nodes, lost.result, lost.exact) == (["16777216", "0", "0"], "0", "1")
    assert (kept.result, kept.exact) == ("1", "1")


def test_avg_and_products_have_their_own_results() -> None:
    numbers = parse_numbers("1,2,3,4", order())
    tree = parse_tree("(0+1)+(2+3)")
    avg = add_along(tree, numbers, order(op="avg"), Rounding(24, None, "after"))
    product = add_along(tree, numbers, order(op="prod"), FLOAT)
    assert (avg.result, avg.exact) == ("2.5", "2.5")
    assert (product.nodes, product.result) == (["2", "12", "24"], "24")
    assert draw_tree(tree, FLOAT, "prod")[0] == "x*"


# the command


def show(*args: str) -> Any:
    return CliRunner().invoke(main.app, ["show", *args])


def refusal(*args: str) -> str:
    """Why a command is refused, with exit code 2."""
    error = show(*args).exception
    assert isinstance(error, UsageError) and error.exit == Exit.USAGE
    return str(error)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    by_rank = [
        RankPieces(ranks=(0, 1), pieces=order_pieces(256, CHAIN)),
        RankPieces(ranks=(2, 3), pieces=[Piece(first=0, last=255, reason="no tree")]),
    ]
    records = [
        order_record(size_order(64), size_order(4096, *RING), dropped=[]),
        order_record(
            size_order(1024, ranks=by_rank), subject=order_subject("reduce", sizes=(1024,), root=0)
        ),
    ]
    subjects = [order_subject(), order_subject("reduce", sizes=(1024,), root=0)]
    return saved(order_file(*records, subjects=subjects), tmp_path)


def test_the_largest_size_is_drawn_piece_by_piece(path: Path) -> None:
    done = show("all_reduce", "--from-order", str(path))
    assert done.exit_code == 0, done.output
    heads = [line.strip() for line in done.output.splitlines() if "elements" in line]
    assert heads[:2] == ["elements 0 to 255: 0+(1+(2+3))", "elements 256 to 511: ((0+3)+2)+1"]
    assert "order of all_reduce, 4 KiB, 4 ranks, float" in done.output
    assert "*: the sum is rounded to float" in done.output


def test_another_size_is_drawn_where_it_is_asked_for(path: Path) -> None:
    done = show("all_reduce", "--from-order", str(path), "--size", "64")
    assert "ranks 0-3: 1 piece" in done.output and "order of all_reduce, 64 B" in done.output


def test_values_are_added_along_the_tree(path: Path) -> None:
    done = show("all_reduce", "--from-order", str(path), "--size", "64", "--values", "1,2.5,-3,.1")
    assert "result 0.600000024; exact and rounded once 0.600000024" in done.output


def test_ranks_with_other_pieces_are_drawn_by_themselves(path: Path) -> None:
    done = show("reduce", "--from-order", str(path))
    assert "ranks 0, 1: 1 piece" in done.output and "elements 0 to 255: no tree" in done.output
    alone = show("reduce", "--from-order", str(path), "--rank", "2")
    assert "ranks 0, 1" not in alone.output and "ranks 2, 3" in alone.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("scan",), "has no order of scan"),
        (("all_reduce", "--size", "1M"), "no order of all_reduce at 1 MiB"),
        (("all_reduce", "ring"), "ALGORITHM: with --from-order"),
        (("all_reduce", "-n", "4"), "--ranks: with --from-order"),
        (("all_reduce", "--step", "0"), "--step: with --from-order"),
        (("all_reduce", "--root", "1"), "--root: with --from-order"),
        (("all_reduce", "--on", "gloo"), "--on: with --from-order"),
        (("all_reduce", "--rank", "4"), "no rank 4 among 4"),
        (("all_reduce", "--values", "1,2,3"), "3 numbers for 4 ranks"),
        (("all_reduce", "--values", "1,2,3,1e99"), "float has no such number"),
        (("all_reduce", "--values", "1,2,3,inf"), "float has no such number"),
        (("all_reduce", "--size", "many"), "many"),
    ],
)
def test_what_does_not_go_with_a_run_is_refused(
    path: Path, args: tuple[str, ...], words: str
) -> None:
    assert words in refusal(*args, "--from-order", str(path))


def test_an_algorithm_has_no_size() -> None:
    assert "--size: an algorithm has none" in refusal("all_reduce", "ring", "--size", "1M")


def test_a_run_without_orders_has_none(tmp_path: Path) -> None:
    path = saved(make_file([record(case())]), tmp_path)
    assert "no order of all_reduce" in refusal("all_reduce", "--from-order", str(path))


def test_a_second_launch_and_another_way_are_left_out(tmp_path: Path) -> None:
    varied = size_order(64, DOUBLING, varied=True, in_place=True)
    records = [
        order_record(size_order(64), varied),
        order_record(size_order(64, DOUBLING), cycle=1),
    ]
    done = show("all_reduce", "--from-order", str(saved(order_file(*records), tmp_path)))
    assert done.output.count("elements") == 1 and "((0+1)+2)+3" in done.output
