"""One run from its axes to its exit code: plan, launch, record, report."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Literal

import msgspec

from collbench.core.backend_info import backend_info
from collbench.core.errors import CannotRun, CollbenchError, Exit, RunBroken, UsageError, first_line
from collbench.core.text import format_clock, format_count, format_size, print_message
from collbench.machine import variables
from collbench.machine.load import Load
from collbench.records import derive, run_file, store
from collbench.records.derive import NO_TIME_LEFT, NOT_OPENED, NOT_VERIFIED
from collbench.records.flags import FEWEST_SAMPLES
from collbench.records.types import End, Record, Run, World
from collbench.run import plan, resumption
from collbench.run.backends._model import Predicted
from collbench.run.jobs import Job, Plan
from collbench.run.launch import environments, join
from collbench.run.launch import world as worlds
from collbench.run.launch.board import Phase
from collbench.run.launch.early import LoadingServer
from collbench.run.launch.environments import Membership
from collbench.run.launch.local import Launcher
from collbench.run.launch.world import Listener
from collbench.run.order import Order, Prepared, fit_to_host, prepare_order, refuse_nothing
from collbench.run.pace import (
    BudgetPace,
    CallerPace,
    Pace,
    TwoPassPace,
    budget_for,
    without_second_pass,
)
from collbench.run.reporter import Reporter
from collbench.run.runner import runner_of
from collbench.suite.case import Case
from collbench.suite.sweep import Suite
from collbench.survive.crash import find_exit_code
from collbench.survive.signals import interrupts

LONG_CALL = 60.0  # seconds of a call that is told of beforehand


def execute_order(
    order: Order, make_reporter: Callable[[], Reporter], early: LoadingServer | None = None
) -> Exit:
    """Run an order to its end, whatever happens on the way, and say how it went. A server that was
    started ``early`` forks its ranks if it can."""
    member = join.detect_launcher(order.launcher)
    follows = member is not None and member.rank > 0
    resumed = order.resumed
    ended = resumed and resumed.end and resumed.end.exit != Exit.INTERRUPTED
    if ended and not ((complete := prepare_order(order)).jobs or complete.skips):
        return Exit.OK if follows else _tell_again(order, complete, make_reporter())
    if all(backend_info(name).predicts for name in order.suite.values("backends")):
        if follows:
            return Exit.OK  # predictions need one process
        member = None
    if member is not None:
        _refuse_what_fresh_ranks_need(member, order)
        if resumed:  # all ranks say so, lest the others wait for rank 0
            joined = _join_ranks(member, order)
            resumption.refuse_another_launcher(resumed, joined.launcher, joined.list_hosts)
        # before anybody asks what GPUs there are
        os.environ.update(dict(order.suite.axes.envs[0]))
        if follows:
            seconds = join.meeting_seconds(order.suite.policy.timeout, member)
            return join.follow_rank_0(member, seconds, partial(_refuse_hosts, order))
    world = choose_world(order, member, early)
    before: dict[str, Load] = {}
    try:
        if resumed is None:
            before = world.load()
            world.warm(order.suite.values("backends"), order.suite.axes.envs[0])
        prepared = prepare_order(order, world.room)
        if resumed is not None:
            resumption.refuse_another_machine(resumed, world.environment(), prepared.jobs)
            resumption.refuse_another_launcher(resumed, world.launcher, world.list_hosts)
        else:
            refuse_nothing(prepared, order.command)
        _tell_of_long_calls(prepared.jobs)
        return _Session(order, prepared, make_reporter(), world, before).run()
    except Exception as e:
        if isinstance(world, join.Joined):
            world.end_followers(find_exit_code(e))
        raise
    finally:
        world.close()


def _tell_of_long_calls(jobs: Sequence[Job]) -> None:
    """Says before anything is measured how long the longest call takes, if that is long, as nothing
    can be said while it runs."""
    guesses = {
        job.case: runner_of(job.case).guess_call(job)
        for job in jobs
        if not backend_info(job.case.backend).predicts
    }
    longest = max(guesses, key=guesses.__getitem__, default=None)
    if longest is None or guesses[longest] < LONG_CALL:
        return
    runner, seconds = runner_of(longest), guesses[longest]
    what = longest.subject or f"{longest.collective} of {format_size(longest.size)}"
    took = format_clock(seconds) + " min" * (seconds < 3600)
    parts = f" (its {runner.parts} parts, one after the other)" if runner.parts > 1 else ""
    print_message(
        f"{what}: a call may take about {took} here{parts} (estimated); nothing is said"
        " before it has ended",
        runner.remedy,
    )


def choose_world(
    order: Order, member: Membership | None, early: LoadingServer | None = None
) -> worlds.World:
    """Where the plans of an order run: with the ranks of the launcher that has started this process
    as one of them, by prediction alone, on Ray's or other hosts, or on this machine."""
    if member is not None:
        return _join_ranks(member, order)
    if all(backend_info(name).predicts for name in order.suite.values("backends")):
        return Predicted()
    if order.source:
        return order.source.hold_places(order.suite, order.place_seconds)
    return Launcher(early=early)


