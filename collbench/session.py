"""One run from its axes to its exit code: plan, launch, record, report."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from types import FrameType

import msgspec

from collbench import environment, inject, plan, records, resume, room, store
from collbench.backends import UNDER_MPIRUN, is_predicted, too_few_gpus, why_never, why_not_so
from collbench.console import PlanRow
from collbench.errors import CannotRun, CollbenchError, Exit, RunBroken, UsageError
from collbench.formats import Reporter, counted
from collbench.launch import join
from collbench.launch.board import Phase
from collbench.launch.environments import Membership
from collbench.launch.local import Launcher
from collbench.launch.on_ray import Cluster, Where
from collbench.plan import Job, Plan
from collbench.records import End, Record, Run, RunFile, World
from collbench.suite import Case, Policy, Skip, Suite


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A run as asked for: the suite, the words it was asked with, and where its records go; or which run goes on. Once
    all is done, its one world goes on with what ``further`` names, until that is nothing."""

    suite: Suite
    command: Sequence[str]
    save: bool = True
    output: Path | None = None
    tag: str = ""
    budget: float | None = None
    resumed: RunFile | None = None
    launcher: str = "auto"
    ray: Where | None = None
    further: Callable[[], Sequence[Case]] | None = None

    @property
    def join_seconds(self) -> float:
        """How long the ranks of a launcher may take to come together, or places for them to be free."""
        return self.suite.policy.timeout or 120.0


class Prepared(msgspec.Struct, frozen=True):
    """What would run: the suite with its final policy, jobs, and what is left out. ``cases`` are those of the table in
    its order, with those that a run to be resumed has done."""

    suite: Suite
    jobs: list[Job]
    skips: list[Skip]
    cases: list[Case]


def prepare(order: Order, at: room.Of | None = None) -> Prepared:
    """Jobs and skips of an order, with repetitions cut to its budget. Launches nothing."""
    suite = order.suite.settled()
    every, skips = suite.expand()
    inject.refuse(every, suite.policy)
    elsewhere = order.ray or join.detect(order.launcher)  # ranks may be on several hosts
    gpus = 0 if elsewhere else environment.gpu_count()

    def why_not(case: Case) -> str:
        if order.ray and case.backend in UNDER_MPIRUN:
            return f"{case.backend} needs ranks that mpirun has started, not Ray"
        return why_never(case) or why_not_so(case, suite.policy) or too_few_gpus(case, suite.policy, gpus)

    never = {case: reason for case in every if (reason := why_not(case))}
    skips += [Skip(case, reason) for case, reason in never.items()]
    done = {record.case for record in resume.standing(order.resumed)}
    leading = [case for case in every if case.group == 0]  # which stands for all groups
    jobs, no_room = fitted([case for case in leading if case not in never and case not in done], suite.policy, at)
    if order.budget is not None and jobs:
        suite = msgspec.structs.replace(suite, policy=plan.within(jobs, suite.policy, order.budget))
    skips += [Skip(case, skip.reason) for skip in no_room for case in skip.case.siblings]
    left_out = [skip for skip in skips if skip.case not in done]
    shown = {case for job in jobs for case in job.case.siblings} | {
        record.case for record in resume.standing(order.resumed) if not resume.unplanned(record)
    }
    return Prepared(suite, jobs, left_out, [case for case in every if case in shown])


def fitted(cases: Sequence[Case], policy: Policy, at: room.Of | None = None) -> tuple[list[Job], list[Skip]]:
    """Jobs for the cases that fit the memory of this host or its GPUs, in their order, and skips for the rest."""
    measured = [c for c in cases if not is_predicted(c.backend)]
    found = cache(lambda backend, n: (at or room.of)(backend, n, policy))
    jobs, no_room = plan.fit(measured, policy, lambda case: found(case.backend, case.world))
    fitting = {id(job.case): job for job in jobs}
    return [fitting.get(id(c)) or Job(c, 1, "") for c in cases if is_predicted(c.backend) or id(c) in fitting], no_room


def plan_rows(prepared: Prepared) -> list[PlanRow]:
    """What --dry-run shows."""
    policy = prepared.suite.policy
    rows = [
        PlanRow(
            case=case, rotation=job.rotation, seconds=0.0 if case.group else plan.seconds(job, policy),
            bytes_per_rank=plan.memory_per_rank(job, policy),
            moved=round(job.case.row.busbw(job.case.n) * job.case.moved),
        )
        for job in prepared.jobs for case in job.case.siblings[::-1]
    ]  # fmt: skip
    return rows + [PlanRow(case=skip.case, skipped=skip.reason) for skip in prepared.skips]


