"""Runs on disk: written line by line as cases end, found again by name, read back whole."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from collbench.errors import CannotRun, UsageError
from collbench.records import End, Record, Run, RunFile, World


class Writer:
    """Appends lines to a run's file, each on disk whole or not at all. The file is private (0600) to its owner.

    When the disk is full, lines wait in memory for the next ``write`` to try again, and ``trouble`` says so.
    """

    def __init__(self, path: Path, run: Run) -> None:
        self.path = path
        self.trouble = ""
        self._encoder = msgspec.json.Encoder()
        self._waiting: list[bytes] = []
        self._good = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as e:
            raise CannotRun(
                f"cannot write {path}: {e.strerror}", "choose another place with --output, or --no-save"
            ) from e
        self.write(run)
        if self.trouble:
            raise CannotRun(self.trouble, "free some space, choose another place with --output, or --no-save")

    def write(self, line: Run | World | Record | End) -> None:
        self._waiting.append(self._encoder.encode(line) + b"\n")
        try:
            while self._waiting:
                self._append(self._waiting[0])
                self._waiting.pop(0)
            self.trouble = ""
        except OSError as e:
            with suppress(OSError):  # what is no regular file (a pipe, /dev/full) cannot be cut back
                os.ftruncate(self._fd, self._good)
            self.trouble = f"cannot write {self.path}: {e.strerror}; {len(self._waiting)} lines wait"

    def _append(self, line: bytes) -> None:
        at = self._good
        while at < self._good + len(line):
            at += os.pwrite(self._fd, line[at - self._good :], at)
        self._good = at

    def close(self) -> None:
        os.close(self._fd)


def home() -> Path:
    """Where runs are kept: $COLLBENCH_HOME, else collbench under the XDG state folder."""
    if os.environ.get("COLLBENCH_HOME"):
        return Path(os.environ["COLLBENCH_HOME"]).expanduser()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "collbench"


def saved() -> list[Path]:
    """All saved runs, oldest first."""
    return sorted((home() / "runs").glob("*.jsonl"))


def find(name: str) -> Path:
    """The file a person means by a path, ``@last``, ``@last~1`` …, a run's id (or its beginning), or a tag."""
    if Path(name).is_file():
        return Path(name)
    runs = saved()
    back = re.fullmatch(r"@last(?:~(\d+))?", name)
    if back:
        position = int(back[1] or 0)
        if position < len(runs):
            return runs[-1 - position]
        raise UsageError(f"{name}: only {len(runs)} runs are saved under {home()}", "collbench runs lists them")
    matching = [p for p in runs if p.stem.startswith(name)] or [p for p in runs if _tag(p) == name]
    if matching:
        return matching[-1]
    raise UsageError(f"no run called '{name}'", "a path, @last, @last~1, an id or a tag; collbench runs lists them")


def read_run(path: Path) -> Run:
    """The first line of a run's file."""
    with path.open("rb") as f:
        line = f.readline()
    try:
        return msgspec.json.decode(line, type=Run)
    except msgspec.DecodeError as e:
        raise UsageError(f"{path}: {e}", "it is no run, or one of another version") from e


def _tag(path: Path) -> str:
    try:
        return read_run(path).tag
    except UsageError:
        return ""  # a file that cannot be read answers to its path and id only


def read(path: Path) -> RunFile:
    """A whole run. A torn last line (a crash while writing) is left out; anything else malformed is a UsageError."""
    worlds: list[World] = []
    records: list[Record] = []
    run: Run | None = None
    end: End | None = None
    for line in _lines(path):
        match line:
            case Run():
                run = line
            case World():
                worlds.append(line)
            case Record():
                records.append(line)
            case End():
                end = line
    if run is None:
        raise UsageError(f"{path} is not a collbench run", "a run's first line describes it; see collbench runs")
    return RunFile(run=run, worlds=worlds, records=records, end=end, path=path)


def _lines(path: Path) -> Iterator[Run | World | Record | End]:
    decoder = msgspec.json.Decoder(Run | World | Record | End)
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as e:
            if number == len(lines):
                return
            raise UsageError(f"{path}, line {number}: {e}", "the file was written by another version, or edited") from e