def _join_ranks(member: Membership, order: Order) -> join.Joined:
    return join.Joined(member, join.meeting_seconds(order.suite.policy.timeout, member))


def _refuse_what_fresh_ranks_need(member: Membership, order: Order) -> None:
    """Raises UsageError for what a launcher's ranks, there already, cannot do."""
    suite = order.suite
    names = suite.values("backends")
    if model := next((name for name in names if backend_info(name).predicts), ""):
        raise UsageError(
            f"--backend {','.join(names)}: {model} predicts, and the ranks of {member.launcher}"
            " only measure",
            f"start one command for {model} and one for the others",
        )
    ranks = suite.values("ranks")
    if set(ranks) != {member.n}:
        rank_counts = ",".join(map(str, ranks))
        raise UsageError(
            f"-g {rank_counts}: {environments.describe_member(member)}",
            "leave -g out, or --launcher local starts that many ranks on this host",
        )
    for subject in filter(lambda subject: subject.title, suite.subjects):
        environments.refuse_other_ranks(member, subject.title.partition(" #")[0], subject.world)
    if suite.policy.virtual:
        raise UsageError(
            f"--virtual-ranks: {member.launcher} has started real ranks",
            "leave --virtual-ranks out, or start without the launcher",
        )
    if len(suite.values("envs")) > 1:
        raise UsageError(
            f"--env sweeps need fresh ranks, which {member.launcher} does not give",
            "start one command per value, or without the launcher",
        )
    if late := variables.list_read_at_start(suite.axes.envs[0], os.environ):
        fixed = ", ".join(setting.partition("=")[0] for setting in late)
        raise UsageError(
            f"--env {late[0]}: a process reads {fixed} when it starts, and {member.launcher} has"
            " started these ranks",
            f"export {fixed} with that value before {member.launcher} starts them (mpirun: -x)",
        )


def _refuse_hosts(order: Order, hosts: list[str]) -> None:
    """Raises UsageError where the ranks of an order's run were on other hosts."""
    if order.resumed:
        resumption.refuse_other_hosts(order.resumed, hosts)


def _tell_again(order: Order, prepared: Prepared, reporter: Reporter) -> Exit:
    """Shows a run that is complete, and says what came of it."""
    assert order.resumed is not None and order.resumed.end is not None
    path = order.resumed.path
    measured = any(record.status != "skipped" for record in order.resumed.records)
    reason = "nothing is left to measure" if measured else "all its cases were left out"
    print_message(f"{path} is complete: {reason}")
    session = _Session(order, prepared, reporter, Predicted(), {})
    session.begin()
    reporter.end(order.resumed.end, path)
    if not measured:
        records = order.resumed.records
        cases = [record.case for record in records]
        raise plan.nothing_runs([record.note for record in records], order.command, cases)
    return session.verdict()


