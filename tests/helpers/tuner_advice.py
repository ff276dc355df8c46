"""Advice for tests of files: rows, cells without advice, and advice by chance."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from advised import gain

from collbench.features.advise.libraries.nccl import FUNCTIONS, IMPLEMENTED, LIBRARY
from collbench.features.advise.types import (
    Advice,
    Advised,
    Cell,
    Crossing,
    Gain,
    Series,
    Setting,
    Unadvised,
)
from collbench.records.types import Choice

ALL_REDUCE = Series("all_reduce", 16, 2)
DEFAULT = Choice(algorithm="Ring", protocol="LL", channels=2)
SIMPLE = Choice(algorithm="Ring", protocol="Simple", channels=24)


def advice(
    sizes: Sequence[int],
    low: int = 0,
    high: int = 0,
    series: Series = ALL_REDUCE,
    setting: Setting | None = None,
    default_ran: Choice | None = DEFAULT,
    ran: Choice | None = None,
    above: Crossing | None = None,
) -> Advice:
    """A row over the sizes, from the first to the last unless ``low`` and ``high`` are given."""
    env = (("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL128"))
    setting = setting or Setting(backend="nccl", env=env)
    return Advice(
        series=series,
        setting=setting,
        name=LIBRARY.name_setting(series.collective, setting),
        low=low or sizes[0],
        high=high or sizes[-1],
        gains=tuple(map(gain, sizes)),
        default_ran=default_ran,
        ran=ran,
        default_rans=tuple(default_ran for _ in sizes),
        rans=tuple(ran for _ in sizes),
        above=above,
    )


def unadvised(nbytes: int, series: Series = ALL_REDUCE, ran: Choice | None = DEFAULT) -> Unadvised:
    return Unadvised(Cell(series, nbytes), "nothing is surely faster", True, default_ran=ran)


def advised(
    rows: Sequence[Advice] = (),
    cells: Sequence[Unadvised] = (),
    version: str = "NCCL 2.30.7 (torch 2.13)",
    device: str = "NVIDIA H100 80GB HBM3",
    rivals: dict[Cell, dict[str, Gain]] | None = None,
) -> Advised:
    return Advised(
        library="nccl",
        version=version,
        runs=("20261121-1", "20261122-2"),
        day="2026-11-22",
        taus=(0.03, 0.03),
        rows=tuple(rows),
        unadvised=tuple(cells),
        rivals=rivals or {},
        backend="nccl",
        device=device,
    )


def others(n: int = 16, nodes: int = 2) -> list[Unadvised]:
    """What NCCL chose for the collectives but all_reduce."""
    series = [Series(name, n, nodes) for name in FUNCTIONS if name != "all_reduce"]
    return [
        unadvised(nbytes, each, ran)
        for each in series
        for nbytes, ran in ((1 << 10, DEFAULT), (64 << 20, SIMPLE))
    ]


def advise_by_chance(seed: int, version: str = "NCCL 2.30.7") -> Advised:
    """Advice and the library's own choices of all five collectives, at sizes by chance."""
    luck = random.Random(seed)
    nodes = luck.choice((1, 2, 4))
    n = nodes * luck.choice((1, 2, 8))
    rows: list[Advice] = []
    cells: list[Unadvised] = []
    for collective in FUNCTIONS:
        series = Series(collective, n, nodes)
        drawn_sizes = luck.sample([8 << shift for shift in range(24)], luck.randint(2, 9))
        sizes = sorted({8, 1 << 30, *drawn_sizes})
        drawn = list(_draw_rows(luck, series, sizes))
        rows += drawn
        covered = {each.nbytes for row in drawn for each in row.gains}
        cells += [
            unadvised(nbytes, series, _draw_choice(luck, collective))
            for nbytes in sizes
            if nbytes not in covered
        ]
    return advised(rows, cells, version)


def _draw_choice(luck: random.Random, collective: str) -> Choice:
    algorithm = luck.choice(list(IMPLEMENTED[collective]))
    protocol = luck.choice(IMPLEMENTED[collective][algorithm])
    return Choice(algorithm=algorithm, protocol=protocol, channels=luck.randint(1, 32))


def _draw_rows(luck: random.Random, series: Series, sizes: Sequence[int]) -> Iterator[Advice]:
    """Rows that do not overlap, of two sizes or more."""
    start = 0
    while start + 1 < len(sizes):
        end = min(start + luck.randint(1, 3), len(sizes) - 1)
        if luck.random() < 0.5 and end > start:
            choice = _draw_choice(luck, series.collective)
            env = [("NCCL_ALGO", choice.algorithm), ("NCCL_PROTO", choice.protocol)]
            count = luck.choice(("", "4", "16"))
            if count:
                env += [("NCCL_MAX_NCHANNELS", count), ("NCCL_MIN_NCHANNELS", count)]
            reduced = LIBRARY.reduce(series.collective, tuple(env))
            setting = Setting(backend="nccl", env=reduced)
            high = (
                sizes[end] if end == len(sizes) - 1 else int((sizes[end] * sizes[end + 1]) ** 0.5)
            )
            yield advice(
                sizes[start : end + 1],
                high=high,
                series=series,
                setting=setting,
                default_ran=_draw_choice(luck, series.collective),
                ran=choice
                if not count
                else Choice(
                    algorithm=choice.algorithm, protocol=choice.protocol, channels=int(count)
                ),
            )
        start = end + 1
