"""A history that another process holds."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from factories import case, dated

from collbench.core.errors import CannotRun, UsageError
from collbench.features.health.history import storage
from collbench.suite.case import Case


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


def test_long_work_on_rows_is_not_said_to_be_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decode = storage._decode_case

    def decode_slowly(key: str, spec: str) -> Case | None:
        time.sleep(0.3)
        return decode(key, spec)

    with storage.Book(str(tmp_path / "history.sqlite")) as book:
        book.add(dated(0, {case(): 1e6}))
        monkeypatch.setattr(storage, "SAY_SECONDS", 0.1)
        monkeypatch.setattr(storage, "_decode_case", decode_slowly)
        assert len(book.series("node1")) == 1
    assert capsys.readouterr().err == ""


def test_a_writer_that_waits_for_a_reader_says_so_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.sqlite"
    monkeypatch.setattr(storage, "WAIT", 1)
    with storage.Book(str(path)) as book:
        monkeypatch.setattr(storage, "SAY_SECONDS", 0.1)
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM runs").fetchall()
        with pytest.raises(CannotRun, match="locked"):
            book.add(dated(0, {case(): 1e6}))
        reader.close()
        assert "does not answer yet" in capsys.readouterr().err
        assert book.add(dated(0, {case(): 1e6}))


def test_a_key_that_does_not_tell_of_blocks_is_of_any() -> None:
    """Keys of 0.1 are so: a row that is looked for by its key is then found."""
    aligned = case(collective="all_gather", op="none", align=16)
    spec = msgspec.json.encode(aligned).decode()
    plain = msgspec.structs.replace(aligned, align=1)
    assert storage._decode_case(aligned.key, spec) == aligned
    assert storage._decode_case(plain.key, spec) == plain


def test_hints_name_the_history_that_is_asked_for(tmp_path: Path) -> None:
    path = str(tmp_path / "a b.sqlite")
    with pytest.raises(UsageError) as missing:
        storage.Book(path, reading=True)
    assert f"collbench history add @last --history '{path}' begins" in missing.value.hint
    with storage.Book(path) as book, pytest.raises(UsageError) as unknown:
        book.find_machine("1-x-f575")
    assert f"collbench history add 1-x-f575 --history '{path}'" in unknown.value.hint


@pytest.fixture
def another_user(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this user one who may read files, and write none."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    def change() -> None:
        monkeypatch.setattr(Path, "touch", refuse)
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)

    return change


def test_a_history_that_may_only_be_read_is_read(
    tmp_path: Path, another_user: Callable[[], None]
) -> None:
    path = str(tmp_path / "a?%23.sqlite")
    with storage.Book(path) as book:
        book.add(dated(1, {case(): 1e6}))
    another_user()
    with storage.Book(path, reading=True) as book:
        assert book.machines() == ["node1"] and len(book.series("node1")) == 1


def test_a_run_that_is_kept_needs_no_writing_to_be_added_again(
    tmp_path: Path, another_user: Callable[[], None]
) -> None:
    path = str(tmp_path / "history.sqlite")
    with storage.Book(path) as book:
        book.add(dated(1, {case(): 1e6}))
    another_user()
    with storage.Book(path) as book:
        assert not book.add(dated(1, {case(): 1e6}))


def test_a_run_is_not_added_by_a_user_who_may_only_read(
    tmp_path: Path, another_user: Callable[[], None]
) -> None:
    path = str(tmp_path / "history.sqlite")
    storage.Book(path).close()
    another_user()
    with storage.Book(path) as book, pytest.raises(CannotRun, match="may not write it") as caught:
        book.add(dated(1, {case(): 1e6}))
    assert caught.value.hint.startswith("run this as its owner")


def test_rows_that_a_resumed_run_has_more_are_added(tmp_path: Path) -> None:
    with storage.Book(str(tmp_path / "history.sqlite")) as book:
        book.add(dated(1, {case(): 1e6}))
        assert book.add(dated(1, {case(): 1e6, case(8): 1e4}))
        assert len(book.series("node1")) == 2


def test_a_history_that_has_to_be_migrated_says_so_to_who_may_only_read(
    tmp_path: Path, another_user: Callable[[], None]
) -> None:
    path = tmp_path / "history.sqlite"
    storage.Book(str(path)).close()
    with sqlite3.connect(path) as to:
        to.execute("UPDATE collbench_schema SET version = 1")
    to.close()
    another_user()
    with pytest.raises(CannotRun, match="of version 1 and has to be migrated to 2"):
        storage.Book(str(path), reading=True)


def test_a_history_that_may_not_be_read_is_not_said_to_be_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.sqlite"
    storage.Book(str(path)).close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CannotRun, match=r"cannot read sqlite:.*: Permission denied"):
        storage.Book(str(path), reading=True)
