"""Backends from outside of the package: in files that commands and suites name, in packages that
announce them, in modules that register them with torch.distributed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from paths import before

from collbench.core.errors import Exit
from collbench.records import run_file, store
from collbench.records.types import RunFile
from collbench.run.backends import _skeleton

SKELETON = Path(_skeleton.__file__).read_text()
ROW = ("all_reduce", "-g", "2", "--sizes", "1K", "-n", "3", "-w", "1", "--place", "out")
SUITE = """
description = "one row"
[axes]
collectives = ["all_reduce"]
sizes = ["1K"]
ranks = [2]
backends = ["{backend}"]
in_place = [false]
[policy]
iters = 3
warmup = 1
"""
PLUGIN = """
import torch.distributed as dist

def make(store, rank, size, limit):
    return dist.ProcessGroupGloo(store, rank, size, limit)

dist.Backend.register_backend("lent", make, devices=["cpu"])
"""
NOISY = ("        import numpy\n\n", "        import numpy\n\n        print('NOISE', flush=True)\n")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an example of a backend in my.py."""
    place = tmp_path / "here"
    place.mkdir()
    (place / "my.py").write_text(SKELETON)
    monkeypatch.chdir(place)
    return place


def write_variant(path: Path, *changes: tuple[str, str]) -> None:
    """Write the example with some of its text replaced."""
    text = SKELETON
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def last_run() -> RunFile:
    """The run that was saved last."""
    return run_file.read_file(store.list_saved()[-1])


@pytest.fixture(scope="module")
def suite_run(warm, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, RunFile]:
    """A suite in a folder of its own, whose backends are files beside it: one as it is, one whose
    function has another name, one that prints, and one that keeps its result to itself; what the
    command printed, and its run."""
    folder = tmp_path_factory.mktemp("suite")
    write_variant(folder / "my.py")
    write_variant(folder / "second.py", ("def create(", "def other("))
    write_variant(folder / "noisy.py", NOISY)
    write_variant(folder / "withheld.py", ("if result is not None:", "if False:"))
    files = '", "'.join(("./my.py", "./second.py:other", "./noisy.py", "./withheld.py"))
    suite, path = write_suite(folder / "one.toml", files), folder / "run.jsonl"
    done = warm("run", suite, "--format", "csv", "--output", str(path))
    assert done.returncode == Exit.WRONG_DATA, done.stderr
    return done.stdout, done.stderr, run_file.read_file(path)


