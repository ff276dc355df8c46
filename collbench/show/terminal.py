"""A Document on a terminal: the one place that makes rich's tables, colours and widths."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from collbench.core.text import plain_line
from collbench.show.document import (
    Block,
    Cell,
    CodeBlock,
    Document,
    Heading,
    Line,
    Points,
    Span,
    Table,
    Tone,
    Words,
    make_columns,
    mark_installs,
    tone_text,
)

STYLES: dict[Tone, str] = {
    "good": "green",
    "bad": "bold red",
    "notice": "yellow",
    "quiet": "dim",
    "accent": "cyan",
    "": "",
}

WIDE = 120  # columns of a document that goes to no terminal, and the most on one

PROSE = 100  # columns that prose is read in

GAP = 2  # between columns

LEAST = 20  # columns that a stacked table's first and last need at least beside the others

LAST = 12  # columns that the last needs at least where others can be given up


def render_text(document: Document, columns: int = 0) -> str:
    """A document's short form for standard output, coloured if that is a terminal, in so many
    columns (0: as many as ``width`` says)."""
    view = Console(highlight=False)
    view.width = columns or text_width()
    with view.capture() as captured:
        for block in document.brief:
            view.print(render_block(block, view.width), crop=not _has_code(block))
    return captured.get()


def text_width() -> int:
    """Columns that ``text`` fills: a terminal's, or those in COLUMNS, but never more than WIDE."""
    view = Console()
    return min(WIDE, view.width) if view.is_terminal or "COLUMNS" in os.environ else WIDE


def screen_width() -> int:
    """Columns of the terminal, all of them."""
    return Console().width


def print_page(text: str) -> None:
    """Prints Markdown: as it is to a pipe or a file, laid out on a terminal, a screen at a time."""
    console = Console()
    if not console.is_terminal:
        sys.stdout.write(text)
        return
    os.environ.setdefault("LESS", "FRX")  # as git has it: colours, and a short page is only shown
    console.width = min(console.width, PROSE)
    with console.pager(styles=console.color_system is not None):
        console.print(_lay_out_page(narrow_comments(text, console.width - 2)), crop=False)


def _lay_out_page(text: str) -> RenderableType:
    """Markdown for a terminal, in which no line of code is broken."""
    from rich.markdown import CodeBlock as Fence
    from rich.markdown import Markdown

    class WholeLines(Fence):
        """Code as it is; rich's own breaks it at the terminal's width."""

        def __rich_console__(self, *_: Any) -> Iterator[Text]:
            code = str(self.text).rstrip()
            yield Text(code, "markdown.code_block", no_wrap=True, overflow="ignore")

    class Page(Markdown):
        elements: ClassVar = {
            **Markdown.elements,
            "fence": WholeLines,
            "code_block": WholeLines,
        }

    return Page(text)


def narrow_comments(text: str, width: int) -> str:
    """Markdown in whose code a comment stands above its line where ``width`` is not enough for
    both."""
    lines, code = [], False
    for line in text.splitlines():
        code ^= line.startswith("```")
        source_code, mark, comment = line.partition("  # ")
        above = code and mark and len(line) > width
        lines += [f"# {comment}", source_code.rstrip()] if above else [line]
    return "\n".join(lines) + "\n"


def print_blocks(*things: Block | RenderableType) -> None:
    """Prints to standard output, as wide as the terminal; to a pipe without colour, and without
    breaking or cutting anything."""
    console = Console(highlight=False)
    screen, piped = console.width, not console.is_terminal
    for thing in things:
        console.width = (
            max(screen, _least_width(thing, piped)) if isinstance(thing, Table) else screen
        )
        if piped and isinstance(thing, Words):
            rendered: RenderableType = render_inline(thing)
        else:
            rendered = render_block(thing, console.width)
        soft_wrap = isinstance(rendered, Text) and piped
        console.print(rendered, soft_wrap=soft_wrap, crop=not _has_code(thing))


def _least_width(table: Table, piped: bool) -> int:
    """Columns without which something would be cut that must not be: all of it in a pipe."""
    is_whole = [piped or column.never_cut for column in table.columns]
    needed = [
        room if is_kept else 1
        for room, is_kept in zip(_column_widths(table), is_whole, strict=True)
    ]
    return sum(needed) + GAP * (len(needed) - 1) if any(is_whole) else 0


