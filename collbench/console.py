"""What a person sees on a terminal: the table that grows while a run goes on, its closing lines, runs and plans."""

from __future__ import annotations

import atexit
import itertools
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from collbench import __version__
from collbench.errors import Exit
from collbench.formats import (
    AXES,
    LEFT,
    PLACES,
    Gathered,
    Outcome,
    along,
    axes,
    by_mode,
    cells,
    columns,
    counted,
    duration,
    plain,
    size,
)
from collbench.inject import planted
from collbench.records import End, Record, Row, Run, RunFile, World
from collbench.suite import Case, Skip
from collbench.summary import clock, summary

HEADS = {
    "collective": "", "place": "", "implementation": "impl", "algbw": "algbw\nGB/s", "busbw": "busbw\nGB/s",
    "wirebw": "wirebw\nGB/s",
}  # fmt: skip
DROPPED = ("min", "skew", "algbw", "wrong", "tail", "N", "ran")  # columns given up on a narrow terminal, in this order
STYLES = {"bad": "bold red", "notice": "yellow", "quiet": "dim", "": ""}
GAP = 2  # between columns
FLAGS_WIDTH = 12  # flags may wrap, but not below this


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """A case that would run: memory of each rank, bytes through the busiest port per call, how many pairs of buffers
    take turns, estimated seconds (0 for what is measured along with another); or, in ``skipped``, why it would not."""

    case: Case
    bytes_per_rank: int = 0
    moved: int = 0
    rotation: int = 0
    seconds: float = 0.0
    skipped: str = ""


