"""Drawings: the worked examples to the letter, and what fits where."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner, Result

from collbench.cli import main
from collbench.core import algorithms, simulate
from collbench.core.errors import UsageError
from collbench.core.schedule import Moves, Schedule
from collbench.features.study import cost
from collbench.features.study.drawing import (
    Arrow,
    Frame,
    describe_phases,
    describe_signs,
    draw_frames,
    example_values,
    find_outcome,
    in_words,
    make_frames,
    pack_lanes,
    parse_values,
)
from collbench.show import terminal
from collbench.show.document import Document

EVERY = [pytest.param(*key, id="-".join(key)) for key in algorithms.list_catalogue()]


def film(
    name: str, algorithm: str, n: int = 4, root: int = 0, values: str = ""
) -> tuple[Schedule, list[Frame]]:
    schedule = algorithms.find_variant(name, algorithm).schedule(n, root)
    return schedule, list(
        make_frames(schedule, parse_values(values) if values else example_values(schedule))
    )


def drawn(schedule: Schedule, shown: list[Frame], width: int = 80, rank: int | None = None) -> str:
    text = terminal.render_text(
        Document(title="", brief=draw_frames(schedule, shown, width, rank)), width
    )
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"


def show(*args: str) -> Result:
    return CliRunner().invoke(main.app, ["show", *args])


WHOLE = [1, 2, 3, 4, 5, 6, 7, 8]
START = "1,2;3,4;5,6;7,8"


@pytest.mark.parametrize(
    ("name", "root", "values", "wanted"),
    [
        ("broadcast", 0, START, {rank: [1, 2] for rank in range(4)}),
        ("scatter", 0, "", {rank: [rank, rank] for rank in range(4)}),
        ("scatter", 0, "0,0,1,1,2,2,3,3;;;", {rank: [rank, rank] for rank in range(4)}),
        ("gather", 0, "", {0: WHOLE}),
        ("all_gather", 0, "", dict.fromkeys(range(4), WHOLE)),
        ("reduce", 3, START, {3: [16, 20]}),
        ("all_reduce", 0, START, {rank: [16, 20] for rank in range(4)}),
        ("all_to_all", 0, "", {j: [j, 10 + j, 20 + j, 30 + j] for j in range(4)}),
        (
            "reduce_scatter",
            0,
            "1,2,3,4;3,4,5,6;5,6,7,8;7,8,9,10",
            {0: [16], 1: [20], 2: [24], 3: [28]},
        ),
        ("scan", 0, "", {0: [1, 2], 1: [4, 6], 2: [9, 12], 3: [16, 20]}),
        ("sendrecv", 0, "", {0: [7, 8], 1: [1, 2], 2: [3, 4], 3: [5, 6]}),
    ],
)
def test_the_worked_example_of_four_ranks(name: str, root: int, values: str, wanted: Any) -> None:
    for row in algorithms.list_algorithms(name):
        schedule, shown = film(name, row.name, 4, root, values)
        assert find_outcome(schedule, shown[-1]) == wanted, row.name


def test_sixteen_and_twenty_everywhere() -> None:
    done = show("all_reduce", "tree", "-n", "4")
    assert done.exit_code == 0 and "16,20* " * 3 in " ".join(done.output.split())
    assert "every rank ends with [16, 20]" in done.output


@pytest.mark.parametrize(("name", "algorithm"), EVERY)
def test_every_algorithm_is_drawn_within_the_width_and_ends_complete(
    name: str, algorithm: str
) -> None:
    for n, widths in ((1, (80,)), (4, (40,)), (6, (80,)), (16, (80,))):
        if algorithms.find_variant(name, algorithm).refuse(n):
            continue
        schedule, shown = film(name, algorithm, n, n // 2)
        steps = len(shown) - 1
        assert steps == sum(1 for _ in schedule.steps())
        for rank in find_outcome(schedule, shown[-1]):
            assert all(shown[-1].rows[rank][at].share == 1 for at in schedule.output_cells(rank)), (
                rank
            )
        if n > 1:
            assert not all(
                shown[0].rows[rank][at].share == 1
                for rank in range(n)
                for at in schedule.output_cells(rank)
            )
        for width in widths:
            text = drawn(schedule, [shown[0], *shown[1:][-4:]], width)
            assert max(map(len, text.splitlines())) <= width
            assert text.startswith(" " * 9 + "rank 0") or text.startswith("step ")
            assert text.splitlines().count("") >= min(steps, 4) - 1
            assert f"step {steps} " in text or steps == 0


def test_after_the_reducing_half_each_cell_is_complete_on_exactly_one_rank() -> None:
    for algorithm in ("ring", "halving_doubling", "swing", "two_shot", "torus2d"):
        _, shown = film("all_reduce", algorithm, 4)
        first_copy = next(
            i
            for i, frame in enumerate(shown)
            if frame.moves and not any(m.reduce for m in frame.moves)
        )
        assert shown[first_copy - 1].note() == "each cell is complete on exactly one rank"
        assert shown[-1].note() == "every rank has everything"


def test_parts_may_be_complete_where_the_operation_promises_nothing() -> None:
    _, shown = film("reduce", "reduce_scatter_gather", 4)
    assert [frame.note() for frame in shown].index("each cell is complete on exactly one rank") == 3
    assert film("scatter", "linear", 4)[1][0].note() == ""


def test_a_block_in_another_ones_place_is_not_complete() -> None:
    schedule = algorithms.find_variant("all_to_all", "pairwise").schedule(2)
    astray = schedule._replace(steps=lambda: iter([Moves(1, 0, [0, 1], [2, 3])]))
    *_, last = make_frames(astray, example_values(astray))
    assert [(cell.text, cell.share) for cell in last.rows[0][2:]] == [("10", 0), ("11", 0)]


def test_what_a_step_wrote_is_marked_until_the_next() -> None:
    _, shown = film("broadcast", "linear", 3)
    assert [[row[0].changed for row in frame.rows] for frame in shown] == [
        [False, False, False],
        [False, True, False],
        [False, False, True],
    ]


def test_numbers_too_long_for_columns_make_a_table() -> None:
    long = "12345678901234567890"
    assert drawn(*film("broadcast", "linear", values=";".join([long] * 4))).startswith("step ")
    assert drawn(*film("broadcast", "linear", values=";".join([long[:14]] * 4))).startswith(
        " " * 9 + "rank 0"
    )


def test_input_and_output_are_parted_and_a_copy_within_a_rank_is_no_message() -> None:
    assert "\n         | 7,8*           | 1,2*" in drawn(*film("sendrecv", "direct"))
    text = drawn(*film("all_to_all", "pairwise"), rank=1)
    assert "1>5 from 1" in text and "1>5 to 1" not in text and "10 11 12 13 | · 11* · ·" in text


def test_shares_grow_by_contributions() -> None:
    _, shown = film("all_reduce", "ring", 4)
    assert [frame.rows[0][0].share for frame in shown[:4]] == [0.25, 0.25, 0.25, 1]
    _, shown = film("reduce", "linear", 4)
    assert [frame.rows[0][0].share for frame in shown] == [0.25, 0.5, 0.75, 1]
    _, shown = film("broadcast", "linear", 3)
    assert [[row[0].share for row in frame.rows] for frame in shown] == [
        [1, 0, 0],
        [1, 1, 0],
        [1, 1, 1],
    ]


def test_one_step_shows_the_state_before_it() -> None:
    done = show("all_reduce", "ring", "--values", "2,4,6;1,2,3;4,8,12", "--step", "2")
    lines = done.output.splitlines()
    assert lines[1].split() == ["after", "1", "2", "12", "6", "1", "2", "9", "5", "8", "12"]
    assert "step 2" in done.output and "step 1" not in done.output and "step 3" not in done.output
    assert "ends with" not in done.output
    assert "start" in show("all_reduce", "ring", "--step", "0").output


def test_one_rank() -> None:
    done = show("all_reduce", "ring", "-n", "4", "--rank", "2")
    rows = [
        " ".join(line.split()) for line in done.output.splitlines() if line.startswith("step ")
    ][1:]
    assert rows[0] == "step 1 2 +0 from 1 +1 to 3 8 6 7 8"
    assert rows[-1] == "step 6 2 3 from 1 0 to 3 16* 20* 24* 28*"
    assert len(rows) == 6


def test_many_ranks_become_lines_and_long_rows_show_what_changed() -> None:
    schedule, shown = film("all_reduce", "ring", 16)
    text = drawn(schedule, shown)
    assert "+14 from 15" in text and "+15 to 1 " in text and "0:1 … 14:60 15:16" in text
    assert any("--rank 2" in line for line in describe_signs(schedule, shown))
    schedule, shown = film("broadcast", "chain:segments=40", 3)
    assert "0:1* 1:2* … 39:42" in drawn(schedule, shown)


@pytest.mark.parametrize(
    ("name", "algorithm", "words", "others"),
    [
        ("reduce", "binomial", "reduce leaves the output of ranks other than 2 undefined", ""),
        ("gather", "linear", "gather leaves the output of ranks other than 2 undefined", ""),
        ("all_reduce", "ring", "+2: cell 2 is added", "undefined"),
        (
            "all_to_all",
            "bruck",
            "2>6: cell 2 goes into cell 6; ·: nothing there yet; |: input before",
            "added",
        ),
        ("barrier", "tree", "has heard, directly or not, of 3 of 4 ranks", "added"),
    ],
)
def test_the_legend_explains_what_is_there(
    name: str, algorithm: str, words: str, others: str
) -> None:
    text = " ".join(describe_signs(*film(name, algorithm, 4, 2)))
    assert words in text
    assert not others or others not in text


def test_a_barrier_counts_whom_a_rank_has_heard_of() -> None:
    schedule, shown = film("barrier", "dissemination", 5)
    assert [frame.rows[0][0].text for frame in shown] == ["1/5", "2/5", "4/5", "5/5"]
    assert (
        in_words(find_outcome(schedule, shown[-1]), 5) == "no rank leaves before all have entered"
    )


def test_values_are_cut_as_a_buffer_is() -> None:
    _, shown = film("all_reduce", "ring", 4, values=START)
    assert [cell.text for cell in shown[0].rows[0]] == ["-", "1", "-", "2"]
    _, shown = film("all_gather", "ring", 2, values="1,2,3;4,5,6")
    assert [cell.text for cell in shown[1].rows[1]] == ["1,2,3", "4,5,6"]
    _, shown = film("reduce", "linear", 2, values=" 0.5 , -2 ; 1e3,+3")
    assert shown[-1].rows[0][0].text == "1000.5,1"
    big = 10**30
    _, shown = film("reduce", "linear", 2, values=f"{big};{big}")
    assert shown[-1].rows[0][0].numbers == (2 * big,)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("all_reduce", "ring", "--values", "1,2;3"), "rank 1 has 1 numbers, another 2"),
        (("all_reduce", "ring", "--values", "1,x;3,4"), "'x' is no number"),
        (
            ("all_reduce", "ring", "--values", "1,2;3,4", "-n", "3"),
            "2 lists of 2 numbers do not fit 3 ranks",
        ),
        (("scatter", "linear", "--values", "1,2,3;1,2,3"), "do not fit 2 ranks of 2 blocks"),
        (("all_reduce", "ring", "--rank", "4"), "there is no rank 4"),
        (
            ("all_reduce", "ring", "--step", "7"),
            "there is no step 7 in all_reduce ring for 4 ranks",
        ),
        (("all_reduce", "ring", "-n", "300"), "too many to draw"),
        (("all_reduce", "swing", "-n", "6"), "power of two"),
        (("all_reduce", "rinng"), "no algorithm 'rinng'"),
    ],
)
def test_what_cannot_be_drawn_is_explained(args: tuple[str, ...], words: str) -> None:
    error = show(*args).exception
    assert isinstance(error, UsageError) and words in error.message and error.hint


def test_arrows_on_one_line_do_not_cover_each_other() -> None:
    arrows = [
        Arrow(0, 3, ""),
        Arrow(1, 0, ""),
        Arrow(1, 2, ""),
        Arrow(3, 2, ""),
        Arrow(2, 2, ""),
        Arrow(0, 1, ""),
    ]
    assert [[a[:2] for a in lane] for lane in pack_lanes(arrows)] == [
        [(0, 1), (1, 2), (3, 2)],
        [(1, 0)],
        [(0, 3)],
    ]


@pytest.mark.parametrize(("name", "algorithm"), EVERY)
def test_every_algorithm_has_a_sentence_on_its_idea(name: str, algorithm: str) -> None:
    idea = algorithms.list_catalogue()[name, algorithm].idea
    assert 20 < len(idea) < 130 and idea[0].isupper() and idea.endswith(".")


@pytest.mark.parametrize(
    ("name", "algorithm", "says"),
    [
        (
            "all_reduce",
            "ring",
            "steps 1 to 3 add, then each cell is complete on exactly one rank;"
            " steps 4 to 6 copy, then every rank has everything",
        ),
        ("all_reduce", "one_shot", "step 1 adds, then every rank has everything"),
        ("barrier", "dissemination", ""),
    ],
)
def test_phases_are_told(name: str, algorithm: str, says: str) -> None:
    assert describe_phases(*film(name, algorithm)) == says


@pytest.mark.parametrize(
    ("name", "algorithm", "n", "says"),
    [
        (
            "all_reduce",
            "ring",
            4,
            "cost of 4 ranks: 2(n-1) α + 2(n-1)/n B β + (n-1)/n B γ for n ranks,"
            " here 6 α + 3/2 B β + 3/4 B γ; at least 2 α + 3/2 B β + 3/4 B γ by any algorithm",
        ),
        (
            "broadcast",
            "binomial",
            8,
            "cost of 8 ranks: log2(n) α + log2(n) B β for n ranks, here 3 α + 3 B β;"
            " at least 3 α + B β by any algorithm",
        ),
        (
            "all_reduce",
            "recursive_doubling",
            4,
            "cost of 4 ranks: 2 α + 2 B β + 2 B γ; at least 2 α + 3/2 B β + 3/4 B γ by any"
            " algorithm",
        ),
    ],
)
def test_an_algorithms_cost_is_told(name: str, algorithm: str, n: int, says: str) -> None:
    variant = algorithms.find_variant(name, algorithm)
    assert cost.describe_cost(variant, variant.schedule(n))[0] == says


def test_a_cost_is_told_of_any_root() -> None:
    variant = algorithms.find_variant("broadcast", "binomial")
    told = [cost.describe_cost(variant, variant.schedule(9, root)) for root in (0, 8)]
    assert told[0] == told[1] and "for n ranks" in told[0][0]


def test_a_formula_for_n_ranks_holds_for_numbers_it_was_not_made_from() -> None:
    told = 0
    for row in algorithms.list_catalogue().values():
        variant = algorithms.Variant(row)
        known = cost.find_formulas(variant, 4)
        told += bool(known)
        for n in (5, 6, 32) if known else ():
            if not variant.refuse(n):
                made = [cost.FORMS[form](n) for form in known]
                assert made == [*simulate.count_costs(variant.schedule(n))[:3]], (row.name, n)
    assert told > 15


def test_beside_the_picture_stand_idea_cost_and_source() -> None:
    text = show("all_reduce", "ring").output
    for words in ("a reduce-scatter adds", "2(n-1) α", "source: Patarasuk, Yuan 2009"):
        assert words in text
