"""The command line inside this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def inside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """As ``cli``, without a process for each command."""
    from collbench.cli.main import main

    def run(*args: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["collbench", *args])
        try:
            main()
            code = 0
        except SystemExit as e:
            code = int(e.code or 0)
        told = capsys.readouterr()
        return Done(args, code, told.out, told.err)

    return run
