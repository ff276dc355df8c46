"""Orders of additions, as real ranks of executors and libraries have them: found, proved, repeated;
and planted changes of them, which are seen."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec
import pytest
from marks import long, slow
from needs import needs_mpi

from collbench.core.algorithms import find_variant, list_algorithms
from collbench.core.dtypes import DTYPES
from collbench.core.sums.names import name_orders
from collbench.core.sums.symbolic import TreeRun
from collbench.core.sums.symbolic import find_orders as trace_orders
from collbench.features.order.calls import count_calls
from collbench.features.order.findings import OrderFindings, SizeOrder
from collbench.features.order.request import SumOrder

REDUCING = ("all_reduce", "reduce", "reduce_scatter", "scan")
FindOrders = Callable[..., list[OrderFindings]]
Asked = tuple[SumOrder, str]  # with an algorithm
ONCE = {"places": ("out",), "shifts": (0,), "repeats": 0, "bisect": False}


def order(collective: str, n: int, *sizes: int, **values: object) -> SumOrder:
    root = 0 if collective == "reduce" else -1
    return SumOrder(collective=collective, world=n, sizes=sizes, **{"root": root, **values})  # type: ignore[arg-type]


def list_trees(size: SizeOrder) -> dict[int, list[str]]:
    """By rank, the trees along its output."""
    return {rank: [p.tree for p in group.pieces] for group in size.ranks for rank in group.ranks}


def trace_trees(collective: str, algorithm: str, n: int) -> dict[int, list[str]]:
    """The same of a reference algorithm, by its schedule and the rule of executors."""
    traced = trace_orders(find_variant(collective, algorithm).schedule(n), by_rank=True)
    return {
        rank: [str(run.tree) for run in runs]
        for rank, runs in enumerate(traced)
        if runs is not None
    }


def name_size(size: SizeOrder) -> list[str]:
    """The names of an all_reduce's order."""
    outputs: list[list[TreeRun] | None] = [None] * sum(len(group.ranks) for group in size.ranks)
    for group in size.ranks:
        runs = [TreeRun(piece.parsed, piece.length) for piece in group.pieces if piece.parsed]
        for rank in group.ranks:
            outputs[rank] = runs
    found = name_orders("all_reduce", len(outputs), -1, outputs)
    return [*found.references, *found.families]


# reference algorithms


def list_references(n: int, names: Sequence[str] = ()) -> list[Asked]:
    """An order of each reference algorithm that adds, some elements to each of its cells."""
    return [
        (order(collective, n, 4 * 48 * n, **ONCE), row.name)
        for collective in REDUCING
        for row in list_algorithms(collective)
        if not find_variant(collective, row.name).refuse(n) and (not names or row.name in names)
    ]


def check_references(find_orders: FindOrders, asked: list[Asked], backend: str) -> None:
    found = find_orders(*asked, backend=backend)
    assert len(found) == len(asked)
    for (subject, algorithm), findings in zip(asked, found, strict=True):
        (size,) = findings.sizes
        what = f"{subject.collective} {algorithm}"
        expected = trace_trees(subject.collective, algorithm, subject.world)
        assert (what, list_trees(size)) == (what, expected)
        assert (what, size.proof.right) == (what, size.proof.of)
        assert (what, size.attempts) == (what, 1)


FEW = pytest.mark.parametrize("n", [2, slow(3), long(4)])


@pytest.mark.parametrize("n", [long(2), 3, long(4)])
def test_references_on_shared_memory_add_as_their_schedules_say(find_orders, n: int) -> None:
    check_references(find_orders, list_references(n), "shm")


@pytest.mark.slow
@FEW
def test_references_over_gloos_messages_add_as_their_schedules_say(find_orders, n: int) -> None:
    check_references(find_orders, list_references(n), "gloo")


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("n", [long(2), 3, long(4)])
def test_references_over_mpis_messages_add_as_their_schedules_say(find_orders, n: int) -> None:
    check_references(find_orders, list_references(n), "mpi")


