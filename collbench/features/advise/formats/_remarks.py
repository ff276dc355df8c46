"""Comments of files whose readers take short lines only."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from collbench.core.text import plain_line
from collbench.features.advise.formats._rows import describe_advised
from collbench.features.advise.types import Advised

WIDTH = 96  # readers take lines of up to 255 bytes


def describe_file(advised: Advised, title: str) -> list[str]:
    """What the file is from, and what else is to know of the advice."""
    return [*describe_advised(advised, title), *advised.notes]


def comment(sentences: Iterable[str], sign: str = "#") -> list[str]:
    """Lines of comments, each short and in ASCII, whatever the sentences hold."""
    texts = (plain_line(text).encode("ascii", "replace").decode() for text in sentences)
    wrapped = (line for text in texts for line in textwrap.wrap(text, WIDTH - len(sign) - 1))
    return [f"{sign} {line}" for line in wrapped]
