"""Worlds of ranks on this machine under the mpirun that belongs to a Python, watched like those of
the fork server.

mpirun starts a warden for each rank (warden.py), for which a fork server forks the rank, if it can
be as mpirun wants it; else the warden forks it anew, and it loads torch itself. Wardens tell of its
birth and end; what they have to say is
what the fork server says, in datagrams to a socket in the world's private folder. When the
launching process goes away, mpirun is terminated by the kernel and the wardens kill their ranks.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from collbench.core.errors import CannotRun, CollbenchError
from collbench.run.launch import environments, warden
from collbench.run.launch.board import Board
from collbench.run.launch.children import bound_command, die_with_parent, module_command
from collbench.run.launch.forkserver import Adopt, Note, Parent, leave_process
from collbench.survive import streams
from collbench.survive.encoding import encode_json
from collbench.survive.signals import interrupts

_NEEDED = "pip install 'collbench[mpi]' brings mpi4py and an MPI with its mpirun"

# What a scheduler says of its allocation: mpirun would start a daemon on each of its hosts.
_ALLOCATION = re.compile(r"(SLURM|PBS|FLUX|LSB|COBALT)_\w+|PE_HOSTFILE")

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

# the variables of Open MPI's and MPICH's mpirun that name a process's rank
RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def find_mpirun(python: str = sys.executable) -> str:
    """The mpirun beside an interpreter, else the first on the PATH. Raises CannotRun where there is
    none."""
    places = (str(Path(python).parent), os.environ.get("PATH", os.defpath))
    program = shutil.which("mpirun", path=os.pathsep.join(places))
    if program is None:
        raise CannotRun(
            "--backend mpi needs an mpirun, and none is beside python or on the PATH", _NEEDED
        )
    return program


def make_environment(
    program: str, variables: Mapping[str, str], folder: Path | str
) -> dict[str, str]:
    """The environment of an mpirun that starts all ranks here, and of these: what it leaves goes
    with ``folder``. Of SETTINGS, those that ``variables`` have are theirs."""
    return {
        **SETTINGS,
        **(AS_ROOT if os.getuid() == 0 else {}),
        **{k: v for k, v in variables.items() if not _ALLOCATION.fullmatch(k)},
        "PATH": put_folder_first(program, variables.get("PATH", os.defpath)),
        "TMPDIR": str(folder),
    }


def put_folder_first(program: str, path: str) -> str:
    """A PATH on which the folder of ``program`` comes first: Intel's mpirun is a script that looks
    for its mpiexec.hydra there, also in a virtual environment that is not activated."""
    return os.pathsep.join((str(Path(program).parent), path))


class Foster(Protocol):
    """A fork server of ranks that mpirun starts, as a world sees it (local.ForkServer)."""

    name: str
    process: subprocess.Popen[bytes]

    def fileno(self) -> int:
        """A descriptor that is readable once the server has ended."""

    def adopt(self, orders: Adopt, fds: list[int]) -> None:
        """Have a rank made for its warden."""

    def ended(self, born: int) -> CollbenchError:
        """Why it is gone, having made so many ranks."""

    def end(self) -> int:
        """Wait until the process has ended; its exit status."""


class FindServer(Protocol):
    """What finds, or starts, the fork server for what a warden asks for; None for another request
    than that of the first warden of a world."""

    def __call__(self, request: int, is_first: bool) -> Foster | None: ...


class Mpirun(Parent):
    """One world's mpirun: started by ``spawn``, gone after ``close``. ``find_server`` finds what
    forks its ranks; without, or where it finds none, each rank is a new process."""

    name = "mpirun"

    def __init__(
        self,
        env: Mapping[str, str],
        python: str,
        folder: Path,
        find_server: FindServer | None = None,
    ) -> None:
        self._python, self._mpirun = python, find_mpirun(python)
        self._find_server = find_server
        self._server: Foster | None = None
        self._is_server_gone = False
        self._board = -1
        self._forked: set[int] = set()  # ranks that the server has made
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._env = make_environment(self._mpirun, env, folder)
        self._notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ready = select.epoll()
        self._alive = 0
        self._begun_ranks: set[int] = set()  # ranks whose wardens have begun
        self._wardens: dict[int, int] = {}  # descriptors of their processes, and whose they are
        folder_first = f"PATH={Path(self._mpirun).parent}:$PATH"
        self.hint = f"{folder_first} mpirun -n 2 {python} -c 'import torch' tells why"

    def spawn(self, n: int, board: int) -> None:
        """Have n ranks made, around the board of a descriptor that stays open."""
        me = os.getpid()
        self._n, self._board = n, os.dup(board)
        # a socket's path may have 107 characters, and TMPDIR may be longer
        notes_path = f"/proc/{me}/fd/{self._folder}/notes"
        self._notes.bind(notes_path)
        self._alive = n
        arguments = [notes_path, f"/proc/{me}/fd/{board}", "{pid}"]
        anew = module_command(self._python, "collbench.run.launch.mpirun", *arguments)
        begin = [self._python, "-I", "-S", str(Path(warden.__file__)), " ".join(RANK), notes_path]
        started = [self._mpirun, "-n", str(n), *begin, "{pid}", *anew]
        with interrupts.uninterrupted():
            self.process = subprocess.Popen(
                bound_command(self._python, signal.SIGTERM, me, *started),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__,
                start_new_session=True,
            )
            self._end = os.pidfd_open(self.process.pid)
        for source in (self._notes.fileno(), self._end):
            self._ready.register(source, select.EPOLLIN)

    def fileno(self) -> int:
        """Readable where there is a note, or mpirun or a warden has ended."""
        return self._ready.fileno()

    def note(self) -> tuple[Note | None, list[int]]:
        """The next note of a warden, once there is something to read; None where what there was is
        no news. EOFError when mpirun has ended, or what has forked ranks of it, and nothing is left
        to hear; CannotRun where a rank could not be forked."""
        ready = [fd for fd, _ in self._ready.poll(0)]
        if self._server and self._server.fileno() in ready:
            self._ready.unregister(self._server.fileno())
            self._is_server_gone = True
            if not self._forked:
                return None, []  # wardens make these ranks
        if self._is_server_lost:
            raise EOFError
        if self._notes.fileno() not in ready:
            killed = (self.process.poll() or 0) < 0  # which is why its wardens end, too
            for descriptor in ready:
                if descriptor in self._wardens and not killed:
                    return Note(self._forget(descriptor), alone=True), []
            raise EOFError
        data, fds, _, _ = socket.recv_fds(self._notes, 65536, 2)
        note = msgspec.json.decode(data, type=Note)
        self.refuse_unforked(note, fds)
        if note.warden:
            return self._follow(note, fds), []
        if note.forked:
            self._forked.add(note.rank)
        if not note.pid:
            self._alive -= 1
            self._forked.discard(note.rank)
            for descriptor in [fd for fd, rank in self._wardens.items() if rank == note.rank]:
                self._forget(descriptor)
        return note, fds

    @property
    def _is_server_lost(self) -> bool:
        """Whether ranks have died with the fork server that made them."""
        return self._is_server_gone and bool(self._forked)

    def _follow(self, note: Note, fds: Sequence[int]) -> Note:
        self._begun_ranks.add(note.rank)
        if len(fds) == 2:
            self._pass_on(note.rank, *fds)
        for fd in fds:  # where nobody else has them, the warden forks its rank
            os.close(fd)
        try:
            descriptor = os.pidfd_open(note.warden)
        except ProcessLookupError:
            return Note(note.rank, alone=True)
        self._wardens[descriptor] = note.rank
        self._ready.register(descriptor, select.EPOLLIN)
        return note

    def _pass_on(self, rank: int, at: int, request: int) -> None:
        """Have the fork server make the rank, if there is one that can."""
        server = self._find_server(request, self._server is None) if self._find_server else None
        if server and self._server is None:
            self._server = server
            self._ready.register(server.fileno(), select.EPOLLIN)
        if server and not self._is_server_gone:
            server.adopt(Adopt(rank, self._n), [self._board, at, request])

    def _forget(self, descriptor: int) -> int:
        """The rank whose warden is no longer followed."""
        self._ready.unregister(descriptor)
        os.close(descriptor)
        return self._wardens.pop(descriptor)

    def unheard(self, n: int) -> list[int]:
        """The ranks, of n, whose wardens never began although others' did."""
        return [rank for rank in range(n) if self._begun_ranks and rank not in self._begun_ranks]

    def list_ranks(self) -> list[tuple[int, int]]:
        """Processes (rank, pid) below mpirun's that have a rank's variables."""
        processes: list[tuple[int, int]] = []
        with suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error, StopIteration, ValueError):
                    variables = process.environ()
                    rank = next(variables[name] for name in RANK if name in variables)
                    processes.append((int(rank), process.pid))
        return processes

    def makers(self) -> list[tuple[str, int]]:
        own = (self.name, self.process.pid)
        return [own, *([(self._server.name, self._server.process.pid)] if self._server else [])]

    def ended(self, born: int) -> CollbenchError:
        if self._server and self._is_server_lost:
            return self._server.ended(born)
        return super().ended(born)

    def end(self) -> int:
        """Wait until mpirun has ended, or the fork server with which ranks have died, and return
        its exit status."""
        return self._server.end() if self._server and self._is_server_lost else super().end()

    def close(self) -> None:
        """End mpirun, if there is one, and with it every rank it still has. A second signal does
        not hurry it: it would leave what MPI has in /dev/shm."""
        if hasattr(self, "_end"):
            with interrupts.shielded():
                if self._alive:
                    self.process.terminate()
                super().end()
                os.close(self._end)
        for descriptor in list(self._wardens):
            self._forget(descriptor)
        self._ready.close()
        self._notes.close()
        os.close(self._folder)
        if self._board >= 0:
            os.close(self._board)


