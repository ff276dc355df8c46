"""Files of advice where they lie: whose they are, and written with what lies beside them."""

from __future__ import annotations

from pathlib import Path

from collbench.core.errors import UsageError, first_line
from collbench.core.files import read_bytes, refuse_foreign_file, save_text
from collbench.features.advise.formats import MARK, Format
from collbench.features.advise.types import Advised


def list_paths(form: Format, path: Path) -> list[Path]:
    """All files of an advice whose first one is ``path``."""
    return [path, *(name_companion(path, each) for each in form.companions)]


def name_companion(path: Path, companion: str) -> Path:
    """The file beside ``path``: rules.json.posix."""
    return path.with_name(path.name + companion)


def refuse_files(form: Format, path: Path) -> None:
    """Raises UsageError for files that somebody else wrote, or whose place is a folder; CannotRun
    where none can be written. For the time before anything is measured."""
    for each in list_paths(form, path):
        if each.is_dir():
            raise UsageError(f"--write {each} is a folder", "name a file in it")
        refuse_foreign_file(each, MARK, "--write")


def write_files(
    form: Format,
    advised: Advised,
    path: Path,
    shared: bool = True,
    final: Path | None = None,
) -> str:
    """Write an advice to ``path``, and what lies beside it; the text of the first file. A companion
    from before that this advice does not have is removed. ``final``: where the file will lie, if
    elsewhere; its first lines name it. Raises UsageError and CannotRun."""
    refuse_files(form, path)
    text = form.write(advised, final or path)
    parts = form.split_parts(text)
    for companion in form.companions:
        beside = name_companion(path, companion)
        if companion in parts:
            save_text(beside, parts[companion], MARK, "--write", shared)
        else:
            beside.unlink(missing_ok=True)
    save_text(path, text, MARK, "--write", shared)
    return text


def read_file(path: Path, most: int = 1 << 20) -> str:
    """The text of a file of advice. Raises UsageError."""
    try:
        return read_bytes(path, most).decode()
    except (OSError, ValueError) as e:
        raise UsageError(f"{path}: {first_line(e)}") from e
