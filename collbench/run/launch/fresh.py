"""A rank in a process that was started or forked for one world: what it is told, and its life.

It takes part as a rank of any launcher does (join.py), but for its place, which it is told.
"""

from __future__ import annotations

import os
import traceback

import msgspec

from collbench.core.errors import CollbenchError, RunBroken
from collbench.machine import environment
from collbench.run.jobs import Plan
from collbench.run.launch import join
from collbench.run.launch.environments import Membership
from collbench.run.launch.world import Channel, Failure, Listener, Said
from collbench.survive.crash import describe_error, is_out_of_memory


class Side(msgspec.Struct, frozen=True):
    """What ranks of an experiment's side have everywhere: an interpreter, "" for the one that keeps
    their place, variables, and the tree that both may lie in. ``option`` is what set them;
    ``renewed`` counts how often what ranks are forked from is to be replaced."""

    python: str = ""
    env: dict[str, str] = {}
    tree: str = ""
    option: str = ""
    renewed: int = 0


class Told(msgspec.Struct, frozen=True):
    """What a rank's process is to know. Rank 0 is found at ``meeting`` by the ``key``; ``plan`` is
    rank 0's only. Ranks have ``seconds`` to come together."""

    member: Membership
    meeting: str
    world: str
    key: str
    env: dict[str, str]
    plan: Plan | None
    side: Side | None = None
    seconds: float = join.SECONDS


def opening_seconds(plan: Plan) -> float:
    """Seconds after which no world of fresh ranks opens any more: to come together, to reach each
    other, and without any progress."""
    meeting = join.meeting_seconds(plan.timeout)
    return meeting + join.connecting_seconds(meeting, plan.n) + plan.timeout


def live_as_rank(channel: Channel) -> int:
    """A rank's life, from what it is told first to the status to exit with."""
    instructions = msgspec.json.decode(channel.source.readline(), type=Told)
    try:
        _take_part(instructions, channel)
    except Exception as e:
        if not isinstance(e, CollbenchError):
            if not is_out_of_memory(e):
                traceback.print_exc()
            who = f"rank {instructions.member.rank} on {environment.host_name()}"
            e = RunBroken(f"{who} {describe_error(e)}")
        channel.send(Said(error=Failure.of(e)))
        return 1
    channel.send(Said(done=True))
    return 0


def _take_part(instructions: Told, channel: Channel) -> None:
    os.environ.update(
        {
            "COLLBENCH_WORLD": instructions.world,
            "COLLBENCH_TOKEN": instructions.key,
            "MASTER_ADDR": instructions.meeting,
        }
    )
    os.environ.pop("MASTER_PORT", None)
    listener = Listener(
        channel.line,
        interim=channel.line,
        next_jobs=channel.next_jobs,
        hung=lambda error: channel.send(Said(error=Failure.of(error))),
        turn=channel.turn,
    )
    join.Joined(instructions.member, instructions.seconds).run(
        [instructions.plan] if instructions.plan else [], listener
    )
