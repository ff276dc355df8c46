"""Files and names of a fleet: which runs there are, which nodes were to give one, and the rack of
each."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from collbench.core import files
from collbench.core.errors import CannotRun, NoVerdict, UsageError
from collbench.core.text import format_count, plain_line

MOST_NODES = 100_000  # of a file of names

MOST_BYTES = 16 << 20  # the same

NO_RACK = "no rack"  # of nodes that neither pattern nor file gives one

SAVE = "give the folder to which nodes save their runs, as by collbench run --output FOLDER"


class Racks(NamedTuple):
    """How a node's rack is found: a pattern with one group, or names; nothing where all nodes stand
    in one block."""

    pattern: re.Pattern[str] | None = None
    by_node: Mapping[str, str] = {}

    def find_rack(self, host: str) -> str:
        """The rack of a node; empty where no racks are known at all."""
        if self.by_node:
            return self.by_node.get(host) or self.by_node.get(host.partition(".")[0]) or NO_RACK
        if self.pattern is None:
            return ""
        match = self.pattern.search(host)
        return (match[1] or NO_RACK) if match else NO_RACK


def list_runs(names: Sequence[str]) -> list[Path]:
    """The files of runs that are meant: of a folder all with the ending .jsonl, of a pattern with
    ``*`` those that match, else what any command takes for a run; each once. Raises NoVerdict where
    a folder has none, and UsageError where there is no such folder, file or run."""
    from collbench.records import store

    paths: list[Path] = []
    for name in names:
        if os.path.isdir(name):  # noqa: PTH112 - Path's raises for a name that is too long
            found = sorted(Path(name).glob("*.jsonl"))
            if not found:
                raise NoVerdict(f"nothing was read: {name} has no run (*.jsonl)", SAVE)
            paths += found
        elif not os.path.exists(name) and glob.has_magic(name):  # noqa: PTH110
            matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - of any folder
            if not matches and os.path.isdir(os.path.dirname(name) or "."):  # noqa: PTH112, PTH120
                raise NoVerdict(f"nothing was read: no file matches {name}", SAVE)
            if not matches:
                raise UsageError(f"no file matches {name}", SAVE)
            paths += [Path(match) for match in matches if os.path.isfile(match)]  # noqa: PTH113
        else:
            try:
                paths.append(store.find_run(name))
            except (UsageError, CannotRun) as e:
                if name.startswith("@") or "~" in name:
                    raise
                raise UsageError(f"{name}: no such folder, file or readable run", SAVE) from e
    return list(dict.fromkeys(paths))


def parse_racks(pattern: str, file: Path | None) -> Racks:
    """How racks are found, as --rack and --racks say. Raises UsageError and CannotRun."""
    if pattern and file:
        raise UsageError("--rack and --racks exclude each other", "give one of them")
    if file:
        return Racks(by_node=read_racks(file))
    if not pattern:
        return Racks()
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError) as e:
        raise UsageError(f"--rack {pattern}: {e}", "as in --rack '^(r[0-9]+)'") from e
    if compiled.groups != 1:
        raise UsageError(
            f"--rack {pattern} has {format_count(compiled.groups, 'group')}, not 1",
            "put what names the rack in parentheses, as in --rack '^(r[0-9]+)'",
        )
    return Racks(pattern=compiled)


def read_racks(path: Path) -> dict[str, str]:
    """Racks by node: a node and its rack a line, with a space, comma or = between them. Raises
    UsageError and CannotRun."""
    racks: dict[str, str] = {}
    for number, words in _read_lines(path, "--racks"):
        if len(words) != 2:
            raise UsageError(
                f"--racks {path}, line {number}: {plain_line(' '.join(words))[:60]}",
                "write a node and its rack on each line: node017 r02",
            )
        if racks.setdefault(words[0], words[1]) != words[1]:
            raise UsageError(
                f"--racks {path}, line {number}: {words[0]} is in two racks",
                "name each node once",
            )
    return racks


def read_nodes(path: Path) -> list[str]:
    """The nodes that were to give a run, one a line, each once. Raises UsageError and CannotRun."""
    names: dict[str, None] = {}
    for number, words in _read_lines(path, "--nodes"):
        if len(words) != 1:
            raise UsageError(
                f"--nodes {path}, line {number}: {plain_line(' '.join(words))[:60]}",
                "write one node on each line",
            )
        names[words[0]] = None
    return list(names)


def _read_lines(path: Path, option: str) -> Iterable[tuple[int, list[str]]]:
    """The words of each line that has any, with its number; what follows # is left out."""
    try:
        text = files.read_bytes(path, MOST_BYTES).decode("utf-8-sig")
    except OSError as e:
        raise CannotRun(f"{option}: cannot read {path}: {e.strerror}", "give a text file") from e
    except ValueError as e:
        raise UsageError(f"{option} {path}: {e}", "give a text file of names") from e
    lines = [
        (number, words)
        for number, line in enumerate(text.splitlines(), 1)
        if (words := re.split(r"[\s,=]+", line.partition("#")[0].strip(" \t,="))) != [""]
    ]
    if not lines:
        raise UsageError(f"{option} {path} names no node", "write one node on each line")
    if len(lines) > MOST_NODES:
        raise UsageError(
            f"{option} {path} has {len(lines):,} lines", f"at most {MOST_NODES:,} nodes are taken"
        )
    return lines
