"""The file of an advice as ranks read it while it is verified: under a name of its own, and gone
afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from collbench.core.errors import CannotRun
from collbench.features.advise.formats import Format
from collbench.features.advise.formats.files import list_paths, write_files
from collbench.features.advise.types import Advised
from collbench.run.launch.places import PlaceSource
from collbench.suite.sweep import Suite

SOURCED = ".sh"  # what names of files end in that a shell reads: ranks see variables only


@contextmanager
def lay_file(
    form: Format, advised: Advised, folder: Path, is_shared: bool
) -> Iterator[dict[str, str]]:
    """The variables by which ranks read the advice's file within the ``with`` block. ``is_shared``:
    the folder is not private."""
    path = folder / _make_name(form.suffix)
    try:
        write_files(form, advised, path, shared=is_shared)
        yield form.use(path)
    finally:
        for each in list_paths(form, path):
            each.unlink(missing_ok=True)


def _make_name(suffix: str) -> str:
    return f".collbench-{secrets.token_hex(6)}{suffix}"


def refuse_unshared(
    form: Format, source: PlaceSource, suite: Suite, folder: Path, seconds: float
) -> None:
    """Raises CannotRun where ranks on other hosts would not read the file that is written to
    ``folder`` here: a library that finds none goes on without a word, and hosts that run different
    algorithms hang."""
    if not form.by_size or form.suffix == SOURCED:
        return
    path = folder / _make_name(".txt")
    try:
        path.write_text(f"{secrets.token_hex(16)}\n")
    except OSError as e:
        raise CannotRun(f"cannot write to {folder}: {e.strerror}", "choose another --write") from e
    try:
        with closing(source.hold_places(suite, seconds)) as places:
            if hosts := places.list_unlike(path):
                raise CannotRun(
                    f"{folder} is not the same folder on {', '.join(hosts)}, where ranks have to"
                    f" read {form.title}",
                    "--write FILE in a folder that all hosts share, or --for words",
                )
    finally:
        path.unlink(missing_ok=True)
