"""Documents, which every view makes and every renderer reads: words, tables and figures, and what
programs take.

A view fills a `Document`; it holds no rich, no Markdown and no escaping. Text is plain until a
renderer writes it: `terminal`, `markdown`, `html`, and `programs` (JSON, JUnit, Prometheus,
GitHub).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

MARKER = "<!-- collbench report -->"  # by which a report's file is known to be one


FILTERS = ("collective", "backend", "dtype", "ranks")  # what a reader can narrow a page down to


Weight = Literal["", "good", "bad", "notice"]


Tone = Literal["", "good", "bad", "notice", "quiet", "accent"]


Meta = dict[
    str, str
]  # a value for each of FILTERS that something is about; a missing one: about all of them


class Span(NamedTuple):
    """A piece of a line or cell, in one colour; ``strong`` is bold."""

    text: str
    tone: Tone = ""
    strong: bool = False


class Words(msgspec.Struct, frozen=True):
    """A line or a cell of more than one colour: pieces, joined without a space between them."""

    spans: tuple[Span, ...]

    def __str__(self) -> str:
        return "".join(span.text for span in self.spans)

    def __add__(self, other: str | Words) -> Words:
        return Words(self.spans + (other.spans if isinstance(other, Words) else (Span(other),)))


def tone_text(text: str, tone: Tone = "", strong: bool = False) -> Words:
    """``text`` in one colour; more is added to it with +."""
    return Words((Span(text, tone, strong),))


Cell = str | Words


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A plotly figure as plain JSON. Each trace of ``data`` carries its Meta under the key
    ``meta``.

    ``caption`` say what is to be seen, for those who cannot see it. Colours that depend on light or
    dark (paper, grid, font) are the page's to set; ``height`` in pixels.
    """

    name: str
    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any] = {}
    height: int = 420


class Line(msgspec.Struct, frozen=True):
    """A table's line, in whose cells line breaks are kept. On a page it is led to by ``name``, and
    its first cell leads to the section or line called ``to``.

    ``weight`` marks the first cell on a page and in Markdown, and colours the whole line on a
    terminal, where a rule stands above a ``ruled`` line and a ``single`` one is cut rather than
    broken.
    """

    cells: Sequence[Cell]
    meta: Meta = {}
    weight: Weight = ""
    name: str = ""
    to: str = ""
    ruled: bool = False
    single: bool = False


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Lines below ``heads``, then ``closing`` lines, which sum up and are never left out.

    ``align`` has a letter for each column: l and r are left and right; w and c are left, too, and
    where a terminal is narrow broken over several lines, c only between words, which are cut.
    Columns beyond its end are r. The rest is for
    terminals: ``quiet`` names heads of dim columns, ``widths`` fixes columns (0: as wide as their
    cells), ``dropped`` names heads given up, in this order, where there is too little room, a
    ``stacked`` table that is too wide puts its last column below the first, and a ``split`` one
    goes on below with the columns that do not fit, beside its first again; columns whose heads are
    ``uncut`` are never cut, only broken by the terminal itself.
    ``brief`` are the last column's cells where there is no room for the words in ``lines``, and
    ``key`` says what they stand for.
    ``elsewhere`` says where all lines are, for a comment in which not all of them fit. On a page
    lines of a ``tiled`` table stand beside each other, and those of a ``carded`` one are cards
    where the screen is narrow.
    """

    heads: tuple[str, ...]
    lines: Sequence[Line]
    name: str = ""
    title: str = ""
    align: str = "l"
    note: str = ""
    folded: bool = False
    closing: Sequence[Line] = ()
    quiet: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    dropped: tuple[str, ...] = ()
    stacked: bool = False
    split: bool = False
    uncut: tuple[str, ...] = ()
    elsewhere: str = ""
    tiled: bool = False
    carded: bool = False
    brief: Sequence[Cell] = ()
    key: str = ""

    @property
    def sides(self) -> str:
        """The side on which each column is aligned, a letter each; right where none is given."""
        return self.align.ljust(len(self.heads), "r")

    @property
    def left_aligned(self) -> list[bool]:
        """Whether each column is aligned on the left."""
        return [side != "r" for side in self.sides]


class Heading(msgspec.Struct, frozen=True):
    """A heading inside a short form; level 1 is the largest."""

    text: str
    level: int = 3


class Points(msgspec.Struct, frozen=True):
    """A list of short lines, a point each."""

    lines: Sequence[str]


Block = Cell | Table | Heading | Points


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One heading of a report. Without figures and tables, ``sentences`` say why there is nothing
    to show; ``closing`` explains below what figures and tables mean. A ``folded`` section is closed
    at first. With ``side_by_side``, figures stand to the right of tables where there is room."""

    name: str
    title: str
    sentences: list[str]
    figures: list[Figure] = []
    tables: list[Table] = []
    closing: list[str] = []
    folded: bool = False
    side_by_side: bool = False


class JunitCase(msgspec.Struct, frozen=True, kw_only=True):
    """A test case of JUnit's XML. ``kind`` is the type of a failure or error, ``text`` its body.

    Warned is a case to look at that fails nothing: JUnit has it as skipped, GitHub as a warning.
    GitHub shows the cases that failed, broke or warn by their ``label``.
    """

    group: str
    name: str
    outcome: Literal["passed", "failed", "error", "warned", "skipped"]
    message: str
    kind: str = ""
    text: str = ""
    label: str = ""
    seconds: float = 0.0


class Gauge(msgspec.Struct, frozen=True):
    """A metric for Prometheus: its values, each with its labels. Without values it is left out."""

    name: str
    about: str
    values: Sequence[tuple[dict[str, str], float]]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What a command has to say, for every medium. ``verdict`` is one sentence, ``weight`` its
    colour.

    A page shows ``runs`` (lines that name what it is about) and ``sections``; ``data`` is what
    can be downloaded from it: plain values by words.COLUMNS. A terminal shows
    ``brief``. Markdown shows ``comment`` where there is one, below the hidden line ``marker``,
    else the page. ``line`` is for a chat or a plugin, ``values`` for JSON, ``rows`` for CSV
    (heads from the first of them), ``cases`` of ``suite`` for JUnit and GitHub, ``gauges`` for
    Prometheus.
    """

    title: str
    verdict: str = ""
    weight: Weight = ""
    runs: list[str] = []
    sections: list[Section] = []
    data: list[dict[str, Any]] = []
    brief: Sequence[Block] = ()
    comment: Sequence[Block] = ()
    marker: str = ""
    line: str = ""
    values: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    suite: str = ""
    cases: list[JunitCase] = []
    gauges: list[Gauge] = []
