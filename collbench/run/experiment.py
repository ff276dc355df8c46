"""An interleaved experiment: launches of two variants in pairs, in random order, over the same rows
with the same number of samples. All rows in a first stage; in a second, with fresh launches, those
that the first one flags.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from collbench.core.errors import CannotRun, CollbenchError, Exit, RunBroken, UsageError
from collbench.machine import environment
from collbench.records import paired, store
from collbench.records.types import ONE_SIDED, End, Pairing, Record, Run, RunFile, World, stripped
from collbench.run import plan, session
from collbench.run.backends import why_never, why_not_here, why_not_so
from collbench.run.launch.board import Phase
from collbench.run.launch.local import Launcher
from collbench.run.launch.world import Hear, Listener
from collbench.run.plan import Job, Plan
from collbench.run.reporter import Step
from collbench.run.variants import Home, Name, Variant, applied
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy
from collbench.suite.sweep import Suite, why_not

SIDES: tuple[Name, Name] = ("base", "head")


PILOT_SECONDS = (
    0.25  # of samples of a case and launch, unless the suite says so: more launches tell more
)


WARM_SECONDS = 0.1


LATE = 0.05  # share of late starts above which a common deadline is not relied upon


FRESH = (
    4  # rounds after which ranks come from newly started processes, with other addresses in memory
)


Suspects = Callable[[RunFile, RunFile], Sequence[str]]  # keys of rows that stage 1 flags


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment as asked for. ``rounds`` of both stages; ``aa`` compares base with itself."""

    suite: Suite
    variants: dict[Name, Variant]
    command: Sequence[str]
    rounds: tuple[int, int]
    suspects: Suspects
    homes: dict[Name, Home] = {}
    aa: bool = False
    output: Path | None = None
    tag: str = ""

    @property
    def piloted(self) -> Policy:
        """The policy of the pilot, which spends no more time on a case than a launch will."""
        asked = self.suite.policy
        most = asked.max_seconds if asked.max_seconds is not None else PILOT_SECONDS
        return msgspec.structs.replace(
            asked, max_seconds=most, min_seconds=min(asked.min_seconds, most / 5)
        )


class Row(NamedTuple):
    """A row of the experiment: what it is joined on, and each side's job."""

    key: str
    jobs: dict[Name, Job]


class _Side:
    """One side while its launches run: its file, and everything in it."""

    def __init__(self, order: Order, name: Name, experiment: str) -> None:
        variant, home = order.variants[name], order.homes[name]
        differs = tuple(sorted({field for v in order.variants.values() for field in v.differs}))
        self.name = name
        self.run = Run(
            id=f"{experiment}-{name}",
            started=session.now(),
            command=session.spoken(order.command),
            suite=order.suite,
            policy=order.suite.policy,
            environment=home.described,
            tag=environment.mask(order.tag),
            pairing=Pairing(
                experiment=experiment, side=name, variant=variant.text, differs=differs, aa=order.aa
            ),
        )
        self.writer = store.opened(self.run, order.output)
        self.launcher = Launcher(home.python, home.settings)
        self.worlds: list[World] = []
        self.records: list[Record] = []

    def keep(self, line: World | Record) -> None:
        session.write(self.writer, line)
        (self.worlds if isinstance(line, World) else self.records).append(line)  # type: ignore[arg-type]

    def keep_launch(self, index: int, step: Step, line: World | Record) -> None:
        """Keep a line of the launch that is world ``index`` of this side."""
        if isinstance(line, World):
            self.keep(
                msgspec.structs.replace(line, index=index, stage=step.stage, round=step.round)
            )
        else:
            self.keep(msgspec.structs.replace(line, world=index))

    @property
    def file(self) -> RunFile:
        return RunFile(
            run=self.run, worlds=self.worlds, records=self.records, end=None, path=self.writer.path
        )


