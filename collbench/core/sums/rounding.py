"""The bits of a sum along a tree, in the element type or in a wider adder.

Values are float64 arrays: a sum of two numbers of at most 25 bits, rounded to float64 and then to
their type, is the same as rounded once. Adders of more than 53 bits, and sums of double without
loss, are worked out in fractions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.core.dtypes import OPS, DType, premul_factor
from collbench.core.sums.trees import Join, SumTree, fold_tree, list_nodes

Floats = NDArray[np.float64]

Division = Literal["", "after", "before", "rounded"]

PERIOD, SHORT_PERIOD = 65_521, 1021  # numbers of random data, which then repeat; as fractions

EXACT = 0  # bits of an adder that loses nothing


class Rounding(NamedTuple):
    """How a tree's sums are rounded: each node in an adder of ``adder`` bits (EXACT: not at all),
    and to the element type at the nodes over the leaves of the bit masks ``at``, or at all.
    ``division`` is where avg divides: the sum, inputs before they are added, or the sum once it is
    rounded."""

    adder: int
    at: frozenset[int] | None = None
    division: Division = ""


def draw_inputs(dtype: DType, ranks: int, op: str, length: int, seed: int) -> Floats:
    """Random numbers of a type, (ranks, length): of both signs, with full significands, and
    exponents over a range in which no sum overflows."""
    rng = np.random.default_rng([seed, ranks])
    span = 2 if op == "prod" else 7 if dtype.precision in (8, 24, 53) else 4
    significand = rng.integers(1 << (dtype.precision - 1), 1 << dtype.precision, (ranks, length))
    exponent = rng.integers(1 - span, 1, (ranks, length)) - (dtype.precision - 1)
    sign = rng.choice((-1.0, 1.0), (ranks, length))
    return np.asarray(np.ldexp(sign * significand.astype(np.float64), exponent))


def round_values(values: Floats, bits: int, emin: int = -1022) -> Floats:
    """Values rounded to ``bits`` of significand, to nearest with ties to even, and below 2^emin to
    the spacing there."""
    if bits == 53 and emin == -1022:
        return values
    exponent = np.maximum(np.frexp(values)[1] - 1, emin) - (bits - 1)
    return np.asarray(np.ldexp(np.rint(np.ldexp(values, -exponent)), exponent))


def round_fraction(value: Fraction, bits: int) -> Fraction:
    """A fraction rounded to ``bits`` of significand, to nearest with ties to even."""
    if not value:
        return value
    power = math.frexp(float(value))[1] - bits
    while abs(value) >= Fraction(2) ** (power + bits):
        power += 1
    while abs(value) < Fraction(2) ** (power + bits - 1):
        power -= 1
    return round(value / Fraction(2) ** power) * Fraction(2) ** power


def needs_fractions(dtype: DType, rounding: Rounding, tree: SumTree) -> bool:
    """Whether a sum is worked out in fractions, of which only few are."""
    is_exact = rounding.adder == EXACT or any(join.kind != "two" for join in tree.joins)
    return dtype.precision == 53 and (rounding.adder > 53 or is_exact)


def evaluate_tree(
    tree: SumTree, inputs: Mapping[int, Floats], dtype: DType, op: str, rounding: Rounding, n: int
) -> Floats:
    """What a reduction of n ranks makes of their ``inputs``, by the tree."""
    if needs_fractions(dtype, rounding, tree):
        return _evaluate(tree, inputs, dtype, op, rounding, n, _Fractions())
    return _evaluate(tree, inputs, dtype, op, rounding, n, _Doubles())


def _evaluate(
    tree: SumTree,
    inputs: Mapping[int, Floats],
    dtype: DType,
    op: str,
    rounding: Rounding,
    n: int,
    arithmetic: _Doubles | _Fractions,
) -> Floats:
    combine = np.multiply if OPS[op].function == "multiply" else np.add
    own = (dtype.precision, dtype.emin)
    share = round_values(np.array([1 / n]), *own)[0]

    def take_leaf(rank: int) -> tuple[Any, int]:
        values = inputs[rank]
        if op == "premul_sum":
            values = values * premul_factor(rank)
        if rounding.division == "before":
            values = round_values(values * share, *own)
        return arithmetic.load(values), 1 << rank

    def add_node(join: Join, children: Sequence[tuple[Any, int]]) -> tuple[Any, int]:
        total, mask = children[0]
        for value, leaves in children[1:]:
            total, mask = combine(total, value), mask | leaves
        bits = EXACT if join.kind == "exact" else rounding.adder
        if rounding.at is None or mask in rounding.at:
            if bits not in (EXACT, dtype.precision):
                total = arithmetic.round(total, bits, -1022)
            return arithmetic.round(total, *own), mask
        return arithmetic.round(total, bits, -1022) if bits != EXACT else total, mask

    total, _ = fold_tree(tree, take_leaf, add_node)
    if rounding.division == "rounded":
        total = arithmetic.round(total, *own)
    if rounding.division in ("after", "rounded"):
        total = arithmetic.divide(total, n)
    return arithmetic.finish(total, own)


class _Doubles:
    """Arithmetic on float64."""

    def load(self, values: Floats) -> Floats:
        return values

    def round(self, values: Floats, bits: int, emin: int) -> Floats:
        return values if bits > 53 else round_values(values, bits, emin)

    def divide(self, values: Floats, n: int) -> Floats:
        return values / n

    def finish(self, values: Floats, own: tuple[int, int]) -> Floats:
        return round_values(values, *own)


class _Fractions:
    """Arithmetic on object arrays of fractions."""

    def load(self, values: Floats) -> Any:
        return np.array([Fraction(value) for value in values.tolist()], object)

    def round(self, values: Any, bits: int, emin: int) -> Any:
        return np.array([round_fraction(value, bits) for value in values], object)

    def divide(self, values: Any, n: int) -> Any:
        return values / n

    def finish(self, values: Any, own: tuple[int, int]) -> Floats:
        return np.array([float(value) for value in values])


def list_divisions(op: str, rounding: Rounding) -> list[Rounding]:
    """The ways in which avg may divide; the rounding as it is of other reductions."""
    if not OPS[op].divides:
        return [rounding]
    ways: tuple[Division, ...] = ("after", "before", "rounded")
    return [rounding._replace(division=way) for way in ways]


def find_rounding(tree: SumTree, low_tree: SumTree, dtype: DType, adder: int | None) -> Rounding:
    """How the sums of a tree are rounded, whose order was ``low_tree`` where only the element type
    swallows: the same, or within its nodes that add without loss by an adder of ``adder`` bits,
    None where none of those that are looked for fits."""
    if low_tree == tree:
        is_exact = [join.kind for join in tree.joins] == ["exact"]
        return Rounding(EXACT if is_exact else dtype.precision)
    masks = {mask for _, mask in list_nodes(low_tree)}
    return Rounding(
        adder or EXACT, frozenset(mask for _, mask in list_nodes(tree) if mask in masks)
    )
