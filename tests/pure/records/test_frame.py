"""``collbench.frame`` as a notebook meets it."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from factories import case, record, run, saved, stored, world

import collbench
from collbench.core.errors import UsageError
from collbench.records.columns import COLUMNS
from collbench.records.types import End, RunFile

NAMES = [column.name for column in COLUMNS]


@pytest.fixture
def sweep(home: Path) -> RunFile:
    """A saved run of two implementations over three sizes; one case failed in the end."""
    made = {
        own: record(own, own.nbytes * factor, world=0)
        for factor, algorithm in ((1.0, "native"), (0.5, "ring"))
        for own in (case(size, algorithm=algorithm) for size in (1 << 10, 1 << 20, 1 << 24))
    }
    broken = case(1 << 25)
    made[broken] = record(broken, 1.0, status="failed", note="rank 1 died", times_ns=[], world=0)
    file = stored(made, name="20260101-000000000-sweep-ab12", tag="nightly")
    saved(file, home)
    return file


def test_the_last_run_is_queried_and_grouped(sweep: RunFile) -> None:
    best = collbench.frame("@last").query("size >= 1e6").groupby("implementation").busbw.max()
    factor = 2 * 3 / 4  # of an all_reduce by 4 ranks
    assert best.to_dict() == {"gloo": pytest.approx(factor), "ring@gloo": pytest.approx(2 * factor)}


@pytest.mark.parametrize("names", [(), ("@last",), ("nightly",), ("20260101",)])
def test_a_run_is_named_as_everywhere(sweep: RunFile, names: tuple[str, ...]) -> None:
    table = collbench.frame(*names)
    assert len(table) == 7
    assert table.equals(collbench.frame(sweep))


def test_paths_and_several_runs_stand_one_below_the_other(sweep: RunFile, tmp_path: Path) -> None:
    path = saved(stored({case(): 1e6}, name="other"), tmp_path / "elsewhere")
    table = collbench.frame(path, "@last", sweep)
    assert table["run"].value_counts().to_dict() == {sweep.run.id: 14, "other": 1}
    assert list(table.index) == list(range(15))


def test_a_name_that_no_run_has_is_said(sweep: RunFile) -> None:
    with pytest.raises(UsageError, match="no run called 'elsewhere'") as raised:
        collbench.frame("elsewhere")
    assert [note[:18] for note in raised.value.__notes__] == ["hint: give a path,"]


def test_a_row_without_a_time_is_kept_and_says_why(sweep: RunFile) -> None:
    failed = collbench.frame(sweep).query("unfit != ''")
    assert failed[["status", "unfit", "note", "nbytes"]].to_numpy().tolist() == [
        ["failed", "failed", "rank 1 died", 1 << 25]
    ]
    assert math.isnan(failed["median"].item())
    assert failed["cycles_left_out"].item() == 1


def test_cycles_are_one_row_and_those_that_do_not_count_are_numbered() -> None:
    cycles = [
        record(case(cycle=0), 1e6, world=0),
        record(case(cycle=1), 9e6, world=0, invalid={"late start": 9}),
        record(case(cycle=2), 3e6, world=0),
    ]
    file = RunFile(
        run=run("a"), worlds=[world()], records=cycles, end=End(exit=0, ended=""), path=Path("a")
    )
    table = collbench.frame(file)
    assert table[["cycles", "cycles_left_out", "samples"]].to_numpy().tolist() == [[3, 1, 14]]
    assert table["median"].item() == pytest.approx((1.012e6 + 2.964e6) / 2)
    assert table["max"].item() == pytest.approx(3.036e6)
    assert table["mean"].item() == pytest.approx(2e6)
    assert (table["unfit"].item(), table["flags"].item()) == ("", "invalid!")


def test_no_run_gives_the_columns_alone() -> None:
    empty = stored({})
    assert list(collbench.frame(empty).columns) == NAMES
    assert collbench.frame(empty).empty


def test_every_column_is_documented_once() -> None:
    assert len(set(NAMES)) == len(NAMES)
    told = (collbench.frame.__doc__ or "").split("Columns:")[1]
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    assert lines == [f"{column.name}: {column.description}" for column in COLUMNS]
    assert all(column.meaning for column in COLUMNS)


def test_types_do_not_depend_on_what_is_missing(sweep: RunFile) -> None:
    """So that frames of any runs can be put together, and numbers compared."""
    alone = msgspec.structs.replace(sweep, records=sweep.records[-1:])
    assert collbench.frame(alone).dtypes.equals(collbench.frame(sweep).dtypes)
    kinds = {column.name: column.kind for column in COLUMNS}
    numbers = collbench.frame(sweep).select_dtypes("number").columns
    assert set(numbers) == {name for name, kind in kinds.items() if kind in ("whole", "number")}


def test_importing_collbench_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'msgspec', 'pandas', 'torch', 'scipy'}"
    code = f"import sys, collbench; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_rows_are_sorted_by_implementation_and_size_with_the_order_of_measuring() -> None:
    made = {own: record(own, 1.0) for own in (case(64), case(8), case(1024))}
    frame = collbench.frame(stored(made))
    assert list(frame["nbytes"]) == [8, 64, 1024] and list(frame["order"]) == [1, 0, 2]
