"""The two sides of an interleaved comparison: what a variant is, and how a revision becomes one."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

from collbench.core import algorithms, files
from collbench.core.backend_info import resolve_backend
from collbench.core.errors import CannotRun, UsageError
from collbench.core.text import print_message, suggest_name
from collbench.machine import environment, variables
from collbench.run import refusal
from collbench.run.launch.interpreter import (
    Home,
    SideName,
    Variant,
    ask_software,
    builds_folder,
    find_interpreter,
    isolate_settings,
)
from collbench.suite.case import Case
from collbench.suite.sweep import Suite

EXAMPLE = (
    "words such as 'NCCL_ALGO=Ring', python:.venv-new/bin/python, backend:shm, algo:ring, git:main"
)

FETCH = "fetch it first (in CI: fetch-depth: 0); git:REV takes what git rev-parse does"

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # of a file system that has none

NEAR = 2_000  # names of branches and tags that a misspelt revision is held against

IN_REPOSITORY = re.compile(
    r"GIT_(DIR|WORK_TREE|INDEX_FILE|COMMON_DIR|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES|PREFIX|NAMESPACE)"
)


def parse_variant(text: str, option: str) -> Variant:
    """A variant from its words, quoted as in a shell. Raises UsageError."""
    try:
        tokens = shlex.split(text)
        text.encode()
    except ValueError as e:
        raise UsageError(f"{option} '{text}': {e}", EXAMPLE) from e
    fields: dict[str, str] = {}
    env: dict[str, str] = {}
    kinds = {"python": "python", "backend": "backend", "algo": "algorithm", "git": "revision"}
    for word in tokens:
        kind, colon, value = word.partition(":")
        if re.match(r"[A-Za-z_]\w*=", word):
            name, _, setting = word.partition("=")
            if _is_secret(word):
                raise UsageError(
                    f"{option} {name}: it has a secret or a GPU's UUID, which no run's file keeps",
                    f"export {name} instead",
                )
            env[name] = setting
        elif colon and value and kind in kinds:
            if kinds[kind] in fields:
                raise UsageError(
                    f"{option} '{text}': {kind} is given twice", f"give one {kind} per side"
                )
            fields[kinds[kind]] = value
        else:
            raise UsageError(f"{option}: '{word}' is not understood", EXAMPLE)
    return Variant(text=text, env=tuple(env.items()), **fields)


def load_files(variant: Variant, option: str, collectives: Sequence[str]) -> Variant:
    """The side with the names of its backend and algorithm where these are in files
    (backend:./my.py, algo:./line.py:line), known from here on, in this process and those it starts.
    Raises UsageError where one cannot be had."""
    backend, algorithm = variant.backend, variant.algorithm
    owner = collectives[0] if len(collectives) == 1 else ""
    try:
        backend = resolve_backend(backend)
        algorithm = algorithms.spell_algorithm(algorithms.add_file(algorithm, owner), owner)
    except UsageError as e:
        raise UsageError(f"{option}: {e.message}", e.hint) from e
    return msgspec.structs.replace(variant, backend=backend, algorithm=algorithm)


def refuse_unknown(variant: Variant, suite: Suite, option: str) -> None:
    """Raises UsageError for a backend, unless it is another interpreter's to know, or an algorithm
    that there is not, and for a setting that means nothing to the side's backends."""
    troubles: list[UsageError] = []
    for name in suite.values("collectives") if variant.algorithm not in ("", "native") else ():
        try:
            algorithms.find_variant(name, variant.algorithm)
            break
        except UsageError as e:
            troubles.append(e)
    else:
        for trouble in troubles:
            raise UsageError(f"{option}: {trouble.message}", trouble.hint)
    if variant.backend and not variant.python:
        refusal.refuse_unknown_backends([variant.backend])
    swept = [variant.backend] if variant.backend else suite.values("backends")
    for name in refusal.ineffective_settings(dict(variant.env), swept):
        raise UsageError(
            f"{option}: {name} means nothing to {' or '.join(swept)}",
            f"leave {name} out, or name a backend that reads it (backend:nccl)",
        )


def refuse_unfit(variant: Variant, option: str) -> None:
    """Raises UsageError for what can be told of a side before anything is built: a revision that
    there is not or that nothing uses, ``{tree}`` without one, an interpreter that there is not."""
    texts = (variant.python, *(value for _, value in variant.env))
    placed = any("{tree}" in word for word in texts)
    if variant.revision and not placed:
        raise UsageError(
            f"{option}: git:{variant.revision} would be built, but nothing uses it",
            "say where it is found: python:{tree}/.venv, or LD_LIBRARY_PATH={tree}/lib",
        )
    if placed and not variant.revision:
        raise UsageError(
            f"{option} '{variant.text}': {{tree}} is used without git:REV, which is built there",
            "add git:REV to this side, such as git:main",
        )
    if variant.revision:
        _find_commit(variant.revision, option)
    if variant.python and "{tree}" not in variant.python:
        find_interpreter(variant.python, option)


