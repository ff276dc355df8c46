"""What a person sees on a terminal: the table that grows while a run goes on, its closing lines, runs and plans."""

from __future__ import annotations

import atexit
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
from collbench.formats import (
    AXES,
    PLACES,
    Gathered,
    Outcome,
    along,
    axes,
    by_mode,
    cells,
    duration,
    plain,
    size,
)
from collbench.records import End, Run, World
from collbench.suite import Case, Skip
from collbench.summary import clock, summary

HEADS = {"collective": "", "implementation": "impl", "algbw": "algbw\nGB/s", "busbw": "busbw\nGB/s"}
LEFT = (*AXES, "flags")
DROPPED = ("min", "skew", "algbw", "wrong", "tail", "N")  # columns given up on a narrow terminal, in this order
STYLES = {"bad": "bold red", "notice": "yellow", "quiet": "dim", "": ""}
FLAGS_WIDTH = 14  # flags may wrap, but not below this


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """A case that would run: bytes of buffers on each rank, how many pairs take turns, seconds; or why it would not."""

    label: str
    size: int
    buffers: int = 0
    rotation: int = 0
    seconds: float = 0.0
    skip: str = ""


class Status(Gathered):
    """Progress only, on the error terminal, for formats that are piped. Silent where that is no terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._now: tuple[Case, str, float] | None = None

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        super().begin(run, cases, skips)
        self._began = time.monotonic()
        self._header = header(run, cases, {})
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._view, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
            atexit.register(self.close)

    def world(self, world: World) -> None:
        super().world(world)
        self._header = header(self.run, self.cases, self.worlds)

    def phase(self, case: Case, phase: str, fraction: float) -> None:
        self._now = (case, phase, fraction)

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
        return progress(len(self.arrived), len(self.cases), time.monotonic() - self._began, self._now)


class LiveTable(Status):
    """Progress and the latest rows while the run goes on; the whole tables and the closing lines once it has ended."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console or Console(highlight=False))

    def end(self, end: End, path: Path | None) -> None:
        super().end(end, path)
        self._console.print(self._header)
        for mode, outcomes in by_mode(self.outcomes):
            self._console.print("", table(mode, outcomes, self.cases, self._console.width), sep="\n")
        self._console.print()
        for style, line in summary(self):  # wrapped between words only, so that a long path can be copied
            parts = Text(line, STYLES[style]).wrap(self._console, self._console.width - 4, overflow="ignore")
            self._console.print(Text("\n    ").join(parts), no_wrap=True, overflow="ignore", crop=False)

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
    precision = f"±{policy.precision:.3g%}" if policy.precision else "precision auto"
    how = [" and ".join(dict.fromkeys(case.mode for case in cases)), f"{policy.sync} sync", f"{policy.cache} cache"]
    how.append(
        f"{policy.iters} iterations" if policy.iters else f"{precision}, at most {policy.max_seconds:g} s a case"
    )
    where = " · ".join(plain(part) for part in _machine(run, worlds) if part)
    text = Text(f"collbench {__version__}  ", "bold", no_wrap=True, overflow="ellipsis")
    text.append(plain(" · ".join(filter(None, what))), "not bold").append(f"\n{where}\n{plain(' · '.join(how))}", "not bold dim")
    return text


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


def progress(done: int, total: int, elapsed: float, now: tuple[Case, str, float] | None) -> RenderableType:
    """A bar with what is done, how long it took and will take; and what happens at this moment."""
    achieved = min(total, done + (now[2] if now and done < total else 0.0))
    left = f"{clock(elapsed * (total - achieved) / achieved)} left" if achieved >= 0.5 else ""
    grid = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(total=max(1, total), completed=achieved, width=24, complete_style="cyan")
    grid.add_row(bar, f"{done}/{total}", f"{clock(elapsed)} elapsed", left)
    if now is None:
        return Group(grid, Text("starting ranks", "dim"))
    case, phase, fraction = now
    doing = f"{size(case.size)}, {axes([case])[1]}: {phase}" + (f" {fraction:.0%}" if fraction else "")
    return Group(grid, Text(plain(doing), "dim", no_wrap=True, overflow="ellipsis"))


