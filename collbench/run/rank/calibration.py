"""What the machine is like at a block of samples, by measurements beside them: before each block a
memory copy, some arithmetic and a ping-pong between neighbouring ranks, about 2 ms in all, and over
the block what hypervisor and other processes took from the ranks.

A block is *disturbed* where one of these is far from what is usual in its launch, and is then
measured again. No sample's value is ever looked at. Usual is the median of the launch's blocks, far
is beyond a fixed least and four standard deviations of those three in five that are nearest to it:
a machine that is as often of one mind as of another is itself either way.

Other processes are seen by how long a rank was ready to run but had no core. Its process's own
other threads may have had it, as long as they worked; that much is taken off, and what is usual in
the case itself: a library that is slow because of what it does disturbs nothing.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np

from collbench.machine.load import delayed_seconds
from collbench.records.types import Calibration
from collbench.run.launch.board import Board
from collbench.run.rank.control import Control

PIECES = 7  # of each kind, whose median counts
COPY_BYTES, NUMBERS = 1 << 20, 10_000
TRIPS = 40
FEWEST = 8  # blocks of a launch, from which on it is known what is usual
MOST = 200  # of them, the latest
ALIKE, SPREADS = 0.6, 4.0 / 0.84  # share of blocks; their distance from the median is 0.84 sd
CAUSES = ("steal", "other processes", "frequency", "memory", "caches")
"""In the order in which one is told where there are several: each explains those after it."""
SHARES = 2  # of a block, the first causes' signs: only more than usual disturbs
LEAST = np.array([0.05, 0.1, *[math.log(1.25)] * 3])
"""From usual, the least that may disturb: of the block's time, and of ln(ns)."""
UNKNOWN = -1.0
_PARTS = 1_000_000  # of a share, in messages


def read_signs(readings: np.ndarray, cramped: bool) -> np.ndarray:
    """The signs that each rank saw by cause, shape (ranks, causes): shares, then ln of ns; UNKNOWN
    where it does not know. ``readings`` are integers, a row a rank: steal, delay and the work of
    its other threads in millionths of the block, ns of arithmetic, copy and round trip; negative
    where not known. In a ``cramped`` world any rank's threads may have been on its core."""
    steal, delay, threads = readings[:, :3].T / _PARTS
    ours = np.maximum(0.0, threads.sum() if cramped else threads)
    others = np.where(delay < 0, UNKNOWN, np.maximum(0.0, delay - ours))
    times = np.where(readings[:, 3:] > 1, np.log(np.maximum(readings[:, 3:], 1)), UNKNOWN)
    return np.column_stack([np.where(steal < 0, UNKNOWN, steal), others, times])


def find_causes(launch: np.ndarray, case: np.ndarray) -> list[str]:
    """Why each block of the case is disturbed, "" where it is not, by the signs of its own blocks
    and the launch's, both of shape (blocks, ranks, causes)."""
    if len(launch) < FEWEST:
        return [""] * len(case)
    usual = np.median(launch, axis=0)
    limit = np.maximum(SPREADS * np.quantile(abs(launch - usual), ALIKE, axis=0), LEAST)
    case_median = np.median(case, axis=0)
    usual[:, :SHARES] = np.maximum(usual, case_median)[:, :SHARES]
    away = case - usual
    away[..., SHARES:] = abs(away[..., SHARES:])
    beyond = (away > limit) & (case >= 0) & (usual >= 0)
    return [
        next((c for c, is_over in zip(CAUSES, b, strict=True) if is_over), "")
        for b in beyond.any(1)
    ]


