"""The bits of a sum along a tree, in the element type or in a wider adder.

Values are float64 arrays: a sum of two numbers of at most 25 bits, rounded to float64 and then to
their type, is the same as rounded once. What float64 cannot hold is worked out in fractions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.core.dtypes import OPS, DType, premul_factor
from collbench.core.sums.probes import ADDERS, MOST_EXPONENT
from collbench.core.sums.trees import Join, SumTree, fold_tree, list_nodes

Floats = NDArray[np.float64]

Division = Literal["", "after", "rounded", "before", "within"]

PERIOD, SHORT_PERIOD = 65_521, 1021  # numbers of random data, which then repeat; as fractions

EXACT = 0  # bits of an adder that loses nothing

MAX_SPAN = 7  # powers of two over which random numbers are drawn


class Rounding(NamedTuple):
    """How a tree's sums are rounded: each node in an adder of ``adder`` bits (EXACT: not at all),
    and to the element type at the nodes over the leaves of the bit masks ``at``, or at all, and at
    the end.

    ``division`` is where avg divides by n: the adder's sum (after) or the ``rounded`` one; or
    inputs are multiplied by 1/n, in the element type ``before`` or ``within`` the adder. "" is as
    after, where that cannot be told from others."""

    adder: int
    at: frozenset[int] | None = None
    division: Division = ""


class Pair(NamedTuple):
    """Powers of two of a large number that two ranks give, one of them its opposite, and of what
    the others give."""

    large: int
    small: int


def choose_pairs(dtype: DType, adders: Sequence[int]) -> list[Pair]:
    """Pairs that show in which order adders wider than the type add, beside which each of them
    loses half of a number of the type; EXACT: those of all adders that are looked for. None of
    adders for which the type's range is too small."""
    bits, span = dtype.precision, _choose_span(dtype)
    pairs = []
    for adder in ADDERS:
        if adder <= bits or not (EXACT in adders or adder in adders):
            continue
        ratio = adder - bits // 2 + 1
        large = min(ratio, dtype.emax - 1, MOST_EXPONENT)
        small = min(0, max(large - ratio, dtype.emin + span - 1))
        if large - small > adder - bits - span + 2:  # else nothing is ever lost
            pairs.append(Pair(large, small))
    return pairs


def _choose_span(dtype: DType) -> int:
    """Powers of two over which a type's random numbers are drawn."""
    return MAX_SPAN if dtype.precision in (8, 24, 53) else 4


def draw_inputs(
    dtype: DType, ranks: int, op: str, length: int, seed: int, adders: Sequence[int] = ()
) -> Floats:
    """Random numbers of a type, (ranks, length): of both signs, with full significands, and
    exponents over a range in which no sum overflows. Factors are from 0.75 to 1.5, and 1 or -1
    where a product of fewer could leave the type's range.

    Their sums are exact in much wider ``adders``, and show no order: for these, two ranks give a
    large number and its opposite at half of the elements, of all reductions but products."""
    numbers = _draw_plain(dtype, ranks, op, length, seed)
    pairs = choose_pairs(dtype, adders) if op != "prod" and ranks > 2 else []
    if not pairs:
        return numbers
    rng = np.random.default_rng([seed, ranks, length])
    at = np.arange(length)
    first, second = rng.permuted(np.arange(ranks)[:, None].repeat(length, 1), axis=0)[:2]
    large, small = np.array(pairs)[rng.integers(len(pairs), size=length)].T
    sizes = np.ldexp(numbers[0], large - 1)
    cancelling = np.ldexp(numbers, small)
    factors = np.array([premul_factor(r) if op == "premul_sum" else 1 for r in range(ranks)])
    cancelling[first, at] = sizes / factors[first]
    cancelling[second, at] = -sizes / factors[second]
    return np.where(rng.random(length) < 0.5, cancelling, numbers)


