"""Trees as text and back, and their outlines."""

from __future__ import annotations

import random

import pytest
from adders import draw_tree, list_trees

from collbench.core.errors import UsageError
from collbench.core.sums.trees import (
    Shape,
    SumTree,
    format_tree,
    join_trees,
    make_leaf,
    measure_shape,
    parse_tree,
)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_every_tree_is_read_back_from_its_text(n: int) -> None:
    for tree in list_trees(range(n)):
        assert parse_tree(format_tree(tree)) == tree


def test_there_are_as_many_trees_as_the_specification_counts() -> None:
    assert [len(set(list_trees(range(n)))) for n in (2, 3, 4, 5)] == [1, 5, 37, 387]


@pytest.mark.parametrize("seed", range(100))
def test_random_trees_are_read_back_from_their_text(seed: int) -> None:
    tree = draw_tree(random.Random(seed), 40)
    assert parse_tree(format_tree(tree)) == tree


def test_deep_chains_are_read_back_from_their_text() -> None:
    chain = make_leaf(0)
    for rank in range(1, 1024):
        chain = join_trees("two", (chain, make_leaf(rank)))
    assert parse_tree(format_tree(chain)) == chain


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("(3+2)+1", "1+(2+3)"),
        (" ( 0 + 1 )+2 ", "(0+1)+2"),
        ("together{2,0,1}", "together{0, 1, 2}"),
        ("together{0, 1}", "0+1"),
        ("exact{0, 1}", "0+1"),
        ("((7))", "7"),
        ("exact{2, (1+0), together{3, 5, 4}}", "exact{0+1, 2, together{3, 4, 5}}"),
    ],
)
def test_equal_orders_have_one_text(text: str, canonical: str) -> None:
    assert format_tree(parse_tree(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "+",
        "0+",
        "+0",
        "0+1+2",
        "(0+1",
        "0+1)",
        "0 1",
        "0++1",
        "-1",
        "0-1",
        "1.5",
        "a",
        "0+0",
        "(0+1)+1",
        "together",
        "together{}",
        "together{0}",
        "exact{0,}",
        "exact{,0}",
        "exact{0 1}",
        "exact(0, 1)",
        "most{0, 1}",
        "{0, 1}",
        "12345678",
        "0,1",
        "()",
        "\u0663+1",
        "(" * 5000,
        "(" * 5000 + "0" + ")" * 5000 + "+0",
        "exact{" * 5000,
    ],
)
def test_texts_that_are_no_order_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no order of additions"):
        parse_tree(text)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("0", Shape(0, 1, (0,))),
        ("0+1", Shape(1, 2, (0, 1))),
        ("0+(1+(2+3))", Shape(3, 2, (2, 3, 1, 0))),
        ("((0+3)+2)+1", Shape(3, 2, (0, 3, 2, 1))),
        ("(0+1)+(2+3)", Shape(2, 2, ())),
        ("together{0, 1, 2}", Shape(1, 3, ())),
        ("together{0, 1, 2}+3", Shape(2, 3, ())),
    ],
)
def test_the_outline_tells_chains_from_other_trees(text: str, shape: Shape) -> None:
    assert measure_shape(parse_tree(text)) == shape


def test_a_tree_knows_its_leaves_and_its_least() -> None:
    tree = parse_tree("(5+3)+(9+4)")
    assert (tree.leaves, tree.least, len(tree.joins)) == ([3, 4, 5, 9], 3, 3)


def test_trees_of_the_same_order_are_equal_and_hash_alike() -> None:
    trees: set[SumTree] = {parse_tree("0+(1+2)"), parse_tree("(2+1)+0"), parse_tree("(0+1)+2")}
    assert len(trees) == 2
