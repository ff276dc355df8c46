"""Intel MPI's presets, and their file of variables: written, and read as the library does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from advised import advised, assert_misread, flatten, gain, row
from factories import world
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.features.advise.fills import fill_sizes, list_uncovered
from collbench.features.advise.formats import choose
from collbench.features.advise.formats.intelmpi import FORMATS
from collbench.features.advise.libraries.intelmpi import FUNCTIONS, LIBRARY
from collbench.features.advise.types import (
    Advice,
    Advised,
    Cell,
    Gain,
    Series,
    Setting,
    Unadvised,
)

(FORMAT,) = FORMATS
SERIES = Series("all_reduce", 4, 1)


def one(collective: str, n: int, low: int, high: int, preset: object, nodes: int = 1) -> Advice:
    env = ((f"I_MPI_ADJUST_{FUNCTIONS[collective].word}", str(preset)),)
    return row(LIBRARY, collective, n, low, high, env, nodes=nodes)


@st.composite
def touching_rows(draw) -> list[Advice]:
    """Rows of some collectives that cover all from the first to the last size."""
    rows = []
    n = draw(st.sampled_from((2, 3, 4)))
    for name in draw(st.lists(st.sampled_from(list(FUNCTIONS)), unique=True)):
        sizes = st.lists(st.integers(1, 1 << 24), min_size=2, max_size=5, unique=True)
        bounds = [bound * n for bound in sorted(draw(sizes))]
        for index, high in enumerate(bounds[1:]):
            low = bounds[0] if index == 0 else bounds[index] + 1
            preset = draw(st.integers(0, FUNCTIONS[name].presets))
            rows.append(one(name, n, low, high, preset))
    return rows


@given(touching_rows())
@settings(max_examples=40, deadline=None)
def test_what_is_read_back_chooses_the_rows_and_goes_on_with_the_outer_ones(rows) -> None:
    rules = FORMAT.read(FORMAT.write(advised(LIBRARY, rows)))
    for each in rows:
        step = each.series.n if COLLECTIVES[each.series.collective].total else 1
        near = (each.low, each.low + step, each.high - step, each.high)
        for size in (nbytes // step * step for nbytes in near):
            if each.low <= size <= each.high:
                assert choose(rules, each.series, size) == each.name
    for name in {each.series.collective for each in rows}:
        some = [each for each in rows if each.series.collective == name]
        assert choose(rules, some[0].series, 0) == min(some, key=lambda each: each.low).name
        assert choose(rules, some[0].series, 1 << 40) == max(some, key=lambda each: each.low).name


def test_bounds_are_those_of_a_ranks_part() -> None:
    rows = [
        one("all_reduce", 4, 8, 1000, 2),
        one("all_reduce", 4, 1001, 4000, 8),
        one("all_gather", 4, 16, 4002, 3),
        one("all_gather", 4, 4003, 8000, 1),
        one("broadcast", 4, 8, 64, 7),
    ]
    lines = FORMAT.write(advised(LIBRARY, rows)).splitlines()
    assert 'export I_MPI_ADJUST_ALLREDUCE="2:0-1000;8:1001-2147483647"' in lines
    assert 'export I_MPI_ADJUST_ALLGATHER="3:0-1000;1:1001-2147483647"' in lines
    assert 'export I_MPI_ADJUST_BCAST="7"' in lines


def test_the_variables_of_a_file_are_what_uses_it(tmp_path: Path) -> None:
    path = tmp_path / "intel.sh"
    path.write_text(FORMAT.write(advised(LIBRARY, [one("broadcast", 4, 8, 64, 7)])))
    assert FORMAT.use(path) == {"I_MPI_ADJUST_BCAST": "7"}
    path.write_text(FORMAT.write(advised(LIBRARY, [])))
    assert FORMAT.use(path) == {} and FORMAT.read(path.read_text()) == []
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError):
        FORMAT.use(path)


def test_only_what_bears_on_a_collective_stays() -> None:
    env = (("I_MPI_ADJUST_REDUCE", "5"), ("I_MPI_ADJUST_REDUCE_SCATTER_BLOCK", "1"))
    fabric = ("I_MPI_FABRICS", "ofi")
    assert LIBRARY.reduce("reduce", (*env, fabric)) == (env[0], fabric)
    assert LIBRARY.reduce("reduce_scatter", env) == (env[1],)
    assert LIBRARY.reduce("all_reduce", env) == ()
    radix = (("I_MPI_ADJUST_ALLREDUCE_NODE_KARY_RADIX", "4"),)
    assert LIBRARY.reduce("all_reduce", radix) == radix
    assert LIBRARY.reduce("broadcast", radix) == ()
    for collective in FUNCTIONS:
        listed = LIBRARY.list_settings(collective, 4, "")
        assert 2 <= len(listed) < 10
        assert [LIBRARY.reduce(collective, each) for each in listed] == list(listed)
    assert LIBRARY.name_setting("reduce", Setting(backend="mpi", env=env[:1])) == "preset 5"


def test_it_is_told_by_what_its_worlds_say() -> None:
    assert LIBRARY.is_of(world(backend="mpi", library="Intel(R) MPI Library 2021.18"))
    assert not LIBRARY.is_of(world(backend="mpi", library="MPICH 5.0.2"))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([one("all_reduce", n, 8, 64, 2) for n in (2, 4)], "rows are for 2 and 4: one file"),
        ([one("all_reduce", 4, 8, 64, 2), one("broadcast", 2, 8, 64, 2)], "rows are for 2 and 4"),
        ([one("all_reduce", 4, 8, 64, 2, nodes) for nodes in (1, 2)], "hosts"),
        ([one("all_reduce", 4, 8, 64, 99)], "no preset 99 for all_reduce"),
        ([one("all_reduce", 4, 8, 64, "2:0-9")], "holds for all sizes"),
        ([row(LIBRARY, "scan", 4, 8, 64, ())], "not known how Intel MPI counts sizes of scan"),
        ([row(LIBRARY, "reduce", 4, 8, 64, (("UCX_TLS", "tcp"),))], "UCX_TLS holds"),
    ],
)
def test_what_ranges_cannot_say_is_refused(rows, reason: str) -> None:
    assert reason in FORMAT.refuse(advised(LIBRARY, rows))


def fast(nbytes: int, lo: float, name: str = "preset 3") -> dict[Cell, dict[str, Gain]]:
    """What a preset gains at a size of all_reduce with four ranks."""
    one_gain = msgspec.structs.replace(gain(nbytes), gain=lo + 0.015, lo=lo, hi=lo + 0.03)
    return {Cell(SERIES, nbytes): {name: one_gain}}


def left(rows: list[Advice], rivals: dict[Cell, dict[str, Gain]], *sizes: int) -> Advised:
    """Advice in which some sizes of all_reduce stay the library's."""
    cells = tuple(Unadvised(Cell(SERIES, size), "too close", True) for size in sizes)
    return msgspec.structs.replace(advised(LIBRARY, rows), unadvised=cells, rivals=rivals)


