"""The payload's promises: exact in every order, every rank and every index felt, layouts as the
table says."""

from __future__ import annotations

import functools
import itertools
import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario_lists import list_scenarios

from collbench.core import splits
from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS, DType, premul_factor
from collbench.run.rank import payload
from collbench.run.rank.payload import WINDOW, Piece, T, recv_layout, send_layout
from collbench.suite.case import Case

FLOATS = [d for d in DTYPES.values() if d.kind == "float"]
PAIRS = [
    (d.name, o.name)
    for d in DTYPES.values()
    for o in OPS.values()
    if not (o.integers_only and d.kind == "float")
]
MANY = [
    (d, o)
    for d in ("f8e5m2", "f8e4m3", "bfloat16", "int8", "uint8")
    for o in ("sum", "avg", "prod", "max")
]


def case_of(
    name: str,
    n: int,
    dtype: str = "int32",
    op: str = "sum",
    count: int = 3,
    root: int = 0,
    **more: object,
) -> Case:
    row = COLLECTIVES[name]
    nbytes = count * DTYPES[dtype].size * (n if row.total else 1)
    spread = {"splits": "zipf:1"} if name == "all_to_allv" else {}
    where = root if row.rooted else -1
    return Case(
        collective=name,
        backend="gloo",
        n=n,
        nbytes=nbytes,
        dtype=dtype,
        op=op if row.reduces else "none",
        root=where,
        **{**spread, **more},
    )


def tables_of(dtype: str, op: str, n: int, seed: int = 7) -> payload.Tables:
    return payload.make_tables(case_of("all_reduce", n, dtype, op), seed)


def numbers(bits: np.ndarray, d: DType) -> np.ndarray:
    """What the bit patterns mean, by torch's account for floats; integers as Python's, which never
    overflow."""
    if d.kind != "float":
        return bits.view(d.name).astype(object)
    signed = torch.from_numpy(bits.view(f"i{d.size}").copy())
    return signed.view(getattr(torch, d.torch)).to(torch.float64).numpy()


def rounded(values: np.ndarray, d: DType) -> np.ndarray:
    return torch.from_numpy(values).to(getattr(torch, d.torch)).to(torch.float64).numpy()


def step(op: str, a: np.ndarray, b: np.ndarray, d: DType) -> np.ndarray:
    """One combine as the type itself would do it; fails if that is not exact (or, for unsigned, not
    modulo 2**bits)."""
    if d.kind == "float":
        with np.errstate(all="raise"):
            result = OPS[op].combine(a, b)
        if (
            OPS[op].combine(1, 1) == 2
        ):  # a sum: nothing was lost in float64 either (Knuth's two-sum)
            back = result - a
            assert not ((a - (result - back)) + (b - back)).any()
        assert (rounded(result, d) == result).all()
        assert ((np.abs(result) >= 2.0**d.emin) | (result == 0)).all(), "a denormal partial result"
        return result
    result = OPS[op].combine(a, b)
    if d.kind == "uint":
        return result % (1 << d.size * 8)
    assert ((result >= -(1 << d.precision)) & (result < 1 << d.precision)).all(), (
        "a signed integer overflows"
    )
    return result


def trees(op: str, parts: list[np.ndarray], d: DType, rng: np.random.Generator) -> np.ndarray:
    """Folds in a random order along a random tree."""
    parts = list(parts)
    while len(parts) > 1:
        a = parts.pop(int(rng.integers(len(parts))))
        b = parts.pop(int(rng.integers(len(parts))))
        parts.append(step(op, a, b, d))
    return parts[0]


def finished(op: str, total: np.ndarray, n: int, d: DType) -> np.ndarray:
    if op != "avg":
        return total
    if d.kind != "float":
        return total // n
    wide = rounded(total / n, d)
    if d.size < 4:  # dividing in float32 must come to the same
        single = (
            (torch.from_numpy(total).float() / n)
            .to(getattr(torch, d.torch))
            .to(torch.float64)
            .numpy()
        )
        assert (single == wide).all()
    return wide