@pytest.mark.long
@pytest.mark.parametrize("n", [6, 8])
def test_references_of_more_ranks_on_shared_memory(find_orders, n: int) -> None:
    check_references(find_orders, list_references(n), "shm")


@pytest.mark.long
@pytest.mark.parametrize("n", [6, 8])
def test_references_of_more_ranks_over_gloos_messages(find_orders, n: int) -> None:
    check_references(find_orders, list_references(n), "gloo")


@needs_mpi
@pytest.mark.long
@pytest.mark.parametrize("n", [6, 8])
def test_references_of_more_ranks_over_mpis_messages(find_orders, n: int) -> None:
    check_references(find_orders, list_references(n), "mpi")


@pytest.mark.long
def test_five_references_of_sixteen_ranks(find_orders) -> None:
    names = ("ring", "swing", "hierarchical", "linear", "recursive_halving")
    asked = {name: (subject, name) for subject, name in list_references(16, names)}
    check_references(find_orders, list(asked.values()), "shm")


def test_two_shot_in_place_adds_to_the_block_that_is_there(find_orders) -> None:
    subject = order("all_reduce", 4, 4 * 48, **(ONCE | {"places": ("in",)}))
    ((size,),) = (found.sizes for found in find_orders((subject, "two_shot")))
    assert list_trees(size)[0] == ["((0+1)+2)+3", "((0+2)+1)+3", "((0+3)+1)+2"]


def test_one_shot_adds_alike_on_all_ranks_in_place_too(find_orders) -> None:
    subject = order("all_reduce", 4, 4 * 48, **(ONCE | {"places": ("out", "in")}))
    ((_, inside),) = (found.sizes for found in find_orders((subject, "one_shot")))
    assert inside.like


@pytest.mark.long
def test_twenty_ranks_are_asked_adaptively(find_orders) -> None:
    subject = order("all_reduce", 20, 4 * 40, **ONCE)
    ((size,),) = (found.sizes for found in find_orders((subject, "ring")))
    assert size.strategy == "adaptive"
    assert list_trees(size) == trace_trees("all_reduce", "ring", 20)
    assert size.proof.is_complete
    assert size.calls <= count_calls(subject)[1]


@pytest.mark.slow
def test_adaptive_questions_find_what_all_pairs_find(find_orders) -> None:
    names = ("ring", "double_tree", "halving_doubling", "central", "hierarchical")
    adaptive = {**ONCE, "strategy": "adaptive"}
    asked = [(order("all_reduce", 6, 4 * 48, **adaptive), name) for name in names]
    for (_, name), findings in zip(asked, find_orders(*asked), strict=True):
        assert list_trees(findings.sizes[0]) == trace_trees("all_reduce", name, 6)


# what is read at which rank


def test_a_prefix_is_a_sum_of_the_ranks_up_to_it(find_orders) -> None:
    ((size,),) = (f.sizes for f in find_orders((order("scan", 4, 64, **ONCE), "chain")))
    assert list_trees(size) == {
        0: ["0"],
        1: ["0+1"],
        2: ["(0+1)+2"],
        3: ["((0+1)+2)+3"],
    }


@pytest.mark.parametrize("root", [slow(0), 1, slow(3)])
def test_a_reduce_has_an_order_at_its_root_alone(find_orders, root: int) -> None:
    subject = order("reduce", 4, 64, **ONCE, root=root)
    ((size,),) = (found.sizes for found in find_orders((subject, "binomial")))
    traced = trace_orders(find_variant("reduce", "binomial").schedule(4, root))
    assert list_trees(size) == {root: [str(run.tree) for run in traced[root] or ()]}


def test_each_rank_has_the_order_of_its_block(find_orders) -> None:
    subject = order("reduce_scatter", 3, 4 * 3 * 5, **ONCE)
    ((size,),) = (found.sizes for found in find_orders((subject, "ring")))
    assert list_trees(size) == trace_trees("reduce_scatter", "ring", 3)


# Gloo


def find_gloo(find_orders: FindOrders, collective: str, n: int, *sizes: int, **values: object):
    (found,) = find_orders(
        (order(collective, n, *sizes, **(ONCE | values)), "native"), backend="gloo"
    )
    return found.sizes


