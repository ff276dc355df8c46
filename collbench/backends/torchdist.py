"""Library collectives through torch.distributed: gloo, nccl, and any other backend name torch knows.

What is timed is the public API, as a user calls it. torch has no out-of-place all_reduce, reduce and broadcast: there
the call is a copy followed by the in-place collective, and the record's note says so.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collbench.backends import Call, _wire
from collbench.collectives import premul_factor
from collbench.errors import CannotRun
from collbench.suite import Case

_REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
# torch 2.13 renamed the two tensor collectives
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

COPIES_FIRST = frozenset({"all_reduce", "reduce", "broadcast"})
Tensor = torch.Tensor


class _Site(NamedTuple):
    """Where a collective is issued from."""

    rank: int
    n: int
    group: Any


class _Joined:
    """Several handles waited for as one."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def _op(case: Case, rank: int) -> Any:
    if case.op == "premul_sum":
        return dist._make_nccl_premul_sum(float(premul_factor(rank)))  # type: ignore[attr-defined]
    return _REDUCTIONS[case.op]


def _all_reduce(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(dist.all_reduce, recv, op=_op(case, at.rank), group=at.group)


def _reduce(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(dist.reduce, recv, case.root, op=_op(case, at.rank), group=at.group)


def _broadcast(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(dist.broadcast, recv, case.root, group=at.group)


def _gathering(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(_all_gather, recv, send, group=at.group)


def _reducing(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(_reduce_scatter, recv, send, op=_op(case, at.rank), group=at.group)


def _exchange(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(dist.all_to_all_single, recv, send, group=at.group)


def _exchange_v(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    table = case.matrix
    out, into = table[at.rank].tolist(), table[:, at.rank].tolist()
    return partial(dist.all_to_all_single, recv[: sum(into)], send[: sum(out)], into, out, group=at.group)


def _gather(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    parts = list(recv.chunk(at.n)) if at.rank == case.root else None
    return partial(dist.gather, send, parts, case.root, group=at.group)


def _scatter(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    parts = list(send.chunk(at.n)) if at.rank == case.root else None
    return partial(dist.scatter, recv, parts, case.root, group=at.group)


def _shift(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    ahead, behind = (at.rank + 1) % at.n, (at.rank - 1) % at.n
    pair = [dist.P2POp(dist.isend, send, ahead, at.group), dist.P2POp(dist.irecv, recv, behind, at.group)]

    def issue(async_op: bool = False) -> Any:
        works = _Joined(dist.batch_isend_irecv(pair))
        return works if async_op else works.wait()

    return issue


def _barrier(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(dist.barrier, group=at.group)


# scan is missing here because torch.distributed has none
CALLS: dict[str, Callable[[Case, Tensor, Tensor, _Site], Callable[..., Any]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _gathering,
    "reduce_scatter": _reducing,
    "all_to_all": _exchange,
    "all_to_allv": _exchange_v,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "sendrecv": _shift,
    "barrier": _barrier,
}


class TorchDistributed:
    """One torch.distributed backend, measured on a process group of its own beside the control group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.device = torch.device("cpu")
        self.premultiplies = name == "nccl"
        self.library = f"torch {torch.__version__} {name}"

    def why_not(self, case: Case) -> str | None:
        if case.mode == "graph":
            return f"{self.name} cannot be captured in a CUDA graph"
        if case.algorithm != "native":
            return None
        if case.collective not in CALLS:
            return f"torch.distributed has no {case.collective}"
        if case.op == "premul_sum" and self.name != "nccl":
            return f"premul_sum is an NCCL reduction; {self.name} has none"
        if case.collective == "sendrecv" and case.n == 1:
            return f"{self.name} does not send to itself"
        return None

    def copies_first(self, case: Case) -> bool:
        return case.algorithm == "native" and not case.in_place and case.collective in COPIES_FIRST

    def open(self, rank: int, n: int, local_rank: int) -> None:
        self._choose_device(local_rank)
        try:
            self._at = _Site(rank, n, dist.new_group(backend=self.name, timeout=timedelta(days=1)))
        except (RuntimeError, ValueError, AttributeError) as e:
            reason = str(e).splitlines()[0]
            raise CannotRun(
                f"backend {self.name} cannot be opened: {reason}", "collbench doctor says what runs here"
            ) from e

    def _choose_device(self, local_rank: int) -> None:
        if self.name != "nccl":
            return
        if not torch.cuda.is_available():
            raise CannotRun("backend nccl needs an NVIDIA GPU and a CUDA build of torch", "--backend gloo runs on CPUs")
        if local_rank >= torch.cuda.device_count():
            raise CannotRun(
                f"rank {local_rank} of this host has no GPU: there are {torch.cuda.device_count()}",
                "ask for fewer with -g",
            )
        self.device = torch.device("cuda", local_rank)
        torch.cuda.set_device(self.device)
        self.library = f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))} (torch {torch.__version__})"  # type: ignore[no-untyped-call]

    def allocate(self, nbytes: int) -> Tensor:
        self._room = _wire.Room(self.device)
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def prepare(self, case: Case, send: Tensor, recv: Tensor) -> Call:
        if case.algorithm != "native":
            return _wire.prepare(case, send, recv, self._at.rank, self._at.group, self._room)
        issue = CALLS[case.collective](case, send, recv, self._at)
        submit = partial(issue, async_op=True)
        run = partial(_issue_in_order, submit) if self.device.type == "cuda" else issue
        if not self.copies_first(case):
            return Call(run, submit)
        if case.collective == "broadcast" and self._at.rank != case.root:  # only the root's input counts
            return Call(run, submit)
        return _after_copy(send, recv, run, submit)

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def close(self) -> None:
        dist.destroy_process_group(self._at.group)


def _issue_in_order(submit: Callable[[], Any]) -> None:
    submit().wait()  # orders the current stream behind the collective, without waiting for either


def _after_copy(send: Tensor, recv: Tensor, run: Callable[[], object], submit: Callable[[], Any]) -> Call:
    """A call behind a copy from send to recv."""

    def copy_and_run() -> None:
        recv.copy_(send)
        run()

    def copy_and_submit() -> Any:
        recv.copy_(send)
        return submit()

    return Call(copy_and_run, copy_and_submit)


def create(name: str) -> TorchDistributed:
    return TorchDistributed(name)
