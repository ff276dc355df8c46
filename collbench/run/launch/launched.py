"""Places held by the processes that torchrun, srun, mpirun or another launcher has started, each
with the same command line.

They meet once (join.py) and stay connected. The one of rank 0 plans, prints and records, and keeps
a place itself; the others keep theirs until it ends, and then end with the same exit code.
"""

from __future__ import annotations

import concurrent.futures
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal

import msgspec

from collbench.core.errors import Exit, RunBroken
from collbench.core.text import print_message
from collbench.machine import environment
from collbench.run.launch import folders, join, rendezvous
from collbench.run.launch.board import LEAVE_SECONDS
from collbench.run.launch.connection import Connection
from collbench.run.launch.environments import Membership
from collbench.run.launch.fresh import Told
from collbench.run.launch.keeper import Answer, Keeper, Question, Sides, as_json
from collbench.run.launch.meeting import SILENT_SHARE, name_hello
from collbench.run.launch.places import Node, Places, Seat, count_earlier
from collbench.run.launch.world import Said
from collbench.survive.crash import find_exit_code
from collbench.survive.signals import STOPPING

PRESENT_SECONDS = 30.0  # within which both ends say that they are there, unless -T sets them

_MOMENT = 0.05  # until it is known who has gone, which a launcher tells by ending the others

_GRACE = 1.0  # for rank 0 to be interrupted, too, where a place was


