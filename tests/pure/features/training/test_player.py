"""A program's operations by a device's clock, on simulated streams: one for the program and its
computation, one beside it for each lane; and on lanes that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from collbench.features.training.player import Player
from collbench.features.training.step import Op, Program
from collbench.run.backends import Call, do_nothing
from collbench.run.memory import HOST_COMPUTING
from collbench.run.rank import computation as computation_
from collbench.run.rank.computation import Computation


class Device:
    """Streams as the times at which what was issued on them is done; the host takes no time."""

    def __init__(self) -> None:
        self.main, self.lanes, self.beside = 1000, {}, {}
        self.late = 3  # looks at a mark that is reached

    def mark(self) -> int:
        return self.main

    def mark_after(self, work: Work, lane: object) -> int:
        self.beside[lane] = max(self.beside.get(lane, 0), work.end)
        return self.beside[lane]

    def elapsed(self, start: int, end: int) -> int:
        return end - start

    def reached(self, mark: int) -> bool:
        self.late -= 1
        return self.late < 0

    def drain(self) -> None:
        pass

    def compute(self, ns: int) -> None:
        self.main += ns

    def call(self, ns: int, lane: str) -> Call:
        """An operation that takes so long in its lane, once the program's stream is there."""

        def submit() -> Work:
            begin = max(self.main, self.lanes.get(lane, 0))
            self.lanes[lane] = begin + ns
            return Work(self, begin + ns)

        return Call(lambda: submit().wait(), submit)


class Work:
    def __init__(self, device: Device, end: int) -> None:
        self.device, self.end = device, end

    def wait(self) -> None:
        """Has the program's stream wait; not where another is the current one."""
        self.device.main = max(self.device.main, self.end)


class Computed:
    def __init__(self, device: Device) -> None:
        self.device = device

    def action(self, op: Op) -> Callable[[], Any]:
        return lambda: self.device.compute(op.compute_ns)


def all_reduce(**more: Any) -> Op:
    return Op(kind="all_reduce", nbytes=8, dtype="float", op="sum", **more)


def player(device: Device, ops: tuple[Op, ...], takes: dict[int, int]) -> Player:
    calls = {at: device.call(ns, ops[at].lane) for at, ns in takes.items()}
    return Player(Program((0, 1), ops), calls, Computed(device), do_nothing, patient=True)  # type: ignore[arg-type]


def seen(ops: tuple[Op, ...], takes: dict[int, int]) -> tuple[list[int], list[int]]:
    device = Device()
    found = player(device, ops, takes).watched_on(device)  # type: ignore[arg-type]
    return found.begins, found.ends


def test_operations_run_beside_the_programs_stream() -> None:
    """One behind computation, which a wait then stands still for."""
    ops = (all_reduce(), Op(kind="compute", compute_ns=30), Op(kind="wait"), all_reduce())
    begins, ends = seen(ops, {0: 100, 3: 50})
    assert begins == [0, 0, 30, 100]
    assert ends == [100, 30, 100, 150]


def test_lanes_are_seen_apart() -> None:
    """A short operation of another lane, issued later, is done before the long one."""
    ops = (all_reduce(), all_reduce(lane="other"), Op(kind="wait"))
    assert seen(ops, {0: 100, 1: 10}) == ([0, 0, 0], [100, 10, 100])


def test_a_call_that_is_waited_for_ends_where_the_stream_goes_on() -> None:
    ops = (all_reduce(wait="call"), Op(kind="compute", compute_ns=5))
    assert seen(ops, {0: 40}) == ([0, 40], [40, 45])


def test_an_operation_after_others_begins_once_they_are_done() -> None:
    ops = (all_reduce(), all_reduce(lane="other", after=(0,)))
    assert seen(ops, {0: 100, 1: 10}) == ([0, 100], [100, 110])


def test_a_wait_before_an_operation_is_seen() -> None:
    ops = (all_reduce(), Op(kind="compute", compute_ns=30), all_reduce(lane="other", after=(0,)))
    device = Device()
    found = player(device, ops, {0: 100, 2: 10}).watched_on(device)  # type: ignore[arg-type]
    assert (found.waits, found.begins) == ([0, 0, 30], [0, 0, 100])


@pytest.mark.parametrize("patient", [True, False])
def test_an_operation_ends_after_the_wait_before_it(patient: bool) -> None:
    """By the host's clock, too, where the program itself waits."""
    ops = (all_reduce(), all_reduce(lane="other", after=(0,)), Op(kind="wait"))
    calls = {at: ended.call("x") for at in (0, 1)}
    found = Player(Program((0, 1), ops), calls, ended, do_nothing, patient).watched()  # type: ignore[arg-type]
    assert 0 < found.waits[1] <= found.begins[1] <= found.ends[1]
    assert (found.waits[0], found.waits[2]) == (0, 0)


