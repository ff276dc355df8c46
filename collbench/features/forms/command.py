"""The commands `objects` and `coalesce`: other forms of torch's calls beside the plain ones."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
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
)
from collbench.cli.parameters import make_option
from collbench.core.errors import Exit, UsageError

if TYPE_CHECKING:
    from collbench.features.forms.measurable import FormRequest
    from collbench.records.types import RunFile
    from collbench.suite.sweep import Suite

FORMATS = ("table", "md", "csv", "json")


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The sizes and libraries, how long each is measured, and where the run goes."""

    minbytes: Annotated[str, make_option("minbytes", "Smallest size.")] = "8"
    maxbytes: Annotated[
        str,
        make_option(
            "maxbytes", "Largest size, always included. Default: 1M (coalesce: 64K), or -b."
        ),
    ] = ""
    stepfactor: Annotated[
        float | None, make_option("stepfactor", "Multiply sizes by this. Default: 8.")
    ] = None
    ngpus: WorldSizes = ""
    backend: Annotated[
        str,
        make_option(
            "backends",
            "gloo, nccl, or any other torch.distributed backend; a list. Default: nccl with GPUs,"
            " else gloo.",
        ),
    ] = ""
    imports: Imports = ""
    iters: Annotated[
        int | None, make_option("iters", "Samples of each form. Default: until times are precise.")
    ] = None
    warmup: Annotated[
        int | None, make_option("warmup", "Warm-up samples. Default: until times settle.")
    ] = None
    max_time: Annotated[
        str, Option("--max-time", help="Longest time spent measuring a form. Default 2s.")
    ] = ""
    launches: Annotated[
        int | None,
        make_option("launches", "Measure so often, each time by ranks newly started. Default: 1."),
    ] = None
    check: Annotated[int, make_option("check")] = 1
    timeout: Timeout = None
    inject: Inject = ""
    where: LauncherOptions
    output_format: AnyTable = "table"
    saving: SaveOptions
    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class ObjectsOptions:
    """The collectives of objects to measure."""

    collectives: Annotated[
        str, Argument(metavar="[COLLECTIVE,…]", help="all_gather, broadcast, gather, scatter.")
    ] = "all_gather,broadcast,gather,scatter"
    sweep: SweepOptions


@dataclass(frozen=True, kw_only=True)
class CoalesceOptions:
    """The small calls to measure in one and apart."""

    collectives: Annotated[
        str,
        Argument(
            metavar="[COLLECTIVE,…]", help="all_reduce, all_gather, reduce_scatter, sendrecv."
        ),
    ] = "all_reduce,all_gather,reduce_scatter,sendrecv"
    together: Annotated[str, Option("--together", help="Calls in one; a list.")] = "8"
    sweep: SweepOptions


def objects(options: ObjectsOptions) -> None:
    """Measure torch's collectives of objects beside those of tensors.

    all_gather_object and its like pickle what they are given, tell its length, and send it as a
    tensor. Each is measured in turns with the collective that moves the same bytes as a tensor, by
    the size of the object; what arrives is compared, byte for byte.
    """
    from collbench.features.forms.measurable import make_requests

    sizes, names = _list_sizes(options.sweep, 1 << 20), _list_names(options.collectives)
    _run(make_requests(names, sizes, ()), options.sweep)


def coalesce(options: CoalesceOptions) -> None:
    """Measure small calls coalesced into one beside the same calls apart.

    In one: torch's _coalescing_manager, and for sendrecv one batch_isend_irecv of all messages.
    Apart: the same calls one after the other, sendrecv by a batch each. Both are measured in turns;
    what arrives is compared, byte for byte.
    """
    from collbench.features.forms.measurable import make_requests
    from collbench.suite import grammar

    numbers = [
        grammar.parse_integer("--together", word, 2)
        for word in grammar.split_words(options.together)
    ]
    if not numbers:
        raise UsageError("--together names no number of calls", "--together 8")
    sizes, names = _list_sizes(options.sweep, 64 << 10), _list_names(options.collectives)
    _run(make_requests(names, sizes, numbers), options.sweep)


def _list_names(text: str) -> list[str]:
    from collbench.suite import grammar

    names = [word.replace("-", "_") for word in grammar.split_words(text)]
    if not names:
        raise UsageError("no collective is named", "all_gather, for example")
    return names


def _list_sizes(sweep: SweepOptions, largest: int) -> tuple[int, ...]:
    from collbench.suite import grammar

    smallest = grammar.parse_size(sweep.minbytes, "-b")
    most = grammar.parse_size(sweep.maxbytes, "-e") if sweep.maxbytes else max(smallest, largest)
    return grammar.sweep_to_end(
        smallest, most, 8.0 if sweep.stepfactor is None else sweep.stepfactor
    )


def _run(requests: Sequence[FormRequest], sweep: SweepOptions) -> None:
    """Run what is asked for and show what came of it, or only what would run."""
    from collbench.cli import outputs
    from collbench.cli.measure import and_tell, carry_out
    from collbench.cli.options import read_save_options
    from collbench.features.forms.results import list_results
    from collbench.features.forms.view import make_document
    from collbench.run.order import Order
    from collbench.show import live

    outputs.check_outputs(sweep.output_format, (), FORMATS)
    saving = sweep.saving
    keeping = read_save_options(saving.save, saving.output, saving.tag)
    launcher, source = sweep.where.launcher, sweep.where.find_source()
    suite = make_suite(requests, sweep)
    order = Order(suite=suite, command=sys.argv, launcher=launcher, source=source, **keeping)

    has_ratio: list[bool] = []

    def show(file: RunFile) -> None:
        has_ratio.extend(math.isfinite(result.ratio[0]) for result in list_results(file))
        if file.records:
            outputs.deliver_document(make_document(file), sweep.output_format)

    if saving.dry_run:
        raise typer.Exit(carry_out(order, live.Status, True))
    code = and_tell(order, show)
    raise typer.Exit(code or (Exit.NO_VERDICT if has_ratio and not any(has_ratio) else Exit.OK))


def make_suite(requests: Sequence[FormRequest], sweep: SweepOptions) -> Suite:
    """A case of both forms for each request, backend and launch. Raises UsageError."""
    from msgspec.structs import replace

    from collbench.cli.options import change_suite, refuse_fixed_samples
    from collbench.run.launch import join
    from collbench.suite.policy import Policy
    from collbench.suite.sweep import Axes, Suite

    refuse_fixed_samples(sweep.iters, sweep.max_time)
    source = sweep.where.find_source()
    policy = Policy(
        iters=sweep.iters, warmup=sweep.warmup, check=sweep.check, timeout=sweep.timeout
    )
    suite = change_suite(
        Suite(
            name="forms",
            axes=Axes(collectives=(), sizes=(), ranks=(), backends=()),
            policy=policy,
        ),
        ngpus=sweep.ngpus or ("" if source or join.detect_launcher(sweep.where.launcher) else "2"),
        backend=sweep.backend,
        max_time=sweep.max_time,
        launcher=sweep.where.launcher,
        source=source,
        inject=sweep.inject,
        launches=sweep.launches,
    )
    return replace(suite, requests=tuple(requests))
