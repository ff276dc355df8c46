"""On what made-up orders of additions depend, and in what words that is told."""

from __future__ import annotations

from typing import Any

import pytest
from factories import (
    CHAIN,
    DOUBLING,
    LINEAR,
    RING,
    order_file,
    order_pieces,
    order_record,
    order_subject,
    size_order,
    way_of,
)
from msgspec.structs import replace

from collbench.features.order.findings import (
    Neighbours,
    OddCalls,
    Proof,
    RankPieces,
    Repeats,
    SizeOrder,
)
from collbench.features.order.judgement import (
    DIMENSIONS,
    Dependence,
    Dimension,
    JudgedOrder,
    bound_rarity,
    judge_orders,
)
from collbench.features.order.signature import describe_starts, sign_order
from collbench.features.order.wording import (
    describe_answer,
    describe_dependence,
    describe_rhythm,
    format_bytes,
    format_range,
    format_ranks,
    list_remarks,
)

SWAPPED = "((1+2)+0)+3"


def judge(*sizes: SizeOrder, **fields: Any) -> JudgedOrder:
    (order,) = judge_orders(order_file(order_record(*sizes, **fields))).orders
    return order


def depend(dimension: Dimension, *sizes: SizeOrder) -> Dependence:
    return judge(*sizes).depends[dimension]


def tell(dimension: Dimension, *sizes: SizeOrder) -> str:
    order = judge(*sizes)
    return describe_dependence(order, order.depends[dimension])


def answer(*sizes: SizeOrder) -> str:
    return describe_answer(judge(*sizes)).sentence


# size


def test_one_size_is_no_answer() -> None:
    assert depend("size", size_order(64)).value == "not asked"


def test_sizes_of_one_order_are_the_same() -> None:
    assert depend("size", size_order(64), size_order(1024)).value == "same"


BISECTED = (
    size_order(256),
    size_order(364, bisected=True),
    size_order(368, DOUBLING, bisected=True),
    size_order(1024, DOUBLING),
)


def test_a_bisected_change_is_told_to_the_element() -> None:
    assert tell("size", *BISECTED) == (
        "changes at 368 B (92 elements), one change assumed between 256 B and 1 KiB"
    )


def test_a_change_that_was_not_bisected_is_between_two_sizes() -> None:
    assert tell("size", size_order(256), size_order(1024, DOUBLING)) == (
        "changes between 256 B and 1 KiB"
    )


def test_a_change_between_neighbouring_sizes_assumes_nothing() -> None:
    text = tell("size", size_order(64), size_order(68, DOUBLING))
    assert text == "changes at 68 B (17 elements)"


def test_several_changes_are_in_one_sentence() -> None:
    sizes = (*BISECTED, size_order(1028, CHAIN), size_order(4096, CHAIN))
    assert tell("size", *sizes).startswith(
        "changes at 368 B (92 elements) and 1,028 B (257 elements), one change assumed"
    )


def test_an_element_of_a_ring_moves_to_another_piece() -> None:
    sizes = (size_order(64, *RING), size_order(1024, *RING))
    assert [change.moved for change in depend("size", *sizes).sizes] == [True]
    assert tell("size", *sizes) == (
        "boundaries of pieces move with the size; by name: ring:down wherever there are several"
        " pieces"
    )


def test_a_short_buffer_that_lacks_pieces_has_no_other_order() -> None:
    sizes = (size_order(12, *RING[:3]), size_order(16, *RING))
    assert depend("size", *sizes).value == "same"


# position


def test_pieces_are_positions() -> None:
    assert tell("position", size_order(64, *RING), size_order(1024, *RING)) == (
        "4 pieces, n/4 apart (1 KiB)"
    )


def test_one_element_has_no_positions() -> None:
    assert depend("position", size_order(4)).value == "not asked"


@pytest.mark.parametrize(
    ("count", "number", "text"),
    [
        (64, 4, "n/4 apart"),
        (64, 3, "n/3 apart"),
        (16384, 3, "n/3 apart"),
        (5, 3, "n/3 apart"),
        (7, 1, ""),
    ],
)
def test_even_pieces_are_told_as_shares(count: int, number: int, text: str) -> None:
    assert describe_starts(order_pieces(count, *RING[:number])) == text


