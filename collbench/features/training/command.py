"""The command `workload`: what a training step asks of the network, and what it takes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer import Argument, Option

from collbench.cli.families import (
    Debug,
    Imports,
    Inject,
    LauncherOptions,
    LinkSource,
    Output,
    Save,
    Tag,
    Timeout,
    list_changed,
    refuse_without_effect,
)
from collbench.cli.parameters import make_option
from collbench.core.errors import UsageError
from collbench.core.feature import find_entries, load_entries
from collbench.core.files import save_text

if TYPE_CHECKING:
    from collbench.features.training.count import Machine
    from collbench.features.training.overlap import Overlap
    from collbench.features.training.request import Wanted
    from collbench.features.training.step import Step
    from collbench.records.types import End
    from collbench.run.reporter import Reporter
    from collbench.suite.policy import Policy
    from collbench.suite.sweep import Suite

FORMATS = ("table", "json", "csv", "md")


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """The part of a step to run or count, and the network to predict it on."""

    scale: Annotated[
        str, Option("--scale", help="This part of every operation's elements: 1/16.")
    ] = "1"
    group: Annotated[
        str, Option("--slice", metavar="GROUP", help="Only the ranks of one such group: tp.")
    ] = ""
    compute: Annotated[
        str,
        Option(
            "--compute",
            help="Plays computation: auto (gemm and copy), gemm (matrix products), copy, spin,"
            " sleep (time alone) or none.",
        ),
    ] = "auto"
    tflops: Annotated[
        float, Option("--tflops", min=0, help="What a rank computes, for --link, spin and sleep.")
    ] = 0.0
    show: Annotated[
        bool, Option("--show", help="Count operations, bytes, memory; starts no ranks.")
    ] = False
    link: Annotated[
        str, Option("--link", help="Predict on links between hosts, as `predict` writes them.")
    ] = ""
    inside: Annotated[
        str,
        Option(
            "--inside", help="For --link: links within a host of several ranks. Default nvlink."
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Settings of a step's run, and where the run goes."""

    node: Annotated[
        int | None, Option("--node-ranks", min=1, help="For --link: ranks a host. Default 1.")
    ] = None
    backend: Annotated[str, make_option("backends")] = ""
    imports: Imports = ""
    algo: Annotated[str, make_option("algorithms")] = ""
    env: Annotated[list[str] | None, make_option("envs")] = None
    iters: Annotated[
        int | None, Option("-n", "--iters", min=1, max=1 << 20, help="Rounds of its parts.")
    ] = None
    warmup: Annotated[
        int | None, Option("-w", "--warmup_iters", min=0, help="Rounds before, not counted.")
    ] = None
    max_time: Annotated[
        str, Option("--max-time", help="Longest time spent measuring each part. Default 2s.")
    ] = ""
    budget: Annotated[
        str, make_option("budget", "Fit all of it into this time, by fewer rounds: 60s.")
    ] = ""
    check: Annotated[int, make_option("check")] = 1
    blame: Annotated[
        bool,
        Option("--blame", help="Measure the step without each of the costliest operations, too."),
    ] = False
    timeout: Timeout = None
    inject: Inject = ""
    where: LauncherOptions
    save: Save = True
    output: Output = None
    tag: Tag = ""
    dry_run: Annotated[bool, make_option("dry_run")] = False
    output_format: Annotated[
        str,
        Option(
            "--format",
            help="table, json, md, csv (with --show: the step itself) or chakra (traces for"
            " simulators, in folder --output).",
        ),
    ] = "table"
    debug: Debug = False

    def make_policy(self) -> Policy:
        """The policy by which a step's parts are measured. Raises UsageError."""
        from collbench.cli.options import refuse_fixed_samples
        from collbench.suite import grammar
        from collbench.suite.policy import Policy

        refuse_fixed_samples(self.iters, self.max_time, "rounds")
        seconds = grammar.parse_time_limit(self.max_time, "--max-time") if self.max_time else None
        return Policy(
            iters=self.iters,
            max_seconds=seconds,
            warmup=self.warmup,
            check=self.check,
            blame=self.blame,
            timeout=self.timeout,
            inject=self.inject,
        )


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """The step to run, count or predict."""

    name: Annotated[
        str,
        Argument(
            metavar="WORKLOAD",
            help="PATTERN:MODEL, a file, or a run, whose step is counted; default: list them.",
        ),
    ] = ""
    layout: Annotated[
        str, Option("--layout", help="Ranks and batches: tp=8,pp=4,dp=2,micro_batches=8.")
    ] = ""
    options: Annotated[
        str, Option("--options", help="What the pattern takes: bucket_cap_mb=50,hook=bf16.")
    ] = ""
    layers: Annotated[
        int,
        Option(
            "--layers", min=0, help="Only so many of the model's. Default: all.", show_default=False
        ),
    ] = 0
    ngpus: Annotated[
        int | None,
        Option("-g", "--ngpus", "--ranks", min=1, help="Ranks: the layout's dp is changed."),
    ] = None
    shape: ShapeOptions
    source: LinkSource = ""
    step: StepOptions