class Experiment:
    """Runs an order. ``tell`` hears of every launch and of the case it is at; it is called
    often."""

    def __init__(self, order: Order, tell: Callable[[Step], None]) -> None:
        self._order, self._tell = order, tell
        experiment = store.new_id(order.suite.name)
        found, skips = rows(order)
        refuse_nothing(found, skips)
        self._rows = found
        self._barrier: set[object] = set()
        self._rng = np.random.default_rng(zlib.crc32(experiment.encode()))
        self._sides = {name: _Side(order, name, experiment) for name in SIDES}
        for name, side in self._sides.items():
            for skip in skips[name]:
                side.keep(Record(case=skip.case, status="skipped", note=skip.reason))

    @property
    def files(self) -> tuple[RunFile, RunFile]:
        """What there is of base and of head so far."""
        return self._sides["base"].file, self._sides["head"].file

    def run(self) -> None:
        """Pilot and both stages. Raises RunBroken and CannotRun, naming the side; what is finished
        is kept."""
        try:
            rows = self._pilot()
            if not rows:
                return
            self._stage(1, self._order.rounds[0], rows)
            flagged = set(self._order.suspects(*self.files))
            again = [row for row in rows if row.key in flagged]
            if again:
                self._stage(2, max(self._order.rounds[1], paired.fewest_rounds(len(again))), again)
        finally:
            for side in self._sides.values():
                side.launcher.close()

    def end(self, code: Exit, note: str = "") -> list[Path]:
        """Write the last lines; where both files are. Raises CannotRun if something could not be
        saved."""
        for side in self._sides.values():
            side.writer.write(End(exit=code, ended=session.now(), note=note))
            side.writer.close()
        for side in self._sides.values():
            if side.writer.trouble:
                raise CannotRun(
                    side.writer.trouble, "free some space; what was measured is not all saved"
                )
        return [side.writer.path for side in self._sides.values()]

    def _renew(self) -> None:
        """New processes that load torch, on both sides at once, while there is nothing to
        disturb."""
        for name, side in self._sides.items():
            side.launcher.close()
            case = self._rows[0].jobs[name].case
            side.launcher.warm([case.backend], case.env)

    def _pilot(self) -> list[Row]:
        """One launch of each side, which settles how many samples a row gets; rows that both sides
        can run."""
        found: dict[Name, dict[Case, Record]] = {name: {} for name in SIDES}
        for side, current, step in self._launches(self._rows, self._order.piloted, 0, 1):

            def note(line: World | Record, known: dict[Case, Record] = found[side.name]) -> None:
                if isinstance(line, Record):
                    known[line.case] = line
                    if line.sync == "barrier" or sum(line.invalid.values()) > LATE * len(
                        line.times_ns
                    ):
                        self._barrier.add(_ranks(line.case))

            self._launch(side, current, step, note)
        rows = []
        for row in self._rows:
            both = {name: found[name][row.jobs[name].case] for name in SIDES}
            if all(record.status in ("ok", "predicted") for record in both.values()):
                rows.append(
                    row._replace(
                        jobs=_fixed(row.jobs, list(both.values()), self._order.suite.policy)
                    )
                )
            else:
                for name, record in both.items():
                    self._sides[name].keep(msgspec.structs.replace(record, world=-1))
        outcomes = [record for name in SIDES for record in found[name].values()]
        if not rows and all(record.status != "wrong" for record in outcomes):
            raise session.nothing_runs(
                [record.note for record in outcomes if record.status != "ok"]
            )
        return rows

    def _stage(self, stage: int, rounds: int, rows: Sequence[Row]) -> None:
        for side, current, step in self._launches(rows, self._order.suite.policy, stage, rounds):
            self._launch(side, current, step, partial(side.keep_launch, len(side.worlds), step))

    def _launches(
        self, rows: Sequence[Row], policy: Policy, stage: int, rounds: int
    ) -> Iterator[tuple[_Side, Plan, Step]]:
        """Every launch of a stage in its order. Within a round both sides of a world follow each
        other, in half of the rounds base first, and go through the same cases in the same order."""
        worlds = _worlds(rows)
        turns = [self._rng.permutation(rounds) % 2 for _ in worlds]
        done = 0
        for number in range(rounds):
            if number % FRESH == 0 and (stage, number) != (
                1,
                0,
            ):  # the pilot has just begun with new ones
                self._renew()
            shuffled = msgspec.structs.replace(
                policy, seed=policy.seed + 1000 * stage + number, order="shuffled"
            )
            for place in self._rng.permutation(len(worlds)):
                for name in SIDES[:: 1 if turns[place][number] else -1]:
                    (current,) = plan.worlds([row.jobs[name] for row in worlds[place]], shuffled)
                    step = Step(
                        stage, number, rounds, name, done, rounds * len(worlds) * len(SIDES)
                    )
                    yield self._sides[name], self._aligned(current, stage), step
                    done += 1

    def _aligned(self, current: Plan, stage: int) -> Plan:
        """With the way of starting together that the pilot found to work, so that it never changes
        between launches."""
        if stage == 0 or current.policy.sync != "auto":
            return current
        scheme = "barrier" if _ranks(current.jobs[0].case) in self._barrier else "window"
        return msgspec.structs.replace(
            current, policy=msgspec.structs.replace(current.policy, sync=scheme)
        )

    def _launch(self, side: _Side, current: Plan, step: Step, hear: Hear) -> None:
        """One world of one side. The case in which it breaks becomes a failed record."""
        self._tell(step)

        def lost(plan: Plan, error: RunBroken) -> None:
            if error.job is not None:
                case = plan.jobs[error.job].case
                side.keep(Record(case=case, status="failed", note=error.message))

        def tick(case: Case, phase: Phase) -> None:
            self._tell(step._replace(case=case))

        try:
            side.launcher.run([current], Listener(hear, tick, lost=lost))
        except CollbenchError as e:
            e.message = f"{side.name}: {e.message}"
            raise


