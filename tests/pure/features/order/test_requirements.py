"""What --require takes, what keeps it, and orders held against a recorded run."""

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

from collbench.core.errors import Exit, UsageError
from collbench.core.sums.families import list_families
from collbench.core.sums.names import _name_tree, list_references
from collbench.features.order.findings import (
    Neighbours,
    OddCalls,
    Proof,
    RankPieces,
    Repeats,
    SizeOrder,
)
from collbench.features.order.judgement import judge_orders
from collbench.features.order.likeness import Likeness, compare_orders, describe_likeness
from collbench.features.order.naming import is_known_name
from collbench.features.order.report import OrderReport, make_order_report
from collbench.features.order.requirements import Requirement, parse_requirements
from collbench.features.order.view import make_document
from collbench.features.order.wording import describe_answer
from collbench.records.types import RunFile
from collbench.show import terminal


def report(*sizes: SizeOrder, require: str = "", like: RunFile | None = None) -> OrderReport:
    file = order_file(order_record(*sizes))
    return make_order_report(file, parse_requirements([require] if require else []), like)


def result(require: str, *sizes: SizeOrder) -> tuple[bool | None, str]:
    (one,) = report(*sizes, require=require).requirements
    return one.kept, one.reason


def parse(text: str) -> list[str]:
    return [str(one) for one in parse_requirements([text])]


# what is taken


def test_words_after_same_are_dimensions() -> None:
    assert parse("same=size,call,proved,order=ring") == [
        "same=size",
        "same=call",
        "proved",
        "order=ring",
    ]


def test_same_goes_on_after_proved() -> None:
    assert parse("same=size,proved,call") == ["same=size", "proved", "same=call"]


def test_several_options_add_up() -> None:
    assert parse_requirements(["proved", "adds=own,proved"]) == [
        Requirement("proved"),
        Requirement("adds", "own"),
    ]


@pytest.mark.parametrize(
    "text", ["same=speed", "same=", "adds=int", "order=", "fast", "colour=red", "proved=yes"]
)
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_requirements([text])
    assert error.value.hint


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("order=rng", "ring"),
        ("order=ring:donw", "ring:down"),
        ("order=linear upp", "linear up"),
        ("adds=dubble", "double"),
        ("same=cal", "call"),
        ("ordr=ring", "order"),
    ],
)
def test_a_typo_is_asked_about(text: str, meant: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_requirements([text])
    assert error.value.hint == f"did you mean {meant}?"


@pytest.mark.parametrize("n", [3, 4, 6])
def test_every_name_that_is_found_can_be_required(n: int) -> None:
    names = [name for tree in list_families(n) for name in _name_tree(tree.tree, n, 0)]
    names += [reference.name for reference in list_references("all_reduce", n)]
    assert [name for name in names if not is_known_name(name)] == []


# what keeps it


@pytest.mark.parametrize(
    ("require", "kept"),
    [
        ("same=size", True),
        ("same=call", True),
        ("same=rank", True),
        ("same=launch", None),
        ("proved", True),
        ("adds=own", True),
        ("adds=float", True),
        ("adds=double", False),
        ("order=linear up", True),
        ("order=ring", False),
    ],
)
def test_an_order_keeps_a_requirement(require: str, kept: bool | None) -> None:
    assert result(require, size_order(64), size_order(1024))[0] is kept


def test_a_ring_is_one_in_any_direction() -> None:
    sizes = (size_order(64, *RING), size_order(1024, *RING))
    assert result("order=ring", *sizes)[0]
    assert result("order=ring:down", *sizes)[0]


ONE_ELEMENT, ONE_PIECE = size_order(4, CHAIN), size_order(64, CHAIN)


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        ((ONE_ELEMENT, size_order(8, CHAIN), size_order(64, *RING)), True),
        ((size_order(64, *RING), size_order(1024, CHAIN)), False),
        ((size_order(4, DOUBLING), size_order(64, *RING)), False),
        ((ONE_PIECE,), False),
        ((ONE_ELEMENT,), None),
        ((ONE_ELEMENT, ONE_PIECE), False),
    ],
)
def test_a_short_buffer_is_one_chunk_of_a_ring_where_a_longer_one_is_all_of_it(
    sizes: tuple[SizeOrder, ...], kept: bool | None
) -> None:
    assert result("order=ring", *sizes)[0] is kept
    assert result("order=ring:down", *sizes)[0] is kept