def apply_variant(cases: Iterable[Case], variant: Variant) -> list[Case]:
    """The cases with the backend and algorithm of this side, each once."""
    changes = {name: getattr(variant, name) for name in variant.differs}

    def change_case(case: Case) -> Case:
        changed = msgspec.structs.replace(case, **changes)
        name = algorithms.spell_algorithm(changed.algorithm, case.collective)
        return msgspec.structs.replace(changed, algorithm=name)

    return list(dict.fromkeys(map(change_case, cases)))


def _is_secret(word: str) -> bool:
    bare = variables.DEVICE_UUID.sub("", word)  # which is masked, but is no secret
    return variables.mask_text(bare) != bare


class Build:
    """The command that builds revisions, and whether to run it though there is a result of it
    already. Trees are locked until this is closed: no other experiment rebuilds what is
    measured."""

    def __init__(self, command: str, again: bool = False) -> None:
        self.command, self.again = command, again
        self.locks: dict[Path, TextIO] = {}  # by tree
        self.unbuilt: set[Path] = set()  # trees that nobody else may use before they are built

    def lock_trees(self, trees: Iterable[Path]) -> None:
        """Lock the trees that are not locked yet, in the order that all experiments keep: crosswise
        they would wait for each other for ever."""
        for tree in sorted({*trees} - {*self.locks}):
            self._lock_tree(tree)

    def _lock_tree(self, tree: Path) -> None:
        files.make_folder(tree.parent)
        # a shared lock on NFS takes a file that is open for reading, an exclusive one for writing
        lock = self.locks[tree] = (tree.parent / f"{tree.name}.lock").open("a+")
        done = _mark_of(tree)
        while not _take_lock(lock, fcntl.LOCK_EX, f"uses {tree}" if self.again else ""):
            _take_lock(lock, fcntl.LOCK_SH, f"builds {tree}")
            if done.is_file() and tree.is_dir():
                return
        if self.again or not (done.is_file() and tree.is_dir()):
            self.unbuilt.add(tree)
        else:
            _take_lock(lock, fcntl.LOCK_SH)

    def close(self) -> None:
        """Unlock the trees."""
        for lock in self.locks.values():
            lock.close()


def settle_homes(
    variants: Mapping[SideName, Variant], build: Build, folder: Path
) -> dict[SideName, Home]:
    """Both sides' homes. Raises UsageError where they come to the same, though not the same was
    asked for."""
    for name, side in variants.items():
        refuse_unfit(side, f"--{name}")
    revisions = [(side.revision, f"--{name}") for name, side in variants.items() if side.revision]
    build.lock_trees(_find_tree(revision, build, option).path for revision, option in revisions)
    homes = {name: settle_home(side, build, f"--{name}", folder) for name, side in variants.items()}
    base, head = variants["base"], variants["head"]
    compared = [
        (homes[n].python, homes[n].settings, variants[n].backend, variants[n].algorithm)
        for n in ("base", "head")
    ]
    if base != head and compared[0] == compared[1]:
        raise UsageError(
            f"--base '{base.text}' and --head '{head.text}' come to the same",
            "make the sides differ, or use --aa to compare a side with itself",
        )
    return homes


def settle_home(variant: Variant, build: Build, option: str, folder: Path) -> Home:
    """Build the revision where there is one, and look the interpreter over. ``folder`` is a private
    place for the time of the experiment. Raises UsageError and CannotRun."""
    refuse_unfit(variant, option)
    tree = _build_tree(variant.revision, build, option) if variant.revision else None

    def placed(text: str) -> str:
        return text.replace("{tree}", str(tree))

    python = find_interpreter(placed(variant.python), option) if variant.python else sys.executable
    variables = {name: placed(value) for name, value in variant.env}
    settings = isolate_settings({**os.environ, **variables}, folder)
    described = environment.gather_facts(tree or Path.cwd()) | ask_software(
        python, settings, option
    )
    return Home(
        python=python,
        settings=settings,
        described=described,
        variables=variables,
        tree=str(tree or ""),
    )


def _find_commit(revision: str, option: str) -> tuple[str, str]:
    """The repository here, and the commit that ``revision`` means in it. Raises UsageError."""
    current = Path.cwd()
    absent = f"{option}: git:{revision} needs a git repository here"
    top = _run_git(["rev-parse", "--show-toplevel"], current, absent, "cd to its repository")
    arguments = ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    try:
        return top, _run_git(
            arguments, current, f"{option}: there is no revision '{revision}' in {top}"
        )
    except UsageError as e:
        names = ["for-each-ref", f"--count={NEAR}", "--format=%(refname:short)"]
        refs = _run_git(
            [*names, "refs/heads", "refs/tags", "refs/remotes"], current, f"{option}: {top}"
        )
        raise UsageError(e.message, suggest_name(revision, refs.split()) or FETCH) from None


