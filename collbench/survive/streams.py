"""Descriptors 0 to 2 of a process of ours, which may be closed or may take nothing."""

from __future__ import annotations

import codecs
import io
import os
import sys
from contextlib import suppress
from typing import Any

from collbench.core.text import spell_out

SPELLED = "collbench"  # the name of what an encoding does with letters that it lacks
codecs.register_error(SPELLED, spell_out)


class LossyFile(io.FileIO):
    """A descriptor that raises nothing: it drops what cannot be written, as on a full disk, into a
    pipe that nobody reads or to a terminal that is gone."""

    def write(self, data: Any) -> int:
        """Write all of it, or lose the rest where that fails; the length of ``data``."""
        rest = memoryview(data).cast("B")
        total = len(rest)
        with suppress(OSError):
            while rest and (written := super().write(rest)):
                rest = rest[written:]
        return total


def secure_streams() -> None:
    """Opens those of descriptors 0 to 2 that are closed, so that no other file of this process gets
    their numbers, and makes standard error a stream that raises nothing. A process calls it once,
    before it opens anything."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        _open_if_closed(number)
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", errors=SPELLED, closefd=False)  # noqa: SIM115
            _replace_stream(name, stream)
    if isinstance(sys.stderr, io.TextIOWrapper):
        _replace_stream("stderr", _make_unfailing(sys.stderr))


def _replace_stream(name: str, stream: Any) -> None:
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _open_if_closed(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)


def _make_unfailing(stream: io.TextIOWrapper) -> Any:
    with suppress(OSError):
        stream.flush()
    raw = LossyFile(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(raw, stream.encoding, SPELLED, write_through=True)
