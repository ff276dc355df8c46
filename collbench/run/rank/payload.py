"""What buffers hold, so that every element of a result can be checked bit for bit, whatever the
order of reduction.

T scenarios are drawn from a seed; each is one worked example: a value for every rank and, brute
force, the result of reducing them. The elements of a window play a slice of one long row of random
scenarios, from a place that depends on seed, slot, stream and the window's number: so filling a
buffer and knowing the expected result are both a copy or a table look-up, any slice can be made on
any rank alone, and every element depends on its index. In reductions all ranks play the same
scenario at the same index; copies draw on a stream per sending rank.

Why results are exact. sum: a scenario's values are integers times one power of two, positives and
negatives each bounded by the significand, so no partial sum in any order is ever rounded, nor does
a signed integer overflow; with more ranks than that bound allows, ranks take turns being zero.
prod: one significand, all others powers of two of bounded reach. min, max, band, bor: one rank,
another in every scenario, decides (each bit of) the result. Unsigned integers wrap. avg: the total
is exact and IEEE division rounds it correctly, so sum-then-divide agrees bitwise; dividing in
float32 and rounding to a narrower type does too while n <= 4096, for a quotient by n then lies
either on a rounding boundary or further from it than float32 errs. Averages are normal numbers,
except for f8e4m3 on more than 1024 ranks; integer averages are at most limit / n, so all zero where
n exceeds what the type holds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS, DType, premul_factor
from collbench.suite.case import Case

T = 4096  # scenarios

DRAWN_ARRAYS = 12  # of (ranks, T) numbers of 8 bytes, at once: ten seen, beside two that are kept

WINDOW = 1 << 18  # elements that share a place; every pass over a buffer is cut at its multiples

Array = NDArray[Any]

_MASK = (1 << 64) - 1


def _mix64(x: Any) -> Any:
    """splitmix64's finaliser, on a Python int or a uint64 array."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def _window_key(*parts: int) -> int:
    return functools.reduce(
        lambda state, part: int(_mix64((state + part) * 0x9E3779B97F4A7C15 & _MASK)), parts, 1
    )


@functools.cache
def list_places() -> NDArray[np.int32]:
    """The scenarios of two windows' length of elements, of which every window plays a slice."""
    table: NDArray[np.int32] = (
        _mix64(np.arange(1, 2 * WINDOW + 1, dtype=np.uint64)) >> np.uint64(32) & np.uint64(T - 1)
    ).astype(np.int32)
    table.setflags(write=False)
    return table


def find_place(seed: int, slot: int, stream: int, window: int) -> int:
    """Find where a window's slice of ``list_places()`` begins, below ``WINDOW``. For a seed no two
    are alike among 262,144 slots, nor among 64 slots of 64 streams of 31 windows or fewer."""
    at = (_window_key(seed) + window + stream * 118_287 + slot * 124_049) % WINDOW
    for factor in (0x2C1B5, 0x19D4B):  # mixed, one to one
        at = (at ^ at >> 9) * factor % WINDOW
    return at ^ at >> 9