def execute(order: Order, make_reporter: Callable[[], Reporter]) -> Exit:
    """Run an order to its end, whatever happens on the way, and say how it went."""
    member = join.detect(order.launcher)
    if order.resumed is not None and order.resumed.end and not ((prepared := prepare(order)).jobs or prepared.skips):
        if member is not None and member.rank:
            return Exit.OK
        print(f"collbench: {order.resumed.path} is complete: nothing is left to measure", file=sys.stderr)
        return _Session(order, prepared, make_reporter(), Launcher(), None).tell_again(order.resumed.end)
    predicted = [is_predicted(b) for b in order.suite.values("backends")]
    if any(predicted) and member is not None:
        if member.rank:
            return Exit.OK  # predictions need one process
        member = None
    ranks = order.suite.values("ranks")
    if member is not None and set(ranks) != {member.n}:
        asked = ",".join(map(str, ranks))
        raise UsageError(
            f"-g {asked}: {member.launcher} started {counted(member.n, 'rank')}", "leave -g out; the launcher decides"
        )
    if member is not None and order.suite.policy.virtual:
        raise UsageError(f"--virtual-ranks: {member.launcher} starts real ones", "leave out one or the other")
    if member is not None and len(order.suite.values("envs")) > 1:
        raise UsageError(
            f"--env sweeps need fresh ranks, which {member.launcher} does not give",
            "one command per value, or without the launcher",
        )
    os.environ.update(dict(order.suite.axes.envs[0]) if member else {})  # before anybody asks what GPUs there are
    if member is not None and member.rank:
        join.follow(member, order.join_seconds)
        return Exit.OK
    on_ray = order.ray if not all(predicted) else None
    launcher = Cluster(on_ray, order.suite, order.join_seconds) if on_ray else Launcher()
    try:
        if order.resumed is not None:
            resume.refuse_another_machine(order.resumed, launcher.environment())
        forked = any(not is_predicted(b) and b not in UNDER_MPIRUN for b in order.suite.values("backends"))
        if member is None and forked and order.resumed is None:
            launcher.warm(order.suite.axes.envs[0])
        prepared = prepare(order, launcher.room)
        if not prepared.jobs and order.resumed is None:
            raise nothing_runs([skip.reason for skip in prepared.skips])
        return _Session(order, prepared, make_reporter(), launcher, member).run()
    finally:
        launcher.close()


def nothing_runs(notes: Sequence[str]) -> CannotRun:
    reasons = list(dict.fromkeys(notes))
    more = f" (and {len(reasons) - 1} more reasons)" if len(reasons) > 1 else ""
    return CannotRun(
        f"no case can run here: {reasons[0]}{more}",
        "try another size, datatype, --algo or --backend; collbench doctor says what runs here, list what there is",
    )


