"""What `collbench health` measures itself, in fresh launches: cases of a run again, or a night with planted faults."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from collbench import catalogue, console, options, session
from collbench.errors import Exit, UsageError
from collbench.launch import join
from collbench.records import Run
from collbench.selection import FIELDS
from collbench.suite import Axes, Case, Suite

LAUNCHES = 3


def refuse_launchers() -> None:
    """Their other ranks would not know of what rank 0 finds. Raises UsageError."""
    if member := join.detect("auto"):
        raise UsageError(f"--rerun starts ranks itself, and {member.launcher} has started some",
                         "judge the night outside the job, or leave --rerun out")  # fmt: skip


def launch(run: Run, cases: Sequence[Case], path: Path, seconds: float | None = None) -> None:
    """Measures ``cases`` as ``run`` did, into the file ``path``. Raises what a run raises."""
    first, *others = [_axes(case) for case in cases]
    policy = msgspec.structs.replace(run.policy, fresh=True)
    suite = Suite(name="rerun", axes=first, includes=tuple(others), policy=policy)
    order = session.Order(suite=suite, command=["collbench", "health", "--rerun"], output=path,
                          tag=f"rerun of {run.id}", budget=seconds)  # fmt: skip
    _run(order)


def planted(faults: str, ranks: str, path: Path, seconds: float) -> None:
    """Measures suite nightly with these faults, into the file ``path``. Raises what a run raises."""
    suite = options.changed(catalogue.load("nightly"), ngpus=ranks, inject=faults, launcher="auto")
    order = session.Order(suite=suite, command=sys.argv, output=path, tag="planted", budget=seconds)
    _run(order)


def _run(order: session.Order) -> None:
    if session.execute(order, console.Status) == Exit.INTERRUPTED:
        raise KeyboardInterrupt


def _axes(case: Case) -> Axes:
    """The sweep of this case alone, LAUNCHES times."""
    said: dict[str, Any] = {axis: (getattr(case, field),) for axis, field in FIELDS.items()}
    return Axes(**{**said, "ranks": (case.world,), "groups": case.groups, "align": case.align, "cycles": LAUNCHES})
