"""The command `replay`: a recorded job's step on other ranks, backends and settings."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from collbench.cli.parameters import share_options
from collbench.core.errors import UsageError
from collbench.features.traces.command import Files, Form, Ops
from collbench.features.training.command import handle_step

Gaps = Annotated[
    str,
    Option(
        "--gaps",
        help="Computing between calls: keep (as long as recorded), none, or x0.5 for half of it.",
    ),
]
Within = Annotated[str, Option("--ranks", help="Only what these ranks do among themselves: 0-7.")]
Iteration = Annotated[
    str, Option("--iteration", metavar="K|A-B", help="This iteration, or these as one step.")
]
Symmetric = Annotated[
    bool, Option("--assume-symmetric", help="Ranks that the trace lacks do what the others do.")
]
Even = Annotated[
    bool, Option("--assume-even", help="An all_to_allv whose blocks are unknown has equal ones.")
]
Rebalance = Annotated[
    str, Option("--rebalance", metavar="mean", help="Make all blocks of an all_to_allv their mean.")
]
Partial = Annotated[
    bool, Option("--partial", help="Leave out what cannot be replayed, however much it is.")
]
LinkFrom = Annotated[
    str, Option("--link-from", help="Take the link from this recorded run, as `fit` does.")
]
Ranks = Annotated[
    int | None, Option("-g", "--ngpus", min=1, help="Ranks: those of the trace, or of --ranks.")
]


@share_options(handle_step)
def replay(
    files: Files,
    gaps: Gaps = "keep",
    ranks: Within = "",
    iteration: Iteration = "",
    assume_symmetric: Symmetric = False,
    assume_even: Even = False,
    rebalance: Rebalance = "",
    partial: Partial = False,
    from_ops: Ops = False,
    form: Form = "",
    ngpus: Ranks = None,
    source: LinkFrom = "",
    **given: Any,
) -> None:
    """Run one iteration of a recorded job again, from its trace.

    Calls, waits and the computing between them are as they were recorded, on any backend and
    setting. Time in which a rank waited for others is not computing: it waits for them anew. --show
    counts the step, --link predicts it on another network, and --show --format csv writes it.
    """
    from collbench.features.traces.replay import Asked, replay_files
    from collbench.features.training.request import Wanted

    if rebalance not in ("", "mean"):
        raise UsageError(f"--rebalance {rebalance[:40]}: there is no such way", "mean")
    request = Asked(
        gaps,
        ranks,
        iteration,
        assume_symmetric,
        assume_even,
        "mean" if rebalance else "",
        partial,
        from_ops,
        form,
    )
    step = replay_files(files, request)
    handle_step(Wanted(step.name, step=step), ngpus=ngpus, source=source, **given)