def test_a_longer_buffer_in_another_place_tells_nothing_of_a_short_one() -> None:
    inside = replace(ONE_ELEMENT, in_place=True, varied=True)
    kept, reason = result("order=ring", ONE_ELEMENT, inside, size_order(64, *RING))
    why = "4 B, in place: too short for more than one chunk, and no larger size has this placement"
    assert (kept, reason) == (None, f"{why}; --place in --shift 0 gives it to all sizes")


def test_a_short_buffer_alone_asks_for_a_larger_size() -> None:
    reason = result("order=ring", ONE_ELEMENT)[1]
    assert reason == "4 B: too short for more than one chunk: add a larger size"


def test_blocks_of_a_short_buffer_are_chunks_of_a_ring() -> None:
    subject = order_subject("reduce_scatter", sizes=(16, 64))
    short = [
        RankPieces(ranks=ranks, pieces=order_pieces(1, tree))
        for ranks, tree in zip(((0, 1), (2, 3)), RING, strict=False)
    ]
    long = [
        RankPieces(ranks=(rank,), pieces=order_pieces(4, tree)) for rank, tree in enumerate(RING)
    ]
    record = order_record(size_order(16, ranks=short), size_order(64, ranks=long), subject=subject)
    file = order_file(record, subjects=[subject])
    judged = make_order_report(file, parse_requirements(["order=ring"]))
    assert judged.requirements[0].kept is True


def of_prefixes(adder: int) -> SizeOrder:
    """Rank 0 adds nothing and rank 1 two numbers, in whatever; the others more, in an adder."""
    trees = {0: ("0", 24), 1: ("0+1", 24), 2: ("(0+1)+2", adder), 3: (LINEAR, adder)}
    return size_order(
        64,
        ranks=[
            RankPieces(ranks=(rank,), pieces=order_pieces(16, tree, adder=bits))
            for rank, (tree, bits) in trees.items()
        ],
    )


@pytest.mark.parametrize(("require", "kept"), [("adds=double", True), ("adds=own", False)])
def test_sums_of_two_ranks_tell_of_no_adder(require: str, kept: bool) -> None:
    assert result(require, of_prefixes(53))[0] is kept


def test_two_ranks_tell_of_no_adder() -> None:
    for require in ("adds=double", "adds=own"):
        assert result(require, size_order(64, "0+1", n=2))[0] is None


def test_a_broken_order_tells_where_and_what_it_is() -> None:
    kept, reason = result("order=ring", size_order(64))
    assert not kept
    assert reason.startswith("64 B: adds as ") and reason.endswith(", not as ring")


def of_launches(*sizes: SizeOrder, require: str, like: RunFile | None = None) -> OrderReport:
    """Each launch has one size."""
    records = [order_record(size, cycle=cycle) for cycle, size in enumerate(sizes)]
    return make_order_report(order_file(*records), parse_requirements([require]), like)


@pytest.mark.parametrize(
    ("require", "words"),
    [
        ("order=linear up", "launch 2, 64 B: adds as "),
        ("adds=own", "launch 3, 64 B: adds in double, not in own"),
    ],
)
def test_a_later_launch_that_adds_otherwise_breaks_a_requirement(require: str, words: str) -> None:
    wide = [RankPieces(ranks=(0, 1, 2, 3), pieces=order_pieces(16, LINEAR, adder=53))]
    sizes = (size_order(64), size_order(64, DOUBLING), size_order(64, ranks=wide))
    judged = of_launches(*sizes, require=require)
    assert judged.exit == Exit.BAD
    assert judged.requirements[0].reason.startswith(words)


