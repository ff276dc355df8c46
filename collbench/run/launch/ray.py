"""Ranks on a Ray cluster: places by a placement group, an actor in each (ray_rank.py), fresh
processes for each world.

The launching process is Ray's driver and no rank. Ranks meet as under any launcher (join.py): at
the address by which Ray knows rank 0's node, with a key that is made up for each world. Ray ends
the actors and frees their places when the driver goes away, however it goes, and the kernel ends a
rank whose actor does.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import socket
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from collbench.core.errors import CannotRun, Exit, RunBroken, UsageError, first_line
from collbench.core.text import tell
from collbench.machine import environment
from collbench.machine.load import Load
from collbench.records.types import Record
from collbench.run import memory
from collbench.run.launch.board import Phase
from collbench.run.launch.environments import Membership
from collbench.run.launch.local import FreshRanks
from collbench.run.launch.ray_rank import MEET_SECONDS, Node, RankActor, Told
from collbench.run.launch.world import Death, Listener, RankWatch, Said, tell_late
from collbench.run.plan import Plan
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

PASSED_ON = re.compile(
    r"(NCCL|GLOO|UCX|TORCH|OMP|FI|TRITON)_\w+"
)  # settings that ranks have of the driver


PLACEMENTS = ("pack", "spread")


_TICK = 0.25


_GRACE = 1.0  # from the first trouble on, to hear from the rank that is to blame


_ANSWER_SECONDS = 10.0  # of whoever is at an address


_PATIENCE = 2.0  # for places, before it is said that they are waited for


class Where(msgspec.Struct, frozen=True):
    """A Ray cluster, and whether ranks are to be on as few of its nodes as possible or on as many
    (PLACEMENTS)."""

    address: str
    placement: str

    def connect(self) -> Any:
        """The module ``ray``, connected to the cluster. Raises CannotRun where there is none,
        UsageError for ray://."""
        named = os.environ.get("RAY_ADDRESS", "auto") if self.address == "auto" else self.address
        if named.startswith("ray://"):
            raise UsageError(
                f"--address {named}: records cannot be streamed through Ray Client",
                "run on a machine of the cluster, with --address auto, or by ray job submit",
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
            from ray._private.services import (
                canonicalize_bootstrap_address,
            )  # what ray.init takes "auto" for
        except ImportError as e:
            raise CannotRun(
                "--launcher ray: Ray is not installed", "pip install 'collbench[ray]'"
            ) from e
        if ray.is_initialized():
            return ray
        try:
            address = canonicalize_bootstrap_address(named) or named
            host, _, port = address.rpartition(
                ":"
            )  # where nobody listens any more, Ray itself would try for minutes
            if not port.isdigit():
                raise ValueError("not HOST:PORT")
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as e:
            raise CannotRun(
                f"no Ray cluster at {named}: {first_line(e)}",
                "ray start --head starts one here; --address HOST:PORT names one that this machine"
                " is part of",
            ) from e
        return ray

    def settle(self, axes: Axes) -> Axes:
        """The axes settled like ``Axes.settled``, with what all nodes have together."""
        offered = self.connect().cluster_resources()
        gpus, cpus = (int(offered.get(name, 0)) for name in ("GPU", "CPU"))
        backends = axes.backends or (("nccl",) if gpus else ("gloo",))
        ranks = axes.ranks or (gpus if gpus and "nccl" in backends else max(1, cpus),)
        return msgspec.structs.replace(axes, backends=backends, ranks=ranks)


class Seat(NamedTuple):
    """A rank's: its actor, the node that is on, and which of the actors there it is."""

    actor: Any
    node: Node
    place: int


class Cluster(FreshRanks):
    """Places for the ranks of a suite's largest world, held until ``close``; smaller worlds take
    some of them.

    Raises CannotRun where Ray does not give that many within ``seconds``.
    """

    def __init__(self, where: Where, suite: Suite, seconds: float) -> None:
        if suite.policy.virtual or suite.policy.share_gpu:
            raise UsageError(
                "--virtual-ranks, --share-gpu: on Ray every rank has a GPU of its own",
                "leave them out",
            )
        self._spread = where.placement == "spread"
        self._gpus = not memory.ON_GPUS.isdisjoint(suite.values("backends"))
        self._ray = where.connect()
        self._group: Any = None
        self._seats: list[Seat] = []
        self._actors: list[Any] = []
        try:
            self._place(max(suite.values("ranks")), where.placement.upper(), seconds)
        except BaseException:
            self.close()
            raise

    def _place(self, n: int, strategy: str, seconds: float) -> None:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {"CPU": 1, "GPU": 1} if self._gpus else {"CPU": 1}
        self._group = group = placement_group([bundle] * n, strategy=strategy, name="collbench")
        if not group.wait(min(seconds, _PATIENCE)):
            tell(f"waiting for places on Ray: {self._lack(bundle)}")
            if not group.wait(max(0.0, seconds - _PATIENCE)):
                raise CannotRun(
                    f"Ray has no places for {n} ranks within {seconds:g} s: {self._lack(bundle)}",
                    "ask for fewer with -g; ray status says what is in use; -T sets the limit",
                )
        make = self._ray.remote(num_cpus=1, num_gpus=int(self._gpus), max_concurrency=2)(
            RankActor
        )  # one more to tell
        at = [PlacementGroupSchedulingStrategy(group, bundle_index) for bundle_index in range(n)]
        self._actors = [make.options(scheduling_strategy=place).remote() for place in at]
        among: dict[str, int] = defaultdict(int)
        for actor, said in zip(
            self._actors,
            self._answers([actor.node.remote() for actor in self._actors]),
            strict=True,
        ):
            node = Node(*said)
            self._seats.append(Seat(actor, node, among[node.id]))
            among[node.id] += 1

    def _lack(self, bundle: Mapping[str, int]) -> str:
        every, free = self._ray.cluster_resources(), self._ray.available_resources()
        each = " and ".join(f"{number} {name}" for name, number in bundle.items())
        there = ", ".join(
            f"{free.get(name, 0):g} of {every.get(name, 0):g} {name}" for name in bundle
        )
        return f"a rank takes {each}, and free are {there}"

    def _answers(self, calls: list[Any]) -> list[Any]:
        """What actors answer. Raises CannotRun where one cannot be started."""
        try:
            return [
                msgspec.json.decode(text) for text in self._ray.get(calls, timeout=MEET_SECONDS)
            ]
        except self._ray.exceptions.RayError as e:
            raise CannotRun(
                f"Ray did not start what runs a rank: {_last_line(e)}",
                "every node needs this version of collbench, in the Python that its Ray is of",
            ) from e

    def environment(self) -> dict[str, Any]:
        """The first rank's node; the git repository is the driver's."""
        (found,) = self._answers([self._among(1)[0].actor.environment.remote()])
        return {**found, "git": environment.gather(Path.cwd())["git"]}

    def room(self, backend: str, n: int, policy: Policy) -> memory.Room:
        """What ranks of a world of n share, on the node that is the tightest for them. A GPU is one
        rank's alone."""
        seats, said = self._among(n), msgspec.json.encode(policy).decode()
        sharers = [1 if backend in memory.ON_GPUS else len(_beside(seat, seats)) for seat in seats]
        asked = [
            seat.actor.room.remote(backend, some, said)
            for seat, some in zip(seats, sharers, strict=True)
        ]
        return min(
            (memory.Room(*of) for of in self._answers(asked)),
            key=lambda of: of.available // of.sharers,
        )

    def _among(self, n: int) -> list[Seat]:
        """n of the seats, in the order of ranks: those of a node follow each other."""
        by_node = sorted(self._seats, key=lambda seat: (seat.node.id, seat.place))
        in_turn = sorted(by_node, key=lambda seat: seat.place)
        chosen = (in_turn if self._spread else by_node)[:n]
        return [seat for seat in by_node if seat in chosen]

    def measure(self, plan: Plan, listener: Listener) -> None:
        seats = self._among(plan.n)
        streams = {
            seat.actor.run.remote(msgspec.json.encode(told).decode()): rank
            for rank, (seat, told) in enumerate(zip(seats, instructions(plan, seats), strict=True))
        }
        watch = Watch(plan, seats, listener)
        while streams:
            ready, _ = self._ray.wait(list(streams), timeout=_TICK)
            for stream in ready:
                try:
                    watch.hear(streams[stream], self._ray.get(next(stream)))
                except StopIteration:
                    del streams[stream]
                except self._ray.exceptions.RayError as e:
                    watch.lost(streams.pop(stream), _last_line(e))
            if (job := watch.job) is not None:
                listener.tick(plan.jobs[job].case, Phase.MEASURING)
            watch.check(last=not streams)
            if watch.overdue():
                tell_late(", ".join(watch.who(rank) for rank in sorted(streams.values())))
                for rank in streams.values():
                    seats[rank].actor.end.remote()
                return

    def load(self) -> dict[str, Load]:
        return {}

    def close(self) -> None:
        from ray.util.placement_group import remove_placement_group

        for actor in self._actors:
            self._ray.kill(actor)
        if self._group:
            remove_placement_group(self._group)
        self._ray.shutdown()


def _last_line(error: Exception) -> str:
    """What a remote error comes to, behind its traceback."""
    return str(error).strip().rpartition("\n")[2].strip() or type(error).__name__


def _beside(seat: Seat, seats: list[Seat]) -> list[Seat]:
    """Those of ``seats`` that are on the node of one."""
    return [other for other in seats if other.node.id == seat.node.id]


def instructions(plan: Plan, seats: list[Seat]) -> list[Told]:
    """For each rank of a world. It sees the GPUs of all ranks beside it, which Ray would hide, so
    that they can reach each other's memory."""
    world, key = secrets.token_hex(8), secrets.token_hex(16)
    passed = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    found = []
    for rank, seat in enumerate(seats):
        beside = _beside(seat, seats)
        gpus = ",".join(
            sorted(
                (other.node.gpus for other in beside if other.node.gpus),
                key=lambda id: (len(id), id),
            )
        )
        env = {**passed, **({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}), **dict(plan.env)}
        member = Membership("ray", rank, plan.n, beside.index(seat), len(beside))
        found.append(Told(member, seats[0].node.address, world, key, env, None if rank else plan))
    return found


class Watch(RankWatch):
    """Follows ranks on Ray by what they and their actors say."""

    out_of_memory = "out of memory? see dmesg there"

    def __init__(self, plan: Plan, seats: list[Seat], listener: Listener) -> None:
        super().__init__(plan, listener, _GRACE)
        self._seats = seats
        self._pids: dict[int, int] = {}
        self._begun, self._done = False, 0

    @property
    def job(self) -> int | None:
        """The case at work on, None before the first and after the last."""
        return self._done if self._begun and self._done < len(self.plan.jobs) else None

    def hear(self, rank: int, line: bytes | str) -> Said:
        said = super().hear(rank, line)
        if said.line is not None:
            self._begun = True
            # the last of a job's records is the first group's
            self._done += isinstance(said.line, Record) and said.line.case.group == 0
        elif said.pid is not None:
            self._pids[rank] = said.pid
        elif said.says is not None:
            tell(said.says)
        elif said.stopped is not None:
            (self.stopped.add if said.stopped else self.stopped.discard)(rank)
        elif said.exit and rank not in self.errors:
            self.deaths[rank] = Death.by(said.exit, "exited with")
        return said

    def check(self, last: bool = False) -> None:
        """Once a rank is done all is measured, and how others end is no trouble any more."""
        if self.done:
            self.deaths.clear()
        super().check(last)

    def lost(self, rank: int, why: str) -> None:
        self.deaths[rank] = Death(f"was lost ({why.partition('. ')[0]})")

    def answer(self, rank: int, text: bytes) -> None:
        self._seats[rank].actor.tell.remote(text.decode())

    def precedence(self, rank: int, end: Death) -> tuple[bool, int]:
        return end.signal == signal.SIGABRT, rank

    def raised(self) -> CannotRun | RunBroken:
        error = min(
            self.errors.values(),
            key=lambda error: (error.exit == Exit.TIMEOUT, " lost rank " in error.message),
        )
        if error.exit != Exit.TIMEOUT:
            return CannotRun(error.message, error.hint)
        return RunBroken(error.message, error.hint, self.job)

    def broken(self, rank: int, what: str, hint: str) -> RunBroken:
        doing = self.plan.doing("starting up" if self.job is None else "at work on", self.job)
        return RunBroken(f"{self.who(rank)} {what} while {doing}", hint, self.job)

    def who(self, rank: int) -> str:
        return (
            f"rank {rank} on {self._seats[rank].node.host} (pid {self._pids.get(rank, 'unknown')})"
        )
