"""The command `pairs`: every pair of ranks measured, and what stands out among them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec.structs import replace

from collbench.core.errors import Exit, UsageError
from collbench.core.text import plain_line, print_message

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

    outputs.check_outputs(output_format, (), FORMATS)
    racks_by_host = racks.read_racks(topology) if topology else {}
    if run:
        raise typer.Exit(_show_recorded(run, racks_by_host, output_format))
    if resume:
        order = _resume_order(resume, launcher)
    else:
        rule = _choose_rule("alone" if alone else "pairs", among, launcher)
        policy = Policy(iters=iters, warmup=warmup, timeout=timeout, inject=inject)
        sizes = [large, small] if small != "0" else [large]
        order = order_of("pairs", sizes, policy, ngpus, backend, launcher, rule, one_way)
        order = replace(order, **options.read_save_options(save, output, tag))
    if dry_run:
        return _print_plan(order)
    raise typer.Exit(_measure_pairs(order, racks_by_host, output_format))


def _show_recorded(name: str, racks: dict[str, str], output_format: str) -> Exit:
    from collbench.records import run_file, store

    return _show_pairs(run_file.read_digest(store.find_run(name)), racks, output_format)


def _resume_order(name: str, launcher: str) -> Order:
    from collbench.cli import options
    from collbench.run import resumption
    from collbench.run.session import Order

    old, ray = resumption.find_resumable(name), options.find_ray_cluster(launcher, "", "")
    return Order(suite=old.run.suite, command=sys.argv, resumed=old, launcher=launcher, ray=ray)


def _choose_rule(kind: str, among: str, launcher: str) -> str:
    from collbench.run.launch import join
    from collbench.suite import grammar

    if grammar.parse_choice("--among", among, AMONG) == "all":
        return kind
    member = join.detect_launcher(launcher)
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
    ray = options.find_ray_cluster(launcher, "", "")
    suite = options.change_suite(
        Suite(name=name, axes=axes, policy=policy),
        ngpus=ngpus,
        backend=backend,
        launcher=launcher,
        ray=ray,
        inject=policy.inject,
    )
    return Order(suite=suite, command=sys.argv, launcher=launcher, ray=ray)


def _print_plan(order: Order) -> None:
    """Say at rank 0 what would be measured, which is too much for a line each."""
    from collbench.cli.measure import fake_gpus
    from collbench.core.text import format_count
    from collbench.run import plan, session
    from collbench.run.launch import join
    from collbench.show.words import count_reasons

    member = join.detect_launcher(order.launcher)
    if member is not None and member.rank:
        return
    prepared = session.prepare_order(order)
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
        session.refuse_nothing(prepared)


def _measure_pairs(order: Order, racks: dict[str, str], output_format: str) -> int:
    """Measure the pairs, progress on standard error, and print at rank 0 what they come to, however
    far they came."""
    from collbench.cli.measure import and_tell

    codes: list[Exit] = []
    code = and_tell(order, lambda file: codes.append(_show_pairs(file, racks, output_format)))
    return code or max(codes, default=Exit.OK)


def _show_pairs(file: RunFile, racks: dict[str, str], output_format: str) -> Exit:
    """Print a run's pairs, and return 1 where one stands out, 3 where none could. Raises UsageError
    where it has none, and NoVerdict for a run on fake GPUs."""
    from collbench.cli import outputs
    from collbench.features.health.pairs import judgement as judging
    from collbench.features.health.pairs import view as views
    from collbench.machine import topology
    from collbench.records import origins

    matrix = judging.make_matrix(file)
    if matrix is None:
        if file.end and file.end.exit:
            return Exit.NO_VERDICT  # it ended before it had any, and says why
        origins.refuse_fake(file, "compare")
        raise UsageError(f"{file.run.id} has measured no pairs", "collbench pairs measures them")
    findings = judging.judge_pairs(file, racks)
    outputs.deliver_document(
        views.make_document(views.Pairs(file, matrix, racks, findings)), output_format
    )
    if unknown := topology.list_missing_hosts(racks, matrix.hosts):
        print_message(f"--topology does not say where {', '.join(unknown[:8])} is")
    if findings:
        return Exit.BAD
    return Exit.OK if judging.is_comparable(matrix, racks) else Exit.NO_VERDICT
