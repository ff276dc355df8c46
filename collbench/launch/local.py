"""Ranks on this machine: started from a fork server, watched until they are gone, whatever becomes of them."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from collbench import environment, room
from collbench.backends import UNDER_MPIRUN
from collbench.errors import CannotRun, RunBroken, says_peer_is_gone
from collbench.launch.board import Board, Phase
from collbench.launch.mpirun import Mpirun
from collbench.plan import Job, Plan
from collbench.records import Record, World
from collbench.suite import Policy

LINE_LIMIT = 256 << 20
_TICK = 0.25
_LOAD_SECONDS = 120.0  # loading torch from a cold or remote disk
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}

OnLine = Callable[[World | Record], None]
OnTick = Callable[[int, Phase], None]
Further = Callable[[], list[Job]]  # what an open plan goes on with


class _Death(NamedTuple):
    rank: int
    status: int

    @property
    def words(self) -> str:
        if os.WIFSIGNALED(self.status):
            return f"was killed by {signal.Signals(os.WTERMSIG(self.status)).name}"
        return f"exited with status {os.waitstatus_to_exitcode(self.status)}"


class ForkServer:
    """A process with torch loaded, under a given interpreter and environment; ``spawn`` makes worlds of ranks."""

    name = "the fork server"

    def __init__(self, env: Mapping[str, str], python: str = sys.executable) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._python = python
        command = [python, "-m", "collbench.launch.forkserver", str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=dict(env), stdin=subprocess.DEVNULL)
        theirs.close()
        self._ours.settimeout(_LOAD_SECONDS)
        self._up = False

    def spawn(self, n: int) -> tuple[Board, list[int], list[socket.socket]]:
        """n new ranks: their board, pids and channels. Raises CannotRun when torch cannot be loaded."""
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
                f"the process that loads torch did not come up: {e}", f"{self._python} -c 'import torch' tells why"
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
        """The next rank to end, and its wait status (wait for the descriptor to be readable first). EOFError if the
        server itself died."""
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


class Launcher:
    """Runs plans, each in a world of fresh ranks; one fork server per environment setting, kept for the next plan.

    ``python`` and ``settings``, the whole environment, are this process's own unless told otherwise.
    """

    def __init__(self, python: str = sys.executable, settings: Mapping[str, str] = os.environ) -> None:
        self._python, self._settings = python, settings
        self._servers: dict[tuple[tuple[str, str], ...], ForkServer] = {}

    def warm(self, env: tuple[tuple[str, str], ...] = ()) -> ForkServer:
        """Start loading torch under ``env`` now; returns at once."""
        if env not in self._servers:
            self._servers[env] = ForkServer(self._environment(env), self._python)
        return self._servers[env]

    def _environment(self, env: tuple[tuple[str, str], ...]) -> dict[str, str]:
        return {"OMP_NUM_THREADS": "1", **_LOOPBACK, **self._settings, **dict(env)}

    def run(self, plan: Plan, on_line: OnLine, on_tick: OnTick, further: Further = list) -> None:
        """One world, from start to end. Raises RunBroken with the culprit, or CannotRun with the backend's reason."""
        folder = Path(tempfile.mkdtemp(prefix="collbench-"))
        server: ForkServer | Mpirun | None = None
        broken = True
        try:
            if plan.backend in UNDER_MPIRUN:
                server = Mpirun(self._environment(plan.env), self._python, folder)
            else:
                server = self.warm(plan.env)
            board, pids, channels = server.spawn(plan.processes)
            watch = _Watch(plan, server, board, pids, channels, on_line, on_tick, further)
            watch.start(str(folder / "store"))
            watch.until_done()
            broken = False
        finally:
            if isinstance(server, Mpirun):
                server.close()
            elif broken and server:
                server.close()
                del self._servers[plan.env]
            shutil.rmtree(folder, ignore_errors=True)

    def room(self, backend: str, n: int, policy: Policy) -> room.Room:
        """What n ranks share on this machine."""
        return room.of(backend, n, policy)

    def environment(self) -> dict[str, Any]:
        """Of this machine, and of the git repository that the command runs in."""
        return environment.gather(Path.cwd())

    def release(self, env: tuple[tuple[str, str], ...]) -> None:
        """End the fork server of an environment that no plan needs any more."""
        if env in self._servers:
            self._servers.pop(env).close()

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()