GLOO = ["0+(1+(2+3))", "((0+3)+2)+1", "((0+1)+3)+2", "(0+(1+2))+3"]


def list_starts(size: SizeOrder) -> list[int]:
    """Where pieces begin, on the first rank that has some."""
    return [piece.first for piece in size.ranks[0].pieces]


@pytest.mark.slow
def test_gloos_ring_goes_down_from_the_last_rank(find_orders) -> None:
    one, three, five, many = find_gloo(find_orders, "all_reduce", 4, 4, 12, 20, 256)
    assert list_trees(one) == dict.fromkeys(range(4), GLOO[:1])
    assert (list_starts(three), list_trees(three)[0]) == ([0, 2], GLOO[:2])
    assert (list_starts(five), list_trees(five)[0]) == ([0, 2, 4], GLOO[:3])
    assert (list_starts(many), list_trees(many)[3]) == ([0, 16, 32, 48], GLOO)
    assert all(size.proof.is_complete for size in (one, three, five, many))


def test_gloos_ring_has_its_name(find_orders) -> None:
    (size,) = find_gloo(find_orders, "all_reduce", 4, 256)
    assert name_size(size) == ["ring:down, 2 chunks on"]


def test_gloos_chunks_on_three_ranks(find_orders) -> None:
    few, many = find_gloo(find_orders, "all_reduce", 3, 256, 65536)
    assert list_starts(few) == [0, 22, 44]
    assert list_starts(many) == [0, 5462, 10924]


def test_two_ranks_have_one_order(find_orders) -> None:
    (size,) = find_gloo(find_orders, "all_reduce", 2, 256)
    assert list_trees(size) == {0: ["0+1"], 1: ["0+1"]}
    assert size.proof.is_complete


def test_gloo_reduces_as_it_all_reduces(find_orders) -> None:
    (size,) = find_gloo(find_orders, "reduce", 4, 256, root=2)
    assert list_trees(size) == {2: GLOO}


def test_gloo_scatters_a_tree_to_each_rank(find_orders) -> None:
    (size,) = find_gloo(find_orders, "reduce_scatter", 4, 256)
    assert sorted(trees[0] for trees in list_trees(size).values()) == sorted(GLOO)


@pytest.mark.parametrize("dtype", ["bfloat16", slow("half"), slow("double")])
def test_gloo_adds_other_types_alike(find_orders, dtype: str) -> None:
    size = 64 * DTYPES[dtype].size
    (found,) = find_gloo(find_orders, "all_reduce", 4, size, dtype=dtype)
    assert list_trees(found)[0] == GLOO
    assert {p.adder for group in found.ranks for p in group.pieces} == {DTYPES[dtype].precision}
    assert found.proof.is_complete


def test_gloo_refuses_eight_bits(ask) -> None:
    (record,) = ask((order("all_reduce", 2, 256, dtype="f8e4m3"), "native"), backend="gloo")
    assert (record.status, "refuses all_reduce of f8e4m3" in record.note) == ("skipped", True)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["sum", "avg", long("prod")])
def test_executors_order_of_every_type_predicts_every_reduction(find_orders, op) -> None:
    subject = order("all_reduce", 3, 96, **(ONCE | {"places": ("out", "in"), "shifts": (0, 1)}))
    dtypes = ("bfloat16", "half", "double", "f8e4m3", "f8e5m2")
    subjects = [msgspec.structs.replace(subject, dtype=dtype, op=op) for dtype in dtypes]
    found = find_orders(*[(each, "ring") for each in subjects])
    assert len(found) == len(dtypes)
    for each in found:
        assert [size.proof.right for size in each.sizes] == [s.proof.of for s in each.sizes]
        assert [size.like for size in each.sizes] == [False, True, True, True]


# MPI


