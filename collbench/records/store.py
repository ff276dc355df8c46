"""Where runs are kept: their folder, their ids, and a run found again by name."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from collbench.core import files
from collbench.core.errors import CannotRun, CollbenchError, NoVerdict, UsageError
from collbench.core.text import format_count, print_message, readable_text
from collbench.records.run_file import Writer, describe_running, is_running, read_run
from collbench.records.types import Run

MOST_RUNNING = 32  # so many of the latest runs may be running
MIN_FREE = 16 << 20  # bytes a disk must have before a run is begun on it


def open_writer(run: Run, output: Path | None) -> Writer:
    """A new file for a run: ``output``, or in that folder, or in the usual place. Raises UsageError
    and CannotRun."""
    path = output or files.home_folder() / "runs" / f"{run.id}.jsonl"
    if os.path.isdir(path):  # noqa: PTH112 - Path's raises for a name that is too long
        path = path / f"{run.id}.jsonl"
    elif output:
        files.refuse_no_folder(output, "--output")
        if not os.path.lexists(output) and output.suffix != ".jsonl":
            raise UsageError(
                f"--output {output}: there is no such folder, and a run's file ends in .jsonl",
                f"make the folder, or name the file {output}.jsonl",
            )
    _refuse_full_disk(path)
    return Writer(path, run)


def _refuse_full_disk(path: Path) -> None:
    """Raises CannotRun where the disk that a file is to be on has no room for a run. A device or a
    pipe needs none."""
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113
        return
    folders = Path(os.path.realpath(path)).parents
    folder = next(folder for folder in folders if os.path.isdir(folder))  # noqa: PTH112
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE:
        raise CannotRun(
            f"{folder} has {free >> 20} MiB left",
            f"free {MIN_FREE >> 20} MiB, choose another place with --output, or use --no-save",
        )


def new_id(name: str) -> str:
    """An id for what begins now: ids sort by time, to the millisecond, since ``@last`` is the one
    that sorts last."""
    at = datetime.now(UTC)
    return f"{at:%Y%m%d-%H%M%S}{at.microsecond // 1000:03d}-{name}-{secrets.token_hex(2)}"


def extract_name(run_id: str) -> str:
    """The name that new_id made this id of; empty for an id of another form."""
    match = re.fullmatch(r"\d{8}-\d{9}-(.*)-[0-9a-f]{4}", run_id)
    return match[1] if match else ""


def list_saved() -> list[Path]:
    """All saved runs, oldest first. Raises CannotRun where their folder cannot be read."""
    folder = files.home_folder() / "runs"
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.name.endswith(".jsonl") and e.is_file()]
    except FileNotFoundError:
        return []
    except OSError as e:
        raise CannotRun(
            f"cannot read {folder}: {e.strerror}",
            "run this as the owner of that folder, or set COLLBENCH_HOME to another",
        ) from e
    return sorted(folder / name for name in names)


def report_unreadable(paths: Sequence[Path]) -> list[Path]:
    """Report the saved runs that this user may not read, and return them. Raises CannotRun where
    there are no others."""
    if unreadable := _list_unreadable(paths):
        error = _make_unreadable_error(unreadable, len(paths))
        if len(unreadable) == len(paths):
            raise error
        print_message(error.message, error.hint)
    return unreadable


def _list_unreadable(paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if not os.access(path, os.R_OK)]


def _make_unreadable_error(unreadable: Sequence[Path], total: int, cause: str = "") -> CannotRun:
    """The error on saved runs, of so many in all, that this user may not read."""
    which = f"{len(unreadable):,} of {format_count(total, 'saved run')} cannot be read"
    return CannotRun(
        f"{cause}{which}: {unreadable[0]}: Permission denied",
        "run this as the owner of these files, or have the owner make them readable (chmod)",
    )


def quote_run_name(path: Path) -> str:
    """A run's name, quoted for a shell."""
    return shlex.quote(run_name(path))