class _Session:
    """The state of one run under way."""

    def __init__(
        self, order: Order, prepared: Prepared, reporter: Reporter, launcher: Launcher | Cluster,
        member: Membership | None,
    ) -> None:  # fmt: skip
        self._prepared, self._reporter, self._launcher, self._member = prepared, reporter, launcher, member
        self._resumed = order.resumed
        self._stand = {record.case for record in resume.standing(order.resumed)}
        self._run = order.resumed.run if order.resumed else _describe(order, prepared.suite, launcher)
        self._order = order
        self._writer: store.Writer | None = None
        self._join_seconds = order.join_seconds
        self._worlds: dict[int, World] = {}
        self._outcomes: list[tuple[str, str]] = []
        self._taking = self._interrupted = False
        self._plans = resume.worlds(order.resumed, prepared.jobs, prepared.suite.policy, bool(order.further))

    def tell_again(self, end: End) -> Exit:
        """Shows a run that is complete, and says what came of it."""
        self._begin()
        self._reporter.end(end, self._resumed.path if self._resumed else None)
        return self._verdict()

    def _begin(self) -> None:
        """What there is before anything is measured: the plan, and what a run to be resumed has done."""
        earlier = resume.standing(self._resumed)
        skipped = [Skip(record.case, record.note) for record in earlier if resume.unplanned(record)]
        self._reporter.begin(self._run, self._prepared.cases, skipped + self._prepared.skips)
        for line in (*(self._resumed.worlds if self._resumed else ()), *earlier):
            if isinstance(line, World) or not resume.unplanned(line):
                self._tell(line)

    def run(self) -> Exit:
        self._writer = resume.writer(self._resumed) if self._resumed else _writer(self._order, self._run)
        self._begin()
        for skip in self._prepared.skips:
            self._keep(Record(case=skip.case, status="skipped", note=skip.reason))
        before = [(number, signal.signal(number, self._interrupt)) for number in (signal.SIGINT, signal.SIGTERM)]
        problem: CollbenchError | None = None
        try:
            self._launch()
            code, note = self._verdict(), ""
        except KeyboardInterrupt:
            code, note = Exit.INTERRUPTED, "interrupted"
        except BrokenPipeError:
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  (whoever reads has gone; so will this process)
            code, note = Exit.INTERRUPTED, "standard output was closed"
        except CollbenchError as e:
            problem, code, note = e, e.exit, e.message
        finally:
            for number, handler in before:
                signal.signal(number, handler)
        try:
            self._finish(code, note)
        except CollbenchError as e:
            if problem is None:
                raise
            print(f"collbench: {e.message}", file=sys.stderr)
        if problem is not None:
            raise problem
        return code

    def _verdict(self) -> Exit:
        """0 or 7. Raises CannotRun when no case ran."""
        statuses = {status for status, _ in self._outcomes}
        if not statuses & {"ok", "wrong", "predicted"}:
            raise nothing_runs([note for _, note in self._outcomes])
        return Exit.WRONG_DATA if "wrong" in statuses else Exit.OK

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C or termination: at once, but never between a record's being saved and its being shown."""
        self._interrupted = True
        if not self._taking:
            raise KeyboardInterrupt

    def _launch(self) -> None:
        if self._member is not None:
            join.run(self._member, lambda: self._plans, self._on_line, self._lost, self._on_hang, self._join_seconds,
                     self._go_on)  # fmt: skip
            return
        for place, current in enumerate(self._plans):
            if is_predicted(current.backend):
                from collbench.backends import model

                model.run(current, self._on_line)
                continue
            try:
                self._launcher.run(current, self._on_line, partial(self._on_tick, current), self._go_on)
            except RunBroken as e:
                self._lost(current, e)
                raise
            if all(later.env != current.env for later in self._plans[place + 1 :]):
                self._launcher.release(current.env)

    def _go_on(self) -> list[Job]:
        cases = self._order.further() if self._order.further else ()
        return fitted([case for case in cases if case.group == 0], self._prepared.suite.policy)[0]

    def _on_line(self, line: World | Record) -> None:
        if isinstance(line, Record) and line.case in self._stand:
            return  # a group's, measured again for the sake of those whose records had been cut off
        self._taking = True
        self._keep(line)
        self._tell(line)
        self._taking = False
        if self._interrupted:
            raise KeyboardInterrupt

    def _tell(self, line: World | Record) -> None:
        if isinstance(line, World):
            self._worlds[line.index] = line
            self._reporter.world(line)
        else:
            self._outcomes.append((line.status, line.note))
            self._reporter.record(line, records.derive(line, self._worlds.get(line.world)))

    def _on_tick(self, current: Plan, job: int, phase: Phase) -> None:
        if Phase.CONNECTING < phase < Phase.DONE:
            self._reporter.phase(current.jobs[job].case, phase.words, (phase - Phase.PREPARING) / len(Phase))

    def _on_hang(self, error: RunBroken) -> None:
        """A joined world stands still: keep what there is; the process ends right after."""
        print(f"collbench: {error.message}", file=sys.stderr)
        self._finish(error.exit, error.message)

    def _lost(self, current: Plan, error: RunBroken) -> None:
        """The case under way becomes a failed record."""
        if error.job is not None:
            for case in current.jobs[error.job].case.siblings:
                self._on_line(Record(case=case, status="failed", note=error.message, world=current.index))

    def _keep(self, line: World | Record) -> None:
        if self._writer is None:
            return
        had_trouble = bool(self._writer.trouble)
        self._writer.write(line)
        if self._writer.trouble and not had_trouble:
            print(f"collbench: {self._writer.trouble}; measuring goes on", file=sys.stderr)

    def _finish(self, code: Exit, note: str) -> None:
        """Write the last line and have the reporter close. Raises CannotRun if something could not be saved."""
        end = End(exit=code, ended=now(), note=note)
        path = None
        if self._writer is not None:
            self._writer.write(end)
            self._writer.close()
            path = self._writer.path
        self._reporter.end(end, path)
        if self._writer is not None and self._writer.trouble:
            raise CannotRun(
                self._writer.trouble, "free some space; what is shown above was measured, but not all is saved"
            )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def spoken(command: Sequence[str]) -> list[str]:
    """A command line to keep: without secrets, and without the place where collbench is installed."""
    return ["collbench", *map(environment.mask, command[1:])]


def _describe(order: Order, suite: Suite, launcher: Launcher | Cluster) -> Run:
    return Run(
        id=store.new_id(suite.name),
        started=now(),
        command=spoken(order.command),
        suite=suite,
        policy=suite.policy,
        environment=launcher.environment(),
        tag=order.tag,
    )


def _writer(order: Order, run: Run) -> store.Writer | None:
    """The run's file, refused before anything starts when it could not hold the run."""
    if not order.save and order.output is None:
        return None
    return store.opened(run, order.output)
