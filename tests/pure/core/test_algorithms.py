"""Every algorithm proved, run over numbers, and held against the worked examples of the field."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from collbench.cli import list_, main
from collbench.core import algorithms
from collbench.core.algorithms import Algorithm, Variant, rooted
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.core.schedule import Schedule, prove_schedule, run_schedule

CATALOGUE = algorithms.list_catalogue()
EVERY = [pytest.param(row, id=f"{row.collective}-{row.name}") for row in CATALOGUE.values()]
ALL_AT_ONCE = {  # messages that a rank of n sends in a step, where they are more than one
    ("all_reduce", "one_shot"): lambda n: n - 1,
    ("all_reduce", "two_shot"): lambda n: n - 1,
    ("all_to_all", "linear"): lambda n: n - 1,
}


def outputs(schedule: Schedule, inputs: list[list[Any]]) -> list[list[Any] | None]:
    """What each rank ends with; None where the collective leaves it undefined."""
    for state in run_schedule(schedule, inputs, lambda a, b: a + b):
        last = state
    defined = [not schedule.row.rooted or rank == schedule.root for rank in range(schedule.n)]
    if schedule.collective in ("broadcast", "scatter"):
        defined = [True] * schedule.n
    cells = [list(last[rank][list(schedule.output_cells(rank))]) for rank in range(schedule.n)]
    return [have if known else None for have, known in zip(cells, defined, strict=True)]


def first(name: str, n: int, root: int = 0) -> Iterator[Schedule]:
    """Every algorithm for a collective that runs on n ranks."""
    for row in algorithms.list_algorithms(name):
        if not Variant(row).refuse(n):
            yield Variant(row).schedule(n, root)


@pytest.mark.parametrize("algorithm", EVERY)
def test_is_right_for_1_to_33_ranks(algorithm: Algorithm) -> None:
    wanted = (*range(1, 14), 16, 17, 25, 32, 33)
    possible = [n for n in wanted if not Variant(algorithm).refuse(n)]
    assert len(possible) >= 5
    for n in possible:
        assert prove_schedule(Variant(algorithm).schedule(n)) == [], n


@pytest.mark.parametrize(
    "algorithm", [row for row in EVERY if COLLECTIVES[row.values[0].collective].rooted]
)
def test_is_right_for_every_root(algorithm: Algorithm) -> None:
    for n in (1, 2, 3, 4, 5, 7, 8):
        for root in range(n):
            schedule = Variant(algorithm).schedule(n, root)
            assert schedule.root == root
            assert prove_schedule(schedule) == [], (n, root)
            if n > 1:
                assert prove_schedule(schedule._replace(root=(root + 1) % n)), (
                    "another root's schedule cannot be right"
                )


@pytest.mark.parametrize("algorithm", [row for row in EVERY if row.values[0].parameters])
def test_is_right_with_every_parameter(algorithm: Algorithm) -> None:
    (parameter,) = algorithm.parameters
    for n in (1, 2, 3, 5, 6, 8, 12):
        for value in (1, 2, 3, 4, 7):
            variant = algorithms.find_variant(
                algorithm.collective, f"{algorithm.name}:{parameter}={value}"
            )
            if not variant.refuse(n):
                schedule = variant.schedule(n, n // 2)
                assert schedule.name == f"{algorithm.name}:{parameter}={value}"
                assert prove_schedule(schedule) == [], (n, value)


@pytest.mark.parametrize("algorithm", EVERY)
def test_over_numbers_gives_what_the_table_says(algorithm: Algorithm) -> None:
    rng = np.random.default_rng(1)
    row = COLLECTIVES[algorithm.collective]
    for n in (n for n in (1, 2, 3, 4, 5, 8, 12) if not Variant(algorithm).refuse(n)):
        schedule = Variant(algorithm).schedule(n, n - 1)
        if not schedule.has_data:
            heard = [[frozenset({rank})] for rank in range(n)]
            *_, last = run_schedule(schedule, heard, lambda a, b: a | b)
            assert {cell for (cell,) in last} == {frozenset(range(n))}
            continue
        sent = row.counts(n, schedule.cells)[0]
        inputs = rng.integers(-(10**12), 10**12, (n, sent))
        cut: Any = [np.split(values, n) for values in inputs] if row.uneven else inputs
        wanted = [
            None if out is None else out.tolist() for out in row.result(cut, np.add, schedule.root)
        ]
        assert outputs(schedule, inputs.tolist()) == wanted


START = [[1 + 2 * rank, 2 + 2 * rank] for rank in range(4)]
WHOLE = [1, 2, 3, 4, 5, 6, 7, 8]
EXAMPLES = [
    ("broadcast", 0, START, [[1, 2]] * 4),
    ("scatter", 0, [[0, 0, 1, 1, 2, 2, 3, 3]] + [[9] * 8] * 3, [[0, 0], [1, 1], [2, 2], [3, 3]]),
    ("gather", 0, START, [WHOLE, None, None, None]),
    ("all_gather", 0, START, [WHOLE] * 4),
    ("reduce", 3, START, [None, None, None, [16, 20]]),
    ("all_reduce", 0, START, [[16, 20]] * 4),
    ("scan", 0, START, [[1, 2], [4, 6], [9, 12], [16, 20]]),
    ("sendrecv", 0, START, [[7, 8], [1, 2], [3, 4], [5, 6]]),
    ("reduce_scatter", 0, [WHOLE] * 4, [[4, 8], [12, 16], [20, 24], [28, 32]]),
    (
        "all_to_all",
        0,
        [[10 * i + j for j in range(4)] for i in range(4)],
        [[j, 10 + j, 20 + j, 30 + j] for j in range(4)],
    ),
]


@pytest.mark.parametrize(
    ("name", "root", "inputs", "wanted"), EXAMPLES, ids=[row[0] for row in EXAMPLES]
)
def test_the_worked_example_of_four_ranks(name: str, root: int, inputs: Any, wanted: Any) -> None:
    for schedule in first(name, 4, root):
        blocks, k = COLLECTIVES[name].counts(4, 1)[0], schedule.cells
        size = len(inputs[0]) // blocks
        bounds = [b * size + size * i // k for b in range(blocks) for i in range(k)] + [
            blocks * size
        ]
        cut = [[values[bounds[i] : bounds[i + 1]] for i in range(blocks * k)] for values in inputs]
        arrays = [[np.array(piece, int) for piece in pieces] for pieces in cut]
        got = [
            None if row is None else np.concatenate(row).tolist()
            for row in outputs(schedule, arrays)
        ]
        assert got == wanted, schedule.name


def test_the_ring_of_three_ranks_step_by_step() -> None:
    ring = algorithms.find_variant("all_reduce", "ring").schedule(3)
    states = [
        state.copy()
        for state in run_schedule(ring, [[2, 4, 6], [1, 2, 3], [4, 8, 12]], lambda a, b: a + b)
    ]
    assert len(states) == 1 + 2 + 2  # the start, M - 1 steps that reduce, M - 1 that broadcast
    assert [{move.reduce for move in step} for step in ring.steps()] == [
        {True},
        {True},
        {False},
        {False},
    ]
    whole = [7, 14, 21]
    assert [[row[cell] == whole[cell] for row in states[2]].count(True) for cell in range(3)] == [
        1,
        1,
        1,
    ]
    assert len({tuple(row == whole) for row in states[2]}) == 3  # and on three different ranks
    assert states[4].tolist() == [whole] * 3


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_identities_between_collectives(n: int) -> None:
    def then(before: str, after: str) -> None:
        for one in first(before, n):
            for two in first(after, n):
                middle = [row or [-1] for row in outputs(one, [parts(one, row) for row in inputs])]
                got = outputs(two, [parts(two, joined(row)) for row in middle])
                assert [joined(row) for row in got] == whole, (one.name, two.name)

    def parts(schedule: Schedule, values: list[int]) -> list[Any]:
        pieces = schedule.row.counts(n, schedule.cells)[0]
        return [np.array(piece) for piece in np.array_split(values, pieces)]

    def joined(row: list[Any] | None) -> list[int]:
        return np.concatenate([np.atleast_1d(piece) for piece in row or []]).tolist()

    rng = np.random.default_rng(n)
    length = 8 * n * n  # so that all cuts come out even
    inputs = rng.integers(-99, 99, (n, length)).tolist()
    whole = [np.sum(inputs, axis=0).tolist()] * n
    then("reduce_scatter", "all_gather")
    then("reduce", "broadcast")
    for schedule in first("all_reduce", n):
        assert [
            joined(row) for row in outputs(schedule, [parts(schedule, row) for row in inputs])
        ] == whole
    whole = [np.concatenate(inputs).tolist()] * n
    then("gather", "broadcast")
    for schedule in first("all_gather", n):
        assert [
            joined(row) for row in outputs(schedule, [parts(schedule, row) for row in inputs])
        ] == whole


def most_at_once(schedule: Schedule) -> int:
    """The most messages any rank sends, or receives, in one step; cells between the same two ranks
    are one."""
    most = 0
    for moves in schedule.steps():
        pairs = {(move.src, move.dst) for move in moves if move.src != move.dst}
        for end in (0, 1):
            ranks = [pair[end] for pair in pairs]
            most = max([most, *(ranks.count(rank) for rank in set(ranks))])
    return most


@pytest.mark.parametrize("algorithm", EVERY)
def test_one_port(algorithm: Algorithm) -> None:
    count_messages = ALL_AT_ONCE.get((algorithm.collective, algorithm.name), lambda n: 1)
    for n in (n for n in (2, 3, 4, 5, 8, 9, 16) if not Variant(algorithm).refuse(n)):
        most = most_at_once(Variant(algorithm).schedule(n, n // 2))
        assert most == count_messages(n), (
            f"{most} messages of a rank in a step where n = {n}: ALL_AT_ONCE, above, says how many"
        )


def test_where_an_algorithm_cannot_run_it_says_why() -> None:
    assert "power of two" in str(
        algorithms.find_variant("all_gather", "recursive_doubling").refuse(6)
    )
    assert not algorithms.find_variant("all_gather", "recursive_doubling").refuse(8)
    assert "groups of 4 do not divide 6" in str(
        algorithms.find_variant("all_reduce", "hierarchical:group=4").refuse(6)
    )
    assert "even number" in str(
        algorithms.find_variant("all_gather", "neighbour_exchange").refuse(3)
    )
    with pytest.raises(UsageError, match="all_reduce swing: needs a power of two"):
        algorithms.find_variant("all_reduce", "swing").schedule(6)
    reason = algorithms.find_variant("all_reduce", "torus2d").refuse(1)
    assert reason == "needs a grid of two dimensions, not 1 rank"
    with pytest.raises(UsageError, match="root 4 does not exist among 4 ranks"):
        algorithms.find_variant("reduce", "binomial").schedule(4, 4)
    with pytest.raises(UsageError, match=r"root 1 does not exist among 1 rank$"):
        algorithms.find_variant("reduce", "binomial").schedule(1, 1)


def test_finding_by_name_alias_and_parameters() -> None:
    assert algorithms.find_variant("allreduce", "tree").algorithm.name == "reduce_broadcast"
    chain = algorithms.find_variant("bcast", "chain:segments=7")
    assert (chain.schedule(4).name, chain.schedule(4).cells) == ("chain:segments=7", 7)
    assert len(list(chain.schedule(4).steps())) == 7 + 4 - 2


@pytest.mark.parametrize(
    ("name", "text", "message", "hint"),
    [
        ("all_reduce", "rinng", "all_reduce has no algorithm 'rinng'", "ring"),
        ("broadcast", "chain:size=3", "broadcast chain: 'size=3'", "chain:segments=4"),
        ("broadcast", "chain:segments=0", "broadcast chain: 'segments=0'", "chain:segments=4"),
        ("broadcast", "chain:segments", "broadcast chain: 'segments'", "chain:segments=4"),
        ("all_reduce", "ring:segments=2", "all_reduce ring: 'segments=2'", "no parameters"),
        ("all_redcue", "ring", "unknown collective 'all_redcue'", "all_reduce"),
    ],
)
def test_what_cannot_be_found_is_explained(name: str, text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        algorithms.find_variant(name, text)
    assert message in caught.value.message and hint in caught.value.hint


NEW_FAMILY = """
    from collbench.core.algorithms import Algorithm, around, one_each
    from collbench.core.schedule import Moves

    def left_ring(n, cells):
        turn = around(n)
        for step in range(n - 1):
            yield Moves(turn(0), turn(-1), turn(step + 1), reduce=True)
        for step in range(n - {steps}):
            yield Moves(turn(0), turn(-1), turn(step))

    ALGORITHMS = (Algorithm("left_ring", "all_reduce", left_ring, "Nobody 2001, The other way round", one_each),)
