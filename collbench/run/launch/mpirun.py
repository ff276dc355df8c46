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
from typing import Any

import msgspec

from collbench.core.errors import CannotRun
from collbench.run.launch import join
from collbench.run.launch.board import Board
from collbench.run.launch.forkserver import die_with_parent, leave

LOAD_SECONDS = 120.0  # every rank loads torch, from a cold or remote disk


_PATIENCE = 10.0  # for mpirun to end its ranks and remove what it made


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


class Mpirun:
    """One world's mpirun: started by ``spawn``, gone after ``close``."""

    name = "mpirun"

    def __init__(self, env: Mapping[str, str], python: str, folder: Path) -> None:
        self._python, self._mpirun, self._place = python, find(python), folder / "notes"
        as_root = AS_ROOT if os.getuid() == 0 else {}
        self._env = {
            **SETTINGS,
            **as_root,
            **env,
            "TMPDIR": str(folder),
        }  # what mpirun leaves goes with the folder
        self._notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ready = select.epoll()
        self._process: subprocess.Popen[bytes] | None = None
        self._alive = 0

    def spawn(self, n: int) -> tuple[Board, list[int], list[socket.socket]]:
        """n ranks: their board, pids and channels. Raises CannotRun when one does not come."""
        self._notes.bind(str(self._place))
        self._alive = n
        board, board_fd = Board.create(n)
        warden = [
            self._python,
            "-m",
            "collbench.run.launch.mpirun",
            str(self._place),
            f"/proc/{os.getpid()}/fd/{board_fd}",
        ]
        command = [*warden, self._mpirun, "-n", str(n), *warden]
        self._process = subprocess.Popen(
            command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__,
            start_new_session=True,
        )
        self._end = os.pidfd_open(self._process.pid)
        for source in (self._notes.fileno(), self._end):
            self._ready.register(source, select.EPOLLIN)
        came: dict[int, tuple[int, socket.socket]] = {}
        try:
            while len(came) < n:
                note, fds = self._receive()
                came[note["rank"]] = note["pid"], socket.socket(fileno=fds[0])
        except (EOFError, KeyError, TimeoutError) as e:
            raise CannotRun(
                f"ranks under {self._mpirun} did not come up ({len(came)} of {n} did)",
                f"{self._mpirun} -n {n} {self._python} -c 'import torch' tells why",
            ) from e
        finally:
            os.close(board_fd)
        pids, channels = zip(*(came[rank] for rank in range(n)), strict=True)
        return board, list(pids), list(channels)

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        """What a warden says next. EOFError when mpirun has ended and nothing is left to hear."""
        ready = [fd for fd, _ in self._ready.poll(LOAD_SECONDS)]
        if self._notes.fileno() in ready:
            data, fds, _, _ = socket.recv_fds(self._notes, 65536, 1)
            return msgspec.json.decode(data), fds
        raise EOFError if ready else TimeoutError

    def fileno(self) -> int:
        return self._ready.fileno()

    def death(self) -> tuple[int, int]:
        """The next rank to end, and its wait status. EOFError if mpirun ended before."""
        note, _ = self._receive()
        self._alive -= 1
        return note["exit"], note["status"]

    def close(self) -> None:
        """End mpirun, and with it every rank it still has."""
        if self._process is not None:
            if self._alive:
                self._process.terminate()
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                # the wardens' parent is gone then, and so are they and their ranks
                self._process.kill()
                self._process.wait()
            os.close(self._end)
        self._ready.close()
        self._notes.close()


def _guard(place: str, board: str) -> None:
    """A warden's life: fork the rank, have it report when it has loaded torch, tell of its end."""
    member = join.detect()
    assert member is not None, "mpirun says nothing of its ranks in the environment"
    die_with_parent()
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # mpirun sends it to the rank too, whose end is yet to be told
    notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notes.connect(place)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        from collbench.run.rank import worker

        shared = Board.at(Path(board), member.n)
        socket.send_fds(
            notes, [msgspec.json.encode({"rank": member.rank, "pid": os.getpid()})], [ours.fileno()]
        )
        ours.close()
        leave(worker.local_rank(member.rank, shared, theirs))
    ours.close()
    events = select.poll()
    events.register(os.pidfd_open(pid), select.POLLIN)
    events.register(theirs, 0)  # the launching process has closed its end
    if theirs.fileno() in [fd for fd, _ in events.poll()]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        notes.send(msgspec.json.encode({"exit": member.rank, "status": status}))


def main() -> None:
    """``PLACE BOARD`` is a warden; with a command behind them, become that, and end when the parent
    does."""
    place, board, *command = sys.argv[1:]
    if command:
        die_with_parent(signal.SIGTERM)  # on which mpirun cleans up
        os.execv(command[0], command)
    _guard(place, board)


if __name__ == "__main__":
    main()
