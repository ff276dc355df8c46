"""An algorithm as one page that needs no network: every rank's cells, the arrows of a step, and a slider over steps."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from collbench import __version__
from collbench.schedule import Move, Schedule
from collbench.spacetime import Arrow, Frame, in_words, lanes, outcome, side_effects

COLOURS = ((0.0, "#d3dae3"), (0.99, "#7fb2e5"), (1.0, "#5fbf8b"))  # nothing of it, nearly all, whole
ADDED, COPIED = "#d9480f", "#7a3fc4"  # both legible on white and on near-black
ROW, TOP, SIDE, LETTER = 56, 56, 62, 8  # pixels: a rank's height, room above and beside, a character's width
READING = "In words, 0 to 1: +2 says that rank 0 sends cell 2 to rank 1, which adds it; 2>6: cell 2 goes into cell 6."


def page(schedule: Schedule, frames: Sequence[Frame]) -> str:
    """The page's text. Colour is the share of the contributions promised at a cell that have arrived there."""
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]

    n, width = schedule.n, schedule.width
    longest = max(len(cell.text) for frame in frames for row in frame.rows for cell in row)
    axis = {"showgrid": False, "zeroline": False, "fixedrange": True, "showline": False, "ticks": ""}
    heads = {"side": "top", "title": {"text": "cell", "standoff": 4}, "tickangle": 0}
    layout = {
        "template": "none", "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "height": TOP + ROW * n + 10, "margin": {"l": SIDE, "r": 8, "t": TOP, "b": 10}, "showlegend": False,
        "dragmode": False,
        "xaxis": axis | heads | _ticks(width, _heads(schedule)) | {"range": [-0.5, width - 0.5]},
        "yaxis": axis | _ticks(n, [f"rank {rank}" for rank in range(n)]) | {"range": [n - 0.5, -0.5]},
    }  # fmt: skip
    stages = [{"name": str(frame.step), "data": _traces(frame)} for frame in frames]
    drawing = Figure(data=stages[0]["data"], layout=layout, frames=stages).to_html(
        full_html=False, include_plotlyjs=True, include_mathjax=False, div_id="drawing", auto_play=False,
        default_width="100%", config={"displayModeBar": False, "responsive": True},
    )  # fmt: skip
    title = html.escape(f"{schedule.collective} {schedule.name}, {n} ranks")
    notes = [READING, *side_effects(schedule), f"At the end {in_words(outcome(schedule, frames[-1]), n)}."]
    words = json.dumps([_words(frame, len(frames) - 1) for frame in frames]).replace("<", "\\u003c")
    return PAGE.format(
        title=title, meaning=html.escape(schedule.row.meaning), drawing=drawing, words=words, last=len(frames) - 1,
        least=SIDE + 8 + (LETTER * longest + 14) * width, style=STYLE, script=SCRIPT, version=__version__,
        added=ADDED, copied=COPIED,
        notes="".join(f"<li>{html.escape(note)}</li>" for note in notes), colours=", ".join(c for _, c in COLOURS),
    )  # fmt: skip


def _ticks(count: int, words: list[str]) -> dict[str, Any]:
    return {"tickvals": list(range(count)), "ticktext": words}


def _heads(schedule: Schedule) -> list[str]:
    sent = len(schedule.input_cells(0)) if schedule.row.in_place is None and schedule.has_data else 0
    return [f"{'in' if i < sent else 'out'}<br>{i}" if sent else str(i) for i in range(schedule.width)]


def _traces(frame: Frame) -> list[dict[str, Any]]:
    """The cells, then the arrows of copies and of additions: always three, so that a frame replaces one by one."""
    cells = {
        "type": "heatmap", "zmin": 0, "zmax": 1, "colorscale": COLOURS, "showscale": False, "xgap": 3, "ygap": 14,
        "z": [[None if cell.numbers is None else cell.share for cell in row] for row in frame.rows],
        "text": [[f"<b>{cell.text}</b>" if cell.share == 1 else cell.text for cell in row] for row in frame.rows],
        "customdata": [[f"{cell.share:.0%}" for cell in row] for row in frame.rows],
        "texttemplate": "%{text}", "textfont": {"size": 14},
        "hovertemplate": "%{y}, cell %{x}: %{text}<br>%{customdata} arrived<extra></extra>",
    }  # fmt: skip
    moves = list(frame.moves or ())
    return [cells, *(_arrows([move for move in moves if move.reduce == added], added) for added in (False, True))]