def _ranks(case: Case) -> object:
    """What decides, on one machine, how ranks are brought to a common start."""
    return case.n, case.env


def _worlds(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by the worlds they need: on either side, one of each group."""
    groups: dict[object, list[Row]] = {}
    for row in rows:
        needs = tuple(
            (case.backend, case.n, case.env) for case in (row.jobs[name].case for name in SIDES)
        )
        groups.setdefault(needs, []).append(row)
    return list(groups.values())


def _fixed(jobs: dict[Name, Job], pilots: Sequence[Record], policy: Policy) -> dict[Name, Job]:
    """Jobs with the samples, calls a sample and warm-up that the pilots found enough, the same on
    both sides."""
    streaming = pilots[0].case.mode == "streaming"
    inner = None if streaming else max(record.inner for record in pilots) // policy.agg_iters
    samples = None if streaming else policy.iters
    slowest = max(
        float(np.median(record.times_ns)) / (1 if streaming else record.inner) for record in pilots
    )
    warmup = min(
        max(record.warmup for record in pilots), max(5, math.ceil(WARM_SECONDS * 1e9 / slowest))
    )
    fixed = {
        "samples": samples or max(20, min(len(record.times_ns) for record in pilots)),
        "warmup": warmup if policy.warmup is None else policy.warmup,
        "inner": inner,
        "control": False,  # the pilot has had one
    }
    return {name: msgspec.structs.replace(job, **fixed) for name, job in jobs.items()}


def rows(order: Order) -> tuple[list[Row], dict[Name, list[Skip]]]:
    """Rows that both sides may run, and what is left out of each. Raises UsageError where rows of a
    side would be one on the other."""
    cases, left_out = order.suite.expand()
    swept, given = (
        {name for env in envs for name, _ in env}
        for envs in (
            {case.env for case in cases},
            {variant.env for variant in order.variants.values()},
        )
    )
    if clash := swept & given:
        raise UsageError(
            f"the suite sweeps {', '.join(sorted(clash))}, which a side sets", "one or the other"
        )
    differs = {field for variant in order.variants.values() for field in variant.differs}
    jobs: dict[Name, dict[str, Job]] = {}
    skips: dict[Name, list[Skip]] = {name: list(left_out) for name in SIDES}
    policy = order.suite.policy
    for name in SIDES:
        mine = applied(cases, order.variants[name])
        own = order.variants[name].python  # whose torch nobody has asked
        absent = {} if own else {b: why_not_here(b) for b in {case.backend for case in mine}}
        reasons = {
            case: why_not(case)
            or why_never(case)
            or why_not_so(case, policy)
            or absent.get(case.backend, "")
            for case in mine
        }
        possible = [case for case in mine if not reasons[case]]
        skips[name] += [Skip(case, reason) for case, reason in reasons.items() if reason]
        fitting, no_room = session.fitted(possible, policy)
        skips[name] += no_room
        jobs[name] = {stripped(job.case, differs): job for job in fitting}
        if len(jobs[name]) < len(fitting):
            other = SIDES[1 - SIDES.index(name)]
            raise UsageError(
                f"--{other} sets what the suite sweeps on the side of --{name}: rows cannot be told"
                " apart",
                f"set it for --{name} too (backend:…, algo:…)",
            )
    keys = [key for key in jobs["base"] if key in jobs["head"]]
    for name in SIDES:
        skips[name] += [Skip(j.case, ONE_SIDED) for k, j in jobs[name].items() if k not in keys]
    return [_alike(key, {name: jobs[name][key] for name in SIDES}) for key in keys], skips


def refuse_nothing(found: Sequence[Row], skips: Mapping[Name, Sequence[Skip]]) -> None:
    """Raises CannotRun where there is no row that both sides may run, which names the side where
    one alone has the reason."""
    if not found:
        base, head = ({skip.reason for skip in skips[side]} - {ONE_SIDED} for side in SIDES)
        own = [f"base: {why}" for why in base - head] + [f"head: {why}" for why in head - base]
        raise session.nothing_runs(sorted([*(base & head), *own]) or [ONE_SIDED])


def _alike(key: str, jobs: dict[Name, Job]) -> Row:
    """A row whose sides have equally many buffers taking turns."""
    least = min(jobs.values(), key=lambda job: job.rotation)
    even = {
        name: msgspec.structs.replace(j, rotation=least.rotation, cache=least.cache)
        for name, j in jobs.items()
    }
    return Row(key, even)