def find_open_mpi(find_orders: FindOrders, collective: str, *sizes: int, told: int = 0, **values):
    env = (
        ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"),
        ("OMPI_MCA_coll_tuned_allreduce_algorithm", str(told)),
    )
    asked = order(collective, 4, *sizes, **(ONCE | values))
    (found,) = find_orders((asked, "native"), backend="mpi", env=env if told else ())
    return found.sizes


OPEN_MPI = {  # by the number of the algorithm that Open MPI 5 is told
    1: "chain to the root",
    2: "2-ary by levels",
    3: "recursive_doubling",
    4: "ring, 3 chunks on",
    5: "ring, 3 chunks on",
    6: "doubling by 1, 2, 4",
}


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("told", [told if told in (1, 4) else long(told) for told in OPEN_MPI])
def test_open_mpi_adds_as_it_is_told(find_orders, told: int) -> None:
    (size,) = find_open_mpi(find_orders, "all_reduce", 256, told=told)
    assert OPEN_MPI[told] in name_size(size)
    assert size.proof.is_complete


@needs_mpi
@pytest.mark.slow
def test_open_mpi_reduces_in_several_orders_by_size(find_orders) -> None:
    sizes = find_open_mpi(find_orders, "reduce", 4, 256, 4096, 65536)
    assert len({tuple(list_trees(size)[0]) for size in sizes}) > 1
    assert all(size.proof.is_complete for size in sizes)


@needs_mpi
@pytest.mark.slow
def test_open_mpi_scans_in_rank_order(find_orders) -> None:
    (size,) = find_open_mpi(find_orders, "scan", 4096)
    assert list_trees(size)[3] == ["((0+1)+2)+3"]


@needs_mpi
@pytest.mark.slow
def test_open_mpi_adds_doubles_in_their_own_type(find_orders) -> None:
    (size,) = find_open_mpi(find_orders, "all_reduce", 4096, dtype="double")
    assert {piece.adder for group in size.ranks for piece in group.pieces} == {53}


# planted changes; more of them among threads, in tests/pure/features/order/test_planted.py


def find_planted(find_orders: FindOrders, word: str, *sizes: int, **values: object):
    asked = order("all_reduce", 3, *(sizes or (256,)), **(ONCE | values))
    (found,) = find_orders((asked, "native"), backend="adding", sabotage=word)
    return found.sizes


UP, DOWN = "(0+1)+2", "0+(1+2)"


@pytest.mark.slow
def test_every_fiftieth_call_of_real_ranks_is_seen_and_named(find_orders) -> None:
    (size,) = find_planted(find_orders, "every:50", repeats=200)
    assert list_trees(size)[0] == [UP]
    (odd,) = size.repeats.odd
    assert {after - call for call, after in itertools.pairwise(odd.calls)} == {50}
    assert odd.tree == DOWN


def test_an_odd_element_of_real_ranks_is_a_piece(find_orders) -> None:
    (size,) = find_planted(find_orders, "element:17")
    assert (list_starts(size), list_trees(size)[2]) == ([0, 17, 18], [UP, DOWN, UP])


def test_an_odd_real_rank_is_told_apart(find_orders) -> None:
    (size,) = find_planted(find_orders, "rank:1")
    assert list_trees(size) == {0: [UP], 1: [DOWN], 2: [UP]}


@pytest.mark.slow
def test_real_ranks_bisect_sizes(find_orders) -> None:
    sizes = find_planted(find_orders, "from:404", 64, 1024, bisect=True)
    assert [size.nbytes for size in sizes] == [64, 400, 404, 1024]


def test_real_ranks_have_another_order_in_place(find_orders) -> None:
    base, inside = find_planted(find_orders, "in_place", places=("out", "in"))
    assert (list_trees(base)[0], list_trees(inside)[0]) == ([UP], [DOWN])


def test_wrong_data_of_a_real_rank_are_wrong(ask) -> None:
    asked = order("all_reduce", 3, 256, **ONCE)
    (record,) = ask((asked, "native"), backend="adding", sabotage="wrong:2")
    assert (record.status, record.wrong > 0) == ("wrong", True)
    assert record.first_wrong is not None
    assert (record.first_wrong.rank, record.first_wrong.index) == (2, 63)
