"""The command `health`: a night's runs, the verdict on them, and everything made of it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from msgspec.structs import replace
from typer import Argument, Option

from collbench.cli.families import Debug, Plotlyjs
from collbench.cli.parameters import make_option
from collbench.core.errors import CannotRun, CollbenchError, Exit, NoVerdict, UsageError
from collbench.core.text import print_message
from collbench.features.health.fleet.command import (
    FleetOptions,
    judge_fleet,
    make_fleet_document,
    refuse_fleet_conflicts,
)
from collbench.features.health.history.command import HistoryUrl

if TYPE_CHECKING:
    from collbench.features.health.checks.curves import Curve
    from collbench.features.health.checks.table import Check
    from collbench.features.health.expect.power import Power
    from collbench.features.health.findings import Verdict
    from collbench.features.health.fleet.judgement import Fleet
    from collbench.features.health.history.outlook import Outlook
    from collbench.features.health.history.storage import Book
    from collbench.features.health.locate.command import Found, RefuseHosts
    from collbench.features.health.night import Night
    from collbench.records.types import Run, RunFile
    from collbench.run.launch.environments import Membership
    from collbench.show.document import Document
    from collbench.suite.case import Case
    from collbench.suite.sweep import Axes, Suite


FORMATS = ("table", "md", "json", "html", "junit", "prometheus", "otlp", "line")

HOOK_SECONDS = 60.0  # that --on-unhealthy may take

NIGHTLY = "health"  # the tag of suites whose runs are nights
MAX_DAYS = 2  # of the last night's age, without a warning
OWN_DAYS = 30  # of a night of this host's own, before a later one of others

NO_HISTORY_HINT = "--no-history judges without it"

LAUNCHES = 3  # of a case that --rerun measures again


@dataclass(frozen=True, kw_only=True)
class HealthOptions:
    """The night to judge, what to measure for that, and the outputs."""

    runs: Annotated[
        list[str] | None,
        Argument(
            metavar="RUN…",
            help="Default: the last of a suite with tag health; of this host if it has one in the"
            f" last {OWN_DAYS} days.",
        ),
    ] = None
    output_format: Annotated[
        str,
        Option(
            "--format",
            help="Print table, md, json, html, junit, prometheus, otlp (OpenTelemetry), or line:"
            " one for a chat.",
        ),
    ] = "table"
    out: Annotated[
        list[Path] | None,
        Option(
            "-o",
            "--output",
            help="Also write this file: .html, .md, .json, .xml (JUnit), .prom (for node_exporter)"
            " or .otlp (OpenTelemetry). May be repeated.",
        ),
    ] = None
    plotlyjs: Plotlyjs = "inline"
    nagios: Annotated[
        bool,
        Option(
            "--nagios",
            help="Print a monitoring plugin's line and exit as one: 0 OK, 1 warning, 2 critical, 3"
            f" unknown, also if the last run is over {MAX_DAYS} days old.",
        ),
    ] = False
    on_unhealthy: Annotated[
        str,
        Option(
            "--on-unhealthy",
            metavar="CMD",
            help="Where unhealthy, run this program (no shell) with the verdict as JSON on its"
            " standard input, which programs of `collbench recipe` read.",
        ),
    ] = ""
    history: HistoryUrl = ""
    no_history: Annotated[
        bool, Option("--no-history", help="Neither judge against earlier nights nor add this one.")
    ] = False
    machine: Annotated[
        str,
        Option(
            "--machine",
            metavar="NAME",
            help="Where it ran, as the history knows it. Default: the name of its host, or of all"
            " its hosts together; for hosts whose names change.",
        ),
    ] = ""
    rerun: Annotated[
        bool,
        Option(
            "--rerun",
            help="Measure at once, in three fresh launches, what is slower than in earlier nights:"
            " only so is it confirmed.",
        ),
    ] = False
    inject: Annotated[
        str,
        Option(
            "--inject",
            metavar="FAULTS",
            help="Test your alerts: measure suite nightly now with faults planted, as drop:3"
            " (`collbench help health`), and judge that.",
        ),
    ] = ""
    ngpus: Annotated[
        str,
        make_option("ranks", "Ranks for --inject and --locate. Default: all GPUs, else all cores."),
    ] = ""
    budget: Annotated[
        str,
        make_option(
            "budget", "Fit what --rerun or --inject (there, default 2m) measures into this time."
        ),
    ] = ""
    locate: Annotated[
        bool,
        Option(
            "--locate",
            help="Also search for slow ranks and links, as collbench locate does: on this host or"
            " the launcher's, if the night ran there.",
        ),
    ] = False
    tests: Annotated[
        int | None,
        Option(
            "--tests",
            min=1,
            help="Tests that --locate may take: one is a group's measurement. Default: 80.",
        ),
    ] = None
    expect: Annotated[
        Path | None,
        Option(
            "--expect",
            metavar="PATH",
            help="Bandwidths expected of these machines: a TOML file of [[curve]] tables, or a"
            " folder (`collbench help acceptance`).",
        ),
    ] = None
    gate_power: Annotated[
        bool,
        Option(
            "--gate-power",
            help="Also show what loss --expect would find how often, by the scatter between these"
            " launches; collbench expect power takes several nodes.",
        ),
    ] = False
    fleet: FleetOptions
    title: Annotated[str, Option("--title", help="Heading of the page and of the Markdown.")] = ""
    debug: Debug = False

    @property
    def seconds(self) -> float | None:
        """The time that --budget gives, if any. Raises UsageError."""
        from collbench.suite import grammar

        return grammar.parse_time_limit(self.budget, "--budget") if self.budget else None


def health(options: HealthOptions) -> None:
    """Say if a cluster is healthy; if not: who, since when, what to do.

    Judges recorded runs, best those of `collbench run nightly`. Exit codes: 0 healthy; 1 unhealthy,
    of which wrong data is a part; 3 no verdict: what is missing is said, and never counts as a
    pass.
    """
    from collbench.features.health.views import health as views

    check_outputs(options)
    refuse_conflicts(options)
    hook, seconds = _parse_hook(options.on_unhealthy), options.seconds
    if options.locate and (member := _find_member()) and member.rank:
        search_ranks(options.tests, options.ngpus)  # as rank 0 says, which has the runs
        return
    try:
        judged_night = judge_night(options, seconds)
    except CollbenchError as e:
        if not options.nagios:
            raise
        typer.echo(views.make_unknown("; ".join(filter(None, [e.message, e.hint]))))
        raise typer.Exit(views.UNKNOWN[0]) from e
    if judged_night is not None:
        raise typer.Exit(_deliver_verdict(judged_night, hook, options))


def refuse_conflicts(options: HealthOptions) -> None:
    """Whether options go together. Raises UsageError."""
    past = options.history or options.machine
    night_only = {
        "--rerun": options.rerun,
        "--inject": bool(options.inject),
        "--locate": options.locate,
        "--history": bool(options.history),
        "--machine": bool(options.machine),
        "--expect": bool(options.expect),
        "--gate-power": options.gate_power,
    }
    refuse_fleet_conflicts(options.fleet, night_only, bool(options.runs))
    if options.budget and not (options.rerun or options.inject):
        raise UsageError(
            "--budget is given without --rerun or --inject, whose time it limits",
            "add --rerun, or give --budget to collbench run",
        )
    if options.ngpus and not (options.inject or options.locate):
        raise UsageError(
            "-g is given without --inject or --locate, which measure",
            "leave -g out: a recorded run has its ranks",
        )
    if options.gate_power and not options.expect:
        raise UsageError(
            "--gate-power is given without --expect, whose limits it is about",
            "add --expect ours.toml; collbench expect learn RUN… writes a table",
        )
    if options.tests and not options.locate:
        raise UsageError("--tests is given without --locate, which it limits", "add --locate")
    if options.inject and (options.runs or options.rerun or options.locate or past):
        raise UsageError(
            "--inject measures runs with planted faults, which no history keeps",
            "leave runs, --rerun, --locate, --history and --machine out",
        )
    if options.no_history and (past or options.rerun):
        raise UsageError(
            f"--no-history and {'--history or --machine' if past else '--rerun'} exclude each"
            " other",
            "leave out --no-history, or --history and --machine"
            if past
            else "leave --no-history out: --rerun confirms what is slower than in earlier nights",
        )
    if options.rerun and (member := _find_member()):
        # whose other ranks would not know of what rank 0 finds
        raise UsageError(
            f"--rerun starts ranks itself, and {member.launcher} has started some",
            "judge the night outside the job, or leave --rerun out",
        )


def _find_member() -> Membership | None:
    from collbench.run.launch import join

    return join.detect_launcher("auto")


def judge_night(options: HealthOptions, seconds: float | None) -> JudgedNight | None:
    """The night, measured where that was asked for, and judged; None on other ranks than 0. Raises
    what a run raises."""
    from collbench.features.health.checks import curves, expectations
    from collbench.features.health.checks import table as checks
    from collbench.features.health.views import health as views
    from collbench.records import run_file, store

    if options.fleet.fleet:
        verdict, fleet = judge_fleet(options.fleet, options.runs or [])
        if options.nagios:
            _refuse_old("the fleet's last run", _count_days(fleet.ended))
        return JudgedNight(views.clean_verdict(verdict), [], None, fleet=fleet)
    runs, more = options.runs, list[checks.Check]()
    table = curves.load_tables(options.expect) if options.expect else []
    if options.expect:
        look = partial(expectations.check_expectations, curves=table)
        more = [checks.Check("expected", look, "rows of which figures are expected")]
    if (
        options.inject
        and (runs := measure_planted(options.inject, options.ngpus, seconds or 120.0)) is None
    ):
        return None
    paths = list(dict.fromkeys(map(store.find_run, runs or [_last_night()])))
    for path in filter(run_file.is_running, paths):
        raise NoVerdict(run_file.describe_running(path), "judge it once it has ended")
    files = [run_file.read_digest(path) for path in paths]
    if options.nagios:
        refuse_stale(files, is_named=bool(runs))
    more += [check_located(files, options.tests, options.ngpus)] if options.locate else []
    trend = None
    if not options.no_history:
        past, trend = check_earlier(files, options.history, options.rerun, seconds, options.machine)
        more = [past, *more]
    verdict = views.clean_verdict(checks.judge_night(files, more))
    power = find_gate_power(table, files) if options.gate_power else None
    return JudgedNight(verdict, files, trend, power)


def find_gate_power(table: Sequence[Curve], files: Sequence[RunFile]) -> Power | None:
    """What loss the table finds how often, by the launches of this night; None, which is told,
    where no row has a limit."""
    from collbench.features.health.expect import nodes, power
    from collbench.features.health.night import Night

    try:
        return power.find_power(table, [nodes.describe_node(Night(files))])
    except NoVerdict as e:
        print_message(f"--gate-power: {e.message}")
        return None


def _last_night() -> str:
    """The last saved run of a nightly suite that has ended: of those of OWN_DAYS in which this host
    has a rank, if there are any, else of all, and that is told. Where there is none, the last run.
    Raises NoVerdict where this host's only night, or the only one of all, is still running, and
    CannotRun where this user may read no run."""
    from collbench.machine import environment
    from collbench.records import run_file, store

    host = environment.host_name()
    other: _SavedNight | None = None  # the last of other hosts
    running: list[_SavedNight] = []
    paths = store.list_saved()
    unreadable = store.report_unreadable(paths)
    for path in reversed(paths):
        with suppress(CollbenchError):  # what cannot be read is no night
            run = run_file.read_run(path)
            if NIGHTLY not in run.suite.tags:
                continue
            days = _count_days(run.started)
            if other and days > OWN_DAYS:
                break
            night = _SavedNight(path, _list_hosts(path, run), days)
            if run_file.is_running(path):
                running.append(night)
            elif host in night.hosts:
                return _announce_night(night, running, other, host)
            else:
                other = other or night
    running_here = [night for night in running if host in night.hosts]
    if other and not running_here:
        return _announce_night(other, running, None, host)
    if running:
        which = f" of {host} in the last {OWN_DAYS} days"
        raise NoVerdict(
            run_file.describe_running((running_here or running)[0].path),
            f"judge it once it has ended: no other night{which * bool(running_here)} is saved",
        )
    print_message(
        f"no run of a suite with the tag {NIGHTLY} is saved{' and readable' * bool(unreadable)}:"
        " this is about @last; collbench run nightly measures a night"
    )
    return "@last"


class _SavedNight(NamedTuple):
    """A saved run of a nightly suite, the hosts of its ranks, and its age."""

    path: Path
    hosts: Sequence[str]
    days: int


def _list_hosts(path: Path, run: Run) -> list[str]:
    """The hosts of a run's ranks, of which the largest world has all; the run's own host where it
    started none."""
    from collbench.records import run_file

    worlds = run_file.read_worlds(path, max(run.suite.values("ranks"), default=1))
    hosts = dict.fromkeys(info.host for world in worlds for info in world.ranks)
    return list(hosts) or [str(run.environment.get("host"))]


def _announce_night(
    night: _SavedNight, running: Sequence[_SavedNight], later: _SavedNight | None, host: str
) -> str:
    """The path of the night to judge. Says which it is where it is not the last, not of this
    ``host``, or old, as it is when nobody measures any more."""
    from collbench.features.health.night import list_several
    from collbench.records import run_file

    name = night.path.stem
    is_own = host in night.hosts
    for other in running:
        if host in other.hosts or not is_own:
            message = run_file.describe_running(other.path)
            print_message(f"{message}: this is about {name}, the night before")
    if not is_own:
        hosts = list_several(night.hosts)
        print_message(
            f"no night of {host} in the last {OWN_DAYS} days is saved: this is about {name}, of"
            f" {hosts}"
        )
    elif later:
        print_message(
            f"this is about {name}, the last night of {host}; {later.path.stem} is of"
            f" {list_several(later.hosts)}"
        )
    if night.days > MAX_DAYS:
        print_message(
            f"the last night is {night.days:,} days old ({name}): is none measured any more?",
            "collbench run nightly measures one",
        )
    return str(night.path)


def refuse_stale(files: Sequence[RunFile], is_named: bool) -> None:
    """Raises NoVerdict for what a monitoring plugin must not go on saying: the verdict on a night
    of more than MAX_DAYS ago, or, where no run ``is_named``, on other hosts than this one."""
    from collbench.features.health.night import list_devices, list_several
    from collbench.machine import environment

    night = list_several(file.run.id for file in files)
    _refuse_old(night, min(_count_days(file.run.started) for file in files))
    host = environment.host_name()
    hosts = list_devices(files[0]) or {str(files[0].run.environment.get("host"))}
    if not is_named and host not in hosts:
        raise NoVerdict(
            f"{night} was measured on {list_several(sorted(hosts))}; no night of {host} was saved"
            f" in the last {OWN_DAYS} days",
            "collbench run nightly measures one; collbench health --nagios @last judges the last"
            " night of any host",
        )


def _refuse_old(subject: str, days: int) -> None:
    """Raises NoVerdict where what is judged is more than MAX_DAYS old."""
    if days > MAX_DAYS:
        raise NoVerdict(f"{subject} is {days:,} days old", "collbench run nightly measures a night")


def _count_days(started: str) -> int:
    """Whole days since a time in ISO 8601; 0 for what is none."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(started).astimezone(UTC)).days
    except (ValueError, OverflowError):
        return 0


