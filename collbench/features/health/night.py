"""A night: what its runs measured, gathered once for all checks, each time with the launch that it
is of.

A launch (a process group that was started anew) is the unit of every claim, as in comparisons:
samples of one launch share its placement, its channels and its clocks.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from collbench.core.text import format_count
from collbench.features.health.findings import Evidence, Subject
from collbench.machine import environment
from collbench.records import derive, origins, rows
from collbench.records.flags import BIMODAL, EXCLUDED, INJECTED, UNGATED
from collbench.records.points import Point, over_launches
from collbench.records.rows import Launch, Row
from collbench.records.types import Record, RunFile, World
from collbench.suite.case import Case

LAUNCHES = 3  # from which on a median over launches, and their scatter, say something

DEVICES = re.compile(r"(gpus\.(devices|links)|nics|rdma)\.")  # key paths of what may break

HARDWARE = re.compile(  # of these, those that no setting changes
    r"gpus\.(devices\.\d+\.(name|memory|nvlinks|numa)|links\..+)|nics\..+\.mbps|rdma\..+\.(rate|link)"
)


class NightRecord(NamedTuple):
    """A record with its run, its world and what was derived of it."""

    file: RunFile
    record: Record
    row: derive.Derived | None
    world: World | None


class Timing(NamedTuple):
    """A case (cycle 0) in each launch that a judgement may rest on: ns a call. ``lost`` says, by
    reason, how many launches tell nothing, none of which is among ``medians``. ``carried`` is how
    many times what its algorithm's schedule has links carried. ``cycles`` are the launches' first
    cycles."""

    case: Case
    run: str
    moved: float
    medians: dict[Launch, float]
    lost: Counter[str]
    carried: float = 1.0
    cycles: Mapping[Launch, int] = {}

    @property
    def by_cycle(self) -> dict[tuple[str, int], float]:
        """The medians by run and cycle, which worlds of other settings have in common."""
        return {(at.run, self.cycles[at]): median for at, median in self.medians.items()}

    @property
    def fit(self) -> bool:
        """Whether there are launches enough to judge."""
        return len(self.medians) >= LAUNCHES

    @property
    def median(self) -> float:
        """The median of the launches' medians, in ns."""
        return float(np.median(list(self.medians.values())))


class Night:
    """Runs of one night. ``trouble`` is why they make no night, or empty; derived values are made
    when asked for."""

    def __init__(self, files: Sequence[RunFile]) -> None:
        self.files = list(files)
        self.trouble = explain_trouble(self.files)
        self.rows = rows.make_rows(self.files)
        worlds = [{world.index: world for world in file.worlds} for file in self.files]
        cycles = [(row.file, cycle) for row in self.rows for cycle in row.cycles]
        self.records = [
            NightRecord(
                self.files[file], cycle.record, cycle.derived, worlds[file].get(cycle.record.world)
            )
            for file, cycle in sorted(cycles, key=lambda item: (item[0], item[1].number))
        ]

    @cached_property
    def _timed(self) -> dict[Case, list[Row]]:
        """The rows that ran, by case; of a run given twice once. Where a launcher starts ranks,
        each launch is a run, so that launches share flags over runs."""
        ran = {(row.case, row.launch): row for row in self.rows if row.ran}
        together = rows.group_rows(ran.values(), lambda row: row.case)
        return {case: rows.share_between(launches) for case, launches in together.items()}

    @cached_property
    def timings(self) -> dict[Case, Timing]:
        """Every case that was measured, by the case itself."""
        return {case: _make_timing(case, records) for case, records in self._timed.items()}

    @cached_property
    def fit(self) -> list[Timing]:
        """Timings with launches enough to judge."""
        return [timing for timing in self.timings.values() if timing.fit]

    @property
    def unfit(self) -> str:
        """How many rows nothing can rest on, and why, for a check's note; empty if there are
        none."""
        excluded = [timing for timing in self.timings.values() if not timing.fit]
        if not excluded:
            return ""
        few = f"fewer than {LAUNCHES} launches"
        reasons = Counter(
            timing.lost.most_common(1)[0][0] if timing.lost else few for timing in excluded
        )
        commonest = ", ".join(f"{reason} ({times:,})" for reason, times in reasons.most_common(3))
        return f"{format_count(len(excluded), 'row')} left out: {commonest}"

    @cached_property
    def points(self) -> list[Point]:
        """The fit rows as efficiency.py takes them."""
        return [over_launches(_select_grounds(self._timed[timing.case])) for timing in self.fit]

    @property
    def hosts(self) -> list[str]:
        """Hosts of all runs of the night."""
        return sorted(
            {info.host for file in self.files for world in file.worlds for info in world.ranks}
        )

    @property
    def wired(self) -> bool:
        """Whether anything but a host's own memory is between ranks."""
        ranks = [info for file in self.files for world in file.worlds for info in world.ranks]
        return len(self.hosts) > 1 or any(info.device != "cpu" for info in ranks)


