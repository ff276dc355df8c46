"""What is asked of torch.distributed, with a torch that only notes it."""

from __future__ import annotations

import pytest
import torch

from collbench.run.backends import torchdist
from collbench.suite.case import Case


def test_sendrecv_receives_before_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two ranks: Gloo's word that one waits for data would queue behind the data that it
    sends itself."""
    asked: list[object] = []
    monkeypatch.setattr(
        torchdist.dist, "P2POp", lambda operation, tensor, peer, group: (operation, peer)
    )
    monkeypatch.setattr(torchdist.dist, "batch_isend_irecv", lambda pair: asked.extend(pair) or [])
    case = Case(collective="sendrecv", backend="gloo", n=2, nbytes=8)
    site = torchdist._Site(rank=0, n=2, group=None, members=(4, 7))
    torchdist.CALLS["sendrecv"](case, torch.zeros(2), torch.zeros(2), site)()
    assert asked == [(torchdist.dist.irecv, 7), (torchdist.dist.isend, 7)]