class JudgedNight(NamedTuple):
    """The verdict on a night, its files, what became of their rows over the nights, what the table
    of --expect finds how often; or the verdict on a fleet."""

    verdict: Verdict
    files: list[RunFile]
    trend: Outlook | None
    power: Power | None = None
    fleet: Fleet | None = None


def _rerun_path(name: str) -> Path:
    """A new run's file in ``reruns``, so that @last stays the night's."""
    from collbench.core import files
    from collbench.records import store

    folder = files.home_folder() / "reruns"
    files.make_folder(folder)
    return folder / f"{store.new_id(name)}.jsonl"


def measure_planted(faults: str, ranks: str, seconds: float) -> list[str] | None:
    """Measures suite nightly with faults; the run's file, or None on other ranks than 0. A run that
    a fault ends is judged as far as it came. Raises UsageError."""
    from collbench.cli import options
    from collbench.suite import toml

    path = _rerun_path("planted")
    suite = options.change_suite(
        toml.load_suite("nightly"), ngpus=ranks, inject=faults, launcher="auto"
    )
    try:
        _measure_suite(suite, sys.argv, path, "planted", seconds)
    except CollbenchError as e:
        if isinstance(e, UsageError) or not path.is_file():
            raise
        print_message(e.message, e.hint)
    member = _find_member()
    return None if member and member.rank else [str(path)]


