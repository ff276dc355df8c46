"""torch's own collective kernels on symmetric memory, as libraries of one algorithm each:
``torch_one_shot`` …

They are torch.ops.symm_mem, which torch.compile and inference engines call. All buffers lie in
memory that every rank maps at rendezvous. One-shot kernels read what their peers must not overwrite
meanwhile; in place they first copy the input aside, all in one kernel. Two-shot kernels leave the
result where the input was; out of place the call is a copy followed by the collective.
"""

from __future__ import annotations

from functools import partial

import torch

from collbench.core.errors import CannotRun
from collbench.run.backends import Call, _cuda, _memory, _torch_kernels
from collbench.run.backends._torch_kernels import LANE, LEAST, WAYS, Site
from collbench.run.backends._torchdist import TorchDistributed
from collbench.run.rank.control import Control
from collbench.suite.case import Case

Tensor = torch.Tensor


class TorchSymmetric(TorchDistributed):
    """One family of torch's kernels. It has its devices, stream and alignment from the nccl
    backend."""

    def __init__(self, label: str) -> None:
        super().__init__("nccl")
        self.premultiplies = False
        self.label, self._ways = label, WAYS[label]
        self._multicast = label.startswith("torch_multimem")

    def refuse(self, case: Case) -> str:
        if reason := _torch_kernels.refuse(case):
            return reason
        if not hasattr(torch.ops.symm_mem, self._ways[case.collective, case.in_place].op):
            return f"{self.label} is of newer torch than {torch.__version__}"
        return ""

    def copies_first(self, case: Case) -> bool:
        way = self._ways.get((case.collective, case.in_place))
        return way is not None and way.copies

    def open(self, rank: int, n: int, local_rank: int) -> None:
        super().open(rank, n, local_rank)
        self._ranks = Control(rank, n)
        # torch hands memory over by sockets of this host, and other hosts' ranks would wait
        _memory.one_host(self._ranks, self.label, "--backend nccl joins hosts")
        with self._ranks.refusing_alike():
            if self._multicast and _cuda.lacks_multicast(self.device):
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
        """A spare tensor like ``like`` in symmetric memory, which all calls share, one after the
        other."""
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
        site = Site(self._at.group.group_name, self._aside)
        run = partial(
            getattr(torch.ops.symm_mem, way.op).default, *way.arguments(case, send, recv, site)
        )

        def copy_and_run() -> None:
            recv.copy_(send)
            run()

        return Call(copy_and_run if way.copies else run, None)
