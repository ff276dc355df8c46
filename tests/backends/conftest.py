"""Backends in files, known to this process for one test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from warm import Warm

from collbench.core import backend_info
from collbench.run.backends import _skeleton

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[..., Path]
Register = Callable[..., str]
SKELETON = Path(_skeleton.__file__).read_text()


@pytest.fixture
def cli(warm: Warm) -> Warm:
    """``collbench ARGS``, forked from a process that has loaded all: how a command comes up is
    for others to test."""
    return warm


@pytest.fixture
def inside(inside: Run) -> Iterator[Run]:
    """As everywhere; files that commands name are forgotten."""
    known = backend_info.list_files()
    yield inside
    for name in backend_info.list_files():
        if name not in known:
            backend_info.forget_file(name)


@pytest.fixture
def write_example(tmp_path: Path) -> Write:
    """Writes the example backend to a file of a name of its own, with parts of its text replaced,
    where any are named."""

    def write(name: str, *changes: tuple[str, str]) -> Path:
        text = SKELETON
        for before, after in filter(any, changes):
            assert text.count(before) == 1, f"{before!r} is not in the example once"
            text = text.replace(before, after)
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def register(write_example: Write) -> Iterator[Register]:
    """Has such a file's backend known in this process."""
    named = []

    def make(name: str, *changes: tuple[str, str]) -> str:
        path = write_example(name, *changes)
        named.append(backend_info.resolve_backend(str(path)))
        return named[-1]

    yield make
    for name in named:
        backend_info.forget_file(name)