@pytest.fixture(scope="module")
def whole_run(warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two cases by ./my.py, as a command in its folder."""
    folder = tmp_path_factory.mktemp("whole")
    write_variant(folder / "my.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = ("--sizes", "1K,2K", "--backend", "./my.py", "--output", "run.jsonl")
        done = warm(*ROW, *options)
    assert done.returncode == Exit.OK, done.stderr
    return folder / "run.jsonl"


def list_outcomes(run: RunFile) -> list[tuple[str, str, int | None]]:
    """Backend, status and wrong elements of each record."""
    return [(record.case.backend, record.status, record.wrong) for record in run.records]


def assert_usage(done: subprocess.CompletedProcess[str], message: str, hint: str) -> None:
    """A usage error is a line, with a hint in another, and exits 2."""
    assert done.returncode == Exit.USAGE, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 2, done.stderr
    assert message in lines[0] and hint in lines[1], done.stderr


# named by a command


def test_ranks_run_a_file(whole_run: Path) -> None:
    assert list_outcomes(run_file.read_file(whole_run)) == [("my", "ok", 0)] * 2


def test_a_planted_wrong_result_of_a_file_is_found(cli) -> None:
    assert cli(*ROW, "--backend", "./my.py", "--inject", "corrupt:1").returncode == Exit.WRONG_DATA
    ((_, status, wrong),) = list_outcomes(last_run())
    assert status == "wrong" and wrong


def test_ranks_of_torchrun_run_a_file(warm) -> None:
    done = warm.join(2, "all_reduce", *ROW[3:], "--backend", "./my.py")
    assert done.returncode == Exit.OK, done.stderr
    assert list_outcomes(last_run()) == [("my", "ok", 0)]


@pytest.mark.slow
def test_a_file_is_planned_without_torch(bare) -> None:
    done = bare(*ROW, "--backend", "./my.py", "--dry-run")
    assert done.returncode == Exit.OK, done.stderr
    assert "all_reduce, 2 ranks, my, float, sum" in done.stdout


def test_its_refusals_are_skips_with_their_reasons(inside) -> None:
    done = inside("scan", "-g", "2", "--sizes", "1K", "--backend", "./my.py,gloo", "--dry-run")
    assert "this library has no scan" in done.stdout + done.stderr


def test_its_name_may_be_said_by_its_info(inside, folder: Path) -> None:
    write_variant(
        folder / "My-Backend.py", ("    contract=1,", '    contract=1,\n    name="mine",')
    )
    done = inside(*ROW, "--backend", "./My-Backend.py", "--dry-run")
    assert done.returncode == Exit.OK, done.stderr
    assert "2 ranks, mine, float" in done.stdout


# named by a suite, a side of an experiment


def write_suite(path: Path, backend: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(SUITE.format(backend=backend))
    return str(path)


@pytest.mark.slow
def test_a_suite_names_files_relative_to_itself(suite_run: tuple[str, str, RunFile]) -> None:
    right = [outcome for outcome in list_outcomes(suite_run[2]) if outcome[0] != "withheld"]
    assert sorted(right) == [("my", "ok", 0), ("noisy", "ok", 0), ("second", "ok", 0)]


def test_a_result_that_a_file_withholds_is_found(suite_run: tuple[str, str, RunFile]) -> None:
    (wrong,) = (status for name, status, _ in list_outcomes(suite_run[2]) if name == "withheld")
    assert wrong == "wrong"


def test_what_a_backend_prints_is_not_among_the_rows(suite_run: tuple[str, str, RunFile]) -> None:
    out, err, _ = suite_run
    assert "NOISE" not in out and "NOISE" in err
    assert len(out.splitlines()) == 1 + 4, out


def test_a_suite_whose_file_is_not_there_is_refused(inside, folder: Path) -> None:
    done = inside("run", write_suite(folder / "one.toml", "./gone.py"), "--dry-run")
    assert_usage(done, "one.toml: [axes], backends: no file ./gone.py", "name a backend's file")


def test_a_file_is_a_side_of_an_experiment(inside, folder: Path) -> None:
    suite = write_suite(folder / "one.toml", "gloo")
    done = inside("ab", "--suite", suite, "--head", "backend:./my.py", "--dry-run")
    assert done.returncode == Exit.OK, done.stderr
    assert "my" in done.stdout


def test_a_side_whose_file_is_not_there_is_refused(inside, folder: Path) -> None:
    suite = write_suite(folder / "one.toml", "gloo")
    done = inside("ab", "--suite", suite, "--head", "backend:./gone.py", "--dry-run")
    assert_usage(done, "--head: no file ./gone.py", "name a backend's file")


@pytest.mark.slow
def test_ranks_of_an_experiment_run_a_file(cli, folder: Path) -> None:
    suite = write_suite(folder / "one.toml", "gloo")
    rounds = ("--rounds", "6,6", "--budget", "0")
    done = cli("ab", "--suite", suite, "--head", "backend:./my.py", *rounds, timeout=280)
    base, head = map(run_file.read_file, store.list_saved()[-2:])
    assert {outcome[:2] for outcome in list_outcomes(base)} == {("gloo", "ok")}, done.stderr
    assert {outcome[:2] for outcome in list_outcomes(head)} == {("my", "ok")}, done.stderr


# announced by a package


@pytest.fixture
def package(folder: Path) -> str:
    """A PYTHONPATH with an installed package that announces the backend ``lent``."""
    place = folder / "site"
    meta = place / "x-1.0.dist-info"
    meta.mkdir(parents=True)
    (place / "x_backend.py").write_text(SKELETON)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[collbench.backends]\nlent = x_backend\n")
    return before(place)


def test_ranks_run_what_a_package_announces(cli, package: str) -> None:
    done = cli(*ROW, "--backend", "lent", PYTHONPATH=package)
    assert done.returncode == Exit.OK, done.stderr
    assert list_outcomes(last_run()) == [("lent", "ok", 0)]
    libraries = last_run().run.environment["libraries"]
    assert libraries["x"] == "1.0" and "my.py" not in libraries  # which it does not depend on


def test_a_package_that_cannot_be_loaded_does_not_keep_others_from_running(
    cli, package: str, folder: Path
) -> None:
    (folder / "site/x_backend.py").write_text("import gone_away\n")
    done = cli(*ROW, "--backend", "lent", "--dry-run", PYTHONPATH=package)
    assert_usage(done, "backend lent cannot be loaded: x_backend of x 1.0", "package")
    assert cli(*ROW, "--backend", "gloo", "--dry-run", PYTHONPATH=package).returncode == Exit.OK


def test_list_names_what_a_package_announces(cli, package: str) -> None:
    done = cli("list", PYTHONPATH=package)
    assert "lent" in done.stdout and "numpy arrays, pickled and sent by Gloo" in done.stdout


# edited


@pytest.mark.slow
def test_an_edited_file_is_another_library(cli, whole_run: Path, folder: Path) -> None:
    (folder / "my.py").write_text(SKELETON + "\n# edited\n")
    assert cli(*ROW, "--backend", "./my.py").returncode == Exit.OK
    runs = (run_file.read_file(whole_run), last_run())
    before, after = (run.run.environment["libraries"]["my.py"] for run in runs)
    assert before != after
    done = cli("compare", str(whole_run), "@last")
    assert f"libraries.my.py {before} -> {after}" in done.stdout + done.stderr
    report = cli("report", "@last", "--format", "md")
    assert f"my.py {after}" in report.stdout, report.stderr


# what is refused


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ((("def create(", "def make("),), "my.py has no function create(name)", "help backends"),
        ((("INFO = ", "INFORMATION = "),), "my.py has no INFO", "help backends"),
        ((("    contract=1,\n", ""),), "my.py names no contract", "set contract=1"),
        ((("contract=1", "contract=2"),), "my.py is made for contract 2", "set contract=1"),
        (
            (("from typing import Any", "from typing import Any\nimport gone_away"),),
            "my.py cannot be loaded: ModuleNotFoundError: No module named 'gone_away'",
            "run python",
        ),
        ((("INFO = ", "INFO = = "),), "my.py cannot be loaded: SyntaxError", "run python"),
        (
            (("contract=1", 'contract=1, name="gloo"'),),
            "my.py: a backend of collbench's own has the name gloo",
            "rename the file",
        ),
        ((('groups="partition"', 'groups="some"'),), "groups of its INFO is 'some'", '"any"'),
        (
            (("contract=1", 'contract=1, name="all"'),),
            "'all' is a reserved word",
            "set name in its INFO",
        ),
        (
            (("    if case.collective not in", "    1 / 0\n    if case.collective not in"),),
            "backend my: refuse of its INFO raised ZeroDivisionError: division by zero",
            "or an empty string",
        ),
    ],
)
def test_a_file_that_does_not_keep_the_contract_is_refused(
    inside, folder: Path, changes: Sequence[tuple[str, str]], message: str, hint: str
) -> None:
    write_variant(folder / "my.py", *changes)
    assert_usage(inside(*ROW, "--backend", "./my.py", "--dry-run"), message, hint)


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("./gone.py", "no file ./gone.py", "name a backend's file: ./my.py"),
        ("./my.py:other", "my.py has no function other(name)", "help backends"),
        ("./gloo.py", "gloo.py: a backend of collbench's own has the name gloo", "rename the file"),
        ("./My-Backend.py", "'My-Backend' is no name for a backend", "a letter first"),
        ("./my.py,other/my.py", "my.py has the name my already", "rename the file"),
    ],
)
def test_a_word_that_names_no_backend_is_refused(
    inside, folder: Path, word: str, message: str, hint: str
) -> None:
    (folder / "other").mkdir()
    for name in ("gloo.py", "My-Backend.py", "other/my.py"):
        (folder / name).write_text(SKELETON)
    assert_usage(inside(*ROW, "--backend", word, "--dry-run"), message, hint)


# a run that goes on


@pytest.fixture
def cut_short(whole_run: Path, folder: Path) -> Path:
    """A run of the file's backend that lacks its last record and its end."""
    path = folder / "run.jsonl"
    lines = whole_run.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]))
    return path


