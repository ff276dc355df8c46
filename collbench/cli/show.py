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
    html: Path | None = None,
    debug: bool = False,
) -> None:
    """Draw an algorithm's steps, or write a page with a slider."""
    from collbench.core import algorithms, files
    from collbench.show import terminal
    from collbench.show.views import drawing, prediction

    if html:
        files.refuse(html, MARKS["html"], "--html")
    given = drawing.parse(values) if values else None
    n = n or (len(given) if given else 4)
    variant = algorithms.find(name, algorithm)
    schedule = variant.schedule(n, root)
    drawing.refuse_too_large(schedule)
    frames = list(drawing.frames(schedule, given or drawing.example(schedule)))
    steps = len(frames) - 1
    for what, value, most in (("rank", rank, n - 1), ("step", step, steps)):
        if value is not None and value > most:
            where = f"{schedule.collective} {schedule.name} for {n} ranks"
            raise UsageError(f"--{what}: there is no {what} {value} in {where}", f"0 to {most}")
    row = variant.algorithm
    about = [
        row.idea,
        *filter(None, [drawing.phases(schedule, frames)]),
        *prediction.cost(variant, schedule),
    ]
    about.append(f"source: {row.paper}")
    if html:
        from collbench.show.views import drawing_html

        text = drawing_html.page(schedule, frames, about)
        files.save(html, text, MARKS["html"], "--html", shared=True)
        return terminal.show(f"wrote {html}: {steps} steps")
    shown = frames
    if step is not None:
        shown = [frames[max(0, step - 1)]._replace(moves=None), *frames[max(1, step) : step + 1]]
    drawn = drawing.document(schedule, frames, shown, rank, terminal.screen(), about)
    terminal.show(*drawn.brief)