def prove(dtype: str, op: str, n: int, some: int) -> None:
    d, tables, rng = DTYPES[dtype], tables_of(dtype, op, n), np.random.default_rng(n)
    tables = tables._replace(inputs=tables.inputs[:, rng.choice(T, some, replace=False)])
    parts = [numbers(tables.send(rank), d) for rank in range(n)]
    if op == "premul_sum":
        parts = [
            step("sum", part, part, d) if premul_factor(rank) == 2 else part
            for rank, part in enumerate(parts)
        ]
    expected = numbers(tables.expected(tuple(range(n))), d)
    orders = [
        functools.reduce(lambda a, b: step(op, a, b, d), parts),
        *(trees(op, parts, d, rng) for _ in range(2)),
    ]
    for total in orders:
        assert (finished(op, total, n, d) == expected).all()
    if d.kind == "float":
        assert expected.all() and np.isfinite(expected).all()
        assert (np.abs(expected) >= 2.0**d.emin).all(), "a denormal result"
    elif d.kind == "int" and op in ("sum", "premul_sum", "prod"):
        assert (expected != 0).all()


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_every_order_gives_the_expected_bits(dtype: str, op: str) -> None:
    for n in (1, 2, 3, 5, 17, *((64,) if DTYPES[dtype].size == 1 else ())):  # more than it adds
        prove(dtype, op, n, 512 if DTYPES[dtype].kind == "float" and n < 64 else 64)


@pytest.mark.parametrize(("dtype", "op"), MANY)
def test_every_order_gives_the_expected_bits_on_many_ranks(dtype: str, op: str) -> None:
    prove(dtype, op, 300, 64)


@pytest.mark.parametrize("op", ["sum", "prod", "premul_sum", "avg"])
@pytest.mark.parametrize("d", FLOATS, ids=lambda d: d.name)
def test_scan_prefixes_are_exact(d: DType, op: str) -> None:
    n = 6
    tables = tables_of(d.name, op, n)
    for ranks in (tuple(range(k)) for k in range(1, n + 1)):
        parts = [
            numbers(tables.send(r), d) * (premul_factor(r) if op == "premul_sum" else 1)
            for r in ranks
        ]
        total = functools.reduce(lambda a, b: step(op, a, b, d), parts)
        assert (numbers(tables.expected(ranks), d) == finished(op, total, n, d)).all()


@pytest.mark.parametrize("n", [3, 5, 7, 12, 65, 100, 127, 160, 256, 300])
@pytest.mark.parametrize("d", FLOATS, ids=lambda d: d.name)
def test_averages_are_nearest_even_and_premultiplying_stays_within_two_units(
    d: DType, n: int
) -> None:
    tables = tables_of(d.name, "avg", n)
    tables = tables._replace(inputs=tables.inputs[:, :256])
    parts = [numbers(tables.send(rank), d) for rank in range(n)]
    expected = tables.expected(tuple(range(n)))
    for t in range(0, 256, 8):
        exact = sum(Fraction(float(part[t])) for part in parts) / n
        below, here, above = (
            Fraction(float(payload.decode_bits(int(expected[t]) + k, d))) for k in (-1, 0, 1)
        )
        miss = abs(exact - here)
        assert miss <= min(abs(exact - below), abs(exact - above))
        assert miss < min(abs(exact - below), abs(exact - above)) or expected[t] % 2 == 0
    assert (
        payload.find_tolerance("avg", d, n, False) == 0 == payload.find_tolerance("avg", d, 8, True)
    )
    inverse = rounded(np.array([1 / n]), d)
    assert inverse[0] == d.round_inverse(n)
    if not d.can_hold_inverse(n):
        return  # refused where it is multiplied by
    scaled = functools.reduce(
        lambda a, b: rounded(a + b, d), [rounded(part * inverse, d) for part in parts]
    )
    off = np.abs(payload.encode_values(scaled, d).astype(np.int64) - expected.astype(np.int64))
    assert off.max() <= payload.find_tolerance("avg", d, n, True)


