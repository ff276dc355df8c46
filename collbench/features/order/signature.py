"""Found orders as they are compared: signatures, the first element that is added otherwise, and how
the pieces of a buffer lie."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import msgspec

from collbench.features.order.findings import Piece, Proof, RankPieces


class ElementOrder(NamedTuple):
    """All that decides the bits of an element: the tree, and how its sums are rounded."""

    tree: str
    low: str
    adder: int
    at: tuple[tuple[int, ...], ...]
    division: str


class Difference(NamedTuple):
    """The first element that two found orders add otherwise, and its piece in each."""

    rank: int
    element: int
    base: Piece
    head: Piece


def order_of(piece: Piece) -> ElementOrder:
    """The order that each element of a piece has."""
    return ElementOrder(piece.tree, piece.low, piece.adder, tuple(sorted(piece.at)), piece.division)


def are_alike(a: ElementOrder, b: ElementOrder) -> bool:
    """Whether two orders are the same, as far as is known: of one it may not be known where avg
    divides."""
    return a == b or (not (a.division and b.division) and a._replace(division=b.division) == b)


def sign_order(ranks: Sequence[RankPieces], proof: Proof) -> str:
    """A digest of every rank's pieces, of how they are rounded, and of whether they predict all
    bits: equal for orders that are alike in all of it."""
    by_rank = sorted(
        (list(group.ranks), [(piece.first, piece.last, order_of(piece)) for piece in group.pieces])
        for group in ranks
    )
    content = msgspec.json.encode([by_rank, proof.is_complete])
    return "b2s:" + hashlib.blake2s(content, digest_size=8).hexdigest()


def find_difference(base: Sequence[RankPieces], head: Sequence[RankPieces]) -> Difference | None:
    """The first element, of the lowest rank, that ``head`` adds otherwise than ``base``, among
    those that both have."""
    differences = []
    for group in base:
        for other in head:
            common = sorted({*group.ranks} & {*other.ranks})
            pair = _find_pair(group.pieces, other.pieces) if common else None
            if pair:
                differences.append(Difference(common[0], *pair))
    return min(differences, key=lambda found: (found.rank, found.element), default=None)


def _find_pair(base: Sequence[Piece], head: Sequence[Piece]) -> tuple[int, Piece, Piece] | None:
    """The first element whose pieces in two lists have different orders, and these."""
    i = j = 0
    while i < len(base) and j < len(head):
        a, b = base[i], head[j]
        is_common = max(a.first, b.first) <= min(a.last, b.last)
        if is_common and not are_alike(order_of(a), order_of(b)):
            return max(a.first, b.first), a, b
        i, j = i + (a.last <= b.last), j + (b.last <= a.last)
    return None


def is_moved(base: Sequence[RankPieces], head: Sequence[RankPieces]) -> bool:
    """Whether two orders, which differ, have the same trees, or one has some of the other's, so
    that only the boundaries of pieces are elsewhere."""
    for rank in {rank for group in base for rank in group.ranks}:
        a, b = _orders_at(base, rank), _orders_at(head, rank)
        if not (_are_among(a, b) or _are_among(b, a)):
            return False
    return True


def _are_among(orders: set[ElementOrder], others: set[ElementOrder]) -> bool:
    return all(any(are_alike(order, other) for other in others) for order in orders)


def _orders_at(ranks: Sequence[RankPieces], rank: int) -> set[ElementOrder]:
    return {order_of(p) for group in ranks if rank in group.ranks for p in group.pieces}


def are_even(pieces: Sequence[Piece]) -> bool:
    """Whether pieces are as long as each other, but for what a last one lacks or a rest of an
    element each."""
    lengths = [piece.length for piece in pieces]
    is_cut = len({*lengths[:-1]}) == 1 and lengths[-1] <= lengths[0]
    return len(lengths) > 1 and (is_cut or max(lengths) - min(lengths) <= 1)


MAX_STARTS = 4

MAX_DENOMINATOR = 16  # of the share of a buffer at which a piece begins


def describe_starts(pieces: Sequence[Piece]) -> str:
    """Where pieces begin, n being the elements of the buffer: n/4 apart, by share of it, or by
    element; empty for a single piece."""
    if len(pieces) < 2:
        return ""
    if are_even(pieces):
        return f"n/{len(pieces)} apart"
    words = list_starts(pieces)
    more = ", …" if len(words) > MAX_STARTS else ""
    return f"starts {', '.join(words[:MAX_STARTS])}{more}"


def list_starts(pieces: Sequence[Piece]) -> list[str]:
    """Where each piece begins, by share of the buffer if all are simple ones, or by element."""
    shares = [Fraction(piece.first, pieces[-1].last + 1) for piece in pieces]
    if all(share.denominator <= MAX_DENOMINATOR for share in shares):
        return [format_share_of_n(share) for share in shares]
    return [f"{piece.first:,}" for piece in pieces]


def format_share_of_n(share: Fraction) -> str:
    """A share of a buffer's n elements: 0, n/2, 3n/4."""
    if not share:
        return "0"
    return f"{share.numerator if share.numerator > 1 else ''}n/{share.denominator}"


Shape = tuple[tuple[tuple[int, ...], str, tuple[ElementOrder, ...]], ...]


def outline_order(ranks: Sequence[RankPieces]) -> Shape:
    """An order without its elements' numbers: what each rank's pieces are, one after the other, and
    how they lie. Orders of several sizes may share it."""
    return tuple(
        sorted(
            (group.ranks, describe_starts(group.pieces), tuple(map(order_of, group.pieces)))
            for group in ranks
        )
    )