def test_uneven_pieces_are_told_by_their_starts() -> None:
    pieces = order_pieces(64, *RING)
    odd = [replace(pieces[0], last=3), replace(pieces[1], first=4), *pieces[2:]]
    assert describe_starts(odd) == "starts 0, n/16, n/2, 3n/4"


def test_uneven_pieces_are_told_by_element_where_shares_are_odd() -> None:
    pieces = order_pieces(64, *RING)
    odd = [replace(pieces[0], last=2), replace(pieces[1], first=3), *pieces[2:]]
    assert describe_starts(odd) == "starts 0, 3, 32, 48"


def test_blocks_of_reduce_scatter_are_positions() -> None:
    subject = order_subject("reduce_scatter")
    ranks = [RankPieces(ranks=(r,), pieces=order_pieces(16, RING[r])) for r in range(4)]
    record = order_record(size_order(64, ranks=ranks), subject=subject)
    (order,) = judge_orders(order_file(record, subjects=[subject])).orders
    assert order.depends["position"].value == "differs"
    assert order.depends["rank"].value == "not asked"
    assert describe_answer(order).sentence.startswith("Each rank's block has an order of its own")


# rank


def unlike_ranks(tree: str = DOUBLING) -> SizeOrder:
    alike = RankPieces(ranks=(0, 1, 3), pieces=order_pieces(16, LINEAR))
    return size_order(64, ranks=[alike, RankPieces(ranks=(2,), pieces=order_pieces(16, tree))])


def test_ranks_that_add_otherwise_are_named() -> None:
    assert tell("rank", unlike_ranks()) == f"rank 2: 64 B, element 0: {DOUBLING}, not {LINEAR}"


def test_unlike_ranks_are_the_answer() -> None:
    assert answer(unlike_ranks()).startswith("Ranks get different sums of the same numbers")


# call


def odd_calls(*calls: int, tree: str = "", number: int = 200) -> SizeOrder:
    odd = OddCalls(calls=[*calls], ranks=(0, 1, 2, 3), first=3, last=3, tree=tree)
    return size_order(64, repeats=Repeats(calls=number, changed=len(calls), odd=[odd]))


def test_calls_without_a_change_bound_how_rare_one_is() -> None:
    assert tell("call", size_order(64)) == (
        "no change in 200 calls: rarer than 1.5 % of calls (95 %)"
    )


def test_the_bound_is_of_95_percent() -> None:
    assert (1 - bound_rarity(200)) ** 200 == pytest.approx(0.05)


def test_the_fewest_calls_bound_it() -> None:
    few = size_order(1024, repeats=Repeats(calls=20))
    assert depend("call", size_order(64), few).number == 20


def test_sizes_that_were_not_repeated_are_told() -> None:
    left_out = [size_order(1024 << 2 * k, repeats=Repeats()) for k in range(4)]
    assert tell("call", size_order(64), *left_out).endswith(
        "(95 %); not asked at 1 KiB, 4 KiB, 16 KiB and 1 more"
    )


def test_odd_calls_are_named_with_their_order() -> None:
    text = tell("call", odd_calls(50, 100, 150, 200, tree=SWAPPED))
    assert text == (
        "4 of 200 repeats at 64 B gave other bits: every 50th, element 3, which then add as"
        f" {SWAPPED}"
    )


def test_first_calls_that_differ_from_later_ones_are_told() -> None:
    odd = OddCalls(calls=[1], ranks=(0,), first=0, last=15, tree=SWAPPED)
    size = size_order(64, first_calls=Repeats(calls=3, changed=1, odd=[odd]))
    assert tell("call", size) == (
        "1 of the first 3 calls at 64 B gave other bits than later ones: call 1, elements 0 to 15,"
        f" which then add as {SWAPPED}"
    )


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ((50, 100, 150), "every 50th"),
        ((2, 4, 6, 8), "every 2nd"),
        ((13, 26, 39), "every 13th"),
        ((10, 60, 110), "every 50th, from call 10 on"),
        ((1, 2, 3), "calls 1 to 3"),
        ((7,), "call 7"),
        ((7, 50), "calls 7 and 50"),
        ((1, 5, 6, 70, 90), "calls 1, 5, 6 and 2 more"),
        ((), ""),
    ],
)
def test_calls_in_words(calls: tuple[int, ...], text: str) -> None:
    assert describe_rhythm(calls) == text


