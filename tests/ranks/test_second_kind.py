"""A second kind of case beside collectives and steps: a folder of features, and one word that names
it. The rest of the package is as it was."""

from __future__ import annotations

import filecmp
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked import Server

import collbench
from collbench.core.errors import Exit

Call = Callable[..., subprocess.CompletedProcess[str]]
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
# by their names: copies of the feature with one fault, as what is to stand for what else
FAULTY = {
    "never_asks": ("bench.planted()", "None"),
    "loses_messages": ("self._call.run()\n", "self._calls > 1 or self._call.run()\n"),
}
TITLES = {"pingpong of 4096 B", "pingpong of 65536 B"}


def add_name(package: Path, name: str) -> None:
    names = package / "features" / "__init__.py"
    names.write_text(names.read_text().replace("NAMES = (", f'NAMES = ("{name}", '))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package that has the feature, and a suite that asks for it."""
    folder = tmp_path_factory.mktemp("second")
    copy = folder / "lib" / "collbench"
    shutil.copytree(PACKAGE, copy)  # with what is compiled
    shutil.copytree(STRANGER, copy / "features" / "pingpong")
    add_name(copy, "pingpong")
    (folder / "transfers.toml").write_text(SUITE)
    return folder


@pytest.fixture(scope="module")
def call(place: Path) -> Iterator[Call]:
    """``call(*words)``: ``collbench WORDS`` in the folder, from the copy, or from the package as it
    is where it ``has_feature`` not."""
    server = Server(place, "numpy", "msgspec", "typer", "rich.console", "psutil", "pandas")

    def run(*words: str, has_feature: bool = True) -> subprocess.CompletedProcess[str]:
        library = place / "lib" if has_feature else PACKAGE.parent
        env = {"PYTHONPATH": str(library), "COLLBENCH_HOME": str(place / "home")}
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            return server(*words, **env)

    yield run
    server.close()


@pytest.fixture(scope="module")
def ran(place: Path, call: Call) -> Path:
    """The folder with the suite's run."""
    done = call("run", "transfers.toml", "-g", "2", "--output", "run.jsonl", "--tag", "one")
    assert done.returncode == 0, done.stderr
    return place


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


@pytest.mark.slow
def test_it_is_planned(call: Call) -> None:
    done = call("run", "transfers.toml", "-g", "2", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "4 KiB" in done.stdout and "64 KiB" in done.stdout
    assert "model" in done.stdout  # skipped, with the reason


@pytest.mark.slow
def test_it_is_measured_and_verified(ran: Path) -> None:
    measured = [one for one in records(ran / "run.jsonl") if one["status"] == "ok"]
    assert len(measured) == 2
    for one in measured:
        times, invalid = one["times_ns"], one.get("invalid", {})
        assert all(ns > 0 for ns in times)  # type: ignore[attr-defined]
        # where others use the cores, invalid samples may not all be replaced
        assert len(times) == 20 or (invalid and 15 < len(times) < 20)  # type: ignore[arg-type]
        assert one["checked"] and one["wrong"] == 0


@pytest.mark.slow
def test_planted_corruption_is_found(ran: Path, call: Call) -> None:
    words = ("--inject", "corrupt:1", "--output", "planted.jsonl")
    done = call("run", "transfers.toml", "-g", "2", *words)
    assert done.returncode == Exit.WRONG_DATA, done.stderr
    wrong = [one for one in records(ran / "planted.jsonl") if one["status"] != "skipped"]
    assert [(one["status"], one["wrong"]) for one in wrong] == [("wrong", 1)] * 2
    assert all("first on rank 1 at 0" in str(one["note"]) for one in wrong)


@pytest.mark.slow
def test_nothing_is_compared_where_nobody_asks_for_it(place: Path, call: Call) -> None:
    (place / "unchecked.toml").write_text(SUITE.replace("iters = 20", "iters = 20\ncheck = 0"))
    words = ("-g", "2", "--inject", "corrupt:1", "--output", "unchecked.jsonl")
    done = call("run", "unchecked.toml", *words)
    assert done.returncode == 0, done.stderr
    unchecked = [one for one in records(place / "unchecked.jsonl") if one["status"] == "ok"]
    assert [one.get("wrong") for one in unchecked] == [None, None]


@pytest.fixture
def faulty(place: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A copy of the feature with a fault, under another name, and a suite of that name."""
    name, package = request.param, place / "lib" / "collbench"
    shutil.copytree(STRANGER, package / "features" / name)
    for path in (package / "features" / name).glob("*.py"):
        text = path.read_text().replace("pingpong", name)
        path.write_text(text.replace(*FAULTY[name]) if path.stem == "trial" else text)
    names = package / "features" / "__init__.py"
    before = names.read_text()
    add_name(package, name)
    (place / f"{name}.toml").write_text(SUITE.replace("pingpong", name))
    yield name
    names.write_text(before)
    shutil.rmtree(package / "features" / name)


@pytest.mark.slow
@pytest.mark.parametrize("faulty", ["never_asks"], indirect=True)
def test_a_kind_that_never_asks_for_planted_faults_gets_no_time(
    place: Path, call: Call, faulty: str
) -> None:
    words = ("-g", "2", "--output", f"{faulty}.jsonl")
    done = call("run", f"{faulty}.toml", *words, "--inject", "corrupt:1")
    assert done.returncode == Exit.CANNOT_RUN, done.stderr
    failed = [one for one in records(place / f"{faulty}.jsonl") if one["status"] == "failed"]
    assert len(failed) == 2 and all("no fault was planted" in str(one["note"]) for one in failed)


@pytest.mark.slow
@pytest.mark.parametrize("faulty", ["loses_messages"], indirect=True)
def test_an_old_answer_is_no_right_one(place: Path, call: Call, faulty: str) -> None:
    done = call("run", f"{faulty}.toml", "-g", "2", "--output", f"{faulty}.jsonl")
    assert done.returncode == Exit.WRONG_DATA, done.stderr


@pytest.mark.slow
def test_a_run_that_was_cut_is_resumed(ran: Path, call: Call) -> None:
    cut(ran, "cut.jsonl")
    done = call("run", "--resume", "cut.jsonl")
    assert done.returncode == 0, done.stderr
    assert sum(one["status"] == "ok" for one in records(ran / "cut.jsonl")) == 2


@pytest.mark.slow
def test_it_is_reported_and_compared(ran: Path, call: Call) -> None:
    done = call("report", "run.jsonl", "-o", "page.html")
    assert done.returncode == 0, done.stderr
    assert "pingpong of 4096 B" in (ran / "page.html").read_text()
    text = (ran / "run.jsonl").read_text()
    name = json.loads(text.splitlines()[0])["id"]
    (ran / "again.jsonl").write_text(text.replace(name, name[:-1] + "x"))
    done = call("compare", "run.jsonl", "again.jsonl", "--format", "json")
    assert done.returncode == 3  # one launch a side: no verdict
    compared = json.loads(done.stdout)["rows"]
    assert {row["case"]["step"] for row in compared} == TITLES


@pytest.mark.slow
def test_its_runs_are_shown_where_it_is_not_installed(ran: Path, call: Call) -> None:
    done = call("report", "run.jsonl", "--format", "md", "-o", "bare.md", has_feature=False)
    assert done.returncode == 0, done.stderr
    assert all(title in (ran / "bare.md").read_text() for title in TITLES)


@pytest.mark.slow
def test_a_run_is_not_resumed_where_it_is_not_installed(ran: Path, call: Call) -> None:
    cut(ran, "half.jsonl")
    done = call("run", "--resume", "half.jsonl", has_feature=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "no feature of this installation" in done.stderr
