"""Commands of tests that are forked heed what a new Python would, or are one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import warm

SHOW = "import sys; print(sys.flags.optimize, sys.flags.utf8_mode, 'numpy' in sys.modules)"


@pytest.mark.parametrize(
    ("setting", "words"), [({}, "0 0 True"), ({"PYTHONOPTIMIZE": "1"}, "1 0 False")]
)
def test_a_command_is_forked_unless_its_python_must_differ(
    warm: warm.Warm, tmp_path: Path, setting: dict[str, str], words: str
) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    process = warm.start(script=str(tmp_path / "show.py"), env={**os.environ, **setting})
    assert process.communicate(60) == (f"{words}\n", "")


@pytest.mark.parametrize(
    "name", ["PYTHONOPTIMIZE", "PYTHONHASHSEED", "PYTHONUTF8", "PYTHONMALLOC", "PYTHON_GIL"]
)
def test_a_server_needs_a_python_of_its_own_although_its_command_has_the_setting(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A command sets its environment to what it was given, after its Python has started."""
    monkeypatch.setattr(warm, "AT_LOAD", dict(os.environ))
    assert not warm._needs_its_own(os.environ)
    monkeypatch.setenv(name, "1")
    assert warm._needs_its_own(os.environ)
    monkeypatch.setattr(warm, "AT_LOAD", dict(os.environ))
    assert not warm._needs_its_own(os.environ)
    monkeypatch.delenv(name)
    assert warm._needs_its_own(os.environ)
