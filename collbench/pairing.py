"""`collbench pairs`: from its options to what stands out among all pairs of ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collbench.errors import Exit, UsageError

if TYPE_CHECKING:
    from collbench.formats import Gathered, Reporter
    from collbench.health.findings import Finding
    from collbench.launch.environments import Membership
    from collbench.launch.on_ray import Where
    from collbench.records import End, RunFile
    from collbench.session import Prepared
    from collbench.suite import Policy, Suite

Option, Argument = typer.Option, typer.Argument
AMONG = ("all", "node", "inter", "rail")


def pairs(
    run: Annotated[str, Argument(metavar="[RUN]", help="Show this run's pairs and measure nothing.")] = "",
    ngpus: Annotated[str, Option("-g", "--ngpus", "--ranks", help="Ranks on this machine. Default: all GPUs, else all cores.")] = "",
    backend: Annotated[str, Option("--backend", help="gloo, nccl or another of torch's. Default: nccl with GPUs, else gloo.")] = "",
    large: Annotated[str, Option("--large", help="Size for bandwidth.")] = "4M",
    small: Annotated[str, Option("--small", help="Size for latency; 0 = none.")] = "8",
    among: Annotated[str, Option("--among", help="all, node (pairs on one host), inter (on two hosts) or rail (of one place on two hosts).")] = "all",
    alone: Annotated[bool, Option("--one-at-a-time", help="No two pairs at once: what links can do that others share.")] = False,
    topology: Annotated[Path | None, Option("--topology", help='Which rack hosts are in: TOML or JSON, a table [hosts] with node01 = "rack1".')] = None,
    iters: Annotated[int, Option("-n", "--iters", min=1, help="Samples of each pair.")] = 20,
    warmup: Annotated[int, Option("-w", "--warmup_iters", min=0, help="Samples before that are not counted.")] = 3,
    launcher: Annotated[str, Option("--launcher", help="As for `collbench all_reduce`.")] = "auto",
    timeout: Annotated[float | None, Option("-T", "--timeout", min=0.1, help="Seconds without progress after which a run is hung.")] = None,
    inject: Annotated[str, Option("--inject", help="Plant faults, as in `collbench all_reduce --inject`. Marks all that is shown.")] = "",
    resume: Annotated[str, Option("--resume", metavar="RUN", help="Go on with this run, which was cut short.")] = "",
    output_format: Annotated[str, Option("--format", help="table, json, csv or md.")] = "table",
    output: Annotated[Path | None, Option("--output", help="Save the run to this file or folder.")] = None,
    save: Annotated[bool, Option("--save/--no-save", help="Keep the run's records.")] = True,
    tag: Annotated[str, Option("--tag", help="A name to find the run by.")] = "",
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would run, and what it takes.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:  # fmt: skip
    """Measure every pair of ranks, and say which ranks, hosts and links stand out.

    Pairs that share no rank are measured at once, in as few rounds as there can be, each in both directions at once.
    What stands out lies four robust standard deviations and a tenth below its like: pairs on one host, in one rack,
    between racks. Exit code 1 if something does.
    """
    from collbench import matrices, options, racks, session, store, suite
    from collbench import resume as resuming
    from collbench.launch import join

    options.choice("--format", output_format, matrices.FORMATS)
    known = racks.read(topology) if topology else {}
    ray = options.where(launcher, "", "")
    if run:
        raise typer.Exit(Exit.BAD if _tell(store.read(store.find(run)), known, output_format) else Exit.OK)
    if resume:
        old = resuming.find(resume)
        order = session.Order(suite=old.run.suite, command=sys.argv, resumed=old, launcher=launcher, ray=ray)
    else:
        rule = _rule("alone" if alone else "pairs", options.choice("--among", among, AMONG), join.detect(launcher))
        policy = suite.Policy(iters=iters, warmup=warmup, timeout=timeout, inject=inject)
        named = suite_of("pairs", ngpus, backend, [large, *[small] * (small != "0")], rule, policy, launcher, ray)
        order = session.Order(suite=named, command=sys.argv, save=save and not dry_run, output=output, tag=tag,
                              launcher=launcher, ray=ray)  # fmt: skip
    if dry_run:
        member = join.detect(launcher)
        if member is None or member.rank == 0:
            _plan(session.prepare(order))
        return
    found: list[Finding] = []
    code = session.execute(order, lambda: _pairs_reporter(known, output_format, found))
    raise typer.Exit(code or (Exit.BAD if found else Exit.OK))


def _rule(kind: str, among: str, member: Membership | None) -> str:
    if among == "all":
        return kind
    if member is None:
        raise UsageError(f"--among {among}: without a launcher all ranks are on one host", "leave it out")
    if not member.local_n:
        raise UsageError(f"--among {among}: {member.launcher} does not say how many ranks share a host", "--among all")
    return f"{kind}:{among}:{member.local_n}"


def suite_of(
    name: str, ngpus: str, backend: str, sizes: Sequence[str], rule: str, policy: Policy, launcher: str,
    ray: Where | None = None,
) -> Suite:  # fmt: skip
    """sendrecv between the ranks that ``rule`` puts together."""
    from collbench import grammar, options, suite

    axes = suite.Axes(
        collectives=("sendrecv",), sizes=tuple(grammar.parse_size(size, "--small or --large") for size in sizes),
        ranks=(), backends=(), in_place=(False,), groups=rule,
    )  # fmt: skip
    named = suite.Suite(name=name, axes=axes, policy=policy)
    return options.changed(named, ngpus=ngpus, backend=backend, launcher=launcher, ray=ray, inject=policy.inject)


def _plan(prepared: Prepared) -> None:
    """What would be measured, which is too much for a line each."""
    from collbench import plan
    from collbench.formats import counted, reasons

    cases = [job.case for job in prepared.jobs]
    seconds = sum(plan.seconds(job, prepared.suite.policy) for job in prepared.jobs)
    rounds = len({case.groups for case in cases})
    pairs = sum(case.of for case in cases) // max(1, len({case.nbytes for case in cases}))
    typer.echo(f"{counted(pairs, 'pair')} in {counted(rounds, 'round')}, about {seconds:.0f} s")
    for reason, number in reasons(prepared.skips):
        typer.echo(f"{number} skipped: {reason}")


def _pairs_reporter(racks: dict[str, str], output_format: str, found: list[Finding]) -> Reporter:
    """Progress on a terminal, and all that pairs come to once they have been measured, ``found`` included."""
    from rich.console import Console

    from collbench import console

    class Told(console.Status):
        def end(self, end: End, path: Path | None) -> None:
            super().end(end, path)
            self.close()
            found.extend(_tell(gathered(self), racks, output_format))

    errors = Console(stderr=True, highlight=False)
    return Told(errors, errors.is_terminal)


def gathered(told: Gathered) -> RunFile:
    """What a reporter has been told, as a run that has been read."""
    from collbench.records import RunFile

    records = [record for record, _ in told.arrived]
    return RunFile(run=told.run, worlds=list(told.worlds.values()), records=records, end=told.ended,
                   path=told.path or Path())  # fmt: skip


def _tell(file: RunFile, racks: dict[str, str], output_format: str) -> list[Finding]:
    """Prints a run's pairs; what stands out. Raises UsageError where it has none."""
    from collbench import matrices, uniformity
    from collbench import racks as files

    found = uniformity.matrix(file)
    if found is None:
        if file.end and file.end.exit:
            return []  # it ended before it had any, and says why
        raise UsageError(f"{file.run.id} has measured no pairs", "collbench pairs measures them")
    findings = uniformity.judge(file, racks)
    typer.echo(matrices.FORMATS[output_format](matrices.Told(file, found, racks, findings)), nl=False)
    if unknown := files.missing(racks, found.hosts):
        typer.echo(f"collbench: --topology does not say where {', '.join(unknown[:8])} is", err=True)
    sys.stdout.flush()
    return findings
