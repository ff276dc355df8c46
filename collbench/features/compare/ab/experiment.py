"""An interleaved experiment: launches of two variants in pairs, in random order, over the same rows
with the same number of samples. All rows in a first stage; in a second, with fresh launches, those
that the first one flags. What time is left goes to rows that are yet without a verdict (rounds.py).

The two launches of a pair are alive at once and take turns block by block (launch/duet.py). Sides
that differ in nothing but the algorithm share one world, and take turns there. Where memory does
not suffice for two worlds, one launch follows the other.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from collbench.core.backend_info import backend_info
from collbench.core.errors import CannotRun, CollbenchError, Exit, NoVerdict, RunBroken
from collbench.core.text import format_count
from collbench.features.compare.ab import duet, matching
from collbench.features.compare.ab.matching import SIDES, Row
from collbench.features.compare.ab.rounds import (
    AHEAD,
    BUDGET,
    FRESH,
    Judge,
    Judged,
    Ledger,
    Shortfall,
    describe_shortfall,
)
from collbench.machine import variables
from collbench.records import paired, store
from collbench.records.derive import NO_TIME_LEFT
from collbench.records.types import End, Pairing, Record, Run, RunFile, Together, World
from collbench.run import memory, plan, session
from collbench.run.jobs import Plan
from collbench.run.launch.board import Phase
from collbench.run.launch.interpreter import Home, SideName, Variant
from collbench.run.launch.local import FreshRanks, Launcher
from collbench.run.launch.places import Places, SideRanks
from collbench.run.launch.world import Hear, Listener
from collbench.run.pace import budget_for
from collbench.run.reporter import Step
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Suite
from collbench.survive.signals import interrupts

# Of samples of a case and launch, unless the suite says so: more launches tell more.
PILOT_SECONDS = 0.25

LATE = 0.05  # share of late starts above which a common deadline is not relied upon


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment as asked for. ``rounds`` are the fewest of both stages; more follow for rows
    without a verdict until ``budget`` seconds are over, BUDGET where nobody names any, and none
    where it is 0. ``places`` are where ranks are started, if not on this machine. ``aa`` compares
    base with itself. ``is_confirming``: other launches have raised a suspicion of every row, so
    that there is no first stage."""

    suite: Suite
    variants: dict[SideName, Variant]
    command: Sequence[str]
    rounds: tuple[int, int]
    judge: Judge
    budget: float | None = None
    homes: dict[SideName, Home] = {}
    places: Places | None = None
    aa: bool = False
    is_confirming: bool = False
    output: Path | None = None
    tag: str = ""

    @property
    def room(self) -> memory.Rooms:
        """The function that measures the memory which ranks share."""
        return self.places.room if self.places else memory.measure_room

    def count_sharers(self, n: int) -> int:
        """How many of n ranks are on the host that has most of them."""
        return self.places.count_sharers(n) if self.places else n

    @property
    def piloted(self) -> Policy:
        """The policy of the pilot, which spends no more time on a case than a launch will."""
        policy = self.suite.policy
        most = policy.max_seconds if policy.max_seconds is not None else PILOT_SECONDS
        return msgspec.structs.replace(
            policy, max_seconds=most, min_seconds=min(policy.min_seconds, most / 5)
        )

    def launcher(self, name: SideName) -> FreshRanks:
        """The name of the launcher that starts a side's ranks."""
        home = self.homes[name]
        if self.places:
            return SideRanks(self.places, home, name)
        return Launcher(home.python, home.settings)

    @property
    def in_one_world(self) -> bool:
        """Whether ranks of one world can be both sides: nothing but the algorithm differs."""
        base, head = (self.variants[name] for name in SIDES)
        alone = msgspec.structs.replace(base, text=head.text, algorithm=head.algorithm) == head
        return alone and base.algorithm != head.algorithm


def describe_drop(budget: float, rounds: int, enough: str, which: str = "") -> str:
    """The note on a row that was dropped for a budget; ``enough`` is a budget for all rows, or all
    of ``which``."""
    short = f"too short for {format_count(rounds, 'pair')}"
    rows = " ".join(filter(None, ["all", which, "rows"]))
    return f"{NO_TIME_LEFT} {budget:g}s: {short}; --budget {enough} is enough for {rows}"


def refuse_drop(note: str, command: Sequence[str], cases: Iterable[Case]) -> NoVerdict:
    """The error for a budget that is enough for no row, by the note on dropped rows and their
    cases."""
    error = plan.nothing_runs([note], command, cases)
    return NoVerdict(error.message, error.hint)


