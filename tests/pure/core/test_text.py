"""Words for a terminal: nothing steers it, whoever wrote them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import collbench
from collbench.core import text

ROOT = Path(collbench.__file__).parent
STRIPPED = ("plain", "printable", "command")  # commands of GitHub are escaped where they are made


def test_what_is_told_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text.print_message("a\x1b]0;pwned\x07\x1b[2J\u202eb\nc", "d\x9be\u2066")
    said = capsys.readouterr().err
    assert said == "collbench: a ]0;pwned  [2J b c\n  hint: d e\n"


def test_nobody_else_prints_words_to_standard_error() -> None:
    found = []
    for path in ROOT.rglob("*.py"):
        if path.parent.name == "files":  # recipes, programs of their own
            continue
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "sys.stderr" in source else ():
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"):
                continue
            to = [ast.unparse(keyword.value) for keyword in node.keywords]
            words = ast.unparse(node.args[0]) if node.args else ""
            if "sys.stderr" in to and not any(name in words for name in STRIPPED):
                found.append(f"{path}:{node.lineno}")
    assert sorted(set(found)) == []
