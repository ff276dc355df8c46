"""The checker on real (small) buffers, against the table: silent when all is right, exact about
what is wrong."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from scenario_lists import list_scenarios

from collbench.core import splits
from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS, premul_factor
from collbench.run.rank import check, payload
from collbench.run.rank.check import PROBED, Checker, Difference, why_blind
from collbench.run.rank.payload import WINDOW
from collbench.run.rank.verification import Verification
from collbench.suite.case import Case
from collbench.suite.policy import Policy

MOVING = [name for name in COLLECTIVES if name != "barrier"]
SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def case_of(
    name: str, n: int, count: int, dtype: str = "float", op: str = "sum", **more: Any
) -> Case:
    row = COLLECTIVES[name]
    return Case(
        collective=name,
        backend="gloo",
        n=n,
        nbytes=count * DTYPES[dtype].size * (n if row.total else 1),
        dtype=dtype,
        op=op if row.reduces else "none",
        root=n - 1 if row.rooted else -1,
        splits="zipf:1" if name == "all_to_allv" else "",
        **more,
    )


def buffer(case: Case, count: int, shift: int = 0) -> torch.Tensor:
    kind = getattr(torch, case.type.torch)
    return torch.zeros(count + shift, dtype=SIGNED[case.type.size])[shift:].view(kind)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_flipped_bit_is_found_in_any_type(dtype: str) -> None:
    assert why_blind(dtype, "cpu") == ""


def finds_nothing(self: Any, span: Any, slot: int, view: torch.Tensor) -> torch.Tensor:
    return torch.zeros(span.high - span.low, dtype=torch.bool)


def finds_all(self: Any, span: Any, slot: int, view: torch.Tensor) -> torch.Tensor:
    return torch.ones(span.high - span.low, dtype=torch.bool)


compare = Checker._wrong


def finds_the_next(self: Any, span: Any, slot: int, view: torch.Tensor) -> torch.Tensor:
    return compare(self, span, slot, view).roll(1)


def finds_nothing_within_a_tolerance(
    self: Any, span: Any, slot: int, view: torch.Tensor
) -> torch.Tensor:
    return compare(self, span, slot, view) & (self.tolerance == 0)


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        (finds_nothing, "a flipped bit was not found"),
        (finds_nothing_within_a_tolerance, "a flipped bit was not found"),
        (finds_the_next, "a flipped bit was found elsewhere"),
        (finds_all, "1000 elements that are right were found wrong"),
    ],
)
def test_a_check_that_shows_nothing_is_found_out(
    monkeypatch: pytest.MonkeyPatch, planted: Any, words: str
) -> None:
    monkeypatch.setattr(Checker, "_wrong", planted)
    assert why_blind("half", "cpu") == f"{words} (1000 elements of half)"


def test_a_device_that_does_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither fills nor flips nor compares: whatever memory holds is what is expected."""
    nothing = torch.zeros(PROBED, dtype=torch.int32)
    monkeypatch.setattr(Checker, "_read_span", lambda self, span, slot, windows: nothing)
    monkeypatch.setattr(check, "flip_bit", lambda buffer: None)
    assert "was not found" in why_blind("float", "cpu")


def values(tensor: torch.Tensor, case: Case) -> np.ndarray:
    return (tensor.to(torch.float64) if case.type.kind == "float" else tensor).numpy()


