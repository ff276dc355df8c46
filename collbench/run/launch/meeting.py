"""Where ranks meet: rank 0 listens at one place until all have come, then keeps what they tell each
other.

Lines of JSON, each behind its HMAC-SHA256. Who connects is greeted with a nonce, and has
HELLO_SECONDS and HELLO_LIMIT bytes to say who it is and prove that it has the launch's key; rank 0
proves it likewise. Both nonces make the key of that connection, and lines are numbered, so that
nothing recorded is of use again. Nobody is listened to once all ranks have come. Lines are not
encrypted, and the key is as secret as the launcher keeps it (rendezvous.py).
"""

from __future__ import annotations

import asyncio
import hmac
import math
import os
import secrets
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from collbench.core.errors import CannotRun
from collbench.core.text import tell
from collbench.run.launch.board import doing

HELLO_SECONDS = 5.0


HELLO_LIMIT = 4096


LINE_LIMIT = 1 << 20  # Gloo of torch 2.6 tells some 150 bytes for each rank


PENDING = (
    64  # connections beyond n that have not proved themselves; the oldest makes room for the next
)


_STRANGE = (
    TimeoutError,
    EOFError,
    OSError,
    ValueError,
    RecursionError,
    msgspec.MsgspecError,
)  # what strays cause


LONGEST = 1e6  # seconds; longer than anything takes


_PEER = struct.Struct("3i")  # pid, uid, gid


Door = tuple[str, int] | Path  # an address and a port, or a socket's path


T = TypeVar("T")


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The greeting of one who comes. ``nonce`` is its half of the connection's key."""

    rank: int
    n: int
    host: str
    pid: int
    launcher: str
    version: str
    nonce: str = ""


class Greeting(msgspec.Struct, frozen=True):
    nonce: str


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a hello: first that it was understood, then every rank's host, or why there is
    no world."""

    refused: str = ""
    late: bool = False
    hosts: list[str] = []


class Request(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    op: Literal[
        "set",
        "get",
        "add",
        "check",
        "wait",
        "delete",
        "count",
        "swap",
        "lost",
        "awake",
        "say",
        "beat",
        "bye",
    ]
    keys: list[str] = []
    value: bytes = b""
    expected: bytes = b""
    number: int = 0


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    value: bytes = b""
    number: int = 0


class Seal:
    """Signs and checks the lines of one connection, in both directions."""

    def __init__(self, key: bytes, nonces: Sequence[str], here: bytes, there: bytes) -> None:
        self._key = hmac.digest(key, b"collbench " + " ".join(nonces).encode(), "sha256")
        self._out, self._in = (here, 0), (there, 0)

    def line(self, message: msgspec.Struct) -> bytes:
        body = msgspec.json.encode(message)
        if len(body) > LINE_LIMIT - 80:
            raise ValueError(
                f"a message of {len(body)} bytes is over the limit of {LINE_LIMIT - 80}"
            )
        signed, self._out = self._sign(self._out, body), (self._out[0], self._out[1] + 1)
        return signed + b" " + body + b"\n"

    def opened(self, line: bytes, kind: type[T]) -> T:
        """Raises ValueError for a line that the other side has not sent now."""
        signed, _, body = line.rstrip(b"\n").partition(b" ")
        if not hmac.compare_digest(signed, self._sign(self._in, body)):
            raise ValueError("a line is not signed as it should be")
        self._in = self._in[0], self._in[1] + 1
        return msgspec.json.decode(body, type=kind)

    def _sign(self, at: tuple[bytes, int], body: bytes) -> bytes:
        return hmac.digest(self._key, b"%s %d %s" % (*at, body), "sha256").hex().encode()


def listener(doors: Sequence[Door]) -> socket.socket:
    """Rank 0's, at the first door that is free. Raises CannotRun."""
    trouble: OSError | None = None
    for door in doors:
        try:
            at = _opened(door)
            at.setblocking(False)
            return at
        except OSError as e:
            trouble = trouble or e
    raise CannotRun(
        f"rank 0 on {socket.gethostname()} cannot listen at {shown(doors)}: {trouble}",
        "MASTER_ADDR must be rank 0's host; MASTER_PORT, if set, a free port there",
    )


def _opened(door: Door) -> socket.socket:
    if not isinstance(door, Path):
        return socket.create_server(
            door, family=socket.AF_INET6 if ":" in door[0] else socket.AF_INET
        )
    door.unlink(missing_ok=True)
    at = socket.socket(socket.AF_UNIX)
    at.bind(str(door))
    return at


def shown(doors: Sequence[Door]) -> str:
    if isinstance(doors[0], Path):
        return str(doors[0])
    return (
        f"{doors[0][0]}, port"
        f" {' or '.join(str(door[1]) for door in doors if not isinstance(door, Path))}"
    )