def test_a_collective_of_which_a_size_has_no_preset_as_fast_is_refused() -> None:
    rows = [one("all_reduce", 4, 64, 4096, 2)]
    assert FORMAT.refuse(left(rows, {})) == ""
    assert "all_reduce of 4 ranks and 8 B no setting is known" in FORMAT.refuse(left(rows, {}, 8))
    slower = fill_sizes(left(rows, fast(8, lo=-0.031), 8))
    assert slower.fills == () and "8 B" in FORMAT.refuse(slower)
    assert list_uncovered(slower) == [Cell(SERIES, 8)]
    other = [one("broadcast", 4, 64, 4096, 2)]
    assert FORMAT.refuse(left(other, {}, 8)) == ""


def test_a_file_is_for_one_number_of_ranks_and_says_so() -> None:
    made = left([one("all_reduce", 4, 64, 4096, 2)], {})
    other = Unadvised(Cell(SERIES._replace(n=2), 8), "too close", True)
    made = msgspec.structs.replace(made, unadvised=(other,))
    assert FORMAT.refuse(made) == "" and list_uncovered(made) == []
    assert "Only for jobs of 4 ranks:" in flatten(FORMAT.write(made))


def test_sizes_in_between_have_presets_that_are_as_fast() -> None:
    rows = [one("all_reduce", 4, 64, 4096, 2), one("all_reduce", 4, 50_000, 80_000, 8)]
    rivals = fast(8, -0.02) | fast(16, -0.02, "preset 2") | fast(16384, -0.029)
    made = fill_sizes(left(rows, rivals, 8, 16, 16384))
    assert FORMAT.refuse(made) == "" and list_uncovered(made) == []
    assert [(each.name, each.low, each.high) for each in made.fills] == [
        ("preset 3", 8, 11),
        ("preset 2", 12, 63),  # as the row beside it, though it is no faster than another one
        ("preset 3", 4097, 49_999),
    ]
    text = FORMAT.write(made)
    assert 'ALLREDUCE="3:0-11;2:12-63;2:64-4096;3:4097-49999;8:50000-2147483647"' in text
    assert (
        "all_reduce, 4 ranks, 8 B to 11 B: preset 3, as fast as the library's own choice: +0.5 %"
        " time [-1.0, +2.0]"
    ) in flatten(text)
    rules = FORMAT.read(text)
    assert [choose(rules, SERIES, size) for size in (8, 16, 64, 16384, 65536)] == [
        f"preset {preset}" for preset in (3, 2, 2, 3, 8)
    ]


