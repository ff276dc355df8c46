"""What stands where a collective does in cases that check a backend's contract."""

from __future__ import annotations

from collbench.core.collectives import RowTable, make_subject_row
from collbench.features.backends import KIND

ROW = "backend_contract"
TABLE = RowTable(
    KIND,
    {ROW: make_subject_row(ROW, "Whether a backend's calls keep what its contract says.")},
    noun="contract",
)
