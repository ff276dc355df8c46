"""Predicted bits, against libraries that are simulated in fractions."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest
from adders import TYPES, Adder, Format, draw_tree, find_type, simulate

from collbench.core.dtypes import OPS, DType
from collbench.core.sums.rounding import (
    EXACT,
    Rounding,
    choose_pairs,
    draw_inputs,
    evaluate_tree,
    find_rounding,
    list_divisions,
    needs_fractions,
    round_fraction,
    round_values,
)
from collbench.core.sums.trees import SumTree, list_nodes, parse_tree

WIDE = [
    ("bfloat16", 24),
    ("half", 24),
    ("f8e5m2", 24),
    ("float", 53),
    ("f8e4m3", 11),
    ("double", 64),
    ("float", 64),
    ("half", 53),
    ("double", 113),
    ("float", 113),
]


def predict(
    tree: SumTree, numbers: np.ndarray, dtype: DType, op: str, how: Rounding
) -> list[float]:
    inputs = dict(enumerate(numbers))
    return evaluate_tree(tree, inputs, dtype, op, how, len(numbers)).tolist()


def simulate_all(
    tree: SumTree, numbers: np.ndarray, dtype: DType, op: str, adder: Adder
) -> list[float]:
    columns = numbers.T.tolist()
    return [simulate(tree, column, dtype, op, adder, len(numbers)) for column in columns]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("op", ["sum", "prod", "premul_sum"])
def test_bits_of_sums_in_the_own_type_are_predicted(name: str, op: str) -> None:
    dtype, rng = find_type(name), random.Random(name)
    for seed in range(6):
        tree = draw_tree(rng, rng.randint(1, 10))
        numbers = draw_inputs(dtype, len(tree.leaves), op, 20, seed)
        predicted = predict(tree, numbers, dtype, op, Rounding(dtype.precision))
        assert predicted == simulate_all(
            tree, numbers, dtype, op, Adder(at=list_inner_leaves(tree))
        )


def list_inner_leaves(tree: SumTree) -> frozenset[frozenset[int]]:
    """The leaves below each node, as simulated adders take them."""
    return frozenset(
        frozenset(rank for rank in tree.leaves if mask >> rank & 1) for _, mask in list_nodes(tree)
    )


@pytest.mark.parametrize(("name", "bits"), WIDE)
@pytest.mark.parametrize("op", ["sum", "prod", "premul_sum"])
def test_bits_of_sums_in_a_wider_adder_are_predicted(name: str, bits: int, op: str) -> None:
    dtype, rng = find_type(name), random.Random(f"{name}{bits}")
    for seed in range(4):
        tree = draw_tree(rng, rng.randint(2, 9))
        whole = sum(1 << rank for rank in tree.leaves)
        inner = [mask for _, mask in list_nodes(tree) if mask != whole]
        masks = rng.sample(inner, rng.randint(0, len(inner)))
        leaves = frozenset(
            frozenset(rank for rank in tree.leaves if mask >> rank & 1) for mask in masks
        )
        numbers = draw_inputs(dtype, len(tree.leaves), op, 20, seed)
        predicted = predict(tree, numbers, dtype, op, Rounding(bits, frozenset([*masks, whole])))
        assert predicted == simulate_all(tree, numbers, dtype, op, Adder(bits, leaves))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_bits_of_sums_without_loss_are_predicted(name: str, op: str) -> None:
    dtype, rng = find_type(name), random.Random(name)
    for seed in range(4):
        tree = draw_tree(rng, rng.randint(3, 8))
        numbers = draw_inputs(dtype, len(tree.leaves), op, 20, seed)
        predicted = predict(tree, numbers, dtype, op, Rounding(EXACT, frozenset()))
        assert predicted == simulate_all(tree, numbers, dtype, op, Adder(-1))


AVERAGES = [(name, 0) for name in TYPES] + WIDE + [(name, -1) for name in TYPES]


@pytest.mark.parametrize(("name", "bits"), AVERAGES)
@pytest.mark.parametrize("n", [3, 6, 7])
def test_bits_of_averages_are_predicted_wherever_they_divide(name: str, bits: int, n: int) -> None:
    dtype, rng = find_type(name), random.Random(f"{name}{bits}")
    tree = draw_tree(rng, n, wide=False)
    numbers = draw_inputs(dtype, n, "avg", 20, n)
    own = Rounding(dtype.precision)
    wide = Rounding(max(bits, EXACT), frozenset([(1 << n) - 1]))
    ways = list_divisions("avg", wide if bits else own)
    names = {0: ["after", "before"], -1: ["after", "rounded", "before"]}
    assert [way.division for way in ways] == names.get(bits, [*names[-1], "within"])
    for way in ways:
        at = frozenset() if bits else list_inner_leaves(tree)
        adder = Adder(bits, at, divides=way.division)
        assert predict(tree, numbers, dtype, "avg", way) == simulate_all(
            tree, numbers, dtype, "avg", adder
        )


@pytest.mark.parametrize(("name", "bits"), [("float", 0), ("bfloat16", 24), ("half", -1)])
def test_ways_to_divide_give_different_bits(name: str, bits: int) -> None:
    dtype, tree = find_type(name), parse_tree("((0+1)+2)+(3+(4+5))")
    numbers = draw_inputs(dtype, 6, "avg", 4000, 1)
    wide = Rounding(max(bits, EXACT), frozenset([63]))
    ways = list_divisions("avg", wide if bits else Rounding(dtype.precision))
    results = [predict(tree, numbers, dtype, "avg", way) for way in ways]
    assert all(a != b for a, b in itertools.combinations(results, 2))


def test_reductions_that_do_not_divide_are_rounded_in_one_way() -> None:
    for op in ("sum", "prod", "premul_sum"):
        assert list_divisions(op, Rounding(24)) == [Rounding(24)]


@pytest.mark.parametrize("name", TYPES)
def test_values_are_rounded_as_fractions_are(name: str) -> None:
    dtype = find_type(name)
    own = Format(dtype.precision, dtype.emin)
    rng = np.random.default_rng(1)
    least = max(dtype.emin - dtype.precision - 2, -1000)
    halves = rng.integers(1, 1 << min(dtype.precision + 2, 53), 500) * 1.0
    values = np.ldexp(np.concatenate([halves, -halves]), rng.integers(least, 4, 1000))
    expected = [float(own.round(Fraction(value))) for value in values.tolist()]
    assert round_values(values, dtype.precision, dtype.emin).tolist() == expected
    fractions = [round_fraction(Fraction(v), dtype.precision, dtype.emin) for v in values.tolist()]
    assert [float(fraction) for fraction in fractions] == expected


def test_halves_are_rounded_as_numpy_rounds_them() -> None:
    rng = np.random.default_rng(2)
    values = np.ldexp(rng.uniform(-1, 1, 20_000), rng.integers(-26, 15, 20_000))
    expected = values.astype(np.float16).astype(np.float64)
    assert np.array_equal(round_values(values, 11, -14), expected)


def test_floats_are_rounded_as_numpy_rounds_them() -> None:
    rng = np.random.default_rng(3)
    values = np.ldexp(rng.uniform(-1, 1, 20_000), rng.integers(-152, 120, 20_000))
    expected = values.astype(np.float32).astype(np.float64)
    assert np.array_equal(round_values(values, 24, -126), expected)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("op", ["sum", "avg", "premul_sum", "prod"])
@pytest.mark.parametrize("n", [2, 8, 64])
def test_random_inputs_are_numbers_of_their_type_that_no_order_makes_too_large(
    name: str, op: str, n: int
) -> None:
    dtype = find_type(name)
    numbers = draw_inputs(dtype, n, op, 300, 5)
    assert numbers.shape == (n, 300)
    assert np.array_equal(round_values(numbers, dtype.precision, dtype.emin), numbers)
    assert (numbers < 0).any() and (numbers > 0).any()
    if OPS[op].function == "multiply":
        powers = np.log2(np.abs(numbers))
        assert np.maximum(powers, 0).sum(axis=0).max() <= dtype.emax - 1
        assert np.minimum(powers, 0).sum(axis=0).min() >= dtype.emin + 1
        assert (np.abs(numbers) != 1).mean() > 0.5
    else:
        assert np.abs(numbers).sum(axis=0).max() < 2.0**dtype.emax


def test_random_inputs_are_others_with_another_seed_and_the_same_with_the_same() -> None:
    dtype = find_type("float")
    first = draw_inputs(dtype, 4, "sum", 100, 1)
    assert np.array_equal(first, draw_inputs(dtype, 4, "sum", 100, 1))
    assert (first != draw_inputs(dtype, 4, "sum", 100, 2)).mean() > 0.9


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_random_inputs_tell_orders_apart(name: str, op: str) -> None:
    dtype = find_type(name)
    numbers = draw_inputs(dtype, 4, op, 500, 3)
    own = Rounding(dtype.precision)
    texts = ("((0+1)+2)+3", "0+(1+(2+3))", "(0+1)+(2+3)", "(0+2)+(1+3)")
    results = [predict(parse_tree(text), numbers, dtype, op, own) for text in texts]
    for a, b in itertools.combinations(results, 2):
        assert np.mean(np.array(a) != np.array(b)) > 0.05


SHOWN = [
    (name, bits)
    for name, bits in [*WIDE, ("f8e5m2", 11), ("bfloat16", 53)]
    if choose_pairs(find_type(name), (bits,))
]


def test_few_adders_are_too_wide_for_a_type() -> None:
    assert {pair for pair in WIDE if pair not in SHOWN} == {("half", 53)}


@pytest.mark.parametrize(("name", "bits"), SHOWN)
@pytest.mark.parametrize("op", ["sum", "avg", "premul_sum"])
def test_random_inputs_tell_orders_in_wider_adders_apart(name: str, bits: int, op: str) -> None:
    dtype = find_type(name)
    inputs = dict(enumerate(draw_inputs(dtype, 4, op, 500, 3, (bits,))))
    how = Rounding(bits, frozenset([15]))
    texts = ("((0+1)+2)+3", "0+(1+(2+3))", "(0+1)+(2+3)", "(0+2)+(1+3)")
    results = [
        evaluate_tree(parse_tree(text), inputs, dtype, op, how, 4, adders=(bits,)) for text in texts
    ]
    for a, b in itertools.combinations(results, 2):
        assert np.mean(a != b) > 0.05


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("op", ["sum", "avg", "premul_sum"])
def test_random_inputs_for_all_adders_are_numbers_of_their_type(name: str, op: str) -> None:
    dtype = find_type(name)
    numbers = draw_inputs(dtype, 8, op, 300, 5, (EXACT,))
    assert np.array_equal(round_values(numbers, dtype.precision, dtype.emin), numbers)
    assert np.abs(numbers).sum(axis=0).max() < 2.0**dtype.emax


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("bits", [11, 24, 53, 64, EXACT])
def test_bits_of_inputs_for_wider_adders_are_predicted(name: str, bits: int) -> None:
    dtype, rng = find_type(name), random.Random(f"{name}{bits}")
    for n in (3, 5, 8):
        tree = draw_tree(rng, n)
        numbers = draw_inputs(dtype, n, "sum", 40, n, (bits,))
        for adder in (Adder(bits or -1), Adder(at=list_inner_leaves(tree))):
            inner = Rounding(bits, frozenset()) if adder.bits else Rounding(dtype.precision)
            inputs = dict(enumerate(numbers))
            got = evaluate_tree(tree, inputs, dtype, "sum", inner, n, adders=(bits,))
            assert got.tolist() == simulate_all(tree, numbers, dtype, "sum", adder)


@pytest.mark.parametrize(
    ("low", "adder", "rounding"),
    [
        ("((0+1)+2)+3", None, Rounding(8)),
        ("exact{0, 1, 2, 3}", 24, Rounding(24, frozenset([15]))),
        ("exact{0, 1, 2, 3}", None, Rounding(EXACT, frozenset([15]))),
        ("exact{0+1, 2, 3}", 24, Rounding(24, frozenset([3, 15]))),
        ("exact{0, 1, 2}+3", 24, Rounding(24, frozenset([7, 15]))),
    ],
)
def test_rounding_follows_from_the_two_orders(
    low: str, adder: int | None, rounding: Rounding
) -> None:
    tree = parse_tree("((0+1)+2)+3")
    assert find_rounding(tree, parse_tree(low), find_type("bfloat16"), adder) == rounding


def test_sums_without_an_order_are_rounded_once() -> None:
    tree = parse_tree("exact{0, 1, 2, 3}")
    assert find_rounding(tree, tree, find_type("half"), None) == Rounding(EXACT)


@pytest.mark.parametrize(
    ("name", "rounding", "text", "op", "needed"),
    [
        ("float", Rounding(24), "(0+1)+2", "sum", False),
        ("float", Rounding(113, frozenset()), "(0+1)+2", "sum", False),
        ("float", Rounding(113, frozenset(), "within"), "(0+1)+2", "avg", True),
        ("float", Rounding(EXACT), "exact{0, 1, 2}", "prod", True),
        ("f8e4m3", Rounding(EXACT), "exact{0, 1, 2}", "prod", False),
        ("double", Rounding(53), "(0+1)+2", "prod", False),
        ("double", Rounding(53), "together{0, 1, 2}", "sum", True),
        ("double", Rounding(53), "exact{0, 1, exact{2, 3, 4}}", "sum", True),
        ("float", Rounding(53, frozenset()), "together{0, 1, 2}", "sum", True),
        ("float", Rounding(24), "together{0, 1, 2}", "sum", False),
        ("double", Rounding(64, frozenset()), "(0+1)+2", "sum", True),
    ],
)
def test_fractions_are_used_where_doubles_could_lose(
    name: str, rounding: Rounding, text: str, op: str, needed: bool
) -> None:
    assert needs_fractions(find_type(name), rounding, parse_tree(text), op) == needed
