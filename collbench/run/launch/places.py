"""Worlds of ranks at places that are held on some hosts, by Ray (ray.py), by processes that ssh has
started (ssh.py) or by those of a launcher (launched.py): fresh processes for each world, and
several worlds at once.

Ranks meet as under any launcher (join.py): at the address by which rank 0's place is known, with a
key that is made up for each world. What they and who keeps their places (keeper.py) have to say
comes to the one process that plans, prints and records.
"""

from __future__ import annotations

import math
import re
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec

from collbench.core.backend_info import backend_info, list_settings
from collbench.core.errors import CannotRun, RunBroken, UsageError
from collbench.core.text import is_readable, print_message
from collbench.machine import environment, variables
from collbench.machine.load import Load
from collbench.records.types import Record, World
from collbench.run import memory
from collbench.run.jobs import Plan
from collbench.run.launch import environments, join
from collbench.run.launch.board import LEAVE_SECONDS, Phase
from collbench.run.launch.environments import Membership
from collbench.run.launch.fresh import Side, Told, opening_seconds
from collbench.run.launch.interpreter import Home, SideName
from collbench.run.launch.keeper import Answer, Question, digest_file
from collbench.run.launch.local import FreshRanks
from collbench.run.launch.watch import Death, RankWatch
from collbench.run.launch.world import Listener, Said
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite
from collbench.survive.signals import interrupts

_GRACE = 1.0  # from the first trouble on, to hear from the rank that is to blame

_GUARD = 1.0  # seconds between looks at who keeps the places

_AT_ONCE = 32  # places that are asked

_OWN = (
    "COLLBENCH_TOKEN",
    "COLLBENCH_WEBHOOK_URL",
    "COLLBENCH_HISTORY",
    "COLLBENCH_HOME",
    "COLLBENCH_HOSTS",
    "COLLBENCH_SSH",
    "COLLBENCH_WORLD",
)

# What a scheduler or launcher has told the launching process of itself.
_OF_JOBS = re.compile(r"(SLURM|PBS|FLUX|MASTER)_\w+|RANK|WORLD_SIZE|LOCAL_RANK")


class Place(Protocol):
    """Whoever keeps a place, as seen from the process that plans (Keeper is one, if it is here)."""

    def run(self, instructions: Told, on_line: Callable[[str], None]) -> None:
        """Start a rank, of which ``on_line`` gets each line (Said), in any thread."""

    def send(self, world: str, text: str) -> None:
        """Tell the rank of a world what it waits for."""

    def end(self, world: str) -> None:
        """End the rank of a world, if there still is one."""

    def ask(self, question: Question) -> Answer:
        """Raises CannotRun or RunBroken where nobody answers."""


class Node(NamedTuple):
    """Where a place is: a name for the node, and what it is called and reached by; ``gpus`` are the
    place's alone, as CUDA_VISIBLE_DEVICES has them there, "" where it sees what all there do."""

    id: str
    address: str
    host: str
    gpus: str


class Seat(NamedTuple):
    """A rank's: its place, the node that is on, and which of those there it is."""

    at: Place
    node: Node
    number: int


class PlaceSource(Protocol):
    """Who gives places on other hosts: a Ray cluster, or a list of hosts that ssh reaches."""

    @property
    def name(self) -> str:
        """The launcher in sentences: Ray, ssh."""

    @property
    def local_n(self) -> int:
        """The ranks of each host; 0 where that is not known, or hosts differ in it."""

    def count_hosts(self, n: int) -> int:
        """The hosts that n ranks are on; 0 where that is not known."""

    def resolve(self, axes: Axes) -> Axes:
        """The axes with ranks and backends, from what all hosts have. Raises CannotRun and
        UsageError."""

    def hold_places(self, suite: Suite, seconds: float) -> Places:
        """Places for the ranks of a suite's largest world. Raises CannotRun where there are not
        that many within so many seconds."""


