"""How a rank sets its process up before it connects."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from collbench.run.rank import worker

NAME = "TORCH_NCCL_ENABLE_MONITORING"


@pytest.mark.parametrize(("given", "kept"), [({}, "0"), ({NAME: "1"}, "1")])
def test_torchs_monitor_of_nccl_is_off_unless_the_user_has_set_it(
    given: dict[str, str], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    seen: list[str] = []
    monkeypatch.setattr(
        worker.dist, "init_process_group", lambda *_, **__: seen.append(os.environ[NAME])
    )
    threads = torch.get_num_threads()
    with np.errstate():
        worker.connect_control(worker.Place(0, 1, 0, 1, "local"), None)
    torch.set_num_threads(threads)
    assert seen == [kept]
