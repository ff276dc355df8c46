"""Who may read what is written: its owner what describes a machine, others what is for them."""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import factories
import pytest
from typer.testing import CliRunner

from collbench.cli import main
from collbench.core import files
from collbench.core.errors import UsageError
from collbench.features.health import history
from collbench.records import run_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path / "state" / "home"))
    return factories.write(factories.night(rows=[factories.case()]), tmp_path / "runs" / "deep")


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("suffix", ["html", "md", "json", "prom", "xml"])
def test_files_that_are_asked_for_follow_the_umask(
    suffix: str, saved: Path, tmp_path: Path, umask: int
) -> None:
    out = tmp_path / f"x.{suffix}"
    CliRunner().invoke(main.app, ["health", str(saved), "--no-history", "-o", str(out)])
    assert mode(out) == 0o666 & ~umask


@pytest.mark.parametrize("more", [[], ["--plotlyjs", "directory"]])
def test_a_report_follows_the_umask(
    saved: Path, tmp_path: Path, umask: int, more: list[str]
) -> None:
    out = tmp_path / "x.html"
    CliRunner().invoke(main.app, ["report", str(saved), "-o", str(out), *more])
    assert {mode(path) for path in tmp_path.glob("*.*s*")} <= {0o666 & ~umask}
    assert mode(out) == 0o666 & ~umask


def test_a_run_is_its_owners_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    run_file.Writer(tmp_path / "r.jsonl", factories.run()).close()
    assert mode(tmp_path / "r.jsonl") == 0o600


def test_json_as_of_nccl_tests_is_its_owners(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    asked = ["all_reduce", "--backend", "model", "--sizes", "8", "-g", "2", "-J", str(out)]
    CliRunner().invoke(main.app, asked, catch_exceptions=False)
    assert mode(out) == 0o600


def test_who_may_read_a_file_that_is_replaced_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.touch(mode=0o640)
    files.save_text(path, "x")
    assert (path.read_text(), mode(path)) == ("x", 0o640)


def test_a_page_that_is_not_written_to_its_end_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(path: Path, data: bytes) -> None:
        raise KeyboardInterrupt

    page = tmp_path / "page.html"
    page.write_text("before")
    monkeypatch.setattr(Path, "write_bytes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.replace_file(page, b"after")
    assert [*tmp_path.iterdir()] == [page] and page.read_text() == "before"


def test_folders_that_are_made_are_their_owners(saved: Path, tmp_path: Path) -> None:
    history.open_book().close()
    made = [saved.parent, saved.parent.parent, tmp_path / "state", tmp_path / "state" / "home"]
    assert [mode(folder) for folder in made] == [0o700] * 4


def test_an_unknown_home_folder_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        files.expand_path("~nobody-is-called-so/x")


def test_folders_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    files.make_folder(tmp_path / "a")
    assert mode(tmp_path) == 0o755


def test_the_last_tracebacks_of_crashes_stay(home: Path, tmp_path: Path) -> None:
    (home / "crashes").mkdir(parents=True)
    (home / "crashes" / "mine.txt").touch()
    for number in range(files.MAX_CRASHES + 5):
        words = files.keep_traceback(f"crash {number}")
        kept = Path(words.removeprefix("its traceback is in "))
        os.utime(kept, ns=(number, number))
        assert kept.read_text() == f"crash {number}" and mode(kept) == 0o600
    crashes = {path.read_text() for path in (home / "crashes").glob(f"{files.CRASH_PREFIX}*")}
    assert crashes == {f"crash {number}" for number in range(5, files.MAX_CRASHES + 5)}
    assert (home / "crashes" / "mine.txt").exists()


def test_the_tracebacks_of_a_large_world_all_stay_for_an_hour(home: Path) -> None:
    messages = [files.keep_traceback(f"rank {rank}") for rank in range(files.MAX_CRASHES + 5)]
    assert all(Path(text.removeprefix("its traceback is in ")).exists() for text in messages)


def test_a_traceback_for_which_a_disk_has_no_room_leaves_no_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    text = "x" * files.END
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limit[1]))
        message = files.keep_traceback(text)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert message == "there is no room to keep its traceback"
    assert not [*(home / "crashes").iterdir(), *(tmp_path / "tmp").iterdir()]


@pytest.mark.parametrize("name", ["COLLBENCH_HOME", "HOME"])
def test_a_fault_without_a_home_is_kept_among_temporary_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for unset in ("COLLBENCH_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(unset, raising=False)
    monkeypatch.setenv(name, str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    assert files.keep_traceback("fault").startswith(f"its traceback is in {tmp_path}/tmp/")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    assert files.keep_traceback("fault") == "there is no room to keep its traceback"
