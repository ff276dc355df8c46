"""Numbers that show an order of additions: one rank of a pair gives M = 2^E, the other -M, some
ranks give distinct powers of two, their units, and all others 0. What is added to M or -M before
they meet is swallowed; the bits of the result name the units that were added afterwards.

For an adder of p bits that rounds to nearest, ties to even, w units from 2^e on are all swallowed
if E >= e + w + p + 1, and add up without loss if w <= p of the element type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from collbench.core.dtypes import OPS, DType, premul_factor

ADDERS = (8, 11, 24, 53, 64, 113)  # bits of the adders that are looked for

WIDER = {3: 11, 4: 11, 8: 24, 11: 24, 24: 53, 53: 64}  # the next adder that machines have

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
    """What ranks give in one call: the pair gives M and -M, the k-th of ``units`` 2^(e+k)."""

    pair: tuple[int, int]
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
    if op in OPS and OPS[op].idempotent:
        return f"{op} has no order: it never rounds"
    if dtype.kind != "float":
        return f"{op} of {dtype.name} is exact in any order"
    return ""


def is_order_void(dtype: DType, n: int, adder: int = 24) -> bool:
    """Whether sums of n numbers of this type lose nothing in an adder of so many bits, so that any
    order gives the same bits."""
    span = (dtype.emax + 1) - (dtype.emin - (dtype.precision - 1))
    return dtype.precision < adder and span + math.log2(n) <= adder


def choose_scales(dtype: DType, n: int, op: str, subnormals: bool) -> tuple[Scale, Scale]:
    """The two scales at which every pair is asked: at the first, wide adders swallow, too; at the
    second, M and -M exchanged, the element type does and wider adders do not. ``subnormals``:
    numbers below the normal ones are kept."""
    p = dtype.precision
    big = min(dtype.emax - 1, MOST_EXPONENT)
    divided = OPS[op].divides
    spare = n.bit_length() if divided else int(op == "premul_sum")
    normal = max(dtype.emin, -MOST_EXPONENT) + spare
    least = normal - (p - 1) * (subnormals and p < 24)
    most_units = max(1, p - 4) if divided else p
    adders = [bits for bits in (p, *ADDERS) if bits >= p and big - least - bits - 1 >= 1]
    visible = adders[-1]
    high = Scale(big, least, min(most_units, big - least - visible - 1), 1, visible)
    width = min(most_units, WIDER[p] - p - 2, big - normal - p - 1)
    ratio = width + p + 1
    unit = max(normal, -(ratio // 2))
    return high, Scale(unit + ratio, unit, width, -1, p)


def list_probes(pair: tuple[int, int], ranks: Sequence[int], scale: Scale) -> list[Probe]:
    """The probes of a pair: each of the other ranks has a unit in one of them."""
    others = [rank for rank in ranks if rank not in pair]
    return [
        Probe(pair, tuple(others[at : at + scale.width]))
        for at in range(0, len(others), scale.width)
    ]


def read_survivors(value: float, probe: Probe, scale: Scale, op: str, n: int) -> int | None:
    """The ranks, as a bit mask, whose units are in a result; None for a result that no order of
    additions gives."""
    if not math.isfinite(value):
        return None
    code = math.ldexp(value, -scale.unit)
    if op in OPS and OPS[op].divides:
        code = float(round(code * n))
    if code != int(code) or not 0 <= code < 1 << len(probe.units):
        return None
    return sum(1 << rank for k, rank in enumerate(probe.units) if int(code) >> k & 1)


def find_lone_unit(bits: int, dtype: DType) -> Scale | None:
    """The scale at which an adder of so many bits, and no wider one, swallows a lone unit; None
    where the type's range is too small."""
    ratio = bits + 1
    big, least = min(dtype.emax - 1, MOST_EXPONENT), max(dtype.emin, -MOST_EXPONENT)
    if ratio > big - least:
        return None
    unit = max(least, -(ratio // 2))
    return Scale(unit + ratio, unit, 1, 1, bits)


def list_adders(dtype: DType) -> Iterator[int]:
    """The bits of adders wider than the type that can be told from each other."""
    return (bits for bits in ADDERS if bits > dtype.precision and find_lone_unit(bits, dtype))
