"""Algorithms in files of the user's own, from the command line to ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result
from warm import Warm

from collbench.cli import main
from collbench.core import algorithm_files, algorithms
from collbench.core.errors import Exit, UsageError
from collbench.records import run_file

MANUAL = (files("collbench.cli") / "pages/algorithms.md").read_text()
OTHERS = """

def short(n, cells):
    for rank in range(1, n):
        yield Moves(rank, 0, reduce=True)


def cut(n, cells=3, skip=1):
    for moves in line(n, cells):
        yield Moves(moves.src, moves.dst, [0, 1, 2], reduce=moves.reduce)


def no_generator(n, cells):
    return []


from collbench.core.algorithms import Algorithm

ROW = Algorithm("row", "allreduce", line, "who described it")
TYPO = ROW._replace(collective="all_redcue")
"""


def write_algorithms(folder: Path) -> Path:
    """The manual's own file in a folder, with more below."""
    own = re.search(r"## Your own.*?```python\n(.*?)```", MANUAL, re.DOTALL)
    assert own
    path = folder / "line.py"
    path.write_text(own[1] + OTHERS)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with that file in it."""
    write_algorithms(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(algorithm_files.VARIABLE, "")
    yield tmp_path
    algorithm_files._run_file.cache_clear()
    algorithms.list_catalogue.cache_clear()


def collbench(*args: str) -> Result:
    return CliRunner().invoke(main.app, args)


@pytest.mark.parametrize("name", ["line", "cut", "cut:skip=2", "ROW"])
def test_it_is_proved_and_drawn(folder: Path, name: str) -> None:
    proved = collbench("prove", "all_reduce", f"./line.py:{name}", "-n", "1..9")
    assert proved.exit_code == Exit.OK, proved.output
    assert f"line.py:{name}" in proved.output
    drawn = collbench("show", "all_reduce", f"./line.py:{name}", "-n", "3")
    assert drawn.exit_code == Exit.OK and "step 4" in drawn.output


def test_a_wrong_one_is_found(folder: Path) -> None:
    assert collbench("prove", "all_reduce", "./line.py:short").exit_code == Exit.WRONG_DATA


def test_it_is_predicted_and_exported(folder: Path) -> None:
    options = ["-n", "4", "-e", "1K", "--format", "csv"]
    predicted = collbench("predict", "all_reduce", "--algo", "./line.py:line,ring", *options)
    assert predicted.exit_code == Exit.OK and "line.py:line" in predicted.output
    exported = collbench("export", "all_reduce", "./line.py:line", "-n", "4", "--to", "json")
    assert exported.exit_code == Exit.OK, exported.output


@pytest.fixture(scope="module")
def whole_run(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the file's algorithm beside another."""
    path = write_algorithms(tmp_path_factory.mktemp("whole")).with_name("run.jsonl")
    options = ["--backend", "gloo,shm", "--sizes", "1K,2K", "-g", "2", "-n", "3", "--place", "in"]
    named = ["all_reduce", "--algo", "./line.py:line,ring", *options, "--output", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)
        done = warm(*named)
    assert done.returncode == Exit.OK, done.stderr
    return path


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_ranks_run_it(whole_run: Path, backend: str) -> None:
    records = run_file.read_file(whole_run).records
    own = [r for r in records if (r.case.backend, r.case.algorithm) == (backend, "line.py:line")]
    assert [(record.status, record.wrong) for record in own] == [("ok", 0)] * 2


@pytest.fixture
def cut_short(folder: Path, whole_run: Path) -> Path:
    """A run of the file's algorithm that lacks its last record and its end."""
    path = folder / "run.jsonl"
    lines = whole_run.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]))
    return path


def test_a_run_goes_on_once_its_file_is_named(cut_short: Path, warm: Warm) -> None:
    lacking = len(run_file.read_file(cut_short).records)
    done = warm("run", "--resume", str(cut_short), "--algo", "./line.py:line")
    assert done.returncode == Exit.OK, done.stderr
    found = run_file.read_file(cut_short)
    assert len(found.records) == lacking + 1 and found.end is not None
    assert all(record.status == "ok" for record in found.records)


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        ((), "add --algo ./line.py:line"),
        (("--algo", "./other.py:line"), "it has line.py:line"),
        (("--algo", "ring"), "name one as in ./line.py:line"),
    ],
)
def test_a_run_whose_file_is_not_named_does_not_go_on(
    cut_short: Path, more: tuple[str, ...], hint: str
) -> None:
    before = cut_short.read_bytes()
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(
            main.app, ["run", "--resume", str(cut_short), *more], catch_exceptions=False
        )
    assert caught.value.hint == hint
    assert cut_short.read_bytes() == before


def test_a_suite_takes_no_file_from_the_command_line(folder: Path) -> None:
    with pytest.raises(UsageError, match="--algo is given without --resume"):
        CliRunner().invoke(
            main.app, ["run", "quick", "--algo", "./line.py:line"], catch_exceptions=False
        )


