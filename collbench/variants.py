"""The two sides of an interleaved comparison: what a variant is, and how a revision becomes one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from collbench import environment, store
from collbench.errors import CannotRun, UsageError
from collbench.suite import Case

EXAMPLE = "words such as 'NCCL_ALGO=Ring', python:.venv-new/bin/python, backend:shm, algo:ring, git:main"
NEEDED = ("torch", "numpy", "msgspec", "psutil")  # what a fork server imports, but for collbench itself
ASK = """
import importlib.util as u, json, sys
missing = [name for name in sys.argv[2].split() if u.find_spec(name) is None]
if not missing:
    from pathlib import Path
    from collbench import environment
    gathered = environment.gather(Path(sys.argv[1]))
print(json.dumps({"missing": missing} if missing else gathered))
"""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One side, as given (``text``): an interpreter, settings of the environment, a backend or algorithm in place of
    the suite's, a revision of the repository here. What is empty stays as it is."""

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


def parse(text: str, option: str) -> Variant:
    """A variant from its words, quoted as in a shell. Raises UsageError."""
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise UsageError(f"{option} '{text}': {e}", EXAMPLE) from e
    fields: dict[str, str] = {}
    env: dict[str, str] = {}
    kinds = {"python": "python", "backend": "backend", "algo": "algorithm", "git": "revision"}
    for word in words:
        kind, colon, value = word.partition(":")
        if re.match(r"[A-Za-z_]\w*=", word):
            name, _, setting = word.partition("=")
            if environment.mask(word) != word:
                raise UsageError(f"{option} {name}: settings are kept in the run's file", "export secrets instead")
            env[name] = setting
        elif colon and value and kind in kinds:
            if kinds[kind] in fields:
                raise UsageError(f"{option} '{text}': {kind} is given twice", "one of each per side")
            fields[kinds[kind]] = value
        else:
            raise UsageError(f"{option}: '{word}' is not understood", EXAMPLE)
    return Variant(text=text, env=tuple(env.items()), **fields)


def applied(cases: Iterable[Case], variant: Variant) -> list[Case]:
    """The cases with the backend and algorithm of this side, each once."""
    changes = {name: getattr(variant, name) for name in variant.differs}
    return list(dict.fromkeys(msgspec.structs.replace(case, **changes) for case in cases))


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """Where a side's ranks live: the interpreter, its whole environment, and what there is to say of both."""

    python: str
    settings: dict[str, str]
    described: dict[str, Any]


def settle(variant: Variant, build: str, option: str, folder: Path) -> Home:
    """Build the revision where there is one, and look the interpreter over. ``folder`` is a private place for the time
    of the experiment. Raises UsageError and CannotRun."""
    tree = _tree(variant.revision, build, option) if variant.revision else None

    def placed(text: str) -> str:
        if "{tree}" in text and tree is None:
            raise UsageError(f"{option} '{text}': {{tree}} is where git:REV is built", "add git:REV to this side")
        return text.replace("{tree}", str(tree))

    python = _interpreter(placed(variant.python), option) if variant.python else sys.executable
    settings = {**os.environ, **{name: placed(value) for name, value in variant.env}}
    if python != sys.executable:
        alone = folder / "collbench-alone"  # the same harness on both sides, without our other packages
        alone.mkdir(exist_ok=True)
        if not (alone / "collbench").exists():
            (alone / "collbench").symlink_to(Path(__file__).parent)
        settings["PYTHONPATH"] = os.pathsep.join(filter(None, (str(alone), settings.get("PYTHONPATH"))))
    return Home(python=python, settings=settings, described=_described(python, settings, tree or Path.cwd(), option))


def _interpreter(text: str, option: str) -> str:
    """The executable in ``text``: a path, a virtual environment's folder, or a name on PATH."""
    path = Path(text).expanduser()
    inside = path / "bin" / "python"
    found = str(inside) if inside.is_file() else shutil.which(str(path))
    if found is None:
        raise UsageError(f"{option}: there is no interpreter '{text}'", "the path of a python, or of its environment")
    return str(Path(found).absolute())  # never resolved: a virtual environment's python is a link to the system's


def _described(python: str, settings: dict[str, str], tree: Path, option: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-c", ASK, str(tree), " ".join(NEEDED)], env=settings, capture_output=True, text=True, check=False
    )
    try:
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        reason = (done.stderr.strip().splitlines() or [f"it exited with status {done.returncode}"])[-1]
        raise CannotRun(
            f"{option}: {python} cannot run collbench: {reason}", "it must be a Python 3.11 or later"
        ) from None
    if missing := told.get("missing"):
        names = " ".join(missing)
        raise CannotRun(f"{option}: {python} has no {', '.join(missing)}", f"{python} -m pip install {names}")
    return told


def _tree(revision: str, build: str, option: str) -> Path:
    """A checkout of ``revision`` in which ``build`` has succeeded, kept so that the next experiment need not build.

    A clone rather than a work tree: it leaves no trace in the user's repository, and tools that ask git for a version
    still work.
    """
    top = _git(["rev-parse", "--show-toplevel"], Path.cwd(), f"{option}: git:{revision} needs a git repository here")
    hint = f"{option}: there is no revision '{revision}' in {top}"
    sha = _git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"], Path(top), hint)
    mark = hashlib.sha256(f"{top}\0{build}".encode()).hexdigest()[:8]
    tree = store.home() / "builds" / f"{Path(top).name}-{sha[:12]}-{mark}"
    done = tree.parent / f"{tree.name}.built"
    if done.is_file():
        return tree
    shutil.rmtree(tree, ignore_errors=True)
    tree.parent.mkdir(parents=True, exist_ok=True)
    _git(["clone", "--quiet", "--shared", "--no-checkout", top, str(tree)], Path(top), f"cannot clone {top}")
    _git(["checkout", "--quiet", "--detach", sha], tree, f"cannot check {revision} out")
    if build:
        print(f"building {revision} ({sha[:12]}) in {tree}: {build}", file=sys.stderr)
        surroundings = {**os.environ, "COLLBENCH_REVISION": sha, "COLLBENCH_TREE": str(tree)}
        failed = subprocess.run(build, shell=True, cwd=tree, env=surroundings, stdout=sys.stderr, check=False)
        if failed.returncode:
            raise CannotRun(
                f"{option}: building {revision} ended with status {failed.returncode}", f"try it by hand in {tree}"
            )
    done.touch()
    return tree


def _git(arguments: Sequence[str], where: Path, trouble: str) -> str:
    hint = "fetch it first (in CI: fetch-depth: 0); git:REV takes what git rev-parse does"
    try:
        done = subprocess.run(["git", *arguments], cwd=where, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CannotRun(f"{trouble}: git is not installed") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise UsageError(f"{trouble}{f': {said[-1]}' if said else ''}", hint)
    return done.stdout.strip()