def _arrows(moves: Sequence[Move], added: bool) -> dict[str, Any]:
    """Lines from cell to cell; those that would cover each other in a column of cells run side by side."""
    x: list[float | None] = []
    y: list[float | None] = []
    columns: dict[tuple[int, int], list[Arrow]] = {}
    for move in moves:
        columns.setdefault((move.chunk, move.into), []).append(Arrow(move.src, move.dst, ""))
    for (chunk, into), together in columns.items():
        within = [[arrow] for arrow in together if arrow.src == arrow.dst]
        for number, lane in enumerate([*lanes(together), *within]):
            aside = 0.38 - 0.11 * (number % 7)
            for src, dst, _ in lane:
                way = (dst > src) - (dst < src)
                x += [chunk + aside, into + aside, None]
                y += [src + 0.2 * way, dst - 0.3 * way, None]
    colour = ADDED if added else COPIED
    heads = {"symbol": "arrow", "angleref": "previous", "color": colour, "opacity": 1, "line": {"width": 0},
             "size": [12 if i % 3 == 1 else 0 for i in range(len(x))]}  # fmt: skip
    return {"type": "scatter", "mode": "lines+markers", "hoverinfo": "skip", "x": x, "y": y, "marker": heads,
            "line": {"color": colour, "width": 2}}  # fmt: skip


def _words(frame: Frame, last: int) -> str:
    """What a step does, for those who do not see the arrows."""
    moves = [f"{arrow.src} to {arrow.dst}: {arrow.label}" for arrow in frame.arrows()]
    note = f" Now {frame.note()}." if frame.note() else ""
    return (f"Step {frame.step} of {last}. {'; '.join(moves)}." if frame.step else "Before the first step.") + note


STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --soft: #5b6675; --line: #d5dbe3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --paper: #14181e; --soft: #a3adba; --line: #39424e; } }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: 0; overflow-wrap: anywhere; } p { margin: .3rem 0; } .soft { color: var(--soft); }
#controls { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; margin: .8rem 0; }
#controls button { font: inherit; padding: .25rem .8rem; border: 1px solid var(--line); border-radius: .4rem;
  background: transparent; color: inherit; cursor: pointer; }
#slider { flex: 1 1 12rem; min-width: 8rem; accent-color: #2f9e66; }
#scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
#scroll > div { min-width: var(--least); }
#words { min-height: 3em; margin-bottom: .6rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; color: var(--soft); }
.bar { display: inline-block; width: 7rem; height: .8rem; border-radius: .2rem; vertical-align: middle; }
.arrow { font-weight: bold; }
"""

SCRIPT = """
const drawing = document.getElementById("drawing"), slider = document.getElementById("slider");
const play = document.getElementById("play"), words = document.getElementById("words");
let timer = null;
function show() {
  const at = Number(slider.value);
  words.textContent = told[at];
  const now = {mode: "immediate", transition: {duration: 0}, frame: {duration: 0, redraw: true}};
  Plotly.animate(drawing, [String(at)], now);
}
function stop() { clearInterval(timer); timer = null; play.textContent = "Play"; }
function go(by) { slider.value = Number(slider.value) + by; show(); }
play.onclick = () => {
  if (timer) return stop();
  if (slider.value === slider.max) slider.value = 0;
  show();
  play.textContent = "Pause";
  timer = setInterval(() => { go(1); if (slider.value === slider.max) stop(); }, 1200);
};
slider.oninput = () => { stop(); show(); };
document.getElementById("back").onclick = () => { stop(); go(-1); };
document.getElementById("next").onclick = () => { stop(); go(1); };
const dark = matchMedia("(prefers-color-scheme: dark)");
function ink() { Plotly.relayout(drawing, {"font.color": getComputedStyle(document.body).color}); }
dark.onchange = ink;
ink();
show();
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p class="soft">{meaning}</p>
<div id="controls">
<button id="play" type="button">Play</button>
<button id="back" type="button" aria-label="one step back">&lsaquo;</button>
<input id="slider" type="range" min="0" max="{last}" value="0" aria-label="step">
<button id="next" type="button" aria-label="one step on">&rsaquo;</button>
</div>
<p id="words" aria-live="polite"></p>
<div id="scroll" style="--least: {least}px">{drawing}</div>
<p><span class="bar" style="background: linear-gradient(90deg, {colours})"></span>
 how much of what belongs in a cell has arrived; green and bold: all of it.
<span class="arrow" style="color: {copied}">&rarr;</span> copied
<span class="arrow" style="color: {added}">&rarr;</span> added</p>
<ul>{notes}</ul>
<p class="soft">collbench {version}. The page works without a network.</p>
<script>const told = {words};{script}</script>
</body>
</html>
"""
