"""Progress for the person who waits: of a run, with the table that grows meanwhile, and of an
interleaved experiment."""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    Group,
    RenderableType,
    RenderResult,
)
from rich.control import Control
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
from rich.segment import ControlType, Segment
from rich.table import Table
from rich.text import Text

from collbench.core.text import format_clock, format_size, plain_line, print_message
from collbench.records.derive import Derived
from collbench.records.types import End, Record, Run, World
from collbench.run.reporter import Gathered, Outcome, Step
from collbench.run.runner import runner_of
from collbench.show import busy, terminal
from collbench.show.views import run_table as views
from collbench.show.words import (
    PLACES,
    by_mode,
    format_cells,
    list_caveats,
    split_axes,
    split_modes,
)
from collbench.suite.case import Case, Skip

LONG = 20.0  # seconds: of a step that takes longer it is said beforehand
SO_FAR_AFTER = 8.0  # seconds of a run, from which on a pipe is told what is known
SO_FAR = "times of a first pass; the results follow, in the tables"
SECOND_PASS = "pass 2 of 2, "
SPARE, TALL = 3, 30  # lines of a taller terminal that are left for those that get broken

# Terminals that break lines anew when they get narrower: by how TERM begins, or, where they call
# themselves xterm, by a variable that each sets. xterm itself, PuTTY and GNU screen cut lines.
REWRAP_TERMS = ("tmux", "foot", "alacritty", "xterm-kitty", "xterm-ghostty")
REWRAP = {
    *("VTE_VERSION", "KITTY_WINDOW_ID", "KONSOLE_VERSION", "WEZTERM_PANE", "WT_SESSION"),
    *("ALACRITTY_WINDOW_ID", "ITERM_SESSION_ID", "VSCODE_IPC_HOOK_CLI"),
}


class Frame(Live):
    """A live view that is drawn in its own place again after the terminal got narrower, where that
    is known to break what is there over more lines than were written. What it pushes beyond the
    screen's top by that stays there: nothing that a program writes reaches it."""

    _widths: Sequence[int] = ()  # of the lines as written last, in cells

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """What rich is to print for this view: first the movement of the cursor back over lines
        that the terminal has broken since, as it got narrower."""
        drawn = super().process_renderables(renderables)
        if not self.console.is_interactive:
            return drawn
        room = self.console.width
        more = sum(math.ceil(width / room) - 1 for width in self._widths if width > room)
        up = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)] * (
            more * _is_rewrapping()
        )
        *before, view = drawn
        return [Control(*up), *before, _Trimmed(view, self)]

    def written(self, lines: Sequence[Sequence[Segment]]) -> None:
        """Notes the lines that the view is written in."""
        self._widths = [sum(segment.cell_length for segment in line) for line in lines]


class _Trimmed(NamedTuple):
    """A frame's view without spaces at the ends of its lines, which would be broken, too."""

    view: ConsoleRenderable
    frame: Frame

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [*map(_trim_line, Segment.split_lines(console.render(self.view, options)))]
        self.frame.written(lines)
        for number, line in enumerate(lines):
            yield from [Segment.line()] * (number > 0)
            yield from line


def _trim_line(line: list[Segment]) -> list[Segment]:
    """A line without spaces at its end."""
    while line and not line[-1].text.rstrip():
        line = line[:-1]
    return [*line[:-1], *(Segment(last.text.rstrip(), last.style) for last in line[-1:])]


def _is_rewrapping() -> bool:
    """Whether this terminal is known to; variables may be those of another that it started in."""
    term, names = os.environ.get("TERM", ""), os.environ.keys()
    if term.startswith("screen"):
        return "TMUX" in names and "STY" not in names
    like_xterm = term.startswith("xterm") and "XTERM_VERSION" not in names
    return term.startswith(REWRAP_TERMS) or (like_xterm and not names.isdisjoint(REWRAP))


