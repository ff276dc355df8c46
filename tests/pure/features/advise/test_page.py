"""`collbench help advise` has all that there is."""

from __future__ import annotations

import re

import pytest

from collbench.cli.help import list_pages
from collbench.features.advise import formats

PAGE = list_pages()["advise"].read_text(encoding="utf-8")


def test_every_format_is_explained() -> None:
    try:
        keys = {*formats.load_formats()}
    except ModuleNotFoundError as e:
        pytest.skip(f"{e.name} is not there yet")
    table = PAGE.partition("## Formats")[2].partition("## ")[0]
    told = {
        word
        for cell in re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE)
        for word in re.findall(r"`(\w+)`", cell)
    }
    assert told == keys


def test_both_commands_are_named() -> None:
    assert "`collbench advise --help`" in PAGE and "`collbench tune --help`" in PAGE
