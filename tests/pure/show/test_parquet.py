"""Rows as Parquet: the same table as collbench.frame, with types, units and meanings."""

from __future__ import annotations

import importlib.util
import io

import pandas as pd
import pytest
from factories import case, make_file, night, record

from collbench.core.errors import CannotRun
from collbench.records.columns import COLUMNS
from collbench.records.rows import make_frame
from collbench.show import parquet


def test_without_pyarrow_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CannotRun) as raised:
        parquet.find_pyarrow()
    assert raised.value.hint == "pip install 'collbench[parquet]'"


def test_a_table_comes_back_as_it_is() -> None:
    file = night(change=lambda one: one)
    file = make_file(
        [*file.records, record(case(32), status="failed", note="why"), record(case(8), 0.0)],
        file.worlds,
    )
    frame = make_frame([file])
    back = pd.read_parquet(io.BytesIO(parquet.render_parquet([file])))
    assert list(back.columns) == [column.name for column in COLUMNS]
    pd.testing.assert_frame_equal(back, frame, check_dtype=False)
    numbers = [column.name for column in COLUMNS if column.kind in ("whole", "number", "yes or no")]
    assert (back.dtypes[numbers] == frame.dtypes[numbers]).all()


def test_what_is_missing_is_null_and_not_0() -> None:
    from pyarrow import parquet as pq

    data = parquet.render_parquet([make_file([record(case(64), status="failed")])])
    (row,) = pq.read_table(io.BytesIO(data)).to_pylist()
    assert row["median"] is None and row["busbw"] is None and row["late_rank"] is None
    assert row["status"] == "failed"


def test_the_file_says_what_its_columns_are() -> None:
    from pyarrow import parquet as pq

    data = parquet.render_parquet([make_file([record(case(64))], name="mine")])
    schema = pq.read_schema(io.BytesIO(data))
    assert schema.metadata[b"collbench.schema"] == b"1"
    assert schema.metadata[b"collbench.runs"] == b"mine"
    assert schema.field("median").metadata[b"unit"] == b"ns"
    types = {name: str(schema.field(name).type) for name in ("median", "n", "in_place", "backend")}
    assert types == {"median": "double", "n": "int64", "in_place": "bool", "backend": "string"}
    assert parquet.MARK.encode() in data[-(1 << 20) :]


def test_a_run_of_nothing_is_an_empty_table() -> None:
    back = pd.read_parquet(io.BytesIO(parquet.render_parquet([make_file([])])))
    assert back.shape == (0, len(COLUMNS))
