"""The one table of runs as Parquet: the columns of collbench.frame, with their types, units and
meanings."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from collbench.core.errors import CannotRun
from collbench.core.version import __version__
from collbench.records.columns import COLUMNS, Column, Kind
from collbench.records.rows import make_frame
from collbench.records.types import RunFile

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-not-found,import-untyped,unused-ignore]

MARK = "collbench.schema"  # a key of the file's metadata, by which it is known as ours

SCHEMA = "1"  # of the columns


def find_pyarrow() -> None:
    """Raises CannotRun where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise CannotRun("Parquet needs pyarrow", "pip install 'collbench[parquet]'")


def render_parquet(files: Sequence[RunFile]) -> bytes:
    """The rows of runs as a Parquet file. Times are in nanoseconds, as in collbench.frame; what a
    row has not is null. Needs pyarrow."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(
        [
            pa.field(column.name, _arrow_type(column.kind), metadata=_describe(column))
            for column in COLUMNS
        ]
    )
    table = pa.Table.from_pandas(make_frame(files), schema=schema, preserve_index=False)
    about = {MARK: SCHEMA, "collbench.version": __version__}
    about["collbench.runs"] = " ".join(dict.fromkeys(file.run.id for file in files))
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **about})
    out = io.BytesIO()
    parquet.write_table(table, out, compression="zstd")
    return out.getvalue()


def _describe(column: Column) -> dict[str, str]:
    unit = {"unit": column.unit} if column.unit else {}
    return {"meaning": column.meaning, **unit}


def _arrow_type(kind: Kind) -> pyarrow.DataType:
    import pyarrow as pa

    types: dict[Kind, pyarrow.DataType] = {
        "text": pa.string(),
        "whole": pa.int64(),
        "number": pa.float64(),
        "yes or no": pa.bool_(),
        "values": pa.list_(pa.float64()),
    }
    return types[kind]