def test_a_step_without_one_operation_neither_starts_it_nor_waits_for_it() -> None:
    ops = (all_reduce(), all_reduce(lane="other"), Op(kind="wait"), all_reduce(after=(1,)))
    for lacking, takes in ((None, 100 + 1000), (0, 10 + 1000), (1, 100 + 1000), (3, 100)):
        device = Device()
        began = device.main
        player(device, ops, {0: 100, 1: 10, 3: 1000}).without(lacking)()
        assert device.main - began == takes, lacking


@pytest.mark.parametrize(("device", "how"), [("cpu", "_spin"), ("meta", "_multiply")])
def test_what_only_takes_time_takes_it_where_operations_are(device: str, how: str) -> None:
    """The host's time would hold up no stream of a device."""
    computation = Computation(
        "auto", torch.device(device), do_nothing, lambda told: told, do_nothing
    )
    action = computation.action(computation_.Work(10_000))
    assert action is not None
    assert [part.func.__name__ for part in action.args[0]] == [how]  # type: ignore[attr-defined]


def test_computation_on_a_device_takes_its_time_without_a_wait_after_each_unit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A unit takes 100 ns, a wait for the device 10 us: timed by themselves, units would be a
    hundredth of those that fill the time."""
    now, queued = [0], [0]

    def product(self: Computation, rows: int) -> None:
        queued[0] += 100

    def finish() -> None:
        now[0] += queued[0] + 10_000
        queued[0] = 0

    monkeypatch.setattr(computation_, "clock", lambda: now[0])
    monkeypatch.setattr(Computation, "_product", product)
    computation = Computation(
        "gemm", torch.device("meta"), do_nothing, lambda values: values, finish
    )
    action = computation.action(computation_.Work(1_000_000))
    assert action is not None
    action()
    assert queued[0] == 1_000_000


def test_computation_shorter_than_a_unit_takes_no_more_than_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A product of a GPU's matrices takes 100 us and more: as a whole, ten times a short one's."""
    now, queued = [0], [0]

    def product(self: Computation, rows: int) -> None:
        queued[0] += 100_000 * rows // self._rows

    def finish() -> None:
        now[0] += queued[0]
        queued[0] = 0

    monkeypatch.setattr(computation_, "clock", lambda: now[0])
    monkeypatch.setattr(Computation, "_product", product)
    computation = Computation(
        "gemm", torch.device("meta"), do_nothing, lambda values: values, finish
    )
    action = computation.action(computation_.Work(10_000))
    assert action is not None
    action()
    assert 9_900 < queued[0] < 10_100


@pytest.mark.parametrize("nbytes", [HOST_COMPUTING.chunk, 1 << 20, 10_000])
def test_copies_of_any_size_go_through_all_of_the_memory(nbytes: int) -> None:
    """Short ones, too: those that met the same places again would stay within a cache."""
    computation = Computation("copy", torch.device("cpu"), do_nothing, list, do_nothing)
    store, starts = HOST_COMPUTING.store, set[int]()
    for _ in range(store // nbytes):
        computation._copy(nbytes)
        starts.add(computation._at)
    assert len(starts) >= store // (nbytes + 4096)


class Held:
    """An operation whose end others bring about; who waits for it in vain is told."""

    def __init__(self) -> None:
        self.ended, self.made = threading.Event(), list[str]()

    def call(self, name: str, own: bool = False) -> Call:
        def submit() -> Held:
            self.made.append(name)
            return self if own else ended

        return Call(lambda: submit().wait(), submit)

    def wait(self) -> None:
        assert self.ended.wait(5), "waited for by who is to end it"

    def action(self, op: Op) -> Callable[[], Any]:
        return self.ended.set


ended = Held()
ended.ended.set()


@pytest.mark.parametrize("part", ["step", "watched"])
def test_an_operation_after_others_does_not_hold_up_the_program(part: str) -> None:
    """Nor does it let others of its lane go first, one that is waited for at once either."""
    held = Held()
    ops = (
        all_reduce(),
        all_reduce(lane="other", after=(0,)),
        all_reduce(lane="other"),
        Op(kind="compute", compute_ns=1),
        all_reduce(lane="other", wait="call"),
        Op(kind="wait"),
    )
    calls = {0: held.call("held", own=True)}
    calls |= {at: held.call(name) for at, name in ((1, "after"), (2, "next"), (4, "last"))}
    one = Player(Program((0, 1), ops), calls, held, do_nothing, True, True)  # type: ignore[arg-type]
    for _ in range(2):
        held.ended.clear()
        held.made.clear()
        one.watched() if part == "watched" else one.play(part)()
        assert held.made == ["held", "after", "next", "last"]
    one.close()


def test_what_fails_in_a_lane_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise RuntimeError("peer is gone")

    ops = (all_reduce(), all_reduce(lane="other", after=(0,)), Op(kind="wait"))
    calls = {0: ended.call("x"), 1: Call(fail, fail)}
    one = Player(Program((0, 1), ops), calls, ended, do_nothing, True, True)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="peer is gone"):
        one.play("step")()
    one.close()
