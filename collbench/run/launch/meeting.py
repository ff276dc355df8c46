"""The process in which ranks meet, which rank 0 starts (host.py): it listens at one place until all
have come, then keeps what they tell each other.

No rank waits for another's Python. A library's call may hold Python's lock while it waits for other
ranks, as that of torch's symmetric memory does which exchanges addresses, and no thread of its
rank could answer them meanwhile. So every answer comes from this process, which loads no library
that is measured, and a rank needs no lock but its own. Rank 0 is a guest like any other; besides,
it gives orders and gets news (Order, News) by a socket of its own. When that closes, however rank
0's process has ended, this one ends.

Ranks speak lines of JSON, each behind its HMAC-SHA256. Who connects is greeted with a nonce, and
has HELLO_SECONDS and HELLO_LIMIT bytes to say who it is and prove that it has the launch's key; the
meeting proves it likewise. Both nonces make the key of that connection, and lines are numbered, so
that nothing recorded is of use again. Nobody is listened to once all ranks have come. Lines are not
encrypted, and the key is as secret as the launcher keeps it (rendezvous.py).
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import math
import os
import secrets
import signal
import socket
import struct
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import psutil

from collbench.core.errors import CannotRun
from collbench.machine import descriptors
from collbench.run.launch import folders
from collbench.run.launch.awake import AwakeClock
from collbench.run.launch.board import (
    ALONE_SECONDS,
    IS_STOPPED,
    Place,
    process_state,
    select_behind,
)
from collbench.survive.encoding import encode_json
from collbench.survive.signals import STOPPING

HELLO_SECONDS = 5.0

HELLO_LIMIT = 4096

LINE_LIMIT = 1 << 20  # Gloo of torch 2.6 tells some 150 bytes for each rank

VALUES_LIMIT = LINE_LIMIT // 2  # bytes of values in one answer, of which JSON makes a third more

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

# of the time without progress; whoever is there says so three times in it
SILENT_SHARE = 0.6

LOOK_SECONDS = 1.0  # between readings of the clock

NAMES_HINT = "ranks are told apart by it: give each host a name of its own (hostnamectl)"

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
    boot: str = ""  # a hash that tells machines of one name apart, if known


class Greeting(msgspec.Struct, frozen=True):
    """What whoever connects is sent first: this side's nonce for the connection's seal."""

    nonce: str


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a hello: first that it was understood, then every rank's host, or why there is
    no world, with what to do if that is another than usual. ``pids`` are those of ranks that came
    by a socket of this host, else 0. ``address`` is rank 0's as the first rank of another host
    reached it, if that is no loopback."""

    refused: str = ""
    hint: str = ""
    late: bool = False
    hosts: list[str] = []
    pids: list[int] = []
    address: str = ""