def workload(options: WorkloadOptions) -> None:
    """Run, count or predict a training step's communication.

    The whole step, its computation alone and its communication alone are measured in turns: what
    the step takes beyond its computation is communication that is exposed. Every operation's data
    is checked. --show, --link and --from start no ranks, and take a world of any size. One that
    takes longer than 20 seconds says so beforehand: --scale, --layers and -n make it shorter.
    """
    from collbench.cli import outputs
    from collbench.features.training.request import Wanted
    from collbench.features.training.views import workload as view

    if options.name:
        request = Wanted(options.name, options.layout, options.options, options.layers)
        return handle_step(request, options.ngpus, options.source, options.shape, options.step)
    _check_format(options.step.output_format, None)
    outputs.deliver_document(view.list_presets(), options.step.output_format)


def handle_step(
    request: Wanted, ngpus: int | None, source: str, shape: ShapeOptions, options: StepOptions
) -> None:
    """Run the step of a ``request``, or count and predict it, for each command of steps."""
    if not (shape.link or source):
        _refuse_without_link(shape, options.node)
    request = _shape_request(request, shape)
    if shape.show or shape.link or source:
        return _show_counted(request, ngpus, shape, source, options)
    if _is_run(request):
        raise UsageError(
            f"{request.name}: a recorded run cannot be run again",
            "count its step with --show, --link or --from",
        )
    _run_suite(_make_suite(request, ngpus, options), options)


def _check_format(printed: str, folder: Path | None) -> None:
    """Raises UsageError for what a step is not shown as."""
    from collbench.cli import outputs

    writers = find_entries("writers")
    outputs.check_outputs(printed, (), (*FORMATS, *writers))
    if printed in writers and not folder:
        raise UsageError(
            f"--format {printed} writes files, and no folder is given",
            "give a step, --show and --output FOLDER",
        )


def _refuse_measuring(options: StepOptions) -> None:
    """Raises UsageError for options that are about measuring, where a step is only counted."""
    written = ("csv", *find_entries("writers"))
    kept = ("node", "backend", "imports", "dry_run", "save", "output", "output_format", "debug")
    refuse_without_effect(
        list_changed(options, *kept),
        "where a step is only counted",
        "--show, --link and --from",
    )
    if options.output and options.output_format not in written:
        raise UsageError(
            f"--output has no effect with --format {options.output_format} of a counted step",
            f"--format {' or '.join(written)} writes files",
        )


def _refuse_without_link(shape: ShapeOptions, node: int | None) -> None:
    """Raises UsageError for an option that has an effect on predictions alone, and was given
    without a link to predict on."""
    tflops = shape.show and shape.tflops
    given = {"--inside": shape.inside, "--node-ranks": node, "--show --tflops": tflops}
    for name, value in given.items():
        if value:
            raise UsageError(
                f"{name} has no effect without a link", f"add --link ib200, or leave {name} out"
            )


def _shape_request(request: Wanted, shape: ShapeOptions) -> Wanted:
    from msgspec.structs import replace

    from collbench.features.training.step import Compute
    from collbench.suite import grammar

    grammar.parse_choice("--compute", shape.compute, get_args(Compute))
    compute: Any = shape.compute
    return replace(
        request, scale=shape.scale, group=shape.group, compute=compute, tflops=shape.tflops
    )


def _show_counted(
    request: Wanted, ngpus: int | None, shape: ShapeOptions, source: str, options: StepOptions
) -> None:
    """Print a step as counted, and what it would take on a machine."""
    from collbench.cli import outputs
    from collbench.features.training import step_files as files
    from collbench.features.training.count import count_step, forecast_step
    from collbench.features.training.views import workload as view
    from collbench.features.training.walk import Walk

    printed, folder = options.output_format, options.output
    _check_format(printed, folder)
    _refuse_measuring(options)
    gc.disable()  # what a large step is made of stays: looking through it takes half of the time
    step, overlap = _find_step(request, ngpus)
    at = _make_machine(shape, source, options.node)
    if folder and (writer := load_entries("writers").get(printed)):
        return outputs.print_text(writer.write_step(step, folder) + "\n")
    walk = Walk(step)
    expected = forecast_step(step, at, walk.actors) if at else None
    if printed == "csv":
        text = files.write_step(step)
        if folder is None:
            return outputs.print_text(text)
        return outputs.announce_file(folder, save_text(folder, text, "#name ", "--output"))
    outputs.deliver_document(
        view.make_document(step, count_step(step), walk, at, expected, overlap), printed
    )


def _is_run(request: Wanted) -> bool:
    return request.step is None and (
        request.name.startswith("@") or request.name.endswith(".jsonl")
    )


