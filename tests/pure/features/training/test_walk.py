"""Steps are checked and walked: deadlocks and disagreements are named, times add up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.core.errors import UsageError
from collbench.features.training.step import (
    Grid,
    Groups,
    Op,
    Program,
    Step,
    Writer,
    parse_order,
    refuse_step,
)
from collbench.features.training.walk import Actors, Party, Walk

CALL = {"nbytes": 8, "dtype": "float", "wait": "call"}


def program(*ops: Op, ranks: tuple[int, ...] = (0,)) -> Program:
    return Program(ranks, ops)


def step(*programs: Program, groups: dict[str, Groups] | None = None) -> Step:
    world = sum(len(each.ranks) for each in programs)
    return Step("x", world, programs, groups or {})


def send(peer: int, **more: object) -> Op:
    return Op(kind="send", peer=peer, **{**CALL, **more})  # type: ignore[arg-type]


def recv(peer: int, **more: object) -> Op:
    return Op(kind="recv", peer=peer, **{**CALL, **more})  # type: ignore[arg-type]


def all_reduce(**more: object) -> Op:
    return Op(kind="all_reduce", op="sum", **{**CALL, **more})  # type: ignore[arg-type]


def test_two_sends_that_meet_are_a_deadlock_whose_circle_is_told() -> None:
    one = step(program(send(1), recv(1)), program(send(0), recv(0), ranks=(1,)))
    with pytest.raises(
        UsageError,
        match=r"deadlock: rank 0 waits in op 0 \(send .*for rank 1, "
        r"rank 1 waits in op 0 .*for rank 0",
    ):
        Walk(one)


def test_a_pair_of_sends_of_which_one_comes_second_is_fine() -> None:
    Walk(step(program(send(1), recv(1)), program(recv(0), send(0), ranks=(1,))))


def test_sends_on_a_lane_of_their_own_that_are_not_waited_for_are_no_deadlock() -> None:
    def both(lane: str) -> Step:
        ops = [(send(1 - r, wait="later"), recv(1 - r, lane=lane), Op(kind="wait")) for r in (0, 1)]
        return step(*(program(*each, ranks=(rank,)) for rank, each in enumerate(ops)))

    Walk(both("receives"))
    with pytest.raises(UsageError, match="deadlock"):
        Walk(both("comm"))


def test_an_operation_that_somebody_leaves_out_is_told_with_who_has_ended() -> None:
    one = step(program(all_reduce(), all_reduce(), ranks=(0, 2)), program(all_reduce(), ranks=(1,)))
    with pytest.raises(UsageError, match=r"rank 0 waits in op 1 .*for rank 1, which has ended"):
        Walk(one)


@pytest.mark.parametrize(
    "change", [{"nbytes": 16}, {"dtype": "int32"}, {"op": "max"}, {"kind": "broadcast", "root": 0}]
)
def test_ranks_that_disagree_on_an_operation_are_named(change: dict[str, object]) -> None:
    other = Op(**{**{"kind": "all_reduce", "op": "sum"}, **CALL, **change})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"disagree: op 0 of rank 0 is .*, op 0 of rank 1 is"):
        Walk(step(program(all_reduce()), program(other, ranks=(1,))))


def test_two_groups_in_another_order_are_a_deadlock() -> None:
    groups: dict[str, Groups] = {"a": ((0, 1),), "b": ((0, 1),)}
    a, b = all_reduce(group="a"), all_reduce(group="b")
    Walk(step(program(a, b), program(a, b, ranks=(1,)), groups=groups))
    with pytest.raises(UsageError, match="deadlock"):
        Walk(step(program(a, b), program(b, a, ranks=(1,)), groups=groups))


def seconds(op: Op, party: Party) -> float:
    return op.compute_ns / 1e9 if op.kind == "compute" else 2.0


def work(took: float) -> Op:
    return Op(kind="compute", compute_ns=round(took * 1e9), lane="compute")


def test_communication_beside_computation_is_hidden_by_it() -> None:
    later = all_reduce(wait="later")
    walk = Walk(step(program(later, work(5), Op(kind="wait"), ranks=(0, 1))), seconds)
    assert walk.seconds == 5
    walk = Walk(step(program(later, work(1), Op(kind="wait"), ranks=(0, 1))), seconds)
    assert walk.seconds == 2


def test_a_call_that_is_waited_for_holds_up_what_follows() -> None:
    assert Walk(step(program(all_reduce(), work(5), ranks=(0, 1))), seconds).seconds == 7


def test_operations_of_a_lane_follow_each_other_and_lanes_do_not() -> None:
    one, other = all_reduce(wait="later"), all_reduce(wait="later", lane="other")
    assert Walk(step(program(one, one, one, ranks=(0, 1))), seconds).seconds == 6
    assert Walk(step(program(one, other, ranks=(0, 1))), seconds).seconds == 2


def test_an_operation_begins_after_what_it_names() -> None:
    ops = all_reduce(wait="later"), all_reduce(wait="later", lane="other", after=(0,))
    assert Walk(step(program(*ops, ranks=(0, 1))), seconds).seconds == 4


def test_all_wait_for_the_last_to_come() -> None:
    late = program(work(3), all_reduce(), ranks=(1,))
    walk = Walk(step(program(all_reduce()), late), seconds)
    assert walk.seconds == 5
    assert walk.spans[0][0] == (3, 5)


def test_thousands_of_operations_under_way_at_once() -> None:
    many = [all_reduce(wait="later")] * 5000
    assert Walk(step(program(*many, Op(kind="wait"), ranks=(0, 1))), seconds).seconds == 10_000


def test_ranks_that_do_alike_with_those_that_do_alike_are_one_kind() -> None:
    grid = Grid({"tp": 4, "dp": 8, "pp": 2})
    groups = {name: grid.groups(name) for name in grid.sizes}
    first = program(all_reduce(group="tp"), send(1, group="pp"), ranks=grid.ranks("pp", 0))
    last = program(all_reduce(group="tp"), recv(0, group="pp"), ranks=grid.ranks("pp", 1))
    actors = Actors(step(first, last, groups=groups))
    assert actors.first == [0, 32]
    assert actors.count == {0: 32, 1: 32}


def test_ranks_are_told_apart_by_whom_they_meet() -> None:
    """0 and 1 have one program, but 1 meets 2, which does more, on the other group."""
    groups: dict[str, Groups] = {"a": ((0, 3), (1, 2))}
    alike = program(all_reduce(group="a"), ranks=(0, 1, 3))
    more = program(all_reduce(group="a"), work(1), ranks=(2,))
    assert len(Actors(step(alike, more, groups=groups)).first) == 3


def test_ranks_at_one_place_of_groups_of_unequal_size_are_two_kinds() -> None:
    groups: dict[str, Groups] = {"a": ((0, 1), (2, 3, 4))}
    sent = Op(kind="broadcast", group="a", root=0, **CALL)  # type: ignore[arg-type]
    walk = Walk(step(program(sent, ranks=tuple(range(5))), groups=groups), count_members)
    assert [walk.actors.kind[rank] for rank in (0, 2)] == [0, 2]
    assert [walk.spans[walk.actors.kind[rank]][0] for rank in (0, 2)] == [(0, 2), (0, 3)]


def count_members(op: Op, party: Party) -> float:
    return float(len(party.members))


def test_members_that_go_on_in_another_way_receive_a_broadcast_of_like_roots() -> None:
    groups: dict[str, Groups] = {"a": ((0, 1), (2, 3))}
    sent = Op(kind="broadcast", group="a", root=0, **CALL)  # type: ignore[arg-type]
    roots = program(sent, ranks=(0, 2))
    others = program(sent, ranks=(1,)), program(sent, work(1), ranks=(3,))
    assert Walk(step(roots, *others, groups=groups), seconds).seconds == 3


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_a_walk_by_kinds_takes_as_long_as_one_of_every_rank(
    sizes: list[int], data: st.DataObject
) -> None:
    grid = Grid(dict(zip("abc", sizes, strict=False)))
    groups = {name: grid.groups(name) for name in grid.sizes}
    names = data.draw(st.lists(st.sampled_from([*groups, ""]), max_size=8))
    w = Writer()
    for name in names:
        w.compute(source=name)
        w.add(
            "all_reduce",
            group=name,
            **{**CALL, "wait": data.draw(st.sampled_from(["call", "later"]))},
        )
    whole = Step("x", grid.world, (w.program(range(grid.world)),), groups)
    apart = Step("x", grid.world, tuple(w.program([r]) for r in range(grid.world)), groups)
    refuse_step(whole)
    assert Walk(whole, seconds).seconds == Walk(apart, seconds).seconds


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (Op(kind="all_reduse"), "there is no kind 'all_reduse'"),
        (all_reduce(dtype="float7"), "there is no datatype 'float7'"),
        (all_reduce(group="tp"), "there is no group 'tp'"),
        (all_reduce(nbytes=6), "6 B are not a whole number of elements of float"),
        (send(2), "peer 2 is none of 2 members"),
        (send(0), "it is with itself"),
        (Op(kind="broadcast", root=2, **CALL), "root 2 is none of 2 members"),
        (Op(kind="all_to_allv", sends=(1,), **CALL), "sends has 1 numbers for 2 members"),
        (Op(kind="wait", after=(0,)), "it begins after op 0, which is not before it"),
    ],
)
def test_what_cannot_be_is_refused_with_rank_and_operation(op: Op, words: str) -> None:
    with pytest.raises(UsageError, match=f"rank 0, op 0.*{words}"):
        refuse_step(step(program(op), program(ranks=(1,))))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Step("x", 2, (program(ranks=(0, 1)), program(ranks=(1,)))), "rank 1 has two programs"),
        (Step("x", 3, (program(ranks=(0, 1)),)), "rank 2 has no program"),
        (Step("x", 0, ()), "a step cannot have 0 ranks"),
        (Step("x", 1, (program(),), {"a": ((0,), (0,))}), "share some"),
        (Step("x", 1, (program(),), {"a": ((1,),)}), "there is no rank 1 of 1"),
    ],
)
def test_worlds_and_groups_that_cannot_be_are_refused(made: Step, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        refuse_step(made)


def test_groups_of_a_grid_are_megatrons() -> None:
    assert parse_order("order:tp2-dp4/tp", 8) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert parse_order("order:tp2-dp4/dp", 8) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert parse_order("order:tp2-cp2-dp2/tp-dp", 8) == ((0, 1, 4, 5), (2, 3, 6, 7))
    for wrong in ("order:tp2-dp4/pp", "order:tp2/tp", "tp2-dp4/tp", "order:/"):
        with pytest.raises(UsageError, match="is not a grid of 8 ranks"):
            parse_order(wrong, 8)