def test_tolerance_is_for_premultiplied_float_averages_only() -> None:
    d = DTYPES["half"]
    assert payload.find_tolerance("avg", d, 3, True) == 2
    assert not any(payload.find_tolerance(op, d, 3, True) for op in OPS if op != "avg")
    assert payload.find_tolerance("avg", DTYPES["int32"], 3, True) == 0


def shares_felt(tables: payload.Tables, n: int, rank: int) -> list[float]:
    """Share of scenarios whose result changes when rank is dropped, and when it plays its neighbour
    scenario."""
    everyone = tuple(range(n))
    expected = tables.expected(everyone)
    inputs = tables.inputs.copy()
    inputs[rank] = np.roll(inputs[rank], 1)
    with np.errstate(all="ignore"):  # a rank in the wrong scenario, or twice, may overflow
        confused = tables._replace(inputs=inputs).expected(everyone)
        dropped = tables.expected(tuple(r for r in everyone if r != rank))
        felt = [float((data != expected).mean()) for data in (confused, dropped)]
        if not (OPS[tables.op].idempotent or tables.op == "avg"):
            doubled = tables.expected((*everyone, rank))
            felt.append(float((doubled != expected).mean()))
    return felt


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_every_rank_is_felt(dtype: str, op: str, n: int) -> None:
    tables = tables_of(dtype, op, n)
    for rank in range(n):
        assert min(shares_felt(tables, n, rank)) > 0.3 / n


@pytest.mark.parametrize(
    ("dtype", "op"), [(d, o) for d, o in MANY if (d, o) not in {("int8", "avg"), ("uint8", "avg")}]
)
def test_every_rank_is_felt_among_many(dtype: str, op: str) -> None:
    n = 300
    tables = tables_of(dtype, op, n)
    for rank in (0, 77, n - 1):
        assert min(shares_felt(tables, n, rank)) > 0.3 / n


@pytest.mark.parametrize(
    ("dtype", "op", "n"),
    [(d, o, n) for d, o in PAIRS for n in (1, 3, 64) if n < 64 or DTYPES[d].size == 1],
)
def test_results_spread_over_many_values(dtype: str, op: str, n: int) -> None:
    """How often two random elements agree bounds what a misplaced block could hide."""
    share = np.unique(tables_of(dtype, op, n).expected(tuple(range(n))), return_counts=True)[1] / T
    assert (share**2).sum() < (0.6 if (DTYPES[dtype].size, op, n) == (1, "avg", 64) else 0.34)


@pytest.mark.parametrize("d", DTYPES.values(), ids=lambda d: d.name)
def test_copied_bits_are_spread_and_ordinary(d: DType) -> None:
    bits = payload.make_tables(case_of("all_gather", 3, d.name), 1).expected(())
    assert (
        bits.dtype == np.dtype(f"u{d.size}")
        and len(np.unique(bits)) > min(200, T - 100) * 0.9 + (d.size > 1) * 1000
    )
    if d.kind == "float":
        values = numbers(bits, d)
        assert (
            np.isfinite(values).all()
            and (np.abs(values) >= 2.0**d.emin).all()
            and (values < 0).any()
        )