class Doing(NamedTuple):
    """What a run is doing: a case's phase, the share of it that is done, and whether it is measured
    in a second pass, which adds no case to those that are done."""

    case: Case
    phase: str
    fraction: float
    is_second: bool


class Status(Gathered):
    """Progress only, on the error terminal, for formats that are piped. Silent where that is no
    terminal, but for a warning where others keep the machine busy."""

    footer = False  # whether what there is to say at the end is shown elsewhere

    def __init__(
        self,
        console: Console | None = None,
        watched: bool | None = None,
        says_busy: bool = True,
    ) -> None:
        """``watched`` unless told: the errors go to a terminal and the output does not, which would
        get in the way. ``says_busy``: the output does not say itself what disturbed the run."""
        self._says_busy = says_busy
        self._console = console or Console(stderr=True, highlight=False)
        self._watched = (
            self._console.is_terminal and not sys.stdout.isatty() if watched is None else watched
        )
        self._live: Frame | None = None
        self._recorded: set[Case] = set()  # cases that have a record
        self._now: Doing | None = None
        self._achieved = 0.0  # cases, the share of the one under way included; it never falls
        self._earlier: int | None = (
            None  # records that a resumed run had before anything was measured
        )
        self._warm: dict[Case, Record] = {}  # of jobs that warm up
        self._foretold: set[str] = set()  # cases of which it is said how long they will take
        self._until: float | None = None  # when all will be measured, where that can be told

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        super().begin(run, cases, skips)
        self._began = time.monotonic()
        self._header = self._heading()
        if not (self.footer and self._watched):
            _print_warning(busy.describe_now(run.load))
        if self._watched:
            self._live = Frame(
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
        is_second = case in self._recorded
        self._now = Doing(case, phase, max(0.0, fraction), is_second)
        self._update_achieved(0.0 if is_second else fraction)
        if self._earlier is None:
            self._earlier = len(self.arrived)

    def show_interim(self, record: Record) -> None:
        """Says once of a job how long measuring it takes, where that is long."""
        case, key = record.case, record.case.key
        if record.times_ns or key in self._foretold:
            return
        self._warm[case] = record
        if not case.is_leader:  # which is told of last
            return
        self._foretold.add(key)
        warm = [self._warm[sibling] for sibling in case.siblings[::-1]]
        launches = sum(case.key == key and case not in self._recorded for case in self.cases)
        policy = self.run.policy.resolved(self.worlds[record.world].cramped)
        forecast = runner_of(case).forecast(warm, policy, launches)
        if forecast is None:
            return
        if forecast.most > LONG:
            several = len(self.run.suite.subjects) > 1
            print_message(
                f"{case.subject}: {forecast.text}" if several else forecast.text, forecast.hint
            )
        if len(self.cases) == launches * len(case.siblings):
            self._until = time.monotonic() + (forecast.least + forecast.most) / 2

    def record(self, record: Record, row: Derived | None) -> None:
        super().record(record, row)
        self._now = Doing(record.case, "done", 0.0, record.case in self._recorded)
        self._recorded.add(record.case)
        self._update_achieved(0.0)

    def _update_achieved(self, share: float) -> None:
        """Take in that the cases that have arrived are done, and ``share`` of another."""
        self._achieved = max(self._achieved, min(len(self.cases), len(self.arrived) + share))

    def end(self, end: End, path: Path | None) -> None:
        super().end(end, path)
        self.close()
        if not self.footer:
            busy_told = [views.describe_busy(self)] * self._says_busy
            for text in (*list_caveats(self.run, self.worlds.values()), *busy_told):
                _print_warning(text)
            for line in views.describe_saved(self) if path else ():
                print(plain_line(str(line)), file=sys.stderr)

    def _heading(self, running: bool = True) -> Text:
        """The header's lines, with a warning while the run goes on; the first is cut where it is
        too long, so that the live view fits."""
        header = views.make_header(self.run, self.cases, self.worlds)
        header += (
            [views.tone_notice(load_text)]
            if running and (load_text := busy.describe_now(self.run.load))
            else []
        )
        lines = [terminal.render_inline(line) for line in header]
        return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)

    def close(self) -> None:
        """Gives the terminal back, also when a run ends by an exception; may be called twice."""
        if self._live:
            self._live.stop()
            self._live = None
            atexit.unregister(self.close)

    def _view(self) -> RenderableType:
        now = time.monotonic()
        time_left = max(0.0, self._until - now) if self._until else None
        return render_progress(
            len(self.arrived),
            len(self.cases),
            self._achieved,
            now - self._began,
            self._now,
            self._earlier or 0,
            time_left,
        )


