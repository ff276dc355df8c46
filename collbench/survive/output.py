"""Standard output of a command, which may end in a pipe that nobody reads or on a full disk."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from collbench.core.text import print_message
from collbench.survive.streams import SPELLED


def reopen_stdout() -> Any:
    """Standard output at a descriptor that only this command writes to: where it is a rank, what
    libraries write to descriptor 1 goes to standard error (join.py)."""
    inherited = sys.stdout
    if not isinstance(inherited, io.TextIOWrapper):
        return inherited or io.StringIO()
    inherited.reconfigure(errors=SPELLED)  # what its encoding lacks is no reason to stop
    try:
        descriptor = os.dup(inherited.fileno())
    except OSError:
        return inherited  # it has none
    unbuffered = inherited.write_through
    return io.TextIOWrapper(
        os.fdopen(descriptor, "wb", buffering=0 if unbuffered else -1),
        inherited.encoding,
        inherited.errors,
        line_buffering=inherited.line_buffering,
        write_through=unbuffered,
    )


class ResilientOutput:
    """Standard output that never ends what the command does. What cannot be written is given up:
    without a word where nobody reads on (``closed_early``), told once where the disk is full
    (``lost``)."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self.closed_early = self.lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def write(self, text: str) -> int:
        """Write text, or lose it where nobody reads on; its length."""
        return self._tried(partial(self._out.write, text)) or len(text)

    def flush(self) -> None:
        """Flush, or do nothing where nobody reads on."""
        self._tried(self._out.flush)

    def _tried(self, act: Callable[[], Any]) -> Any:
        if self.closed_early or self.lost:
            return None
        try:
            return act()
        except BrokenPipeError:
            self.closed_early = True
        except OSError as e:
            self.lost = True
            print_message(f"standard output: {e.strerror}; what follows is not printed")
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with suppress(OSError, ValueError):  # what it still holds goes there when Python ends
            os.dup2(nowhere, self._out.fileno())
        return None
