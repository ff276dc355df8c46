"""What stands where a collective does in cases of transfers: a row for each pattern."""

from __future__ import annotations

from collbench.core.collectives import Collective, RowTable, make_subject_row
from collbench.features.p2p import KIND
from collbench.features.p2p.patterns import PATTERNS, Pattern


def _make_row(pattern: Pattern) -> Collective:
    """The row of a pattern. The bytes that busbw counts are those through the busiest port: of
    incast and outcast that is the root's, which each other rank has a message for."""
    row = make_subject_row(pattern.row, pattern.meaning)
    factor = "1" if pattern.is_paired else "n-1"
    return row._replace(factor=factor, least=("1", factor, "0"))


TABLE = RowTable(
    KIND, {pattern.row: _make_row(pattern) for pattern in PATTERNS.values()}, noun="transfer"
)
