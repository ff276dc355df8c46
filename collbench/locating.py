"""The search for who makes a group slow, run with ranks: rank 0 decides after each round what is measured next."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from collbench.errors import CannotRun, Exit

if TYPE_CHECKING:
    from collbench.console import Status
    from collbench.health.findings import Finding
    from collbench.health.locate import Group, Located, Rules, Search
    from collbench.records import Record, Row, RunFile, World
    from collbench.session import Order
    from collbench.suite import Case

Option = typer.Option


class Found(NamedTuple):
    """What a search came to: in ``words``, as ``findings``; ``file`` is what it has measured."""

    located: Located
    findings: list[Finding]
    words: str
    exit: Exit
    file: RunFile


class Unit(NamedTuple):
    """What is cleared or named: a host and its ranks, or where there is but one host, a rank."""

    name: str
    ranks: list[int]


def units(world: World) -> list[Unit]:
    """Of each host as many ranks as the one with fewest has."""
    of: dict[str, list[int]] = defaultdict(list)
    for info in sorted(world.ranks, key=lambda info: info.rank):
        of[info.host].append(info.rank)
    if len(of) == 1:
        return [Unit(f"{host}:{rank}", [rank]) for host, ranks in of.items() for rank in ranks]
    least = min(map(len, of.values()))
    return [Unit(host, ranks[:least]) for host, ranks in of.items()]


def rings(group: Group, of: Sequence[Unit]) -> list[tuple[int, ...]]:
    """The ranks of a group of units: a ring for each place on hosts, so that each rank's own way to others is used."""
    return list(zip(*(of[unit].ranks for unit in group), strict=True))


