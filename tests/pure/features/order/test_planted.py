"""Changes of an order that are planted in a reduction, found by ranks that are threads; and sums
that are added otherwise than two at a time in their type."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from marks import long
from threaded import find_among_threads, play_threads, read

from collbench.features.order.calls import count_all_calls, count_calls
from collbench.features.order.findings import OrderFindings, Piece, SizeOrder
from collbench.features.order.request import SumOrder
from collbench.run.rank.outcome import FoundCase, WrongData

UP, DOWN = "((0+1)+2)+3", "0+(1+(2+3))"


def order(*sizes: int, **values: object) -> SumOrder:
    """An order of four ranks' sums of 64 floats that is only found and proved."""
    plain = {"places": ("out",), "shifts": (0,), "repeats": 0}
    given = {"collective": "all_reduce", "world": 4, "sizes": sizes or (256,), **plain, **values}
    return SumOrder(**given)  # type: ignore[arg-type]


@cache
def find(word: str, subject: SumOrder, cycle: int = 0) -> OrderFindings:
    outcome = find_among_threads(subject, word, cycle)
    assert isinstance(outcome, FoundCase)
    return read(outcome)


def find_one(word: str, **values: object) -> SizeOrder:
    (size,) = find(word, order(**values)).sizes
    return size


def list_pieces(size: SizeOrder, rank: int = 0) -> list[tuple[int, str]]:
    """Where the pieces of a rank's output begin, with their trees."""
    pieces = next(group.pieces for group in size.ranks if rank in group.ranks)
    return [(piece.first, piece.tree) for piece in pieces]


def find_piece(word: str, **values: object) -> Piece:
    ((piece,),) = (group.pieces for group in find_one(word, **values).ranks)
    return piece


# calls


def test_every_fiftieth_call_is_seen_and_named() -> None:
    (odd,) = find_one("every:50", repeats=200).repeats.odd
    assert {pair[1] - pair[0] for pair in itertools.pairwise(odd.calls)} == {50}
    assert len(odd.calls) == 4
    assert odd.tree == DOWN
    assert odd.ranks == (0, 1, 2, 3)


def test_every_fiftieth_call_leaves_the_order_of_the_others() -> None:
    size = find_one("every:50", repeats=200)
    assert list_pieces(size) == [(0, UP)]
    assert size.proof.is_complete


def test_odd_calls_among_many_ranks_have_a_name_if_their_order_has() -> None:
    (odd,) = find_one("every:50", repeats=60, world=7).repeats.odd
    assert odd.tree == "0+(1+(2+(3+(4+(5+6)))))"


@pytest.mark.parametrize("distance", [3, 5, 7])
def test_probes_that_meet_odd_calls_are_asked_three_times(distance: int) -> None:
    size = find_one(f"every:{distance}")
    assert list_pieces(size) == [(0, UP)]
    assert size.attempts == 2
    assert size.proof.is_complete


def test_calls_that_take_turns_have_no_order() -> None:
    size = find_one("every:2", repeats=100)
    assert list_pieces(size) == [(0, "")]
    assert size.proof.right == 0
    assert size.repeats.changed == 50


def test_calls_of_any_order_have_none_and_are_sums_all_the_same() -> None:
    size = find_one("shuffle", repeats=50)
    assert not size.proof.is_complete
    assert size.repeats.changed > 25


def test_calls_that_differ_are_no_matter_of_neighbours() -> None:
    assert find_one("every:3", repeats=20).neighbours.changed == 0


@pytest.mark.parametrize("seed", [0, *map(long, range(1, 5))])
def test_where_nothing_is_planted_nothing_is_seen(seed: int) -> None:
    subject = order(4, 60, 4096, repeats=30, places=("out", "in"), shifts=(0, 1))
    found = read(find_among_threads(subject, "plain", seed=seed))
    assert [size.attempts for size in found.sizes] == [1] * len(found.sizes)
    assert all(size.like for size in found.sizes if size.varied)
    assert not any(size.repeats.changed or size.neighbours.changed for size in found.sizes)


# elements, sizes, ranks, launches, places


def test_a_chunk_of_another_order_is_a_piece() -> None:
    assert list_pieces(find_one("chunk:16")) == [(0, UP), (16, DOWN), (32, UP)]


def test_an_element_of_another_order_is_a_piece() -> None:
    assert list_pieces(find_one("element:17")) == [(0, UP), (17, DOWN), (18, UP)]


def test_the_size_from_which_the_order_is_another_is_found_to_the_element() -> None:
    sizes = find("from:404", order(64, 1024)).sizes
    assert [(size.nbytes, list_pieces(size), size.bisected) for size in sizes] == [
        (64, [(0, UP)], False),
        (400, [(0, UP)], True),
        (404, [(0, DOWN)], True),
        (1024, [(0, DOWN)], False),
    ]


