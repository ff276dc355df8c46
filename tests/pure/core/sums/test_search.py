"""Orders and precisions that are found in simulated libraries, whose bits are then predicted."""

from __future__ import annotations

import random

import numpy as np
import pytest
from adders import TYPES, Adder, answer, draw_tree, find_type, list_trees, search_tree, simulate

from collbench.core.dtypes import DType
from collbench.core.sums.probes import is_order_void
from collbench.core.sums.rounding import (
    EXACT,
    Rounding,
    draw_inputs,
    evaluate_tree,
    find_rounding,
    list_divisions,
)
from collbench.core.sums.search import (
    NO_ORDER,
    NOT_NEAREST,
    OTHER_CALL,
    Finding,
    Question,
    ask_subnormals,
    find_order,
)
from collbench.core.sums.trees import Join, SumTree, fold_tree, join_trees, make_leaf, parse_tree

WIDE = [("bfloat16", 24), ("half", 24), ("f8e5m2", 24), ("float", 53), ("f8e4m3", 11)]

BITS = 24  # random results that are predicted
Leaves = frozenset[frozenset[int]]


def list_inner(tree: SumTree) -> list[frozenset[int]]:
    """The leaves below each node but the root."""
    found: list[frozenset[int]] = []

    def add_node(_: Join, children: object) -> frozenset[int]:
        found.append(frozenset[int]().union(*children))  # type: ignore[misc]
        return found[-1]

    fold_tree(tree, lambda rank: frozenset([rank]), add_node)
    return found[:-1]


def expect_low_tree(tree: SumTree, at: Leaves) -> SumTree:
    """The tree whose nodes are those that round, which take in the others' children."""

    def add_node(_: Join, children: object) -> list[SumTree]:
        flat = [part for child in children for part in child]  # type: ignore[attr-defined]
        leaves = frozenset(leaf for part in flat for leaf in part.leaves)
        rounds = leaves in at or len(leaves) == len(tree.leaves)
        return [join_trees("exact", flat)] if rounds else flat

    [low] = fold_tree(tree, lambda rank: [make_leaf(rank)], add_node)
    return low


def list_roundings(finding: Finding, dtype: DType, op: str) -> list[Rounding]:
    """The ways in which a reduction may round its sums, by what a search of its order has found."""
    if not finding.tree or not finding.low_tree or finding.reason:
        return []
    rounding = find_rounding(finding.tree, finding.low_tree, dtype, finding.adder)
    return list_divisions(op, rounding)


def count_right(
    found: Finding, tree: SumTree, dtype: DType, op: str, adder: Adder, length: int = BITS
) -> dict[str, int]:
    """How many random bits are predicted, of ``length``, by the way avg divides."""
    n = max(tree.leaves) + 1
    numbers = draw_inputs(dtype, n, op, length, 7)
    got = [simulate(tree, column, dtype, op, adder, n) for column in numbers.T.tolist()]
    assert found.tree is not None
    return {
        how.division: int(
            (evaluate_tree(found.tree, dict(enumerate(numbers)), dtype, op, how, n) == got).sum()
        )
        for how in list_roundings(found, dtype, op)
    }


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("strategy", ["all", "adaptive"])
def test_orders_of_adders_of_the_own_type_are_found_and_their_bits_predicted(
    name: str, strategy: str
) -> None:
    dtype, rng = find_type(name), random.Random(name)
    for n in (2, 3, 4, 6, 8):
        tree = draw_tree(rng, n, wide=False)
        adder = Adder(at=frozenset(list_inner(tree)))
        found = search_tree(tree, dtype, "sum", adder, strategy)
        assert (found.tree, found.low_tree) == (tree, tree)
        assert (found.adder, found.strategy, found.reason) == (dtype.precision, strategy, "")
        assert count_right(found, tree, dtype, "sum", adder) == {"": BITS}


