"""Progress for the person who waits: of a run, with the table that grows meanwhile, and of an
interleaved experiment."""

from __future__ import annotations

import atexit
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from collbench.core.text import plain, size, tell
from collbench.judge import busy
from collbench.records.derive import Derived
from collbench.records.types import End, Record, Run, World
from collbench.run.reporter import Gathered, Outcome, Step
from collbench.show import terminal
from collbench.show.document import toned
from collbench.show.views import cases as views
from collbench.show.words import axes, by_mode, clock
from collbench.suite.case import Case, Skip


class Status(Gathered):
    """Progress only, on the error terminal, for formats that are piped. Silent where that is no
    terminal, but for a warning where others keep the machine busy."""

    footer = False  # whether what there is to say at the end is shown elsewhere

    def __init__(self, console: Console | None = None, watched: bool | None = None) -> None:
        """``watched`` unless told: the errors go to a terminal and the output does not, which would
        get in the way."""
        self._console = console or Console(stderr=True, highlight=False)
        self._watched = (
            self._console.is_terminal and not sys.stdout.isatty() if watched is None else watched
        )
        self._live: Live | None = None
        self._known: set[Case] = set()  # cases that have a record
        self._now: tuple[Case, str, float] | None = None
        self._earlier: int | None = (
            None  # records that a resumed run had before anything was measured
        )

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        super().begin(run, cases, skips)
        self._began = time.monotonic()
        self._header = self._heading()
        if not (self.footer and self._watched):
            _warn(busy.now(run.load))
        if self._watched:
            self._live = Live(
                get_renderable=self._view,
                console=self._console,
                refresh_per_second=1,
                transient=True,
                redirect_stdout=not self._console.stderr,
            )
            self._live.start()
            atexit.register(self.close)

    def world(self, world: World) -> None:
        super().world(world)
        self._header = self._heading()

    def phase(self, case: Case, phase: str, fraction: float) -> None:
        phase = f"{phase} again" if case in self._known else phase
        self._now = (case, phase, fraction)
        if self._earlier is None:
            self._earlier = len(self.arrived)

    def record(self, record: Record, row: Derived | None) -> None:
        super().record(record, row)
        self._known.add(record.case)
        self._now = (record.case, "done", 0.0)

    def end(self, end: End, path: Path | None) -> None:
        super().end(end, path)
        self.close()
        if not self.footer:
            _warn(views.busy(self))
            for line in views.kept(self) if path else ():
                print(plain(line), file=sys.stderr)

    def _heading(self, running: bool = True) -> Text:
        """The header's lines, with a warning while the run goes on; the first is cut where it is
        too long, so that the live view fits."""
        words = views.header(self.run, self.cases, self.worlds)
        words += [views.noticed(told)] if running and (told := busy.now(self.run.load)) else []
        lines = [terminal.inline(line) for line in words]
        return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)

    def close(self) -> None:
        """Gives the terminal back, also when a run ends by an exception; may be called twice."""
        if self._live:
            self._live.stop()
            self._live = None
            atexit.unregister(self.close)

    def _view(self) -> RenderableType:
        elapsed = time.monotonic() - self._began
        return progress(len(self.arrived), len(self.cases), elapsed, self._now, self._earlier or 0)


class LiveTable(Status):
    """Progress and the latest rows while the run goes on; the whole tables and the closing lines
    once it has ended."""

    footer = True

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(highlight=False)
        super().__init__(console, console.is_terminal)

    def end(self, end: End, path: Path | None) -> None:
        super().end(end, path)
        self._console.print(self._heading(running=False))
        for mode, outcomes in by_mode(self.outcomes):
            self._console.print("", self._table(mode, outcomes), sep="\n")
        for best in views.best(self):
            self._console.print("", terminal.rendered(best, self._console.width), sep="\n")
        self._console.print()
        for line in views.summary(self):  # a long path is not broken, so that it can be copied
            wrap = textwrap.TextWrapper(
                max(20, self._console.width - 1), subsequent_indent="    ", break_long_words=False
            )
            lines = toned("\n".join(wrap.wrap(str(line))), line.spans[0].tone)
            self._console.print(
                terminal.inline(lines, kept="\n"), no_wrap=True, overflow="ignore", crop=False
            )

    def _view(self) -> RenderableType:
        parts: list[RenderableType] = [self._header, ""]
        arrived = [outcome for outcome in self.arrived if outcome[0].status != "skipped"]
        room = self._console.height - 11
        if arrived and room > 0:
            mode = arrived[-1][0].case.mode
            latest = [outcome for outcome in arrived if outcome[0].case.mode == mode][-room:]
            parts += [self._table(mode, self.planned(latest), live=True), ""]
        return Group(*parts, super()._view())

    def _table(self, mode: str, outcomes: Sequence[Outcome], live: bool = False) -> RenderableType:
        table = views.table(mode, outcomes, self.cases, live, self.run.policy.fresh)
        return terminal.rendered(table, self._console.width)


def _warn(text: str) -> None:
    if text:
        tell(text)


def progress(
    done: int, total: int, elapsed: float, now: tuple[Case, str, float] | None, earlier: int = 0
) -> RenderableType:
    """A bar with what is done, ``earlier`` of it before ``elapsed`` began, how long it took and
    will take; and what happens at this moment."""
    achieved = min(total, done + (now[2] if now and done < total else 0.0))
    own = achieved - earlier
    left = f"{clock(elapsed * (total - achieved) / own)} left" if own >= 0.5 else ""
    grid = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(total=max(1, total), completed=achieved, width=24, complete_style="cyan")
    grid.add_row(bar, f"{done}/{total}", f"{clock(elapsed)} elapsed", left)
    if now is None:
        return Group(grid, Text("starting ranks", "dim"))
    case, phase, fraction = now
    doing = f"{size(case.size)}, {axes([case])[1]}: {phase}" + (
        f" {fraction:.0%}" if fraction else ""
    )
    return Group(grid, Text(plain(doing), "dim", no_wrap=True, overflow="ellipsis"))


class Watch:
    """Progress of an experiment, on stderr: a bar with the time left on a terminal, else a line a
    round."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[doing]}", style="dim"),
        )
        self._bar = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
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
            self._console.print(
                f"{name}, round {step.round + 1} of {step.rounds}" if step.stage else name
            )