def find_run(name: str, running: bool = False) -> Path:
    """The file a person means by a path, ``@last``, a run's id (its beginning or end), or a tag;
    of several the last, or with ``~1`` … the one so many before it. ``@last`` has ended, or may be
    ``running``. Raises UsageError and NoVerdict, and CannotRun where it may be one of those that
    this user may not read."""
    if os.path.isfile(name):  # noqa: PTH113 - Path's raises for a name that is too long
        return Path(name)
    runs = list_saved()
    stem, tilde, back = name.rpartition("~")
    tries = [(name, 0), *([(stem, int(back))] if tilde and re.fullmatch(r"\d{1,9}", back) else [])]
    for called, steps_back in tries:
        matching = runs if called == "@last" else _match_names(called, runs)
        if called == "@last" and not running:
            matching = _without_running(name, steps_back, runs)
        if steps_back < len(matching):
            found = matching[-1 - steps_back]
            newer = [path for path in _list_unreadable(runs) if path > found]
            if newer and _may_be_tag(called) and not found.stem.startswith(called):
                error = _make_unreadable_error(newer, len(runs), f"{name} is {run_name(found)}; ")
                print_message(f"{error.message}, and may be {called}, too", error.hint)
            return found
        if matching:
            only = format_count(len(matching), "run")
            raise UsageError(f"{name}: only {only} of that name", "collbench runs lists them")
    if os.path.isdir(name):  # noqa: PTH112
        folder = shlex.quote(name.rstrip("/") or name)
        raise UsageError(
            f"no run called '{name}': it is a folder",
            f"name its runs, as in {folder}/*.jsonl; of one run a node, collbench health --fleet"
            f" {folder}",
        )
    if not runs:
        hint = (
            "measure one, as with collbench all_reduce, or make one of a log with collbench import"
        )
        raise UsageError(
            f"no run called '{name}': no run is saved yet under {files.home_folder()}", hint
        )
    if name.endswith((".html", ".md")):
        raise UsageError(f"no run called '{name}'", f"a file to write is given by -o: -o {name}")
    if _may_be_tag(stem or name) and (unreadable := _list_unreadable(runs)):
        raise _make_unreadable_error(unreadable, len(runs), f"no run called '{name}', but ")
    raise UsageError(
        f"no run called '{name}'",
        "give a path, @last, @last~1, an id, a tag or tag~1; collbench runs lists them",
    )


def run_name(path: Path) -> str:
    """The name by which a command finds a run's file: its id where runs are kept, else its path;
    empty for ``Path()``, of a run that is not saved."""
    if not path.name:
        return ""
    with suppress(CannotRun):  # where no folder of runs is known, only the path finds it
        if path.parent == files.home_folder() / "runs":
            return path.stem
    return str(path)


def _without_running(name: str, back: int, runs: list[Path]) -> list[Path]:
    """The runs less those among the latest that are still running, of which it tells. Raises
    NoVerdict where there is no other."""
    latest, finished = runs[-MOST_RUNNING:], runs[:-MOST_RUNNING]
    active = [path for path in latest if is_running(path)]
    finished = finished + [path for path in latest if path not in active]
    if active and not finished:
        raise NoVerdict(describe_running(active[-1]), "wait for its end: no other run is saved")
    for path in active:
        if back < len(finished) and finished[-1 - back] < path:
            print_message(f"{describe_running(path)}: {name} is {finished[-1 - back].stem}")
    return finished


def _match_names(name: str, runs: Sequence[Path]) -> list[Path]:
    """The runs whose id begins with ``name``; else those with this tag; else the only run whose id
    ends with it."""
    name = readable_text(name)  # as a run has it
    if not name:
        return []
    by_id = [path for path in runs if path.stem.startswith(name)]
    by_end = [path for path in runs if path.stem.endswith(name)]
    by_tag = [] if by_id else [path for path in runs if _read_tag(path) == name]
    return by_id or by_tag or (by_end if len(by_end) == 1 else [])


def _may_be_tag(name: str) -> bool:
    """Whether only what a run's file says can tell whether it has this name: it is no path."""
    return not name.startswith("@") and "/" not in name and not name.endswith(".jsonl")


def _read_tag(path: Path) -> str:
    try:
        return read_run(path).tag
    except CollbenchError:
        return ""  # a file that cannot be read answers to its path and id only


def find_companion(path: Path) -> Path | None:
    """The other run of the experiment that the run in ``path`` is a side of; None where it is of
    none. Raises UsageError where it is not beside it."""
    pairing = read_run(path).pairing
    if pairing is None:
        return None
    name: Literal["base", "head"] = "head" if pairing.side == "base" else "base"
    companion = path.with_name(f"{Path(pairing.experiment).name}-{name}.jsonl")
    its_pairing = read_run(companion).pairing if companion.is_file() else None
    if its_pairing is None or (its_pairing.experiment, its_pairing.side) != (
        pairing.experiment,
        name,
    ):
        raise UsageError(
            f"{path} is the {pairing.side} of an experiment whose {name} is not at {companion}",
            "name both runs: BASE HEAD",
        )
    return companion
