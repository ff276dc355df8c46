"""Arithmetic of reference algorithms on one rank: combining, copying and finishing spans of a
buffer.

numpy where it has the type, since its calls cost a third of torch's; torch for half, bfloat16 and
on devices; 8-bit floats are combined as float32 and rounded after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from collbench.core.dtypes import OPS, DType

Span = Any  # a numpy array or a torch tensor, as Arithmetic.view made it

Operation = tuple[
    Callable[..., object], tuple[Any, ...]
]  # a function and its arguments, to be called in the clock

_IN_NUMPY = {"float": "float32", "double": "float64"}
_AS_SIGNED = {"uint32": torch.int32, "uint64": torch.int64}  # which torch lacks on GPUs
_WRAPPING = ("add", "multiply", "bitwise_and", "bitwise_or", "bitwise_xor")  # same bits, signed


class Arithmetic(NamedTuple):
    """``view(bytes)`` makes a span of a 1-D uint8 tensor; ``combine(a, b, out)``, ``copy(out, a)``
    and ``divide(span, n)`` work on equally long spans, and ``out`` may be ``a`` or ``b``."""

    view: Callable[[torch.Tensor], Span]
    combine: Callable[[Span, Span, Span], object]
    copy: Callable[[Span, Span], object]
    divide: Callable[[Span, int], object]


def find_arithmetic(op: str, dtype: DType, device: torch.device) -> Arithmetic:
    """The arithmetic of one reduction and datatype on one kind of device. Raises
    NotImplementedError, on all ranks alike, for what torch does not have there."""
    function = OPS[op].function if op in OPS else "add"  # of "none", nothing is combined
    in_numpy, in_torch = getattr(np, function), getattr(torch, function)
    kind = getattr(torch, dtype.torch)
    if device.type == "cpu" and (dtype.kind != "float" or dtype.name in _IN_NUMPY):
        code = np.dtype(_IN_NUMPY.get(dtype.name, dtype.name))
        divide = _true_quotient if dtype.kind == "float" else _whole_quotient
        combine = partial(_apply_into, in_numpy)
        return Arithmetic(lambda raw: raw.numpy().view(code), combine, np.copyto, divide)
    if device.type != "cpu" and dtype.name in _AS_SIGNED:
        if function not in _WRAPPING or (op in OPS and OPS[op].divides):
            raise NotImplementedError(f"torch has no {op} of {dtype.name} on GPUs")
        kind = _AS_SIGNED[dtype.name]
    if dtype.size > 1 or dtype.kind != "float":
        return Arithmetic(
            lambda raw: raw.view(kind), partial(_apply_into, in_torch), _copy_into, _torch_quotient
        )
    return Arithmetic(
        lambda raw: raw.view(kind),
        partial(_in_float32, in_torch),
        _copy_into,
        lambda span, n: span.copy_(span.float() / n),
    )


def fold_values(
    how: Arithmetic, out: torch.Tensor, values: Sequence[torch.Tensor]
) -> Iterator[Operation]:
    """Operations that put the combination of ``values`` into ``out``, which may be the first of
    them; all are bytes."""
    if not out.numel():
        return
    target = how.view(out)
    first, *others = (how.view(value) for value in values)
    if not others and out.data_ptr() != values[0].data_ptr():
        yield how.copy, (target, first)
    for other in others:
        yield how.combine, (first, other, target)
        first = target


def finish_mean(how: Arithmetic, op: str, out: torch.Tensor, n: int) -> Iterator[Operation]:
    """Operations that turn a finished sum into what ``op`` asks for."""
    if op in OPS and OPS[op].divides and out.numel():
        yield how.divide, (how.view(out), n)


def _true_quotient(span: Span, n: int) -> None:
    np.true_divide(span, span.dtype.type(n), span)


def _whole_quotient(span: Span, n: int) -> None:
    if n > np.iinfo(span.dtype).max:
        span.fill(0)
    else:
        np.floor_divide(span, span.dtype.type(n), span)


def _torch_quotient(span: torch.Tensor, n: int) -> None:
    if span.dtype in (torch.float32, torch.float64):
        # by a number, GPUs multiply with its reciprocal, which may be off by a bit
        span.div_(_make_divisor(n, span.dtype, span.device))
    elif span.is_floating_point():
        span.div_(n)
    elif n > torch.iinfo(span.dtype).max:
        span.zero_()
    else:
        span.div_(n, rounding_mode="floor")


@cache  # a few numbers of a process; a GPU's would be made anew in each call
def _make_divisor(n: int, kind: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full((), n, dtype=kind, device=device)


def _apply_into(function: Callable[..., Any], a: Span, b: Span, out: Span) -> None:
    function(a, b, out=out)


def _in_float32(function: Callable[..., Any], a: Span, b: Span, out: Span) -> None:
    out.copy_(function(a.float(), b.float()))


def _copy_into(out: Span, a: Span) -> None:
    out.copy_(a)
