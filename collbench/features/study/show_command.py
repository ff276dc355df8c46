"""The command `show`: an algorithm's steps, drawn."""

from __future__ import annotations

from pathlib import Path

from collbench.cli.outputs import MARKS
from collbench.core.errors import UsageError


def show(
    name: str,
    algorithm: str,
    n: int | None = None,
    root: int = 0,
    rank: int | None = None,
    step: int | None = None,
    values: str = "",
    on: str = "",
    html: Path | None = None,
    debug: bool = False,
) -> None:
    """Draw an algorithm's steps, or write a page with a slider.

    With --on, run it once on real ranks instead, and show every rank's buffers.
    """
    from collbench.core import algorithms, files
    from collbench.features.study import cost, drawing
    from collbench.show import terminal

    if on:
        for option, given_too in (("--step", step is not None), ("--html", html is not None)):
            if given_too:
                raise UsageError(f"{option}: a library shows none of its steps", "leave out --on")
        return _show_buffers(name, algorithm, n, root, rank, values, on)
    if algorithm == "native":
        raise UsageError(
            "native: only the library itself knows its steps",
            "collbench show reduce native --on gloo runs it and shows every rank's buffers",
        )
    if html:
        files.refuse_foreign_file(html, MARKS["html"], "--html")
    given = drawing.parse_values(values) if values else None
    n = n or (len(given) if given else 4)
    variant = algorithms.find_variant(name, algorithm)
    schedule = variant.schedule(n, root)
    drawing.refuse_too_large(schedule)
    frames = list(drawing.make_frames(schedule, given or drawing.example_values(schedule)))
    steps = len(frames) - 1
    for what, value, most in (("rank", rank, n - 1), ("step", step, steps)):
        if value is not None and value > most:
            where = f"{schedule.collective} {schedule.name} for {n} ranks"
            raise UsageError(f"--{what}: there is no {what} {value} in {where}", f"0 to {most}")
    row = variant.algorithm
    about = [
        row.idea,
        *filter(None, [drawing.describe_phases(schedule, frames)]),
        *cost.describe_cost(variant, schedule),
    ]
    about.append(f"source: {row.paper}")
    if html:
        from collbench.features.study import drawing_page as drawing_html

        text = drawing_html.render_page(schedule, frames, about)
        files.save_text(html, text, MARKS["html"], "--html", shared=True)
        return terminal.print_blocks(f"wrote {html}: {steps} steps")
    visible = frames
    if step is not None:
        visible = [frames[max(0, step - 1)]._replace(moves=None), *frames[max(1, step) : step + 1]]
    drawn = drawing.make_document(schedule, frames, visible, rank, terminal.screen_width(), about)
    terminal.print_blocks(*drawn.brief)


def _show_buffers(
    name: str, algorithm: str, n: int | None, root: int, rank: int | None, values: str, on: str
) -> None:
    """Run the collective once on ``on``, and show every rank's buffers before and after."""
    from collbench.core.collectives import find_collective
    from collbench.features.study import drawing
    from collbench.run.values import run_collective
    from collbench.show import terminal
    from collbench.show.views import buffers

    row = find_collective(name)
    given = drawing.parse_values(values) if values else None
    n = n or (len(given) if given else 4)
    if given is None:
        sent = row.counts(n, 1)[0]
        length = sent if sent > 1 else 2
        given = [[1 + length * rank + i for i in range(length)] for rank in range(n)]
    if len(given) != n:
        raise UsageError(f"--values: {len(given)} ranks' numbers for -n {n}", "one list a rank")
    for option, value in (("--rank", rank), ("--root", root)):
        if value is not None and value >= n:
            raise UsageError(f"{option}: there is no rank {value} among {n}", f"0 to {n - 1}")
    if not row.moves_data:
        raise UsageError(f"{row.name} has no buffers", "collbench list names those that have")
    buffers_of_ranks = run_collective(row.name, algorithm, on, given, root)
    table, lines = buffers.describe(row, on, given, buffers_of_ranks, root, rank)
    terminal.print_blocks(table, *lines)