def explain_trouble(files: Sequence[RunFile]) -> str:
    """The reason why runs form no night: they are of different machines, or were not measured;
    empty where they do. Hardware of a host that changed between them is none (find_changes)."""
    for file in files:
        if file.run.pairing:
            return f"{file.run.id} is a side of an experiment: collbench compare judges it"
        if file.run.imported:
            return (
                f"{file.run.id} was imported from {file.run.imported}: health judges runs that"
                " collbench measured"
            )
        if reason := origins.explain_unmeasured(file):
            return f"{file.run.id} was {reason}"
    for file in files[1:]:
        old, new = files[0].run.environment, file.run.environment
        differences = environment.find_differences(old, new, files[0].backends | file.backends)
        if old.get("host") and old["host"] == new.get("host"):
            differences = [fact for fact in differences if not _is_hardware(fact)]
        if differences:
            names = f"{files[0].run.id} and {file.run.id}"
            return f"{names} are no night: {environment.explain_differences(differences)}"
        if list_devices(file) != list_devices(files[0]):
            return f"{files[0].run.id} and {file.run.id} ran on different hosts"
    return ""


class Change(NamedTuple):
    """A fact of a host that in this run is not what it was in the run before."""

    host: str
    run: str
    difference: environment.Difference


def find_changes(files: Iterable[RunFile]) -> list[Change]:
    """The facts of GPUs, network cards and ports that changed on a host from run to run."""
    last: dict[str, Mapping[str, Any]] = {}
    changes = []
    for file in sorted(files, key=lambda file: file.run.started):
        for host, facts in _list_hardware(file).items():
            before = last.get(host, facts)
            last[host] = facts
            changes += [
                Change(host, file.run.id, difference)
                for fact in sorted({*before, *facts})
                if before.get(fact) != facts.get(fact)
                and _is_hardware(difference := (fact, before.get(fact), facts.get(fact)))
            ]
    return changes


def _list_hardware(file: RunFile) -> dict[str, Mapping[str, Any]]:
    """Facts of GPUs, network cards and ports by host. Of a world's other hosts than the run's own
    it has those in which hosts differ: in all others they are like this one."""
    host = file.run.environment.get("host")
    relevant = environment.select_relevant(file.run.environment)
    facts = {fact: value for fact, value in relevant.items() if DEVICES.match(fact)}
    by_host: dict[str, Mapping[str, Any]] = {str(host): facts} if host else {}
    for world in file.worlds:
        if any(info.host == host for info in world.hosts):
            for info in world.hosts:
                by_host.setdefault(info.host, facts | info.differs)
    return by_host


def _is_hardware(difference: environment.Difference) -> bool:
    """Whether a GPU, card or port differs, or is absent, and not just its software or settings."""
    fact, *values = difference
    return bool(HARDWARE.fullmatch(fact) or (None in values and DEVICES.match(fact)))


def list_devices(file: RunFile) -> set[str]:
    """Hosts of a run's ranks."""
    return {info.host for world in file.worlds for info in world.ranks}


def find_broken(flags: Iterable[str], harmless: Collection[str] = ()) -> str:
    """The flag, of those that are not ``harmless``, for which nothing may be said of a row, or an
    empty string. That a fault was planted is none: an alarm is to be heard when it is tried."""
    bad = {*EXCLUDED, *UNGATED}.intersection(flags) - {INJECTED, *harmless}
    return min(bad, default="").rstrip("!")


def _select_grounds(launches: Sequence[Row]) -> list[Row]:
    return [row for row in rows.select_gateable(launches, (INJECTED,)) if not row.has(BIMODAL)]


def _make_timing(case: Case, launches: Sequence[Row]) -> Timing:
    grounds = _select_grounds(launches)
    medians = {row.launch: row.median for row in grounds}
    reasons = [
        find_broken((*row.unfit, *row.ungated)) or (BIMODAL if row.has(BIMODAL) else "")
        for row in launches
    ]
    first = next((c.derived for row in launches for c in row.cycles if c.derived), None)
    moved = first.algbw * first.times.median if first else math.nan
    carried = first.carried if first else 1.0
    cycles = {row.launch: row.cycles[0].record.case.cycle for row in grounds}
    lost = Counter(filter(None, reasons))
    return Timing(case, launches[0].run.id, moved, medians, lost, carried, cycles)


def locate_rank(world: World | None, rank: int) -> Subject:
    """A name for a rank: its GPU where it has one of its own, else host and rank; the rank alone
    where its host is unknown."""
    info = next((info for info in world.ranks if info.rank == rank), None) if world else None
    if info is None:
        return Subject("rank", f"rank {rank}")
    if info.gpu and world and not world.shared_gpu:
        return Subject("gpu", f"{info.host}:{info.gpu} (rank {rank})")
    return Subject("rank", f"{info.host}:{rank}")


def host_of(subject: Subject) -> tuple[str, ...]:
    """The hosts that a subject is of, as far as its name tells."""
    if subject.kind not in ("host", "rank", "gpu", "link"):
        return ()
    return tuple(dict.fromkeys(end.split(":")[0].strip() for end in subject.name.split("->")))


def make_evidence(
    entry: NightRecord, what: str, value: float | str, expected: float | str = "", unit: str = ""
) -> Evidence:
    """The evidence of a finding: a value of a case of a run, and what was expected of it."""
    return Evidence(
        what=what,
        value=value,
        expected=expected,
        unit=unit,
        run=entry.file.run.id,
        case=entry.record.case.key,
    )


def list_several(names: Iterable[str], most: int = 3) -> str:
    """The first few, and how many more."""
    listed = list(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
