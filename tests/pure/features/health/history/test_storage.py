"""A history that another process holds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from collbench.core.errors import CannotRun
from collbench.features.health.history import storage


def test_a_history_that_is_held_by_another_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.sqlite"
    storage.Book(str(path)).close()
    monkeypatch.setattr(storage, "WAIT", 1)
    monkeypatch.setattr(storage, "SAY_SECONDS", 0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(CannotRun) as caught:
        storage.Book(str(path))
    holder.close()
    assert "locked" in caught.value.message and "another process" in caught.value.hint
    assert "does not answer yet" in capsys.readouterr().err


def test_a_history_that_answers_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage.Book(str(tmp_path / "history.sqlite")).close()
    assert capsys.readouterr().err == ""