def simulate(case: Case, sends: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """What a correct library would put into the receive buffers, computed from the real send
    buffers by the table."""
    inputs: list[Any] = [values(send, case) for send in sends]
    if case.op == "premul_sum":
        inputs = [
            (data * premul_factor(rank)).astype(data.dtype) for rank, data in enumerate(inputs)
        ]
    if case.splits:
        sizes = splits.split_matrix(case.splits, case.n, case.nbytes, case.type.size)
        inputs = [
            np.split(data[: row.sum()], np.cumsum(row)[:-1])
            for data, row in zip(inputs, sizes, strict=True)
        ]
    combine = OPS[case.op].combine if case.row.reduces else np.add
    outcomes = case.row.result(inputs, combine, max(case.root, 0))
    if case.op == "avg":
        wide = case.type.kind == "float"
        outcomes = [
            data if data is None else data / case.n if wide else (data // case.n)
            for data in outcomes
        ]
    kind = getattr(torch, case.type.torch)
    return [None if data is None else torch.from_numpy(data).to(kind) for data in outcomes]


def played(
    case: Case, slot: int = 0, shift: int = 0, seed: int = 3
) -> tuple[list[Checker], list[torch.Tensor]]:
    """Every rank's checker and receive buffer after a correct collective."""
    checkers = [Checker(case, seed, rank, "cpu") for rank in range(case.n)]
    sends = [buffer(case, case.counts[0], shift) for _ in checkers]
    received = [buffer(case, case.counts[1], shift) for _ in checkers]
    for checker, send, recv in zip(checkers, sends, received, strict=True):
        checker.poison(recv)
        checker.fill_send(send, slot)
    for recv, outcome in zip(received, simulate(case, sends), strict=True):
        if outcome is not None:
            recv.view(SIGNED[case.type.size])[: len(outcome)] = outcome.view(SIGNED[case.type.size])
    return checkers, received


def expected_count(case: Case, rank: int) -> int:
    return sum(piece.length for piece in payload.recv_layout(case, rank) or ())


def all_right(case: Case, slot: int = 0, shift: int = 0) -> None:
    for rank, (checker, recv) in enumerate(zip(*played(case, slot, shift), strict=True)):
        assert checker.check_recv(recv, slot) == (expected_count(case, rank), 0, None)


@pytest.mark.parametrize("n", [1, 2, 4, 5])
@pytest.mark.parametrize("name", MOVING)
def test_correct_collectives_have_nothing_wrong(name: str, n: int) -> None:
    all_right(case_of(name, n, 1000))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_every_type_and_operator(dtype: str, op: str) -> None:
    if OPS[op].integers_only and DTYPES[dtype].kind == "float":
        pytest.skip("defined on integers only")
    for n in (3, 8):
        all_right(case_of("all_reduce", n, 777, dtype, op))
    all_right(case_of("reduce_scatter", 3, 50, dtype, op))
    all_right(case_of("scan", 3, 50, dtype, op))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["all_gather", "all_to_allv", "sendrecv"])
def test_copies_of_every_type(dtype: str, name: str) -> None:
    all_right(case_of(name, 3, 777, dtype))


@pytest.mark.parametrize("count", [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3])
@pytest.mark.parametrize("name", ["all_reduce", "all_to_all", "scatter"])
def test_windows_meet_without_a_seam(name: str, count: int) -> None:
    case = case_of(name, 2, count, "int8")
    all_right(case)
    send = buffer(case, case.counts[0])
    Checker(case, 9, 1, "cpu").fill_send(send, 5)
    stream = 0 if case.row.reduces else 1
    table = payload.make_tables(case, 9).send(1)
    assert (
        send.view(torch.uint8).numpy() == table[list_scenarios(9, 5, stream, 0, len(send))]
    ).all()


@pytest.mark.parametrize("shift", [1, 3])
def test_unaligned_buffers(shift: int) -> None:
    all_right(case_of("all_reduce", 3, 1000, "bfloat16"), shift=shift)
    all_right(case_of("gather", 3, 1000, "f8e5m2"), slot=2, shift=shift)


@pytest.mark.parametrize("dtype", ["float", "int64", "f8e4m3", "half", "uint32"])
@pytest.mark.parametrize("name", MOVING)
def test_one_flipped_bit_is_found(name: str, dtype: str) -> None:
    """At random places: exactly one wrong element, with its index and both values."""
    chance = random.Random(f"{name}{dtype}")
    case = case_of(name, 3, WINDOW // 2 + 10, dtype)
    checkers, received = played(case, slot=1)
    for rank, (checker, recv) in enumerate(zip(checkers, received, strict=True)):
        count = expected_count(case, rank)
        if not count:
            continue
        at, bit = chance.randrange(count), chance.randrange(case.type.size * 8)
        bits = recv.view(SIGNED[case.type.size])
        right = int(bits[at]) % (1 << case.type.size * 8)
        bits[at] = int(
            np.array(right ^ (1 << bit), f"u{case.type.size}").view(f"i{case.type.size}")
        )
        assert checker.check_recv(recv, 1) == (count, 1, Difference(at, right ^ (1 << bit), right))


def test_the_first_of_many_wrong_elements_is_named() -> None:
    case = case_of("all_gather", 3, WINDOW + 5, "int32")
    (checker, *_), (recv, *_) = played(case)
    for at in (len(recv) - 1, WINDOW + 7, 2 * WINDOW):
        recv[at] += 1
    checked, wrong, first = checker.check_recv(recv)
    assert (checked, wrong) == (len(recv), 3)
    assert (
        first is not None
        and first.at == WINDOW + 7
        and first.got == (first.expected + 1) % (1 << 32)
    )


@pytest.mark.parametrize("name", MOVING)
def test_misplaced_blocks_are_wrong_almost_everywhere(name: str) -> None:
    case = case_of(name, 4, 4000, "half")
    checkers, received = played(case)
    for checker, recv in zip(checkers, received, strict=True):
        for shift in (1, 4, 1000):
            checked, wrong, _ = checker.check_recv(
                recv.view(torch.int16).roll(shift).view(recv.dtype)
            )
            assert wrong >= 0.95 * checked


def test_other_slots_seeds_and_ranks_are_wrong() -> None:
    case = case_of("sendrecv", 3, 4000)
    checkers, received = played(case, slot=1)
    assert checkers[0].check_recv(received[0], 2).wrong > 3900
    assert checkers[0].check_recv(received[1], 1).wrong > 3900
    assert Checker(case, 4, 0, "cpu").check_recv(received[0], 1).wrong > 3900


def test_cases_of_a_run_share_tables_and_no_data() -> None:
    payload._make_tables.cache_clear()
    small, large = case_of("all_reduce", 3, 4000), case_of("all_reduce", 3, 8000)
    one, other = buffer(small, 4000), buffer(large, 8000)
    Checker(small, 1, 0, "cpu", key=1).fill_send(one)
    Checker(large, 1, 0, "cpu", key=2).fill_send(other)
    assert payload._make_tables.cache_info().misses == 1
    assert (one != other[:4000]).float().mean() > 0.97


def test_scenarios_are_drawn_once_for_all_sizes() -> None:
    backend = SimpleNamespace(control=None, device="cpu", premultiplies=False)
    board = SimpleNamespace(count_calls=print, beat=print)
    control = SimpleNamespace(groups=[[0, 1, 2]])
    bench: Any = SimpleNamespace(backend=backend, board=board, control=control, rank=0, ranks=[0])
    payload._make_tables.cache_clear()
    for count in (1000, 2000, 3000):
        Verification(bench, case_of("all_reduce", 3, count), Policy(), [], [])
    assert payload._make_tables.cache_info().misses == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["all_reduce", "all_gather"])
def test_poison_is_detected(name: str, dtype: str) -> None:
    case = case_of(name, 4, 5000, dtype)
    checker = Checker(case, 1, 1, "cpu")
    recv = buffer(case, case.counts[1])
    checker.poison(recv)
    checked, wrong, first = checker.check_recv(recv)
    coincidences = 0.01 if dtype == "uint8" else 0
    assert checked == len(recv) and wrong >= (1 - coincidences) * checked and first is not None
    if case.type.kind == "float":
        assert payload.format_bits(first.got, case.type).startswith("nan")


def test_zeroed_and_unreduced_buffers_are_detected() -> None:
    case = case_of("all_reduce", 8, 5000, "bfloat16")
    checker = Checker(case, 1, 1, "cpu")
    assert checker.check_recv(buffer(case, 5000)).wrong == 5000
    send = buffer(case, 5000)
    checker.fill_send(send)
    assert checker.check_recv(send).wrong > 4900


@pytest.mark.parametrize("name", [row.name for row in COLLECTIVES.values() if row.in_place])
def test_in_place(name: str) -> None:
    case = case_of(name, 3, 500, "half", in_place=True)
    checkers = [Checker(case, 1, rank, "cpu") for rank in range(3)]
    places = [payload.in_place_offsets(case, rank) for rank in range(3)]
    wholes = [buffer(case, place.total) for place in places]
    sends = [
        whole[p.send : p.send + case.counts[0]] for whole, p in zip(wholes, places, strict=True)
    ]
    recvs = [
        whole[p.recv : p.recv + case.counts[1]] for whole, p in zip(wholes, places, strict=True)
    ]
    for checker, whole, send in zip(checkers, wholes, sends, strict=True):
        checker.poison(whole)
        checker.fill_send(send)
    outcomes = simulate(case, [send.clone() for send in sends])
    for rank, (checker, recv, outcome) in enumerate(zip(checkers, recvs, outcomes, strict=True)):
        if outcome is None:
            assert checker.check_recv(recv) == (0, 0, None)
            continue
        if (
            not case.row.rooted or rank != case.root
        ):  # a root, and a scan's first rank, already holds its result
            assert checker.check_recv(recv).wrong > 0 or (name, rank) == ("scan", 0)
        recv.copy_(outcome)
        assert checker.check_recv(recv) == (len(recv), 0, None)


@pytest.mark.parametrize("dtype", ["half", "f8e5m2", "double", "float"])
def test_premultiplied_averages_may_be_two_units_off(dtype: str) -> None:
    case = case_of("all_reduce", 3, 1000, dtype, "avg")
    _, (recv, *_) = played(case)
    lenient, strict = Checker(case, 3, 0, "cpu", premultiplies=True), Checker(case, 3, 0, "cpu")
    ring = Checker(replace(case, algorithm="ring"), 3, 0, "cpu", premultiplies=True)
    bits = recv.view(SIGNED[case.type.size])
    for off, passes in ((1, True), (2, True), (-2, True), (3, False), (-3, False)):
        bits += off
        assert strict.check_recv(recv).wrong == ring.check_recv(recv).wrong == 1000
        assert lenient.check_recv(recv).wrong == (0 if passes else 1000)
        bits -= off
    lenient.poison(recv)
    assert lenient.check_recv(recv).wrong == 1000
    bits.fill_(torch.iinfo(bits.dtype).max)
    assert lenient.check_recv(recv).wrong == 1000


def test_exact_averages_tolerate_nothing() -> None:
    case = case_of("all_reduce", 4, 100, "float", "avg")
    _, (recv, *_) = played(case)
    recv.view(torch.int32)[7] += 1
    assert Checker(case, 3, 0, "cpu", premultiplies=True).check_recv(recv).wrong == 1


def test_what_lies_beyond_the_layout_is_left_alone() -> None:
    case = case_of("all_reduce", 2, 100, "int32")
    checker, roomy = Checker(case, 1, 0, "cpu"), torch.full((150,), 5, dtype=torch.int32)
    checker.fill_send(roomy)
    assert (roomy[100:] == 5).all() and (roomy[:100] != 5).any()


def test_buffers_that_cannot_hold_the_layout_are_refused() -> None:
    checker = Checker(case_of("all_reduce", 2, 100), 1, 0, "cpu")
    for bad in (torch.zeros(99), torch.zeros(10, 10), torch.zeros(200)[::2]):
        with pytest.raises(ValueError, match="at least 100 elements"):
            checker.fill_send(bad)
        with pytest.raises(ValueError, match="at least 100 elements"):
            checker.check_recv(bad)


def test_a_barrier_has_nothing_to_check() -> None:
    checker = Checker(Case(collective="barrier", backend="gloo", n=3, nbytes=0), 1, 0, "cpu")
    empty = torch.empty(0)
    checker.poison(empty)
    checker.fill_send(empty)
    assert checker.check_recv(empty) == (0, 0, None)


def test_every_window_of_a_buffer_is_a_sign_of_life() -> None:
    case, beats = case_of("all_gather", 2, 3 * WINDOW), [0]

    def beat() -> None:
        beats[0] += 1

    checker = Checker(case, 1, 0, "cpu", beat=beat)
    checker.fill_send(torch.zeros(3 * WINDOW, dtype=torch.int32))
    assert beats == [3]
    checker.check_recv(torch.zeros(6 * WINDOW, dtype=torch.int32))
    assert beats[0] >= 3 + 6