def test_a_run_goes_on_once_its_file_is_named(cli, cut_short: Path) -> None:
    done = cli("run", "--resume", str(cut_short), "--backend", "./my.py")
    assert done.returncode == Exit.OK, done.stderr
    resumed = run_file.read_file(cut_short)
    assert list_outcomes(resumed) == [("my", "ok", 0)] * 2 and resumed.end


def test_a_run_whose_file_is_not_named_runs_nothing(cli, cut_short: Path, folder: Path) -> None:
    (folder / "my.py").write_text("open('ran', 'w')\n")
    content = cut_short.read_bytes()
    done = cli("run", "--resume", str(cut_short))
    assert_usage(done, "my is in a file that --backend must name", "add --backend ./my.py")
    assert cut_short.read_bytes() == content
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("./other.py", "the run has no backend other of other.py", "backends are my"),
        ("gloo", "--backend gloo names no file", "./my.py"),
    ],
)
def test_a_run_goes_on_with_its_own_files_alone(
    cli, cut_short: Path, folder: Path, word: str, message: str, hint: str
) -> None:
    (folder / "other.py").write_text(SKELETON)
    assert_usage(cli("run", "--resume", str(cut_short), "--backend", word), message, hint)


def test_a_run_does_not_go_on_with_an_edited_file(cli, cut_short: Path, folder: Path) -> None:
    (folder / "my.py").write_text(SKELETON + "\n# edited\n")
    done = cli("run", "--resume", str(cut_short), "--backend", "./my.py")
    assert_usage(
        done, "cannot be resumed: the software differs: libraries.my.py", "start a new run"
    )


