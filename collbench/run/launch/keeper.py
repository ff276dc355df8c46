"""A place for ranks on some host: what keeps it starts a process for a rank of each world that has
one there, and says what becomes of it.

Who keeps a place, an actor on Ray or a process that a launcher has started, loads no torch: a rank
starts in the environment it is to have, or is forked from what did for its experiment's side, and
what it does to its process ends with it. Keeper and rank's process speak lines of JSON, of limited
size.
"""

from __future__ import annotations

import hashlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from collbench.core.errors import CannotRun, CollbenchError
from collbench.machine import environment, variables
from collbench.run import memory
from collbench.run.launch import environments
from collbench.run.launch.board import Board, process_state
from collbench.run.launch.children import bound_command, module_command
from collbench.run.launch.forkserver import leave_process
from collbench.run.launch.fresh import Side, Told, live_as_rank
from collbench.run.launch.interpreter import (
    SideName,
    Variant,
    ask_software,
    is_asked_for,
    isolate_settings,
    refuse_absent,
)
from collbench.run.launch.local import ForkServer
from collbench.run.launch.world import LINE_LIMIT, Channel, Failure, Said
from collbench.suite.policy import Policy
from collbench.survive import streams
from collbench.survive.crash import explain_crash
from collbench.survive.encoding import encode_json

LOOK_SECONDS = 1.0  # between looks at a rank that says nothing

SAYS = 1 << 16  # characters of a line on standard error that are passed on

SAME = "start all ranks with the same command line"


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a place is asked: the room for so many ranks of a backend; whether a side can run there,
    which is answered by a description of its environment; what the file of a path reads there; else
    for the environment of any rank."""

    room: tuple[str, int, Policy] | None = None
    side: Side | None = None
    path: str = ""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place's answer to a question; one of these."""

    room: memory.Room | None = None
    digest: str = ""  # of the file's bytes; empty where there is none
    described: dict[str, Any] = {}
    error: Failure | None = None


Sides = Callable[[], Mapping[SideName, Variant]]


class Keeper:
    """Runs a place's ranks, at most one in each world, and answers for its host. ``folder`` is
    private, and there as long as the place is. Where ``sides`` are given, those of this process's
    own command line, nothing else is started: who tells a place might be anybody."""

    def __init__(self, folder: Path, sides: Sides | None = None) -> None:
        self._folder, self._sides = folder, sides
        self._ranks: dict[str, subprocess.Popen[bytes] | Forked] = {}
        self._ended: set[str] = set()  # worlds
        self._servers: dict[str, tuple[object, ForkServer]] = {}  # by side

    def ask(self, question: Question) -> Answer:
        """Describe this place, its software under a side, or its memory; an error where a setting
        is refused."""
        try:
            if question.room:
                return Answer(room=memory.measure_room(*question.room))
            if question.path and self._sides is None:  # else anybody might ask
                return Answer(digest=digest_file(Path(question.path)))
            facts = environment.gather_facts()
            if (side := question.side) is not None:
                self._refuse(side.env, side)
                settings = self._settings(side.env, side)
                python = side.python or sys.executable
                refuse_absent(side.tree, side.option)
                facts |= ask_software(python, settings, side.option)
            return Answer(described=facts)
        except CollbenchError as e:
            return Answer(error=Failure.of(e))

    def send(self, world: str, text: str) -> None:
        """Pass a line to the rank of this world, if it is still there."""
        if (process := self._ranks.get(world)) and (stdin := process.stdin):
            with suppress(OSError, ValueError):  # it has ended, as is told in a moment
                stdin.write(text.encode() + b"\n")
                stdin.flush()

    def end(self, world: str) -> None:
        """Kill the rank of a world, if it is there yet."""
        self._ended.add(world)
        if process := self._ranks.get(world):
            process.kill()
            self._servers.clear()  # whose next note would be this one's end

    def run(self, instructions: Told, on_line: Callable[[str], None]) -> None:
        """Start a rank, and have its ``lines`` heard, in another thread: not in one that makes what
        ranks are forked from, which would end with it."""
        try:
            self._refuse(instructions.env, instructions.side)
            if instructions.side:
                self._server(instructions, instructions.side)
        except (CollbenchError, OSError) as e:
            return on_line(_tell_lost(e))

        def pump() -> None:
            for line in self.lines(instructions):
                on_line(line)

        threading.Thread(target=pump, daemon=True, name=f"collbench-{instructions.world}").start()

    def lines(self, instructions: Told) -> Iterator[str]:
        """A rank from its start to its end: ``{"pid": …}``, the lines that it writes, ``{"says":
        …}`` for what it writes to standard error, ``{"stopped": …}`` when it is or no longer is,
        ``{"exit": …}``. A rank that writes ``{"further": …}`` is to be told the next jobs of an
        open plan, one that writes ``{"turn": …}`` when it has its turn."""
        stopped = False
        try:
            process = self._ranks[instructions.world] = self._process(instructions)
        except (CollbenchError, OSError) as e:
            yield _tell_lost(e)
            return
        with process:
            yield as_json(Said(pid=process.pid))
            self.send(instructions.world, as_json(instructions))
            if instructions.world in self._ended:
                process.kill()
            for stream, line in _read_lines(process):
                if stream is None:
                    if (process_state(process.pid) == "stopped") != stopped:
                        stopped = not stopped
                        yield as_json(Said(stopped=stopped))
                    continue
                yield (
                    line.decode(errors="replace")
                    if stream is process.stdout
                    else as_json(Said(says=line.decode(errors="replace")[:SAYS]))
                )
            with suppress(BrokenPipeError):
                process.stdin.close()  # type: ignore[union-attr]
            code = process.wait()  # until then it can be killed, if a library keeps it
            del self._ranks[instructions.world]
            yield as_json(Said(exit=code))

    def _process(self, instructions: Told) -> subprocess.Popen[bytes] | Forked:
        """A rank's. Raises CannotRun and RunBroken where what forks it has ended."""
        if instructions.side:
            return Forked(self._server(instructions, instructions.side))
        command = module_command(sys.executable, "collbench.run.launch.keeper")
        pipe = subprocess.PIPE
        return subprocess.Popen(
            bound_command(sys.executable, signal.SIGKILL, os.getpid(), *command),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=self._settings(instructions.env, None),
        )

    def _server(self, instructions: Told, side: Side) -> ForkServer:
        """The fork server of a side's ranks: the one there is, unless it is to be renewed or needs
        another environment."""
        settings, (settings_of_server, server) = (
            (instructions.env, side),
            self._servers.get(side.option, (None, None)),
        )
        if server is None or settings_of_server != settings:
            if server:
                server.close()
            server = ForkServer(
                self._settings(instructions.env, side), side.python or sys.executable
            )
            self._servers[side.option] = settings, server
        return server

    def _refuse(self, env: Mapping[str, str], side: Side | None) -> None:
        if self._sides is None:
            return
        name = cast("SideName", side.option.removeprefix("--")) if side else "base"
        variant = self._sides().get(name)
        if not (side and variant):
            raise CannotRun("these ranks are of no side of the experiment", SAME)
        if not is_asked_for(variant, side.option, side.python, side.env, side.tree):
            raise CannotRun(f"{side.option} '{variant.text}' is something else at rank 0", SAME)
        if foreign := variables.list_foreign_variables(env.keys() - side.env.keys()):
            raise CannotRun(
                f"{', '.join(foreign)}: not a known setting of a library that is measured",
                "name it in --base and --head",
            )

    def _settings(self, env: Mapping[str, str], side: Side | None) -> dict[str, str]:
        """The whole environment of a rank: this process's, without what says who that is."""
        settings = {**environments.strip_variables(os.environ), **env}
        return isolate_settings(settings, self._folder) if side else settings


