"""Lives and losses as suites have them: tables [[lifecycle]] and [[lifecycle_loss]]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from collbench.core.errors import UsageError, first_line
from collbench.core.text import suggest_name
from collbench.features.lifecycle import KIND, LOSS_KIND
from collbench.features.lifecycle.request import (
    DEFAULT_CALLS,
    DEFAULT_LIMIT,
    MAX_KILL_SECONDS,
    NOTIFIED,
    TOLD,
    Bytes,
    CalledCollective,
    Count,
    Life,
    Loss,
    Seconds,
    Way,
)
from collbench.features.lifecycle.rows import INIT, KNOWN
from collbench.suite.grammar import parse_size


class LifeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A life that is asked for, before it is known on how many ranks."""

    groups: Count = 1
    collective: CalledCollective = "all_reduce"
    nbytes: Bytes = msgspec.field(name="size", default=1 << 20)
    calls: Count = DEFAULT_CALLS
    limit: Seconds = DEFAULT_LIMIT


class LossRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A loss that is asked for, before it is known on how many ranks."""

    victim: int = msgspec.field(name="rank", default=0)
    at: Annotated[float, msgspec.Meta(ge=-1, le=MAX_KILL_SECONDS)] = -1.0
    way: Way = "rebuild"
    nbytes: Bytes = msgspec.field(name="size", default=1 << 20)
    limit: Seconds = DEFAULT_LIMIT


def _read_table(table: Mapping[str, Any], kind: type[msgspec.Struct], where: str) -> Any:
    """A suite's table as a request. Raises UsageError that begins with ``where``."""
    keys = [field.encode_name for field in msgspec.structs.fields(kind)]
    if odd := next((key for key in table if key not in keys), None):
        raise UsageError(
            f"{where}: {odd}: there is no such key",
            suggest_name(odd, keys) or f"use {', '.join(keys)}",
        )
    values = _record_way(table)
    try:
        if isinstance(values.get("size"), str):
            values["size"] = parse_size(values["size"], "size")
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as e:
        raise UsageError(f"{where}: {first_line(e)}", "collbench help suites has all keys") from e
    except UsageError as e:
        raise UsageError(f"{where}: {e.message}", e.hint) from e


def make_life(**values: Any) -> LifeRequest:
    """The request of a life. Raises UsageError for values out of bounds."""
    return _convert(values, LifeRequest)  # type: ignore[no-any-return]


def make_loss(**values: Any) -> LossRequest:
    """The request of a loss. Raises UsageError for values out of bounds."""
    return _convert(values, LossRequest)  # type: ignore[no-any-return]


def _record_way(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the way as files have it."""
    return {**values, **({"way": TOLD} if values.get("way") == NOTIFIED else {})}


def _convert(values: Mapping[str, Any], kind: type[msgspec.Struct]) -> Any:
    names = {"nbytes": "size", "victim": "rank"}
    named = _record_way({names.get(name, name): value for name, value in values.items()})
    try:
        return msgspec.convert(named, kind)
    except msgspec.ValidationError as e:
        raise UsageError(first_line(e), "collbench lifecycle --help has the options") from e


class _Lives:
    """A suite.measurable.Measurable."""

    table = KIND
    request = LifeRequest
    subject = Life

    def parse(self, table: Mapping[str, Any], where: str, path: Path) -> LifeRequest:
        request: LifeRequest = _read_table(table, LifeRequest, where)
        return request

    def resolve(
        self, request: LifeRequest, ranks: int, is_given: bool, backends: Sequence[str]
    ) -> Life:
        return Life(world=ranks, **msgspec.structs.asdict(request))

    def measure(self, subject: Life) -> tuple[str, int]:
        return INIT, subject.nbytes


class _Losses:
    """A suite.measurable.Measurable."""

    table = LOSS_KIND
    request = LossRequest
    subject = Loss

    def parse(self, table: Mapping[str, Any], where: str, path: Path) -> LossRequest:
        request: LossRequest = _read_table(table, LossRequest, where)
        return request

    def resolve(
        self, request: LossRequest, ranks: int, is_given: bool, backends: Sequence[str]
    ) -> Loss:
        if not 0 <= request.victim < ranks:
            raise UsageError(
                f"there is no rank {request.victim} among {ranks}",
                f"choose one of 0 to {ranks - 1}",
            )
        if ranks < 2:
            raise UsageError("one rank leaves none that could know of its loss", "-g 2 or more")
        return Loss(world=ranks, **msgspec.structs.asdict(request))

    def measure(self, subject: Loss) -> tuple[str, int]:
        return KNOWN, subject.nbytes


LIVES, LOSSES = _Lives(), _Losses()