class Errand(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a place is to do for a world: run a rank, tell it something, end it; what it is asked;
    or the code to exit with, once rank 0 has ended."""

    op: Literal["run", "tell", "end", "ask", "exit"]
    world: str = ""
    text: str = ""


class Far:
    """A place that another process keeps, as seen from rank 0. What that says is a world, and a
    line of its rank; without a world, an answer. ``who`` is its rank and host."""

    def __init__(self, send: Callable[[bytes], object], who: str) -> None:
        self._send_bytes, self._who, self._why = send, who, ""
        self._hearing: dict[str, Callable[[str], None]] = {}
        self._answers: SimpleQueue[str] = SimpleQueue()

    def run(self, instructions: Told, on_line: Callable[[str], None]) -> None:
        """Have the place start a rank; ``on_line`` is told at once where the place is lost."""
        self._hearing[instructions.world] = on_line
        self._send(Errand("run", instructions.world, as_json(instructions)))
        if self._why:
            on_line(as_json(Said(lost=self._why)))

    def send(self, world: str, text: str) -> None:
        """Have the place pass a line to the rank of a world."""
        self._send(Errand("tell", world, text))

    def end(self, world: str) -> None:
        """Have the place end the rank of a world, whose lines are not passed on any more."""
        self._hearing.pop(world, None)
        self._send(Errand("end", world))

    def ask(self, question: Question) -> Answer:
        """The answer to a question. Raises RunBroken where the place is lost, or says nothing for
        join.SECONDS."""
        self._send(Errand("ask", text=as_json(question)))
        with suppress(Empty):
            if answer := "" if self._why else self._answers.get(timeout=join.SECONDS):
                return msgspec.json.decode(answer, type=Answer)
        raise RunBroken(f"{self._who} was lost ({self._why or 'it does not answer'})")

    def _send(self, errand: Errand) -> None:
        self._send_bytes(msgspec.json.encode(errand))

    def handle_message(self, message: bytes) -> None:
        """Take in what the place says: an answer, or a line of the rank of a world."""
        world, _, line = message.decode().partition(" ")
        if not world:
            self._answers.put(line)
        elif hear := self._hearing.get(world):
            hear(line)

    def lose(self, why: str) -> None:
        """Tell whoever waits for this place, now or later, that it is lost, and why."""
        self._why = why
        self._answers.put("")
        for on_line in list(self._hearing.values()):
            on_line(as_json(Said(lost=why)))


class Launched(Places):
    """The places of a launcher's processes, as rank 0 has met them. Who says nothing for most of
    ``timeout`` seconds is lost."""

    def __init__(
        self, member: Membership, meeting: join.Meeting, folder: Path, timeout: float
    ) -> None:
        super().__init__(member.launcher)
        assert meeting.host
        self._host, self._timeout = meeting.host, timeout
        hosts = meeting.connection.hosts
        self._far = {
            rank: Far(
                lambda message, rank=rank: self._host.send_to_rank(rank, message),  # type: ignore[misc]
                f"rank {rank} on {host}",
            )
            for rank, host in enumerate(hosts)
            if rank
        }
        address = meeting.connection.address or rendezvous.chosen_address() or "127.0.0.1"
        keeper = Keeper(folder)
        self.seats = [
            Seat(self._far.get(rank, keeper), Node(host, address, host, ""), number)
            for rank, (host, number) in enumerate(zip(hosts, count_earlier(hosts), strict=True))
        ]
        self._host.on_value = self._handle_message

    def _handle_message(self, rank: int, message: bytes | None) -> None:
        if rank not in self._far:
            return  # this process's own, when it ends
        if message:
            self._far[rank].handle_message(message)
        elif message is None and any(hello.rank == rank for hello in self._host.gone):
            self._far[rank].lose(f"the process that {self.launcher} started there has ended")
        elif message is None:
            why = f"the process that {self.launcher} started there was interrupted"
            threading.Timer(_GRACE, self._far[rank].lose, [why]).start()

    def lost(self) -> str:
        """The ranks that are stopped or silent for most of ``timeout``, in words, or ""."""
        return self._host.lost(self._timeout * SILENT_SHARE)

    def broken(self, error: BaseException) -> None:
        """Raise RunBroken where what interrupts this process is that another has ended. A launcher
        ends all then, or says twice that it does: none of that cuts short what is told."""
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        if isinstance(error, KeyboardInterrupt):
            time.sleep(_MOMENT)
            if gone := self._host.gone:
                raise RunBroken(f"lost {', '.join(map(name_hello, gone))} (the launcher says why)")

    def dismiss(self, code: int) -> None:
        """Tell the others with which code this process ends."""
        message = msgspec.json.encode(Errand("exit", text=str(int(code))))
        sent = [self._host.send_to_rank(rank, message) for rank in self._far]
        concurrent.futures.wait(sent, LEAVE_SECONDS)


@contextmanager
def gather_places(member: Membership, timeout: float | None, folder: Path) -> Iterator[Launched]:
    """At rank 0: the places of all, which come within join.meeting_seconds, and have ``timeout``
    seconds to say that they are there. They end once this process has, with the code of what is
    raised within."""
    join.divert_stdout()
    meeting = join.meet_ranks(member, join.meeting_seconds(timeout, member))
    places, code = Launched(member, meeting, folder, timeout or PRESENT_SECONDS), int(Exit.OK)
    try:
        yield places
    except BaseException as e:
        default = find_exit_code(e) if isinstance(e, Exception) else Exit.FAULT
        default = Exit.INTERRUPTED if isinstance(e, KeyboardInterrupt) else default
        code = getattr(e, "exit_code", default)
        raise
    finally:
        places.dismiss(code)


def serve_place(member: Membership, timeout: float | None, sides: Sides) -> int:
    """At all ranks but 0: keep a place for ranks of ``sides``, and return the code to exit with,
    which is rank 0's. Where that is lost, one rank a host says so."""
    join.divert_stdout()
    connection = join.meet_ranks(member, join.meeting_seconds(timeout, member)).connection
    with folders.make_private() as folder:
        try:
            serving = _Serving(connection, Keeper(folder, sides), timeout or PRESENT_SECONDS)
            code = serving.until_told()
        except KeyboardInterrupt:
            connection.close()
            raise
    return code


def carry_out(errand: Errand, keeper: Keeper, send: Callable[[str], None]) -> None:
    """Do what a place is told; ``send`` takes each line to say: of a rank's world, or, without a
    world, an answer."""
    world = errand.world
    match errand.op:
        case "run":
            instructions = msgspec.json.decode(errand.text, type=Told)
            keeper.run(instructions, lambda line: send(f"{world} {line}"))
        case "tell":
            keeper.send(world, errand.text)
        case "end":
            keeper.end(world)
        case "ask":

            def answer() -> None:
                question = msgspec.json.decode(errand.text, type=Question)
                send(f" {as_json(keeper.ask(question))}")

            threading.Thread(target=answer, daemon=True).start()


class _Serving:
    """A place's side: does what rank 0 says, and looks whether that is there."""

    def __init__(self, connection: Connection, keeper: Keeper, timeout: float) -> None:
        self._connection, self._keeper, self._timeout = connection, keeper, timeout
        self._unheard = 0  # signs of life since rank 0's last word
        self._send("")
        threading.Thread(target=self._beat, daemon=True, name="collbench-beat").start()

    def until_told(self) -> int:
        code = ""
        while (message := self._connection.receive()) is not None:
            self._unheard = 0
            if message:
                errand = msgspec.json.decode(message, type=Errand)
                code = errand.text if errand.op == "exit" else ""
                carry_out(errand, self._keeper, self._send)
        if not code:
            self._tell_lost("lost")
        return int(code or Exit.TIMEOUT)

    def _send(self, text: str) -> None:
        with suppress(OSError):  # rank 0 has gone, as is found by who listens to it
            self._connection.send(text.encode())

    def _beat(self) -> None:
        while self._unheard <= 3:  # a suspension, however long, is no more than one of them
            time.sleep(self._timeout * SILENT_SHARE / 3)
            self._unheard += 1
            self._send("")
        self._tell_lost("hears nothing of")
        os._exit(Exit.TIMEOUT)

    def _tell_lost(self, what: str) -> None:
        hosts, rank = self._connection.hosts, self._connection.rank
        if hosts.index(hosts[rank]) in (rank, 0):
            print_message(f"rank {rank} on {environment.host_name()} {what} rank 0 on {hosts[0]}")