def table(
    mode: str, outcomes: Sequence[Outcome], cases: Sequence[Case], width: int = 100, live: bool = False
) -> Table:
    """A line per case of ``mode``. Axes along which ``cases``, the plan, do not vary have no column (the header names
    them); what else does not fit ``width`` goes in the order of DROPPED, but never a count of wrong elements."""
    varying, constant = axes([case for case in cases if case.mode == mode] or [record.case for record, _ in outcomes])
    lines = [cells(*outcome) for outcome in outcomes]
    wrong = any(record.wrong for record, _ in outcomes)
    names = _fitting([name for name in lines[0] if name not in AXES or name in varying], lines, width, wrong)
    several = len({case.mode for case in cases}) > 1
    view = Table(
        title=Text(plain(f"{mode}: {constant}"), "bold") if several else None, title_justify="left",
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="", border_style="dim",
    )  # fmt: skip
    for name in names:
        quiet = "dim" if name in ("min", "algbw", "skew", "N") else ""
        view.add_column(
            Text(HEADS.get(name, name), "bold"), justify="left" if name in LEFT else "right", style=quiet,
            vertical="top", no_wrap=live or name != "flags", overflow="ellipsis",
        )  # fmt: skip
    before: list[str] = []
    for (record, _), line in zip(outcomes, lines, strict=True):
        group = [line[name] for name in names if name in AXES and name != "place"]
        if before and not live and group != before:
            view.add_section()
        before = group
        bad = "bold red" if record.status == "wrong" else "red" if record.status == "failed" else ""
        view.add_row(
            *(_flagged(line[name]) if name == "flags" and not bad else Text(line[name]) for name in names), style=bad
        )
    return view


def _flagged(flags: str) -> Text:
    return Text(" ").join(Text(flag, "bold yellow" if flag.endswith("!") else "yellow") for flag in flags.split())


def _fitting(names: list[str], lines: Sequence[Mapping[str, str]], width: int, wrong: bool) -> list[str]:
    needed = {
        name: max(*map(cell_len, HEADS.get(name, name).split("\n")), *(cell_len(line[name]) for line in lines))
        for name in names
    }
    needed["flags"] = min(needed["flags"], FLAGS_WIDTH)
    kept = list(names)
    for name in DROPPED:
        if sum(needed[k] + 2 for k in kept) > width and not (name == "wrong" and wrong):
            kept.remove(name)
    return kept


def runs_table(runs: Sequence[Run]) -> Table:
    """Saved runs, oldest first as ``records.saved`` has them, with the name each answers to."""
    view = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), border_style="dim")
    for name in ("name", "id", "started", "tag", "suite", "command"):
        view.add_column(name, no_wrap=True, overflow="ellipsis", min_width=None if name == "command" else 4)
    for back, run in zip(range(len(runs) - 1, -1, -1), runs, strict=True):
        name = f"@last~{back}" if back else "@last"
        parts = (name, run.id, run.started, run.tag, run.suite.name, " ".join(run.command))
        view.add_row(*(Text(plain(part)) for part in parts))
    return view


def plan_table(rows: Sequence[PlanRow]) -> RenderableType:
    """What --dry-run shows: each case with the memory and time it will take, and the sum."""
    view = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), border_style="dim")
    view.add_column("case", overflow="fold")
    for name in ("size", "buffers/rank", "pairs", "time"):
        view.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        label = Text(plain(row.label))
        if row.skip:
            view.add_row(label.append(f"  skipped: {plain(row.skip)}", "yellow"), size(row.size), "", "", "")
        else:
            view.add_row(label, size(row.size), size(row.buffers), str(row.rotation), duration(row.seconds * 1e9))
    run = [row for row in rows if not row.skip]
    total = f"{len(run)} cases, about {clock(sum(row.seconds for row in run))}"
    most = max((row.buffers for row in run), default=0)
    return Group(view, Text(f"{total}; at most {size(most)} of buffers a rank; {len(rows) - len(run)} skipped"))
