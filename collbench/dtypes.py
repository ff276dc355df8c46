"""Element types: nccl-tests' names, the sizes behind them, and what they can represent exactly."""

from __future__ import annotations

from typing import Literal, NamedTuple

from collbench.errors import UsageError


class DType(NamedTuple):
    """One element type.

    ``precision`` is the number of significand bits including the hidden one (for integers the value bits),
    ``emin`` and ``emax`` the exponents of the smallest and largest normal number ``1.0 * 2**e``.
    """

    name: str
    torch: str
    size: int
    kind: Literal["int", "uint", "float"]
    precision: int
    emin: int = 0
    emax: int = 0
    aliases: tuple[str, ...] = ()


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("int8", "int8", 1, "int", 7),
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


def dtype(name: str) -> DType:
    """The type called ``name`` (nccl-tests' spelling, torch's, or a common short form)."""
    for d in DTYPES.values():
        if name in (d.name, *d.aliases):
            return d
    raise UsageError(f"unknown datatype '{name}'", f"one of {', '.join(DTYPES)}, or all")
