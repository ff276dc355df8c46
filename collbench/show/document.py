"""Documents, which every view makes and every renderer reads: words, tables and figures, and what
programs take.

A view fills a `Document`; it holds no rich, no Markdown and no escaping. Text is plain until a
renderer writes it: `terminal`, `markdown`, `html`, and `programs` (JSON, JUnit, Prometheus,
GitHub).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import msgspec

MARKER = "<!-- collbench report -->"  # by which a report's file is known to be one

FILTERS = ("collective", "backend", "dtype", "ranks")  # what a reader can narrow a page down to

Weight = Literal["", "good", "bad", "notice"]

Tone = Literal["", "good", "bad", "notice", "quiet", "accent"]

Meta = dict[
    str, str
]  # a value for each of FILTERS that something is about; a missing one: about all of them


class Span(NamedTuple):
    """A piece of a line or cell, in one colour; ``strong`` is bold. ``code`` is what people copy: a
    command, an export or a path, which a line of a terminal never breaks."""

    text: str
    tone: Tone = ""
    strong: bool = False
    code: bool = False


class Words(msgspec.Struct, frozen=True):
    """A line or a cell of more than one colour: pieces, joined without a space between them."""

    spans: tuple[Span, ...]

    def __str__(self) -> str:
        return "".join(span.text for span in self.spans)

    def __add__(self, other: str | Words) -> Words:
        return Words(self.spans + (other.spans if isinstance(other, Words) else (Span(other),)))

    def __radd__(self, other: str) -> Words:
        return Words((Span(other), *self.spans))

    @property
    def has_code(self) -> bool:
        """Whether there is a piece in it that people copy."""
        return any(span.code for span in self.spans)


def tone_text(text: str, tone: Tone = "", strong: bool = False) -> Words:
    """``text`` in one colour; more is added to it with +."""
    return Words((Span(text, tone, strong),))


def code_text(text: str, tone: Tone = "") -> Words:
    """A command, an export or a path, which people copy; what stands around it is added with +."""
    return Words((Span(text, tone, code=True),))


def mark_installs(text: str) -> Words:
    """A sentence in which commands that install something are code; such sentences come from other
    processes as text."""
    parts = INSTALL.split(text)
    return Words(tuple(Span(part, code=bool(at % 2)) for at, part in enumerate(parts) if part))


INSTALL = re.compile(r"((?:pip|apt-get) install (?:'[^']+'|[\w./=-]*\w))")

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

    def __post_init__(self) -> None:
        if other := [cell for cell in self.cells if not isinstance(cell, (str, Words))]:
            raise TypeError(f"a cell of a table is text or Words, not {other[0]!r}: format it")


Align = Literal["left", "right", "wrap", "cut"]


class Column(NamedTuple):
    """A column of a table. All but ``head`` and its side are for terminals.

    Columns that ``wrap`` or are ``cut`` stand on the left, too; where a terminal is narrow they are
    broken over several lines: ``cut`` ones only between words, and words that are too long are cut.
    """

    head: str
    align: Align = "right"
    priority: int = 0  # where there is too little room, the largest is given up first; 0: never
    dim: bool = False
    width: int = 0  # fixed, in characters; 0: as wide as its cells
    never_cut: bool = False  # only the terminal itself may break its cells over lines

    @property
    def is_left(self) -> bool:
        """Whether its cells are aligned on the left, as those that wrap or are cut are."""
        return self.align != "right"


def make_columns(heads: Sequence[str], align: str = "l", rest: str = "r") -> tuple[Column, ...]:
    """Columns of a plain table. ``align`` has the first letter of each one's Align, ``rest`` that
    of those beyond its end."""
    by_letter = {name[0]: name for name in get_args(Align)}
    letters = align.ljust(len(heads), rest)
    pairs = zip(heads, letters, strict=True)
    return tuple(Column(head, by_letter[letter]) for head, letter in pairs)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Lines, then ``closing`` lines, which sum up and are never left out.

    ``overflow`` is for a terminal that is too narrow: columns are given up by their priority; or
    the last one is stacked below the first; or the table is split and goes on below with the
    columns that do not fit, beside its first again. ``brief`` are the last column's cells where
    there is no room for the words in ``lines``, and ``key`` says what they stand for. On a page
    lines of a ``tiled`` table stand beside each other, and those of a ``carded`` one are cards
    where the screen is narrow.
    """

    columns: Sequence[Column]
    lines: Sequence[Line]
    name: str = ""
    title: str = ""
    note: str = ""
    folded: bool = False
    closing: Sequence[Line] = ()
    overflow: Literal["drop", "stack", "split"] = "drop"
    tiled: bool = False
    carded: bool = False
    brief: Sequence[Cell] = ()
    key: str = ""

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of its columns, in order."""
        return tuple(column.head for column in self.columns)

    def select_columns(self, indices: Sequence[int]) -> Table:
        """The table with these of its columns alone."""

        def select(lines: Sequence[Line]) -> list[Line]:
            return [
                msgspec.structs.replace(line, cells=tuple(line.cells[index] for index in indices))
                for line in lines
            ]

        return msgspec.structs.replace(
            self,
            columns=[self.columns[index] for index in indices],
            lines=select(self.lines),
            closing=select(self.closing),
        )

    def drop_empty_columns(self) -> Table:
        """The table without the columns in which no line has anything."""
        used = [at for at in range(len(self.columns)) if any(line.cells[at] for line in self.lines)]
        return self.select_columns(used)


class Heading(msgspec.Struct, frozen=True):
    """A heading inside a short form; level 1 is the largest."""

    text: str
    level: int = 3


class Points(msgspec.Struct, frozen=True):
    """A list of short lines, a point each."""

    lines: Sequence[str]


class CodeBlock(msgspec.Struct, frozen=True):
    """Lines that people copy together, as a file's text: shown as they are, and never broken."""

    text: str


