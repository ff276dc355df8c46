"""What all cases of a world share on a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from collbench.core.errors import CannotRun
from collbench.core.groups import Groups
from collbench.records.types import Scheme
from collbench.run import backends
from collbench.run.backends import Backend, do_nothing
from collbench.run.launch.board import Board
from collbench.run.rank.calibration import Calibrator
from collbench.run.rank.calls import Planted
from collbench.run.rank.control import Control
from collbench.run.rank.global_clock import GlobalClock
from collbench.run.rank.gpu import Guard, Streak, Watch
from collbench.suite.faults import Fault, parse_faults
from collbench.suite.policy import Policy


class Bench(NamedTuple):
    """What all cases of a world share on this rank: a resolved policy, and a scheme of Sync's.
    ``ranks`` are those whose buffers are in this process: its own, none if it is in no group, or
    all virtual ones. ``common`` is the clock that ranks agree on, None where they read the same one
    anyway. ``watch`` is of this rank's GPU, if it has one, and ``streak`` its guards'; ``in_turns``
    and ``beside`` as in Plan; the ``calibrator`` is Protocol's. ``on_fault_query`` is called when a
    trial asks for its faults.
    """

    rank: int
    ranks: Sequence[int]
    backend: Backend
    control: Control
    board: Board
    policy: Policy
    scheme: Scheme
    common: GlobalClock | None
    watch: Watch | None = None
    in_turns: bool = False
    calibrator: Calibrator | None = None
    streak: Streak | None = None
    beside: bool = False
    on_fault_query: Callable[[], object] = do_nothing

    def meet(self) -> None:
        """Bring all ranks' devices to the same point, and wait for this one's."""
        self.backend.align()
        self.backend.finish()

    def make_guard(self) -> Guard | None:
        """What judges a case's samples by the state of this rank's GPU; None on CPUs."""
        return Guard(self.watch, streak=self.streak) if self.backend.stream else None

    def list_faults(self) -> list[Fault]:
        """The faults that are to be planted on this rank (--inject)."""
        self.on_fault_query()
        return [fault for fault in parse_faults(self.policy.inject) if fault.rank == self.rank]

    def planted(self) -> Planted | None:
        """What plants the faults of this rank in its calls; None where it has none."""
        faults = self.list_faults()
        if not faults:
            return None
        retract = partial(self.board.count_calls, self.rank, -1)
        return Planted(faults, self.policy.seed, self.backend.finish, retract)


class Sites:
    """What runs operations in the groups of steps: a backend for each family of groups and each
    lane, opened by all ranks at once, and kept until the world ends."""

    def __init__(self, backend: Backend, name: str, local_rank: int, control: Control) -> None:
        self._like, self._name = backend, name
        self._local_rank, self._control = local_rank, control
        self._open: dict[tuple[Groups, str], Backend] = {}

    def at(self, family: Groups, lane: str) -> Backend:
        """The backend that is opened for these groups; ranks in none of them have a group of their
        own."""
        inside = {rank for group in family for rank in group}
        groups = (*family, *((rank,) for rank in range(self._control.n) if rank not in inside))
        if (groups, lane) not in self._open:
            backend = backends.find_backend(self._name)
            backend.policy, backend.hosts = self._like.policy, self._like.hosts
            backend.control = self._control.divided(groups)
            try:
                with self._control.refusing_alike():
                    backend.open(backend.control.rank, backend.control.n, self._local_rank)
            except CannotRun:
                with suppress(Exception):  # of a backend that is open in part
                    backend.close()
                raise
            self._open[groups, lane] = backend
        return self._open[groups, lane]

    def close(self) -> None:
        """Close the backends of all groups."""
        for backend in self._open.values():
            backend.close()
