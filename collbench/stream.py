"""A device's stream as measuring needs it: marks in time, a wait that work queues up behind, capture as a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from collbench.errors import CannotRun

if TYPE_CHECKING:
    from collbench.control import Control

HELD_NS = 20_000_000  # longer than any rank comes late for it
SPUN_CYCLES = 20_000_000  # about 10 ms: enough for an idle GPU to raise its clock before it is measured


class Stream(Protocol):
    """Where a device puts work in order, and its clock. All methods but ``drain`` return at once."""

    def mark(self) -> Any:
        """An event that is reached when all that was issued before it is done."""

    def elapsed(self, start: Any, end: Any) -> int:
        """Nanoseconds from one mark to another; both must have been reached."""

    def reached(self, mark: Any) -> bool:
        """Whether the device has come to the mark."""

    def hold(self, ns: int) -> None:
        """Keep the stream busy for about so long: what is issued next starts only then."""

    def drain(self) -> None:
        """Wait until all that was issued is done."""

    def capture(self, action: Callable[[], object]) -> Callable[[], object]:
        """Record what ``action`` issues, without running it; the result issues all of it as one graph, and keeps it."""


class Cuda:
    """The current stream of a CUDA device, which must be the current device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cycles_per_ns = 0.0

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def elapsed(self, start: Any, end: Any) -> int:
        return round(float(start.elapsed_time(end)) * 1e6)

    def reached(self, mark: Any) -> bool:
        return bool(mark.query())

    def hold(self, ns: int) -> None:
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
        torch.cuda.current_stream(self._device).synchronize()

    def capture(self, action: Callable[[], object]) -> Callable[[], object]:
        """Memory allocated meanwhile comes from a pool of the graph's own. Other threads go on as they like: NCCL's
        watchdog asks after its events at any time. A communicator cannot be left while such a graph is kept."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            action()
        return graph.replay


def assert_ordered(stream: Stream, align: Callable[[], object], control: Control, beat: Callable[[], object]) -> None:
    """Raises CannotRun on all ranks if a mark behind the collective ``align`` is reached before the collective is done
    (as where the library runs it on a stream of its own that nothing joins), so that no time would mean anything.

    A rank is held back for 20 ms: that long the others' collective must take. Of two such turns every rank is among
    the others in one. With a single rank there is nobody to wait for, and nothing is shown.
    """
    if control.n == 1:
        return
    align()  # the first call connects ranks
    stream.drain()
    early = None
    for held in (0, 1):
        beat()
        start = stream.mark()
        control.barrier()
        if control.rank == held:
            stream.hold(HELD_NS)
        align()
        end = stream.mark()
        stream.drain()
        took = stream.elapsed(start, end)
        if took < HELD_NS // 2:
            early = [control.rank, held, took]
    for rank, held, took in filter(None, control.collect(early)):
        raise CannotRun(
            f"the end event does not wait for the collective: on rank {rank} it came after {took / 1e3:.0f} us, "
            f"while rank {held} was held back for {HELD_NS // 1_000_000} ms",
            "no time taken here would be right; report it with what collbench doctor says",
        )
