"""The process that has torch loaded and forks ranks, so that starting eight of them costs one
import.

It is started by launch.local with one end of a socket pair. A request (Spawn), which carries the
descriptor of their board, forks n ranks; a note of each one's pid carries the
descriptor of its channel, and a note of its wait status follows when it ends. When the parent goes
away, all ranks are killed.

A rank under mpirun is forked for the warden that stands in for it there (warden.py), which alone
is told of its birth and end, and with whose end it is killed (Adopt).
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

import msgspec

from collbench.core.errors import CannotRun, CollbenchError, RunBroken
from collbench.core.text import print_message
from collbench.run import mpi_library
from collbench.run.launch.board import ALONE_SECONDS, LEAVE_SECONDS, Board
from collbench.run.launch.children import die_with_parent
from collbench.run.launch.warden import BORN, DESCRIPTORS_MAX, ENDED, READY, REFUSED
from collbench.run.launch.world import Channel
from collbench.survive import streams
from collbench.survive.crash import explain_crash
from collbench.survive.signals import name_signal

REAP_SECONDS = 1.0  # for killed ranks to end

LONGEST_SECONDS = 70.0  # for exit handlers, where nobody is known to hold them up


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is told of a rank by the process that made it: its pid when it is born, its wait status
    when it has ended. Of a rank under mpirun, the pid of its ``warden`` before that; ``alone`` is
    that the warden ended before the rank, ``forked`` that a fork server has made it. ``errno`` says
    why a rank could not be forked."""

    rank: int
    pid: int = 0
    status: int = 0
    warden: int = 0
    alone: bool = False
    forked: bool = False
    errno: int = 0


