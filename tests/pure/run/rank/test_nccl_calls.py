"""NCCL through torch.distributed, on a CUDA that only takes notes: what is issued, in which order,
on which stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from collbench.run.backends import _torchdist, do_nothing
from collbench.run.rank.control import Control
from collbench.run.rank.device_clock import DeviceSampler, GraphSampler
from collbench.run.rank.measure import Sync
from collbench.run.rank.stream import SPUN_CYCLES, Cuda
from collbench.suite.case import Case

Log = list[str]
ALONE = Control(0, 1)


class FakeEvent:
    """Reached as soon as a stream is waited for; half a millisecond passes from each event to the
    next."""

    made = 0

    def __init__(self, log: Log, enable_timing: bool) -> None:
        assert enable_timing
        self._log, self.at = log, len([line for line in log if line == "record"])

    def record(self, stream: FakeQueue) -> None:
        self._log.append("record")

    def query(self) -> bool:
        return False

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at - self.at) / 2


class FakeQueue:
    def __init__(self, log: Log) -> None:
        self._log = log

    def synchronize(self) -> None:
        self._log.append("synchronize")


class FakeGraph:
    def __init__(self, log: Log) -> None:
        self._log = log

    def replay(self) -> None:
        self._log.append("replay")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """What is asked of the fake CUDA and of the process group, in order."""
    notes: Log = []

    @contextmanager
    def capturing(graph: FakeGraph, capture_error_mode: str) -> Iterator[None]:
        notes.append(f"capture {capture_error_mode}")
        yield
        notes.append("captured")

    for name, fake in {
        "Event": lambda enable_timing=False: FakeEvent(notes, enable_timing),
        "current_stream": lambda device: FakeQueue(notes),
        "set_device": lambda device: None,
        "_sleep": lambda cycles: notes.append(f"sleep {cycles}"),
        "CUDAGraph": lambda: FakeGraph(notes),
        "graph": capturing,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for name in ("all_reduce", "broadcast", "barrier"):
        monkeypatch.setattr(dist, name, issuing(name, notes))
    return notes


def issuing(name: str, log: Log) -> Any:
    def issue(*args: Any, async_op: bool = False, **named: Any) -> Any:
        sizes = [arg.nbytes for arg in args if isinstance(arg, torch.Tensor)]
        log.append(" ".join(map(str, [name, *sizes, *["async"] * async_op])))
        return SimpleNamespace(wait=lambda: log.append("join")) if async_op else None

    return issue


@pytest.fixture
def nccl(log: Log) -> _torchdist.TorchDistributed:
    """The backend as open() leaves it on a rank with a GPU, but for its buffers, which lie in this
    machine's memory."""
    backend = _torchdist.TorchDistributed("nccl")
    backend._at = _torchdist._Site(0, 1, None)
    backend.stream, backend._token = Cuda(torch.device("cuda", 0)), torch.zeros(1)
    backend._world = ALONE
    backend.align()
    log.clear()
    return backend


def case(collective: str = "all_reduce", mode: str = "isolated", **further: Any) -> Case:
    op, root = {"all_reduce": ("sum", -1), "broadcast": ("none", 0), "barrier": ("none", -1)}[
        collective
    ]
    return Case(
        collective=collective,
        n=1,
        nbytes=64,
        op=op,
        root=root,
        mode=mode,
        **{"backend": "nccl"} | further,  # type: ignore[arg-type]
    )


def prepared(nccl: _torchdist.TorchDistributed, log: Log, wanted: Case) -> Any:
    """Its call, with the copy before it noted too."""
    recv = torch.zeros(16).as_subclass(Noting)
    recv.log = log
    return nccl.prepare(wanted, torch.ones(16), recv)


class Noting(torch.Tensor):
    """A buffer of 64 bytes that notes what is copied into it."""

    log: Log

    def copy_(self, *args: Any, **named: Any) -> Any:
        self.log.append("copy")
        return self


def test_a_wait_is_as_long_as_the_counter_says_once_the_clock_is_up(log: Log) -> None:
    stream = Cuda(torch.device("cuda", 0))
    stream.hold(1_000_000)
    stream.hold(2_000_000)
    spin = f"sleep {SPUN_CYCLES}"
    calibrated = [spin, "record", spin, "record", "synchronize"]
    assert log == [
        *calibrated,
        f"sleep {2 * SPUN_CYCLES}",
        f"sleep {4 * SPUN_CYCLES}",
    ]  # half a millisecond each