SUITE = """
description = "one row"
[axes]
collectives = ["all_reduce"]
sizes = ["1K"]
ranks = [2]
backends = ["shm"]
in_place = [true]
[policy]
iters = 3
warmup = 0
"""
AB = ["ab", "--suite", "one.toml", "--base", "algo:ring"]


def test_it_is_a_side_of_an_experiment(folder: Path) -> None:
    (folder / "one.toml").write_text(SUITE)
    done = collbench(*AB, "--head", "algo:./line.py:line", "--dry-run")
    assert done.exit_code == Exit.OK, done.output


@pytest.mark.slow
def test_ranks_of_an_experiment_run_it(folder: Path, warm: Warm) -> None:
    (folder / "one.toml").write_text(SUITE)
    rounds = ["--rounds", "6,6", "--budget", "0"]
    warm(*AB, "--head", "algo:./line.py:line", *rounds, COLLBENCH_HOME=str(folder))
    base, head = map(run_file.read_file, sorted((folder / "runs").glob("*.jsonl")))
    assert {record.case.algorithm for record in base.records} == {"ring"}
    assert {(r.case.algorithm, r.status) for r in head.records} == {("line.py:line", "ok")}


def test_a_side_that_names_no_algorithm_is_refused(folder: Path) -> None:
    (folder / "one.toml").write_text(SUITE)
    with pytest.raises(UsageError, match=r"--head: .*has no 'lin'") as caught:
        CliRunner().invoke(main.app, [*AB, "--head", "algo:./line.py:lin"], catch_exceptions=False)
    assert caught.value.hint == "did you mean line?"


def test_the_hint_names_a_file_as_a_command_would(folder: Path) -> None:
    for text in ("line.py:line", "./line.py:line"):
        with pytest.raises(UsageError) as caught:
            algorithms.find_variant("all_reduce", text)
        assert caught.value.hint == "it is in a file that --algo must name, as in ./line.py:line"
    for text in ("line.py", "./line.py"):
        with pytest.raises(UsageError) as caught:
            algorithms.find_variant("all_reduce", text)
        assert caught.value.hint == "name an algorithm that the file has, as in ./line.py:NAME"
    for text in ("my-line.py", "./my-line.py", "a-b/my-line.py"):
        with pytest.raises(UsageError) as caught:
            algorithms.find_variant("all_reduce", algorithms.spell_algorithm(text))
        path = text if "/" in text else f"./{text}"
        assert f"'{text}'" in caught.value.message and caught.value.hint.endswith(f"{path}:NAME")


def test_reading_a_run_loads_no_file(folder: Path) -> None:
    (folder / "line.py").write_text("open('ran', 'w')")
    with pytest.raises(UsageError):
        algorithms.find_variant("all_reduce", "line.py:line")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "word",
    [
        *("./gone.py:line", "./line.py:lin", "./line.py:no_generator", "./line.py:line:speed=3"),
        "./line.py:TYPO",
    ],
)
def test_what_is_no_algorithm_is_refused(folder: Path, word: str) -> None:
    with pytest.raises(UsageError):
        CliRunner().invoke(
            main.app, ["all_reduce", "--algo", word, "-g", "2"], catch_exceptions=False
        )


def test_a_file_that_raises_is_refused(folder: Path) -> None:
    (folder / "broken.py").write_text("1 / 0")
    with pytest.raises(UsageError, match="ZeroDivisionError"):
        algorithms.add_file("./broken.py:line", "all_reduce")


def test_a_file_that_ends_the_process_is_refused(folder: Path) -> None:
    (folder / "ends.py").write_text("raise SystemExit(0)")
    with pytest.raises(UsageError):
        algorithms.add_file("./ends.py:line", "all_reduce")


def test_a_file_may_have_dataclasses_and_a_hyphen_in_its_name(folder: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    text += "@dataclass\nclass Place:\n    rank: int\n" + (folder / "line.py").read_text()
    (folder / "my-line.py").write_text(text)
    options = ["--backend", "shm", "--sizes", "1K", "-g", "2", "--dry-run"]
    named = ["all_reduce", "--algo", "./my-line.py:line", *options]
    done = CliRunner().invoke(main.app, named)
    assert done.exit_code == Exit.OK, done.output
    assert "1 case" in done.output or "2 cases" in done.output


def test_two_files_of_one_name_are_refused(folder: Path) -> None:
    algorithms.add_file("./line.py:line", "all_reduce")
    (folder / "other").mkdir()
    (folder / "other/line.py").write_text((folder / "line.py").read_text())
    with pytest.raises(UsageError):
        algorithms.add_file("other/line.py:line", "all_reduce")


def test_a_rows_collective_that_there_is_not_is_named_with_the_row(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"line\.py:TYPO: unknown collective 'all_redcue'"):
        algorithms.add_file("./line.py:TYPO")


def test_a_generator_needs_a_collective_that_the_command_names(folder: Path) -> None:
    with pytest.raises(UsageError):
        algorithms.add_file("./line.py:line")
    assert algorithms.add_file("./line.py:ROW") == "line.py:ROW"
