"""oneCCL's settings, and its file of variables: written, and read as the library does."""

from __future__ import annotations

from pathlib import Path

import pytest
from advised import advised, assert_misread, find_differences, row, some_rows
from factories import world
from hypothesis import given, settings

from collbench.core.errors import UsageError
from collbench.features.advise.formats import Rule, choose
from collbench.features.advise.formats.oneccl import FORMATS
from collbench.features.advise.libraries.oneccl import ALGORITHMS, LIBRARY
from collbench.features.advise.types import Series, Setting

(FORMAT,) = FORMATS
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "all_to_all", "reduce", "reduce_scatter")


def one(collective: str, n: int, low: int, high: int, word: str, nodes: int = 1):
    env = ((f"CCL_{ALGORITHMS[collective][0]}", word),)
    return row(LIBRARY, collective, n, low, high, env, backend="oneccl", nodes=nodes)


@given(some_rows(LIBRARY, COLLECTIVES, "oneccl", one_n=True))
@settings(max_examples=40, deadline=None)
def test_what_is_read_back_chooses_the_rows_and_nothing_else(rows) -> None:
    assert find_differences(LIBRARY, FORMAT, rows, knows_ranks=False) == []


def test_sizes_are_those_of_a_ranks_part() -> None:
    text = FORMAT.write(
        advised(
            LIBRARY,
            [
                one("all_reduce", 4, 1024, 4096, "ring"),
                one("all_reduce", 4, 4097, 8192, "double_tree"),
                one("all_gather", 4, 1025, 4099, "flat"),
            ],
        )
    )
    assert 'export CCL_ALLREDUCE="ring:1024-4096;double_tree:4097-8192"' in text.splitlines()
    assert 'export CCL_ALLGATHER="flat:257-1024"' in text.splitlines()
    rules = FORMAT.read(text)
    by_size = [choose(rules, Series("all_gather", 4, 1), size) for size in (1024, 1028, 4096, 4100)]
    assert by_size == ["", "flat", "flat", ""]
    assert choose(rules, Series("all_gather", 2, 1), 2048) == "flat"  # a block of 1024 bytes


def test_a_row_between_two_blocks_is_no_range() -> None:
    rows = [one("all_gather", 2, 8, 368, "naive"), one("all_gather", 2, 369, 369, "flat")]
    assert 'ALLGATHER="naive:4-184"' in FORMAT.write(advised(LIBRARY, rows))
    assert FORMAT.read(FORMAT.write(advised(LIBRARY, rows[1:]))) == []


def test_the_variables_of_a_file_are_what_uses_it(tmp_path: Path) -> None:
    path = tmp_path / "oneccl.sh"
    path.write_text(FORMAT.write(advised(LIBRARY, [one("all_reduce", 4, 8, 64, "ring")])))
    assert FORMAT.use(path) == {"CCL_ALLREDUCE": "ring:8-64"}
    path.write_text(FORMAT.write(advised(LIBRARY, [])))
    assert FORMAT.use(path) == {} and FORMAT.read(path.read_text()) == []
    with pytest.raises(UsageError):
        FORMAT.use(tmp_path / "absent.sh")
    path.write_text('export LD_PRELOAD="/x"\n')
    with pytest.raises(UsageError, match="LD_PRELOAD"):
        FORMAT.use(path)


def test_only_what_bears_on_a_collective_stays() -> None:
    env = (("CCL_ALLREDUCE", "ring"), ("CCL_ALLGATHER", "flat"), ("CCL_WORKER_COUNT", "2"))
    assert LIBRARY.reduce("all_reduce", env) == (
        ("CCL_ALLREDUCE", "ring"),
        ("CCL_WORKER_COUNT", "2"),
    )
    assert LIBRARY.reduce("all_gather", env) == (
        ("CCL_ALLGATHER", "flat"),
        ("CCL_WORKER_COUNT", "2"),
    )
    assert LIBRARY.reduce("reduce", (("CCL_REDUCE_SCATTER", "ring"), ("CCL_REDUCE", ""))) == ()
    for collective in COLLECTIVES:
        for n in (2, 4):
            listed = LIBRARY.list_settings(collective, n, "")
            assert 2 <= len(listed) < 10
            assert [LIBRARY.reduce(collective, each) for each in listed] == list(listed)
    setting = Setting(backend="oneccl", env=env[:1])
    assert LIBRARY.name_setting("all_reduce", setting) == "ring"


