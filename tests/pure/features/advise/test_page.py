"""`collbench help advise` has all that there is."""

from __future__ import annotations

import re

from collbench.cli.help import list_pages
from collbench.features.advise import formats

PAGE = list_pages()["advise"].read_text(encoding="utf-8")


def test_every_format_is_explained() -> None:
    table = PAGE.partition("## Formats")[2].partition("## ")[0]
    told = {
        word
        for cell in re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE)
        for word in re.findall(r"`(\w+)`", cell)
    }
    assert told == {*formats.load_formats()}


def test_both_commands_are_named() -> None:
    assert "`collbench advise --help`" in PAGE and "`collbench tune --help`" in PAGE
