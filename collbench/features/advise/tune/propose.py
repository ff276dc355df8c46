"""What a screening proposes, as an advice that nothing has verified yet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

import msgspec

from collbench.features.advise.evidence import SHARED
from collbench.features.advise.formats import Format
from collbench.features.advise.libraries import Library
from collbench.features.advise.tune import halving, keeping
from collbench.features.advise.tune.joining import Field
from collbench.features.advise.tune.keeping import find_break
from collbench.features.advise.types import (
    Advice,
    Advised,
    Cell,
    Gain,
    Series,
    Setting,
    Unadvised,
    Variables,
)
from collbench.records.types import Choice

SEEMS_SLOW = "nothing seemed faster in short launches"
NOT_TRIED = "no setting was measured there in time"
Medians = Mapping[Cell, Mapping[Variables, float]]  # (): the default
Heard = Mapping[Cell, Mapping[Variables, Choice]]  # what the library said that it ran


def propose_rows(
    medians: Medians,
    library: Library,
    backend: str,
    nodes: int,
    by_size: bool,
    shared: Collection[int] = (),
) -> list[Advice]:
    """The rows to verify, by what seems fastest at two neighbouring sizes or more: of each series
    the best setting by size, or one setting (not ``by_size``) that then holds for all sizes. Where
    nothing seems faster anywhere, the best stretch of each series: fresh launches decide. Rows of
    as many ranks as are ``shared`` say that these share cores."""
    by_series: dict[Series, dict[int, Mapping[Variables, float]]] = {}
    for (series, size), by_setting in sorted(medians.items()):
        by_series.setdefault(series, {})[size] = by_setting
    for is_forced in (False, True):
        rows: list[Advice] = []
        for series, cells in by_series.items():
            sizes = list(cells)
            if is_forced:
                chosen = halving.choose_best_stretch(list(cells.values()))
            elif by_size:
                chosen = halving.choose_by_size(list(cells.values()))
            else:
                only = halving.choose_for_all(list(cells.values()))
                faster = halving.keep_faster(list(cells.values()), only)
                chosen = [only if is_faster else () for is_faster in faster]
            place = series._replace(nodes=nodes)
            remark = SHARED if series.n in shared else ""
            made = _make_rows(place, sizes, list(cells.values()), chosen, library, backend)
            rows += [msgspec.structs.replace(row, remark=remark) for row in made]
        if rows:
            return rows
    return []


def _make_rows(
    series: Series,
    sizes: Sequence[int],
    cells: Sequence[Mapping[Variables, float]],
    chosen: Sequence[Variables],
    library: Library,
    backend: str,
) -> list[Advice]:
    rows = []
    for env, group in itertools.groupby(range(len(sizes)), key=chosen.__getitem__):
        indices = list(group)
        if not env:
            continue
        first, last = indices[0], indices[-1]
        setting = Setting(backend=backend, env=env)
        rows.append(
            Advice(
                series=series,
                setting=setting,
                name=library.name_setting(series.collective, setting),
                low=find_break(sizes[first - 1], sizes[first]) + 1 if first else sizes[0],
                high=find_break(*sizes[last : last + 2]) if last + 1 < len(sizes) else sizes[-1],
                gains=tuple(_make_gain(sizes[at], cells[at], env) for at in indices),
            )
        )
    return rows


def _make_gain(nbytes: int, cell: Mapping[Variables, float], env: Variables) -> Gain:
    """A gain by short launches, without an interval."""
    return Gain(
        nbytes=nbytes,
        gain=1 - cell[env] / cell[()],
        lo=-math.inf,
        hi=math.inf,
        p=1.0,
        launches=1,
        is_paired=False,
        default=cell[()],
        setting=cell[env],
    )


def list_rivals(
    medians: Medians, library: Library, backend: str, nodes: int
) -> dict[Cell, dict[str, Gain]]:
    """What every setting seemed to save, for the map."""
    rivals: dict[Cell, dict[str, Gain]] = {}
    for (series, size), by_setting in medians.items():
        for env in filter(None, by_setting):
            setting = Setting(backend=backend, env=env)
            name = library.name_setting(series.collective, setting)
            cell = Cell(series._replace(nodes=nodes), size)
            rivals.setdefault(cell, {})[name] = _make_gain(size, by_setting, env)
    return rivals


def fit_format(advised: Advised, format: Format) -> tuple[list[Advice], list[str]]:
    """The rows that the format can say together, those that save most first, and why others
    cannot be said."""
    fitting: list[Advice] = []
    refused: list[str] = []
    for row in sorted(advised.rows, key=lambda row: -row.gain[0]):
        more = sorted([*fitting, row], key=lambda each: (each.series, each.low))
        if reason := format.refuse(replace_rows(advised, more)):
            refused.append(f"{row.series.collective}, {row.series.n} ranks, {row.name}: {reason}")
        else:
            fitting = more
    return fitting, refused


def replace_rows(advised: Advised, rows: Sequence[Advice]) -> Advised:
    """The advice with other rows."""
    return msgspec.structs.replace(advised, rows=tuple(rows))


def add_choices(row: Advice, choices: Heard) -> Advice:
    """The row with what the library said that it ran in the screening, by default and by the
    setting."""
    cells = [Cell(row.series._replace(nodes=1), gain.nbytes) for gain in row.gains]
    heard = [choices.get(cell, {}) for cell in cells]
    pairs = {
        cell: (by.get(()), by.get(row.setting.env)) for cell, by in zip(cells, heard, strict=True)
    }
    nodes = row.series.nodes
    return keeping.add_choices(
        row,
        {
            Cell(cell.series._replace(nodes=nodes), cell.nbytes): pair
            for cell, pair in pairs.items()
        },
    )


def list_unadvised(
    field: Field, medians: Medians, rows: Sequence[Advice], nodes: int, choices: Heard
) -> list[Unadvised]:
    """The cells for which nothing is proposed, and whether anything was measured there."""
    covered = {Cell(row.series, gain.nbytes) for row in rows for gain in row.gains}
    unadvised = []
    for series, sizes_by_setting in sorted(field.items()):
        for size in sorted({size for sizes in sizes_by_setting.values() for size in sizes}):
            cell = Cell(series._replace(nodes=nodes), size)
            tried = len(medians.get(Cell(series, size), ())) > 1
            if cell not in covered:
                why = SEEMS_SLOW if tried else NOT_TRIED
                ran = choices.get(Cell(series, size), {}).get(())
                unadvised.append(Unadvised(cell, why, False, default_ran=ran))
    return unadvised
