"""The MPI library of this process, by mpi4py: loaded without MPI's being started, then started for
calls by one thread, by whoever comes first: a rendezvous or the backend."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from typing import Any, NoReturn

from collbench.core.errors import CannotRun, first_line
from collbench.survive.signals import keep_handlers

POLL_SECONDS = 0.001
LONGEST_EXIT_S = 3.0  # for what libraries do in C's exit

INSTALL = "install mpi4py and an MPI: pip install 'collbench[mpi]'"


def load_mpi() -> Any:
    """The module mpi4py.MPI, such that mpi4py neither initialises nor finalises MPI. Raises
    CannotRun with the reason where it cannot be loaded."""
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise CannotRun(f"MPI cannot be loaded: {first_line(e)}", INSTALL) from e
    return MPI


def _find_loaded() -> Any:
    """The module mpi4py.MPI if this process has loaded it, else None."""
    return getattr(sys.modules.get("mpi4py"), "MPI", None)


def initialise_mpi() -> Any:
    """The module mpi4py.MPI, MPI initialised for calls by this thread alone. This process's
    handlers of signals stay. Raises CannotRun as load_mpi."""
    MPI = load_mpi()
    if not MPI.Is_initialized():
        with keep_handlers():
            MPI.Init_thread(MPI.THREAD_FUNNELED)
    return MPI


def finalise_at_exit() -> None:
    """Have MPI, if it was initialised, end with the process, as all went well. Else it must not:
    MPI_Finalize would wait for ranks that are stuck."""
    cancel_finalise()
    if (MPI := _find_loaded()) and MPI.Is_initialized():
        atexit.register(_finalise_mpi)


def cancel_finalise() -> None:
    """Undo finalise_at_exit: MPI does not end with the process."""
    atexit.unregister(_finalise_mpi)


def _finalise_mpi() -> None:
    """End MPI once every rank has come here. No other thread runs in MPI_Finalize, not even one
    that ends a process which waits for too long, so that the waiting is done here."""
    MPI = load_mpi()
    barrier = MPI.COMM_WORLD.Ibarrier()
    while not barrier.Test():
        time.sleep(POLL_SECONDS)
    MPI.Finalize()


def end_process(status: int) -> NoReturn:
    """End this process at once. Where MPICH has ended in it, by C's own exit: only there does MPICH
    tell its process manager, which else takes the end for a crash and kills the other ranks."""
    MPI = _find_loaded()
    if MPI and MPI.Is_finalized() and MPI.Get_library_version().startswith("MPICH"):
        limit = threading.Timer(LONGEST_EXIT_S, os._exit, (status,))
        limit.daemon = True
        limit.start()
        ctypes.CDLL(None).exit(status)
    os._exit(status)
