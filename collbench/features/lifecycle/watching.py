"""The processes of a life as the rank that started them sees them: their events, their memory,
their end. A rank starts the one process that lives in its place; under MPI rank 0 starts mpirun,
which starts all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from collbench.features.lifecycle.instructions import Event, Instructions
from collbench.run.launch import mpirun
from collbench.run.launch.children import bound_command, module_command

CHILD = "collbench.features.lifecycle.child"
LOOK = 0.005  # seconds between two looks at what processes have written
LAUNCHED = ("PMIX_", "PMI_", "OMPI_", "PRTE_", "HYDI_", "HYDRA_", "MPIR_CVAR_", "MPICH_", "I_MPI_")
KEPT = ("OMPI_MCA_", "MPIR_CVAR_", "MPICH_", "I_MPI_")  # of which a user's settings stay


class Watched:
    """A process that was started, and the diaries of ``ranks`` that it makes."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, ranks: list[int]) -> None:
        self.process, self._folder, self.ranks = process, folder, ranks
        self.events: dict[int, list[Event]] = {rank: [] for rank in ranks}
        self._read = dict.fromkeys(ranks, 0)

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

    def find_phase(self, rank: int, phase: str) -> Event | None:
        """A rank's event of a phase that has ended."""
        return next((e for e in self.events[rank] if e.name == "phase" and e.phase == phase), None)

    def last_phase(self, rank: int) -> str:
        """What a rank was doing when it last said so."""
        begun = [event.phase for event in self.events[rank] if event.name == "at"]
        return begun[-1].replace("_", " ") if begun else "starting"

    def last_complaint(self) -> str:
        """The last line that the processes have written for people."""
        lines = (self._folder / "errors").read_text(errors="replace").strip().splitlines()
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
    with tempfile.TemporaryDirectory(prefix="collbench-life-") as name:
        folder = Path(name)
        rank = -1 if under_mpi else given.rank
        parent = 0 if under_mpi else os.getpid()
        given = msgspec.structs.replace(given, folder=name, rank=rank, parent=parent)
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


def _start(
    command: list[str], environment: Mapping[str, str], errors: Any, on_all_cores: bool
) -> subprocess.Popen[bytes]:
    """The process, on this rank's cores or on all that there are."""
    cores = os.sched_getaffinity(0)
    try:
        if on_all_cores:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
        )
    finally:
        os.sched_setaffinity(0, cores)


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
    clean |= mpirun.SETTINGS | (mpirun.AS_ROOT if os.getuid() == 0 else {})
    clean |= {
        "PATH": mpirun.put_folder_first(program, clean.get("PATH", os.defpath)),
        "TMPDIR": str(folder),
    }
    launched = [program, "-n", str(ranks), *command]
    return bound_command(sys.executable, signal.SIGTERM, os.getpid(), *launched), clean


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
