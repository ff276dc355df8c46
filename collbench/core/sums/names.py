"""Names of orders of additions: those of the reference algorithms and families that add alike.

Names do not say which algorithm ran: several may add alike, and then all of them are kept.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from collbench.core.algorithm_files import list_user_algorithms
from collbench.core.algorithms import Algorithm, Variant, list_algorithms
from collbench.core.collectives import COLLECTIVES
from collbench.core.schedule import prove_schedule
from collbench.core.sums.families import (
    RULES,
    TOGETHER,
    Rule,
    find_turns,
    list_families,
    list_rings,
    list_rules,
)
from collbench.core.sums.symbolic import TreeRun, find_orders, join_runs
from collbench.core.sums.trees import SumTree, measure_shape
from collbench.core.text import format_count

Outputs = Sequence[Sequence[TreeRun] | None]  # by rank; None where it has no output

Trees = list[SumTree]

MAX_REFERENCE_RANKS = 128  # all references of all_reduce take 2.3 s there, and 7 s at 192 ranks

MAX_TEXT_RANKS = 12  # ranks up to which a tree is told as text

MAX_NAMES = 3  # in a sentence


class PieceNames(NamedTuple):
    """One tree of an output, and the families that have it."""

    tree: SumTree
    order: str  # the tree as text, or its shape
    families: tuple[str, ...]

    @property
    def has_one_order(self) -> bool:
        """Whether it has too few leaves for another order."""
        return len(self.tree.leaves) < 3

    @property
    def phrase(self) -> str:
        """Its first name and the number of others, or the tree."""
        if self.has_one_order:
            return "one order"
        return join_names(self.families, 1) if self.families else f"unknown: {self.order}"


class Names(NamedTuple):
    """The names of an order of additions. ``phrase`` is for tables, under "adds as"."""

    references: tuple[str, ...]  # algorithms that give the outputs, the closest first
    families: tuple[str, ...]  # rules that give all outputs
    pieces: tuple[PieceNames, ...]  # each tree once, as they come; of a large scan the last one
    phrase: str
    sentence: str
    note: str  # what limits the names, "" where nothing does

    def has(self, name: str) -> bool:
        """Whether a name is among them, alone or with words on its chunks."""
        return any(
            other == name or other.startswith(f"{name}, ")
            for other in (*self.references, *self.families)
        )


class Fit(NamedTuple):
    """How outputs follow from a reference: ``level`` from 0, the same, to 4, a part of it, and in
    words, "" for the same."""

    level: int
    words: str


class Reference(NamedTuple):
    """An algorithm's name and the trees of its outputs."""

    name: str
    outputs: Outputs


def name_orders(collective: str, n: int, root: int, outputs: Outputs) -> Names:
    """All names of references and families that fit the outputs of n ranks, lengths in elements.
    Above MAX_REFERENCE_RANKS only families are compared, and ``note`` says so."""
    root = max(root, 0) if COLLECTIVES[collective].rooted else 0
    joined = [join_runs(list(runs)) if runs else None for runs in outputs]
    references: list[str] = []
    if n <= MAX_REFERENCE_RANKS:
        references = match_references(collective, joined, list_references(collective, n, root))
    families = [
        name for name in _name_families(collective, n, root, joined) if name not in references
    ]
    trees = _list_trees(joined)
    if collective == "scan" and n > MAX_REFERENCE_RANKS:
        trees = trees[-1:]  # each prefix has its own families, which take n^3
    pieces = [_name_piece(n, root, tree) for tree in trees]
    return Names(
        tuple(references),
        tuple(families),
        tuple(pieces),
        *_word_names([*references, *families], pieces, n),
        _limit_names(n),
    )


def _limit_names(n: int) -> str:
    """A note on what names cannot tell among n ranks."""
    if n == 2:
        return "2 ranks have one order; -g 4"
    if n == 3:
        return "3 ranks have three orders: names are sure from 4 ranks"
    if n > MAX_REFERENCE_RANKS:
        return f"reference algorithms are compared up to {MAX_REFERENCE_RANKS} ranks"
    return ""


