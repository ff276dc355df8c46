"""Everything that can run a case. A backend is a module in this package, found by its file name.

A name without a module of its own is taken for a torch.distributed backend (``gloo``, ``nccl``, ``ucc``, a plug-in's).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from collbench.suite import Case

TRANSPORTS = frozenset({"shm"})  # carry reference algorithms only


class Call(NamedTuple):
    """A prepared call: ``run()`` returns when this rank is done, or on a device when all is issued (see finish);
    ``submit()`` returns a handle with ``wait()``, None where a call cannot be left to itself. ``ran`` names a reference
    algorithm with all its parameters."""

    run: Callable[[], object]
    submit: Callable[[], Any] | None
    ran: str = ""


class Backend(Protocol):
    """What the worker needs of anything that runs collectives. Buffers are 1-D tensors of the case's dtype."""

    @property
    def device(self) -> Any:
        """The torch device that holds this rank's buffers."""

    @property
    def premultiplies(self) -> bool:
        """Whether avg scales inputs by 1/n before adding, and so may differ from dividing the sum by 2 ulp."""

    @property
    def library(self) -> str:
        """Name and version of what does the work."""

    def why_not(self, case: Case) -> str | None:
        """Why this backend cannot run ``case`` on any machine, or None."""

    def copies_first(self, case: Case) -> bool:
        """Whether the timed call starts with a copy, for want of such an out-of-place collective."""

    def open(self, rank: int, n: int, local_rank: int) -> None:
        """Join the world; called once, before any prepare, by all ranks. Raises CannotRun with the reason."""

    def allocate(self, nbytes: int) -> Any:
        """A 1-D uint8 tensor for all buffers of one case, which all ranks cut up alike; the last is out of use."""

    def prepare(self, case: Case, send: Any, recv: Any) -> Call:
        """Resolve everything that can be resolved before the clock starts. In place, both views share memory."""

    def finish(self) -> None:
        """Wait until the device has done all that was issued; nothing to do where calls return when they are done."""

    def close(self) -> None:
        """Leave the world."""


def find(name: str) -> Backend:
    """The backend called ``name``."""
    if importlib.util.find_spec(f"collbench.backends.{name}") and not name.startswith("_"):
        backend: Backend = importlib.import_module(f"collbench.backends.{name}").create(name)
        return backend
    from collbench.backends import torchdist

    return torchdist.create(name)


def why_never(case: Case) -> str:
    """Why ``case`` can run on no machine, as far as the backend's name tells; else an empty string."""
    if case.backend in TRANSPORTS and case.algorithm == "native":
        return f"{case.backend} is no library with a choice of its own: name an algorithm (--algo ring)"
    if case.op == "premul_sum" and case.algorithm != "native":
        return "premul_sum is an NCCL reduction; reference algorithms have none"
    return ""


def is_predicted(name: str) -> bool:
    """Whether ``name`` computes times instead of measuring them."""
    return name == "model"