def test_sizes_are_not_halved_unless_asked_for() -> None:
    assert len(find("from:404", order(64, 1024, bisect=False)).sizes) == 2


def test_a_rank_of_another_order_is_told_apart() -> None:
    size = find_one("rank:2")
    assert [group.ranks for group in size.ranks] == [(0, 1, 3), (2,)]
    assert list_pieces(size, 2) == [(0, DOWN)]
    assert size.proof.is_complete


def test_a_launch_of_another_order_has_other_trees_and_bits() -> None:
    subject = order(repeats=1)
    first, second = (find("launch:1", subject, cycle).sizes[0] for cycle in (0, 1))
    assert list_pieces(first) != list_pieces(second)
    assert first.digest != second.digest


def test_launches_of_one_order_have_the_same_bits() -> None:
    first, second = (find("plain", order(repeats=1), cycle).sizes[0] for cycle in (0, 1))
    assert first.digest == second.digest


def test_an_order_that_goes_by_the_data_is_not_proved() -> None:
    size = find_one("neighbours", repeats=20)
    assert list_pieces(size) == [(0, UP)]
    assert 0 < size.proof.right < size.proof.of
    assert size.proof.first_wrong is not None


def test_an_order_that_goes_by_the_data_is_seen_by_its_neighbours() -> None:
    size = find_one("neighbours", repeats=20)
    assert size.repeats.changed == 0
    assert size.neighbours.changed > 0


def test_another_order_in_place_is_asked_for_there() -> None:
    base, inside = find("in_place", order(places=("out", "in"))).sizes
    assert (list_pieces(base), base.like) == ([(0, UP)], False)
    assert (list_pieces(inside), inside.like, inside.in_place) == ([(0, DOWN)], False, True)
    assert inside.proof.is_complete


def test_another_order_off_alignment_is_asked_for_there() -> None:
    sizes = find("shifted", order(places=("out", "in"), shifts=(0, 1))).sizes
    assert [(size.shift, size.like) for size in sizes] == [
        (0, False),
        (1, False),
        (0, True),
        (1, False),
    ]


@pytest.mark.parametrize("word", ["unaligned", "raising"])
def test_a_place_for_which_no_call_can_be_prepared_is_left_out_with_its_reason(word: str) -> None:
    found = find(word, order(256, 1024, places=("out", "in"), shifts=(0, 1), repeats=1))
    assert {(size.in_place, size.shift) for size in found.sizes} == {(False, 0), (True, 0)}
    assert [size.nbytes for size in found.sizes if size.repeats.calls] == [256, 1024]
    assert found.dropped == [
        "out of place, 1 element off alignment: memory is off alignment",
        "in place, 1 element off alignment: memory is off alignment",
    ]


def test_a_place_that_a_backend_never_takes_is_not_tried() -> None:
    subject = order(places=("out", "in"))
    found = read(find_among_threads(subject, backend="mlx"))
    assert [size.in_place for size in found.sizes] == [False]
    (reason,) = found.dropped
    assert reason.startswith("in place: MLX's arrays do not change")


def test_orders_that_change_from_element_to_element_are_too_many() -> None:
    piece = find_piece("scatter", sizes=(65536,))
    assert piece.reason == "elements are added in more than 4,096 different pieces"


def test_a_hundred_pieces_are_told_apart() -> None:
    assert len(list_pieces(find_one("scatter", sizes=(400,)))) == 100


# adders


@pytest.mark.parametrize(("dtype", "adder"), [("bfloat16", 24), ("half", 24), ("float", 53)])
def test_wider_adders_that_round_once_are_told(dtype: str, adder: int) -> None:
    piece = find_piece("wide", dtype=dtype)
    assert (piece.tree, piece.low, piece.adder) == (UP, "exact{0, 1, 2, 3}", adder)
    assert find_one("wide", dtype=dtype).proof.is_complete


@pytest.mark.parametrize("dtype", ["bfloat16", "half", "float"])
def test_another_order_in_place_is_asked_for_there_in_wider_adders(dtype: str) -> None:
    base, inside = find("wide_in_place", order(places=("out", "in"), dtype=dtype)).sizes
    assert (list_pieces(base), list_pieces(inside)) == ([(0, UP)], [(0, DOWN)])
    assert base.proof.is_complete and inside.proof.is_complete


@pytest.mark.parametrize("dtype", ["bfloat16", "half", "float"])
def test_repeats_of_another_order_in_wider_adders_are_seen(dtype: str) -> None:
    repeats = find_one("wide_after:80", dtype=dtype, repeats=50).repeats
    assert repeats.changed > 0
    assert [odd.tree for odd in repeats.odd] == [DOWN]


@pytest.mark.parametrize("dtype", ["bfloat16", "half", "float"])
def test_first_calls_of_another_order_in_wider_adders_are_seen(dtype: str) -> None:
    size = find_one("wide_first:5", dtype=dtype, repeats=1)
    assert list_pieces(size) == [(0, UP)]
    assert [odd.calls for odd in size.first_calls.odd] == [[1, 2, 3, 4, 5]]