class Spawn(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """A request for n ranks: a whole world, or some that learn who they are (fresh.py)."""

    n: int
    fresh: bool = False


class Adopt(msgspec.Struct, frozen=True, tag=True):
    """A request for one rank of n, for its warden. Descriptors come along: of the board, of the
    socket whose other end the warden has, and of what the warden asks for."""

    rank: int
    n: int


def leave_process(
    status: int, unwatched: str = "", find_cause: Callable[[], str] = lambda: ""
) -> NoReturn:
    """End this process at once, its exit handlers run and all printed. Python would take torch down
    part by part first, for a quarter of a second, in which libraries may abort around ranks that
    are gone. Where nobody else watches this process, by whose name it is called then, exit handlers
    have ALONE_SECONDS if ``find_cause`` says what they may wait for, else LONGEST_SECONDS: rank 0
    may still write the run's files."""
    if unwatched:
        threading.Thread(
            target=_limit_exit, args=(status, unwatched, find_cause), daemon=True
        ).start()
    with suppress(BrokenPipeError):
        atexit._run_exitfuncs()
        sys.stdout.flush(), sys.stderr.flush()
    mpi_library.end_process(status)


def _limit_exit(status: int, who: str, find_cause: Callable[[], str]) -> None:
    """End this process once its exit handlers have taken too long, and say why."""
    until, cause = time.monotonic() + LONGEST_SECONDS, ""
    while not cause and time.monotonic() < until:
        time.sleep(ALONE_SECONDS)
        cause = find_cause()
    message = f"{who} did not end within {LONGEST_SECONDS:g} s of its last work, and is killed"
    if cause:
        message = f"{cause} while leaving; all had been measured"
    with suppress(OSError):
        os.write(2, f"collbench: {message}\n".encode())
    os._exit(status)


class Parent:
    """A process that makes ranks of this machine, as the one that started it sees it. ``hint``
    tells how to find out why it does not come up."""

    name: str
    hint: str
    process: subprocess.Popen[bytes]

    def unheard(self, n: int) -> list[int]:
        """The ranks, of n, whose wardens never began although others' did."""
        return []

    def list_ranks(self) -> list[tuple[int, int]]:
        """Processes (rank, pid) that it has started for ranks."""
        return []

    def makers(self) -> list[tuple[str, int]]:
        """Processes (name, pid) that are at work where ranks are yet to be made."""
        return [(self.name, self.process.pid)]

    def refuse_unforked(self, note: Note, fds: Sequence[int]) -> None:
        """Raises CannotRun where a note says that a rank could not be forked, or of its birth comes
        without its channel, as this process may open no more descriptors."""
        number = errno.EMFILE if note.pid and not fds else note.errno
        if number:
            error = OSError(number, os.strerror(number))
            what = f"{self.name} cannot start rank {note.rank}: {error.strerror}"
            raise CannotRun(what, explain_crash(error).hint)

    def ended(self, born: int) -> CollbenchError:
        """Why it is gone, having made so many ranks."""
        code = self.end()
        if code < 0:
            message = f"{self.name} was killed by {name_signal(-code)}, and with it all ranks"
            return RunBroken(message, "is the machine out of memory? see dmesg")
        if not born and code in (128 + signal.SIGKILL, 128 + signal.SIGSEGV, 128 + signal.SIGABRT):
            message = f"{self.name} says that a process of its was killed before any rank started"
            return RunBroken(message, "is the machine out of memory? see dmesg")
        if not born:
            return CannotRun(f"{self.name} did not come up: it ended with {code}", self.hint)
        return RunBroken(f"{self.name} ended with {code}, and with it all ranks")

    def end(self) -> int:
        """Wait until the process has ended, kill it after LEAVE_SECONDS, and return its exit
        status."""
        try:
            return self.process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            late = f"did not end within {LEAVE_SECONDS:g} s, and was killed"
            print_message(f"{self.name} (pid {self.process.pid}) {late}")
            return self.process.wait()


class Adopted:
    """A rank's warden, by its ``socket``: it is yet to ask, or its rank is there."""

    def __init__(self, orders: Adopt, board: int, at: int, request: int) -> None:
        self.rank, self._n, self._board, self._request = orders.rank, orders.n, board, request
        self.socket = socket.socket(fileno=at)

    def receive_descriptors(self) -> list[int]:
        """The descriptors that the warden hands over; none where it has ended."""
        with suppress(OSError):
            _, fds, _, _ = socket.recv_fds(self.socket, 64, DESCRIPTORS_MAX + 2)
            return fds
        return []

    def forget_request(self) -> None:
        """Close what only the rank needed."""
        for fd in (self._board, self._request):
            os.close(fd)

    def become_rank(self, fds: Sequence[int]) -> NoReturn:
        """Turn this process, which was just forked, into the rank, unless it cannot be as the
        warden wants it: then it ends."""
        from collbench.run.launch import takeover

        try:
            request = takeover.read_request(self._request)
            if len(fds) != 2 + len(request["descriptors"]):
                raise ValueError(
                    f"the launcher's request is cut: {len(fds)} open files came with it"
                )
        except (OSError, ValueError) as e:
            print_message(f"rank {self.rank} is started anew: {e}")
            _leave_to_warden(self.socket, e)
        own = [self.socket.detach(), self._board, *fds]
        os.close(self._request)
        at, board_fd, channel, folder, *files = takeover.move_descriptors(
            own, request["descriptors"]
        )
        with socket.socket(fileno=at) as warden:
            try:
                takeover.take_over(request, folder, files)
            except (CannotRun, OSError, ValueError) as e:
                _leave_to_warden(warden, e)
            board = Board(self._n, board_fd)
            os.close(board_fd)
            pid = os.getpid()
            process = os.pidfd_open(pid)
            socket.send_fds(warden, [BORN + str(pid).encode()], [process])
            os.close(process)
        from collbench.run.rank import worker

        with socket.socket(fileno=channel) as stream:
            leave_process(worker.local_rank(self.rank, board, stream))

    def tell_end(self, status: int) -> None:
        """Tell the warden of the rank's wait status."""
        with suppress(OSError):
            self.socket.send(ENDED + str(status).encode())


def _leave_to_warden(warden: socket.socket, why: Exception) -> NoReturn:
    """End this process, which cannot be the rank: the warden is told why, and makes a fresh one."""
    with suppress(OSError):  # it has ended
        warden.send(REFUSED + str(why).encode(errors="replace")[:1000])
    os._exit(0)


class Server:
    """Forks ranks on request and reports their ends, until the parent's end of ``control``
    closes."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ranks: dict[int, int | Adopted] = {}
        self._wardens: dict[Adopted, int] = {}  # and the pids of their ranks; 0: yet to be made
        self._wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_w = wake_w
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._ready = selectors.PollSelector()  # which has no descriptor that forks would share
        self._ready.register(control, selectors.EVENT_READ)
        self._ready.register(self._wake_r, selectors.EVENT_READ)

    def serve(self) -> None:
        """Fork ranks and tell of their ends, until the parent is gone; then end those left."""
        server = os.getpid()
        try:
            self._serve_parent()
        finally:
            if os.getpid() == server:  # and not a forked rank that fails
                self._end_ranks()

    def _serve_parent(self) -> None:
        while True:
            ready = [key for key, _ in self._ready.select()]
            if self._wake_r in [key.fd for key in ready]:
                os.read(self._wake_r, 4096)
                self._reap()
            for key in ready:
                if key.data is not None:
                    self._serve_warden(key.data)
            if self._control.fileno() in [key.fd for key in ready]:
                request, fds, _, _ = socket.recv_fds(self._control, 65536, 3)
                if not request:
                    return
                self._obey(msgspec.json.decode(request, type=Spawn | Adopt), fds)

    def _end_ranks(self) -> None:
        """Kill the ranks that are left, and wait a moment for their ends: a process 1 that is no
        init, as collbench in a container may be, would keep them as zombies."""
        for pid in self._ranks:
            os.kill(pid, signal.SIGKILL)
        unreaped, until = set(self._ranks), time.monotonic() + REAP_SECONDS
        while unreaped and time.monotonic() < until:
            unreaped -= {pid for pid in unreaped if os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.002)

    def _obey(self, request: Spawn | Adopt, fds: list[int]) -> None:
        if isinstance(request, Spawn):
            return self._spawn(request, *fds)
        warden = Adopted(request, *fds)
        with suppress(OSError):  # it has ended
            warden.socket.send(READY)
        self._wardens[warden] = 0
        self._ready.register(warden.socket, selectors.EVENT_READ, warden)

    def _serve_warden(self, warden: Adopted) -> None:
        """Make the rank that a warden asks for; of a warden that has ended, end the rank."""
        if warden not in self._wardens:
            return  # its rank has just been reaped
        if pid := self._wardens[warden]:
            os.kill(pid, signal.SIGKILL)  # it is there until it is reaped
            self._ready.unregister(warden.socket)
            return
        fds = warden.receive_descriptors()
        if not fds:
            warden.forget_request()
            self._drop_warden(warden)
            return
        server_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as e:
            self._refuse_rank(warden, fds, e)
            return
        if pid == 0:
            self._leave_server(server_pid, warden)
            try:
                warden.become_rank(fds)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        warden.forget_request()
        for fd in fds:
            os.close(fd)
        self._ranks[pid], self._wardens[warden] = warden, pid

    def _refuse_rank(self, warden: Adopted, fds: Sequence[int], why: OSError) -> None:
        """Tell a warden that no rank can be forked for it."""
        with suppress(OSError):
            warden.socket.send(REFUSED + str(why).encode())
        for fd in fds:
            os.close(fd)
        warden.forget_request()
        self._drop_warden(warden)

    def _leave_server(self, server_pid: int, warden: Adopted) -> None:
        """In a forked process, close what is the server's alone."""
        die_with_parent(server_pid)
        signal.set_wakeup_fd(-1)
        self._control.close()
        for fd in (self._wake_r, self._wake_w):
            os.close(fd)
        for other in self._wardens:
            if other is not warden:
                other.socket.close()
                if not self._wardens[other]:
                    other.forget_request()

    def _drop_warden(self, warden: Adopted) -> None:
        del self._wardens[warden]
        with suppress(KeyError):
            self._ready.unregister(warden.socket)
        warden.socket.close()

    def _spawn(self, request: Spawn, board_fd: int) -> None:
        board, server_pid = Board(request.n, board_fd), os.getpid()
        for rank in range(request.n):
            ours, theirs = socket.socketpair()
            try:
                pid = os.fork()
            except OSError as e:  # the parent ends this process then
                self._control.send(msgspec.json.encode(Note(rank, errno=e.errno or 0)))
                break
            if pid == 0:
                die_with_parent(server_pid)
                ours.close()
                self._become(rank, board, theirs, request.fresh)
            theirs.close()
            self._ranks[pid] = rank
            note = msgspec.json.encode(Note(rank, pid=pid))
            socket.send_fds(self._control, [note], [ours.fileno()])
            ours.close()
        os.close(board_fd)

    def _become(self, rank: int, board: Board, channel: socket.socket, is_fresh: bool) -> None:
        """Turn the forked child into a rank; never returns."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            from collbench.run.launch import fresh
            from collbench.run.rank import worker

            if is_fresh:
                stream = channel.makefile("rwb")
                status = fresh.live_as_rank(Channel(stream, stream))
            else:
                status = worker.local_rank(rank, board, channel)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError):  # a closed pipe, a full disk
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            rank = self._ranks.pop(pid)
            if isinstance(rank, Adopted):
                rank.tell_end(status)
                self._drop_warden(rank)
            else:
                self._control.send(msgspec.json.encode(Note(rank, status=status)))


def main() -> None:
    """The fork server: loads torch once, then forks a rank for each message on its socket, whose
    descriptor is the first argument."""
    streams.secure_streams()
    # Ctrl-C is the parent's to handle: it ends the ranks
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    # the reason this process exists: torch is loaded before the forks, and what most ranks need
    import numpy.random  # noqa: F401

    import collbench.run.backends._torchdist
    import collbench.run.launch.fresh
    import collbench.run.rank.background
    import collbench.run.rank.single_call
    import collbench.run.rank.trial
    import collbench.run.rank.worker  # noqa: F401

    gc.freeze()  # of what all ranks share none is to be looked at, and so copied, by each
    gc.enable()
    # the parent may have found a reason not to run, and be gone
    with suppress(BrokenPipeError, ConnectionResetError):
        Server(control).serve()
    leave_process(0)


if __name__ == "__main__":
    main()
