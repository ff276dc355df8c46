"""What a forked rank takes over from the warden that mpirun has started for it (warden.py), and
which of that a fork cannot have."""

from __future__ import annotations

import ast
import fcntl
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import TypedDict

import msgspec

from collbench.core.errors import CannotRun, first_line
from collbench.run.launch.warden import gather_birthmarks, read_status

Settings = Mapping[bytes, bytes]

# Variables of MPI's and its mpirun's own, which are read when MPI is loaded or later, and so only
# once a rank is forked.
OWN = (
    *("OMPI_", "OPAL_", "PMIX_", "PRTE_", "PMI_", "HYDI_", "HYDRA_", "MPIR_CVAR_", "MPICH_"),
    *("I_MPI_", "MPI_LOCAL", "FI_", "UCX_"),
)
PRIVATE = b"TMPDIR"  # of each world


class Request(TypedDict):
    """The request of a warden, as gather_request makes it; signals are masks in hexadecimal."""

    environ: dict[bytes, bytes]
    descriptors: list[int]
    cores: list[int]
    limits: dict[int, tuple[int, int]]
    umask: int
    nice: int
    ignored: str
    blocked: str
    birthmarks: dict[str, str]


def read_request(fd: int) -> Request:
    """The request that a warden has written to a file. Raises ValueError where it is cut or
    garbled, OSError."""
    size = os.fstat(fd).st_size
    try:
        return msgspec.convert(ast.literal_eval(os.pread(fd, size, 0).decode()), Request)
    except (SyntaxError, ValueError, TypeError, msgspec.ValidationError) as e:
        raise ValueError(f"the launcher's request cannot be read: {first_line(e)}") from e


def select_shared(environ: Settings) -> dict[bytes, bytes]:
    """The variables of a rank that the process it is forked from must have been started with."""
    own = tuple(prefix.encode() for prefix in OWN)
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(own) and name != PRIVATE
    }


def refuse_unlike(request: Request) -> None:
    """Raises CannotRun where this process, or a child of it, was born with something that a
    warden's rank must not have."""
    wanted, marks = request["birthmarks"], gather_birthmarks(read_status())
    for name, value in wanted.items():
        if marks.get(name) != value:
            raise CannotRun(f"{name}: {marks.get(name)} here, {value} of mpirun's process")


def move_descriptors(fds: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """Move open files out of the way of others that are to get these numbers; where they are
    then."""
    beyond = max(numbers, default=2) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, beyond) for fd in fds]
    for fd in fds:
        os.close(fd)
    return moved


def take_over(request: Request, folder: int, files: Sequence[int]) -> None:
    """Have this process, which was just forked, be as the one that made the request: all that it
    has, in a session of its own, which no terminal's signals reach. ``folder`` is its current one,
    and the open ``files`` get the numbers of the request; both have been moved out of their way.
    Raises CannotRun, OSError, ValueError."""
    refuse_unlike(request)
    os.setsid()
    os.fchdir(folder)
    os.close(folder)
    _place_descriptors(files, request["descriptors"])
    os.umask(request["umask"])
    os.environb.clear()
    os.environb.update(request["environ"])
    os.sched_setaffinity(0, request["cores"])
    if request["nice"] != os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, request["nice"])
    for limit, pair in request["limits"].items():
        if pair != resource.getrlimit(limit):
            resource.setrlimit(limit, pair)
    _set_signals(int(request["ignored"], 16), int(request["blocked"], 16))
    _forget_the_past()


def _place_descriptors(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Give open files their numbers. Raises CannotRun where another file has one of them."""
    for file, number in zip(files, numbers, strict=True):
        if number > 2 and _is_open(number):
            raise CannotRun(f"descriptor {number} is in use")
        os.dup2(file, number)
        os.close(file)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _set_signals(ignored: int, blocked: int) -> None:
    """Ignore and block the signals of two masks; the others do what they do in a new Python.
    SIGTERM, by which mpirun ends ranks, ends this one."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
        elif ignored >> (number - 1) & 1:
            signal.signal(number, signal.SIG_IGN)
        elif number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        elif signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    mask = {number for number in signal.valid_signals() if blocked >> (number - 1) & 1}
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _forget_the_past() -> None:
    """Drop what modules have kept of the process that this one was forked from."""
    import numpy as np

    tempfile.tempdir = None
    np.random.seed()
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
