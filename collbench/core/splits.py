"""How all_to_allv divides a buffer: the (source, destination) matrix of element counts."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.core import files
from collbench.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np


GRAMMAR = "uniform, spread:S with 0 <= S <= 1, zipf:S with S >= 0, matrix:FILE or table:0 64/64 0"

MOST_RANKS = 4096  # of which a table still fits memory

MOST_BYTES = 64 << 20  # of a file


def split_matrix(spec: str, n: int, nbytes: int, itemsize: int) -> np.ndarray:
    """Elements that rank i sends to rank j, as an (n, n) int64 array.

    ``uniform``: equal blocks. ``spread:S``: nccl-tests' linear pattern, ``(1-S)*T/n +
    S*T*d/(n(n-1)/2)`` bytes with ``d = (j-i) mod n``; every rank's total stays equal, with S=1 a
    rank keeps nothing for itself and the farthest rank gets most. ``zipf:S``: rank j is asked for
    in proportion to ``1/(j+1)**S``, as popular experts are in a mixture of experts.
    ``matrix:FILE``: a square text matrix of bytes, at least n wide; ``nbytes`` is then not used.
    ``table:0 64/64 0``: the same, written out, a row for each rank. Counts are rounded down to
    whole elements. Raises UsageError on a bad spec or file.
    """
    import numpy as np

    if (given := _find_table(spec, n)) is not None:
        return _count_whole_elements(given, itemsize)
    row = _count_whole_elements(_first_row(spec, n, nbytes), itemsize)
    if spec.startswith("zipf"):
        return np.tile(row, (n, 1))
    table: np.ndarray = row[(np.arange(n) - np.arange(n)[:, None]) % n]
    return table


def _count_whole_elements(nbytes: np.ndarray, itemsize: int) -> np.ndarray:
    """The number of elements of ``itemsize`` bytes in each value of ``nbytes``, rounded down, as
    int64."""
    import numpy as np

    counts: np.ndarray = np.floor(nbytes / itemsize + 1e-9).astype(np.int64)
    return counts


def _first_row(spec: str, n: int, nbytes: int) -> np.ndarray:
    """Bytes that rank 0 sends to each."""
    import numpy as np

    if n > MOST_RANKS:
        raise UsageError(
            f"--splits {spec}: a table for {n} ranks is too large",
            f"take at most {MOST_RANKS} ranks",
        )

    kind, _, argument = spec.partition(":")
    share = _parse_number(spec, argument) if argument else {"uniform": 0.0}.get(kind, 1.0)
    if kind == "uniform" and not argument:
        return np.full(n, nbytes / n)
    if kind == "spread" and 0 <= share <= 1:
        slope = np.arange(n) / (n * (n - 1) / 2) if n > 1 else np.ones(1)
        return nbytes * ((1 - share) / n + share * slope)
    if kind == "zipf" and 0 <= share < math.inf:
        with np.errstate(over="ignore"):
            weight = 1.0 / np.arange(1, n + 1) ** share
        return np.asarray(nbytes * weight / weight.sum())
    raise UsageError(f"--splits does not know '{spec}'", GRAMMAR)


def measure_extent(spec: str, n: int, nbytes: int, itemsize: int) -> tuple[int, int, int]:
    """The most elements of the matrix that any rank sends, that any rank receives, and that pass
    the busiest port. Raises UsageError on a bad spec or file, and for a file whose largest buffer
    has other than ``nbytes``, as when it was changed after a run."""
    if (given := _find_table(spec, n)) is not None:
        if spec.startswith("matrix") and (total := _measure_buffer(given)) != nbytes:
            raise UsageError(
                f"--splits {spec[:200]}: its largest buffer has {total} B, the case's {nbytes} B",
                "put the file back that was measured, or start a new run",
            )
        table = _count_whole_elements(given, itemsize)
        return int(table.sum(1).max()), int(table.sum(0).max()), count_busiest(table)
    return _pattern_extent(spec, n, nbytes, itemsize)


@functools.lru_cache(maxsize=1 << 14)
def _pattern_extent(spec: str, n: int, nbytes: int, itemsize: int) -> tuple[int, int, int]:
    """``measure_extent`` of a pattern, as uniform: by the first row of its matrix alone."""
    row = _count_whole_elements(_first_row(spec, n, nbytes), itemsize)
    sent, smallest = int(row.sum()), int(row.min())
    if not spec.startswith("zipf"):
        return sent, sent, sent - int(row[0])
    most = int(row.max())
    return sent, n * most, max(sent - smallest, (n - 1) * most)


def table_bytes(spec: str, n: int) -> int | None:
    """Bytes of any rank's larger buffer as a table has them, None where ``spec`` is a pattern."""
    table = _find_table(spec, n)
    return None if table is None else _measure_buffer(table)


