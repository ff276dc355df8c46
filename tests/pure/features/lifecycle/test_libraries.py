"""The data of a life's calls, and the names under which torch has them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from collbench.features.lifecycle import libraries, torch_life
from collbench.features.lifecycle.child import LifeOfRank, LossOfRank
from collbench.features.lifecycle.libraries import (
    CheckedCall,
    Variant,
    make_inputs,
    make_variants,
)


def test_sums_over_2_to_the_14_ranks_are_exact_in_float32() -> None:
    inputs = make_inputs("all_reduce", 1000, 1 << 14)
    assert sum(int(one.max()) for one in inputs) <= 1 << 24
    total = np.sum(inputs, axis=0, dtype=np.int64)
    assert (np.sum(inputs, axis=0, dtype=np.float32) == total).all()


def test_no_part_of_the_data_is_like_another() -> None:
    """Not that of another rank or variant, nor the same a few elements on; nor what buffers hold
    before."""
    rows = [row for variant in (0, 1) for row in make_inputs("all_reduce", 4000, 3, variant)]
    assert all(row.all() for row in rows)
    agree = [
        (a[shift:] == b[: len(b) - shift]).mean()
        for at, a in enumerate(rows)
        for other, b in enumerate(rows)
        for shift in range(300)
        if shift or other > at
    ]
    assert max(agree) < 0.1


class Replaying:
    """A library of one rank; calls after the first bring its result again."""

    meets, rank, world = False, 0, 1
    result: Any = None

    def make_call(self, collective: str, variants: Sequence[Variant]) -> CheckedCall:
        current, recv = variants[0], np.zeros_like(variants[0][1])

        def reset(variant: int) -> None:
            nonlocal current
            current, recv[:] = variants[variant], 0

        def run() -> None:
            if self.result is None:
                self.result = current[0]
            recv[:] = self.result

        return CheckedCall(reset, run, lambda: int((recv != current[1]).sum()), len(recv))

    def __getattr__(self, name: str) -> Any:
        return lambda *given: 0


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_result_of_an_earlier_call_of_a_life_is_wrong(calls: int) -> None:
    said: dict[str, Any] = {}
    diary: Any = SimpleNamespace(write=lambda name, **values: said.update({name: values}))
    life: dict[str, Any] = {"collective": "all_reduce", "nbytes": 64, "calls": calls}
    given: Any = SimpleNamespace(**life, delay=0, groups=0, one_clock=True)
    library: Any = Replaying()
    LifeOfRank(given, diary, library).run()
    assert said["checked"] == {"wrong": 16, "verified": 32}


class Losing:
    """A library of rank 1 of three, whose rank ``lost`` is killed while the second call runs."""

    meets, rank, world = True, 1, 3

    def __init__(self, lost: int) -> None:
        self.lost = lost

    def make_call(self, collective: str, variants: Sequence[Variant]) -> CheckedCall:
        calls = itertools.count()

        def run() -> None:
            if self.world == 3 and next(calls):
                raise RuntimeError("connection closed by peer")

        return CheckedCall(lambda variant: variants[variant], run, lambda: 0, 16)

    def wait_for_lost(self) -> int:
        return self.lost

    def remake(self, lost: int, shrink: bool) -> None:
        self.rank, self.world = self.rank - (self.rank > lost), self.world - 1

    def __getattr__(self, name: str) -> Any:
        return lambda *given: 0


@pytest.mark.parametrize("lost", [0, 2])
def test_no_data_are_made_while_recovery_is_timed(
    lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def note_inputs(*given: Any) -> Any:
        steps.append("data")
        return make_inputs(*given)

    monkeypatch.setattr(libraries, "make_inputs", note_inputs)
    diary: Any = SimpleNamespace(write=lambda name, **values: steps.append(name))
    given: Any = SimpleNamespace(nbytes=64, way="abort", patience=1)
    library: Any = Losing(lost)
    LossOfRank(given, diary, library).run()
    assert steps[-1] == "recovered" and "data" in steps
    assert "data" not in steps[steps.index("knows") :]


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_a_life_calls_a_tensor_collective_by_the_name_that_torch_has(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(torch_life, name, lambda *given: called.append(given))
    library = object.__new__(torch_life.Torch)
    library.rank, library.world, library._device = 0, 2, torch.device("cpu")
    library._given = SimpleNamespace()  # type: ignore[assignment]
    library.make_call(name, make_variants(name, 64, 2, 0)).run()
    assert len(called) == 1
