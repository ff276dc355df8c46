"""Shared memory's scripts under any interleaving: slices, scratch that calls share, buffers that
take turns."""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from interleaving import cases, finish
from marks import long

from collbench.core.errors import CannotRun
from collbench.core.program import Bank
from collbench.run.backends import _memory, _shm
from collbench.run.backends._compiled import Compiled
from collbench.run.rank.control import Control
from collbench.suite.case import Case

Row = list[dict[Bank, torch.Tensor]]


class World:
    """All ranks of one case in one process: ``slots`` of buffers, one scratch, and the counters."""

    def __init__(self, case: Case, slots: int) -> None:
        self.case, self.counters = case, [0] * (case.n * _shm.LINE)
        compiled = Compiled(case, 64.0, waits=True)
        scratch = [
            {bank: self._bytes(compiled.row_bytes) for bank in (Bank.SCRATCH, Bank.SPARE)}
            for _ in range(case.n)
        ]
        self.rows: list[Row] = []
        for _ in range(slots):
            self.rows.append([self._buffers(rank) | scratch[rank] for rank in range(case.n)])
        self.scripts = [
            [_shm._Script(compiled, case, rank, row) for rank in range(case.n)] for row in self.rows
        ]

    @staticmethod
    def _bytes(length: int) -> torch.Tensor:
        return torch.zeros(length, dtype=torch.uint8)

    def _buffers(self, rank: int) -> dict[Bank, torch.Tensor]:
        case = self.case
        send, recv = (count * 8 for count in case.counts)
        if not case.in_place:
            return {Bank.INPUT: self._bytes(send), Bank.OUTPUT: self._bytes(recv)}
        at, to, total = (8 * place for place in case.row.overlay(case.n, case.count, rank))
        whole = self._bytes(total)
        return {Bank.INPUT: whole[at : at + send], Bank.OUTPUT: whole[to : to + recv]}

    def life(
        self, rank: int, turns: list[int], inputs: list[list[np.ndarray]], wrong: list[str]
    ) -> Iterator[bool]:
        """One rank's calls, operation by operation; the caller changes its buffers as soon as a
        call returns."""
        base = 0
        for call, slot in enumerate(turns):
            buffers, script = self.rows[slot][rank], self.scripts[slot][rank]
            buffers[Bank.OUTPUT].fill_(0x5A)
            yield True
            buffers[Bank.INPUT].copy_(torch.from_numpy(inputs[call][rank]).view(torch.uint8))
            yield True
            for waits, operations, publish in script.lines():
                for at, progress in waits:
                    while self.counters[at] < base + progress:
                        yield False
                for function, arguments in operations:
                    function(*arguments)
                    yield True
                if publish:
                    assert self.counters[rank * _shm.LINE] < base + publish
                    self.counters[rank * _shm.LINE] = base + publish
                yield True
            base += script.span
            wanted = self.case.row.result(inputs[call], np.add, max(self.case.root, 0))[rank]
            if (
                wanted is not None
                and buffers[Bank.OUTPUT].numpy().view(np.int64).tolist() != wanted.tolist()
            ):
                wrong.append(f"call {call} rank {rank}")


def interleave(case: Case, rng: random.Random) -> list[str]:
    world, turns = World(case, 2), [rng.randrange(2) for _ in range(3)]
    sent = case.counts[0]
    inputs = [
        [np.array([rng.randrange(1, 1 << 40) for _ in range(sent)]) for _ in range(case.n)]
        for _ in turns
    ]
    wrong: list[str] = []
    live = {rank: world.life(rank, turns, inputs, wrong) for rank in range(case.n)}
    return wrong if finish(live, rng, 200 * case.n) else ["all wait for each other"]


@pytest.mark.parametrize("n", [2, 3, long(4)])
def test_calls_in_slices_back_to_back_are_right_in_any_order(
    monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.setattr(_shm, "SLICE_BYTES", 64)
    monkeypatch.setattr(_shm, "PIECE_BYTES", 8)
    rng = random.Random(n)
    slices = set()
    for case in cases("shm", n, 8 * 41, "int64"):
        assert interleave(case, rng) == [], case.key
        slices.add(World(case, 1).scripts[0][0].span)
    assert len(slices) > 5  # of one and of many slices


def test_a_script_that_does_not_wait_at_the_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line waits until all have read: without it the next call overwrites what a peer
    still reads."""
    lines = _shm._Script.lines
    monkeypatch.setattr(_shm._Script, "lines", lambda self: iter(list(lines(self))[:-1]))
    case = next(
        case
        for case in cases("shm", 3, 8 * 41, "int64")
        if (case.collective, case.algorithm) == ("all_gather", "ring")
    )
    rng = random.Random(1)
    assert any(interleave(case, rng) for _ in range(50))


class Refusing(Control):
    """A control group of two, of which the other rank maps its own memory only."""

    def collect(self, value: Any) -> list[Any]:
        return [value, value if value else ["planted", "a hint"]]


def test_memory_that_another_rank_cannot_map_is_refused_on_this_one_too() -> None:
    with pytest.raises(CannotRun, match="planted"):
        _memory.share_memory(Refusing(0, 1), mmap.PAGESIZE)
