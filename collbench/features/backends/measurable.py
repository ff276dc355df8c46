"""The contract of a backend as suites have it: a table [[contract]], whose only key is quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from collbench.core.errors import UsageError, first_line
from collbench.features.backends import KIND
from collbench.features.backends.rows import ROW
from collbench.suite.case import Ranks


class ContractRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A check that is asked for, before it is known on how many ranks."""

    quick: bool = False


class Contract(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=KIND):
    """What calls of a backend must keep, checked on ``world`` ranks; ``quick``: with fewer calls
    and smaller buffers."""

    world: Ranks
    quick: bool = False

    @property
    def largest(self) -> int:
        """Bytes of the largest call."""
        return (1 if self.quick else 16) << 20

    @property
    def title(self) -> str:
        """What it is, in words."""
        return "contract of the backend" + ", quickly" * self.quick


class _Contracts:
    """A suite.measurable.Measurable."""

    table = "contract"
    request = ContractRequest
    subject = Contract

    def parse(self, table: Mapping[str, Any], where: str, path: Path) -> ContractRequest:
        try:
            return msgspec.convert(dict(table), ContractRequest)
        except msgspec.ValidationError as e:
            raise UsageError(
                f"{where}: {first_line(e)}", "its only key is quick: quick = true, or leave it out"
            ) from e

    def resolve(
        self, request: ContractRequest, ranks: int, is_given: bool, backends: Sequence[str]
    ) -> Contract:
        return Contract(world=ranks, quick=request.quick)

    def measure(self, subject: Contract) -> tuple[str, int]:
        return ROW, 0


CONTRACTS = _Contracts()