def _measure_buffer(table: np.ndarray) -> int:
    """Bytes of any rank's larger buffer."""
    return int(max(table.sum(0).max(), table.sum(1).max()))


def block_lengths(table: np.ndarray) -> np.ndarray:
    """The lengths of each rank's blocks, (n, 2n): what the rank sends to each rank, and then what
    it gets from each."""
    import numpy as np

    return np.hstack([table, table.T])


def _parse_number(spec: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--splits {spec}: '{text}' is not a number", GRAMMAR) from None


def write_table(table: Sequence[Sequence[int]]) -> str:
    """The spec of a table of bytes."""
    return f"table:{'/'.join(' '.join(map(str, row)) for row in table)}"


def _find_table(spec: str, n: int) -> np.ndarray | None:
    """Bytes among ``n`` ranks where a table gives them, in a file or written out; else None."""
    import numpy as np

    kind, _, argument = spec.partition(":")
    if kind not in TABLES or not argument:
        return None
    what = f"--splits {kind}:"
    try:
        table = TABLES[kind](argument)
    except (OSError, ValueError, RuntimeError) as e:
        raise UsageError(
            f"{what} cannot read {argument[:200]}: {e}",
            "write a row of bytes a rank, one number a rank: lines of a file, or 0 8/8 0",
        ) from e
    if not np.isfinite(table).all():
        raise UsageError(
            f"{what} {argument[:200]} holds a number that is not finite", "give bytes, as in 4096"
        )
    if table.shape[0] != table.shape[1] or table.shape[0] < n or not _are_counts(table):
        raise UsageError(
            f"{what} {argument[:200]} is {table.shape[0]} x {table.shape[1]}, with {n} ranks in"
            " use",
            f"make it square, at least {n} wide, without negative numbers",
        )
    return table[:n, :n]


@functools.lru_cache(maxsize=1 << 10)
def _parse_listed(text: str) -> np.ndarray:
    return _parse_numbers(text.split("/"))


def _read_matrix(path: str) -> np.ndarray:
    file = files.expand_path(path).resolve()
    if not file.is_file():
        raise ValueError("it is not a file" if file.exists() else "there is no such file")
    if file.stat().st_size > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    return _read_cached(file, file.stat().st_mtime_ns, file.stat().st_size)


@functools.lru_cache(maxsize=1)
def _read_cached(file: Path, *_: int) -> np.ndarray:
    """The numbers in a file; read again if the file's size or age, the other arguments, changed."""
    return _parse_numbers(file)


def _parse_numbers(source: Path | list[str]) -> np.ndarray:
    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an empty one; its size says it
        return np.asarray(np.loadtxt(source, ndmin=2))


TABLES: dict[str, Callable[[str], np.ndarray]] = {"matrix": _read_matrix, "table": _parse_listed}


def _are_counts(table: np.ndarray) -> bool:
    return bool(((table >= 0) & (table < 1 << 62)).all())


def count_busiest(counts: np.ndarray) -> int:
    """Elements through the busiest port: the larger of what any rank sends to or receives from
    others."""
    remote = counts * (1 - _identity(len(counts)))
    return int(max(remote.sum(0).max(), remote.sum(1).max()))


def _identity(n: int) -> np.ndarray:
    import numpy as np

    return np.eye(n, dtype=np.int64)