class Request(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line of a rank: what is to be done with values by ``keys``, or a sign of life, with the
    rank's place."""

    op: Literal[
        "set",
        "get",
        "get_many",
        "append",
        "add",
        "check",
        "wait",
        "delete",
        "count",
        "swap",
        "lost",
        "behind",
        "awake",
        "say",
        "beat",
        "bye",
    ]
    keys: list[str] = []
    value: bytes = b""
    expected: bytes = b""
    number: int = 0
    place: Place | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a request, or what rank 0 has for a rank unasked. ``values`` are those of the
    first of many keys, as many as a line holds."""

    value: bytes = b""
    number: int = 0
    values: list[bytes] = []


class Terms(msgspec.Struct, frozen=True):
    """The first line that rank 0 writes, with the listener's descriptor: for how many ranks to
    wait, with which key, and for how many seconds."""

    n: int
    key: bytes
    seconds: float


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of rank 0's that only it may write. The answer is News of the same ``number``, which
    is above 0."""

    number: int
    op: Literal["tell", "rest", "resume", "awake", "lost", "behind", "end_stopped", "see_off"]
    rank: int = -1  # to tell something
    value: bytes = b""  # to tell it
    seconds: float = 0.0


class News(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line to rank 0: an answer, or what a rank says or how it leaves. The very first says that
    this process is up."""

    number: int = 0  # of the order that is answered
    seconds: float = 0.0
    names: list[str] = []  # of ranks and their hosts
    ranks: list[int] = []
    text: str = ""
    rank: int = -1  # that says or leaves
    value: bytes | None = None  # what it says; None where it leaves
    gone: Hello | None = None  # the rank, where it leaves without a word
    trouble: str = ""  # a fault of this process


class Seal:
    """Signs and checks the lines of one connection, in both directions."""

    def __init__(
        self, key: bytes, nonces: Sequence[str], own_direction: bytes, other_direction: bytes
    ) -> None:
        self._key = hmac.digest(key, b"collbench " + " ".join(nonces).encode(), "sha256")
        self._out, self._in = (own_direction, 0), (other_direction, 0)

    def line(self, message: msgspec.Struct) -> bytes:
        """A message as a line with its seal. Raises ValueError where it is too long."""
        body = encode_json(message)
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


def open_listener(doors: Sequence[Door]) -> socket.socket:
    """Rank 0's, at the first door that is free. Raises CannotRun."""
    trouble: OSError | None = None
    for door in doors:
        try:
            at = _open_door(door)
            at.setblocking(False)
            return at
        except OSError as e:
            trouble = trouble or e
    raise CannotRun(
        f"rank 0 on {socket.gethostname()} cannot listen at {describe_doors(doors)}: {trouble}",
        "set TMPDIR, for all ranks of the host, to one folder on a disk that takes sockets"
        if isinstance(doors[0], Path)
        else "set MASTER_ADDR to rank 0's host, and MASTER_PORT, if needed, to a free port there",
    )


def _open_door(door: Door) -> socket.socket:
    if not isinstance(door, Path):
        return socket.create_server(
            door,
            family=socket.AF_INET6 if ":" in door[0] else socket.AF_INET,
            dualstack_ipv6=door[0] == "::",
        )
    door.unlink(missing_ok=True)
    at = socket.socket(socket.AF_UNIX)
    at.bind(str(door))
    return at


def describe_doors(doors: Sequence[Door]) -> str:
    """A phrase for where ranks meet: a socket's path, not by the folder's descriptor in this
    process, or a host and its ports."""
    if isinstance(doors[0], Path):
        return str(doors[0].resolve())
    return (
        f"{doors[0][0]}, port"
        f" {' or '.join(str(door[1]) for door in doors if not isinstance(door, Path))}"
    )


class MeetingServer:
    """The meeting of one launch, as its process keeps it. Ranks say now and then that they are
    there (beat)."""

    def __init__(self, listener: socket.socket, terms: Terms, news: asyncio.StreamWriter) -> None:
        self._listener, self._news = listener, news
        self._n, self._key, self._seconds = terms.n, terms.key, terms.seconds
        self._pending: dict[asyncio.StreamWriter, None] = {}
        self._strays = 0
        self._came: dict[int, Hello] = {}
        self._verdict = Verdict()
        self._values: dict[str, bytes] = {}
        self._set: dict[str, asyncio.Event] = {}
        self._clock = AwakeClock()
        # when from each rank; infinity while it waits for an answer
        self._last_beats: dict[int, float] = {}
        self._places: dict[int, Place] = {}  # of ranks, as they said last
        self._pids: dict[int, int] = {}  # of those that came by a socket of this host
        self._addresses: dict[int, str] = {}  # of this host, at which ranks came
        self._lines: dict[int, tuple[asyncio.StreamWriter, Seal]] = {}
        self._left_ranks: set[int] = set()
        # when a world that takes turns had its last, infinity while it waits for one
        self._woke = -math.inf
        self._decided = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def keep(self, orders: asyncio.StreamReader) -> None:
        """Admit ranks and carry out rank 0's orders until these end."""
        asyncio.get_running_loop().set_exception_handler(self._report)
        self._tell_news(News())
        self._start(self._read_clock())
        self._start(self._admit_ranks())
        with suppress(OSError):
            while line := await orders.readline():
                self._start(self._answer(msgspec.json.decode(line, type=Order)))

    async def _read_clock(self) -> None:
        while True:
            self._clock.read()
            await asyncio.sleep(LOOK_SECONDS)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(task := asyncio.create_task(work))  # asyncio alone would forget it
        task.add_done_callback(self._tasks.discard)

    def _tell_news(self, news: News) -> None:
        self._news.write(encode_json(news) + b"\n")

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tell rank 0 of an error that nobody has foreseen."""
        error = context.get("exception")
        self._tell_news(News(trouble=f"{context['message']}: {error!r}"))

    async def _answer(self, order: Order) -> None:
        try:
            news = await self._carry_out(order)
        except (OSError, ValueError) as e:
            news = News(trouble=str(e))
        self._tell_news(msgspec.structs.replace(news, number=order.number))

    async def _carry_out(self, order: Order) -> News:
        match order.op:
            case "tell":
                await self._tell_rank(order.rank, order.value)
            case "rest":
                self._woke = math.inf
            case "resume":
                self._woke = self._clock.read()
            case "awake":
                return News(seconds=self._awake())
            case "lost":
                return News(text=self._lost(order.seconds))
            case "behind":
                return News(ranks=self._find_behind())
            case "end_stopped":
                for rank in self._stopped():
                    os.kill(self._pids[rank], signal.SIGKILL)
            case "see_off":
                return News(names=await self._see_off(order.seconds))
        return News()

    async def _tell_rank(self, rank: int, value: bytes) -> None:
        """Tell a rank what it has not asked for; done once it is sent."""
        while rank not in self._lines:  # it is about to be let in
            await asyncio.sleep(0.01)
        writer, seal = self._lines[rank]
        writer.write(seal.line(Answer(value)))
        await writer.drain()

    def _awake(self) -> float:
        """Seconds since the launcher let this world go on (worlds in turns), at most LONGEST."""
        return min(max(self._clock.read() - self._woke, 0.0), LONGEST)

    def _names(self, ranks: Iterable[int]) -> list[str]:
        return [name_hello(self._came[rank]) for rank in ranks]

    def _silent(self, seconds: float) -> list[int]:
        """Ranks that have said nothing for so long, though they have not left."""
        before = self._clock.read() - seconds
        late = (rank for rank, at in self._last_beats.items() if at < before)
        return sorted(set(late) - self._left_ranks)

    def _stopped(self) -> list[int]:
        """Ranks on this host whose processes are stopped."""
        return find_stopped(self._pids)

    def _lost(self, seconds: float) -> str:
        """The ranks that are stopped, else those that have been silent for so long where not all
        are surely on this host, and in words what is wrong with them; "" where nothing is."""
        if names := self._names(self._stopped()):
            return say_stopped(names)
        silent = self._names(self._silent(seconds)) if len(self._pids) < self._n else []
        return say_silent(silent) if silent else ""

    def _find_behind(self) -> list[int]:
        """Ranks that are not as far as the foremost, by what all said last. One that waits for an
        answer waits for another rank, and is not behind."""
        if len(self._places) < self._n:
            return []
        behind = select_behind([self._places[rank] for rank in range(self._n)])
        return [rank for rank in behind if self._last_beats.get(rank) != math.inf]

    async def _see_off(self, seconds: float) -> list[str]:
        """Wait for all to leave. Those that do not are returned, and killed where they are surely
        processes of this host, but for rank 0's."""
        until = time.monotonic() + seconds
        while self._last_beats and time.monotonic() < until:
            await asyncio.sleep(0.005)
        late = sorted(set(self._last_beats) - self._left_ranks)
        for rank in late:
            if self._pids.get(rank, os.getppid()) != os.getppid():
                os.kill(self._pids[rank], signal.SIGKILL)
        return self._names(late)

    async def _end_stopped_host(self) -> None:
        """Kill rank 0 where it stays stopped, now that all others have left: its launcher would
        wait for it for ever. One whose launcher is stopped, too, is a person's (Ctrl-Z)."""
        rank_0, since = os.getppid(), math.inf
        launcher = psutil.Process(rank_0).ppid()
        while os.getppid() == rank_0:
            if process_state(rank_0) != "stopped" or process_state(launcher) == "stopped":
                since = math.inf
            elif since == math.inf:
                since = time.monotonic()
            # ranks that wait in MPI for rank 0 report why first
            if time.monotonic() - since > ALONE_SECONDS + 2:
                os.kill(rank_0, signal.SIGKILL)
                return
            await asyncio.sleep(0.5)

    async def _admit_ranks(self) -> None:
        server = await asyncio.start_server(
            self._door, sock=self._listener, limit=LINE_LIMIT, backlog=PENDING + self._n
        )
        try:
            await asyncio.wait_for(self._decided.wait(), self._seconds)
        except TimeoutError:
            self._decide(
                describe_missing(self._came.values(), self._n, self._seconds, self._strays),
                late=True,
            )
        if not self._verdict.refused:  # else whoever comes is told, too
            server.close()
            for writer in list(self._pending):
                writer.transport.abort()

    def _decide(self, refused: str, late: bool = False, hint: str = "") -> None:
        if not self._decided.is_set():
            self._verdict = Verdict(refused, hint, late)
            self._decided.set()

    async def _door(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # of which Python 3.11 would tell as of an error
            await self._talk(reader, writer)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pending[writer] = None
        if len(self._pending) > PENDING + self._n:
            next(iter(self._pending)).transport.abort()
        try:
            hello, seal = await asyncio.wait_for(self._greet(reader, writer), HELLO_SECONDS)
        except _STRANGE:
            self._strays += 1
            writer.transport.abort()
            return
        finally:
            self._pending.pop(writer, None)
        with suppress(OSError):
            await self._receive(hello, seal, reader, writer)
        writer.close()

    async def _greet(
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
        self._let_in(hello, writer.get_extra_info("socket"))
        await self._until_decided(hello, reader)
        writer.write(seal.line(self._complete_verdict()))
        await writer.drain()
        self._lines[hello.rank] = writer, seal
        try:
            while True:
                request = seal.opened(await reader.readuntil(b"\n"), Request)
                if request.op == "bye":
                    self._last_beats.pop(hello.rank, None)
                    self._tell_news(News(rank=hello.rank))
                    if hello.rank and set(self._last_beats) <= {0}:
                        self._start(self._end_stopped_host())
                    return
                self._last_beats[hello.rank] = math.inf
                if request.place is not None:
                    self._places[hello.rank] = request.place
                if request.op == "say":
                    self._tell_news(News(rank=hello.rank, value=request.value))
                    await self._news.drain()
                if request.op != "beat":
                    writer.write(seal.line(await self._done(request)))
                    await writer.drain()
                self._last_beats[hello.rank] = self._clock.read()
        except _STRANGE:
            if not self._verdict.refused:
                self._left_ranks.add(hello.rank)
                self._tell_news(News(rank=hello.rank, gone=hello))

    def _let_in(self, hello: Hello, at: socket.socket) -> None:
        """Count a rank that has come, or decide that there is no world with it."""
        if why := explain_mismatch(hello, self._came):
            self._decide(why)
        elif why := explain_namesakes(hello, self._came.values()):
            self._decide(why, hint=NAMES_HINT)
        else:
            self._came[hello.rank] = hello
            self._addresses[hello.rank] = find_address(at.getsockname())
            self._note_pid(hello.rank, at)
        if len(self._came) == self._n:
            self._decide("")

    def _complete_verdict(self) -> Verdict:
        if self._verdict.refused:
            return self._verdict
        hosts = [self._came[rank].host for rank in range(self._n)]
        pids = [self._pids.get(rank, 0) for rank in range(self._n)]
        reached = (self._addresses[rank] for rank in self._came if hosts[rank] != hosts[0])
        address = next(reached, "")  # loopback: by what forwards to it on this host
        is_own = address.startswith("127.") or address == "::1"
        return Verdict(hosts=hosts, pids=pids, address="" if is_own else address)

    def _note_pid(self, rank: int, at: socket.socket) -> None:
        if at.family == socket.AF_UNIX:
            kernels = at.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            pid, _, _ = _PEER.unpack(kernels)
            if pid:  # else it is in another PID namespace
                self._pids[rank] = pid

    async def _until_decided(self, hello: Hello, reader: asyncio.StreamReader) -> None:
        """Nothing is to be read from a rank that waits for the others, unless it goes away."""
        decided, disconnected = (
            asyncio.ensure_future(self._decided.wait()),
            asyncio.ensure_future(reader.read(1)),
        )
        await asyncio.wait({decided, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not decided.done():
            self._decide(f"{name_hello(hello)} left again before all {self._n} ranks had come")
        decided.cancel(), disconnected.cancel()
        await asyncio.gather(decided, disconnected, return_exceptions=True)

    async def _done(self, request: Request) -> Answer:
        keys, values = request.keys, self._values
        number = len(values)
        match request.op:
            case "get" | "get_many" | "wait":
                return await self._read_values(request)
            case "set" | "append" | "add" | "swap":
                return self._change_value(request)
            case "check":
                number = int(all(key in values for key in keys))
            case "lost":
                return Answer(value=self._lost(request.number / 1000).encode())
            case "behind":
                return Answer(value=msgspec.json.encode(self._find_behind()))
            case "awake":
                number = int(1000 * self._awake())
            case "delete":
                number = int(values.pop(keys[0], None) is not None)
        return Answer(number=number)

    async def _read_values(self, request: Request) -> Answer:
        """The values that a request asks for, once all its keys are set."""
        keys, values = request.keys, self._values
        for key in keys:
            while key not in values:
                await self._set.setdefault(key, asyncio.Event()).wait()
        if request.op == "get_many":
            return Answer(values=_select_first([values[key] for key in keys]))
        return Answer(value=values[keys[-1]] if request.op == "get" else b"")

    def _change_value(self, request: Request) -> Answer:
        """Set a value as a request says; the value or sum after that, where it asks for one."""
        key, before = request.keys[0], self._values.get(request.keys[0])
        match request.op:
            case "set":
                self._put(key, request.value)
            case "append":
                self._put(key, (before or b"") + request.value)
            case "add":
                total = int(before or b"0") + request.number
                self._put(key, str(total).encode())
                return Answer(number=total)
            case "swap":
                if (before or b"") == request.expected:
                    self._put(key, request.value)
                return Answer(value=self._values.get(key, request.expected))
        return Answer()

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        if key in self._set:
            self._set.pop(key).set()


def _select_first(values: Sequence[bytes]) -> list[bytes]:
    """The first of these values, as many as a line holds, and at least one."""
    sizes = itertools.accumulate(len(value) + 8 for value in values)
    return list(values[: max(1, sum(size < VALUES_LIMIT for size in sizes))])


def explain_mismatch(hello: Hello, came: Mapping[int, Hello]) -> str:
    """Why who comes cannot be of the same world as those that came, or ""."""
    for other in came.values():
        if hello.n != other.n:
            return (
                f"two worlds: {name_hello(hello)} is one of {hello.n}, {name_hello(other)} one"
                f" of {other.n}"
            )
        if hello.version != other.version:
            return (
                f"{name_hello(hello)} runs collbench {hello.version}, {name_hello(other)}"
                f" {other.version}"
            )
    if hello.rank in came:
        return (
            f"rank {hello.rank} came twice: {_describe_origin(came[hello.rank])}, and"
            f" {_describe_origin(hello)}"
        )
    return ""


def explain_namesakes(hello: Hello, came: Iterable[Hello]) -> str:
    """Why ranks of hosts of one name cannot be of one world, where who comes is on another machine
    than those that came; or "". Containers of one machine have one boot, and names of their own."""
    for other in came:
        if hello.host == other.host and hello.boot and other.boot not in ("", hello.boot):
            return (
                f"ranks {other.rank} and {hello.rank} are on two machines that both call themselves"
                f" {hello.host}"
            )
    return ""


def find_address(name: object) -> str:
    """The address in a socket's own name, IPv4 as such also at a socket of both kinds; "" for a
    path."""
    return str(name[0]).removeprefix("::ffff:") if isinstance(name, tuple) else ""


def describe_missing(came: Iterable[Hello], n: int, seconds: float, strays: int) -> str:
    """The ranks that never came, and where the others are, in words."""
    ranks = sorted(set(range(n)) - {hello.rank for hello in came})
    hosts: dict[str, list[int]] = {}
    for hello in sorted(came, key=lambda hello: hello.rank):
        hosts.setdefault(hello.host, []).append(hello.rank)
    present = (
        "; ".join(
            f"{_format_ranks(host_ranks)} came from {host}" for host, host_ranks in hosts.items()
        )
        or "nobody came"
    )
    refused = f"; {strays} connections did not belong here" if strays else ""
    return (
        f"not all ranks came together within {seconds:g} s: {_format_ranks(ranks)} never came;"
        f" {present}{refused}"
    )


def _format_ranks(ranks: Sequence[int]) -> str:
    phrase = ", ".join(map(str, ranks[:16])) + (
        f" and {len(ranks) - 16} more" if len(ranks) > 16 else ""
    )
    return f"rank{'s' * (len(ranks) > 1)} {phrase}"


def find_stopped(pids: Mapping[int, int]) -> list[int]:
    """The ranks whose processes are stopped, of these."""
    return [rank for rank, pid in sorted(pids.items()) if process_state(pid) == "stopped"]


def say_stopped(names: Sequence[str]) -> str:
    """A sentence about processes that a signal has stopped."""
    return f"{', '.join(names)} {IS_STOPPED}"


def say_silent(names: Sequence[str]) -> str:
    """A sentence about ranks that do not say any more that they are there."""
    return f"nothing is heard of {', '.join(names)}"


def name_hello(hello: Hello) -> str:
    """The rank and host of a hello, as messages name them."""
    return f"rank {hello.rank} on {hello.host}"


def _describe_origin(hello: Hello) -> str:
    return f"from {hello.host} (pid {hello.pid}, {hello.launcher})"


async def serve(control: socket.socket) -> None:
    """Keep a meeting as rank 0 says first at the other end of ``control``, with the listener that
    ranks come to, until that end is closed."""
    line, (descriptor,), _, _ = socket.recv_fds(control, LINE_LIMIT, 1)
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    orders, news = await asyncio.open_connection(sock=control, limit=2 * LINE_LIMIT)
    await MeetingServer(listener, msgspec.json.decode(line, type=Terms), news).keep(orders)


def main() -> None:
    """The process, whose standard input is its end of the socket between it and rank 0. That
    decides when it ends, and so signals that a terminal or a launcher sends to all processes are
    ignored."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    descriptors.raise_limit()
    asyncio.run(serve(socket.socket(fileno=0)))
    # of what rank 0 has left that was killed
    folders.sweep_folders(folders.find_temporary_folder())


if __name__ == "__main__":
    main()
