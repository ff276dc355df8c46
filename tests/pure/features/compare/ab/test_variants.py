"""The two sides of an experiment: their words, their interpreters, and revisions built for them."""

from __future__ import annotations

import errno
import fcntl
import shutil
import subprocess
import sys
import sysconfig
import venv
from contextlib import closing
from pathlib import Path
from typing import TextIO

import pytest

import collbench
from collbench.core.errors import CannotRun, UsageError
from collbench.features.compare.ab import variants
from collbench.features.compare.ab.variants import (
    Build,
    apply_variant,
    parse_variant,
    refuse_unfit,
    settle_home,
    settle_homes,
)
from collbench.machine import environment
from collbench.run.launch.interpreter import Variant
from collbench.suite.case import Case


def test_words_become_fields() -> None:
    side = parse_variant(
        "git:main python:{tree}/.venv 'NCCL_ALGO=Ring,Tree' backend:shm algo:chain:segments=4",
        "--head",
    )
    assert (side.revision, side.python) == ("main", "{tree}/.venv")
    assert (side.backend, side.algorithm) == ("shm", "chain:segments=4")
    assert side.env == (("NCCL_ALGO", "Ring,Tree"),)
    assert side.differs == ("backend", "algorithm")
    assert parse_variant("", "--base") == Variant(text="")
    assert parse_variant("X='two words' Y=", "--base").env == (("X", "two words"), ("Y", ""))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ring", "'ring' is not understood"),
        ("backend:", "'backend:' is not understood"),
        ("speed:high", "'speed:high' is not understood"),
        ("algo:ring algo:tree", "algo is given twice"),
        ("'unclosed", "No closing quotation"),
        ("MY_TOKEN=abc", "which no run's file keeps"),
        ("1X=2", "'1X=2' is not understood"),
    ],
)
def test_what_is_not_understood_is_named_with_its_option(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_variant(text, "--head")
    assert words in caught.value.message and "--head" in caught.value.message
    assert caught.value.hint


def test_a_side_replaces_backend_and_algorithm_and_says_each_case_once() -> None:
    cases = [
        Case(collective="all_reduce", backend=b, n=2, nbytes=8, op="sum") for b in ("gloo", "mpi")
    ]
    (only,) = apply_variant(cases, parse_variant("backend:shm algo:ring", "--head"))
    assert only.label == "ring@shm"
    assert apply_variant(cases, parse_variant("X=1", "--head")) == cases


@pytest.mark.parametrize(
    ("word", "name"), [("recursive-doubling", "recursive_doubling"), ("tree", "reduce_broadcast")]
)
def test_a_sides_algorithm_has_its_proper_name(word: str, name: str) -> None:
    (side,) = apply_variant(
        [Case(collective="all_reduce", backend="shm", n=2, nbytes=8, op="sum")],
        parse_variant(f"algo:{word}", "--head"),
    )
    assert side.algorithm == name


def test_settings_reach_the_ranks_and_the_description(tmp_path: Path) -> None:
    home = settle_home(parse_variant("NCCL_ALGO=Ring", "--head"), Build(""), "--head", tmp_path)
    assert home.python == sys.executable
    assert home.settings["NCCL_ALGO"] == "Ring"
    assert home.described["variables"]["NCCL_ALGO"] == "Ring"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another virtual environment, which has nothing in it."""
    folder = tmp_path_factory.mktemp("other") / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    return folder


def test_another_interpreter_gets_this_harness_and_its_own_packages(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CannotRun, match="has no torch, numpy, msgspec, psutil") as caught:
        settle_home(parse_variant(f"python:{other}", "--head"), Build(""), "--head", tmp_path)
    assert "-m pip install torch" in caught.value.hint
    packages = next(other.glob("lib/python*/site-packages"))
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    home = settle_home(parse_variant(f"python:{other}", "--head"), Build(""), "--head", tmp_path)
    assert home.python == str(other / "bin" / "python")
    where = "import collbench; print(collbench.__file__)"
    said = subprocess.run(
        [home.python, "-c", where], env=home.settings, capture_output=True, text=True, check=True
    )
    assert Path(said.stdout.strip()).resolve() == Path(collbench.__file__)
    assert "collbench-alone" in said.stdout


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("python:/nowhere/python", UsageError, "there is no interpreter"),
        ("python:/bin/false", CannotRun, "cannot run collbench"),
        ("LIB={tree}/lib.so", UsageError, "add git:REV"),
        ("git:main X={tree}", UsageError, "needs a git repository"),
        ("git:main", UsageError, "nothing uses it"),
        ("LD_PRELOAD=/nowhere/lib.so", UsageError, "cannot be preloaded"),
    ],
)
def test_a_side_that_cannot_be_is_refused(
    text: str, error: type, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        settle_home(parse_variant(text, "--base"), Build(""), "--base", tmp_path)
    assert words in f"{caught.value.message} {caught.value.hint}"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two commits of a file that says which one it is."""
    folder = tmp_path / "my.library"
    folder.mkdir()
    monkeypatch.chdir(folder)
    who = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], check=True)
    for text in ("one", "two"):
        (folder / "version").write_text(text)
        subprocess.run(["git", "add", "version"], check=True)
        subprocess.run(["git", *who, "commit", "--quiet", "-m", text], check=True)
    return folder