def test_another_place_that_adds_otherwise_breaks_a_requirement() -> None:
    other = size_order(64, DOUBLING, in_place=True, varied=True)
    kept, reason = result("order=linear up", size_order(64), other)
    assert kept is False
    assert reason.startswith("64 B, in place: adds as ")


def test_a_place_like_the_first_keeps_a_requirement() -> None:
    assert result("order=linear up", size_order(64), way_of(64))[0] is True


def test_an_order_that_was_not_found_hides_no_other_that_breaks_a_requirement() -> None:
    lost = [RankPieces(ranks=(0, 1, 2, 3), pieces=order_pieces(16, "", reason="none"))]
    sizes = (size_order(64, ranks=lost), size_order(1024))
    assert result("order=ring", *sizes)[0] is False
    assert result("order=linear up", *sizes) == (None, "no order was found")


def test_a_later_launch_in_which_sizes_differ_breaks_the_requirement() -> None:
    records = [
        order_record(size_order(64), size_order(68)),
        order_record(size_order(64), size_order(68, DOUBLING), cycle=1),
    ]
    judged = make_order_report(order_file(*records), parse_requirements(["same=size"]))
    assert judged.requirements[0].kept is False
    assert judged.requirements[0].reason == "size: launch 2: changes at 68 B (17 elements)"


# what was asked at some sizes only


UNREPEATED = {"repeats": Repeats(), "neighbours": Neighbours()}
WAYS = ((False, 1), (True, 0), (True, 1))


@pytest.mark.parametrize(
    ("require", "reason"),
    [
        ("same=call", "call: not asked at 1 KiB and 4 KiB"),
        ("same=neighbours", "neighbours: not asked at 1 KiB and 4 KiB"),
        ("same=place", "place: not asked at 4 KiB"),
    ],
)
def test_a_dimension_that_was_asked_at_some_sizes_only_is_not_known(
    require: str, reason: str
) -> None:
    sizes = [size_order(64), *(size_order(nbytes, **UNREPEATED) for nbytes in (1024, 4096))]
    ways = [way_of(size, *way) for size in (64, 1024) for way in WAYS] + [way_of(4096)]
    judged = report(*sizes, *ways, require=require)
    assert judged.exit == Exit.NO_VERDICT
    assert (judged.requirements[0].kept, judged.requirements[0].reason) == (None, reason)


def test_calls_that_differ_at_a_size_break_the_requirement_whatever_was_left_out() -> None:
    odd = OddCalls(calls=[7], ranks=(0,), first=0, last=0)
    changed = size_order(64, repeats=Repeats(calls=200, changed=1, odd=[odd]))
    assert result("same=call", changed, size_order(1024, **UNREPEATED))[0] is False


def test_a_bisected_size_need_not_be_repeated() -> None:
    sizes = (size_order(64), size_order(80, bisected=True, **UNREPEATED), size_order(1024))
    assert result("same=call", *sizes)[0] is True


def test_a_place_that_the_library_refuses_is_not_missing() -> None:
    ways = [way_of(64, False, 1)]
    dropped = ["in place: refused", "in place, 1 element off alignment: refused"]
    for texts, kept in ((dropped, True), (dropped[:1], None)):
        file = order_file(order_record(size_order(64), *ways, dropped=texts))
        judged = make_order_report(file, parse_requirements(["same=place"]))
        assert judged.requirements[0].kept is kept


@pytest.mark.parametrize(
    "require", ["same=size", "same=rank", "same=call", "order=linear up", "adds=own", "proved"]
)
def test_sizes_that_were_left_out_are_not_known(require: str) -> None:
    subject = order_subject(sizes=(64, 1024, 4096))
    record = order_record(size_order(64), size_order(1024), subject=subject)
    file = order_file(record, subjects=[subject])
    judged = make_order_report(file, parse_requirements([require]))
    assert judged.requirements[0].kept is None
    assert judged.requirements[0].reason.endswith(" at 4 KiB")


def test_a_launch_that_lacks_a_size_is_not_like_the_others() -> None:
    records = [
        order_record(size_order(64), size_order(1024)),
        order_record(size_order(64), cycle=1),
    ]
    judged = make_order_report(order_file(*records), parse_requirements(["same=launch"]))
    assert judged.requirements[0].reason == "launch: not asked at 1 KiB"


