"""One way to run plans, wherever their ranks are: on this machine (local.py), under its mpirun
(mpirun.py), with the ranks of a launcher (join.py), at places that a launcher or Ray holds
(places.py), or predicted without any (backends/model.py).

What they share is here too: what ranks say to whoever watches them, and who is to blame when they
stand still, end or raise.
"""

from __future__ import annotations

import math
import signal
import time
import traceback
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from collbench.core.errors import (
    CannotRun,
    CollbenchError,
    Exit,
    RunBroken,
    says_peer_is_gone,
)
from collbench.core.text import print_message
from collbench.machine import environment
from collbench.machine.load import Load, measure_load
from collbench.records import types
from collbench.run import memory
from collbench.run.jobs import Job, Plan
from collbench.run.launch.board import LEAVE_SECONDS, Board, Phase
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.survive.crash import MEMORY_HINT, describe_error, is_out_of_memory

LINE_LIMIT = 256 << 20


Env = tuple[tuple[str, str], ...]


Hear = Callable[[types.World | types.Record], None]


def end_run(plan: Plan, error: CollbenchError) -> None:
    """Raise the error of a world that did not open."""
    raise error


class Listener(NamedTuple):
    """Who hears what comes of plans while they run.

    ``line`` gets a world, then its records; ``so_far`` records of what is still measured, each of
    which replaces the one before; ``tick``, often, the case that ranks are at and what
    they do with it; ``next_jobs`` says what an open plan goes on with; ``turn`` waits for that of a
    world of joined ranks; ``lost`` hears of a plan that broke before the error is raised.
    ``unopened`` hears of a plan whose world did not open: CannotRun where it cannot, RunBroken
    where a rank broke; the plans after it run, unless it raises. Of joined ranks that stand still
    ``hung`` hears, in another thread, just before the process ends.
    """

    line: Hear
    tick: Callable[[Case, Phase], None] = lambda case, phase: None
    next_jobs: Callable[[], list[Job]] = list
    lost: Callable[[Plan, RunBroken], None] = lambda plan, error: None
    hung: Callable[[RunBroken], None] = lambda error: None
    turn: Callable[[int], object] = lambda job: None
    so_far: Callable[[types.Record], None] = lambda record: None
    unopened: Callable[[Plan, CollbenchError], None] = end_run

    def accept(self, line: types.World | types.Record) -> None:
        """Tell who is to hear of it."""
        if isinstance(line, types.Record) and line.stop == "cut":
            return self.so_far(line)
        self.line(line)


class World(Protocol):
    """Where plans run. What a kind of world does not say otherwise is true of this machine."""

    def environment(self) -> dict[str, Any]:
        """The machine of rank 0, and the git repository that the command runs in."""
        return environment.gather_facts(Path.cwd())

    def room(self, backend: str, n: int, policy: Policy) -> memory.Room:
        """The memory that n ranks share."""
        return memory.measure_room(backend, n, policy)

    def load(self) -> dict[str, Load]:
        """Others' load by host while no rank runs. Empty where that cannot be told: where somebody
        else starts the ranks, on other hosts perhaps."""
        return measure_load()

    def warm(self, backends: Sequence[str], env: Env = ()) -> None:
        """Start what takes long and plans for these backends will need; return at once."""
        return

    @abstractmethod
    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        """Run all plans in turn. Raises RunBroken with the culprit, where a world breaks at a
        case; of one that does not open the listener hears."""

    def close(self) -> None:
        """Give back whatever plans have run on."""
        return