def test_tables_depend_on_the_seed_and_only_on_it() -> None:
    first = tables_of("float", "sum", 5, 1).inputs.copy()
    payload._make_tables.cache_clear()
    assert (tables_of("float", "sum", 5, 1).inputs == first).all()
    assert (tables_of("float", "sum", 5, 2).inputs != first).mean() > 0.9


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_drawing_takes_no_more_memory_than_is_counted(dtype: str, op: str) -> None:
    case = case_of("all_reduce", 48, dtype, op)
    payload._make_tables.cache_clear()
    tracemalloc.start()
    try:
        tables = payload.make_tables(case, 1)
        tables.expected(tuple(range(case.n)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < payload.count_table_bytes(case)


def test_tables_are_the_same_on_every_host() -> None:
    """Golden values: a change of numpy, or of this module, that ranks of two machines could
    disagree on."""
    assert list_scenarios(1, 0, 0, 0, 6).tolist() == GOLDEN_SCENARIOS
    assert tables_of("float", "sum", 3, 1).expected((0, 1, 2))[:4].tolist() == GOLDEN_SUMS


GOLDEN_SCENARIOS = [272, 1586, 2272, 2200, 2696, 1222]
GOLDEN_SUMS = [1443580528, 2792173976, 3289581908, 924748753]


# --- the places


@pytest.mark.parametrize(
    "shift", [*(1 << k for k in range(20)), 3, 1000, 12345, WINDOW - 1, WINDOW + 1, 3 * WINDOW]
)
def test_shifted_data_is_noticed(shift: int) -> None:
    size = 1 << 17
    here, there = list_scenarios(1, 0, 0, 0, size), list_scenarios(1, 0, 0, shift, size)
    assert (here == there).mean() < 2 / T


@pytest.mark.parametrize("other", [(2, 0, 0), (1, 1, 0), (1, 0, 1), (0, 1, 0), (1, 0, 511)])
def test_seed_slot_and_stream_all_matter(other: tuple[int, int, int]) -> None:
    assert (
        list_scenarios(1, 0, 0, 0, 1 << 17) == list_scenarios(*other, 0, 1 << 17)
    ).mean() < 2 / T


def test_no_window_slot_or_stream_holds_what_another_does() -> None:
    def count(*sizes: int) -> int:
        slot, stream, window = np.indices(sizes, np.uint64)
        return len(np.unique(payload.find_place(7, slot, stream, window)))

    for sizes in ((64, 64, 31), (1, 1024, 64), (WINDOW, 1, 1), (1, 1, WINDOW)):
        assert count(*sizes) == math.prod(sizes)


def test_neighbours_are_no_shifted_copies() -> None:
    """One window after another begins anywhere, and so does one slot or stream."""
    for axis in range(3):
        places = [
            payload.find_place(7, *(k if axis == at else 0 for at in range(3))) for k in range(999)
        ]
        steps = [(after - before) % WINDOW for before, after in itertools.pairwise(places)]
        assert len(set(steps)) > 980
        assert 0.4 < sum(step > WINDOW / 2 for step in steps) / len(steps) < 0.6


def test_scenarios_are_evenly_used_and_neighbours_share_no_bit_pattern() -> None:
    played = list_scenarios(5, 1, 2, 0, WINDOW)
    counts = np.bincount(played, minlength=T)
    expected = WINDOW / T
    assert len(counts) == T
    assert (
        abs(((counts - expected) ** 2 / expected).sum() - (T - 1)) < 6 * (2 * T) ** 0.5
    )  # chi-squared
    for distance in (1, 2, 4, 64, 1024):
        flips = played[distance:] ^ played[:-distance]
        for bit in range(12):
            assert abs(float((flips >> bit & 1).mean()) - 0.5) < 0.005


@given(
    st.integers(0, 3 * WINDOW),
    st.integers(0, 5000),
    st.integers(0, 1 << 62),
    st.integers(0, 9),
    st.integers(0, 600),
)
@settings(max_examples=40, deadline=None)
def test_any_slice_is_the_same_as_cut_from_the_whole(
    start: int, length: int, seed: int, slot: int, stream: int
) -> None:
    whole = list_scenarios(seed, slot, stream, max(0, start - 100), length + 200)
    low = start - max(0, start - 100)
    assert (list_scenarios(seed, slot, stream, start, length) == whole[low : low + length]).all()


# --- bits


@pytest.mark.parametrize("d", [d for d in FLOATS if d.size <= 2], ids=lambda d: d.name)
def test_decode_and_encode_every_value_of_narrow_floats_as_torch_does(d: DType) -> None:
    bits = np.arange(1 << d.size * 8).astype(f"u{d.size}")
    mine, theirs = payload.decode_bits(bits, d), numbers(bits, d)
    assert np.array_equal(mine, theirs, equal_nan=True)
    assert (np.signbit(mine) == np.signbit(theirs))[~np.isnan(theirs)].all()
    finite = np.isfinite(theirs)
    assert (payload.encode_values(theirs[finite], d) == bits[finite]).all()


@pytest.mark.parametrize("d", FLOATS, ids=lambda d: d.name)
def test_encode_rounds_to_nearest_even_as_torch_does(d: DType) -> None:
    rng = np.random.default_rng(3)
    largest = float(payload.decode_bits(payload._largest_bits(d), d))
    values = np.ldexp(
        rng.uniform(-1, 1, 50_000), rng.integers(max(d.emin - d.precision, -1000), d.emax, 50_000)
    )
    halves = payload.decode_bits(rng.integers(0, payload._largest_bits(d), 20_000), d)
    halves = halves / 2 + payload.decode_bits(payload.encode_values(halves, d) + 1, d) / 2  # ties
    # torch goes through float32
    values = values.astype(np.float32).astype(np.float64) if d.size < 8 else values
    for sample in (values, halves[np.abs(halves) < largest]):
        assert (
            payload.decode_bits(payload.encode_values(sample, d), d) == rounded(sample, d)
        ).all()


@pytest.mark.parametrize("name", ["float", "double"])
def test_wide_floats_survive_a_round_trip(name: str) -> None:
    d = DTYPES[name]
    bits = np.frombuffer(np.random.default_rng(1).bytes(50_000 * d.size), f"u{d.size}")
    with np.errstate(all="ignore"):  # infinities and NaNs are among them
        values = bits.view(f"f{d.size}").astype(np.float64)
        assert np.array_equal(payload.decode_bits(bits, d), values, equal_nan=True)
    finite = np.isfinite(values)
    assert (payload.encode_values(values[finite], d) == bits[finite]).all()


def test_integers_beyond_float64_keep_every_bit() -> None:
    for name in ("int64", "uint64"):
        values = np.array([(1 << 62) + 1, 3], name)
        assert payload.encode_values(values, DTYPES[name]).tolist() == [(1 << 62) + 1, 3]


@pytest.mark.parametrize(
    ("bits", "dtype", "text"),
    [
        (0x4060, "bfloat16", "3.5 (0x4060)"),
        (0xFF, "int8", "-1 (0xff)"),
        (0xFF, "uint8", "255 (0xff)"),
        (0x7F, "f8e4m3", "nan (0x7f)"),
        (0x7E, "f8e4m3", "448 (0x7e)"),
        (0xFC, "f8e5m2", "-inf (0xfc)"),
        (0x3DCCCCCD, "float", "0.100000001 (0x3dcccccd)"),
        (0x3FB999999999999A, "double", "0.10000000000000001 (0x3fb999999999999a)"),
        ((1 << 64) - 1, "uint64", "18446744073709551615 (0xffffffffffffffff)"),
        (0, "half", "0 (0x0000)"),
    ],
)
def test_show(bits: int, dtype: str, text: str) -> None:
    assert payload.format_bits(bits, DTYPES[dtype]) == text


# --- layouts


def sent(case: Case, rank: int, reduces: bool) -> np.ndarray:
    """A value that tells offset and rank, and of which sums tell the set of ranks."""
    (whole,) = send_layout(case, rank) or [Piece(0, 0, 0, 0, ())]
    assert whole.start == whole.offset == 0
    assert whole.stream == (0 if reduces or not whole.length else rank)
    return np.arange(whole.length) * 64 + (1 << 40 + rank if reduces else rank << 40)


def described(pieces: list[Piece], length: int, reduces: bool) -> np.ndarray:
    found = np.full(length, -1)
    for piece in pieces:
        base = np.arange(piece.offset, piece.offset + piece.length) * 64
        place = slice(piece.start, piece.start + piece.length)
        assert piece.length > 0 and (found[place] == -1).all()
        assert bool(piece.ranks) == reduces
        if reduces:
            found[place] = base * len(piece.ranks) + sum(1 << 40 + rank for rank in piece.ranks)
        else:
            found[place] = base + (piece.stream << 40)
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_layouts_say_what_the_table_says(name: str, n: int) -> None:
    row = COLLECTIVES[name]
    for root, split in itertools.product(
        range(n) if row.rooted else (0,),
        ("uniform", "spread:1", "zipf:1.5") if name == "all_to_allv" else ("",),
    ):
        case = case_of(name, n, root=root, count=7, splits=split)
        inputs: list = [sent(case, rank, row.reduces) for rank in range(n)]
        if split:
            sizes = splits.split_matrix(split, n, case.nbytes, 4)
            inputs = [
                np.split(whole, np.cumsum(sizes[rank])[:-1]) for rank, whole in enumerate(inputs)
            ]
        for rank, outcome in enumerate(row.result(inputs, np.add, root)):
            pieces = recv_layout(case, rank)
            assert (pieces is None) == (outcome is None)
            if pieces is not None:
                assert described(pieces, len(outcome), row.reduces).tolist() == outcome.tolist()
                assert len(outcome) <= case.counts[1]


def test_worked_examples() -> None:
    def arrives(name: str, rank: int, root: int = 0, n: int = 4) -> list[tuple[int, ...]] | None:
        pieces = recv_layout(case_of(name, n, count=2, root=root), rank)
        return pieces and [tuple(piece) for piece in pieces]

    everyone = (0, 1, 2, 3)
    assert arrives("broadcast", 2) == [(0, 2, 0, 0, ())]
    assert arrives("scatter", 3) == [(0, 2, 0, 6, ())]
    assert arrives("gather", 0) == [
        (0, 2, 0, 0, ()),
        (2, 2, 1, 0, ()),
        (4, 2, 2, 0, ()),
        (6, 2, 3, 0, ()),
    ]
    assert arrives("gather", 1) is None
    assert arrives("all_gather", 1) == arrives("gather", 0)
    assert arrives("reduce", 3, root=3) == [(0, 2, 0, 0, everyone)] == arrives("all_reduce", 1)
    assert arrives("reduce", 0, root=3) is None
    assert arrives("reduce_scatter", 2) == [(0, 2, 0, 4, everyone)]
    assert arrives("all_to_all", 1) == [
        (0, 2, 0, 2, ()),
        (2, 2, 1, 2, ()),
        (4, 2, 2, 2, ()),
        (6, 2, 3, 2, ()),
    ]
    assert arrives("sendrecv", 0) == [(0, 2, 3, 0, ())]
    assert arrives("scan", 1) == [(0, 2, 0, 0, (0, 1))]
    assert arrives("barrier", 1) is None
    assert arrives("all_reduce", 0, n=1) == [(0, 2, 0, 0, (0,))]


@pytest.mark.parametrize("name", sorted(set(COLLECTIVES) - {"all_to_allv"}))
def test_a_layout_takes_no_memory_of_ranks_times_ranks(name: str) -> None:
    n = 512
    case = case_of(name, n)
    payload._list_arrivals.cache_clear()
    tracemalloc.start()
    try:
        recv_layout(case, n - 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < n * n * 8


def test_in_place_buffers_share_the_working_one() -> None:
    assert payload.in_place_offsets(case_of("all_reduce", 4), 2) == (0, 0, 3)
    assert payload.in_place_offsets(case_of("all_gather", 4), 2) == (6, 0, 12)
    assert payload.in_place_offsets(case_of("reduce_scatter", 4), 2) == (0, 6, 12)
    with pytest.raises(KeyError):
        payload.in_place_offsets(case_of("all_to_all", 4), 0)
