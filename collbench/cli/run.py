"""`collbench run`: suites, from files to exit code, or a run that goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from collbench.cli.families import Debug, DryRun, Hosts, Imports, Inject, RunsTag, Ssh
from collbench.cli.measure import carry_out, choose_gravest
from collbench.cli.parameters import make_option
from collbench.core.errors import CollbenchError, Exit, UsageError

if TYPE_CHECKING:
    from collbench.records.types import RunFile
    from collbench.run.order import Order
    from collbench.suite.sweep import Suite


@dataclass(frozen=True, kw_only=True)
class SuiteSaveOptions:
    """The place and the tag of suites' runs, and whether there are to be any."""

    output: Annotated[
        list[Path] | None,
        make_option(
            "output",
            "Save runs to this folder (one suite: or .jsonl file). With .prom, .otlp, .parquet:"
            " write this, too.",
        ),
    ] = None
    save: Annotated[bool, make_option("save", "Keep the runs' records.")] = True
    tag: RunsTag = ""
    dry_run: DryRun = False


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The suites to measure, changes to them, and where runs go."""

    suites: Annotated[
        list[str] | None,
        Argument(metavar="SUITE", help="Built-in names (see `collbench list`) or TOML files."),
    ] = None
    ranks: Annotated[
        str, make_option("ranks", "Number of ranks, instead of the suite's; a list.")
    ] = ""
    backends: Annotated[
        str,
        make_option(
            "backends",
            "Backends instead of the suite's; a list. Of a run to continue with: where those of"
            " files are, ./my.py.",
        ),
    ] = ""
    imports: Imports = ""
    only: Annotated[
        list[str] | None,
        Option(
            "--only",
            metavar="COLLECTIVE,…",
            help="Of the suite, only these collectives. May be repeated.",
        ),
    ] = None
    max_seconds: Annotated[
        str, make_option("max_seconds", "Longest time spent measuring one case.")
    ] = ""
    launches: Annotated[
        int | None,
        make_option(
            "launches",
            "Measure each suite by newly started ranks so often, in place of its cycles, whose time"
            " they share (0.25s a case at least).",
        ),
    ] = None
    budget: Annotated[
        str,
        make_option(
            "budget",
            "Fit each suite (with --resume: the rest) into this time, by fewer repetitions: 10m.",
        ),
    ] = ""
    launcher: Annotated[str, make_option("launcher")] = "auto"
    address: Annotated[str, make_option("address")] = ""
    placement: Annotated[str, make_option("placement")] = ""
    hosts: Hosts = ""
    ssh: Ssh = ""
    path: Annotated[str, make_option("paths")] = ""
    resume: Annotated[
        str,
        Option(
            "--resume",
            metavar="RUN",
            help="Continue with this run, which was cut short: measure what is missing, into the"
            " same file.",
        ),
    ] = ""
    file: Annotated[
        str,
        Option(
            "--algo",
            metavar="FILE.py:NAME",
            help="With --resume: give the run's algorithms of files again, as ./line.py:line.",
        ),
    ] = ""
    env: Annotated[
        list[str] | None,
        Option(
            "--env",
            metavar="NAME=V1,V2",
            help="With --resume: give the run's LD_PRELOAD and the like again, which collbench does"
            " not take from a file. May be repeated.",
        ),
    ] = None
    inject: Inject = ""
    output_format: Annotated[
        str, make_option("output_format", "auto, table, nccl, json, csv or md.")
    ] = "auto"
    saving: SuiteSaveOptions
    debug: Debug = False

    @property
    def has_changes(self) -> bool:
        """Whether an option other than --backend and --budget changes suites, or where their runs
        go."""
        saving = self.saving
        overrides = (self.ranks, self.max_seconds, self.launches, self.only, self.path)
        places = (saving.output, saving.tag, not saving.save)
        return any((*overrides, self.inject, *places))


def run(options: RunOptions) -> None:
    """Run suites: sweeps kept in files.

    A suite is a TOML file: description, tags; [axes], the lists whose product is measured:
    collectives and sizes ("64K", or { min = 8, max = "1G", factor = 4 }), and as wanted ranks,
    backends, algorithms, dtypes, ops, roots, in_place, modes, env ("NCCL_ALGO=Ring,Tree"), splits,
    align, cycles; [policy]: iters, precision, max_seconds and others; [[include]]: a further sweep,
    with keys in place of those of [axes]; [[override]]: a match, and keys for the cases that match;
    [[exclude]]: keys of cases to leave out, min_size, max_size, perhaps a reason; [[threshold]]: a
    match and tau, the smallest change to judge, or min_busbw, as --min-busbw of collectives.
    """
    from collbench.cli.options import (
        add_budget,
        change_suite,
        find_source,
        make_reporter,
        read_save_options,
        split_output,
        tell_unread_variables,
    )
    from collbench.run import resumption
    from collbench.run.order import Order
    from collbench.suite import grammar, toml

    _refuse_conflicts(options)
    tell_unread_variables()
    launcher, budget = options.launcher, options.budget
    source = find_source(launcher, options.address, options.placement, options.hosts, options.ssh)
    changed = partial(
        change_suite,
        ngpus=options.ranks,
        backend=options.backends,
        only=",".join(options.only or []),
        max_time=options.max_seconds,
        launcher=launcher,
        source=source,
        inject=options.inject,
        launches=options.launches,
        path=options.path,
    )
    suites = [toml.load_suite(name) for name in options.suites or []]
    named_axes = [_list_named_axes(suite, options) for suite in suites]
    suites = [changed(suite) for suite in suites]
    order = partial(Order, command=sys.argv, launcher=launcher, source=source)
    saving = options.saving
    place, exports = split_output(saving.output)
    make_order = partial(order, **read_save_options(saving.save, place, saving.tag))
    orders = [
        add_budget(make_order(suite=suite, named_axes=axes), budget)
        for suite, axes in zip(suites, named_axes, strict=True)
    ]
    if options.resume:
        resumable = resumption.find_resumable(options.resume, options.env or [])
        resumption.load_algorithms(resumable.run, options.file)
        resumption.load_backends(resumable.run, grammar.split_words(options.backends))
        orders = [add_budget(order(suite=resumable.run.suite, resumed=resumable), budget)]
    reporter = partial(make_reporter, options.output_format, exports=exports)
    measure = partial(carry_out, reporter=reporter, dry_run=options.saving.dry_run)
    raise typer.Exit(choose_gravest(_measure_each(orders, measure, options.saving.dry_run)))


def _report_show_command(order: Order, resumed: RunFile) -> None:
    """Report, on one rank, the command that shows and judges a resumed run."""
    from collbench.core.text import print_message
    from collbench.records import store
    from collbench.run import resumption
    from collbench.run.launch import join

    command = resumption.format_show_command(resumed.run, store.run_name(resumed.path))
    member = join.detect_launcher(order.launcher)
    if command and (member is None or member.rank == 0):
        print_message(f"{command} shows and judges this run")


def _list_named_axes(suite: Suite, options: RunOptions) -> tuple[str, ...]:
    """The axes that an option or the suite, as its file has it, gives and the machine does not."""
    given = {"ranks": options.ranks, "backends": options.backends}
    return tuple(axis for axis, value in given.items() if value or suite.has_values(axis))


def _measure_each(
    orders: Sequence[Order], measure: Callable[[Order], Exit], is_dry: bool = False
) -> list[Exit]:
    """The exit code of each suite's run. One of several that cannot run, or breaks, is told and
    leaves the others to be measured. Raises CollbenchError and OSError where there is but
    one."""
    from collbench.core.text import print_message
    from collbench.survive.crash import explain_crash

    codes = []
    for order in orders:
        try:
            codes.append(measure(order))
            if order.resumed and not is_dry:
                _report_show_command(order, order.resumed)
        except (CollbenchError, OSError) as e:
            if len(orders) == 1:
                raise
            error = explain_crash(e) if isinstance(e, OSError) else e
            print_message(f"{order.suite.name}: {error.message}", error.hint)
            codes.append(error.exit)
    return codes


def _refuse_conflicts(options: RunOptions) -> None:
    """Raises UsageError for what cannot be asked together."""
    from collbench.run.launch import join

    suites = options.suites or []
    files = [path for path in options.saving.output or () if not path.is_dir()]
    if options.resume and (suites or options.has_changes):
        raise UsageError(
            "--resume is given with suites or their options",
            "leave suites and their options out: a resumed run goes on as it was begun",
        )
    if not options.resume and not suites:
        raise UsageError(
            "no suite is named", "name a TOML file or a built-in one; collbench list shows these"
        )
    if len(suites) > 1 and files:
        raise UsageError(
            f"--output {files[0]} is one file, but {len(suites)} suites make a file each",
            "give a folder that exists, or one command per suite",
        )
    if len(suites) > 1 and join.detect_launcher(options.launcher):
        raise UsageError(
            f"{len(suites)} suites are given, and ranks of a launcher run only one",
            "start one command per suite",
        )
    if options.file and not options.resume:
        raise UsageError(
            "--algo is given without --resume",
            "measure an algorithm's file with collbench all_reduce --algo ./line.py:line",
        )
    if options.env and not options.resume:
        raise UsageError(
            "--env is given without --resume",
            f"write it into the suite's file, under [axes]: env = {options.env}",
        )
