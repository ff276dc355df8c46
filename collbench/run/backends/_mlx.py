"""MLX's ring: collectives of arrays that are evaluated when they are asked for.

MLX's arrays do not change and live in memory of its own: inputs are copied there before the clock
starts, results are copied from there after it. Ranks find each other by a file of addresses; a
process can be in one ring only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from collbench.core.errors import CannotRun, first_line
from collbench.run.backends import Base, Call
from collbench.run.backends._addresses import find_free_address
from collbench.run.backends._mlx_names import COLLECTIVES, CORELESS, MISSING
from collbench.run.launch.folders import make_private
from collbench.suite.case import Case

TYPES = {"half": "float16", "float": "float32", "double": "float64"}  # where MLX's name differs

Tensor = torch.Tensor


def load_mlx() -> Any:
    """The module mlx.core, set to work on CPUs. Raises CannotRun with the reason."""
    try:
        import mlx.core as mx
    except ImportError as e:
        if (e.name or "") == "mlx":
            raise CannotRun(*MISSING.split(": ", 1)) from e
        hint = CORELESS.split(": ", 1)[1] + "; it needs libstdc++ and libgcc_s of the system alone"
        raise CannotRun(f"mlx cannot be loaded: {first_line(e)}", hint) from e
    mx.set_default_device(mx.cpu)
    return mx


class Mlx(Base):
    """Collectives of mlx.core.distributed."""

    def open(self, rank: int, n: int, local_rank: int) -> None:
        control = self.find_group(rank, n)
        with control.refusing_alike():
            self._mx = load_mlx()
            address = find_free_address()
        self._rank, self._n = rank, n
        # a send waits in its stream until all is sent, so that receives need one of their own
        self._sending = self._mx.new_stream(self._mx.cpu)
        self._ring = self._join_ring(control.collect(address)) if n > 1 else None
        self.library = f"mlx {self._mx.__version__}, ring over TCP"

    def _join_ring(self, addresses: list[str]) -> Any:
        """The ring of ranks that listen at ``addresses``. Raises CannotRun."""
        with make_private() as folder:
            path = folder / "ranks.json"
            path.write_text(json.dumps([[address] for address in addresses]))
            os.environ.update(MLX_RANK=str(self._rank), MLX_HOSTFILE=str(path))
            try:
                ring = self._mx.distributed.init(strict=True, backend="ring")
            except (RuntimeError, ValueError) as e:
                raise CannotRun(
                    f"MLX makes no ring of {', '.join(addresses)[:200]}: {first_line(e)}",
                    "set GLOO_SOCKET_IFNAME to an interface that all hosts reach",
                ) from e
            finally:
                del os.environ["MLX_RANK"], os.environ["MLX_HOSTFILE"]
        if (ring.rank(), ring.size()) != (self._rank, self._n):
            raise CannotRun(
                f"MLX is rank {ring.rank()} of {ring.size()}, not {self._rank} of {self._n}",
                "a process can be in one ring only",
            )
        return ring

    def prepare(self, case: Case, send: Tensor, recv: Tensor) -> Call:
        mx, issue = self._mx, self._choose_call(case, len(recv))
        one = mx.ones(1)
        mx.eval(one)
        given: Any = None
        result: Any = None

        def load() -> None:
            nonlocal given, result
            given, result = self._copy_to_mlx(case, send), None

        def run() -> None:
            nonlocal result
            made = issue(given)
            mx.eval(*made)
            result = made[-1]

        def store() -> None:
            if result is not None:
                made = np.array(result.view(mx.uint8), copy=False)
                np.copyto(recv.view(torch.uint8).numpy(), made)

        def run_bare() -> None:
            mx.eval(mx.negative(one))

        return Call(run, None, bare=run_bare, load=load, store=store)

    def _copy_to_mlx(self, case: Case, send: Tensor) -> Any:
        """An array of MLX's with the elements of ``send``."""
        mx, kind = self._mx, TYPES.get(case.dtype, case.dtype)
        if kind == "bfloat16":  # which numpy has not
            array = mx.array(send.view(torch.uint16).numpy()).view(mx.bfloat16)
        else:
            array = mx.array(send.numpy(), dtype=getattr(mx, kind))
        mx.eval(array)
        return array

    def _choose_call(self, case: Case, count: int) -> Callable[[Any], tuple[Any, ...]]:
        """A function that returns the arrays to evaluate, the result last."""
        distributed, ring = self._mx.distributed, self._ring
        if case.collective == "sendrecv":
            following, previous = (self._rank + 1) % self._n, (self._rank - 1) % self._n
            return lambda given: (
                distributed.send(given, following, group=ring, stream=self._sending),
                distributed.recv((count,), given.dtype, previous, group=ring),
            )
        function = getattr(distributed, COLLECTIVES[case.collective][case.op])
        return lambda given: (function(given, group=ring),)
