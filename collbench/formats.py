"""What a run reports to (Reporter), formats for programs and pull requests, and how numbers are written for people."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from collbench.inject import planted
from collbench.records import End, Record, Row, Run, World
from collbench.suite import MODES, Case, Skip

Outcome = tuple[Record, Row | None]
AXES = (
    "collective", "ranks", "groups", "group", "env", "implementation", "type", "op", "root", "splits", "cycle", "place",
)  # fmt: skip
OPTIONAL = ("device", "host", "wirebw", "ran")  # columns of tables for people, where a line has something to say
PLACES = {"out": "out of place", "in": "in place"}
LEFT = (*AXES, "ran", "flags")  # columns of words
OWN = ("status", "note", "wrong", "checked", "rotation", "sync")
COLUMNS = (*Case.__struct_fields__, "implementation", "count", "size", *OWN, *Row.__struct_fields__)

FLAGS = {
    "injected": "a fault was planted on purpose (--inject): shows that an alarm fires, and nothing of the machine",
    "predicted": "computed from a model of the network, not measured",
    "oversubscribed": "more ranks than physical cores: times include waiting for a core",
    "n<6": "fewer than 6 samples: too few for an interval",
    "unconverged": "time or samples ran out before the interval was as narrow as asked for",
    "unsteady": "times were still changing when warm-up had to end",
    "skewed": "ranks started apart by more than 5 % of the time (with !: 20 %)",
    "overhead": "measuring itself takes more than 5 % of the time (with !: 20 %)",
    "invalid": "more than 5 % of the samples had to be repeated (with !: 25 %)",
    "bimodal": "times fall into two groups: the median may be a time that never occurs",
    "late": "this rank came last far more often than chance explains; the others wait for it",
    "+copy": "the timed call begins with a copy, since the library has no such out-of-place call",
    "imported": "read from another tool's log, which tells less than samples do: never decides a comparison",
    "blocking": "each call's time includes a wait for all ranks (-z 1)",
    "interpreted": "kernels ran in Triton's interpreter, on CPUs: shows that results are right, and no time",
    "virtual": "all ranks are virtual ones on one GPU: what an algorithm costs there, not what links between GPUs do",
    "shared-gpu": "ranks share a GPU: shows that it runs, not what a machine can do",
    "throttled": "a GPU was held back meanwhile (power, heat, clock): samples of those moments were replaced",
    "few-buffers": "too little memory for enough buffers: some data may still be in a cache",
    "no-effect": "the library did not follow a setting that was asked for; the record's note says which",
    "no-splits": "the file that said how data is split cannot be read any more: bandwidth is unknown",
}


class Reporter(Protocol):
    """Told about a run as it goes. ``cases`` come in plan order, records in any; subclasses inherit doing nothing.

    ``phase`` is called often and must cost next to nothing; ``fraction`` is how much of its case is done, 0..1.
    ``end`` is called once, also when the run was cut short; ``path`` is None for a run that was not saved.
    """

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        return

    def world(self, world: World) -> None:
        return

    def phase(self, case: Case, phase: str, fraction: float) -> None:
        return

    def record(self, record: Record, row: Row | None) -> None:
        return

    def end(self, end: End, path: Path | None) -> None:
        return


class Several(Reporter):
    """Passes everything on to each of ``reporters``, in their order."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        for reporter in self._reporters:
            reporter.begin(run, cases, skips)

    def world(self, world: World) -> None:
        for reporter in self._reporters:
            reporter.world(world)

    def phase(self, case: Case, phase: str, fraction: float) -> None:
        for reporter in self._reporters:
            reporter.phase(case, phase, fraction)

    def record(self, record: Record, row: Row | None) -> None:
        for reporter in self._reporters:
            reporter.record(record, row)

    def end(self, end: End, path: Path | None) -> None:
        for reporter in self._reporters:
            reporter.end(end, path)


