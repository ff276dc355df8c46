"""Steps as suites have them: the table [[workload]], and what it comes to on ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from collbench.core.errors import UsageError
from collbench.core.feature import find_entries, load_entries
from collbench.features.training import walk
from collbench.features.training.count import count_step
from collbench.features.training.operation_lines import convert_struct
from collbench.features.training.parts import STEP
from collbench.features.training.request import Wanted
from collbench.features.training.step import Step, refuse_step
from collbench.features.training.step_files import is_step_file
from collbench.suite.toml import TABLE

KEPT = {"slice": "group"}


class _Steps:
    """A suite.measurable.Measurable."""

    table = "workload"
    request = Wanted
    subject = Step

    def parse(self, table: Mapping[str, Any], where: str, path: Path) -> Wanted:
        """The step that a suite's [[workload]] table asks for, checked by making the step. Paths in
        the table are relative to the folder of the suite's file, ``path``; ``where`` names the
        table in errors. Raises UsageError."""
        values = {KEPT.get(key, key): value for key, value in TABLE.read(table, where).items()}
        hidden = ("group", "step")
        keys = [field for field in Wanted.__struct_fields__ if field not in hidden] + ["slice"]
        every = [*keys, *find_entries("step_sources")]
        try:
            if "step" in values:
                raise UsageError("step: there is no such key", f"use {', '.join(every)}")
            step = self._from_source(values, where, path)
            values |= {"name": step.name} if step else {}
            request = convert_struct(
                values, Wanted, where, keys, otherwise=f"use {', '.join(keys)}"
            )
            if is_step_file(request.name) and not step:
                request = msgspec.structs.replace(request, name=str(path.parent / request.name))
            request = msgspec.structs.replace(request, step=step)
            request.make_step()
        except UsageError as e:
            raise UsageError(f"{where}: {e.message}", e.hint) from e
        return request

    def _from_source(self, values: dict[str, Any], where: str, path: Path) -> Step | None:
        """The step by a key that a feature has for it, as ``trace``; None without such a key."""
        for key, read_step in load_entries("step_sources").items():
            if key in values:
                step: Step = read_step(values, where, path)
                return step
        return None

    def resolve(self, request: Wanted, ranks: int, is_given: bool, backends: Sequence[str]) -> Step:
        step = request.resolve(ranks, is_given, backends)
        walk.refuse_deadlock(step)
        return step

    def measure(self, subject: Step) -> tuple[str, int]:
        refuse_step(subject)
        return STEP, round(count_step(subject).sent)


STEPS = _Steps()