def test_calls_that_differ_come_before_all_else() -> None:
    sizes = (odd_calls(7), size_order(1024, DOUBLING))
    assert answer(*sizes) == "Calls of the same data give other bits; it differs by size, too."


def test_calls_without_a_tree_are_no_fixed_order() -> None:
    lost = [RankPieces(ranks=(0, 1, 2, 3), pieces=order_pieces(16, "", reason="contradictions"))]
    size = replace(odd_calls(1, 3, 4), ranks=lost, proof=Proof(right=0, of=64, buffers=8))
    assert answer(size) == "No fixed order: 3 of 200 repeats gave other bits."


# launch, neighbours, place, setting


def launches(*sizes: SizeOrder) -> JudgedOrder:
    records = [order_record(size, cycle=cycle) for cycle, size in enumerate(sizes)]
    (order,) = judge_orders(order_file(*records)).orders
    return order


def test_one_launch_is_no_answer() -> None:
    assert depend("launch", size_order(64)).value == "not asked"


def test_three_launches_bound_little() -> None:
    order = launches(size_order(64), size_order(64), size_order(64))
    text = describe_dependence(order, order.depends["launch"])
    assert text == "no change in 3 launches: rarer than 63 % of launches (95 %)"


def test_a_launch_with_another_order_is_named() -> None:
    order = launches(size_order(64), size_order(64), size_order(64, DOUBLING))
    text = describe_dependence(order, order.depends["launch"])
    assert text == f"launch 3: 64 B, element 0: {DOUBLING}, not {LINEAR}"


def test_a_launch_with_other_bits_differs() -> None:
    order = launches(size_order(64), size_order(64, digest="e"))
    assert order.depends["launch"].value == "differs"


def test_positions_of_a_later_launch_are_told_with_it() -> None:
    order = launches(size_order(64), size_order(64, *RING))
    text = describe_dependence(order, order.depends["position"])
    assert text == "4 pieces, n/4 apart (launch 2, 64 B)"


def test_each_launch_has_the_names_of_its_own_orders() -> None:
    order = launches(size_order(64), size_order(64, DOUBLING), size_order(64))
    first, second, third = (order.look_up_names(item) for item in order.placed)
    assert first == third and first and second
    assert "recursive_doubling" in second.references
    assert "recursive_doubling" not in first.references


def test_neighbours_that_matter_are_told() -> None:
    changed = Neighbours(calls=4, changed=2, first=5, rank=1)
    assert tell("neighbours", size_order(64, neighbours=changed)) == (
        "element 5 of rank 1 changed in 2 of 4 calls with other data around it (64 B)"
    )


def test_one_element_has_no_neighbours() -> None:
    alone = depend("neighbours", size_order(4))
    assert (alone.value, alone.reason) == ("not asked", "buffers have one element")


def test_buffers_of_one_element_do_not_count_for_neighbours() -> None:
    few = size_order(4, neighbours=Neighbours(calls=1))
    assert depend("neighbours", few, size_order(64)).number == 4


def test_places_that_are_predicted_are_the_same() -> None:
    sizes = (size_order(64), way_of(64), way_of(64, in_place=False, shift=1), way_of(64, shift=1))
    assert depend("place", *sizes).value == "same"
    assert tell("place", *sizes) == "1 off, in place, in place 1 off"


def test_a_place_with_another_order_differs() -> None:
    other = size_order(64, DOUBLING, in_place=True, varied=True)
    assert tell("place", size_order(64), other) == (
        f"in place: 64 B, element 0: {DOUBLING}, not {LINEAR}"
    )


def test_one_place_is_no_answer() -> None:
    subject = order_subject(places=("out",), shifts=(0,))
    file = order_file(order_record(size_order(64), subject=subject), subjects=[subject])
    dependence = judge_orders(file).orders[0].depends["place"]
    assert (dependence.value, dependence.reason) == ("not asked", "--place out,in --shift 0,1")


