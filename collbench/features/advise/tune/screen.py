"""The search: rounds of short launches, of all settings first, then of the better half of them, and
so on. Every round has the same share of the time and fills it: it launches what is left in turns,
cycle by cycle, as launches of one setting may differ by more than settings do. It proposes; what it
measured is no evidence (its runs are tagged SCREEN)."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from collbench.core.errors import CollbenchError, Exit, NoVerdict
from collbench.core.text import format_clock, format_count, plain_line, print_message
from collbench.features.advise.evidence import SCREEN
from collbench.features.advise.libraries import Library
from collbench.features.advise.tune import halving, joining
from collbench.features.advise.tune.joining import Field, Joint
from collbench.features.advise.types import Cell, Series, Variables
from collbench.records.derive import Derived, derive_row, is_without_samples
from collbench.records.types import Choice, Record, Run, World
from collbench.run import session
from collbench.run.launch.places import PlaceSource
from collbench.run.order import Order
from collbench.show import live
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

SHARE = 0.35  # of the budget
FIRST = 0.6  # of the budget, which the first round may take where worlds start slowly
MAX_CYCLES = 30  # of a round: more show nothing that fresh launches do not show better
MAX_BROKEN = 10  # settings that may break their launches before the search ends
SAMPLES, WARMUP = 15, 4  # of a case in a launch: so many tell which half is the better
GUESS_START = 5.0  # seconds of a world, until one has been seen
GUESS_CASE = 0.1  # seconds that a case takes altogether
TIME_OVER = "the time for the search is over"


class ScreenOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A screening as asked for: who competes in which series, the sweep as far as it is the same
    for all, and the seconds that it is to take; the first round, without which nothing is known,
    may take ``first_seconds``."""

    library: Library
    field: Field
    axes: Axes
    policy: Policy
    command: Sequence[str]
    seconds: float
    first_seconds: float
    is_same_order: bool = False
    source: PlaceSource | None = None
    output: Path | None = None
    tag: str = ""
    launcher: str = "local"


class Cost(NamedTuple):
    """What worlds of a screening cost: seconds until one has started, and of a case."""

    start: float = GUESS_START
    case: float = GUESS_CASE

    def of(self, joints: Sequence[Joint]) -> float:
        """The seconds that these worlds take."""
        cases = sum(len(sizes) for joint in joints for sizes in joint.sizes.values())
        return len(joints) * self.start + cases * self.case


