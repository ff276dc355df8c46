"""The numbers that are asked: that they fit their type, are swallowed where they should be, and can
be read."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest
from adders import TYPES, Format, draw_tree, find_type

from collbench.core.dtypes import DTYPES, DType, premul_factor
from collbench.core.errors import UsageError
from collbench.core.sums.probes import (
    Probe,
    Scale,
    choose_scales,
    find_lone_unit,
    is_order_void,
    list_lone_units,
    list_probes,
    needs_subnormals,
    read_survivors,
    refuse_order,
)
from collbench.core.sums.trees import SumTree, fold_tree

NEXT = {"f8e5m2": 8, "f8e4m3": 8, "bfloat16": 24, "half": 24, "float": 53, "double": 64}

RANKS = (3, 8, 33, 64)
EVERY = [
    (name, op, subnormals)
    for name, op in itertools.product(TYPES, ("sum", "avg", "premul_sum"))
    for subnormals in ((False, True) if needs_subnormals(find_type(name)) else (True,))
]


def find_largest(dtype: DType) -> Fraction:
    """The largest number of a type."""
    places = 2 if dtype.name == "f8e4m3" else 1  # whose last code is not a number
    return (2 - places * Fraction(2) ** (1 - dtype.precision)) * Fraction(2) ** dtype.emax


def list_shares(dtype: DType, op: str, n: int, bits: int) -> list[Fraction]:
    """What ranks' numbers may be multiplied by before they are added in so many bits."""
    if op != "avg":
        return [Fraction(1)]
    own, wide = Format(dtype.precision, dtype.emin), Format(bits, -2000)
    return [Fraction(1), own.round(Fraction(1, n)), wide.round(Fraction(1, n))]


def give(dtype: DType, op: str, n: int, share: Fraction, value: float, rank: int) -> Fraction:
    """What is added of a rank's number."""
    own = Format(dtype.precision, dtype.emin)
    number = Fraction(value)
    assert own.round(number) == number, "is none of the type's numbers"
    if op == "premul_sum":
        number *= premul_factor(rank)
    return own.round(number * share) if share != 1 and own.round(share) == share else number * share


def add(numbers: list[Fraction], adder: Format) -> Fraction:
    total = Fraction(0)
    for number in numbers:
        total = adder.round(total + number)
    return total


def read(total: Fraction, dtype: DType, op: str, n: int, share: Fraction, scale: Scale) -> int:
    """How many units are read in a sum of the units of ranks from 2 on."""
    own = Format(dtype.precision, dtype.emin)
    result = own.round(own.round(total) / n) if op == "avg" and share == 1 else own.round(total)
    probe = Probe((0, 1), tuple(range(2, 2 + scale.width)))
    survivors = read_survivors(float(result), probe, scale, op, n)
    assert survivors is not None
    return survivors.bit_count()


@pytest.mark.parametrize(("name", "op", "subnormals"), EVERY)
@pytest.mark.parametrize("n", RANKS)
def test_units_are_swallowed_at_both_scales_and_read_where_they_are_not(
    name: str, op: str, subnormals: bool, n: int
) -> None:
    dtype = find_type(name)
    for scale in choose_scales(dtype, n, op, subnormals):
        assert scale.width >= 1
        probe = Probe((0, 1), tuple(range(2, 2 + scale.width)))
        for bits in {dtype.precision, scale.visible}:
            adder = Format(bits, dtype.emin if bits == dtype.precision else -2000)
            for share, back in itertools.product(list_shares(dtype, op, n, bits), (False, True)):
                gave = [
                    give(dtype, op, n, share, probe.value(rank, scale, op), rank)
                    for rank in range(2 + scale.width)
                ]
                order = gave[:1:-1] if back else gave[2:]
                for first, second in (gave[:2], gave[1::-1]):
                    swallowed = add([first, *order, second], adder)
                    assert read(swallowed, dtype, op, n, share, scale) == 0
                    together = adder.round(first + add(order, adder))
                    swallowed = adder.round(together + second)
                    assert read(swallowed, dtype, op, n, share, scale) == 0
                    kept = add([first, second, *order], adder)
                    assert read(kept, dtype, op, n, share, scale) == scale.width


