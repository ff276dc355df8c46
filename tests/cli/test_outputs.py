"""Files for other programs: `report -o` and `--output` of what measures write the same, checked
before time is spent."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from monitoring import lint_metrics, read_samples

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
MODEL = ("all_reduce", "--sizes", "8,1K", "-g", "4", "--backend", "model")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path / "home"))
    return tmp_path


def list_runs(folder: Path) -> list[str]:
    return [path.name for path in (folder / "home").rglob("*.jsonl")]


def test_a_measured_run_and_its_report_write_the_same(inside: Run, folder: Path) -> None:
    assert inside(*MODEL, "--output", "x.prom").returncode == 0
    assert len(list_runs(folder)) == 1
    assert inside("report", "@last", "-o", "y.prom").stdout.startswith("wrote y.prom (")
    text = Path("x.prom").read_text()
    assert text == Path("y.prom").read_text()
    assert lint_metrics(text) == []
    assert len(read_samples(text)["collbench_case_time_seconds"]) == 4
    assert inside("report", "@last", "--format", "prometheus").stdout == text


def test_a_suite_writes_its_run(inside: Run, folder: Path) -> None:
    Path("s.toml").write_text(
        '[axes]\ncollectives = "all_reduce"\nsizes = [8]\nranks = 2\nbackends = "model"\n'
    )
    assert inside("run", "s.toml", "--output", "x.prom").returncode == 0
    (labels, *_) = read_samples(Path("x.prom").read_text())["collbench_case_time_seconds"]
    assert dict(labels)["suite"] == "s" and len(list_runs(folder)) == 1


@pytest.mark.parametrize("words", [MODEL, ("run", "s.toml")])
def test_a_folder_and_files_for_other_programs_are_all_written(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(
        '[axes]\ncollectives = ["all_reduce"]\nsizes = ["8"]\nbackends = ["model"]\nranks = [2]\n'
    )
    Path("runs").mkdir()
    files = ("--output", "x.prom", "--output", "x.otlp")
    done = inside(*words, "--output", "runs/", *files)
    assert done.returncode == 0, done.stderr
    assert len(list(Path("runs").iterdir())) == 1
    assert Path("x.prom").is_file() and Path("x.otlp").is_file()
    done = inside(*words, *files, "--output", "runs", "--output", "other.jsonl")
    assert done.returncode == 2 and "a run is saved in one place" in done.stderr


def test_a_run_that_is_not_kept_is_written(inside: Run, folder: Path) -> None:
    assert inside(*MODEL, "--output", "x.otlp", "--no-save").returncode == 0
    assert Path("x.otlp").read_text().count("resourceMetrics") > 3 and not list_runs(folder)


def test_lines_for_opentelemetry_are_no_run(inside: Run) -> None:
    inside(*MODEL, "--output", "x.otlp")
    done = inside("report", "x.otlp")
    assert done.returncode != 0 and "x.otlp is not a run" in done.stderr


def test_no_draft_is_left_that_node_exporter_would_read(inside: Run, folder: Path) -> None:
    inside(*MODEL, "--output", "x.prom")
    assert sorted(path.name for path in folder.glob("*")) == ["home", "x.prom"]


def test_parquet_is_written_and_replaced_and_anothers_is_not(inside: Run) -> None:
    import pandas as pd

    pd.DataFrame({"a": [1]}).to_parquet("mine.parquet")
    for _ in range(2):
        assert inside(*MODEL, "--output", "x.parquet").returncode == 0
        assert inside("report", "@last", "-o", "y.parquet").returncode == 0
    pd.testing.assert_frame_equal(pd.read_parquet("x.parquet"), pd.read_parquet("y.parquet"))
    done = inside("report", "@last", "-o", "mine.parquet")
    assert done.returncode == 2 and "was not written by collbench" in done.stderr


def test_without_pyarrow_nothing_is_measured(
    inside: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "pyarrow" else there(name, *rest),
    )
    for words in ((*MODEL, "--output", "x.parquet"), ("report", "@last", "-o", "x.parquet")):
        done = inside(*words)
        assert done.returncode == 5 and "pip install 'collbench[parquet]'" in done.stderr
    assert not list_runs(folder) and not Path("x.parquet").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("report", "@last", "--format", "parquet"), 2, "--format parquet cannot be printed"),
        (
            ("report", "@last", "-o", "x.prom", "--title", "a"),
            2,
            "--title is given with prometheus",
        ),
        (("report", "@last", "-o", "x.prom", "--png", "p"), 2, "--png is given with prometheus"),
        (("report", "@last", "-o", "x.csv"), 2, "its ending: '.csv' is not one of .html"),
        (("report", "@last", "-o", "none/x.prom"), 5, "folder none does not exist"),
        (("health", "@last", "-o", "x.parquet"), 2, "its ending: '.parquet' is not one of"),
        (("compare", "@last", "@last", "-o", "x.prom"), 2, "its ending: '.prom' is not one of"),
        ((*MODEL, "--output", "none/x.prom"), 5, "folder none does not exist"),
        ((*MODEL, "--output", "mine.prom"), 2, "not written by collbench; not overwritten"),
        (("run", "pr", "nightly", "--output", "x.prom"), 2, "2 suites make a file each"),
        (("pairs", "--output", "x.prom"), 2, "collbench report @last -o x.prom writes it"),
    ],
)
def test_what_cannot_be_written_is_refused_first(
    inside: Run, words: tuple[str, ...], code: int, message: str
) -> None:
    inside(*MODEL)
    Path("mine.prom").write_text("# HELP node_load1 1m load average.\n")
    done = inside(*words)
    assert (done.returncode, message in done.stderr) == (code, True)
    assert not list(Path().glob("x.*"))


def test_promtool_finds_nothing(inside: Run) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("needs promtool, which comes with Prometheus")
    inside(*MODEL, "--output", "x.prom")
    inside("health", "@last", "--no-history", "-o", "y.prom")
    inside("recipe", "rules", "-o", "rules.yml")
    text = Path("x.prom").read_text() + Path("y.prom").read_text()
    done = subprocess.run(
        [tool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    done = subprocess.run(
        [tool, "check", "rules", "rules.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and re.search(r"SUCCESS: \d+ rules", done.stdout)


def test_two_files_of_a_folder_share_no_series(inside: Run) -> None:
    """node_exporter refuses a folder in which a series comes twice."""
    inside(*MODEL, "--output", "x.prom")
    inside("health", "@last", "--no-history", "-o", "y.prom")
    first, second = (read_samples(Path(name).read_text()) for name in ("x.prom", "y.prom"))
    assert first and second and not first.keys() & second.keys()
