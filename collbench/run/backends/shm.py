"""Reference algorithms in memory that the ranks of one host share (``ring@shm``)."""

from __future__ import annotations

import os
import platform
from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.suite.case import Case


def create(name: str) -> Any:
    """The backend, not opened."""
    from collbench.run.backends._shm import SharedMemory

    return SharedMemory()


def refuse(case: Case) -> str:
    """Why shared memory never runs ``case``; else an empty string."""
    return "shm runs on CPUs and cannot be captured in a CUDA graph" * (case.mode == "graph")


def refuse_here() -> str:
    """Why this machine's memory does not do; else an empty string."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"shm relies on x86's store order, which {platform.machine()} does not give"
    return "" if hasattr(os, "memfd_create") else "shm needs Linux's memfd_create"


INFO = BackendInfo(
    about="algorithms in memory the ranks of one host share (ring@shm)",
    threads=1,
    native=False,
    messages=False,
    groups="partition",
    background="computation",
    refuse=refuse,
    here=refuse_here,
)
