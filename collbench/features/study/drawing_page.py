"""An algorithm as one page that needs no network: every rank's cells, the arrows of a step, and a
slider over steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from collbench.core.schedule import Move, Schedule
from collbench.core.version import __version__
from collbench.features.study.drawing import (
    Arrow,
    Frame,
    find_outcome,
    in_words,
    pack_lanes,
    side_effects,
)
from collbench.show.html import load_template

COLOURS = (
    (0.0, "#d3dae3"),
    (0.99, "#7fb2e5"),
    (1.0, "#5fbf8b"),
)  # nothing of it, nearly all, complete


ADDED, COPIED = "#d9480f", "#7a3fc4"  # both legible on white and on near-black


ROW, TOP, SIDE, LETTER = (
    56,
    56,
    62,
    8,
)  # pixels: a rank's height, room above and beside, a character's width


READING = (
    "In words, 0 to 1: +2 says that rank 0 sends cell 2 to rank 1, which adds it; 2>6: cell 2 goes"
    " into cell 6."
)


def render_page(schedule: Schedule, frames: Sequence[Frame], about: Sequence[str] = ()) -> str:
    """The page's text, with what there is to say ``about`` the algorithm. Colour is the share of
    the contributions promised at a cell that have arrived there."""
    from markupsafe import Markup

    n, width, last = schedule.n, schedule.width, len(frames) - 1
    longest = max(len(cell.text) for frame in frames for row in frame.rows for cell in row)
    frames_json = json.dumps([_describe_frame(frame, last) for frame in frames]).replace(
        "<", "\\u003c"
    )
    return load_template("drawing").render(
        title=f"{schedule.collective} {schedule.name}, {n} ranks",
        meaning=schedule.row.meaning,
        about=about,
        drawing=Markup(_draw_figure(schedule, frames)),
        words=Markup(frames_json),
        last=last,
        least=SIDE + 8 + (LETTER * longest + 14) * width,
        version=__version__,
        added=ADDED,
        copied=COPIED,
        notes=[
            *([READING] if any(len(frame.arrows()) > SPELLED_OUT for frame in frames) else []),
            *side_effects(schedule),
            f"At the end {in_words(find_outcome(schedule, frames[-1]), n)}.",
        ],
        colours=", ".join(colour for _, colour in COLOURS),
    )


def _draw_figure(schedule: Schedule, frames: Sequence[Frame]) -> str:
    """The figure that a slider steps through."""
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]

    n, width = schedule.n, schedule.width
    axis = {
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
        "showline": False,
        "ticks": "",
    }
    heads = {"side": "top", "title": {"text": "cell", "standoff": 4}, "tickangle": 0}
    layout = {
        "template": "none",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "height": TOP + ROW * n + 10,
        "margin": {"l": SIDE, "r": 8, "t": TOP, "b": 10},
        "showlegend": False,
        "dragmode": False,
        "xaxis": axis
        | heads
        | _make_ticks(width, _list_heads(schedule))
        | {"range": [-0.5, width - 0.5]},
        "yaxis": (
            axis
            | _make_ticks(n, [f"rank {rank}" for rank in range(n)])
            | {"range": [n - 0.5, -0.5]}
        ),
    }
    stages = [{"name": str(frame.step), "data": _make_traces(frame)} for frame in frames]
    drawn: str = Figure(data=stages[0]["data"], layout=layout, frames=stages).to_html(
        full_html=False,
        include_plotlyjs=True,
        include_mathjax=False,
        div_id="drawing",
        auto_play=False,
        default_width="100%",
        config={"displayModeBar": False, "responsive": True},
    )
    return drawn


def _make_ticks(count: int, labels: list[str]) -> dict[str, Any]:
    return {"tickvals": list(range(count)), "ticktext": labels}


def _list_heads(schedule: Schedule) -> list[str]:
    sent = (
        len(schedule.input_cells(0)) if schedule.row.in_place is None and schedule.has_data else 0
    )
    return [
        f"{'in' if i < sent else 'out'}<br>{i}" if sent else str(i) for i in range(schedule.width)
    ]


def _make_traces(frame: Frame) -> list[dict[str, Any]]:
    """The cells, then the arrows of copies and of additions: always three, so that a frame replaces
    one by one."""
    cells = {
        "type": "heatmap",
        "zmin": 0,
        "zmax": 1,
        "colorscale": COLOURS,
        "showscale": False,
        "xgap": 3,
        "ygap": 14,
        "z": [[None if cell.numbers is None else cell.share for cell in row] for row in frame.rows],
        "text": [
            [f"<b>{cell.text}</b>" if cell.share == 1 else cell.text for cell in row]
            for row in frame.rows
        ],
        "customdata": [[f"{cell.share:.0%}" for cell in row] for row in frame.rows],
        "texttemplate": "%{text}",
        "textfont": {"size": 14},
        "hovertemplate": "%{y}, cell %{x}: %{text}<br>%{customdata} arrived<extra></extra>",
    }
    moves = list(frame.moves or ())
    return [
        cells,
        *(
            _draw_arrows([move for move in moves if move.reduce == added], added)
            for added in (False, True)
        ),
    ]


def _draw_arrows(moves: Sequence[Move], added: bool) -> dict[str, Any]:
    """Lines from cell to cell; those that would cover each other in a column of cells run side by
    side."""
    x: list[float | None] = []
    y: list[float | None] = []
    columns: dict[tuple[int, int], list[Arrow]] = {}
    for move in moves:
        columns.setdefault((move.chunk, move.into), []).append(Arrow(move.src, move.dst, ""))
    for (chunk, into), together in columns.items():
        within = [[arrow] for arrow in together if arrow.src == arrow.dst]
        for number, lane in enumerate([*pack_lanes(together), *within]):
            aside = 0.38 - 0.11 * (number % 7)
            for src, dst, _ in lane:
                way = (dst > src) - (dst < src)
                x += [chunk + aside, into + aside, None]
                y += [src + 0.2 * way, dst - 0.3 * way, None]
    colour = ADDED if added else COPIED
    heads = {
        "symbol": "arrow",
        "angleref": "previous",
        "color": colour,
        "opacity": 1,
        "line": {"width": 0},
        "size": [12 if i % 3 == 1 else 0 for i in range(len(x))],
    }
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "hoverinfo": "skip",
        "x": x,
        "y": y,
        "marker": heads,
        "line": {"color": colour, "width": 2},
    }


SPELLED_OUT = 8  # messages of a step in sentences; more are a list


def _describe_frame(frame: Frame, last: int) -> str:
    """A sentence on what a step does, for those who do not see the arrows."""
    note = f" Now {frame.note()}." if frame.note() else ""
    if not frame.step:
        return f"Before the first step: press Play, or move the slider step by step.{note}"
    arrows = list(frame.arrows())
    if len(arrows) > SPELLED_OUT:
        moves = "; ".join(f"{arrow.src} to {arrow.dst}: {arrow.label}" for arrow in arrows)
    else:
        moves = "; ".join(map(_describe_arrow, arrows))
    return f"Step {frame.step} of {last}: {moves}.{note}"


def _describe_arrow(arrow: Arrow) -> str:
    cells, _, into = arrow.label.removeprefix("+").partition(">")
    added = arrow.label.startswith("+")
    if arrow.src == arrow.dst:
        done = f"rank {arrow.src} copies cell {cells}"
        return f"{done} into cell {into}" if into else done
    target = f" as cell {into}" if into else ""
    return f"rank {arrow.src} sends cell {cells} to rank {arrow.dst}{target}" + (
        ", which adds it" if added else ""
    )
