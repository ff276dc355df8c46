"""`collbench run`: suites, from files to exit code, or a run that goes on."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import typer

from collbench.cli.measure import carry_out
from collbench.core.errors import Exit, UsageError


def run(
    suites: list[str] | None = None,
    ranks: str = "",
    backends: str = "",
    only: list[str] | None = None,
    max_seconds: str = "",
    launches: int | None = None,
    budget: str = "",
    launcher: str = "auto",
    address: str = "",
    placement: str = "",
    resume: str = "",
    file: str = "",
    inject: str = "",
    output_format: str = "auto",
    output: Path | None = None,
    save: bool = True,
    tag: str = "",
    dry_run: bool = False,
    debug: bool = False,
) -> None:
    """Run suites: sweeps kept in files.

    A suite is a TOML file: description, tags; [axes], the lists whose product is measured:
    collectives and sizes ("64K", or { min = 8, max = "1G", factor = 4 }), and as wanted ranks,
    backends, algorithms, dtypes, ops, roots, in_place, modes, env ("NCCL_ALGO=Ring,Tree"), splits,
    align, cycles; [policy]: iters, precision, max_seconds and others; [[include]]: a further sweep,
    with keys in place of those of [axes]; [[override]]: a match, and keys for the cases that match;
    [[exclude]]: keys of cases to leave out, min_size, max_size, perhaps a reason; [[threshold]]: a
    match and tau, the smallest change to judge, or min_busbw, as --min-busbw of collectives.
    """
    from collbench.cli import options
    from collbench.run import resumption
    from collbench.run.session import Order
    from collbench.suite import toml

    overrides: dict[str, Any] = {"ngpus": ranks, "backend": backends, "max_time": max_seconds}
    changes = (*overrides.values(), launches, only, budget, inject, output, tag, not save)
    _refuse_conflicts(suites or [], resume, any(changes), launcher, output)
    if file and not resume:
        raise UsageError(
            "--algo names the file of an algorithm of a run to be resumed",
            "to measure one: collbench all_reduce --algo ./line.py:line",
        )
    ray = options.find_ray_cluster(launcher, address, placement)
    chosen = ",".join(only or [])
    changed = partial(options.change_suite, only=chosen, launcher=launcher, ray=ray, inject=inject)
    suite_list = [
        changed(toml.load_suite(name), **overrides, launches=launches) for name in suites or []
    ]
    order = partial(Order, command=sys.argv, launcher=launcher, ray=ray)
    make_order = partial(order, **options.read_save_options(save, output, tag))
    orders = [options.add_budget(make_order(suite=suite), budget) for suite in suite_list]
    if resume:
        resumable = resumption.find_resumable(resume)
        resumption.load_algorithms(resumable.run, file)
        orders = [order(suite=resumable.run.suite, resumed=resumable)]
    reporter = partial(options.make_reporter, output_format)
    raise typer.Exit(_choose_gravest([carry_out(order, reporter, dry_run) for order in orders]))


def _choose_gravest(codes: list[Exit]) -> Exit:
    """The exit code of several suites' runs; having no verdict weighs less than any bad one."""
    return max(codes, default=Exit.OK, key=lambda c: 0.5 if c == Exit.NO_VERDICT else c)


def _refuse_conflicts(
    suites: list[str], resume: str, changed: bool, launcher: str, output: Path | None
) -> None:
    """Raises UsageError for what cannot be asked together."""
    from collbench.run.launch import join

    if resume and (suites or changed):
        raise UsageError(
            "--resume goes on with a run as it was begun", "leave suites and their options out"
        )
    if not resume and not suites:
        raise UsageError(
            "no suite is named", "collbench list shows the built-in ones; or a TOML file"
        )
    if len(suites) > 1 and output and not output.is_dir():
        raise UsageError(
            f"--output {output} is one file, and each suite's run is a file of its own",
            "give a folder that exists, or one command per suite",
        )
    if len(suites) > 1 and join.detect_launcher(launcher):
        raise UsageError("under a launcher, ranks live for one suite", "one command per suite")
