"""The command `replay`: a recorded job's step on other ranks, backends and settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from collbench.core.errors import UsageError
from collbench.features.traces.command import Files, Form, Ops
from collbench.features.training.command import ShapeOptions, StepOptions, handle_step


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """The iteration of a trace to run again, and how."""

    files: Files
    gaps: Annotated[
        str,
        Option(
            "--gaps",
            help="Computing between calls: keep (as long as recorded), none, or x0.5 for half of"
            " it.",
        ),
    ] = "keep"
    ranks: Annotated[
        str, Option("--ranks", help="Only what these ranks do among themselves: 0-7.")
    ] = ""
    iteration: Annotated[
        str, Option("--iteration", metavar="K|A-B", help="This iteration, or these as one step.")
    ] = ""
    assume_symmetric: Annotated[
        bool, Option("--assume-symmetric", help="Ranks that the trace lacks do what the others do.")
    ] = False
    assume_even: Annotated[
        bool,
        Option("--assume-even", help="An all_to_allv whose blocks are unknown has equal ones."),
    ] = False
    rebalance: Annotated[
        str,
        Option("--rebalance", metavar="mean", help="Make all blocks of an all_to_allv their mean."),
    ] = ""
    partial: Annotated[
        bool, Option("--partial", help="Leave out what cannot be replayed, however much it is.")
    ] = False
    from_ops: Ops = False
    form: Form = ""
    ngpus: Annotated[
        int | None, Option("-g", "--ngpus", min=1, help="Ranks: those of the trace, or of --ranks.")
    ] = None
    source: Annotated[
        str, Option("--link-from", help="Take the link from this recorded run, as `fit` does.")
    ] = ""
    shape: ShapeOptions
    step: StepOptions


def replay(options: ReplayOptions) -> None:
    """Run one iteration of a recorded job again, from its trace.

    Calls, waits and the computing between them are as they were recorded, on any backend and
    setting. Time in which a rank waited for others is not computing: it waits for them anew. --show
    counts the step, --link predicts it on another network, and --show --format csv writes it.
    """
    from collbench.features.traces.replay import Asked, replay_files
    from collbench.features.training.request import Wanted

    if options.rebalance not in ("", "mean"):
        raise UsageError(
            f"--rebalance {options.rebalance[:40]}: unknown way", "use --rebalance mean"
        )
    request = Asked(
        options.gaps,
        options.ranks,
        options.iteration,
        options.assume_symmetric,
        options.assume_even,
        "mean" if options.rebalance else "",
        options.partial,
        options.from_ops,
        options.form,
    )
    step = replay_files(options.files, request)
    handle_step(
        Wanted(step.name, step=step), options.ngpus, options.source, options.shape, options.step
    )