"""  # noqa: E501


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Write a file into the package of algorithms, as far as Python can see; gone after the
    test."""

    def write(text: str) -> None:
        (tmp_path / "newcomer.py").write_text(textwrap.dedent(text))
        monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
        algorithms.list_catalogue.cache_clear()

    yield write
    sys.modules.pop("collbench.core.algorithms.newcomer", None)
    vars(algorithms).pop("newcomer", None)
    algorithms.list_catalogue.cache_clear()


def collbench(*args: str) -> Result:
    return CliRunner().invoke(main.app, args)


def test_the_ring_the_other_way_takes_a_textbooks_steps() -> None:
    """Device 2 sends partition 1 to device 1, device 1 sends 3 to device 3, device 3 sends 2 to
    device 2; half way the sums 14, 21 and 7 are on devices 1, 2 and 3."""
    ring = algorithms.find_variant("all_reduce", "ring:down").schedule(3)
    first = next(ring.steps())
    assert {(move.src + 1, move.chunk + 1, move.dst + 1) for move in first} == {
        (2, 1, 1),
        (1, 3, 3),
        (3, 2, 2),
    }
    inputs = [[2, 4, 6], [1, 2, 3], [4, 8, 12]]
    states = [state.copy() for state in run_schedule(ring, inputs, lambda a, b: a + b)]
    whole = [7, 14, 21]
    assert [[sum_ for sum_ in row if sum_ in whole] for row in states[2].tolist()] == [
        [14],
        [21],
        [7],
    ]
    assert states[4].tolist() == [whole] * 3