def check_earlier(
    files: Sequence[RunFile], url: str, rerun: bool, seconds: float | None, machine: str = ""
) -> tuple[Check, Outlook | None]:
    """The check against earlier nights, and how these rows went over the nights; where there is no
    history, or none of these runs may be added to it, a check that says so. Only runs of nightly
    suites that measured something are added, and the others named. ``machine`` as in Book.add.
    Raises UsageError for a URL that is none.
    """
    from collbench.features.health import history, night
    from collbench.features.health.checks import past
    from collbench.features.health.checks import table as checks
    from collbench.features.health.checks.hosts import CheckResult
    from collbench.features.health.history.storage import FullHistory

    def blind(why: str, lacks: str = "") -> tuple[Check, None]:
        return checks.Check("history", lambda _: CheckResult(missing=why, lacks=lacks)), None

    trouble = night.explain_trouble(files) or (
        f"a fault was planted: {planted}" if (planted := checks.describe_injected(files)) else ""
    )
    if trouble:
        return blind(trouble)
    try:
        book = history.open_book(url)
    except (CannotRun, FullHistory) as e:
        return blind(f"{e.message}; {NO_HISTORY_HINT}", past.EARLIER_NIGHTS)
    with book:
        try:
            reasons = [_explain_unkept(book, file, machine) for file in files]
            kept = [file for file, why in zip(files, reasons, strict=True) if not why]
            left_out = "; ".join(filter(None, reasons))
            if not kept:
                return blind(left_out)
            known_past = past.add_night(book, kept, machine)
        except NoVerdict as e:  # on fake GPUs, of which no night is kept
            return blind(e.message)
        except CollbenchError as e:
            return blind(f"{e.message}; {NO_HISTORY_HINT}", past.EARLIER_NIGHTS)
    fresh = partial(measure_again, kept, seconds) if rerun else None

    def look(_: Night) -> CheckResult:
        result = past.check_past(known_past, fresh, night.Night(kept))
        if result.missing:
            return result._replace(missing="; ".join(filter(None, [result.missing, left_out])))
        return result._replace(note="; ".join(filter(None, [result.note, left_out])))

    return checks.Check("history", look, "times"), known_past.outlook


