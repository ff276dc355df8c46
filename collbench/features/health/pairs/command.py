"""The command `pairs`: every pair of ranks measured, and what stands out among them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec.structs import replace

from collbench.core.errors import Exit, UsageError
from collbench.core.text import plain, tell

if TYPE_CHECKING:
    from collbench.records.types import RunFile
    from collbench.run.session import Order
    from collbench.suite.policy import Policy


FORMATS = ("table", "md", "csv", "json")


AMONG = ("all", "node", "inter", "rail")


def pairs(
    run: str = "",
    ngpus: str = "",
    backend: str = "",
    large: str = "4M",
    small: str = "8",
    among: str = "all",
    alone: bool = False,
    one_way: bool = False,
    topology: Path | None = None,
    iters: int = 20,
    warmup: int = 3,
    launcher: str = "auto",
    timeout: float | None = None,
    inject: str = "",
    resume: str = "",
    output_format: str = "table",
    output: Path | None = None,
    save: bool = True,
    tag: str = "",
    dry_run: bool = False,
    debug: bool = False,
) -> None:
    """Measure every pair of ranks: which ranks, hosts, links are slow.

    Pairs that share no rank are measured at once, in as few rounds as there can be, each in both
    directions at once; --one-way has each direction measured by itself, which takes twice as many
    measurements and tells whether it is sending or receiving that is slow. Named is what
    lies four robust standard deviations and a tenth below others of its kind: pairs on one host, in
    one rack, between racks. Exit code 1 if something does, 3 where fewer than three are alike.
    """
    from collbench.cli import options, outputs
    from collbench.machine import topology as racks
    from collbench.suite.policy import Policy

    outputs.check(output_format, (), FORMATS)
    known = racks.read(topology) if topology else {}
    if run:
        raise typer.Exit(_recorded(run, known, output_format))
    if resume:
        order = _resumed(resume, launcher)
    else:
        rule = _rule("alone" if alone else "pairs", among, launcher)
        policy = Policy(iters=iters, warmup=warmup, timeout=timeout, inject=inject)
        sizes = [large, small] if small != "0" else [large]
        order = order_of("pairs", sizes, policy, ngpus, backend, launcher, rule, one_way)
        order = replace(order, **options.kept(save, output, tag))
    if dry_run:
        return _plan(order)
    raise typer.Exit(_measure(order, known, output_format))


def _recorded(name: str, racks: dict[str, str], output_format: str) -> Exit:
    from collbench.records import store

    return _show(store.digest(store.find(name)), racks, output_format)


def _resumed(name: str, launcher: str) -> Order:
    from collbench.cli import options
    from collbench.run import resume
    from collbench.run.session import Order

    old, ray = resume.find(name), options.where(launcher, "", "")
    return Order(suite=old.run.suite, command=sys.argv, resumed=old, launcher=launcher, ray=ray)


def _rule(kind: str, among: str, launcher: str) -> str:
    from collbench.run.launch import join
    from collbench.suite import grammar

    if grammar.choice("--among", among, AMONG) == "all":
        return kind
    member = join.detect(launcher)
    if member is None:
        raise UsageError(
            f"--among {among}: without a launcher all ranks are on one host", "leave it out"
        )
    if not member.local_n:
        raise UsageError(
            f"--among {among}: {member.launcher} does not say how many ranks share a host",
            "--among all",
        )
    return f"{kind}:{among}:{member.local_n}"


def order_of(
    name: str,
    sizes: Sequence[str],
    policy: Policy,
    ngpus: str = "",
    backend: str = "",
    launcher: str = "auto",
    rule: str = "",
    one_way: bool = False,
) -> Order:
    """A run of sendrecv between the ranks that ``rule`` puts together; of pairs ``one_way``, of one
    message from the first to the second, and of one back."""
    from collbench.cli import options
    from collbench.run.session import Order
    from collbench.suite import grammar
    from collbench.suite.sweep import Axes, Suite

    axes = Axes(
        collectives=("broadcast",) if one_way else ("sendrecv",),
        algorithms=("binomial",) if one_way else ("native",),
        roots=(0, 1) if one_way else (0,),
        sizes=tuple(grammar.parse_size(size, "--small or --large") for size in sizes),
        ranks=(),
        backends=(),
        in_place=(one_way,),  # where the sender has nothing to copy
        groups=rule,
    )
    ray = options.where(launcher, "", "")
    suite = options.changed(
        Suite(name=name, axes=axes, policy=policy),
        ngpus=ngpus,
        backend=backend,
        launcher=launcher,
        ray=ray,
        inject=policy.inject,
    )
    return Order(suite=suite, command=sys.argv, launcher=launcher, ray=ray)


def _plan(order: Order) -> None:
    """Say at rank 0 what would be measured, which is too much for a line each."""
    from collbench.cli.measure import fake_gpus
    from collbench.core.text import counted
    from collbench.run import plan, session
    from collbench.run.launch import join
    from collbench.show.words import reasons

    member = join.detect(order.launcher)
    if member is not None and member.rank:
        return
    prepared = session.prepare(order)
    cases = [job.case for job in prepared.jobs]
    seconds = sum(plan.seconds(job, prepared.suite.policy) for job in prepared.jobs)
    rounds = len({case.groups for case in cases})
    pairs = sum(case.of for case in cases) // max(
        1, len({(case.nbytes, case.root) for case in cases})
    )
    typer.echo(f"{counted(pairs, 'pair')} in {counted(rounds, 'round')}, about {seconds:.0f} s")
    for reason, number in reasons(prepared.skips):
        typer.echo(f"{number} skipped: {plain(reason)}")
    for text in fake_gpus(prepared.suite.values("backends")):
        typer.echo(text)
    if order.resumed is None:
        session.refuse_nothing(prepared)


def _measure(order: Order, racks: dict[str, str], output_format: str) -> int:
    """Measure the pairs, progress on standard error, and print at rank 0 what they come to, however
    far they came."""
    from collbench.cli.measure import and_tell

    codes: list[Exit] = []
    code = and_tell(order, lambda file: codes.append(_show(file, racks, output_format)))
    return code or max(codes, default=Exit.OK)


def _show(file: RunFile, racks: dict[str, str], output_format: str) -> Exit:
    """Print a run's pairs, and return 1 where one stands out, 3 where none could. Raises UsageError
    where it has none, and NoVerdict for a run on fake GPUs."""
    from collbench.cli import outputs
    from collbench.features.health.pairs import judgement as judging
    from collbench.features.health.pairs import view as views
    from collbench.machine import topology
    from collbench.records import origins

    matrix = judging.matrix(file)
    if matrix is None:
        if file.end and file.end.exit:
            return Exit.NO_VERDICT  # it ended before it had any, and says why
        origins.refuse_fake(file, "compare")
        raise UsageError(f"{file.run.id} has measured no pairs", "collbench pairs measures them")
    findings = judging.judge(file, racks)
    outputs.deliver(views.document(views.Pairs(file, matrix, racks, findings)), output_format)
    if unknown := topology.missing(racks, matrix.hosts):
        tell(f"--topology does not say where {', '.join(unknown[:8])} is")
    if findings:
        return Exit.BAD
    return Exit.OK if judging.is_comparable(matrix, racks) else Exit.NO_VERDICT
