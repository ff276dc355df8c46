"""Algorithms in files of the user's own, named on a command line as ``./line.py:line``.

The environment hands them on to ranks, as which file is run is for the command line alone to say: a
run's file that names such an algorithm runs nothing.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from collbench.core.errors import UsageError, first_line
from collbench.core.text import readable_text, suggest_name

VARIABLE = "COLLBENCH_ALGORITHMS"
WORD = re.compile(r"(?P<path>[^:]*\.py):(?P<name>[^:]*)(?P<settings>(:.*)?)")


class UserAlgorithm(NamedTuple):
    """An object of a file, and the collective that it was named for, if it was for one."""

    path: Path
    name: str
    collective: str = ""

    @property
    def label(self) -> str:
        """The algorithm's name in tables and records."""
        return f"{self.path.name}:{self.name}"

    def load(self) -> object:
        """The object. Raises UsageError where the file or the object cannot be had."""
        module = _run_file(self.path)
        if self.name not in module:
            names = [name for name in module if not name.startswith("_")]
            raise UsageError(
                f"{self.path} has no '{self.name}'",
                suggest_name(self.name, names) or "name a generator",
            )
        return module[self.name]


def list_user_algorithms() -> list[UserAlgorithm]:
    """Algorithms of files that this process has read."""
    entries = filter(None, os.environ.get(VARIABLE, "").split("\n"))
    algorithms = []
    for entry in entries:
        collective, _, word = entry.partition("=")
        match = WORD.fullmatch(word)
        if match:
            algorithms.append(UserAlgorithm(Path(match["path"]), match["name"], collective))
    return algorithms


def list_words(command: Sequence[str]) -> list[str]:
    """The words of a command line that name algorithms in files, without their settings."""
    parts = (part for word in command for part in re.split("[=,]", word))
    matches = filter(None, map(WORD.fullmatch, parts))
    return list(dict.fromkeys(f"{match['path']}:{match['name']}" for match in matches))


def name_of_file(word: str) -> str:
    """The name in tables and records of a file's algorithm, given as ``./line.py:line``."""
    path, _, name = word.rpartition(":")
    return readable_text(f"{Path(path).name}:{name}")


def format_prove_command(collective: str, name: str) -> str:
    """The command that proves the algorithm that tables and records call ``name``, which may have
    settings; one of a user's file is given by the file's path."""
    for algorithm in list_user_algorithms():
        if f"{name}:".startswith(f"{algorithm.label}:"):
            name = f"{algorithm.path}{name.removeprefix(algorithm.path.name)}"
    return shlex.join(["collbench", "prove", collective, name])


def pass_to_children(algorithm: UserAlgorithm) -> None:
    """Register a user's algorithm in this process and those that it starts."""
    entry = f"{algorithm.collective}={algorithm.path}:{algorithm.name}"
    others = os.environ.get(VARIABLE, "").split("\n")
    if entry not in others:
        os.environ[VARIABLE] = "\n".join(filter(None, [*others, entry]))


@functools.cache
def _run_file(path: Path) -> dict[str, object]:
    """The names that a file defines when it is run. Raises UsageError with what the file raises."""
    spec = importlib.util.spec_from_file_location(f"collbench_file_{zlib.crc32(bytes(path))}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"no file {path}", "name an algorithm's file, as in ./line.py:line")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as dataclasses look it up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[spec.name]
        raise UsageError(
            f"{path} cannot be loaded: {type(e).__name__}: {first_line(e)}",
            f"run python {path} to see where",
        ) from e
    return vars(module)