class _Session:
    def __init__(
        self,
        order: Order,
        prepared: Prepared,
        reporter: Reporter,
        world: worlds.World,
        before: dict[str, Load],
    ) -> None:
        self._order, self._prepared, self._reporter = order, prepared, reporter
        self._ranks = world
        self._earlier = prepared.earlier
        self._run = (
            order.resumed.run
            if order.resumed
            else _describe_run(order, prepared.suite, world, before)
        )
        self._writer: run_file.Writer | None = None
        self._begun = False
        self._worlds: dict[int, World] = {}
        self._outcomes: list[tuple[str, str]] = []
        self._interim: dict[Case, Record] = {}  # what there is of a case that is being measured
        self._after: dict[str, Load] = {}
        self._broken: RunBroken | None = None  # of the first world that broke before it opened
        self._refused = False  # to go on with a run on other hosts
        self._pace = self._make_pace()

    def _make_pace(self) -> Pace:
        order, policy = self._order, self._prepared.suite.policy
        if next_cases := order.next_cases:
            return CallerPace(lambda: self._fit_leaders(next_cases()))
        if isinstance(self._ranks, Predicted):
            return Pace()
        if order.budget is not None:  # with -n, too, where that is the calls of a sample
            return BudgetPace(order.budget, policy, self._drop)
        return Pace() if policy.iters else TwoPassPace(policy)

    def begin(self) -> None:
        """What there is before anything is measured: the plan, and what a run to be resumed has
        done."""
        skips = self._earlier.left_out + self._prepared.skips
        self._reporter.begin(self._run, self._prepared.cases, skips)
        for line in self._earlier.reported:
            self._announce(line)

    def run(self) -> Exit:
        policy = self._prepared.suite.policy
        plans = self._earlier.plan_remaining(self._prepared.jobs, policy, self._ranks.count_sharers)
        launches = self._open_launches(plans)
        callbacks = self._accept, self._tick, self._pace.next_jobs, self._lost, self._hung
        listener = Listener(
            *callbacks,
            interim=self._accept_interim,
            unopened=self._unopened,
            met=self._refuse_met_hosts,
        )
        problem: Exception | None = None
        try:
            with interrupts:
                with interrupts.uninterrupted():
                    self._open()
                for number, part in enumerate(launches):
                    if number:
                        self._ranks.close()
                    self._ranks.run(part, listener)
                self._after = self._ranks.load()
                if self._broken and "wrong" not in {status for status, _ in self._outcomes}:
                    raise self._broken
                code, note = self.verdict(), self._broken.message if self._broken else ""
        except (Exception, KeyboardInterrupt) as e:
            if not self._begun:
                raise
            problem, code, note = classify_ending(e)
        try:
            self._finish(code, note)
        except CollbenchError as e:
            if problem is None and code != Exit.WRONG_DATA:
                raise
            print_message(e.message, e.hint)
        except KeyboardInterrupt:
            if problem is None:
                raise
        if problem is not None:
            raise problem
        return code

    def _open(self) -> None:
        """The run's file, and what there is before anything is measured: from then on the file gets
        its end whatever happens."""
        if self._order.resumed:
            self._writer = resumption.reopen_writer(self._order.resumed)
        elif self._order.save or self._order.output is not None:
            self._writer = store.open_writer(self._run, self._order.output)
        for record in self._earlier.cut_off:
            self._keep(without_second_pass(record))
        self.begin()
        for skip in self._prepared.skips:
            self._keep(Record(case=skip.case, status="skipped", note=skip.reason))
        self._begun = True

    def _open_launches(self, plans: list[Plan]) -> list[list[Plan]]:
        """The plans as the pace opens them, in parts, between which what forks ranks is started
        anew where cycles are to be fresh: a fork has the addresses of what it is made from."""
        parts = [plans]
        if self._prepared.suite.policy.fresh and isinstance(self._ranks, Launcher):
            cycles = itertools.groupby(plans, key=lambda plan: plan.jobs[0].case.cycle)
            parts = [list(part) for _, part in cycles]
        return [[self._open_plan(current) for current in part] for part in parts]

    def _open_plan(self, current: Plan) -> Plan:
        """The plan as the pace opens it; a prediction, which has no pace, as it is."""
        if backend_info(current.backend).predicts:
            return current
        return self._pace.open_plan(current)

    def verdict(self) -> Exit:
        """0 or 7. Raises CannotRun when no case ran, or the data of some could not be checked."""
        statuses = {status for status, _ in self._outcomes}
        if not statuses & {"ok", "wrong", "predicted"}:
            notes = [note for _, note in self._outcomes]
            cases = [job.case for job in self._prepared.jobs]
            raise plan.nothing_runs(notes, self._order.command, cases)
        if "wrong" in statuses:
            return Exit.WRONG_DATA
        if unverified := [note for _, note in self._outcomes if note.startswith(NOT_VERIFIED)]:
            share = f"{len(unverified):,} of {format_count(len(self._outcomes), 'case')}"
            raise CannotRun(f"{share} {unverified[0]}")
        return Exit.OK

    def _accept(self, line: World | Record) -> None:
        self._take_in(line)
        self._check_reader()

    def _take_in(self, line: World | Record) -> None:
        """Show a line that ranks sent, and keep it unless it is a single call's or a duplicate."""
        with interrupts.uninterrupted():
            if isinstance(line, World):
                self._pace.note_world(line)
            elif line.case in self._earlier.kept_cases:
                return  # a group's, measured again for those whose records had been cut off
            elif self._pace.accept_coarse(line):
                self._reporter.show_coarse(line, self._derive(line))
                return
            elif (accepted := self._pace.accept(line)) is None:
                return
            else:
                line = accepted
            self._keep(line)
            self._announce(line)

    def _accept_interim(self, record: Record) -> None:
        if record.case in self._earlier.kept_cases:
            return
        self._interim[record.case] = record
        if self._order.budget is None:  # which says itself how long the run takes
            self._reporter.show_interim(record)
        self._check_reader()

    def _keep_what_was_cut(self, why: str) -> None:
        """Records of what is finished of cases that were being measured when the run ended, and of
        those that were to be measured a second time."""
        for record in self._pace.take_cut_records() if why else ():
            self._keep(record)
            self._announce(record)
        for record in list(self._interim.values()):
            if record.findings:
                self._keep_interim(record, f"cut short: {why}")
                continue
            rounds = format_count(len(record.times_ns), "round")
            if len(record.times_ns) >= FEWEST_SAMPLES:
                self._keep_interim(record, f"cut short after {rounds}: {why}")
            elif record.times_ns and record.case.is_leader:
                print_message(
                    f"{record.case.subject}: cut short after {rounds}, which are too few to keep"
                )

    def _keep_interim(self, record: Record, note: str) -> None:
        cut_record = msgspec.structs.replace(record, note=note)
        self._keep(cut_record)
        self._announce(cut_record)

    def _announce(self, line: World | Record) -> None:
        if isinstance(line, World):
            self._worlds[line.index] = line
            self._reporter.world(line)
        else:
            self._interim.pop(line.case, None)
            self._outcomes.append((line.status, line.note))
            row = self._derive(line)
            record = line if self._reporter.needs_samples else derive.digest_record(line, row)
            self._reporter.record(record, row)

    def _check_reader(self) -> None:
        """Raises BrokenPipeError where standard output has no reader left, and no file keeps the
        run."""
        if self._writer is None and getattr(sys.stdout, "closed_early", False):
            raise BrokenPipeError

    def _derive(self, record: Record) -> derive.Derived | None:
        world = self._worlds.get(record.world)
        return derive.derive_in_run(record, world, self._prepared.suite)

    def _refuse_met_hosts(self, hosts: list[str]) -> None:
        """As _refuse_hosts, and note it: the run's file then keeps the end that it had."""
        try:
            _refuse_hosts(self._order, hosts)
        except UsageError:
            self._refused = True
            raise

    def _tick(self, case: Case, phase: Phase) -> None:
        self._reporter.phase(case, phase.label, (phase - Phase.PREPARING) / len(Phase))
        self._check_reader()

    def _drop(self, job: Job) -> None:
        """Record that there is no time for a job; where an earlier part has samples, they stay."""
        note = f"{NO_TIME_LEFT} {self._order.budget:g}s: not enough for all cases"
        note += (
            f"; --budget {budget_for(self._pace.sufficient_seconds)} is enough for all (estimated)"
        )
        for case in job.case.siblings:
            if record := self._earlier.cut_records.get(case):
                self._announce(record)
            else:
                self._accept(Record(case=case, status="skipped", note=note))

    def _fit_leaders(self, cases: Sequence[Case]) -> list[Job]:
        """Jobs for the cases that an order's caller names, and a record of each that does not
        fit."""
        leading = [case for case in cases if case.is_leader]
        jobs, skips = fit_to_host(leading, self._prepared.suite.policy, self._ranks.room)
        for case, note in ((case, skip.reason) for skip in skips for case in skip.case.siblings):
            self._accept(Record(case=case, status="skipped", note=note))
        return jobs

    def _unopened(self, current: Plan, error: CollbenchError) -> None:
        """Record all cases of a world that did not open: as skipped where it cannot be; as failed
        where a rank broke, which ends the run with that error once the other worlds are done."""
        if current.index in self._worlds:
            raise error
        status: Literal["failed", "skipped"] = "skipped"
        note = f"{NOT_OPENED}{error.reason}"
        if isinstance(error, RunBroken):
            self._broken = self._broken or error
            status, note = "failed", error.message
        jobs = self._pace.drop_world(current)
        for case in (case for job in jobs for case in job.case.siblings):
            self._accept(Record(case=case, status=status, note=note))

    def _lost(self, current: Plan, error: RunBroken) -> None:
        """The case under way becomes a failed record; all cases do where the world was not open."""
        if current.index not in self._worlds:
            self._unopened(current, error)
        elif error.job is not None:
            for case in current.jobs[error.job].case.siblings:
                failed = Record(case=case, status="failed", note=error.message, world=current.index)
                interim = self._interim.get(case)
                if interim and (interim.findings or len(interim.times_ns) >= FEWEST_SAMPLES):
                    cut = "cut short: " if interim.findings else ""
                    note = cut + error.message
                    failed = msgspec.structs.replace(interim, status="failed", note=note)
                self._accept(failed)

    def _hung(self, error: RunBroken) -> None:
        """A joined world stands still: keep what there is; the process ends right after."""
        print_message(error.message, error.hint)
        self._finish(error.exit, error.message)

    def _keep(self, line: World | Record) -> None:
        if self._writer is not None:
            write_line(self._writer, line)

    def _finish(self, code: Exit, note: str) -> None:
        """Write what is left and the last line, and have the reporter close; the file of a run that
        is not gone on with keeps the end that it had. Raises CannotRun if something could not be
        saved."""
        path = None
        with interrupts.shielded():
            self._keep_what_was_cut(note)
            end = End(exit=code, ended=time_now(), note=note, load=self._after)
            if self._writer is not None:
                resumed = self._order.resumed
                if kept := resumed.end if resumed and self._refused else end:
                    write_line(self._writer, kept)
                self._writer.close()
                path = self._writer.path
            self._reporter.end(end, path)
        if self._writer is not None and (trouble := self._writer.trouble or self._writer.lost):
            command = resumption.format_command(self._run, str(path))
            again = f": {command} measures what the file lacks" if command else ""
            what = (
                "free some space" if self._writer.trouble else "have no other process write there"
            )
            raise CannotRun(trouble, f"{what}; not all that is shown above is saved{again}")


