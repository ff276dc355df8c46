"""A process that loads torch for a fork server, started before the options are read."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from collbench.core.backend_info import backend_info
from collbench.core.errors import CollbenchError
from collbench.run.launch import environments
from collbench.run.launch.children import bound_command, module_command
from collbench.survive.signals import interrupts

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}

Env = Sequence[tuple[str, str]]


def make_environment(settings: Mapping[str, str], env: Env = ()) -> dict[str, str]:
    """The whole environment of ranks on this machine: a process's ``settings``, and a case's."""
    return {"OMP_NUM_THREADS": "1", **LOOPBACK, **settings, **dict(env)}


class LoadingServer:
    """A fork server that may still be loading torch, with this end of its socket. It is killed by
    ``close`` unless somebody has taken it over."""

    def __init__(
        self, env: Mapping[str, str] | Mapping[bytes, bytes], python: str = sys.executable
    ) -> None:
        self.env, self.python = dict(env), python
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = self._start_process(theirs)
        theirs.close()
        self._is_ours = True

    def _start_process(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        command = module_command(
            self.python, "collbench.run.launch.forkserver", str(theirs.fileno())
        )
        return subprocess.Popen(
            bound_command(self.python, signal.SIGKILL, os.getpid(), *command),
            pass_fds=[theirs.fileno()],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__,  # also what libraries print in ranks
        )

    def take_over(self, env: Mapping[str, str] | Mapping[bytes, bytes], python: str) -> bool:
        """Whether this server is as asked for, and nobody's yet: it is then the caller's to end."""
        suits = self._is_ours and (self.env, self.python) == (dict(env), python)
        self._is_ours = self._is_ours and not suits
        return suits

    def close(self) -> None:
        """Kill the process, unless it was taken over."""
        if self._is_ours:
            self._is_ours = False
            self.socket.close()
            self.process.kill()
            self.process.wait()


def start_early(options: Mapping[str, Any]) -> LoadingServer | None:
    """A server for ranks on this machine, where the options of a sweep, as typed, ask for these;
    None where they ask for something else, or are not understood here."""
    if options["dry_run"] or options["envs"] or options["paths"]:
        return None
    names = options["backends"].split(",") if options["backends"] else ["gloo"]
    with suppress(CollbenchError):  # what is wrong with the options is told where they are read
        if environments.detect_variables(options["launcher"]) is not None:
            return None
        if options["launcher"] not in ("auto", "local"):
            return None
        if options.get("imports") or any("/" in name or name.endswith(".py") for name in names):
            return None  # what these say is not known yet
        infos = [backend_info(name) for name in names]
        if any(info.launch == "fork" and not info.predicts for info in infos):
            with interrupts.uninterrupted():
                return LoadingServer(make_environment(os.environ))
    return None
