"""A Document as Markdown: the one place that escapes for it, and that writes its tables."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterable

from collbench.core.text import escape_markdown, format_count, plain_line, printable_text
from collbench.show.document import (
    MARKER,
    Block,
    Cell,
    CodeBlock,
    Comment,
    Document,
    Heading,
    Line,
    Points,
    Table,
)

MARKS = {"good": "✓", "bad": "✗", "notice": "!"}

COMMENT = 59_000  # bytes; GitHub refuses comments of more than 65,536 characters


def render_markdown(document: Document, most: int = COMMENT) -> str:
    """The short form for a comment where there is one, of at most ``most`` bytes, else the page:
    tables and words, and of figures what they show; what has no page is as on a terminal."""
    comment = document.comment
    if not (comment.blocks or document.sections):
        comment = Comment([Heading(document.title, 1), *document.brief])
    if not comment.blocks:
        return "\n".join(_render_page(document)).rstrip() + "\n"
    marker = [f"<!-- {comment.marker} -->" if comment.marker else MARKER]
    lines = [*marker, *_render_comment(comment, most - _count_bytes(marker))]
    return "\n".join(lines).rstrip() + "\n"


def _render_page(document: Document) -> list[str]:
    verdict = _mark_cell(document.weight, document.verdict)
    lines = [MARKER, f"# {escape_markdown(document.title)}", "", f"**{verdict}**", ""]
    lines += [f"- {escape_markdown(run)}" for run in document.runs]
    for section in document.sections:
        if section.of_data:
            continue
        lines += ["", f"## {escape_markdown(section.title)}", ""]
        lines += [f"{_render_inline(sentence)}\n" for sentence in section.sentences]
        lines += [
            f"*{escape_markdown(figure.title)}.* {escape_markdown(figure.caption)}\n"
            for figure in section.figures
        ]
        for table in section.tables:
            title = f"{table.title} ({format_count(len(table.lines), 'line')})"
            lines += render_table(table, title if table.folded or section.folded else "")
        lines += [f"{escape_markdown(sentence)}\n" for sentence in section.closing]
    return lines


def _render_comment(comment: Comment, most: int) -> list[str]:
    """Blocks with an empty line after each; tables keep as many of their first lines as fit."""
    fixed = [_render_block(block, 0, comment.elsewhere) for block in comment.blocks]
    room = most - sum(_count_bytes(lines) for lines in fixed)
    rendered_blocks: list[str] = []
    for block, lines in zip(comment.blocks, fixed, strict=True):
        if isinstance(block, Table):
            room_lines, used_bytes = _fit_lines(block, room)
            room -= used_bytes
            rendered_blocks += _render_block(block, room_lines, comment.elsewhere)
        else:
            rendered_blocks += lines
    return rendered_blocks


def _fit_lines(table: Table, room: int) -> tuple[int, int]:
    """How many of a table's lines fit into ``room`` bytes, and how many bytes they take."""
    ends = itertools.accumulate(_count_bytes([_render_row(line)]) for line in table.lines)
    fitting = [*itertools.takewhile(lambda end: end <= room, ends)]
    return len(fitting), fitting[-1] if fitting else 0


def _render_block(block: Block, line_count: int, elsewhere: str) -> list[str]:
    """A block of a short form; of a table the first ``line_count`` lines."""
    if isinstance(block, Table):
        return render_table(block, block.title if block.folded else "", line_count, elsewhere)
    if isinstance(block, Heading):
        return [f"{'#' * block.level} {escape_markdown(block.text)}", ""]
    if isinstance(block, CodeBlock):
        return [*_fence_code(block.text), ""]
    if isinstance(block, Points):
        return [*(f"- {escape_markdown(line)}" for line in block.lines), ""]
    return [_render_inline(block), ""]


def render_table(
    table: Table, folded: str = "", line_count: int | None = None, elsewhere: str = ""
) -> list[str]:
    """A table's lines with its title and note, then an empty one; behind the words ``folded``, if
    any. Where only the first ``line_count`` of its lines are to be shown, it says how many are left
    out, and ``elsewhere``, where they are."""
    title = [f"### {escape_markdown(table.title)}", ""] if table.title else []
    top = [f"<details><summary>{html.escape(folded)}</summary>", ""] if folded else title
    top += [f"| {' | '.join(map(escape_markdown, table.heads))} |"]
    top += [f"|{'|'.join('---' if column.is_left else '--:' for column in table.columns)}|"]
    left_out = 0 if line_count is None else len(table.lines) - line_count
    where = f"; {elsewhere}" if elsewhere else ""
    more = [f"{left_out:,} more of these rows do not fit here{where}."]
    return [
        *top,
        *map(_render_row, table.lines[:line_count]),
        *map(_render_row, table.closing),
        "",
        *([*more, ""] if left_out else []),
        *([f"{escape_markdown(table.note)}\n"] if table.note else []),
        *(["</details>", ""] if folded else []),
    ]


def _render_row(line: Line) -> str:
    first, *others = line.cells
    return f"| {' | '.join([_mark_cell(line.weight, first), *map(_render_inline, others)])} |"


def _mark_cell(weight: str, cell: Cell) -> str:
    return f"{MARKS[weight]} {_render_inline(cell)}" if weight else _render_inline(cell)


def _render_inline(cell: Cell) -> str:
    """A line or a cell, strong pieces in bold, code as it is."""
    if isinstance(cell, str):
        return escape_markdown(cell)
    pieces = []
    for text, _, strong, is_code in cell.spans:
        if is_code and (code := _quote_code(text)):
            pieces.append(code)
            continue
        begin = len(text) - len(text.lstrip())
        end = begin + len(text.strip())
        inside = escape_markdown(text[begin:end])
        pieces += [text[:begin], f"**{inside}**" if strong and inside else inside, text[end:]]
    return "".join(pieces)


def _fence_code(text: str) -> list[str]:
    """Lines of code between two fences, of more backticks than any run of them inside."""
    lines = [printable_text(line) for line in text.splitlines()]
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [fence, *lines, fence]


def _quote_code(text: str) -> str:
    """Code as Markdown shows it literally; empty where that cannot be in a table's cell, too."""
    line = plain_line(text)
    return f"`{line}`" if line and not set("`|") & set(line) else ""


def _count_bytes(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)
