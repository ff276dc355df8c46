"""What is asked of torch.distributed, with a torch that only notes it; and where tensors are
for its backends, by what torch says of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from collbench.core.errors import CannotRun
from collbench.run.backends import Call, Message, _torchdist, _wire
from collbench.run.backends._compiled import Compiled
from collbench.run.backends._torchdist import choose_device
from collbench.run.backends._torchsymm import TorchSymmetric
from collbench.run.rank import control
from collbench.run.rank.control import Control
from collbench.suite.case import Case


def test_sendrecv_receives_before_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two ranks: Gloo's word that one waits for data would queue behind the data that it
    sends itself."""
    asked: list[object] = []
    monkeypatch.setattr(
        _torchdist.dist, "P2POp", lambda operation, tensor, peer, group: (operation, peer)
    )
    monkeypatch.setattr(_torchdist.dist, "batch_isend_irecv", lambda pair: asked.extend(pair) or [])
    case = Case(collective="sendrecv", backend="gloo", n=2, nbytes=8)
    site = _torchdist._Site(rank=0, n=2, group=None, members=(4, 7))
    _torchdist.CALLS["sendrecv"](case, torch.zeros(2), torch.zeros(2), site)()
    assert asked == [(_torchdist.dist.irecv, 7), (_torchdist.dist.isend, 7)]


@pytest.mark.parametrize(
    ("backend", "device", "device_ids"),
    [
        ("nccl", "cuda:3", [3]),
        ("xccl", "xpu:3", [3]),
        ("ucc", "cuda:3", [3]),
        ("ucc", "cpu", None),
        ("gloo", "cpu", None),
        ("vendor", "hpu:3", None),
    ],
)
def test_a_barrier_of_torchs_gpu_libraries_is_on_the_ranks_own_gpu(
    monkeypatch: pytest.MonkeyPatch, backend: str, device: str, device_ids: list[int] | None
) -> None:
    """In a group of its own, NCCL in torch would take the GPU of the rank's number in its first
    group, and XCCL that of its number in the group."""
    asked: list[object] = []
    monkeypatch.setattr(
        _torchdist.dist, "barrier", lambda group, device_ids: asked.append((group, device_ids))
    )
    case = Case(collective="barrier", backend=backend, n=2, nbytes=0)
    nothing = SimpleNamespace(device=torch.device(device))
    site = _torchdist._Site(rank=1, n=2, group="group")
    _torchdist.CALLS["barrier"](case, nothing, nothing, site)()  # type: ignore[arg-type]
    assert asked == [("group", device_ids)]


@pytest.mark.parametrize(("device", "batches"), [("meta", [1, 2]), ("cpu", [2])])
def test_a_message_on_a_device_is_a_batch_as_several_at_its_peer_are(
    monkeypatch: pytest.MonkeyPatch, device: str, batches: list[int]
) -> None:
    """NCCL in torch has one communicator for batches of a group and another for other messages."""
    made: list[int] = []
    monkeypatch.setattr(_torchdist.dist, "P2POp", lambda *fields: fields)
    monkeypatch.setattr(
        _torchdist.dist, "batch_isend_irecv", lambda batch: made.append(len(batch)) or []
    )
    monkeypatch.setattr(
        _torchdist.dist, "irecv", lambda *_, **__: SimpleNamespace(wait=lambda: None)
    )
    backend = _torchdist.TorchDistributed("nccl")
    backend.device = torch.device(device)
    backend._at = _torchdist._Site(0, 3, None, members=(0, 1, 2))
    messages = [Message(False, torch.zeros(1), peer, 0) for peer in (1, 2)]
    backend.message_batch(messages[:1]).run()
    backend.message_batch(messages).run()
    assert made == batches


