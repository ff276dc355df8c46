"""Commands of collbench in processes of their own, forked from one that has imported once what they
need: collbench, where torch cannot be imported; or packages of others, for a copy of collbench.

Started as a script it is that process: an order of a line of JSON makes a child with these
arguments, settings, folder and outputs, and is answered by the child's exit status.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from paths import before

KERNEL = ("core", "survive", "machine", "suite", "records", "show", "cli")  # none needs torch
AT_FIRST_USE = (  # what others import only then, which took each command half of its time
    "typer._adapters",
    "typer._click.decorators",
    "rich._emoji_codes",
    "rich._unicode_data.unicode17-0-0",
    "jinja2",
    "plotly.offline",
    "email.parser",
    "tomllib",
    "zoneinfo",
)


class Server:
    """``server(*args, **env)`` runs ``collbench ARGS``; the result has returncode, stdout and
    stderr. One that is redirected is empty there: as a shell does it (``>PATH``, ``<PATH`` or
    ``>&-``), or to a pipe that nobody reads (``>|``). ``packages`` of others are imported once in
    place of collbench: each command then imports the collbench that PYTHONPATH of its ``env``
    names, and ``-c CODE`` runs code."""

    def __init__(self, folder: Path, *packages: str) -> None:
        self.folder = folder
        if not packages:
            (folder / "torch.py").write_text("raise ImportError('torch must not be needed here')\n")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "forked", *packages],
            env={**os.environ, "PYTHONPATH": before(f"{folder}:{Path(__file__).parent}")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(
        self, *args: str, stdout: str = "", stderr: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        paths = [self.folder / "stdout", self.folder / "stderr"]
        for path in paths:
            path.write_bytes(b"")
        settings = {**os.environ, "PYTHONPATH": before(self.folder), **env}
        order = [
            args,
            settings,
            str(Path.cwd()),
            stdout or f">{paths[0]}",
            stderr or f">{paths[1]}",
        ]
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "what forks commands has ended"
        code = int(answer)
        return subprocess.CompletedProcess(args, code, *[path.read_text() for path in paths])

    def close(self) -> None:
        self._process.communicate()


def serve(packages: list[str]) -> None:
    if packages:
        for name in packages:
            importlib.import_module(name)
    else:
        import_collbench()
    gc.freeze()  # a child need not look through what it did not make
    for line in sys.stdin:
        order = json.loads(line)
        if not packages and order[0]:
            build_options(order[0][0])
        pid = os.fork()
        if pid == 0:
            command(*order)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def import_collbench() -> None:
    for name in AT_FIRST_USE:
        with suppress(ImportError):  # in another version of theirs
            importlib.import_module(name)
    for folder in (*KERNEL, "features"):
        package = importlib.import_module(f"collbench.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with suppress(
                *[ImportError] * (folder == "features")
            ):  # what runs on ranks needs torch
                importlib.import_module(module.name)
    assert "torch" not in sys.modules
    importlib.import_module("collbench.core.backend_info").list_infos()
    share_options(importlib.import_module("collbench.cli.main")._Commands)


def share_options(commands: Any) -> None:
    """Has a command of the command line be built, with its options, for its first call alone."""
    build = commands.get_command
    built: dict[str, Any] = {}

    def find(group: Any, ctx: Any, name: str) -> Any:
        if name not in built:
            built[name] = build(group, ctx, name)
        return built[name]

    commands.get_command = find


def build_options(name: str) -> None:
    """Builds a command before a process calls it."""
    commands = importlib.import_module("collbench.cli.main")._Commands
    with suppress(Exception):  # there is none, which is for the process to tell
        for option in commands.get_command(None, None, name).params:
            option.get_runtime_param()


def command(args: list[str], env: dict[str, str], folder: str, out: str, err: str) -> None:
    """What the child does: it ends as the command does."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for number, place in enumerate((f"<{os.devnull}", out, err)):
        redirect_stream(number, place)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.path[:0] = [path for path in env["PYTHONPATH"].split(":") if path not in sys.path]
    if args[:1] == ["-c"]:
        end_after(lambda: exec(args[1], {"__name__": "__main__"}))
    from collbench.__main__ import main

    sys.argv = ["collbench", *args]
    end_after(main)


def redirect_stream(number: int, place: str) -> None:
    """Opens or closes a descriptor as a shell does; Python has no stream where it is closed."""
    if place == ">&-":
        os.close(number)
        name = ("stdin", "stdout", "stderr")[number]
        setattr(sys, name, None)
        setattr(sys, f"__{name}__", None)
        return
    if place == ">|":
        reading, opened = os.pipe()
        os.close(reading)
    else:
        flags = os.O_RDONLY if place[0] == "<" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(place[1:], flags, 0o600)
    os.dup2(opened, number)
    os.close(opened)


def end_after(main: Callable[[], object]) -> NoReturn:
    """Ends this process as Python does after ``main``, but for taking its modules down, which a
    command's own work takes no longer than."""
    status = 1
    try:
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1:])