def _word_names(names: Sequence[str], pieces: Sequence[PieceNames], n: int) -> tuple[str, str]:
    """A phrase and a sentence of some names, or else of those of the pieces."""
    if n < 3:
        phrase = "2 ranks have one order" if n == 2 else "1 rank adds nothing"
        return phrase, phrase
    pieces = [piece for piece in pieces if not piece.has_one_order]
    if not pieces:
        return "no output", "no output"
    if all([join.kind for join in piece.tree.joins] == ["exact"] for piece in pieces):
        return "exact: no order visible", "exact: no order visible"
    if names:
        return join_names(names, 1), f"adds as {join_names(names, MAX_NAMES)}"
    unknown = [piece for piece in pieces if not piece.families]
    if unknown:
        others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        phrase = f"unknown: {unknown[0].order}{others}"
        return phrase, phrase
    others = f"; and {len(pieces) - MAX_NAMES} more" if len(pieces) > MAX_NAMES else ""
    phrase = "; ".join(piece.phrase for piece in pieces[:MAX_NAMES]) + others
    return phrase, f"adds piece by piece as {phrase}"


def join_names(names: Sequence[str], limit: int) -> str:
    """At most ``limit`` names and the number of the others: ring, swing or 5 more."""
    shown = list(names[:limit])
    if len(names) > limit:
        return f"{', '.join(shown)} or {len(names) - limit} more"
    return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def list_all_names() -> list[str]:
    """The names that an order can have, of any collective and number of ranks, but for chains from
    some rank."""
    references = (
        algorithm.name
        for collective, row in COLLECTIVES.items()
        if row.reduces
        for algorithm in list_algorithms(collective)
    )
    rules = (name for rule in RULES for name in (rule.name, rule.full_name))
    return list(dict.fromkeys((*references, *list_rings(2), *rules, TOGETHER)))


def list_references(collective: str, n: int, root: int = 0) -> list[Reference]:
    """The algorithms that run on n ranks, and their outputs, as listed and by rank where that
    differs; a user's that are wrong are left out."""
    labels = tuple(algorithm.name for algorithm in list_algorithms(collective))
    return _list_references(collective, n, root, labels)


@functools.lru_cache(maxsize=8)
def _list_references(
    collective: str, n: int, root: int, labels: tuple[str, ...]
) -> list[Reference]:
    """As list_references; ``labels`` are the algorithms' names, of which a process may get more."""
    user_labels = {algorithm.label for algorithm in list_user_algorithms()}
    references = []
    for algorithm in list_algorithms(collective):
        variant = _pick_variant(algorithm)
        if variant.refuse(n):
            continue
        schedule = variant.schedule(n, root)
        if not (algorithm.name in user_labels and prove_schedule(schedule)):
            for by_rank in (False, True):
                reference = Reference(algorithm.name, find_orders(schedule, by_rank))
                references += [reference] if reference not in references else []
    return references


def _pick_variant(algorithm: Algorithm) -> Variant:
    """The algorithm with one segment, as their number changes no tree, and defaults of other
    parameters."""
    return Variant(algorithm, (("segments", 1),) if "segments" in algorithm.parameters else ())


def list_orders_with_chunk(collective: str, n: int, root: int, tree: SumTree) -> list[str]:
    """Names of references and rings with several trees, one of which is this."""
    references = list_references(collective, n, root) if n <= MAX_REFERENCE_RANKS else []
    names = []
    for reference in [*references, *_list_ring_references(collective, n)]:
        trees = {run.tree for runs in reference.outputs for run in runs or ()}
        if len(trees) > 1 and tree in trees:
            names.append(reference.name)
    return list(dict.fromkeys(names))


