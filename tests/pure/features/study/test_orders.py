"""The orders in which reference algorithms add, as `collbench prove --orders` shows them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from collbench.cli import main
from collbench.core.algorithms import find_variant
from collbench.core.errors import UsageError
from collbench.features.study.orders import list_rows


def test_chunks_of_a_ring_have_an_order_each() -> None:
    rows = list_rows(find_variant("all_reduce", "ring"), [4], 0)
    assert [row[:4] for row in rows] == [("ring", "4", "0-3", str(chunk)) for chunk in range(4)]
    trees = ["0+((1+2)+3)", "(0+(2+3))+1", "((0+3)+1)+2", "((0+1)+2)+3"]
    assert [row[4] for row in rows] == trees


def test_ranks_with_the_same_output_are_one_row() -> None:
    rows = list_rows(find_variant("all_reduce", "recursive_doubling"), [4, 8], 0)
    assert [row[1:] for row in rows] == [
        ("4", "0-3", "0", "(0+1)+(2+3)"),
        ("8", "0-7", "0", "((0+1)+(2+3))+((4+5)+(6+7))"),
    ]


def test_each_rank_of_a_scan_has_its_own_tree() -> None:
    rows = list_rows(find_variant("scan", "chain"), [3], 0)
    assert [row[2:] for row in rows] == [("0", "0", "0"), ("1", "0", "0+1"), ("2", "0", "(0+1)+2")]


def test_only_the_root_of_a_reduce_has_an_output() -> None:
    rows = list_rows(find_variant("reduce", "linear"), [4], 2)
    assert {row[2] for row in rows} == {"2"}


def test_numbers_of_ranks_that_an_algorithm_refuses_have_no_row() -> None:
    assert list_rows(find_variant("all_reduce", "halving_doubling"), [1], 0) == []
    assert list_rows(find_variant("reduce", "linear"), [2], 2) == []


def prove(*args: str):
    return CliRunner().invoke(main.app, ["prove", *args, "--orders"])


def test_orders_of_four_ranks_are_shown_unless_others_are_asked_for() -> None:
    done = prove("reduce")
    assert done.exit_code == 0 and "((0+1)+2)+3" in done.output
    assert "scan" not in done.output


def test_all_collectives_that_add_are_shown() -> None:
    words = prove("-n", "3").output.split()
    assert {"all_reduce", "reduce", "reduce_scatter", "scan"} <= {*words}
    assert "broadcast" not in words


def test_nothing_to_show_is_no_success() -> None:
    assert prove("reduce", "linear", "-n", "1").exit_code == 3


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("broadcast",), "broadcast does not reduce"),
        (("reduce", "-n", "129"), "129 ranks are too many"),
        (("reduce", "--hazards"), "--hazards"),
        (("reduce", "-r", "all"), "--root all"),
    ],
)
def test_what_does_not_go_with_orders_is_refused(args: tuple[str, ...], words: str) -> None:
    error = prove(*args).exception
    assert isinstance(error, UsageError) and words in str(error)
