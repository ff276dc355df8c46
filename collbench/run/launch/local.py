"""Ranks on this machine: started from a fork server, watched until they are gone, whatever becomes
of them."""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from collbench.core.errors import CannotRun, RunBroken, says_peer_is_gone
from collbench.machine import environment
from collbench.run.backends import UNDER_MPIRUN, is_predicted, model
from collbench.run.launch.board import Board, Phase
from collbench.run.launch.mpirun import Mpirun
from collbench.run.launch.world import (
    LINE_LIMIT,
    STOPPED,
    Asked,
    Death,
    Env,
    Listener,
    RankWatch,
    StallWatch,
    World,
)
from collbench.run.plan import Plan

_TICK = 0.25


_LOAD_SECONDS = 120.0  # loading torch from a cold or remote disk


_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}


class ForkServer:
    """A process with torch loaded, under a given interpreter and environment; ``spawn`` makes
    worlds of ranks."""

    name = "the fork server"

    def __init__(self, env: Mapping[str, str], python: str = sys.executable) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._python = python
        command = [python, "-m", "collbench.run.launch.forkserver", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=dict(env), stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._ours.settimeout(_LOAD_SECONDS)
        self._up = False

    def spawn(self, n: int) -> tuple[Board, list[int], list[socket.socket]]:
        """n new ranks: their board, pids and channels. Raises CannotRun when torch cannot be
        loaded."""
        self._ours.settimeout(_LOAD_SECONDS)
        try:
            if not self._up:
                self._receive()
                self._up = True
            self._ours.send(msgspec.json.encode({"spawn": n}))
            pids, channels, board = [], [], None
            for _ in range(n):
                note, fds = self._receive()
                pids.append(note["pid"])
                channels.append(socket.socket(fileno=fds[0]))
                if len(fds) > 1:
                    board = Board(n, fds[1])
                    os.close(fds[1])
        except (OSError, EOFError) as e:
            raise CannotRun(
                f"the process that loads torch did not come up: {e}",
                f"{self._python} -c 'import torch' tells why",
            ) from e
        assert board is not None
        return board, pids, channels

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        data, fds, _, _ = socket.recv_fds(self._ours, 65536, 4)
        if not data:
            raise EOFError("it ended early")
        return msgspec.json.decode(data), fds

    def fileno(self) -> int:
        return self._ours.fileno()

    def death(self) -> tuple[int, int]:
        """The next rank to end, and its wait status (wait for the descriptor to be readable first).
        EOFError if the server itself died."""
        note, _ = self._receive()
        return note["exit"], note["status"]

    def close(self) -> None:
        """End the server, and with it every rank it still has."""
        self._ours.close()
        if not self._up:  # it may be loading torch yet, and has no ranks
            self._process.kill()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class FreshRanks(World):
    """A world whose plans get ranks of their own each, and predicted ones none."""

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        for place, plan in enumerate(plans):
            if is_predicted(plan.backend):
                model.Predicted().run([plan], listener)
                continue
            try:
                self.measure(plan, listener)
            except RunBroken as e:
                listener.lost(plan, e)
                raise
            later = plans[place + 1 :]
            if later and all(other.env != plan.env for other in later):
                self.release(plan.env)

    @abstractmethod
    def measure(self, plan: Plan, listener: Listener) -> None:
        """One plan, from the start of its ranks to their end."""

    def release(self, env: Env) -> None:
        """Give back what only plans with this environment need."""
        return


class Launcher(FreshRanks):
    """Runs plans on this machine; one fork server per environment setting, kept for the next plan.

    ``python`` and ``settings``, the whole environment, are this process's own unless told
    otherwise.
    """

    def __init__(
        self, python: str = sys.executable, settings: Mapping[str, str] = os.environ
    ) -> None:
        self._python, self._settings = python, settings
        self._servers: dict[Env, ForkServer] = {}

    def warm(self, backends: Sequence[str], env: Env = ()) -> None:
        """Start loading torch under ``env``, if any of the backends has forked ranks."""
        if any(not is_predicted(name) and name not in UNDER_MPIRUN for name in backends):
            self._server(env)

    def _server(self, env: Env) -> ForkServer:
        if env not in self._servers:
            self._servers[env] = ForkServer(self._environment(env), self._python)
        return self._servers[env]

    def _environment(self, env: Env) -> dict[str, str]:
        return {"OMP_NUM_THREADS": "1", **_LOOPBACK, **self._settings, **dict(env)}

    def measure(self, plan: Plan, listener: Listener) -> None:
        folder = Path(tempfile.mkdtemp(prefix="collbench-"))
        try:
            with self._parent(plan, folder) as parent:
                watch = _Watch(plan, listener, parent)
                watch.start(str(folder / "store"))
                watch.until_done()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _parent(self, plan: Plan, folder: Path) -> Iterator[ForkServer | Mpirun]:
        """What starts the plan's ranks and tells of their ends: an mpirun of theirs alone, else a
        fork server, which ends with a world that breaks."""
        env = self._environment(plan.env)
        if plan.backend in UNDER_MPIRUN:
            with closing(Mpirun(env, self._python, folder)) as mpirun:
                yield mpirun
            return
        try:
            yield self._server(plan.env)
        except BaseException:
            self.release(plan.env)
            raise

    def release(self, env: Env) -> None:
        if env in self._servers:
            self._servers.pop(env).close()

    def close(self) -> None:
        for env in list(self._servers):
            self.release(env)


class _Watch(RankWatch):
    """Follows ranks of this machine by their channels, their board, and their parent."""

    def __init__(self, plan: Plan, listener: Listener, parent: ForkServer | Mpirun) -> None:
        super().__init__(plan, listener, grace=2 * _TICK)
        self._parent = parent
        self._board, self._pids, self._channels = parent.spawn(plan.processes)
        self._partial = [b""] * plan.processes
        self._done: set[int] = set()
        self._gone: set[int] = set()

    def start(self, store: str) -> None:
        message = msgspec.json.encode(Asked(self.plan, store)) + b"\n"
        for channel in self._channels:
            try:
                channel.sendall(message)
            except OSError:
                continue  # the rank is dead already; its death notice says so in a moment
            channel.setblocking(False)

    def until_done(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._parent, selectors.EVENT_READ, -1)
        for rank, channel in enumerate(self._channels):
            selector.register(channel, selectors.EVENT_READ, rank)
        stall = StallWatch(self._board, self.plan)
        while len(self._gone) < self.plan.processes:
            for key, _ in selector.select(_TICK):
                if key.data < 0:
                    self._note_death()
                elif not self._read(key.data):
                    selector.unregister(key.fileobj)
            phase, job, _ = self._board.where(0)
            if Phase.CONNECTING < phase < Phase.DONE:
                self.listener.tick(self.plan.jobs[job].case, phase)
            self.check()
            if (seconds := stall.stalled()) and len(self._done) < self.plan.processes:
                raise self._hung(stall, seconds)
        self.check(last=True)

    def _note_death(self) -> None:
        try:
            rank, status = self._parent.death()
        except EOFError:
            self.check(last=True)  # mpirun took notice of it too
            raise RunBroken(
                f"{self._parent.name} was killed, and with it all ranks",
                "is the machine out of memory? see dmesg",
            ) from None
        self._gone.add(rank)
        if rank not in self._done and rank not in self.errors:
            code = os.waitstatus_to_exitcode(status)
            self.deaths[rank] = Death.by(code, "exited with status")

    def _read(self, rank: int) -> bool:
        """Take in what a rank has written; False at the end of its channel."""
        try:
            data = self._channels[rank].recv(1 << 20)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, rest = (self._partial[rank] + data).split(b"\n")
        self._partial[rank] = rest
        if len(rest) > LINE_LIMIT:
            raise self.broken(rank, f"sent a line of over {LINE_LIMIT >> 20} MiB")
        for line in lines:
            if self.hear(rank, line).done:
                self._done.add(rank)
        return bool(data)

    def answer(self, rank: int, text: bytes) -> None:
        channel = self._channels[rank]
        channel.setblocking(True)
        channel.sendall(text + b"\n")
        channel.setblocking(False)

    def precedence(self, rank: int, end: Death) -> tuple[bool, int]:
        return not end.signal, 0  # of equals the first that was heard of

    def raised(self) -> CannotRun | RunBroken:
        foreseen = [error for error in self.errors.values() if not error.traceback]
        if foreseen and not self.deaths:
            return CannotRun(foreseen[0].message, foreseen[0].hint)
        rank = min(self.errors, key=lambda rank: says_peer_is_gone(self.errors[rank].message))
        error = self.errors[rank]
        print(error.traceback, file=sys.stderr, end="")
        return self.broken(rank, f"raised {error.message}")

    def broken(self, rank: int, what: str, hint: str = "") -> RunBroken:
        who = f"rank {rank} on {environment.host()} (pid {self._pids[rank]})"
        return StallWatch(self._board, self.plan).broken(f"{who} {what}", rank, hint)

    def _hung(self, stall: StallWatch, seconds: float) -> RunBroken:
        """Nobody moved for too long. A stopped rank is to blame, else whoever is behind the
        others."""
        hint = f"-T sets the limit, now {self.plan.timeout:g} s without any progress"
        for rank, pid in enumerate(self._pids):
            if rank not in self._gone and _is_stopped(pid):
                return self.broken(rank, STOPPED.words, hint)
        if behind := stall.behind():
            return self.broken(behind[0], f"has not moved for {seconds:.0f} s", hint)
        everybody = f"all {self.plan.n} ranks hang in the same call for {seconds:.0f} s"
        return stall.broken(everybody, 0, hint)


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in _STOPPED
    except psutil.Error:  # it has just ended
        return False
