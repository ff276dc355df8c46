"""An order of additions that a run has found, for those who draw it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collbench.core.dtypes import DType
from collbench.core.sums.rounding import Rounding
from collbench.core.sums.trees import SumTree


class RecordedPiece(NamedTuple):
    """Elements ``first`` to ``last`` of an output, that are added alike; no ``tree`` where none was
    found, for the ``reason``."""

    first: int
    last: int
    tree: SumTree | None
    rounding: Rounding
    reason: str = ""


class RecordedOutput(NamedTuple):
    """The pieces of an output, of all ``ranks`` that have the same."""

    ranks: tuple[int, ...]
    pieces: Sequence[RecordedPiece]


class RecordedOrder(NamedTuple):
    """The order of one collective at one size: ``title`` names what was called, of which library,
    and the run. ``right`` of ``of`` bits of random sums were predicted by it."""

    title: str
    collective: str
    n: int
    dtype: DType
    op: str
    nbytes: int
    outputs: Sequence[RecordedOutput]
    right: int
    of: int
