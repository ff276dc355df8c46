"""Machine code that makes calls in a row, with C functions that a test can look into."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence
from functools import partial

import pytest

from collbench.run.rank import library_calls, measure
from collbench.run.rank.control import Control
from collbench.run.rank.library_calls import LibraryCall, compile_loop, join_calls

pytestmark = pytest.mark.skipif(
    not library_calls.is_supported(), reason="calls are made by ctypes one by one here"
)
ALONE = Control(0, 1)


def recorded(*sets: Sequence[int]) -> tuple[list[LibraryCall], list[tuple[int, ...]]]:
    """Calls of C functions that append the arguments they are given, and what was appended."""
    seen: list[tuple[int, ...]] = []
    calls = []
    for numbers in sets:
        kinds = [ctypes.c_int64] * len(numbers)

        def append(*given: int) -> None:
            seen.append(given)

        callback = ctypes.CFUNCTYPE(None, *kinds)(append)
        function = ctypes.CFUNCTYPE(None)(ctypes.cast(callback, ctypes.c_void_p).value)
        made = [kind.from_param(number) for kind, number in zip(kinds, numbers, strict=True)]
        calls.append(LibraryCall.of(function, made, numbers, callback))
    return calls, seen


@pytest.mark.parametrize("count", range(15))
def test_a_function_gets_its_arguments_in_registers_and_on_the_stack(count: int) -> None:
    numbers = tuple((-1) ** k * ((k + 1) << 56 | 0x1234 + k) for k in range(count))
    calls, seen = recorded(numbers)
    loop = compile_loop(calls)
    assert loop is not None
    loop.make_batch(0, 1)()
    assert seen == [numbers]


def test_calls_take_turns_from_the_first_that_is_asked_for() -> None:
    calls, seen = recorded((0, 10), (1, 11, 21), (2,))
    loop = compile_loop(calls)
    assert loop is not None
    loop.make_batch(4, 5)()
    assert [given[0] for given in seen] == [1, 2, 0, 1, 2]


def test_an_action_outlives_its_loop() -> None:
    calls, seen = recorded((5, 6))
    loop = compile_loop(calls)
    assert loop is not None
    action = loop.make_batch(0, 2)
    del loop, calls
    gc.collect()
    action()
    assert seen == [(5, 6), (5, 6)]


def test_the_call_itself_is_the_same() -> None:
    calls, seen = recorded((7, -8))
    calls[0]()
    assert seen == [(7, -8)]


def test_what_is_no_call_of_a_library_is_left_to_python() -> None:
    calls, _ = recorded((1,))
    assert compile_loop([*calls, partial(print)]) is None
    assert compile_loop([]) is None


def test_more_arguments_than_there_is_room_for_are_left_to_python() -> None:
    calls, _ = recorded(tuple(range(15)))
    assert compile_loop(calls) is None


def test_where_no_memory_may_be_executed_calls_are_left_to_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*of: object, **named: object) -> None:
        raise PermissionError("planted")

    monkeypatch.setattr(library_calls.mmap, "mmap", refuse)
    calls, _ = recorded((1,))
    assert compile_loop(calls) is None


@pytest.mark.parametrize("inner", [1, 2, 3, 5])
def test_a_sampler_makes_the_same_calls_in_the_same_order_either_way(
    inner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []
    for supported in (True, False):
        monkeypatch.setattr(library_calls, "is_supported", lambda given=supported: given)
        calls, seen = recorded((0,), (1,), (2,))
        slots = [(call, (k,)) for k, call in enumerate(calls)]
        sampler = measure.Sampler(slots, inner, ALONE, measure.do_nothing)
        sampler.take(4, measure.Sync("none", ALONE, None))
        orders.append((seen, sampler.called, sampler.used))
    assert orders[0] == orders[1]
    assert len(orders[0][0]) == 4 * inner


@pytest.mark.parametrize(("supported", "calls"), [(True, 1), (False, 20)])
def test_what_sampling_takes_is_measured_with_as_many_steps_of_python(
    supported: bool, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_calls, "is_supported", lambda: supported)
    made, _ = recorded((0,))
    sampler = measure.Sampler([(made[0], (0,))], 20, ALONE, measure.do_nothing)
    assert sampler.idle().inner == calls


def test_calls_joined_are_one_that_loops_take_too() -> None:
    calls, seen = recorded((1, 11), (2, 22), (3,))
    pair = join_calls(calls[:2])
    loop = compile_loop([pair, calls[2]])
    assert isinstance(pair, LibraryCall) and loop is not None
    loop.make_batch(0, 3)()
    assert [given[0] for given in seen] == [1, 2, 3, 1, 2]


def test_calls_joined_outlive_what_they_were_made_of() -> None:
    calls, seen = recorded((1,), (2,))
    joined = join_calls(calls)
    del calls
    gc.collect()
    joined()
    assert seen == [(1,), (2,)]


def test_one_call_joined_is_itself_and_others_are_left_to_python() -> None:
    calls, seen = recorded((1,))
    assert join_calls(calls) is calls[0]
    both = join_calls([*calls, lambda: seen.append((9,))])
    assert not isinstance(both, LibraryCall)
    both()
    assert seen == [(1,), (9,)]
