"""Successive halving, by series and size: which settings are worth more launches, and which of
them are proposed in the end. None of this decides anything; fresh launches do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import median

from collbench.features.advise.tune.joining import Field, Sizes
from collbench.features.advise.types import Cell, Series, Variables

Launches = Mapping[int, float]  # medians of launches, by the cycle that they were made in
Logs = Mapping[int, float]  # the same, as the log of the time over the default's
Times = Mapping[Cell, Mapping[Variables, Launches]]  # (): the default

SLACK = 0.05  # of the time, by which a setting must be slower than the default to be out
WIDE = 0.3  # the same while nothing is known of how launches scatter
ERRORS = 2.0  # standard errors by which it must be slower, too
LITTLE = 0.02  # of the time: less is not worth a proposal
ENTRY = 0.05  # what a stretch of sizes must save over all its sizes, to be one
NORMAL = 1.4826  # the standard deviation of normal values by their median absolute deviation
OF_MEDIAN = 1.2533  # the standard error of a median by that of a mean, of normal values


def compare_launches(by_setting: Mapping[Variables, Launches]) -> dict[Variables, Logs]:
    """The log of each setting's time over the default's in a cell, by the cycle in which both were
    launched, as machines drift; of all launches at once where there is no such cycle."""
    default = by_setting.get((), {})
    logs: dict[Variables, Logs] = {}
    for setting, launches in by_setting.items():
        if not setting or not launches or not default:
            continue
        logs[setting] = {
            cycle: math.log(time / default[cycle])
            for cycle, time in launches.items()
            if cycle in default
        } or {-1: math.log(median(launches.values()) / median(default.values()))}
    return logs


def estimate_scatter(samples: Sequence[Sequence[float]]) -> float:
    """The standard deviation of one launch, as a ratio to the default: the median over samples of
    two launches or more, and infinite without any."""
    deviations = []
    for sample in samples:
        if len(sample) > 1:
            center = median(sample)
            deviations.append(NORMAL * median(abs(value - center) for value in sample))
    return median(deviations) if deviations else math.inf


def summarise_times(times: Times) -> dict[Cell, dict[Variables, float]]:
    """The times of all in a cell, in ns: the default's is the median of its launches, a setting's
    that times its median ratio. Of a setting that seems faster and has fewer launches than another
    of its cell, as it left the search early, the luck that was not tried is taken off: as much of
    its standard error as it has more. Without cells where the default has no time."""
    by_series: dict[Series, list[list[float]]] = {}
    compared = {cell: compare_launches(by_setting) for cell, by_setting in times.items()}
    for cell, logs in compared.items():
        by_series.setdefault(cell.series, []).extend([*each.values()] for each in logs.values())
    summary: dict[Cell, dict[Variables, float]] = {}
    for cell, logs in compared.items():
        if not times[cell].get(()):
            continue
        scatter = estimate_scatter(by_series[cell.series])
        default = median(times[cell][()].values())
        most = max(map(len, logs.values()), default=1)
        summary[cell] = {(): default}
        for setting, sample in logs.items():
            ratio = median(sample.values())
            if ratio < 0 and len(sample) < most:
                ratio = min(0.0, ratio + scatter * (len(sample) ** -0.5 - most**-0.5))
            summary[cell][setting] = default * math.exp(ratio)
    return summary


def count_rounds(field: Field) -> int:
    """The rounds that halve the settings of every series down to one, and try that once more."""
    most = max(map(len, field.values()), default=0)
    return 1 + math.ceil(math.log2(most)) if most else 0


def halve_field(field: Field, times: Times) -> dict[Series, dict[Variables, Sizes]]:
    """The settings that go on: at every two neighbouring sizes the better half, by what they save
    at both, without those that are surely slower than the default there. One launch of each
    tells little, so that only what is slower by a lot is out."""
    remaining: dict[Series, dict[Variables, Sizes]] = {}
    for series, sizes_by_setting in field.items():
        sizes = sorted(cell.nbytes for cell in times if cell.series == series)
        logs = {size: compare_launches(times[Cell(series, size)]) for size in sizes}
        kept: dict[Variables, set[int]] = {}
        pairs = list(itertools.pairwise(sizes))
        saved = {pair: _compare_at_both(logs, pair, sizes_by_setting) for pair in pairs}
        scatter = estimate_scatter([each for by in saved.values() for each in by.values()])
        for pair, by_setting in saved.items():
            for setting in _find_better(by_setting, scatter):
                kept.setdefault(setting, set()).update(pair)
        if kept:
            remaining[series] = {
                setting: tuple(sorted(kept[setting]))
                for setting in sizes_by_setting
                if setting in kept
            }
    return remaining


def _compare_at_both(
    logs: Mapping[int, Mapping[Variables, Logs]],
    pair: tuple[int, int],
    sizes_by_setting: Mapping[Variables, Sizes],
) -> dict[Variables, list[float]]:
    """The mean log ratio over both sizes, launch by launch, of each setting that competes there."""
    found: dict[Variables, list[float]] = {}
    for setting, at in sizes_by_setting.items():
        one, other = (logs[size].get(setting, {}) for size in pair)
        both = [(one[cycle] + other[cycle]) / 2 for cycle in one if cycle in other]
        if {*pair} <= {*at} and both:
            found[setting] = both
    return found


def _find_better(by_setting: Mapping[Variables, Sequence[float]], scatter: float) -> set[Variables]:
    """The better half of the settings, as far as they are not surely slower than the default."""
    ranked = sorted((median(sample), setting) for setting, sample in by_setting.items())
    return {
        setting
        for ratio, setting in ranked[: math.ceil(len(ranked) / 2)]
        if ratio <= _find_slack(len(by_setting[setting]), scatter)
    }


def _find_slack(launches: int, scatter: float) -> float:
    """The log ratio above which so many launches show that a setting is slower."""
    if scatter == math.inf:
        return math.log(1 + WIDE)
    return max(math.log(1 + SLACK), ERRORS * OF_MEDIAN * scatter / math.sqrt(launches))


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
