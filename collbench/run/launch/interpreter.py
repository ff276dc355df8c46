"""The interpreter and environment that ranks live in where these are not this process's own: those
of a side of an experiment, here or on another host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from collbench.core import files
from collbench.core.errors import CannotRun, UsageError

SideName = Literal["base", "head"]

NEEDED = (
    "torch",
    "numpy",
    "msgspec",
    "psutil",
)  # what a fork server imports, but for collbench itself

ASK_SECONDS = 120.0

ASK = """
import importlib.util as u, json, os, sys
missing = [name for name in sys.argv[1].split() if u.find_spec(name) is None]
if sys.version_info < (3, 11):
    told = {"version": sys.version.split()[0]}
elif missing:
    told = {"missing": missing}
else:
    from collbench.machine import environment
    told = environment.gather_software(os.environ)
print(json.dumps(told))
"""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One side, as given (``text``): an interpreter, settings of the environment, a backend or
    algorithm in place of the suite's, a revision of the repository here. What is empty stays as it
    is."""

    text: str
    python: str = ""
    env: tuple[tuple[str, str], ...] = ()
    backend: str = ""
    algorithm: str = ""
    revision: str = ""

    @property
    def differs(self) -> tuple[str, ...]:
        """Fields of Case that this side sets."""
        return tuple(name for name in ("backend", "algorithm") if getattr(self, name))


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """The home of a side's ranks: the interpreter, its whole environment, and what there is to
    say of both; the ``variables`` that the side sets, and the ``tree`` it was built in, if any."""

    python: str
    settings: dict[str, str]
    described: dict[str, Any]
    variables: dict[str, str] = {}
    tree: str = ""


def isolate_settings(settings: dict[str, str], folder: Path) -> dict[str, str]:
    """An environment in which Python finds the same harness on both sides, by a link in a private
    folder, without our other packages."""
    alone = folder / "collbench-alone"
    alone.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        (alone / "collbench").symlink_to(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (str(alone), settings.get("PYTHONPATH"))))
    # else the current folder, which may hold one side's library, goes before both
    return {**settings, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def builds_folder() -> Path:
    """The folder in which checked-out revisions are built and kept."""
    return files.home_folder() / "builds"


def is_asked_for(
    variant: Variant, option: str, python: str, variables: Mapping[str, str], tree: str
) -> bool:
    """Whether a home's interpreter, "" for this one, variables and tree are what is asked for of a
    side here, where a tree lies among the builds of whoever asks."""
    if tree and not (variant.revision and Path(tree).parent == builds_folder()):
        return False

    def placed(text: str) -> str:
        return text.replace("{tree}", tree)

    requested = (
        find_interpreter(placed(variant.python), option) if python and variant.python else ""
    )
    return python == requested and variables == {name: placed(value) for name, value in variant.env}


def refuse_absent(tree: str, option: str) -> None:
    """Raises CannotRun on a host that does not see the tree a revision was built in."""
    if tree and not Path(tree).is_dir():
        raise CannotRun(
            f"{option}: {tree}, where the revision was built, does not exist here",
            "set COLLBENCH_HOME to a folder on a file system of all hosts, where builds are kept",
        )


def find_interpreter(text: str, option: str) -> str:
    """The executable in ``text``: a path, a virtual environment's folder, or a name on PATH."""
    inside = files.expand_path(text) / "bin" / "python"
    # a Path loses "./"
    program = str(inside) if inside.is_file() else shutil.which(os.path.expanduser(text))  # noqa: PTH111
    if program is None:
        raise UsageError(
            f"{option}: there is no interpreter '{text}'",
            "give the path of a python, or of a virtual environment",
        )
    # never resolved: a virtual environment's python is a link to the system's
    return str(Path(program).absolute())


def ask_software(python: str, settings: dict[str, str], option: str) -> dict[str, Any]:
    """The interpreter, libraries and settings of a side, on this machine. Raises CannotRun and
    UsageError where no rank can be started so."""
    try:
        done = subprocess.run(
            [python, "-c", ASK, " ".join(NEEDED)],
            env=settings,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=ASK_SECONDS,
        )
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as e:
        raise CannotRun(f"{option}: {python} does not start: {e}", "try it by hand") from e
    except (ValueError, IndexError):
        reason = (done.stderr.strip().splitlines() or [f"it exited with status {done.returncode}"])[
            -1
        ]
        raise CannotRun(
            f"{option}: {python} cannot run collbench: {reason}",
            "use a Python 3.11 or later",
        ) from None
    if "cannot be preloaded" in done.stderr:
        raise UsageError(f"{option}: {done.stderr.strip().splitlines()[0]}", "check the path")
    if "version" in answer:
        raise CannotRun(
            f"{option}: {python} is Python {answer['version']}", "use Python 3.11 or later"
        )
    if missing := answer.get("missing"):
        names = " ".join(missing)
        raise CannotRun(
            f"{option}: {python} has no {', '.join(missing)}", f"{python} -m pip install {names}"
        )
    return answer