def _explain_unkept(book: Book, file: RunFile, machine: str) -> str:
    """The reason why a run is not judged against earlier nights, or an empty string."""
    from collbench.features.health.history.nights import launches_of
    from collbench.records.store import quote_run_name

    run = file.run
    if NIGHTLY not in run.suite.tags and not book.holds(run.id):
        machine_option = f" --machine {shlex.quote(machine)}" if machine else ""
        return (
            f"{run.id} is not kept: its suite, {run.suite.name}, has no tag {NIGHTLY};"
            f" collbench history add {quote_run_name(file.path)}{book.option}{machine_option}"
            " keeps it"
        )
    return "" if launches_of(file) else f"{run.id} measured nothing"


def check_located(files: Sequence[RunFile], tests: int | None, ranks: str) -> Check:
    """The check that a search among all ranks comes to, at rank 0; where the search breaks, or
    would be among other hosts than the night's, the check says so, and the night is judged without
    it. Raises UsageError."""
    from collbench.features.health.checks import table as checks
    from collbench.features.health.checks.hosts import CheckResult
    from collbench.features.health.locate.command import WrongDataFound
    from collbench.machine import environment

    refuse_hosts = partial(_explain_elsewhere, files)
    local_hosts = {environment.host_name()}
    if not _find_member() and (reason := refuse_hosts(local_hosts)):
        return checks.Check("locate", lambda _: CheckResult(missing=reason))
    try:
        located = search_ranks(tests, ranks, refuse_hosts)
    except UsageError:
        raise
    except WrongDataFound as e:
        wrong, note = [replace(e.finding, check="locate")], "ended by wrong data"
        return checks.Check("locate", lambda _: CheckResult(note, wrong))
    except CollbenchError as e:
        why = e.message
        return checks.Check("locate", lambda _: CheckResult(missing=why))
    assert located
    # of ranks that share cores, nobody can say how sure a culprit is
    findings = [
        replace(finding, check="locate", severity=finding.severity if finding.sure else "hint")
        for finding in located.findings
    ]
    missing = located.outcome if located.exit == Exit.NO_VERDICT else ""
    return checks.Check("locate", lambda _: CheckResult(located.outcome, findings, missing))


