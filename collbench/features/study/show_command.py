"""The command `show`: an algorithm's steps, drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from collbench.cli.families import Collective, Debug, Root
from collbench.core.errors import UsageError
from collbench.core.text import format_count

MOST_RANKS = 64  # whose buffers are shown


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """The algorithm to draw, its ranks, and the part of it that is shown."""

    name: Collective
    algorithm: Annotated[
        str,
        Argument(
            metavar="ALGORITHM",
            help="ring, or with parameters: chain:segments=4; native with --on.",
        ),
    ] = ""
    n: Annotated[
        int | None, Option("-n", "--ranks", min=1, help="Ranks. Default 4, or those of --values.")
    ] = None
    root: Root = 0
    rank: Annotated[
        int | None, Option("--rank", min=0, help="Only what this rank gets, sends and holds.")
    ] = None
    step: Annotated[
        int | None, Option("--step", min=0, help="Only this step, and the state before it.")
    ] = None
    values: Annotated[
        str,
        Option(
            "--values",
            help="What ranks start with: 2,4,6;1,2,3;4,8,12; with --from-order a number a rank.",
        ),
    ] = ""
    on: Annotated[
        str,
        Option(
            "--on",
            help="Run it once on this backend instead, and show every rank's buffers; ALGORITHM"
            " native is the library's own.",
        ),
    ] = ""
    from_order: Annotated[
        str,
        Option(
            "--from-order",
            metavar="RUN",
            help="Draw the trees of additions that a run of `collbench order` found instead.",
        ),
    ] = ""
    size: Annotated[
        str, Option("--size", help="With --from-order: at this size. Default: the largest.")
    ] = ""
    debug: Debug = False


def show(options: ShowOptions) -> None:
    """Draw an algorithm's steps.

    With --on, run it once on real ranks instead, and show every rank's buffers; with --from-order,
    draw the order of additions of a library that a recorded run found.
    """
    from collbench.core import algorithms
    from collbench.core.schedule import prove_schedule
    from collbench.features.study import cost, drawing
    from collbench.show import terminal

    if options.from_order:
        return _show_order(options)
    _refuse_incomplete(options)
    if options.on:
        return _show_buffers(options)
    if options.algorithm == "native":
        raise UsageError(
            "native: the steps of a library cannot be shown",
            "collbench show reduce native --on gloo runs it and shows every rank's buffers",
        )
    given = drawing.parse_values(options.values) if options.values else None
    n = options.n or (len(given) if given else 4)
    variant = algorithms.find_variant(options.name, options.algorithm)
    schedule = variant.schedule(n, options.root)
    drawing.refuse_too_large(schedule)
    frames = list(drawing.make_frames(schedule, given or drawing.example_values(schedule)))
    steps = len(frames) - 1
    for what, value, most in (("rank", options.rank, n - 1), ("step", options.step, steps)):
        if value is not None and value > most:
            where = f"{schedule.collective} {schedule.name} for {format_count(n, 'rank')}"
            raise UsageError(
                f"--{what}: there is no {what} {value} in {where}", f"choose one of 0 to {most}"
            )
    row = variant.algorithm
    faults = prove_schedule(schedule)
    about = [
        *(f"wrong algorithm: {fault}; collbench prove lists all faults" for fault in faults[:1]),
        row.idea,
        *filter(None, [drawing.describe_phases(schedule, frames)]),
        *cost.describe_cost(variant, schedule),
    ]
    about.append(f"source: {row.paper}")
    visible = frames
    if options.step is not None:
        visible = [
            frames[max(0, options.step - 1)]._replace(moves=None),
            *frames[max(1, options.step) : options.step + 1],
        ]
    drawn = drawing.make_document(
        schedule, frames, visible, options.rank, terminal.screen_width(), about
    )
    terminal.print_blocks(*drawn.brief)


def _refuse_incomplete(options: ShowOptions) -> None:
    """Raise UsageError where there is no algorithm to draw, or an option is of --from-order."""
    if options.size:
        raise UsageError("--size: an algorithm has none", "it goes with --from-order")
    if not options.algorithm:
        raise UsageError("ALGORITHM is missing", "collbench show COLLECTIVE ALGORITHM")


def _show_order(options: ShowOptions) -> None:
    """Draw the trees of additions that a run found."""
    from collbench.core.collectives import find_collective
    from collbench.core.feature import load_entries
    from collbench.features.study import order_drawing
    from collbench.show import terminal
    from collbench.suite.grammar import parse_size

    for what, is_given in (
        ("ALGORITHM", bool(options.algorithm)),
        ("--ranks", options.n is not None),
        ("--root", options.root != 0),
        ("--step", options.step is not None),
        ("--on", bool(options.on)),
    ):
        if is_given:
            raise UsageError(
                f"{what}: with --from-order what a run found is drawn",
                f"leave out --from-order or {what}",
            )
    collective = find_collective(options.name).name
    load = load_entries("order_sources").get("run")
    if load is None:
        raise UsageError(
            "this installation cannot read orders of additions", "leave out --from-order"
        )
    size = parse_size(options.size, "--size") if options.size else None
    orders = load(options.from_order, collective, size)
    if options.rank is not None and options.rank >= orders[0].n:
        raise UsageError(
            f"--rank: there is no rank {options.rank} among {orders[0].n}",
            f"choose one of 0 to {orders[0].n - 1}",
        )
    drawn = order_drawing.make_document(orders, options.rank, options.values)
    terminal.print_blocks(*drawn.brief)


def _show_buffers(options: ShowOptions) -> None:
    """Run the collective once on a backend, and show every rank's buffers before and after."""
    from collbench.core.collectives import find_collective
    from collbench.features.study import drawing
    from collbench.run import refusal
    from collbench.run.values import run_collective
    from collbench.show import terminal
    from collbench.show.views import buffers

    if options.step is not None:
        raise UsageError(
            "--step: with --on a library runs, which shows no steps", "leave out --on or --step"
        )
    refusal.refuse_unknown_backends([options.on])
    row = find_collective(options.name)
    given = drawing.parse_values(options.values) if options.values else None
    n = options.n or (len(given) if given else 4)
    if n > MOST_RANKS:
        raise UsageError(
            f"-n {n}: the buffers of more than {MOST_RANKS} ranks are not shown", "choose fewer"
        )
    if given is None:
        sent = row.counts(n, 1)[0]
        length = sent if sent > 1 else 2
        given = [[1 + length * rank + i for i in range(length)] for rank in range(n)]
    if len(given) != n:
        raise UsageError(
            f"--values: {len(given)} ranks' numbers for -n {n}", "give one list a rank"
        )
    for option, value in (("--rank", options.rank), ("--root", options.root)):
        if value is not None and value >= n:
            raise UsageError(
                f"{option}: there is no rank {value} among {n}", f"choose one of 0 to {n - 1}"
            )
    if not row.moves_data:
        raise UsageError(f"{row.name} has no buffers", "collbench list names those that have")
    on, root = options.on, options.root
    buffers_of_ranks = run_collective(row.name, options.algorithm, on, given, root)
    table, lines = buffers.describe(row, on, given, buffers_of_ranks, root, options.rank)
    terminal.print_blocks(table, *lines)
