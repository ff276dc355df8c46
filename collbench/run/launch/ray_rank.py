"""A rank's side on a Ray cluster: the actor that holds its place, and the processes that it is in,
one for each world.

No process of Ray's own loads torch: a rank starts in the environment it is to have, and what it
does to its process ends with it. The actor and the rank's process speak lines of JSON, of limited
size.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from collbench.core.errors import CollbenchError, RunBroken, first_line
from collbench.machine import environment
from collbench.run import memory
from collbench.run.launch import join
from collbench.run.launch.board import doing
from collbench.run.launch.environments import Membership
from collbench.run.launch.forkserver import die_with_parent, leave
from collbench.run.launch.world import LINE_LIMIT, Channel, Failure, Listener, Said
from collbench.run.plan import Plan
from collbench.suite.policy import Policy

LOOK_SECONDS = 1.0  # between looks at a rank that says nothing


MEET_SECONDS = 120.0  # every rank loads torch, from a cold or remote disk


class Node(NamedTuple):
    """Where an actor is: Ray's name for the node, and what it is called and reached by; ``gpus``
    are the actor's, as CUDA_VISIBLE_DEVICES has them there."""

    id: str
    address: str
    host: str
    gpus: str


class Told(msgspec.Struct, frozen=True):
    """What a rank's process is to know. Rank 0 is found at ``meeting`` by the ``key``; ``plan`` is
    rank 0's only."""

    member: Membership
    meeting: str
    world: str
    key: str
    env: dict[str, str]
    plan: Plan | None


class RankActor:
    """Runs a rank's processes, and answers for its node, in JSON."""

    def node(self) -> str:
        import ray

        node, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        return _json(
            Node(node, address, environment.host(), os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        )

    def environment(self) -> str:
        found = environment.gather()
        found["variables"].pop(
            "CUDA_VISIBLE_DEVICES", None
        )  # Ray's doing, and another GPU each time
        return _json(found)

    def room(self, backend: str, n: int, policy: str) -> str:
        return _json(memory.room(backend, n, msgspec.json.decode(policy, type=Policy)))

    def tell(self, text: str) -> None:
        self._stdin.write(text.encode() + b"\n")
        self._stdin.flush()

    def end(self) -> None:
        """Kill the rank that is there now."""
        self._process.kill()

    def run(self, told: str) -> Iterator[str]:
        """A rank from its start to its end: ``{"pid": …}``, the lines that it writes, ``{"says":
        …}`` for what it writes to standard error, ``{"stopped": …}`` when it is or no longer is,
        ``{"exit": …}``. A rank that writes ``{"further": …}`` is to be told the next jobs of an
        open plan."""
        stopped = False
        env = {**os.environ, **msgspec.json.decode(told, type=Told).env}
        command, pipe = [sys.executable, "-m", "collbench.run.launch.ray_rank"], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env) as process:
            assert process.stdin
            self._process, self._stdin = process, process.stdin
            yield _json(Said(pid=process.pid))
            with suppress(BrokenPipeError):
                self.tell(told)
            for stream, line in _lines(process):
                if stream is None:
                    if (doing(process.pid) == "stopped") != stopped:
                        stopped = not stopped
                        yield _json(Said(stopped=stopped))
                    continue
                yield (
                    line.decode()
                    if stream is process.stdout
                    else _json(Said(says=line.decode(errors="replace")))
                )
            with suppress(BrokenPipeError):
                process.stdin.close()
            yield _json(Said(exit=process.wait()))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _lines(process: subprocess.Popen[bytes]) -> Iterator[tuple[Any, bytes]]:
    """(stream, line) of all that a process writes to standard output and error, until both end; no
    stream when it has been silent for a while. A line over the limit ends the process."""
    rests: dict[Any, bytes] = {process.stdout: b"", process.stderr: b""}
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


def _take_part(told: Told, channel: Channel) -> None:
    """What a rank of any launcher does, which knows the others by ``told``."""
    os.environ.update(
        {"COLLBENCH_RAY": told.world, "COLLBENCH_TOKEN": told.key, "MASTER_ADDR": told.meeting}
    )
    os.environ.pop("MASTER_PORT", None)
    listener = Listener(
        channel.line,
        further=channel.further,
        hung=lambda error: channel.say(Said(error=Failure.of(error))),
    )
    join.Joined(told.member, MEET_SECONDS).run([told.plan] if told.plan else [], listener)


def main() -> None:
    """A rank's process. Its lines go where standard output was; libraries, which write there too,
    get the other."""
    die_with_parent()
    told = msgspec.json.decode(sys.stdin.buffer.readline(), type=Told)
    channel = Channel(sys.stdin.buffer, os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    try:
        _take_part(told, channel)
    except Exception as e:
        if not isinstance(e, CollbenchError):
            traceback.print_exc()
            who = f"rank {told.member.rank} on {environment.host()}"
            e = RunBroken(f"{who} raised {type(e).__name__}: {first_line(e)}")
        channel.say(Said(error=Failure.of(e)))
        sys.exit(1)
    channel.say(Said(done=True))
    leave(0)


if __name__ == "__main__":
    main()
