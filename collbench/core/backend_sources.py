"""Backends from outside of this package: files that a command line or a suite names, and modules
that installed packages announce as entry points of the group ``collbench.backends``.

A file is read once, where it is named; ranks get its text with their plan, so that they need not
have the file. None is searched for, and what a run's file names runs nothing.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import linecache
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from collbench.core.errors import UsageError, first_line
from collbench.core.text import is_readable

GROUP = "collbench.backends"
IMPORTS = "COLLBENCH_IMPORTS"  # modules, for processes that this one starts
MAKER = "create"
WORD = re.compile(r"(?P<path>.*\.py)(:(?P<maker>\w*))?")
MOST_BYTES = 1 << 20  # of a file
HELP = "collbench help backends has the contract; collbench backends new FILE.py writes one"


class BackendFile(NamedTuple):
    """A file with a backend: the function in it that makes the backend, and its text."""

    path: str
    maker: str
    text: str

    @property
    def word(self) -> str:
        """How a command line names it."""
        return f"{self.path}:{self.maker}"

    @property
    def label(self) -> str:
        """The file's name, without its folder."""
        return Path(self.path).name

    @property
    def version(self) -> str:
        """A digest of its text, by which an edited file is told apart."""
        return hashlib.blake2b(self.text.encode(), digest_size=4).hexdigest()


def names_file(word: str) -> bool:
    """Whether ``word`` names a backend by its file: ``./my.py`` or ``./my.py:create``."""
    return bool(WORD.fullmatch(word))


def read_backend_file(word: str, folder: Path) -> BackendFile:
    """The file that ``word`` names, relative to ``folder``. Raises UsageError where it cannot be
    read."""
    match = WORD.fullmatch(word)
    assert match, f"{word} names no file"
    path = (folder / match["path"]).resolve()
    try:
        content = path.read_bytes()
        text = content.decode()
    except FileNotFoundError as e:
        raise UsageError(f"no file {match['path']}", "name a backend's file: ./my.py") from e
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(
            f"{match['path']} cannot be read: {first_line(e)}",
            "a backend's file is UTF-8 text that you may read",
        ) from e
    if not is_readable(str(path)):
        raise UsageError(
            f"{path}: the path is not UTF-8, as which ranks are told of a backend's file",
            "rename the file, or the folder that it is in",
        )
    if len(content) > MOST_BYTES:
        raise UsageError(
            f"{match['path']} has {len(content):,} bytes; a backend's file has at most"
            f" {MOST_BYTES:,}",
            "make it a package with an entry point (collbench help backends)",
        )
    return BackendFile(str(path), match["maker"] or MAKER, text)


@cache
def load_backend_file(file: BackendFile) -> ModuleType:
    """The module that the text of a file makes when it is run. Raises UsageError with what it
    raises."""
    module = ModuleType(f"collbench_backend_{hashlib.blake2b(repr(file).encode()).hexdigest()[:8]}")
    module.__file__ = file.path
    sys.modules[module.__name__] = module  # as dataclasses and pickle look it up there
    # tracebacks show the text that ran, on hosts without the file, too
    linecache.cache[file.path] = len(file.text), None, file.text.splitlines(True), file.path
    try:
        exec(compile(file.text, file.path, "exec"), vars(module))
    except (Exception, SystemExit) as e:
        del sys.modules[module.__name__]
        raise UsageError(
            f"{file.label} cannot be loaded: {type(e).__name__}: {first_line(e)}",
            f"run python {file.path} to see where",
        ) from e
    if not callable(getattr(module, file.maker, None)):
        raise UsageError(f"{file.label} has no function {file.maker}(name)", HELP)
    setattr(module, MAKER, getattr(module, file.maker))
    return module


def import_modules(modules: Sequence[str]) -> None:
    """Have ranks import these modules, which register backends with torch.distributed, before they
    open one. Raises UsageError for what is no module's name, or is not there."""
    for module in modules:
        try:
            is_there = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            is_there = False
        if not is_there:
            raise UsageError(
                f"--import {module}: there is no such module",
                "name one that python can import here: PYTHONPATH=folder has those of a folder",
            )
    os.environ[IMPORTS] = ",".join(dict.fromkeys([*list_imports(), *modules]))


def list_imports() -> list[str]:
    """The modules that ranks import first."""
    return [word for word in os.environ.get(IMPORTS, "").split(",") if word]


@cache
def list_entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """What installed packages announce, by name."""
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def describe_entry_point(point: importlib.metadata.EntryPoint) -> str:
    """Where an announced backend comes from, in words."""
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
    return f"{point.value} of {package}"


def load_entry_point(name: str) -> Any:
    """The object that a package announces as the backend ``name``. Raises UsageError where it
    cannot be loaded."""
    point = list_entry_points()[name]
    try:
        return point.load()
    except Exception as e:
        raise UsageError(
            f"backend {name} cannot be loaded: {describe_entry_point(point)}:"
            f" {type(e).__name__}: {first_line(e)}",
            f"repair or uninstall the package; {HELP}",
        ) from e