def _guard_rank(notes_path: str, board: str, mpirun: str) -> None:
    """A warden's life: fork the rank, tell of it before it loads torch, and of its end. It ends
    with mpirun, also where that is not its parent."""
    member = environments.detect_variables()
    assert member is not None, "mpirun says nothing of its ranks in the environment"
    try:
        above = os.pidfd_open(int(mpirun))
    except ProcessLookupError:
        return
    # mpirun sends it to the rank too, whose end is yet to be told
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        notes.connect(notes_path)
    except OSError:
        return  # the launching process is gone
    ours, theirs = socket.socketpair()
    parent_pid = os.getpid()
    try:
        pid = os.fork()
    except OSError as e:
        notes.send(msgspec.json.encode(Note(member.rank, errno=e.errno or 0)))
        return
    if pid == 0:
        die_with_parent(parent_pid)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        notes.close()
        ours.close()
        leave_process(_live_as_rank(member.rank, Board.at(Path(board), member.n), theirs))
    note = msgspec.json.encode(Note(member.rank, pid=pid))
    socket.send_fds(notes, [note], [ours.fileno()])
    ours.close()
    events = select.poll()
    events.register(os.pidfd_open(pid), select.POLLIN)
    events.register(theirs, 0)  # the launching process has closed its end
    events.register(above, select.POLLIN)
    ready = {fd for fd, _ in events.poll()}
    if {theirs.fileno(), above} & ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if above in ready:
        return  # mpirun's end is the news, and not what it made of this rank
    with suppress(OSError):
        notes.send(msgspec.json.encode(Note(member.rank, status=status)))


def _live_as_rank(rank: int, board: Board, at: socket.socket) -> int:
    """A rank's life, told of where torch cannot be loaded; its exit status."""
    try:
        from collbench.run.rank import worker
    except Exception as e:
        from collbench.run.launch.world import Failure, Said

        at.sendall(encode_json(Said(error=Failure.of(e))) + b"\n")
        return 1
    return worker.local_rank(rank, board, at)


def main() -> None:
    """A warden's process: ``PLACE BOARD MPIRUN``."""
    streams.secure_streams()
    _guard_rank(*sys.argv[1:])


if __name__ == "__main__":
    main()
