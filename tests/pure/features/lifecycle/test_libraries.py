"""The data of a life's calls, and the names under which torch has them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from collbench.features.lifecycle import torch_life
from collbench.features.lifecycle.child import LifeOfRank
from collbench.features.lifecycle.libraries import CheckedCall, make_inputs, make_turns


def test_sums_over_2_to_the_14_ranks_are_exact_in_float32() -> None:
    inputs = make_inputs("all_reduce", 1000, 1 << 14)
    assert sum(int(one.max()) for one in inputs) <= 1 << 24
    total = np.sum(inputs, axis=0, dtype=np.int64)
    assert (np.sum(inputs, axis=0, dtype=np.float32) == total).all()


def test_no_part_of_the_data_is_like_another() -> None:
    """Not that of another rank or turn, nor the same a few elements on; nor what buffers hold
    before."""
    rows = [row for turn in (0, 1) for row in make_inputs("all_reduce", 4000, 3, turn)]
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

    meets, rank = False, 0
    result: Any = None

    def make_call(self, collective: str, nbytes: int) -> CheckedCall:
        turns, recv = make_turns(collective, nbytes, 1, 0), np.zeros(nbytes // 4, np.float32)
        current: Any = turns[0]

        def reset(turn: int) -> None:
            nonlocal current
            current, recv[:] = turns[turn], 0

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


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_a_life_calls_a_tensor_collective_by_the_name_that_torch_has(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(torch_life, name, lambda *given: called.append(given))
    library = object.__new__(torch_life.Torch)
    library.rank, library.world, library._device = 0, 2, torch.device("cpu")
    library._given = SimpleNamespace()  # type: ignore[assignment]
    library.make_call(name, 64).run()
    assert len(called) == 1
