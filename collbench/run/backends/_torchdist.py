"""Library collectives through torch.distributed: gloo, nccl, and any other backend name torch
knows.

What is timed is the public API, as a user calls it. torch has no out-of-place all_reduce, reduce
and broadcast: there the call is a copy followed by the in-place collective, and the record's note
says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from collbench.core.backend_sources import list_imports
from collbench.core.dtypes import premul_factor
from collbench.core.errors import CannotRun, first_line
from collbench.core.groups import count_placed_ranks
from collbench.machine import environment
from collbench.records.types import Choice
from collbench.run.backends import REFUSED, Base, Call, Message, _cuda, _torch_refusal, _wire
from collbench.run.backends._torch_refusal import WAITING
from collbench.run.rank import ncclog
from collbench.run.rank.control import Control, make_world_control
from collbench.run.rank.gpu import explain_unwatched
from collbench.run.rank.tensor_collectives import all_gather, reduce_scatter
from collbench.suite.case import Case

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

COPIES_FIRST = frozenset({"all_reduce", "reduce", "broadcast"})

FUSED = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter"}
)  # collectives of which torch hands several to NCCL as one group

# collectives that NCCL has since 2.28, for which torch 2.13 to 2.15 calls ncclSend and ncclRecv
BY_MESSAGES = {"gather": "ncclGather", "scatter": "ncclScatter"}

Tensor = torch.Tensor


class _Site(NamedTuple):
    """Where a collective is issued from; ranks are the group's, which may be some ``members`` of a
    process group. ``near`` are the process group's ranks on this machine."""

    rank: int
    n: int
    group: Any
    members: Sequence[int] = ()
    near: Collection[int] = ()

    def globally(self, rank: int) -> int:
        """The rank's number in the world, by which torch names roots and peers in every group."""
        return self.members[rank] if self.members else dist.get_global_rank(self.group, rank)


class _Joined:
    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def _reduce_op(case: Case, rank: int) -> Any:
    if case.op == "premul_sum":
        return dist._make_nccl_premul_sum(float(premul_factor(rank)))  # type: ignore[attr-defined]
    return _REDUCTIONS[case.op]


