"""torch's own collective kernels on symmetric memory, as libraries of one algorithm each:
``torch_one_shot`` …

They are torch.ops.symm_mem, which torch.compile and inference engines call. All buffers lie in
memory that every rank maps at rendezvous. One-shot kernels read what their peers must not overwrite
meanwhile; in place they first copy the input aside, all in one kernel. Two-shot kernels leave the
result where the input was; out of place the call is a copy followed by the collective.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from collbench.core.errors import CannotRun, UsageError
from collbench.run.backends import Call, _cuda
from collbench.run.backends.torchdist import TorchDistributed
from collbench.run.rank.control import Control
from collbench.suite.case import Case

LANE = 16  # bytes that a thread moves at once at most


LEAST = 4  # and at least


Tensor = torch.Tensor


class _Site(NamedTuple):
    """The group's name, and ``aside(tensor)``: symmetric memory of a tensor's length and
    alignment."""

    group: str
    aside: Callable[[Tensor], Tensor]


class _Way(NamedTuple):
    """How a collective is done: an op of torch.ops.symm_mem and its arguments; whether the input is
    copied to the output first; the numbers of ranks it was compiled for, none for any."""

    op: str
    arguments: Callable[[Case, Tensor, Tensor, _Site], tuple[Any, ...]]
    copies: bool = False
    worlds: tuple[int, ...] = ()


def _to_output(case: Case, send: Tensor, recv: Tensor, at: _Site) -> tuple[Any, ...]:
    return send, "sum", at.group, recv


def _by_way_of_another(case: Case, send: Tensor, recv: Tensor, at: _Site) -> tuple[Any, ...]:
    return at.aside(send), send, "sum", at.group, recv


def _where_it_is(case: Case, send: Tensor, recv: Tensor, at: _Site) -> tuple[Any, ...]:
    return recv, "sum", at.group


def _to_root(case: Case, send: Tensor, recv: Tensor, at: _Site) -> tuple[Any, ...]:
    return send, "sum", case.root, at.group, recv


def _gathering(case: Case, send: Tensor, recv: Tensor, at: _Site) -> tuple[Any, ...]:
    return send, at.group, recv


def _scattering(case: Case, send: Tensor, recv: Tensor, at: _Site) -> tuple[Any, ...]:
    return send, at.group, False, recv


_SCATTER = _Way("reduce_scatter_out", _scattering, worlds=(2, 4, 8))


_GATHER = _Way("multimem_all_gather_out", _gathering)


_REDUCE = _Way("multimem_one_shot_reduce_out", _to_root)


# (collective, in place) -> how. In place, a block that is a rank's own is touched by nobody else,
# nor is a root's input by anybody before it is read; whole inputs are.
WAYS: dict[str, dict[tuple[str, bool], _Way]] = {
    "torch_one_shot": {
        ("all_reduce", False): _Way("one_shot_all_reduce_out", _to_output),
        ("all_reduce", True): _Way("one_shot_all_reduce_copy_out", _by_way_of_another),
    },
    "torch_two_shot": {
        ("all_reduce", False): _Way("two_shot_all_reduce_", _where_it_is, copies=True),
        ("all_reduce", True): _Way("two_shot_all_reduce_", _where_it_is),
        ("reduce_scatter", False): _SCATTER,
        ("reduce_scatter", True): _SCATTER,
    },
    "torch_multimem": {
        ("all_reduce", False): _Way("multimem_all_reduce_", _where_it_is, copies=True),
        ("all_reduce", True): _Way("multimem_all_reduce_", _where_it_is),
        ("all_gather", False): _GATHER,
        ("all_gather", True): _GATHER,
    },
    "torch_multimem_one_shot": {
        ("all_reduce", False): _Way("multimem_one_shot_all_reduce_out", _to_output),
        ("reduce", False): _REDUCE,
        ("reduce", True): _REDUCE,
    },
}


class TorchSymmetric(TorchDistributed):
    """One family of torch's kernels. It has its devices, stream and alignment from the nccl
    backend."""

    def __init__(self, label: str) -> None:
        super().__init__("nccl")
        self.premultiplies = False
        self.label, self._ways = label, WAYS[label]
        self._multicast = label.startswith("torch_multimem")

    def why_not(self, case: Case) -> str | None:
        way = self._ways.get((case.collective, case.in_place))
        if way is None:
            known = dict.fromkeys(collective for collective, _ in self._ways)
            if case.collective in known:
                return f"{self.label} reads what in place is overwritten (--place out)"
            return f"{self.label} has no {case.collective}, only {', '.join(known)}"
        numbers = ", ".join(map(str, way.worlds)) or "2 or more"
        block, whole = (pick(case.counts) * case.type.size for pick in (min, max))
        lane = math.gcd(whole, LANE)  # threads move what divides the whole buffer
        reasons = {
            "is one algorithm of torch's; reference algorithms run on symm": (
                case.algorithm != "native"
            ),
            f"is for {numbers} ranks, not {case.n}": (
                case.n < 2 or case.n not in (way.worlds or (case.n,))
            ),
            f"can only sum, not {case.op}": case.op not in ("none", "sum"),
            f"adds float and bfloat16, not {case.dtype}": (
                case.row.reduces and case.dtype not in ("float", "bfloat16")
            ),
            f"is of newer torch than {torch.__version__}": not hasattr(torch.ops.symm_mem, way.op),
            f"takes multiples of {LEAST} bytes, not {block}": (
                block % max(LEAST, case.type.size) != 0
            ),
            (
                f"moves {lane} bytes at once, which blocks of {block} are no multiple of "
                f"(--align {LANE})"
            ): block % lane != 0,
        }
        return next((f"{self.label} {reason}" for reason, holds in reasons.items() if holds), None)

    def copies_first(self, case: Case) -> bool:
        way = self._ways.get((case.collective, case.in_place))
        return way is not None and way.copies

    def open(self, rank: int, n: int, local_rank: int) -> None:
        super().open(rank, n, local_rank)
        self._ranks = Control(rank, n)
        with self._ranks.refusing_alike():
            if self._multicast and not _cuda.has_multicast(self.device):
                name = torch.cuda.get_device_name(self.device)
                raise CannotRun(
                    f"{self.label} needs NVLink multicast, which {name} does not have here",
                    "try torch_two_shot",
                )
        self._symmetric(LANE)  # so that what cannot work is known before any case
        self.library = f"torch {torch.__version__} symmetric memory"

    def allocate(self, nbytes: int) -> Tensor:
        self._spare: Tensor | None = None
        if self.stream:
            torch.cuda.empty_cache()  # which symmetric memory is not taken from
        return self._symmetric(nbytes)

    def _symmetric(self, nbytes: int) -> Tensor:
        """Memory that every rank maps (all ranks call this together)."""
        memory, _ = _cuda.map_symmetric(
            self._ranks, nbytes, self.device, self._at.group.group_name, self._multicast
        )
        return memory

    def _aside(self, like: Tensor) -> Tensor:
        """One after the other, calls share it."""
        nbytes, shift = like.numel() * like.itemsize, like.data_ptr() % LANE
        if self._spare is None or len(self._spare) < nbytes + LANE:
            self._spare = self._symmetric(nbytes + LANE)
        return self._spare[shift : shift + nbytes].view(like.dtype)

    def prepare(self, case: Case, send: Tensor, recv: Tensor) -> Call:
        if (shift := send.data_ptr() % LANE) % max(LEAST, case.type.size):
            raise CannotRun(
                f"{self.label} takes buffers {shift} bytes off only where {LEAST} divide it",
                "leave -u out",
            )
        way = self._ways[case.collective, case.in_place]
        site = _Site(self._at.group.group_name, self._aside)
        run = partial(
            getattr(torch.ops.symm_mem, way.op).default, *way.arguments(case, send, recv, site)
        )

        def copy_and_run() -> None:
            recv.copy_(send)
            run()

        return Call(copy_and_run if way.copies else run, None)


def create(name: str) -> TorchSymmetric:
    if name not in WAYS:
        raise UsageError(f"{name} is the module of several backends", f"one of {', '.join(WAYS)}")
    return TorchSymmetric(name)
