"""The command line where torch cannot be imported: planning, listing and refusing need none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forked import Server


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As ``cli``, where torch cannot be imported. Each command is a process of its own, but
    collbench is imported once for all of them."""
    server = Server(tmp_path_factory.mktemp("bare"))
    yield server
    server.close()
