"""Paddle's collectives on CPUs (its own Gloo), in torch's memory.

collbench all_reduce --backend tests/backends/paddle_file.py,gloo -g 2 -b 8 -e 1M
"""

from __future__ import annotations

import importlib.util
import os
from functools import partial
from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.run.backends import Base, Call

OPS = {"sum": "SUM", "min": "MIN", "max": "MAX", "prod": "PROD"}
DTYPES = ("int8", "uint8", "int32", "int64", "half", "float", "double")
IN_PLACE = ("all_reduce", "reduce", "broadcast")  # calls that have one buffer
CALLS = (*IN_PLACE, "all_gather", "scatter", "barrier")


def refuse(case: Any) -> str:
    """Why Paddle never runs ``case`` on CPUs; else an empty string."""
    if case.collective not in CALLS:
        return f"Paddle has no {case.collective} on CPUs in one call"
    if case.row.moves_data and case.dtype not in DTYPES:
        return f"Paddle's Gloo has no datatype {case.dtype}"
    if case.row.reduces and case.op not in OPS:
        return f"Paddle's Gloo has no reduction {case.op}"
    if case.row.reduces and case.dtype == "half":
        return "Paddle's Gloo reduces half wrongly: the sum of 1 and 2 is inf (3.3.1)"
    if case.in_place and case.collective not in IN_PLACE:
        return f"Paddle's {case.collective} has two buffers"
    if case.n == 1:
        return "Paddle has no world of one rank"
    return ""


def here() -> str:
    """Why no rank of this machine can use Paddle; else an empty string."""
    found = importlib.util.find_spec("paddle")
    return "" if found else "Paddle is not installed: pip install paddlepaddle"


INFO = BackendInfo(
    about="Paddle's collectives on CPUs, by its own Gloo",
    packages=("paddlepaddle",),
    settings=("PADDLE_", "FLAGS_"),
    threads=2,
    binds=False,
    rank_bytes=600 << 20,
    messages=False,
    groups="partition",
    worlds="one",
    background="none",
    refuse=refuse,
    here=here,
    name="paddle",
    contract=1,
)


def create(name: str) -> Any:
    """The backend, not opened."""
    return Paddle()


class Paddle(Base):
    """Calls of paddle.distributed.stream, which return when they are done."""

    def copies_first(self, case: Any) -> bool:
        return not case.in_place and case.collective in IN_PLACE

    def open(self, rank: int, n: int, local_rank: int) -> None:
        everyone = self.find_group(rank, n).collect(self.find_free_address())
        os.environ |= {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": str(n),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(everyone),
            "PADDLE_CURRENT_ENDPOINT": everyone[rank],
            "PADDLE_MASTER": everyone[0],
            "PADDLE_DISTRI_BACKEND": "gloo",
        }
        import paddle

        paddle.distributed.init_parallel_env()
        self._rank = rank
        self.library = f"Paddle {paddle.__version__}, gloo"
        assert (paddle.distributed.get_rank(), paddle.distributed.get_world_size()) == (rank, n)

    def prepare(self, case: Any, send: Any, recv: Any) -> Call:
        import paddle
        from paddle.distributed import ReduceOp, barrier, stream

        if case.collective == "barrier":
            return Call(barrier, None)
        call = getattr(stream, case.collective)
        rooted = {"reduce": "dst", "broadcast": "src", "scatter": "src"}.get(case.collective)
        options = {rooted: case.root} if rooted else {}
        options |= {"op": getattr(ReduceOp, OPS[case.op])} if case.row.reduces else {}
        source, target = (paddle.utils.dlpack.from_dlpack(tensor) for tensor in (send, recv))
        assert target.data_ptr() == recv.data_ptr(), "Paddle works in a copy"
        if case.collective == "scatter" and self._rank != case.root:
            source = None  # as Paddle wants it
        if case.collective not in IN_PLACE:
            return Call(partial(call, target, source, **options), None)
        run = partial(call, target, **options)
        return Call(run if case.in_place else lambda: (recv.copy_(send), run()), None)
