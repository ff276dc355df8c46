"""Commands of collbench in processes of their own, forked from one that has imported once what they
need: collbench, where torch cannot be imported; or packages of others, for a copy of collbench.

Started as a script it is that process: an order of a line of JSON makes a child with these
arguments, settings, folder and outputs, and is answered by the child's exit status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from paths import before

KERNEL = ("core", "survive", "machine", "suite", "records", "show", "cli")  # none needs torch


class Server:
    """``server(*args, **env)`` runs ``collbench ARGS``; the result has returncode, stdout and
    stderr. ``packages`` of others are imported once in place of collbench: each command then
    imports the collbench that PYTHONPATH of its ``env`` names, and ``-c CODE`` runs code."""

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

    def __call__(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        paths = [self.folder / "stdout", self.folder / "stderr"]
        settings = {**os.environ, "PYTHONPATH": before(self.folder), **env}
        order = [args, settings, str(Path.cwd()), *map(str, paths)]
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
        pid = os.fork()
        if pid == 0:
            command(*json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def import_collbench() -> None:
    for folder in (*KERNEL, "features"):
        package = importlib.import_module(f"collbench.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with suppress(
                *[ImportError] * (folder == "features")
            ):  # what runs on ranks needs torch
                importlib.import_module(module.name)
    assert "torch" not in sys.modules


def command(args: list[str], env: dict[str, str], folder: str, out: str, err: str) -> None:
    """What the child does: it ends as the command does."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for number, path in ((0, os.devnull), (1, out), (2, err)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if "collbench" not in sys.modules:
        sys.path[:0] = env["PYTHONPATH"].split(":")
    if args[:1] == ["-c"]:
        exec(args[1], {"__name__": "__main__"})
        sys.exit(0)
    from collbench.cli.main import main

    sys.argv = ["collbench", *args]
    main()
    sys.exit(0)


if __name__ == "__main__":
    serve(sys.argv[1:])
