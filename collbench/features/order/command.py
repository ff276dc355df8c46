"""The command `order`: in which order a library adds, and on what that depends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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
    Timeout,
    refuse_beside_run,
)
from collbench.cli.parameters import make_option
from collbench.core.errors import Exit, UsageError

if TYPE_CHECKING:
    from collbench.features.order.measurable import OrderRequest
    from collbench.features.order.requirements import Requirement
    from collbench.records.types import RunFile
    from collbench.run.order import Order
    from collbench.suite.sweep import Suite

FORMATS = ("table", "md", "csv", "json")

SMALLEST, LARGEST, FACTOR = 4, 16 << 20, 4.0  # of sizes, bytes

PLACES = {"out": ("out",), "in": ("in",), "both": ("out", "in")}

STRATEGIES = ("auto", "all", "adaptive")

DEFAULT_PROOF = 8


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The sizes, types and libraries whose orders are asked for."""

    minbytes: Annotated[str, make_option("minbytes", "Smallest size. Default: 4.")] = ""
    maxbytes: Annotated[
        str, make_option("maxbytes", "Largest size, where a step meets it. Default: 16M, or -b.")
    ] = ""
    stepfactor: Annotated[
        float | None, make_option("stepfactor", "Multiply sizes by this. Default: 4.")
    ] = None
    ngpus: Ranks = ""
    dtype: Annotated[str, make_option("dtypes", "float, double, half, bfloat16 ...; a list.")] = (
        "float"
    )
    op: Annotated[str, make_option("ops", "sum, avg, prod, premul_sum; a list.")] = "sum"
    root: Annotated[str, make_option("roots")] = "0"
    backend: Annotated[str, make_option("backends")] = ""
    imports: Imports = ""
    algo: Annotated[str, make_option("algorithms")] = "native"
    env: Annotated[list[str] | None, make_option("envs")] = None
    place: Annotated[
        str, make_option("in_place", "out (of place), in, or a list; the first is asked.")
    ] = "out,in"
    shift: Annotated[
        str, Option("--shift", help="Elements by which buffers are off alignment; a list.")
    ] = "0,1"


