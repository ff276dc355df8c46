"""Numbers that show an order of additions: one rank of a pair gives M = 2^E, the other -M, some
ranks give distinct powers of two, their units, and all others 0. What is added to M or -M before
they meet is swallowed; the bits of the result name the units that were added afterwards.

For an adder of p bits that rounds to nearest, ties to even, w units from 2^e on are all swallowed
if E >= e + w + p + 1, and add up without loss if w <= p of the element type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from collbench.core.dtypes import OPS, DType, premul_factor
from collbench.core.errors import UsageError

ADDERS = (8, 11, 24, 53, 64, 113)  # bits of the adders that are looked for

WIDER = {3: 8, 4: 8, 8: 24, 11: 24, 24: 53, 53: 64}  # the next adder that is looked for

MOST_EXPONENT = 400  # of double, whose range needs no more


class Scale(NamedTuple):
    """Exponents of M and of the least unit, and how many ranks give one at once; ``sign`` is of the
    lesser rank's M. The widest adder whose order shows has ``visible`` bits."""

    big: int
    unit: int
    width: int
    sign: int
    visible: int


class Probe(NamedTuple):
    """What ranks give in one call: the pair, if there is one, gives M and -M, the k-th of ``units``
    2^(e+k)."""

    pair: tuple[int, ...]
    units: tuple[int, ...]

    def value(self, rank: int, scale: Scale, op: str) -> float:
        """What a rank gives, for a reduction that may multiply it first."""
        if rank in self.pair:
            sign = scale.sign if rank == self.pair[0] else -scale.sign
            value = math.ldexp(sign, scale.big)
        elif rank in self.units:
            value = math.ldexp(1.0, scale.unit + self.units.index(rank))
        else:
            return 0.0
        return value / premul_factor(rank) if op == "premul_sum" else value


def refuse_order(op: str, dtype: DType) -> str:
    """Why a reduction of this type has no order that could show; "" where it has."""
    if op not in OPS:
        return f"{op!r} is not a reduction, so it has no order"
    if OPS[op].idempotent:
        return f"{op} has no order: it never rounds"
    if dtype.kind != "float":
        return f"{op} of {dtype.name} is exact in any order"
    return ""


def is_order_void(dtype: DType, n: int, adder: int = 24) -> bool:
    """Whether sums of n numbers of this type lose nothing in an adder of so many bits, so that any
    order gives the same bits."""
    span = (dtype.emax + 1) - (dtype.emin - (dtype.precision - 1))
    return dtype.precision < adder and span + math.log2(n) <= adder


def needs_subnormals(dtype: DType) -> bool:
    """Whether the type's range is so small that numbers below the normal ones are made use of."""
    return dtype.emin > -126


def choose_scales(dtype: DType, n: int, op: str, subnormals: bool) -> tuple[Scale, Scale]:
    """The two scales at which every pair is asked: at the first, wide adders swallow, too; at the
    second, M and -M exchanged, the element type does and wider adders do not. ``subnormals``:
    numbers below the normal ones are kept. Raises UsageError where the range is too small."""
    p, big = dtype.precision, _find_big(dtype)
    room = big - _find_least(dtype, n, op, subnormals)
    adders = [bits for bits in (p, *ADDERS) if bits >= p and room > bits + 1]
    normal = _find_least(dtype, n, op, False)
    width = min(_most_units(op, p, WIDER[p]), big - normal - p - 1, max(1, n - 2))
    if width < 1 or not adders:
        raise UsageError(f"{op} of {n} ranks needs a wider range than {dtype.name} has", "-d half")
    visible, ratio = adders[-1], width + p + 1
    unit = _center(ratio, normal, big)
    low = Scale(unit + ratio, unit, width, -1, p)
    for units in range(_most_units(op, p), 0, -1):
        least = _find_least(dtype, n, op, subnormals, units)
        if units == 1 or big - least > units + visible:
            break
    return Scale(big, least, units, 1, visible), low


