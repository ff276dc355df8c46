"""Ping-pongs as suites have them: tables [[pingpong]] with the bytes of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from collbench.core.errors import UsageError
from collbench.features.pingpong import KIND

Bytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nbytes: Bytes


class PingPong(msgspec.Struct, frozen=True, tag_field="kind", tag=KIND):
    nbytes: Bytes

    @property
    def title(self) -> str:
        return f"{KIND} of {self.nbytes} B"

    @property
    def world(self) -> int:
        return 2


class _PingPongs:
    """A suite.measurable.Measurable."""

    table = KIND
    request = Request
    subject = PingPong

    def parse(self, table: Mapping[str, Any], where: str, path: Path) -> Request:
        try:
            return msgspec.convert(table, Request)
        except msgspec.ValidationError as e:
            raise UsageError(f"{where}: {e}", "nbytes = 1024, for example") from e

    def resolve(
        self, request: Request, ranks: int, told: bool, backends: Sequence[str]
    ) -> PingPong:
        if told and ranks != 2:
            raise UsageError(f"a ping-pong has 2 ranks, not {ranks}", "-g 2")
        return PingPong(request.nbytes)

    def measure(self, subject: PingPong) -> tuple[str, int]:
        return KIND, subject.nbytes


PINGPONGS = _PingPongs()
