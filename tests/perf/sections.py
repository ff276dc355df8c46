"""Reports of several scripts in one file: each script writes its own sections anew and leaves the
others' as they are."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collbench.machine import environment
from collbench.records.types import Run

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


def describe_place(facts: Mapping[str, Any] | None = None) -> str:
    """The machine and its software, of what is known of them: by default of this one."""
    known = environment.gather_facts() if facts is None else facts
    return (
        f"{known['cpu']['model']}, {known['cpu']['cores']} cores, {platform.system()}"
        f" {known['kernel']}, torch {known['libraries'].get('torch')}"
    )


def machine(script: str, runs: Sequence[Run] = ()) -> str:
    """The line that says where, with what and when a section was made: by its runs, which may be
    of earlier days and other machines; without any it is made here and now."""
    places = dict.fromkeys(describe_place(run.environment) for run in runs)
    days = between(run.started[:10] for run in runs) if runs else today()
    return (
        f"{'; '.join(places or [describe_place()])}, {days}. Made by `python tests/perf/{script}`."
    )
