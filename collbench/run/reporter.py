"""Whoever is told of a run as it goes: what reporters hear, several at once, and all of it kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from collbench.records.derive import Derived, Digested, digest_record
from collbench.records.types import End, Record, Run, RunFile, World
from collbench.suite.case import Case, Skip


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """A case that would run: memory of each rank, bytes through the busiest port per call, how many
    pairs of buffers take turns, estimated seconds, and ``most`` where times scatter (0 for what is
    measured along with another); or, in ``skipped``, why it would not.
    """

    case: Case
    bytes_per_rank: int = 0
    moved: int = 0
    rotation: int = 0
    seconds: float = 0.0
    most: float = 0.0
    skipped: str = ""


Outcome = tuple[Record, Derived | None]


class Reporter(Protocol):
    """Told about a run as it goes. ``cases`` come in plan order, records in any; subclasses inherit
    doing nothing.

    ``phase`` is called often and must cost next to nothing; ``fraction`` is how much of its case is
    done, 0..1. ``show_interim`` is about a step that is still measured: at first without a sample,
    what each part took while it warmed up (``setup_ns``). ``show_coarse`` is about a case of which
    one call was made, and which will be measured later. ``end`` is called once, also when the run
    was cut short; ``path`` is None for a run that was not saved. ``record`` gets a Digested one,
    so that a run of many ranks takes little memory, unless a reporter ``needs_samples``.
    """

    needs_samples: bool = False  # whether records come with all their samples

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        """A run begins, with these cases in plan order, and these left out."""
        return

    def world(self, world: World) -> None:
        """A world of ranks is there."""
        return

    def phase(self, case: Case, phase: str, fraction: float) -> None:
        """Ranks are at this phase of a case."""
        return

    def show_interim(self, record: Record) -> None:
        """A record of a case that is still measured, in place of the one before."""
        return

    def show_coarse(self, record: Record, row: Derived | None) -> None:
        """A record of a single call of a case that will be measured later."""
        return

    def record(self, record: Record, row: Derived | None) -> None:
        """A case is done; ``row`` is what is derived of it, None where nothing was measured."""
        return

    def end(self, end: End, path: Path | None) -> None:
        """The run is over."""
        return


class Several(Reporter):
    """Passes everything on to each of ``reporters``, in their order."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters
        self.needs_samples = any(reporter.needs_samples for reporter in reporters)

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        """Pass the run, its cases and skips on to each reporter."""
        for reporter in self._reporters:
            reporter.begin(run, cases, skips)

    def world(self, world: World) -> None:
        """Pass the world on to each reporter."""
        for reporter in self._reporters:
            reporter.world(world)

    def phase(self, case: Case, phase: str, fraction: float) -> None:
        """Pass the phase on to each reporter."""
        for reporter in self._reporters:
            reporter.phase(case, phase, fraction)

    def show_interim(self, record: Record) -> None:
        """Pass the interim record on to each reporter."""
        for reporter in self._reporters:
            reporter.show_interim(record)

    def show_coarse(self, record: Record, row: Derived | None) -> None:
        """Pass the record of a single call on to each reporter."""
        for reporter in self._reporters:
            reporter.show_coarse(record, row)

    def record(self, record: Record, row: Derived | None) -> None:
        """Pass the record on to each reporter."""
        for reporter in self._reporters:
            reporter.record(record, row)

    def end(self, end: End, path: Path | None) -> None:
        """Pass the end on to each reporter."""
        for reporter in self._reporters:
            reporter.end(end, path)


class Gathered(Reporter):
    """Keeps everything it is told, for reporters that need the whole; ``outcomes`` come back in
    plan order."""

    run: Run
    skips: Sequence[Skip] = ()
    arrived: Collection[Outcome] = ()  # in the order in which records came
    ended: End | None = None
    path: Path | None = None

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        """Keep the run, its cases and skips; nothing has arrived yet."""
        self.run, self.cases, self.skips = run, cases, skips
        self.worlds: dict[int, World] = {}
        self._outcomes: dict[int, Outcome] = {}  # by number
        self.arrived = self._outcomes.values()
        self._numbers: dict[Case, list[int]] = {}
        self._heard = 0
        self._index_by_case = {case: index for index, case in enumerate(cases)}

    def world(self, world: World) -> None:
        """Keep the world by its index."""
        self.worlds[world.index] = world

    def record(self, record: Record, row: Derived | None) -> None:
        """Keep the record; it replaces the one before where the case was measured again."""
        numbers = self._numbers.setdefault(record.case, [])
        while record.again and numbers:
            del self._outcomes[numbers.pop()]
        numbers.append(self._heard)
        self._outcomes[self._heard] = (record, row)
        self._heard += 1

    def end(self, end: End, path: Path | None) -> None:
        """Keep the end of the run, and the path where it was saved."""
        self.ended, self.path = end, path

    @property
    def file(self) -> RunFile:
        """The run in the form of one that was read, as far as it came."""
        skipped = [
            Record(case=skip.case, status="skipped", note=skip.reason) for skip in self.skips
        ]
        return RunFile(
            run=self.run,
            worlds=list(self.worlds.values()),
            records=skipped + [record for record, _ in self.arrived],
            end=self.ended,
            path=self.path or Path(),
        )

    @property
    def digest(self) -> RunFile:
        """The run as ``file`` has it, less what was skipped, with the row of each record: none is
        derived again."""
        records: list[Record] = [
            record if isinstance(record, Digested) else digest_record(record, row)
            for record, row in self.arrived
        ]
        return msgspec.structs.replace(self.file, records=records)

    @property
    def outcomes(self) -> list[Outcome]:
        """All records with what is derived of each, in plan order."""
        return self.sort_by_plan(self.arrived)

    def sort_by_plan(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """The outcomes in plan order, those of cases that were not planned last."""
        return sorted(
            outcomes,
            key=lambda outcome: self._index_by_case.get(outcome[0].case, len(self._index_by_case)),
        )


class Step(NamedTuple):
    """``launch`` of ``launches`` in this stage (0: the pilot) starts, or is at ``case``; all count
    from 0."""

    stage: int
    round: int
    rounds: int
    side: str
    launch: int
    launches: int
    case: Case | None = None
