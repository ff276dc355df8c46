"""Folders of the living stay, those of the dead go, and nobody else's is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collbench.core.errors import CannotRun, RunBroken
from collbench.machine import environment
from collbench.run.launch import folders


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(folders.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left(place: Path) -> Path:
    """A folder as a killed process leaves it."""
    folder = place / f"{folders.make_prefix()}x"
    folder.mkdir()
    (folder / "store").touch()
    return folder


def test_a_folder_is_there_as_long_as_its_owner_works(place: Path) -> None:
    with folders.make_private() as mine:
        folders.sweep_folders(place)
        assert mine.is_dir()
    assert list(place.iterdir()) == []


def test_the_next_start_removes_what_was_left(place: Path) -> None:
    old = left(place)
    with folders.make_private():
        assert not old.exists()


def test_what_several_hold_goes_with_the_last(place: Path) -> None:
    folder = left(place)
    first, second = folders.hold_folder(folder), folders.hold_folder(folder)
    assert first is not None and second is not None
    os.close(first)
    folders.sweep_folders(place)
    assert folder.is_dir()
    os.close(second)
    folders.sweep_folders(place)
    assert not folder.exists()


def test_a_folder_that_was_just_swept_is_not_held(place: Path) -> None:
    assert folders.hold_folder(place / "gone") is None


def test_another_hosts_folders_in_a_shared_place_stay(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock on them, which it may hold, does not show here."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(environment, "boot_id", lambda: "0123456789abcdef")
        theirs = left(place)
    earlier = place / f"{folders.PREFIX}k3_x9q2w"  # as earlier versions named them
    earlier.mkdir()
    with folders.make_private() as mine:
        assert mine.name.startswith(folders.make_prefix())
        assert len(mine.name) == 31
    assert theirs.is_dir() and earlier.is_dir()


def test_a_host_without_a_boot_id_goes_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "boot_id", lambda: None)
    prefixes = set()
    for name in "aab":
        monkeypatch.setattr(environment, "host_name", lambda name=name: name)
        prefixes.add(folders.make_prefix())
    assert len(prefixes) == 2


def test_others_folders_files_and_links_stay(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "of-others.txt").touch()
    (place / f"{folders.make_prefix()}link").symlink_to(place)
    folders.sweep_folders(place)
    assert len(list(place.iterdir())) == 2
    folder, me = left(place), os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    folders.sweep_folders(place)
    assert folder.is_dir()


def test_no_folder_for_temporary_files_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose disk is read-only."""

    def find_none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(folders.tempfile, "gettempdir", find_none)
    with pytest.raises(CannotRun) as caught, folders.make_private():
        pass
    assert caught.value.hint == "set TMPDIR to a folder that can be written"


def test_a_folder_of_temporary_files_that_was_removed_is_named(place: Path) -> None:
    place.rmdir()
    with pytest.raises(RunBroken, match=f"{place}, was removed"), folders.make_private():
        pass