class Searching:
    """One search under way: is told what was measured, and says what is to be measured next."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._search: Search | None = None
        self._asked: Sequence[Group] = ()
        self._round = 0
        self._reached: dict[tuple[int, ...], float] = {}  # in this round, by the ranks of a ring
        self._like: Case | None = None
        self.units: list[Unit] = []
        self.located: Located | None = None

    def world(self, world: World) -> None:
        self.units = units(world)

    def record(self, record: Record, row: Row | None) -> None:
        """Raises CannotRun where nothing can be measured so."""
        if record.status == "skipped":
            raise CannotRun(f"no search without sendrecv: {record.note}")
        self._like = self._like or record.case
        self._reached[tuple(record.case.members)] = row.busbw or 0.0 if row and record.status == "ok" else 0.0

    def further(self) -> list[Case]:
        """The next round; nothing when the search has ended."""
        from collbench.health import locate

        try:
            if self._search is None:
                self._search = locate.search(len(self.units), self._rules)
                self._asked = next(self._search)
            else:
                reached = [min(self._reached[ring] for ring in rings(group, self.units)) for group in self._asked]
                self._asked = self._search.send(reached)
        except StopIteration as ended:
            self.located = ended.value
            return []
        self._reached.clear()
        self._round += 1
        return self._cases()

    def _cases(self) -> list[Case]:
        """Of groups of one size all rings at once."""
        import msgspec

        assert self._like is not None
        sizes: dict[int, list[str]] = defaultdict(list)
        for group in self._asked:
            sizes[len(group)] += [",".join(map(str, ring)) for ring in rings(group, self.units)]
        n, replace = self._like.world, msgspec.structs.replace
        return [
            replace(self._like, n=size, groups=f"ranks {';'.join(mine)}/{n}", of=len(mine), cycle=self._round)
            for size, mine in sizes.items()
        ]


def listening(searching: Searching) -> Status:
    """Progress on standard error, which tells the search, too, what was measured."""
    from rich.console import Console

    from collbench import console

    class Told(console.Status):
        def world(self, world: World) -> None:
            super().world(world)
            searching.world(world)

        def record(self, record: Record, row: Row | None) -> None:
            super().record(record, row)
            searching.record(record, row)

    errors = Console(stderr=True, highlight=False)
    return Told(errors, errors.is_terminal)


def run(order: Order, rules: Rules) -> Found | None:
    """Searches with the ranks of ``order``, whose suite has one case of sendrecv among all ranks; None where this is
    not rank 0. Raises what session.execute does, and UsageError for fewer than three hosts (or ranks of one)."""
    import msgspec

    from collbench import pairing, session
    from collbench.health import culprits

    searching = Searching(rules)
    told: list[Status] = []

    def reporter() -> Status:
        told.append(listening(searching))
        return told[0]

    if session.execute(msgspec.structs.replace(order, further=searching.further), reporter) == Exit.INTERRUPTED:
        raise KeyboardInterrupt
    if not told:
        return None
    told[0].close()
    if searching.located is None:
        raise CannotRun("the search ended before it came to anything", "is there memory for --size?")
    found, names = searching.located, [unit.name for unit in searching.units]
    crowded = any(world.oversubscribed for world in told[0].worlds.values())
    one_host = len({info.host for world in told[0].worlds.values() for info in world.ranks}) == 1
    findings = list(culprits.findings(found, names, "rank" if one_host else "host", crowded))
    ended = Exit.BAD if findings else Exit.NO_VERDICT if found.open else Exit.OK
    return Found(found, findings, culprits.words(found, names, crowded), ended, pairing.gathered(told[0]))


def announce(order: Order, rules: Rules) -> None:
    """Say what the search will do, before it does anything. Raises UsageError where there are too few to search.

    On how many hosts Ray will place ranks is not known, but that there are no more than ranks."""
    from collbench.health import locate
    from collbench.launch import join

    if order.ray:
        typer.echo(
            f"if Ray places each rank on a host of its own: {locate.plan(order.suite.axes.ranks[0], rules)}", err=True
        )
        return
    member = join.detect(order.launcher)
    if member is not None and member.rank:
        return
    n = member.n if member else order.suite.axes.ranks[0]
    typer.echo(locate.plan(n // max(1, member.local_n) if member and member.local_n < n else n, rules), err=True)


def locating(
    ngpus: Annotated[str, Option("-g", "--ngpus", "--ranks", help="Ranks on this machine. Default: all GPUs, else all cores.")] = "",
    backend: Annotated[str, Option("--backend", help="gloo, nccl or another of torch's. Default: nccl with GPUs, else gloo.")] = "",
    size: Annotated[str, Option("--size", help="What each rank sends to its neighbour.")] = "4M",
    tau: Annotated[str, Option("--tau", help="By so much slower than the others is slow.")] = "10%",
    budget: Annotated[int, Option("--budget", min=1, help="Tests at most: a group's measurement is one.")] = 80,
    iters: Annotated[int, Option("-n", "--iters", min=1, help="Samples of each test.")] = 10,
    launcher: Annotated[str, Option("--launcher", help="As for `collbench all_reduce`.")] = "auto",
    timeout: Annotated[float | None, Option("-T", "--timeout", min=0.1, help="Seconds without progress after which a run is hung.")] = None,
    inject: Annotated[str, Option("--inject", help="Plant faults, as in `collbench all_reduce --inject`. Marks all that is shown.")] = "",
    output_format: Annotated[str, Option("--format", help="table or json.")] = "table",
    output: Annotated[Path | None, Option("--output", help="Save the run to this file or folder.")] = None,
    save: Annotated[bool, Option("--save/--no-save", help="Keep the run's records.")] = True,
    tag: Annotated[str, Option("--tag", help="A name to find the run by.")] = "",
    dry_run: Annotated[bool, Option("--dry-run", help="Show the plan only.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:  # fmt: skip
    """Find who makes a group slow: disjoint groups at once, slow ones halved, suspects confirmed with good partners.

    The plan is printed first. Exit code 1 if somebody is named, 3 if not everybody could be cleared.
    """
    import msgspec

    from collbench import grammar, options, pairing, session, suite
    from collbench.health import locate
    from collbench.inject import planted

    options.choice("--format", output_format, ("table", "json"))
    ray = options.where(launcher, "", "")
    rules = locate.Rules(grammar.parse_share(tau, "--tau"), budget)
    policy = suite.Policy(iters=iters, warmup=2, timeout=timeout, inject=inject)
    named = pairing.suite_of("locate", ngpus, backend, [size], "", policy, launcher, ray)
    order = session.Order(suite=named, command=sys.argv, save=save and not dry_run, output=output, tag=tag,
                          launcher=launcher, ray=ray)  # fmt: skip
    announce(order, rules)
    if dry_run:
        return
    found = run(order, rules)
    if found is None:
        return
    if output_format == "json":
        whole = {
            "injected": inject,
            "words": found.words,
            "located": found.located,
            "findings": found.findings,
        }
        typer.echo(msgspec.json.encode(whole).decode())
    else:
        for line in filter(
            None,
            (planted(found.file.run.policy.inject), *(f"{f.what}: {f.advice}" for f in found.findings), found.words),
        ):
            typer.echo(line)
    raise typer.Exit(found.exit)