Block = Cell | Table | Heading | Points | CodeBlock


class Comment(msgspec.Struct, frozen=True):
    """A short form for a pull request, below the hidden line ``marker``; without one, below that of
    reports. ``elsewhere`` says where all lines of its tables are, for those that do not fit."""

    blocks: Sequence[Block] = ()
    marker: str = ""
    elsewhere: str = ""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One heading of a report. Without figures and tables, ``sentences`` say why there is nothing
    to show; ``closing`` explains below what figures and tables mean. A ``folded`` section is closed
    at first. With ``side_by_side``, figures stand to the right of tables where there is room.
    ``of_data`` is a section on the data that only a page in HTML holds."""

    name: str
    title: str
    sentences: Sequence[Cell]
    figures: list[Figure] = []
    tables: list[Table] = []
    closing: list[str] = []
    folded: bool = False
    side_by_side: bool = False
    of_data: bool = False


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
    """A metric for monitoring: its values, each with its labels. One that is not finite is absent,
    as is a gauge without values. Several gauges of one name are one metric; of values with the same
    labels, the latest counts.

    ``name`` is Prometheus', and ends in the unit: collbench_case_time_seconds.
    """

    name: str
    about: str
    values: Sequence[tuple[dict[str, str], float]]
    seconds: float | None = None  # since 1970, when it held; None: now


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What a command has to say, for every medium. ``verdict`` is one sentence, ``weight`` its
    colour.

    A page shows ``runs`` (lines that name what it is about) and ``sections``; ``data`` is what
    can be downloaded from it: plain values by words.COLUMNS. A terminal shows ``brief`` alone,
    ``()`` where the document is for none. Markdown shows ``comment`` where it has blocks, else the
    page. ``values`` are for JSON, ``rows`` for CSV (heads from the first of them), ``gauges`` for
    Prometheus and OpenTelemetry.
    """

    title: str
    brief: Sequence[Block]
    verdict: str = ""
    weight: Weight = ""
    runs: list[str] = []
    sections: list[Section] = []
    data: list[dict[str, Any]] = []
    comment: Comment = Comment()
    values: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    gauges: list[Gauge] = []


class Judgement(Document, frozen=True, kw_only=True):
    """A document that other programs act on: ``cases`` of ``suite`` for JUnit and GitHub, ``line``
    for a chat or a plugin."""

    suite: str
    cases: list[JunitCase]
    line: str = ""