class Status(Gathered):
    """Progress only, on the error terminal, for formats that are piped. Silent where that is no terminal."""

    def __init__(self, console: Console | None = None, watched: bool | None = None) -> None:
        """``watched`` unless told: the errors go to a terminal and the output does not, which would get in the way."""
        self._console = console or Console(stderr=True, highlight=False)
        self._watched = self._console.is_terminal and not sys.stdout.isatty() if watched is None else watched
        self._live: Live | None = None
        self._now: tuple[Case, str, float] | None = None
        self._earlier: int | None = None  # records that a resumed run had before anything was measured

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        super().begin(run, cases, skips)
        self._began = time.monotonic()
        self._header = header(run, cases, {})
        if self._watched:
            self._live = Live(
                get_renderable=self._view, console=self._console, refresh_per_second=1, transient=True,
                redirect_stdout=not self._console.stderr,
            )  # fmt: skip
            self._live.start()
            atexit.register(self.close)

    def world(self, world: World) -> None:
        super().world(world)
        self._header = header(self.run, self.cases, self.worlds)

    def phase(self, case: Case, phase: str, fraction: float) -> None:
        self._now = (case, phase, fraction)
        if self._earlier is None:
            self._earlier = len(self.arrived)

    def record(self, record: Record, row: Row | None) -> None:
        super().record(record, row)
        self._now = (record.case, "done", 0.0)

    def end(self, end: End, path: Path | None) -> None:
        super().end(end, path)
        self.close()

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
    """Progress and the latest rows while the run goes on; the whole tables and the closing lines once it has ended."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(highlight=False)
        super().__init__(console, console.is_terminal)

    def end(self, end: End, path: Path | None) -> None:
        super().end(end, path)
        self._console.print(self._header)
        for mode, outcomes in by_mode(self.outcomes):
            self._console.print("", table(mode, outcomes, self.cases, self._console.width), sep="\n")
        self._console.print()
        for style, line in summary(self):  # a long path is not broken, so that it can be copied
            wrap = textwrap.TextWrapper(
                max(20, self._console.width - 1), subsequent_indent="    ", break_long_words=False
            )
            text = Text("\n".join(wrap.wrap(line)), STYLES[style])
            self._console.print(text, no_wrap=True, overflow="ignore", crop=False)

    def _view(self) -> RenderableType:
        parts: list[RenderableType] = [self._header, ""]
        arrived = [outcome for outcome in self.arrived if outcome[0].status != "skipped"]
        room = self._console.height - 10
        if arrived and room > 0:
            mode = arrived[-1][0].case.mode
            latest = [outcome for outcome in arrived if outcome[0].case.mode == mode][-room:]
            parts += [table(mode, self.planned(latest), self.cases, self._console.width, live=True), ""]
        return Group(*parts, super()._view())


def header(run: Run, cases: Sequence[Case], worlds: Mapping[int, World]) -> Text:
    """Three lines: what runs; where and on which library; how it is measured."""
    varying, constant = axes(cases) if cases else ([], "nothing to run")
    what = [constant] if constant else []
    if cases and (most := max(case.size for case in cases)):
        least = min(case.size for case in cases)
        what.append(size(most) if least == most else f"{size(least)} to {size(most)}")
    for name in varying:
        values = list(dict.fromkeys(along(case)[name] for case in cases))
        words = [v for v in values if v and name != "place"]
        what.append(", ".join(words[:4]) + (" …" if len(words) > 4 else "") + (" ranks" if name == "ranks" else ""))
    policy = run.policy
    limits = policy.resolved(any(world.oversubscribed for world in worlds.values()))
    precision = f"precision ±{limits.precision:.0%}"
    how = [" and ".join(dict.fromkeys(case.mode for case in cases)), f"{policy.sync} sync", f"{policy.cache} cache"]
    how.append(
        f"{policy.iters} iterations" if policy.iters else f"{precision}, at most {limits.max_seconds:g} s a case"
    )
    where = " · ".join(plain(part) for part in _machine(run, worlds) if part)
    text = Text(f"collbench {__version__}  ", "bold", no_wrap=True, overflow="ellipsis")
    text.append(plain(" · ".join(filter(None, what))), "not bold")
    text.append(f"\n{where}\n{plain(' · '.join(how))}", "not bold dim")
    return text.append(f"\n{planted(run.policy.inject)}", "bold red") if planted(run.policy.inject) else text


def _machine(run: Run, worlds: Mapping[int, World]) -> list[str]:
    hosts = list(dict.fromkeys(info.host for world in worlds.values() for info in world.ranks))
    about = run.environment
    cpu, gpus = about.get("cpu") or {}, (about.get("gpus") or {}).get("devices") or []
    name = hosts[0] if hosts else str(about.get("host") or "")
    kinds = Counter(str(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping))
    libraries = [world.library or world.backend for world in worlds.values()]
    return [
        name + (f" and {len(hosts) - 1} more hosts" if len(hosts) > 1 else ""),
        ", ".join(f"{number} x {kind}" for kind, number in kinds.items()),
        f"{cpu['model']}, {cpu.get('physical', '?')} cores" if cpu.get("model") else "",
        ", ".join(dict.fromkeys(libraries)),
        ", ".join(dict.fromkeys(world.launcher for world in worlds.values())),
    ]


def progress(
    done: int, total: int, elapsed: float, now: tuple[Case, str, float] | None, earlier: int = 0
) -> RenderableType:
    """A bar with what is done, ``earlier`` of it before ``elapsed`` began, how long it took and will take; and what
    happens at this moment."""
    achieved = min(total, done + (now[2] if now and done < total else 0.0))
    own = achieved - earlier
    left = f"{clock(elapsed * (total - achieved) / own)} left" if own >= 0.5 else ""
    grid = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(total=max(1, total), completed=achieved, width=24, complete_style="cyan")
    grid.add_row(bar, f"{done}/{total}", f"{clock(elapsed)} elapsed", left)
    if now is None:
        return Group(grid, Text("starting ranks", "dim"))
    case, phase, fraction = now
    doing = f"{size(case.size)}, {axes([case])[1]}: {phase}" + (f" {fraction:.0%}" if fraction else "")
    return Group(grid, Text(plain(doing), "dim", no_wrap=True, overflow="ellipsis"))


def table(mode: str, outcomes: Sequence[Outcome], cases: Sequence[Case], width: int = 100, live: bool = False) -> Table:
    """A line per case of ``mode``. Axes along which ``cases``, the plan, do not vary have no column (the header names
    them), nor has what no line says anything of (formats.OPTIONAL); what else does not fit ``width`` goes in the order
    of DROPPED, but never a count of wrong elements."""
    varying, constant = axes([case for case in cases if case.mode == mode] or [record.case for record, _ in outcomes])
    lines = [cells(*outcome) for outcome in outcomes]
    wrong = any(record.wrong for record, _ in outcomes)
    widths = _fitting(columns(lines, varying), lines, width, wrong)
    several = len({case.mode for case in cases}) > 1
    view = _plain_table(plain(f"{mode}: {constant}") if several else "")
    for name, room in widths.items():
        quiet = "dim" if name in ("min", "algbw", "skew", "N") else ""
        view.add_column(
            Text(HEADS.get(name, name), "bold"), justify="left" if name in LEFT else "right", style=quiet,
            width=room, no_wrap=live or name != "flags", overflow="ellipsis",
        )  # fmt: skip
    groups = [[line[name] for name in widths if name in AXES and name != "place"] for line in lines]
    changes = [not live and before != after for before, after in itertools.pairwise([groups[0], *groups])]
    for (record, _), line, change in zip(outcomes, lines, changes, strict=True):
        if change and 4 * sum(changes) <= len(lines):
            view.add_section()
        bad = {"wrong": "bold red", "failed": "red"}.get(record.status, "")
        flags = Text(line["flags"], no_wrap=True, overflow="ellipsis") if bad else _flagged(line["flags"])
        view.add_row(*(flags if name == "flags" else Text(line[name]) for name in widths), style=bad)
    return view


def _flagged(flags: str) -> Text:
    return Text(" ").join(Text(flag, "bold yellow" if flag.endswith("!") else "yellow") for flag in flags.split())


def _fitting(names: Sequence[str], lines: Sequence[Mapping[str, str]], width: int, wrong: bool) -> dict[str, int]:
    """Columns to show, with their widths; flags take what is left, and wrap."""
    widths = {
        name: max(*map(cell_len, HEADS.get(name, name).split("\n")), *(cell_len(line[name]) for line in lines))
        for name in names
    }
    flags = widths["flags"]
    widths["flags"] = min(flags, FLAGS_WIDTH)
    for name in DROPPED:
        if sum(widths.values()) + GAP * (len(widths) - 1) > width and not (name == "wrong" and wrong):
            widths.pop(name, None)
    left = width - sum(widths.values()) - GAP * (len(widths) - 1)
    return widths | {"flags": max(1, min(flags, widths["flags"] + left))}


def runs_table(files: Sequence[tuple[str, RunFile]]) -> Table:
    """Saved runs, oldest first, with the name each answers to and how it ended."""
    view = _plain_table()
    for name in ("name", "id", "tag", "cases", "ended", "arguments"):
        view.add_column(name, no_wrap=name != "arguments", justify="right" if name == "cases" else "left")
    for name, file in files:
        run, end = file.run, file.end
        ended = (
            Text("cut short", "yellow") if end is None else Text("") if not end.exit else Text(_exit(end.exit), "red")
        )
        parts = [Text(plain(part)) for part in (name, run.id, run.tag)]
        arguments = Text(plain(" ".join(run.command[1:])), no_wrap=True, overflow="ellipsis")
        view.add_row(*parts, str(len(file.records)), ended, arguments)
    return view


def _exit(code: int) -> str:
    return Exit(code).name.lower().replace("_", " ") if code in list(Exit) else f"exit {code}"


def plan_table(rows: Sequence[PlanRow]) -> RenderableType:
    """What --dry-run shows: what all cases share, each with the memory and time it will take, then the sum."""
    varying, constant = axes([row.case for row in rows]) if rows else ([], "")
    view = _plain_table()
    view.add_column("case", overflow="fold")
    for name in ("size", "moved", "memory/rank", "pairs", "time"):
        view.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        values = along(row.case)
        words = [PLACES.get(values[name], values[name]) for name in varying if values[name]]
        label = Text(plain(", ".join([*words, row.case.mode])))
        if row.skipped:
            view.add_row(label.append(f": {plain(row.skipped)}", "yellow"), size(row.case.nbytes))
        else:
            memory = (size(row.case.size), size(row.moved), size(row.bytes_per_rank), str(row.rotation))
            view.add_row(label, *memory, duration(row.seconds * 1e9 or None))
    run = [row for row in rows if not row.skipped]
    total = f"{counted(len(run), 'case')}, about {clock(sum(row.seconds for row in run))}"
    most = size(max((row.bytes_per_rank for row in run), default=0))
    return Group(
        Text(plain(constant), "bold"), view, Text(f"{total}, at most {most} a rank; {len(rows) - len(run)} skipped")
    )


def listing(tables: Mapping[str, Sequence[Sequence[str]]]) -> RenderableType:
    """Tables by title, the first row of each its header."""
    parts: list[RenderableType] = []
    for title, (head, *rows) in tables.items():
        view = _plain_table(title)
        for name in head:
            view.add_column(name)
        for row in rows:
            view.add_row(*(Text(plain(cell)) for cell in row))
        parts += [view, ""]
    return Group(*parts[:-1])


def finding(what: str, state: str, detail: str) -> None:
    """Prints a line of the doctor's: ``state`` is yes, no or note."""
    style = {"yes": "green", "no": "red"}.get(state, "dim")
    line = Text(f"{plain(what):<20}").append(f"{state:<6}", style).append(plain(detail))
    show(line)


def show(*things: RenderableType) -> None:
    """Prints to standard output, as wide as the terminal; to a pipe without colour and without breaking lines."""
    console = Console(highlight=False)
    for thing in things:
        console.print(thing, soft_wrap=isinstance(thing, Text) and not console.is_terminal)


def _plain_table(title: str = "") -> Table:
    return Table(
        title=Text(title, "bold") if title else None, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False,
        pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", border_style="dim",
    )  # fmt: skip
