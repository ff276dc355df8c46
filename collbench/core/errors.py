"""Errors a person is meant to read, and the exit codes of every command."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What the process returns, the same for all commands."""

    OK = 0
    BAD = 1
    USAGE = 2
    NO_VERDICT = 3
    TIMEOUT = 4
    CANNOT_RUN = 5
    WRONG_DATA = 7
    FAULT = 70
    INTERRUPTED = 130


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something; its type where none does. Behind
    it stands what NCCL called its last error, which says more than torch's line."""
    message, _, cause = str(error).partition("\nLast error:")
    found = [
        next((line for line in text.splitlines() if line.strip(" -=\t")), "")
        for text in (message, cause)
    ]
    return ": ".join(line.strip() for line in found if line) or type(error).__name__


PEER_IS_GONE = (  # the words of Gloo and sockets, then those of NCCL and RCCL
    "closed by peer",
    "connection reset",
    "broken pipe",
    "closed by remote peer",
    "remote process exited or there was a network error",
)


def says_peer_is_gone(message: str) -> bool:
    """Whether a library's error only reports that another process went away, or cannot be
    reached."""
    return any(phrase in message.lower() for phrase in PEER_IS_GONE)


class CollbenchError(Exception):
    """An error with one line of what happened and one of what to do; the CLI prints both without a
    traceback."""

    exit = Exit.CANNOT_RUN

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def reason(self) -> str:
        """The message with the hint behind it, for a record's note."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(CollbenchError):
    """The command line or a file given to it asks for something that does not exist."""

    exit = Exit.USAGE


class AlgorithmError(UsageError):
    """A user's algorithm raises, yields what is no step, or is wrong where it must be right."""


class CannotRun(CollbenchError):
    """What was asked is meaningful, but not on this machine: backend, ranks or memory are
    missing."""


class NoVerdict(CollbenchError):
    """Nothing of what was given may be judged."""

    exit = Exit.NO_VERDICT


class RunBroken(CollbenchError):
    """A rank died, hung or never came. The message names it; ``job`` is the place in the plan it
    had come to."""

    exit = Exit.TIMEOUT

    def __init__(self, message: str, hint: str = "", job: int | None = None) -> None:
        super().__init__(message, hint)
        self.job = job