def digest_file(path: Path) -> str:
    """A digest of a file's bytes; empty for one that cannot be read."""
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""


class Forked:
    """A rank that a fork server makes, as subprocess.Popen would have it. Raises CannotRun and
    RunBroken where the server ends before."""

    stderr = None

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        _, board = Board.create(1)
        server.spawn(1, board, fresh=True)
        os.close(board)
        try:
            note, fds = server.note()
        except EOFError:
            raise server.ended(0) from None
        self.pid = note.pid
        with socket.socket(fileno=fds[0]) as channel:
            self.stdin, self.stdout = channel.makefile("wb"), channel.makefile("rb", buffering=0)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()

    def kill(self) -> None:
        """Kill the rank, if it is still there."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """The exit code of the rank, once it has ended; negative for a signal."""
        try:
            return os.waitstatus_to_exitcode(self._server.note()[0].status)
        except (EOFError, OSError):  # the server was killed, and this with it
            return -signal.SIGKILL


def as_json(value: object) -> str:
    """A struct or plain value as one line of JSON."""
    return encode_json(value).decode()


def _tell_lost(error: CollbenchError | OSError) -> str:
    """The line that says why a rank cannot be started, as where no process can be had, and what to
    do about it or where its traceback is."""
    told = error if isinstance(error, CollbenchError) else explain_crash(error)
    return as_json(Said(lost="; ".join(filter(None, [told.message, told.hint]))))


def _read_lines(process: subprocess.Popen[bytes] | Forked) -> Iterator[tuple[Any, bytes]]:
    """(stream, line) of all that a process writes to standard output and error, until both end; no
    stream when it has been silent for a while. A line over the limit ends the process."""
    rests: dict[Any, bytes] = {process.stdout: b""}
    if process.stderr:
        rests[process.stderr] = b""
    with selectors.DefaultSelector() as selector:
        for stream in rests:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(LOOK_SECONDS)
            if not ready:
                yield None, b""
            for key, _ in ready:
                data = os.read(key.fd, 1 << 20)
                *lines, rests[key.fileobj] = (rests[key.fileobj] + data).split(b"\n")
                if not data:
                    selector.unregister(key.fileobj)
                if len(rests[key.fileobj]) > LINE_LIMIT:
                    process.kill()
                yield from ((key.fileobj, line) for line in lines)


def main() -> None:
    """A rank's process. Its lines go where standard output was."""
    streams.secure_streams()
    leave_process(live_as_rank(Channel(sys.stdin.buffer, os.fdopen(os.dup(1), "wb"))))


if __name__ == "__main__":
    main()
