"""The processes of a life as the rank that started them sees them: their events, their memory,
their end. A rank starts the one process that lives in its place; under MPI rank 0 starts mpirun,
which starts all."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from collbench.core.errors import CannotRun
from collbench.features.lifecycle.instructions import Event, Instructions
from collbench.machine import cpus
from collbench.run.launch import mpirun
from collbench.run.launch.children import bound_command, module_command
from collbench.run.launch.folders import make_private

CHILD = "collbench.features.lifecycle.child"
NURSERY = "collbench.features.lifecycle.nursery"
READY = b"ready"  # what a nursery says once it has loaded its library
STARTING = 180.0  # seconds that a process may take to load its library
LOOK = 0.005  # seconds between two looks at what processes have written
LAUNCHED = ("PMIX_", "PMI_", "OMPI_", "PRTE_", "HYDI_", "HYDRA_", "MPIR_CVAR_", "MPICH_", "I_MPI_")
KEPT = ("OMPI_MCA_", "MPIR_CVAR_", "MPICH_", "I_MPI_")  # of which a user's settings stay


def _is_readable(descriptor: int, seconds: float | None = 0.0) -> bool:
    """Whether there is something to read within so many seconds, however long if None."""
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    return bool(ready.poll(None if seconds is None else 1000 * seconds))


class Process(Protocol):
    """What is done with a process: subprocess.Popen, or Forked."""

    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def terminate(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class Forked:
    """A process that a nursery has forked, whose end is seen by its descriptor; with which status
    it ended, nobody is told."""

    def __init__(self, pid: int) -> None:
        self._fd = -1
        with suppress(ProcessLookupError):
            self._fd = os.pidfd_open(pid)

    def _has_ended(self, seconds: float | None) -> bool:
        if self._fd < 0:
            return True
        if not _is_readable(self._fd, seconds):
            return False
        os.close(self._fd)
        self._fd = -1
        return True

    def poll(self) -> int | None:
        """0 once it has ended."""
        return 0 if self._has_ended(0.0) else None

    def kill(self) -> None:
        """Kill it, if it is there."""
        with suppress(ProcessLookupError):
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    terminate = kill

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended. Raises TimeoutExpired."""
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return 0


class Watched:
    """A process that was started, and the diaries of ``ranks`` that it makes."""

    def __init__(self, process: Process, folder: Path, ranks: list[int]) -> None:
        self.process, self._folder, self.ranks = process, folder, ranks
        self.events: dict[int, list[Event]] = {rank: [] for rank in ranks}
        self._read = dict.fromkeys(ranks, 0)
        self._errors = ""

    def look(self) -> None:
        """Read what was written since the last look."""
        for rank in self.ranks:
            with suppress(FileNotFoundError), (self._folder / f"{rank}.jsonl").open("rb") as file:
                file.seek(self._read[rank])
                lines, end, _ = file.read().rpartition(b"\n")
                self._read[rank] += len(lines + end)
                decoded = [msgspec.json.decode(line, type=Event) for line in lines.splitlines()]
                self.events[rank] += decoded

    def find(self, rank: int, name: str) -> Event | None:
        """A rank's first event of this name, if it has come to it."""
        return next((event for event in self.events[rank] if event.name == name), None)

    def last_phase(self, rank: int) -> str:
        """What a rank was doing when it last said so."""
        begun = [event.phase for event in self.events[rank] if event.name == "at"]
        return begun[-1].replace("_", " ") if begun else "starting"

    def last_complaint(self) -> str:
        """The last line that the processes have written for people."""
        with suppress(FileNotFoundError):
            self._errors = (self._folder / "errors").read_text(errors="replace")
        lines = self._errors.strip().splitlines()
        return lines[-1][:300] if lines else ""

    @property
    def ended(self) -> bool:
        """Whether the process has ended, which is then known of it."""
        return self.process.poll() is not None

    def kill(self) -> int:
        """Kill the process; the moment."""
        at = time.monotonic_ns()
        self.process.kill()
        return at

    def close(self) -> None:
        """End what is left of it."""
        if not self.ended:
            self.process.terminate() if len(self.ranks) > 1 else self.process.kill()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        if not self.ended:
            self.process.kill()
        self.process.wait()


