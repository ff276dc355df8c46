"""Advice as tests write it to files, and what a file's rules say of sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.features.advise.formats import Format, choose
from collbench.features.advise.libraries import Library
from collbench.features.advise.types import Advice, Advised, Gain, Series, Setting, Variables


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


def advised(library: Library, rows: Sequence[Advice], version: str = "1.0") -> Advised:
    return Advised(
        library=library.key,
        version=version,
        runs=("20261128-101010",),
        day="2026-11-28",
        taus=(0.03, 0.05),
        rows=tuple(rows),
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
