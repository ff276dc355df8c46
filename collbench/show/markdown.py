"""A Document as Markdown: the one place that escapes for it, and that writes its tables."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Sequence

from collbench.core.text import counted, escaped
from collbench.show.document import MARKER, Block, Cell, Document, Heading, Line, Points, Table

MARKS = {"good": "✓", "bad": "✗", "notice": "!"}


COMMENT = 59_000  # bytes; GitHub refuses comments of more than 65,536 characters


def text(document: Document, most: int = COMMENT) -> str:
    """The short form for a comment where there is one, of at most ``most`` bytes, else the page:
    tables and words, and of figures what they show; what has no page is as on a terminal."""
    comment = document.comment
    if not (comment or document.sections):
        comment = [Heading(document.title, 1), *document.brief]
    if not comment:
        return "\n".join(_page(document)).rstrip() + "\n"
    marker = [f"<!-- {document.marker} -->"] if document.marker else []
    lines = [*marker, *_comment(comment, most - _bytes(marker))]
    return "\n".join(lines).rstrip() + "\n"


def _page(document: Document) -> list[str]:
    verdict = _marked(document.weight, document.verdict)
    lines = [MARKER, f"# {escaped(document.title)}", "", f"**{verdict}**", ""]
    lines += [f"- {escaped(run)}" for run in document.runs]
    for section in document.sections:
        lines += ["", f"## {escaped(section.title)}", ""]
        lines += [f"{escaped(words)}\n" for words in section.words]
        lines += [
            f"*{escaped(figure.title)}.* {escaped(figure.words)}\n" for figure in section.figures
        ]
        for one in section.tables:
            title = f"{one.title} ({counted(len(one.lines), 'line')})"
            lines += table(one, title if one.folded or section.folded else "")
        lines += [f"{escaped(words)}\n" for words in section.closing]
    return lines


def _comment(blocks: Sequence[Block], most: int) -> list[str]:
    """Blocks with an empty line after each; tables keep as many of their first lines as fit."""
    fixed = [_block(block, 0) for block in blocks]
    room = most - sum(_bytes(lines) for lines in fixed)
    found: list[str] = []
    for block, lines in zip(blocks, fixed, strict=True):
        if isinstance(block, Table):
            kept, taken = _fitting(block, room)
            room -= taken
            found += _block(block, kept)
        else:
            found += lines
    return found


def _fitting(one: Table, room: int) -> tuple[int, int]:
    """How many of a table's lines fit into ``room`` bytes, and how many bytes they take."""
    ends = itertools.accumulate(_bytes([_row(line)]) for line in one.lines)
    fitting = [*itertools.takewhile(lambda end: end <= room, ends)]
    return len(fitting), fitting[-1] if fitting else 0


def _block(block: Block, kept: int) -> list[str]:
    """A block of a short form; of a table the first ``kept`` lines."""
    if isinstance(block, Table):
        return table(block, block.title if block.folded else "", kept)
    if isinstance(block, Heading):
        return [f"{'#' * block.level} {escaped(block.text)}", ""]
    if isinstance(block, Points):
        return [*(f"- {escaped(line)}" for line in block.lines), ""]
    return [_inline(block), ""]


def table(one: Table, folded: str = "", kept: int | None = None) -> list[str]:
    """A table's lines with its title and note, then an empty one; behind the words ``folded``, if
    any. Where only the first ``kept`` of its lines are to be shown, it says how many are left
    out."""
    title = [f"### {escaped(one.title)}", ""] if one.title else []
    top = [f"<details><summary>{html.escape(folded)}</summary>", ""] if folded else title
    top += [f"| {' | '.join(map(escaped, one.heads))} |"]
    top += [f"|{'|'.join('---' if left else '--:' for left in one.left)}|"]
    left_out = 0 if kept is None else len(one.lines) - kept
    more = [f"{left_out:,} more of these rows do not fit here; {one.elsewhere}."]
    return [
        *top,
        *map(_row, one.lines[:kept]),
        *map(_row, one.closing),
        "",
        *([*more, ""] if left_out else []),
        *([f"{escaped(one.note)}\n"] if one.note else []),
        *(["</details>", ""] if folded else []),
    ]


def _row(line: Line) -> str:
    first, *others = line.cells
    return f"| {' | '.join([_marked(line.weight, first), *map(_inline, others)])} |"


def _marked(weight: str, cell: Cell) -> str:
    return f"{MARKS[weight]} {_inline(cell)}" if weight else _inline(cell)


def _inline(cell: Cell) -> str:
    """A line or a cell, strong pieces in bold."""
    if isinstance(cell, str):
        return escaped(cell)
    pieces = []
    for text, _, strong in cell.spans:
        begin = len(text) - len(text.lstrip())
        end = begin + len(text.strip())
        inside = escaped(text[begin:end])
        pieces += [text[:begin], f"**{inside}**" if strong and inside else inside, text[end:]]
    return "".join(pieces)


def _bytes(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)