@pytest.mark.parametrize(("name", "bits"), WIDE)
def test_wider_adders_that_round_once_are_found_with_their_bits(name: str, bits: int) -> None:
    dtype, rng = find_type(name), random.Random(name)
    for n in (3, 4, 6, 8):
        tree = draw_tree(rng, n, wide=False)
        found = search_tree(tree, dtype, "sum", Adder(bits))
        assert found.tree == tree
        assert found.low_tree == join_trees("exact", map(make_leaf, range(n)))
        assert found.adder == bits
        assert count_right(found, tree, dtype, "sum", Adder(bits)) == {"": BITS}


@pytest.mark.parametrize(("name", "bits"), WIDE)
@pytest.mark.parametrize("strategy", ["all", "adaptive"])
def test_wider_adders_that_round_between_are_found_with_the_places(
    name: str, bits: int, strategy: str
) -> None:
    dtype, rng = find_type(name), random.Random(name)
    for n in (4, 5, 6, 8):
        tree = draw_tree(rng, n, wide=False)
        inner = list_inner(tree)
        at = frozenset(rng.sample(inner, rng.randint(1, len(inner) - 1)))
        found = search_tree(tree, dtype, "sum", Adder(bits, at), strategy)
        low = expect_low_tree(tree, at)
        assert (found.tree, found.low_tree) == (tree, low)
        assert found.adder == (dtype.precision if low == tree else bits)
        assert count_right(found, tree, dtype, "sum", Adder(bits, at)) == {"": BITS}


@pytest.mark.parametrize("bits", [64, 113])
@pytest.mark.parametrize("name", ["double", "float"])
def test_adders_wider_than_double_are_found(name: str, bits: int) -> None:
    tree = parse_tree("((0+1)+(2+3))+4")
    found = search_tree(tree, find_type(name), "sum", Adder(bits))
    assert (found.tree, found.adder, found.visible) == (tree, bits, 113)
    assert count_right(found, tree, find_type(name), "sum", Adder(bits)) == {"": BITS}


@pytest.mark.parametrize("name", TYPES)
def test_exact_sums_have_no_order(name: str) -> None:
    dtype, tree = find_type(name), parse_tree("((0+1)+(2+3))+4")
    found = search_tree(tree, dtype, "sum", Adder(-1))
    assert str(found.tree) == "exact{0, 1, 2, 3, 4}"
    assert (found.low_tree, found.adder) == (found.tree, EXACT)
    assert count_right(found, tree, dtype, "sum", Adder(-1)) == {"": BITS}


@pytest.mark.parametrize("n", [3, 8, 16])
def test_f8e4m3_has_no_order_in_float(n: int) -> None:
    dtype, tree = find_type("f8e4m3"), draw_tree(random.Random(n), n, wide=False)
    found = search_tree(tree, dtype, "sum", Adder(24), "adaptive")
    assert [join.kind for join in found.tree.joins] == ["exact"]
    assert found.adder == EXACT
    assert is_order_void(dtype, n)
    assert count_right(found, tree, dtype, "sum", Adder(24)) == {"": BITS}


def test_halves_in_double_show_no_order_and_their_bits_are_those_of_exact_sums() -> None:
    dtype, tree = find_type("half"), parse_tree("((0+1)+(2+3))+4")
    found = search_tree(tree, dtype, "sum", Adder(53))
    assert (found.adder, found.visible) == (EXACT, 24)
    assert count_right(found, tree, dtype, "sum", Adder(53)) == {"": BITS}


def test_an_adder_that_nobody_looks_for_is_named_as_the_next_wider() -> None:
    found = search_tree(parse_tree("((0+1)+2)+3"), find_type("bfloat16"), "sum", Adder(16))
    assert found.adder == 24


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("n", [3, 4, 6])
def test_every_way_to_divide_shows_the_order_and_predicts_its_bits(name: str, n: int) -> None:
    dtype = find_type(name)
    tree = draw_tree(random.Random(n), n, wide=False)
    at = frozenset(list_inner(tree))
    for way in ("after", "before"):
        adder = Adder(0, at, divides=way)
        found = search_tree(tree, dtype, "avg", adder)
        assert (found.tree, found.low_tree, found.reason) == (tree, tree, "")
        assert count_right(found, tree, dtype, "avg", adder)[way] == BITS


