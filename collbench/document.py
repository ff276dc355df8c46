"""What a report consists of before it is a page or a text: sections of words, figures and tables."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FILTERS = ("collective", "backend", "dtype", "ranks")  # what a reader can narrow a page down to

Weight = Literal["", "good", "bad", "notice"]
Meta = dict[str, str]  # a value for each of FILTERS that something is about; a missing one: about all of them


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A plotly figure as plain JSON. Each trace of ``data`` carries its Meta under the key ``meta``.

    ``words`` say what is to be seen, for those who cannot see it. Colours that depend on light or dark (paper, grid,
    font) are the page's to set; ``height`` in pixels.
    """

    name: str
    title: str
    words: str
    data: list[dict[str, Any]]
    layout: dict[str, Any] = {}
    height: int = 420


class Line(msgspec.Struct, frozen=True):
    """A table's line: what each cell shows, plain text. On a page it is led to by ``name``, and its first cell leads to
    the section or line called ``to``."""

    cells: tuple[str, ...]
    meta: Meta = {}
    weight: Weight = ""
    name: str = ""
    to: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """``align`` says l or r of each column: text is aligned left, figures right, as are all beyond its end."""

    name: str
    title: str
    heads: tuple[str, ...]
    lines: list[Line]
    align: str = "l"
    note: str = ""
    folded: bool = False

    @property
    def left(self) -> list[bool]:
        """Of each column, whether it is aligned left."""
        return [side == "l" for side in self.align.ljust(len(self.heads), "r")]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One heading of a report. Without figures and tables, ``words`` say why there is nothing to show."""

    name: str
    title: str
    words: list[str]
    figures: list[Figure] = []
    tables: list[Table] = []


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A whole report. ``verdict`` is one sentence, ``weight`` its colour; ``runs`` are lines that name what it is of.

    ``data`` is what can be downloaded from the page: rows of records.frame as plain values.
    """

    title: str
    verdict: str
    weight: Weight
    runs: list[str]
    sections: list[Section]
    data: list[dict[str, Any]] = []
