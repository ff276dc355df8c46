"""Trees by rule, against orders that libraries were seen to have, and against the rules' own
definitions."""

from __future__ import annotations

import functools
import random
import re

import pytest

from collbench.core.algorithms import find_variant
from collbench.core.sums.families import (
    RULES,
    build_chain,
    find_turns,
    list_families,
    list_rings,
    list_rules,
)
from collbench.core.sums.symbolic import find_orders
from collbench.core.sums.trees import (
    SumTree,
    add_trees,
    make_leaf,
    measure_shape,
    parse_tree,
)

OF_SIX = [  # 6 ranks: what was seen, or is worked out by hand
    ("2-ary by levels", "(0+((1+3)+5))+(2+4)"),  # Open MPI's all_reduce 2
    ("doubling by 1, 2, 4, pairs at the front", "((0+1)+(2+3))+(4+5)"),  # Open MPI 3, MPICH
    ("4-nomial by low digits", "(((0+1)+2)+3)+(4+5)"),  # Intel MPI, 4 B
    ("3-ary heap", "((0+((1+4)+5))+2)+3"),  # Intel MPI, 256 B
    ("linear up", "((((0+1)+2)+3)+4)+5"),
    ("linear down", "((((0+5)+4)+3)+2)+1"),
    ("chain to the root", "0+(1+(2+(3+(4+5))))"),
    ("doubling by 1, 2, 4, tail onto head", "((0+4)+(1+5))+(2+3)"),
    ("doubling by 4, 2, 1, tail onto head", "((0+4)+2)+((1+5)+3)"),
    ("doubling by 4, 2, 1, pairs at the front", "((0+1)+4)+((2+3)+5)"),
    ("binomial by low bits", "((0+1)+(2+3))+(4+5)"),
    ("binomial by low bits, farthest first", "((0+(4+5))+(2+3))+1"),
    ("binomial by high bits", "((0+((1+3)+5))+2)+4"),
    ("binomial by high bits, farthest first", "((0+4)+2)+((1+5)+3)"),
    ("2-ary by levels, farthest first", "(0+(2+4))+((1+5)+3)"),
    ("2-ary heap", "(0+((1+3)+4))+(2+5)"),
    ("2-ary heap, farthest first", "(0+(2+5))+((1+4)+3)"),
    ("4-ary heap", "(((0+(1+5))+2)+3)+4"),
    ("8-ary heap", "((((0+1)+2)+3)+4)+5"),
    ("8-nomial by low digits", "((((0+1)+2)+3)+4)+5"),
    ("all at once", "together{0, 1, 2, 3, 4, 5}"),
]


def families(n: int, root: int = 0) -> dict[str, str]:
    return {family.name: str(family.tree) for family in list_families(n, root)}


@pytest.mark.parametrize(("name", "tree"), OF_SIX, ids=[name for name, _ in OF_SIX])
def test_the_tree_of_six_ranks(name: str, tree: str) -> None:
    assert families(6)[name] == tree


@pytest.mark.parametrize("n", [*range(1, 18), 33])
def test_every_family_adds_each_rank_once(n: int) -> None:
    assert {tuple(family.tree.leaves) for family in list_families(n)} == {tuple(range(n))}


@pytest.mark.parametrize("n", [4, 6, 9])
def test_another_root_is_the_same_tree_of_turned_ranks(n: int) -> None:
    def turn(tree: SumTree) -> SumTree:
        return parse_tree(re.sub(r"\d+", lambda rank: str((int(rank[0]) + 2) % n), str(tree)))

    turned = [turn(family.tree) for family in list_families(n)]
    assert [family.tree for family in list_families(n, 2)] == turned


@pytest.mark.parametrize("n", [3, 5, 6, 7, 9, 12])
def test_a_name_stands_once_beyond_powers_of_two(n: int) -> None:
    names = [family.name for family in list_families(n)]
    assert len(set(names)) == len(names) == len(RULES) + 1


@pytest.mark.parametrize("n", [4, 8, 16])
def test_doubling_of_a_power_of_two_has_no_fold(n: int) -> None:
    names = [name for name in list_rules(n) if name.startswith("doubling")]
    assert names == ["doubling by 1, 2, 4", "doubling by 4, 2, 1"]


@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_doubling_is_a_binomial_tree_by_low_bits_at_powers_of_two(n: int) -> None:
    assert families(n)["doubling by 1, 2, 4"] == families(n)["binomial by low bits"]


def test_three_families_of_four_ranks_are_one_tree() -> None:
    names = ("2-ary heap", "binomial by high bits", "2-ary by levels")
    assert {families(4)[name] for name in names} == {"(0+(1+3))+2"}


@pytest.mark.parametrize("n", [4, 5, 6, 7, 8, 9])
def test_the_reference_doubles_with_its_tail_folded_onto_its_head(n: int) -> None:
    name = "doubling by 1, 2, 4" if n in (4, 8) else "doubling by 1, 2, 4, tail onto head"
    (runs, *_) = find_orders(find_variant("all_reduce", "recursive_doubling").schedule(n))
    assert runs is not None
    assert families(n)[name] == str(runs[0].tree)


@pytest.mark.parametrize("name", ["ring", "ring:down"])
@pytest.mark.parametrize("n", [3, 4, 5, 8])
def test_rings_are_those_of_the_references(name: str, n: int) -> None:
    (runs, *_) = find_orders(find_variant("all_reduce", name).schedule(n))
    assert runs is not None
    assert list_rings(n)[name] == [run.tree for run in runs]


def test_a_chain_is_the_tree_of_its_additions() -> None:
    random.seed(1)
    for _ in range(100):
        ranks = random.sample(range(20), random.randint(1, 20))
        assert build_chain(ranks) == functools.reduce(add_trees, map(make_leaf, ranks)), ranks


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("((0+1)+2)+3", ["chain from 0 up"]),
        ("0+(1+(2+3))", ["chain from 3 down"]),
        ("0+((1+2)+3)", ["chain from 1 up"]),
        ("((0+1)+3)+2", ["chain from 1 down"]),
        ("((0+2)+1)+3", []),
        ("(0+1)+(2+3)", []),
        ("together{0+1, 2, 3}", []),
    ],
)
def test_the_way_of_a_chain_round_four_ranks(text: str, turns: list[str]) -> None:
    assert [str(turn) for turn in find_turns(parse_tree(text), 4)] == turns


def test_three_ranks_are_a_chain_both_ways() -> None:
    turns = find_turns(parse_tree("0+(1+2)"), 3)
    assert sorted(map(str, turns)) == ["chain from 1 up", "chain from 2 down"]


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("0", (0, 1, (0,))),
        ("0+1", (1, 2, (0, 1))),
        ("0+(1+(2+3))", (3, 2, (2, 3, 1, 0))),
        ("(0+1)+(2+3)", (2, 2, ())),
        ("exact{0+1, 2, 3}", (2, 3, ())),
    ],
)
def test_the_shape_of_a_tree(text: str, shape: tuple[int, int, tuple[int, ...]]) -> None:
    assert measure_shape(parse_tree(text)) == shape
