"""Intel MPI's presets, and their file of variables: written, and read as the library does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from advised import advised, row
from factories import world
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.features.advise.formats import choose
from collbench.features.advise.formats.intelmpi import FORMATS
from collbench.features.advise.libraries.intelmpi import FUNCTIONS, LIBRARY
from collbench.features.advise.types import Advice, Cell, Series, Setting, Unadvised

(FORMAT,) = FORMATS


def one(collective: str, n: int, low: int, high: int, preset: object, nodes: int = 1) -> Advice:
    env = ((f"I_MPI_ADJUST_{FUNCTIONS[collective].word}", str(preset)),)
    return row(LIBRARY, collective, n, low, high, env, nodes=nodes)


@st.composite
def touching_rows(draw) -> list[Advice]:
    """Rows of some collectives that cover all from the first to the last size."""
    rows = []
    for name in draw(st.lists(st.sampled_from(list(FUNCTIONS)), unique=True)):
        n = draw(st.sampled_from((2, 3, 4)))
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


@given(st.text('exportI_MPADJUSTBC="0123:;-@\n#', max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        FORMAT.read(text)
    except UsageError as e:
        assert e.message.startswith("line ")


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
        ([one("all_reduce", n, 8, 64, 2) for n in (2, 4)], "several numbers of ranks"),
        ([one("all_reduce", 4, 8, 64, 2, nodes) for nodes in (1, 2)], "hosts"),
        ([one("all_reduce", 4, 8, 64, 99)], "no preset 99 for all_reduce"),
        ([one("all_reduce", 4, 8, 64, "2:0-9")], "holds for all sizes"),
        ([one("all_reduce", 4, *sizes, 2) for sizes in ((8, 64), (70, 99))], "leave a gap"),
        ([row(LIBRARY, "scan", 4, 8, 64, ())], "not known how Intel MPI counts sizes of scan"),
        ([row(LIBRARY, "reduce", 4, 8, 64, (("UCX_TLS", "tcp"),))], "UCX_TLS holds"),
    ],
)
def test_what_ranges_cannot_say_is_refused(rows, reason: str) -> None:
    assert reason in FORMAT.refuse(advised(LIBRARY, rows))


def test_a_collective_of_which_a_size_stays_the_librarys_is_refused() -> None:
    made = advised(LIBRARY, [one("all_reduce", 4, 64, 4096, 2)])
    assert FORMAT.refuse(made) == ""
    for collective, refused in (("all_reduce", True), ("broadcast", False)):
        cell = Cell(Series(collective, 4, 1), 8)
        left = msgspec.structs.replace(made, unadvised=(Unadvised(cell, "too close", True),))
        reason = FORMAT.refuse(left)
        assert ("all_reduce has no row for 4 ranks and 8 B" in reason) == refused


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
    with pytest.raises(UsageError) as error:
        FORMAT.read(text)
    assert error.value.message.startswith(f"line {line}: ")
    assert reason in error.value.message
