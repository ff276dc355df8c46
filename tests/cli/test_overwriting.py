"""Files that commands write: never in place of somebody else's, and only into folders that exist;
what collbench wrote itself is replaced."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from forked import Server

MODEL = ("all_reduce", "--sizes", "8,1K", "-g", "4", "--backend", "model")
RING = ("all_reduce", "ring", "-n", "4")
COMPARE, HEALTH = ("compare", "one", "two", "-o"), ("health", "one", "--no-history", "-o")
WRITING = {
    "compare.md": COMPARE,
    "compare.json": COMPARE,
    "compare.html": COMPARE,
    "compare.xml": COMPARE,
    "health.html": HEALTH,
    "health.md": HEALTH,
    "health.json": HEALTH,
    "health.xml": HEALTH,
    "health.prom": HEALTH,
    "report.html": ("report", "one", "--plotlyjs", "cdn", "-o"),
    "report.md": ("report", "one", "-o"),
    "report.prom": ("report", "one", "-o"),
    "report.otlp": ("report", "one", "-o"),
    "trend.html": ("history", "trend", "--html"),
    "schedule.json": ("export", *RING, "-o"),
    "schedule.xml": ("export", *RING, "--to", "msccl-executor", "-o"),
    "schedule.dot": ("export", *RING, "--to", "dot", "-o"),
    "schedule.goal": ("export", *RING, "--to", "goal", "-o"),
}


@pytest.fixture(scope="module")
def saved(bare: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two runs, of which one is a night in the history."""
    folder = tmp_path_factory.mktemp("saved")
    for words in ((*MODEL, "--tag", "one"), (*MODEL, "--tag", "two"), ("history", "add", "one")):
        done = bare(*words, COLLBENCH_HOME=str(folder))
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def runs(saved: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, home)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("name", WRITING)
def test_a_file_of_somebody_else_stays(inside, name: str) -> None:
    Path(name).write_text("# mine, about collbench\n")
    done = inside(*WRITING[name], name)
    assert done.returncode == 2
    assert f"{name} exists and was not written by collbench; not overwritten" in done.stderr
    assert "or remove it" in done.stderr
    assert Path(name).read_text() == "# mine, about collbench\n"


@pytest.mark.usefixtures("runs")
def test_a_library_of_somebody_else_stays_beside_a_page(inside) -> None:
    Path("plotly.min.js").write_text("mine")
    done = inside(*HEALTH, "health.html", "--plotlyjs", "directory")
    assert (done.returncode, Path("plotly.min.js").read_text()) == (2, "mine")


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("name", WRITING)
def test_what_collbench_wrote_is_replaced(inside, name: str) -> None:
    Path(name).touch()  # an empty one is nobody's
    first = inside(*WRITING[name], name)
    written = Path(name).read_text()
    assert len(written) > 40
    assert inside(*WRITING[name], name).returncode == first.returncode
    assert first.returncode in (0, 3)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("name", [*WRITING, "drain.py"])
def test_a_command_says_which_file_it_wrote(inside, name: str) -> None:
    """On standard error where the command prints a result, too."""
    words = WRITING.get(name, ("recipe", "drain", "-o"))
    done = inside(*words, name)
    prints = words[0] in ("compare", "health", "history")
    message = f"wrote {name} ("
    assert message in (done.stderr if prints else done.stdout)
    assert message not in (done.stdout if prints else done.stderr)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("name", WRITING)
def test_a_folder_that_is_missing_is_told(inside, name: str) -> None:
    done = inside(*WRITING[name], f"none/{name}")
    assert done.returncode == 5
    assert f"cannot write none/{name}: folder none does not exist" in done.stderr
    assert not Path("none").exists()


def test_a_drawing_of_another_schedule_in_dot_is_not_taken_for_ours(inside, tmp_path: Path) -> None:
    path = tmp_path / "x.dot"
    assert inside("export", *RING, "--to", "dot", "-o", str(path)).returncode == 0
    done = inside("export", "all_reduce", "ring", "-n", "5", "--to", "dot", "-o", str(path))
    assert (done.returncode, "remove it" in done.stderr) == (2, True)


def test_nothing_is_measured_for_a_file_that_cannot_be_written(inside, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text("mine")
    done = inside("ab", "--aa", "--suite", "pr", "-o", str(tmp_path / "x.html"), "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_runs_file_goes_to_a_folder_that_exists(inside, tmp_path: Path) -> None:
    done = inside(*MODEL, "--output", str(tmp_path / "none" / "x.jsonl"))
    assert (done.returncode, "none does not exist" in done.stderr) == (5, True)


@pytest.mark.parametrize("name", ["outdir", "run.json", "results-2.13"])
def test_a_name_that_may_be_a_folder_is_no_file(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = inside(*MODEL, "--output", name)
    assert done.returncode == 2
    assert f"--output {name}: there is no such folder" in done.stderr
    assert f"name the file {name}.jsonl" in done.stderr
    Path(name).mkdir()
    assert inside(*MODEL, "--output", name).returncode == 0
    assert [path.suffix for path in Path(name).iterdir()] == [".jsonl"]


def test_json_beside_older_json_says_its_name(inside, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    assert str(path) not in inside(*MODEL, "-J", str(path)).stderr
    done = inside(*MODEL, "-J", str(path))
    assert f"{path} exists: wrote {path}.0" in done.stderr
    assert json.loads(Path(f"{path}.0").read_text())["version"] == 3


def test_json_of_another_ending_gets_an_example(inside) -> None:
    done = inside(*MODEL, "-J", "out.txt")
    assert (done.returncode, "hint: for example -J out.json\n" in done.stderr) == (2, True)


def test_a_schedule_for_simulators_is_a_folder(inside, tmp_path: Path) -> None:
    there = tmp_path / "et"
    assert inside("export", *RING, "--to", "chakra", "-o", str(there)).returncode == 0
    assert (there / "ring.0.et").is_file()
    assert inside("export", *RING, "--to", "chakra").returncode == 2
