"""A rank's connection to where all ranks meet. Loads no torch."""

from __future__ import annotations

import math
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from collbench.core.errors import CannotRun, RunBroken
from collbench.core.version import __version__
from collbench.machine import environment
from collbench.run.launch.board import Place
from collbench.run.launch.environments import STARTED_ALIKE, Membership, hint_limit
from collbench.run.launch.meeting import (
    HELLO_SECONDS,
    LINE_LIMIT,
    Answer,
    Door,
    Greeting,
    Hello,
    Request,
    Seal,
    Verdict,
    describe_doors,
    find_address,
    find_stopped,
    say_silent,
    say_stopped,
)

ANSWER_SECONDS = 60.0  # for what rank 0 does not wait for others to do

_PAUSE = 0.1


class Connection:
    """A connection to rank 0, which has let this rank in. ``hosts`` are all ranks' in their order;
    ``address`` is this rank's own, if any: beside rank 0 that by which another host reached rank 0.

    Raises RunBroken when ranks do not come together within ``seconds``, CannotRun when they do not
    belong together.
    """

    def __init__(
        self, member: Membership, doors: Sequence[Door], key: bytes, seconds: float
    ) -> None:
        self._lock = threading.RLock()
        self._key, self.rank = key, member.rank
        self._hello = Hello(
            member.rank,
            member.n,
            environment.host_name(),
            os.getpid(),
            member.launcher,
            __version__,
            boot=environment.boot_id() or "",
        )
        self._connect(doors, seconds)
        self._socket.settimeout(seconds + HELLO_SECONDS)
        try:
            verdict = self._seal.opened(self._read_line(), Verdict)
        except (OSError, EOFError) as e:
            raise RunBroken(f"{self._who()} lost rank 0 before all had come: {e}") from e
        if verdict.refused:
            if verdict.late:
                raise RunBroken(verdict.refused, _hint_absence(STARTED_ALIKE, doors, seconds))
            raise CannotRun(
                verdict.refused,
                verdict.hint
                or "start one launch at a time, with the same command line for every rank",
            )
        self.hosts = verdict.hosts
        pids = {rank: pid for rank, pid in enumerate(verdict.pids) if pid}
        # those of another PID namespace are other processes here
        self._pids = pids if pids.get(member.rank) == os.getpid() else {}
        own_address = find_address(self._socket.getsockname())
        is_beside_rank_0 = self.hosts[member.rank] == self.hosts[0]
        self.address = (is_beside_rank_0 and verdict.address) or own_address

    def _who(self) -> str:
        return (
            f"rank {self._hello.rank} of {self._hello.n} on {self._hello.host}"
            f" ({self._hello.launcher})"
        )

    def _connect(self, doors: Sequence[Door], seconds: float) -> None:
        """Try one door after the other until rank 0 is behind it."""
        until, trouble = time.monotonic() + seconds, "nobody answers"
        while time.monotonic() < until:
            for door in doors:
                try:
                    self._socket = _connect_door(door)
                    self._introduce(self._socket)
                    return
                except (OSError, EOFError, ValueError, msgspec.MsgspecError) as e:
                    if not isinstance(e, OSError):
                        trouble = (
                            "whoever answers is of another launch, or has another COLLBENCH_TOKEN"
                        )
                    elif isinstance(e, socket.gaierror):
                        trouble = "that name has no address here"
            time.sleep(_PAUSE)
        raise RunBroken(
            f"{self._who()} did not reach rank 0 at {describe_doors(doors)} within {seconds:g}"
            f" s: {trouble}",
            _hint_absence(
                "check that rank 0 was started on that host, with the same command line",
                doors,
                seconds,
            ),
        )

    def _introduce(self, at: socket.socket) -> None:
        """Both sides prove that they have the key. Raises EOFError or ValueError for another
        launch's rank 0."""
        self._lines = at.makefile("rb")
        greeting = msgspec.json.decode(self._read_line(), type=Greeting)
        hello = msgspec.structs.replace(self._hello, nonce=secrets.token_hex(16))
        self._seal = Seal(self._key, (greeting.nonce, hello.nonce), b"guest", b"host")
        at.sendall(self._seal.line(hello))
        self._seal.opened(self._read_line(), Verdict)

    def _read_line(self) -> bytes:
        """The next line of rank 0. Raises EOFError where that has gone or says too much."""
        line = self._lines.readline(LINE_LIMIT)
        if not line.endswith(b"\n"):
            raise EOFError(
                "connection closed by peer" if len(line) < LINE_LIMIT else "a line that is too long"
            )
        return line

    def ask(self, request: Request, seconds: float = ANSWER_SECONDS) -> Answer:
        """Raises ConnectionError when rank 0 is gone, TimeoutError when the answer is late."""
        with self._lock:
            self._socket.settimeout(seconds)
            try:
                self._socket.sendall(self._seal.line(request))
                return self._seal.opened(self._read_line(), Answer)
            except EOFError as e:
                raise ConnectionError(f"rank 0: {e}") from e

    def send(self, value: bytes = b"") -> None:
        """Tell rank 0 what it has not asked for. Raises OSError when it is gone."""
        with self._lock:
            self._socket.settimeout(None)  # in this direction or the other
            self._socket.sendall(self._seal.line(Request("say", value=value)))

    def receive(self) -> bytes | None:
        """The next message of rank 0, nothing where it answers ``say``; None when it is gone."""
        try:
            return self._seal.opened(self._read_line(), Answer).value
        except (OSError, EOFError):
            return None

    def awake(self, limit: float) -> float:
        """Seconds since the world's turn began (Host.awake), which rank 0 has ``limit`` seconds to
        say; infinity where rank 0 does not."""
        if not self._lock.acquire(timeout=limit):
            return math.inf
        try:
            return self.ask(Request("awake"), limit).number / 1000
        except (OSError, ValueError):
            return math.inf
        finally:
            self._lock.release()

    def beat(self, place: Place | None = None) -> None:
        """Say that this rank is there, and how far it is, unless it waits for an answer, which says
        as much."""
        if self._lock.acquire(blocking=False):
            with suppress(OSError):  # rank 0 may be gone; whoever works with it will notice
                self._socket.settimeout(ANSWER_SECONDS)
                self._socket.sendall(self._seal.line(Request("beat", place=place)))
            self._lock.release()

    def lost(self, seconds: float, limit: float) -> str:
        """The ranks that are stopped on this host, else those that rank 0 has lost (Host.lost),
        which it has ``limit`` seconds to say; else that rank 0 is. "" too where nobody can say:
        rank 0 has ended, or another thread waits for it on others' behalf."""
        if ending := self.stopped():
            return ending
        if not self._lock.acquire(timeout=limit):
            return ""
        try:
            return self.ask(Request("lost", number=int(seconds * 1000)), limit).value.decode()
        except (OSError, ValueError):
            return "" if self.ended() else say_silent([f"rank 0 on {self.hosts[0]}"])
        finally:
            self._lock.release()

    def find_behind(self, limit: float) -> list[int]:
        """The ranks that are not as far as the foremost, which rank 0 has ``limit`` seconds to say;
        none where it does not."""
        if not self._lock.acquire(timeout=limit):
            return []
        try:
            answer = self.ask(Request("behind"), limit)
            return msgspec.json.decode(answer.value, type=list[int])
        except (OSError, ValueError):
            return []
        finally:
            self._lock.release()

    def stopped(self) -> str:
        """The ranks that are stopped on this host, in words, as far as their processes are known;
        "" where none is."""
        ranks = find_stopped(self._pids)
        return (
            say_stopped([f"rank {rank} on {self.hosts[rank]}" for rank in ranks]) if ranks else ""
        )

    def ended(self, within: float = 0.0) -> bool:
        """Whether rank 0, or the process in which ranks meet, has ended or does ``within`` so many
        seconds."""
        waits = select.poll()
        try:
            waits.register(self._socket, select.POLLRDHUP)
        except ValueError:  # this side has closed it
            return True
        return bool(waits.poll(1000 * within))

    def close(self) -> None:
        """Say good-bye, so that nobody looks for this rank."""
        with suppress(OSError):  # rank 0 may have gone first
            self._socket.sendall(self._seal.line(Request("bye")))
        self._lines.close()
        self._socket.close()


def _hint_absence(check: str, doors: Sequence[Door], seconds: float) -> str:
    """What to do where ranks do not meet at ``doors``."""
    same = " and the same TMPDIR" if isinstance(doors[0], Path) else ""
    return f"{check}{same}, or {hint_limit(seconds)}"


def _connect_door(door: Door) -> socket.socket:
    if not isinstance(door, Path):
        at = socket.create_connection(door, HELLO_SECONDS)
        at.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return at
    at = socket.socket(socket.AF_UNIX)
    at.settimeout(HELLO_SECONDS)
    at.connect(str(door))
    return at