class Calibrator:
    """Looks at the machine for a rank in a world; all ranks look together. ``stolen`` are seconds
    that the hypervisor has given a CPU of this machine to others so far, or nan."""

    def __init__(
        self, control: Control, board: Board, stolen: Callable[[], float], cramped: bool
    ) -> None:
        self.control, self.cramped = control, cramped
        self._board, self._stolen = board, stolen
        self._from, self._to = np.ones((2, COPY_BYTES), np.uint8)
        self.launch: deque[np.ndarray] = deque(maxlen=MOST)  # at rank 0

    def before(self) -> None:
        """Look at this rank's speed and counters before a block."""
        arithmetic = _typical_time(lambda: sum(range(NUMBERS)))
        copy = _typical_time(lambda: np.copyto(self._to, self._from))
        self._times = [arithmetic, copy, self._round_trip()]
        self._counts = self._read_counters()

    def after(self) -> np.ndarray | None:
        """All ranks' signs of the block, at rank 0."""
        wall, *spent = self._read_counters() - self._counts
        shares = [-1 if math.isnan(share) else int(share / wall * _PARTS) for share in spent]
        return self.control.gather(np.array([*shares, *self._times]))

    def _read_counters(self) -> np.ndarray:
        """Seconds so far: by the clock, stolen by the hypervisor, waited for a CPU, spent by other
        threads of this process."""
        threads = time.process_time() - time.thread_time()
        return np.array([time.perf_counter(), self._stolen(), delayed_seconds(), threads])

    def _round_trip(self) -> int:
        """Median ns of a word's way to the next rank and back: by turns ranks of even numbers, then
        the others ask. -1 where there is none, or no shared memory, or it did not answer."""
        rank, n = self.control.rank, self.control.n
        if n == 1 or not self._board.shared:
            return -1
        took: list[int] = []
        for asks in (True, False) if rank % 2 == 0 else (False, True):
            if n > 2 or asks == (rank == 0):
                peer = (rank + 1 if asks else rank - 1) % n
                round_trip = self._board.pingpong(rank, peer, asks, PIECES, TRIPS)
                took = round_trip if asks else took
        return int(np.median(took)) if took else -1


class Blocks:
    """The blocks of a case, in ranks that may have a ``calibrator``: where there is none, all
    are kept. Of the ``planned`` ones at most half are replaced, but one in any case."""

    def __init__(self, calibrator: Calibrator | None, planned: int = 1) -> None:
        self._calibrator, self.planned = calibrator, planned
        self._signs: list[np.ndarray] = []
        self._times: list[np.ndarray] = []
        self._replaced: dict[int, str] = {}
        self._causes: list[str] = []

    def before(self) -> None:
        """Read the calibrator before all ranks take a block."""
        if self._calibrator:
            self._calibrator.before()

    def after(self) -> Sequence[int]:
        """Read the calibrator after all ranks have taken a block. Returns, at rank 0, the indices
        of blocks that are now to be replaced, else an empty list; an earlier block may be among
        them, as more of the launch is known."""
        readings = self._calibrator.after() if self._calibrator else None
        return [] if readings is None else self.judge(readings)

    def judge(self, readings: np.ndarray) -> Sequence[int]:
        """Judge the latest block by the ``readings`` of all ranks, and return the indices of blocks
        that are now to be replaced; an earlier block may be among them."""
        assert self._calibrator
        signs, launch = read_signs(readings, self._calibrator.cramped), self._calibrator.launch
        launch.append(signs)
        self._signs.append(signs)
        self._times.append(readings)
        causes = dict(enumerate(find_causes(np.stack(launch), np.stack(self._signs))))
        fresh = [block for block in causes if causes[block] and block not in self._replaced]
        now = fresh[: max(1, self.planned // 2) - len(self._replaced)]
        self._replaced |= {block: causes[block] for block in now}
        self._causes = [causes[block] for block in fresh[len(now) :]]
        return now

    @property
    def summary(self) -> Calibration | None:
        """The summary of all blocks for the record, at rank 0."""
        if not self._times:
            return None
        arithmetic, copy, trip = (
            max(
                (
                    int(np.median(readings[readings >= 0]))
                    for readings in kind
                    if readings.max() >= 0
                ),
                default=0,
            )
            for kind in np.stack(self._times)[..., 3:].T
        )
        return Calibration(
            blocks=len(self._times),
            replaced=dict(Counter(self._replaced.values())),
            left=dict(Counter(self._causes)),
            arithmetic_ns=arithmetic,
            copy_ns=copy,
            round_trip_ns=trip,
        )


def _typical_time(piece: Callable[[], object]) -> int:
    """Median ns of some runs of it."""
    times = [time.perf_counter_ns()]
    for _ in range(PIECES):
        piece()
        times.append(time.perf_counter_ns())
    return int(np.median(np.diff(times)))
