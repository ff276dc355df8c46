"""The command line inside this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forked import share_options

from collbench.cli import main as main_


@pytest.fixture(scope="package", autouse=True)
def shared_options() -> Iterator[None]:
    """Making its options takes a command longer than most of what it is asked here."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(main_._Commands, "get_command", main_._Commands.get_command)
        share_options(main_._Commands)
        yield
