"""The command `locate`: who makes a group slow, searched for with ranks; rank 0 decides after each
round what is measured next."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer
from msgspec.structs import replace
from typer import Option

from collbench.cli.families import (
    Backend,
    Debug,
    Inject,
    LauncherOptions,
    Ranks,
    SaveOptions,
    TableOrJson,
    Timeout,
)
from collbench.cli.parameters import make_option
from collbench.core.backend_info import backend_info, list_capable
from collbench.core.errors import CannotRun, CollbenchError, Exit, NoVerdict
from collbench.core.text import plain_line
from collbench.survive.encoding import encode_json

if TYPE_CHECKING:
    from collbench.features.health.findings import Finding
    from collbench.features.health.locate.search import Group, Located, Rules, Search
    from collbench.records.derive import Derived
    from collbench.records.types import Record, RunFile, World
    from collbench.run.order import Order
    from collbench.show.live import Status
    from collbench.suite.case import Case

RefuseHosts = Callable[[Collection[str]], str]  # why a search is not to be on these, or ""


@dataclass(frozen=True, kw_only=True)
class SearchSaveOptions(SaveOptions):
    """The place and the tag of a search's run, and whether there is to be one."""

    dry_run: Annotated[bool, make_option("dry_run", "Show the plan only.")] = False


@dataclass(frozen=True, kw_only=True)
class LocateOptions:
    """The ranks to search, how, and where the run goes."""

    ngpus: Ranks = ""
    backend: Backend = ""
    size: Annotated[str, Option("--size", help="What each rank sends to its neighbour.")] = "4M"
    tau: Annotated[
        str,
        Option("--tau", help="How much slower than the rest counts as slow."),
    ] = "10%"
    tests: Annotated[
        int, Option("--tests", min=1, help="Tests at most: a group's measurement is one.")
    ] = 80
    budget: Annotated[str, make_option("budget", "Begin no round after this time: 3m.")] = ""
    iters: Annotated[
        int, Option("-n", "--iters", min=1, max=1 << 20, help="Samples of each test.")
    ] = 10
    where: LauncherOptions
    timeout: Timeout = None
    inject: Inject = ""
    output_format: TableOrJson = "table"
    saving: SearchSaveOptions
    debug: Debug = False


def locate(options: LocateOptions) -> None:
    """Find who makes a group slow, by halving slow groups.

    Disjoint groups are measured at once. Each suspect is tested again, twice, with known-good
    partners. The plan is printed first. Exit code 1 if a host or rank is named, 3 if some could not
    be ruled out or a test has no rate, 7 if data were wrong.
    """
    from collbench.cli.measure import fake_gpus
    from collbench.cli.options import read_save_options
    from collbench.features.health.locate.search import Rules
    from collbench.features.health.pairs import command as pairs
    from collbench.run.order import prepare_order, refuse_nothing
    from collbench.suite import grammar
    from collbench.suite.policy import Policy

    grammar.parse_choice("--format", options.output_format, ("table", "json"))
    rules = Rules(grammar.parse_share(options.tau, "--tau"), options.tests)
    seconds = grammar.parse_time_limit(options.budget, "--budget") if options.budget else math.inf
    policy = Policy(iters=options.iters, warmup=2, timeout=options.timeout, inject=options.inject)
    size, ngpus, backend = options.size, options.ngpus, options.backend
    where, source = options.where, options.where.find_source()
    order = pairs.order_of("locate", [size], policy, ngpus, backend, where.launcher, source)
    saving = options.saving
    order = replace(order, **read_save_options(saving.save, saving.output, saving.tag))
    announce_search(order, rules)
    if options.saving.dry_run:
        for text in fake_gpus(order.suite.values("backends")):
            typer.echo(text)
        return refuse_nothing(prepare_order(order), order.command)
    result = run_search(order, rules, seconds)
    if result is None:
        return
    _show_found(result, options.output_format, _describe_next_step(options))
    raise typer.Exit(result.exit)


def _describe_next_step(options: LocateOptions) -> str:
    """The command that finds the slow direction, and what has to start it."""
    from collbench.run.launch import environments, join

    where = options.where
    given = {
        "-g": options.ngpus,
        "--backend": options.backend,
        "--launcher": where.launcher.replace("auto", ""),
        "--hosts": where.hosts,
        "--ssh": where.ssh,
    }
    selections = [f" {flag} {shlex.quote(word)}" for flag, word in given.items() if word]
    member = join.detect_launcher(where.launcher)
    starter = environments.name_launcher(member.launcher) if member else ""
    under = f", under {starter}" if starter else ""
    return (
        f"to find the slow direction{under}: collbench pairs --one-way --large {options.size}"
        f" --small 0"
        f"{''.join(selections)}"
    )


