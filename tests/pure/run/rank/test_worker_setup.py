"""How a rank sets its process up before it connects."""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest
import torch

from collbench.machine import descriptors
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


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, 4096), [(4096, 4096)]),
        ((1024, 1 << 20), [(65536, 1 << 20)]),
        ((1024, resource.RLIM_INFINITY), [(65536, resource.RLIM_INFINITY)]),
        ((4096, 4096), []),
        ((1 << 20, 1 << 20), []),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), []),
    ],
)
def test_a_rank_may_open_as_many_sockets_as_the_hard_limit_allows(
    limits: tuple[int, int], raised: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group of Gloo opens one for every other rank."""
    at_connect: list[list[tuple[int, int]]] = []
    pairs: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: pairs.append(pair))
    monkeypatch.setattr(
        worker.dist, "init_process_group", lambda *_, **__: at_connect.append([*pairs])
    )
    threads = torch.get_num_threads()
    with np.errstate():
        worker.connect_control(worker.Place(0, 1, 0, 1, "local"), None)
    torch.set_num_threads(threads)
    assert at_connect == [raised]


def test_a_rank_goes_on_where_its_limit_may_not_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, pair: tuple[int, int]) -> None:
        raise PermissionError

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    descriptors.raise_limit()