class _Side:
    """One side while its launches run: its file, and everything in it."""

    def __init__(self, order: Order, name: SideName, experiment: str) -> None:
        variant, home = order.variants[name], order.homes[name]
        differs = tuple(sorted({field for v in order.variants.values() for field in v.differs}))
        self.name = name
        self.run = Run(
            id=f"{experiment}-{name}",
            started=session.time_now(),
            command=session.clean_command(order.command),
            suite=order.suite.resolve(),
            policy=order.suite.policy,
            environment=home.described,
            tag=variables.mask_text(order.tag),
            pairing=Pairing(
                experiment=experiment, side=name, variant=variant.text, differs=differs, aa=order.aa
            ),
        )
        self.writer = store.open_writer(self.run, order.output)
        self.launcher = order.launcher(name)
        self.worlds: list[World] = []
        self.records: list[Record] = []

    def keep(self, line: World | Record) -> None:
        with interrupts.shielded():
            session.write_line(self.writer, line)
            (self.worlds if isinstance(line, World) else self.records).append(line)  # type: ignore[arg-type]

    def keep_launch(self, index: int, step: Step, together: Together, line: World | Record) -> None:
        """Keep a line of the launch that is world ``index`` of this side."""
        if isinstance(line, World):
            position = {"index": index, "stage": step.stage, "round": step.round}
            self.keep(msgspec.structs.replace(line, together=together, **position))
        else:
            self.keep(msgspec.structs.replace(line, world=index))

    @property
    def file(self) -> RunFile:
        return RunFile(
            run=self.run, worlds=self.worlds, records=self.records, end=None, path=self.writer.path
        )


class _Launch(NamedTuple):
    """One side's part of a pair: its plan, and who hears what comes of it."""

    side: _Side
    plan: Plan
    on_line: Hear