def test_a_broken_size_tells_where() -> None:
    _, reason = result("same=size", size_order(64), size_order(68, DOUBLING))
    assert reason == "size: changes at 68 B (17 elements)"


def test_what_was_not_asked_says_how_to_ask() -> None:
    assert result("same=launch", size_order(64))[1] == "launch: not asked (--launches 3)"


def test_an_order_of_a_case_that_was_skipped_is_not_known() -> None:
    records = [
        order_record(size_order(64)),
        order_record(status="skipped", note="refused", backend="mpi"),
    ]
    judged = make_order_report(order_file(*records), parse_requirements(["same=call"]))
    assert judged.requirements[0].kept is None
    assert "refused" in judged.requirements[0].reason


# exit codes


UNPROVED = size_order(64, proof=Proof(right=1, of=2, buffers=8))
EXACT = size_order(
    64,
    ranks=[RankPieces(ranks=(0, 1, 2, 3), pieces=order_pieces(16, "exact{0, 1, 2, 3}", adder=0))],
)


@pytest.mark.parametrize(
    ("size", "require", "code"),
    [
        (size_order(64), "", Exit.OK),
        (size_order(64), "same=call,proved", Exit.OK),
        (size_order(64), "order=ring", Exit.BAD),
        (size_order(64), "same=launch", Exit.NO_VERDICT),
        (size_order(64), "same=launch,order=ring", Exit.BAD),
        (UNPROVED, "", Exit.NO_VERDICT),
        (UNPROVED, "proved", Exit.BAD),
        (EXACT, "", Exit.NO_VERDICT),
        (EXACT, "adds=exact", Exit.OK),
    ],
)
def test_exit_codes(size: SizeOrder, require: str, code: Exit) -> None:
    assert report(size, require=require).exit == code


def test_nothing_recorded_is_no_verdict() -> None:
    assert make_order_report(order_file(order_record(status="failed"))).exit == Exit.NO_VERDICT


def test_results_that_are_no_sums_are_wrong_data() -> None:
    record = order_record(size_order(64), status="wrong", note="5 elements are no sum")
    judged = make_order_report(order_file(record), parse_requirements(["order=ring"]))
    assert judged.exit == Exit.WRONG_DATA
    assert describe_answer(judged.judgement.orders[0]).sentence == (
        "Results are no sums of the inputs: 5 elements are no sum."
    )


def test_sizes_that_were_left_out_are_no_verdict() -> None:
    subject = order_subject(sizes=(64, 1024, 4096))
    record = order_record(size_order(64), size_order(1024), subject=subject)
    assert make_order_report(order_file(record, subjects=[subject])).exit == Exit.NO_VERDICT


def test_a_skipped_case_without_a_requirement_changes_nothing() -> None:
    records = [order_record(size_order(64)), order_record(status="skipped", backend="mpi")]
    assert make_order_report(order_file(*records)).exit == Exit.OK


def test_a_case_for_which_no_time_was_left_is_no_verdict() -> None:
    lost = order_record(dropped=["sizes from 64 B on: 1 s were spent"], backend="mpi")
    assert lost.status == "ok"
    assert make_order_report(order_file(order_record(size_order(64)), lost)).exit == Exit.NO_VERDICT


def test_fake_gpus_are_no_verdict() -> None:
    file = order_file(order_record(size_order(64)))
    worlds = [replace(world, fake=True) for world in file.worlds]
    assert make_order_report(replace(file, worlds=worlds)).exit == Exit.NO_VERDICT


# a recorded run


def recorded(*sizes: SizeOrder, **fields: Any) -> RunFile:
    return order_file(order_record(*sizes, **fields), name="before")


def compare(*sizes: SizeOrder, like: RunFile) -> Likeness:
    (one,) = compare_orders(judge_orders(order_file(order_record(*sizes))), judge_orders(like))
    return one