def _show_found(result: Found, output_format: str, next_step: str) -> None:
    """Prints what was found, and last the next step where something is slow."""

    from collbench.suite.faults import describe_planted

    inject = result.file.run.policy.inject
    if output_format == "json":
        content = {
            "injected": inject,
            "words": result.outcome,
            "located": result.located,
            "findings": result.findings,
        }
        typer.echo(encode_json(content).decode())
        return
    advice = [f"{finding.what}: {finding.advice}" for finding in result.findings]
    last = next_step if advice else ""
    for line in filter(None, (describe_planted(inject), *advice, result.outcome, last)):
        typer.echo(plain_line(line))


class Found(NamedTuple):
    """The result of a search, in ``outcome`` and as ``findings``; ``file`` is what it measured."""

    located: Located
    findings: list[Finding]
    outcome: str
    exit: Exit
    file: RunFile


class Unit(NamedTuple):
    """What is cleared or named: a host and its ranks, or where there is but one host, a rank."""

    name: str
    ranks: list[int]


def list_units(world: World) -> list[Unit]:
    """The hosts, each with as many ranks as the one with fewest has."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for info in sorted(world.ranks, key=lambda info: info.rank):
        by_host[info.host].append(info.rank)
    if len(by_host) == 1:
        return [Unit(f"{host}:{rank}", [rank]) for host, ranks in by_host.items() for rank in ranks]
    least = min(map(len, by_host.values()))
    return [Unit(host, ranks[:least]) for host, ranks in by_host.items()]


def make_rings(group: Group, units: Sequence[Unit]) -> list[tuple[int, ...]]:
    """Rings of a group of units, one for each place on a host, so that every rank's own link is
    used."""
    return list(zip(*(units[unit].ranks for unit in group), strict=True))


class Searching:
    """A search under way: it is told what was measured and says what to measure next, until so many
    ``seconds`` have passed; nothing where ``refuse_hosts`` gives a reason against the hosts."""

    def __init__(
        self, rules: Rules, seconds: float = math.inf, refuse_hosts: RefuseHosts | None = None
    ) -> None:
        self._rules, self._until = rules, time.monotonic() + seconds
        self._refuse_hosts = refuse_hosts
        self._search: Search | None = None
        self._groups: Sequence[Group] = ()
        self._round = 0
        self._reached: dict[tuple[int, ...], float] = {}  # in this round, by the ranks of a ring
        self._like: Case | None = None
        self.without_rate: dict[str, str] = {}  # notes of what was not measured, by its status
        self.refusal = ""  # why these hosts are not searched
        self.units: list[Unit] = []
        self.located: Located | None = None

    def world(self, world: World) -> None:
        """Take the ranks or hosts of a world as the units to search."""
        self.units = list_units(world)
        if self._refuse_hosts:
            self.refusal = self._refuse_hosts({info.host for info in world.ranks})

    def record(self, record: Record, row: Derived | None) -> None:
        """Takes a measurement. One that has no rate ends the search: it is not one of 0 GB/s."""
        if record.status in ("skipped", "failed", "wrong"):
            self.without_rate.setdefault(record.status, record.note)
        self._like = self._like or record.case
        self._reached[tuple(record.case.members)] = (
            row.busbw or 0.0 if row and record.status == "ok" else 0.0
        )

    def next_cases(self) -> list[Case]:
        """Cases of the next round; none when the search has ended."""
        from collbench.features.health.locate import search as locate

        if self.without_rate or self.refusal:
            return []
        try:
            if self._search is None:
                self._search = locate.start_search(len(self.units), self._rules)
                self._groups = next(self._search)
            else:
                reached = [
                    min(self._reached[ring] for ring in make_rings(group, self.units))
                    for group in self._groups
                ]
                self._groups = self._search.send(reached)
                if time.monotonic() > self._until:
                    self._search.throw(locate.Spent())
        except StopIteration as ended:
            self.located = ended.value
            return []
        self._reached.clear()
        self._round += 1
        return self._cases()

    def _cases(self) -> list[Case]:
        """A case for each size of group, with all rings of that size at once."""

        assert self._like is not None
        sizes: dict[int, list[str]] = defaultdict(list)
        for group in self._groups:
            sizes[len(group)] += [
                ",".join(map(str, ring)) for ring in make_rings(group, self.units)
            ]
        n = self._like.world
        return [
            replace(
                self._like,
                n=size,
                groups=f"ranks {';'.join(ring)}/{n}",
                of=len(ring),
                cycle=self._round,
            )
            for size, ring in sizes.items()
        ]


class WrongDataFound(CollbenchError):
    """Ranks received wrong data in a search, which ``finding`` says of them."""

    exit = Exit.WRONG_DATA

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.sentence, finding.advice)
        self.finding = finding


def make_listener(searching: Searching) -> Status:
    """Progress on standard error, which passes what was measured on to the search."""
    from collbench.show import live

    class Progress(live.Status):
        def world(self, world: World) -> None:
            super().world(world)
            searching.world(world)

        def record(self, record: Record, row: Derived | None) -> None:
            super().record(record, row)
            searching.record(record, row)

    return Progress(watched=sys.stderr.isatty())


def run_search(
    order: Order,
    rules: Rules,
    seconds: float = math.inf,
    refuse_hosts: RefuseHosts | None = None,
) -> Found | None:
    """Searches with the ranks of ``order``, whose suite has one case of sendrecv among all ranks;
    None where this is not rank 0. After so many ``seconds`` no round is begun. Raises what
    session.execute_order does, UsageError for fewer than three hosts (or ranks of one),
    WrongDataFound, and NoVerdict on fake GPUs, on hosts that ``refuse_hosts`` gives a reason
    against, and where a test has no valid sample.
    """
    from collbench.features.health.locate import findings
    from collbench.records.origins import refuse_fake
    from collbench.run import session

    searching = Searching(rules, seconds, refuse_hosts)
    reporter = make_listener(searching)
    searching_order = replace(order, next_cases=searching.next_cases)
    if session.execute_order(searching_order, lambda: reporter) == Exit.INTERRUPTED:
        raise KeyboardInterrupt
    if reporter.ended is None:
        return None
    _refuse_without_rate(searching.without_rate, reporter.file)
    if searching.refusal:
        raise NoVerdict(searching.refusal)
    if searching.located is None:
        raise CannotRun(
            "the search for the slow rank ended before it named one or cleared all",
            "take a smaller --size if memory is short",
        )
    refuse_fake(reporter.file, "compare")
    located, names = searching.located, [unit.name for unit in searching.units]
    worlds = reporter.worlds.values()
    crowded = any(world.oversubscribed for world in worlds)
    one_host = len({info.host for world in worlds for info in world.ranks}) == 1
    kind: Literal["host", "rank"] = "rank" if one_host else "host"
    suspects = list(findings.make_findings(located, names, kind, crowded))
    ended = Exit.BAD if suspects else Exit.NO_VERDICT if located.open else Exit.OK
    outcome = findings.describe_outcome(located, names, kind, crowded)
    return Found(located, suspects, outcome, ended, reporter.file)


def _refuse_without_rate(notes: Mapping[str, str], file: RunFile) -> None:
    """Raises what a search comes to that has measured something without a rate, by its notes."""
    from collbench.features.health.checks.data import check_data
    from collbench.features.health.night import Night

    if "wrong" in notes:
        raise WrongDataFound(check_data(Night([file])).findings[0])
    if "failed" in notes:
        raise NoVerdict(f"a test has no rate, so no rank was judged: {notes['failed']}")
    if "skipped" in notes:
        raise CannotRun(f"no search can run here: {notes['skipped']}")


def announce_search(order: Order, rules: Rules) -> None:
    """Say what the search will do, before it does anything. Raises UsageError where there are too
    few hosts to search, and CannotRun where the backend measures no groups of some ranks alone.

    On how many hosts Ray will place the ranks is not known, only that there are at most as many."""
    from collbench.features.health.locate import search as locate
    from collbench.run.launch import join

    for name in order.suite.values("backends"):
        if backend_info(name).groups != "any":
            capable = list_capable(lambda info: info.groups == "any")
            raise CannotRun(f"{name} measures no groups of only some ranks; {capable} do")
    member = join.detect_launcher(order.launcher)
    source = order.source
    n = member.n if member and not source else order.suite.axes.ranks[0]
    if source and (hosts := source.count_hosts(n)):
        what = "hosts" if hosts > 1 else "ranks"
        typer.echo(locate.describe_plan(hosts if hosts > 1 else n, rules, what), err=True)
    elif source:
        described = locate.describe_plan(n, rules)
        typer.echo(f"if {source.name} places each rank on a host of its own: {described}", err=True)
    elif member is None or not member.rank:
        several = bool(member and member.local_n < n)
        hosts = n // max(1, member.local_n) if member and several else n
        typer.echo(locate.describe_plan(hosts, rules, "hosts" if several else "ranks"), err=True)