class _Watch:
    """Follows one world: passes lines on, notices deaths, errors and standstill, and says who is to blame."""

    def __init__(
        self, plan: Plan, server: ForkServer | Mpirun, board: Board, pids: list[int], channels: list[socket.socket],
        on_line: OnLine, on_tick: OnTick, further: Further,
    ) -> None:  # fmt: skip
        self._plan, self._server, self._board, self._pids = plan, server, board, pids
        self._channels, self._on_line, self._on_tick, self._further = channels, on_line, on_tick, further
        self._partial = [b""] * plan.processes
        self._done: set[int] = set()
        self._gone: set[int] = set()
        self._errors: dict[int, dict[str, Any]] = {}
        self._deaths: dict[int, _Death] = {}

    def start(self, store: str) -> None:
        message = msgspec.json.encode({"plan": self._plan, "store": store}) + b"\n"
        for channel in self._channels:
            try:
                channel.sendall(message)
            except OSError:
                continue  # the rank is dead already; its death notice says so in a moment
            channel.setblocking(False)

    def until_done(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._server, selectors.EVENT_READ, -1)
        for rank, channel in enumerate(self._channels):
            selector.register(channel, selectors.EVENT_READ, rank)
        beats, moved = self._board.beats(), time.monotonic()
        trouble_since = None
        while len(self._gone) < self._plan.processes:
            for key, _ in selector.select(_TICK):
                if key.data < 0:
                    self._note_death()
                elif not self._read(key.data):
                    selector.unregister(key.fileobj)
            phase, case, _ = self._board.where(0)
            self._on_tick(case, phase)
            now = time.monotonic()
            if (self._errors or self._deaths) and trouble_since is None:
                trouble_since = now
            if trouble_since is not None and now - trouble_since > 2 * _TICK:
                raise self._blame()
            if (latest := self._board.beats()) != beats:
                beats, moved = latest, now
            elif now - moved > self._plan.timeout and len(self._done) < self._plan.processes:
                raise self._hung(now - moved)
        if self._errors or self._deaths:
            raise self._blame()

    def _note_death(self) -> None:
        try:
            death = _Death(*self._server.death())
        except EOFError:
            if self._deaths or self._errors:  # of which mpirun took notice too
                raise self._blame() from None
            raise RunBroken(
                f"{self._server.name} was killed, and with it all ranks", "is the machine out of memory? see dmesg"
            ) from None
        self._gone.add(death.rank)
        if death.rank not in self._done and death.rank not in self._errors:
            self._deaths[death.rank] = death

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
            raise self._broken(rank, f"sent a line of over {LINE_LIMIT >> 20} MiB")
        for line in lines:
            self._understand(rank, line)
        return bool(data)

    def _understand(self, rank: int, line: bytes) -> None:
        message = msgspec.json.decode(line)
        if "line" in message:
            self._on_line(msgspec.convert(message["line"], World | Record))
        elif "further" in message:
            self._go_on(self._channels[rank])
        elif "error" in message:
            self._errors[rank] = message["error"]
        elif "done" in message:
            self._done.add(rank)

    def _go_on(self, channel: socket.socket) -> None:
        more = self._further()
        self._plan.jobs.extend(more)
        channel.setblocking(True)
        channel.sendall(msgspec.json.encode(more) + b"\n")
        channel.setblocking(False)

    def _blame(self) -> CannotRun | RunBroken:
        """Who broke the run: a rank that was killed before one that fell over, before those that noticed."""
        expected = [e for e in self._errors.values() if e["expected"]]
        if expected and not self._deaths:
            return CannotRun(expected[0]["message"], expected[0]["hint"])
        aborted = all(os.WTERMSIG(death.status) == signal.SIGABRT for death in self._deaths.values())
        if self._deaths and not (self._errors and aborted):  # a library aborts where another rank has said why
            death = min(self._deaths.values(), key=lambda d: not os.WIFSIGNALED(d.status))
            hint = "out of memory? see dmesg" if os.WTERMSIG(death.status) == signal.SIGKILL else ""
            return self._broken(death.rank, death.words, hint)
        rank = min(self._errors, key=lambda r: says_peer_is_gone(self._errors[r]["message"]))
        error = self._errors[rank]
        print(error["traceback"], file=sys.stderr, end="")
        return self._broken(rank, f"raised {error['message']}")

    def _hung(self, seconds: float) -> RunBroken:
        """Nobody moved for too long. A stopped rank is to blame, else whoever is behind the others."""
        ranks = range(self._plan.processes)
        stopped = [rank for rank in ranks if rank not in self._gone and _is_stopped(self._pids[rank])]
        places = [self._board.where(r) for r in ranks]
        behind = [r for r in ranks if (places[r][1], places[r][2]) < max((p[1], p[2]) for p in places)]
        hint = f"-T sets the limit, now {self._plan.timeout:g} s without any progress"
        if stopped:
            return self._broken(stopped[0], "is stopped (SIGSTOP)", hint)
        if behind:
            return self._broken(behind[0], f"has not moved for {seconds:.0f} s", hint)
        return self._broken(None, f"hang in the same call for {seconds:.0f} s", hint)

    def _broken(self, rank: int | None, what: str, hint: str = "") -> RunBroken:
        who = (
            f"all {self._plan.n} ranks"
            if rank is None
            else f"rank {rank} on {environment.host()} (pid {self._pids[rank]})"
        )
        phase, job = self._board.where(rank or 0)[0], self._board.job(rank or 0)
        return RunBroken(f"{who} {what} while {self._plan.doing(phase.words, job)}", hint, job)


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in _STOPPED
    except psutil.Error:  # it has just ended
        return False