def _find_big(dtype: DType) -> int:
    """The exponent of the largest M: M plus anything is finite."""
    return min(dtype.emax - 1, MOST_EXPONENT)


def _most_units(op: str, precision: int, adder: int | None = None) -> int:
    """How many ranks may give a unit in one probe: the result holds that many bits, and an adder
    that must not swallow any of them, that many beside M.

    Where avg divides by n, w units are rounded w times, by 2^(w-p) of the least one at most, and in
    the adder by 2^(w+p+1-q): less than half of it in all."""
    if not OPS[op].divides:
        return precision if adder is None else min(precision, adder - precision - 2)
    return max(
        w
        for w in range(1, precision + 1)
        if w == 1
        or w * 2.0 ** (w - precision) + (w * 2.0 ** (w + precision + 1 - adder) if adder else 0)
        < 0.5
    )


def _find_least(dtype: DType, n: int, op: str, subnormals: bool, units: int = 1) -> int:
    """The exponent of the least unit of so many, so that what a reduction makes of it can be
    read."""
    normal = max(dtype.emin, -MOST_EXPONENT)
    kept = normal - (dtype.precision - 1) * (subnormals and needs_subnormals(dtype))
    if OPS[op].divides:  # below the normal numbers, each unit is rounded by half of the least
        return kept + n.bit_length() + (units - 1).bit_length() * (kept < normal)
    return kept + (op == "premul_sum")


def _center(ratio: int, least: int, big: int) -> int:
    """The exponent of the unit so that it is as far below 1 as M, of ``ratio`` more, is above,
    where the range allows."""
    return min(max(least, -(ratio // 2)), big - ratio)


def list_probes(pair: tuple[int, int], ranks: Sequence[int], scale: Scale) -> list[Probe]:
    """The probes of a pair: each of the other ranks has a unit in one of them."""
    others = [rank for rank in ranks if rank not in pair]
    return [
        Probe(pair, tuple(others[at : at + scale.width]))
        for at in range(0, len(others), scale.width)
    ]


def read_survivors(value: float, probe: Probe, scale: Scale, op: str, n: int) -> int | None:
    """The ranks, as a bit mask, whose units are in a result; None for a result that no order of
    additions to nearest gives."""
    if not abs(value) < math.ldexp(2.0, scale.unit + len(probe.units)):
        return None
    code = math.ldexp(value, -scale.unit)
    if OPS[op].divides:
        code = float(round(code * n))
    if code != int(code) or not 0 <= code < 1 << len(probe.units):
        return None
    return sum(1 << rank for k, rank in enumerate(probe.units) if int(code) >> k & 1)


def shows_direction(
    value: float, probe: Probe, scale: Scale, dtype: DType, op: str, n: int
) -> bool:
    """Whether a result that no order gives is what is left of M where adders round otherwise than
    to nearest: more than all units, but no more than some of M's last places."""
    total = abs(value) * (n if OPS[op].divides else 1)
    units, last = scale.unit + len(probe.units), scale.big - dtype.precision + 1
    return math.ldexp(1.0, units) <= total <= math.ldexp(n, last)


def find_lone_unit(bits: int, dtype: DType, n: int, op: str, subnormals: bool) -> Scale | None:
    """The scale at which an adder of so many bits, and none that is two bits wider, swallows a lone
    unit: a tie beside M goes to M, which is even. None where the type's range is too small."""
    ratio = bits + 1
    big, least = _find_big(dtype), _find_least(dtype, n, op, subnormals)
    if ratio > big - least:
        return None
    unit = _center(ratio, least, big)
    return Scale(unit + ratio, unit, 1, 1, bits)


def list_lone_units(dtype: DType, n: int, op: str, subnormals: bool) -> list[Scale]:
    """The scales that tell adders wider than the type from each other, narrow ones first."""
    scales = [
        find_lone_unit(bits, dtype, n, op, subnormals) for bits in ADDERS if bits > dtype.precision
    ]
    return [scale for scale in scales if scale]
