"""What tests need beside this package: where it is missing they are skipped, or fail where
COLLBENCH_NEED names it."""

from __future__ import annotations

import importlib.util
import os
from typing import NoReturn

import pytest

from collbench.core.backend_info import backend_info
from collbench.core.errors import CannotRun
from collbench.run.launch import mpirun

needs_mpi = pytest.mark.usefixtures("mpi")


def stop_without(name: str, reason: str) -> NoReturn:
    """Skip the test, as ``name`` is missing for this reason; fail it where COLLBENCH_NEED, names
    with commas between, has this name."""
    if name in os.environ.get("COLLBENCH_NEED", "").split(","):
        pytest.fail(f"COLLBENCH_NEED has {name}, but {reason}")
    pytest.skip(reason)


def need_backend(name: str) -> None:
    """Go on where the backend ``name`` can be opened on this machine, as far as it can tell."""
    if reason := backend_info(name).here():
        stop_without(name, reason)


def need_ray() -> None:
    """Go on where Ray is installed."""
    if importlib.util.find_spec("ray") is None:
        stop_without("ray", "Ray is not installed: pip install 'collbench[ray]'")


def refuse_mpi() -> str:
    """Why MPI cannot start ranks on this machine; empty where it can."""
    if importlib.util.find_spec("mpi4py") is None:
        return "no mpi4py here: pip install 'collbench[mpi]'"
    try:
        mpirun.find_mpirun()
    except CannotRun as e:
        return e.message
    return ""


def need_mpi() -> None:
    """Go on where MPI can start ranks on this machine."""
    if reason := refuse_mpi():
        stop_without("mpi", reason)
