"""XGBoost's collective module: what its boosters add histograms with, as numpy arrays.

collbench all_reduce --backend tests/backends/xgboost_file.py,gloo -g 2 -b 8 -e 1M
"""

from __future__ import annotations

import importlib.util
import socket
from contextlib import suppress
from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.run.backends import Base, Call

OPS = {"sum": "SUM", "min": "MIN", "max": "MAX"}
OPS |= {"band": "BITWISE_AND", "bor": "BITWISE_OR", "bxor": "BITWISE_XOR"}
LACKS = ("half", "bfloat16", "f8e4m3", "f8e5m2")  # half is known, but there is no reduction of it


def refuse(case: Any) -> str:
    """Why XGBoost never runs ``case``; else an empty string."""
    if case.collective not in ("all_reduce", "broadcast"):
        return f"XGBoost has no {case.collective}"
    if case.in_place:
        return "XGBoost's calls return new arrays, never in place"
    if case.row.reduces and case.op not in OPS:
        return f"XGBoost has no reduction {case.op}"
    if case.row.reduces and case.dtype in LACKS:
        return f"XGBoost reduces no {case.dtype}"
    return ""


def here() -> str:
    """Why no rank of this machine can use XGBoost; else an empty string."""
    found = importlib.util.find_spec("xgboost")
    return "" if found else "XGBoost is not installed: pip install xgboost"


INFO = BackendInfo(
    about="XGBoost's collective module (Rabit) on numpy arrays",
    packages=("xgboost",),
    settings=("DMLC_",),
    threads=2,  # a call is done by a thread of its own, for which the caller waits
    messages=False,
    groups="partition",
    worlds="one",  # the communicator is the process's
    background="none",
    owns_results=True,
    call_path="a copy of the input (all_reduce), pickling (broadcast)",
    refuse=refuse,
    here=here,
    name="xgboost",
    contract=1,
)


def create(name: str) -> Any:
    """The backend, not opened."""
    return XGBoost()


class XGBoost(Base):
    """Calls of xgboost.collective. Rank 0 of a group has the tracker at which ranks meet."""

    _tracker: Any = None

    def copies_first(self, case: Any) -> bool:
        return bool(case.collective == "all_reduce")

    def open(self, rank: int, n: int, local_rank: int) -> None:
        from xgboost import __version__, collective
        from xgboost.tracker import RabitTracker

        arguments = None
        if rank == 0:
            host = "127.0.0.1" if len(set(self.hosts)) < 2 else socket.gethostname()
            self._tracker = RabitTracker(n, socket.gethostbyname(host), sortby="task")
            self._tracker.start()
            arguments = self._tracker.worker_args()
        arguments = self.find_group(rank, n).broadcast(arguments)
        collective.init(**arguments, dmlc_task_id=f"{rank:08}")  # ranks are sorted by this text
        self.library = f"XGBoost {__version__}"
        assert (collective.get_rank(), collective.get_world_size()) == (rank, n)

    def prepare(self, case: Any, send: Any, recv: Any) -> Call:
        import torch
        from xgboost import collective

        if not case.row.reduces:  # any object is sent: of all datatypes, their bytes
            send, recv = send.view(torch.uint8), recv.view(torch.uint8)
        array, output, result = send.numpy(), recv.numpy(), None
        op = collective.Op[OPS[case.op]] if case.row.reduces else None

        def load() -> None:  # calls read torch's memory themselves
            nonlocal result
            result = None

        def run() -> None:
            nonlocal result
            if op is None:
                result = collective.broadcast(array, case.root)
            else:
                result = collective.allreduce(array, op)

        def store() -> None:
            if result is not None:
                output[:] = result

        return Call(run, None, load=load, store=store)

    def close(self) -> None:
        from xgboost import collective

        collective.finalize()
        if self._tracker:
            with suppress(ValueError):  # a rank is gone
                self._tracker.wait_for(timeout=2)
