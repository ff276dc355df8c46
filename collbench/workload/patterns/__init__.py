"""Patterns: functions from a model and a layout to a step, one for each way of training in
parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from collbench.workload.layout import Layout, Nothing
from collbench.workload.models import Model
from collbench.workload.step import Step

Make = Callable[[Model, Layout, Any], Step]


class Pattern(NamedTuple):
    """``options`` is the struct of what it can be told beside the layout; ``uses`` are the fields
    of the layout that it goes by."""

    name: str
    meaning: str
    make: Make
    uses: tuple[str, ...]
    options: type[msgspec.Struct] = Nothing
    source: str = ""