def test_samples_of_nccl_are_one_stream_from_wait_to_event(nccl, log: Log) -> None:
    call = prepared(nccl, log, case())
    assert nccl.stream is not None
    nccl.stream.hold(1)
    log.clear()
    sampler = DeviceSampler(nccl.stream, [(call.run, (0,))], 2, ALONE, do_nothing)
    samples = sampler.take(3, Sync("device", ALONE, None, nccl.align))
    one = ["all_reduce 4", "record", *["copy", "all_reduce 64"] * 2, "record"]
    assert log[0].startswith("sleep ") and log[1:] == [*one * 3, "synchronize"]
    assert samples is not None and samples.durations.tolist() == [[500_000] * 3]


def test_a_graph_of_nccl_calls_holds_the_copies_and_is_made_once(nccl, log: Log) -> None:
    calls = [(prepared(nccl, log, case(mode="graph")).run, (slot,)) for slot in range(2)]
    assert nccl.stream is not None
    nccl.stream.hold(1)
    log.clear()
    sampler = GraphSampler(nccl.stream, calls, 4, ALONE, do_nothing, replays=2)
    made = [
        "capture thread_local",
        *["copy", "all_reduce 64"] * 2,
        "captured",
        "replay",
        "synchronize",
    ]
    assert log == made and sampler.inner == 4
    sampler.take(2, Sync("device", ALONE, None, nccl.align))
    one = ["all_reduce 4", "record", "replay", "replay", "record"]
    assert log[len(made) + 1 :] == [*one * 2, "synchronize"]


@pytest.mark.parametrize("others", ["", "no algorithm/protocol available"])
def test_ranks_agree_on_what_aligns_them(
    others: str, nccl, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL_ALGO may differ by host: then no rank sends messages that others wait for in a sum."""
    reason = "no algorithm/protocol available for function AllReduce"

    def refuse(*_: object, **__: object) -> None:
        raise dist.DistBackendError(reason)

    monkeypatch.setattr(dist, "all_reduce", refuse)
    monkeypatch.setattr(dist, "all_to_all_single", issuing("messages", log))
    monkeypatch.setattr(nccl, "_alignment", None)
    world = Control(0, 2)
    monkeypatch.setattr(world, "collect", lambda refusal: [refusal, others])
    monkeypatch.setattr(nccl, "_world", world)
    if others:
        nccl.align()
        assert log == ["messages 8 8"]
    else:
        with pytest.raises(RuntimeError, match=f"rank 0: {reason}; set NCCL_ALGO alike"):
            nccl.align()


def test_only_the_root_of_a_broadcast_copies_first(nccl, log: Log) -> None:
    prepared(nccl, log, case("broadcast")).run()
    nccl._at = _torchdist._Site(1, 2, None)
    prepared(nccl, log, case("broadcast")).run()
    prepared(nccl, log, case(in_place=True)).run()
    assert log == ["copy", "broadcast 64", "broadcast 64", "all_reduce 64"]


def test_calls_that_are_left_to_themselves_are_joined_by_their_handles(nccl, log: Log) -> None:
    prepared(nccl, log, case(in_place=True)).submit().wait()
    assert log == ["all_reduce 64 async", "join"]


def test_barriers_wait_on_the_host_and_are_in_no_graph(nccl, log: Log) -> None:
    assert prepared(nccl, log, case("barrier")).waits
    assert not prepared(nccl, log, case()).waits
    assert "barrier waits" in nccl.refuse(case("barrier", "graph"))
    assert nccl.refuse(case(mode="graph")) == ""
    assert nccl.refuse(case("barrier")) == ""


@pytest.mark.parametrize(
    ("fields", "runs"),
    [
        ({}, False),
        ({"algorithm": "ring"}, False),
        ({"collective": "all_gather", "op": "none"}, False),
        ({"op": "avg", "dtype": "int32"}, False),
        ({"in_place": False}, True),
        ({"mode": "streaming"}, True),
        ({"mode": "isolated"}, True),
        ({"n": 2}, True),
        ({"op": "avg"}, True),  # NCCL multiplies by 1/n
        ({"op": "premul_sum"}, True),
    ],
)
def test_no_graph_is_made_of_one_rank_in_place(fields: dict[str, Any], runs: bool) -> None:
    usual = {"n": 1, "mode": "graph", "in_place": True, "op": "sum", "nbytes": 64}
    wanted = Case(**{"collective": "all_reduce", "backend": "nccl"} | usual | fields)  # type: ignore[arg-type]
    reason = "" if runs else "one rank has nothing to do in place (an empty CUDA graph)"
    assert _torchdist.create("nccl").refuse(wanted) == reason


def test_cpu_backends_have_no_stream_and_no_graphs() -> None:
    gloo = _torchdist.create("gloo")
    assert gloo.stream is None
    assert (
        gloo.refuse(case(backend="gloo", mode="graph")) == "gloo cannot be captured in a CUDA graph"
    )
    gloo.finish(), gloo.align()
