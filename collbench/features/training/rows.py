"""What stands where a collective does in cases of steps."""

from __future__ import annotations

from collbench.core.collectives import RowTable
from collbench.features.training import KIND
from collbench.features.training.parts import PARTS

TABLE = RowTable(KIND, PARTS, together=True, noun="step")