def _all_reduce(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(dist.all_reduce, recv, op=_reduce_op(case, at.rank), group=at.group)


def _reduce(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(
        dist.reduce, recv, at.globally(case.root), op=_reduce_op(case, at.rank), group=at.group
    )


def _broadcast(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(dist.broadcast, recv, at.globally(case.root), group=at.group)


def _gathering(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(all_gather, recv, send, group=at.group)


def _reducing(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(reduce_scatter, recv, send, op=_reduce_op(case, at.rank), group=at.group)


def _exchange(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    return partial(dist.all_to_all_single, recv, send, group=at.group)


def _exchange_v(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    table = case.matrix
    out, into = table[at.rank].tolist(), table[:, at.rank].tolist()
    return partial(
        dist.all_to_all_single, recv[: sum(into)], send[: sum(out)], into, out, group=at.group
    )


def _gather(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    parts = list(recv.chunk(at.n)) if at.rank == case.root else None
    return partial(dist.gather, send, parts, at.globally(case.root), group=at.group)


def _scatter(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    parts = list(send.chunk(at.n)) if at.rank == case.root else None
    return partial(dist.scatter, recv, parts, at.globally(case.root), group=at.group)


def _shift(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    ahead, behind = (at.globally((at.rank + step) % at.n) for step in (1, -1))
    pair = [
        dist.P2POp(dist.irecv, recv, behind, at.group),
        dist.P2POp(dist.isend, send, ahead, at.group),
    ]
    if dist.get_group_rank(at.group, ahead) in at.near:  # as _wire._post_singly does
        pair.reverse()

    def issue(async_op: bool = False) -> Any:
        works = _Joined(dist.batch_isend_irecv(pair))
        return works if async_op else works.wait()

    return issue


def _barrier(case: Case, send: Tensor, recv: Tensor, at: _Site) -> Callable[..., Any]:
    # without device_ids these may take the GPU of the rank's number in a group
    has_gpu = case.backend in ("nccl", "ucc", "xccl") and send.device.index is not None
    device_ids = [send.device.index] if has_gpu else None
    return partial(dist.barrier, group=at.group, device_ids=device_ids)


HALFWAY = 6e6  # alpha / beta in bytes: some 20 us for the host to issue a step, at 300 GB/s

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


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """Where a rank's tensors are for a backend other than NCCL: on the accelerator here where torch
    says that the backend is for such devices, else on the CPU, as for gloo. Raises CannotRun where
    it is for neither."""
    able = dist.Backend.backend_capability.get(name.lower(), ["cpu"])
    has_accelerator = torch.accelerator.is_available() and name != "gloo"
    accelerator = torch.accelerator.current_accelerator() if has_accelerator else None
    if accelerator is not None and accelerator.type in able:
        return torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    if "cpu" in able:
        return torch.device("cpu")
    situation = (
        f"the accelerator here is {accelerator.type}"
        if accelerator
        else "torch finds no accelerator here"
    )
    raise CannotRun(
        f"backend {name} is for tensors on {' or '.join(able)}, and {situation}",
        "install a torch build and a driver for them, or use --backend gloo, which runs on CPUs",
    )


def _set_device(index: int) -> None:
    """Makes an accelerator the current one, under the name that this torch has for it: 2.7 renamed
    2.6's."""
    choose = getattr(torch.accelerator, "set_device_index", None)
    (choose or torch.accelerator.set_device_idx)(index)


def _identify_device(device: torch.device) -> str:
    """The UUID of an accelerator, which is the same whatever number a rank has for it; empty where
    torch does not tell one."""
    module = getattr(torch, device.type, None)
    with suppress(Exception):  # whatever a vendor's module raises that has none
        return str(module.get_device_properties(device).uuid)  # type: ignore[union-attr]
    return ""


def is_any_shared(control: Control, device: torch.device) -> bool:
    """Whether any two ranks of one host have the same accelerator (all ranks call this together).
    One that torch does not identify goes by its number, and is its rank's own where the rank sees
    no other: its launcher has given it one."""
    name, host = _identify_device(device), environment.boot_id() or environment.host_name()
    if not name and device.index is not None and torch.accelerator.device_count() > 1:
        name, host = str(device), environment.host_name()
    seats = control.collect([host, name or f"of rank {control.rank}"])
    return len({tuple(seat) for seat in seats}) < len(seats)


class TorchDistributed(Base):
    """One torch.distributed backend, measured on a process group of its own beside the control
    group."""

    def __init__(self, name: str) -> None:
        self.name = self.label = name
        self.device = torch.device("cpu")
        self.premultiplies = name != "gloo"
        self.library = f"torch {torch.__version__} {name}"
        self._everyone: Any = (
            None  # the process group of all ranks, where this rank's is but one of several
        )
        self._alignment: Callable[[], object] | None = None  # once all ranks have agreed on it
        self._nccl: tuple[int, ...] = ()  # its version, once opened; of RCCL none
        self._registered: _cuda.Registered | None = None
        self._listener: ncclog.Listener | None = None

    def refuse(self, case: Case) -> str:
        if reason := _torch_refusal.refuse(case):
            return reason
        if case.algorithm == "native" and case.collective not in CALLS:
            return f"torch.distributed has no {case.collective}"
        return ""

    def copies_first(self, case: Case) -> bool:
        return case.algorithm == "native" and not case.in_place and case.collective in COPIES_FIRST

    def open(self, rank: int, n: int, local_rank: int) -> None:
        everyone = self._world = make_world_control() if self.control else Control(rank, n)
        if self.name == "nccl":
            self._take_seat(everyone, local_rank)
        else:
            self._take_place(everyone, local_rank)
        try:
            control = self.find_group(rank, n)
            near = self.near(control) if self.device.type == "cpu" else set()
            self._at = _Site(rank, n, control.open_group(self.name), near=near)
        except (RuntimeError, ValueError, AttributeError, AssertionError) as e:
            raise CannotRun(
                f"backend {self.name} cannot be opened: {first_line(e)}", self._choose_hint()
            ) from e
        if self.stream and self.control:
            self._everyone = make_world_control().open_group(self.name)
        if level := self.policy.register:
            self._registered = _cuda.Registered(self._at.group, everyone, self.device, level)

    def _choose_hint(self) -> str:
        """What to do where torch cannot open this backend."""
        modules = list_imports()
        if not modules or self.name.lower() in dist.Backend.backend_list:
            return "collbench doctor says what runs here"
        return f"no module of --import {','.join(modules)} registers it with torch.distributed"

    def _take_seat(self, control: Control, local_rank: int) -> None:
        self.device, sharers, how = _cuda.choose_seat(
            control, local_rank, self.policy.share_gpu, self.label
        )
        self.shared = sharers > 1
        with control.refusing_alike():
            _cuda.require_nvml(_cuda.library_name())
        self.stream = _cuda.settle_stream(self.device, control, self.policy.pin)
        self._token = torch.zeros(1, device=self.device)
        loaded = _cuda.nccl_version()
        self._nccl = () if torch.version.hip else loaded
        version, built = map(_cuda.format_version, (loaded, _cuda.built_nccl_version()))
        self.library = (
            f"{_cuda.library_name()} {version} (torch {torch.__version__}, built with {built})"
        )
        self.library += how
        self.library += (
            f", GPUs not watched: {why}" if (why := explain_unwatched(self.device)) else ""
        )
        if control.rank == 0 and self.label == self.name:
            self._listener = ncclog.start_listening()
            self.library += f", choices unknown: {why}" if (why := self._listener.why_not) else ""

    def _take_place(self, control: Control, local_rank: int) -> None:
        if self.name == "gloo":
            return
        with control.refusing_alike():
            self.device = choose_device(self.name, local_rank)
        if self.device.index is not None:
            _set_device(self.device.index)
        self.shared = is_any_shared(control, self.device)

    def allocate(self, nbytes: int) -> Tensor:
        self._room = _wire.Room(self.device)
        if self._registered:
            return self._registered.allocate(nbytes)
        if self.stream:
            torch.cuda.empty_cache()  # which NCCL's own allocations cannot reach
        memory: Tensor = super().allocate(nbytes)
        return memory

    def prepare(self, case: Case, send: Tensor, recv: Tensor) -> Call:
        at = self._at
        if self.control and count_placed_ranks(case.groups):
            at = at._replace(rank=self.control.rank, n=case.n, members=self.control.members)
        if case.algorithm != "native":
            return _wire.prepare_messages(
                case,
                send,
                recv,
                at.rank,
                at.group,
                self._room,
                halfway=HALFWAY if self.stream else _wire.HALFWAY,
                members=at.members,
                near=at.near,
            )
        issue = CALLS[case.collective](case, send, recv, at)
        submit = partial(issue, async_op=True)
        if self.copies_first(case) and (case.collective != "broadcast" or at.rank == case.root):
            # of a broadcast only the root's input counts
            return _after_copy(send, recv, issue, submit)
        unused = BY_MESSAGES.get(case.collective) if self._nccl >= (2, 28) else None
        note = (
            f"{case.collective}: torch calls ncclSend and ncclRecv instead of {unused}"
            if unused
            else ""
        )
        return Call(issue, submit, waits=case.collective in WAITING, note=note)

    def message(self, sends: bool, buffer: Tensor, peer: int, tag: int) -> Call:
        way = dist.isend if sends else dist.irecv
        global_peer = self._at.globally(peer)
        start: Callable[[], Any] = partial(way, buffer, global_peer, group=self._at.group, tag=tag)
        return Call(lambda: start().wait(), start)

    def message_batch(self, messages: Sequence[Message]) -> Call:
        # NCCL in torch has another communicator for a message outside of a batch: its other end may
        # be in a batch
        if len(messages) == 1 and self.device.type == "cpu":
            return self.message(*messages[0])
        at, near = self._at, self._at.near
        # to ranks of this machine sends come first, as in _wire._post_singly
        in_order = sorted(
            messages, key=lambda message: not (message.sends and message.peer in near)
        )
        batch = [
            dist.P2POp(
                dist.isend if message.sends else dist.irecv,
                message.buffer,
                at.globally(message.peer),
                at.group,
                message.tag,
            )
            for message in in_order
        ]
        return Call(lambda: _Joined(dist.batch_isend_irecv(batch)).wait(), None)

    def fuse_calls(self, case: Case, calls: Sequence[Call]) -> Callable[[], object] | None:
        if self.label != "nccl" or case.algorithm != "native" or case.collective not in FUSED:
            return None
        group, runs = self._at.group, [call.run for call in calls]

        def run_fused() -> None:
            with _coalescing_manager(group):
                for run in runs:
                    run()

        return run_fused

    def _choose_alignment(self) -> Callable[[], object]:
        """Align by a sum of one number; by messages if NCCL refuses all_reduce. All ranks choose
        alike, or all raise RuntimeError."""
        group, refusal = self._everyone or self._at.group, ""
        alignment = partial(dist.all_reduce, self._token, group=group)
        try:
            alignment()
        except dist.DistError as e:
            if not REFUSED.match(str(e)):
                raise
            refusal = first_line(e)
        refusals = self._world.collect(refusal)
        if not any(refusals):
            return alignment
        if not all(refusals):
            rank = next(rank for rank, reason in enumerate(refusals) if reason)
            raise RuntimeError(
                f"only some ranks refuse all_reduce: rank {rank}: {refusals[rank]}; "
                "set NCCL_ALGO alike on all hosts"
            )
        tokens = self._token.new_zeros(2, self._world.n)
        return partial(dist.all_to_all_single, tokens[0], tokens[1], group=group)

    def align(self) -> None:
        if self.stream:
            self._alignment = self._alignment or self._choose_alignment()
            self._alignment()

    def overheard(self, call: Callable[[], object]) -> Choice | None:
        def done() -> None:
            call()
            self.finish()

        if self._listener:
            return self._listener.overheard(done, self._at.n)
        if self.stream:  # the others' part of it
            done()
        return None

    def finish(self) -> None:
        if self.stream:
            self.stream.drain()
        elif self.device.index is not None:
            torch.accelerator.synchronize(self.device)  # a new thread's is GPU 0

    def close(self) -> None:
        if self._registered:
            self._registered.release()
        # none, where it did not open
        group_opened = self._at.group if hasattr(self, "_at") else None
        for group in filter(None, (group_opened, self._everyone)):
            dist.destroy_process_group(group)
        if self._listener:
            self._listener.close()


def _after_copy(
    send: Tensor, recv: Tensor, run: Callable[[], object], submit: Callable[[], Any]
) -> Call:
    def copy_and_run() -> None:
        recv.copy_(send)
        run()

    def copy_and_submit() -> Any:
        recv.copy_(send)
        return submit()

    return Call(copy_and_run, copy_and_submit)


def create(name: str) -> TorchDistributed:
    """The backend of this name, not opened."""
    return TorchDistributed(name)