def _draw_plain(dtype: DType, ranks: int, op: str, length: int, seed: int) -> Floats:
    rng = np.random.default_rng([seed, ranks])
    span = 1 if op == "prod" else _choose_span(dtype)
    significand = rng.integers(1 << (dtype.precision - 1), 1 << dtype.precision, (ranks, length))
    exponent = rng.integers(1 - span, 1, (ranks, length)) - (dtype.precision - 1)
    sign = rng.choice((-1.0, 1.0), (ranks, length))
    sizes = np.ldexp(significand.astype(np.float64), exponent)
    if op == "prod":
        sizes = np.where(sizes < 1.5, sizes, sizes / 2)
        powers = np.log2(sizes)
        tops = np.cumsum(np.maximum(powers, 0), axis=0) > dtype.emax - 1
        bottoms = np.cumsum(np.minimum(powers, 0), axis=0) < dtype.emin + 1
        sizes = rng.permuted(np.where(tops | bottoms, 1.0, sizes), axis=0)
    return np.asarray(sign * sizes)


def round_values(values: Floats, bits: int, emin: int = -1022) -> Floats:
    """Values rounded to ``bits`` of significand, to nearest with ties to even, and below 2^emin to
    the spacing there."""
    if bits == 53 and emin == -1022:
        return values
    sizes = np.abs(values)
    if 1 < bits < 53 and not np.any((sizes < 2.0**emin) & (sizes > 0)):
        return _round_codes(values, 53 - bits)
    exponent = np.maximum(np.frexp(values)[1] - 1, emin) - (bits - 1)
    return np.asarray(np.ldexp(np.rint(np.ldexp(values, -exponent)), exponent))


def _round_codes(values: Floats, cut: int) -> Floats:
    """Normal numbers without the last places of their significands, so many, rounded as
    round_values does: an integer's carry goes into the exponent, as it must."""
    codes = np.ascontiguousarray(values).view(np.int64)
    rounded = codes + ((1 << cut - 1) - 1) + (codes >> cut & 1)
    return (rounded >> cut << cut).view(np.float64)


def round_fraction(value: Fraction, bits: int, emin: int = -1022) -> Fraction:
    """A fraction, rounded as round_values does."""
    if not value:
        return value
    spacing = Fraction(2) ** (max(_find_exponent(value), emin) - bits + 1)
    return round(value / spacing) * spacing


def _find_exponent(value: Fraction) -> int:
    """The exponent of the largest power of two that is no larger than the value, which is not 0."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent - (abs(value) < Fraction(2) ** exponent)


def needs_fractions(
    dtype: DType,
    rounding: Rounding,
    tree: SumTree,
    op: str = "sum",
    adders: Sequence[int] = (),
) -> bool:
    """Whether a reduction is worked out in fractions, of which only few are; of numbers that were
    drawn for ``adders``."""
    kinds = {join.kind for join in tree.joins}
    if rounding.adder > 53 and rounding.division == "within":
        return True
    if rounding.adder >= 53 and "together" in kinds:
        return True
    if op == "prod":
        bits, lossy = dtype.precision * len(tree.leaves), bool(kinds - {"two"})
    else:
        ratio = max((pair.large - pair.small for pair in choose_pairs(dtype, adders)), default=0)
        bits = dtype.precision + ratio + MAX_SPAN + len(tree.leaves).bit_length()
        lossy = "exact" in kinds
    return bits >= 53 and (rounding.adder == EXACT or rounding.adder > 53 or lossy)


def evaluate_tree(
    tree: SumTree,
    inputs: Mapping[int, Floats],
    dtype: DType,
    op: str,
    rounding: Rounding,
    n: int,
    watch: Callable[[int, Any], object] = lambda mask, partial: None,
    adders: Sequence[int] = (),
) -> Floats:
    """What a reduction of n ranks makes of their ``inputs``, which were drawn for ``adders``, by
    the tree. ``watch`` is told of each node's sum, by the mask of its leaves, as it goes on, in the
    order of postfix; of the root's before avg divides it and it is rounded to the element type."""
    in_fractions = needs_fractions(dtype, rounding, tree, op, adders)
    arithmetic = _Fractions() if in_fractions else _Doubles()
    combine = np.multiply if op == "prod" else np.add
    own = (dtype.precision, dtype.emin)
    whole = sum(1 << rank for rank in tree.leaves)

    def take_leaf(rank: int) -> tuple[Any, int]:
        return _load_leaf(inputs[rank], rank, dtype, op, rounding, n, arithmetic), 1 << rank

    def add_node(join: Join, children: Sequence[tuple[Any, int]]) -> tuple[Any, int]:
        values: Sequence[Any] = [value for value, _ in children]
        mask = sum(leaves for _, leaves in children)
        if join.kind == "together" and op != "prod" and rounding.adder != EXACT:
            values = arithmetic.cut(values, rounding.adder)
        total = functools.reduce(combine, values)
        if join.kind != "exact":
            total = _round_in_adder(total, rounding, dtype, arithmetic)
        is_rounded = rounding.adder == dtype.precision and join.kind != "exact"
        if mask != whole and not is_rounded and (rounding.at is None or mask in rounding.at):
            total = arithmetic.round(total, *own)
        watch(mask, total)
        return total, mask

    total, _ = fold_tree(tree, take_leaf, add_node)
    if rounding.division == "rounded":
        total = arithmetic.round(total, *own)
    if OPS[op].divides and rounding.division in ("", "after", "rounded"):
        total = _round_in_adder(arithmetic.divide(total, n), rounding, dtype, arithmetic)
    return arithmetic.finish(arithmetic.round(total, *own))