@pytest.mark.parametrize("dimension", ["call", "neighbours", "place"])
def test_what_was_asked_for_and_not_done_is_no_answer(dimension: Dimension) -> None:
    size = size_order(64, repeats=Repeats(), neighbours=Neighbours())
    dependence = depend(dimension, size)
    assert (dependence.value, dependence.reason) == ("not asked", "asked for, and left out")


def test_settings_are_compared_with_each_other() -> None:
    ring, tree = (("NCCL_ALGO", "Ring"),), (("NCCL_ALGO", "Tree"),)
    records = [
        order_record(size_order(64), env=ring),
        order_record(size_order(64, DOUBLING), env=tree),
    ]
    orders = judge_orders(order_file(*records)).orders
    assert [order.depends["setting"].value for order in orders] == ["differs", "differs"]
    assert describe_dependence(orders[0], orders[0].depends["setting"]).startswith("NCCL_ALGO=Tree")


def test_settings_are_compared_launch_by_launch() -> None:
    ring, tree = (("NCCL_ALGO", "Ring"),), (("NCCL_ALGO", "Tree"),)
    records = [
        order_record(size_order(64, order), env=env, cycle=cycle)
        for env, orders in ((ring, (LINEAR, LINEAR)), (tree, (LINEAR, DOUBLING)))
        for cycle, order in enumerate(orders)
    ]
    orders = judge_orders(order_file(*records)).orders
    assert [order.depends["setting"].value for order in orders] == ["differs", "differs"]


def test_one_setting_is_no_answer() -> None:
    assert depend("setting", size_order(64)).value == "not asked"


# the answer and remarks


def test_all_the_same_is_the_answer() -> None:
    assert answer(size_order(64), size_order(1024)) == (
        "The same order at all sizes and calls tried."
    )


def test_a_larger_buffer_is_the_answer() -> None:
    assert answer(*BISECTED) == (
        "The order changes at 368 B, so that the same numbers can give other bits: fix the"
        " algorithm (--env) or the size."
    )


def test_nothing_is_called_deterministic() -> None:
    texts = [
        *(tell(dimension, *BISECTED) for dimension in DIMENSIONS),
        answer(*BISECTED),
        answer(size_order(64)),
    ]
    words = ("determin", "stable", "always", "never", "guarantee")
    assert not [text for text in texts if any(word in text.lower() for word in words)]


def test_an_order_that_predicts_other_bits_is_not_proved() -> None:
    size = size_order(64, proof=Proof(right=311, of=320, buffers=8))
    assert not judge(size).is_proved
    assert answer(size) == "An order is seen, not proved: 9 of 320 bits are others."
    (remark,) = [text for text in list_remarks(judge(size)) if "9 of 320" in text]
    assert "looks at data?" in remark


EXACT = order_pieces(16, "exact{0, 1, 2, 3}", adder=0, visible=113)