class Screening:
    """Runs an order, and holds what it has come to: launch medians in ns by cell and setting, what
    was heard of both, worlds, and what a reader must know."""

    def __init__(self, order: ScreenOrder) -> None:
        self._order = order
        self.times: dict[Cell, dict[Variables, dict[int, float]]] = {}  # by cycle
        self.choices: dict[Cell, dict[Variables, Choice]] = {}
        self.full_settings: dict[Variables, Variables] = {}  # by what of them counts
        self.worlds: list[World] = []
        self.paths: list[Path] = []
        self.notes: list[str] = []
        self.cost = Cost()
        self.rounds = self.cycles = 0
        self._banned: set[tuple[str, Variables]] = set()
        self._broken = 0
        self._began = time.monotonic()

    @property
    def nodes(self) -> dict[int, int]:
        """The number of hosts that ranks were on, by that of ranks."""
        nodes: dict[int, int] = {}
        for world in self.worlds:
            hosts = {rank.host for rank in world.ranks}
            nodes[world.n] = max(nodes.get(world.n, 1), len(hosts))
        return nodes

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that ranks were on."""
        return tuple(dict.fromkeys(rank.host for world in self.worlds for rank in world.ranks))

    @property
    def library_version(self) -> str:
        """The library with its version, as worlds name it."""
        return self.worlds[0].library if self.worlds else ""

    def run(self) -> None:
        """Screen until nothing is left to be told apart, or the time is over. Raises
        KeyboardInterrupt where the user stops it, and what a run raises that breaks without any
        setting."""
        field: Field = {
            series: {
                self._name_setting(series.collective, setting): sizes
                for setting, sizes in by_setting.items()
            }
            for series, by_setting in self._order.field.items()
        }
        until = self._began + self._order.seconds
        planned = halving.count_rounds(field)
        for number in range(planned):
            if not field or (number and not self._has_time(field, until)):
                return
            self._run_round(field, max(0.0, until - time.monotonic()) / (planned - number))
            self.rounds += 1
            field = halving.halve_field(self._without_banned(field), self.times)

    def _name_setting(self, collective: str, setting: Variables) -> Variables:
        """What of a setting counts for the collective, by which it is known from here on."""
        counting = self._order.library.reduce(collective, setting)
        self.full_settings.setdefault(counting, setting)
        return counting

    def _plan_cycle(self, field: Field) -> list[Joint]:
        """The worlds of a cycle, of which each begins with another."""
        full = {
            series: {self.full_settings[name]: sizes for name, sizes in by_setting.items()}
            for series, by_setting in field.items()
        }
        joints = [
            *joining.list_defaults(full),
            *joining.join_settings(self._order.library, full),
        ]
        first = self.cycles % len(joints)
        return [*joints[first:], *joints[:first]]

    def _without_banned(self, field: Field) -> Field:
        remaining = {
            series: {
                setting: sizes
                for setting, sizes in by_setting.items()
                if (series.collective, setting) not in self._banned
            }
            for series, by_setting in field.items()
            if (series.collective, ()) not in self._banned  # nothing to compare with
        }
        if not any(any(by_setting) for by_setting in remaining.values()):
            return {}  # but for defaults, with which nothing competes
        return {series: by_setting for series, by_setting in remaining.items() if by_setting}

    def _has_time(self, field: Field, until: float) -> bool:
        """Whether another cycle of this fits, and is of use."""
        seconds = self.cost.of(self._plan_cycle(field))
        return self._broken <= MAX_BROKEN and time.monotonic() + seconds <= until

    def _run_round(self, field: Field, seconds: float) -> None:
        """Launch what is left in turns, as often as these seconds allow and once at least."""
        began, joints = time.monotonic(), self._plan_cycle(field)
        print_message(
            f"search, round {self.rounds + 1}: {format_count(len(joints), 'launch')} in turns,"
            f" about {format_clock(max(seconds, self.cost.of(joints)))}; settings of different"
            " collectives share a launch"
        )
        longest = self._order.seconds if self.rounds else self._order.first_seconds
        for _ in range(MAX_CYCLES):
            self._run_cycle(self._plan_cycle(field), self._began + longest)
            self.cycles += 1
            field = self._without_banned(field)
            if not (field and self._has_time(field, began + seconds)):
                return

    def _run_cycle(self, joints: Sequence[Joint], until: float) -> None:
        """Measure these worlds. One that breaks costs the setting that was measured then; the rest
        goes on without it."""
        pending = list(joints)
        while pending:
            reporter = _Progress(is_first=not self.paths, until=until)
            began, trouble = time.monotonic(), None
            order = self._make_order(pending)
            try:
                if (
                    session.execute_order(order, itertools.repeat(reporter).__next__)
                    == Exit.INTERRUPTED
                ):
                    raise KeyboardInterrupt
            except CollbenchError as e:
                trouble = e
            self._note_run(reporter, time.monotonic() - began)
            if trouble is None:
                return
            if trouble.message == TIME_OVER and self.cycles:
                self._forget_cycle()
                return
            if trouble.message == TIME_OVER:
                left_out = format_count(len(pending) - len(reporter.worlds), "launch")
                self.notes.append(f"{TIME_OVER}: {left_out} not made")
                print_message(self.notes[-1], "give a longer --budget")
                return
            pending = self._drop_broken(pending, reporter, trouble)

    def _forget_cycle(self) -> None:
        """Drop a cycle that was cut, in which some settings were launched and others not."""
        for by_setting in self.times.values():
            for launches in by_setting.values():
                launches.pop(self.cycles, None)

    def _make_order(self, joints: Sequence[Joint]) -> Order:
        order = self._order
        policy = msgspec.structs.replace(
            order.policy,
            iters=SAMPLES,
            warmup=WARMUP,
            check=0 if self.cycles else order.policy.check,
            adds_as=order.is_same_order,
            seed=order.policy.seed + self.cycles,
        )
        suite = joining.make_suite(
            "tune", joints, order.axes, Suite(name="tune", axes=order.axes, policy=policy)
        )
        return Order(
            suite=suite,
            command=order.command,
            output=order.output,
            tag="-".join(filter(None, (SCREEN, order.tag))),
            launcher=order.launcher,
            source=order.source,
        )

    def _note_run(self, reporter: _Progress, seconds: float) -> None:
        """Take over what a run measured, and learn what worlds cost."""
        if not reporter.has_begun:
            return
        file = reporter.file
        self.paths += [reporter.path] if reporter.path else []
        self.worlds += file.worlds
        wrong: dict[tuple[str, Variables], str] = {}
        ran = 0
        for record in file.records:
            case = record.case
            name = self._order.library.reduce(case.collective, case.env)
            if record.status == "wrong":
                wrong[case.collective, name] = record.note or "wrong data"
            derived = derive_row(record) if record.status == "ok" else None
            if derived is None:
                continue
            ran += 1
            cell = Cell(Series(case.collective, case.n, 1), case.nbytes)
            self.times.setdefault(cell, {}).setdefault(name, {})[self.cycles] = derived.times.median
            if record.chose:
                self.choices.setdefault(cell, {})[name] = record.chose
        for key, why in wrong.items():
            self._ban(*key, f"wrong results ({why})")
        spent = sum(record.seconds for record in file.records)
        if ran and file.worlds:
            start = max(0.0, seconds - spent) / len(file.worlds)
            self.cost = Cost(start, spent / ran)

    def _ban(self, collective: str, setting: Variables, why: str) -> None:
        if (collective, setting) in self._banned:
            return
        self._banned.add((collective, setting))
        for cell, by_setting in self.times.items():
            if cell.series.collective == collective:
                by_setting.pop(setting, None)
        words = " ".join(f"{name}={value}" for name, value in setting) or "the default"
        note = f"{words} is no longer tried for {collective}: {why}"
        self.notes.append(note)
        print_message(note)

    def _drop_broken(
        self, pending: Sequence[Joint], reporter: _Progress, trouble: CollbenchError
    ) -> list[Joint]:
        """The launches that are yet to be made after some broke. One that broke in a case loses
        the setting that it was at. One that did not even start is made again for each of its
        settings alone, so that none goes for another's fault. Raises the error where it is the
        default's; none are left where settings break one after the other."""
        records = reporter.file.records if reporter.has_begun else []
        opened = {world.index for world in reporter.file.worlds} if reporter.has_begun else set()
        failed = [
            record
            for record in records
            if record.status == "failed" and not is_without_samples(record)
        ]
        broken = {
            (record.case.n, record.case.env): record
            for record in failed
            if record.world not in opened or record is failed[-1]
        }
        done = {(record.case.n, record.case.env) for record in records if record.status == "ok"}
        if not broken or any(not env for _, env in broken):
            raise trouble
        remaining: list[Joint] = []
        for joint in pending:
            record = broken.get((joint.n, joint.env))
            if record is None:
                remaining += [] if (joint.n, joint.env) in done else [joint]
            elif record.world not in opened and len(joint.sizes) > 1:
                remaining += [self._separate(joint, name) for name in joint.sizes]
            else:
                remaining += self._leave_out(joint, record, trouble)
        if self._broken > MAX_BROKEN:
            self.notes.append(f"the search ended: launches failed with {self._broken} settings")
            print_message(self.notes[-1])
            return []
        return remaining

    def _separate(self, joint: Joint, collective: str) -> Joint:
        """What a launch measures of one collective, with the variables of that alone."""
        name = self._order.library.reduce(collective, joint.env)
        env = self.full_settings.get(name, name)
        return Joint(n=joint.n, env=env, sizes={collective: joint.sizes[collective]})

    def _leave_out(self, joint: Joint, record: Record, trouble: CollbenchError) -> list[Joint]:
        """What is left of a launch without the setting that broke it."""
        self._broken += 1
        collective = record.case.collective
        name = self._order.library.reduce(collective, joint.env)
        self._ban(collective, name, plain_line(record.note or trouble.message))
        left = [self._separate(joint, other) for other in joint.sizes if other != collective]
        env = tuple(dict(pair for each in left for pair in each.env).items())
        sizes = {key: at for each in left for key, at in each.sizes.items()}
        return [Joint(n=joint.n, env=env, sizes=sizes)] if left else []


