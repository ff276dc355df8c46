"""Worlds of ranks on this machine under the mpirun that belongs to a Python, watched like those of
the fork server.

mpirun starts a warden for each rank, which forks it and tells of its end; what they have to say is
what the fork server says, in datagrams to a socket in the world's private folder. When the
launching process goes away, mpirun is terminated by the kernel and the wardens kill their ranks.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from collbench.core import streams
from collbench.core.errors import CannotRun
from collbench.core.interrupts import interrupts
from collbench.run.launch import environments
from collbench.run.launch.board import Board
from collbench.run.launch.children import bound, die_with_parent, module
from collbench.run.launch.forkserver import Note, Parent, leave

_NEEDED = "pip install 'collbench[mpi]' brings mpi4py and an MPI with its mpirun"


# All ranks are here, whatever their number; collbench binds them itself; and they listen to nobody
# for MPI's sake (mpirun does, on all interfaces: no setting of Open MPI's or MPICH's keeps it from
# that).
SETTINGS = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_btl": "^tcp",
    "UCX_NET_DEVICES": "lo",
    "HYDRA_LAUNCHER": "fork",
    "HYDRA_BINDING": "none",
    "I_MPI_PIN": "off",
}


AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def find(python: str = sys.executable) -> str:
    """The mpirun beside an interpreter, else the first on the PATH. Raises CannotRun where there is
    none."""
    places = (str(Path(python).parent), os.environ.get("PATH", os.defpath))
    found = shutil.which("mpirun", path=os.pathsep.join(places))
    if found is None:
        raise CannotRun(
            "--backend mpi needs an mpirun, and none is beside python or on the PATH", _NEEDED
        )
    return found


class Mpirun(Parent):
    """One world's mpirun: started by ``spawn``, gone after ``close``."""

    name = "mpirun"

    def __init__(self, env: Mapping[str, str], python: str, folder: Path) -> None:
        self._python, self._mpirun = python, find(python)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        as_root = AS_ROOT if os.getuid() == 0 else {}
        self._env = {
            **SETTINGS,
            **as_root,
            **env,
            "TMPDIR": str(folder),
        }  # what mpirun leaves goes with the folder
        self._notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ready = select.epoll()
        self._alive = 0
        self.hint = f"{self._mpirun} -n 2 {python} -c 'import torch' tells why"

    def spawn(self, n: int, board: int) -> None:
        """Have n ranks made, around the board of a descriptor that stays open."""
        me = os.getpid()
        # a socket's path may have 107 characters, and TMPDIR may be longer
        place = f"/proc/{me}/fd/{self._folder}/notes"
        self._notes.bind(place)
        self._alive = n
        mine = [place, f"/proc/{me}/fd/{board}", "{pid}"]
        warden = module(self._python, "collbench.run.launch.mpirun", *mine)
        started = [self._mpirun, "-n", str(n), *bound(self._python, signal.SIGKILL, 0, *warden)]
        with interrupts.held():
            self.process = subprocess.Popen(
                bound(self._python, signal.SIGTERM, me, *started),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__,
                start_new_session=True,
            )
            self._end = os.pidfd_open(self.process.pid)
        for source in (self._notes.fileno(), self._end):
            self._ready.register(source, select.EPOLLIN)

    def fileno(self) -> int:
        return self._ready.fileno()

    def note(self) -> tuple[Note, list[int]]:
        """What a warden says next, once there is something to read. EOFError when mpirun has ended
        and nothing is left to hear."""
        if self._notes.fileno() not in [fd for fd, _ in self._ready.poll(0)]:
            raise EOFError
        data, fds, _, _ = socket.recv_fds(self._notes, 65536, 1)
        note = msgspec.json.decode(data, type=Note)
        self._alive -= not note.pid
        return note, fds

    def close(self) -> None:
        """End mpirun, if there is one, and with it every rank it still has."""
        if hasattr(self, "_end"):
            if self._alive:
                self.process.terminate()
            self.end()
            os.close(self._end)
        self._ready.close()
        self._notes.close()
        os.close(self._folder)


def _guard(place: str, board: str, mpirun: str) -> None:
    """A warden's life: fork the rank, tell of it before it loads torch, and of its end. It ends
    with mpirun, also where that is not its parent."""
    member = environments.detect()
    assert member is not None, "mpirun says nothing of its ranks in the environment"
    try:
        above = os.pidfd_open(int(mpirun))
    except ProcessLookupError:
        return
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # mpirun sends it to the rank too, whose end is yet to be told
    notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        notes.connect(place)
    except OSError:
        return  # the launching process is gone
    ours, theirs = socket.socketpair()
    mine, pid = os.getpid(), os.fork()
    if pid == 0:
        die_with_parent(mine)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        notes.close()
        ours.close()
        leave(_rank(member.rank, Board.at(Path(board), member.n), theirs))
    told = msgspec.json.encode(Note(member.rank, pid=pid))
    socket.send_fds(notes, [told], [ours.fileno()])
    ours.close()
    events = select.poll()
    events.register(os.pidfd_open(pid), select.POLLIN)
    events.register(theirs, 0)  # the launching process has closed its end
    events.register(above, select.POLLIN)
    if {theirs.fileno(), above} & {fd for fd, _ in events.poll()}:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        notes.send(msgspec.json.encode(Note(member.rank, status=status)))


def _rank(rank: int, board: Board, at: socket.socket) -> int:
    """A rank's life, told of where torch cannot be loaded; its exit status."""
    try:
        from collbench.run.rank import worker
    except Exception as e:
        from collbench.run.launch.world import Failure, Said

        at.sendall(msgspec.json.encode(Said(error=Failure.of(e))) + b"\n")
        return 1
    return worker.local_rank(rank, board, at)


def main() -> None:
    """A warden's process: ``PLACE BOARD MPIRUN``."""
    streams.secure()
    _guard(*sys.argv[1:])


if __name__ == "__main__":
    main()