class _Tree(NamedTuple):
    """Where a commit of the repository ``top`` is built."""

    path: Path
    top: str
    sha: str


def _find_tree(revision: str, build: Build, option: str) -> _Tree:
    top, sha = _find_commit(revision, option)
    mark = hashlib.sha256(f"{top}\0{build.command}".encode()).hexdigest()[:8]
    return _Tree(builds_folder() / f"{Path(top).name}-{sha[:12]}-{mark}", top, sha)


def _mark_of(tree: Path) -> Path:
    """The file that says that a tree is built."""
    return tree.parent / f"{tree.name}.built"


def _build_tree(revision: str, build: Build, option: str) -> Path:
    """A checkout of ``revision`` in which ``build`` has succeeded, kept so that the next experiment
    need not build.

    A clone rather than a work tree: it leaves no trace in the user's repository, and tools that ask
    git for a version still work.
    """
    tree, top, sha = _find_tree(revision, build, option)
    build.lock_trees([tree])
    if tree in build.unbuilt:
        done = _mark_of(tree)
        done.unlink(missing_ok=True)
        shutil.rmtree(tree, ignore_errors=True)
        _clone_revision(top, revision, sha, tree)
        if build.command:
            print_message(f"building {revision} ({sha[:12]}) in {tree}: {build.command}")
            _run_build(build.command, tree, sha, f"{option}: building {revision}")
        done.touch()
        build.unbuilt.remove(tree)
        _take_lock(build.locks[tree], fcntl.LOCK_SH)
    return tree


def _take_lock(lock: TextIO, kind: int, activity: str = "") -> bool:
    """Whether the lock was had, if need be after waiting for another experiment, of which
    ``activity`` says what it does; without one, at once or not. True on a file system without
    locks. Raises CannotRun."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if not activity:
            return False
        print_message(f"waiting for another collbench ab, which {activity}")
        fcntl.flock(lock, kind)
    except OSError as e:
        if e.errno not in NO_LOCKS:
            raise CannotRun(
                f"cannot lock {lock.name}: {e.strerror}",
                "set COLLBENCH_HOME to a folder of a local disk",
            ) from e
    return True


def _clone_revision(top: str, revision: str, sha: str, tree: Path) -> None:
    """Clone the repository ``top`` to ``tree``, with its submodules, at a commit. Raises UsageError
    and CannotRun."""
    _run_git(
        ["clone", "--quiet", "--shared", "--no-checkout", top, str(tree)],
        Path(top),
        f"cannot clone {top}",
    )
    if _run_git(["rev-parse", "--is-shallow-repository"], Path(top), top) == "true":
        # of which a clone shares no objects, and takes branches and tags alone
        fetch = ["fetch", "--quiet", "--update-shallow", top, sha]
        _run_git(fetch, tree, f"cannot fetch {revision} from {top}", FETCH)
    _run_git(["checkout", "--quiet", "--detach", sha], tree, f"cannot check {revision} out")
    if (tree / ".gitmodules").is_file():
        _run_git(
            ["submodule", "--quiet", "update", "--init", "--recursive"],
            tree,
            f"{revision}'s submodules",
        )


def _run_build(command: str, tree: Path, sha: str, what: str) -> None:
    """Run a build, and end it with everything it has started when this is interrupted. Raises
    CannotRun."""
    surroundings = {**_git_environment(), "COLLBENCH_REVISION": sha, "COLLBENCH_TREE": str(tree)}
    with subprocess.Popen(
        command, shell=True, cwd=tree, env=surroundings, stdout=sys.stderr, start_new_session=True
    ) as process:
        try:
            status = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if status:
        raise CannotRun(f"{what} ended with status {status}", f"try it by hand in {tree}")


def _git_environment() -> dict[str, str]:
    """The environment without what ties git to a repository, as in a hook: it would act on the
    user's own."""
    return {name: value for name, value in os.environ.items() if not IN_REPOSITORY.fullmatch(name)}


def _run_git(arguments: Sequence[str], where: Path, trouble: str, hint: str = "") -> str:
    """The output of a git command. Raises UsageError and CannotRun."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=where,
            env=_git_environment(),
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )
    except FileNotFoundError:
        raise CannotRun(f"{trouble}: git is not installed") from None
    if done.returncode:
        complaints = done.stderr.strip().splitlines()
        raise UsageError(f"{trouble}{f': {complaints[-1]}' if complaints else ''}", hint)
    return done.stdout.strip()
