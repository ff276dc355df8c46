"""Arithmetic of reference algorithms where torch has none of a type's own."""

from __future__ import annotations

import pytest
import torch

from collbench.core.dtypes import DTYPES
from collbench.run.backends import _reducers
from collbench.run.backends._reducers import find_arithmetic, finish_mean, fold_values

GPU = torch.device("cuda")  # which nothing here is put on


@pytest.mark.parametrize(
    ("dtype", "op", "a", "b", "both"),
    [
        ("uint32", "sum", 2**32 - 1, 3, 2),
        ("uint32", "prod", 2**31 + 1, 3, 2**31 + 3),
        ("uint64", "sum", 2**63 + 5, 2**63 + 6, 11),
        ("uint64", "bxor", 2**63 + 5, 1, 2**63 + 4),
        ("int32", "max", -3, 2, 2),
    ],
)
def test_unsigned_numbers_are_combined_by_their_bits(
    dtype: str, op: str, a: int, b: int, both: int
) -> None:
    how = find_arithmetic(op, DTYPES[dtype], GPU)
    kind = getattr(torch, dtype)
    first, second = (torch.tensor([value], dtype=kind).view(torch.uint8) for value in (a, b))
    for function, arguments in fold_values(how, first, [first, second]):
        function(*arguments)
    assert first.view(kind).item() == both


@pytest.mark.parametrize("op", ["min", "max", "avg"])
def test_what_torch_lacks_on_gpus_is_refused_before_any_rank_calls(op: str) -> None:
    with pytest.raises(NotImplementedError, match=f"torch has no {op} of uint32 on GPUs"):
        find_arithmetic(op, DTYPES["uint32"], GPU)


@pytest.mark.parametrize(
    ("dtype", "n", "total", "mean"),
    [
        ("int8", 200, 100, 0),  # of which 200 is none
        ("int8", 3, -7, -3),
        ("half", 3, 6.0, 2.0),
    ],
)
def test_a_mean_on_gpus_is_a_quotient(dtype: str, n: int, total: float, mean: float) -> None:
    how = find_arithmetic("avg", DTYPES[dtype], GPU)
    out = torch.tensor([total], dtype=getattr(torch, DTYPES[dtype].torch))
    for function, arguments in finish_mean(how, "avg", out.view(torch.uint8), n):
        function(*arguments)
    assert out.item() == mean


def test_a_mean_on_gpus_divides_by_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a number torch's kernels multiply with its reciprocal there."""
    asked: list[tuple[int, torch.dtype]] = []

    def make(n: int, kind: torch.dtype, device: torch.device) -> torch.Tensor:
        asked.append((n, kind))
        return torch.full((), 4, dtype=kind)

    monkeypatch.setattr(_reducers, "_make_divisor", make)
    out = torch.tensor([6.0])
    for function, arguments in finish_mean(
        find_arithmetic("avg", DTYPES["float"], GPU), "avg", out.view(torch.uint8), 3
    ):
        function(*arguments)
    assert asked == [(3, torch.float32)] and out.item() == 1.5
