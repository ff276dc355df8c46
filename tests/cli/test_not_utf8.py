"""Bytes that are not UTF-8 in options, paths, variables and names: kept as U+FFFD where they are
text, as they are where they are a path, refused where ranks are to be told of them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from collbench.records import run_file, store

ODD, KEPT = os.fsdecode(b"b\xffd"), "b\ufffdd"
MODEL = ("all_reduce", "--sizes", "8", "-g", "2", "--backend", "model")
SUITE = '[axes]\ncollectives = ["all_reduce"]\nsizes = ["8"]\nranks = [2]\nbackends = ["model"]\n'


def only_run() -> run_file.RunFile:
    (path,) = store.list_saved()
    return run_file.read_file(path)


def test_a_tag_is_kept_and_finds_its_run(inside) -> None:
    assert inside(*MODEL, "--tag", ODD).returncode == 0
    run = only_run().run
    assert run.tag == KEPT and run.command[-1] == KEPT
    assert inside("report", ODD).returncode == 0
    assert "all_reduce" in inside("runs", ODD).stdout


def test_a_path_is_where_it_was_named(inside, tmp_path: Path) -> None:
    run, page = tmp_path / f"{ODD}.jsonl", tmp_path / f"{ODD}.html"
    assert inside(*MODEL, "--output", str(run)).returncode == 0
    assert os.fsencode(run) in [os.fsencode(path) for path in tmp_path.iterdir()]
    assert inside("report", str(run), "-o", str(page)).returncode == 0
    assert "<html" in page.read_text(encoding="utf-8")


def test_a_folder_of_runs_may_have_any_name(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path / ODD))
    assert inside(*MODEL).returncode == 0
    assert inside("report", "@last").returncode == 0


def test_a_variable_is_kept(inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", ODD)
    assert inside(*MODEL).returncode == 0
    assert only_run().run.environment["variables"]["NCCL_ALGO"] == KEPT


def test_a_host_may_have_any_name(inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: ODD)
    assert inside(*MODEL).returncode == 0
    file = only_run()
    assert file.run.environment["host"] == KEPT
    assert {rank.host for world in file.worlds for rank in world.ranks} == {KEPT}


def test_a_suite_is_named_by_its_file(inside, tmp_path: Path) -> None:
    (path := tmp_path / f"{ODD}.toml").write_text(SUITE)
    assert inside("run", str(path)).returncode == 0
    assert only_run().run.suite.name == KEPT


def test_a_setting_of_ranks_is_refused(inside, tmp_path: Path) -> None:
    done = inside(*MODEL, "--env", f"NCCL_ALGO={ODD}")
    assert done.returncode == 2
    assert "--env: the value of NCCL_ALGO is not UTF-8" in done.stderr
    (path := tmp_path / "suite.toml").write_bytes(SUITE.encode() + b'env = "NCCL_ALGO=b\xffd"\n')
    done = inside("run", str(path))
    assert done.returncode == 2 and "can't decode byte 0xff" in done.stderr


def test_a_backends_file_is_refused(inside, tmp_path: Path) -> None:
    (folder := tmp_path / ODD).mkdir()
    path = folder / "my.py"
    assert inside("backends", "new", str(path)).returncode == 0
    done = inside("all_reduce", "--backend", str(path), "-g", "2", "--dry-run")
    assert done.returncode == 2 and "the path is not UTF-8" in done.stderr


def test_a_history_takes_a_run_by_such_a_path(inside, tmp_path: Path) -> None:
    path = tmp_path / f"{ODD}.jsonl"
    assert inside(*MODEL, "--output", str(path)).returncode == 0
    assert inside("history", "add", str(path)).returncode == 0


def test_a_terminal_gets_what_it_can_show(cold, tmp_path: Path) -> None:
    """Also where its encoding has nothing but ASCII."""
    done = cold("report", str(tmp_path / ODD), PYTHONIOENCODING="ascii")
    assert done.returncode == 2 and "no run called" in done.stderr
    assert "Traceback" not in done.stderr
