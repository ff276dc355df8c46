"""Names of found orders, and trees in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from collbench.core.collectives import COLLECTIVES
from collbench.core.sums.names import (
    Names,
    describe_order,
    list_all_names,
    list_orders_with_chunk,
    name_orders,
)
from collbench.core.sums.symbolic import TreeRun
from collbench.core.sums.trees import parse_tree
from collbench.features.order.findings import Piece, RankPieces
from collbench.features.order.request import SumOrder


def name_found(subject: SumOrder, ranks: Sequence[RankPieces]) -> Names | None:
    """The names of a found order; None where some piece has no tree."""
    runs: list[list[TreeRun] | None] = [None] * subject.world
    for group in ranks:
        trees = [TreeRun(parse_tree(p.tree), p.length) for p in group.pieces if p.tree]
        if len(trees) < len(group.pieces):
            return None
        for rank in group.ranks:
            runs[rank] = trees
    if not any(runs):
        return None
    return name_orders(subject.collective, subject.world, subject.root, runs)


def list_names(names: Names | None) -> list[str]:
    """References, then families."""
    return [*names.references, *names.families] if names else []


def has_name(names: Names | None, wanted: str) -> bool:
    """Whether a name, or an algorithm by any parameters or chunks, is among those of an order."""
    return _is_among(wanted, list_names(names))


def is_known_name(wanted: str) -> bool:
    """Whether ``has_name`` can be true of some order."""
    is_chain = re.fullmatch(r"chain_from_\d+_(up|down)", _normalise(wanted)) is not None
    return is_chain or _is_among(wanted, list_all_names())


def is_one_chunk(subject: SumOrder, ranks: Sequence[RankPieces], wanted: str) -> bool:
    """Whether each rank's data (the buffer, or its block of a divided one) is one piece, added as
    one chunk of the order ``wanted``."""
    row = COLLECTIVES[subject.collective]
    trees = {piece.tree for group in ranks for piece in group.pieces}
    if any(len(group.pieces) > 1 for group in ranks) or (len(trees) > 1 and not row.total):
        return False
    root = max(subject.root, 0)
    names_by_tree = [
        list_orders_with_chunk(subject.collective, subject.world, root, parse_tree(tree))
        for tree in trees
    ]
    return bool(names_by_tree) and all(_is_among(wanted, names) for names in names_by_tree)


def _is_among(wanted: str, names: Sequence[str]) -> bool:
    wanted = _normalise(wanted)
    return any(
        wanted in (_normalise(name), _normalise(head_of(name)), _normalise(label_of(name)))
        for name in names
    )


def head_of(name: str) -> str:
    """A name without its chunks: ring:down of "ring:down, 3 chunks on"."""
    return name.partition(",")[0]


def label_of(name: str) -> str:
    """A name without its parameters: ring of ring:down."""
    return head_of(name).partition(":")[0]


def _normalise(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def describe_piece(piece: Piece, subject: SumOrder) -> str:
    """The order of a piece: as text up to 12 ranks, above as its shape; "" where none was found."""
    tree = piece.parsed
    return describe_order(tree, subject.world) if tree else ""
