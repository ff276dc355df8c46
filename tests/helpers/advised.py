"""Advice as tests write it to files, and what a file's rules say of sizes; NCCL's, which has cells
without advice and the library's own choices, too, and may be by chance."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.features.advise.formats import Format, choose
from collbench.features.advise.libraries import Library
from collbench.features.advise.libraries.mpich import FUNCTIONS as MPICH
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
    Variables,
)
from collbench.records.types import Choice

ALL_REDUCE = Series("all_reduce", 16, 2)
DEFAULT = Choice(algorithm="Ring", protocol="LL", channels=2)
SIMPLE = Choice(algorithm="Ring", protocol="Simple", channels=24)


def flatten(text: str) -> str:
    """A file's text in one line: comments as they were before they were cut into short lines."""
    return " ".join(re.sub(r"\n(#|//) ", " ", text).split())


def assert_misread(form: Format, text: str, line: int, reason: str = "") -> None:
    """That a format refuses a text in one line of words, which name the text's line and why."""
    with pytest.raises(UsageError) as error:
        form.read(text)
    assert error.value.message.startswith(f"line {line}: ")
    assert reason in error.value.message and "\n" not in error.value.message


def gain(nbytes: int, share: float = 0.14, lo: float = 0.09, p: float = 0.001) -> Gain:
    return Gain(
        nbytes=nbytes,
        gain=share,
        lo=lo,
        hi=0.18,
        p=p,
        launches=6,
        is_paired=True,
        default=20_000.0,
        setting=17_200.0,
    )


def row(
    library: Library,
    collective: str,
    n: int,
    low: int,
    high: int,
    env: Variables,
    nodes: int = 1,
    backend: str = "mpi",
    algorithm: str = "native",
) -> Advice:
    """One row, of a setting by its variables, with the library's own name for it."""
    setting = Setting(backend=backend, env=env, algorithm=algorithm)
    name = library.name_setting(collective, setting)
    gains = (gain(low), gain(high))
    series = Series(collective, n, nodes)
    return Advice(series=series, setting=setting, name=name, low=low, high=high, gains=gains)


def advised(
    library: Library, rows: Sequence[Advice] = (), version: str = "1.0", **fields: Any
) -> Advised:
    return Advised(
        library=library.key,
        version=version,
        runs=("20261128-101010",),
        day="2026-11-28",
        taus=(0.03, 0.05),
        rows=tuple(rows),
        **fields,
    )


@st.composite
def some_rows(
    draw: Any,
    library: Library,
    collectives: Sequence[str],
    backend: str = "mpi",
    one_n: bool = False,
) -> list[Advice]:
    """Rows of several series, none of which overlap: neighbours may touch. ``one_n``: for
    one number of ranks only."""
    rows = []
    numbers = (draw(st.sampled_from((2, 3, 4, 8))),) if one_n else (2, 3, 4, 8)
    keys = st.tuples(st.sampled_from(collectives), st.sampled_from(numbers))
    unique = (lambda key: key[0]) if one_n else (lambda key: key)
    for collective, n in draw(st.lists(keys, min_size=0, max_size=4, unique_by=unique)):
        settings = library.list_settings(collective, n, "")
        sizes = st.integers(0, 1 << 26)
        bounds = sorted(draw(st.lists(sizes, min_size=2, max_size=6, unique=True)))
        at = -1
        for bound, high in list(pairwise(bounds))[:: draw(st.sampled_from((1, 2)))]:
            low = max(bound, at + 1)
            if settings and low <= high:
                env = draw(st.sampled_from(list(settings)))
                rows.append(row(library, collective, n, low, high, env, backend=backend))
                at = high
    return rows


def expect(rows: Sequence[Advice], series: Series, nbytes: int) -> str:
    """The name of the row that holds, found without any file."""
    names = [
        each.name for each in rows if each.series == series and each.low <= nbytes <= each.high
    ]
    return names[0] if names else ""


def find_differences(
    library: Library, kind: Format, rows: Sequence[Advice], knows_ranks: bool = True
) -> list[Any]:
    """Where what was written and read back chooses otherwise than the rows: at bounds and beside
    them, for ranks beside them, too, if files know of ranks. Sizes are such that ranks divide
    them, where they are divided."""
    rules = kind.read(kind.write(advised(library, rows)))
    sizes = {0, 1 << 40}
    for each in rows:
        sizes |= {each.low - 1, each.low, each.high, each.high + 1, (each.low + each.high) // 2}
    series = {each.series for each in rows}
    if knows_ranks:
        series |= {one._replace(n=n) for one in series for n in (2, 3, 4, 5, 7, 8, 9)}
    cells = {
        (one, nbytes // one.n * one.n if COLLECTIVES[one.collective].total else nbytes)
        for one in series
        for nbytes in sizes
        if nbytes >= 0
    }
    return [
        (one, nbytes, choose(rules, one, nbytes), expect(rows, one, nbytes))
        for one, nbytes in cells
        if choose(rules, one, nbytes) != expect(rows, one, nbytes)
    ]


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


def advise_nccl(
    rows: Sequence[Advice] = (),
    cells: Sequence[Unadvised] = (),
    version: str = "NCCL 2.30.7 (torch 2.13)",
    device: str = "NVIDIA H100 80GB HBM3",
    rivals: dict[Cell, dict[str, Gain]] | None = None,
    dtypes: tuple[str, ...] = ("bfloat16",),
) -> Advised:
    fields = {"unadvised": tuple(cells), "device": device, "rivals": rivals or {}}
    fields["dtypes"] = dtypes
    return advised(LIBRARY, rows, version, backend="nccl", **fields)


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
    return advise_nccl(rows, cells, version)


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
                ran=msgspec.structs.replace(choice, channels=int(count)) if count else choice,
            )
        start = end + 1


def make_mpich_tree() -> dict[str, Any]:
    """What an MPICH could have built in."""
    return {
        f"collective={word}": {
            "comm_type=intra": {
                "comm_size=pow2": {f"algorithm=MPIR_{word.capitalize()}_intra_{name}": {}},
                "comm_size=any": {f"algorithm=MPIR_{word.capitalize()}_intra_nb": {}},
            },
            "comm_type=inter": {f"algorithm=MPIR_{word.capitalize()}_inter_flat": {}},
        }
        for word, name in (
            *((each.word.lower(), each.algorithms[0]) for each in MPICH.values()),
            ("barrier", "smp"),
        )
    }
