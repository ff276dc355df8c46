"""Floating-point formats of 16 bits for gradients and optimizer state, exactly encoded and decoded.

DALL-E (arXiv 2102.12092) keeps error buffers, PowerSGD's factors and Adam's mean in 1-6-9 (sign,
exponent, significand) and Adam's variance in 0-6-10. It does not say bias and special values: here
they follow IEEE 754's rules, with a bias of 31. It does say that the largest 1-6-9 is slightly less
than 16, which with infinities is a bias of 59: ``1-6-9:59``. ``half`` and ``bfloat16`` are the same
rules at sizes that processors have.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class Format(NamedTuple):
    """A sign bit or none, exponent bits, and bits of the significand without the hidden one.
    Exponent 0 is zero and subnormals, all ones are infinity and NaN."""

    name: str
    signed: bool
    exponent: int
    significand: int
    bias: int

    @property
    def infinity(self) -> int:
        """The code of infinity."""
        return ((1 << self.exponent) - 1) << self.significand

    @property
    def nan(self) -> int:
        """The code that any NaN is encoded as, a quiet one."""
        return self.infinity | 1 << (self.significand - 1)

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return float(self.decode([self.infinity - 1])[0])

    @property
    def smallest(self) -> float:
        """The smallest subnormal."""
        return float(self.decode([1])[0])

    def encode(self, values: Any) -> np.ndarray:
        """Codes (uint16) of numbers, rounded to nearest, ties to even, to infinity where they
        overflow. Raises ValueError for a negative number where there is no sign."""
        import numpy as np

        wide = np.asarray(values)
        narrow = wide.dtype == np.float32
        wide = wide if narrow else wide.astype(np.float64)
        word: Any = np.uint32 if narrow else np.uint64
        digits, bias = (23, 127) if narrow else (52, 1023)
        if not self.signed and (wide < 0).any():
            raise ValueError(f"{self.name} has no sign, and there is {wide[wide < 0].flat[0]:g}")
        size, least = np.asarray(np.abs(wide)), 1 - self.bias
        dropped = digits - self.significand
        bits: np.ndarray[Any, np.dtype[np.unsignedinteger]] = size.view(word)
        even = (bits >> dropped) & 1
        normal = (bits + even + ((1 << (dropped - 1)) - 1)) >> dropped  # a carry to the exponent
        normal -= np.asarray((bias - self.bias) << self.significand, word)
        unit = np.asarray(2.0 ** (least + dropped), wide.dtype)  # its last bit is a subnormal's
        subnormal = np.asarray(size + unit).view(word) - unit.view(word)
        codes = np.minimum(np.where(size < 2.0**least, subnormal, normal), self.infinity)
        codes = np.where(np.isnan(wide), self.nan, codes).astype(np.uint16)
        negative = np.signbit(wide) & self.signed & ~np.isnan(wide)
        return np.asarray(codes | negative.astype(np.uint16) << np.uint16(15))

    def decode(self, codes: Any) -> np.ndarray:
        """Numbers (float32), which hold every code exactly."""
        import numpy as np

        return np.asarray(_decode_all(self)[np.asarray(codes, np.uint16)])

    def reduce(self, rows: Any) -> np.ndarray:
        """The codes of the sum of rows of codes, added in float32 in their order."""
        import numpy as np

        total = np.zeros(np.shape(rows)[1:], np.float32)
        with np.errstate(invalid="ignore"):  # infinity less infinity
            for row in rows:
                total = total + self.decode(row)
        return self.encode(total)


@functools.lru_cache(maxsize=8)
def _decode_all(form: Format) -> np.ndarray:
    """The value of each of the 65,536 codes."""
    import numpy as np

    codes = np.arange(1 << 16)
    bits = codes & 0x7FFF if form.signed else codes
    power = bits >> form.significand
    fraction = bits & ((1 << form.significand) - 1)
    significand = np.where(power > 0, fraction + (1 << form.significand), fraction)
    with np.errstate(over="ignore"):
        size = np.ldexp(
            significand.astype(np.float64), np.maximum(power, 1) - form.bias - form.significand
        )
    size[bits >= form.infinity] = np.nan
    size[bits == form.infinity] = np.inf
    values: np.ndarray = np.where(form.signed & (codes > 0x7FFF), -size, size).astype(np.float32)
    values.flags.writeable = False
    return values


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("1-6-9", True, 6, 9, 31),
        Format("0-6-10", False, 6, 10, 31),
        Format("1-6-9:59", True, 6, 9, 59),
        Format("half", True, 5, 10, 15),
        Format("bfloat16", True, 8, 7, 127),
    )
}
