"""The data of a life's calls, and the names under which torch has them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from collbench.features.lifecycle import torch_life
from collbench.features.lifecycle.libraries import PERIOD, make_inputs


def test_sums_over_2_to_the_14_ranks_are_exact_in_float32() -> None:
    inputs = make_inputs("all_reduce", 4 * PERIOD, 1 << 14)
    assert sum(int(one.max()) for one in inputs) <= 1 << 24
    total = np.sum(inputs, axis=0, dtype=np.int64)
    assert (np.sum(inputs, axis=0, dtype=np.float32) == total).all()


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
