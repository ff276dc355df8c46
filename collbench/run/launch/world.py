"""One way to run plans, wherever their ranks are: on this machine (local.py), under its mpirun
(mpirun.py), with the ranks of a launcher (join.py), at places that a launcher or Ray holds
(places.py), or predicted without any (backends/model.py).

What they share is here too: what ranks say to whoever watches them (watch.py).
"""

from __future__ import annotations

import traceback
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from collbench.core.errors import CannotRun, CollbenchError, Exit, RunBroken, UsageError
from collbench.machine import environment
from collbench.machine.load import Load, measure_load
from collbench.records import types
from collbench.run import memory
from collbench.run.jobs import Job, Plan
from collbench.run.launch.board import Phase
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.survive.crash import MEMORY_HINT, describe_error, is_out_of_memory
from collbench.survive.encoding import encode_json

LINE_LIMIT = 256 << 20

Env = tuple[tuple[str, str], ...]

Hear = Callable[[types.World | types.Record], None]


def end_run(plan: Plan, error: CollbenchError) -> None:
    """Raise the error of a world that did not open."""
    raise error


class Listener(NamedTuple):
    """Who hears what comes of plans while they run.

    ``line`` gets a world, then its records; ``interim`` records of what is still measured, each of
    which replaces the one before; ``tick``, often, the case that ranks are at and what
    they do with it; ``next_jobs`` says what an open plan goes on with; ``turn`` waits for that of a
    world of joined ranks; ``lost`` hears of a plan that broke before the error is raised.
    ``unopened`` hears of a plan whose world did not open: CannotRun where it cannot, RunBroken
    where a rank broke; the plans after it run, unless it raises. Of joined ranks that stand still
    ``hung`` hears, in another thread, just before the process ends; of the host of each ``met``
    hears, before any plan runs.
    """

    line: Hear
    tick: Callable[[Case, Phase], None] = lambda case, phase: None
    next_jobs: Callable[[], list[Job]] = list
    lost: Callable[[Plan, RunBroken], None] = lambda plan, error: None
    hung: Callable[[RunBroken], None] = lambda error: None
    turn: Callable[[int], object] = lambda job: None
    interim: Callable[[types.Record], None] = lambda record: None
    unopened: Callable[[Plan, CollbenchError], None] = end_run
    met: Callable[[list[str]], None] = lambda hosts: None

    def accept(self, line: types.World | types.Record) -> None:
        """Tell who is to hear of it."""
        if isinstance(line, types.Record) and line.stop == "cut":
            return self.interim(line)
        self.line(line)


class World(Protocol):
    """Where plans run. What a kind of world does not say otherwise is true of this machine."""

    launcher: str = "local"  # of the ranks, as the lines of their worlds have it

    def list_hosts(self, n: int) -> list[str]:
        """The host of each of n ranks; empty where it is not known before they have met."""
        return [environment.host_name()] * n

    def count_sharers(self, n: int) -> int:
        """How many of n ranks are on the host that has most of them; n where hosts are not
        known."""
        return max(Counter(self.list_hosts(n)).values(), default=n)

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
        """The failure that tells of ``error``, which is being handled: with its traceback unless it
        is one of collbench's own errors or out of memory."""
        if isinstance(error, CollbenchError):
            return cls(error.message, error.hint, error.exit)
        message = describe_error(error)
        if is_out_of_memory(error):
            return cls(message, MEMORY_HINT, own=True)
        return cls(message, traceback=traceback.format_exc(), own=True)

    @property
    def clause(self) -> str:
        """The clause that follows the rank's name in a sentence, as "failed: ..."."""
        return self.message if self.own else f"failed: {self.message}"

    def as_error(self, job: int | None = None) -> CannotRun | RunBroken | UsageError:
        """The exception to raise where this failure ends a run; ``job`` is the index of the job in
        its plan, None where no job had begun: then the world is one that cannot run."""
        if self.exit == Exit.TIMEOUT:
            return RunBroken(self.message, self.hint, job)
        if self.exit == Exit.USAGE and job is not None:
            return UsageError(self.message, self.hint)
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
        self.sink.write(encode_json(message) + b"\n")
        self.sink.flush()

    def line(self, line: types.World | types.Record) -> None:
        """Send a world or a record."""
        self.send(Said(line=line))

    def next_jobs(self) -> list[Job]:
        """Ask for the next jobs of an open plan, and wait for them."""
        self.send(Said(further=True))
        return msgspec.json.decode(self.source.readline(), type=list[Job])

    def turn(self, job: int) -> None:
        """Say that this world has come to a job, and wait until the launcher lets it go on: of
        worlds that take turns, only one measures at a time."""
        self.send(Said(turn=job))
        self.source.readline()
