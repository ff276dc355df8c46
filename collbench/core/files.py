"""Files as they are read, within bounds; files and folders as they are made: whole or not at all,
and for their owner alone where they may describe a machine."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import count, takewhile
from pathlib import Path
from typing import Any, TextIO

from collbench.core.errors import CannotRun, UsageError
from collbench.core.text import readable_text

DEEP = re.compile(  # a key of many parts, which takes the square of their number to read
    r"""(?<![\w"'-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}"""
)

END = 1 << 20  # bytes of a file's end in which a mark may be
CRASH_PREFIX, CRASH_END = "collbench-crash-", ".txt"  # names of tracebacks
MAX_CRASHES, CRASH_SECONDS = 20, 3600.0  # tracebacks that stay; how long those beyond do

# how files begin that are packed other than by gzip, what they are, and what unpacks them
ARCHIVES = {
    b"PK\3\4": ("a zip archive", "unzip"),
    b"\xfd7zXZ\0": ("packed by xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("packed by zstd", "unzstd"),
    b"BZh": ("packed by bzip2", "bunzip2"),
    b"\x04\x22\x4d\x18": ("packed by lz4", "unlz4"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "7z x"),
}


def recognise_archive(start: bytes) -> tuple[str, str]:
    """The kind of archive that begins so, "a zip archive", and the command that unpacks it; two
    empty strings where it is neither an archive nor packed, or packed by gzip, which is read."""
    if start[257:262] == b"ustar":
        return "a tar archive", "tar -xf"
    return next((what for magic, what in ARCHIVES.items() if start.startswith(magic)), ("", ""))


def number_names(stem: str, suffix: str) -> Iterator[str]:
    """Names to take the first free one of: STEM.suffix, STEM-2.suffix and so on, without end."""
    yield f"{stem}{suffix}"
    for number in count(2):
        yield f"{stem}-{number}{suffix}"


def open_private(path: Path, how: int = 0) -> TextIO:
    """A text file to write that only its owner may read, as a run, whose description it may hold;
    one that is there keeps who may. ``how`` are further flags of open(2)."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | how
    descriptor = os.open(path, flags, 0o600)
    return os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace")


def home_folder() -> Path:
    """Where runs and all else is kept: $COLLBENCH_HOME, else collbench under the XDG state folder.
    Raises CannotRun if HOME is unknown."""
    if os.environ.get("COLLBENCH_HOME"):
        return expand_path(os.environ["COLLBENCH_HOME"])
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        raise CannotRun(
            "there is no place for runs: HOME is not set, and this user has no home folder",
            "set COLLBENCH_HOME to a folder, or measure with --no-save",
        ) from None
    return Path(state) / "collbench"


def keep_traceback(text: str) -> str:
    """A sentence that says in which file the text lies now: in the folder of crashes, else in
    TMPDIR; one without a file if neither has room."""
    import tempfile  # only here: --help imports this module

    finders: tuple[Callable[[], Path], ...] = (
        lambda: home_folder() / "crashes",
        lambda: Path(tempfile.gettempdir()),
    )
    for find_folder in finders:
        with suppress(OSError, CannotRun, UsageError):
            folder = find_folder()
            make_folder(folder)
            _remove_old_crashes(folder)
            handle, path = tempfile.mkstemp(CRASH_END, CRASH_PREFIX, folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(text.encode(errors="backslashreplace"))
            except OSError:  # the disk is full
                Path(path).unlink()
                raise
            return f"its traceback is in {path}"
    return "there is no room to keep its traceback"


def _remove_old_crashes(folder: Path) -> None:
    """Remove this user's tracebacks but for the last ones and those of the last hour, which a
    message may just have named: a crash of a world has one from each rank."""
    times = {}
    for path in folder.glob(f"{CRASH_PREFIX}*{CRASH_END}"):
        with suppress(OSError):  # others remove them, too
            status = path.lstat()
            if status.st_uid == os.getuid():
                times[path] = status.st_mtime
    by_age = sorted(times, key=lambda path: times[path], reverse=True)
    for path in by_age[MAX_CRASHES - 1 :]:
        if times[path] < time.time() - CRASH_SECONDS:
            with suppress(OSError):
                path.unlink()


def read_bytes(path: Path, most: int) -> bytes:
    """The contents of a file. Raises OSError, and ValueError where it is more than ``most`` bytes,
    of which none is in memory beyond these."""
    with path.open("rb") as f:
        if len(data := f.read(most + 1)) > most:
            raise ValueError(f"it is larger than {most >> 10:,} KiB")
    return data


def read_toml(path: Path, most: int) -> tuple[str, dict[str, Any]]:
    """The text of a TOML file, and what it says. Raises as ``read_bytes``, and ValueError for what
    is none."""
    import tomllib  # only here: --help imports this module

    text = read_bytes(path, most).decode("utf-8-sig")
    if DEEP.search(text):
        raise ValueError("its keys are too deep")
    return text, tomllib.loads(text)


def expand_path(text: str) -> Path:
    """A path in which ``~`` is a home folder. Raises UsageError where that is not known."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{text}: this home folder is unknown",
            "write the whole path: HOME is not set, or no user has this name",
        ) from None


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, for their owner alone."""
    missing = takewhile(lambda parent: not parent.exists(), [folder, *folder.parents])
    for parent in reversed([*missing]):
        parent.mkdir(mode=0o700, exist_ok=True)


def refuse_foreign_file(path: Path, mark: str, option: str = "-o", at_end: bool = False) -> None:
    """Raises UsageError for a file that somebody else wrote, as ``mark`` is not near its beginning,
    or ``at_end`` in its last MiB; CannotRun for a place that cannot be written to."""
    try:
        if not _leads_on(path):
            refuse_no_folder(path, option)
        with path.open("rb") if path.is_file() else nullcontext() as f:
            if f and at_end:
                f.seek(-min(END, path.stat().st_size), os.SEEK_END)
            text = f.read(END if at_end else len(mark.encode()) + 100) if f else b""
    except OSError as e:
        raise _cannot_write(path, e, option) from e
    if text and mark.encode() not in text:
        raise UsageError(
            f"{path} exists and was not written by collbench; not overwritten",
            f"choose another place with {option}, or remove it",
        )


def _leads_on(path: Path) -> bool:
    """Whether what is written there goes elsewhere, as through a link or to a device."""
    return path.is_symlink() or (path.exists() and not path.is_file())


def refuse_no_folder(path: Path, option: str) -> None:
    """Raises CannotRun where a file of this name has no folder to lie in."""
    folder = os.path.abspath(path.parent)  # noqa: PTH100 - for a link, the folder it is in
    if os.access(folder, os.W_OK | os.X_OK):
        return
    name = "the current folder" if path.parent == Path() else f"folder {path.parent}"
    if os.path.isdir(folder):  # noqa: PTH112
        raise CannotRun(
            f"cannot write {path}: no write permission in {name}",
            f"choose another place with {option}",
        )
    raise CannotRun(
        f"cannot write {path}: {name} does not exist",
        f"make it, or choose another place with {option}",
    )


def save_text(
    path: Path, text: str, mark: str = "", option: str = "-o", shared: bool = False
) -> int:
    """Writes a text file whole or not at all, and returns its bytes. What was there before stays
    until then, and is replaced where it begins with ``mark``, by default the whole text. A new one
    only its owner may read unless it is ``shared``, others who might before. Raises UsageError and
    CannotRun."""
    refuse_foreign_file(path, mark or text, option)
    data = readable_text(text).encode()
    replace_file(path, data, option, shared)
    return len(data)


def replace_file(path: Path, data: bytes, option: str = "-o", shared: bool = False) -> None:
    """Writes a file as ``save_text`` does, whatever was there before. Raises CannotRun."""
    direct = _leads_on(path)
    draft = path if direct else path.with_name(f".{path.name}-{os.getpid()}")
    try:
        if not direct and (path.exists() or not shared):
            open_private(draft).close()
        if not direct and path.exists():
            before = path.stat()
            with suppress(OSError):  # a group that is not the user's
                os.chown(draft, -1, before.st_gid)
            with suppress(OSError):  # a file system without
                draft.chmod(stat.S_IMODE(before.st_mode))
        draft.write_bytes(data)
        if not direct:
            draft.replace(path)
    except BaseException as e:
        if not direct:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        if isinstance(e, OSError):
            raise _cannot_write(path, e, option) from e
        raise


def _cannot_write(path: Path, error: OSError, option: str) -> CannotRun:
    hint = f"choose another place with {option}, or free some space"
    return CannotRun(f"cannot write {path}: {error.strerror}", hint)