def test_an_algorithm_in_a_file_of_its_own_is_listed_proved_drawn_and_predicted(
    family: Any,
) -> None:
    family(NEW_FAMILY.format(steps=1))
    assert any("left_ring" in row[1] for row in list_.list_tables()["Algorithms"])
    proved = collbench("prove", "all_reduce", "left_ring")
    assert (
        proved.exit_code == 0
        and "left_ring  1..33" in proved.output
        and "Nobody 2001" in proved.output
    )
    drawn = collbench(
        "show", "all_reduce", "left_ring", "-n", "3", "--values", "2,4,6;1,2,3;4,8,12"
    )
    assert drawn.exit_code == 0 and "every rank ends with [7, 14, 21]" in drawn.output
    predicted = collbench(
        "predict",
        "all_reduce",
        "-n",
        "4",
        "--algo",
        "left_ring,ring",
        "--format",
        "csv",
        "-e",
        "1K",
    )
    assert predicted.exit_code == 0, predicted.output
    assert "left_ring" in predicted.output
    written = collbench("export", "all_reduce", "left_ring", "-n", "4", "--to", "json")
    assert written.exit_code == 0 and "left_ring" in written.output


def test_a_wrong_algorithm_is_refused_with_its_faults(family: Any) -> None:
    family(NEW_FAMILY.format(steps=2))
    proved = collbench("prove", "all_reduce", "left_ring", "-n", "4")
    assert proved.exit_code == 7
    faults = [line for line in proved.output.splitlines() if "lacks the contribution" in line]
    assert len(faults) == 1 and "missing for n = 4, 4 cells; first: n=4: rank 0" in faults[0]
    assert collbench("prove", "all_reduce", "ring", "-n", "4").exit_code == 0