class LiveTable(Status):
    """Progress and the latest rows while the run goes on; the whole tables and the closing lines
    once it has ended. Where that is no terminal, the header once ranks have met, and in a run of
    more than SO_FAR_AFTER seconds a line about each case when it is known for the first time."""

    footer = True

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(highlight=False)
        super().__init__(console, console.is_terminal)
        self._printed_heading = ""
        self._called: dict[Case, Outcome] = {}  # once, and measured later
        self._news: list[tuple[Outcome, str]] = []  # what no line has told yet, with a remark
        self._told: set[Case] = set()

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        self._varying = split_axes(cases)[0] if cases else []
        self._axes_by_mode = split_modes(cases)
        super().begin(run, cases, skips)

    def world(self, world: World) -> None:
        super().world(world)
        needs = {(case.backend, case.world, case.env) for case in self.cases}
        if not self._watched and len(needs) == 1 and not self.run.policy.fresh:
            self._print_heading()

    def _print_heading(self) -> None:
        """The header, unless it stands there already."""
        heading = self._heading(running=False)
        if heading.plain != self._printed_heading:
            self._console.print(heading)
            self._printed_heading = heading.plain

    def phase(self, case: Case, phase: str, fraction: float) -> None:
        super().phase(case, phase, fraction)
        self._print_so_far()

    def show_coarse(self, record: Record, row: Derived | None) -> None:
        super().show_coarse(record, row)
        self._called[record.case] = (record, row)
        self._news.append(((record, row), ", one call, data not verified"))
        self._print_so_far()

    def record(self, record: Record, row: Derived | None) -> None:
        super().record(record, row)
        self._news.append(((record, row), ""))
        self._print_so_far()

    def _print_so_far(self) -> None:
        """Lines about cases that are known for the first time, once the run has taken long."""
        if self._watched or not self._news or time.monotonic() - self._began < SO_FAR_AFTER:
            return
        for (record, row), remark in self._news:
            if record.case not in self._told and row is not None:
                intro = [] if self._told else [SO_FAR]
                self._told.add(record.case)
                for text in (*intro, self._describe_so_far(record, row) + remark):
                    line = Text(plain_line(f"so far: {text}"))
                    self._console.print(line, soft_wrap=True)
        self._news.clear()

    def _describe_so_far(self, record: Record, row: Derived) -> str:
        """What is known of a case, in words."""
        cells = format_cells(record, row)
        axes = [cells[name] for name in self._varying if name != "place" and cells.get(name)]
        place = [PLACES[cells["place"]]] if cells["place"] else []
        busbw = [] if row.busbw is None else [f"{cells['busbw']} GB/s"]
        what = ", ".join([cells["size"], *axes, *place])
        return ", ".join([f"{what}: {cells['median']} {cells['±']}", *busbw])

    def end(self, end: End, path: Path | None) -> None:
        super().end(end, path)
        self._print_heading()
        for mode, outcomes in by_mode(self.outcomes):
            self._console.print("", *self._common(outcomes), self._table(mode, outcomes), sep="\n")
        for best in views.best_tables(self):
            self._console.print("", terminal.render_block(best, self._console.width), sep="\n")
        self._console.print()
        for line in views.summarise_run(self):
            parts = terminal.break_line(line, max(20, self._console.width - 1), indent="    ")
            self._console.print(Group(*parts), crop=False)

    def _view(self) -> RenderableType:
        # in the thread of Live: lists, as records come while these are gone through
        parts: list[RenderableType] = [self._header, ""]
        called = [at for case, at in list(self._called.items()) if case not in self._recorded]
        arrived = [
            outcome for outcome in list(self.arrived) if outcome[0].status != "skipped"
        ] + called
        height = self._console.height
        room = height - 11 - SPARE * (height > TALL)
        if arrived and room > 0:
            mode = arrived[-1][0].case.mode
            latest = [outcome for outcome in arrived if outcome[0].case.mode == mode][-room:]
            above = self._common(latest, live=True)
            latest = latest[len(above) :]
            parts += [*above, self._table(mode, self.sort_by_plan(latest), live=True), ""]
        return Group(*parts, super()._view())

    def _common(self, outcomes: Sequence[Outcome], live: bool = False) -> list[RenderableType]:
        """What most rows have; in a line each while the view is ``live``."""
        return [
            terminal.render_inline(line, single=live)
            for line in views.describe_common(self, outcomes)
        ]

    def _table(self, mode: str, outcomes: Sequence[Outcome], live: bool = False) -> RenderableType:
        fresh = self.run.policy.fresh
        table = views.make_table(mode, outcomes, self._axes_by_mode, live, fresh)
        return terminal.render_block(table, self._console.width)


