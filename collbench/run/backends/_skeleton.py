"""A backend of your own: some collectives of numpy arrays, by a library that keeps its results.

    collbench backends check ./FILE.py
    collbench all_reduce --backend ./FILE.py,gloo -g 2

`collbench help backends` says what each part must do. Replace what stands for a library here
(messages of pickled arrays by torch's Gloo) by yours.
"""

from __future__ import annotations

from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.run.backends import Base, Call

REDUCE = {"sum": "add", "min": "minimum", "max": "maximum"}  # numpy's names
DTYPES = ("float", "double", "int32", "int64")


def refuse(case: Any) -> str:
    """Why the library never runs ``case``; else an empty string."""
    if case.collective not in ("all_reduce", "all_gather", "broadcast"):
        return f"this library has no {case.collective}"
    if case.in_place:
        return "this library does nothing in place (--place out)"
    if case.dtype not in DTYPES:
        return f"this library has no datatype {case.dtype}"
    if case.row.reduces and case.op not in REDUCE:
        return f"this library does not reduce by {case.op}"
    return ""


INFO = BackendInfo(  # read without torch or the library: import them below, where they are used
    about="numpy arrays, pickled and sent by Gloo: an example",
    packages=("numpy",),  # whose versions decide times
    threads=2,  # of a rank that must run at once
    messages=False,  # none from rank to rank for --algo; only the library's own collectives
    groups="partition",  # --split works if every rank is in a group, which find_group gives
    background="none",
    owns_results=True,
    contract=1,
    refuse=refuse,
)


def create(name: str) -> Any:
    """The backend, not opened."""
    return Example()


class Example(Base):
    """Runs collectives of numpy arrays; put your library here."""

    def open(self, rank: int, n: int, local_rank: int) -> None:
        """Join ``n`` ranks. Raise CannotRun(message, hint) where that cannot be done."""
        import numpy

        self._n = n
        self._group = self.find_group(rank, n).open_group("gloo")
        self.library = f"numpy {numpy.__version__}, pickled"

    def prepare(self, case: Any, send: Any, recv: Any) -> Call:
        """The call on torch tensors: nothing in here is timed but ``run``."""
        import numpy
        import torch
        import torch.distributed as dist

        array: Any = None
        result: Any = None

        def load() -> None:
            nonlocal array, result
            array, result = send.numpy().copy(), None

        def run() -> None:
            nonlocal result
            arrays: list[Any] = [None] * self._n
            dist.all_gather_object(arrays, array, group=self._group)
            if case.collective == "all_reduce":
                result = getattr(numpy, REDUCE[case.op]).reduce(arrays)
            elif case.collective == "broadcast":
                result = arrays[case.root]
            else:
                result = numpy.concatenate(arrays)

        def store() -> None:
            if result is not None:
                recv.copy_(torch.from_numpy(result))

        return Call(run, None, load=load, store=store)
