"""The command `lifecycle`: what a communicator costs from its making to its end."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from collbench.cli.families import (
    AnyTable,
    Debug,
    Imports,
    Inject,
    LauncherOptions,
    Ranks,
    SaveOptions,
    list_changed,
    refuse_beside_run,
)
from collbench.cli.parameters import make_option
from collbench.core.errors import CollbenchError, Exit, UsageError
from collbench.core.text import print_message

if TYPE_CHECKING:
    from collbench.records.types import RunFile
    from collbench.run.order import Order
    from collbench.suite.sweep import Suite

FORMATS = ("table", "md", "json", "csv")
LAUNCHES, KILLS = 6, 1  # six launches are the fewest whose interval assumes no distribution
GRAVE = (Exit.WRONG_DATA, Exit.TIMEOUT)  # found in lives, they go before what the run ended with
KILL_OPTIONS = {"--kill-at": "kill_at", "--way": "way"}


@dataclass(frozen=True, kw_only=True)
class LifeOptions:
    """What lives call and make."""

    groups: Annotated[
        str,
        Option("--groups", help="New groups to make; a list. Each has processes of its own."),
    ] = "1,4,16"
    sizes: Annotated[
        str,
        make_option("listed", "Sizes of the first call; a list. Each has processes of its own."),
    ] = "1K,1M"
    collective: Annotated[
        str,
        Option(
            "--collective",
            help="all_reduce, all_gather, reduce_scatter, broadcast or all_to_all; a list.",
        ),
    ] = "all_reduce"
    calls: Annotated[int, Option("--calls", min=1, max=1024, help="Calls after the first.")] = 20


@dataclass(frozen=True, kw_only=True)
class KillOptions:
    """The rank that is killed, when, and how the others go on."""

    kill: Annotated[
        int | None,
        Option("--kill", min=0, metavar="RANK", help="Kill this rank, and see what others do."),
    ] = None
    kill_at: Annotated[
        str,
        Option(
            "--kill-at", help="Seconds after all have loaded their library, or random (within 2 s)."
        ),
    ] = ""
    way: Annotated[
        str,
        Option(
            "--way",
            help="How others go on: rebuild (after an error), notified (by the process that"
            " watches), shrink (NCCL's own); a list. Default: rebuild.",
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class LifecycleOptions:
    """The lives to measure, and where the run goes."""

    run: Annotated[
        str, Argument(metavar="[RUN]", help="A recorded run to show again, instead of a new one.")
    ] = ""
    ngpus: Ranks = ""
    backend: Annotated[str, make_option("backends", "gloo, nccl, mpi or a plug-in; a list.")] = ""
    imports: Imports = ""
    env: Annotated[list[str] | None, make_option("envs")] = None
    path: Annotated[str, make_option("paths")] = ""
    lives: LifeOptions
    kills: KillOptions
    launches: Annotated[
        int | None,
        make_option("launches", "Repeat so often, by new processes. Default: 6; with --kill 1."),
    ] = None
    timeout: Annotated[
        float | None,
        make_option("timeout", "Seconds until a rank that does not go on has failed. Default 30."),
    ] = None
    seed: Annotated[int, make_option("seed", "Seed of the moments of kills.")] = 1
    inject: Inject = ""
    where: LauncherOptions
    output_format: AnyTable = "table"
    saving: SaveOptions
    debug: Debug = False


def lifecycle(options: LifecycleOptions) -> None:
    """Measure setup, first call, new groups and end of a communicator, and loss of a rank.

    Each launch starts new processes: they find each other, make a communicator, call it, make
    further groups and end. With --kill a rank is killed, and the others have to detect it and to go
    on without it: what they do not manage is named, with exit code 4. A recorded run is shown
    again.
    """
    from collbench.cli import outputs
    from collbench.records import run_file, store

    outputs.check_outputs(options.output_format, (), FORMATS)
    if options.run:
        refuse_beside_run(options, "run")
        file = run_file.read_file(store.find_run(options.run))
        raise typer.Exit(_show_run(file, options.output_format))
    order = make_order(options)
    if options.saving.dry_run:
        from collbench.cli.measure import carry_out
        from collbench.show import live

        raise typer.Exit(carry_out(order, live.Status, dry_run=True))
    raise typer.Exit(_execute(order, options.output_format))


def _execute(order: Order, output_format: str) -> int:
    """Run the lives and show them; a failure that must not pass unseen decides the exit code."""
    from collbench.cli.measure import and_tell

    codes: list[Exit] = []

    def show(file: RunFile) -> None:
        if file.records:
            codes.append(_show_run(file, output_format))

    try:
        code = and_tell(order, show)
    except CollbenchError as e:
        if not codes or codes[0] not in GRAVE:
            raise
        print_message(e.message, e.hint)
        return codes[0]
    shown = next(iter(codes), Exit.OK)
    return shown if shown in GRAVE else code or shown


def _show_run(file: RunFile, output_format: str) -> Exit:
    """Print what a run has of lives; the exit code that it deserves. Raises UsageError where it
    has none, NoVerdict where it measured nothing."""
    from collbench.cli import outputs
    from collbench.features.lifecycle.summary import judge_lives, summarize_lives
    from collbench.features.lifecycle.view import make_document
    from collbench.records import run_file

    run_file.refuse_empty(file)
    if summarize_lives(file).is_empty:
        raise UsageError(
            f"{file.run.id} has no life of a communicator", "collbench lifecycle measures one"
        )
    outputs.deliver_document(make_document(file), output_format)
    return judge_lives(file)


def make_order(options: LifecycleOptions) -> Order:
    """The run that the options ask for. Raises UsageError."""
    from collbench.cli.options import read_save_options
    from collbench.run.order import Order

    saving = options.saving
    keeping = read_save_options(saving.save, saving.output, saving.tag)
    launcher, source = options.where.launcher, options.where.find_source()
    suite = make_suite(options)
    return Order(suite=suite, command=sys.argv, launcher=launcher, source=source, **keeping)


def make_suite(options: LifecycleOptions) -> Suite:
    """A life for each number of groups and each further call, or a loss for each way. Raises
    UsageError."""
    from msgspec.structs import replace

    from collbench.cli.options import change_suite
    from collbench.run.launch import join
    from collbench.suite import grammar
    from collbench.suite.policy import Policy
    from collbench.suite.sweep import Axes, Suite

    _refuse_faults(options)
    launches = options.launches or (LAUNCHES if options.kills.kill is None else KILLS)
    # ranks that are killed are forked for it, so that those that watch them may stay the same
    stays = options.kills.kill is not None or bool(join.detect_launcher(options.where.launcher))
    axes = Axes(
        collectives=(),
        sizes=(),
        ranks=(),
        backends=(),
        envs=grammar.expand_envs(options.env or []),
        cycles=launches if stays else 1,
    )
    suite = change_suite(
        Suite(name="lifecycle", axes=axes, policy=Policy(seed=options.seed)),
        ngpus=options.ngpus,
        backend=options.backend,
        launcher=options.where.launcher,
        source=options.where.find_source(),
        inject=options.inject,
        path=options.path,
        launches=None if stays else launches,
    )
    requests = _make_lives(options) if options.kills.kill is None else _make_losses(options)
    return replace(suite, requests=tuple(requests))


def _refuse_faults(options: LifecycleOptions) -> None:
    """Raises UsageError for faults that lifecycle does not plant, and options without effect."""
    from collbench.features.lifecycle.request import LATE_HINT, refuse_faults

    if reason := refuse_faults(options.inject):
        raise UsageError(reason, LATE_HINT)
    if options.inject and options.kills.kill is not None:
        raise UsageError("--inject late has no effect with --kill", "leave one of them out")
    if options.kills.kill is not None and (changed := list_changed(options.lives, "sizes")):
        raise UsageError(f"{changed[0]} has no effect with --kill", f"leave {changed[0]} out")
    for option, name in KILL_OPTIONS.items():
        if getattr(options.kills, name) and options.kills.kill is None:
            raise UsageError(f"{option} has no effect without --kill", "add --kill RANK")


def _make_lives(options: LifecycleOptions) -> list[Any]:
    """A life for each number of groups, and one for each further call. Raises UsageError."""
    from collbench.features.lifecycle.measurable import make_life
    from collbench.features.lifecycle.request import DEFAULT_LIMIT
    from collbench.suite import grammar

    given = options.lives
    groups = [grammar.parse_integer("--groups", w, 1) for w in grammar.split_words(given.groups)]
    sizes = [grammar.parse_size(word, "--sizes") for word in grammar.split_words(given.sizes)]
    names = grammar.split_words(given.collective)
    if not (groups and sizes and names):
        raise UsageError("--groups, --sizes and --collective need a value each", "--groups 1,4,16")
    limit = options.timeout or DEFAULT_LIMIT
    calls = [(name, size) for name in names for size in sizes]
    pairs = [(number, calls[0]) for number in groups] + [(groups[0], call) for call in calls[1:]]
    return [
        make_life(groups=number, collective=name, nbytes=size, calls=given.calls, limit=limit)
        for number, (name, size) in dict.fromkeys(pairs)
    ]


def _make_losses(options: LifecycleOptions) -> list[Any]:
    """A loss for each way. Raises UsageError."""
    from collbench.features.lifecycle.measurable import make_loss
    from collbench.features.lifecycle.request import DEFAULT_LIMIT, MAX_KILL_SECONDS, WAYS
    from collbench.suite import grammar

    kills = options.kills
    at = -1.0
    if kills.kill_at not in ("", "random"):
        at = grammar.parse_duration(kills.kill_at, "--kill-at")
        if at > MAX_KILL_SECONDS:
            raise UsageError(
                f"--kill-at {kills.kill_at} is more than an hour",
                f"give at most {MAX_KILL_SECONDS} s, or random",
            )
    ways = [
        grammar.parse_choice("--way", word, WAYS)
        for word in grammar.split_words(kills.way or WAYS[0])
    ]
    sizes = grammar.split_words(options.lives.sizes)
    nbytes = grammar.parse_size(sizes[-1], "--sizes") if sizes else 1 << 20
    limit = options.timeout or DEFAULT_LIMIT
    return [
        make_loss(victim=kills.kill, at=at, way=way, nbytes=nbytes, limit=limit) for way in ways
    ]