def _explain_elsewhere(files: Sequence[RunFile], hosts: Collection[str]) -> str:
    """The reason why a search among ``hosts`` says nothing of the night's, or an empty string."""
    from collbench.features.health.night import list_devices, list_several

    night_hosts = list_devices(files[0])
    if not night_hosts or night_hosts == hosts:
        return ""
    return (
        f"--locate searches {list_several(sorted(hosts))}, but the night ran on"
        f" {list_several(sorted(night_hosts))}: run collbench locate there"
    )


def search_ranks(
    tests: int | None, ranks: str, refuse_hosts: RefuseHosts | None = None
) -> Found | None:
    """A search among all ranks, on whose hosts it is ended before its first round if
    ``refuse_hosts`` gives a reason; None on other ranks than 0. Raises what a run raises."""
    from collbench.features.health.locate import command as searching
    from collbench.features.health.locate.search import Rules
    from collbench.features.health.pairs import command as pairs
    from collbench.suite.policy import Policy

    order = pairs.order_of("locate", ["4M"], Policy(iters=10, warmup=2), ranks)
    order = replace(order, output=_rerun_path("locate"), tag="locate")
    rules = Rules(budget=tests) if tests else Rules()
    searching.announce_search(order, rules)
    return searching.run_search(order, rules, refuse_hosts=refuse_hosts)


