"""What stands where a collective does in cases of orders."""

from __future__ import annotations

from collbench.core.collectives import COLLECTIVES, RowTable, make_subject_row
from collbench.features.order import KIND

SUFFIX = "_order"
REDUCING = tuple(name for name, row in COLLECTIVES.items() if row.reduces)


def name_row(collective: str) -> str:
    """The row's name for the order of a collective."""
    return collective + SUFFIX


TABLE = RowTable(
    KIND,
    {
        name_row(name): make_subject_row(
            name_row(name), f"The order in which {name} adds the ranks' numbers."
        )
        for name in REDUCING
    },
    noun="order",
)
