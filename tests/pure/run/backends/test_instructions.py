"""Tapes, walked by a few lines of Python (taped.py), with ranks and channels taking turns in any
order."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from interleaving import cases as every
from interleaving import finish
from marks import long
from taped import decoded, span, walk

from collbench.core.program import Bank, Term
from collbench.run.backends import _instructions
from collbench.run.backends._compiled import Compiled
from collbench.run.backends._instructions import ADDRESSES, Opcode
from collbench.suite.case import Case

PEERS = 3  # at once in an instruction: less than some wait for
BANKS = (Bank.INPUT, Bank.OUTPUT, Bank.SCRATCH, Bank.SPARE)


@functools.cache
def compile_case(case: Case) -> Compiled:
    """Compile a case, once for all the ways that its buffers may lie."""
    return Compiled(case, 64.0, waits=True)


class World:
    """All ranks of one case in one array of bytes: buffers, scratch, and for each channel what
    its peers have told it."""

    def __init__(self, case: Case, parts: int, past: int = 0) -> None:
        self.case, self.parts = case, parts
        self.compiled = compile_case(case)
        self.kind = np.dtype(case.dtype)
        room = -(-(self.compiled.row_bytes + past) // 64) * 64
        self.bases = np.zeros((case.n, ADDRESSES), np.int64)
        for rank in range(case.n):
            self.bases[rank] = [(rank * len(BANKS) + bank) * room + past for bank in BANKS] + [rank]
            if case.in_place:
                at, to, _ = case.row.overlay(case.n, case.count, rank)
                self.bases[rank, :2] = [
                    self.bases[rank, 0] + at * case.type.size,
                    self.bases[rank, 0] + to * case.type.size,
                ]
        self.memory = np.zeros(case.n * len(BANKS) * room + 64, np.uint8)
        self.words = _instructions.write_tape(
            case, self.compiled, range(case.n), parts, self.bases, PEERS
        )
        self.lists = {
            (r, c): decoded(self.words, r * parts + c) for r in range(case.n) for c in range(parts)
        }
        self.progress = Counter[tuple[int, int, int]]()

    def at(self, address: int, past: int, count: int) -> np.ndarray:
        start = int(self.bases.flat[address]) + past
        return self.memory[start : start + count * self.kind.itemsize].view(self.kind)

    def row(self, rank: int, bank: Bank) -> np.ndarray:
        return self.at(rank * ADDRESSES + bank, 0, self.case.counts[bank])

    def walk(self, rank: int, channel: int, base: int) -> Iterator[bool]:
        own = rank, channel
        return walk(self.lists[own], own, base, self.progress, self.at)

    def life(
        self,
        rank: int,
        channel: int,
        inputs: list[list[np.ndarray]],
        done: Counter[int],
        wrong: list[str],
    ) -> Iterator[bool]:
        """One channel's calls; the last one to end a call compares, and changes all before the next
        begins."""
        for call, given in enumerate(inputs):
            while done[rank] < call * (self.parts + 1):
                yield False  # another channel is still in the last call
            if channel == 0:
                self.row(rank, Bank.OUTPUT)[:] = 77
                self.row(rank, Bank.INPUT)[:] = given[rank]
                done[rank] += 1
            while done[rank] < call * (self.parts + 1) + 1:
                yield False  # the input is not there yet
            yield from self.walk(rank, channel, call * span(self.words))
            done[rank] += 1
            if done[rank] == (call + 1) * (self.parts + 1):
                wanted = self.case.row.result(given, np.add, max(self.case.root, 0))[rank]
                if wanted is not None:
                    wanted = wanted // self.case.n if self.case.op == "avg" else wanted
                    if self.row(rank, Bank.OUTPUT).tolist() != wanted.tolist():
                        wrong.append(f"call {call} rank {rank}")


def interleave(world: World, rng: random.Random, calls: int = 2) -> list[str]:
    case = world.case
    inputs = [
        [
            np.array([rng.randrange(100) for _ in range(case.counts[0])], world.kind)
            for _ in range(case.n)
        ]
        for _ in range(calls)
    ]
    wrong: list[str] = []
    done = Counter[int]()
    lives = {
        number: world.life(*key, inputs, done, wrong) for number, key in enumerate(world.lists)
    }  # every (rank, channel)
    return wrong if finish(lives, rng, 400 * len(lives)) else ["all wait for each other"]


def cases(n: int, count: int, dtype: str = "int32") -> Iterator[Case]:
    """By elements, and with means in place."""
    return every("symm", n, count * np.dtype(dtype).itemsize, dtype, "avg")


@pytest.mark.parametrize(
    ("n", "parts"),
    [(1, 3), (2, 3), (3, 1), (3, 3), (4, 1), (5, 3), long(4, 3), long(8, 1), long(8, 3)],
)
def test_every_algorithm_is_right_in_any_order_of_ranks_and_channels(n: int, parts: int) -> None:
    rng = random.Random(n * 10 + parts)
    for count in (1, 41):
        for case in cases(n, count):
            assert interleave(World(case, parts, past=4), rng) == [], (case.key, parts)


@pytest.mark.parametrize("which", ["data", "leaving"])
def test_a_wait_left_out_is_caught(which: str) -> None:
    """So the test above bites, on every channel: for values that are not there yet, and at the end
    of a call."""
    case = next(
        case for case in cases(3, 41) if (case.collective, case.algorithm) == ("all_gather", "ring")
    )
    rng = random.Random(1)
    for channel in (0, 1):
        caught = False
        for _ in range(50):
            world = World(case, 2)
            for rank in range(3):
                own = world.lists[rank, channel]
                waits = [
                    k
                    for k, (opcode, peers, *_) in enumerate(own)
                    if opcode == Opcode.WAIT and peers
                ]
                del own[waits[-1 if which == "leaving" else 0]]
            caught = caught or interleave(world, rng, 3) != []
        assert caught, channel


def operands(world: World) -> Iterator[tuple[int, bool, list[int], int]]:
    """Of every move and division: its channel, its flag, the addresses of its operands, and their
    length in bytes."""
    for (_, channel), own in world.lists.items():
        for opcode, *words in own:
            if opcode in (Opcode.MOVE, Opcode.DIVIDE):
                wide, count, *pairs = words[1:] if opcode == Opcode.MOVE else words[:4]
                places = zip(pairs[::2], pairs[1::2], strict=True)
                addresses = [int(world.bases.flat[address]) + past for address, past in places]
                yield channel, bool(wide), addresses, count * world.kind.itemsize


@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_wide_access_is_flagged_where_everything_is_a_multiple_of_16_bytes(dtype: str) -> None:
    seen = Counter[bool]()
    for case in (case for count in (41, 256) for case in cases(4, count, dtype)):
        for parts, past in ((3, 0), (1, 8)):
            for _, wide, addresses, length in operands(World(case, parts, past)):
                assert wide == (not any(at % 16 for at in (*addresses, length)))
                assert length
                seen[wide] += 1
    assert min(seen[True], seen[False]) > 500


def test_channels_of_round_sizes_are_all_wide() -> None:
    """Where cells are multiples of 16 bytes, so are the thirds that they are cut into."""
    worlds = [World(case, 3) for case in cases(4, 1024)]
    even = [world for world in worlds if not 4096 % (16 * world.compiled.schedule.cells)]
    assert len(even) > 30
    for world in even:
        assert all(wide for _, wide, _, _ in operands(world)), world.case.key


def test_no_channel_touches_what_another_writes() -> None:
    for case in cases(4, 41):
        world = World(case, 3)
        owner = np.full(len(world.memory), -1)
        for only_targets in (True, False):
            for channel, _, addresses, length in operands(world):
                for start in addresses[:1] if only_targets else addresses[1:]:
                    span = owner[start : start + length]
                    assert set(span.tolist()) <= {-1, channel}, case.key
                    if only_targets:
                        span[:] = channel


def test_small_messages_have_one_channel_and_large_ones_as_many_as_there_may_be() -> None:
    found = []
    for nbytes in (8, 64 << 10, 128 << 10, 1 << 30):
        case = Case(
            collective="all_reduce", backend="symm", n=4, nbytes=nbytes, algorithm="ring", op="sum"
        )
        found.append(_instructions.count_channels(Compiled(case, 64.0, waits=True), 33))
    assert found == [1, 2, 4, 33]


def test_parts_of_a_cell_are_cut_on_the_grain_and_make_up_the_whole() -> None:
    case = Case(
        collective="broadcast", backend="symm", n=2, nbytes=4 * 1003, algorithm="binomial", root=0
    )
    compiled = Compiled(case, 64.0, waits=True)
    spots = [next(compiled.spots(Term(0, Bank.INPUT, 0), 1, part, 5, 4)) for part in range(5)]
    assert [spot.start % 16 for spot in spots] == [0] * 5
    assert [spot.start for spot in spots[1:]] == [spot.stop for spot in spots[:-1]]
    assert (spots[0].start, spots[-1].stop) == (0, 4 * 1003)


@pytest.mark.parametrize("past", [0, 4])
def test_what_is_left_of_16_bytes_moves_by_itself_and_all_else_wide(past: int) -> None:
    case = Case(
        collective="broadcast", backend="symm", n=2, nbytes=4 * 1003, algorithm="binomial", root=0
    )
    world = World(case, 5, past)
    moves = [move[2:4] for own in world.lists.values() for move in own if move[0] == Opcode.MOVE]
    assert sum(elements for _, elements in moves) == 2 * 1003
    narrow = [elements for wide, elements in moves if not wide]
    assert narrow == [3, 3] if past == 0 else sum(narrow) == 2 * 1003


def test_a_barrier_holds_everyone_until_all_have_come() -> None:
    for name in ("dissemination", "central", "tree"):
        case = Case(collective="barrier", backend="symm", n=5, nbytes=0, algorithm=name)
        for late in range(5):
            world = World(case, 1)
            lives = {rank: world.walk(rank, 0, 0) for rank in range(5) if rank != late}
            for _ in range(100):
                assert all(next(life, None) is not None for life in lives.values()), (name, late)


def test_a_meeting_waits_for_all_others_in_as_many_waits_as_it_takes() -> None:
    words = _instructions.write_barrier(2, 6, PEERS)
    assert span(words) == 1
    *told, first, second = decoded(words, 0)
    assert told == [(Opcode.PUBLISH, 3, 1, 0, 1, 3), (Opcode.PUBLISH, 2, 1, 4, 5)]
    waits = [first, second]
    assert [wait[:2] for wait in waits] == [(Opcode.WAIT, 3), (Opcode.WAIT, 2)]
    assert {pair for wait in waits for pair in zip(wait[2::2], wait[3::2], strict=True)} == {
        (peer, 1) for peer in (0, 1, 3, 4, 5)
    }


@pytest.mark.parametrize("n", [1, 2, 3, 5, long(8)])
def test_who_waits_is_told_and_nobody_else(n: int) -> None:
    """Every progress is told to a peer once, where that peer waits for it in the same call: then
    nobody writes into another's memory after it."""
    for case in cases(n, 41):
        world = World(case, 2)
        told, awaited = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
        for (rank, channel), own in world.lists.items():
            for opcode, _, *words in own:
                if opcode == Opcode.PUBLISH:
                    told.update((rank, words[0], peer, channel) for peer in words[1:])
                elif opcode == Opcode.WAIT:
                    pairs = zip(words[::2], words[1::2], strict=True)
                    awaited.update((*pair, rank, channel) for pair in pairs)
        assert told == awaited, case.key
        assert max(told.values(), default=1) == 1 and bool(told) == (n > 1)


def test_a_line_of_progress_shares_no_cache_line_with_another_channels() -> None:
    assert [_instructions.line_bytes(n) for n in (1, 15, 16, 132)] == [128, 128, 256, 1152]


def test_tapes_of_some_ranks_are_those_of_all() -> None:
    case = next(iter(cases(4, 41)))
    world = World(case, 2)
    words = _instructions.write_tape(case, world.compiled, range(2, 3), 2, world.bases, PEERS)
    assert [decoded(words, channel) for channel in range(2)] == [
        world.lists[2, channel] for channel in range(2)
    ]
    assert span(words) == span(world.words)


def test_means_are_taken_once_nobody_reads_the_sums() -> None:
    """A division follows the last wait for peers; and where a rank's result is undefined there is
    none."""
    case = Case(
        collective="reduce",
        backend="symm",
        n=4,
        nbytes=400,
        algorithm="binomial",
        op="avg",
        root=1,
        dtype="int32",
    )
    world = World(case, 2)
    for (rank, _), own in world.lists.items():
        codes = [instruction[0] for instruction in own]
        assert (Opcode.DIVIDE in codes) == (rank == 1)
        if rank == 1:
            assert codes[-2:] == [Opcode.WAIT, Opcode.DIVIDE]