def test_a_run_is_like_itself() -> None:
    assert compare(size_order(64), like=recorded(size_order(64))).is_alike
    assert report(size_order(64), like=recorded(size_order(64))).exit == Exit.OK


def test_a_case_that_was_skipped_is_not_known_to_be_as_recorded() -> None:
    skipped = order_record(status="skipped", note="no MPI", backend="mpi")
    file, like = order_file(order_record(size_order(64)), skipped), recorded(size_order(64))
    judged = make_order_report(file, recorded=like)
    assert judged.exit == Exit.NO_VERDICT
    text = terminal.render_text(make_document(judged), 200)
    assert "mpi: not known whether as in " in text and "skipped: no MPI" in text


def test_a_case_that_the_recorded_run_skipped_too_is_not_held_against_it() -> None:
    skipped = order_record(status="skipped", note="no MPI", backend="mpi")
    file = order_file(order_record(size_order(64)), skipped)
    judged = make_order_report(file, recorded=file)
    assert judged.exit == Exit.OK
    assert "not known whether" not in terminal.render_text(make_document(judged), 200)


def test_another_order_is_told_with_both() -> None:
    likeness = compare(size_order(64), like=recorded(size_order(64, DOUBLING)))
    assert describe_likeness(likeness, "before").endswith(
        f"another order than in before: 64 B, element 0: {LINEAR}, not {DOUBLING}"
    )


def test_another_order_is_judged_bad() -> None:
    assert report(size_order(64), like=recorded(size_order(64, DOUBLING))).exit == Exit.BAD


def test_a_later_launch_that_adds_otherwise_is_another_order() -> None:
    sizes = (size_order(64), size_order(64, DOUBLING))
    judged = of_launches(*sizes, require="proved", like=recorded(size_order(64)))
    assert judged.exit == Exit.BAD
    (likeness,) = judged.likenesses
    assert likeness.compared == 2
    assert describe_likeness(likeness, "before").endswith(
        f"another order than in before: launch 2: 64 B, element 0: {DOUBLING}, not {LINEAR}"
    )


def test_another_order_in_place_is_told_with_the_place() -> None:
    other = size_order(64, DOUBLING, in_place=True, varied=True)
    likeness = compare(size_order(64), other, like=recorded(size_order(64), way_of(64)))
    assert "another order than in before: in place: 64 B, " in describe_likeness(likeness, "before")


UNFOUND = size_order(
    64,
    ranks=[RankPieces(ranks=(0, 1, 2, 3), pieces=order_pieces(16, "", reason="none"))],
    proof=Proof(right=0, of=320, buffers=8),
)


@pytest.mark.parametrize("before", [UNPROVED, UNFOUND])
def test_a_recorded_order_that_is_not_proved_is_no_answer(before: SizeOrder) -> None:
    like = recorded(before)
    likeness = compare(size_order(64), like=like)
    assert (likeness.is_alike, likeness.compared, likeness.unproved) == (None, 0, (64,))
    assert report(size_order(64), like=like).exit == Exit.NO_VERDICT
    text = "not known whether as in before, at 64 B, where an order is not proved"
    assert describe_likeness(likeness, "before").endswith(text)


def test_an_order_that_is_not_found_is_no_other_than_recorded() -> None:
    likeness = compare(UNFOUND, like=recorded(size_order(64)))
    assert (likeness.is_alike, likeness.unproved) == (None, (64,))


def test_another_tree_than_recorded_differs_proved_or_not() -> None:
    for before in (UNPROVED, replace(UNPROVED, proof=Proof())):
        other = size_order(64, DOUBLING)
        assert compare(other, like=recorded(before)).is_alike is False


def test_bits_that_the_recorded_order_no_longer_predicts_are_another_order() -> None:
    likeness = compare(UNPROVED, like=recorded(size_order(64)))
    assert likeness.is_alike is False
    assert describe_likeness(likeness, "before").endswith("64 B, other bits or another proof")


def test_sizes_that_are_proved_are_compared_beside_others() -> None:
    like = recorded(UNPROVED, size_order(1024))
    likeness = compare(size_order(64), size_order(1024), like=like)
    assert (likeness.is_alike, likeness.compared, likeness.unproved) == (None, 1, (64,))
    assert describe_likeness(likeness, "before").endswith(
        "; not known at 64 B, where an order is not proved"
    )


