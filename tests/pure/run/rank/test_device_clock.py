"""Times by a device's clock, on a stream that is simulated: what is issued in which order, and what
comes out."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from collbench.core.errors import CannotRun
from collbench.records.types import Choice, GpuState, Record
from collbench.run.backends import Base, Call, do_nothing
from collbench.run.jobs import Job
from collbench.run.launch.board import Board
from collbench.run.rank import device_clock, gpu, measure
from collbench.run.rank.calls import Buffers, copy_slots
from collbench.run.rank.control import Control
from collbench.run.rank.device_clock import AHEAD, DeviceSampler, GraphSampler
from collbench.run.rank.gpu import Guard
from collbench.run.rank.measure import Measured, Protocol, Sampler, Sync
from collbench.run.rank.outcome import AboutCase, record_of
from collbench.run.rank.stream import HELD_NS, Stream, assert_ordered
from collbench.run.rank.trial import Bench, Trial
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from tests.helpers.steps import without_pause

LAUNCH = 5_000  # ns of the host for each thing it issues
ALONE = Control(0, 1)
POLICY = Policy(warmup=0, iters=20, precision=0.02, max_seconds=60.0)


class FakeStream:
    """A device and its host on one simulated clock, in ns: work starts when it is issued and what
    precedes it is done, ``wakes`` later if it was idle. Marks are the times at which they are
    reached; ``log`` is what was issued. The stream is held for a ``share`` of what is asked for.
    """

    def __init__(self, launch: int = LAUNCH, wakes: int = 0, share: float = 1) -> None:
        self.launch, self.now, self.free, self.spare = launch, 0, 0, 1 << 30
        self.wakes, self.share = wakes, share
        self.log: list[str] = []
        self.captured: list[tuple[int, Callable[[], object]]] | None = None

    def issue(self, what: str, takes: int = 0, effect: Callable[[], object] = do_nothing) -> None:
        if self.captured is not None:
            self.captured.append((takes, effect))
            return
        self.now += self.launch
        self.free = (self.free if self.free > self.now else self.now + self.wakes) + takes
        self.log.append(what)
        effect()

    def mark(self) -> int:
        self.issue("mark")
        return self.free

    def elapsed(self, start: int, end: int) -> int:
        return end - start

    def reached(self, mark: int) -> bool:
        return mark <= self.now

    def hold(self, ns: int) -> None:
        self.issue("hold", round(self.share * ns))

    def drain(self) -> None:
        self.now = max(self.now, self.free)
        self.log.append("drain")

    def room(self) -> int:
        return self.spare

    def capture(self, action: Callable[[], object]) -> Callable[[], object]:
        self.captured = []
        action()
        graph, self.captured = self.captured, None
        self.log.append("capture")
        takes = sum(ns for ns, _ in graph)
        return lambda: self.issue("replay", takes, lambda: [effect() for _, effect in graph])


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    return clocked(monkeypatch, FakeStream())


def clocked(monkeypatch: pytest.MonkeyPatch, stream: FakeStream) -> FakeStream:
    """The stream, whose host's clock is the one that samplers read."""
    for module in (measure, device_clock):
        monkeypatch.setattr(module, "clock", lambda: stream.now)
    return stream


def aligned(stream: FakeStream) -> Sync:
    return Sync("device", ALONE, None, lambda: stream.issue("align"))


def call(stream: FakeStream, takes: int, name: str = "call") -> Callable[[], None]:
    return lambda: stream.issue(name, takes)


def test_samples_queue_behind_a_held_stream(stream: FakeStream) -> None:
    counted: list[int] = []

    def count(samples: int = 1) -> None:
        counted.append(samples)

    sampler = DeviceSampler(stream, [(call(stream, 30_000), (0,))], 2, ALONE, count)
    samples = sampler.take(AHEAD + 4, aligned(stream))
    one = ["align", "mark", "call", "call", "mark"]
    assert stream.log == ["hold", *one * AHEAD, "drain", "hold", *one * 4, "drain"]
    assert samples is not None
    assert samples.durations.tolist() == [[60_000] * (AHEAD + 4)]
    assert not samples.late.any() and not samples.starts.any() and not samples.device.any()
    assert sum(counted) == AHEAD + 4


