"""Two worlds alive at once that take turns on the same machines: while the ranks of one are at a
case's setup or at a block of samples, those of the other are asleep.

What disturbs them for longer than a block then meets both alike, so that their ratio scatters less
than that of two launches one after the other.
"""

from __future__ import annotations

import math
import selectors
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import msgspec
import numpy as np

from collbench.core.errors import CollbenchError, RunBroken
from collbench.records.types import Record, World
from collbench.run import memory
from collbench.run.jobs import Plan
from collbench.run.launch.local import TICK, FreshRanks
from collbench.run.launch.watch import RankWatch
from collbench.run.launch.world import Listener
from collbench.run.runner import runner_of


class Player(NamedTuple):
    """A side: by what name errors are told, and the world that it makes for its plan."""

    name: str
    launcher: FreshRanks
    plan: Plan
    listener: Listener

    @contextmanager
    def started(self) -> Iterator[RankWatch]:
        """The world, which waits for its turn wherever it can, until it has ended."""
        turns = msgspec.structs.replace(self.plan, in_turns=True)
        with ExitStack() as stack:
            with self.blamed():
                watch = stack.enter_context(self.launcher.started(turns, self.listener))
            yield watch
            with self.blamed():
                stack.close()

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Errors within are this side's; of a world that breaks its listener hears."""
        with blame_side(self.name):
            try:
                yield
            except RunBroken as e:
                self.listener.lost(self.plan, e)
                raise


Seat = tuple[Player, RankWatch]


def fits_at_once(plans: Iterable[Plan], rooms: memory.Rooms, shared: bool = False) -> bool:
    """Whether there is memory for the worlds of all these plans at once; ``shared``: for one that
    has the buffers of all."""
    needed, available, base = 0, math.inf, 0
    for current in plans:
        room = rooms(current.backend, current.n, current.policy)
        largest = max(
            runner_of(job.case).measure_memory(job, current.policy) for job in current.jobs
        )
        base = room.sharers * room.base + (0 if shared else base)
        needed += room.sharers * (largest - memory.RANK_BYTES)
        available = min(available, room.available)
    return base + needed < available


def play_in_turns(players: Sequence[Player], lots: np.random.Generator) -> None:
    """Run the plan of each, in the order given until each is at its first case, from then on a
    block each in an order drawn by lot. Who is at an earlier job goes on alone until both are at
    the same. Raises as World.run, with the name of the side before what is said."""
    with ExitStack() as stack:
        seats: list[Seat] = []
        for player in players:
            seats.append((player, stack.enter_context(player.started())))
            _until_they_wait(seats)
        while waiting := [watch for _, watch in seats if watch.waiting]:
            earliest = min(watch.waits_at for watch in waiting)
            first = [watch for watch in waiting if watch.waits_at == earliest]
            for index in lots.permutation(len(first)):
                first[index].go()
                _until_they_wait(seats)
        while any(watch.busy() for _, watch in seats):
            _hear_seats(seats)


def share_ranks(players: Sequence[Player]) -> None:
    """Run both plans, which differ in nothing but their cases, with the ranks of the first: each
    job beside the other's like of it, block by block. Both hear of the world, and of its loss."""
    ours, theirs = players
    cases = {sibling for job in theirs.plan.jobs for sibling in job.case.siblings}
    jobs = [
        msgspec.structs.replace(job, companion=companion)
        for job, companion in zip(ours.plan.jobs, theirs.plan.jobs, strict=True)
    ]

    def pass_on(line: World | Record) -> None:
        if isinstance(line, World) or line.case not in cases:
            ours.listener.line(line)
        if isinstance(line, World) or line.case in cases:
            theirs.listener.line(line)

    def lost(plan: Plan, error: RunBroken) -> None:
        for player in players:
            player.listener.lost(player.plan, error)

    with blame_side("both sides"):
        shared = msgspec.structs.replace(ours.plan, jobs=jobs)
        ours.launcher.run([shared], ours.listener._replace(line=pass_on, lost=lost))


@contextmanager
def blame_side(side: str) -> Iterator[None]:
    """Errors within are this side's."""
    try:
        yield
    except CollbenchError as e:
        e.message = f"{side}: {e.message}"
        raise


def _until_they_wait(seats: Sequence[Seat]) -> None:
    """Wait until each world waits for its turn to measure, or has measured everything."""
    while not all(w.waiting or w.finished or not w.busy() for _, w in seats):
        _hear_seats(seats)


def _hear_seats(seats: Sequence[Seat]) -> None:
    """Wait at most TICK for a message from any world that is measuring, and handle the messages
    that have come."""
    moving = [(player, watch) for player, watch in seats if watch.busy()]
    with selectors.DefaultSelector() as all_of_them:
        for _, watch in moving:
            all_of_them.register(watch, selectors.EVENT_READ)
        all_of_them.select(TICK)
    for player, watch in moving:
        with player.blamed():
            watch.move(0)