@pytest.mark.parametrize(("name", "bits"), [*WIDE, ("double", 64)])
@pytest.mark.parametrize("n", [3, 4, 6])
def test_every_way_to_divide_in_a_wider_adder_predicts_its_bits(
    name: str, bits: int, n: int
) -> None:
    dtype = find_type(name)
    tree = draw_tree(random.Random(n), n, wide=False)
    for way in ("after", "rounded", "before", "within"):
        found = search_tree(tree, dtype, "avg", Adder(bits, divides=way))
        if found.visible >= bits:
            assert (found.tree, found.adder, found.reason) == (tree, bits, "")
            right = count_right(found, tree, dtype, "avg", Adder(bits, divides=way))
            assert right[way] == BITS
        else:
            assert [join.kind for join in found.tree.joins] == ["exact"]


@pytest.mark.parametrize(("way", "other"), [("after", "before"), ("before", "after")])
def test_each_way_to_divide_predicts_only_its_own_bits(way: str, other: str) -> None:
    dtype, tree = find_type("float"), parse_tree("((0+1)+2)+(3+(4+5))")
    adder = Adder(0, frozenset(list_inner(tree)), divides=way)  # type: ignore[arg-type]
    right = count_right(search_tree(tree, dtype, "avg", adder), tree, dtype, "avg", adder)
    assert right[way] == BITS
    assert right[other] < 0.9 * BITS


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("n", [3, 5, 8])
def test_factors_of_premul_sum_hide_nothing(name: str, n: int) -> None:
    dtype = find_type(name)
    tree = draw_tree(random.Random(n), n, wide=False)
    adder = Adder(at=frozenset(list_inner(tree)))
    found = search_tree(tree, dtype, "premul_sum", adder)
    assert (found.tree, found.low_tree) == (tree, tree)
    assert count_right(found, tree, dtype, "premul_sum", adder) == {"": BITS}


def test_a_product_follows_the_order_of_the_sum() -> None:
    dtype, tree = find_type("bfloat16"), parse_tree("((0+1)+2)+(3+4)")
    adder = Adder(at=frozenset(list_inner(tree)))
    found = search_tree(tree, dtype, "sum", adder)
    assert count_right(found, tree, dtype, "prod", adder) == {"": BITS}


@pytest.mark.parametrize("name", TYPES)
def test_wide_nodes_are_found(name: str) -> None:
    tree = parse_tree("together{0, 1+2, exact{3, 4, 5}, 6}")
    adder = Adder(at=frozenset(list_inner(tree)))
    found = search_tree(tree, find_type(name), "sum", adder)
    assert (found.tree, found.low_tree) == (tree, tree)
    assert count_right(found, tree, find_type(name), "sum", adder) == {"": BITS}


CHAINS = ["((0+1)+2)+3", "0+(1+(2+3))", "(((0+4)+2)+1)+3", "((((0+1)+2)+3)+4)+5"]


@pytest.mark.parametrize("text", CHAINS)
@pytest.mark.parametrize("name", ["float", "double", "bfloat16", "half"])
def test_kahan_shows_a_plain_chain_whose_bits_are_others(text: str, name: str) -> None:
    dtype, tree = find_type(name), parse_tree(text)
    found = search_tree(tree, dtype, "sum", Adder(kind="kahan"))
    assert (found.tree, found.low_tree) == (tree, tree)
    assert count_right(found, tree, dtype, "sum", Adder(kind="kahan"))[""] < 55


@pytest.mark.parametrize("text", CHAINS)
def test_neumaier_shows_no_order_and_the_bits_of_exact_sums(text: str) -> None:
    dtype, tree = find_type("float"), parse_tree(text)
    found = search_tree(tree, dtype, "sum", Adder(kind="neumaier"))
    assert [join.kind for join in found.tree.joins] == ["exact"]
    assert count_right(found, tree, dtype, "sum", Adder(kind="neumaier")) == {"": BITS}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("strategy", ["all", "adaptive"])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_truncation_is_named(name: str, strategy: str, op: str) -> None:
    dtype = find_type(name)
    for text in ("(0+1)+2", "0+(1+2)", "((0+1)+2)+3", "(0+1)+(2+3)", "0+(1+(2+3))"):
        adder = Adder(kind="truncating", divides="after" if op == "avg" else "")
        found = search_tree(parse_tree(text), dtype, op, adder, strategy)
        assert (found.low_tree, found.reason) == (None, NOT_NEAREST), text