@contextmanager
def watch_life(given: Instructions) -> Iterator[tuple[Watched, int]]:
    """The process that lives as it is told, in a private folder, and the moment just before it was
    started. It is ended with the block."""
    under_mpi = given.backend == "mpi"
    with make_private() as folder:
        rank = -1 if under_mpi else given.rank
        parent = 0 if under_mpi else os.getpid()
        given = msgspec.structs.replace(given, folder=str(folder), rank=rank, parent=parent)
        command = module_command(sys.executable, CHILD, msgspec.json.encode(given).decode())
        environment = dict(os.environ)
        if under_mpi:
            command, environment = _launch_by_mpirun(given.world, command, environment, folder)
        with (folder / "errors").open("wb") as errors:
            began = time.monotonic_ns()
            process = _start(command, environment, errors, on_all_cores=under_mpi)
        watched = Watched(process, folder, [*range(given.world)] if under_mpi else [rank])
        try:
            yield watched, began
        finally:
            watched.close()


class Nursery:
    """The process that forks lives for this rank, at the other end of a pair of sockets that
    nobody else has. It ends with the rank."""

    def __init__(self, beat: Callable[[], object]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = str(theirs.fileno())
        self._process = subprocess.Popen(
            module_command(sys.executable, NURSERY, str(os.getpid()), number),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=dict(os.environ),  # not what NCCL's log was told by putenv
        )
        theirs.close()
        if self._receive(beat) != READY:
            self.close()
            raise CannotRun("no process that forks lives could be started", "try it with --debug")

    def _receive(self, beat: Callable[[], object]) -> bytes:
        """What it says next; nothing where it has ended, or says nothing for long."""

        def is_silent() -> bool:
            return not _is_readable(self._socket.fileno())

        if not wait_while(is_silent, STARTING, beat):
            return b""
        with suppress(ConnectionResetError):
            return self._socket.recv(64)
        return b""

    @property
    def ended(self) -> bool:
        """Whether it can fork no more."""
        return self._process.poll() is not None

    def fork(self, given: Instructions, beat: Callable[[], object]) -> int:
        """The number of a new process that lives as it is told. Raises CannotRun."""
        answer = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.send(msgspec.json.encode(given))
            answer = self._receive(beat)
        if not answer:
            self.close()  # an answer that comes later is nobody's
            raise CannotRun("the process that forks lives has ended", "try again")
        return int(answer)

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


_nurseries: dict[int, Nursery] = {}  # this process's, by its number: forks have none


def open_nursery(beat: Callable[[], object]) -> Nursery:
    """This rank's nursery, which is started where there is none. Raises CannotRun."""
    found = _nurseries.get(os.getpid())
    if found is None or found.ended:
        found = _nurseries[os.getpid()] = Nursery(beat)
    return found


@contextmanager
def watch_fork(given: Instructions, beat: Callable[[], object]) -> Iterator[Watched]:
    """A process that this rank's nursery forks to live as it is told; ended with the block. Raises
    CannotRun where there is none."""
    with make_private() as folder:
        given = msgspec.structs.replace(given, folder=str(folder))
        pid = open_nursery(beat).fork(given, beat)
        watched = Watched(Forked(pid), folder, [given.rank])
        try:
            yield watched
        finally:
            watched.close()


def _start(
    command: list[str], environment: Mapping[str, str], errors: Any, on_all_cores: bool
) -> subprocess.Popen[bytes]:
    """The process, on this rank's cores or on all that there are."""
    with cpus.keep_affinity():
        if on_all_cores:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
        )


def _launch_by_mpirun(
    ranks: int, command: list[str], environment: Mapping[str, str], folder: Path
) -> tuple[list[str], dict[str, str]]:
    """The command and environment that start ``ranks`` of a command by mpirun, from within a rank
    that mpirun has started: what that one was told of itself is left out."""
    program = mpirun.find_mpirun()
    clean = {
        name: value
        for name, value in environment.items()
        if not name.startswith(LAUNCHED) or name.startswith(KEPT)
    }
    launched = [program, "-n", str(ranks), *command]
    bound = bound_command(sys.executable, signal.SIGTERM, os.getpid(), *launched)
    return bound, mpirun.make_environment(program, clean, folder)


def wait_while(is_open: Callable[[], bool], seconds: float, beat: Callable[[], object]) -> bool:
    """Wait as long as something is open, at most so long, and show that this rank is alive;
    whether it has closed."""
    end = time.monotonic() + seconds
    while is_open():
        if time.monotonic() > end:
            return False
        beat()
        time.sleep(LOOK)
    return True
