"""What goes on behind a case on a GPU: a unit of computation is one launch, and a thread works on
the rank's own GPU, always on the same stream. The device, its streams and graphs are made up."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from factories import case

from collbench.core.errors import CannotRun
from collbench.run.backends import do_nothing
from collbench.run.rank import computation
from collbench.run.rank.background import UNIT_NS, Behind, Task, make_background
from collbench.run.rank.computation import Computation, Work
from collbench.run.rank.control import Control
from collbench.run.rank.stream import Cuda

GPU = torch.device("cuda", 3)


class FakeStream:
    """A stream that notes launches, each of which takes 50 us."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.now = 0

    def issue(self, *_: object) -> None:
        self.log.append("launch")
        self.now += 50_000

    def capture(self, action: Callable[[], object]) -> Callable[[], object]:
        direct, self.log = self.log, []
        before = self.now
        action()
        takes, self.now, self.log = self.now - before, before, [*direct, "capture"]

        def replay() -> None:
            self.log.append("replay")
            self.now += takes

        return replay

    def drain(self) -> None:
        self.log.append("drain")

    @contextmanager
    def use_lane(self, lane: object) -> Iterator[None]:
        self.log.append(f"lane {lane}")
        yield


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    """A stream on which products and copies are launched, with the clock that computation reads."""
    made = FakeStream()
    monkeypatch.setattr(Computation, "_product", made.issue)
    monkeypatch.setattr(Computation, "_copy", made.issue)
    monkeypatch.setattr(computation, "clock", lambda: made.now)
    return made


def make_bench(stream: FakeStream) -> Any:
    backend = SimpleNamespace(device=torch.device("meta"), stream=stream, finish=stream.drain)
    board = SimpleNamespace(beat=lambda rank: None)
    return SimpleNamespace(rank=0, backend=backend, control=Control(0, 1), board=board)


@pytest.mark.parametrize("kind", ["gemm", "copy"])
def test_a_unit_of_computation_is_one_launch(kind: str, stream: FakeStream) -> None:
    behind = make_background(make_bench(stream), case(8, background=kind), None)  # type: ignore[arg-type]
    assert behind
    assert stream.log[-3:] == ["launch", "drain", "capture"]  # libraries are loaded before it
    stream.log.clear()
    began = stream.now
    behind._task.once()
    assert stream.log == ["replay"] and stream.now - began == UNIT_NS


@pytest.mark.parametrize("kind", ["gemm", "copy", "all_reduce", "all_to_all:4M"])
def test_a_device_without_a_stream_does_nothing_in_the_background(
    kind: str, stream: FakeStream
) -> None:
    """As Intel's GPUs: the case's calls would be timed until the background is done, too."""
    bench = make_bench(stream)
    bench.backend.stream = None
    with pytest.raises(CannotRun, match="would share a stream"):
        make_background(bench, case(8, background=kind), None)  # type: ignore[arg-type]
    assert make_background(bench, case(8, background="sleep"), None)  # type: ignore[arg-type]


def test_a_unit_of_sleep_is_no_graph(stream: FakeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computation.time, "sleep", lambda seconds: None)
    behind = make_background(make_bench(stream), case(8, background="sleep"), None)  # type: ignore[arg-type]
    assert behind
    behind._task.once()
    assert stream.log == []


def test_units_are_timed_as_they_are_launched(stream: FakeStream) -> None:
    Computation("gemm", torch.device("meta"), do_nothing, list, stream.drain, stream)  # type: ignore[arg-type]
    assert stream.log.count("launch") == 1 and stream.log.count("replay") >= computation.TRIED


def test_a_graph_keeps_the_memory_that_it_works_on(stream: FakeStream) -> None:
    made = Computation("gemm", torch.device("meta"), do_nothing, list, stream.drain, stream)  # type: ignore[arg-type]
    once, matrix = made.action(Work(1_000_000)), weakref.ref(made._lhs)
    del made
    gc.collect()
    assert once and matrix() is not None


def test_each_block_goes_on_the_same_stream_and_waits_for_it(stream: FakeStream) -> None:
    """Where the thread would wait for the rank's own stream, its times would be those of calls."""
    task = Task(lambda: stream.log.append("once"), bool, 1, str)
    behind = Behind(task, make_bench(stream).backend, do_nothing)
    for _ in range(2):
        behind._go()
        behind._rest()
    assert stream.log[:3] == ["lane background", "once", "drain"]
    assert {word for word in stream.log if word.startswith("lane")} == {"lane background"}
    assert stream.log.count("lane background") == 2


def test_a_thread_works_on_its_ranks_gpu_and_keeps_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new thread's current GPU is 0, where a stream would make a context of 500 MiB."""
    log: list[object] = []

    @contextmanager
    def choose(stream: object) -> Iterator[None]:
        log.append(stream)
        yield

    streams = iter(("first", "second"))
    monkeypatch.setattr(torch.cuda, "set_device", log.append)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: (log.append("made"), next(streams))[1])
    monkeypatch.setattr(torch.cuda, "stream", choose)
    cuda = Cuda(GPU)
    for _ in range(2):
        with cuda.use_lane("background"):
            log.append("work")
    assert log == [GPU, "made", "first", "work", GPU, "first", "work"]


def test_without_a_stream_nothing_is_asked_of_a_device() -> None:
    done: list[int] = []
    backend: Any = SimpleNamespace(stream=None)
    behind = Behind(Task(lambda: done.append(1), bool, 1, str), backend, do_nothing)
    behind._go()
    behind._rest()
    assert done