@dataclass(frozen=True, kw_only=True)
class EffortOptions:
    """How many calls are made."""

    repeats: Annotated[
        int, Option("--repeats", min=0, max=1_000_000, help="Calls of the same data at each size.")
    ] = 200
    pairs: Annotated[
        str,
        Option(
            "--pairs",
            help="all, or about n log n of them (adaptive). Default: all up to 16 ranks.",
        ),
    ] = "auto"
    proof: Annotated[
        int, Option("--proof", min=1, max=1000, help="Random buffers whose bits are predicted.")
    ] = DEFAULT_PROOF
    bisect: Annotated[
        bool,
        Option("--bisect/--no-bisect", help="Try sizes between two whose orders differ."),
    ] = True
    launches: Annotated[
        int | None,
        make_option("launches", "Find the orders so often, each time by ranks newly started."),
    ] = None
    budget: Annotated[
        str,
        make_option(
            "budget",
            "Fit all of it into this time: repeats are dropped first, then bisection, then the"
            " largest sizes.",
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class OrderOptions:
    """The collective whose order is asked for, what is required of it, and where the run goes."""

    what: Annotated[
        str, Argument(metavar="COLLECTIVE|RUN", help="Or a recorded run, to show and judge again.")
    ]
    sweep: SweepOptions
    effort: EffortOptions
    require: Annotated[
        list[str] | None,
        Option(
            "--require",
            help="Exit code 1 unless proved, same=call,launch (`collbench help order` has all),"
            " order=NAME or adds=own|float|double|exact; a list.",
        ),
    ] = None
    like: Annotated[
        str, Option("--like", metavar="RUN", help="Exit code 1 if an order is not this run's.")
    ] = ""
    timeout: Timeout = None
    inject: Inject = ""
    where: LauncherOptions
    output_format: AnyTable = "table"
    saving: SaveOptions
    debug: Debug = False


def order(options: OrderOptions) -> None:
    """Find in which order a library adds the ranks' numbers, and whether that changes.

    The tree of additions is found from results alone, for every element of every rank's output, and
    is held against the bits of random sums. It says whether the order depends on the size, the
    place in the buffer, the rank, the call, the launch, other elements, buffers, or settings, and
    which algorithms add alike. A recorded run is shown again.
    """
    from collbench.cli import outputs
    from collbench.cli.options import find_subject
    from collbench.features.order.requirements import parse_requirements
    from collbench.features.order.rows import REDUCING
    from collbench.records import run_file, store

    outputs.check_outputs(options.output_format, (), FORMATS)
    requirements = parse_requirements(options.require or [])
    like = run_file.read_file(store.find_run(options.like)) if options.like else None
    if isinstance(what := find_subject(options.what, REDUCING), Path):
        refuse_beside_run(options, "what", "require", "like")
        file = run_file.read_file(what)
        raise typer.Exit(_show_run(file, requirements, like, options.output_format))
    asked = make_order(what, options)
    if options.saving.dry_run:
        raise typer.Exit(_show_plan(asked))
    raise typer.Exit(_run_order(asked, requirements, like, options.output_format))


def _run_order(
    asked: Order, requirements: Sequence[Requirement], like: RunFile | None, output_format: str
) -> int:
    """Run what is asked for, and show and judge what came of it."""
    from collbench.cli.measure import and_tell

    codes: list[int] = []

    def show(file: RunFile) -> None:
        if file.records:
            codes.append(_show_run(file, requirements, like, output_format))

    return and_tell(asked, show) or next(iter(codes), Exit.OK)


def _show_run(
    file: RunFile, requirements: Sequence[Requirement], like: RunFile | None, output_format: str
) -> Exit:
    """Print what a run found. Raises UsageError where nothing of the kind was asked for,
    NoVerdict where nothing was measured."""
    from collbench.cli import outputs
    from collbench.features.order.report import make_order_report
    from collbench.features.order.view import make_document
    from collbench.records import run_file

    run_file.refuse_empty(file)
    report = make_order_report(file, requirements, like)
    if not report.judgement.orders and not report.judgement.unmeasured:
        raise UsageError(
            f"{file.run.id} has no order of additions", "collbench order all_reduce finds one"
        )
    outputs.deliver_document(make_document(report), output_format)
    return report.exit


def _show_plan(asked: Order) -> int:
    """Print what would run, with the calls at each size."""
    from collbench.cli.measure import carry_out
    from collbench.features.order.plan import describe_calls
    from collbench.run.launch import join
    from collbench.show import live, terminal

    code = carry_out(asked, live.Status, dry_run=True)
    member = join.detect_launcher(asked.launcher)
    if member is None or member.rank == 0:
        terminal.print_blocks(*describe_calls(asked.suite.resolve().subjects))
    return code


# what is asked for


def make_order(collective: str, options: OrderOptions) -> Order:
    """The run that the options ask for. Raises UsageError."""
    from collbench.cli.options import read_save_options
    from collbench.run.order import Order

    launcher, source = options.where.launcher, options.where.find_source()
    saving = options.saving
    keeping = read_save_options(saving.save, saving.output, saving.tag)
    suite = make_suite(collective, options)
    return Order(suite=suite, command=sys.argv, launcher=launcher, source=source, **keeping)


def make_suite(collective: str, options: OrderOptions) -> Suite:
    """A case for each type, reduction, root, backend, algorithm, setting and launch. Raises
    UsageError."""
    from msgspec.structs import replace

    from collbench.cli.options import change_suite
    from collbench.suite import grammar
    from collbench.suite.policy import Policy
    from collbench.suite.sweep import Axes, Suite

    sweep = options.sweep
    axes = Axes(
        collectives=(),
        sizes=(),
        ranks=(),
        backends=(),
        algorithms=tuple(grammar.split_words(sweep.algo)) or ("native",),
        envs=grammar.expand_envs(sweep.env or []),
    )
    suite = change_suite(
        Suite(name="order", axes=axes, policy=Policy(timeout=options.timeout)),
        ngpus=sweep.ngpus,
        backend=sweep.backend,
        launcher=options.where.launcher,
        source=options.where.find_source(),
        inject=options.inject,
        launches=options.effort.launches,
    )
    return replace(suite, requests=_share_budget(collective, options, suite))


def _share_budget(collective: str, options: OrderOptions, suite: Suite) -> tuple[OrderRequest, ...]:
    """The requests, each with its share of the time. Cases cannot be repeated, so that each keeps
    to its share itself."""
    from msgspec.structs import replace

    from collbench.suite import grammar

    axes = suite.axes
    requests = make_requests(collective, options, axes.ranks)
    if not options.effort.budget:
        return requests
    seconds = grammar.parse_time_limit(options.effort.budget, "--budget")
    worlds = len(axes.ranks) * len(axes.backends) * len(axes.envs) * axes.cycles
    share = seconds / (worlds * len(axes.algorithms) * len(requests))
    return tuple(replace(request, budget=share) for request in requests)


def make_requests(
    collective: str, options: OrderOptions, ranks: Sequence[int]
) -> tuple[OrderRequest, ...]:
    """A request for each type, reduction and root. Raises UsageError for what has no order."""
    from collbench.core.collectives import COLLECTIVES
    from collbench.features.order.measurable import make_request
    from collbench.suite import grammar

    sweep, effort = options.sweep, options.effort
    values: dict[str, Any] = {
        "places": _parse_places(sweep.place),
        "shifts": tuple(
            grammar.parse_integer("--shift", word) for word in grammar.split_words(sweep.shift)
        ),
        "repeats": effort.repeats,
        "proof": effort.proof,
        "strategy": grammar.parse_choice("--pairs", effort.pairs, STRATEGIES),
        "bisect": effort.bisect,
    }
    roots = _parse_roots(sweep.root, ranks) if COLLECTIVES[collective].rooted else (0,)
    return tuple(
        make_request(
            collective,
            _choose_sizes(collective, dtype, sweep, max(ranks)),
            dtype=dtype,
            op=op,
            root=root,
            **values,
        )
        for dtype in grammar.split_words(sweep.dtype)
        for op in grammar.split_words(sweep.op)
        for root in roots
    )


def _parse_places(text: str) -> tuple[str, ...]:
    from collbench.suite import grammar

    words = [grammar.parse_choice("--place", w, PLACES) for w in grammar.split_words(text)]
    return tuple(dict.fromkeys(place for word in words for place in PLACES[word]))


def _parse_roots(text: str, ranks: Sequence[int]) -> tuple[int, ...]:
    """Root ranks; of "all", those that every number of ranks has."""
    from collbench.suite import grammar

    roots: list[int] = []
    for word in grammar.split_words(text):
        every = range(min(ranks)) if word in ("all", "-1") else ()
        roots += every or [grammar.parse_integer("-r", word)]
    return tuple(dict.fromkeys(roots))


def _choose_sizes(collective: str, dtype: str, sweep: SweepOptions, ranks: int) -> tuple[int, ...]:
    """The sizes of the sweep; the smallest, if not given, holds an element for each rank's
    block."""
    from collbench.core.collectives import COLLECTIVES
    from collbench.core.dtypes import find_dtype
    from collbench.suite import grammar

    element = find_dtype(dtype).size
    blocks = ranks if COLLECTIVES[collective].total else 1
    smallest = max(SMALLEST, element * blocks)
    if sweep.minbytes:
        smallest = grammar.parse_size(sweep.minbytes, "-b")
    largest = max(smallest, LARGEST)
    if sweep.maxbytes:
        largest = grammar.parse_size(sweep.maxbytes, "-e")
    sizes = grammar.sweep_sizes(
        smallest, largest, FACTOR if sweep.stepfactor is None else sweep.stepfactor
    )
    whole = tuple(size for size in sizes if size >= element * blocks)
    if not whole:
        raise UsageError(
            f"-e {largest}: no size has an element of {dtype} for each of {ranks} ranks",
            f"-e {element * blocks} is the smallest",
        )
    return whole
