"""`collbench COLLECTIVE`: one sweep, from the words of the command line to its exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from collbench.cli.parameters import add_all_options
from collbench.core.collectives import find_collective
from collbench.core.errors import Exit
from collbench.core.text import format_clock, format_count, print_message

if TYPE_CHECKING:
    from collbench.records.types import End, RunFile
    from collbench.run.launch.early import LoadingServer
    from collbench.run.order import Order, Prepared
    from collbench.run.reporter import Reporter


@add_all_options
class MeasureOptions:
    """The sweep to measure, how, and where the run goes: an option for each row of FIELDS."""


def measure(ctx: typer.Context, options: MeasureOptions) -> None:
    """Measure a collective, over sizes, ranks and whatever else is asked for."""
    from collbench.run.launch.early import start_early

    early = start_early(vars(options))  # torch loads meanwhile
    try:
        from collbench.cli.options import read_request

        request = read_request(find_collective(ctx.info_name or "").name, vars(options))
        code = carry_out(request.order, request.reporter, request.dry_run, early)
    finally:
        if early:
            early.close()
    raise typer.Exit(code)


def and_tell(order: Order, tell_of: Callable[[RunFile], object]) -> int:
    """Run what is asked for, progress on standard error, and ``tell_of`` it at rank 0 in the end,
    however far it came; the exit code."""
    from collbench.run import session
    from collbench.show import live

    class Progress(live.Status):
        def end(self, end: End, path: Path | None) -> None:
            super().end(end, path)
            tell_of(self.file)

    return session.execute_order(order, lambda: Progress(watched=sys.stderr.isatty()))


def _announce_budget(prepared: Prepared, budget: float) -> None:
    """Says what a budget does to these cases: how they share it, and which it would drop."""
    from collbench.core.backend_info import backend_info
    from collbench.run import plan
    from collbench.run.pace import budget_for, estimate_drops
    from collbench.show.views.run_table import name_cases

    print_message(
        f"--budget {format_clock(budget)} is shared out among these: a case gets less time, and"
        " where six samples of each do not fit, the costliest are dropped and named"
    )
    policy = prepared.suite.policy
    worlds = plan.plan_worlds(prepared.jobs, policy)
    measured = [world for world in worlds if backend_info(world.backend).launch != "none"]
    dropped, enough = estimate_drops(measured, budget, policy)
    if dropped:
        least = "at least " * (len(dropped) < len(prepared.cases))
        print_message(
            f"it is estimated to drop {least}{len(dropped)} of"
            f" {format_count(len(prepared.cases), 'case')}"
            f" ({name_cases(dropped, prepared.cases)}); --budget {budget_for(enough)} is enough"
            " for all"
        )


def fake_gpus(backends: Collection[str]) -> list[str]:
    """A sentence of --dry-run where backends would be measured on fake GPUs; nothing elsewhere."""
    from collbench.core.backend_info import backend_info
    from collbench.machine import sysfs, topology
    from collbench.machine.gpu import FAKE_MEANING, is_fake

    if not any(backend_info(name).gpu for name in backends):
        return []
    names = [str(device.get("name")) for device in topology.gpu_facts(sysfs.ROOT)["devices"]]
    return [f"GPU {name}: {FAKE_MEANING}" for name in dict.fromkeys(names) if is_fake(name)]


def carry_out(
    order: Order,
    reporter: Callable[[], Reporter],
    dry_run: bool,
    early: LoadingServer | None = None,
) -> Exit:
    """Run what is asked for and hold it against its limits, or only print what would run; on one
    rank, where there are more. ``early`` is execute_order's."""
    from collbench.core.paths import find_path
    from collbench.machine import cpus
    from collbench.records import limits
    from collbench.records.path_proof import judge_paths
    from collbench.run import plan, session
    from collbench.run.launch import join
    from collbench.run.order import plan_rows, prepare_order, refuse_nothing
    from collbench.run.reporter import Gathered, Several
    from collbench.show import terminal
    from collbench.show.views import plan_table

    if not dry_run:
        has_limits = any(threshold.min_busbw for threshold in order.suite.thresholds)
        has_paths = any(find_path(env) for env in order.suite.values("envs"))
        if not has_limits and not has_paths:
            return session.execute_order(order, reporter, early)
        limit_results: list[limits.Held] = []
        path_codes: list[Exit] = []

        class Judging(Gathered):
            def end(self, end: End, path: Path | None) -> None:
                super().end(end, path)
                limit_results.extend(limits.judge_limits(self.file))
                for result in limit_results:
                    if result.answer != "met":
                        print_message(limits.describe_held(result))
                code, sentence = judge_paths(self.file.records)
                path_codes.append(code)
                if sentence:
                    print_message(sentence)

        code = session.execute_order(order, lambda: Several(reporter(), Judging()), early)
        return code or choose_gravest([limits.find_limits_exit(limit_results), *path_codes])
    member = join.detect_launcher(order.launcher)
    if member is None or member.rank == 0:
        prepared = prepare_order(order)
        policy = prepared.suite.policy
        starting = plan.estimate_loading(prepared.jobs, policy) + plan.estimate_meeting(
            prepared.jobs, policy
        )
        cores = 0 if member or order.source else cpus.core_count()
        planned = plan_table.describe_plan(plan_rows(prepared), starting, policy.fresh, cores)
        terminal.print_blocks(*planned, *fake_gpus(prepared.suite.values("backends")))
        if order.budget is not None:
            _announce_budget(prepared, order.budget)
        if order.resumed is None:
            refuse_nothing(prepared, order.command)
    return Exit.OK


def choose_gravest(codes: Sequence[Exit]) -> Exit:
    """The exit code of several runs or judgements; having no verdict weighs less than any bad
    one."""
    return max(codes, default=Exit.OK, key=lambda c: 0.5 if c == Exit.NO_VERDICT else c)
