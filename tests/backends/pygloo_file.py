"""pygloo: Gloo for Ray's collectives, on torch's memory by its address.

It has wheels for Python 3.10 and before, and collbench runs on 3.11: this file was never run by
collbench. Its calls were made by hand in Python 3.10, on memory of numpy's.

collbench all_reduce --backend tests/backends/pygloo_file.py,gloo -g 2 -b 8 -e 1M
"""

from __future__ import annotations

import importlib.util
import tempfile
from functools import partial
from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.run.backends import Base, Call

OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}
DTYPES = {"half": "Float16", "float": "Float32", "double": "Float64", "int8": "Int8"}
DTYPES |= {"uint8": "Uint8", "int32": "Int32", "uint32": "Uint32"}
DTYPES |= {"int64": "Int64", "uint64": "Uint64"}
CALLS = {"all_reduce": "allreduce", "all_gather": "allgather"}
CALLS |= {name: name for name in ("broadcast", "reduce", "gather", "scatter", "barrier")}


def refuse(case: Any) -> str:
    """Why pygloo never runs ``case``; else an empty string."""
    if case.collective not in CALLS:
        return f"pygloo has no {case.collective} that leaves its input as it is"
    if case.row.moves_data and case.dtype not in DTYPES:
        return f"pygloo has no datatype {case.dtype}"
    if case.row.reduces and case.op not in OPS:
        return f"pygloo has no reduction {case.op}"
    if case.in_place and case.collective not in ("all_reduce", "reduce", "broadcast"):
        return f"pygloo's {case.collective} has two buffers"
    return ""


def here() -> str:
    """Why no rank of this machine can use pygloo; else an empty string."""
    found = importlib.util.find_spec("pygloo")
    return "" if found else "pygloo is not installed: pip install pygloo"


INFO = BackendInfo(
    about="Gloo by pygloo, Ray's binding",
    packages=("pygloo",),
    threads=2,
    binds=False,
    messages=False,
    groups="partition",
    background="none",
    refuse=refuse,
    here=here,
    name="pygloo",
    contract=1,
)


def create(name: str) -> Any:
    """The backend, not opened."""
    return Pygloo()


class Pygloo(Base):
    """pygloo's calls, which return when they are done. Ranks of one host meet in a folder."""

    def open(self, rank: int, n: int, local_rank: int) -> None:
        from importlib.metadata import version

        import pygloo

        folder = tempfile.mkdtemp(prefix="collbench-pygloo-") if rank == 0 else None
        folder = self.find_group(rank, n).broadcast(folder)
        address = pygloo.transport.tcp.attr("127.0.0.1")
        self._rank, self._context = rank, pygloo.rendezvous.Context(rank, n)
        self._context.connectFullMesh(
            pygloo.rendezvous.FileStore(folder), pygloo.transport.tcp.CreateDevice(address)
        )
        self.library = f"pygloo {version('pygloo')}"

    def prepare(self, case: Any, send: Any, recv: Any) -> Call:
        import pygloo

        call = partial(getattr(pygloo, CALLS[case.collective]), self._context)
        if case.collective == "barrier":
            return Call(call, None)
        source: Any = send.data_ptr()
        if case.collective == "scatter":  # an address for each rank, at the root
            blocks = range(case.n) if self._rank == case.root else ()
            source = [source + block * case.counts[1] * case.type.size for block in blocks]
        values = [source, recv.data_ptr(), min(case.counts)]
        values += [getattr(pygloo.glooDataType_t, f"gloo{DTYPES[case.dtype]}")]
        values += [getattr(pygloo.ReduceOp, OPS[case.op])] if case.row.reduces else []
        return Call(partial(call, *values, **{"root": case.root} if case.row.rooted else {}), None)
