"""What a screening proposes, as an advice that nothing has verified yet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from collbench.features.advise.evidence import SHARED
from collbench.features.advise.formats import Format
from collbench.features.advise.libraries import Library
from collbench.features.advise.tune import halving, keeping
from collbench.features.advise.tune.joining import Field
from collbench.features.advise.tune.keeping import Nodes, find_break
from collbench.features.advise.tune.schedule import Sizes
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
NONE_TO_TRY = "no setting was to be tried there"
Of = TypeVar("Of")
Medians = Mapping[Cell, Mapping[Variables, float]]  # (): the default
Heard = Mapping[Cell, Mapping[Variables, Choice]]  # what the library said that it ran


def propose_rows(
    medians: Medians,
    library: Library,
    backend: str,
    nodes: Nodes,
    format: Format,
    shared: Collection[int] = (),
) -> list[Advice]:
    """The rows to verify, by what seems fastest at two neighbouring sizes or more: of each series
    the best setting by size, for all sizes where the ``format`` has to name one, or one setting
    for all sizes where it cannot tell them apart. Where nothing seems faster anywhere, the best
    stretch of each series: fresh launches decide. Rows of as many ranks as are ``shared`` say that
    these share cores."""
    by_series: dict[Series, dict[int, Mapping[Variables, float]]] = {}
    for (series, size), by_setting in sorted(medians.items()):
        by_series.setdefault(series, {})[size] = by_setting
    for is_forced in (False, True):
        rows: list[Advice] = []
        for series, cells in by_series.items():
            sizes = list(cells)
            chosen = _choose_settings(list(cells.values()), format, is_forced)
            place = series._replace(nodes=nodes.get(series.n, 1))
            remark = SHARED if series.n in shared else ""
            made = _make_rows(place, sizes, list(cells.values()), chosen, library, backend)
            rows += [msgspec.structs.replace(row, remark=remark) for row in made]
        if rows:
            return rows
    return []


def _choose_settings(
    cells: Sequence[Mapping[Variables, float]], format: Format, is_forced: bool
) -> list[Variables]:
    """The setting of each size; () for the default."""
    if format.covers_all:
        return halving.choose_for_each(cells) or [() for _ in cells]
    if format.by_size:
        return halving.choose_best_stretch(cells) if is_forced else halving.choose_by_size(cells)
    only = halving.choose_for_all(cells)
    if is_forced and not only:
        only = next(filter(None, halving.choose_best_stretch(cells)), ())
    # it is measured at all sizes in any case, and short launches see little
    return [only if only in cell else () for cell in cells]


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
        launches=0,
        is_paired=False,
        default=cell[()],
        setting=cell[env],
    )


def fit_format(
    advised: Advised, format: Format, find_unadvised: Callable[[Sequence[Advice]], list[Unadvised]]
) -> tuple[list[Advice], list[str]]:
    """The rows that the format can say together, those that save most first, and why others
    cannot be said. ``find_unadvised`` has the cells without a row, which bear on it, too."""
    fitting: list[Advice] = []
    refused: list[str] = []
    units: dict[object, list[Advice]] = {}
    for index, row in enumerate(advised.rows):
        units.setdefault(row.series if format.covers_all else index, []).append(row)
    for unit in sorted(units.values(), key=lambda rows: -max(row.gain[0] for row in rows)):
        more = sorted([*fitting, *unit], key=lambda each: (each.series, each.low))
        trial = msgspec.structs.replace(
            advised, rows=tuple(more), unadvised=tuple(find_unadvised(more))
        )
        if reason := format.refuse(trial):
            series, names = unit[0].series, dict.fromkeys(row.name for row in unit)
            refused.append(f"{series.collective}, {series.n} ranks, {', '.join(names)}: {reason}")
        else:
            fitting = more
    return fitting, refused


def add_choices(row: Advice, choices: Heard) -> Advice:
    """The row with what the library said that it ran in the screening, by default and by the
    setting."""
    series = row.series._replace(nodes=1)
    heard = {
        Cell(row.series, gain.nbytes): choices.get(Cell(series, gain.nbytes), {})
        for gain in row.gains
    }
    return keeping.add_choices(
        row, {cell: (by.get(()), by.get(row.setting.env)) for cell, by in heard.items()}
    )


def name_sizes(by_cell: Mapping[Cell, Of], sizes: Sizes) -> dict[Cell, Of]:
    """What is known by cell, by the bytes that calls send in place of those that the sweep asks
    for."""
    named = {
        Cell(series, asked): Cell(series, size)
        for series, by_size in sizes.items()
        for size, asked in by_size.items()
    }
    return {named[cell]: known for cell, known in by_cell.items() if cell in named}


def list_unadvised(
    field: Field,
    medians: Medians,
    rows: Sequence[Advice],
    nodes: Nodes,
    choices: Heard,
    sizes: Sizes,
) -> list[Unadvised]:
    """The cells for which nothing is proposed, and whether anything was measured there."""
    covered = {Cell(row.series, gain.nbytes) for row in rows for gain in row.gains}
    unadvised = []
    for series in sorted(field):
        for size in sorted(sizes[series]):
            cell = Cell(series._replace(nodes=nodes.get(series.n, 1)), size)
            tried = len(medians.get(Cell(series, size), ())) > 1
            if cell not in covered:
                why = SEEMS_SLOW if tried else NOT_TRIED if any(field[series]) else NONE_TO_TRY
                ran = choices.get(Cell(series, size), {}).get(())
                unadvised.append(Unadvised(cell, why, False, default_ran=ran))
    return unadvised