def test_truncation_hides_where_m_comes_before_its_opposite() -> None:
    """Without the exchange of signs only the proof would fail."""
    dtype, tree = find_type("float"), parse_tree("((0+1)+2)+3")
    found = search_tree(tree, dtype, "sum", Adder(kind="truncating"))
    assert found.tree == tree
    unmasked = found._replace(low_tree=found.tree, reason="")
    assert count_right(unmasked, tree, dtype, "sum", Adder(kind="truncating"))[""] < 55


@pytest.mark.parametrize(("name", "bits"), [("float", 0), ("bfloat16", 0), *WIDE, ("double", 64)])
def test_adders_that_align_and_cut_are_found_together_with_their_bits(name: str, bits: int) -> None:
    dtype, tree = find_type(name), parse_tree("together{0, 1, 2, 3+4}+(5+6)")
    adder = Adder(bits, frozenset() if bits else frozenset(list_inner(tree)))
    found = search_tree(tree, dtype, "sum", adder)
    assert found.tree == tree
    assert found.adder == (bits or dtype.precision)
    assert count_right(found, tree, dtype, "sum", adder) == {"": BITS}


@pytest.mark.parametrize("name", ["float", "bfloat16", "half"])
def test_adders_that_cut_two_numbers_are_not_proved(name: str) -> None:
    dtype, tree = find_type(name), parse_tree("((0+1)+(2+3))+(4+5)")
    found = search_tree(tree, dtype, "sum", Adder(kind="cut"))
    assert (found.tree, found.low_tree) == (tree, tree)
    assert count_right(found, tree, dtype, "sum", Adder(kind="cut"))[""] < 55


@pytest.mark.parametrize(("name", "needed"), [(name, name[0] in "hf8") for name in TYPES])
def test_flushed_subnormals_are_seen_by_the_types_that_need_them(name: str, needed: bool) -> None:
    dtype, tree = find_type(name), parse_tree("(0+1)+2")
    asked = []

    def reply(question: Question) -> float:
        asked.append(question)
        numbers = [question.probe.value(rank, question.scale, "sum") for rank in range(3)]
        return simulate(tree, numbers, dtype, "sum", Adder(flushes=True), 3)

    kept = answer(ask_subnormals(range(3), dtype, "sum", 3), reply)
    needed = needed and name != "float"
    assert (kept, len(asked)) == (not needed, int(needed))


@pytest.mark.parametrize("name", ["half", "f8e4m3", "f8e5m2"])
def test_orders_are_found_where_subnormals_are_flushed(name: str) -> None:
    dtype, tree = find_type(name), parse_tree("((0+3)+(1+5))+(2+(4+6))")
    adder = Adder(at=frozenset(list_inner(tree)), flushes=True)
    found = search_tree(tree, dtype, "sum", adder)
    assert (found.tree, found.low_tree) == (tree, tree)


def test_floats_that_add_halves_are_seen_without_subnormals() -> None:
    dtype, tree = find_type("half"), parse_tree("((0+3)+(1+5))+(2+(4+6))")
    found = search_tree(tree, dtype, "sum", Adder(24, flushes=True))
    assert (found.tree, found.adder) == (tree, 24)


def test_blocks_of_units_cover_more_ranks_than_a_probe_holds() -> None:
    tree = draw_tree(random.Random(1), 24, wide=False)
    adder = Adder(at=frozenset(list_inner(tree)))
    found = search_tree(tree, find_type("bfloat16"), "sum", adder, "adaptive")
    assert (found.tree, found.low_tree) == (tree, tree)


def test_two_ranks_have_one_order_and_no_question() -> None:
    found = search_tree(parse_tree("0+1"), find_type("float"), "sum", Adder())
    assert (str(found.tree), found.calls, found.adder) == ("0+1", 0, 24)


def test_one_rank_is_its_own_order() -> None:
    found = search_tree(make_leaf(0), find_type("float"), "sum", Adder(), n=4)
    assert (str(found.tree), found.calls) == ("0", 0)


