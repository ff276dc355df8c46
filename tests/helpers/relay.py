"""What a launcher starts in place of a cold ``collbench``: a small process that has its work done
by a command forked from a warm one, of its arguments, environment, cores and host name. Signals
are passed on, and it ends as the command does; what the command prints comes at its end. A
descriptor that the launcher leaves it is not passed on.

Started as a script it is that small process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from warm import Started, Warm

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Relay:
    """Takes orders of such processes; ``command`` starts one, with the words of a command behind
    it."""

    def __init__(self, warm: Warm, path: Path) -> None:
        self._warm = warm
        self._at = socket.socket(socket.AF_UNIX)
        self._at.bind(str(path))
        self._at.listen()
        self.command = [sys.executable, "-I", "-S", __file__, str(path)]
        self._start_thread(self._accept)

    def _start_thread(self, run: Callable[..., None], *args: object) -> None:
        from threading import Thread

        Thread(target=run, args=args, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                at, _ = self._at.accept()
            except OSError:  # it is closed
                return
            self._start_thread(self._serve, at)

    def _serve(self, at: socket.socket) -> None:
        with at, at.makefile() as lines:
            args, env, pid = json.loads(lines.readline())
            process = self._warm.start(*args, env=env, like=pid)
            self._start_thread(self._pass_on, at, process)
            out, err = process.communicate()
            try:
                at.sendall(json.dumps([process.wait(), out, err]).encode())
            except OSError:  # it was killed
                return
            at.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, at: socket.socket, process: Started) -> None:
        while numbers := at.recv(16):
            for number in numbers:
                process.send_signal(number)
        process.kill()

    def close(self) -> None:
        """Take no more orders."""
        self._at.shutdown(socket.SHUT_RDWR)
        self._at.close()


def find_agent() -> str:
    """The script of torchrun's agent."""
    from importlib.util import find_spec
    from pathlib import Path

    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    return str(Path(torch.origin).parent / "distributed" / "run.py")


def main(path: str, *args: str) -> None:
    at = socket.socket(socket.AF_UNIX)
    at.connect(path)
    at.sendall(json.dumps([args, dict(os.environ), os.getpid()]).encode() + b"\n")
    for each in PASSED_ON:
        signal.signal(each, lambda number, _: at.sendall(bytes([number])))
    code, out, err = json.loads(at.makefile().read())
    print(out, end="", flush=True)
    print(err, end="", file=sys.stderr, flush=True)
    if code >= 0:
        os._exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(*sys.argv[1:])