class _Progress(live.Status):
    """A bar on a terminal, nothing where there is none; whether the machine is busy is said
    once. Raises NoVerdict once the time is over."""

    footer = True

    def __init__(self, is_first: bool, until: float) -> None:
        super().__init__(watched=sys.stderr.isatty())
        self._is_first, self._until_time = is_first, until
        self.has_begun = False

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        self.has_begun = True
        shown = run if self._is_first else msgspec.structs.replace(run, load={})
        super().begin(shown, cases, skips)

    def record(self, record: Record, row: Derived | None) -> None:
        super().record(record, row)
        if record.status != "skipped" and time.monotonic() > self._until_time:
            raise NoVerdict(TIME_OVER)


def keeps_order(default: Choice | None, other: Choice | None, series: Series) -> bool:
    """Whether a setting is known to add in the library's own order: where nothing is added or two
    ranks add, any does; else by the algorithms that add as both sums do."""
    from collbench.core.collectives import find_collective

    if series.n < 3 or not find_collective(series.collective).reduces:
        return True
    return bool(default and other and default.adds_as and default.adds_as == other.adds_as)


def list_medians(screening: Screening, is_same_order: bool) -> dict[Cell, dict[Variables, float]]:
    """The median over launches of all that may be proposed in a cell, and of the default."""
    medians = halving.summarise_times(screening.times)
    if not is_same_order:
        return medians
    return {
        cell: {
            setting: time_
            for setting, time_ in by_setting.items()
            if not setting
            or keeps_order(
                screening.choices.get(cell, {}).get(()),
                screening.choices.get(cell, {}).get(setting),
                cell.series,
            )
        }
        for cell, by_setting in medians.items()
    }
