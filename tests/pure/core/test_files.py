"""Who may read what is written: its owner what describes a machine, others what is for them."""

from __future__ import annotations

import stat
from pathlib import Path

import factories
import pytest
from typer.testing import CliRunner

from collbench.cli import main
from collbench.core import files
from collbench.judge import history


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path / "state" / "home"))
    return factories.write(factories.night(rows=[factories.case()]), tmp_path / "runs" / "deep")


@pytest.mark.parametrize("suffix", ["html", "md", "json"])
def test_what_describes_a_machine_is_its_owners(suffix: str, saved: Path, tmp_path: Path) -> None:
    out = tmp_path / f"x.{suffix}"
    CliRunner().invoke(main.app, ["health", str(saved), "--no-history", "-o", str(out)])
    assert mode(out) == 0o600


@pytest.mark.parametrize("suffix", ["prom", "xml"])
def test_what_other_programs_read_is_as_the_umask_says(
    suffix: str, saved: Path, tmp_path: Path
) -> None:
    out, beside = tmp_path / f"x.{suffix}", tmp_path / "beside"
    CliRunner().invoke(main.app, ["health", str(saved), "--no-history", "-o", str(out)])
    beside.touch()
    assert mode(out) == mode(beside)


def test_a_report_is_its_owners(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.html"
    CliRunner().invoke(main.app, ["report", str(saved), "-o", str(out)])
    assert mode(out) == 0o600


def test_json_as_of_nccl_tests_is_its_owners(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    asked = ["all_reduce", "--backend", "model", "--sizes", "8", "-g", "2", "-J", str(out)]
    CliRunner().invoke(main.app, asked, catch_exceptions=False)
    assert mode(out) == 0o600


def test_who_may_read_a_file_that_is_replaced_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.touch(mode=0o640)
    files.save(path, "x")
    assert (path.read_text(), mode(path)) == ("x", 0o640)


def test_folders_that_are_made_are_their_owners(saved: Path, tmp_path: Path) -> None:
    history.book().close()
    made = [saved.parent, saved.parent.parent, tmp_path / "state", tmp_path / "state" / "home"]
    assert [mode(folder) for folder in made] == [0o700] * 4


def test_folders_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    files.make(tmp_path / "a")
    assert mode(tmp_path) == 0o755