@pytest.mark.parametrize(("name", "op", "subnormals"), EVERY)
@pytest.mark.parametrize("n", RANKS)
def test_the_next_wider_adder_swallows_nothing_at_the_low_scale(
    name: str, op: str, subnormals: bool, n: int
) -> None:
    dtype = find_type(name)
    _, scale = choose_scales(dtype, n, op, subnormals)
    probe = Probe((0, 1), tuple(range(2, 2 + scale.width)))
    wider = Format(NEXT[name], -2000)
    for share in list_shares(dtype, op, n, wider.bits):
        gave = [
            give(dtype, op, n, share, probe.value(rank, scale, op), rank)
            for rank in range(2 + scale.width)
        ]
        for order in ([0, *range(2, len(gave)), 1], [1, *range(len(gave) - 1, 1, -1), 0]):
            total = add([gave[rank] for rank in order], wider)
            assert read(total, dtype, op, n, share, scale) == scale.width


@pytest.mark.parametrize(
    ("name", "subnormals", "width", "visible"),
    [
        ("double", True, 53, 113),
        ("float", True, 24, 113),
        ("bfloat16", True, 8, 113),
        ("half", False, 3, 24),
        ("half", True, 11, 24),
        ("f8e5m2", False, 3, 24),
        ("f8e5m2", True, 3, 24),
        ("f8e4m3", False, 1, 11),
        ("f8e4m3", True, 4, 11),
    ],
)
def test_sets_are_as_large_and_adders_as_wide_as_the_specification_says(
    name: str, subnormals: bool, width: int, visible: int
) -> None:
    high, _ = choose_scales(find_type(name), 8, "sum", subnormals)
    assert (high.width, high.visible) == (width, visible)


@pytest.mark.parametrize(("name", "op", "subnormals"), EVERY)
def test_ranks_give_normal_numbers_where_others_are_flushed(
    name: str, op: str, subnormals: bool
) -> None:
    dtype = find_type(name)
    high, low = choose_scales(dtype, 8, op, subnormals)
    for scale in (low,) if subnormals else (high, low):
        probe = Probe((0, 1), tuple(range(3, 3 + scale.width)))
        given = [abs(probe.value(rank, scale, op)) for rank in (*probe.pair, *probe.units)]
        assert min(given) >= 2.0**dtype.emin


def test_signs_are_exchanged_at_the_low_scale() -> None:
    high, low = choose_scales(find_type("float"), 8, "sum", True)
    assert (high.sign, low.sign) == (1, -1)


def test_a_range_that_is_too_small_is_said() -> None:
    with pytest.raises(UsageError, match="wider range than f8e4m3"):
        choose_scales(find_type("f8e4m3"), 1024, "avg", True)


def find_most(tree: SumTree, numbers: list[float]) -> Fraction:
    """The largest size of a partial sum."""
    sizes = []

    def add_node(_: object, children: object) -> Fraction:
        total = sum(children, Fraction(0))  # type: ignore[call-overload]
        sizes.append(abs(total))
        return total

    fold_tree(tree, lambda rank: Fraction(numbers[rank]), add_node)
    return max(sizes)


@pytest.mark.parametrize(("name", "op", "subnormals"), EVERY)
def test_no_probe_leaves_the_range_of_its_type(name: str, op: str, subnormals: bool) -> None:
    dtype, rng = find_type(name), random.Random(name + op)
    for n in (3, 4, 8, 64):
        scales = [*choose_scales(dtype, n, op, subnormals)]
        scales += list_lone_units(dtype, n, op, subnormals)
        for scale in scales:
            pair = tuple(sorted(rng.sample(range(n), 2)))
            for probe in list_probes(pair, range(n), scale)[:4]:  # type: ignore[arg-type]
                numbers = [probe.value(rank, scale, op) for rank in range(n)]
                if op == "premul_sum":
                    numbers = [x * premul_factor(rank) for rank, x in enumerate(numbers)]
                assert find_most(draw_tree(rng, n), numbers) <= find_largest(dtype)


