"""A page of memory that all ranks of a host share: how far each has come, and the next common start
time.

Ranks write their own line only and never wait for a reader, so a watcher (the launching process, or
a thread) sees who stands still. The start time is one aligned 64-bit word: a reader sees either the
old or the new deadline.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise, repeat
from pathlib import Path
from typing import Literal

import psutil

LOOKS = 50_000  # at a word that another rank is to write: some ms
LEAVE_SECONDS = 5.0  # from the last phase to the end of a process

# as LEAVE_SECONDS, for ranks that a launcher started; longer, so that rank 0 ends a late rank first
ALONE_SECONDS = 7.0

IS_STOPPED = "is stopped (SIGSTOP)"  # as messages have it of a process

_WORDS = 8  # one 64-byte cache line a rank, so that spinning on one line does not slow another

_DOING: dict[str, Literal["running", "stopped", "ended"]] = {
    psutil.STATUS_STOPPED: "stopped",
    psutil.STATUS_TRACING_STOP: "stopped",
    psutil.STATUS_ZOMBIE: "ended",
    psutil.STATUS_DEAD: "ended",
}


def process_state(pid: int) -> Literal["running", "stopped", "ended"]:
    """The state of a process; one that a debugger holds is stopped, too."""
    try:
        return _DOING.get(psutil.Process(pid).status(), "running")
    except psutil.Error:  # it has just ended
        return "ended"


class Phase(IntEnum):
    """What a rank is doing, in the order of a case's life."""

    STARTING = 0
    CONNECTING = 1
    PREPARING = 2
    CHECKING = 3
    WARMING = 4
    MEASURING = 5
    REPORTING = 6
    DONE = 7

    @property
    def label(self) -> str:
        """The phase as sentences have it."""
        return _WORDING[self]


_WORDING = {
    Phase.STARTING: "starting up",
    Phase.CONNECTING: "connecting to the other ranks",
    Phase.PREPARING: "preparing buffers",
    Phase.CHECKING: "checking data",
    Phase.WARMING: "warming up",
    Phase.MEASURING: "measuring",
    Phase.REPORTING: "reporting",
    Phase.DONE: "leaving",
}

# how many times a rank has begun to connect, whether it has begun a case, which, how many of its
# calls
Place = tuple[int, int, int, int]


def select_behind(places: Sequence[Place]) -> list[int]:
    """The ranks, of all ranks' places, that are not as far as the foremost."""
    foremost = max(places)
    return [rank for rank, place in enumerate(places) if place < foremost]


