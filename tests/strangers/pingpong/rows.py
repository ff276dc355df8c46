"""What stands where a collective does."""

from __future__ import annotations

from collbench.core.collectives import RowTable, make_subject_row
from collbench.features.pingpong import KIND

ROW = make_subject_row(KIND, "A message to the other rank, and one of the same size back.")
TABLE = RowTable(KIND, {ROW.name: ROW}, noun="ping-pong")