def of_averages(nbytes: int, division: str, **fields: Any) -> SizeOrder:
    pieces = order_pieces(nbytes // 4, LINEAR, division=division)
    ranks = [RankPieces(ranks=(0, 1, 2, 3), pieces=pieces)]
    return size_order(nbytes, ranks=ranks, **fields)


@pytest.mark.parametrize(("division", "value"), [("", "same"), ("after", "differs")])
def test_a_division_that_is_not_known_is_like_any(division: str, value: str) -> None:
    sizes = of_averages(8, division), of_averages(64, "before")
    assert depend("size", *sizes).value == value
    other = of_averages(8, "before", in_place=True, varied=True)
    assert depend("place", sizes[0], other).value == value


def test_products_in_a_wider_adder_have_no_visible_order() -> None:
    wide = [RankPieces(ranks=(0, 1, 2, 3), pieces=order_pieces(16, LINEAR, adder=53))]
    for op, visible in (("sum", True), ("prod", False)):
        subject = order_subject(op=op, sizes=(64,))
        record = order_record(size_order(64, ranks=wide), subject=subject)
        (order,) = judge_orders(order_file(record, subjects=[subject])).orders
        assert order.is_visible is visible
        assert describe_answer(order).sentence.startswith("No order is visible") is not visible


def test_a_size_that_was_left_out_is_in_the_answer() -> None:
    subject = order_subject(sizes=(64, 1024, 4096))
    record = order_record(size_order(64), size_order(1024), subject=subject)
    (order,) = judge_orders(order_file(record, subjects=[subject])).orders
    found = describe_answer(order)
    assert found.sentence.endswith(" tried; left out: 4 KiB.")
    assert found.weight == "notice"


def test_exact_sums_have_no_visible_order() -> None:
    size = size_order(64, ranks=[RankPieces(ranks=(0, 1, 2, 3), pieces=EXACT)])
    order = judge(size)
    assert order.is_proved and not order.is_visible
    assert list_remarks(order) == [
        "exact: no order visible (adders of up to 113 bits would show). Sums are correctly"
        " rounded, in 320 of 320"
    ]


def narrow(dtype: str, visible: int, op: str = "sum") -> list[str]:
    subject = order_subject(dtype=dtype, op=op)
    pieces = order_pieces(16, "exact{0, 1, 2, 3}", adder=0, visible=visible)
    size = size_order(64, ranks=[RankPieces(ranks=(0, 1, 2, 3), pieces=pieces)])
    file = order_file(order_record(size, subject=subject), subjects=[subject])
    return list_remarks(judge_orders(file).orders[0])


def test_a_narrow_type_that_loses_nothing_has_no_order() -> None:
    assert narrow("f8e4m3", 11) == [
        "4 ranks of f8e4m3 added in float lose nothing: any order gives these bits"
    ]


def test_products_of_a_narrow_type_are_not_said_to_lose_nothing() -> None:
    (remark, *_) = narrow("f8e4m3", 11, "prod")
    assert remark == (
        "exact: no order visible (adders of up to 11 bits would show). Products are correctly"
        " rounded, in 320 of 320"
    )


def test_a_range_that_is_too_small_is_told() -> None:
    assert narrow("half", 24)[-1] == (
        "half cannot show adders wider than float: exact, or in double"
    )


def test_an_order_without_a_name_asks_for_the_library() -> None:
    nested = "0+((1+3)+2)"
    (remark,) = [text for text in list_remarks(judge(size_order(64, nested))) if "unknown" in text]
    assert nested in remark and "--format md" in remark


def test_what_was_dropped_is_told() -> None:
    order = judge(size_order(64), dropped=["repeats from 64 B on: 5 s were spent"])
    assert "left out: repeats from 64 B on: 5 s were spent" in list_remarks(order)


def test_signatures_tell_proofs_apart() -> None:
    size = size_order(64)
    assert sign_order(size.ranks, size.proof) != sign_order(size.ranks, Proof(right=1, of=2))


def test_signatures_do_not_tell_how_often_it_was_proved() -> None:
    size = size_order(64)
    assert sign_order(size.ranks, size.proof) == sign_order(size.ranks, Proof(right=2, of=2))


# what there is nothing of


def test_a_skipped_case_keeps_its_reason() -> None:
    record = order_record(status="skipped", note="Invalid scalar type")
    (skipped,) = judge_orders(order_file(record)).unmeasured
    assert (skipped.status, skipped.reason) == ("skipped", "Invalid scalar type")


@pytest.mark.parametrize("tree", ["0+(1+(2+9))", "0+0", "rm -rf", "0+(1"])
def test_a_tree_of_a_strange_file_is_not_read(tree: str) -> None:
    judgement = judge_orders(order_file(order_record(size_order(64, tree))))
    assert (len(judgement.orders), len(judgement.unmeasured)) == (0, 1)


def test_findings_of_other_places_alone_are_nothing() -> None:
    assert judge_orders(order_file(order_record(way_of(64)))).orders == []


def test_a_run_without_orders_has_none() -> None:
    assert judge_orders(order_file()).orders == []


# numbers in words


@pytest.mark.parametrize(
    ("nbytes", "text"), [(364, "364 B"), (1304, "1,304 B"), (65536, "64 KiB"), (1536, "1.5 KiB")]
)
def test_a_size_loses_no_byte(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


def test_a_range_names_a_unit_once() -> None:
    assert format_range(4, 364) == "4 to 364 B"
    assert format_range(368, 65536) == "368 B to 64 KiB"


def test_ranks_are_ranges() -> None:
    assert format_ranks([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
