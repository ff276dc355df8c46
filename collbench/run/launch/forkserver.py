"""The process that has torch loaded and forks ranks, so that starting eight of them costs one
import.

It is started by launch.local with one end of a socket pair. A request ``{"spawn": n}`` forks n
ranks; for each, a message with its pid carries the descriptor of the rank's own channel (the first
one also the board's). When a rank ends, ``{"exit": rank, "status": wait status}`` follows. When the
parent goes away, all ranks are killed.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

import msgspec

from collbench.run.launch.board import Board

_PR_SET_PDEATHSIG = 1


def die_with_parent(by: int = signal.SIGKILL) -> None:
    """Have the kernel end this process by a signal when the one that made it ends, however it ends
    (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(by))


def leave(status: int) -> NoReturn:
    """End this process at once, its exit handlers run and all printed. Python would take torch down
    part by part first, for a quarter of a second, in which libraries may abort around ranks that
    are gone."""
    with suppress(BrokenPipeError):
        atexit._run_exitfuncs()
        sys.stdout.flush(), sys.stderr.flush()
    os._exit(status)


class Server:
    """Forks ranks on request and reports their ends, until the parent's end of ``control``
    closes."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ranks: dict[int, int] = {}
        self._wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._wake_r], [], [])
            if self._wake_r in ready:
                os.read(self._wake_r, 4096)
                self._reap()
            if self._control.fileno() in ready:
                request = self._control.recv(65536)
                if not request:
                    break
                self._spawn(msgspec.json.decode(request)["spawn"])
        for pid in self._ranks:
            os.kill(pid, signal.SIGKILL)

    def _spawn(self, n: int) -> None:
        board, board_fd = Board.create(n)
        for rank in range(n):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                ours.close()
                self._become(rank, board, theirs)
            theirs.close()
            self._ranks[pid] = rank
            note = msgspec.json.encode({"rank": rank, "pid": pid})
            socket.send_fds(
                self._control, [note], [ours.fileno(), board_fd] if rank == 0 else [ours.fileno()]
            )
            ours.close()
        os.close(board_fd)

    def _become(self, rank: int, board: Board, channel: socket.socket) -> None:
        """Turn the forked child into a rank; never returns."""
        status = 1
        try:
            die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            from collbench.run.rank import worker

            status = worker.local_rank(rank, board, channel)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            note = {"exit": self._ranks.pop(pid), "status": status}
            self._control.send(msgspec.json.encode(note))


def main() -> None:
    die_with_parent()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is the parent's to handle: it ends the ranks
    control = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    # the reason this process exists: torch is loaded before the forks
    import collbench.run.rank.worker  # noqa: F401

    gc.freeze()  # of what all ranks share none is to be looked at, and so copied, by each
    gc.enable()
    try:
        control.send(b'{"up":true}')
        Server(control).serve()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent has found a reason not to run, and is gone
    leave(0)


if __name__ == "__main__":
    main()