def _load_leaf(
    values: Floats,
    rank: int,
    dtype: DType,
    op: str,
    rounding: Rounding,
    n: int,
    arithmetic: _Doubles | _Fractions,
) -> Any:
    """What a rank's input adds to the sum."""
    if op == "premul_sum":
        values = values * premul_factor(rank)
    if rounding.division == "before":
        share = round_values(np.array([1 / n]), dtype.precision, dtype.emin)
        values = round_values(values * share, dtype.precision, dtype.emin)
    loaded = arithmetic.load(values)
    if rounding.division != "within":
        return loaded
    share = _round_in_adder(
        arithmetic.divide(arithmetic.load(np.ones(1)), n), rounding, dtype, arithmetic
    )
    return _round_in_adder(loaded * share, rounding, dtype, arithmetic)


def _round_in_adder(
    values: Any, rounding: Rounding, dtype: DType, arithmetic: _Doubles | _Fractions
) -> Any:
    """What the adder makes of a result; wider ones than the type have range enough."""
    if rounding.adder == EXACT:
        return values
    is_own = rounding.adder == dtype.precision
    return arithmetic.round(values, rounding.adder, dtype.emin if is_own else -1022)


class _Doubles:
    """Arithmetic on float64, in which an adder of more bits has nothing to round."""

    def load(self, values: Floats) -> Floats:
        return values

    def round(self, values: Floats, bits: int, emin: int) -> Floats:
        return values if bits > 53 else round_values(values, bits, emin)

    def cut(self, values: Sequence[Floats], bits: int) -> Sequence[Floats]:
        """The values without what is below so many bits of the largest of them."""
        exponent = np.frexp(np.max(np.abs(values), axis=0))[1] - bits
        return [np.ldexp(np.trunc(np.ldexp(value, -exponent)), exponent) for value in values]

    def divide(self, values: Floats, n: int) -> Floats:
        return values / n

    def finish(self, values: Floats) -> Floats:
        return values


class _Fractions:
    """Arithmetic on object arrays of fractions."""

    def load(self, values: Floats) -> Any:
        return np.array([Fraction(value) for value in values.tolist()], object)

    def round(self, values: Any, bits: int, emin: int) -> Any:
        return np.array([round_fraction(value, bits, emin) for value in values], object)

    def cut(self, values: Sequence[Any], bits: int) -> Sequence[Any]:
        largest = np.max(np.abs(np.stack(values)), axis=0)
        exponents = [_find_exponent(size) if size else 0 for size in largest]
        spacing = np.array([Fraction(2) ** (e - bits + 1) for e in exponents], object)
        whole = [np.array([int(x) for x in value / spacing], object) for value in values]
        return [value * spacing for value in whole]

    def divide(self, values: Any, n: int) -> Any:
        return values / n

    def finish(self, values: Any) -> Floats:
        return np.array([float(value) for value in values])


def list_divisions(op: str, rounding: Rounding) -> list[Rounding]:
    """The ways in which avg may divide; the rounding as it is of other reductions."""
    if not OPS[op].divides:
        return [rounding]
    ways: list[Division] = ["after", "before"]
    if rounding.adder == EXACT or rounding.at is not None:
        ways.insert(1, "rounded")
        ways += ["within"] * (rounding.adder != EXACT)
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