class Host(threading.Thread):
    """Rank 0's side, in a thread. ``gone`` are those that left without saying so; others say now
    and then that they are there (beat). ``hear`` gets, in this thread, what ranks say unasked; None
    from one that leaves. ``woke`` is when a world that takes turns had its last, infinity while
    it waits for one."""

    def __init__(self, listener: socket.socket, n: int, key: bytes, seconds: float) -> None:
        super().__init__(daemon=True, name="collbench-meeting")
        self._listener, self._n, self._key, self._seconds = listener, n, key, seconds
        self._pending: dict[asyncio.StreamWriter, None] = {}
        self._strays = 0
        self._came: dict[int, Hello] = {}
        self._verdict = Verdict()
        self._values: dict[str, bytes] = {}
        self._set: dict[str, asyncio.Event] = {}
        self._heard: dict[
            int, float
        ] = {}  # when from each rank; infinity while it waits for an answer
        self._pids: dict[int, int] = {}  # of those that came by a socket of this host
        self._lines: dict[int, tuple[asyncio.StreamWriter, Seal]] = {}
        self.gone: list[Hello] = []
        self.hear: Callable[[int, bytes | None], None] = lambda rank, said: None
        self.woke = -math.inf
        self._loop = asyncio.new_event_loop()
        self._decided, self._closed = asyncio.Event(), asyncio.Event()
        self.start()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def close(self) -> None:
        with suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._closed.set)
        self.join(5)

    def tell(self, rank: int, value: bytes) -> Future[None]:
        """Tell a rank what it has not asked for; done once it is sent."""
        return asyncio.run_coroutine_threadsafe(self._told(rank, value), self._loop)

    async def _told(self, rank: int, value: bytes) -> None:
        while rank not in self._lines:  # it is about to be let in
            await asyncio.sleep(0.01)
        writer, seal = self._lines[rank]
        writer.write(seal.line(Answer(value)))
        await writer.drain()

    def awake(self) -> float:
        """Seconds that the world has had its turn."""
        return time.monotonic() - self.woke

    def silent(self, seconds: float) -> list[Hello]:
        """Ranks that have said nothing for so long, though they have not left."""
        before, left = time.monotonic() - seconds, {hello.rank for hello in self.gone}
        late = [
            rank for rank, at in sorted(self._heard.items()) if at < before and rank not in left
        ]
        return [self._came[rank] for rank in late]

    def stopped(self) -> list[Hello]:
        """Ranks on this host whose processes are stopped."""
        known = sorted(self._pids.items())
        return [self._came[rank] for rank, pid in known if doing(pid) == "stopped"]

    def lost(self, seconds: float) -> str:
        """The ranks that are stopped, else those that have been silent for so long where not all
        are surely on this host, and in words what is wrong with them; "" where nothing is."""
        if stopped := self.stopped():
            return f"{', '.join(map(who, stopped))} is stopped (SIGSTOP)"
        silent = self.silent(seconds) if len(self._pids) < self._n else []
        return f"nothing is heard of {', '.join(map(who, silent))}" if silent else ""

    def end_stopped(self) -> None:
        """Kill whom a launcher would wait for: SIGTERM does nothing to them."""
        for hello in self.stopped():
            os.kill(self._pids[hello.rank], signal.SIGKILL)

    def see_off(self, seconds: float) -> None:
        """Wait for all to leave. Who does not is named, and killed where it is surely a process of
        this host."""
        until = time.monotonic() + seconds
        while self._heard and time.monotonic() < until:
            time.sleep(0.005)
        left = {hello.rank for hello in self.gone}
        for rank in sorted(set(self._heard) - left):
            words = f"did not leave within {seconds:g} s of the last case"
            tell(f"{who(self._came[rank])} {words}")
            if self._pids.get(rank, os.getpid()) != os.getpid():
                os.kill(self._pids[rank], signal.SIGKILL)

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._door, sock=self._listener, limit=LINE_LIMIT, backlog=PENDING + self._n
        )
        try:
            await asyncio.wait_for(self._decided.wait(), self._seconds)
        except TimeoutError:
            self._decide(
                missing(self._came.values(), self._n, self._seconds, self._strays), late=True
            )
        if not self._verdict.refused:  # else whoever comes is told, too
            server.close()
            for writer in list(self._pending):
                writer.transport.abort()
        await self._closed.wait()

    def _decide(self, refused: str, late: bool = False) -> None:
        if not self._decided.is_set():
            self._verdict = Verdict(refused, late)
            self._decided.set()

    async def _door(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # of which Python 3.11 would tell as of an error
            await self._talk(reader, writer)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pending[writer] = None
        if len(self._pending) > PENDING + self._n:
            next(iter(self._pending)).transport.abort()
        try:
            hello, seal = await asyncio.wait_for(self._met(reader, writer), HELLO_SECONDS)
        except _STRANGE:
            self._strays += 1
            writer.transport.abort()
            return
        finally:
            self._pending.pop(writer, None)
        with suppress(OSError):
            await self._receive(hello, seal, reader, writer)
        writer.close()

    async def _met(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Hello, Seal]:
        """Who comes, once it has proved that it belongs here. Raises ValueError for anybody
        else."""
        nonce = secrets.token_hex(16)
        writer.write(msgspec.json.encode(Greeting(nonce)) + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            more = await reader.read(HELLO_LIMIT)
            line += more
            if not more or len(line) > HELLO_LIMIT:
                raise ValueError("no hello")
        claimed = msgspec.json.decode(line.partition(b" ")[2], type=Hello)
        seal = Seal(self._key, (nonce, claimed.nonce), b"host", b"guest")
        return seal.opened(line, Hello), seal

    async def _receive(
        self, hello: Hello, seal: Seal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if writer.transport.is_closing():
            return  # it had to make room, and will come again
        writer.write(seal.line(Verdict()))
        if why := mismatch(hello, self._came):
            self._decide(why)
        else:
            self._came[hello.rank] = hello
            self._note_pid(hello.rank, writer.get_extra_info("socket"))
        if len(self._came) == self._n:
            self._decide("")
        await self._until_decided(hello, reader)
        hosts = [] if self._verdict.refused else [self._came[rank].host for rank in range(self._n)]
        writer.write(seal.line(msgspec.structs.replace(self._verdict, hosts=hosts)))
        await writer.drain()
        self._lines[hello.rank] = writer, seal
        try:
            while True:
                request = seal.opened(await reader.readuntil(b"\n"), Request)
                if request.op == "bye":
                    self._heard.pop(hello.rank, None)
                    self.hear(hello.rank, None)
                    return
                self._heard[hello.rank] = math.inf
                if request.op == "say":
                    self.hear(hello.rank, request.value)
                if request.op != "beat":
                    writer.write(seal.line(await self._done(request)))
                    await writer.drain()
                self._heard[hello.rank] = time.monotonic()
        except _STRANGE:
            if not self._verdict.refused:
                self.gone.append(hello)
                self.hear(hello.rank, None)

    def _note_pid(self, rank: int, at: socket.socket) -> None:
        if at.family == socket.AF_UNIX:
            kernels = at.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            pid, _, _ = _PEER.unpack(kernels)
            if pid:  # else it is in another PID namespace
                self._pids[rank] = pid

    async def _until_decided(self, hello: Hello, reader: asyncio.StreamReader) -> None:
        """Nothing is to be read from a rank that waits for the others, unless it goes away."""
        decided, left = (
            asyncio.ensure_future(self._decided.wait()),
            asyncio.ensure_future(reader.read(1)),
        )
        await asyncio.wait({decided, left}, return_when=asyncio.FIRST_COMPLETED)
        if not decided.done():
            self._decide(f"{who(hello)} left again before all {self._n} ranks had come")
        decided.cancel(), left.cancel()
        await asyncio.gather(decided, left, return_exceptions=True)

    async def _done(self, request: Request) -> Answer:
        keys, values = request.keys, self._values
        number = len(values)
        match request.op:
            case "set":
                self._put(keys[0], request.value)
            case "get" | "wait":
                for key in keys:
                    while key not in values:
                        await self._set.setdefault(key, asyncio.Event()).wait()
                return Answer(value=values[keys[-1]] if request.op == "get" else b"")
            case "add":
                total = int(values.get(keys[0], b"0")) + request.number
                self._put(keys[0], str(total).encode())
                return Answer(number=total)
            case "swap":
                if values.get(keys[0], b"") == request.expected:
                    self._put(keys[0], request.value)
                return Answer(value=values.get(keys[0], request.expected))
            case "check":
                number = int(all(key in values for key in keys))
            case "lost":
                return Answer(value=self.lost(request.number / 1000).encode())
            case "awake":
                number = int(1000 * min(max(self.awake(), 0.0), LONGEST))
            case "delete":
                number = int(values.pop(keys[0], None) is not None)
        return Answer(number=number)

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        if key in self._set:
            self._set.pop(key).set()


def mismatch(hello: Hello, came: Mapping[int, Hello]) -> str:
    """Why who comes cannot be of the same world as those that came, or ""."""
    for other in came.values():
        if hello.n != other.n:
            return f"two worlds: {who(hello)} is one of {hello.n}, {who(other)} one of {other.n}"
        if hello.version != other.version:
            return f"{who(hello)} runs collbench {hello.version}, {who(other)} {other.version}"
    if hello.rank in came:
        return f"rank {hello.rank} came twice: {_from(came[hello.rank])}, and {_from(hello)}"
    return ""


def missing(came: Iterable[Hello], n: int, seconds: float, strays: int) -> str:
    """The ranks that never came, and where the others are, in words."""
    ranks = sorted(set(range(n)) - {hello.rank for hello in came})
    hosts: dict[str, list[int]] = {}
    for hello in sorted(came, key=lambda hello: hello.rank):
        hosts.setdefault(hello.host, []).append(hello.rank)
    present = (
        "; ".join(f"{_ranks(mine)} came from {host}" for host, mine in hosts.items())
        or "nobody came"
    )
    refused = f"; {strays} connections did not belong here" if strays else ""
    return (
        f"not all ranks came together within {seconds:g} s: {_ranks(ranks)} never came;"
        f" {present}{refused}"
    )


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (
        f" and {len(ranks) - 16} more" if len(ranks) > 16 else ""
    )
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def who(hello: Hello) -> str:
    """Its rank and host, as messages name it."""
    return f"rank {hello.rank} on {hello.host}"


def _from(hello: Hello) -> str:
    return f"from {hello.host} (pid {hello.pid}, {hello.launcher})"
