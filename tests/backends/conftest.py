"""Backends in files, known to this process for one test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from warm import Warm

from collbench.core import backend_info
from collbench.run.backends import _skeleton

Register = Callable[..., str]
SKELETON = Path(_skeleton.__file__).read_text()


@pytest.fixture
def cli(warm: Warm) -> Warm:
    """``collbench ARGS``, forked from a process that has loaded all: how a command comes up is
    for others to test."""
    return warm


@pytest.fixture
def inside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """As ``cli``, without a process for each command; files that commands name are forgotten."""
    from collbench.cli.main import main

    known = backend_info.list_files()

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["collbench", *args])
        with pytest.raises(SystemExit) as end:
            main()
        told = capsys.readouterr()
        return subprocess.CompletedProcess(args, int(end.value.code or 0), told.out, told.err)

    yield run
    for name in backend_info.list_files():
        if name not in known:
            backend_info.forget_file(name)


@pytest.fixture
def register(tmp_path: Path) -> Iterator[Register]:
    """Has the example backend known by a name of its own, with parts of its text replaced."""
    named = []

    def make(name: str, *changes: tuple[str, str]) -> str:
        text = SKELETON
        for before, after in changes:
            assert text.count(before) == 1, f"{before!r} is not in the example once"
            text = text.replace(before, after)
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        named.append(backend_info.resolve_backend(str(path)))
        return named[-1]

    yield make
    for name in named:
        backend_info.forget_file(name)
