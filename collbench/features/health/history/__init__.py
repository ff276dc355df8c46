"""Nights remembered: whether tonight is slower than those before, since when, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collbench.features.health.history.storage import Book


def open_book(url: str = "", reading: bool = False) -> Book:
    """The history at a database's URL or in an SQLite file; without either, $COLLBENCH_HISTORY,
    else history.sqlite beside the runs. A file is made where there is none, unless for ``reading``.
    Raises UsageError and CannotRun, in which no password is named."""
    from collbench.features.health.history.storage import Book

    return Book(url, reading)
