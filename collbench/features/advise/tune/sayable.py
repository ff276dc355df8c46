"""What a kind of file can say, asked before anything is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from collbench.core.errors import UsageError
from collbench.features.advise.formats import Format
from collbench.features.advise.formats.nccl import has_least_channels, refuse_setting
from collbench.features.advise.libraries import Library
from collbench.features.advise.tune.joining import Field, Sizes
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

BY_CHOICE = ("nccl", "rccl", "ncclx")  # formats that go by what the library says in launches
FIRST, OTHERS = (Choice(algorithm="Ring", protocol=name) for name in ("LL", "Simple"))


def drop_unsayable(
    field: Field, format: Format, library: Library, backend: str, version: str
) -> tuple[Field, list[str]]:
    """The field without settings that the file has no words for, and notes on these. A series
    without any setting stays with its default where the file needs to know what the library chooses
    there. Raises UsageError where no setting is left, or where the file cannot tell numbers of
    ranks apart."""
    competing = {series: by_setting for series, by_setting in field.items() if any(by_setting)}
    if not format.by_size:
        return competing, []
    blank = Advised(library=library.key, version=version, runs=(), day="", taus=(0.0, 0.0))
    is_by_choice = format.key in BY_CHOICE
    choices = _imagine_choices(field)
    if is_by_choice and (reason := format.refuse(replace(blank, unadvised=choices))):
        sweep = f"{','.join(format.collectives)} -b {format.sizes[0]} -e {format.sizes[1]}"
        raise UsageError(f"{format.title}: {reason}", f"tune {sweep}, or --for words")

    def refuse(rows: Sequence[Advice]) -> str:
        if is_by_choice:
            return next(filter(None, map(refuse_setting, rows)), "")
        return format.refuse(replace(blank, rows=tuple(rows)))

    sayable: dict[Series, dict[Variables, Sizes]] = {}
    refused: dict[str, list[Advice]] = {}
    more_channels: list[str] = []
    first: dict[str, Advice] = {}
    for series, by_setting in competing.items():
        for env, sizes in by_setting.items():
            row = _make_row(series, env, sizes, library, backend)
            if reason := refuse([row]):
                refused.setdefault(reason, []).append(row)
                continue
            if is_by_choice and has_least_channels(row):
                more_channels.append(row.name)
            sayable.setdefault(series, {})[env] = sizes
            other = first.setdefault(series.collective, row)
            if other.series != series and (reason := refuse([other, row])):
                raise UsageError(
                    f"{format.title} cannot hold several numbers of ranks: {reason}",
                    f"tune them one by one, each with a file of its own: -g {series.n}",
                )
    if not sayable:
        raise UsageError(
            f"{format.title} can say none of these settings: {next(iter(refused))}",
            "--for words takes any setting",
        )
    unsaid = "not tried, as the file cannot say it"
    notes = [f"{unsaid}: {_name_rows(rows)}: {reason}" for reason, rows in refused.items()]
    if is_by_choice and format.refuse(replace(blank, unadvised=_imagine_choices(sayable))):
        defaults = _list_lost(field, sayable, format)
        sayable |= defaults
        names = _join([series.collective for series in defaults])
        own = f"the file repeats what {library.title} chooses there"
        notes.append(f"only the default is measured for {names}: {own}")
    if more_channels:
        notes.append(
            "a tuner can lower the number of channels, not raise it: the file can have"
            f" {_join(more_channels)} only if {library.title} has as many by itself"
        )
    return sayable, notes


def _imagine_choices(field: Field) -> tuple[Unadvised, ...]:
    """What the library may say that it ran by itself, such that a file can hold it, if any can."""
    return tuple(
        Unadvised(Cell(series, size), "", False, default_ran=OTHERS if at else FIRST)
        for series, by_setting in field.items()
        for at, size in enumerate(sorted({size for sizes in by_setting.values() for size in sizes}))
    )


def _list_lost(
    field: Field, sayable: Field, format: Format
) -> dict[Series, dict[Variables, Sizes]]:
    """The series of the format's collectives that have no setting left, with their default alone at
    all sizes that they had."""
    return {
        series: {(): tuple(sorted({size for sizes in by_setting.values() for size in sizes}))}
        for series, by_setting in field.items()
        if series not in sayable and series.collective in format.collectives
    }


def _name_rows(rows: Sequence[Advice]) -> str:
    """The settings of rows, each once with its collectives."""
    collectives: dict[str, list[str]] = {}
    for row in rows:
        collectives.setdefault(row.name, []).append(row.series.collective)
    names: dict[tuple[str, ...], list[str]] = {}
    for name, each in collectives.items():
        names.setdefault(tuple(each), []).append(name)
    return "; ".join(f"{_join(each)} of {_join(where)}" for where, each in names.items())


def _join(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:3]) + (f" and {len(unique) - 3} more" if len(unique) > 3 else "")


def _make_row(
    series: Series, env: Variables, sizes: Sizes, library: Library, backend: str
) -> Advice:
    """A row over all sizes, as if it were to be advised."""
    setting = Setting(backend=backend, env=library.reduce(series.collective, env))
    gains = tuple(
        Gain(
            nbytes=size,
            gain=0.1,
            lo=-math.inf,
            hi=math.inf,
            p=1.0,
            launches=0,
            is_paired=False,
            default=1.0,
            setting=0.9,
        )
        for size in sizes
    )
    name = library.name_setting(series.collective, setting)
    return Advice(
        series=series, setting=setting, name=name, low=sizes[0], high=sizes[-1], gains=gains
    )