def write_line(writer: run_file.Writer, line: World | Record | End) -> None:
    """Save a line; where that fails for the first time, or others changed the file, say so."""
    lost, moved, troubled = writer.lost, writer.moved, bool(writer.trouble)
    writer.write(line)
    if writer.moved != moved:
        print_message(writer.moved)
    if isinstance(line, End):
        return  # what is not saved then is an error
    if writer.lost != lost:
        print_message(f"{writer.lost}; measuring goes on")
    if writer.trouble and not troubled:
        print_message(f"{writer.trouble}; measuring goes on")


def time_now() -> str:
    """UTC to the second, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def clean_command(command: Sequence[str]) -> list[str]:
    """A command line to keep: without secrets, and without the place where collbench is
    installed."""
    return ["collbench", *variables.mask_words(command[1:])]


def _describe_run(order: Order, suite: Suite, world: worlds.World, before: dict[str, Load]) -> Run:
    return Run(
        id=store.new_id(suite.name),
        started=time_now(),
        command=clean_command(order.command),
        suite=suite,
        policy=suite.policy,
        environment=world.environment(),
        tag=variables.mask_text(order.tag),
        load=before,
        named_axes=order.named_axes,
    )


def classify_ending(error: BaseException) -> tuple[Exception | None, Exit, str]:
    """The ending of a run: the error that is to be raised again, if any, the exit code and the
    file's note."""
    match error:
        case KeyboardInterrupt():
            return None, Exit.INTERRUPTED, "interrupted"
        case BrokenPipeError():
            return None, Exit.INTERRUPTED, "standard output was closed"
        case CollbenchError():
            return error, error.exit, error.message
    assert isinstance(error, Exception)
    return error, find_exit_code(error), f"{type(error).__name__}: {first_line(error)}"