def render_block(block: Block | RenderableType, width: int) -> RenderableType:
    """A block of a document as rich prints it in ``width`` columns."""
    if isinstance(block, Table):
        above = [Text(plain_line(block.title), "bold")] if block.title else []
        below = [Text(_strip_controls(block.note, "\n"), "dim")] if block.note else []
        parts = _split_table(block, width) if block.overflow == "split" else [block]
        return Group(*above, *(make_grid(part, width) for part in parts), *below)
    if isinstance(block, Heading):
        return Text(plain_line(block.text), "bold")
    if isinstance(block, Points):
        return Text("\n".join(f"- {plain_line(line)}" for line in block.lines))
    if isinstance(block, CodeBlock):
        code = _strip_controls(block.text, "\n")
        return Group(Text(code, no_wrap=True, overflow="ignore"))
    if isinstance(block, Words) and block.has_code:
        return Group(*break_line(block, width))
    return render_inline(block) if isinstance(block, str | Words) else block


def _has_code(block: Block | RenderableType) -> bool:
    """Whether a block's lines may be longer than the terminal is wide."""
    return isinstance(block, CodeBlock) or (isinstance(block, Words) and block.has_code)


def break_line(line: Words, width: int, indent: str = "") -> list[Text]:
    """A line as lines of at most ``width`` columns, broken between words, the later ones behind
    ``indent``. Code is not broken, nor is a word: where one of them is longer, so is its line."""
    text = render_inline(line)
    joined = "".join(
        re.sub(r"\s", "_", span.text) if span.code else span.text for span in line.spans
    )
    words = list(re.finditer(r"\S+", joined))
    cuts, begin, room = [], 0, width
    for word in words[1:]:
        if cell_len(text.plain[begin : word.end()]) > room:
            begin, room = word.start(), width - cell_len(indent)
            cuts.append(begin)
    lines = list(text.divide(cuts))
    for index, part in enumerate(lines):
        part.rstrip()
        part.no_wrap, part.overflow = True, "ignore"
        lines[index] = Text(indent, no_wrap=True, overflow="ignore") + part if index else part
    return lines


def make_listing(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], single: bool = False
) -> Table:
    """A table of words, broken over lines where a terminal is narrow; of a ``single`` line each the
    last column is cut."""
    lines = [Line(tuple(map(plain_line, row)), single=single) for row in rows]
    align = ("l" * (len(head) - 1) + "c") if single else "w" * len(head)
    return Table(title=title, columns=make_columns(head, align), lines=lines)


def print_finding(what: str, state: str, detail: str) -> None:
    """Prints a line of the doctor's: ``state`` is yes, no or note, on a terminal a mark. What
    ``detail`` says to install can be copied."""
    tones: dict[str, Tone] = {"yes": "good", "no": "bad"}
    mark = MARKS[state] if _shows_marks() else state
    print_blocks(
        tone_text(f"{plain_line(what):<20}")
        + tone_text(f"{mark:<6}", tones.get(state, "quiet"))
        + mark_installs(plain_line(detail))
    )


MARKS = {"yes": "✓", "no": "✗", "note": "·"}


def _shows_marks() -> bool:
    """Whether standard output is a terminal that can show the marks."""
    if not Console().is_terminal:
        return False
    try:
        "".join(MARKS.values()).encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def make_grid(table: Table, width: int) -> Grid:
    """The one place that makes a rich table, of at most ``width`` columns where that can be."""
    if table.overflow == "stack":
        table = _stack_table(table, width)
    every = table.heads
    notes = []
    if table.brief and _natural_width(table) > width:
        table = _shorten_table(table)
        notes += [f"flags: {table.key}"] * bool(table.key)
    if any(column.priority for column in table.columns):
        table = _fit_table(table, width)
    gone = [" ".join(head.split()) for head in every if head not in table.heads]
    notes += [f"hidden at {width} columns: {', '.join(gone)}"] * bool(gone)
    view = Grid(
        caption=Text(_strip_controls("\n".join(notes), "\n"), "dim") if notes else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        border_style="dim",
    )
    for column in table.columns:
        view.add_column(
            Text(_strip_controls(column.head, "\n"), "bold"),
            justify="left" if column.is_left else "right",
            style=STYLES["quiet"] if column.dim else "",
            width=column.width or None,
            overflow="fold" if column.align == "wrap" else "ellipsis",
            no_wrap=column.align in ("left", "right"),
        )
    for index, line in enumerate((*table.lines, *table.closing)):
        if line.ruled or (table.lines and index == len(table.lines)):
            view.add_section()
        cells = [render_inline(cell, line.single, allowed="\n") for cell in line.cells]
        view.add_row(*cells, style=STYLES[line.weight])

    return view