class Places(FreshRanks):
    """Seats for the ranks of worlds, which take some of them; held until ``close``."""

    def __init__(self, launcher: str, passed: Mapping[str, str] = MappingProxyType({})) -> None:
        """``passed`` are variables that ranks are started with, and places do not have."""
        self.launcher, self._passed = launcher, passed
        self.seats: list[Seat] = []

    def among(self, n: int) -> list[Seat]:
        """n of the seats, in the order of ranks."""
        return self.seats[:n]

    def list_hosts(self, n: int) -> list[str]:
        """The host of each of n seats, in the order of ranks."""
        return [seat.node.host for seat in self.among(n)]

    def lost(self) -> str:
        """The ranks that nothing is heard of, in words; "" where there are none."""
        return ""

    def broken(self, error: BaseException) -> None:
        """End an experiment here. Raises RunBroken for one that stands for it."""
        return

    def refuse(self, case: Case) -> str:
        """Why a case cannot run here, or ""."""
        if backend_info(case.backend).launch == "mpirun":
            return (
                f"{case.backend} needs ranks that mpirun has started, and ab starts new ones:"
                " without a launcher it brings an mpirun of its own"
            )
        if case.world > len(self.seats):
            return f"{case.world} ranks are more than the {len(self.seats)} places there are"
        return ""

    def load(self) -> dict[str, Load]:
        """Nothing: places are on other hosts perhaps."""
        return {}

    def environment(self) -> dict[str, Any]:
        """The first rank's node; the git repository is this process's."""
        (answer,) = self._answers(self.among(1), [Question()])
        git = environment.gather_facts(Path.cwd())["git"]
        return {**self._describe(answer, self._passed), "git": git}

    def _describe(self, answer: Answer, settings: Mapping[str, str]) -> dict[str, Any]:
        """What a place has described, with the settings that its ranks are started with."""
        described = answer.described
        recorded = {**described.get("variables", {}), **variables.select_variables(settings)}
        return {**described, "variables": recorded}

    def room(self, backend: str, n: int, policy: Policy) -> memory.Room:
        """The memory that ranks of a world of n share, on the node where each has the least. Where
        a place has GPUs of its own, each rank has one to itself."""
        seats = self.among(n)
        alone = backend_info(backend).gpu != ""
        by_node = _group_by_node(seats)
        sharers = [1 if alone and s.node.gpus else len(by_node[s.node.id]) for s in seats]
        questions = [Question(room=(backend, some, policy)) for some in sharers]
        rooms = [answer.room for answer in self._answers(seats, questions) if answer.room]
        return min(rooms, key=lambda room: room.available // room.sharers)

    def resolve(self, home: Home, name: SideName) -> Home:
        """A side's home, once a place on each host has been found to have it; described as it is
        at rank 0's. Raises CannotRun and UsageError, which name the host."""
        seats = [seat for seat in self.seats if seat.number == 0]
        answers = self._answers(seats, [Question(side=_make_side(home, name))] * len(seats))
        described = self._describe(answers[0], {**self._passed, **home.variables})
        described["git"] = home.described.get("git")
        return msgspec.structs.replace(home, described=described)

    def list_unlike(self, path: Path) -> list[str]:
        """The hosts on which ``path`` is not the file that it is here."""
        seats = [seat for seat in self.seats if seat.number == 0]
        answers = self._answers(seats, [Question(path=str(path))] * len(seats))
        here = digest_file(path)
        return [
            seat.node.host
            for seat, answer in zip(seats, answers, strict=True)
            if answer.digest != here
        ]

    def _answers(self, seats: Sequence[Seat], questions: Sequence[Question]) -> list[Answer]:
        """The answers of seats to a question each. Raises CannotRun for an answer that is an
        error."""
        with ThreadPoolExecutor(min(len(seats), _AT_ONCE)) as pool:
            answers = list(pool.map(lambda seat, question: seat.at.ask(question), seats, questions))
        for seat, answer in zip(seats, answers, strict=True):
            if error := answer.error:
                raise CannotRun(f"{seat.node.host}: {error.message}", error.hint)
        return answers

    @contextmanager
    def started(
        self, plan: Plan, listener: Listener, side: Side | None = None
    ) -> Iterator[SeatWatch]:
        """Within its ``with`` block the plan's ranks run at places, and are watched."""
        seats = self.among(plan.n)
        instructions = make_instructions(plan, seats, self.launcher, self._passed, side)
        watch = SeatWatch(plan, seats, listener, instructions[0].world, self.lost)
        try:
            for rank, (seat, orders) in enumerate(zip(seats, instructions, strict=True)):
                seat.at.run(orders, partial(watch.take, rank))
            yield watch
            watch.check(last=True)
            watch.report_late_ranks()
        finally:
            watch.close()


class SideRanks(FreshRanks):
    """The ranks of an experiment's side, at places that both sides share."""

    def __init__(self, places: Places, home: Home, name: SideName) -> None:
        self._places, self._side = places, _make_side(home, name)

    def started(self, plan: Plan, listener: Listener) -> Any:
        """The plan's ranks, of this side, at the places."""
        return self._places.started(plan, listener, self._side)

    def close(self) -> None:
        """Have later ranks come from new processes."""
        self._side = msgspec.structs.replace(self._side, renewed=self._side.renewed + 1)


def select_settings(environ: Mapping[str, str], with_path: bool = True) -> dict[str, str]:
    """Variables of the launching process that hold on all hosts: settings of libraries, as a run
    records them, and collbench's own but for secrets and places of files."""
    prefixes = list_settings()
    chosen = {
        name: value
        for name, value in environ.items()
        if (variables.ALLOWED.fullmatch(name) or name.startswith((*prefixes, "COLLBENCH_")))
        and name not in _OWN
        and not _OF_JOBS.fullmatch(name)
    }
    if with_path and environ.get("PYTHONPATH"):
        chosen["PYTHONPATH"] = environ["PYTHONPATH"]
    return environments.strip_variables(chosen)


def _make_side(home: Home, name: SideName) -> Side:
    return Side(
        "" if home.python == sys.executable else home.python, home.variables, home.tree, f"--{name}"
    )


def count_earlier(names: Iterable[str]) -> Iterator[int]:
    """Of each name, how many before it are the same."""
    counts: Counter[str] = Counter()
    for name in names:
        yield counts[name]
        counts[name] += 1


def _group_by_node(seats: Iterable[Seat]) -> dict[str, list[Seat]]:
    """The seats of each node, by its id."""
    by_node: dict[str, list[Seat]] = {}
    for seat in seats:
        by_node.setdefault(seat.node.id, []).append(seat)
    return by_node


def _list_gpus(neighbours: Iterable[Seat]) -> dict[str, str]:
    """The variable that lets a rank see the GPUs of all seats of its node, where these have
    some."""
    gpus = [seat.node.gpus for seat in neighbours if seat.node.gpus]
    listed = ",".join(sorted(gpus, key=lambda id: (len(id), id)))
    return {"CUDA_VISIBLE_DEVICES": listed} if listed else {}


def make_instructions(
    plan: Plan,
    seats: list[Seat],
    launcher: str,
    passed: Mapping[str, str],
    side: Side | None = None,
) -> list[Told]:
    """Instructions for each rank of a world, with the variables that are ``passed``. Where a place
    has GPUs of its own, the rank sees those of all ranks beside it, so that they can reach each
    other's memory."""
    world, key = secrets.token_hex(8), secrets.token_hex(16)
    if unreadable := [name for name, value in passed.items() if not is_readable(value)]:
        raise UsageError(
            f"{unreadable[0]}: its value is not UTF-8, and cannot be passed to other hosts",
            f"unset {unreadable[0]}, or give it another value",
        )
    instructions = []
    by_node = _group_by_node(seats)
    gpus = {node: _list_gpus(neighbours) for node, neighbours in by_node.items()}
    local_ranks = count_earlier(seat.node.id for seat in seats)
    for rank, (seat, local_rank) in enumerate(zip(seats, local_ranks, strict=True)):
        node = seat.node.id
        env = {**passed, **gpus[node], **dict(plan.env), **(side.env if side else {})}
        member = Membership(launcher, rank, plan.n, local_rank, len(by_node[node]))
        address = seats[0].node.address
        own_plan, seconds = None if rank else plan, join.meeting_seconds(plan.timeout)
        instructions.append(Told(member, address, world, key, env, own_plan, side, seconds))
    return instructions


class RecordCount:
    """How far a world is by the records that it has sent (watch.Progress)."""

    def __init__(self, plan: Plan) -> None:
        self._jobs = plan.jobs  # an open plan gets more
        self._cases_per_job = 1 + any(job.companion for job in plan.jobs)
        self.begun, self._done = False, 0

    def count(self, line: World | Record) -> None:
        """Note that a line has come."""
        self.begun = True
        if isinstance(line, Record):  # the last of a job's is its leader's
            self._done += line.case.is_leader and line.stop != "cut"

    def beats(self) -> int:
        """Cases that are finished."""
        return self._done

    def find_behind(self) -> list[int]:
        """Nobody: of other ranks than 0 no record tells."""
        return []

    def job(self, rank: int = 0) -> int | None:
        """The case at work on, None before the first and after the last."""
        at = self._done // self._cases_per_job
        return at if self.begun and at < len(self._jobs) else None

    def label(self, rank: int) -> str:
        """The phrase for what a rank is doing."""
        return "starting up" if self.job() is None else "at work on"


class SeatWatch(RankWatch):
    """Hears the ranks of a world through who keeps their places. ``guard`` says whom nothing is
    heard of."""

    out_of_memory = "out of memory? see dmesg there"
    unknown_pid = "unknown"

    def __init__(
        self,
        plan: Plan,
        seats: list[Seat],
        listener: Listener,
        world: str = "",
        guard: Callable[[], str] = str,
    ) -> None:
        self._count = RecordCount(plan)
        super().__init__(plan, listener, [seat.node.host for seat in seats], self._count, _GRACE)
        self._seats, self._world, self._guard, self._look = seats, world, guard, 0.0
        self._stopped_until = math.inf
        self._until = self.clock.read() + opening_seconds(plan)
        self._incoming: SimpleQueue[tuple[int, str]] = SimpleQueue()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)

    def take(self, rank: int, line: str) -> None:
        """Have a line heard by whoever moves this; from any thread."""
        self._incoming.put((rank, line))
        with suppress(OSError):  # it is awake, or nobody listens any more
            self._wake.send(b".")

    def fileno(self) -> int:
        """The descriptor that is readable where a line has been taken."""
        return self._woken.fileno()

    def move(self, seconds: float) -> None:
        """Take in lines within so many seconds. Raises RunBroken and CannotRun, also where
        ``guard`` says that somebody is lost."""
        self._woken.settimeout(seconds)
        with suppress(TimeoutError, BlockingIOError):
            self._woken.recv(1 << 16)
        with interrupts.uninterrupted():  # what ranks have finished is kept
            while not self._incoming.empty():
                self.handle_line(*self._incoming.get())
        if (job := self._count.job()) is not None:
            self.listener.tick(self.plan.jobs[job].case, Phase.MEASURING)
        if self.busy() and time.monotonic() > self._look:
            self._look = time.monotonic() + _GUARD
            if lost := self._guard():
                raise self.make_error(lost, 0, "is its host up?")
        self.check(last=len(self.ended) == len(self.hosts))
        self._refuse_silence()

    def _refuse_silence(self) -> None:
        """Raises RunBroken where no rank can say any more that others stand still: of the longest
        that a world may take to open nothing is left, or ranks are stopped for longer than the
        plan allows."""
        now = self.clock.read()
        if not self._count.begun and now > self._until:
            hosts = list(dict.fromkeys(self.hosts))
            names = ", ".join(hosts[:8]) + f" and {len(hosts) - 8} others" * (len(hosts) > 8)
            raise RunBroken(
                f"no world opened within {opening_seconds(self.plan):g} s on {names}",
                "check that Python can import torch there and that file servers answer, or"
                f" {environments.hint_limit(join.meeting_seconds(self.plan.timeout))}",
            )
        if self.stopped and not (self.waiting or self.done) and now > self._stopped_until:
            raise self.blame_trouble()

    def close(self) -> None:
        """End whoever is left."""
        for seat in self._seats:
            seat.at.end(self._world)
        for end in (self._woken, self._wake):
            end.close()

    def handle_line(self, rank: int, line: bytes | str) -> Said:
        """Take in a line of a rank, or what the keeper of its place says of it."""
        message = super().handle_line(rank, line)
        if message.line is not None:
            self.stopped.discard(rank)
            self._count.count(message.line)
        elif message.pid is not None:
            self.pids[rank] = message.pid
        elif message.says is not None:
            print_message(message.says)
        elif message.stopped is not None:
            if not self.stopped:  # ranks that are not say earlier that these do not move
                self._stopped_until = self.clock.read() + self.plan.timeout + LEAVE_SECONDS
            (self.stopped.add if message.stopped else self.stopped.discard)(rank)
        elif message.lost is not None:
            self.ended.add(rank)
            self.deaths[rank] = Death(f"was lost ({message.lost})")
            self._since = -self._grace  # nothing more is to be heard, and others may be ended soon
        elif message.exit is not None:
            self.note_end(rank, Death.by(message.exit, "exited with") if message.exit else None)
        return message

    def check(self, last: bool = False) -> None:
        """Looks for trouble. Once a rank is done all is measured, and how others end is none any
        more."""
        if self.done:
            self.deaths.clear()
        super().check(last)

    def answer(self, rank: int, text: bytes) -> None:
        """Have a line passed to a rank by its place's keeper."""
        self._seats[rank].at.send(self._world, text.decode())
