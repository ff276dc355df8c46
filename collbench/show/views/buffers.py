"""What every rank's buffers hold after a call on given numbers, beside what was promised."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Any

import numpy as np

from collbench.core.collectives import Collective
from collbench.run.values import Buffers, Number
from collbench.show import terminal
from collbench.show.document import Table


def describe(
    row: Collective,
    backend: str,
    given: Sequence[Sequence[Number]],
    buffers_of_ranks: Sequence[Buffers],
    root: int,
    only: int | None = None,
) -> tuple[Table, list[str]]:
    """The table of ranks, those of ``only`` if given, and lines that explain it."""
    promised = find_promised(row, given, root)
    cells = []
    for rank, (buffers, result) in enumerate(zip(buffers_of_ranks, promised, strict=True)):
        if only in (None, rank):
            name = f"{rank} (root)" if row.rooted and rank == root else str(rank)
            after = [
                _format_values(buffers.send),
                *([_format_values(buffers.recv)] if buffers.recv else []),
            ]
            cells.append((name, _format_values(given[rank]), *after, _format_values(result)))
    shared = all(buffers.recv is None for buffers in buffers_of_ranks)
    after_head = ("after",) if shared else ("send after", "receive after")
    table = terminal.make_listing(
        f"{row.name} on {backend}", ("rank", "before", *after_head, "promised"), cells
    )
    lines = ["one buffer is both input and output"] if shared else []
    if any(result is None for result in promised):
        lines.append("-: nothing is promised there; what a library leaves is its own")
    return table, lines


def find_promised(
    row: Collective, given: Sequence[Sequence[Number]], root: int
) -> list[list[Number] | None]:
    """Every rank's output as the collective defines it; None where it does not."""
    n, length = len(given), len(given[0])
    count = length // row.counts(n, 1)[0]
    inputs: list[Any] = [np.array(values) for values in given]
    if row.uneven:
        inputs = [values.reshape(-1, count) for values in inputs]
    results = row.result(inputs, add, root if row.rooted else 0)
    return [None if result is None else np.ravel(result).tolist() for result in results]


def _format_values(values: Sequence[Number] | None) -> str:
    return "-" if values is None else "[" + ", ".join(f"{value:g}" for value in values) + "]"
