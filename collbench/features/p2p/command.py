"""The command `p2p`: messages from rank to rank, by pattern and size."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from collbench.cli.families import (
    AnyTable,
    Debug,
    Imports,
    Inject,
    LauncherOptions,
    SaveOptions,
    Timeout,
    WorldSizes,
    refuse_beside_run,
)
from collbench.cli.parameters import make_option
from collbench.core.errors import Exit, UsageError

if TYPE_CHECKING:
    from collbench.records.types import RunFile
    from collbench.run.order import Order
    from collbench.suite.policy import Policy
    from collbench.suite.sweep import Suite

FORMATS = ("table", "md", "csv", "json")


@dataclass(frozen=True, kw_only=True)
class PatternOptions:
    """The patterns, sizes, pairs and libraries to measure."""

    pattern: Annotated[
        str,
        Option(
            "--pattern",
            help="ping-pong, one-way, both-ways[:W], window[:W], rate[:W], incast, outcast; a"
            " list. W messages are under way at once.",
        ),
    ] = "ping-pong"
    minbytes: Annotated[str, make_option("minbytes", "Smallest message.")] = "8"
    maxbytes: Annotated[
        str,
        make_option("maxbytes", "Largest message, always included. Default: 4M (rate: 8K), or -b."),
    ] = ""
    stepfactor: Annotated[
        float | None, make_option("stepfactor", "Multiply sizes by this. Default: 4.")
    ] = None
    pairs: Annotated[
        str | None,
        Option(
            "--pairs",
            help="Ranks that talk: 0-1,2-3, or all (each rank r with r + n/2). Default: 0-1.",
        ),
    ] = None
    ngpus: WorldSizes = ""
    backend: Annotated[
        str,
        make_option(
            "backends",
            "gloo, mpi, nccl, or any other torch.distributed backend; a list. Default: nccl with"
            " GPUs, else gloo.",
        ),
    ] = ""
    imports: Imports = ""
    env: Annotated[list[str] | None, make_option("envs")] = None


@dataclass(frozen=True, kw_only=True)
class EffortOptions:
    """How long each case is measured."""

    iters: Annotated[
        int | None, make_option("iters", "Samples of each case. Default: until times are precise.")
    ] = None
    warmup: Annotated[
        int | None, make_option("warmup", "Warm-up samples. Default: until times settle.")
    ] = None
    max_time: Annotated[
        str, Option("--max-time", help="Longest time spent measuring a case. Default 2s.")
    ] = ""
    budget: Annotated[
        str, make_option("budget", "Fit all of it into this time, by fewer samples: 60s.")
    ] = ""
    launches: Annotated[
        int | None,
        make_option("launches", "Measure so often, each time by ranks newly started. Default: 1."),
    ] = None
    check: Annotated[int, make_option("check")] = 1


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """What to measure, or the run to show again, and where the run goes."""

    run: Annotated[
        str, Argument(metavar="[RUN]", help="Show this run's transfers and measure nothing.")
    ] = ""
    what: PatternOptions
    effort: EffortOptions
    timeout: Timeout = None
    inject: Inject = ""
    where: LauncherOptions
    output_format: AnyTable = "table"
    saving: SaveOptions
    debug: Debug = False


def p2p(options: TransferOptions) -> None:
    """Measure messages between ranks: latency, bandwidth, rate, incast.

    ping-pong is half of a round trip; one-way lasts until the sender has an acknowledgement;
    both-ways has both ranks send at once; window:W has W messages under way, and one
    acknowledgement at the end; rate is the same of small messages; incast is all ranks to rank 0,
    outcast rank 0 to all. Every byte is verified before and after timing.
    """
    from collbench.cli import outputs
    from collbench.records import run_file, store

    outputs.check_outputs(options.output_format, (), FORMATS)
    if options.run:
        refuse_beside_run(options, "run")
        file = run_file.read_digest(store.find_run(options.run))
        raise typer.Exit(_show_run(file, options.output_format))
    order = make_order(options)
    raise typer.Exit(_run_order(order, options.saving.dry_run, options.output_format))


def _run_order(order: Order, dry_run: bool, output_format: str) -> int:
    """Run what is asked for and show what came of it, or only what would run."""
    from collbench.cli.measure import and_tell, carry_out
    from collbench.features.p2p.results import list_results
    from collbench.show import live

    if dry_run:
        return carry_out(order, live.Status, True)

    has_time: list[bool] = []

    def show(file: RunFile) -> None:
        has_time.extend(bool(result.time) for result in list_results(file))
        if file.records:
            _deliver(file, output_format)

    code = and_tell(order, show)
    return code or (Exit.NO_VERDICT if has_time and not any(has_time) else Exit.OK)


def _deliver(file: RunFile, output_format: str) -> None:
    from collbench.cli import outputs
    from collbench.features.p2p.view import make_document

    outputs.deliver_document(make_document(file), output_format)


def _show_run(file: RunFile, output_format: str) -> Exit:
    """Print a recorded run's transfers. Raises UsageError where it has none, NoVerdict where it
    measured nothing."""
    from collbench.features.p2p.results import list_results
    from collbench.records import run_file

    run_file.refuse_empty(file)
    results = list_results(file)
    if not results:
        raise UsageError(f"{file.run.id} has no transfers", "collbench p2p measures some")
    _deliver(file, output_format)
    if any(result.wrong for result in results):
        return Exit.WRONG_DATA
    return Exit.OK if any(result.time for result in results) else Exit.NO_VERDICT


def make_order(options: TransferOptions) -> Order:
    """The run that the options ask for. Raises UsageError."""
    from collbench.cli.options import add_budget, read_save_options
    from collbench.run.order import Order

    saving, launcher = options.saving, options.where.launcher
    keeping = read_save_options(saving.save, saving.output, saving.tag)
    source = options.where.find_source()
    suite = make_suite(options)
    order = Order(suite=suite, command=sys.argv, launcher=launcher, source=source, **keeping)
    return add_budget(order, options.effort.budget)


def make_suite(options: TransferOptions) -> Suite:
    """A case for each pattern, size, backend, setting and launch. Raises UsageError."""
    from msgspec.structs import replace

    from collbench.cli.options import change_suite
    from collbench.features.p2p.measurable import make_requests, refuse_pairs_without_effect
    from collbench.run.launch import join
    from collbench.suite import grammar
    from collbench.suite.sweep import Axes, Suite

    what, launcher = options.what, options.where.launcher
    source = options.where.find_source()
    patterns = grammar.split_words(what.pattern)
    if not patterns:
        raise UsageError("--pattern names none", "ping-pong, for example")
    refuse_pairs_without_effect("--pairs", what.pairs, patterns)
    requests = [
        request
        for pattern in patterns
        for request in make_requests([pattern], _choose_sizes(what, pattern), what.pairs)
    ]
    axes = Axes(
        collectives=(), sizes=(), ranks=(), backends=(), envs=grammar.expand_envs(what.env or [])
    )
    suite = change_suite(
        Suite(name="p2p", axes=axes, policy=_make_policy(options)),
        ngpus=what.ngpus or ("" if source or join.detect_launcher(launcher) else "2"),
        backend=what.backend,
        max_time=options.effort.max_time,
        launcher=launcher,
        source=source,
        inject=options.inject,
        launches=options.effort.launches,
    )
    return replace(suite, requests=tuple(requests))


def _make_policy(options: TransferOptions) -> Policy:
    from collbench.cli.options import refuse_fixed_samples
    from collbench.suite.policy import Policy

    effort = options.effort
    refuse_fixed_samples(effort.iters, effort.max_time)
    return Policy(
        iters=effort.iters, warmup=effort.warmup, check=effort.check, timeout=options.timeout
    )


def _choose_sizes(what: PatternOptions, pattern: str) -> tuple[int, ...]:
    """The sizes of a pattern; without -e up to what it has by default."""
    from collbench.features.p2p.patterns import MAX_RATE_BYTES, parse_pattern
    from collbench.suite import grammar

    name, _ = parse_pattern(pattern)
    smallest = grammar.parse_size(what.minbytes, "-b")
    largest = max(smallest, MAX_RATE_BYTES if name == "rate" else LARGEST)
    if what.maxbytes:
        largest = grammar.parse_size(what.maxbytes, "-e")
    return grammar.sweep_to_end(
        smallest, largest, FACTOR if what.stepfactor is None else what.stepfactor
    )


LARGEST, FACTOR = 4 << 20, 4.0  # of sizes, where nothing is said
