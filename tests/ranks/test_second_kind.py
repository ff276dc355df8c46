"""A second kind of case beside collectives and steps: a folder of features, and one word that names
it. The rest of the package is as it was."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import collbench

PACKAGE = Path(collbench.__file__).parent
STRANGER = Path(__file__).parents[1] / "strangers" / "pingpong"
SUITE = """
[axes]
backends = ["gloo", "model"]

[policy]
iters = 20

[[pingpong]]
nbytes = 4096

[[pingpong]]
nbytes = 65536
"""
TITLES = {"pingpong of 4096 B", "pingpong of 65536 B"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package that has the feature, a suite that asks for it, and the
    run of that."""
    folder = tmp_path_factory.mktemp("second")
    copy = folder / "lib" / "collbench"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(STRANGER, copy / "features" / "pingpong")
    names = copy / "features" / "__init__.py"
    names.write_text(names.read_text().replace("NAMES = (", 'NAMES = ("pingpong", '))
    (folder / "transfers.toml").write_text(SUITE)
    done = call(folder, "run", "transfers.toml", "-g", "2", "--output", "run.jsonl", "--tag", "one")
    assert done.returncode == 0, done.stderr
    return folder


def call(folder: Path, *words: str, has_feature: bool = True) -> subprocess.CompletedProcess[str]:
    library = folder / "lib" if has_feature else PACKAGE.parent
    return subprocess.run(
        [sys.executable, "-m", "collbench", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(library), "COLLBENCH_HOME": str(folder / "home")},
        timeout=300,
        check=False,
    )


def cut(folder: Path, name: str) -> None:
    """Keeps of the run what there was after its first measured case."""
    lines = (folder / "run.jsonl").read_text().splitlines()
    measured = [at for at, line in enumerate(lines) if '"record"' in line and '"ok"' in line]
    (folder / name).write_text("\n".join(lines[: measured[0] + 1]) + "\n")


def records(path: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["line"] == "record"]


def test_nothing_else_of_the_package_was_changed(place: Path) -> None:
    def walk(compared: filecmp.dircmp[str]) -> list[str]:
        found = [*compared.left_only, *compared.right_only, *compared.diff_files]
        for each in compared.subdirs.values():
            found += walk(each)
        return found

    changed = walk(filecmp.dircmp(PACKAGE, place / "lib" / "collbench", ignore=["__pycache__"]))
    assert sorted(changed) == ["__init__.py", "pingpong"]


def test_it_is_planned(place: Path) -> None:
    done = call(place, "run", "transfers.toml", "-g", "2", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "4 KiB" in done.stdout and "64 KiB" in done.stdout
    assert "model" in done.stdout  # skipped, with the reason


def test_it_is_measured_and_verified(place: Path) -> None:
    measured = [one for one in records(place / "run.jsonl") if one["status"] == "ok"]
    assert len(measured) == 2
    for one in measured:
        times, invalid = one["times_ns"], one.get("invalid", {})
        assert all(ns > 0 for ns in times)  # type: ignore[attr-defined]
        # where others use the cores, invalid samples may not all be replaced
        assert len(times) == 20 or (invalid and 15 < len(times) < 20)  # type: ignore[arg-type]
        assert one["checked"] and one["wrong"] == 0


def test_a_run_that_was_cut_is_resumed(place: Path) -> None:
    cut(place, "cut.jsonl")
    done = call(place, "run", "--resume", "cut.jsonl")
    assert done.returncode == 0, done.stderr
    assert sum(one["status"] == "ok" for one in records(place / "cut.jsonl")) == 2


def test_it_is_reported_and_compared(place: Path) -> None:
    done = call(place, "report", "run.jsonl", "-o", "page.html")
    assert done.returncode == 0, done.stderr
    assert "pingpong of 4096 B" in (place / "page.html").read_text()
    again = call(place, "run", "transfers.toml", "-g", "2", "--output", "again.jsonl")
    assert again.returncode == 0, again.stderr
    done = call(place, "compare", "run.jsonl", "again.jsonl", "--format", "json")
    assert done.returncode == 3  # one launch a side: no verdict
    compared = json.loads(done.stdout)["rows"]
    assert {row["case"]["step"] for row in compared} == TITLES


def test_its_runs_are_shown_where_it_is_not_installed(place: Path) -> None:
    done = call(place, "report", "run.jsonl", "--format", "md", "-o", "bare.md", has_feature=False)
    assert done.returncode == 0, done.stderr
    assert all(title in (place / "bare.md").read_text() for title in TITLES)


def test_a_run_is_not_resumed_where_it_is_not_installed(place: Path) -> None:
    cut(place, "half.jsonl")
    done = call(place, "run", "--resume", "half.jsonl", has_feature=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "no feature of this installation" in done.stderr