# registered with torch.distributed


@pytest.fixture
def plugin(folder: Path) -> str:
    """A PYTHONPATH with a module that registers the backend ``lent`` when it is imported."""
    (folder / "lent_plugin.py").write_text(PLUGIN)
    return before(folder)


def test_ranks_run_what_an_imported_module_registers(cli, plugin: str) -> None:
    done = cli(*ROW, "--backend", "lent", "--import", "lent_plugin", PYTHONPATH=plugin)
    assert done.returncode == Exit.OK, done.stderr
    assert list_outcomes(last_run()) == [("lent", "ok", 0)]


def test_an_unknown_name_is_hinted_at_import(cli, plugin: str) -> None:
    done = cli(*ROW, "--backend", "lent", PYTHONPATH=plugin)
    assert_usage(done, "unknown backend 'lent'", "--import MODULE that registers it with torch")


def test_a_name_that_no_imported_module_registers_is_told(cli, plugin: str) -> None:
    done = cli(*ROW, "--backend", "borrowed", "--import", "lent_plugin", PYTHONPATH=plugin)
    assert done.returncode == Exit.CANNOT_RUN, done.stderr
    assert "borrowed" in done.stderr and "lent_plugin" in done.stderr


def test_a_module_that_is_not_there_is_refused(inside) -> None:
    done = inside(*ROW, "--backend", "lent", "--import", "gone_away", "--dry-run")
    assert_usage(done, "--import gone_away: there is no such module", "PYTHONPATH")


def test_a_module_that_raises_on_ranks_is_told(cli, plugin: str, folder: Path) -> None:
    (folder / "lent_plugin.py").write_text("1 / 0\n")
    done = cli(*ROW, "--backend", "lent", "--import", "lent_plugin", PYTHONPATH=plugin)
    assert done.returncode == Exit.CANNOT_RUN, done.stderr
    assert "--import lent_plugin: ZeroDivisionError: division by zero" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("run", "{suite}"),
        ("ab", "--suite", "{suite}", "--base", "backend:gloo"),
        ("order", "all_reduce", "--backend", "lent", "-g", "2", "-e", "1K"),
        ("workload", "ddp:toy", "--backend", "lent", "-g", "2"),
    ],
)
def test_commands_import_modules(cli, plugin: str, folder: Path, words: Sequence[str]) -> None:
    suite = write_suite(folder / "one.toml", "lent")
    command = [word.format(suite=suite) for word in words]
    done = cli(*command, "--import", "lent_plugin", "--dry-run", PYTHONPATH=plugin)
    assert done.returncode == Exit.OK, done.stderr


@pytest.mark.slow
def test_ranks_of_a_suite_import_modules(cli, plugin: str, folder: Path) -> None:
    suite = write_suite(folder / "one.toml", "lent")
    done = cli("run", suite, "--import", "lent_plugin", PYTHONPATH=plugin)
    assert done.returncode == Exit.OK, done.stderr
    assert list_outcomes(last_run()) == [("lent", "ok", 0)]