def measure_again(files: Sequence[RunFile], seconds: float | None, cases: Sequence[Case]) -> Night:
    """These cases in three launches more, a run of their own."""
    from collbench.core.text import format_count
    from collbench.features.health.night import (
        Night,
        explain_trouble,
        find_changes,
        list_devices,
    )
    from collbench.machine import environment
    from collbench.records import run_file

    if other_hosts := list_devices(files[0]) - {environment.host_name()}:
        print_message(
            f"--rerun measures on {environment.host_name()}, and the night's ranks were on "
            f"{', '.join(sorted(other_hosts)[:3])}: nothing is confirmed"
        )
        return Night([])
    path = _rerun_path("rerun")
    print_message(f"measuring {format_count(len(cases), 'row')} again")
    try:
        launch_cases(files[0].run, cases, path, seconds)
    except CollbenchError as e:  # what it measured until then counts; the verdict is on the night
        print_message(f"measuring again: {e.message}")
    fresh = [run_file.read_digest(path)] if path.is_file() else []
    last = max(files, key=lambda file: file.run.started)
    changes = [change.difference for change in find_changes([last, *fresh])]
    if why := explain_trouble([*files, *fresh]) or environment.explain_differences(changes):
        print_message(f"measuring again: {why}")
        return Night([])
    return Night(fresh)


def launch_cases(run: Run, cases: Sequence[Case], path: Path, seconds: float | None = None) -> None:
    """Measures ``cases`` as ``run`` did, LAUNCHES times, into the file ``path``. Raises what a run
    raises."""
    from collbench.suite.measurable import NOT_INSTALLED
    from collbench.suite.sweep import Axes, Suite

    sweeps = [_copy_axes(case) for case in cases if not case.subject]
    find_subject = run.suite.subject_finder
    subject_by_case = {case: subject for case in cases if (subject := find_subject(case))}
    if subject_by_case:  # along the first sweep, which has no collective then
        values = {"backends": "backend", "algorithms": "algorithm", "envs": "env"}
        shared_axes: dict[str, Any] = {
            axis: tuple(dict.fromkeys(getattr(case, field) for case in subject_by_case))
            for axis, field in values.items()
        }
        worlds = tuple(sorted({case.world for case in subject_by_case}))
        axes = Axes(collectives=(), sizes=(), ranks=worlds, cycles=LAUNCHES, **shared_axes)
        sweeps.insert(0, axes)
    if not sweeps:
        raise UsageError(*NOT_INSTALLED)
    suite = Suite(
        name="rerun",
        axes=sweeps[0],
        includes=tuple(sweeps[1:]),
        subjects=tuple(
            {(each.title, each.world): each for each in subject_by_case.values()}.values()
        ),
        policy=replace(run.policy, fresh=True),
    )
    command = ["collbench", "health", "--rerun"]
    _measure_suite(suite, command, path, f"rerun of {run.id}", seconds)


