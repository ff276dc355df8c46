"""Gloo: torch.distributed's library for CPUs, and algorithms by its messages (``ring@gloo``)."""

from __future__ import annotations

from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.core.errors import CannotRun
from collbench.run.backends._torch_refusal import refuse
from collbench.suite.case import Case

# datatypes that torch's Gloo refuses but in messages between two ranks
LACKS = ("uint32", "uint64", "f8e4m3", "f8e5m2")


def may_refuse(case: Case) -> bool:
    """Whether Gloo is known to refuse such a case, which it says only when it is asked."""
    library = case.algorithm == "native" and not case.row.pairwise
    return library and (case.dtype in LACKS or (case.op == "avg" and case.type.kind != "float"))


def find() -> str:
    """What there is of Gloo here. Raises CannotRun where this torch has none."""
    import torch.distributed as dist

    if not dist.is_gloo_available():
        raise CannotRun("this torch was built without Gloo", "install another: pytorch.org")
    return "CPU ranks"


INFO = BackendInfo(
    about="torch.distributed on CPUs; algorithms by its messages (ring@gloo)",
    threads=2,
    lacks=("scan",),
    refuse=refuse,
    may_refuse=may_refuse,
    find=find,
)


def create(name: str) -> Any:
    """The backend, not opened."""
    from collbench.run.backends._torchdist import TorchDistributed

    return TorchDistributed(name)
