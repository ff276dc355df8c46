"""The watch over a plan's ranks: who of them is stalled, dead or to blame. RankWatch judges for
all launchers; a subclass beside each says what can be seen there (local.LocalWatch,
places.SeatWatch, join.MemberWatch).

Progress: a rank moves when it enters a phase, issues a call or gives another sign of life, all of
which its line of the board counts. A rank is behind another by the phases and calls of a case that
all ranks have alike; those of several hosts tell the meeting of theirs.
On this machine a process that loads torch moves while it uses CPU time, for two minutes. A world
that waits for its turn rests. At places ranks watch each other, as joined ones; the process that
plans only counts their records, so as to say at which case they are.

Limits: ``Plan.timeout`` seconds (-T) without any progress of any rank are a hang, until all are
done; time in which all were suspended does not count (awake.py). A rank under a launcher that says
nothing for most of that is silent (meeting.SILENT_SHARE). Once all are done they have LEAVE_SECONDS
to end.

Who is accused: of ranks that ended, raised or are stopped, once ``grace`` seconds have passed in
which the one to blame may be heard of, first one whose process has ended or is stopped
(``precedence`` among several); then one that raised an error of its own; then those that only
noticed that another is gone (``choose_error``). Ends by FOLLOWING signals come behind errors that
say why. Of a hang: what the launcher sees to be wrong (``find_obstacle``: stopped, silent, never
made, out of memory), else the first rank that is behind the foremost, else nobody: all hang in the
same call.

What is said: "rank 3 on HOST (pid 4) WHAT while PHASE CASE", as RunBroken with the case's place in
the plan, which ends the command with exit code 4. Where all ranks foresaw that a plan cannot run,
CannotRun, with code 5.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from collbench.core.errors import (
    CannotRun,
    CollbenchError,
    Exit,
    RunBroken,
    UsageError,
    says_peer_is_gone,
)
from collbench.core.text import print_message
from collbench.run.jobs import Plan
from collbench.run.launch.awake import AwakeClock
from collbench.run.launch.board import IS_STOPPED, LEAVE_SECONDS
from collbench.run.launch.world import Failure, Listener, Said
from collbench.survive.signals import name_signal


class Death(NamedTuple):
    """How a rank ended, and by which signal, if any."""

    description: str
    signal: int = 0

    @classmethod
    def by(cls, code: int, exited: str) -> Death:
        """The end of a process with this exit code, negative for a signal."""
        if code < 0:
            return cls(f"was killed by {name_signal(-code)}", -code)
        return cls(f"{exited} {code}")


# A library aborts, and mpirun terminates ranks, where another has said why.
FOLLOWING = (signal.SIGABRT, signal.SIGTERM)

# what a joined rank says that has only noticed that another is gone (join.py)
LOST = re.compile(r" lost (?:rank |others, |another rank |the process in which )")

RECORD = '{"line":{'  # how a rank's message begins that is a world or a record

STOPPED = Death(IS_STOPPED)


def report_late(who: str, what: str = "did not end") -> None:
    """Say on the terminal who is killed because it did not end in time."""
    message = f"{what} within {LEAVE_SECONDS:g} s of the last case, and is killed"
    print_message(f"{who} {message}")


class Progress(Protocol):
    """How far ranks are: their Board, or what has come of their records (places.RecordCount)."""

    def beats(self) -> object:
        """Something that changes whenever a rank moves."""

    def find_behind(self) -> list[int]:
        """Ranks that are not as far as the foremost."""

    def job(self, rank: int) -> int | None:
        """The place in the plan of the case a rank is at work on, None where it is at none."""

    def label(self, rank: int) -> str:
        """The phrase for what a rank is doing."""


class RankWatch:
    """Follows the ranks of a plan by what is heard and seen of them, and raises RunBroken or
    CannotRun with who is to blame where their world breaks or stands still.

    ``hosts`` are those of all ranks' processes. ``grace`` seconds after the first trouble whoever
    is to blame has been heard of.
    """

    out_of_memory = "out of memory? see dmesg"
    limit_hint = ""  # of a hang
    unknown_pid = ""
    own_rank = 0  # whose case is named where all hang

    def __init__(
        self,
        plan: Plan,
        listener: Listener,
        hosts: Sequence[str],
        progress: Progress,
        grace: float = 0.0,
    ) -> None:
        self.plan, self.listener, self.hosts, self.progress = plan, listener, hosts, progress
        self.pids: dict[int, int] = {}
        self.errors: dict[int, Failure] = {}
        self.deaths: dict[int, Death] = {}
        self.stopped: set[int] = set()
        self.done: set[int] = set()
        self.ended: set[int] = set()
        self.waits_at = -1  # for its world's turn, at this job
        self.clock = AwakeClock()
        self._beats, self._moved = progress.beats(), self.clock.read()
        self._grace = grace
        self._since: float | None = None  # the first trouble
        self._over = math.inf

    def handle_line(self, rank: int, line: bytes | str) -> Said:
        """Take in a message of a rank, and pass on what the listener is to hear. Raises RunBroken
        for a record that breaks a rule of records."""
        try:
            message = msgspec.json.decode(line, type=Said)
        except msgspec.DecodeError as e:
            text = line if isinstance(line, str) else line.decode(errors="replace")
            if text.startswith(RECORD):
                hint = "this is a bug in collbench, please report it"
                raise self.accuse(rank, f"sent a line that cannot be kept ({e})", hint) from e
            # another module prints, before a rank keeps its output apart
            message = Said(says=text)
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
            self._over = min(self._over, self.clock.read() + limit)
        return message

    def note_end(self, rank: int, death: Death | None) -> None:
        """Note that a rank's process has ended, and how, unless that was to be expected."""
        self.ended.add(rank)
        if death and rank not in self.done and rank not in self.errors:
            self.deaths[rank] = death

    @property
    def waiting(self) -> bool:
        """Whether the world waits for its turn among worlds, and no rank has died or failed."""
        return self.waits_at >= 0 and not (self.deaths or self.errors)

    @property
    def finished(self) -> bool:
        """Whether every rank has said that it is done."""
        return len(self.done) == self.plan.processes

    def go(self) -> None:
        """Let the world go on: its turn begins."""
        self.waits_at = -1
        self.answer(0, b"null")

    def busy(self) -> bool:
        """Whether to go on listening: until every rank has ended, or has had LEAVE_SECONDS to do so
        after the last was done."""
        return len(self.ended) < len(self.hosts) and not self.overdue()

    def overdue(self) -> bool:
        """Whether ranks have had LEAVE_SECONDS since the last was done, or their time without any
        progress since the first was."""
        return self.clock.read() > self._over

    def check(self, last: bool = False) -> None:
        """Raise what broke the world, once there has been time to hear of it, or nothing more is to
        come."""
        if not self.errors and not self.deaths:
            return
        now = time.monotonic()
        self._since = self._since or now
        if last or now - self._since > self._grace:
            raise self.blame_trouble()

    def blame_trouble(self) -> CollbenchError:
        """The error of the rank that is to blame for the ends and errors of all."""
        ends = self.deaths | dict.fromkeys(self.stopped, STOPPED)
        followed = all(end.signal in FOLLOWING for end in ends.values())
        why = any(not says_peer_is_gone(error.message) for error in self.errors.values())
        if not ends or (why and followed):
            return self.choose_error()
        rank = min(ends, key=lambda rank: self.precedence(rank, ends[rank]))
        hint = self.out_of_memory if ends[rank].signal == signal.SIGKILL else ""
        return self.accuse(rank, ends[rank].description, hint)

    def precedence(self, rank: int, end: Death) -> tuple[bool, int]:
        """The order of blame: among several ranks that ended, the one with the least is named."""
        return end.signal == signal.SIGABRT, rank

    def choose_error(self) -> CannotRun | RunBroken | UsageError:
        """The error that is to blame for the others; here of ranks that name themselves. Where all
        have only noticed that another is gone, one that names it."""
        return min(
            self.errors.values(),
            key=lambda error: (
                error.exit == Exit.TIMEOUT,
                LOST.search(error.message) is not None,
                " lost rank " not in error.message,
            ),
        ).as_error(self.progress.job(0))

    def check_progress(self) -> None:
        """Raise who is to blame where no rank has moved for longer than the plan allows."""
        if self.waiting:
            self.rest()
        if not self.finished and (seconds := self._measure_standstill()) and not self.has_rested():
            raise self.blame_standstill(seconds)

    def _measure_standstill(self) -> float:
        """Seconds since any rank has moved, once they are more than the plan allows; before, 0."""
        latest, now = self.beats(), self.clock.read()
        if latest != self._beats:
            self._beats, self._moved = latest, now
        seconds = now - self._moved
        return seconds if seconds > self.plan.timeout else 0.0

    def beats(self) -> object:
        """Something that changes whenever a rank moves."""
        return self.progress.beats()

    def rest(self, until: float = 0.0) -> None:
        """Note that nobody was to move, until so many seconds ago."""
        self._moved = self.clock.read() - until

    def has_rested(self) -> bool:
        """Whether ranks that stand still were to do so."""
        return False

    def blame_standstill(self, seconds: float) -> RunBroken:
        """An error that names the culprit of a hang of so many seconds, or says that all hang."""
        if error := self.find_obstacle(seconds):
            return error
        if behind := self.find_behind():
            return self.accuse(behind[0], f"has not moved for {seconds:.0f} s", self.limit_hint)
        everybody = f"all {self.plan.n} ranks hang in the same call for {seconds:.0f} s"
        return self.make_error(everybody, self.own_rank, self.limit_hint)

    def find_obstacle(self, seconds: float) -> RunBroken | None:
        """The error that names what keeps ranks from moving; None where the launcher sees
        nothing."""
        return None

    def find_behind(self) -> list[int]:
        """Ranks that are seen to be not as far as the foremost."""
        return self.progress.find_behind()

    def make_error(self, what: str, rank: int, hint: str = "") -> RunBroken:
        """An error that tells ``what`` happened while ``rank`` was doing what it does now."""
        job = self.progress.job(rank)
        return RunBroken(
            f"{what} while {self.plan.doing(self.progress.label(rank), job)}", hint, job
        )

    def accuse(self, rank: int, what: str, hint: str = "") -> RunBroken:
        """An error that tells what happened to a rank, and at what."""
        return self.make_error(f"{self.name_rank(rank)} {what}", rank, hint)

    def name_rank(self, rank: int) -> str:
        """The rank's name in sentences, with its host, and its process's id where that is known."""
        pid = self.pids.get(rank, self.unknown_pid)
        return f"rank {rank} on {self.hosts[rank]}" + (f" (pid {pid})" if pid else "")

    def report_late_ranks(self) -> bool:
        """Say on the terminal which ranks did not end in time; whether there are any."""
        late = [rank for rank in range(len(self.hosts)) if rank not in self.ended]
        if late:
            report_late(", ".join(map(self.name_rank, late)))
        return bool(late)

    def move(self, seconds: float) -> None:
        """Hear what ranks say within so many seconds, the first of it, and look after them."""
        raise NotImplementedError

    def fileno(self) -> int:
        """A descriptor that is readable where there is something to hear."""
        raise NotImplementedError

    def answer(self, rank: int, text: bytes) -> None:
        """Send a rank what it asked for."""
        raise NotImplementedError
