"""Steps as suites have them: the table [[workload]], and what it comes to on ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from collbench.core.errors import UsageError
from collbench.suite.toml import TABLE, TEXT
from collbench.workload import walk
from collbench.workload.count import count
from collbench.workload.lines import convert
from collbench.workload.parts import STEP
from collbench.workload.step import Step, refuse
from collbench.workload.wanted import Wanted

KEPT = {"slice": "group"}


class _Steps:
    """A suite.measurable.Measurable."""

    table = "workload"
    request = Wanted
    subject = Step

    def parse(self, table: Mapping[str, Any], where: str, path: Path) -> Wanted:
        """A step, whose file or trace, if it is one's own, lies beside the suite's."""
        said = {KEPT.get(key, key): value for key, value in TABLE.read(table, where).items()}
        hidden = ("group", "step")
        keys = [each for each in Wanted.__struct_fields__ if each not in hidden] + ["slice"]
        try:
            if "step" in said:
                raise UsageError("step: there is no such key", f"keys are {', '.join(keys)}, trace")
            step = _replayed(said, where, path) if "trace" in said else None
            said |= {"name": step.name} if step else {}
            wanted = convert(said, Wanted, where, keys, otherwise=f"keys are {', '.join(keys)}")
            if Path(wanted.name).suffix in (".toml", ".csv") and not step:
                wanted = msgspec.structs.replace(wanted, name=str(path.parent / wanted.name))
            wanted = msgspec.structs.replace(wanted, step=step)
            wanted.made()
        except UsageError as e:
            raise UsageError(f"{where}: {e.message}", e.hint) from e
        return wanted

    def resolve(self, request: Wanted, ranks: int, told: bool, backends: Sequence[str]) -> Step:
        step = request.played(ranks, told, backends)
        walk.refuse(step)
        return step

    def measure(self, subject: Step) -> tuple[str, int]:
        refuse(subject)
        return STEP, round(count(subject).sent)


def _replayed(said: dict[str, Any], where: str, path: Path) -> Step:
    """The step of a trace, by the keys that are about it, which are taken from ``said``."""
    from collbench.workload.traces.program import Asked, replayed  # which most suites do without

    if odd := [key for key in ("name", "layout", "options", "layers") if key in said]:
        raise UsageError(f"{odd[0]}: a trace says itself what its ranks do", "leave it out")
    given = said.pop("trace")
    files = [TEXT.read(each, "trace") for each in (given if isinstance(given, list) else [given])]
    keys = Asked.__struct_fields__
    mine = {key: said.pop(key) for key in keys if key in said}
    return replayed([path.parent / each for each in files], convert(mine, Asked, where, keys))


STEPS = _Steps()