@pytest.mark.usefixtures("same_software")
def test_revisions_are_built_apart_once_and_leave_the_repository_alone(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "version").write_text("not committed")
    build = "echo built >> log && cp version copy"
    homes = {
        revision: settle_home(
            parse_variant(f"git:{revision} COPY={{tree}}/copy", "--base"),
            Build(build),
            "--base",
            tmp_path,
        )
        for revision in ("main~1", "main", "main~1")
    }
    copies = {revision: Path(home.settings["COPY"]) for revision, home in homes.items()}
    assert {revision: copy.read_text() for revision, copy in copies.items()} == {
        "main~1": "one",
        "main": "two",
    }
    assert copies["main~1"].with_name("log").read_text() == "built\n"
    assert (
        homes["main"].described["git"]["revision"] != homes["main~1"].described["git"]["revision"]
    )
    status = subprocess.run(
        ["git", "status", "--short"], capture_output=True, text=True, check=True
    )
    assert status.stdout == " M version\n"
    assert (
        subprocess.run(
            ["git", "worktree", "list"], capture_output=True, text=True, check=True
        ).stdout.count("\n")
        == 1
    )


@pytest.mark.usefixtures("same_software")
def test_a_remotes_branch_is_built_in_a_shallow_checkout(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CI has it: of the branch that is checked out the last commit, and of main."""
    shallow = tmp_path / "shallow"
    for words in (
        ["switch", "--quiet", "--create", "topic", "main~1"],
        ["clone", "--quiet", "--depth=1", repository.as_uri(), str(shallow)],
        ["-C", str(shallow), "fetch", "--quiet", "--depth=1", "origin", "main:main-of-origin"],
        ["-C", str(shallow), "update-ref", "refs/remotes/origin/main", "main-of-origin"],
        ["-C", str(shallow), "branch", "--quiet", "-D", "main-of-origin"],
    ):
        subprocess.run(["git", *words], check=True)
    monkeypatch.chdir(shallow)
    copies = [
        settle_home(
            parse_variant(f"git:{revision} X={{tree}}/version", "--base"),
            Build(""),
            "--base",
            tmp_path,
        ).settings["X"]
        for revision in ("origin/main", "topic")
    ]
    assert [Path(copy).read_text() for copy in copies] == ["two", "one"]


@pytest.mark.usefixtures("same_software")
def test_a_build_that_fails_says_where_and_is_tried_again(
    repository: Path, home: Path, tmp_path: Path
) -> None:
    side = parse_variant("git:main X={tree}", "--head")
    with pytest.raises(CannotRun, match="ended with status 3"):
        settle_home(side, Build("test -e ../allow || exit 3"), "--head", tmp_path)
    (home / "builds" / "allow").touch()
    assert Path(
        settle_home(side, Build("test -e ../allow || exit 3"), "--head", tmp_path).settings["X"]
    ).is_dir()


def test_an_unknown_revision_hints_at_fetching(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no revision 'v9'") as caught:
        settle_home(parse_variant("git:v9 X={tree}", "--base"), Build(""), "--base", tmp_path)
    assert "fetch-depth" in caught.value.hint


def test_a_misspelt_revision_hints_at_the_branch_or_tag(repository: Path) -> None:
    subprocess.run(["git", "tag", "v2.29.3"], check=True)
    with pytest.raises(UsageError, match=r"no revision 'v2\.29\.2'") as caught:
        refuse_unfit(parse_variant("git:v2.29.2 X={tree}", "--base"), "--base")
    assert caught.value.hint == "did you mean v2.29.3?"


def test_what_is_no_commit_is_no_revision(repository: Path) -> None:
    with pytest.raises(UsageError, match="no revision 'main:version'"):
        refuse_unfit(parse_variant("git:main:version X={tree}", "--base"), "--base")


def test_a_side_is_looked_over_without_building_it(repository: Path, home: Path) -> None:
    refuse_unfit(parse_variant("git:main~1 python:{tree}/.venv", "--base"), "--base")
    assert not home.exists()


@pytest.mark.usefixtures("same_software")
def test_the_current_folder_is_neither_sides_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else `ab` in a library's checkout would measure the checkout twice."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mylib.py").write_text("where = 'checkout'")
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "mylib.py").write_text("where = 'built'")
    home = settle_home(
        parse_variant(f"PYTHONPATH={tmp_path}/built", "--base"), Build(""), "--base", tmp_path
    )
    ask = [home.python, "-c", "import mylib, collbench; print(mylib.where)"]
    assert (
        subprocess.run(ask, env=home.settings, capture_output=True, text=True, check=True).stdout
        == "built\n"
    )


@pytest.mark.usefixtures("same_software")
def test_a_hooks_git_variables_do_not_lead_into_the_users_repository(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    settle_home(
        parse_variant("git:main~1 X={tree}", "--base"),
        Build('test -z "$GIT_DIR"'),
        "--base",
        tmp_path,
    )
    monkeypatch.delenv("GIT_DIR")
    head = subprocess.run(
        ["git", "symbolic-ref", "HEAD"], capture_output=True, text=True, check=True
    )
    assert head.stdout == "refs/heads/main\n"


@pytest.mark.usefixtures("same_software")
def test_a_result_is_kept_until_it_is_gone_or_a_rebuild_is_asked_for(
    repository: Path, home: Path, tmp_path: Path
) -> None:
    side, log = parse_variant("git:main X={tree}", "--base"), tmp_path / "log"

    def built(again: bool = False) -> int:
        with closing(Build(f"echo >> {log}", again)) as build:
            tree = Path(settle_home(side, build, "--base", tmp_path).settings["X"])
        assert (tree / "version").read_text() == "two"
        return log.read_text().count("\n")

    assert [built(), built(), built(again=True)] == [1, 1, 2]
    shutil.rmtree(next(path for path in (home / "builds").iterdir() if path.is_dir()))
    assert built() == 3


@pytest.mark.usefixtures("same_software")
def test_a_tree_that_is_measured_is_not_rebuilt(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    side, lock, began = parse_variant("git:main X={tree}", "--base"), fcntl.flock, False

    def flock(file: object, kind: int) -> None:
        nonlocal began
        if kind == fcntl.LOCK_EX and not began:  # would wait until the other one has ended
            began = True
            assert (tree / "version").exists()
            measuring.close()
        lock(file, kind)  # type: ignore[arg-type]

    with closing(Build("")) as measuring, closing(Build("")) as other:
        tree = Path(settle_home(side, measuring, "--base", tmp_path).settings["X"])
        settle_home(side, other, "--base", tmp_path)  # may measure it as well
        other.close()
        (tree / "mark").touch()
        monkeypatch.setattr(fcntl, "flock", flock)
        with closing(Build("", again=True)) as again:
            settle_home(side, again, "--base", tmp_path)
            settle_home(side, again, "--head", tmp_path)  # waits for no lock of its own
    assert began and not (tree / "mark").exists()
    assert f"waiting for another collbench ab, which uses {tree}" in capfd.readouterr().err


@pytest.mark.usefixtures("same_software")
def test_a_revision_is_built_on_a_file_system_without_locks(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: object, kind: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    side = parse_variant("git:main X={tree}", "--base")
    with closing(Build("")) as build:
        assert Path(settle_home(side, build, "--base", tmp_path).settings["X"]).is_dir()


@pytest.mark.usefixtures("same_software")
def test_a_lock_that_fails_is_no_file_system_without_locks(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: TextIO, kind: int) -> None:
        assert file.readable() and file.writable()  # NFS has no other locks
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    side = parse_variant("git:main X={tree}", "--base")
    with closing(Build("")) as build, pytest.raises(CannotRun) as caught:
        settle_home(side, build, "--base", tmp_path)
    assert "cannot lock" in caught.value.message and "COLLBENCH_HOME" in caught.value.hint


@pytest.mark.usefixtures("same_software")
@pytest.mark.parametrize("again", [False, True])
def test_crossed_experiments_lock_trees_in_one_order_before_they_build(
    again: bool, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, orders = fcntl.flock, []

    def flock(file: TextIO, kind: int) -> None:
        if kind & fcntl.LOCK_EX:
            orders[-1].append(file.name)
        lock(file, kind)

    def build_nothing(*_: object) -> None:
        assert len(set(orders[-1])) == 2

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(variants, "_run_build", build_nothing)
    first, second = (parse_variant(f"git:{rev} X={{tree}}", "") for rev in ("main", "main~1"))
    for base, head in ((first, second), (second, first)):
        orders.append([])
        with closing(Build(f"true {again}", again)) as build:
            settle_homes({"base": base, "head": head}, build, tmp_path)
    assert orders[0] == orders[1] == sorted(orders[0])


@pytest.mark.usefixtures("same_software")
def test_submodules_are_there_when_the_build_begins(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    part = tmp_path / "part"
    subprocess.run(["git", "clone", "--quiet", str(repository), str(part)], check=True)
    subprocess.run(["git", "submodule", "--quiet", "add", str(part), "part"], check=True)
    subprocess.run(
        ["git", *("-c", "user.name=t", "-c", "user.email=t@t"), "commit", "-qm", "part"], check=True
    )
    settle_home(
        parse_variant("git:main X={tree}", "--base"),
        Build("test -e part/version"),
        "--base",
        tmp_path,
    )


@pytest.mark.usefixtures("same_software")
def test_sides_that_come_to_the_same_are_refused(repository: Path, tmp_path: Path) -> None:
    sides = {
        "base": parse_variant("git:main X={tree}", "--base"),
        "head": parse_variant("git:HEAD X={tree}", "--head"),
    }
    with pytest.raises(UsageError, match="come to the same"):
        settle_homes(sides, Build(""), tmp_path)
    sides["head"] = parse_variant("git:main~1 X={tree}", "--head")
    assert settle_homes(sides, Build(""), tmp_path)["head"].settings["X"]


def test_a_relative_path_is_that_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python3").symlink_to(sys.executable)
    with pytest.raises(CannotRun, match=str(tmp_path / "python3")):  # beside no packages
        settle_home(parse_variant("python:./python3", "--base"), Build(""), "--base", tmp_path)


def test_hardware_is_what_this_process_sees_whatever_the_sides_interpreters_lack(
    tmp_path: Path,
) -> None:
    described = settle_home(
        parse_variant("NCCL_ALGO=Tree", "--base"), Build(""), "--base", tmp_path
    ).described
    here = environment.gather_facts(Path.cwd())
    assert {key for key in here if here[key] != described[key]} <= {"variables", "memory"}
