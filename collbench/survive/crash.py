"""Errors that no command expects: those of the machine, and bugs of collbench."""

from __future__ import annotations

import errno
import re
import traceback
from typing import NamedTuple

from collbench.core.errors import CollbenchError, Exit, first_line
from collbench.core.files import keep_traceback

# as Python, torch, C++, the loader of libraries and the kernel say it
NO_MEMORY = re.compile(
    r"^(MemoryError|OutOfMemoryError)|(can't|annot) allocate memory|std::bad_alloc"
    "|failed to map segment"
)

NO_THREAD = "can't start new thread"  # Python's RuntimeError where the kernel says EAGAIN

MEMORY_HINT = "free some, raise ulimit -v, or take fewer ranks, smaller sizes or fewer runs"
_MAY_NOT = "run this as its owner, or name another place (COLLBENCH_HOME, TMPDIR, -o)"
_NO_ROOM = "free some space, or name another place (COLLBENCH_HOME, TMPDIR, -o)"

_NO_FOLDER = "name another place (COLLBENCH_HOME, TMPDIR, -o): a file is where a folder should be"

# errors of the machine and of what a person gave, and what to do about them
HINTS = {
    errno.EACCES: _MAY_NOT,
    errno.EPERM: _MAY_NOT,
    errno.EROFS: _NO_ROOM,
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.ENOTDIR: _NO_FOLDER,
    errno.EEXIST: _NO_FOLDER,
    errno.EISDIR: "name a file: this is a folder",
    errno.ENAMETOOLONG: "name a shorter path",
    errno.ELOOP: "name another path: this is a link that leads to itself",
    errno.EIO: "is its disk or its network well? see dmesg",
    errno.ESTALE: "is its file server there?",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "the machine has too many files open",
    errno.EAGAIN: "raise the limit of processes (ulimit -u; a container's --pids-limit,"
    " podPidsLimit)",
}

# of these errors, those of a process that asks for more than it may have
LIMITS = (errno.EMFILE, errno.ENFILE, errno.EAGAIN)


class Crash(NamedTuple):
    """What a person is told of an error, and the exit code."""

    message: str
    hint: str
    exit: Exit


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the machine, a limit or a device had no memory left for what was asked of it."""
    return bool(NO_MEMORY.search(f"{type(error).__name__}: {error}"))


def describe_error(error: BaseException) -> str:
    """A clause on what befell a process, to follow its name."""
    text = f"{type(error).__name__}: {first_line(error)}"
    return f"ran out of memory ({text})" if is_out_of_memory(error) else f"raised {text}"


def find_exit_code(error: Exception) -> Exit:
    """The exit code of a process that this error ends."""
    if isinstance(error, CollbenchError):
        return error.exit
    known = _explain_machine(error)
    return known.exit if known else Exit.FAULT


def explain_crash(error: Exception) -> Crash:
    """Explain an error of the machine, else a bug in collbench, whose traceback is kept in a
    file."""
    if known := _explain_machine(error):
        return known
    path = keep_traceback("".join(traceback.format_exception(error)))
    summary = f"{type(error).__name__}, {first_line(error)}"
    return Crash(summary, f"this is a bug in collbench, please report it: {path}", Exit.FAULT)


def _explain_machine(error: Exception) -> Crash | None:
    """What is told of an error that is known for the machine's; None of any other."""
    if is_out_of_memory(error):
        return Crash("there is not enough memory", MEMORY_HINT, Exit.CANNOT_RUN)
    if isinstance(error, OSError) and error.errno in HINTS:
        what = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
        return Crash(what, HINTS[error.errno], Exit.CANNOT_RUN)
    if isinstance(error, RuntimeError) and NO_THREAD in str(error):
        return Crash("no thread can be started", HINTS[errno.EAGAIN], Exit.CANNOT_RUN)
    return None
