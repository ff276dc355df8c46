"""The command `pairs`: every pair of ranks measured, and what stands out among them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace
from typer import Argument, Option

from collbench.cli.families import (
    AnyTable,
    Backend,
    Debug,
    Inject,
    LauncherOptions,
    Ranks,
    SaveOptions,
    Timeout,
    list_changed,
    refuse_beside_run,
)
from collbench.core.errors import Exit, UsageError
from collbench.core.text import plain_line, print_message

if TYPE_CHECKING:
    from collbench.records.types import RunFile
    from collbench.run.launch.places import PlaceSource
    from collbench.run.order import Order
    from collbench.suite.policy import Policy


FORMATS = ("table", "md", "csv", "json")

AMONG = ("all", "node", "inter", "rail")


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """The pairs to measure, how, and where the run goes."""

    run: Annotated[
        str, Argument(metavar="[RUN]", help="Show this run's pairs and measure nothing.")
    ] = ""
    ngpus: Ranks = ""
    backend: Backend = ""
    large: Annotated[str, Option("--large", help="Size for bandwidth.")] = "4M"
    small: Annotated[str, Option("--small", help="Size for latency; 0 = none.")] = "8"
    among: Annotated[
        str,
        Option(
            "--among", help="all, node (on one host), inter (on two) or rail (of one place on two)."
        ),
    ] = "all"
    alone: Annotated[
        bool,
        Option(
            "--one-at-a-time", help="No two pairs at once: what links can do that others share."
        ),
    ] = False
    one_way: Annotated[
        bool,
        Option(
            "--one-way",
            help="Each direction of a pair by itself, one after the other: twice as many"
            " measurements. Default: both at once.",
        ),
    ] = False
    topology: Annotated[
        Path | None,
        Option(
            "--topology",
            help='Which rack hosts are in: TOML or JSON, a table [hosts] with node01 = "rack1".',
        ),
    ] = None
    iters: Annotated[
        int, Option("-n", "--iters", min=1, max=1 << 20, help="Samples of each pair.")
    ] = 20
    warmup: Annotated[
        int, Option("-w", "--warmup_iters", min=0, help="Samples before, not counted.")
    ] = 3
    where: LauncherOptions
    timeout: Timeout = None
    inject: Inject = ""
    resume: Annotated[
        str, Option("--resume", metavar="RUN", help="Continue with this run, which was cut short.")
    ] = ""
    output_format: AnyTable = "table"
    saving: SaveOptions
    debug: Debug = False


def pairs(options: PairOptions) -> None:
    """Measure every pair of ranks: which ranks, hosts, links are slow.

    Pairs that share no rank are measured at once, in as few rounds as there can be, each in both
    directions at once; --one-way has each direction measured by itself, which takes twice as many
    measurements and tells whether it is sending or receiving that is slow. Named is what
    lies four robust standard deviations and a tenth below others of its kind: pairs on one host, in
    one rack, between racks. Exit code 1 if something does, 3 where fewer than three are alike, or
    a pair has no rate.
    """
    from collbench.cli import outputs
    from collbench.cli.options import read_save_options
    from collbench.machine import topology as racks
    from collbench.suite.policy import Policy

    outputs.check_outputs(options.output_format, (), FORMATS)
    racks_by_host = racks.read_racks(options.topology) if options.topology else {}
    if options.run:
        refuse_beside_run(options, "run", "topology")
        raise typer.Exit(_show_recorded(options.run, racks_by_host, options.output_format))
    source = options.where.find_source()
    if options.resume:
        kept = ("resume", "launcher", "hosts", "ssh", "topology", "output_format", "dry_run")
        if changed := list_changed(options, *kept, "debug"):
            raise UsageError(
                f"--resume is given with {', '.join(changed)}",
                "leave these out: a resumed run goes on as it was begun",
            )
        order = _resume_order(options.resume, options.where.launcher, source)
    else:
        kind = "alone" if options.alone else "pairs"
        rule = _choose_rule(kind, options.among, options.where.launcher, source)
        policy = Policy(
            iters=options.iters,
            warmup=options.warmup,
            timeout=options.timeout,
            inject=options.inject,
        )
        sizes = [options.large, options.small] if options.small != "0" else [options.large]
        order = order_of(
            "pairs",
            sizes,
            policy,
            ngpus=options.ngpus,
            backend=options.backend,
            launcher=options.where.launcher,
            source=source,
            rule=rule,
            one_way=options.one_way,
        )
        saving = options.saving
        order = replace(order, **read_save_options(saving.save, saving.output, saving.tag))
    if options.saving.dry_run:
        return _print_plan(order)
    raise typer.Exit(_measure_pairs(order, racks_by_host, options.output_format))


def _show_recorded(name: str, racks: dict[str, str], output_format: str) -> Exit:
    from collbench.features.health.pairs import judgement as judging
    from collbench.records import run_file, store

    file = run_file.read_digest(store.find_run(name))
    if _is_broken(file) and judging.make_matrix(file) is None:
        assert file.end
        why = f"{file.run.id} ended with exit code {file.end.exit} before it had measured any pair"
        message = plain_line(": ".join(filter(None, [why, file.end.note])))
        print_message(message, "measure again: collbench pairs")
    return _show_pairs(file, racks, output_format)


def _is_broken(file: RunFile) -> bool:
    """Whether this is a run of pairs that broke."""
    return file.run.suite.name == "pairs" and bool(file.end and file.end.exit)


def _resume_order(name: str, launcher: str, source: PlaceSource | None) -> Order:
    from collbench.run import resumption
    from collbench.run.order import Order

    old = resumption.find_resumable(name)
    suite = old.run.suite
    if suite.name != "pairs":
        raise UsageError(
            f"{old.run.id} is a run of {suite.name}, not of pairs",
            resumption.format_command(old.run, name),
        )
    return Order(suite=suite, command=sys.argv, resumed=old, launcher=launcher, source=source)


def _choose_rule(kind: str, among: str, launcher: str, source: PlaceSource | None) -> str:
    """The rule of groups for ``kind`` of pairs: among all ranks, or those of a host. Raises
    UsageError where the launcher does not say how many ranks share a host."""
    from collbench.run.launch import join
    from collbench.suite import grammar

    if grammar.parse_choice("--among", among, AMONG) == "all":
        return kind
    member = join.detect_launcher(launcher)
    if member is None and source is None:
        raise UsageError(
            f"--among {among}: without a launcher all ranks are on one host", "leave --among out"
        )
    local_n = member.local_n if member else source.local_n if source else 0
    if not local_n:
        name = member.launcher if member else launcher
        raise UsageError(
            f"--among {among}: {name} does not say how many ranks share a host",
            "use --among all",
        )
    return f"{kind}:{among}:{local_n}"


def order_of(
    name: str,
    sizes: Sequence[str],
    policy: Policy,
    ngpus: str = "",
    backend: str = "",
    launcher: str = "auto",
    source: PlaceSource | None = None,
    rule: str = "",
    one_way: bool = False,
) -> Order:
    """A run of sendrecv between the ranks that ``rule`` puts together; of pairs ``one_way``, of one
    message from the first to the second, and of one back."""
    from collbench.cli import options
    from collbench.run.order import Order
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
    suite = options.change_suite(
        Suite(name=name, axes=axes, policy=policy),
        ngpus=ngpus,
        backend=backend,
        launcher=launcher,
        source=source,
        inject=policy.inject,
    )
    return Order(suite=suite, command=sys.argv, launcher=launcher, source=source)


def _print_plan(order: Order) -> None:
    """Say at rank 0 what would be measured, which is too much for a line each."""
    from collbench.cli.measure import fake_gpus
    from collbench.core.text import format_count
    from collbench.run import plan
    from collbench.run.launch import join
    from collbench.run.order import prepare_order, refuse_nothing
    from collbench.show.words import count_reasons

    member = join.detect_launcher(order.launcher)
    if member is not None and member.rank:
        return
    prepared = prepare_order(order)
    cases = [job.case for job in prepared.jobs]
    seconds = sum(plan.estimate_seconds(job, prepared.suite.policy) for job in prepared.jobs)
    rounds = len({case.groups for case in cases})
    pairs = sum(case.of for case in cases) // max(
        1, len({(case.nbytes, case.root) for case in cases})
    )
    typer.echo(
        f"{format_count(pairs, 'pair')} in {format_count(rounds, 'round')}, about {seconds:.0f} s"
    )
    for reason, number in count_reasons(prepared.skips):
        typer.echo(f"{number} skipped: {plain_line(reason)}")
    for text in fake_gpus(prepared.suite.values("backends")):
        typer.echo(text)
    if order.resumed is None:
        refuse_nothing(prepared, order.command)


def _measure_pairs(order: Order, racks: dict[str, str], output_format: str) -> int:
    """Measure the pairs, progress on standard error, and print at rank 0 what they come to, however
    far they came."""
    from collbench.cli.measure import and_tell

    codes: list[Exit] = []
    code = and_tell(order, lambda file: codes.append(_show_pairs(file, racks, output_format)))
    return code or max(codes, default=Exit.OK)


def _show_pairs(file: RunFile, racks: dict[str, str], output_format: str) -> Exit:
    """Print a run's pairs, and return 1 where one stands out, 3 where none could or a pair has no
    rate. Raises UsageError where it has none, NoVerdict for a run on fake GPUs or without cases."""
    from collbench.cli import outputs
    from collbench.features.health.pairs import judgement as judging
    from collbench.features.health.pairs import view as views
    from collbench.machine import topology
    from collbench.records import origins, run_file

    matrix = judging.make_matrix(file)
    if matrix is None:
        if _is_broken(file):
            return Exit.NO_VERDICT  # it ended before it had any, and says why
        origins.refuse_fake(file, "compare")
        run_file.refuse_empty(file)
        raise UsageError(f"{file.run.id} has measured no pairs", "collbench pairs measures them")
    findings = judging.judge_pairs(file, racks)
    outputs.deliver_document(
        views.make_document(views.Pairs(file, matrix, racks, findings)), output_format
    )
    if unknown := topology.list_missing_hosts(racks, matrix.hosts):
        print_message(f"--topology does not say where {', '.join(unknown[:8])} is")
    if findings:
        return Exit.BAD
    is_whole = judging.is_comparable(matrix, racks) and not matrix.unrated
    return Exit.OK if is_whole else Exit.NO_VERDICT
