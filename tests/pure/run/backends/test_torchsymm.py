"""torch's symmetric-memory kernels as backends: what they refuse and why, and that each is given
what its schema takes.

The kernels themselves are stood in for by one line each that does on all ranks' tensors what torch
documents.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from collbench.core.backend_info import backend_names
from collbench.core.errors import CannotRun
from collbench.run import backends, refusal
from collbench.run.backends import _cuda, _torchsymm
from collbench.run.backends._torch_kernels import WAYS
from collbench.run.backends._torchdist import TorchDistributed
from collbench.run.backends._torchsymm import TorchSymmetric
from collbench.run.rank.control import Control
from collbench.suite.case import Case

Op = Callable[[list[tuple[Any, ...]]], None]
KINDS = {"Tensor": torch.Tensor, "str": str, "int": int, "bool": bool}


def case(
    backend: str, collective: str = "all_reduce", n: int = 2, nbytes: int = 1024, **further: Any
) -> Case:
    op = {"op": "sum"} if collective in ("all_reduce", "reduce", "reduce_scatter") else {}
    root = {"root": n - 1} if collective == "reduce" else {}
    return Case(
        collective=collective, backend=backend, n=n, nbytes=nbytes, **{**op, **root, **further}
    )


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (case("torch_one_shot"), None),
        (case("torch_one_shot", in_place=True), None),
        (case("torch_two_shot", n=3), None),
        (case("torch_one_shot", nbytes=4), None),
        (case("torch_one_shot", dtype="bfloat16", nbytes=4), None),
        (case("torch_two_shot", "reduce_scatter", n=4, nbytes=64), None),
        (case("torch_multimem", "all_gather", n=2, dtype="uint8", nbytes=32), None),
        (
            case("torch_multimem", "all_gather", n=3, dtype="uint8", nbytes=24),
            None,
        ),  # 8 bytes at once do
        (case("torch_multimem_one_shot", "reduce", in_place=True), None),
        (case("torch_one_shot", "broadcast"), "has no broadcast, only all_reduce"),
        (
            case("torch_two_shot", "all_gather"),
            "has no all_gather, only all_reduce, reduce_scatter",
        ),
        (case("torch_multimem_one_shot", in_place=True), "in place is overwritten"),
        (case("torch_one_shot", algorithm="ring"), "run on symm"),
        (case("torch_one_shot", n=1), "2 or more ranks, not 1"),
        (case("torch_two_shot", "reduce_scatter", n=3, nbytes=3 * 64), "2, 4, 8 ranks, not 3"),
        (case("torch_one_shot", op="max"), "can only sum, not max"),
        (case("torch_two_shot", op="avg"), "can only sum, not avg"),
        (case("torch_one_shot", dtype="half"), "float and bfloat16, not half"),
        (case("torch_one_shot", dtype="bfloat16", nbytes=6), "multiples of 4 bytes, not 6"),
        (
            case("torch_multimem", "all_gather", dtype="double", n=2, nbytes=16),
            "blocks of 8 are no multiple",
        ),
        (
            case("torch_two_shot", "reduce_scatter", n=2, nbytes=8),
            "8 bytes at once, which blocks of 4",
        ),
        (
            case("torch_two_shot", "reduce_scatter", n=8, nbytes=8 * 24),
            "16 bytes at once, which blocks of 24",
        ),
    ],
)
def test_what_is_refused_and_why(wanted: Case, words: str | None) -> None:
    """By its name alone, before any rank starts; and the backend itself says the same."""
    reason = refusal.refuse_anywhere(wanted)
    assert backends.find_backend(wanted.backend).refuse(wanted) == reason
    assert not reason if words is None else reason.startswith(wanted.backend) and words in reason


def test_an_older_torch_lacks_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "symm_mem", SimpleNamespace(one_shot_all_reduce_out=None))
    older = TorchSymmetric("torch_one_shot")
    assert older.refuse(case("torch_one_shot")) == ""
    assert "newer torch" in older.refuse(case("torch_one_shot", in_place=True))


def test_ranks_of_several_hosts_are_refused_before_any_waits_for_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch hands memory over by sockets of a host."""

    class Elsewhere(Control):
        def collect(self, value: Any) -> list[Any]:
            return [value, ["another boot", *value[1:]]]

    monkeypatch.setattr(_torchsymm, "Control", Elsewhere)
    monkeypatch.setattr(TorchDistributed, "open", lambda self, rank, n, local_rank: None)
    monkeypatch.setattr(TorchSymmetric, "_symmetric", lambda self, nbytes: pytest.fail("mapped"))
    with pytest.raises(CannotRun, match="torch_one_shot needs all ranks on one host"):
        TorchSymmetric("torch_one_shot").open(0, 2, 0)


