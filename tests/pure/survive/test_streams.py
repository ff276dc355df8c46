"""A stream that raises nothing, whatever the descriptor is."""

from __future__ import annotations

import io
import os
import warnings

import pytest
from rich.console import Console

from collbench.core import text
from collbench.survive.streams import SPELLED, LossyFile


def opened(descriptor: int) -> io.TextIOWrapper:
    raw = LossyFile(descriptor, "w")
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


@pytest.fixture(params=["full disk", "no reader", "not for writing", "full pipe"])
def unwritable(request: pytest.FixtureRequest) -> io.TextIOWrapper:
    if request.param == "full disk":
        return opened(os.open("/dev/full", os.O_WRONLY))
    if request.param == "not for writing":
        return opened(os.open(os.devnull, os.O_RDONLY))
    read, write = os.pipe()
    if request.param == "no reader":
        os.close(read)
    else:
        os.set_blocking(write, False)
    return opened(write)


def test_nothing_that_prints_to_it_raises(
    monkeypatch: pytest.MonkeyPatch, unwritable: io.TextIOWrapper
) -> None:
    monkeypatch.setattr("sys.stderr", unwritable)
    for _ in range(2):
        text.print_message("a message" * 20_000, "a hint")
        Console(stderr=True, width=80).print("a table" * 1_000)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a warning", stacklevel=1)
        print("a line" * 20_000, file=unwritable, flush=True)


def test_a_message_does_not_end_a_program_whose_own_standard_error_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr("sys.stderr", full)
        text.print_message("a message")
        with pytest.raises(OSError, match="No space"):
            full.flush()
        monkeypatch.setattr("sys.stderr", None)
        text.print_message("a message")
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_all_that_is_written_arrives() -> None:
    read, write = os.pipe()
    with opened(write) as stream:
        print("µs", "x" * 5_000, file=stream)
    with os.fdopen(read, encoding="utf-8") as arrived:
        assert arrived.read() == f"µs {'x' * 5_000}\n"


def test_letters_that_an_encoding_lacks_are_spelled_out() -> None:
    assert "28 µs ±3 % → α 中\udcff".encode("ascii", SPELLED) == b"28 us +-3 % > alpha ??"
