"""Bounds where ranks do not divide sizes: a rule holds for what a call of three ranks sends."""

from __future__ import annotations

import pytest
from advised import advised, row

from collbench.core.collectives import COLLECTIVES
from collbench.features.advise.formats import choose, load_formats, mpich
from collbench.features.advise.libraries import load_libraries
from collbench.features.advise.types import Series
from collbench.suite.case import Case

DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")


@pytest.mark.parametrize("collective", [*DIVIDED, "all_reduce"])
@pytest.mark.parametrize("key", ["openmpi", "mpich", "intelmpi", "oneccl"])
def test_rows_hold_for_their_first_and_last_sizes(
    key: str, collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpich, "find_tree", make_tree)
    monkeypatch.setattr(mpich, "find_library", lambda: None)
    library = next(each for each in load_libraries() if each.key == key)
    kind = load_formats()[key]
    backend = "oneccl" if key == "oneccl" else "mpi"
    settings = [
        env
        for env in library.list_settings(collective, 3, "")
        if not kind.refuse(
            advised(library, [row(library, collective, 3, 8, 64, env, backend=backend)])
        )
    ]
    first, second = settings[0], settings[-1]
    spec = COLLECTIVES[collective]
    sizes = [
        Case(
            collective=collective,
            nbytes=nbytes,
            dtype="float",
            op="sum" if spec.reduces else "none",
            n=3,
            backend="gloo",
        ).size
        for nbytes in (64, 1024, 4096, 1 << 20)
    ]
    assert (sizes[0] == 60) == bool(spec.total)
    rows = [
        row(library, collective, 3, sizes[0], sizes[1], first, backend=backend),
        row(library, collective, 3, sizes[1] + 1, sizes[3], second, backend=backend),
    ]
    rules = kind.read(kind.write(advised(library, rows)))
    series = Series(collective, 3, 1)
    names = [choose(rules, series, size) for size in sizes]
    assert names == [rows[0].name, rows[0].name, rows[1].name, rows[1].name]


def make_tree() -> dict[str, object]:
    return {
        f"collective={each.word.lower()}": {"comm_type=intra": {"algorithm=MPIR_own": {}}}
        for each in mpich.FUNCTIONS.values()
    }
