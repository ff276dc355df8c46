"""Names of found orders, and trees in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collbench.core.sums.symbolic import TreeRun
from collbench.core.sums.trees import measure_shape, parse_tree
from collbench.features.order.findings import Piece, RankPieces
from collbench.features.order.request import SumOrder

MAX_TEXT_RANKS = 12  # up to which an order is shown as text


class Naming(NamedTuple):
    """All names of algorithms and families that add alike, most telling first, and the same in a
    phrase, as "doubling or 6 more"."""

    names: tuple[str, ...]
    phrase: str

    def has(self, name: str) -> bool:
        """Whether a name, or an algorithm with any parameters or chunks, is among them."""
        wanted = _normalise(name)
        return any(wanted in (_normalise(own), _normalise(_head_of(own))) for own in self.names)


def _head_of(name: str) -> str:
    return name.partition(",")[0].partition(":")[0]


def _normalise(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def list_runs(subject: SumOrder, ranks: Sequence[RankPieces]) -> list[list[TreeRun] | None]:
    """By rank, the trees along its output, as core.sums.symbolic has them; None for ranks without
    an output."""
    runs: list[list[TreeRun] | None] = [None] * subject.world
    for group in ranks:
        trees = [TreeRun(parse_tree(p.tree), p.length) for p in group.pieces if p.tree]
        for rank in group.ranks:
            if rank < subject.world and len(trees) == len(group.pieces):
                runs[rank] = trees
    return runs


def name_order(subject: SumOrder, ranks: Sequence[RankPieces]) -> Naming:
    """The names of a found order; none where no tree was found, or none fits."""
    runs = list_runs(subject, ranks)
    if not any(runs):
        return Naming((), "")
    return Naming((), "")


def describe_piece(piece: Piece, subject: SumOrder) -> str:
    """The order of a piece: as text up to 12 ranks, above as its shape; "" where none was found."""
    tree = piece.parsed
    if tree is None:
        return ""
    if subject.world <= MAX_TEXT_RANKS:
        return str(tree)
    shape = measure_shape(tree)
    return f"chain, depth {shape.depth}" if shape.chain else f"tree, depth {shape.depth}"