class _Random:
    """Random numbers that depend on the key alone, never on numpy's version: all hosts must draw
    the same."""

    def __init__(self, *key: int) -> None:
        self.state = _window_key(*key)

    def bits(self, *shape: int) -> NDArray[np.uint64]:
        self.state = _window_key(self.state, 1)
        drawn: NDArray[np.uint64] = _mix64(
            np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(self.state)
        )
        return drawn.reshape(shape)

    def below(self, limit: int | Array, *shape: int) -> NDArray[np.int64]:
        """Numbers in 0 .. limit - 1, where limit is at most 2**63."""
        return (self.bits(*shape) % np.asarray(limit, np.uint64)).astype(np.int64)

    def signs(self, *shape: int) -> NDArray[np.int64]:
        return 1 - 2 * self.below(2, *shape)

    def places(self, n: int) -> NDArray[np.int64]:
        """(n, T): each scenario's shuffle of the ranks. A rank takes every place once in each block
        of n scenarios."""
        orders = self.bits(-(-T // n), n).argsort(axis=1)
        turn = np.arange(T)
        return (orders[turn // n].T + turn) % n


def _exact_limit(d: DType) -> int:
    """The largest m such that all integers up to it are exact in ``d`` and in int64."""
    return (1 << min(d.precision, 63)) - (d.kind != "float")


def _draw_shares(
    rng: _Random, active: Array, signs: Array, limit: int, factors: Array
) -> NDArray[np.int64]:
    """Signed numbers, zero unless active, whose multiples by ``factors`` sum to ``limit`` at most
    per sign."""
    crowd = np.maximum((active & (signs > 0)).sum(0), (active & (signs < 0)).sum(0))
    room = limit // np.maximum(crowd, 1) // factors
    shares: NDArray[np.int64] = (1 + rng.below(room, *active.shape)) * signs * active
    rank, turn = active.argmax(0), np.arange(T)  # where everything cancels, this rank moves by one
    nudge = np.where(np.abs(shares[rank, turn]) < room[rank, turn], 1, -1) * np.sign(
        shares[rank, turn]
    )
    shares[rank, turn] += np.where((shares * factors).sum(0) == 0, nudge, 0)
    return shares


def _scale_shares(rng: _Random, d: DType, shares: Array, low: int) -> Array:
    """Shares in d's own numbers: floats get one random exponent, from ``low``, per scenario."""
    if d.kind != "float":
        return shares.astype(d.name)
    spare = max(0, d.emax - d.precision - low)
    return np.ldexp(shares.astype(np.float64), d.emax - d.precision - rng.below(spare + 1, T))


def _draw_sums(
    rng: _Random, d: DType, n: int, factor: Callable[[int], int] = lambda rank: 1
) -> Array:
    if d.kind == "uint":
        return rng.bits(n, T).astype(d.name)
    factors = np.array([[factor(rank)] for rank in range(n)])
    active = rng.places(n) < max(1, _exact_limit(d) // (2 * int(factors.max())))
    return _scale_shares(
        rng, d, _draw_shares(rng, active, rng.signs(n, T), _exact_limit(d), factors), d.emin
    )


def _draw_averages(rng: _Random, d: DType, n: int) -> Array:
    """One sign; integers few enough to be felt in the quotient, and two floats where NCCL's factor
    1/n is inexact."""
    crowd = (
        2
        if d.kind == "float" and n & (n - 1)
        else max(2, _exact_limit(d) // (2 if d.kind == "float" else 64 * n))
    )
    signs = np.broadcast_to(rng.signs(T) if d.kind == "float" else np.ones(T, np.int64), (n, T))
    shares = _draw_shares(
        rng, rng.places(n) < crowd, signs, _exact_limit(d), np.ones((n, 1), np.int64)
    )
    return _scale_shares(rng, d, shares, d.emin + (n - 1).bit_length())


def _draw_products(rng: _Random, d: DType, n: int) -> Array:
    if d.kind == "uint":
        return (rng.bits(n, T) | np.uint64(1)).astype(d.name)
    positions, signs, ones = rng.places(n), rng.signs(n, T), np.ones((n, 1), np.int64)
    if d.kind == "int":
        reach = d.precision // 3
        powers = _draw_shares(rng, (positions > 0) & (positions <= reach), ones, reach, ones)
        leader = 1 + rng.below((1 << (d.precision - reach)) - 1, T)
        return (signs * np.where(positions == 0, leader, 1) << powers).astype(d.name)
    reach = min(-d.emin, d.emax - 1)
    headroom = reach // 3
    powers = _draw_shares(
        rng,
        (positions > 0) & (positions <= reach - headroom),
        rng.signs(n, T),
        reach - headroom,
        ones,
    )
    leader = np.ldexp(
        1.0 + rng.below(half := 1 << (d.precision - 1), T) / half,
        rng.below(2 * headroom + 1, T) - headroom,
    )
    return signs * np.where(positions == 0, leader, np.ldexp(1.0, powers))


def _draw_finite(rng: _Random, d: DType, n: int) -> Array:
    """Any normal number or, for integers, any value but the signed minimum (kept for poison)."""
    if d.kind != "float":
        values = rng.bits(n, T).astype(d.name)
        return (
            values
            if d.kind == "uint"
            else np.where(values == np.iinfo(d.name).min, np.ones_like(values), values)
        )
    smallest = 1 << (d.precision - 1)
    return rng.signs(n, T) * decode_bits(
        smallest + rng.below(_largest_bits(d) - smallest + 1, n, T), d
    )


def _draw_extremes(rng: _Random, d: DType, n: int, worse: Any) -> Array:
    """Whoever is not worse than the rank at place 0 holds the worst value: one rank decides, and by
    any value."""
    values, positions = _draw_finite(rng, d, n), rng.places(n)
    decisive = values[positions.argmin(0), np.arange(T)]
    high = (
        decode_bits(_largest_bits(d), d)
        if d.kind == "float"
        else np.array(np.iinfo(d.name).max, d.name)
    )
    low = np.zeros_like(high) if d.kind == "uint" else -high
    return np.where(
        (positions == 0) | worse(values, decisive), values, low if worse is np.less else high
    )


def _draw_flags(rng: _Random, d: DType, n: int) -> Array:
    """Random bits, each set on at most one rank."""
    chosen_bits, flags, turn = rng.bits(T), np.zeros((n, T), np.uint64), np.arange(T)
    for bit in range(d.size * 8):
        flags[rng.below(n, T), turn] |= chosen_bits & np.uint64(1 << bit)
    return flags.astype(d.name)


def _divide_total(total: Array, n: int) -> Array:
    return (
        total / n
        if total.dtype == np.float64
        else (total.astype(np.uint64) // np.uint64(n)).astype(total.dtype)
    )


# What every rank contributes, as (n, T) arrays of the integer type or, holding any float type's
# numbers, float64.
_INPUTS: dict[str, Callable[[_Random, DType, int], Array]] = {
    "none": _draw_finite,
    "sum": _draw_sums,
    "prod": _draw_products,
    "min": lambda rng, d, n: _draw_extremes(rng, d, n, np.greater),
    "max": lambda rng, d, n: _draw_extremes(rng, d, n, np.less),
    "avg": _draw_averages,
    "band": lambda rng, d, n: ~_draw_flags(rng, d, n),
    "bor": _draw_flags,
    "bxor": _draw_finite,
    "premul_sum": lambda rng, d, n: _draw_sums(rng, d, n, premul_factor),
}

_SCALE: dict[str, Callable[[int], int]] = {"premul_sum": premul_factor}

_FINISH: dict[str, Callable[[Array, int], Array]] = {"avg": _divide_total}


def _largest_bits(d: DType) -> int:
    """Bits of the largest finite number; a format without infinities has its only NaN right above
    it."""
    return min(((d.emax - d.emin + 2) << (d.precision - 1)) - 1, (1 << (d.size * 8 - 1)) - 2)


def encode_values(values: Array, d: DType) -> Array:
    """Bit patterns, as unsigned integers of d's width; floats (finite, in d's range) are rounded to
    nearest even."""
    if d.kind != "float":
        return values.astype(d.name).view(f"u{d.size}")
    fraction = d.precision - 1
    exponent = np.where(values == 0, d.emin, np.maximum(np.frexp(values)[1] - 1, d.emin))
    significand = np.rint(np.ldexp(np.abs(values), fraction - exponent)).astype(np.uint64)
    magnitude = ((exponent - d.emin).astype(np.uint64) << np.uint64(fraction)) + significand
    bits: Array = (
        magnitude | np.signbit(values).astype(np.uint64) << np.uint64(d.size * 8 - 1)
    ).astype(f"u{d.size}")
    return bits


def decode_bits(bits: Any, d: DType) -> Array:
    """The numbers behind bit patterns of a float type, exactly, as float64."""
    fraction, sign = d.precision - 1, 1 << (d.size * 8 - 1)
    bits = np.asarray(bits, np.uint64)
    magnitude = (bits & np.uint64(sign - 1)).astype(np.int64)
    field = magnitude >> fraction
    rest = magnitude & ((1 << fraction) - 1)
    significand = (rest + (np.minimum(field, 1) << fraction)).astype(np.float64)
    values = np.ldexp(significand, np.clip(field, 1, d.emax - d.emin + 1) - 1 + d.emin - fraction)
    special = np.where((rest == 0) & (magnitude == _largest_bits(d) + 1), np.inf, np.nan)
    values = np.where(magnitude > _largest_bits(d), special, values)
    return np.where(bits >= np.uint64(sign), -values, values)


def format_bits(bits: int, d: DType) -> str:
    """A bit pattern as a person reads it: ``3.5 (0x4060)``."""
    number = (
        decode_bits(bits, d) if d.kind == "float" else np.array(bits, f"u{d.size}").view(d.name)
    )
    return (
        f"{number.item():{'' if d.kind != 'float' else '.9g' if d.size < 8 else '.17g'}}"
        f" (0x{bits:0{d.size * 2}x})"
    )


def find_tolerance(op: str, d: DType, n: int, premultiplies: bool) -> int:
    """Units in the last place a result may be off: 0, or 2 where avg multiplies by an inexact 1/n
    instead of dividing. Types that cannot hold 1/n are refused before (refusal.refuse_opened)."""
    return 2 if premultiplies and op in _FINISH and d.kind == "float" and n & (n - 1) else 0


class Tables(NamedTuple):
    """One (op, dtype, n, seed)'s scenarios; element with scenario t holds bit pattern ``[t]`` of
    what is returned."""

    op: str
    dtype: DType
    inputs: Array

    def send(self, rank: int) -> Array:
        """The contribution of ``rank``; for copies the same table for all ranks."""
        return encode_values(self.inputs[rank % len(self.inputs)], self.dtype)

    def expected(self, ranks: tuple[int, ...]) -> Array:
        """The result of reducing the contributions of ``ranks``, of which avg divides by the number
        of all; of none: the copied pattern."""
        if not ranks:
            return self.send(0)
        scale = _SCALE.get(self.op)
        scaled = (
            (self.inputs[rank] * (scale(rank) if scale else 1)).astype(self.inputs.dtype)
            for rank in ranks
        )
        total = functools.reduce(OPS[self.op].combine, scaled)
        n = len(self.inputs)
        return encode_values(
            _FINISH[self.op](total, n) if self.op in _FINISH else total, self.dtype
        )


def make_tables(case: Case, seed: int) -> Tables:
    """The scenarios of a case; shared by all cases of its reduction and type on as many ranks."""
    return (
        _make_tables(case.op, case.dtype, case.n, seed)
        if case.row.reduces
        else _make_tables("none", case.dtype, 1, seed)
    )


def count_table_bytes(case: Case) -> int:
    """Bytes that a rank takes, at most, to draw the scenarios of a case."""
    return DRAWN_ARRAYS * case.n * T * 8 if case.row.reduces else 0


@functools.lru_cache(maxsize=2)
def _make_tables(op: str, dtype: str, n: int, seed: int) -> Tables:
    return Tables(op, DTYPES[dtype], _INPUTS[op](_Random(seed, n), DTYPES[dtype], n))


class Piece(NamedTuple):
    """``length`` elements from ``start`` in a buffer, from ``offset`` in ``stream``; the ``ranks``
    reduced, if any."""

    start: int
    length: int
    stream: int
    offset: int
    ranks: tuple[int, ...]


class Placement(NamedTuple):
    """Where send and receive buffer begin in the working buffer of an in-place case; all in
    elements."""

    send: int
    recv: int
    total: int


def in_place_offsets(case: Case, rank: int) -> Placement:
    """How ``rank`` lays its two buffers into one; KeyError where the collective has no in-place
    form."""
    if case.row.in_place is None:
        raise KeyError(case.collective)
    return Placement(*case.row.overlay(case.n, case.count, rank))


def _cell_lengths(case: Case) -> NDArray[np.int64]:
    """Elements of every rank's send cells, (n, cells): the pieces the collective moves or reduces
    as a whole."""
    if case.splits:
        return case.matrix
    return np.broadcast_to(np.int64(case.count), (case.n, case.row.counts(case.n, 1)[0]))


@functools.lru_cache(maxsize=4)
def _list_arrivals(
    name: str, n: int, root: int, rank: int
) -> list[tuple[tuple[int, ...], int]] | None:
    """The (ranks, cell) that make up what ``rank`` receives, by the table's ``result``: run over
    the cells' numbers, then over a bit for each rank, which all its cells share. Nothing of n x n
    is made."""
    row = COLLECTIVES[name]
    numbers: Array = np.arange(row.counts(n, 1)[0])
    numbers = numbers.reshape(-1, 1) if row.uneven else numbers
    bits = [np.broadcast_to(np.array(1 << source, object), numbers.shape) for source in range(n)]

    def join(a: Array, b: Array) -> Array:
        return np.broadcast_to(a[:1] | b[:1], a.shape)

    cells = row.result([numbers] * n, np.maximum, max(root, 0))[rank]
    senders = row.result(bits, join, max(root, 0))[rank]
    if cells is None:
        return None
    return [
        (tuple(source for source in range(n) if of_cell >> source & 1), int(cell))
        for of_cell, cell in zip(senders, cells, strict=True)
    ]


def send_layout(case: Case, rank: int) -> list[Piece]:
    """The contents of ``rank``'s send buffer, from ``Tables.send(rank)``."""
    length = int(_cell_lengths(case)[rank].sum())
    return [Piece(0, length, 0 if case.row.reduces else rank, 0, ())] if length else []


def recv_layout(case: Case, rank: int) -> list[Piece] | None:
    """The contents that ``rank``'s receive buffer must have, from ``Tables.expected(piece.ranks)``;
    None if undefined."""
    sizes = _cell_lengths(case)
    arrivals = _list_arrivals(case.collective, case.n, case.root, rank)
    if arrivals is None:
        return None
    pieces, start = [], 0
    for (first, *others), cell in arrivals:
        length, offset = int(sizes[first, cell]), int(sizes[first, :cell].sum())
        stream, ranks = (0, (first, *others)) if case.row.reduces else (first, ())
        if length:
            pieces.append(Piece(start, length, stream, offset, ranks))
        start += length
    return pieces
