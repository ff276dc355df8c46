"""What is asked of torch.distributed, with a torch that only notes it; and where tensors are
for its backends, by what torch says of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from collbench.core.errors import CannotRun
from collbench.run.backends import torchdist
from collbench.run.backends.torchdist import place
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


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A machine with so many accelerators of a kind, and a backend ``vendor`` for some devices."""

    def make(kind: str, count: int, able: list[str]) -> None:
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
        monkeypatch.setitem(dist.Backend.backend_capability, "vendor", able)

    return make


@pytest.mark.parametrize(
    ("kind", "count", "able", "device"),
    [
        ("xpu", 4, ["xpu"], "xpu:1"),
        ("xpu", 2, ["cpu", "xpu"], "xpu:1"),
        ("cuda", 4, ["cpu", "cuda"], "cuda:1"),
        ("cuda", 4, ["cpu"], "cpu"),
        ("cuda", 0, ["cpu", "cuda"], "cpu"),
    ],
)
def test_the_accelerator_is_taken_where_the_backend_is_for_it(
    machine, kind: str, count: int, able: list[str], device: str
) -> None:
    machine(kind, count, able)
    assert place("vendor", 5 if count == 4 else 1) == torch.device(device)


def test_gloo_and_unknown_backends_are_the_cpus(machine) -> None:
    machine("cuda", 8, ["cuda"])
    assert {place(name).type for name in ("gloo", "unheard-of")} == {"cpu"}


@pytest.mark.parametrize(
    ("count", "why"), [(4, "the accelerator here is cuda"), (0, "torch finds no accelerator here")]
)
def test_a_backend_for_other_devices_is_refused_with_the_reason(
    machine, count: int, why: str
) -> None:
    machine("cuda", count, ["hpu"])
    with pytest.raises(CannotRun, match=f"vendor is for tensors on hpu, and {why}"):
        place("vendor")