def test_wider_adders_between_hops_are_told() -> None:
    piece = find_piece("hops")
    assert (piece.low, piece.at) == ("exact{0, 1, 2}+3", ((0, 1, 2), (0, 1, 2, 3)))
    assert find_one("hops").proof.is_complete


def test_three_addends_at_once_are_one_node() -> None:
    assert find_piece("three").tree == "together{0, 1, 2}+3"


def test_addends_that_are_cut_are_predicted() -> None:
    assert find_one("three").proof.is_complete


def test_numbers_flushed_to_zero_show_their_order_all_the_same() -> None:
    piece = find_piece("flush", dtype="half")
    assert (piece.tree, piece.adder) == (UP, 11)
    assert find_one("flush", dtype="half").proof.is_complete


def test_compensated_sums_are_seen_and_not_proved() -> None:
    size = find_one("kahan")
    assert list_pieces(size) == [(0, UP)]
    assert 0 < size.proof.right < size.proof.of


def test_sums_cut_toward_zero_are_named() -> None:
    assert find_piece("truncate").reason == "rounds otherwise than to nearest"


# reductions


@pytest.mark.parametrize(("word", "division"), [("divide", "after"), ("average", "before")])
def test_where_an_average_divides_is_told(word: str, division: str) -> None:
    size = find_one(word, op="avg", world=3, dtype="float")
    assert {p.division for group in size.ranks for p in group.pieces} == {division}
    assert size.proof.is_complete


@pytest.mark.parametrize(("word", "dtype"), [("divide", "float"), ("average", "bfloat16")])
def test_where_an_average_divides_by_a_power_of_two_is_not_told(word: str, dtype: str) -> None:
    size = find_one(word, op="avg", dtype=dtype)
    assert {p.division for group in size.ranks for p in group.pieces} == {""}
    assert size.proof.is_complete


def test_an_average_that_divides_otherwise_in_place_is_asked_for_there() -> None:
    subject = order(places=("out", "in"), op="avg", world=3)
    base, inside = find("average_in_place", subject).sizes
    assert [size.ranks[0].pieces[0].division for size in (base, inside)] == ["after", "before"]


def test_factors_before_a_sum_are_reckoned_with() -> None:
    assert find_one("premul", op="premul_sum").proof.is_complete


def test_products_are_proved_by_the_order_of_sums() -> None:
    size = find_one("multiply", op="prod")
    assert list_pieces(size) == [(0, DOWN)]
    assert size.proof.is_complete


# wrong data


def test_a_result_that_is_no_sum_is_wrong() -> None:
    outcome = find_among_threads(order(), "wrong:1")
    assert isinstance(outcome, WrongData)
    assert outcome.first is not None
    assert (outcome.first.rank, outcome.first.index) == (1, 63)


def test_wrong_data_say_what_was_found_all_the_same() -> None:
    (size,) = read(find_among_threads(order(), "wrong:1")).sizes
    assert list_pieces(size, 0) == [(0, UP)]
    assert list_pieces(size, 1) == [(0, UP), (63, "")]


@pytest.mark.parametrize("call", [15, 40])
def test_one_call_of_wrong_data_counts(call: int) -> None:
    """Among those that are predicted, and among those that are repeated."""
    outcome = find_among_threads(order(repeats=50), f"glitch:{call}")
    assert isinstance(outcome, WrongData)


# what it takes


@pytest.mark.parametrize("world", [1, 2, 3])
def test_few_ranks_have_an_order(world: int) -> None:
    size = find_one("plain", world=world, repeats=5)
    assert size.proof.is_complete


def test_a_spent_budget_says_what_was_left_out() -> None:
    found = find("plain", order(256, 512, repeats=5, budget=1e-6))
    assert found.sizes == []
    assert found.dropped[0] == "sizes from 256 B on: 1e-06 s were spent"


@pytest.mark.parametrize("strategy", ["all", "adaptive"])
@pytest.mark.parametrize("world", [4, 6])
def test_calls_are_no_more_than_were_foretold(strategy: str, world: int) -> None:
    subject = order(world=world, strategy=strategy)
    assert find("plain", subject).sizes[0].calls <= count_calls(subject)[1]


def test_all_calls_of_a_size_are_few() -> None:
    """20 first ones; 12 that ask, 8 that prove, 1 that shows the error, 3 to compare with, 200
    repeats and 20 with other neighbours; 34 in each of three other places; 3 to compare the first
    ones with."""
    subject = order(repeats=200, places=("out", "in"), shifts=(0, 1))
    _, backends, _ = play_threads(subject, "plain")
    assert backends[0].calls == 20 + 12 + 9 + 3 + 200 + 20 + 3 * 34 + 3
    assert count_all_calls(subject) == backends[0].calls + 8  # adders wider than the type's
