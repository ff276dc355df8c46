"""Private folders in TMPDIR that last as long as somebody works in them. What a killed process has
left is removed by the next start of this user.

Who works in one holds a lock on it, which the kernel takes back however that process ends, in
whatever PID namespace. Where a disk has no such locks nothing is swept.

Hosts may share TMPDIR, and a lock on a directory of NFS holds on one host only. So names say which
boot of which machine a folder is of, and a start sweeps those of its own boot. What other boots and
earlier versions have left stays.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from collbench.core.errors import CannotRun, RunBroken
from collbench.core.text import is_readable
from collbench.machine.sysfs import hash_identity

PREFIX = "collbench-tmp-"


@contextmanager
def make_private() -> Iterator[Path]:
    """A new folder, this process's alone, which goes with all that is in it. Raises RunBroken where
    the one above it was removed, CannotRun where that has no path that libraries take."""
    parent = find_temporary_folder()
    refuse_unreadable_folder(str(parent))
    sweep_folders(parent)
    opened = None
    while opened is None:
        try:
            folder = Path(tempfile.mkdtemp(prefix=make_prefix()))
        except FileNotFoundError as e:
            what = f"the folder of temporary files, {parent}, was removed"
            raise RunBroken(what, "keep it from being cleaned, or set TMPDIR to another") from e
        opened = hold_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(opened)


def make_prefix() -> str:
    """The beginning of the names of this boot's folders: 23 characters, as paths of sockets are
    short. Containers of one machine have the same."""
    # the process in which ranks meet is to be up soon, and sweeps only at its end
    from collbench.machine import environment

    boot = environment.boot_id() or hash_identity(environment.host_name())
    return f"{PREFIX}{boot[:8]}-"


def find_temporary_folder() -> Path:
    """The folder of temporary files. Raises CannotRun where none can be written to."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        raise CannotRun(
            "no folder for temporary files can be written to",
            "set TMPDIR to a folder that can be written",
        ) from None


def refuse_unreadable_folder(path: str) -> None:
    """Raises CannotRun where a path is not UTF-8, as which libraries take it."""
    if not is_readable(path):
        raise CannotRun(
            f"the path of the temporary folder, {path}, is not UTF-8",
            "set TMPDIR to another",
        )


def hold_folder(folder: Path) -> int | None:
    """A descriptor of a folder that is not swept until it is closed; None where it just was."""
    opened = None
    with suppress(FileNotFoundError):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_SH)
        if os.path.samestat(os.fstat(opened), folder.stat()):
            return opened
    if opened is not None:
        os.close(opened)
    return None


def sweep_folders(parent: Path) -> None:
    """Remove the folders there that this user's processes have left since this machine was booted,
    and nobody holds."""
    for folder in parent.glob(f"{make_prefix()}*"):
        with suppress(OSError):  # it is somebody's, or has no locks, or is gone
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(opened).st_uid == os.getuid():
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            finally:
                os.close(opened)