def test_a_launch_or_place_without_an_order_breaks_nothing() -> None:
    judged = of_launches(size_order(64), UNFOUND, require="same=launch")
    assert judged.requirements[0].kept is None
    assert "not known at 64 B" in judged.requirements[0].reason
    inside = replace(UNFOUND, in_place=True, varied=True)
    kept, reason = result("same=place", size_order(64), inside)
    assert kept is None and "not known at 64 B" in reason


@pytest.mark.parametrize(("adder", "kept"), [(24, False), (53, None)])
def test_bits_are_compared_where_numbers_were_drawn_for_the_same_adders(
    adder: int, kept: bool | None
) -> None:
    pieces = order_pieces(16, LINEAR, adder=adder)
    first = size_order(64, ranks=[RankPieces(ranks=(0, 1, 2, 3), pieces=pieces)])
    judged = of_launches(first, replace(UNFOUND, digest="e"), require="same=launch")
    assert judged.requirements[0].kept is kept


def test_a_setting_without_an_order_breaks_nothing() -> None:
    records = [
        order_record(size, env=(("NCCL_ALGO", name),))
        for name, size in (("Ring", size_order(64)), ("Tree", UNFOUND))
    ]
    judged = make_order_report(order_file(*records), parse_requirements(["same=setting"]))
    assert judged.requirements[0].kept is None
    assert "not known at 64 B" in judged.requirements[0].reason


def test_a_launch_whose_bits_are_not_those_that_others_have_breaks_the_requirement() -> None:
    judged = of_launches(size_order(64), UNPROVED, require="same=launch")
    assert judged.requirements[0].kept is False


def test_the_first_element_that_differs_is_told() -> None:
    likeness = compare(size_order(64, *RING), like=recorded(size_order(64, *RING[:2], *RING[:2])))
    assert likeness.spot is not None and likeness.spot.element == 8


def test_sizes_that_are_not_recorded_are_no_verdict() -> None:
    assert compare(size_order(64), like=recorded(size_order(128))).is_alike is None
    assert report(size_order(64), like=recorded(size_order(128))).exit == Exit.NO_VERDICT


def test_sizes_of_which_some_are_recorded_are_no_verdict() -> None:
    likeness = compare(size_order(64), size_order(128), like=recorded(size_order(64)))
    assert (likeness.is_alike, likeness.missing) == (None, (128,))
    assert describe_likeness(likeness, "before").endswith("; not compared at 128 B")


def test_more_sizes_that_are_recorded_change_nothing() -> None:
    assert compare(size_order(64), like=recorded(size_order(64), size_order(128))).is_alike


def test_another_algorithm_is_compared_where_it_is_the_only_one() -> None:
    like = recorded(size_order(64, DOUBLING), algorithm="ring", backend="shm")
    likeness = compare(size_order(64), like=like)
    assert likeness.is_alike is False
    assert "before (ring@shm)" in describe_likeness(likeness, "before")


def test_another_collective_is_never_compared() -> None:
    subject = order_subject("reduce", root=0)
    record = order_record(size_order(64), subject=subject)
    like = order_file(record, subjects=[subject])
    assert compare(size_order(64), like=like).other is None


def test_another_adder_is_another_order() -> None:
    wide = size_order(64, ranks=[RankPieces(ranks=(0, 1, 2, 3), pieces=order_pieces(16, LINEAR))])
    other = [replace(piece, adder=53) for piece in wide.ranks[0].pieces]
    like = recorded(replace(wide, ranks=[RankPieces(ranks=(0, 1, 2, 3), pieces=other)]))
    likeness = compare(wide, like=like)
    assert "rounded otherwise" in describe_likeness(likeness, "before")


def test_more_repeats_are_no_other_order() -> None:
    like = recorded(size_order(64, repeats=Repeats(calls=10)))
    assert compare(size_order(64), like=like).is_alike
