"""The command `overlap`: collectives beside something else on the same ranks, and what each makes
of the other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from collbench.core.errors import Exit, UsageError

if TYPE_CHECKING:
    from collbench.records.types import RunFile
    from collbench.run.session import Order
    from collbench.suite.sweep import Suite

FORMATS = ("table", "md", "csv", "json")


def overlap(
    what: str,
    beside: str = "sleep,gemm,copy",
    sizes: str = "64K,1M,16M",
    ngpus: str = "",
    split: str = "",
    backend: str = "",
    algorithm: str = "native",
    dtype: str = "float",
    rounds: int = 12,
    max_time: str = "0.3s",
    budget: str = "",
    timeout: float | None = None,
    inject: str = "",
    launcher: str = "auto",
    output_format: str = "table",
    output: Path | None = None,
    save: bool = True,
    tag: str = "",
    dry_run: bool = False,
    debug: bool = False,
) -> None:
    """Measure a collective beside something else on the same ranks: how much slower each is.

    In every round it is measured alone, and with each of --with in its background: products of
    matrices (gemm), copies of memory (copy), a core that is kept busy (spin), another collective
    (all_to_all:4M), in groups of its own if any (all_to_all@mod:2, or one alone: @div:2#1), or, as
    a control, what takes neither a core nor memory (sleep). A recorded run is shown again.
    """
    from collbench.cli import options, outputs
    from collbench.records import run_file
    from collbench.run import session

    outputs.check_outputs(output_format, (), FORMATS)
    if isinstance(subject := _find_subject(what), Path):
        raise typer.Exit(_show_run(run_file.read_digest(subject), output_format))
    ray = options.find_ray_cluster(launcher, "", "")
    rule = options.choose_groups(split, launcher)
    suite = options.change_suite(
        suite_of(subject, beside, sizes, algorithm, dtype, rounds, timeout, rule),
        ngpus=ngpus,
        backend=backend,
        max_time=max_time,
        launcher=launcher,
        ray=ray,
        inject=inject,
    )
    keeping = options.read_save_options(save, output, tag)
    order = session.Order(suite=suite, command=sys.argv, launcher=launcher, ray=ray, **keeping)
    order = options.add_budget(order, budget)
    raise typer.Exit(_run_order(order, dry_run, output_format))


def _run_order(order: Order, dry_run: bool, output_format: str) -> int:
    from collbench.cli.measure import and_tell, carry_out
    from collbench.show import live

    if dry_run:
        return carry_out(order, live.Status, True)
    return and_tell(order, lambda file: file.records and _show_run(file, output_format))


def suite_of(
    name: str,
    beside: str,
    sizes: str,
    algorithm: str,
    dtype: str,
    rounds: int,
    timeout: float | None,
    split: str = "",
) -> Suite:
    """A collective alone and with each of ``beside`` in its background, in so many rounds; in the
    groups of a rule, if there is one."""
    from collbench.core import groups
    from collbench.core.collectives import COLLECTIVES
    from collbench.suite import backgrounds, grammar
    from collbench.suite.policy import Policy
    from collbench.suite.sweep import Axes, Suite

    axes = Axes(
        collectives=(name,),
        sizes=tuple(grammar.parse_size(size, "--sizes") for size in grammar.split_words(sizes)),
        ranks=(),
        backends=(),
        algorithms=tuple(grammar.split_words(algorithm)),
        dtypes=(dtype,),
        in_place=(COLLECTIVES[name].in_place == "same",),
        backgrounds=(
            "",
            *(
                backgrounds.normalise_background(word, "--with")
                for word in grammar.split_words(beside)
            ),
        ),
        cycles=rounds,
        groups=groups.normalise_rule(split) if split else "",
    )
    return Suite(name="overlap", axes=axes, policy=Policy(min_seconds=0.0, timeout=timeout))


def _find_subject(what: str) -> str | Path:
    """The collective of that name, or where the run of that name lies. Raises UsageError."""
    from collbench.core.collectives import COLLECTIVES, find_collective
    from collbench.core.text import suggest_name
    from collbench.records import store

    try:
        return find_collective(what).name
    except UsageError as unknown:
        try:
            return store.find_run(what)
        except UsageError as e:
            hint = suggest_name(what, COLLECTIVES) or unknown.hint
            raise UsageError(f"'{what}' is no collective and no run", hint) from e


def _show_run(file: RunFile, output_format: str) -> Exit:
    """Print what a run tells. Raises UsageError where it has nothing in the background, NoVerdict
    for a run on fake GPUs."""
    from collbench.cli import outputs
    from collbench.features.overlap import judgement as judging
    from collbench.features.overlap import view as views
    from collbench.records import origins

    overlaps = judging.judge_overlaps(file)
    if not overlaps and not (file.end and file.end.exit):
        origins.refuse_fake(file, "compare")
        raise UsageError(
            f"{file.run.id} has no case with a background that was measured alone, too",
            "collbench overlap all_reduce measures some",
        )
    outputs.deliver_document(views.make_document(file, overlaps), output_format)
    return Exit.OK if overlaps else Exit.NO_VERDICT