def test_every_other_rank_has_a_unit_in_one_probe() -> None:
    scale = Scale(20, 0, 3, 1, 11)
    probes = list_probes((1, 4), range(9), scale)
    assert [probe.units for probe in probes] == [(0, 2, 3), (5, 6, 7), (8,)]
    assert list_probes((0, 1), range(2), scale) == []


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), -1.0, 8.0, 0.5, 1.5, 2.0**20, 1.7e308, -0.5],
)
def test_results_that_are_no_sum_of_units_are_none(value: float) -> None:
    assert read_survivors(value, Probe((0, 1), (2, 3, 5)), Scale(20, 0, 3, 1, 11), "sum", 6) is None


def test_results_name_the_ranks_whose_units_are_in_them() -> None:
    probe, scale = Probe((0, 1), (2, 3, 5)), Scale(400, -400, 3, 1, 53)
    assert read_survivors(5 * 2.0**-400, probe, scale, "sum", 6) == 0b100100
    assert read_survivors(-0.0, probe, scale, "sum", 6) == 0


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("op", ["sum", "avg", "premul_sum"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_lone_unit_is_swallowed_by_the_adder_it_is_for_and_no_wider_one(
    name: str, op: str, side: int
) -> None:
    dtype, n = find_type(name), 5
    scales = list_lone_units(dtype, n, op, True)
    assert scales or name == "f8e4m3"
    for scale in scales:
        probe = Probe((0, 1), (2,))
        for bits in (8, 11, 24, 53, 64, 113):
            for share in list_shares(dtype, op, n, bits):
                if bits <= dtype.precision:
                    continue
                gave = [
                    give(dtype, op, n, share, probe.value(rank, scale, op), rank)
                    for rank in range(3)
                ]
                total = add([gave[side], gave[2], gave[1 - side]], Format(bits, -2000))
                kept = read(total, dtype, op, n, share, scale)
                assert kept == (bits > scale.visible), (scale, bits, share)


@pytest.mark.parametrize(
    ("name", "adders"),
    [
        ("double", [64, 113]),
        ("float", [53, 64, 113]),
        ("bfloat16", [11, 24, 53, 64, 113]),
        ("half", [24]),
        ("f8e5m2", [8, 11, 24]),
        ("f8e4m3", [8, 11]),
    ],
)
def test_adders_are_told_apart_as_far_as_the_range_allows(name: str, adders: list[int]) -> None:
    scales = list_lone_units(find_type(name), 8, "sum", False)
    assert [scale.visible for scale in scales] == adders


def test_a_lone_unit_below_the_range_is_none() -> None:
    assert find_lone_unit(53, find_type("half"), 4, "sum", True) is None


@pytest.mark.parametrize(
    ("name", "n", "adder", "void"),
    [
        ("f8e4m3", 64, 24, True),
        ("f8e4m3", 65, 24, False),
        ("f8e4m3", 8, 4, False),
        ("f8e5m2", 4, 24, False),
        ("half", 4, 24, False),
        ("half", 8, 53, True),
        ("float", 2, 53, False),
    ],
)
def test_no_order_exists_where_an_adder_loses_nothing(
    name: str, n: int, adder: int, void: bool
) -> None:
    assert is_order_void(find_type(name), n, adder) == void


@pytest.mark.parametrize(
    ("op", "name", "why"),
    [
        ("max", "float", "never rounds"),
        ("min", "int32", "never rounds"),
        ("sum", "int32", "exact in any order"),
        ("sum", "float", ""),
        ("avg", "half", ""),
        ("prod", "double", ""),
        ("none", "float", "'none' is not a reduction"),
    ],
)
def test_reductions_without_an_order_are_refused(op: str, name: str, why: str) -> None:
    said = refuse_order(op, DTYPES[name])
    assert why in said
    assert bool(said) == bool(why)