def test_some_of_the_ranks_have_an_order_of_their_own() -> None:
    tree = parse_tree("(0+2)+1")
    found = search_tree(tree, find_type("float"), "avg", Adder(divides="after"), n=8)
    assert found.tree == tree


@pytest.mark.parametrize(("n", "calls"), [(3, 3), (4, 6), (8, 28), (16, 120)])
def test_all_pairs_are_asked_once_at_either_scale(n: int, calls: int) -> None:
    tree = draw_tree(random.Random(n), n, wide=False)
    found = search_tree(tree, find_type("float"), "sum", Adder(), "all")
    assert found.calls == 2 * calls


def test_a_search_is_the_same_with_the_same_answers() -> None:
    dtype, tree = find_type("bfloat16"), draw_tree(random.Random(5), 12, wide=False)
    first, second = ([], [])  # type: list[Question], list[Question]
    for asked in (first, second):

        def reply(question: Question, asked: list[Question] = asked) -> float:
            asked.append(question)
            numbers = [question.probe.value(rank, question.scale, "sum") for rank in range(12)]
            return simulate(tree, numbers, dtype, "sum", Adder(24), 12)

        answer(find_order(range(12), dtype, "sum", 12, True, "adaptive"), reply)
    assert first == second


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.3 * 2.0**-126, 2.0**126])
def test_results_that_are_no_sums_have_no_order(value: float) -> None:
    search = find_order(range(4), find_type("float"), "sum", 4, True, "all")
    found = answer(search, lambda _: value)
    assert (found.tree, found.reason, found.calls) == (None, NO_ORDER, 1)
    assert list_roundings(found, find_type("float"), "sum") == []


def test_orders_that_change_between_the_scales_are_said() -> None:
    dtype, trees = find_type("float"), (parse_tree("((0+1)+2)+3"), parse_tree("((0+3)+1)+2"))

    def reply(question: Question) -> float:
        numbers = [question.probe.value(rank, question.scale, "sum") for rank in range(4)]
        return simulate(trees[question.scale.sign < 0], numbers, dtype, "sum", Adder(), 4)

    found = answer(find_order(range(4), dtype, "sum", 4, True, "all"), reply)
    assert (found.tree, found.low_tree, found.reason) == (trees[0], None, OTHER_CALL)


@pytest.mark.parametrize("n", [3, 4])
def test_wrong_answers_to_one_pair_are_never_proved(n: int) -> None:
    dtype = find_type("float")
    for tree in list_trees(range(n), wide=False):
        adder = Adder(at=frozenset(list_inner(tree)))
        for wrong in range(n * (n - 1) // 2):
            for flip in range(1, 1 << n - 2):
                found = search_with_wrong(tree, dtype, adder, wrong, flip)
                if found.reason:
                    continue
                assert found.tree != tree
                assert count_right(found, tree, dtype, "sum", adder)[""] < 60


def search_with_wrong(tree: SumTree, dtype: DType, adder: Adder, wrong: int, flip: int) -> Finding:
    """What is found where one pair's results have other units in them, at both scales."""
    n = len(tree.leaves)
    pairs: list[tuple[int, ...]] = []

    def reply(question: Question) -> float:
        probe, scale = question
        if probe.pair not in pairs:
            pairs.append(probe.pair)
        numbers = [probe.value(rank, scale, "sum") for rank in range(n)]
        value = simulate(tree, numbers, dtype, "sum", adder, n)
        if pairs.index(probe.pair) == wrong:
            value = (int(value / 2.0**scale.unit) ^ flip) * 2.0**scale.unit
        return value

    found: Finding = answer(find_order(range(n), dtype, "sum", n, True, "all"), reply)
    return found


def test_what_rounds_within_the_own_type_is_listed_in_two_ways() -> None:
    tree = parse_tree("0+1")
    found = Finding(tree, tree, 24, 113, "all")
    own = Rounding(24)
    assert list_roundings(found, find_type("float"), "avg") == list_divisions("avg", own)
    assert np.all([how.adder == 24 for how in list_divisions("avg", own)])