class Asked(msgspec.Struct, frozen=True):
    """What a forked rank is told first: its plan, and the file by which ranks find each other."""

    plan: Plan
    store: str


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as a rank tells of it; with a traceback where it was not foreseen. One that is
    ``own`` befell this rank alone, and its message is a clause that follows the rank's name."""

    message: str
    hint: str = ""
    exit: int = Exit.CANNOT_RUN
    traceback: str = ""
    own: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The error that is being handled."""
        if isinstance(error, CollbenchError):
            return cls(error.message, error.hint, error.exit)
        message = describe_error(error)
        if is_out_of_memory(error):
            return cls(message, MEMORY_HINT, own=True)
        return cls(message, traceback=traceback.format_exc(), own=True)

    @property
    def clause(self) -> str:
        """The clause that follows the name of the rank."""
        return self.message if self.own else f"failed: {self.message}"

    def as_error(self, job: int | None = None) -> CannotRun | RunBroken:
        """The same where it ends a run, at that place in the plan."""
        if self.exit == Exit.TIMEOUT:
            return RunBroken(self.message, self.hint, job)
        return CannotRun(self.message, self.hint)


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of what a rank says, or the place that holds it: one of these each time."""

    line: types.World | types.Record | None = None
    further: bool = False  # it waits for the next jobs of an open plan
    turn: int | None = None  # it waits for its world's turn, at this job
    error: Failure | None = None
    done: bool = False
    pid: int | None = None
    says: str | None = None  # on its standard error
    stopped: bool | None = None  # it is from now on, or no longer
    exit: int | None = None  # its process's code, negative for a signal
    lost: str | None = None  # its place is, and why


class Channel(NamedTuple):
    """A rank's end of the line to whoever watches it."""

    source: Any  # files that bytes are read from, and written to
    sink: Any

    def send(self, message: Said) -> None:
        """Send a message."""
        self.sink.write(msgspec.json.encode(message) + b"\n")
        self.sink.flush()

    def line(self, line: types.World | types.Record) -> None:
        """Send a world or a record."""
        self.send(Said(line=line))

    def next_jobs(self) -> list[Job]:
        """Ask for the next jobs of an open plan, and wait for them."""
        self.send(Said(further=True))
        return msgspec.json.decode(self.source.readline(), type=list[Job])

    def turn(self, job: int) -> None:
        """Say that this world comes to a job, and wait until it is its turn."""
        self.send(Said(turn=job))
        self.source.readline()


class StallWatch:
    """Finds out when no rank on a board moves any more, and puts where a rank is into words."""

    def __init__(self, board: Board, plan: Plan) -> None:
        self._board, self._plan = board, plan
        self.beats, self._moved = board.beats(), time.monotonic()
        self._other_beats: Sequence[float] = ()

    def stalled(self, other_beats: Sequence[float] = ()) -> float:
        """Seconds since any rank has moved, once they are more than the plan allows; before, 0.
        Ranks without a line on the board count as moving while ``other_beats`` changes."""
        latest, now = self._board.beats(), time.monotonic()
        if latest != self.beats or other_beats != self._other_beats:
            self.beats, self._other_beats, self._moved = latest, other_beats, now
        seconds = now - self._moved
        return seconds if seconds > self._plan.timeout else 0.0

    def rest(self, until: float = 0.0) -> None:
        """Nobody was to move, until so many seconds ago."""
        self._moved = time.monotonic() - until

    def behind(self) -> list[int]:
        """Ranks that are not as far as the foremost."""
        places = [self._board.where(rank)[1:] for rank in range(self._board.n)]
        return [rank for rank, progress in enumerate(places) if progress < max(places)]

    def broken(self, what: str, rank: int, hint: str = "") -> RunBroken:
        """An error that tells ``what`` happened while ``rank`` was doing what it does now."""
        job = self._board.job(rank)
        doing = self._plan.doing(self._board.where(rank)[0].label, job)
        return RunBroken(f"{what} while {doing}", hint, job)


class Death(NamedTuple):
    """How a rank ended, and by which signal, if any."""

    description: str
    signal: int = 0

    @classmethod
    def by(cls, code: int, exited: str) -> Death:
        """The end of a process with this exit code, negative for a signal."""
        if code < 0:
            return cls(f"was killed by {signal.Signals(-code).name}", -code)
        return cls(f"{exited} {code}")


# A library aborts, and mpirun terminates ranks, where another has said why.
FOLLOWING = (signal.SIGABRT, signal.SIGTERM)


STOPPED = Death("is stopped (SIGSTOP)")