def _find_step(request: Wanted, ngpus: int | None) -> tuple[Step, Overlap | None]:
    """The step that is asked for; where that is a run's, with what came of it there."""
    from msgspec.structs import replace

    from collbench.core.text import print_message
    from collbench.features.training.overlap import find_overlaps, step_of
    from collbench.features.training.request import Wanted
    from collbench.records import run_file, store
    from collbench.records.origins import select_counting
    from collbench.show.words import list_caveats

    if not _is_run(request):
        step = request.make_step(ngpus)
        _refuse_ranks(request, step, ngpus)
        return step, None
    if ngpus or replace(request, tflops=0.0) != Wanted(request.name):
        hint = "leave out -g, --layout, --options, --layers, --scale, --slice and --compute"
        raise UsageError(f"{request.name}: a run has its step as it was measured", hint)
    file = run_file.read_file(store.find_run(request.name))
    if len(file.run.suite.subjects) != 1:
        step_count = len(file.run.suite.subjects)
        raise UsageError(f"run {file.run.id}: it has {step_count} steps", "give a run of one step")
    (step,) = file.run.suite.subjects
    matching = (
        overlap
        for overlap in find_overlaps(select_counting(file), partial(step_of, file))
        if overlap.step_record.case.subject == step.title
    )
    for text in list_caveats(file.run, file.worlds):
        print_message(text)
    return step, next(matching, None)


def _refuse_ranks(request: Wanted, step: Step, ngpus: int | None) -> None:
    """Raises UsageError where -g is given, and the step has another number of ranks."""
    if ngpus and ngpus != step.world:
        larger = f", or take --ranks 0-{ngpus - 1} of a larger trace" if request.step else ""
        raise UsageError(
            f"{ngpus} ranks are given, and {step.name} has {step.world}",
            f"leave -g out{larger}",
        )


def _make_machine(shape: ShapeOptions, source: str, node: int | None) -> Machine | None:
    """The machine that --link or --from, --inside, --node and --tflops describe. Raises
    UsageError."""
    from collbench.cli.links import find_link
    from collbench.core import network
    from collbench.features.training.count import Machine

    if not (shape.link or source):
        return None
    speed, _ = find_link(shape.link, source)
    within = network.parse_link(shape.inside or "nvlink", "--inside")
    return Machine(speed, within, node or 1, 1e12 * shape.tflops)


def _make_suite(request: Wanted, ngpus: int | None, options: StepOptions) -> Suite:
    """The step as it is to be run. Raises UsageError, for one that would never end as well."""
    from msgspec.structs import replace

    from collbench.features.training import walk
    from collbench.run import refusal
    from collbench.run.launch import environments, join
    from collbench.suite import grammar
    from collbench.suite.sweep import Axes, Suite

    source = options.where.find_source()
    policy = options.make_policy()
    member = join.detect_launcher(options.where.launcher)
    if member and ngpus not in (None, member.n):
        raise UsageError(
            f"-g {ngpus}: {environments.describe_member(member)}",
            "leave -g out, or --launcher local starts that many ranks on this host",
        )
    algorithms = tuple(grammar.split_words(options.algo))
    axes = Axes(
        collectives=(),
        sizes=(),
        ranks=(ngpus,) if ngpus else (),
        backends=tuple(grammar.split_words(options.backend)),
        algorithms=algorithms or ("native",),
        envs=grammar.expand_envs(options.env or []),
    )
    axes = source.resolve(axes) if source else axes.resolve()
    refusal.refuse_unknown_backends(axes.backends)
    ranks = member.n if member else axes.ranks[0]
    step = request.resolve(ranks, bool(member or ngpus), axes.backends)
    if member:
        environments.refuse_other_ranks(member, step.name, step.world)
    _refuse_ranks(request, step, ngpus)
    walk.refuse_deadlock(step)
    axes = replace(axes, ranks=(step.world,))
    return Suite(name="workload", axes=axes, policy=policy, subjects=(step,))


def _run_suite(suite: Suite, options: StepOptions) -> None:
    from collbench.cli import outputs
    from collbench.cli.measure import carry_out
    from collbench.cli.options import add_budget, read_save_options
    from collbench.run.order import Order

    printed, launcher = options.output_format, options.where.launcher
    outputs.check_outputs(printed, (), FORMATS)
    keeping = read_save_options(options.save, options.output, options.tag)
    source = options.where.find_source()
    order = Order(suite=suite, command=sys.argv, launcher=launcher, source=source, **keeping)
    order = add_budget(order, options.budget)
    raise typer.Exit(carry_out(order, _make_reporter(printed), options.dry_run))


def _make_reporter(printed: str) -> Callable[[], Reporter]:
    """The reporter of a step's run, which at the end also shows what the step took."""
    from collbench.cli import outputs
    from collbench.features.training.views import steps as view
    from collbench.run.reporter import Gathered, Several
    from collbench.show import live

    class Told(Gathered):
        def end(self, end: End, path: Path | None) -> None:
            super().end(end, path)
            if self.arrived:
                outputs.deliver_document(view.make_document(self.file), printed)

    return lambda: Several(live.LiveTable() if printed == "table" else live.Status(), Told())
