"""Memory that the ranks of one host share: anonymous (memfd), so that nothing has a name that could
be left behind, mapped by the others through /proc; and where in it their buffers lie."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch

from collbench.core.errors import CannotRun
from collbench.machine import environment
from collbench.run.rank.control import Control
from collbench.suite.case import Case

Tensor = torch.Tensor


def one_host(control: Control, backend: str, other: str) -> None:
    """Raises CannotRun unless all ranks see each other's processes (all ranks call this
    together)."""
    homes = control.collect(
        [environment.boot_id(), environment.host_name(), str(Path("/proc/self/ns/pid").readlink())]
    )
    if any(home != homes[0] for home in homes):
        raise CannotRun(f"{backend} needs all ranks on one host, in one PID namespace", other)


def share_memory(control: Control, nbytes: int) -> list[Tensor]:
    """Every rank's newly made shared memory, one's own among them (all ranks call this
    together). Raises CannotRun on all ranks alike."""
    fd = os.memfd_create("collbench")
    try:
        os.ftruncate(fd, nbytes)
        local_memory = _map_memory(fd, nbytes)
        everyone = control.collect([os.getpid(), fd, nbytes])
        with control.refusing_alike():  # at the end of which all have opened it
            maps = [
                local_memory if rank == control.rank else _open_memory(*where)
                for rank, where in enumerate(everyone)
            ]
    finally:
        os.close(fd)
    return [torch.frombuffer(m, dtype=torch.uint8) for m in maps]


def buffer_starts(
    case: Case, rank: int, memory: Tensor, send: Tensor, recv: Tensor
) -> list[tuple[int, int]]:
    """Where every rank's input and output begin, in bytes from the start of its memory: as mine do,
    but for what in-place layouts shift by rank."""
    size = case.type.size
    shifts = [
        case.row.overlay(case.n, case.count, r)[:2] if case.in_place else (0, 0)
        for r in range(case.n)
    ]
    at, to = (view.data_ptr() - memory.data_ptr() for view in (send, recv))
    own_at, own_to = shifts[rank]
    return [
        (at + (ahead - own_at) * size, to + (behind - own_to) * size) for ahead, behind in shifts
    ]


def _map_memory(fd: int, nbytes: int) -> mmap.mmap:
    return mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


def _open_memory(pid: int, fd: int, nbytes: int) -> mmap.mmap:
    try:
        theirs = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    except (FileNotFoundError, ProcessLookupError) as e:
        raise ConnectionResetError(f"another rank's memory is closed by peer: {e}") from e
    except OSError as e:
        raise CannotRun(
            f"cannot map another rank's memory: {e}", "use --backend gloo, which runs here"
        ) from e
    try:
        return _map_memory(theirs, nbytes)
    finally:
        os.close(theirs)