def tell_late(who: str, what: str = "did not end") -> None:
    """Say on the terminal who is killed because it did not end in time."""
    message = f"{what} within {LEAVE_SECONDS:g} s of the last case, and is killed"
    print_message(f"{who} {message}")


class RankWatch:
    """Follows ranks by what they say and how they end, and finds who broke their world: one that
    was killed or stopped before one that raised an error, before those that only noticed.

    ``grace`` seconds after the first trouble whoever is to blame has been heard of.
    """

    out_of_memory = "out of memory? see dmesg"

    def __init__(self, plan: Plan, listener: Listener, grace: float) -> None:
        self.plan, self.listener, self._grace = plan, listener, grace
        self.errors: dict[int, Failure] = {}
        self.deaths: dict[int, Death] = {}
        self.stopped: set[int] = set()
        self.done: set[int] = set()
        self.waits_at = -1  # for its world's turn, at this job
        self._since: float | None = None
        self._over = math.inf

    def handle_line(self, rank: int, line: bytes | str) -> Said:
        """Take in a message of a rank, and pass on what the listener is to hear."""
        message = msgspec.json.decode(line, type=Said)
        if message.line is not None:
            self.listener.accept(message.line)
        elif message.further:
            self.plan.jobs.extend(more := self.listener.next_jobs())
            self.answer(rank, msgspec.json.encode(more))
        elif message.turn is not None:
            self.waits_at = message.turn
        elif message.error is not None:
            self.errors[rank] = message.error
        elif message.done:
            self.done.add(rank)
            limit = LEAVE_SECONDS if self.finished else self.plan.timeout
            self._over = min(self._over, time.monotonic() + limit)
        return message

    @property
    def waiting(self) -> bool:
        """Whether the world waits for its turn, and nothing is wrong with it."""
        return self.waits_at >= 0 and not (self.deaths or self.errors)

    @property
    def finished(self) -> bool:
        """Whether every rank has said that it is done."""
        return len(self.done) == self.plan.processes

    def go(self) -> None:
        """Give the world its turn."""
        self.waits_at = -1
        self.answer(0, b"null")

    def overdue(self) -> bool:
        """Whether ranks have had LEAVE_SECONDS since the last was done, or their time without any
        progress since the first was."""
        return time.monotonic() > self._over

    def check(self, last: bool = False) -> None:
        """Raise what broke the world, once there has been time to hear of it, or nothing more is to
        come."""
        if not self.errors and not self.deaths:
            return
        now = time.monotonic()
        self._since = self._since or now
        if last or now - self._since > self._grace:
            raise self._blame()

    def _blame(self) -> CollbenchError:
        ends = self.deaths | dict.fromkeys(self.stopped, STOPPED)
        followed = all(end.signal in FOLLOWING for end in ends.values())
        why = any(not says_peer_is_gone(error.message) for error in self.errors.values())
        if not ends or (why and followed):
            return self.raised()
        rank = min(ends, key=lambda rank: self.precedence(rank, ends[rank]))
        hint = self.out_of_memory if ends[rank].signal == signal.SIGKILL else ""
        return self.broken(rank, ends[rank].description, hint)

    @abstractmethod
    def busy(self) -> bool:
        """Whether to go on listening: until every rank has ended, or has had LEAVE_SECONDS to do so
        after the last was done."""

    @abstractmethod
    def move(self, seconds: float) -> None:
        """Hear what ranks say within so many seconds, the first of it, and look after them."""

    @abstractmethod
    def fileno(self) -> int:
        """Readable where there is something to hear."""

    @abstractmethod
    def answer(self, rank: int, text: bytes) -> None:
        """Send a rank what it asked for."""

    @abstractmethod
    def precedence(self, rank: int, end: Death) -> tuple[bool, int]:
        """The order of blame: among several ranks that ended, the one with the least is named."""

    @abstractmethod
    def raised(self) -> CollbenchError:
        """The error that is to blame for the others."""

    @abstractmethod
    def broken(self, rank: int, what: str, hint: str) -> RunBroken:
        """An error that tells what happened to a rank, and at what."""
