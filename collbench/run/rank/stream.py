"""A device's stream as measuring needs it: marks in time, a wait that work queues up behind,
capture as a graph; and the check that its marks wait for collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from collbench.core.errors import CannotRun
from collbench.run.rank.control import Control

HELD_NS = 20_000_000  # longer than any rank comes late for it

SPUN_CYCLES = (
    20_000_000  # about 10 ms: enough for an idle GPU to raise its clock before it is measured
)


class Stream(Protocol):
    """Where a device puts work in order, and its clock. All methods but ``drain`` return at
    once."""

    def mark(self) -> Any:
        """An event that is reached when all that was issued before it is done."""

    def mark_after(self, work: Any, lane: object) -> Any:
        """An event that is reached when ``work``, a call under way, is done and those before it of
        its lane are; this stream does not wait for it."""

    def use_lane(self, lane: object) -> AbstractContextManager[None]:
        """Have the calling thread issue its work to the lane's own stream, of which the methods
        then speak there."""

    def elapsed(self, start: Any, end: Any) -> int:
        """Nanoseconds from one mark to another; both must have been reached."""

    def reached(self, mark: Any) -> bool:
        """Whether the device has come to the mark."""

    def hold(self, ns: int) -> None:
        """Keep the stream busy for about so long: what is issued next starts only then."""

    def drain(self) -> None:
        """Wait until all that was issued is done."""

    def room(self) -> int:
        """Bytes of the device's memory that nobody has."""

    def capture(self, action: Callable[[], object]) -> Callable[[], object]:
        """Record what ``action`` issues, without running it; the result issues all of it as one
        graph, and keeps it."""


class Cuda:
    """The current stream of a CUDA device, which must be the current device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cycles_per_ns = 0.0
        self._lane_streams: dict[object, Any] = {}

    def mark(self) -> Any:
        """An event behind all that was issued."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def mark_after(self, work: Any, lane: object) -> Any:
        """An event behind ``work``, on the lane's own stream."""
        with torch.cuda.stream(self._find_lane_stream(lane)):
            work.wait()  # has the current stream wait, here the one beside
            return self.mark()

    @contextmanager
    def use_lane(self, lane: object) -> Iterator[None]:
        """Issue this thread's work to the lane's own stream."""
        torch.cuda.set_device(self._device)  # a new thread's is GPU 0, which would get a context
        with torch.cuda.stream(self._find_lane_stream(lane)):
            yield

    def _find_lane_stream(self, lane: object) -> Any:
        """The lane's own stream, which is kept: torch has 32 in all, NCCL's among them, and cuBLAS
        has memory for each that it has seen."""
        if lane not in self._lane_streams:
            self._lane_streams[lane] = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return self._lane_streams[lane]

    def elapsed(self, start: Any, end: Any) -> int:
        """Nanoseconds between two marks that were reached."""
        return round(float(start.elapsed_time(end)) * 1e6)

    def reached(self, mark: Any) -> bool:
        """Whether the device has come to a mark."""
        return bool(mark.query())

    def hold(self, ns: int) -> None:
        """Keep the stream busy for so many nanoseconds, by a kernel that waits."""
        if not self._cycles_per_ns:
            self._calibrate()
        torch.cuda._sleep(round(ns * self._cycles_per_ns))  # type: ignore[no-untyped-call]

    def _calibrate(self) -> None:
        """How fast the counter runs that a busy wait looks at, once the clock is up."""
        torch.cuda._sleep(SPUN_CYCLES)  # type: ignore[no-untyped-call]
        start = self.mark()
        torch.cuda._sleep(SPUN_CYCLES)  # type: ignore[no-untyped-call]
        end = self.mark()
        self.drain()
        self._cycles_per_ns = SPUN_CYCLES / max(1, self.elapsed(start, end))

    def drain(self) -> None:
        """Wait until all that was issued is done."""
        torch.cuda.current_stream(self._device).synchronize()

    def room(self) -> int:
        """Free bytes of the device's memory."""
        return int(torch.cuda.mem_get_info(self._device)[0])

    def capture(self, action: Callable[[], object]) -> Callable[[], object]:
        """Memory allocated meanwhile comes from a pool of the graph's own. Other threads go on as
        they like: NCCL's watchdog asks after its events at any time. A communicator cannot be left
        while such a graph is kept.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            action()
        return graph.replay


def assert_ordered(
    stream: Stream, align: Callable[[], object], control: Control, beat: Callable[[], object]
) -> None:
    """Raises CannotRun on all ranks if a mark behind the collective ``align`` is reached before the
    collective is done (as where the library runs it on a stream of its own that nothing joins), so
    that no time would mean anything.

    A rank is held back, for 20 ms unless its clock changes or others use its device: as long as its
    own marks say, the others' collective must take. Of two such turns every rank is among the
    others in one. With a single rank there is nobody to wait for, and nothing is shown.
    """
    if control.n == 1:
        return
    align()  # the first call connects ranks
    stream.drain()
    turns = []
    for delayed_rank in (0, 1):
        beat()
        turns.append(_hold_back(stream, align, control, delayed_rank))
    everyone = control.collect(turns)
    for delayed_rank in (0, 1):
        held_ns = everyone[delayed_rank][delayed_rank][1]
        if held_ns < HELD_NS // 10:
            raise CannotRun(
                f"rank {delayed_rank}'s device was held back for {held_ns / 1e3:.0f} us, where"
                f" {HELD_NS // 1_000_000} ms were asked for: whether marks wait for the collective"
                " is not known",
                "try again while nothing else uses the device",
            )
        for rank, (took, _) in enumerate(turn[delayed_rank] for turn in everyone):
            if took < held_ns // 2:
                raise CannotRun(
                    f"the end event does not wait for the collective: on rank {rank} it came after"
                    f" {took / 1e3:.0f} us, while rank {delayed_rank} was held back for"
                    f" {held_ns / 1e6:.0f} ms",
                    "report it with what collbench doctor says: no time taken here would be right",
                )


def _hold_back(
    stream: Stream, align: Callable[[], object], control: Control, delayed_rank: int
) -> tuple[int, int]:
    """The time in ns of the collective on this rank, which it began before ``delayed_rank`` was
    held back, and for how many ns this rank was."""
    start = stream.mark()
    stream.drain()  # a device that wakes up late has not reached it before
    control.barrier()
    before = stream.mark()
    if control.rank == delayed_rank:
        stream.hold(HELD_NS)
    after = stream.mark()
    align()
    end = stream.mark()
    stream.drain()
    return stream.elapsed(start, end), stream.elapsed(before, after)
