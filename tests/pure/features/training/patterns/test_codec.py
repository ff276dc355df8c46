"""16-bit formats: every code, ties, order, limits and specials, against exact rationals, and the
same code at sizes that numpy and torch know."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.features.training.patterns.codec import FORMATS, Format

ALL = np.arange(1 << 16, dtype=np.uint16)
ODD = [FORMATS["1-6-9"], FORMATS["0-6-10"], FORMATS["1-6-9:59"]]
EVERY = list(FORMATS.values())


def name(form: Format) -> str:
    return form.name


def rational(form: Format, code: int) -> Fraction:
    """What a finite code means, by the definition of the format, for codes without a sign."""
    exponent, fraction = divmod(code, 1 << form.significand)
    hidden = (1 << form.significand) if exponent else 0
    return Fraction(hidden + fraction) * Fraction(2) ** (
        max(exponent, 1) - form.bias - form.significand
    )


def finite(form: Format) -> list[int]:
    """The codes of all finite numbers from 0 up."""
    return list(range(form.infinity))


@pytest.mark.parametrize("form", EVERY, ids=name)
def test_all_codes_survive_decoding_and_encoding(form: Format) -> None:
    values = form.decode(ALL)
    again = form.encode(values)
    nan = np.isnan(values)
    assert (again[~nan] == ALL[~nan]).all()
    assert (again[nan] == form.nan).all()
    assert nan.sum() == ((1 << form.significand) - 1) * (1 + form.signed)


@pytest.mark.parametrize("form", ODD, ids=name)
def test_every_code_is_the_exact_rational(form: Format) -> None:
    values = form.decode(finite(form)).tolist()
    assert [Fraction(v) for v in values] == [rational(form, code) for code in finite(form)]
    if form.signed:
        mirrored = form.decode(np.array(finite(form)) + (1 << 15)).tolist()
        assert mirrored == [-v for v in values]


@pytest.mark.parametrize("form", EVERY, ids=name)
def test_values_rise_with_codes(form: Format) -> None:
    assert (np.diff(form.decode(range(form.infinity + 1)).astype(np.float64)) > 0).all()


@pytest.mark.parametrize("width", [np.float32, np.float64])
@pytest.mark.parametrize("form", EVERY, ids=name)
def test_halves_go_to_the_even_code_and_their_neighbours_to_the_nearer(
    form: Format, width: Any
) -> None:
    values = form.decode(finite(form)).astype(np.float64)
    halves = ((values[:-1] + values[1:]) / 2).astype(width)  # exact: one bit more
    below, above = (np.nextafter(halves, width(to)) for to in (-np.inf, np.inf))
    low = np.arange(len(halves))
    assert (form.encode(halves) == low + low % 2).all()
    assert (form.encode(below) == low).all()
    assert (form.encode(above) == low + 1).all()


@pytest.mark.parametrize(
    ("form", "largest", "normal", "smallest"),
    [
        ("1-6-9", (2 - 2**-9) * 2**31, 2**-30, 2**-39),
        ("0-6-10", (2 - 2**-10) * 2**31, 2**-30, 2**-40),
        ("1-6-9:59", 15.984375, 2**-58, 2**-67),
        ("half", 65504, 2**-14, 2**-24),
        ("bfloat16", 3.3895313892515355e38, 2**-126, 2**-133),
    ],
)
def test_the_largest_and_the_smallest(
    form: str, largest: float, normal: float, smallest: float
) -> None:
    row = FORMATS[form]
    assert row.largest == largest
    assert row.decode([1 << row.significand])[0] == normal
    assert row.smallest == smallest


def test_the_largest_are_these_numbers() -> None:
    assert FORMATS["1-6-9"].largest == 4_290_772_992
    assert FORMATS["0-6-10"].largest == 4_292_870_144


@pytest.mark.parametrize("form", EVERY, ids=name)
def test_beyond_the_largest_half_a_unit_is_infinity(form: Format) -> None:
    largest = form.largest
    half = largest + (largest - float(form.decode([form.infinity - 2])[0])) / 2
    beyond = [np.nextafter(half, 0), half, 1e300, np.inf]
    assert form.encode(beyond).tolist() == [form.infinity - 1, *[form.infinity] * 3]
    assert form.encode(np.array([half, np.inf], np.float32)).tolist() == [form.infinity] * 2


@pytest.mark.parametrize("form", EVERY, ids=name)
def test_what_is_below_half_the_smallest_is_zero(form: Format) -> None:
    half = form.smallest / 2
    assert form.encode([half, np.nextafter(half, 1), 1e-300, 0.0]).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("bad", [-1.0, -1e-300, -np.inf])
def test_a_negative_number_has_no_code_without_a_sign(bad: float) -> None:
    with pytest.raises(ValueError, match="0-6-10 has no sign, and there is -"):
        FORMATS["0-6-10"].encode([1.0, bad])


def test_minus_zero_and_nan_have_one_without_a_sign() -> None:
    form = FORMATS["0-6-10"]
    assert form.encode([-0.0, np.nan, -np.nan]).tolist() == [0, form.nan, form.nan]
    assert FORMATS["1-6-9"].encode([-0.0]).tolist() == [0x8000]


def test_bits_are_where_they_are_said_to_be() -> None:
    assert FORMATS["1-6-9"].encode([1.0, -1.5, 2.0]).tolist() == [31 << 9, 0xBF00, 32 << 9]
    assert FORMATS["0-6-10"].encode([1.0, 1.5, 4.0]).tolist() == [
        31 << 10,
        31 << 10 | 512,
        33 << 10,
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=64), min_size=1, max_size=50))
def test_half_is_numpys_cast(values: list[float]) -> None:
    form, wide = FORMATS["half"], np.array(values)
    with np.errstate(over="ignore"):
        cast = wide.astype(np.float16)
    number = ~np.isnan(wide)
    assert (form.encode(wide)[number] == cast.view(np.uint16)[number]).all()
    assert np.isnan(form.decode(form.encode(wide))[~number]).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_bfloat16_is_torchs_cast(values: list[float]) -> None:
    wide = np.array(values, np.float32)
    cast = torch.from_numpy(wide).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert (FORMATS["bfloat16"].encode(wide) == cast).all()


def test_decoding_is_numpys_and_torchs() -> None:
    half, wide = FORMATS["half"], torch.from_numpy(ALL.view(np.int16)).view(torch.bfloat16).float()
    assert np.array_equal(half.decode(ALL), ALL.view(np.float16).astype(np.float32), equal_nan=True)
    assert np.array_equal(FORMATS["bfloat16"].decode(ALL), wide.numpy(), equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ODD), st.floats(min_value=0, max_value=1e12, width=64))
def test_any_number_goes_to_the_nearest_code(form: Format, value: float) -> None:
    code = int(form.encode([value])[0])
    if code == form.infinity:
        assert Fraction(value) > rational(form, form.infinity - 1)
        return
    error = abs(Fraction(value) - rational(form, code))
    for near in (code - 1, code + 1):
        if 0 <= near < form.infinity:
            apart = abs(Fraction(value) - rational(form, near))
            assert error < apart or (error == apart and code % 2 == 0)


def test_a_sum_is_rounded_once_from_float() -> None:
    form = FORMATS["1-6-9"]
    rows = form.encode([[1.0, 3.0, 1e9], [2.0**-10, 2.0**-10, 4e9]])
    rounded = form.decode(form.reduce([rows[0], rows[1], rows[1]]))
    assert rounded.tolist() == [1 + 2**-9, 3.0, np.inf]  # 3 + 2**-9 is a tie, to the even 3


def test_infinities_that_cancel_are_no_number() -> None:
    form = FORMATS["1-6-9"]
    assert form.reduce([form.encode([np.inf]), form.encode([-np.inf])]).tolist() == [form.nan]


def test_shapes_are_kept() -> None:
    for form, shape in itertools.product(EVERY, [(), (0,), (2, 3)]):
        for width in (np.float32, np.float64, np.int64):
            codes = form.encode(np.ones(shape, width))
            assert (codes.shape, codes.dtype, form.decode(codes).shape) == (shape, np.uint16, shape)
