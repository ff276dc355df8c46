"""Settings for sizes at which none is faster, as some formats have to name one for every size.

Such a setting has to be evidently as fast as the library's own choice: the lower end of its gain's
interval is no further below 0 than what matters. Where one of a neighbouring row is, it goes on,
so that the file has few rows; else that with the highest lower end. Of sizes for which no setting
is, list_uncovered tells: a file cannot be written then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import isqrt

import msgspec

from collbench.features.advise.libraries import load_libraries
from collbench.features.advise.types import Advice, Advised, Cell, Gain, Series, Setting


def fill_sizes(advised: Advised) -> Advised:
    """The advice with fills for all measured sizes of series that have rows, as far as
    ``rivals`` has settings that are as fast, by the least effect that matters."""
    sizes_by_series: dict[Series, list[int]] = {}
    for cell in _list_measured(advised):
        sizes_by_series.setdefault(cell.series, []).append(cell.nbytes)
    fills = [
        fill
        for series, sizes in sorted(sizes_by_series.items())
        for fill in _fill_series(advised, series, sorted(sizes), min(advised.taus))
    ]
    return msgspec.structs.replace(advised, fills=tuple(fills))


def is_as_fast(gain: Gain, tau: float) -> bool:
    """Whether a setting is evidently as fast as the library's own choice, and nothing bars it."""
    return gain.lo >= -tau and not gain.doubt


def list_uncovered(advised: Advised) -> list[Cell]:
    """The measured cells of series that have rows for which neither rows nor fills have a
    setting."""
    covered = {
        Cell(row.series, gain.nbytes)
        for row in (*advised.rows, *advised.fills)
        for gain in row.gains
    }
    return sorted(_list_measured(advised) - covered)


def sort_all(advised: Advised) -> list[Advice]:
    """Rows and fills by collective, ranks, hosts and sizes."""
    return sorted((*advised.rows, *advised.fills), key=lambda row: (*row.series, row.low))


def make_fills(advised: Advised, chosen: Mapping[Cell, tuple[Setting, str, Gain]]) -> list[Advice]:
    """The fills for cells without a row: neighbours of the same setting are one. Each goes as far
    as the rows and fills beside it, which part at the geometric mean of two sizes; the outermost
    ends with what was measured. ``chosen`` has setting, name and gain."""
    fills: list[Advice] = []
    sizes_by_series: dict[Series, set[int]] = {}
    for cell in {*_list_measured(advised), *chosen}:
        sizes_by_series.setdefault(cell.series, set()).add(cell.nbytes)
    for series, found in sorted(sizes_by_series.items()):
        sizes = sorted(found)
        keys = [
            chosen[cell][:2] if (cell := Cell(series, size)) in chosen else None for size in sizes
        ]
        for key, group in groupby(range(len(sizes)), key=keys.__getitem__):
            if key is not None:
                indices = list(group)
                low, high = _bound(advised.rows, series, sizes, indices[0], indices[-1])
                gains = tuple(chosen[Cell(series, sizes[at])][2] for at in indices)
                fills.append(
                    Advice(
                        series=series,
                        setting=key[0],
                        name=key[1],
                        low=low,
                        high=high,
                        gains=gains,
                    )
                )
    return fills


def _list_measured(advised: Advised) -> set[Cell]:
    """The cells of series that have rows."""
    series = {row.series for row in advised.rows}
    cells = {each.cell for each in advised.unadvised if each.cell.series in series}
    return cells | {Cell(row.series, gain.nbytes) for row in advised.rows for gain in row.gains}


def _fill_series(
    advised: Advised, series: Series, sizes: Sequence[int], tau: float
) -> Iterator[Advice]:
    """The fills of one series."""
    settings = _name_settings(advised, series)
    names: dict[int, str] = {
        gain.nbytes: row.name for row in advised.rows if row.series == series for gain in row.gains
    }
    chosen: dict[Cell, tuple[Setting, str, Gain]] = {}
    for index, size in enumerate(sizes):
        cell = Cell(series, size)
        fast = {
            name: gain
            for name, gain in advised.rivals.get(cell, {}).items()
            if name in settings and is_as_fast(gain, tau)
        }
        if size in names or not fast:
            continue
        near = [names.get(other) for other in (*sizes[:index][-1:], *sizes[index + 1 :][:1])]
        best = max(fast, key=lambda name: (fast[name].lo, name))
        name = next((each for each in near if each in fast), best)
        names[size] = name
        chosen[cell] = (settings[name], name, fast[name])
    yield from make_fills(advised, chosen)


def _name_settings(advised: Advised, series: Series) -> dict[str, Setting]:
    """The settings that could fill, by name: those of rows, and those that the library is known
    for."""
    settings: dict[str, Setting] = {}
    backend = advised.rows[0].setting.backend
    for library in load_libraries():
        if library.key == advised.library:
            for env in library.list_settings(series.collective, series.n, advised.version):
                setting = Setting(backend=backend, env=library.reduce(series.collective, env))
                settings[library.name_setting(series.collective, setting)] = setting
    of_rows = {row.name: row.setting for row in advised.rows if row.series == series}
    return settings | of_rows


def _bound(
    rows: Sequence[Advice], series: Series, sizes: Sequence[int], first: int, last: int
) -> tuple[int, int]:
    """From where to where a fill holds of which the first and last sizes are these."""
    low, high = sizes[first], sizes[last]
    if first:
        below = sizes[first - 1]
        ends = [row.high for row in rows if row.series == series and row.low <= below <= row.high]
        low = 1 + (ends[0] if ends else isqrt(below * low))
    if last + 1 < len(sizes):
        above = sizes[last + 1]
        starts = [row.low for row in rows if row.series == series and row.low <= above <= row.high]
        high = starts[0] - 1 if starts else isqrt(high * above)
    return low, high
