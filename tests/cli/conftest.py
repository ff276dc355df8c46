"""The command line inside this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from forked import share_options

from collbench.cli import main as main_

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="package", autouse=True)
def shared_options() -> Iterator[None]:
    """Making its options takes a command longer than most of what it is asked here."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(main_._Commands, "get_command", main_._Commands.get_command)
        share_options(main_._Commands)
        yield


@pytest.fixture
def inside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """As ``cli``, without a process for each command."""

    def run(*args: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["collbench", *args])
        try:
            main_.main()
            code = 0
        except SystemExit as e:
            code = int(e.code or 0)
        told = capsys.readouterr()
        return Done(args, code, told.out, told.err)

    return run
