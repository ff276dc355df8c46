"""Orders as suites have them: tables [[order]], each of one collective over sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from collbench.core.collectives import COLLECTIVES, find_collective
from collbench.core.dtypes import DTYPES, find_dtype, find_reduction
from collbench.core.errors import UsageError, first_line
from collbench.core.sums.probes import refuse_order
from collbench.core.text import suggest_name
from collbench.features.order.request import MAX_ORDER_RANKS, MAX_SIZES, SumOrder
from collbench.features.order.rows import REDUCING, name_row
from collbench.suite.grammar import parse_size


class OrderRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An order that is asked for, before it is known on how many ranks."""

    collective: str
    sizes: tuple[int, ...]
    dtype: str = "float"
    op: str = "sum"
    root: int = 0
    places: tuple[str, ...] = ("out", "in")
    shifts: tuple[int, ...] = (0, 1)
    repeats: int = 200
    proof: int = 8
    strategy: str = "auto"
    bisect: bool = True
    budget: float = 0.0


def make_request(collective: str, sizes: Sequence[int], **values: Any) -> OrderRequest:
    """The request of one collective's order. Raises UsageError for what has none."""
    row = find_collective(collective)
    if not row.reduces:
        raise UsageError(
            f"{row.name} does not reduce, so it has no order", f"one of {', '.join(REDUCING)}"
        )
    dtype = find_dtype(values.pop("dtype", "float"))
    op = find_reduction(values.pop("op", "sum"))
    if reason := refuse_order(op, dtype):
        raise UsageError(reason, "-d float -o sum has an order")
    wanted = sorted({size // dtype.size * dtype.size for size in sizes} - {0})
    if not wanted:
        raise UsageError(
            f"the sizes hold no element of {dtype.name}", f"-b {dtype.size} is the smallest"
        )
    if len(wanted) > MAX_SIZES:
        raise UsageError(
            f"{len(wanted)} sizes are more than {MAX_SIZES}", "a larger factor (-f) takes fewer"
        )
    return OrderRequest(collective=row.name, sizes=tuple(wanted), dtype=dtype.name, op=op, **values)


class _Orders:
    """A suite.measurable.Measurable."""

    table = "order"
    request = OrderRequest
    subject = SumOrder

    def parse(self, table: Mapping[str, Any], where: str, path: Path) -> OrderRequest:
        keys = OrderRequest.__struct_fields__
        try:
            if odd := next((key for key in table if key not in keys), None):
                raise UsageError(
                    f"{odd}: there is no such key",
                    suggest_name(odd, keys) or f"use {', '.join(keys)}",
                )
            values = dict(table)
            if "collective" not in values or not values.get("sizes"):
                raise UsageError(
                    "it needs collective and sizes",
                    'collective = "all_reduce" and sizes = ["4", "64K"], for example',
                )
            for key in ("collective", "dtype", "op"):
                if not isinstance(values.get(key, ""), str):
                    raise UsageError(
                        f"{key} is {str(values[key])[:40]}, not one name",
                        "a table [[order]] has one of each; write a table for each",
                    )
            given = values["sizes"] if isinstance(values["sizes"], list) else [values["sizes"]]
            sizes = [parse_size(str(size), "sizes") for size in given]
            rest = {key: values[key] for key in values if key not in ("collective", "sizes")}
            request = make_request(values["collective"], sizes, **rest)
            return msgspec.convert(msgspec.to_builtins(request), OrderRequest)
        except msgspec.ValidationError as e:
            raise UsageError(
                f"{where}: {first_line(e)}", "collbench help suites has all keys"
            ) from e
        except UsageError as e:
            raise UsageError(f"{where}: {e.message}", e.hint) from e

    def resolve(
        self, request: OrderRequest, ranks: int, is_given: bool, backends: Sequence[str]
    ) -> SumOrder:
        if ranks > MAX_ORDER_RANKS:
            raise UsageError(
                f"{ranks} ranks: an order is found among at most {MAX_ORDER_RANKS}",
                f"-g {MAX_ORDER_RANKS} or fewer",
            )
        values = msgspec.to_builtins(request)
        values["root"] = request.root if COLLECTIVES[request.collective].rooted else -1
        if values["root"] >= ranks:
            raise UsageError(
                f"root {request.root} does not exist among {ranks} ranks",
                f"choose one of 0 to {ranks - 1}",
            )
        values["sizes"] = _fit_sizes(request, ranks)
        try:
            return msgspec.convert(values | {"world": ranks, "kind": "order"}, SumOrder)
        except msgspec.ValidationError as e:
            raise UsageError(
                f"order: {first_line(e)}", "collbench help suites has all keys and ranges"
            ) from e

    def measure(self, subject: SumOrder) -> tuple[str, int]:
        return name_row(subject.collective), subject.sizes[-1]


def _fit_sizes(request: OrderRequest, ranks: int) -> list[int]:
    """The sizes at which each rank has an element of its own, where the result is divided among
    ranks. Raises UsageError where none is left."""
    least = DTYPES[request.dtype].size
    least *= ranks if COLLECTIVES[request.collective].total else 1
    sizes = [size for size in request.sizes if size >= least]
    if not sizes:
        raise UsageError(
            f"the sizes hold no element of {request.dtype} for each of {ranks} ranks",
            f"{request.collective} takes {least} B or more",
        )
    return sizes


ORDERS = _Orders()
