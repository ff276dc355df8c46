"""Reports of several scripts in one file: each script writes its own sections anew and leaves the
others' as they are."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from collbench.machine import environment

HEAD = "## "


def write(path: Path, title: str, new: Sequence[Sequence[str]]) -> None:
    """Sections in a file, each in the place of the one with the same first line, or at the end."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in path.read_text().splitlines() if path.exists() else ():
        heading = line if line.startswith(HEAD) else heading
        if heading:
            found.setdefault(heading, []).append(line)
    found |= {section[0]: [*section] for section in new}
    blocks = (f"# {title}", *("\n".join(lines).strip() for lines in found.values()))
    path.write_text("\n\n".join(blocks) + "\n")


def today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def between(days: Iterable[str]) -> str:
    """The day, or the first and the last of these, or "-" where there is none."""
    known = sorted(set(days))
    return " to ".join(dict.fromkeys((known[0], known[-1]))) if known else "-"


def machine(script: str) -> str:
    """The line that says where, with what and when a section was made."""
    here = environment.gather_facts()
    return (
        f"{here['cpu']['model']}, {here['cpu']['cores']} cores, {platform.system()}"
        f" {here['kernel']}, torch {here['libraries'].get('torch')}, {today()}."
        f" Made by `python tests/perf/{script}`."
    )