def test_it_is_told_by_its_backend() -> None:
    assert LIBRARY.is_of(world(backend="oneccl", library="oneCCL 2021.16.2 CCL_ATL_SHM=1"))
    assert not LIBRARY.is_of(world(backend="mpi", library="MPICH 5.0.2"))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([one("all_reduce", n, 8, 64, "ring") for n in (2, 4)], "any number of ranks"),
        ([one("all_reduce", 4, 8, 64, "ring", nodes) for nodes in (1, 2)], "hosts"),
        ([one("all_reduce", 4, 8, 64, "direct")], "no algorithm direct"),
        ([one("all_to_allv", 4, 8, 64, "naive")], "no size of all_to_allv"),
        (
            [row(LIBRARY, "all_reduce", 4, 8, 64, (("CCL_WORKER_COUNT", "2"),), backend="oneccl")],
            "CCL_WORKER_COUNT holds for all sizes",
        ),
        ([row(LIBRARY, "all_reduce", 4, 8, 64, ())], "backend mpi"),
    ],
)
def test_what_ranges_cannot_say_is_refused(rows, reason: str) -> None:
    assert reason in FORMAT.refuse(advised(LIBRARY, rows))


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("CCL_ALLREDUCE=ring\n", 1, "is no export"),
        ('# x\nexport CCL_ALLREDUCE="ring"\r\n', 2, "carriage return"),
        ('export CCL_ALLREDUCE="rin"\n', 1, "'rin' is no algorithm for all_reduce"),
        ('export CCL_ALLREDUCE="direct"\n', 1, "is no algorithm"),
        ('export CCL_ALLREDUCE="größe"\n', 1, "is no algorithm"),
        ('export CCL_ALLREDUCE=""\n', 1, "'' is no algorithm"),
        ('export CCL_ALREDUCE="ring"\n', 1, "CCL_ALREDUCE is no collective"),
        ('export CCL_ALLREDUCE="ring:8"\n', 1, "'8' is no range"),
        ('export CCL_ALLREDUCE="ring:x-9"\n', 1, "'x' is not a size"),
        ('export CCL_ALLREDUCE="ring:8-9K"\n', 1, "'9K' is not a size"),
        ('export CCL_ALLREDUCE="ring:-1-9"\n', 1, "'' is not a size"),
        ('export CCL_ALLREDUCE="ring:0-99999999999999999999"\n', 1, "too much for a size"),
        ('export CCL_ALLREDUCE="ring:9-8"\n', 1, "ends before it begins"),
        ('export CCL_ALLREDUCE="ring:0-8;2d:8-9"\n', 1, "overlaps"),
        ('export CCL_ALLREDUCE="ring:10-12;2d:8-9"\n', 1, "behind larger sizes"),
        ('export CCL_ALLREDUCE="ring:0-max;2d:8-9"\n', 1, "overlaps"),
        ('export CCL_ALLREDUCE="ring:0-8;2d"\n', 1, "2d has no sizes"),
        ('export CCL_REDUCE="ring"\nexport CCL_REDUCE="tree"\n', 2, "stands there twice"),
    ],
)
def test_what_would_be_misread_is_told_with_its_line(text: str, line: int, reason: str) -> None:
    assert_misread(FORMAT, text, line, reason)


def test_a_range_may_go_to_the_end() -> None:
    assert FORMAT.read('export CCL_REDUCE="tree:9-max"\n') == [
        Rule("reduce", None, None, 9, None, "tree")
    ]
