"""Every reference algorithm on real ranks, over messages and over shared memory: verified element
by element."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from marks import long
from paths import before
from warm import Warm

from collbench.core import algorithms
from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS
from collbench.suite.case import Case
from collbench.suite.sweep import Axes, expand_axes

EXECUTORS = ("shm", "gloo")
PLUGINS = Path(__file__).parent / "plugins"
QUICK = {"iters": 1, "max_seconds": 0.0, "min_seconds": 0.0}


def cases(collective: str, **axes: object) -> list[Case]:
    names = tuple(row.name for row in algorithms.list_algorithms(collective))
    return expand_axes(Axes(collectives=(collective,), algorithms=names, **axes))[0]  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "n", "elements"),
    [
        *(("shm", 4, "few"), ("gloo", 4, "odd"), ("gloo", 1, "odd"), long("shm", 1, "odd")),
        *(long("shm", 4, "odd"), long("gloo", 4, "few"), long("shm", 5, "few")),
    ],
)
def test_every_algorithm_is_right_for_odd_counts_and_fewer_elements_than_ranks(
    measure, backend: str, n: int, elements: str
) -> None:
    """The odd ones in place, where a collective can be; the few from one buffer to another."""
    swept: list[Case] = []
    for collective, row in COLLECTIVES.items():
        few, odd = 4 * n if row.total else 8, 4 * 1003 * n
        size, place = (few, False) if elements == "few" else (odd, bool(row.in_place))
        axes = {"sizes": (size,), "in_place": (place,), "roots": (n - 1,)}
        swept += cases(collective, backends=(backend,), ranks=(n,), **axes)
    found = measure(swept, **QUICK)
    for record in found:
        assert (record.status, record.note) == ("ok", record.note), record.case.key
        assert record.wrong == 0 if record.case.size else record.times_ns
    ran = {(record.case.collective, record.case.algorithm) for record in found}
    wanted = {
        key for key in algorithms.list_catalogue() if not algorithms.find_variant(*key).refuse(n)
    }
    assert ran == wanted


@pytest.mark.slow
@pytest.mark.parametrize("backend", EXECUTORS)
def test_every_algorithm_is_right_for_narrow_and_wide_elements(measure, backend: str) -> None:
    """On three ranks; and of one algorithm that adds, every datatype."""
    n, swept = 3, []
    for collective in sorted(set(COLLECTIVES) - {"barrier"}):
        size = 8 * 11 * (n if COLLECTIVES[collective].total else 1)
        axes = {"backends": (backend,), "ranks": (n,), "sizes": (size,), "roots": (n - 1,)}
        axes |= {"in_place": (False,)}
        swept += cases(collective, dtypes=("int8", "double"), **axes)
        if collective == "all_reduce":
            of_all = cases(collective, dtypes=tuple(DTYPES), **axes)
            swept += [each for each in of_all if each.algorithm == "ring"]
    found = measure(list(dict.fromkeys(swept)), **QUICK)
    assert [(r.case.key, r.note) for r in found if (r.status, r.wrong) != ("ok", 0)] == []
    assert {r.case.dtype for r in found} == set(DTYPES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "algorithm"),
    [("shm", "one_shot"), ("gloo", "ring"), long("shm", "ring"), long("gloo", "one_shot")],
)
def test_every_reduction_is_right_for_every_datatype_or_refused(
    measure, backend: str, algorithm: str
) -> None:
    swept = expand_axes(
        Axes(
            collectives=("all_reduce", "scan"),
            algorithms=(algorithm, "chain"),
            backends=(backend,),
            ranks=(2,),
            sizes=(8 * 33,),
            dtypes=tuple(DTYPES),
            ops=tuple(OPS),
            in_place=(False,),
        )
    )[0]
    for record in measure(swept, **QUICK):
        if record.case.op == "premul_sum":
            assert record.status == "skipped"
            assert "NCCL" in record.note
        else:
            assert (record.status, record.wrong) == ("ok", 0), (record.case.key, record.note)


LARGE = {
    "all_reduce": ("ring", "two_shot"),
    "reduce_scatter": ("pairwise",),
    "all_gather": ("bruck",),
    "all_to_all": ("pairwise",),
    "broadcast": ("chain",),
    "scan": ("recursive_doubling",),
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", EXECUTORS)
def test_large_buffers_in_slices_and_parts_are_right(measure, backend: str) -> None:
    """Over 8 MiB with a remainder: shm goes through its program in slices, messages travel in
    parts."""
    axes = {"backends": (backend,), "ranks": (3,), "sizes": ((9 << 20) + 12,)}
    swept = [
        case
        for one, names in LARGE.items()
        for case in cases(one, in_place=(one == "all_reduce",), **axes)
        if case.algorithm in names
    ]
    assert len(swept) == sum(map(len, LARGE.values()))
    for record in measure(swept, **QUICK):
        assert (record.status, record.wrong) == ("ok", 0), (record.case.key, record.note)


@pytest.mark.parametrize(
    ("nbytes", "splits"),
    [
        (3000, ("uniform", "spread:1", "zipf:1.2")),
        pytest.param(24 << 20, ("zipf:1.2",), marks=pytest.mark.slow),
    ],
)
def test_uneven_blocks_arrive_whole(measure, nbytes: int, splits: tuple[str, ...]) -> None:
    for backend in EXECUTORS:
        axes = {"backends": (backend,), "ranks": (3,), "sizes": (nbytes,), "splits": splits}
        for record in measure(cases("all_to_allv", **axes), **QUICK):
            assert (record.status, record.wrong) == ("ok", 0), (record.case.key, record.note)


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra", [{"agg_iters": 3, "unalign": 3}, {"blocking": 1, "cpu_time": True}]
)
def test_options_keep_data_right(measure, extra: dict[str, object]) -> None:
    for backend in EXECUTORS:
        swept = expand_axes(
            Axes(
                collectives=("all_reduce",),
                algorithms=("ring", "one_shot"),
                backends=(backend,),
                ranks=(2,),
                sizes=(4096,),
                modes=("isolated", "streaming", "host"),
                in_place=(False,),
            )
        )[0]
        for record in measure(swept, iters=4, batch=4, max_seconds=0.2, rotation=3, **extra):
            assert (record.status, record.wrong) == ("ok", 0), (record.case.key, record.note)


@pytest.mark.slow
def test_an_algorithm_asked_for_twice_runs_once_and_what_never_runs_is_said_before(cli) -> None:
    options = (
        "-g",
        "2",
        "--sizes",
        "1K",
        "--place",
        "out",
        "-n",
        "2",
        "-w",
        "0",
        "--no-save",
        "--format",
        "nccl",
    )
    algorithms = ("--backend", "shm", "--algo", "native,tree,reduce_broadcast")
    done = cli("all_reduce", *algorithms, *options)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert text.count("Collective test starting") == 1
    assert len([line for line in text.splitlines() if line.split()[:2] == ["1024", "256"]]) == 1
    assert "# skipped" in text and "name an algorithm" in text


def test_parameters_left_to_the_algorithm_are_recorded(measure) -> None:
    swept = expand_axes(
        Axes(
            collectives=("broadcast",),
            algorithms=("chain", "chain:segments=5", "tree"),
            backends=("shm",),
            ranks=(3,),
            sizes=(1 << 20,),
            in_place=(True,),
        )
    )[0]
    notes = {record.case.algorithm: record.note for record in measure(swept)}
    assert set(notes) == {"chain", "chain:segments=5", "binomial"}
    assert notes["chain"].startswith("ran chain:segments=")
    assert notes["chain:segments=5"] == notes["binomial"] == ""


def test_shared_memory_has_no_name_to_be_left_behind(measure) -> None:
    # of MPI, Ray and Python, in other tests
    others = re.compile("vader|sm_segment|mpich|ray|plasma|pym-|sem\\.")
    before = set(os.listdir("/dev/shm"))  # noqa: PTH208
    (case, *_) = cases("all_reduce", backends=("shm",), ranks=(2,), sizes=(1 << 20,))
    assert [record.status for record in measure([case], **QUICK)] == ["ok"]
    assert not [name for name in set(os.listdir("/dev/shm")) - before if not others.match(name)]  # noqa: PTH208


@pytest.fixture
def collbench(cli: Warm) -> Callable[..., str]:
    def run(*words: str) -> str:
        done = cli(*words, PYTHONPATH=before(PLUGINS))
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_plugins_leave_the_checkout_under_test_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "collbench.py").write_text("print('the one under test')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", "import collbench"],
        cwd="/",
        env={**os.environ, "PYTHONPATH": before(PLUGINS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the one under test" in done.stdout + done.stderr


@pytest.mark.slow
def test_an_algorithm_added_in_one_file_is_known_everywhere(collbench) -> None:
    """plugins/algorithms/planted.py is all there is of it."""
    assert "line" in collbench("list")
    assert "line" in collbench("prove", "all_reduce", "line", "-n", "1,2,5")
    assert "16" in collbench("show", "all_reduce", "line", "-n", "4")
    assert "line" in collbench(
        "predict", "all_reduce", "-n", "4", "-b", "1K", "-e", "1K", "--algo", "line"
    )
    options = (
        "-g",
        "3",
        "--sizes",
        "1K",
        "--place",
        "out",
        "-n",
        "2",
        "-w",
        "0",
        "--no-save",
        "--format",
        "csv",
    )
    rows = csv.DictReader(
        collbench(
            "all_reduce", "--algo", "line", "--backend", "gloo,shm,model", *options
        ).splitlines()
    )
    assert {row["implementation"]: (row["status"], row["wrong"]) for row in rows} == {
        "line@gloo": ("ok", "0"),
        "line@shm": ("ok", "0"),
        "line@model": ("predicted", ""),
    }