class Board:
    """``n`` lines of (phase, case, beats, arrivals, cells to ask the next rank with and to answer
    the one before, calls, times it has begun to connect) after one line with the common deadline.

    Beats are signs of life, of which every rank has its own number. Phases and calls of a case are
    the same on all ranks: by these one rank is farther than another.
    """

    def __init__(self, n: int, fd: int, shared: bool = True) -> None:
        self.n = n
        self.shared = shared  # with all ranks of the world
        self._map = mmap.mmap(fd, self.size(n))
        self.cells = memoryview(self._map).cast("q")

    @staticmethod
    def size(n: int) -> int:
        """Bytes of a board for n ranks."""
        return (n + 1) * _WORDS * 8

    @classmethod
    def create(cls, n: int, shared: bool = True) -> tuple[Board, int]:
        """A board in anonymous memory, and its file descriptor to hand to other processes."""
        fd = os.memfd_create("collbench-board")
        os.ftruncate(fd, cls.size(n))
        return cls(n, fd, shared), fd

    @classmethod
    def at(cls, path: Path, n: int) -> Board:
        """A board in a file that another process made with ``os.ftruncate(fd, Board.size(n))``."""
        fd = os.open(path, os.O_RDWR)
        try:
            return cls(n, fd)
        finally:
            os.close(fd)

    def enter(self, rank: int, phase: Phase, case: int | None = None) -> None:
        """Rank begins a phase (of case number ``case``)."""
        line = (rank + 1) * _WORDS
        self.cells[line] = phase
        self.cells[line + 7] += phase is Phase.CONNECTING
        if case is not None:
            self.cells[line + 1] = case
            self.cells[line + 6] = 0
        self.count_calls(rank)

    def beat(self, rank: int) -> None:
        """Rank is alive."""
        self.cells[(rank + 1) * _WORDS + 2] += 1

    def count_calls(self, rank: int, calls: int = 1) -> None:
        """Rank is about to issue its next calls, so many, which all ranks issue; or, below 0, is
        not."""
        self.cells[(rank + 1) * _WORDS + 6] += calls
        self.beat(rank)

    def where(self, rank: int) -> tuple[Phase, int, int]:
        """Phase, case number and beats of a rank."""
        line = (rank + 1) * _WORDS
        return Phase(self.cells[line]), self.cells[line + 1], self.cells[line + 2]

    def job(self, rank: int) -> int | None:
        """The case a rank is at work on, or None before the first and after the last."""
        phase, case, _ = self.where(rank)
        return case if Phase.CONNECTING < phase < Phase.DONE else None

    def label(self, rank: int) -> str:
        """The phrase for what a rank is doing."""
        return self.where(rank)[0].label

    def beats(self) -> list[int]:
        """The number of signs of life of each rank."""
        return [self.cells[(rank + 1) * _WORDS + 2] for rank in range(self.n)]

    def place(self, rank: int) -> Place:
        """How far a rank is."""
        phase, case, _ = self.where(rank)
        calls, begun = self.cells[(rank + 1) * _WORDS + 6 : (rank + 2) * _WORDS]
        return begun, min(phase, Phase.PREPARING), case, calls

    def find_behind(self) -> list[int]:
        """Ranks that are not as far as the foremost."""
        return select_behind([self.place(rank) for rank in range(self.n)])

    def meet(self, rank: int, ahead_ns: int) -> bool:
        """Agree with all ranks on a start time and spin until it; whether this rank was late.

        Every rank counts the rounds it came to on its own line. When all have come to this one,
        rank 0 sets the deadline ``ahead_ns`` from now. Late is who saw the deadline only when it
        had passed.
        """
        cells, clock = self.cells, time.perf_counter_ns
        own_word = (rank + 1) * _WORDS + 3
        round_ = cells[own_word] + 1
        if rank == 0:
            cells[own_word] = round_
            for line in range(2 * _WORDS + 3, (self.n + 1) * _WORDS, _WORDS):
                while cells[line] < round_:
                    pass
            deadline = cells[0] = clock() + ahead_ns
        else:
            previous = cells[0]
            cells[own_word] = round_
            while (deadline := cells[0]) == previous:
                pass
        late = clock() >= deadline
        while clock() < deadline:
            pass
        return late

    def pingpong(self, rank: int, peer: int, asks: bool, pieces: int, trips: int) -> list[int]:
        """Nanoseconds that a word takes to ``peer`` and back, in each piece of so many ``trips``,
        by this rank's clock; ``peer`` answers, or ``asks``, at the same time. Fewer pieces where
        one of them does not look for some milliseconds.

        Each trip has a number that is never used again. Who gives up writes the last one of all, so
        that the other does not wait.
        """
        cells, clock = self.cells, time.perf_counter_ns
        own_word = (rank + 1) * _WORDS + (4 if asks else 5)
        theirs = (peer + 1) * _WORDS + (5 if asks else 4)
        first, marks = cells[own_word] + 1, []
        end = first + pieces * trips
        for trip in range(first, end + 1):
            if asks:
                cells[own_word] = trip
            for _ in repeat(None, LOOKS):
                if (current := cells[theirs]) >= trip:
                    break
            if current != trip:
                cells[own_word] = end
                break
            cells[own_word] = trip
            if (trip - first) % trips == 0:  # not the first, which waits for the other to come
                marks.append(clock())
        return [(after - before) // trips for before, after in pairwise(marks)]
