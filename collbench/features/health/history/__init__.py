"""Nights remembered: whether tonight is slower than those before, since when, and by how much.

Everything others call is named here; the database is loaded only where ``book`` opens one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collbench.features.health.history.gates import Creep, Gate, confirm, creep, gate
from collbench.features.health.history.levels import TAU, Change, changes
from collbench.features.health.history.nights import (
    Night,
    Series,
    Stretch,
    first_level,
    machine,
    nights_of,
    past,
)
from collbench.features.health.history.shifts import Shift, shifts

if TYPE_CHECKING:
    from collbench.features.health.history.storage import Book


__all__ = [
    "TAU",
    "Change",
    "Creep",
    "Gate",
    "Night",
    "Series",
    "Shift",
    "Stretch",
    "book",
    "changes",
    "confirm",
    "creep",
    "first_level",
    "gate",
    "machine",
    "nights_of",
    "past",
    "shifts",
]


def book(url: str = "", reading: bool = False) -> Book:
    """The history at a database's URL or in an SQLite file; without either, $COLLBENCH_HISTORY,
    else history.sqlite beside the runs. A file is made where there is none, unless for ``reading``.
    Raises UsageError and CannotRun, in which no password is named."""
    from collbench.features.health.history.storage import Book

    return Book(url, reading)
