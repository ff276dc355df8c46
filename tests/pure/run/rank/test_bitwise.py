"""Digests of what reductions make of floats that must be rounded."""

from __future__ import annotations

import pytest
import torch

from collbench.run.rank import check
from collbench.run.rank.check import Checker
from collbench.suite.case import Case

N, COUNT = 4, 100_000


def contributions(kind: str, collective: str = "all_reduce") -> list[torch.Tensor]:
    case = Case(collective=collective, backend="gloo", n=N, nbytes=COUNT * 4, dtype=kind, op="sum")
    found = []
    for rank in range(N):
        buffer = torch.zeros(case.counts[0], dtype=getattr(torch, case.type.torch))
        check.fill_floats(buffer, Checker(case, 1, rank, "cpu").sends, 1, rank)
        found.append(buffer)
    return found


def of(buffer: torch.Tensor) -> str:
    case = Case(collective="all_reduce", backend="gloo", n=N, nbytes=COUNT * 4, op="sum")
    return check.digest_bits(buffer, Checker(case, 1, 0, "cpu").receives or ())


@pytest.mark.parametrize("kind", ["float", "half", "bfloat16", "double"])
def test_the_order_of_adding_shows(kind: str) -> None:
    """In every type: of these numbers some sums depend on it. What is compared with expected data
    must not."""
    a, b, c, d = contributions(kind)
    assert not torch.equal(((a + b) + c) + d, (a + b) + (c + d))
    assert all(buffer.isfinite().all() for buffer in (a, b, c, d))
    again = contributions(kind)
    assert torch.equal(a, again[0]) and not torch.equal(a, b)


def test_one_bit_shows() -> None:
    buffer, _, _, _ = contributions("float")
    for index in (0, COUNT - 1):
        other = buffer.clone()
        other.view(torch.int32)[index] ^= 1
        assert of(other) != of(buffer) == of(buffer.clone())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"op": "max"}, False),
        ({"dtype": "int32"}, False),
        ({"op": "prod", "dtype": "bfloat16"}, True),
        ({"collective": "all_gather", "op": "none"}, False),
        ({"nbytes": 0}, False),
    ],
)
def test_what_depends_on_order(fields: dict[str, object], expected: bool) -> None:
    given = {
        "collective": "all_reduce",
        "backend": "gloo",
        "n": N,
        "nbytes": 64,
        "op": "sum",
        **fields,
    }
    assert check.is_rounded(Case(**given)) is expected  # type: ignore[arg-type]
