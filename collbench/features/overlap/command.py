"""The command `overlap`: collectives beside something else on the same ranks, and what each makes
of the other."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from collbench.cli.families import (
    AnyTable,
    Debug,
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
    from collbench.records.types import RunFile
    from collbench.run.order import Order
    from collbench.suite.sweep import Suite

FORMATS = ("table", "md", "csv", "json")


@dataclass(frozen=True, kw_only=True)
class OverlapOptions:
    """The collective to measure, its backgrounds, and where the run goes."""

    what: Annotated[
        str, Argument(metavar="COLLECTIVE|RUN", help="Or a recorded run, to show again.")
    ]
    beside: Annotated[
        str,
        Option("--with", help="sleep, spin, gemm, copy, or collectives: all_to_all@mod:2; a list."),
    ] = "sleep,gemm,copy"
    sizes: Annotated[str, Option("--sizes", help="A list.")] = "64K,1M,16M"
    ngpus: Ranks = ""
    split: Annotated[str, make_option("groups")] = ""
    backend: Annotated[str, make_option("backends")] = ""
    algorithm: Annotated[str, make_option("algorithms")] = "native"
    dtype: Annotated[str, Option("-d", "--datatype", help="As in `collbench list`.")] = "float"
    rounds: Annotated[
        int,
        Option(
            "-n",
            "--rounds",
            min=1,
            max=200,
            help="Rounds: 6 give one row an interval, 12 each of 100.",
        ),
    ] = 12
    max_time: Annotated[
        str, Option("--max-time", help="Longest time spent on a row in a round.")
    ] = "0.3s"
    budget: Annotated[
        str, make_option("budget", "Fit all rounds into this time, by fewer samples: 60s.")
    ] = ""
    timeout: Timeout = None
    inject: Inject = ""
    where: LauncherOptions
    output_format: AnyTable = "table"
    saving: SaveOptions
    debug: Debug = False


def overlap(options: OverlapOptions) -> None:
    """Measure a collective beside something else on the same ranks: how much slower each is.

    In every round it is measured alone, and with each of --with in its background: products of
    matrices (gemm), copies of memory (copy), a core that is kept busy (spin), another collective
    (all_to_all:4M), in groups of its own if any (all_to_all@mod:2, or one alone: @div:2#1), or, as
    a control, what takes neither a core nor memory (sleep). A recorded run is shown again.
    Exit code 3 if no row has a verdict, as after fewer than 6 rounds.
    """
    from collbench.cli import outputs
    from collbench.cli.options import (
        add_budget,
        change_suite,
        choose_groups,
        find_subject,
        read_save_options,
    )
    from collbench.core.collectives import COLLECTIVES
    from collbench.records import run_file
    from collbench.run.order import Order

    outputs.check_outputs(options.output_format, (), FORMATS)
    if isinstance(subject := find_subject(options.what, COLLECTIVES), Path):
        refuse_beside_run(options, "what")
        raise typer.Exit(_show_run(run_file.read_digest(subject), options.output_format))
    launcher = options.where.launcher
    source = options.where.find_source()
    rule = choose_groups(options.split, launcher, source)
    suite = change_suite(
        make_suite(subject, options, rule),
        ngpus=options.ngpus,
        backend=options.backend,
        max_time=options.max_time,
        launcher=launcher,
        source=source,
        inject=options.inject,
    )
    saving = options.saving
    keeping = read_save_options(saving.save, saving.output, saving.tag)
    order = Order(suite=suite, command=sys.argv, launcher=launcher, source=source, **keeping)
    order = add_budget(order, options.budget)
    raise typer.Exit(_run_order(order, options.saving.dry_run, options.output_format))


def _run_order(order: Order, dry_run: bool, output_format: str) -> int:
    """Run what is asked for and show it, or only what would run; the exit code."""
    from collbench.cli.measure import and_tell, carry_out
    from collbench.show import live

    shown: list[Exit] = []

    def show(file: RunFile) -> None:
        if file.records:
            shown.append(_show_run(file, output_format))

    if dry_run:
        return carry_out(order, live.Status, True)
    return and_tell(order, show) or max(shown, default=Exit.OK)


def make_suite(name: str, options: OverlapOptions, rule: str = "") -> Suite:
    """A collective alone and with each of --with in its background, in so many rounds; in the
    groups of a rule, if there is one."""
    from collbench.core import groups
    from collbench.core.collectives import COLLECTIVES
    from collbench.suite import backgrounds, grammar
    from collbench.suite.policy import Policy
    from collbench.suite.sweep import Axes, Suite

    axes = Axes(
        collectives=(name,),
        sizes=tuple(
            grammar.parse_size(size, "--sizes") for size in grammar.split_words(options.sizes)
        ),
        ranks=(),
        backends=(),
        algorithms=tuple(grammar.split_words(options.algorithm)),
        dtypes=(options.dtype,),
        in_place=(COLLECTIVES[name].in_place == "same",),
        backgrounds=(
            "",
            *(
                backgrounds.normalise_background(word, "--with")
                for word in grammar.split_words(options.beside)
            ),
        ),
        cycles=options.rounds,
        groups=groups.normalise_rule(rule) if rule else "",
    )
    return Suite(name="overlap", axes=axes, policy=Policy(min_seconds=0.0, timeout=options.timeout))


def _show_run(file: RunFile, output_format: str) -> Exit:
    """Print what a run tells; NO_VERDICT where no row has a verdict. Raises UsageError where it has
    nothing in the background, NoVerdict for a run on fake GPUs, or that measured nothing."""
    from collbench.cli import outputs
    from collbench.core.text import print_message
    from collbench.features.overlap import judgement as judging
    from collbench.features.overlap import view as views
    from collbench.records import origins, run_file

    run_file.refuse_empty(file)
    overlaps = judging.judge_overlaps(file)
    tried = [record for record in file.records if record.case.background]
    if not (overlaps or tried or any(file.run.suite.values("backgrounds"))):
        origins.refuse_fake(file, "compare")
        raise UsageError(
            f"{file.run.id} has no case with a background that was measured alone, too",
            "collbench overlap all_reduce measures some",
        )
    outputs.deliver_document(views.make_document(file, overlaps), output_format)
    if not overlaps:
        why = next((f": {record.note}" for record in tried if record.note), "")
        print_message(f"nothing was measured in the background{why}")
    is_decided = any(overlap.verdict != judging.NO_VERDICT for overlap in overlaps)
    return Exit.OK if is_decided else Exit.NO_VERDICT
