"""What was found of an order, as a record keeps it: raw, and without a judgement."""

from __future__ import annotations

import functools
from typing import Annotated

import msgspec
from msgspec import Meta

from collbench.core.sums.rounding import Division, Rounding
from collbench.core.sums.swallowing import make_mask
from collbench.core.sums.trees import SumTree, parse_tree
from collbench.records.types import Record
from collbench.suite.case import Positive, Whole

Count = Annotated[int, Meta(ge=0, lt=1 << 62)]


class _Found(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    pass


class Piece(_Found, frozen=True):
    """Neighbouring elements, ``first`` to ``last`` of a rank's output, that are added alike. The
    ``tree`` is what parse_tree reads, empty where none was found, for the ``reason``. ``low`` is
    the order that shows where only the element type swallows, empty where that is the tree's.
    ``adder``: bits of the adder; 0: none of those looked for loses anything (``visible`` is the
    widest of them). ``at``: leaves of the nodes at which the sum is rounded to the element type,
    empty where that is at all nodes. ``division``: where avg divides."""

    first: Whole
    last: Whole
    tree: str = ""
    reason: str = ""
    low: str = ""
    adder: Whole = 0
    visible: Whole = 0
    at: tuple[tuple[int, ...], ...] = ()
    division: Division = ""

    @property
    def length(self) -> int:
        """Elements of it."""
        return self.last - self.first + 1

    @property
    def parsed(self) -> SumTree | None:
        """Its tree; None where none was found."""
        return parse_tree(self.tree) if self.tree else None

    @property
    def shows_adder(self) -> bool:
        """Whether its bits tell in what it adds: a sum of two is rounded once in any adder."""
        return count_leaves(self.tree) > 2

    @property
    def rounding(self) -> Rounding:
        """How its sums are rounded."""
        return Rounding(self.adder, frozenset(map(make_mask, self.at)) or None, self.division)


@functools.lru_cache(maxsize=1024)
def count_leaves(tree: str) -> int:
    """Ranks of a tree; 0 for none."""
    return len(parse_tree(tree).leaves) if tree else 0


class RankPieces(_Found, frozen=True):
    """The pieces of an output, of all ``ranks`` that have the same."""

    ranks: tuple[int, ...]
    pieces: list[Piece]


class Mismatch(_Found, frozen=True):
    """The first element whose bits were not those predicted."""

    rank: int
    element: Whole
    got: str
    expected: str


class Proof(_Found, frozen=True):
    """Elements of random ``buffers`` whose bits the trees predicted: ``right`` of ``of``, over all
    ranks that have an output. ``worst_ulp`` is the largest distance to the exact result of
    numbers of one sign, in units of the element type's last place there, ``mean_ulp`` the mean;
    None where not looked at."""

    right: Count = 0
    of: Count = 0
    buffers: Whole = 0
    first_wrong: Mismatch | None = None
    worst_ulp: float | None = None
    mean_ulp: float | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every bit was predicted, and there were some."""
        return self.right == self.of > 0


class OddCalls(_Found, frozen=True):
    """Calls of the same data, counted from 1, whose bits were not the first one's but alike among
    themselves: the ``ranks`` and the ``first`` and ``last`` element that differed, and the
    ``tree`` that gives these bits there; empty where no tree that was tried does."""

    calls: list[Positive]
    ranks: tuple[int, ...]
    first: Whole
    last: Whole
    tree: str = ""


class Repeats(_Found, frozen=True):
    """Calls of the same data, compared bit by bit with the first. ``changed`` counts those that
    differed, ``odd`` has them by their bits, the most frequent ones first. ``cut``: why there were
    fewer calls than asked for."""

    calls: Whole = 0
    changed: Whole = 0
    odd: list[OddCalls] = []
    cut: str = ""


class Neighbours(_Found, frozen=True):
    """Calls in which some elements kept their data and all others had new ones: ``changed`` counts
    those in which bits of kept elements changed, ``first`` is the first such element."""

    calls: Whole = 0
    changed: Whole = 0
    first: Whole | None = None
    rank: int | None = None


class SizeOrder(_Found, frozen=True):
    """The order at one size, in one way to place buffers. ``calls`` are those that asked;
    ``attempts`` is above 1 where answers contradicted each other at first; ``strategy`` is "all"
    pairs or "adaptive". ``varied``: buffers were placed otherwise than in the first way of this
    size. ``like``: the order of that way predicts every bit in this one, so it was not asked for
    again, and ``ranks`` is empty. ``bisected``: a size that was not asked for, between two that
    differ. ``digest`` is of the bits of a random result. ``first_calls``: those made at this
    size before all others, compared with what such calls give at the end."""

    nbytes: Positive
    count: Positive
    in_place: bool = False
    shift: Whole = 0
    strategy: str = "all"
    calls: Whole = 0
    attempts: Whole = 1
    ranks: list[RankPieces] = []
    like: bool = False
    varied: bool = False
    bisected: bool = False
    proof: Proof = Proof()
    repeats: Repeats = Repeats()
    neighbours: Neighbours = Neighbours()
    digest: str = ""
    first_calls: Repeats = Repeats()

    @property
    def is_base(self) -> bool:
        """Whether buffers were placed in the first way that was asked for."""
        return not self.varied


SPENT = " s were spent"  # how what was left out for --budget ends


class OrderFindings(_Found, frozen=True):
    """All sizes of a case; ``dropped`` says what was left out, and why."""

    sizes: list[SizeOrder] = []
    dropped: list[str] = []
    seconds: float = 0.0

    @property
    def undecided(self) -> list[str]:
        """The parts that --budget left no time for, in words."""
        return [text.rpartition(": ")[0] for text in self.dropped if text.endswith(SPENT)]


def read_findings(record: Record) -> OrderFindings | None:
    """The findings of a record of an order; None where it has none, or cannot be read."""
    try:
        return msgspec.convert(record.findings, OrderFindings) if record.findings else None
    except msgspec.ValidationError:
        return None