class Experiment:
    """Runs an order. ``tell`` hears of every launch and of the case it is at; it is called
    often."""

    def __init__(self, order: Order, report_step: Callable[[Step], None]) -> None:
        self._order, self._report_step, self._began = order, report_step, time.monotonic()
        self._budget = BUDGET if order.budget is None else order.budget
        self._name = store.new_id(order.suite.name)
        self._all, self._skips = matching.match_rows(order.suite, order.variants, order.places)
        matching.refuse_nothing(self._all, self._skips, self._order.command)
        self._barrier: set[object] = set()
        self._seed = zlib.crc32(self._name.encode())
        self._lots = np.random.default_rng(self._seed)
        self._ledger = Ledger()
        self._done = {1: 0, 2: 0}  # rounds of each stage
        self._sides: dict[SideName, _Side] = {}
        self.shortfall = (
            ""  # why rounds ended though rows have no verdict, where that is the budget
        )

    @property
    def name(self) -> str:
        """The name by which both runs are found."""
        return self._name

    @property
    def begun(self) -> bool:
        """Whether there are files, which are to get their `end`."""
        return bool(self._sides)

    @property
    def files(self) -> tuple[RunFile, RunFile]:
        """The files of base and of head so far."""
        return self._sides["base"].file, self._sides["head"].file

    def run(self) -> None:
        """Run the pilot and both stages. Raises RunBroken and CannotRun, naming the side, and
        NoVerdict where a budget holds no row; what is finished is kept."""
        with interrupts.uninterrupted():
            self._open()
        try:
            rows = self._pilot()
            stage, fewest = 1, self._order.rounds[0]
            if self._order.is_confirming:
                stage, fewest = 2, self._confirming_rounds(rows)
            if rows := self._affordable(rows, fewest):
                self._rounds(stage, rows, fewest)
                self._decide(rows)
        except (KeyboardInterrupt, RunBroken) as e:
            if self._order.places:
                self._order.places.broken(e)
            raise
        finally:
            for side in self._sides.values():
                side.launcher.close()

    def _open(self) -> None:
        """Open the run of each side and record its skipped cases. Where one side fails, neither
        keeps a file."""
        try:
            for name in SIDES:
                self._sides[name] = _Side(self._order, name, self._name)
        except CollbenchError:  # one side alone is no run that could be compared
            for side in self._sides.values():
                side.launcher.close()
                side.writer.close()
                side.writer.path.unlink(missing_ok=True)
            self._sides = {}
            raise
        for name, side in self._sides.items():
            for skip in self._skips[name]:
                side.keep(Record(case=skip.case, status="skipped", note=skip.reason))

    def end(self, code: Exit, note: str = "") -> list[Path]:
        """Write the last lines; where both files are. Raises CannotRun if something could not be
        saved."""
        with interrupts.shielded():
            for side in self._sides.values():
                session.write_line(side.writer, End(exit=code, ended=session.time_now(), note=note))
                side.writer.close()
        for side in self._sides.values():
            if trouble := side.writer.trouble or side.writer.lost:
                raise CannotRun(trouble, "free some space; what was measured is not all saved")
        return [side.writer.path for side in self._sides.values()]

    def _confirming_rounds(self, rows: Sequence[Row]) -> int:
        """The fewest rounds of a second stage of these rows."""
        tests = sum(len(row.judged_keys) for row in rows)
        return max(self._order.rounds[1], paired.fewest_rounds(tests))

    def _decide(self, rows: Sequence[Row]) -> None:
        """Measure again what stage 1 flags, and go on with rows that are worth it, as long as there
        are any of either kind."""
        suspected = list(rows) if self._order.is_confirming else []
        again = list(suspected)
        while True:
            row_verdicts = {row.key: row for row in self._order.judge(*self.files)}
            verdicts = {
                row.key: [row_verdicts[key] for key in row.judged_keys if key in row_verdicts]
                for row in rows
            }
            flagged = [
                row
                for row in rows
                if row not in suspected and any(verdict.suspected for verdict in verdicts[row.key])
            ]
            suspected += flagged
            fewest = self._confirming_rounds([*again, *flagged])
            if flagged and self._order.budget:
                flagged = self._drop_beyond_budget(flagged, fewest)
            if flagged:
                again += flagged
                self._rounds(2, flagged, fewest)
                continue
            others = [row for row in rows if row not in suspected]
            if not self._go_on(again, others, verdicts, fewest):
                fresh = {row.key for row in others}
                dropped = {row.key for row in suspected if row not in again}
                fewest = self._confirming_rounds(suspected)
                self.shortfall = self._describe_shortfall(fresh, dropped, verdicts, fewest)
                return

    def _go_on(
        self,
        again: Sequence[Row],
        others: Sequence[Row],
        verdicts: Mapping[str, Sequence[Judged]],
        fewest: int,
    ) -> bool:
        """A few rounds more of the rows of the second stage that are worth it, else of the others,
        of which one might yet be flagged. Returns whether there were any."""
        spare = max((self._ledger.seconds([row.key]) for row in others), default=0.0)
        for stage, some, reserve in ((2, again, 0.0), (1, others, fewest * spare)):
            lacking = {
                row.key: max((verdict.lacking for verdict in verdicts[row.key]), default=0.0)
                for row in some
            }
            keys = self._ledger.worth(lacking, self._time_left() - reserve)
            if keys:
                self._rounds(stage, [row for row in some if row.key in keys], AHEAD, beyond=True)
                return True
        return False

    def _describe_shortfall(
        self,
        fresh: Collection[str],
        dropped: Collection[str],
        verdicts: Mapping[str, Sequence[Judged]],
        fewest: int,
    ) -> str:
        """The note on rows without a verdict that more rounds might decide, when the last one has
        ended; empty without such rows, and where a budget of 0 allows no rounds beyond the fewest.
        Those that are ``fresh`` were not flagged, and for those ``dropped``, which were, there was
        no time to measure them again: they lack a second stage, however far stage 1 scatters."""
        lacking = {
            key: max(
                (
                    fewest if key in dropped and verdict.suspected else verdict.lacking
                    for verdict in judged
                    if verdict.is_open
                ),
                default=0.0,
            )
            for key, judged in verdicts.items()
        }
        pairs = {key: number for key, number in lacking.items() if 0 < number < math.inf}
        if not (self._budget and pairs):
            return ""
        cost, time_left = self._ledger.sum_seconds, self._time_left()
        confirming = {key: fewest * self._ledger.seconds([key]) * (key in fresh) for key in pairs}
        least = min(pairs, key=lambda key: cost({key: pairs[key]}) + confirming[key])
        shortfall = Shortfall(
            rows=len(pairs),
            pairs=pairs[least],
            seconds=cost({least: pairs[least]}),
            confirming=confirming[least],
            time_left=time_left,
            in_all=self._budget - time_left + cost(pairs) + max(confirming.values()),
        )
        default = "the default " if self._order.budget is None else ""
        return describe_shortfall(f"{default}--budget {self._budget:g}s", shortfall)

    def _drop_beyond_budget(self, rows: Sequence[Row], rounds: int) -> list[Row]:
        """The rows that ``rounds`` rounds can measure in the time left. Each other row is recorded
        as skipped, with a note that names a sufficient --budget. Raises NoVerdict where the time
        left suffices for no row and nothing was measured yet."""
        spent, cost = time.monotonic() - self._began, self._ledger.seconds(row.key for row in rows)
        keys = self._ledger.affordable((row.key for row in rows), rounds, self._time_left())
        affordable = [row for row in rows if row.key in keys]
        which = "suspected" if any(self._done.values()) else ""
        note = describe_drop(self._budget, rounds, budget_for(spent + rounds * cost), which)
        for row in rows:
            for name, side in self._sides.items():
                for case in row.jobs[name].case.siblings if row not in affordable else ():
                    side.keep(Record(case=case, status="skipped", note=note))
        if not affordable and not any(self._done.values()):
            cases = [job.case for row in rows for job in row.jobs.values()]
            raise refuse_drop(note, self._order.command, cases)
        return affordable

    def _time_left(self) -> float:
        return self._budget - (time.monotonic() - self._began)

    def _renew(self) -> None:
        """Start new processes that load torch, on both sides at once, while there is nothing to
        disturb."""
        for name, side in self._sides.items():
            side.launcher.close()
            case = self._all[0].jobs[name].case
            if name == "base" or not self._order.in_one_world:
                side.launcher.warm([case.backend], case.env)

    def _pilot(self) -> list[Row]:
        """Launch each side once, which settles how many samples a row gets, and return the rows
        that both sides can run."""
        records: dict[SideName, dict[Case, Record]] = {name: {} for name in SIDES}
        worlds = matching.by_world(self._all, self._order.piloted)
        for index, (world, members) in enumerate(worlds.items()):
            began = time.monotonic()
            for name in SIDES:
                (current,) = plan.plan_worlds(
                    [row.jobs[name] for row in members],
                    self._order.piloted,
                    self._order.count_sharers,
                )
                launch = _Launch(self._sides[name], current, partial(self._settle, records[name]))
                self._launch(launch, Step(0, 0, 1, name, index, len(worlds)))
            both = {
                row.key: [records[name][row.jobs[name].case] for name in SIDES] for row in members
            }
            seconds = {
                key: sum(record.seconds for record in case_records)
                for key, case_records in both.items()
            }
            startup = time.monotonic() - began - sum(seconds.values())  # most of it loads torch
            self._ledger.note(world, seconds, sum(seconds.values()) + startup / FRESH)
        rows = []
        for row in self._all:
            ran = {name: records[name][row.jobs[name].case] for name in SIDES}
            if all(record.status in ("ok", "predicted") for record in ran.values()):
                jobs = matching.fix_counts(row.jobs, list(ran.values()), self._order.piloted)
                rows.append(row._replace(jobs=jobs))
            else:
                for name, by_case in records.items():
                    siblings = [case for case in row.jobs[name].case.siblings if case in by_case]
                    for case in siblings:
                        self._sides[name].keep(msgspec.structs.replace(by_case[case], world=-1))
        outcomes = [record for name in SIDES for record in records[name].values()]
        if not rows and all(record.status != "wrong" for record in outcomes):
            notes = [record.note for record in outcomes if record.status != "ok"]
            raise plan.nothing_runs(notes, self._order.command)
        return rows

    def _settle(self, records: dict[Case, Record], line: World | Record) -> None:
        """Keep a record of the pilot, and note that cases like its own start from a barrier where
        it did, or where many ranks came late."""
        if isinstance(line, Record):
            records[line.case] = line
            late = sum(line.invalid.values()) > LATE * len(line.times_ns)
            if line.sync == "barrier" or late:
                self._barrier.add(_start_key(line.case))

    def _affordable(self, rows: Sequence[Row], fewest: int) -> list[Row]:
        """The rows for whose ``fewest`` rounds a budget that was asked for suffices, cheapest
        first. Raises NoVerdict where it suffices for none."""
        if not self._order.budget or not rows:
            return list(rows)
        return self._drop_beyond_budget(rows, fewest)

    def _rounds(self, stage: int, rows: Sequence[Row], number: int, beyond: bool = False) -> None:
        """Runs so many more rounds of these rows. Those ``beyond`` the fewest end where time would
        not suffice for another. Within a round both sides of a world go through the same cases in
        the same order."""
        worlds = list(matching.by_world(rows, self._order.suite.policy).items())
        done = self._done[stage]
        for at in range(done, done + number):
            if beyond and self._time_left() < self._ledger.seconds(row.key for row in rows):
                return
            if at % FRESH == 0 and any(
                self._done.values()
            ):  # the pilot has just begun with new ones
                self._renew()
            for index, lot in enumerate(self._lots.permutation(len(worlds))):
                step = Step(stage, at, done + number, "", index, len(worlds))
                world, members = worlds[lot]
                self._pair(world, members, step)
            self._done[stage] = at + 1

    def _pair(self, world: object, rows: Sequence[Row], step: Step) -> None:
        """A launch of both sides."""
        began = time.monotonic()
        policy = self._order.suite.policy
        shuffled = msgspec.structs.replace(
            policy, seed=policy.seed + 1000 * step.stage + step.round, order="shuffled"
        )
        plans: dict[SideName, Plan] = {}
        for name in SIDES:
            (current,) = plan.plan_worlds(
                [row.jobs[name] for row in rows], shuffled, self._order.count_sharers
            )
            plans[name] = self._aligned(current)
        together = self._together(plans)
        launches = {
            name: _Launch(
                side,
                plans[name],
                partial(side.keep_launch, len(side.worlds), step, together),
            )
            for name, side in self._sides.items()
        }
        before = {name: len(side.records) for name, side in self._sides.items()}
        self._play([launches[name] for name in self._in_order(world, step)], together, step)
        took = {
            (name, record.case): record.seconds
            for name, side in self._sides.items()
            for record in side.records[before[name] :]
        }
        seconds = {
            row.key: sum(took.get((name, row.jobs[name].case), 0.0) for name in SIDES)
            for row in rows
        }
        self._ledger.note(world, seconds, time.monotonic() - began)

    def _in_order(self, world: object, step: Step) -> Sequence[SideName]:
        """Sides as they begin: of two rounds, base does in one that is drawn by lot."""
        seed = [self._seed, step.stage, step.round // 2, zlib.crc32(repr(world).encode())]
        first = np.random.default_rng(seed).integers(2) + step.round
        return SIDES[:: -1 if first % 2 else 1]

    def _play(self, launches: Sequence[_Launch], together: Together, step: Step) -> None:
        """Run these launches: one after the other, or together, in shared ranks or in turns."""
        if not together:
            for launch in launches:
                self._launch(launch, step._replace(side=launch.side.name))
            return
        self._report_step(step)
        players = [
            duet.Player(side.name, side.launcher, current, self._listener(side, hear_outcome, step))
            for side, current, hear_outcome in launches
        ]
        if together == "world":
            duet.share_ranks(sorted(players, key=lambda player: SIDES.index(player.name)))
        else:
            duet.play_in_turns(players, self._lots)

    def _together(self, plans: Mapping[SideName, Plan]) -> Together:
        """The way in which the two sides of a pair take turns: within one world, as two worlds that
        are alive at once, or launch by launch ("")."""
        predicted = any(backend_info(current.backend).predicts for current in plans.values())
        base, head = plans.values()
        both_cases = {job.case for job in base.jobs} & {job.case for job in head.jobs}
        alone = both_cases or backend_info(base.backend).gpu  # which hold the buffers of one case
        shared = self._order.in_one_world and not alone
        if predicted or not duet.fits_at_once(plans.values(), self._order.room, shared):
            return ""
        return "world" if shared else "turns"

    def _aligned(self, current: Plan) -> Plan:
        """The plan with the way of starting together that the pilot found to work, so that it never
        changes between launches."""
        if current.policy.sync != "auto":
            return current
        scheme = "barrier" if _start_key(current.jobs[0].case) in self._barrier else "window"
        return msgspec.structs.replace(
            current, policy=msgspec.structs.replace(current.policy, sync=scheme)
        )

    def _launch(self, launch: _Launch, step: Step) -> None:
        """Run the plan of one launch, of one side or of both."""
        self._report_step(step)
        listener = self._listener(launch.side, launch.on_line, step)
        with duet.blame_side(launch.side.name):
            launch.side.launcher.run([launch.plan], listener)

    def _listener(self, side: _Side, hear_outcome: Hear, step: Step) -> Listener:
        """A listener to a launch; the case in which the launch breaks becomes a failed record."""

        def lost(plan: Plan, error: RunBroken) -> None:
            if error.job is not None:
                for case in plan.jobs[error.job].case.siblings:
                    side.keep(Record(case=case, status="failed", note=error.message))

        def tick(case: Case, phase: Phase) -> None:
            self._report_step(step._replace(case=case))

        return Listener(hear_outcome, tick, lost=lost)


def _start_key(case: Case) -> object:
    """The number of ranks and the environment, which decide on one machine how ranks are brought to
    a common start."""
    return case.n, case.env
