"""A night: what its runs measured, gathered once for all checks, each time with the launch that it is of.

A launch (a process group that was started anew) is the unit of every claim, as in comparisons: samples of one launch
share its placement, its channels and its clocks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from collbench import environment, records
from collbench.efficiency import Point
from collbench.formats import counted, plain, size
from collbench.health.findings import Evidence, Subject
from collbench.records import Record, Row, RunFile, World
from collbench.suite import Case

LAUNCHES = 3  # from which on a median over launches, and their scatter, say something
BIMODAL = "bimodal"  # between two modes a median jumps from launch to launch
INJECTED = "injected"  # the flag of rows that a fault was planted in

Launch = tuple[int, int]  # number of the run, index of the world


class Told(NamedTuple):
    """A record with its run, world and what was derived of it."""

    file: RunFile
    record: Record
    row: Row | None
    world: World | None


class Timing(NamedTuple):
    """A case (cycle 0) in each launch that counts: ns a call. ``lost`` says, by reason, how many launches do not."""

    case: Case
    run: str
    moved: float
    medians: dict[Launch, float]
    lost: Counter[str]

    @property
    def fit(self) -> bool:
        return len(self.medians) >= LAUNCHES

    @property
    def median(self) -> float:
        return float(np.median(list(self.medians.values())))


class Night:
    """Runs of one night. ``trouble`` is why they make no night, or empty; derived values are made when asked for."""

    def __init__(self, files: Sequence[RunFile]) -> None:
        self.files = list(files)
        self.trouble = trouble(self.files)
        self.told = [
            Told(file, record, row, worlds.get(record.world))
            for file in self.files
            for worlds in [{world.index: world for world in file.worlds}]
            for record, row in zip(file.records, records.derived(file), strict=True)
        ]

    @cached_property
    def timings(self) -> dict[Case, Timing]:
        """Every case that was measured, by the case itself."""
        found: dict[Case, dict[Launch, list[float]]] = {}
        lost: dict[Case, dict[Launch, str]] = {}
        first: dict[Case, Told] = {}
        number = {file.run.id: place for place, file in enumerate(self.files)}
        for told in self.told:
            record, row = told.record, told.row
            if record.status != "ok" or row is None or row.median <= 0:
                continue
            case = msgspec.structs.replace(record.case, cycle=0)
            launch = number[told.file.run.id], record.world
            first.setdefault(case, told)
            why = _unfit(row)
            if why:
                lost.setdefault(case, {})[launch] = why
            else:
                found.setdefault(case, {}).setdefault(launch, []).append(row.median)
        return {case: _timing(case, told, found.get(case, {}), lost.get(case, {})) for case, told in first.items()}

    @cached_property
    def fit(self) -> list[Timing]:
        return [timing for timing in self.timings.values() if timing.fit]

    @property
    def unfit(self) -> str:
        """How many rows nothing can rest on, and why, for a check's note; empty if there are none."""
        left = [timing for timing in self.timings.values() if not timing.fit]
        if not left:
            return ""
        few = f"fewer than {LAUNCHES} launches"
        reasons = Counter(timing.lost.most_common(1)[0][0] if timing.lost else few for timing in left)
        told = ", ".join(f"{reason} ({times:,})" for reason, times in reasons.most_common(3))
        return f"{counted(len(left), 'row')} left out: {told}"

    @cached_property
    def points(self) -> list[Point]:
        """The fit rows as efficiency.py takes them, each with the range of its launches for an interval."""
        places = {file.run.id: place for place, file in enumerate(self.files)}
        rows = {msgspec.structs.replace(t.record.case, cycle=0): t.row for t in reversed(self.told) if t.row}
        return [_point(timing, rows[timing.case], places[timing.run]) for timing in self.fit if timing.case in rows]

    @property
    def hosts(self) -> list[str]:
        return sorted({info.host for file in self.files for world in file.worlds for info in world.ranks})

    @property
    def wired(self) -> bool:
        """Whether anything but a host's own memory is between ranks."""
        ranks = [info for file in self.files for world in file.worlds for info in world.ranks]
        return len(self.hosts) > 1 or any(info.device != "cpu" for info in ranks)