def match_references(
    collective: str, outputs: Outputs, references: Iterable[Reference]
) -> list[str]:
    """The names of the references that fit, the closest first, each with the words of its fit."""
    fits = [
        (fit.level, f"{reference.name}, {fit.words}" if fit.words else reference.name)
        for reference in references
        for fit in [compare_outputs(collective, outputs, reference.outputs)]
        if fit
    ]
    return list(dict.fromkeys(name for _, name in sorted(fits, key=lambda pair: pair[0])))


def compare_outputs(collective: str, outputs: Outputs, reference: Outputs) -> Fit | None:
    """How outputs follow from those of a reference at every rank that has one, lengths left aside;
    None where they do not."""
    pairs = [
        (_trees_of(runs), expected)
        for runs, expected in zip(outputs, reference, strict=True)
        if runs and expected
    ]
    if len(pairs) < sum(map(bool, outputs)) or not pairs:
        return None
    if all(trees == _trees_of(expected) for trees, expected in pairs):
        return Fit(0, "")
    if collective == "reduce_scatter":
        return _compare_blocks(outputs, reference)
    if all(pair == pairs[0] for pair in pairs):
        pairs = pairs[:1]
    return _compare_chunks(pairs)


def _compare_chunks(pairs: Sequence[tuple[Trees, Sequence[TreeRun]]]) -> Fit | None:
    """How the trees of some ranks' outputs follow from a reference's there, which are others."""
    unions = [(set(trees), set(_trees_of(runs))) for trees, runs in pairs]
    if not all(trees <= expected for trees, expected in unions):
        return None
    if all(trees == expected for trees, expected in unions):
        cells = [_expand_cells(runs) for _, runs in pairs]
        for shift in range(1, min(map(len, cells))):
            if all(
                trees == _rotate_cells(row, shift)
                for (trees, _), row in zip(pairs, cells, strict=True)
            ):
                return Fit(1, f"{format_count(shift, 'chunk')} on")
        if all(Counter(trees) == Counter(_trees_of(runs)) for trees, runs in pairs):
            return Fit(2, "chunks in another order")
        if all(len(trees) > len(runs) for trees, runs in pairs):
            return Fit(3, f"{len(pairs[0][0])} pieces")
    if any(len(trees) < 2 for trees, _ in unions):
        return None
    trees, runs = pairs[0]
    count = len(set(trees))
    pieces = f", {len(trees)} pieces" if len(trees) > count else ""
    return Fit(4, f"{count} of {len(runs)} chunks{pieces}")


def _compare_blocks(outputs: Outputs, reference: Outputs) -> Fit | None:
    """How the ranks' blocks follow from a reference's, which are others."""
    n = len(outputs)
    blocks = [_trees_of(runs or ()) for runs in outputs]
    expected = [_trees_of(runs or ()) for runs in reference]
    if len(_list_trees(outputs)) < 2:
        return None
    for shift in range(1, n):
        if all(blocks[rank] in ([], expected[(rank + shift) % n]) for rank in range(n)):
            return Fit(1, f"{format_count(shift, 'block')} on")
    trees = Counter(itertools.chain.from_iterable(blocks))
    expected_trees = Counter(itertools.chain.from_iterable(expected))
    if trees == expected_trees:
        return Fit(2, "blocks in another order")
    if trees.keys() == expected_trees.keys() and trees.total() > expected_trees.total():
        return Fit(3, f"{trees.total()} pieces")
    return None


def _trees_of(runs: Sequence[TreeRun]) -> Trees:
    return [run.tree for run in runs]


def _expand_cells(runs: Sequence[TreeRun]) -> Trees:
    """The tree of every cell."""
    return [run.tree for run in runs for _ in range(run.length)]


def _rotate_cells(cells: Trees, shift: int) -> Trees:
    """The trees of the cells from ``shift`` on, then of those before, neighbours of one tree
    joined."""
    return [tree for tree, _ in itertools.groupby(cells[shift:] + cells[:shift])]


def _list_trees(outputs: Outputs) -> Trees:
    """Each tree of the outputs once, as they come."""
    rows: list[Sequence[TreeRun]] = []
    for runs in outputs:
        if runs and (not rows or runs != rows[-1]):
            rows.append(runs)
    return list(dict.fromkeys(run.tree for runs in rows for run in runs))


