"""Successive halving, by series and size: which settings are worth another launch, and which of
them are proposed in the end. None of this decides anything; fresh launches do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import median

from collbench.features.advise.tune.joining import Field, Sizes
from collbench.features.advise.types import Cell, Series, Variables

Times = Mapping[Cell, Mapping[Variables, Sequence[float]]]  # medians of launches; (): the default

SLACK = 0.05  # by which a setting may be slower than the default and still go on
LITTLE = 0.02  # of the time: less is not worth a proposal
ENTRY = 0.05  # what a stretch of sizes must save over all its sizes, to be one


def summarise_times(times: Times) -> dict[Cell, dict[Variables, float]]:
    """The median over launches of everything in a cell; without cells where the default has no
    time."""
    return {
        cell: {setting: median(launches) for setting, launches in by_setting.items() if launches}
        for cell, by_setting in times.items()
        if by_setting.get(())
    }


def halve_field(field: Field, times: Times) -> dict[Series, dict[Variables, Sizes]]:
    """Who goes on: at each size the better half of the settings that are not slower than the
    default by more than a little; and only where that holds at two neighbouring sizes."""
    medians = summarise_times(times)
    remaining: dict[Series, dict[Variables, Sizes]] = {}
    for series, sizes_by_setting in field.items():
        sizes = _list_sizes(sizes_by_setting)
        better: dict[int, set[Variables]] = {}
        for size in sizes:
            by_setting = medians.get(Cell(series, size), {})
            competing = {name for name, at in sizes_by_setting.items() if size in at}
            better[size] = _find_better(
                {name: time for name, time in by_setting.items() if name in competing or not name}
            )
        for setting in sizes_by_setting:
            kept = keep_neighbours([setting in better[size] for size in sizes])
            if any(kept):
                at = tuple(size for size, is_kept in zip(sizes, kept, strict=True) if is_kept)
                remaining.setdefault(series, {})[setting] = at
    return remaining


def _list_sizes(sizes_by_setting: Mapping[Variables, Sizes]) -> list[int]:
    return sorted({size for sizes in sizes_by_setting.values() for size in sizes})


def _find_better(by_setting: Mapping[Variables, float]) -> set[Variables]:
    """The better half of the settings of a cell, as far as they are about as fast as the
    default."""
    rivals = sorted((time, setting) for setting, time in by_setting.items() if setting)
    half = rivals[: math.ceil(len(rivals) / 2)]
    return {setting for time, setting in half if time <= (1 + SLACK) * by_setting[()]}


def keep_neighbours(flags: Sequence[bool]) -> list[bool]:
    """The flags without those that stand alone."""
    kept: list[bool] = []
    for is_set, group in itertools.groupby(flags):
        number = len(list(group))
        kept += [is_set and number > 1] * number
    return kept


def choose_by_size(cells: Sequence[Mapping[Variables, float]]) -> list[Variables]:
    """The setting to propose at each size, by ascending sizes, () for the default: those that
    together save most, in stretches of two sizes or more. Every stretch must save ENTRY to begin
    with, so that settings that are equally fast do not take turns."""
    proposed: list[Variables] = []
    for setting, group in itertools.groupby(_choose_path(cells)):
        number = len(list(group))
        proposed += [setting if number > 1 else ()] * number
    return proposed


def choose_for_each(cells: Sequence[Mapping[Variables, float]]) -> list[Variables]:
    """The setting to propose at each size, by ascending sizes, where a file has to name one for all
    of them: those that together take least, whatever the default takes. Empty where a size has no
    setting with a time, or where none seems faster at two neighbouring sizes."""
    if not all(any(cell) for cell in cells):  # of () alone, which is the default
        return []
    chosen = _choose_path(cells, has_default=False)
    faster = [
        _measure_saving(cell, setting) > 0 for cell, setting in zip(cells, chosen, strict=True)
    ]
    return chosen if any(keep_neighbours(faster)) else []


def _choose_path(
    cells: Sequence[Mapping[Variables, float]], has_default: bool = True
) -> list[Variables]:
    """The setting of each size that together save most, with ENTRY for every stretch."""
    settings = sorted({setting for cell in cells for setting in cell if setting or has_default})
    best: dict[Variables, tuple[float, list[Variables]]] = {(): (0.0, [])}
    for cell in cells:
        following: dict[Variables, tuple[float, list[Variables]]] = {}
        for setting in settings:
            saved = _measure_saving(cell, setting)
            if saved == -math.inf:
                continue
            total, path = max(
                (
                    (before - ENTRY * (setting not in ((), last)), path)
                    for last, (before, path) in best.items()
                ),
                key=lambda each: each[0],
            )
            following[setting] = (total + saved, [*path, setting])
        best = following
    return max(best.values(), key=lambda each: each[0])[1]


def _measure_saving(cell: Mapping[Variables, float], setting: Variables) -> float:
    """The log time that a setting saves in a cell, less what is not worth it; nothing for the
    default, and -inf where the setting has no time."""
    if not setting:
        return 0.0
    if setting not in cell or () not in cell:
        return -math.inf
    return math.log(cell[()] / cell[setting]) - LITTLE


def choose_for_all(cells: Sequence[Mapping[Variables, float]]) -> Variables:
    """The one setting to propose for all sizes: that which saves most altogether, of those that are
    slower than the default at no size by more than SLACK, and faster at two neighbouring ones."""
    settings = {setting for cell in cells for setting in cell if setting}
    totals: dict[Variables, float] = {}
    for setting in settings:
        savings = [_measure_saving(cell, setting) for cell in cells]
        faster = keep_neighbours([saving > 0 for saving in savings])
        if min(savings) >= -SLACK - LITTLE and any(faster):
            totals[setting] = sum(savings)
    return max(sorted(totals), key=totals.__getitem__, default=())


def choose_best_stretch(cells: Sequence[Mapping[Variables, float]]) -> list[Variables]:
    """The setting that looks best at two neighbouring sizes, there, though it seems no faster; the
    default elsewhere."""
    chosen: list[Variables] = [() for _ in cells]
    best = -math.inf
    for index, pair in enumerate(itertools.pairwise(cells)):
        for setting in sorted({setting for cell in pair for setting in cell if setting}):
            saved = sum(_measure_saving(cell, setting) for cell in pair)
            if saved > best:
                best = saved
                chosen = [() for _ in cells]
                chosen[index] = chosen[index + 1] = setting
    return chosen