def test_a_rooted_algorithm_is_proved_for_the_root_0_and_another(family: Any) -> None:
    text = (
        NEW_FAMILY.format(steps=2)
        .replace("all_reduce", "broadcast")
        .replace("(turn(0)", "(turn(0)[1:]")
    )
    family(
        text.replace("turn(-1),", "turn(-1)[1:],")
        .replace("turn(step + 1)", "0")
        .replace("turn(step)", "0")
    )
    proved = collbench("prove", "broadcast", "left_ring", "-n", "4")
    assert proved.exit_code == 7
    assert "for n = 4, root 0,2, " in proved.output


def test_without_the_file_the_algorithm_is_gone() -> None:
    assert algorithms.list_catalogue() == CATALOGUE
    with pytest.raises(UsageError):
        algorithms.find_variant("all_reduce", "left_ring")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("all_gather", "neighbour_exchange", "-n", "3"), 3, "not for 3: needs an even number"),
        (
            ("all_to_all", "bruck", "-n", "4", "--hazards"),
            0,
            "bruck n=4: step 2 reads and writes rank 0 cell 5",
        ),
        (("broadcast", "chain:segments=7", "-n", "2,8", "-r", "all"), 0, "chain:segments=7  2, 8"),
        (("gather", "-n", "1..4", "-r", "2"), 0, "binomial: not for 1,2: there is no rank 2"),
        (("bcast", "tree", "-n", "5..7,9"), 0, "binomial   5..7, 9"),
    ],
)
def test_prove_tells(args: tuple[str, ...], code: int, words: str) -> None:
    done = collbench("prove", *args)
    assert done.exit_code == code
    assert words in done.output


@pytest.mark.parametrize(
    "args", [("-n", "0"), ("-n", "4..2"), ("-n", "two"), ("-n", "99999"), ("-r", "left")]
)
def test_prove_refuses(args: tuple[str, ...]) -> None:
    assert isinstance(collbench("prove", "gather", *args).exception, UsageError)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 17, 64, 129])
@pytest.mark.parametrize("segments", [1, 2, 7])
def test_edges_of_the_double_tree_send_as_soon_as_they_can(n: int, segments: int) -> None:
    """Its steps, which are reckoned, against those of ranks that send what they have."""
    edges = rooted._Edges(n)
    have = np.zeros((2, n), np.int64)
    have[:, 0] = segments
    wanted, step = [], 0
    while have.min() < segments:
        now = (have[edges.tree, edges.src] > have[edges.tree, edges.dst]) & (
            edges.colour == step % 2
        )
        src, dst, tree = edges.src[now], edges.dst[now], edges.tree[now]
        if len(src):
            wanted.append([src, dst, tree * segments + have[tree, dst]])
        have[tree, dst] += 1
        step += 1
    steps = [moves.arrays()[:3] for moves in rooted.double_tree(n, 2 * segments, segments)]
    assert len(steps) == len(wanted)
    for got, expected in zip(steps, wanted, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