def _name_families(collective: str, n: int, root: int, outputs: Outputs) -> list[str]:
    """The names of families that give all outputs."""
    trees = _list_trees(outputs)
    if collective == "scan":
        return _name_rooted(outputs, {rule.full_name: rule for rule in RULES}, is_prefix=True)
    if len(trees) < 2:
        return [name for tree in trees for name in _name_tree(tree, n, root)]
    names = match_references(collective, outputs, _list_ring_references(collective, n))
    if collective != "reduce":
        names += [
            f"{name}, from each rank"
            for name in _name_rooted(outputs, list_rules(n), is_prefix=False)
        ]
    return names


def _name_rooted(outputs: Outputs, rules: Mapping[str, Rule], is_prefix: bool) -> list[str]:
    """The rules by which each rank's output is one tree: over the ranks up to it, or over all
    ranks with itself as root."""
    if any(runs and len(runs) > 1 for runs in outputs):
        return []
    trees = {rank: runs[0].tree for rank, runs in enumerate(outputs) if runs}
    n = len(outputs)
    return [
        name
        for name, rule in rules.items()
        if all(
            tree == (rule.build_tree(rank + 1) if is_prefix else rule.build_tree(n, rank))
            for rank, tree in reversed(trees.items())
        )
    ]


def _list_ring_references(collective: str, n: int) -> list[Reference]:
    """The rings as references: their chunks at every rank, or a chunk for each."""
    is_scattered = collective == "reduce_scatter"
    references = []
    for name, trees in list_rings(n).items():
        runs = [TreeRun(tree, 1) for tree in trees]
        outputs = [[run] for run in runs] if is_scattered else [runs] * n
        references.append(Reference(name, outputs))
    return references


def _name_piece(n: int, root: int, tree: SumTree) -> PieceNames:
    """A tree of an output with the names of its families: of those over the ranks that it has."""
    count = len(tree.leaves)
    families = _name_tree(tree, count, root if count == n else 0)
    return PieceNames(tree, describe_order(tree, n), tuple(families))


def _name_tree(tree: SumTree, n: int, root: int) -> list[str]:
    """The families that have a tree of n ranks."""
    names = _index_families(n, root).get(tree, [])
    if n < 3 or tree.leaves != list(range(n)):
        return names
    named = {
        turn for base in (0, root) for turn in ((base, 1), (base, -1), ((base - 1) % n, -1))
    }  # which are called linear up, linear down, and chain to the root
    return names + [str(turn) for turn in find_turns(tree, n) if turn not in named]


@functools.lru_cache(maxsize=64)
def _index_families(n: int, root: int) -> dict[SumTree, list[str]]:
    """The names of each tree: of the root, and of rank 0, which some libraries reduce to first."""
    names: dict[SumTree, list[str]] = {}
    for base in dict.fromkeys((root, 0)):
        for family in list_families(n, base):
            is_rooted = root and family.name != TOGETHER
            name = f"{family.name}, from rank {base}" if is_rooted else family.name
            if name not in names.setdefault(family.tree, []):
                names[family.tree].append(name)
    return names


def describe_order(tree: SumTree, n: int) -> str:
    """A tree of n ranks or fewer: as text up to MAX_TEXT_RANKS leaves, else its shape."""
    count = len(tree.leaves)
    if count <= MAX_TEXT_RANKS:
        return str(tree)
    shape = measure_shape(tree)
    if shape.depth == 1:
        return f"{tree.joins[0].kind}{{{count} ranks}}"
    if shape.chain:
        turns = find_turns(tree, n)
        first = ", ".join(map(str, shape.chain[:3]))
        return str(turns[0]) if turns else f"chain {first} ..."
    if shape.widest > 2:
        return f"depth {shape.depth}, up to {shape.widest} at once"
    return f"{'binary, ' * (shape.depth == (count - 1).bit_length())}depth {shape.depth}"
