"""Programs under any interleaving of ranks: nothing read too early, overwritten too soon or waited
for in a circle."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from interleaving import finish

from collbench.core import algorithms
from collbench.core.collectives import COLLECTIVES
from collbench.core.program import Bank, Program, Step, compile_program
from collbench.core.schedule import Schedule

Memory = dict[tuple[int, Bank, int], int]
GONE = -(1 << 60)


class Wrong(AssertionError):
    """A result differs, or ranks wait for each other for ever."""


def is_output(schedule: Schedule, in_place: bool, rank: int, cell: int) -> bool:
    return in_place and cell in schedule.output_cells(rank)


def life(
    rank: int, steps: list[Step], memory: Memory, progress: list[int], bring: Memory, took: Memory
) -> Iterator[bool]:
    """One rank, access by access, from the moment it comes with its input; yields whether it got
    anywhere."""
    memory.update(bring)
    for waits, actions, _, publish in steps:
        for peer, wanted in waits:
            while progress[peer] < wanted:
                yield False
        for bank, cell, cells, terms in actions:
            for k in range(cells):
                total = None
                for term in terms:
                    value = memory.get((term.rank, term.bank, term.cell + k), GONE)
                    total = value if total is None else total + value
                    if len(terms) > 1:
                        memory[rank, bank, cell + k] = total  # as executors do, term by term
                    yield True
                memory[rank, bank, cell + k] = total
        if publish:
            progress[rank] = publish
        yield True
    for place in [
        place for place in memory if place[0] == rank
    ]:  # the next call may write to all of it
        took[place] = memory[place]
        memory[place] = GONE


def execute(schedule: Schedule, program: Program, in_place: bool, rng: random.Random) -> None:
    n, row = schedule.n, schedule.row
    inputs = [[rng.randrange(1, 1 << 50) for _ in schedule.input_cells(rank)] for rank in range(n)]
    memory: Memory = {}
    bringing: list[Memory] = []
    took: Memory = {}
    for rank in range(n):
        own = schedule.input_cells(rank)
        banked = [
            Bank.OUTPUT if is_output(schedule, in_place, rank, cell) else Bank.INPUT for cell in own
        ]
        bringing.append(
            {(rank, *place): value for *place, value in zip(banked, own, inputs[rank], strict=True)}
        )
    progress = [0] * n
    live = {
        rank: life(rank, program.ranks[rank], memory, progress, bringing[rank], took)
        for rank in range(n)
    }
    if not finish(live, rng, 100 * n):
        raise Wrong("all wait for each other")
    if not schedule.has_data:
        return
    blocks = [np.array(values, object) for values in inputs]
    given = [block.reshape(-1, 1) for block in blocks] if row.uneven else blocks
    for rank, wanted in enumerate(row.result(given, lambda a, b: a + b, max(schedule.root, 0))):
        if wanted is None:
            continue
        got = [took[rank, Bank.OUTPUT, cell] for cell in schedule.output_cells(rank)]
        if got != np.ravel(wanted).tolist():
            raise Wrong(f"rank {rank}")


def programs(collective: str, name: str, n: int) -> Iterator[tuple[Schedule, Program, bool]]:
    variant, row = algorithms.find_variant(collective, name), COLLECTIVES[collective]
    if variant.refuse(n):
        return
    for root in sorted({0, n - 1} if row.rooted else {0}):
        for in_place in (False, True) if row.in_place else (False,):
            schedule = variant.schedule(n, root, ratio=3.0)
            yield schedule, compile_program(schedule, in_place), in_place


@pytest.mark.parametrize("key", sorted(algorithms.list_catalogue()), ids="-".join)
def test_any_interleaving_gives_the_result(key: tuple[str, str]) -> None:
    rng = random.Random(str(key))
    for n in (1, 2, 3, 4, 5, 6, 8, 9):
        for schedule, program, in_place in programs(*key, n):
            execute(schedule, program, in_place, rng)


@pytest.mark.parametrize(
    "key",
    [
        ("all_reduce", "ring"),
        ("all_reduce", "recursive_doubling"),
        ("broadcast", "chain"),
        ("all_to_all", "bruck"),
        ("scan", "recursive_doubling"),
    ],
    ids="-".join,
)
def test_every_wait_is_needed(key: tuple[str, str]) -> None:
    """Without it, some interleaving reads too early or overwrites too soon: none is idle, and the
    test above bites."""
    schedule, program, in_place = next(programs(*key, 4))
    rng = random.Random(1)
    for rank, steps in enumerate(program.ranks):
        for number, step in enumerate(steps):
            for wait in step.waits:
                less = [list(mine) for mine in program.ranks]
                less[rank][number] = step._replace(waits=tuple(w for w in step.waits if w != wait))
                with pytest.raises(Wrong):
                    for _ in range(400):
                        execute(schedule, program._replace(ranks=less), in_place, rng)


def test_a_barrier_holds_everyone_until_all_have_come() -> None:
    for name in ("dissemination", "central", "tree"):
        for n in (2, 3, 5, 8):
            ((_, program, _),) = programs("barrier", name, n)
            for late in range(n):
                progress, done = [0] * n, set()
                live = {
                    r: life(r, program.ranks[r], {}, progress, {}, {})
                    for r in range(n)
                    if r != late
                }
                for _ in range(50 * n):
                    done |= {
                        rank
                        for rank, rest in live.items()
                        if rank not in done and next(rest, None) is None
                    }
                assert not done, (name, n, late)


def test_results_of_symmetric_algorithms_are_combined_in_rank_order_everywhere() -> None:
    """So that all ranks round alike: one_shot's terms are sorted, in place too, where the result is
    put aside first."""
    for in_place in (False, True):
        program = compile_program(
            algorithms.find_variant("all_reduce", "one_shot").schedule(5), in_place
        )
        for steps in program.ranks:
            (terms,) = (
                action.terms for step in steps for action in step.actions if len(action.terms) > 1
            )
            assert [term.rank for term in terms] == [0, 1, 2, 3, 4]


def test_neighbouring_cells_are_moved_as_one() -> None:
    program = compile_program(
        algorithms.find_variant("all_reduce", "halving_doubling").schedule(8), False
    )
    assert [action.cells for step in program.ranks[0] for action in step.actions] == [
        4,
        2,
        1,
        1,
        2,
        4,
    ]


@pytest.mark.parametrize("name", ["reduce", "gather"])
def test_no_rank_copies_into_an_output_that_nothing_defines(name: str) -> None:
    (algorithm, *_) = algorithms.list_algorithms(name)
    schedule = algorithms.find_variant(name, algorithm.name).schedule(4, 1)
    program = compile_program(schedule, in_place=False)
    copies = [
        [
            action
            for step in steps
            for action in step.actions
            if action.bank == Bank.OUTPUT and [term[:2] for term in action.terms] == [(rank, 0)]
        ]
        for rank, steps in enumerate(program.ranks)
    ]
    assert [bool(made) for made in copies] == [False, name == "gather", False, False]