def _natural_width(table: Table) -> int:
    """Columns that a table needs to show all of its own, without those that may be dropped."""
    widths = [
        room
        for column, room in zip(table.columns, _column_widths(table), strict=True)
        if not column.priority
    ]
    return sum(widths) + GAP * (len(widths) - 1)


def _shorten_table(table: Table) -> Table:
    """A table with the brief cells in its last column, but for a line that has none."""
    lines = [
        msgspec.structs.replace(line, cells=(*line.cells[:-1], brief or line.cells[-1]))
        for line, brief in zip(table.lines, table.brief, strict=True)
    ]
    return msgspec.structs.replace(table, lines=lines)


def _split_table(table: Table, width: int) -> list[Table]:
    """Tables of as many columns as fit beside the first one, at least one each."""
    widths = _column_widths(table)
    blocks: list[list[int]] = [[]]
    for column in range(1, len(widths)):
        total = widths[0] + sum(GAP + widths[other] for other in [*blocks[-1], column])
        if blocks[-1] and total > width:
            blocks.append([])
        blocks[-1].append(column)
    return [table.select_columns([0, *block]) for block in blocks]


def _column_widths(table: Table, closing: bool = True) -> list[int]:
    """Columns that each column's cells need; without those of ``closing`` lines in the first, which
    needs LEAST."""
    rows = [table.heads, *(line.cells for line in table.lines)]
    rows += [line.cells if closing else ("", *line.cells[1:]) for line in table.closing]
    widths = [
        max(cell_len(part) for cell in column for part in str(cell).split("\n"))
        for column in zip(*rows, strict=True)
    ]
    return widths if closing else [max(widths[0], LEAST), *widths[1:]]


def _stack_table(table: Table, width: int) -> Table:
    """A table whose last column stands below the first, and whose figures take two lines, unless
    all fit side by side, the last broken over lines."""
    widths = _column_widths(table, closing=False)
    if sum(widths[:-1]) + GAP * len(widths[:-1]) + LEAST <= width:
        first = table.columns[0]._replace(width=widths[0])
        return msgspec.structs.replace(table, columns=[first, *table.columns[1:]])

    def stack(line: Line) -> Line:
        first, *others, last = line.cells
        below = tone_text(f"\n{last}", "quiet") if str(last) else ""
        middle = [
            re.sub(r" (?=[±\[])", "\n", cell) if isinstance(cell, str) else cell for cell in others
        ]
        return msgspec.structs.replace(line, cells=(tone_text(str(first)) + below, *middle))

    return msgspec.structs.replace(
        table,
        columns=[
            column._replace(head=column.head.replace(" [", "\n[")) for column in table.columns[:-1]
        ],
        lines=[*map(stack, table.lines)],
        closing=[*map(stack, table.closing)],
    )


def _fit_table(table: Table, width: int) -> Table:
    """A table without the columns that ``width`` has no room for; the last takes what is left, and
    of those that may be broken the widest gives what is still lacking."""
    columns, widths = table.columns, _column_widths(table)
    last = len(widths) - 1
    natural, widths[last] = widths[last], min(widths[last], LAST)
    remaining = list(range(len(widths)))

    def room_left() -> int:
        return width - sum(widths[index] for index in remaining) - GAP * (len(remaining) - 1)

    for index in sorted(remaining, key=lambda index: -columns[index].priority):
        if room_left() < 0 and columns[index].priority:
            remaining.remove(index)
    broken = [i for i in remaining if i != last and columns[i].align in ("wrap", "cut")]
    if room_left() < 0 and broken:
        widest = max(broken, key=lambda index: widths[index])
        least = 1 if any(column.never_cut for column in columns) else min(LAST, widths[widest])
        widths[widest] = max(least, widths[widest] + room_left())
    widths[last] = max(1, min(natural, widths[last] + room_left()))
    fixed = [column._replace(width=room) for column, room in zip(columns, widths, strict=True)]
    return msgspec.structs.replace(table, columns=fixed).select_columns(remaining)


def render_inline(cell: Cell, single: bool = False, allowed: str = "") -> Text:
    """A line or a cell; nothing in it can steer a terminal, and of control characters only those
    ``allowed`` remain. A ``single`` one is cut rather than broken."""
    spans = cell.spans if isinstance(cell, Words) else (Span(cell),)
    rendered = Text(no_wrap=single or None, overflow="ellipsis" if single else None)
    for span in spans:
        style = f"{'bold ' if span.strong else ''}{STYLES[span.tone]}".strip()
        rendered.append(_strip_controls(span.text, allowed), style)
    return rendered


def _strip_controls(text: str, allowed: str) -> str:
    return "".join(c if c.isprintable() or c in allowed else " " for c in text)