def test_every_name_leads_to_its_kernels() -> None:
    assert {name for name in backend_names() if name.startswith("torch_")} == set(WAYS)
    for name in WAYS:
        found = backends.find_backend(name)
        assert isinstance(found, TorchSymmetric) and found.label == name


def summed(places: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(places).sum(0)


def apart(ranks: list[tuple[Any, ...]]) -> None:
    for aside, local, *_ in ranks:
        assert aside.untyped_storage().data_ptr() != local.untyped_storage().data_ptr()
        assert (aside.data_ptr() - local.data_ptr()) % 16 == 0  # torch wants both alike
        aside.copy_(local)
    total = summed([aside for aside, *_ in ranks])
    for *_, out in ranks:
        out.copy_(total)


def onto(inputs: list[torch.Tensor], outs: list[torch.Tensor]) -> None:
    total = summed(inputs)
    for out in outs:
        out.copy_(total)


def scattered(ranks: list[tuple[Any, ...]]) -> None:
    parts = summed([each[0] for each in ranks]).chunk(len(ranks))
    for part, (_, _, split_last, out) in zip(parts, ranks, strict=True):
        assert split_last is False
        out.copy_(part)


def gathered(ranks: list[tuple[Any, ...]]) -> None:
    whole = torch.cat([each[0] for each in ranks])
    for *_, out in ranks:
        out.copy_(whole)


OPS: dict[str, Op] = {  # what torch's source says each does, on all ranks' arguments
    "one_shot_all_reduce_out": lambda ranks: onto([r[0] for r in ranks], [r[3] for r in ranks]),
    "one_shot_all_reduce_copy_out": apart,
    "two_shot_all_reduce_": lambda ranks: onto([r[0] for r in ranks], [r[0] for r in ranks]),
    "multimem_all_reduce_": lambda ranks: onto([r[0] for r in ranks], [r[0] for r in ranks]),
    "multimem_one_shot_all_reduce_out": lambda ranks: onto(
        [r[0] for r in ranks], [r[3] for r in ranks]
    ),
    "multimem_one_shot_reduce_out": lambda ranks: onto(
        [r[0] for r in ranks], [ranks[ranks[0][2]][4]]
    ),
    "reduce_scatter_out": scattered,
    "multimem_all_gather_out": gathered,
}


def memory(nbytes: int) -> torch.Tensor:
    """As an allocation of torch's symmetric memory: its start is a multiple of 16."""
    raw = torch.zeros(nbytes + 64, dtype=torch.uint8)
    return raw[-raw.data_ptr() % 16 :][:nbytes]


def buffers(wanted: Case, rank: int, shift: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's, ``shift`` bytes off, with inputs 1, 2, … times ten to the rank."""
    sends, recvs = wanted.counts
    send, recv = (memory(4 * count + shift)[shift:].view(torch.float32) for count in (sends, recvs))
    values = torch.arange(1, sends + 1, dtype=torch.float32) * 10**rank
    if wanted.in_place:
        send_at = rank * sends if recvs > sends else 0
        recv_at = rank * recvs if sends > recvs else 0
        whole = send if sends > recvs else recv
        send, recv = whole[send_at : send_at + sends], whole[recv_at : recv_at + recvs]
    send.copy_(values)
    return send, recv


def ways() -> list[Case]:
    return [
        case(name, collective, n=n, in_place=in_place, nbytes=16 * 4 * n)
        for name, known in WAYS.items()
        for (collective, in_place), way in known.items()
        for n in way.worlds or (2, 3)
    ]


@pytest.mark.parametrize("shift", [0, 8])
@pytest.mark.parametrize("wanted", ways(), ids=lambda wanted: wanted.key)
def test_arguments_fit_the_schema_and_make_the_collective(
    wanted: Case, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = WAYS[wanted.backend][wanted.collective, wanted.in_place].op
    schema = getattr(torch.ops.symm_mem, name).default._schema.arguments
    said: list[tuple[Any, ...]] = []
    fake = SimpleNamespace(default=lambda *arguments: said.append(arguments))
    monkeypatch.setattr(torch.ops, "symm_mem", SimpleNamespace(**{name: fake}))
    ranks = [buffers(wanted, rank, shift) for rank in range(wanted.n)]
    inputs = [send.clone() for send, _ in ranks]
    for rank, (send, recv) in enumerate(ranks):
        backend = TorchSymmetric(wanted.backend)
        backend._at = SimpleNamespace(rank=rank, n=wanted.n, group=SimpleNamespace(group_name="7"))  # type: ignore[assignment]
        monkeypatch.setattr(backend, "_symmetric", memory)
        backend.allocate(0)
        call = backend.prepare(wanted, send, recv)
        assert call.submit is None
        call.run()
        assert len(said) == rank + 1 and len(said[rank]) == len(schema)
        for given, argument in zip(said[rank], schema, strict=True):
            assert isinstance(given, KINDS[str(argument.type)]), argument
            assert given == "7" or argument.name != "group_name"
            assert given == "sum" or argument.name != "reduce_op"
    OPS[name](said)
    total = summed(inputs) if wanted.row.reduces else torch.cat(inputs)
    for rank, (send, recv) in enumerate(ranks):
        if wanted.collective == "reduce_scatter":
            assert torch.equal(recv, total.chunk(wanted.n)[rank])
        elif wanted.collective != "reduce" or rank == wanted.root:
            assert torch.equal(recv, total)
        if not wanted.in_place:
            assert torch.equal(send, inputs[rank])
    copied = name.endswith("all_reduce_") and not wanted.in_place
    assert TorchSymmetric(wanted.backend).copies_first(wanted) is copied


def test_buffers_that_kernels_cannot_read_are_refused() -> None:
    wanted = case("torch_one_shot", dtype="bfloat16", nbytes=64)
    send, recv = (memory(66)[2:].view(torch.bfloat16) for _ in range(2))
    with pytest.raises(CannotRun, match="2 bytes off"):
        TorchSymmetric("torch_one_shot").prepare(wanted, send, recv)


def test_without_a_gpu_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CannotRun, match="torch_one_shot needs a GPU"):
        TorchSymmetric("torch_one_shot").open(0, 1, 0)


def test_gpus_may_be_shared_and_are_refused_where_they_lack_multicast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def opened(self: TorchDistributed, rank: int, n: int, local_rank: int) -> None:
        self.device, self.shared = torch.device("cuda", local_rank), n > 2

    monkeypatch.setattr(TorchDistributed, "open", opened)
    monkeypatch.setattr(_torchsymm._cuda, "has_multicast", lambda device: False)
    monkeypatch.setattr(_torchsymm, "Control", lambda rank, n: Control(0, 1))
    monkeypatch.setattr(TorchSymmetric, "_symmetric", lambda self, nbytes: memory(nbytes))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Imagined 9000")
    TorchSymmetric("torch_two_shot").open(0, 2, 0)
    TorchSymmetric("torch_two_shot").open(0, 4, 0)
    with pytest.raises(CannotRun, match="multicast, which Imagined 9000"):
        TorchSymmetric("torch_multimem").open(0, 2, 0)


def test_memory_that_cannot_be_mapped_keeps_the_backend_from_opening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed import _symmetric_memory

    def opened(self: TorchDistributed, rank: int, n: int, local_rank: int) -> None:
        self._at = SimpleNamespace(group=SimpleNamespace(group_name="7"))  # type: ignore[assignment]

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no P2P between 0 and 1\nwith a trace")

    monkeypatch.setattr(TorchDistributed, "open", opened)
    monkeypatch.setattr(_cuda, "require_nvml", lambda: None)
    monkeypatch.setattr(_symmetric_memory, "empty", refuse)
    with pytest.raises(CannotRun, match=r"map each other's memory: no P2P between 0 and 1$"):
        TorchSymmetric("torch_two_shot").open(0, 1, 0)
