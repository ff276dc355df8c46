"""Names of orders: every reference and family by its own trees, sets of names that cannot be told
apart, and orders that libraries were seen to have."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from collbench.core import algorithms
from collbench.core.algorithms import Algorithm, Variant, find_variant, list_algorithms
from collbench.core.sums import names
from collbench.core.sums.families import RULES, build_chain, list_families, list_rings, list_rules
from collbench.core.sums.names import Names, describe_order, join_names, name_orders
from collbench.core.sums.symbolic import TreeRun, find_orders
from collbench.core.sums.trees import SumTree, join_trees, make_leaf, parse_tree

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter", "scan")
REFERENCES = [
    pytest.param(algorithm, id=f"{name}-{algorithm.name}")
    for name in REDUCTIONS
    for algorithm in list_algorithms(name)
]
GLOO = ["0+(1+(2+3))", "((0+3)+2)+1", "((0+1)+3)+2", "(0+(1+2))+3"]  # chunks 0 to 3 of 4 ranks


def make_runs(texts: Sequence[str | SumTree]) -> list[TreeRun]:
    """Pieces of 16 elements each."""
    trees = [parse_tree(text) if isinstance(text, str) else text for text in texts]
    return [TreeRun(tree, 16) for tree in trees]


def name_all_reduce(n: int, *texts: str | SumTree) -> Names:
    """The names of these pieces at every rank."""
    return name_orders("all_reduce", n, -1, [make_runs(texts)] * n)


def name_reduce(n: int, root: int, *texts: str) -> Names:
    return name_orders(
        "reduce", n, root, [make_runs(texts) if rank == root else None for rank in range(n)]
    )


def name_by_rank(collective: str, *texts: str | SumTree) -> Names:
    """The names of one tree a rank."""
    return name_orders(collective, len(texts), -1, [make_runs([text]) for text in texts])


def name_reference(name: str, n: int, collective: str = "all_reduce") -> Names:
    return name_orders(collective, n, 0, find_orders(find_variant(collective, name).schedule(n)))


@pytest.mark.parametrize("algorithm", REFERENCES)
@pytest.mark.parametrize("n", range(2, 10))
def test_a_reference_is_among_the_names_of_its_orders(algorithm: Algorithm, n: int) -> None:
    variant = Variant(algorithm)
    if not variant.refuse(n):
        for root in {0, n - 1}:
            orders = find_orders(variant.schedule(n, root))
            assert algorithm.name in name_orders(algorithm.collective, n, root, orders).references


@pytest.mark.parametrize("n", range(2, 10))
def test_a_family_is_among_the_names_of_its_tree(n: int) -> None:
    for family in list_families(n):
        assert family.name in name_all_reduce(n, family.tree).families, family


@pytest.mark.parametrize("n", range(4, 10))
def test_a_family_of_a_reduce_is_named_with_its_root(n: int) -> None:
    for family in list_families(n, 2):
        outputs = [make_runs([family.tree]) if rank == 2 else None for rank in range(n)]
        assert name_orders("reduce", n, 2, outputs).has(family.name), family


@pytest.mark.parametrize("n", range(4, 10))
def test_a_rule_is_among_the_names_of_its_prefixes(n: int) -> None:
    for rule in RULES:
        outputs = [make_runs([rule.build_tree(rank + 1)]) for rank in range(n)]
        assert rule.full_name in name_orders("scan", n, -1, outputs).families, rule.full_name


@pytest.mark.parametrize("n", range(4, 10))
def test_a_rule_is_among_the_names_of_blocks_that_are_their_own_roots(n: int) -> None:
    for name, rule in list_rules(n).items():
        outputs = [make_runs([rule.build_tree(n, rank)]) for rank in range(n)]
        assert name_orders("reduce_scatter", n, -1, outputs).has(name), name


@pytest.mark.parametrize("name", ["double_tree", "chain"])
@pytest.mark.parametrize("segments", [1, 2, 5])
def test_segments_change_no_name(name: str, segments: int) -> None:
    schedule = find_variant("reduce", f"{name}:segments={segments}").schedule(7, 3)
    assert name in name_orders("reduce", 7, 3, find_orders(schedule)).references


AMBIGUOUS = {  # references of all_reduce that add alike
    4: [
        ("central",),
        ("reduce_broadcast", "halving_doubling"),
        ("ring",),
        ("ring:down",),
        ("recursive_doubling", "torus2d", "hierarchical", "swing", "swing_latency"),
        ("double_tree",),
        ("one_shot",),
        ("two_shot",),
    ],
    6: [
        ("central",),
        ("reduce_broadcast", "halving_doubling"),
        ("ring",),
        ("ring:down",),
        ("recursive_doubling",),
        ("double_tree",),
        ("torus2d", "hierarchical"),
        ("one_shot",),
        ("two_shot",),
    ],
    8: [
        ("central",),
        ("reduce_broadcast", "halving_doubling"),
        ("ring",),
        ("ring:down",),
        ("recursive_doubling",),
        ("double_tree",),
        ("torus2d", "hierarchical"),
        ("swing",),
        ("swing_latency",),
        ("one_shot",),
        ("two_shot",),
    ],
}


@pytest.mark.parametrize("n", AMBIGUOUS)
def test_references_that_add_alike(n: int) -> None:
    rows = [row for row in list_algorithms("all_reduce") if not Variant(row).refuse(n)]
    sets = dict.fromkeys(name_reference(row.name, n).references for row in rows)
    assert list(sets) == AMBIGUOUS[n], "AMBIGUOUS, above, has all of all_reduce"


def test_a_balanced_sum_of_four_ranks_has_seven_names() -> None:
    assert name_all_reduce(4, "(0+1)+(2+3)").phrase == "recursive_doubling or 6 more"


def test_a_sentence_shows_three_names_and_counts_the_others() -> None:
    assert name_all_reduce(4, "(0+1)+(2+3)").sentence == (
        "adds as recursive_doubling, torus2d, hierarchical or 4 more"
    )


@pytest.mark.parametrize(
    ("limit", "text"), [(1, "a or 2 more"), (2, "a, b or 1 more"), (3, "a, b or c")]
)
def test_names_are_joined_up_to_a_limit(limit: int, text: str) -> None:
    assert join_names(["a", "b", "c"], limit) == text


def test_one_name_stands_alone() -> None:
    assert join_names(["ring"], 3) == "ring"


# chunks of a reference


def test_chunks_one_after_the_other_have_the_name_alone() -> None:
    assert name_reference("ring", 4).phrase == "ring"


def test_chunks_that_start_at_another_rank_are_so_many_on() -> None:
    trees = list_rings(4)["ring"]
    assert name_all_reduce(4, *trees[2:], *trees[:2]).phrase == "ring, 2 chunks on"


def test_one_chunk_on_is_singular() -> None:
    trees = list_rings(4)["ring"]
    assert name_all_reduce(4, *trees[1:], trees[0]).references == ("ring, 1 chunk on",)


def test_rotation_counts_cells_of_equal_trees() -> None:
    a, b, c = "((0+1)+2)+3", "((0+2)+1)+3", "((0+3)+1)+2"  # two_shot adds two cells as a
    assert "two_shot, 1 chunk on" in name_all_reduce(4, a, b, c, a).references


def test_chunks_in_another_order_are_the_same_chunks() -> None:
    first, second, *others = list_rings(4)["ring"]
    assert name_all_reduce(4, second, first, *others).references == (
        "ring, chunks in another order",
    )


def test_a_ring_of_a_prime_number_of_ranks_is_hierarchical_too() -> None:
    assert name_reference("ring", 5).references == ("ring", "hierarchical")


def test_chunks_that_repeat_are_pieces() -> None:
    assert name_all_reduce(4, *list_rings(4)["ring"] * 4).references == ("ring, 16 pieces",)


def test_some_chunks_are_part_of_a_reference() -> None:
    assert name_all_reduce(4, *GLOO[:2]).references == ("ring:down, 2 of 4 chunks",)


def test_some_chunks_that_repeat_are_counted_as_pieces_too() -> None:
    assert name_all_reduce(4, *GLOO[:2] * 3).references == ("ring:down, 2 of 4 chunks, 6 pieces",)


def test_one_chunk_is_no_part_of_a_reference() -> None:
    assert name_all_reduce(4, "0+((1+2)+3)").references == ()


def test_one_chunk_of_a_ring_is_a_chain() -> None:
    assert name_all_reduce(4, "0+((1+2)+3)").families == ("chain from 1 up",)


def test_a_chunk_that_no_reference_has_makes_them_unknown() -> None:
    names_ = name_all_reduce(4, *GLOO[:3], "((0+2)+1)+3")
    assert names_.references == ()


def test_closer_names_come_first() -> None:
    assert name_reference("two_shot", 3).references == (
        "two_shot",
        "ring, 2 of 3 chunks",
        "ring:down, 2 of 3 chunks",
        "hierarchical, 2 of 3 chunks",
    )


def test_lengths_of_pieces_do_not_matter() -> None:
    runs = [TreeRun(tree, 10 + index) for index, tree in enumerate(list_rings(4)["ring"])]
    assert name_orders("all_reduce", 4, -1, [runs] * 4).references == ("ring",)


def test_neighbouring_pieces_of_one_tree_are_one() -> None:
    assert name_all_reduce(4, *["((0+3)+2)+1"] * 3).has("central")


def test_ranks_that_add_otherwise_are_one_shot() -> None:
    assert name_reference("one_shot", 6).phrase == "one_shot"


def test_ranks_that_all_add_in_rank_order_are_one_shot_too() -> None:
    assert name_all_reduce(6, "((((0+1)+2)+3)+4)+5").references == ("one_shot", "two_shot")


def test_blocks_in_another_order_are_the_same_blocks() -> None:
    first, second, *others = list_rings(4)["ring"]
    assert name_by_rank("reduce_scatter", second, first, *others).references == (
        "ring, blocks in another order",
    )


def test_blocks_that_repeat_are_pieces() -> None:
    outputs = [make_runs(list_rings(4)["ring"])] * 4
    assert name_orders("reduce_scatter", 4, -1, outputs).references == ("ring, 16 pieces",)


def test_one_block_alone_is_no_reference_some_blocks_on() -> None:
    outputs = [make_runs(["0+((1+2)+3)"]) if rank == 2 else None for rank in range(4)]
    assert name_orders("reduce_scatter", 4, -1, outputs).references == ()


def test_blocks_that_are_missing_take_no_name_away() -> None:
    outputs = [make_runs([tree]) for tree in list_rings(4)["ring"][:2]] + [None] * 2
    assert "ring" in name_orders("reduce_scatter", 4, -1, outputs).references


def test_an_output_that_a_reference_leaves_undefined_takes_its_name_away() -> None:
    outputs = [make_runs(["((0+3)+2)+1"])] * 4
    assert name_orders("reduce", 4, 0, outputs).references == ()


def test_one_rank_that_adds_otherwise_takes_the_name_away() -> None:
    outputs = [make_runs(list_rings(4)["ring"]) for _ in range(4)]
    outputs[2] = outputs[2][1:] + outputs[2][:1]
    assert "ring" not in name_orders("all_reduce", 4, -1, outputs).references


# what libraries were seen to do


@pytest.mark.parametrize(
    ("tree", "name"),
    [
        ("(0+((1+3)+5))+(2+4)", "2-ary by levels"),
        ("((0+1)+(2+3))+(4+5)", "doubling by 1, 2, 4, pairs at the front"),
        ("(((0+1)+2)+3)+(4+5)", "4-nomial by low digits"),
        ("((0+((1+4)+5))+2)+3", "3-ary heap"),
    ],
)
def test_an_order_of_six_ranks_is_named(tree: str, name: str) -> None:
    assert name in name_all_reduce(6, tree).families


@pytest.mark.parametrize(
    ("tree", "name"),
    [
        ("0+(1+(2+3))", "chain to the root"),  # Open MPI's all_reduce 1, Gloo's of one element
        ("(0+(1+3))+2", "2-ary by levels"),  # Open MPI's 2; Intel MPI from 368 B
        ("(0+1)+(2+3)", "recursive_doubling"),  # Open MPI's 3 and 6, MPICH
        ("((0+1)+2)+3", "linear up"),  # Intel MPI to 364 B
    ],
)
def test_an_order_of_four_ranks_is_named(tree: str, name: str) -> None:
    assert name_all_reduce(4, tree).has(name)


def test_open_mpis_ring_is_three_chunks_on() -> None:
    trees = [build_chain([(chunk + step) % 4 for step in range(4)]) for chunk in range(4)]
    assert name_all_reduce(4, *trees).phrase == "ring, 3 chunks on"


def test_gloos_all_reduce_is_two_chunks_on() -> None:
    assert name_all_reduce(4, *GLOO).phrase == "ring:down, 2 chunks on"


def test_gloos_reduce_is_two_chunks_on() -> None:
    assert name_reduce(4, 0, *GLOO).phrase == "ring:down, 2 chunks on"


def test_gloos_all_reduce_of_three_ranks_is_a_ring_both_ways() -> None:
    names_ = name_all_reduce(3, "0+(1+2)", "(0+2)+1", "(0+1)+2")
    assert (names_.has("ring"), names_.has("ring:down")) == (True, True)


def test_gloos_reduce_scatter_has_two_references_and_a_chain_from_each_rank() -> None:
    names_ = name_by_rank("reduce_scatter", *GLOO)
    assert (names_.references, names_.families) == (
        ("pairwise, 3 blocks on",),
        ("ring:down, 2 blocks on", "chain to the root, from each rank"),
    )


def test_an_mpis_reduce_scatter_halves() -> None:
    assert name_by_rank("reduce_scatter", *["(0+2)+(1+3)"] * 4).references == ("recursive_halving",)


def test_open_mpis_scan_adds_in_the_order_of_ranks() -> None:
    names_ = name_by_rank("scan", "0", "0+1", "(0+1)+2", "((0+1)+2)+3")
    assert (names_.has("chain"), names_.has("linear up")) == (True, True)


def test_mpichs_scan_is_no_reference_but_a_binomial_tree() -> None:
    names_ = name_by_rank("scan", "0", "0+1", "(0+1)+2", "(0+1)+(2+3)")
    assert (names_.references, names_.has("binomial by low bits")) == ((), True)


@pytest.mark.parametrize(
    ("tree", "name"),
    [
        ("(0+(1+3))+2", "2-ary by levels"),  # Open MPI, 4 B
        ("0+(1+(2+3))", "chain"),  # 4 KiB
        ("(0+1)+(2+3)", "binomial by low bits"),  # 64 KiB; MPICH, Intel MPI
        ("((0+1)+2)+3", "linear up"),  # Intel MPI, 4 B
    ],
)
def test_a_librarys_reduce_is_named(tree: str, name: str) -> None:
    assert name_reduce(4, 0, tree).has(name)


def test_a_reduce_that_adds_up_is_not_the_reference_that_adds_down() -> None:
    assert not name_reduce(4, 0, "((0+1)+2)+3").has("linear")


def test_a_reduce_from_its_root_says_so() -> None:
    assert name_reduce(5, 2, "(((2+3)+4)+0)+1").has("linear up, from rank 2")


def test_a_reduce_from_rank_0_says_so() -> None:
    assert name_reduce(5, 2, "(((0+1)+2)+3)+4").has("linear up, from rank 0")


# what has no name


def test_an_unknown_order_is_told_as_a_tree_and_adds_as_nothing() -> None:
    names_ = name_all_reduce(5, "((0+3)+(1+2))+4")
    assert names_.phrase == names_.sentence == "unknown: ((0+3)+(1+2))+4"


def test_more_unknown_pieces_are_counted() -> None:
    names_ = name_all_reduce(5, "((0+3)+(1+2))+4", "(((0+1)+2)+3)+4", "((0+4)+(1+2))+3")
    assert names_.phrase == "unknown: ((0+3)+(1+2))+4 and 1 more"


def test_pieces_of_different_families_are_named_one_by_one() -> None:
    names_ = name_all_reduce(6, "0+(1+(2+(3+(4+5))))", "(0+((1+3)+4))+(2+5)")
    assert names_.phrase == "chain to the root; 2-ary heap"


def test_an_exact_sum_shows_no_order() -> None:
    assert name_all_reduce(4, "exact{0, 1, 2, 3}").phrase == "exact: no order visible"


def test_all_ranks_at_once_are_a_family() -> None:
    assert name_all_reduce(4, "together{0, 1, 2, 3}").phrase == "all at once"


# few and many ranks


@pytest.mark.parametrize("collective", REDUCTIONS)
def test_two_ranks_have_one_order(collective: str) -> None:
    (algorithm, *_) = list_algorithms(collective)
    orders = find_orders(Variant(algorithm).schedule(2))
    assert name_orders(collective, 2, 0, orders).phrase == "2 ranks have one order"


def test_two_ranks_keep_all_names() -> None:
    rows = [row.name for row in list_algorithms("all_reduce") if not Variant(row).refuse(2)]
    assert list(name_all_reduce(2, "0+1").references) == rows


def test_three_ranks_have_three_orders() -> None:
    assert name_all_reduce(3, "(0+1)+2").note == (
        "3 ranks have three orders: names are sure from 4 ranks"
    )


def test_four_ranks_have_no_note() -> None:
    assert name_all_reduce(4, "((0+1)+2)+3").note == ""


def test_one_rank_adds_nothing() -> None:
    assert name_all_reduce(1, "0").phrase == "1 rank adds nothing"


def test_many_ranks_have_families_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_REFERENCE_RANKS", 5)
    outputs = [make_runs(list_rings(6)["ring"])] * 6
    names_ = name_orders("all_reduce", 6, -1, outputs)
    assert (names_.references, names_.families) == ((), ("ring",))


def test_many_ranks_are_told_that_references_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_REFERENCE_RANKS", 5)
    assert name_all_reduce(6, make_balanced(6)).note == (
        "reference algorithms are compared up to 5 ranks"
    )


def test_a_large_scan_names_its_last_tree_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_REFERENCE_RANKS", 3)
    names_ = name_by_rank("scan", "0", "0+1", "(0+1)+2", "((0+1)+2)+3")
    assert [str(piece.tree) for piece in names_.pieces] == ["((0+1)+2)+3"]


def test_pieces_are_each_tree_once_with_its_families() -> None:
    pieces = name_all_reduce(4, *GLOO * 2).pieces
    assert [(piece.order, piece.phrase) for piece in pieces] == [
        ("0+(1+(2+3))", "chain to the root"),
        ("((0+3)+2)+1", "linear down or 5 more"),
        ("((0+1)+3)+2", "chain from 1 down"),
        ("(0+(1+2))+3", "chain from 2 down"),
    ]


def test_a_piece_of_two_ranks_has_one_order() -> None:
    names_ = name_by_rank("scan", "0", "0+1", "(0+1)+2", "((0+1)+2)+3")
    assert [piece.phrase for piece in names_.pieces[:2]] == ["one order", "one order"]


def test_a_name_is_found_with_the_words_on_its_chunks() -> None:
    assert name_all_reduce(4, *GLOO).has("ring:down")


def test_a_name_is_not_found_by_its_beginning() -> None:
    assert not name_all_reduce(4, *GLOO).has("ring")


def test_an_algorithm_of_a_file_that_is_wrong_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_ALGORITHMS", "")
    path = tmp_path / "wrong.py"
    path.write_text(
        textwrap.dedent("""
        from collbench.core.schedule import Moves

        def lost(n, cells):
            yield Moves(0, 1, 0, 5, reduce=True)

        def line(n, cells):
            for rank in range(n - 1):
                yield Moves(rank, rank + 1, 0, reduce=True)
            for rank in range(n - 1):
                yield Moves(n - 1, rank, 0)
        """)
    )
    assert "wrong.py:line" not in name_all_reduce(5, "(((0+1)+2)+3)+4").references
    try:
        algorithms.add_file(f"{path}:lost,{path}:line", "all_reduce")
        references = name_all_reduce(5, "(((0+1)+2)+3)+4").references
        assert "wrong.py:line" in references
        assert "wrong.py:lost" not in references
    finally:
        monkeypatch.undo()
        algorithms.list_catalogue.cache_clear()


# the order itself


def make_balanced(n: int) -> SumTree:
    return next(family.tree for family in list_families(n) if family.name == "binomial by low bits")


def make_family(name: str) -> Callable[[int], SumTree]:
    return lambda n: next(family.tree for family in list_families(n) if family.name == name)


@pytest.mark.parametrize(
    ("build", "n", "text"),
    [
        (make_balanced, 4, "(0+1)+(2+3)"),
        (make_family("chain to the root"), 12, "0+(1+(2+(3+(4+(5+(6+(7+(8+(9+(10+11))))))))))"),
        (make_family("chain to the root"), 18, "chain from 17 down"),
        (make_family("linear up"), 18, "chain from 0 up"),
        (lambda n: build_chain([*range(5, n), *range(5)]), 18, "chain from 5 up"),
        (lambda n: build_chain([*range(0, n, 2), *range(1, n, 2)]), 18, "chain 0, 2, 4 ..."),
        (make_balanced, 64, "binary, depth 6"),
        (make_balanced, 18, "binary, depth 5"),
        (make_family("2-ary heap"), 18, "depth 8"),
        (make_family("all at once"), 18, "together{18 ranks}"),
        (lambda n: join_trees("exact", map(make_leaf, range(n))), 18, "exact{18 ranks}"),
        (
            lambda n: join_trees(
                "two",
                [join_trees("together", map(make_leaf, part)) for part in (range(9), range(9, n))],
            ),
            18,
            "depth 2, up to 9 at once",
        ),
    ],
)
def test_an_order_in_short(build: Callable[[int], SumTree], n: int, text: str) -> None:
    assert describe_order(build(n), n) == text
