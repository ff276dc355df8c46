"""What tests share: a private home for runs, and the command line as a user runs it."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from forked import Server

Cli = Callable[..., subprocess.CompletedProcess[str]]
TESTS = Path(__file__).parent
LONG = ("backends", "ranks", "lab", "test_house.py", "cli", "browser")  # what takes long, in order
REAL = ("backends", "ranks", "lab", "browser")  # whose tests share the cores with whatever runs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that no worker of several has one left when the others are done. A test
    of real ranks that fails is run again, up to twice, which pytest's summary tells of; one of pure
    code is not."""
    place = {name: number for number, name in enumerate(LONG)}
    parts = {path: path.relative_to(TESTS).parts[0] for path in {item.path for item in items}}
    items.sort(key=lambda item: place.get(parts[item.path], len(LONG)))
    for item in items:
        if parts[item.path] in REAL:
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=3))


def pytest_sessionstart() -> None:
    """Nothing is garbage while some thousands of tests and the modules that they import are made:
    looking for it took a third of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Nor is it looked for among these, which live as long as the session."""
    gc.enable()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What processes leave in TMPDIR goes with the session. The paths of sockets lie below it, and
    are to be short."""
    tmp_path_factory.getbasetemp()  # which stays where it was
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="cb-")
    yield
    shutil.rmtree(tempfile.tempdir, ignore_errors=True)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders that nobody has made yet, and whose parent is there."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def home(homes: Iterator[Path]) -> Iterator[Path]:
    """Runs of a test are kept apart from the user's and from other tests'. What a test, or a rank
    that it plays, leaves in the environment does not reach the next. The folder is made by what
    writes to it: most tests write nothing, and a ``tmp_path`` for each would take as long as all
    else that pytest does for it."""
    before = dict(os.environ)
    folder = next(homes)
    os.environ["COLLBENCH_HOME"] = str(folder)
    yield folder
    after = dict(os.environ)
    for name in after.keys() - before.keys():
        del os.environ[name]
    for name, value in before.items():  # to write all would take a tenth of what pytest takes
        if after.get(name) != value:
            os.environ[name] = value


@pytest.fixture
def cold() -> Cli:
    """Run ``collbench ARGS`` in a new Python; the result has returncode, stdout and stderr."""

    def run(*args: str, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "collbench", *args],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def cli(cold: Cli) -> Cli:
    """As ``cold``, or where a folder of tests says so by a quicker way."""
    return cold


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """As ``cli``, without a process for each command."""
    from collbench.cli.main import main

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["collbench", *args])
        with pytest.raises(SystemExit) as end:
            main()
        code = int(end.value.code or 0)
        return subprocess.CompletedProcess(args, code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As ``cli``, where torch cannot be imported. Each command is a process of its own, but
    collbench is imported and its options are made once for all of them."""
    server = Server(tmp_path_factory.mktemp("bare"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def warm() -> Iterator[object]:
    """As ``cli``, and ``warm.start`` for a command under way: each is a process of its own, but
    collbench and torch are loaded once for all of them and for the fork servers of their ranks."""
    from warm import Warm

    found = Warm()
    yield found
    found.close()