def _print_warning(text: str) -> None:
    if text:
        print_message(text)


def render_progress(
    done: int,
    total: int,
    achieved: float,
    elapsed: float,
    now: Doing | None,
    earlier: int = 0,
    time_left: float | None = None,
) -> RenderableType:
    """A bar with what is ``achieved``, ``earlier`` of it before ``elapsed`` began, how many cases
    are ``done``, how long it took and will take (``time_left``, where it is known); and what is
    measured ``now``."""
    progressed = achieved - earlier
    # how long a second pass takes is not known
    is_second = now is not None and now.is_second
    if time_left is None and progressed >= 0.5 and done < total and not is_second:
        time_left = elapsed * (total - achieved) / progressed
    yet = f"{format_clock(time_left)} left" if time_left is not None else ""
    grid = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(total=max(1, total), completed=achieved, width=24, complete_style="cyan")
    grid.add_row(bar, f"{done}/{total}", f"{format_clock(elapsed)} elapsed", yet)
    if now is None:
        return Group(grid, Text("starting ranks", "dim"))
    share = f" {now.fraction:.0%}" if now.fraction else ""
    phase = SECOND_PASS * is_second + now.phase + share
    doing = f"{phase}: {format_size(now.case.size)}, {split_axes([now.case])[1]}"
    return Group(grid, Text(plain_line(doing), "dim", no_wrap=True, overflow="ellipsis"))


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
        self._shown_step: tuple[int, int] | None = None

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, step: Step) -> None:
        """Show the launch that an experiment has come to: on the bar, or in a line of its own at
        the first of each round where there is no terminal."""
        name = f"stage {step.stage}" if step.stage else "pilot"
        if step.stage not in self._tasks:
            for earlier in self._tasks.values():
                self._bar.remove_task(earlier)
            self._tasks = {step.stage: self._bar.add_task(name, total=1, doing="")}
        case = step.case
        what = f"{case.collective} {case.label} {format_size(case.nbytes)}" if case else ""
        rounds, launches = max(1, step.rounds), max(1, step.launches)
        self._bar.update(
            self._tasks[step.stage],
            description=f"{name}, rounds" if step.stage else f"{name}, launches",
            total=rounds if step.stage else launches,
            completed=step.round + step.launch / launches if step.stage else step.launch,
            doing=": ".join(filter(None, (step.side, what))),
        )
        if self._bar.disable and self._shown_step != (step.stage, step.round):
            self._shown_step = (step.stage, step.round)
            self._console.print(
                f"{name}, round {step.round + 1} of {step.rounds}" if step.stage else name
            )
