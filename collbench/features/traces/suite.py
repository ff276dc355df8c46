"""Steps of suites that are a trace's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collbench.core.errors import UsageError
from collbench.features.traces.replay import Asked, replay_files
from collbench.features.training.operation_lines import convert_struct
from collbench.features.training.step import Step
from collbench.suite.toml import TEXT


def read_step(fields: dict[str, Any], where: str, path: Path) -> Step:
    """The step of a trace, by the keys that are about it, which are taken from ``fields``."""
    if odd := [key for key in ("name", "layout", "options", "layers") if key in fields]:
        raise UsageError(
            f"{odd[0]}: it cannot be set for a trace, which says itself what its ranks do",
            f"leave {odd[0]} out",
        )
    given = fields.pop("trace")
    files = [TEXT.read(item, "trace") for item in (given if isinstance(given, list) else [given])]
    keys = Asked.__struct_fields__
    options = {key: fields.pop(key) for key in keys if key in fields}
    return replay_files(
        [path.parent / file for file in files], convert_struct(options, Asked, where, keys)
    )
