"""A process that has loaded a library and forks those that live with it: so that a hundred ranks
can be killed without loading it a hundred times. A rank has one, which ends with it.

``nursery PARENT DESCRIPTOR``: over the socket that it inherits it is sent Instructions, and tells
the new process's number. No other process can reach it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from collbench.features.lifecycle import child, torch_life
from collbench.features.lifecycle.instructions import Instructions
from collbench.features.lifecycle.watching import READY
from collbench.run.launch.children import die_with_parent

MOST = 1 << 16  # bytes of instructions


def _fork_life(given: Instructions, ours: socket.socket) -> int:
    """Fork a process that lives as it is told; its number."""
    nursery = os.getpid()
    if pid := os.fork():
        return pid
    try:
        die_with_parent(nursery)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ours.close()
        errors = os.open(Path(given.folder) / "errors", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        child.live(given)
    finally:
        os._exit(1)


def _reap_forks(*_: object) -> None:
    """Have the kernel count what those that have ended have worked; how they did, nobody asks."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    """Fork until the rank that this belongs to ends."""
    pid = int(sys.argv[1])
    die_with_parent(pid)
    assert torch_life  # loaded by now, and nothing of it begun
    signal.signal(signal.SIGCHLD, _reap_forks)
    with socket.socket(fileno=int(sys.argv[2])) as rank, suppress(ConnectionError):
        rank.send(READY)
        while text := rank.recv(MOST):
            given = msgspec.json.decode(text, type=Instructions)
            rank.send(str(_fork_life(given, rank)).encode())


if __name__ == "__main__":
    main()