@pytest.mark.parametrize("sampler", [DeviceSampler, GraphSampler])
def test_what_a_call_could_not_is_raised_by_its_sample(
    stream: FakeStream, sampler: type[DeviceSampler]
) -> None:
    def give_up() -> None:
        stream.drain()
        raise RuntimeError("waited in vain")

    calls = [(call(stream, 30_000), (0,))]
    with pytest.raises(RuntimeError, match="waited in vain"):
        sampler(stream, calls, 1, ALONE, lambda *_: None, None, give_up).take(1, aligned(stream))


def test_a_rank_that_waits_for_its_device_is_as_far_as_any(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many samples it issues before it waits."""
    counted, waiting, drain = [0], list[int](), stream.drain

    def count(samples: int = 1) -> None:
        counted[0] += samples

    def drain_and_look() -> None:
        waiting.append(counted[0])
        drain()

    monkeypatch.setattr(stream, "drain", drain_and_look)
    sampler = DeviceSampler(stream, [(call(stream, 60_000), (0,))], 1, ALONE, count)
    sampler.take(AHEAD + 4, aligned(stream))
    assert waiting == [AHEAD + 4] * 2 and counted == [AHEAD + 4]


def test_inputs_are_put_back_between_samples_before_ranks_are_aligned(stream: FakeStream) -> None:
    calls = [(call(stream, 9000, f"call {slot}"), (slot,)) for slot in (0, 1)]
    sampler = DeviceSampler(
        stream, calls, 1, ALONE, do_nothing, lambda slot: stream.issue(f"fill {slot}", 500)
    )
    samples = sampler.take(3, aligned(stream))
    samplings = [["align", "mark", f"call {slot}", "mark"] for slot in (0, 1, 0)]
    behind = [
        ["hold", *samplings[0]],
        ["fill 0", "hold", *samplings[1]],
        ["fill 1", "hold", *samplings[2]],
    ]
    assert stream.log == [*behind[0], *behind[1], *behind[2], "drain"]
    assert samples is not None and set(samples.durations.flat) == {9000}
    assert list(sampler.dirty) == [0] and sampler.used == {0, 1}


def test_inputs_that_take_long_to_put_back_leave_no_gap_before_a_call(stream: FakeStream) -> None:
    def fill(slot: int) -> None:  # 15 ms of launching, which the device keeps up with
        for _ in range(3000):
            stream.issue("fill", 2500)

    sampler = DeviceSampler(stream, [(call(stream, 60_000), (0,))], 1, ALONE, do_nothing, fill)
    samples = sampler.take(4, aligned(stream))
    assert (
        samples is not None and not samples.late.any() and set(samples.durations.flat) == {60_000}
    )


def test_no_call_is_sampled_on_an_input_that_a_call_has_overwritten(stream: FakeStream) -> None:
    fresh = {0, 1, 2, 3}
    calls = [
        (lambda slot=slot: stream.issue("call", 40_000, lambda: fresh.remove(slot)), (slot,))
        for slot in fresh
    ]
    policy = Policy(warmup=2, iters=20, precision=0.02, max_seconds=60.0)
    found = measured(
        stream,
        lambda inner: DeviceSampler(stream, calls, inner, ALONE, do_nothing, fresh.add),
        "isolated",
        policy,
    )
    assert (
        found.inner == 3 and len(found.host_ns) == 20
    )  # remove() raises where a slot was not put back


def measured(
    stream: FakeStream, make: Callable[[int], Sampler], mode: str, policy: Policy = POLICY
) -> Measured:
    protocol = Protocol(policy, ALONE, aligned(stream), make, mode)
    found, _ = without_pause(protocol.run(60_000, do_nothing))
    assert found is not None
    return found


def test_samples_that_launching_may_have_slowed_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 16 samples take 6.4 ms to issue, and the wait 2 ms
    slow = clocked(monkeypatch, FakeStream(launch=100_000))
    took = DeviceSampler(slow, [(call(slow, 60_000), (0,))], 1, ALONE, do_nothing).take(
        AHEAD, aligned(slow)
    )
    assert took is not None and took.late.any() and not took.late.all()
    assert {*took.durations[0][~took.late]} == {60_000} and min(
        took.durations[0][took.late]
    ) > 60_000
    found = measured(
        slow,
        lambda inner: DeviceSampler(slow, [(call(slow, 60_000), (0,))], inner, ALONE, do_nothing),
        "isolated",
    )
    assert found.samples.durations.tolist() == [[60_000] * 20]
    assert list(found.invalid) == ["launch-limited"] and found.stop == "fixed"


def test_what_cannot_be_launched_ahead_is_launch_limited_however_little_is_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = clocked(monkeypatch, FakeStream(launch=20_000_000))
    sampler = DeviceSampler(slow, [(call(slow, 60_000), (0,))], 1, ALONE, do_nothing)
    samples = sampler.take(16 + 16 + 8 + 4 + 2 + 1, aligned(slow))
    assert samples is not None and samples.late.all()
    queued = [part.count("call") for part in " ".join(slow.log).split("hold")[1:]]
    assert queued == [16, 16, 8, 4, 2, 1]


@pytest.mark.parametrize(
    ("takes", "inner"), [(10_000, 10), (30_001, 4), (49_000, 3), (50_000, 1), (900_000, 1)]
)
def test_short_calls_are_sampled_together_for_a_tenth_of_a_millisecond(
    stream: FakeStream, takes: int, inner: int
) -> None:
    found = measured(
        stream,
        lambda inner: DeviceSampler(
            stream, [(call(stream, takes), (0,))], inner, ALONE, do_nothing
        ),
        "isolated",
        Policy(warmup=3, iters=20, precision=0.02, max_seconds=60.0),
    )
    assert (found.inner, found.clock) == (inner, "device")
    assert found.samples.durations.tolist() == [[inner * takes] * 20]
    assert found.overhead_ns == 0 and found.invalid == {}


@pytest.mark.parametrize(
    ("takes", "given", "replays", "calls"),
    [
        (60_000, None, 1, 3),
        (9000, None, 1, 12),
        (9000, 20, 1, 21),
        (9000, 20, 5, 105),
        (1, None, 1, 102),
    ],
)
def test_a_graph_gives_every_buffer_its_turn_and_is_replayed(
    stream: FakeStream, takes: int, given: int | None, replays: int, calls: int
) -> None:
    policy = Policy(
        warmup=1,
        iters=given,
        graph=replays,
        max_iters=30,
        min_seconds=0.0,
        precision=0.02,
        max_seconds=60.0,
    )
    names = [(call(stream, takes, "call"), (slot,)) for slot in range(3)]
    found = measured(
        stream,
        lambda inner: GraphSampler(stream, names, inner, ALONE, do_nothing, replays=replays),
        "graph",
        policy,
    )
    assert (found.inner, found.clock) == (calls, "device")
    assert set(found.samples.durations.flat) == {calls * takes}
    assert stream.log[:3] == [
        "capture",
        "replay",
        "drain",
    ]  # warmed as a graph, before the first sample
    assert stream.log.count("capture") == (2 if given is None and calls > 3 else 1)
    last = len(stream.log) - stream.log[::-1].index("hold")
    # none was launched by itself before the host's clock had its turn
    alone = stream.log.index("call")
    assert stream.log[alone:] == ["call", "drain"] * 20 and last < alone


def test_streaming_has_one_wait_a_batch_and_both_clocks(stream: FakeStream) -> None:
    sampler = Sampler(
        [(call(stream, 30_000), (0,))], 20, ALONE, do_nothing, None, stream.drain, stream
    )
    samples = sampler.take(3, Sync("none", ALONE, None))
    assert stream.log == ["mark", *["call"] * 20, "mark", "drain"] * 3
    assert samples is not None
    assert samples.device.tolist() == [[LAUNCH + 20 * 30_000] * 3]
    assert samples.durations.tolist() == samples.device.tolist()


class FakeGpu(Base):
    """One rank whose all-reduce is a copy on the simulated stream."""

    stream: FakeStream
    library, premultiplies, device = "fake", False, torch.device("cpu")
    takes = 60_000

    def __init__(self, stream: FakeStream) -> None:
        self.stream = stream
        self.finish = stream.drain

    def align(self) -> None:
        self.stream.issue("align")

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def prepare(self, case: Case, send: torch.Tensor, recv: torch.Tensor) -> Call:
        def run() -> None:
            self.stream.issue("call", self.takes, lambda: recv.copy_(send))
            if case.collective == "barrier":
                self.stream.drain()

        return Call(run, None, waits=case.collective == "barrier")


class WrongInGraphs(FakeGpu):
    """One whose calls are right but where they were captured."""

    def prepare(self, case: Case, send: torch.Tensor, recv: torch.Tensor) -> Call:
        def run() -> None:
            captured = self.stream.captured is not None
            effect = (lambda: recv.add_(1)) if captured else (lambda: recv.copy_(send))
            self.stream.issue("call", self.takes, effect)

        return Call(run, None)


def nothing_for(seconds: float) -> None:
    """A sleep that takes no time."""


def tried(
    stream: FakeStream,
    collective: str,
    mode: str,
    watch: Any = None,
    env: tuple[tuple[str, str], ...] = (),
    takes: int = 60_000,
    case: Mapping[str, Any] = MappingProxyType({}),
    kind: type[FakeGpu] = FakeGpu,
    **policy: Any,
) -> Record:
    op, nbytes = {"all_reduce": ("sum", 64), "barrier": ("none", 0)}[collective]
    axes = {"nbytes": nbytes, "op": op, "mode": mode, "env": env, **case}
    wanted = Case(collective=collective, n=1, **{"backend": "fake", **axes})
    settled = Policy(warmup=2, batch=5, **{"iters": 4} | policy).resolved(False)
    backend: Any = kind(stream)
    backend.takes = takes
    bench = Bench(0, [0], backend, ALONE, Board.create(1)[0], settled, "barrier", None, watch)
    (outcome,) = without_pause(Trial(bench, Job(wanted, 3, "cold")).run())
    return record_of(wanted, outcome, AboutCase(0, ""))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("iters", "replays"), [(3, 1), (9, 1), (9, 3)])
def test_what_only_captured_calls_get_wrong_is_found(
    stream: FakeStream, in_place: bool, iters: int, replays: int
) -> None:
    """Also where a graph has several turns of each buffer, on the result of the turn before."""
    fault: dict[str, Any] = {"kind": WrongInGraphs, "iters": iters, "graph": replays}
    record = tried(stream, "all_reduce", "graph", case={"in_place": in_place}, **fault)
    assert record.status == "wrong" and "after timing" in record.note
    right = tried(stream, "all_reduce", "graph", case={"in_place": in_place}, iters=iters)
    assert (right.status, right.wrong) == ("ok", 0)


def test_a_case_by_the_clock_of_its_mode(stream: FakeStream) -> None:
    record = tried(stream, "all_reduce", "isolated")
    assert (record.status, record.clock, record.sync, record.inner) == (
        "ok",
        "device",
        "device",
        1,
    )
    assert record.times_ns == [60_000] * 4
    assert record.host_ns == [60_000 + LAUNCH] * 20
    assert not any((record.starts_ns, record.glob_ns, record.skew_ns, record.device_ns))

    record = tried(stream, "all_reduce", "graph", **UNTIL_KNOWN)
    assert (record.clock, record.sync, record.inner) == ("device", "device", 3)
    assert set(record.times_ns) == {180_000} and len(record.host_ns) == 20

    record = tried(stream, "all_reduce", "streaming", **UNTIL_KNOWN)
    assert (record.clock, record.sync, record.inner, record.host_ns) == (
        "host",
        "barrier",
        5,
        [],
    )
    assert record.device_ns == record.times_ns
    assert set(record.times_ns) == {LAUNCH + 300_000}
    assert record.waited == pytest.approx((300_000 - 5 * LAUNCH) / (LAUNCH + 300_000))

    record = tried(stream, "all_reduce", "host")
    assert (record.clock, record.sync, record.times_ns) == (
        "host",
        "none",
        [60_000 + LAUNCH] * 4,
    )
    assert record.device_ns == record.host_ns == []


def test_a_graph_that_does_nothing_is_caught(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "capture", lambda action: lambda: stream.issue("replay", 9000))
    record = tried(stream, "all_reduce", "graph", iters=None, max_iters=30, min_seconds=0.0)
    assert (record.status, record.first_wrong.when) == (
        "wrong",
        "after timing, on fresh buffers",
    )


def test_calls_that_wait_for_the_device_are_left_to_the_hosts_clock(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tried(stream, "barrier", "isolated").clock == "host"
    stream.log.clear()
    monkeypatch.setattr(ALONE, "barrier", lambda: stream.log.append("barrier"))
    record = tried(stream, "all_reduce", "isolated", blocking=1)
    assert (record.clock, record.times_ns) == ("host", [60_000 + LAUNCH] * 4)
    log = " ".join(stream.log)
    assert (
        "call drain barrier" in log and "call barrier" not in log
    )  # ranks meet when the call is done


def test_times_are_by_call_where_several_are_issued_together(stream: FakeStream) -> None:
    record = tried(stream, "all_reduce", "isolated", agg_iters=3)
    assert (record.inner, set(record.times_ns)) == (3, {180_000})
    assert "one after the other, as fake fuses no all_reduce" in record.note
    assert set(record.host_ns) == {(180_000 + LAUNCH) // 3}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({}, "as fake fuses no all_reduce"),
        ({"backend": "nccl"}, "as torch fuses no all_reduce"),
        ({"backend": "nccl", "algorithm": "ring"}, "as ring@nccl fuses no all_reduce"),
    ],
)
def test_calls_that_are_not_fused_are_noted(
    stream: FakeStream, case: dict[str, Any], words: str
) -> None:
    record = tried(stream, "all_reduce", "isolated", agg_iters=3, case=case)
    assert record.note == (
        f"-m: calls are launched one after the other, {words} (nccl-tests has NCCL fuse them)"
    )


def test_a_call_alone_leaves_nothing_to_fuse(stream: FakeStream) -> None:
    assert tried(stream, "all_reduce", "isolated").note == ""


class FusingGpu(FakeGpu):
    """A GPU whose library does several calls in one launch, and is heard on calls of their own."""

    def fuse_calls(self, case: Case, calls: Sequence[Call]) -> Callable[[], object]:
        pairs = [call.submit for call in calls]
        return lambda: self.stream.issue(
            f"{len(calls)} fused", self.takes, lambda: [copy() for copy in pairs if copy]
        )

    def prepare(self, case: Case, send: torch.Tensor, recv: torch.Tensor) -> Call:
        call = super().prepare(case, send, recv)
        return call._replace(submit=lambda: recv.copy_(send))

    def overheard(self, call: Callable[[], object]) -> None:
        self.stream.log.append("listen")
        call()
        self.stream.log.append("heard")


@pytest.mark.parametrize("mode", ["isolated", "streaming"])
def test_calls_that_the_library_fuses_are_one_launch(stream: FakeStream, mode: str) -> None:
    record = tried(stream, "all_reduce", mode, kind=FusingGpu, agg_iters=3, **UNTIL_KNOWN)
    assert (record.status, record.wrong, record.note) == ("ok", 0, "")
    timed = stream.log[stream.log.index("heard") :]
    assert "3 fused" in timed and "call" not in timed


def test_what_a_library_fuses_is_overheard_as_it_is_timed(
    stream: FakeStream,
) -> None:
    tried(stream, "all_reduce", "isolated", kind=FusingGpu, agg_iters=3)
    assert "listen 3 fused heard" in " ".join(stream.log)


def test_a_case_that_cannot_be_launched_ahead_fails_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = clocked(monkeypatch, FakeStream(launch=20_000_000))
    record = tried(slow, "all_reduce", "isolated")
    assert record.status == "failed"
    assert (
        record.note == "no valid sample (12 x launch-limited); try --mode host (in a suite:"
        ' modes = "host" in [axes])'
    )


def test_hosts_that_issue_more_slowly_than_the_device_works_do_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = clocked(monkeypatch, FakeStream(launch=70_000))
    assert tried(slow, "all_reduce", "streaming", **UNTIL_KNOWN).waited == 0


class Launches(TorchDispatchMode):
    """Issues whatever torch does with buffers on the stream, under torch's name for it."""

    def __init__(self, stream: FakeStream) -> None:
        super().__init__()
        self._stream = stream

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func is not torch.ops.aten._local_scalar_dense.default:
            self._stream.issue(f"torch {func._overloadpacket.__name__}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("spare", "launches"),
    [(2 * 3 * 64, ["torch copy_"]), (2 * 3 * 64 - 1, None)],
)
def test_inputs_are_put_back_by_one_launch_where_memory_has_room_for_copies(
    stream: FakeStream, spare: int, launches: list[str] | None
) -> None:
    """Between a sample and the next; of three buffers, with as much to spare. The copies are made
    once."""
    stream.spare = spare
    with Launches(stream):
        record = tried(stream, "all_reduce", "isolated", case={"in_place": True}, iters=9)
    assert record.status == "ok" and len(record.times_ns) == 9
    samples = " ".join(stream.log).split("hold align mark ")[6:14]
    between = {part.split(" mark ")[1].split("drain ")[-1].strip() for part in samples[:-1]}
    if launches:
        assert between == {*launches}
    else:
        assert min(part.count("torch ") for part in between) > 1
    assert stream.log.count("torch clone") == (3 if launches else 0)


def test_without_room_after_all_there_are_no_copies() -> None:
    class Full(torch.Tensor):
        def clone(self, **_: Any) -> Any:
            raise torch.cuda.OutOfMemoryError

    whole = torch.zeros(4)
    slot = [Buffers(whole, whole, whole)]
    assert torch.equal(copy_slots([slot], 1 << 20)[0][0], whole)
    assert copy_slots([[Buffers(whole, whole, whole.as_subclass(Full))]], 1 << 20) == []


def test_what_is_put_back_is_what_was_there(stream: FakeStream) -> None:
    case = Case(collective="all_reduce", backend="fake", n=1, nbytes=64, op="sum", in_place=True)
    settled = Policy(warmup=2, batch=5, iters=4).resolved(False)
    backend: Any = FakeGpu(stream)
    bench = Bench(0, [0], backend, ALONE, Board.create(1)[0], settled, "barrier", None)
    trial = Trial(bench, Job(case, 2, "cold"))
    without_pause(trial.run())
    for slot in (0, 1):
        trial._data.fill(slot)
    trial._data.keep_copies()
    wanted = [slot[0].written.clone() for slot in trial._slots]
    for number, slot in enumerate(trial._slots):
        slot[0].written.zero_()
        trial._data.put_back(number)
    assert len(trial._data._copies) == 2 and not torch.equal(*wanted)
    assert all(map(torch.equal, [slot[0].written for slot in trial._slots], wanted))


UNTIL_KNOWN = {"iters": None, "max_iters": 30, "min_seconds": 0.0}


@pytest.mark.parametrize(("takes", "calls"), [(60_000, 1), (9000, 12), (100, 100)])
def test_beside_a_stream_stands_what_the_device_takes_alone(
    monkeypatch: pytest.MonkeyPatch, takes: int, calls: int
) -> None:
    """As mode isolated has it, however slowly the host issues calls."""
    slow = clocked(monkeypatch, FakeStream(launch=70_000))
    record = tried(slow, "all_reduce", "streaming", takes=takes, **UNTIL_KNOWN)
    assert min(record.times_ns) / record.inner > 70_000
    assert record.control_inner == calls and set(record.control_ns) == {calls * takes}
    alone = tried(slow, "all_reduce", "isolated", takes=takes, **UNTIL_KNOWN)
    assert {ns / alone.inner for ns in alone.times_ns} == {takes}
    assert len(record.control_ns) >= 6  # what bounds a median


@pytest.mark.parametrize(
    ("collective", "mode", "settings"),
    [
        ("all_reduce", "streaming", {"case": {"nbytes": (64 << 10) + 4}}),
        ("all_reduce", "streaming", {"blocking": 1}),
        ("barrier", "streaming", {}),
        ("all_reduce", "host", {"iters": 4}),
        ("all_reduce", "isolated", {}),
        ("all_reduce", "graph", {}),
    ],
)
def test_nothing_stands_beside_what_is_long_or_no_stream(
    stream: FakeStream, collective: str, mode: str, settings: dict[str, Any]
) -> None:
    record = tried(stream, collective, mode, **UNTIL_KNOWN | settings)
    assert record.status == "ok" and not record.control_ns


def test_calls_issued_together_stay_together_beside_their_stream(stream: FakeStream) -> None:
    record = tried(stream, "all_reduce", "streaming", agg_iters=3, **UNTIL_KNOWN)
    assert (record.inner, record.control_inner) == (15, 3)
    assert set(record.control_ns) == {180_000}


def test_inputs_are_put_back_before_what_stands_beside_a_stream(stream: FakeStream) -> None:
    """In place, where results are the next inputs."""
    record = tried(stream, "all_reduce", "streaming", case={"in_place": True}, **UNTIL_KNOWN)
    assert record.status == "ok" and set(record.control_ns) == {60_000}


class Hot:
    """Of a GPU that is held back, or not, in one reading after the other."""

    def __init__(self, *readings: bool) -> None:
        self._readings = iter(readings)

    def read(self) -> GpuState:
        return GpuState(index=0, name="Hot GPU", throttle=("hw_slowdown",) * next(self._readings))


def guarded(stream: FakeStream, pauses: list[float], *readings: bool) -> Measured:
    watch: Any = Hot(False, *readings)
    guard = Guard(watch, pauses.append)
    sampler = DeviceSampler(stream, [(call(stream, 60_000), (0,))], 1, ALONE, do_nothing)
    protocol = Protocol(
        POLICY, ALONE, aligned(stream), lambda inner: sampler, "isolated", None, guard
    )
    found, _ = without_pause(protocol.run(0, do_nothing))
    assert found is not None
    return found


def test_blocks_at_whose_end_a_gpu_is_held_back_are_replaced(stream: FakeStream) -> None:
    pauses: list[float] = []
    found = guarded(stream, pauses, True, True, False)
    assert (found.samples.durations.shape, found.invalid, found.stop) == (
        (1, 20),
        {"throttled": 40},
        "fixed",
    )
    assert pauses == [0.05, 0.1]
    found = guarded(stream, pauses, True, True, True)
    assert (found.samples.durations.size, found.invalid, found.stop) == (
        0,
        {"throttled": 60},
        "max_n",
    )


def test_every_rank_discards_what_one_gpu_spoils(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour = iter([False, True, False])  # is it hopeless, and of each block
    monkeypatch.setattr(ALONE, "collect", lambda mine: [mine, next(neighbour)])
    pauses: list[float] = []
    assert guarded(stream, pauses, False, False).invalid == {"throttled": 20} and len(pauses) == 1


def test_a_case_of_a_gpu_that_is_always_held_back_fails_with_its_state(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.time, "sleep", nothing_for)
    record = tried(stream, "all_reduce", "isolated", watch=Hot(*[True] * 4))
    assert (
        record.note
        == "no valid sample (12 x throttled); rank 0: GPU 0 was held back (hw_slowdown);"
        " nvidia-smi -q -d PERFORMANCE says what holds the GPU"
        " back"
    )
    assert [state.throttle for state in record.gpus] == [("hw_slowdown",)]


def test_the_state_of_gpus_is_recorded(stream: FakeStream) -> None:
    record = tried(stream, "all_reduce", "isolated", watch=Hot(*[False] * 2))
    assert record.status == "ok" and [state.name for state in record.gpus] == ["Hot GPU"]
    assert tried(stream, "all_reduce", "isolated").gpus == []


def test_what_ran_is_overheard_on_a_call_of_its_own(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overheard(self: FakeGpu, run: Callable[[], object]) -> Choice:
        stream.log.append("listen")
        run()
        stream.log.append("heard")
        return Choice(algorithm="Ring")

    monkeypatch.setattr(FakeGpu, "overheard", overheard)
    record = tried(stream, "all_reduce", "isolated", env=(("NCCL_ALGO", "Tree"),))
    assert (
        record.chose == Choice(algorithm="Ring")
        and record.note == "NCCL_ALGO=Tree asked, NCCL ran Ring"
    )
    log = " ".join(stream.log)
    assert (
        log.count("listen call heard") == 1 and "mark" not in log.partition("heard")[0]
    )  # before any clock


class Meeting:
    """Where the ranks of a simulated world, each a thread, exchange values."""

    def __init__(self, n: int) -> None:
        self._values: list[Any] = [None] * n
        self._barrier = threading.Barrier(n, timeout=20)

    def __call__(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


class FakeWorld:
    """A rank of it: control group and collective, where streams and hosts wait for each other."""

    def __init__(
        self, rank: int, n: int, meeting: Meeting, joined: bool, stream: FakeStream
    ) -> None:
        self.rank, self.n, self._meeting, self._joined = rank, n, meeting, joined
        self.stream = stream

    def barrier(self) -> None:
        self.stream.now = max(self._meeting(self.rank, self.stream.now))

    def collect(self, value: Any) -> list[Any]:
        return self._meeting(self.rank, value)

    def align(self) -> None:
        """A collective ends when all have come; a stream that it was not joined to goes on at
        once."""
        done = max(self._meeting(self.rank, max(self.stream.now, self.stream.free)))
        self.stream.issue("align")
        if self._joined:
            self.stream.free = max(self.stream.free, done)


def ordered(n: int, unjoined: int | None = None, **streams: object) -> Counter[str]:
    """What each of n ranks says of whether marks wait for the collective. Keywords are those of its
    stream, by rank where they are mappings."""
    meeting, said = Meeting(n), Counter[str]()

    def rank_of_world(rank: int) -> None:
        own: dict[str, Any] = {
            key: value[rank] if isinstance(value, Mapping) else value
            for key, value in streams.items()
        }
        world: Any = FakeWorld(rank, n, meeting, rank != unjoined, FakeStream(**own))
        try:
            assert_ordered(world.stream, world.align, world, do_nothing)
            said["fine"] += 1
        except CannotRun as e:
            said[e.message.split(" after ")[0]] += 1

    threads = [threading.Thread(target=rank_of_world, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("unjoined", [None, 0, 1, 2])
@pytest.mark.parametrize("share", [1, 0.3])
def test_marks_must_wait_for_the_collective(n: int, unjoined: int | None, share: float) -> None:
    """Also where devices were slower when their clocks were looked at than when they are held."""
    said = ordered(n, unjoined, share=share)
    if n == 1 or unjoined is None or unjoined >= n:
        assert said == {"fine": n}
    else:
        assert said == {
            f"the end event does not wait for the collective: on rank {unjoined} it came": n
        }


def test_a_device_that_wakes_up_late_is_not_taken_for_one_that_does_not_wait() -> None:
    assert ordered(2, wakes={0: HELD_NS * 3 // 4, 1: 0}) == {"fine": 2}


def test_a_device_that_cannot_be_held_back_shows_nothing() -> None:
    (said,) = ordered(2, share={0: 1, 1: 0.01})
    assert said.startswith("rank 1's device was held back for 205 us, where 20 ms were asked for")


def test_the_simulated_stream_is_a_stream() -> None:
    found: Stream = FakeStream()
    start = found.mark()
    found.hold(HELD_NS)
    end = found.mark()
    assert found.elapsed(start, end) >= HELD_NS and not found.reached(end)