def test_a_preset_that_may_not_be_advised_fills_no_size() -> None:
    rows = [one("all_reduce", 4, 64, 4096, 2)]
    cell = Cell(SERIES, 8)
    wrong = {cell: {"preset 3": msgspec.structs.replace(gain(8), doubt="gave wrong data (4 KiB)")}}
    made = fill_sizes(left(rows, wrong, 8))
    assert made.fills == () and list_uncovered(made) == [cell]


def test_between_two_rows_the_lower_one_holds_where_nothing_was_measured() -> None:
    rows = [one("all_reduce", 4, *sizes, 2) for sizes in ((8, 64), (70, 99))]
    assert 'ALLREDUCE="2:0-69;2:70-2147483647"' in FORMAT.write(advised(LIBRARY, rows))


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("I_MPI_ADJUST_BCAST=7\n", 1, "is no export"),
        ('\nexport I_MPI_ADJUST_BCAST="7"\r\n', 2, "carriage return"),
        ('export I_MPI_ADJUST_BCST="7"\n', 1, "no variable that collbench knows"),
        ('export I_MPI_ADJUST_BCAST=""\n', 1, "'' is not a preset"),
        ('export I_MPI_ADJUST_BCAST="seven"\n', 1, "'seven' is not a preset"),
        ('export I_MPI_ADJUST_BCAST="٧"\n', 1, "is not a preset"),
        ('export I_MPI_ADJUST_BCAST="23"\n', 1, "23 is too much for a preset of broadcast"),
        ('export I_MPI_ADJUST_BCAST="7;8"\n', 1, "'7' has no range"),
        ('export I_MPI_ADJUST_BCAST="7:0-9@4-4"\n', 1, "only the last one counts"),
        ('export I_MPI_ADJUST_BCAST="7:0-9"\n', 1, "the last preset holds beyond 9, too"),
        ('export I_MPI_ADJUST_BCAST="7:8-2147483647"\n', 1, "holds from 0 on"),
        ('export I_MPI_ADJUST_BCAST="7:0-9;8:11-2147483647"\n', 1, "holds from 10 on"),
        ('export I_MPI_ADJUST_BCAST="7:0-9;8:9-2147483647"\n', 1, "holds from 10 on"),
        ('export I_MPI_ADJUST_BCAST="7:0-9;8:10-2147483648"\n', 1, "too much for a size"),
        ('export I_MPI_ADJUST_BCAST="7:0-9;8:10-9"\n', 1, "ends before it begins"),
        ('export I_MPI_ADJUST_BCAST="7:0-9K;8:10-99"\n', 1, "'9K' is not a size"),
    ],
)
def test_what_would_be_misread_is_told_with_its_line(text: str, line: int, reason: str) -> None:
    assert_misread(FORMAT, text, line, reason)
