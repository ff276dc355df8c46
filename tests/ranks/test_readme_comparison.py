"""README's comparison of two runs, as it stands there but smaller: its exit code is what it
decided, whatever this machine is like."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import collbench
from collbench.core.errors import Exit

README = Path(collbench.__file__).parents[1] / "README.md"
SMALLER = {"-b": "16K", "-e": "64K", "--launches": "6", "--max-time": "0.05s"}


def compared() -> list[list[str]]:
    """The words after ``collbench`` of each command of README's block that compares two runs."""
    blocks = re.findall(r"^```\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if "collbench compare yesterday today" in block]
    lines = block.replace("\\\n", " ").splitlines()
    found = re.findall(r"^(?:\$ )?collbench (.*)$", "\n".join(lines), re.MULTILINE)
    return [shlex.split(words, comments=True) for words in found]


def smaller(words: list[str]) -> list[str]:
    """The same with fewer sizes and launches."""
    options = [word for word in SMALLER if word in words]
    rest = [*words, "--max-time", SMALLER["--max-time"]]
    for option in options:
        rest[rest.index(option) + 1] = SMALLER[option]
    return rest


@pytest.mark.slow
def test_readmes_comparison_exits_with_what_it_decided(cli) -> None:
    words, comparison = compared()
    for tag in comparison[1:3]:
        done = cli(*smaller(words), "--tag", tag, timeout=200)
        assert done.returncode == Exit.OK, done.stderr
    done = cli(*comparison, "--format", "json")
    found = json.loads(done.stdout)
    assert done.returncode == found["exit"]
    assert done.returncode in (Exit.OK, Exit.BAD, Exit.NO_VERDICT)
    none_decided = not any(row["decided"] for row in found["rows"])
    assert (done.returncode == Exit.NO_VERDICT) == none_decided