def _copy_axes(case: Case) -> Axes:
    """The axes that expand to this case of a collective, LAUNCHES times, and to its siblings."""
    from collbench.suite.sweep import FIELDS, Axes

    values: dict[str, Any] = {axis: (getattr(case, field),) for axis, field in FIELDS.items()}
    values |= {"ranks": (case.world,), "groups": case.groups, "align": case.align}
    values |= {"arrivals": (case.arrival,) if case.arrival else ()}
    return Axes(**values, cycles=LAUNCHES)


def _measure_suite(
    suite: Suite, command: Sequence[str], path: Path, tag: str, seconds: float | None
) -> None:
    """Measure a suite into ``path`` within ``seconds``, None for no budget. Raises
    KeyboardInterrupt where the user stopped it."""
    from collbench.run import session
    from collbench.run.order import Order
    from collbench.show import live

    order = Order(suite=suite, command=command, output=path, tag=tag, budget=seconds)
    if session.execute_order(order, live.Status) == Exit.INTERRUPTED:
        raise KeyboardInterrupt


def check_outputs(options: HealthOptions) -> None:
    """Whether all this can be made, before any time is spent. Raises UsageError and CannotRun."""
    from collbench.cli import outputs

    printed = options.output_format
    outputs.check_outputs(printed, options.out or [], FORMATS, options.plotlyjs)
    if options.nagios and printed != "table":
        raise UsageError(
            f"--nagios prints a line of its own, not {printed}",
            "leave --format out; -o writes files",
        )


def _parse_hook(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as e:
        raise UsageError(
            f"--on-unhealthy: {e}", "give a program and its arguments, quoted as for a shell"
        ) from e


def _deliver_verdict(judged_night: JudgedNight, hook: Sequence[str], options: HealthOptions) -> int:
    """Run the hook, print the verdict and write it; the exit code."""
    from collbench.cli import outputs
    from collbench.features.health.views import health as views

    verdict, nagios = judged_night.verdict, options.nagios
    code, line = views.make_nagios(verdict) if nagios else (verdict.exit, views.make_line(verdict))

    def make(name: str) -> Document:
        if judged_night.fleet:
            return make_fleet_document(judged_night.fleet, verdict, options.title, line)
        document = views.make_document(
            verdict, judged_night.files if name == "html" else (), judged_night.trend
        )
        if judged_night.power:
            document = views.add_power(document, judged_night.power)
        return replace(document, title=options.title or document.title, line=line)

    if hook and verdict.state == "unhealthy":
        run_hook(hook, outputs.render_text(make("json"), "json"))
    try:
        printed = "line" if nagios else options.output_format
        outputs.deliver_document(make, printed, options.out or [], options.plotlyjs)
    except CollbenchError as e:  # a file could not be written; the verdict has been printed
        if not nagios:
            raise
        print_message(e.message, e.hint)
    return code


def run_hook(command: Sequence[str], text: str, seconds: float = HOOK_SECONDS) -> None:
    """Runs ``command`` with ``text`` on its standard input, its output on standard error. A command
    that fails is reported and changes no verdict; one that is still running after ``seconds`` is
    ended together with all it started."""
    name = f"--on-unhealthy {command[0]}"
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as e:
        print_message(f"{name}: {e.strerror}")
        return
    try:
        with suppress(BrokenPipeError):  # it need not read
            process.communicate(text, timeout=seconds)
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print_message(f"{name} did not end in {seconds:g} s and was ended")
        return
    if code:
        print_message(f"{name} ended with {code}")