@pytest.mark.parametrize(("on_a_gpu", "alpha_over_beta"), [(True, 6e6), (False, 40e3)])
def test_segments_go_by_what_a_message_costs_there(
    monkeypatch: pytest.MonkeyPatch, on_a_gpu: bool, alpha_over_beta: float
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(_wire, "prepare_messages", lambda *_, halfway, **__: asked.append(halfway))
    backend = _torchdist.TorchDistributed("nccl")
    backend.control, backend.stream = None, object() if on_a_gpu else None
    backend._at, backend._room = _torchdist._Site(0, 2, None), None
    case = Case(collective="all_reduce", backend="nccl", n=2, nbytes=8, algorithm="ring", op="sum")
    backend.prepare(case, torch.zeros(2), torch.zeros(2))
    assert asked == [alpha_over_beta]


@pytest.mark.parametrize(("name", "most"), [("double_tree", 100), ("chain", 50)])
def test_a_gibibyte_over_nccl_takes_so_few_steps_that_they_can_be_issued_ahead(
    name: str, most: int
) -> None:
    """Of some 75 us each for the host: hundreds would take longer than the data itself."""
    case = Case(
        collective="all_reduce" if name == "double_tree" else "broadcast",
        backend="nccl",
        n=8,
        nbytes=1 << 30,
        algorithm=name,
        op="sum" if name == "double_tree" else "none",
        root=-1 if name == "double_tree" else 0,
    )
    compiled = Compiled(case, _torchdist.HALFWAY, waits=False)
    assert max(map(len, compiled.program.ranks)) < most


class Grouped:
    """Notes what is handed over between the beginning and the end of a group."""

    def __init__(self) -> None:
        self.log: list[object] = []

    @contextmanager
    def __call__(self, group: object) -> Iterator[None]:
        self.log.append(("begin", group))
        yield
        self.log.append("end")


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> Grouped:
    noted = Grouped()
    monkeypatch.setattr(_torchdist, "_coalescing_manager", noted)
    return noted


def nccl(collective: str, **fields: object) -> Case:
    return Case(collective=collective, backend="nccl", n=2, nbytes=8, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_calls_together_are_a_group_of_nccls(grouped: Grouped, collective: str) -> None:
    backend = _torchdist.TorchDistributed("nccl")
    backend._at = _torchdist._Site(0, 2, "group")
    calls = [Call(partial(grouped.log.append, number), None) for number in range(3)]
    fused = backend.fuse_calls(nccl(collective), calls)
    assert fused is not None and not grouped.log
    fused()
    assert grouped.log == [("begin", "group"), 0, 1, 2, "end"]


@pytest.mark.parametrize(
    ("backend", "case"),
    [
        (_torchdist.TorchDistributed("nccl"), nccl("broadcast")),
        (_torchdist.TorchDistributed("nccl"), nccl("all_reduce", op="sum", algorithm="ring")),
        (_torchdist.TorchDistributed("gloo"), nccl("all_reduce", op="sum")),
        (TorchSymmetric("torch_one_shot"), nccl("all_reduce", op="sum")),
    ],
)
def test_no_other_calls_are_fused(backend: _torchdist.TorchDistributed, case: Case) -> None:
    backend._at = _torchdist._Site(0, 2, "group")
    assert backend.fuse_calls(case, [Call(lambda: None, None)] * 2) is None


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
    assert choose_device("vendor", 5 if count == 4 else 1) == torch.device(device)


def test_gloo_and_unknown_backends_are_the_cpus(machine) -> None:
    machine("cuda", 8, ["cuda"])
    assert {choose_device(name).type for name in ("gloo", "unheard-of")} == {"cpu"}


@pytest.mark.parametrize(
    ("count", "why"), [(4, "the accelerator here is cuda"), (0, "torch finds no accelerator here")]
)
def test_a_backend_for_other_devices_is_refused_with_the_reason(
    machine, count: int, why: str
) -> None:
    machine("cuda", count, ["hpu"])
    with pytest.raises(CannotRun, match=f"vendor is for tensors on hpu, and {why}"):
        choose_device("vendor")


@pytest.mark.parametrize("name", ["set_device_index", "set_device_idx"])
def test_an_accelerator_is_made_current_by_whatever_name_torch_has(
    machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    machine("xpu", 4, ["xpu"])
    current: list[int] = []
    for other in ("set_device_index", "set_device_idx"):
        monkeypatch.delattr(torch.accelerator, other, raising=False)
    monkeypatch.setattr(torch.accelerator, name, current.append, raising=False)
    _torchdist.TorchDistributed("vendor")._take_place(Control(0, 1), 3)
    assert current == [3]


class Talk(Control):
    """A control group whose ranks speak one after the other; the last has heard all."""

    def __init__(self, rank: int, n: int, said: list[object]) -> None:
        super().__init__(rank, n)
        self._said = said

    def collect(self, value: object) -> list[object]:
        self._said.append(value)
        return [*self._said]


@pytest.mark.parametrize(
    ("uuids", "count", "shared"),
    [
        (["a", "b"], 1, False),  # --gpus-per-task=1
        (["a", "a"], 1, True),
        (["a", "b", "a"], 2, True),
        ([None, None], 1, False),
        ([None, None], 2, False),
        ([None, None, None], 2, True),
    ],
)
def test_accelerators_are_told_apart_by_what_torch_says_of_them(
    machine,
    monkeypatch: pytest.MonkeyPatch,
    uuids: list[str | None],
    count: int,
    shared: bool,
) -> None:
    machine("xpu", count, ["xpu"])
    said: list[object] = []
    for rank, uuid in enumerate(uuids):
        about = SimpleNamespace(name="GPU", **{} if uuid is None else {"uuid": uuid})
        monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device, about=about: about)
        device = torch.device("xpu", rank % count)
        found = _torchdist.is_any_shared(Talk(rank, len(uuids), said), device)
    assert found == shared


def test_ranks_without_an_accelerator_share_none(machine) -> None:
    machine("xpu", 2, ["xpu"])
    said: list[object] = []
    cpu = torch.device("cpu")
    assert not any(_torchdist.is_any_shared(Talk(rank, 3, said), cpu) for rank in range(3))


def test_the_ranks_own_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current device of a thread in the background is GPU 0."""
    devices: list[object] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *given: devices.extend(given))
    backend = _torchdist.TorchDistributed("xccl")
    backend.device = torch.device("xpu", 3)
    backend.finish()
    assert devices == [torch.device("xpu", 3)]


class Rank(Control):
    """The first of two ranks; the second says what is planted."""

    def __init__(self, other: list[str] | None) -> None:
        super().__init__(0, 2)
        self._other = other

    def collect(self, value: object) -> list[object]:
        return [value, self._other]


FULL = "CUDA out of memory. Tried to allocate 40.00 GiB"


@pytest.mark.parametrize(("here", "there"), [(True, False), (False, True), (True, True)])
def test_a_case_is_refused_on_all_ranks_where_one_ranks_gpu_has_no_memory(
    monkeypatch: pytest.MonkeyPatch, here: bool, there: bool
) -> None:
    def allocate(*_: object, **__: object) -> torch.Tensor:
        if here:
            raise torch.cuda.OutOfMemoryError(f"{FULL}. Of the allocated memory 1 MiB is ...\nmore")
        return torch.zeros(1)

    rank = Rank([f"rank 1 on b: {FULL}", "take smaller sizes"] if there else None)
    monkeypatch.setattr(control, "make_world_control", lambda: rank)
    monkeypatch.setattr(torch, "empty", allocate)
    backend = _torchdist.TorchDistributed("nccl")
    backend.device = torch.device("meta")
    with pytest.raises(CannotRun, match=rf"^rank {int(not here)} on \S+: {FULL}$"):
        backend.allocate(64)
