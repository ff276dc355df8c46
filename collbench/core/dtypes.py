"""Reductions, and element types: nccl-tests' names, the sizes behind them, and what they can
represent exactly."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from collbench.core.errors import UsageError
from collbench.core.text import suggest_name


class Op(NamedTuple):
    """A reduction: ``function`` is its name in numpy and torch, ``combine`` folds two values with
    it.

    Bitwise ones are ``integers_only``; ``idempotent``: op(x, x) = x; ``divides``: the total is
    divided by n at the end.
    """

    name: str
    function: str
    integers_only: bool = False
    idempotent: bool = False
    divides: bool = False

    def combine(self, a: Any, b: Any) -> Any:
        """Both operands reduced, element by element; numpy arrays or numbers."""
        import numpy as np

        return getattr(np, self.function)(a, b)


# avg folds like sum and divides at the end; premul_sum folds inputs that were scaled by
# premul_factor first.
OPS: dict[str, Op] = {
    o.name: o
    for o in (
        Op("sum", "add"),
        Op("prod", "multiply"),
        Op("min", "minimum", idempotent=True),
        Op("max", "maximum", idempotent=True),
        Op("avg", "add", divides=True),
        Op("band", "bitwise_and", integers_only=True, idempotent=True),
        Op("bor", "bitwise_or", integers_only=True, idempotent=True),
        Op("bxor", "bitwise_xor", integers_only=True),
        Op("premul_sum", "add"),
    )
}


def premul_factor(rank: int) -> int:
    """The factor by which ``premul_sum`` multiplies a rank's input: 1 on even ranks, 2 on odd ones,
    as nccl-tests' mulsum does."""
    return 1 + rank % 2


def find_reduction(name: str) -> str:
    """The reduction called ``name``, by its proper name."""
    name = {"mulsum": "premul_sum"}.get(name, name)
    if name != "none" and name not in OPS:
        raise UsageError(f"unknown reduction '{name}'", f"one of {', '.join(OPS)}")
    return name


class DType(NamedTuple):
    """One element type.

    ``precision`` is the number of significand bits including the hidden one (for integers the value
    bits), ``emin`` and ``emax`` the exponents of the smallest and largest normal number ``1.0 *
    2**e``.
    """

    name: str
    torch: str
    size: int
    kind: Literal["int", "uint", "float"]
    precision: int
    emin: int = 0
    emax: int = 0
    aliases: tuple[str, ...] = ()

    def round_inverse(self, n: int) -> float:
        """1/n as the nearest number of this type of float."""
        exponent = max(math.frexp(1 / n)[1] - 1, self.emin)
        unit = math.ldexp(1.0, exponent - self.precision + 1)
        return round(1 / n / unit) * unit

    def can_hold_inverse(self, n: int) -> bool:
        """Whether 1/n rounds with the relative error of a normal number, so not to a coarse
        subnormal or 0."""
        return abs(self.round_inverse(n) * n - 1) <= 2.0**-self.precision

    def refuse_inverse(self, n: int) -> str:
        """Why a library's avg that multiplies by 1/n is of no use in this type; else an empty
        string."""
        if self.kind != "float" or self.can_hold_inverse(n):
            return ""
        factor = f"{self.round_inverse(n):.3g} in {self.name}"
        return f"avg multiplies by 1/{n}, which is {factor}: use sum, or a wider datatype"


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("int8", "int8", 1, "int", 7, aliases=("char",)),
        DType("uint8", "uint8", 1, "uint", 8),
        DType("int32", "int32", 4, "int", 31, aliases=("int",)),
        DType("uint32", "uint32", 4, "uint", 32),
        DType("int64", "int64", 8, "int", 63, aliases=("long",)),
        DType("uint64", "uint64", 8, "uint", 64),
        DType("half", "float16", 2, "float", 11, -14, 15, ("float16", "fp16")),
        DType("float", "float32", 4, "float", 24, -126, 127, ("float32", "fp32")),
        DType("double", "float64", 8, "float", 53, -1022, 1023, ("float64", "fp64")),
        DType("bfloat16", "bfloat16", 2, "float", 8, -126, 127, ("bf16",)),
        DType("f8e4m3", "float8_e4m3fn", 1, "float", 4, -6, 8, ("fp8_e4m3", "float8_e4m3fn")),
        DType("f8e5m2", "float8_e5m2", 1, "float", 3, -14, 15, ("fp8_e5m2", "float8_e5m2")),
    )
}


def find_dtype(name: str) -> DType:
    """The type called ``name`` (nccl-tests' spelling, torch's, or a common short form)."""
    for d in DTYPES.values():
        if name.replace("-", "_") in (d.name, *d.aliases):
            return d
    hint = suggest_name(name, DTYPES) or f"one of {', '.join(DTYPES)}"
    raise UsageError(f"unknown datatype '{name}'", hint)