def trouble(files: Sequence[RunFile]) -> str:
    """Why runs are no night: of different machines, or not measured; empty where they are one."""
    for file in files:
        if file.run.pairing:
            return f"{file.run.id} is a side of an experiment: collbench compare judges it"
        if file.run.imported:
            return f"{file.run.id} was imported from {file.run.imported}: what was checked is unknown"
        if any(record.status == "predicted" for record in file.records):
            return f"{file.run.id} is a model's prediction"
    for file in files[1:]:
        if apart := environment.differences(files[0].run.environment, file.run.environment):
            return f"{files[0].run.id} and {file.run.id} are of different machines or software: {apart[0][0]}"
        if placed(file) != placed(files[0]):
            return f"{files[0].run.id} and {file.run.id} ran on different hosts"
    return ""


def placed(file: RunFile) -> set[str]:
    return {info.host for world in file.worlds for info in world.ranks}


def broken(row: Row, harmless: Collection[str] = ()) -> str:
    """The flag, of those that are not ``harmless``, for which nothing may be said of a row, or an empty string. That a
    fault was planted is none: an alarm is to be heard when it is tried."""
    return next(iter(sorted(records.UNFIT.intersection(row.flags) - {INJECTED, *harmless})), "").rstrip("!")


def _unfit(row: Row) -> str:
    return broken(row) or (BIMODAL if BIMODAL in row.flags else "")


def _timing(case: Case, told: Told, found: dict[Launch, list[float]], lost: dict[Launch, str]) -> Timing:
    medians = {launch: float(np.median(cycles)) for launch, cycles in found.items()}
    moved = told.row.algbw * told.row.median if told.row else math.nan
    return Timing(case, told.file.run.id, moved, medians, Counter(lost.values()))


def _point(timing: Timing, row: Row, run: int) -> Point:
    case, middle, values = timing.case, timing.median, timing.medians.values()
    algbw = timing.moved / middle
    return Point(
        run=run, case=case, size=case.size, moved=timing.moved, median=middle, lo=min(values), hi=max(values),
        samples=row.samples, n_eff=row.n_eff, algbw=algbw, flags=row.flags, launches=len(values), first=row, record=0,
        busbw=None if row.busbw is None else algbw * case.row.busbw(case.n),
    )  # fmt: skip


def named(case: Case) -> str:
    """A case in words: all_reduce 1 MiB on 8 ranks, ring@gloo."""
    what = f"{case.collective} {size(case.size)}" if case.size else case.collective
    rest = [case.label, *([] if case.dtype == "float" or not case.size else [case.dtype]),
            *(["in place"] if case.in_place else []), *(f"{k}={v}" for k, v in case.env)]  # fmt: skip
    return plain(f"{what} on {counted(case.n, 'rank')}, {', '.join(rest)}")


def where(world: World | None, rank: int) -> Subject:
    """Who a rank is: its GPU where it has one of its own, else host and rank; the rank alone where nobody knows."""
    info = next((info for info in world.ranks if info.rank == rank), None) if world else None
    if info is None:
        return Subject("rank", f"rank {rank}")
    if info.device.startswith("cuda") and world and not world.shared_gpu:
        return Subject("gpu", f"{info.host}:{info.device} (rank {rank})")
    return Subject("rank", f"{info.host}:{rank}")


def host_of(subject: Subject) -> tuple[str, ...]:
    """The hosts that a subject is of, as far as its name tells."""
    if subject.kind not in ("host", "rank", "gpu", "link"):
        return ()
    return tuple(dict.fromkeys(end.split(":")[0].strip() for end in subject.name.split("->")))


def evidence(told: Told, what: str, value: float | str, expected: float | str = "", unit: str = "") -> Evidence:
    return Evidence(what=what, value=value, expected=expected, unit=unit, run=told.file.run.id,
                    case=told.record.case.key)  # fmt: skip


def several(names: Iterable[str], most: int = 3) -> str:
    """The first few, and how many more."""
    listed = list(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
