"""Trees from the sets that their nodes swallow."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
from adders import draw_tree, list_trees

from collbench.core.sums.swallowing import (
    NoTree,
    Pair,
    Questions,
    Sets,
    ask_adaptively,
    ask_all_pairs,
    find_sets,
    grow_tree,
    make_mask,
)
from collbench.core.sums.trees import SumTree, parse_tree


def ask(questions: Questions, sets: Sets) -> tuple[SumTree, list[Pair]]:
    """The tree, and the pairs that were asked."""
    asked = []
    try:
        pair = next(questions)
        while True:
            asked.append(pair)
            pair = questions.send(sets[pair])
    except StopIteration as end:
        return end.value, asked


def rebuild(tree: SumTree) -> SumTree:
    return grow_tree(find_sets(tree), make_mask(tree.leaves))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_every_tree_is_rebuilt_from_its_sets(n: int) -> None:
    for tree in list_trees(range(n)):
        assert rebuild(tree) == tree


def test_one_tree_of_6_ranks_in_eight_is_rebuilt_from_its_sets() -> None:
    trees = list(list_trees(range(6)))
    assert len(trees) == 5189
    for tree in trees[::8]:
        assert rebuild(tree) == tree


@pytest.mark.parametrize("seed", range(5))
def test_random_trees_are_rebuilt_from_their_sets(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        tree = draw_tree(rng, rng.randint(2, 12))
        assert rebuild(tree) == tree


@pytest.mark.parametrize("n", [3, 4])
def test_a_wrong_set_of_one_pair_makes_no_tree_or_another(n: int) -> None:
    """Another tree is one that has the wrong sets, so that its sums are not those that were
    probed."""
    for tree in list_trees(range(n)):
        sets = find_sets(tree)
        for pair, wrong in itertools.product(sets, range(1 << n)):
            if wrong == sets[pair] or wrong & make_mask(pair) != make_mask(pair):
                continue
            try:
                grown = grow_tree({**sets, pair: wrong}, make_mask(range(n)))
            except NoTree:
                continue
            assert grown != tree
            assert find_sets(grown)[pair] == wrong


def count_swallowed(tree: SumTree) -> dict[Pair, int]:
    return {pair: swallowed.bit_count() for pair, swallowed in find_sets(tree).items()}


def test_equal_units_do_not_tell_all_trees_apart_but_sets_do() -> None:
    a, b = parse_tree("exact{0, 1, 2+3}"), parse_tree("exact{0+1, 2, 3}")
    assert sorted(count_swallowed(a).values()) == sorted(count_swallowed(b).values())
    assert find_sets(a) != find_sets(b)
    by_number = {}
    for tree in list_trees(range(4)):
        by_number.setdefault(tuple(count_swallowed(tree).values()), []).append(tree)
    assert max(map(len, by_number.values())) > 1


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("strategy", [ask_all_pairs, ask_adaptively])
def test_a_strategy_finds_every_tree(strategy: Callable[..., Questions], n: int) -> None:
    for tree in list_trees(range(n)):
        assert ask(strategy(range(n)), find_sets(tree))[0] == tree


@pytest.mark.parametrize("seed", range(30))
def test_adaptive_questions_find_what_all_pairs_find(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        tree = draw_tree(rng, rng.randint(2, 24))
        sets = find_sets(tree)
        found, asked = ask(ask_adaptively(tree.leaves, seed), sets)
        assert found == ask(ask_all_pairs(tree.leaves), sets)[0] == tree
        assert len(asked) == len(set(asked)) <= len(sets)


def build_chain(leaves: Sequence[int]) -> str:
    return str(leaves[0]) if len(leaves) == 1 else f"({build_chain(leaves[:-1])})+{leaves[-1]}"


def build_balanced(leaves: Sequence[int]) -> str:
    half = len(leaves) // 2
    if not half:
        return str(leaves[0])
    return f"({build_balanced(leaves[:half])})+({build_balanced(leaves[half:])})"


def build_eights(leaves: Sequence[int]) -> str:
    if len(leaves) == 1:
        return str(leaves[0])
    part = len(leaves) // 8
    parts = [build_eights(leaves[at : at + part]) for at in range(0, len(leaves), part)]
    return f"together{{{', '.join(parts)}}}"


@pytest.mark.parametrize(
    ("build", "n", "mean", "most"),
    [
        (build_chain, 8, 13, 23),
        (build_balanced, 8, 12, 12),
        (build_eights, 8, 28, 28),
        (build_chain, 64, 150, 400),
        (build_balanced, 64, 192, 192),
        (build_eights, 64, 448, 448),
    ],
)
def test_adaptive_questions_are_as_few_as_the_specification_says(
    build: Callable[[Sequence[int]], str], n: int, mean: int, most: int
) -> None:
    tree = parse_tree(build(range(n)))
    sets = find_sets(tree)
    counts = [len(ask(ask_adaptively(range(n), seed), sets)[1]) for seed in range(20)]
    assert max(counts) <= most
    assert sum(counts) <= mean * len(counts)


def test_an_exact_node_takes_as_few_questions_as_one_that_swallows() -> None:
    tree = parse_tree(
        f"exact{{{', '.join(map(str, range(30)))}}}+({build_balanced(range(30, 62))})"
    )
    found, asked = ask(ask_adaptively(range(62)), find_sets(tree))
    assert found == tree
    assert len(asked) < 30 * 29 / 2 + 62 * 6


def test_sets_of_two_orders_make_no_tree() -> None:
    sets = {
        (0, 1): 0b0011,
        (2, 3): 0b1111,
        (0, 2): 0b0101,
        (1, 3): 0b1010,
        (0, 3): 0b1111,
        (1, 2): 0b1111,
    }
    with pytest.raises(NoTree):
        ask(ask_all_pairs(range(4)), sets)


@pytest.mark.parametrize("seed", range(20))
def test_any_sets_at_all_make_a_tree_that_has_them_or_none(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        n = rng.randint(3, 6)
        pairs = list(itertools.combinations(range(n), 2))
        sets = {pair: make_mask(pair) | rng.getrandbits(n) for pair in pairs}
        for strategy in (ask_all_pairs, ask_adaptively):
            try:
                tree, asked = ask(strategy(range(n)), sets)
            except NoTree:
                continue
            assert {pair: find_sets(tree)[pair] for pair in asked} == {p: sets[p] for p in asked}


def test_many_ranks_in_a_chain_are_found() -> None:
    tree = parse_tree(build_chain(range(250)))
    assert ask(ask_adaptively(range(250)), find_sets(tree))[0] == tree
