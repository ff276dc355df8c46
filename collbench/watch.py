"""Where an interleaved experiment is, for the person who waits for it."""

from __future__ import annotations

from typing import NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from collbench.formats import size
from collbench.suite import Case


class Step(NamedTuple):
    """``launch`` of ``launches`` in this stage (0: the pilot) starts, or is at ``case``; all count from 0."""

    stage: int
    round: int
    rounds: int
    side: str
    launch: int
    launches: int
    case: Case | None = None


class Watch:
    """Where an experiment is, on stderr: a bar with the time left on a terminal, else a line a round."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        columns = (
            TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[doing]}", style="dim"),
        )  # fmt: skip
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._tasks: dict[int, TaskID] = {}
        self._told: tuple[int, int] | None = None

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, step: Step) -> None:
        name = f"stage {step.stage}" if step.stage else "pilot"
        if step.stage not in self._tasks:
            for earlier in self._tasks.values():
                self._bar.remove_task(earlier)
            self._tasks = {step.stage: self._bar.add_task(name, total=step.launches, doing="")}
        case = step.case
        what = f": {case.collective} {case.label} {size(case.nbytes)}" if case else ""
        self._bar.update(self._tasks[step.stage], completed=step.launch, doing=f"{step.side}{what}")
        if self._bar.disable and self._told != (step.stage, step.round):
            self._told = (step.stage, step.round)
            self._console.print(f"{name}, round {step.round + 1} of {step.rounds}" if step.stage else name)