class Gathered(Reporter):
    """Keeps everything it is told, for reporters that need the whole; ``outcomes`` come back in plan order."""

    run: Run
    ended: End | None = None
    path: Path | None = None

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        self.run, self.cases, self.skips = run, cases, skips
        self.worlds: dict[int, World] = {}
        self.arrived: list[Outcome] = []
        self._place = {case: place for place, case in enumerate(cases)}

    def world(self, world: World) -> None:
        self.worlds[world.index] = world

    def record(self, record: Record, row: Row | None) -> None:
        self.arrived.append((record, row))

    def end(self, end: End, path: Path | None) -> None:
        self.ended, self.path = end, path

    @property
    def outcomes(self) -> list[Outcome]:
        return self.planned(self.arrived)

    def planned(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        return sorted(outcomes, key=lambda outcome: self._place.get(outcome[0].case, len(self._place)))


class Csv(Reporter):
    """A header, then one line per record as it arrives. Nanoseconds, bytes, GB/s; empty where undefined."""

    def __init__(self, out: IO[str]) -> None:
        self._out, self._writer = out, csv.DictWriter(out, COLUMNS, lineterminator="\n")

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        self._writer.writeheader()

    def record(self, record: Record, row: Row | None) -> None:
        values = flat(record, row) | {"env": settings(record.case.env), "note": plain(record.note)}
        self._writer.writerow(
            {k: " ".join(map(str, v)) if isinstance(v, tuple) else inert(v) for k, v in values.items()}
        )
        self._out.flush()


class Json(Gathered):
    """One object when the run ends: the run, and per record its case with everything derived."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def end(self, end: End, path: Path | None) -> None:
        whole = {"run": self.run, "records": [flat(*o) for o in self.outcomes], "skips": self.skips, "end": end}
        self._out.write(msgspec.json.encode(whole).decode() + "\n")  # msgspec writes infinities as null
        self._out.flush()


class Markdown(Gathered):
    """Tables for a pull request when the run ends, one per mode."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def end(self, end: End, path: Path | None) -> None:
        lines: list[str] = [f"**{escaped(words)}**\n"] if (words := planted(self.run.policy.inject)) else []
        for mode, outcomes in by_mode(self.outcomes):
            varying, constant = axes([record.case for record, _ in outcomes])
            rows = [cells(*outcome) for outcome in outcomes]
            names = columns(rows, varying)
            heads = [f"{name} GB/s" if name.endswith("bw") else name for name in names]
            lines += [f"### {escaped(constant)}, {mode}", "", f"| {' | '.join(heads)} |"]
            lines += [f"|{'|'.join('---' if name in LEFT else '--:' for name in names)}|"]
            lines += [f"| {' | '.join(escaped(row[name]) for name in names)} |" for row in rows] + [""]
        lines += [f"{number} skipped: {escaped(reason)}\n" for reason, number in reasons(self.skips, self.arrived)]
        lines += [f"Ended early: {escaped(end.note)}\n"] if end.note else []
        self._out.write("\n".join(lines))
        self._out.flush()


def flat(record: Record, row: Row | None) -> dict[str, Any]:
    """A record as ``records.frame`` names its columns; derived ones are None where nothing is known."""
    case = record.case
    derived = msgspec.structs.asdict(row) if row else {}
    unknown = [name for name, value in derived.items() if isinstance(value, float) and math.isnan(value)]
    values = dict.fromkeys(COLUMNS) | msgspec.structs.asdict(case) | derived | dict.fromkeys(unknown)
    own = {name: getattr(record, name) for name in OWN}
    return values | own | {"implementation": case.label, "count": case.count, "size": case.size}


def columns(lines: Sequence[Mapping[str, str]], varying: Sequence[str]) -> list[str]:
    """Names of the columns that a table of ``lines`` (see cells) has, where cases differ along the axes ``varying``."""
    idle = {name for name in OPTIONAL if not any(line[name] for line in lines)} | (set(AXES) - set(varying))
    return [name for name in lines[0] if name not in idle]


def by_mode(outcomes: Sequence[Outcome]) -> list[tuple[str, list[Outcome]]]:
    """Modes measure different things, so that nothing shows two of them side by side."""
    chosen = [(mode, [o for o in outcomes if o[0].case.mode == mode and o[0].status != "skipped"]) for mode in MODES]
    return [(mode, members) for mode, members in chosen if members]


def axes(cases: Sequence[Case]) -> tuple[list[str], str]:
    """Names of the axes along which ``cases`` differ, and what they have in common, in words."""
    values = [along(case) for case in cases]
    varying = [name for name in AXES if len({v[name] for v in values}) > 1]
    words = worded(cases[0])
    return varying, ", ".join(words[name] for name in AXES if name not in varying and words[name])


def worded(case: Case) -> dict[str, str]:
    """As ``along``, in words that say what they are of; nothing of the cycle."""
    root = f"root {case.root}" if case.root >= 0 else ""
    place = PLACES["in" if case.in_place else "out"]
    words = {"ranks": counted(case.n, "rank"), "root": root, "cycle": "", "place": place}
    if case.groups:
        words |= {"groups": f"{counted(case.of, 'group')} by {case.groups}", "group": f"group {case.group}"}
    return along(case) | words


def along(case: Case) -> dict[str, str]:
    """Where ``case`` stands on each of AXES."""
    return {
        "collective": case.collective,
        "ranks": str(case.n),
        "groups": case.groups,
        "group": str(case.group) if case.groups else "",
        "env": settings(case.env),
        "implementation": case.label,
        "type": case.dtype,
        "op": "" if case.op == "none" else case.op,
        "root": "" if case.root < 0 else str(case.root),
        "splits": case.splits,
        "cycle": str(case.cycle + 1),
        "place": "in" if case.in_place else "out",
    }


def cells(record: Record, row: Row | None) -> dict[str, str]:
    """A line of a table for people, by column. Times of wrong data are not shown: they measure something else."""
    note = [f"{record.status}: {plain(record.note)}"] if record.status in ("failed", "wrong") and record.note else []
    named = {"bimodal": "bimodal:" + "|".join(duration(mode).replace(" ", "") for mode in (row and row.modes) or ())}
    flags = [named.get(flag, flag) for flag in (row.flags if row else ())]
    shown = row if record.status != "wrong" else None
    place, more = along(record.case), optional(shown)
    unknown = shown.clock_error if shown and shown.skew is not None and shown.skew < shown.clock_error else 0
    return {
        **{name: place[name] for name in AXES[:-1]},
        "size": size(record.case.size),
        "place": place["place"],
        "median": duration(shown.median) if shown else "-",
        "±": interval(shown) if shown else "-",
        "device": more["device"],
        "host": more["host"],
        "tail": tail(shown) if shown else "-",
        "N": str(shown.samples or "-") if shown else "-",
        "min": duration(shown.min) if shown else "-",
        "algbw": bandwidth(shown.algbw) if shown else "-",
        "busbw": bandwidth(shown.busbw) if shown else "-",
        "wirebw": more["wirebw"],
        "skew": (unknown and f"<{duration(unknown)}") or duration(shown.skew) if shown else "-",
        "wrong": "-" if record.wrong is None else str(record.wrong),
        "ran": more["ran"],
        "flags": " ".join([*note, *flags]) or ("" if row else record.status),
    }


def optional(row: Row | None) -> dict[str, str]:
    """What few rows have something to say of, by the names of OPTIONAL; times are by the clock that made no median."""
    times = {"device": row.device, "host": row.host} if row else {}
    said = {name: duration(time) for name, time in times.items() if time is not None and row and time != row.median}
    if row and row.wirebw is not None:
        said["wirebw"] = bandwidth(row.wirebw)
    return {name: said.get(name, "") for name in OPTIONAL} | {"ran": plain(row.chose) if row else ""}


def reasons(skips: Iterable[Skip], outcomes: Iterable[Outcome] = ()) -> list[tuple[str, int]]:
    """Why cases did not run, most frequent first, with how many; planned skips and those found out on the way."""
    late = (plain(record.note) or "no reason given" for record, _ in outcomes if record.status == "skipped")
    return Counter([*(plain(skip.reason) for skip in skips), *late]).most_common()


def size(nbytes: float) -> str:
    """8 B, 1.5 KiB, 64 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def duration(ns: float | None) -> str:
    """Three significant digits with the unit that suits: 28.4 µs, 812 µs, 1.00 ms."""
    if ns is None or not math.isfinite(ns):
        return "-"
    for unit, scale in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6)):
        value = float(f"{ns / scale:.3g}")
        if value < 1000:
            return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
    return f"{ns / 1e9:.{2 if ns < 9.995e9 else 1 if ns < 99.95e9 else 0}f} s"


def interval(row: Row) -> str:
    """The larger half of the median's 95 % interval, relative to it: ±0.8 %; ±∞ with too few samples."""
    half = max(row.hi - row.median, row.median - row.lo) / row.median if row.median else math.inf
    return "±∞" if not math.isfinite(half) else f"±{half:.{1 if half < 0.0995 else 0}%}"


def bandwidth(value: float | None) -> str:
    """GB/s with three or four digits; n/a where there is no such bandwidth, or it is not known."""
    if value is None or math.isnan(value):
        return "n/a"
    limits = ((1e-9, 0), (0.00095, 4), (0.0995, 3), (9.995, 2), (999.95, 1), (math.inf, 0))
    return f"{value:.{next(decimals for limit, decimals in limits if value <= limit)}f}"


def tail(row: Row) -> str:
    """The highest quantile that the samples can bound, named; else the maximum, for which see the N beside it."""
    named = {"p99": row.p99, "p95": row.p95, "max": None if math.isnan(row.max) else row.max}
    return next((f"{name} {duration(value)}" for name, value in named.items() if value is not None), "-")


def settings(env: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"{name}={value}" for name, value in env)


def plain(text: str) -> str:
    """``text`` on one line, without anything that could steer a terminal or break a line-based format."""
    return text.strip() if text.isprintable() else "".join(c if c.isprintable() else " " for c in text).strip()


def inert(value: Any) -> Any:
    """A text as no spreadsheet takes it for a formula, wherever it cuts a line; all else as it is."""
    return re.sub(r"(^|[;\t\r\n])(?=[=+\-@\t\r])", r"\1'", value) if isinstance(value, str) else value


def escaped(text: str) -> str:
    """``text`` as Markdown that shows it literally, in a table cell and on GitHub too: no entity, no formula, nobody
    mentioned."""
    text = re.sub(r"([\\`*_\[\]<>|~#$])", r"\\\1", plain(text)).replace("&", "&amp;")
    return re.sub(r"(?<![\w.])@(?=\w)", "@\u200b", text)


def counted(number: int, what: str) -> str:
    """1 row, 2 rows, 1,200 rows."""
    return f"{number:,} {what}{'' if number == 1 else 'es' if what.endswith('ch') else 's'}"
