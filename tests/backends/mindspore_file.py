"""MindSpore's collective operations on CPUs, each of new tensors.

collbench all_reduce --backend tests/backends/mindspore_file.py,gloo -g 2 -b 8 -e 1M
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.run.backends import Base, Call

REDUCED = ("half", "float")  # the datatypes that are
DTYPES = ("int32", "half", "float")
WIDE = ("int64", "double")
CALLS = ("all_reduce", "all_gather", "broadcast")
SCHEDULER = "import mindspore as m; m.set_device('CPU'); m.communication.init()"


def refuse(case: Any) -> str:
    """Why MindSpore never runs ``case`` on CPUs; else an empty string."""
    if case.collective not in CALLS:
        return f"MindSpore has no {case.collective} on CPUs"
    if case.dtype in WIDE:
        return f"MindSpore cuts {case.dtype} down to 32 bits on CPUs, in silence (2.10.0)"
    if case.dtype not in DTYPES:
        return f"MindSpore's collectives have no datatype {case.dtype} on CPUs"
    if case.row.reduces and (case.op != "sum" or case.dtype not in REDUCED):
        return f"MindSpore has no {case.op} of {case.dtype} on CPUs"
    if case.in_place:
        return "MindSpore's operations return new tensors, never in place"
    return ""


def here() -> str:
    """Why no rank of this machine can use MindSpore; else an empty string."""
    found = importlib.util.find_spec("mindspore")
    return "" if found else "MindSpore is not installed: pip install mindspore"


INFO = BackendInfo(
    about="MindSpore's collective operations on CPUs",
    packages=("mindspore",),
    settings=("MS_",),
    threads=2,
    binds=False,
    rank_bytes=1 << 30,
    messages=False,
    groups="partition",
    worlds="one",
    background="none",
    owns_results=True,
    call_path="dispatch of an operation",
    refuse=refuse,
    here=here,
    name="mindspore",
    contract=1,
)


def create(name: str) -> Any:
    """The backend, not opened."""
    return MindSpore()


class MindSpore(Base):
    """Operations of a cluster, whose scheduler is a process of rank 0's."""

    _scheduler: subprocess.Popen[bytes] | None = None

    def open(self, rank: int, n: int, local_rank: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:  # where ranks of this host meet
            port = self.find_group(rank, n).broadcast(free.getsockname()[1])
        place = {"MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": str(port), "MS_WORKER_NUM": str(n)}
        os.environ |= place | {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)}
        if rank == 0:
            command, environ = (
                [sys.executable, "-c", SCHEDULER],
                {**os.environ, "MS_ROLE": "MS_SCHED"},
            )
            self._scheduler = subprocess.Popen(command, env=environ)
        import mindspore

        mindspore.set_device("CPU")
        mindspore.communication.init()
        self._ms = mindspore
        self.library = f"MindSpore {mindspore.__version__}"
        joined = mindspore.communication.get_rank(), mindspore.communication.get_group_size()
        assert joined == (rank, n), joined

    def prepare(self, case: Any, send: Any, recv: Any) -> Call:
        ms, array, output, source, result = self._ms, send.numpy(), recv.numpy(), None, None
        if case.collective == "all_reduce":
            call = ms.ops.AllReduce()
        else:
            broadcasts = case.collective == "broadcast"
            call = ms.ops.Broadcast(case.root) if broadcasts else ms.ops.AllGather()

        def load() -> None:
            nonlocal source, result
            tensor, result = ms.Tensor(array), None
            source = (tensor,) if case.collective == "broadcast" else tensor

        def run() -> None:
            nonlocal result
            result = call(source)
            ms.runtime.synchronize()

        def store() -> None:
            if result is not None:
                output[:] = (result[0] if isinstance(result, tuple) else result).asnumpy()

        return Call(run, None, load=load, store=store)

    def close(self) -> None:
        if self._scheduler:
            self._scheduler.terminate()
            self._scheduler.wait()
