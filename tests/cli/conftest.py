"""The command line inside this process, and a PostgreSQL of the machine's own packages for the
tests of a session."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Databases = Callable[[str], str]
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def inside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """As ``cli``, without a process for each command."""
    from collbench.cli.main import main

    def run(*args: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["collbench", *args])
        try:
            main()
            code = 0
        except SystemExit as e:
            code = int(e.code or 0)
        told = capsys.readouterr()
        return Done(args, code, told.out, told.err)

    return run


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Databases]:
    """Makes an empty database of a name, and gives its URL."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found or importlib.util.find_spec("psycopg") is None:
        pytest.skip("no PostgreSQL here: apt-get install postgresql, pip install psycopg[binary]")
    root = os.geteuid() == 0
    folder = Path(tempfile.mkdtemp(prefix="collbench-postgresql-"))  # one that its user may enter
    server = None
    try:
        if root:  # under which PostgreSQL refuses to run
            shutil.chown(folder, "postgres", "postgres")
        who = {"user": "postgres", "group": "postgres", "extra_groups": []} if root else {}
        quiet = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **who}
        binary = found[-1].parent
        made = [
            binary / "initdb",
            "-D",
            folder / "data",
            "-U",
            "tester",
            "-A",
            "trust",
            "--no-sync",
            "-N",
        ]
        subprocess.run(made, check=True, **quiet)
        options = [
            "-c",
            "listen_addresses=",
            "-c",
            f"unix_socket_directories={folder}",
            "-c",
            "fsync=off",
        ]
        server = subprocess.Popen([binary / "postgres", "-D", folder / "data", *options], **quiet)
        _wait(folder, server)
        yield lambda name: _database(folder, name)
    finally:
        if server:
            server.send_signal(signal.SIGINT)  # ends without waiting for those still connected
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(folder: Path, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    for _ in range(300):
        try:
            psycopg.connect(host=str(folder), user="tester", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            assert server.poll() is None, server.stderr and server.stderr.read()
            time.sleep(0.1)
    raise AssertionError("PostgreSQL does not answer")


def _database(folder: Path, name: str) -> str:
    import psycopg

    with psycopg.connect(host=str(folder), user="tester", dbname="postgres", autocommit=True) as to:
        to.execute(f'CREATE DATABASE "{name}"')
    return f"postgresql://tester@/{name}?host={folder}"
